"""Memory on a CPU: fresh memory comes page by page, and that costs as much as using it.

Large tensors get large pages; the memory of smaller ones, of which a pass makes hundreds, is kept and used again.
"""

import ctypes
import mmap
import sys
from contextlib import suppress
from functools import cache

from torch import Tensor

PAGE = 2 << 20  # of a large page
WORTH = 8 * PAGE  # bytes, under which it is of no account
MOST = 31 << 20  # bytes of a tensor that glibc may be brought to keep the memory of: 32 MiB at most


def large_pages(t: Tensor) -> Tensor:
    """The same tensor; on Linux its memory, not yet touched, will come in large pages where the system has them."""
    if sys.platform != "linux" or t.device.type != "cpu" or t.nbytes < WORTH or not hasattr(mmap, "MADV_HUGEPAGE"):
        return t
    start = -(-t.data_ptr() // PAGE) * PAGE
    length = (t.data_ptr() + t.nbytes - start) // PAGE * PAGE
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
        libc.free(libc.malloc(ctypes.c_size_t(MOST)))
