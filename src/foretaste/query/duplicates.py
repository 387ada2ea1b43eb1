"""Candidates that a taken point has made uninformative, whatever their score says.

Entropy does not know that a copy of a point is on its way to be labelled; S does. Taking j lowers the variance of k by
S_jk²/u_j, and its own by S_jj²/u_j. So the squared correlation of k with j is  ρ² = (drop_k / drop_j) (S_jj / S_kk):
it is 1 for a point that the linearised network cannot move without moving j alike, however noisy labels are.
"""

import torch
from torch import Tensor

from foretaste.lookahead import State

TWIN_TOLERANCE = 1e-5  # 1 − ρ²: what float32 kernels leave between two copies of a point
SPENT_VARIANCE = 1e-6  # of the largest variance in the pool: S is rounding below it


def find_spent(state: State, before: State, j: int) -> Tensor:
    """(U,) bool: twins of j, by ``state`` = ``before`` conditioned on j, and candidates with nothing left to learn."""
    var_U, left_U = _total_variance(before), _total_variance(state)
    drop_U = var_U - left_U
    like_j = (drop_U * var_U[j] - drop_U[j] * var_U).abs() <= TWIN_TOLERANCE * drop_U[j] * var_U
    return like_j | (left_U <= SPENT_VARIANCE * var_U.max())


def _total_variance(state: State) -> Tensor:
    """tr S_jj, (U,)."""
    return torch.einsum("ubb->u", state.variance_blocks)


# ``query._twins.spent`` for a single-logit kernel on a GPU: one launch in place of twenty.


try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of torch: the plain one serves
    triton = None

MARK_BLOCK = 1024


def can_mark_fused(var_U: Tensor) -> bool:
    return triton is not None and var_U.is_cuda and var_U.dtype == torch.float64


def mark_spent_fused(spent_U: Tensor, var_U: Tensor, left_U: Tensor, j: int, twin: float, least: float) -> None:
    """Set ``spent_U`` where k is a twin of j, or what is left of k is ``least`` of the largest variance, or less.

    ``var_U`` and ``left_U`` are S_kk before and after j is taken. In place.
    """
    U = len(var_U)
    _mark[(triton.cdiv(U, MARK_BLOCK),)](
        spent_U.view(torch.uint8), var_U, left_U, var_U.max(), j, U, twin, least, BLOCK=MARK_BLOCK
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
