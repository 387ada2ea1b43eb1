"""Large pages for large tensors on a CPU: fresh memory comes page by page, and that costs as much as using it."""

import ctypes
import mmap
import sys
from contextlib import suppress

from torch import Tensor

PAGE = 2 << 20  # of a large page
WORTH = 8 * PAGE  # bytes, under which it is of no account


def large_pages(t: Tensor) -> Tensor:
    """The same tensor; on Linux its memory, not yet touched, will come in large pages where the system has them."""
    if sys.platform != "linux" or t.device.type != "cpu" or t.nbytes < WORTH or not hasattr(mmap, "MADV_HUGEPAGE"):
        return t
    start = -(-t.data_ptr() // PAGE) * PAGE
    length = (t.data_ptr() + t.nbytes - start) // PAGE * PAGE
    with suppress(OSError, AttributeError):  # advice only: nothing depends on it
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)
    return t
