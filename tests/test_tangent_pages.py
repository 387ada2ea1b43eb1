"""Advice on memory changes no number."""

import pytest
import torch

from foretaste.tangent._pages import PAGE, WORTH, large_pages


@pytest.mark.parametrize("count", [0, 1, WORTH // 4, WORTH // 4 + 12345, 3 * WORTH // 4])
def test_the_tensor_is_the_same_and_can_be_written(count):
    t = torch.empty(count)
    assert large_pages(t) is t
    t.copy_(torch.arange(count))
    assert torch.equal(t, torch.arange(count, dtype=torch.float32))


def test_only_whole_pages_inside_the_tensor_are_advised(monkeypatch):
    """Neighbours in memory are not ours to speak of."""
    import ctypes
    import sys

    if sys.platform != "linux":
        pytest.skip("large pages are asked for on Linux only")
    said = []

    class Libc:
        @staticmethod
        def madvise(start, length, advice):
            said.append((start.value, length.value))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Libc)
    t = torch.empty(WORTH)
    large_pages(t)
    ((start, length),) = said
    assert start % PAGE == length % PAGE == 0
    assert t.data_ptr() <= start
    assert start + length <= t.data_ptr() + t.nbytes
    assert length >= t.nbytes - 2 * PAGE
