"""Scores that do not depend on the label's value: the variance that it removes (the shortest use of S), and EPIG."""

import torch
from torch import Tensor

from foretaste.acquire.lazy_scores import SquareBound, SquareWeights
from foretaste.acquire.predictions import cached_blocks, finish_scores, narrow_blocks
from foretaste.acquire.registry import register
from foretaste.acquire.watched_sums import SumTerm, can_fuse_sums, sum_terms
from foretaste.lookahead import State

KNOWN_VARIANCE = 1e-6  # of the largest: a watched point with less is known, and S_ii is rounding


def variance_bound() -> SquareBound:
    """The score itself, but for rounding."""
    return SquareBound(
        lambda state, best: SquareWeights(torch.ones_like(state.mean[:, 0])),
        lambda state, S_Wn, u_n: squared_sums(S_Wn) / u_n,
    )


@register("variance", select="greedy", needs="kernel", bound=variance_bound)
def variance(state: State) -> Tensor:
    """The variance that a label at j removes from Σ_i S_ii: Σ_i S_ij² / u_j. Full kernel: Σ_i tr(S_ij u_j⁻¹ S_ji).

    For classes and for regression. Not in the paper. Cost: one pass over S, W·U. No options.
    """
    if can_fuse_sums(state):
        return finish_scores(state, sum_terms(state, SumTerm.SQUARE) / state.u, "variance")
    scores_U = state.mean.new_empty(state.U)
    for at, S_Wu in cached_blocks(state):
        if state.B == 1:
            scores_U[at] = squared_sums(S_Wu) / state.u[at]
        else:
            scores_U[at] = whiten_columns(state, S_Wu, at).square().sum((0, 2))
        del S_Wu  # its memory is used for the next block
    return finish_scores(state, scores_U, "variance")


@register("epig", select="greedy", needs="kernel")
def epig(state: State) -> Tensor:
    """Expected predictive information gain, EPIG (Bickford Smith et al. 2023): −½ Σ_i log(1 − S_ij² / (S_ii u_j)).

    The mutual information of y_j with each watched output f_i of the Gaussian posterior, in nats, summed. For classes
    and for regression; the mean plays no part. Full kernel: −½ Σ_i log det(I − S_ii⁻¹ S_ij u_j⁻¹ S_ji). Cost: one pass
    over S and W·U logarithms for each pick. No options.
    """
    scores_U = state.mean.new_empty(state.U)
    if state.B > 1:
        for at, S_Wu in narrow_blocks(state):
            scores_U[at] = _block_information(state, S_Wu, at)
        return finish_scores(state, scores_U, "epig")
    var_W = state.watched_variance
    known_W = var_W <= KNOWN_VARIANCE * var_W.max()
    inverse_W1 = var_W.masked_fill(known_W, 1.0).reciprocal().masked_fill_(known_W, 0.0)[:, None]
    most_U = (state.variance_blocks[:, 0, 0] / state.u).clamp(0, 1)  # S_ij² ≤ S_ii S_jj, but for rounding
    for at, S_Wu in cached_blocks(state):
        rho_Wu = S_Wu.square().mul_(inverse_W1).div_(state.u[at])
        scores_U[at] = torch.minimum(rho_Wu, most_U[at], out=rho_Wu).neg_().log1p_().sum(0).mul_(-0.5)
        del S_Wu, rho_Wu  # their memory is used for the next block
    return finish_scores(state, scores_U, "epig")


def squared_sums(S_Wu: Tensor) -> Tensor:
    """Σ_i S_ij², (u,): in one pass where columns are contiguous."""
    return torch.linalg.vector_norm(S_Wu, dim=0).square_() if S_Wu.stride(0) == 1 else S_Wu.square().sum(0)


def whiten_columns(state: State, S_Wu: Tensor, at: slice) -> Tensor:
    """S_ij R⁻ᵀ with u_j = R Rᵀ, (W·B, u, B): products of its rows are S_ij u_j⁻¹ S_ji."""
    u_uBB = state.u[at]
    S_uBW = S_Wu.view(S_Wu.shape[0], u_uBB.shape[0], state.B).permute(1, 2, 0)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(u_uBB), S_uBW, upper=False).permute(2, 0, 1)


def _block_information(state: State, S_Wu: Tensor, at: slice) -> Tensor:
    """(u,), with S_ii = V Vᵀ and w = V⁻¹ S_ij R⁻ᵀ, u_j = R Rᵀ: −½ Σ_i log det(I − w wᵀ)."""
    var_WBB, B = state.watched_variance, state.B
    total_W = torch.einsum("wbb->w", var_WBB)
    open_W = total_W > KNOWN_VARIANCE * total_W.max()
    eye_BB = torch.eye(B, dtype=var_WBB.dtype, device=var_WBB.device)
    V_wBB = torch.linalg.cholesky(var_WBB[open_W] + KNOWN_VARIANCE**2 * total_W.max() * eye_BB)
    S_wBuB = whiten_columns(state, S_Wu, at).unflatten(0, (state.W, B))[open_W]
    w_wuBB = torch.linalg.solve_triangular(V_wBB, S_wBuB.flatten(2), upper=False).unflatten(2, (-1, B)).transpose(1, 2)
    # Rounding can push an eigenvalue to 1 and above it.
    return -0.5 * torch.log1p(-torch.linalg.eigvalsh(w_wuBB @ w_wuBB.mT).clamp(0, 1 - 1e-12)).sum((0, 2))
