"""Bytes: budgets as people write them, what a device has to spare, and the peak of a computation's own tensors."""

import ctypes
import mmap
import os
import re
import sys
import weakref
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

BYTE_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


def resolve_budget(budget: int | float | str | None, device: torch.device | None = None) -> int:
    """Bytes. None is 0.9 of what a GPU has free, or 0.5 of what a CPU has, which other programs share."""
    if budget is None:
        return int((0.9 if device is not None and device.type == "cuda" else 0.5) * free_memory(device))
    if isinstance(budget, str):
        match = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*", budget)
        if not match or match[2].upper() not in BYTE_UNITS:
            raise ValueError(f"budget is {budget!r}; expected bytes or a size such as '8GB' or '500MiB'")
        budget = float(match[1]) * BYTE_UNITS[match[2].upper()]
    if isinstance(budget, bool) or not isinstance(budget, (int, float)):
        raise TypeError(f"budget is a {type(budget).__name__}; expected bytes or a size such as '8GB'")
    if budget <= 0:
        raise ValueError(f"budget is {budget}; expected a positive number of bytes")
    return int(budget)


def free_memory(device: torch.device | None = None) -> int:
    """Bytes that are free on the device; on a GPU, with what torch keeps in its cache."""
    if device is not None and device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    try:
        with open("/proc/meminfo") as f:
            return int(re.search(r"MemAvailable:\s+(\d+)", f.read())[1]) * 1024  # type: ignore[index]
    except (OSError, TypeError):
        pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
        return pages * os.sysconf("SC_PAGE_SIZE") if pages else 4 * 10**9


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of live tensors made inside it; ``peak`` is the most there were at once. Any device.

    >>> with PeakMemory() as memory:
    ...     y = torch.ones(1000) * 2
    >>> memory.peak
    8000
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first use imports torch._dynamo, two seconds of everyone's first kernel

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for t in tree_leaves((args, kwargs)):
            if isinstance(t, Tensor):  # made outside, or it would be known: its views are not ours either
                self.count(t, ours=False)
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, Tensor):
                self.count(t, ours=True)
        return out

    def count(self, t: Tensor, ours: bool) -> None:
        store = t.untyped_storage()
        key, size = store._cdata, store.nbytes() if ours else 0
        if key in self.seen:
            return
        self.seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(store, self.forget, key, size)

    def forget(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size


# Memory on a CPU: fresh memory comes page by page, and that costs as much as using it.
#
# Large tensors get large pages; the memory of smaller ones, of which a pass makes hundreds, is kept and used again.


LARGE_PAGE = 2 << 20  # of a large page
LARGE_PAGE_WORTH = 8 * LARGE_PAGE  # bytes, under which it is of no account
LARGEST_KEPT = 31 << 20  # bytes of a tensor that glibc may be brought to keep the memory of: 32 MiB at most


def large_pages(t: Tensor) -> Tensor:
    """The same tensor; on Linux its memory, not yet touched, will come in large pages where the system has them."""
    if (
        sys.platform != "linux"
        or t.device.type != "cpu"
        or t.nbytes < LARGE_PAGE_WORTH
        or not hasattr(mmap, "MADV_HUGEPAGE")
    ):
        return t
    start = -(-t.data_ptr() // LARGE_PAGE) * LARGE_PAGE
    length = (t.data_ptr() + t.nbytes - start) // LARGE_PAGE * LARGE_PAGE
    with suppress(OSError, AttributeError):  # advice only: nothing depends on it
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)
    return t


@cache
def keep_memory() -> None:
    """Once a process: bring glibc to keep what tensors of up to ``MOST`` bytes free, instead of giving it back.

    It maps large blocks anew each time until it has seen one as large freed: so one is, untouched. By chance that
    happens in some processes and not in others, whose passes then take half as long again.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        libc.free(libc.malloc(ctypes.c_size_t(LARGEST_KEPT)))
