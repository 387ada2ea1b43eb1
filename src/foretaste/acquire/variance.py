"""The variance that a label removes, whatever the label is. The shortest acquisition function that uses S."""

import torch
from torch import Tensor

from foretaste.acquire.predictions import cached_blocks, finish_scores
from foretaste.acquire.registry import register
from foretaste.acquire.watched_sums import SumTerm, can_fuse_sums, sum_terms
from foretaste.lookahead import State


@register("variance", select="greedy", needs="kernel")
def variance(state: State) -> Tensor:
    """The variance that a label at j removes from Σ_i S_ii: Σ_i S_ij² / u_j. Full kernel: Σ_i tr(S_ij u_j⁻¹ S_ji).

    For classes and for regression. Not in the paper. Cost: one pass over S, W·U. No options.

    Args:
        state: a linearised network.

    Returns:
        (U,) float64, −inf where a candidate is taken.

    Example:
        >>> import torch, foretaste as ft
        >>> x = torch.linspace(-1, 1, 12).view(6, 2)
        >>> state = ft.linearize(torch.nn.Linear(2, 3).eval(), x[:2], [0, 1], x[2:])
        >>> ft.acquire.variance(state).shape
        torch.Size([4])
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


def squared_sums(S_Wu: Tensor) -> Tensor:
    """Σ_i S_ij², (u,): in one pass where columns are contiguous."""
    return torch.linalg.vector_norm(S_Wu, dim=0).square_() if S_Wu.stride(0) == 1 else S_Wu.square().sum(0)


def whiten_columns(state: State, S_Wu: Tensor, at: slice) -> Tensor:
    """S_ij R⁻ᵀ with u_j = R Rᵀ, (W·B, u, B): products of its rows are S_ij u_j⁻¹ S_ji."""
    u_uBB = state.u[at]
    S_uBW = S_Wu.view(S_Wu.shape[0], u_uBB.shape[0], state.B).permute(1, 2, 0)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(u_uBB), S_uBW, upper=False).permute(2, 0, 1)
