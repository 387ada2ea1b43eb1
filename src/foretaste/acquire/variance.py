"""Scores that do not depend on the label's value: the variance that it removes (the shortest use of S), and EPIG."""

import torch
from torch import Tensor

from foretaste.acquire.lazy_scores import LAZY_WAITING, SquareBound, SquareWeights
from foretaste.acquire.predictions import CACHED_BLOCK, cached_blocks, finish_scores, narrow_blocks
from foretaste.acquire.registry import register
from foretaste.acquire.watched_sums import SumTerm, can_fuse_sums, sum_terms
from foretaste.lookahead import DenseState, State

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


def epig_bound() -> "InformationBound":
    return InformationBound()


@register("epig", select="greedy", needs="kernel", bound=epig_bound)
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
    parts = information_parts(state)
    for at, S_Wu in cached_blocks(state):
        scores_U[at] = _information(S_Wu, at, parts)
        del S_Wu  # its memory is used for the next block
    return finish_scores(state, scores_U, "epig")


def information_parts(state: State) -> tuple[Tensor, Tensor, Tensor]:
    """1/S_ii, (W,), 0 for points that are known; u_j; and the most that S_ij² / (S_ii u_j) can be but for rounding."""
    var_W = state.watched_variance
    known_W = var_W <= KNOWN_VARIANCE * var_W.max()
    inverse_W = var_W.masked_fill(known_W, 1.0).reciprocal().masked_fill_(known_W, 0.0)
    return inverse_W, state.u, (state.variance_blocks[:, 0, 0] / state.u).clamp(0, 1)


def _information(S_Wu: Tensor, at: slice | Tensor, parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    inverse_W, u_U, most_U = parts
    rho_Wu = S_Wu.square().mul_(inverse_W[:, None]).div_(u_U[at])
    return torch.minimum(rho_Wu, most_U[at], out=rho_Wu).neg_().log1p_().sum(0).mul_(-0.5)


# A bound on EPIG: S is kept in float32 and follows each pick by a product of two vectors. A step rounds an entry by at
# most STEP_ROUNDING √(S_ii S_jj), of the variances when the entry was last copied from S. A point whose variance has
# fallen to a quarter since is copied anew. So after T steps a correlation ρ is off by at most 4 T STEP_ROUNDING, which
# is added to |ρ|. And Σ log(1 − ρ²) is the logarithm of products of eight.

STEP_ROUNDING = 5 * 2.0**-24
COPIED_AGAIN = 0.25  # of a variance
ROUNDED_LOGS = 2e-7  # nats for each watched point: what products of eight in float32 lose


class InformationBound:
    """EPIG of all candidates in float32, not below the exact one."""

    def __init__(self) -> None:
        self.order: tuple[int, ...] | None = None  # the picks that S_UW has subtracted
        self.steps = 0
        self.S_UW = torch.empty(0, 0)
        self.copied_W = self.copied_U = torch.empty(0)  # S_ii and u_j when they were last copied

    def exact(self, state: DenseState, at: Tensor) -> Tensor:
        return _information(state.columns(at), at, information_parts(state))

    def upper(self, state: DenseState, likely: list[int], best: float) -> Tensor:
        var_W, u_U = state.watched_variance, state.u
        newest = self.order is not None and state.order[:-1] == self.order and self.steps < LAZY_WAITING
        if newest:
            f_W, f_U = state.newest_factor
            self.S_UW.addr_(f_U.float(), f_W.float(), alpha=-1)
            low_W, low_U = var_W < COPIED_AGAIN * self.copied_W, u_U < COPIED_AGAIN * self.copied_U
            newest = int(low_W.sum() + low_U.sum()) < state.U // 8
        if newest:
            self._copy(state, low_W.nonzero()[:, 0], low_U.nonzero()[:, 0], var_W, u_U)
            self.steps += 1
        else:
            state.from_parts(self._copy_all, LAZY_WAITING)
            self.copied_W, self.copied_U, self.steps = var_W.clone(), u_U.clone(), 0
        self.order = state.order
        return self._scores(state)

    def _copy_all(self, S_WU: Tensor, F_W: Tensor, F_U: Tensor) -> Tensor:
        W, U = S_WU.shape
        if self.S_UW.shape != (U, W):
            self.S_UW = torch.empty(U, W)
        for at in torch.arange(U).split(max(1, CACHED_BLOCK // W)):
            here = slice(int(at[0]), int(at[-1]) + 1)
            self.S_UW[here] = S_WU[:, here].T.addmm(F_U[:, here].T, F_W, alpha=-1)
        return F_U

    def _copy(self, state: DenseState, at_W: Tensor, at_U: Tensor, var_W: Tensor, u_U: Tensor) -> None:
        """Copy rows and columns of S anew."""
        if len(at_W):
            rows_wU = state.from_parts(
                lambda S_WU, F_W, F_U: S_WU[at_W].addmm_(F_W[:, at_W].T, F_U, alpha=-1), LAZY_WAITING
            )
            self.S_UW[:, at_W] = rows_wU.T.float()
            self.copied_W[at_W] = var_W[at_W]
        if len(at_U):
            self.S_UW[at_U] = state.columns(at_U).T.float()
            self.copied_U[at_U] = u_U[at_U]

    def _scores(self, state: DenseState) -> Tensor:
        inverse_W, u_U, most_U = information_parts(state)
        by_W, by_U1 = inverse_W.sqrt().float(), u_U.rsqrt().float()[:, None]
        floor_U1 = (1 - most_U).mul_(1 - 1e-6).float()[:, None]
        off, one = 4 * STEP_ROUNDING * (self.steps + 1), torch.ones(())
        step = max(1, INFORMATION_CHUNK // state.W)
        room, scores_U = torch.empty(min(step, state.U), state.W), torch.empty(state.U)
        for start in range(0, state.U, step):
            at = slice(start, min(start + step, state.U))
            c = torch.mul(self.S_UW[at], by_W, out=room[: at.stop - start])
            c.mul_(by_U1[at]).abs_().add_(off)
            torch.maximum(torch.addcmul(one, c, c, value=-1, out=c), floor_U1[at], out=c)
            scores_U[at] = _log_products(c)
        return scores_U.double().mul_(-0.5).add_(ROUNDED_LOGS * state.W)


INFORMATION_CHUNK = 2**18  # numbers at a time


def _log_products(c: Tensor) -> Tensor:
    """Σ log c of each row; c is overwritten. By eights, where there are so many."""
    n = c.shape[1]
    for _ in range(3):
        half = n // 2
        c[:, :half].mul_(c[:, n - half : n])
        n -= half
    return c[:, :n].log_().sum(1)


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
