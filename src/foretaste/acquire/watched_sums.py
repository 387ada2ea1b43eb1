"""Sums over the watched points for every candidate, in one pass over S on a GPU, and the same in plain torch.

S is given as the running S and the factors that wait to be subtracted, S − F_WᵀF_U. Neither the difference nor τ, z or
ψ of a pair is ever stored. A pair costs one read of eight bytes; torch's own kernels read and write 30 times that.
"""

import math
from enum import IntEnum

import torch
from torch import Tensor

from foretaste.lookahead import DenseState, State

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of torch: plain torch is used
    triton = None

SUM_SLAB, SUM_ROWS, SUM_COLUMNS = 64, 8, 128  # watched points of a program, and the tile it works on
SUM_LARGE = 2**20  # pairs from which a launch is worth it

# ψ(z) = φ(z) − zΦ(−z) of ``gain``, for float32 and GPUs. ψ(z) exp(z²/2) = Σ_k OVER_k zᵏ / Σ_k UNDER_k zᵏ is the
# quotient of least maximum error, 2.1e-7 relative on 0 ≤ z ≤ 12. Its terms are all positive, so nothing cancels, as
# it does in φ(z) − zΦ(−z); and it is twice as fast as erfc.
RISE_FAR = 12.0  # z beyond which float32 turns denormal, which is slow and inexact
RISE_OVER = (0.3989423573, 0.2182857045, 0.0596027764, 0.0074448655)
RISE_UNDER = (1.0, 1.8004874759, 1.4058564707, 0.6072956604, 0.1491720932, 0.0186669335)
RISE_BITS = math.sqrt(0.5 * math.log2(math.e))  # exp(−z²/2) = 2^−(BITS z)²

# The same coefficients for BITS·z, which the fast versions work with.
RISE_OVER_BITS = tuple(c / RISE_BITS**k for k, c in enumerate(RISE_OVER))
RISE_UNDER_BITS = tuple(c / RISE_BITS**k for k, c in enumerate(RISE_UNDER))


class SumTerm(IntEnum):
    """The term that is summed over i for candidate j; τ = |S_ij| k_j. RISE is in float32, and summed in float64."""

    SQUARE = 0  # S_ij²
    LENGTH = 1  # |S_ij|
    RISE = 2  # τψ(g_i/τ), with z at most RISE_FAR


def sum_terms(state: State, term: SumTerm, k_U: Tensor | None = None, g_W: Tensor | None = None) -> Tensor:
    """Σ_i term(S_ij), (U,) float64, of a state for which ``can_fuse_sums`` holds."""
    assert isinstance(state, DenseState)
    return state.from_parts(lambda S_WU, F_W, F_U: fused_sums(S_WU, F_W, F_U, term, k_U, g_W))


def can_fuse_sums(state: State) -> bool:
    """Whether the sums of this state can be computed in one pass on this machine."""
    if triton is None or not state.net.is_cuda or state.B > 1 or state.W * state.U < SUM_LARGE:
        return False
    return isinstance(state, DenseState) and state.rows_together


def plain_sums(S_WU: Tensor, F_W: Tensor, F_U: Tensor, term: SumTerm, k_U: Tensor | None, g_W: Tensor | None) -> Tensor:
    """The same in plain torch, which ``fused_sums`` is tested against."""
    S_WU = S_WU - F_W.T @ F_U
    if k_U is None or g_W is None:
        return (S_WU.square() if term is SumTerm.SQUARE else S_WU.abs()).sum(0)
    tau = (S_WU.abs() * k_U).float()
    z = ((RISE_BITS * g_W).float()[:, None] / tau).clamp_max(RISE_FAR * RISE_BITS)
    over, under = (sum(c * z**k for k, c in enumerate(fit)) for fit in (RISE_OVER_BITS, RISE_UNDER_BITS))
    return (tau * torch.exp2(-z * z) * over / under).double().sum(0)


def fused_sums(S_WU: Tensor, F_W: Tensor, F_U: Tensor, term: SumTerm, k_U: Tensor | None, g_W: Tensor | None) -> Tensor:
    """One read of S. Rows of S, F_W and F_U must be contiguous; F may have no rows."""
    W, U = S_WU.shape
    slabs = triton.cdiv(W, SUM_SLAB)
    part = torch.empty(slabs, U, dtype=torch.float64, device=S_WU.device)
    k_U = part if k_U is None else k_U.contiguous()
    g_W = part if g_W is None else (RISE_BITS * g_W).float()
    _sums[(triton.cdiv(U, SUM_COLUMNS), slabs)](
        S_WU, F_W, F_U, k_U, g_W, part, W, U, len(F_W), S_WU.stride(0), F_W.stride(0), F_U.stride(0),
        int(term), RISE_FAR * RISE_BITS, *RISE_OVER_BITS, *RISE_UNDER_BITS,
        SLAB=SUM_SLAB, ROWS=SUM_ROWS, COLUMNS=SUM_COLUMNS,
    )  # fmt: skip
    return part.sum(0)


if triton is not None:
    # Not specialised on sizes and strides: one compilation works for any pool and any number of factors.
    @triton.jit(do_not_specialize=["W", "U", "waiting", "S_stride", "W_stride", "U_stride"])
    def _sums(  # type: ignore[no-untyped-def]
        S, F_W, F_U, k, g, part, W, U, waiting, S_stride, W_stride, U_stride,
        TERM: tl.constexpr, FARTHEST: tl.constexpr,
        n0: tl.constexpr, n1: tl.constexpr, n2: tl.constexpr, n3: tl.constexpr,
        d0: tl.constexpr, d1: tl.constexpr, d2: tl.constexpr, d3: tl.constexpr, d4: tl.constexpr, d5: tl.constexpr,
        SLAB: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        in_U = j < U
        total = tl.zeros((ROWS, COLUMNS), tl.float64)
        for step in range(SLAB // ROWS):
            i = tl.program_id(1) * SLAB + step * ROWS + tl.arange(0, ROWS)
            in_W = i < W
            place = i.to(tl.int64)[:, None] * S_stride + j[None, :]
            s = tl.load(S + place, mask=in_W[:, None] & in_U[None, :], other=0.0)
            for n in range(waiting):
                f_i = tl.load(F_W + n * W_stride + i, mask=in_W, other=0.0)
                f_j = tl.load(F_U + n * U_stride + j, mask=in_U, other=0.0)
                s -= f_i[:, None] * f_j[None, :]
            if TERM == 0:
                total += s * s
            elif TERM == 1:
                total += tl.abs(s)
            else:
                k_j = tl.load(k + j, mask=in_U, other=0.0)
                g_i = tl.load(g + i, mask=in_W, other=1.0)
                tau = (tl.abs(s) * k_j[None, :]).to(tl.float32)
                z = tl.minimum(g_i[:, None] / tau, FARTHEST)  # τ = 0: infinitely far
                over = ((n3 * z + n2) * z + n1) * z + n0
                under = ((((d5 * z + d4) * z + d3) * z + d2) * z + d1) * z + d0
                total += (tau * tl.exp2(-z * z) * over / under).to(tl.float64)
        tl.store(part + tl.program_id(1) * U + j, tl.sum(total, 0), mask=in_U)
