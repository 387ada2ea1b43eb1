"""``query._twins.spent`` for a single-logit kernel on a GPU: one launch in place of twenty."""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of torch: the plain one serves
    triton = None

BLOCK = 1024


def marks_at_once(var_U: Tensor) -> bool:
    return triton is not None and var_U.is_cuda and var_U.dtype == torch.float64


def mark_spent(spent_U: Tensor, var_U: Tensor, left_U: Tensor, j: int, twin: float, least: float) -> None:
    """Set ``spent_U`` where k is a twin of j, or what is left of k is ``least`` of the largest variance, or less.

    ``var_U`` and ``left_U`` are S_kk before and after j is taken. In place.
    """
    U = len(var_U)
    _mark[(triton.cdiv(U, BLOCK),)](
        spent_U.view(torch.uint8), var_U, left_U, var_U.max(), j, U, twin, least, BLOCK=BLOCK
    )  # fmt: skip


if triton is not None:

    @triton.jit(do_not_specialize=["j", "U"])
    def _mark(  # type: ignore[no-untyped-def]
        spent, var, left, largest, j, U, twin: tl.constexpr, least: tl.constexpr, BLOCK: tl.constexpr
    ):
        k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = k < U
        var_k = tl.load(var + k, mask=inside, other=0.0)
        left_k = tl.load(left + k, mask=inside, other=0.0)
        var_j = tl.load(var + j)
        drop_j = var_j - tl.load(left + j)
        alike = tl.abs((var_k - left_k) * var_j - drop_j * var_k) <= twin * drop_j * var_k
        nothing = left_k <= least * tl.load(largest)
        tl.store(spent + k, tl.full((BLOCK,), 1, tl.uint8), mask=inside & (alike | nothing))
