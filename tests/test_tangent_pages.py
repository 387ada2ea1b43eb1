"""Advice on memory changes no number."""

import platform
import subprocess
import sys

import pytest
import torch

from foretaste.tangent.memory import LARGE_PAGE, LARGE_PAGE_WORTH, large_pages


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
    t = torch.empty(LARGE_PAGE_WORTH)
    large_pages(t)
    ((start, length),) = said
    assert start % LARGE_PAGE == length % LARGE_PAGE == 0
    assert t.data_ptr() <= start
    assert start + length <= t.data_ptr() + t.nbytes
    assert length >= t.nbytes - 2 * LARGE_PAGE


FAULTS = """
import resource, torch
from foretaste.tangent._pages import keep_memory
if {keep}:
    keep_memory()
def work():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(2 << 20) for _ in range(4)]  # 8 MiB each, 2048 small pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print([work() for _ in range(6)][-1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what glibc does with freed memory")
def test_freed_memory_is_used_again():
    def faults(keep: bool) -> int:
        code = [sys.executable, "-c", FAULTS.format(keep=keep)]
        return int(subprocess.run(code, capture_output=True, text=True, check=True).stdout)

    assert faults(keep=True) < 100
    assert faults(keep=False) > 2048  # else there is nothing to keep, and keep_memory can go
