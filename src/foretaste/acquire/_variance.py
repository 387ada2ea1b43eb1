"""What a label would teach, whatever it is: the variance it removes, and the change it is expected to make."""

import math

import torch
from torch import Tensor

from foretaste.acquire._fused import Term, sums, usable
from foretaste.acquire._opinion import finish
from foretaste.acquire._outputs import cached_blocks
from foretaste.acquire._registry import register
from foretaste.retrain import State


@register("variance", select="greedy", needs="kernel")
def variance(state: State) -> Tensor:
    """Σ_i S_ij² / u_j, (U,): by how much a label at j shrinks Σ_i S_ii. Full kernel: Σ_i tr(S_ij u_j⁻¹ S_ji)."""
    if usable(state):
        return finish(state, sums(state, Term.SQUARE) / state.u, "variance")
    scores_U = state.mean.new_empty(state.U)
    for at, S_Wu in cached_blocks(state):
        if state.B == 1:
            scores_U[at] = squares(S_Wu) / state.u[at]
        else:
            scores_U[at] = whitened(state, S_Wu, at).square().sum((0, 2))
        del S_Wu  # its memory is the next block's
    return finish(state, scores_U, "variance")


@register("change", needs=("kernel", "regression"))
def change(state: State) -> Tensor:
    """E Σ_i |f⁺_i − mean_i| with y ~ N(mean_j, u_j): sqrt(2/π) Σ_i |S_ij| / sqrt(u_j), (U,)."""
    if state.C > 1:
        raise ValueError(
            f"change is for regression and this network has {state.C} outputs; use mlmoc, emoc or variance"
        )
    if usable(state):
        return finish(state, math.sqrt(2 / math.pi) * sums(state, Term.LENGTH) / state.u.sqrt(), "change")
    scores_U = state.mean.new_empty(state.U)
    for at, S_Wu in cached_blocks(state):
        scores_U[at] = math.sqrt(2 / math.pi) * S_Wu.abs().sum(0) / state.u[at].sqrt()
        del S_Wu
    return finish(state, scores_U, "change")


def squares(S_Wu: Tensor) -> Tensor:
    """Σ_i S_ij², (u,): in one pass where a column lies together in memory."""
    return torch.linalg.vector_norm(S_Wu, dim=0).square_() if S_Wu.stride(0) == 1 else S_Wu.square().sum(0)


def whitened(state: State, S_Wu: Tensor, at: slice) -> Tensor:
    """S_ij R⁻ᵀ with u_j = R Rᵀ, (W·B, u, B): its rows' products are those of S_ij u_j⁻¹ S_ji."""
    u_uBB = state.u[at]
    S_uBW = S_Wu.view(S_Wu.shape[0], u_uBB.shape[0], state.B).permute(1, 2, 0)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(u_uBB), S_uBW, upper=False).permute(2, 0, 1)
