"""Advice on memory changes no number."""

import ctypes
import sys

import pytest
import torch

from foretaste.tangent.accumulate import LARGE_PAGE, LARGE_PAGE_WORTH, keep_memory, large_pages


@pytest.mark.parametrize(
    "count", [0, 1, LARGE_PAGE_WORTH // 4, LARGE_PAGE_WORTH // 4 + 12345, 3 * LARGE_PAGE_WORTH // 4]
)
def test_the_tensor_is_the_same_and_can_be_written(count):
    t = torch.empty(count)
    assert large_pages(t) is t
    t.copy_(torch.arange(count))
    assert torch.equal(t, torch.arange(count, dtype=torch.float32))


def test_only_whole_pages_inside_the_tensor_are_advised(monkeypatch):
    """Neighbours in memory are not ours to speak of."""
    if sys.platform != "linux":
        pytest.skip("large pages are asked for on Linux only")
    said = []

    class Libc:
        @staticmethod
        def madvise(start, length, advice):
            said.append((start.value, length.value))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Libc)
    t = torch.empty(LARGE_PAGE_WORTH)
    large_pages(t)
    ((start, length),) = said
    assert start % LARGE_PAGE == length % LARGE_PAGE == 0
    assert t.data_ptr() <= start
    assert start + length <= t.data_ptr() + t.nbytes
    assert length >= t.nbytes - 2 * LARGE_PAGE


def test_keeping_memory_can_be_asked_for_anywhere() -> None:
    """It changes no number: whether it saves time depends on the machine, see benchmarks/page_faults.py."""
    keep_memory()
    keep_memory()
    assert float(torch.ones(2 << 20).sum()) == 2 << 20


@pytest.mark.parametrize(("said", "times"), [(None, 1), ("1", 1), ("0", 0)])
def test_glibc_is_left_as_it_is_where_the_user_says_so(said, times, monkeypatch):
    if sys.platform != "linux":
        pytest.skip("glibc is of Linux")
    asked = []

    class Call:
        """A function of C, whose types can be set."""

        def __init__(self, log):
            self.log = log

        def __call__(self, value):
            self.log.append(value)

    class Libc:
        def __init__(self, name):
            self.malloc, self.free = Call(asked), Call([])

    monkeypatch.setattr(ctypes, "CDLL", Libc)
    if said is None:
        monkeypatch.delenv("FORETASTE_KEEP_MEMORY", raising=False)
    else:
        monkeypatch.setenv("FORETASTE_KEEP_MEMORY", said)

    keep_memory.__wrapped__()  # without its cache: once for every process
    assert len(asked) == times
