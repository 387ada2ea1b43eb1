"""The base: what absorbing L leaves, mean = f + Θ_·L A⁻¹ R and S = Θ − Θ_·L A⁻¹ Θ_L·  (Eq. 10, 12)."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from foretaste.retrain._problem import Problem, cholesky
from foretaste.retrain._running import Running
from foretaste.retrain._theta import diagonal_blocks, site_index, sites


@dataclass(frozen=True, eq=False)
class Solved:
    ridge: float
    scale: float
    mean_WC: Tensor
    mean_UC: Tensor
    half_U: Tensor  # chol⁻¹ Θ_LU, (L·B, U·B)
    S_WU: Tensor
    var_U: Tensor  # (U, B, B)
    var_W: Tensor | None


def solve(p: Problem) -> Solved:
    """Everything through one factor: with A = RRᵀ and H = R⁻¹Θ_L·, S = Θ − HᵀH and mean = f + HᵀR⁻¹(Y − f)."""
    theta = p.kernels.load()
    ridge = p.resolve_ridge(theta)
    chol = cholesky(p.system(theta, ridge), ridge)
    half_U = torch.linalg.solve_triangular(chol, theta.UL.T, upper=False)
    half_W = half_U if p.same else torch.linalg.solve_triangular(chol, theta.WL.T, upper=False)
    mean_WC, mean_UC = p.f_WC, p.f_UC
    if not p.free:
        half_R = torch.linalg.solve_triangular(chol, sites(p.y_LC - p.f_LC, p.B), upper=False)
        mean_UC = p.f_UC + (half_U.T @ half_R).reshape(p.f_UC.shape)
        mean_WC = mean_UC if p.same else p.f_WC + (half_W.T @ half_R).reshape(p.f_WC.shape)
    # In place: S is the largest matrix there is, and Θ_WU is not asked for again.
    S_WU = (theta.WU if p.kernels.ours else theta.WU.clone()).addmm_(half_W.T, half_U, alpha=-1)
    if p.same:
        var_U = diagonal_blocks(S_WU, p.B)
        var_W: Tensor | None = var_U
    else:
        var_U = theta.diag_U - squares(half_U, p.B)
        var_W = None if theta.diag_W is None else theta.diag_W - squares(half_W, p.B)
    return Solved(ridge, p.scale(chol), mean_WC, mean_UC, half_U, S_WU, var_U, var_W)


def squares(half_U: Tensor, B: int) -> Tensor:
    """The (N, B, B) diagonal blocks of HᵀH."""
    if B == 1:
        return half_U.square().sum(0)[:, None, None]
    h = half_U.reshape(half_U.shape[0], half_U.shape[1] // B, B)
    return torch.einsum("lna,lnb->nab", h, h)


@dataclass(eq=False)
class Posterior:
    """Solved on first need and shared by every state of one linearisation; rows S_jU of kept candidates stay.

    ``solved`` is never written to; ``running`` is, and no state needs it to be where it left it.
    """

    problem: Problem
    rows: dict[int, Tensor] = field(default_factory=dict)
    running: Running = field(default_factory=Running)

    @cached_property
    def solved(self) -> Solved:
        return solve(self.problem)

    @property
    def known(self) -> bool:
        return "solved" in self.__dict__

    @property
    def mean_WC(self) -> Tensor:
        return self.problem.f_WC if self.problem.free else self.solved.mean_WC

    @property
    def mean_UC(self) -> Tensor:
        return self.problem.f_UC if self.problem.free else self.solved.mean_UC

    def columns(self, js: list[int]) -> Tensor:
        """S_WK of candidates js, (W·B, k·B). W = U: rows, for S is symmetric and those lie together in memory."""
        p, S_WU = self.problem, self.solved.S_WU
        at = site_index(js, p.B, S_WU.device)
        return S_WU[at].T if p.same else S_WU[:, at]

    def row(self, j: int) -> Tensor:
        """S_jU, (B, U·B). Where j is not watched it costs a pass over the pool, once."""
        p, s = self.problem, self.solved
        at = j if p.same else p.at_W.get(j)
        if at is not None:
            return s.S_WU[at * p.B : (at + 1) * p.B]
        if j not in self.rows:
            half_j = s.half_U[:, j * p.B : (j + 1) * p.B]
            self.rows[j] = p.kernels.row(j) - half_j.T @ s.half_U
        return self.rows[j]

    def among(self, js: list[int]) -> Tensor:
        """S_KK of candidates js, (k·B, k·B). The last needs no row: S is symmetric and its diagonal is at hand."""
        p = self.problem
        at = site_index(js, p.B, p.f_WC.device)
        if p.same:
            return self.solved.S_WU[at][:, at]
        S_KK = p.f_WC.new_zeros(len(at), len(at))
        for i, j in enumerate(js):
            here = slice(i * p.B, (i + 1) * p.B)
            S_KK[here, here] = self.solved.var_U[j]
            if i + 1 < len(js):
                ahead = at[(i + 1) * p.B :]
                S_KK[here, (i + 1) * p.B :] = self.row(j)[:, ahead]
                S_KK[(i + 1) * p.B :, here] = self.row(j)[:, ahead].T
        return S_KK
