"""State by Eq. 11, solved anew for each candidate: the paper's "without block", and training for a finite time (Eq. 5).

X is L and the labelled candidates, A_X = Θ_XX + λI. With R = Y − f on X,

    f_lin = f + Θ_·X A_X⁻¹ R                      (Eq. 8, 11)
    f_t   = f + Θ_·X A_X⁻¹ (I − e^{−t A_X}) R     (Eq. 5)

It is slow, and the fast way (dense.py) is tested against it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from foretaste.lookahead.problem import PriorKernel, Problem, ThetaBlocks, given_diagonal, site_index, to_sites
from foretaste.lookahead.solve import ROUNDING_SHARE, cholesky, without_rounding
from foretaste.lookahead.state import COLUMN_BLOCK_BYTES, KeptLabel, State


@dataclass(eq=False)
class LoadedTheta:
    """Θ as it was computed, and rows of it; shared by all states of one linearisation."""

    problem: Problem
    rows: dict[int, Tensor] = field(default_factory=dict)

    @cached_property
    def theta(self) -> ThetaBlocks:
        self.problem.warn_unfitted()
        return self.problem.kernels.load()


@dataclass(frozen=True, eq=False)
class JoinedSystem:
    """L and some candidates as one set X, in site layout."""

    js: list[int]
    A: Tensor  # Θ_XX + λI
    residual: Tensor  # Y − f on X; zero and unused where there is no label


@dataclass(frozen=True, eq=False, repr=False)
class DirectState(State):
    """``method="direct"``: each answer is a solve of Eq. 11 of its own."""

    method: ClassVar[str] = "direct"
    _loaded: LoadedTheta

    @cached_property
    def ridge(self) -> float:
        given = self._problem.ridge
        return self._problem.resolve_ridge(self._loaded.theta) if given is None else given

    @cached_property
    def scale(self) -> float:
        if self._problem.free:
            return 1.0
        return self._problem.scale(cholesky(self._problem.system(self._loaded.theta, self.ridge), self.ridge))

    def _row(self, j: int) -> Tensor:
        """Θ(x_j, U), (B, U·B)."""
        p, B = self._problem, self.B
        at = j if p.same else p.at_W.get(j)
        if at is not None:
            return self._loaded.theta.WU[at * B : (at + 1) * B]
        if j not in self._loaded.rows:
            self._loaded.rows[j] = p.kernels.row(j)
        return self._loaded.rows[j]

    def _join(self, labels: tuple[KeptLabel, ...]) -> JoinedSystem:
        """X = L and the candidates of ``labels``. The last one needs no row: Θ is symmetric."""
        p, theta, B = self._problem, self._loaded.theta, self.B
        js = [j for j, _ in labels]
        at = site_index(js, B, p.f_WC.device)
        theta_KK = theta.WU.new_zeros(len(at), len(at))
        for i, j in enumerate(js):
            here, ahead = slice(i * B, (i + 1) * B), slice((i + 1) * B, None)
            theta_KK[here, here] = theta.diag_U[j]
            if i + 1 < len(js):
                theta_KK[here, ahead] = self._row(j)[:, at[ahead]]
                theta_KK[ahead, here] = theta_KK[here, ahead].T
        theta_KL = theta.UL[at]
        A = torch.cat([torch.cat([theta.LL, theta_KL.T], 1), torch.cat([theta_KL, theta_KK], 1)])
        A.diagonal().add_(self.ridge)
        endless = math.isinf(p.settings.time)  # a finite time divides by no eigenvalue
        if (js or endless) and torch.linalg.cholesky_ex(A)[1]:
            if endless:
                cholesky(A[: len(theta.LL), : len(theta.LL)], self.ridge)  # says so if L itself is at fault
            rounding = ROUNDING_SHARE * len(A) * float(torch.cat([theta.LL.diagonal(), theta_KK.diagonal()]).max())
            A = without_rounding(A, self.ridge, 0.0, rounding)
        y_KC = torch.stack([p.f_UC[j] if y is None else y for j, y in labels]) if labels else p.f_UC[:0]
        residual = torch.cat([p.y_LC - p.f_LC, y_KC - p.f_UC[js]])
        return JoinedSystem(js, A, to_sites(residual, B))

    def _theta_WX(self, x: JoinedSystem) -> Tensor:
        theta = self._loaded.theta
        return torch.cat([theta.WL, theta.WU[:, site_index(x.js, self.B, theta.WU.device)]], 1)

    @property
    def linearisation(self) -> LoadedTheta:
        return self._loaded

    def prior(self) -> PriorKernel:
        theta, diag_W = self._loaded.theta, given_diagonal(self._loaded.theta.diag_W)
        half_U, half_W = (theta.WU.new_empty(0, n) for n in theta.WU.T.shape)
        return PriorKernel(
            theta.LL, theta.WL, theta.UL, theta.diag_U, diag_W, theta.WU.T, half_U, half_W,
            self._problem.kernels.points,
        )  # fmt: skip

    def _theta_UX(self, x: JoinedSystem) -> Tensor:
        return torch.cat([self._loaded.theta.UL, *(self._row(j).T for j in x.js)], 1)

    def _trained(self, labels: tuple[KeptLabel, ...]) -> tuple[JoinedSystem, Tensor]:
        """The weights w of f_lin = f + Θ_·X w: A⁻¹R, or A⁻¹(I − e^{−tA})R after time t (Eq. 5, 8, 11)."""
        x = self._join(labels)
        if math.isinf(self._problem.settings.time):
            return x, torch.linalg.solve(x.A, x.residual)
        a, V = torch.linalg.eigh(x.A)
        grown = torch.where(
            a.abs() > 1e-300, -torch.expm1(-self._problem.settings.time * a) / a, self._problem.settings.time
        )
        return x, V @ (grown[:, None] * (V.T @ x.residual))

    def _mean_W(self, labelled: tuple[tuple[int, Tensor], ...]) -> Tensor:
        if not labelled and self._problem.free:
            return self.net
        x, w = self._trained(labelled)
        theta, n = self._loaded.theta, self.L * self.B
        at = site_index(x.js, self.B, w.device)
        # In two products: joining Θ_WL with a column would copy it for every candidate.
        return self.net + (theta.WL @ w[:n] + theta.WU[:, at] @ w[n:]).reshape(self.net.shape)

    @cached_property
    def pool_mean(self) -> Tensor:
        if self._problem.same or (not self._labelled and self._problem.free):
            return self.mean if self._problem.same else self.pool_net
        x, w = self._trained(self._labelled)
        return self.pool_net + (self._theta_UX(x) @ w).reshape(self.pool_net.shape)

    def _with(self, kept: tuple[KeptLabel, ...]) -> "DirectState":
        return replace(self, kept=kept)

    @cached_property
    def _last(self) -> tuple[Tensor, Tensor, JoinedSystem]:
        """For each candidate the last column x of A⁺⁻¹: S_ij = u_j Θ(x_i, X⁺) x and u_j = 1 / x_last."""
        if not math.isinf(time := self._problem.settings.time):
            raise ValueError(
                f"time={time:g} has no S: f⁺ is affine in y, but what a label adds at finite time is not "
                "a multiple of one column; use lookahead(j, y), or time=inf"
            )
        x, B = self._join(self.kept), self.B
        UX, n = self._theta_UX(x), x.A.shape[0]
        last = x.A.new_empty(self.U, n + B, B)
        step = max(1, COLUMN_BLOCK_BYTES // (8 * (n + B) ** 2))
        for start in range(0, self.U, step):
            at = slice(start, min(start + step, self.U))
            A_plus = x.A.new_empty(at.stop - start, n + B, n + B)
            A_plus[:, :n, :n] = x.A
            A_plus[:, n:, :n] = UX[start * B : at.stop * B].reshape(at.stop - start, B, n)
            A_plus[:, :n, n:] = A_plus[:, n:, :n].mT
            A_plus[:, n:, n:] = self._loaded.theta.diag_U[at]
            A_plus[:, n:, n:].diagonal(dim1=1, dim2=2).add_(self.ridge)
            unit = A_plus.new_zeros(n + B, B)
            unit[n:].fill_diagonal_(1.0)
            last[at] = torch.linalg.solve(A_plus, unit.expand(at.stop - start, -1, -1))
        return last, torch.linalg.inv(last[:, n:]), x

    @cached_property
    def variance_blocks(self) -> Tensor:
        u_UBB = self._last[1].clone()
        u_UBB.diagonal(dim1=1, dim2=2).sub_(self.ridge)
        return u_UBB

    @property
    def prior_blocks(self) -> Tensor:
        return self._loaded.theta.diag_U

    @cached_property
    def watched_variance(self) -> Tensor:
        if self._problem.same:
            return self.variance_blocks[:, 0, 0] if self.B == 1 else self.variance_blocks
        diag_W, x = given_diagonal(self._loaded.theta.diag_W), self._join(self.kept)
        WX = self._theta_WX(x)
        w = torch.linalg.solve(x.A, WX.T).T.reshape(self.W, self.B, x.A.shape[0])
        var_W = diag_W - WX.reshape(w.shape) @ w.mT
        return var_W[:, 0, 0] if self.B == 1 else var_W

    def blocks(self, width: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        last, u_UBB, x = self._last
        WX, n = self._theta_WX(x), x.A.shape[0]
        for at in self._widths(width):
            here = slice(at.start * self.B, at.stop * self.B)
            S = WX @ (last[at, :n] @ u_UBB[at]).permute(1, 0, 2).reshape(n, (at.stop - at.start) * self.B)
            # x_last u = 1, so the candidate's own column has weight one.
            yield at, S + self._loaded.theta.WU[:, here]
