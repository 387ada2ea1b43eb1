"""The mean and the variance after very many labels: no L × L matrix is formed, and none is factored.

With J the tangents of L, A = Θ_LL + D, D the ridge and the labels' noise, and R = Y − f_L:

- Landmarks: a Cholesky factor of Θ_LL with pivots, cut after k columns, Θ_LL ≈ FFᵀ. The pivots are labelled points, and
  any other point n has a row F_n by them.
- Mean: f_n + Θ_nL α with Aα = R, by conjugate gradients on C right-hand sides. A product Θ_LL v is J(Jᵀv), L·P
  multiplications for each column. The preconditioner is FFᵀ + D̃ (as in Gardner et al. 2018; D̃ is below).
- Variance: FFᵀ, and what it leaves of the diagonal, take the place of Θ_LL; F_nFᵀ takes that of Θ_nL.

      S_nn ≈ Θ_nn − ‖F_n‖² + F_n (I + FᵀD̃⁻¹F)⁻¹ F_nᵀ,      D̃_ii = D_ii + Θ_ii − ‖F_i‖²

  It costs k²L once. A solve for each point would cost as much as a mean.

The λ of the misfit and the scale s² come from FFᵀ + D̃ too. docs/scaling-notes.md has the errors that were measured.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretaste.lookahead.problem import PriorKernel, Problem
from foretaste.lookahead.solve import misfit_by
from foretaste.lookahead.state import State
from foretaste.tangent import (
    DEFAULT_RIDGE,
    FactorSource,
    FrozenNetwork,
    Inputs,
    TangentFactors,
    join_factors,
    outputs,
)

log = logging.getLogger("foretaste")

LANDMARKS = 1024  # pivots, at most
PIVOTS_AT_ONCE = 64
ROWS_AT_ONCE = 4096  # of F, where a copy is made
NO_PIVOT = 1e-12  # of the largest Θ_ii: what rounding leaves of it
CG_TOLERANCE = 1e-5  # of the right-hand side's norm
CG_STEPS = 500  # at most


@dataclass(frozen=True, eq=False)
class Landmarks:
    """Θ_LL ≈ FFᵀ: F (L, k), and the pivots (k,), the points of L in whose rows F is lower triangular."""

    F_Lk: Tensor
    pivots: Tensor
    left_L: Tensor  # Θ_ii − ‖F_i‖²

    def rows(self, theta_np: Tensor) -> Tensor:
        """F of other points, (n, k), from their Θ with the pivots."""
        return torch.linalg.solve_triangular(self.F_Lk[self.pivots], theta_np.T, upper=False).T


def pivoted_cholesky(kernel: Callable[[Tensor], Tensor], diag_L: Tensor, most: int) -> Landmarks:
    """Θ_LL ≈ FFᵀ with at most ``most`` pivots: points of the largest Θ_ii − ‖F_i‖².

    kernel: positions (n,) -> Θ_Ln. Several pivots are taken at once: those of the largest that keep half of the
    largest after the others of them.
    """
    left_L, F_Lk, pivots = diag_L.clone(), diag_L.new_empty(len(diag_L), most), list[int]()
    least = NO_PIVOT * float(diag_L.max())
    while len(pivots) < most and float(left_L.max()) > least:
        k = len(pivots)
        at = left_L.topk(min(PIVOTS_AT_ONCE, len(left_L))).indices
        F_k = F_Lk[:, :k]
        theta_Ln = kernel(at).addmm_(F_k, F_k[at].T, alpha=-1)
        own, chosen = theta_Ln[at].clone(), list[int]()
        enough = max(least, 0.5 * float(own.diagonal().max()))
        while len(chosen) < min(len(at), most - k):
            best = int(own.diagonal().argmax())
            if chosen and not float(own[best, best]) > enough:
                break
            chosen.append(best)
            own -= torch.outer(own[:, best], own[best]) / own[best, best]
            own.diagonal()[best] = -torch.inf
        theta_Ln = theta_Ln[:, chosen]
        factor, failed = torch.linalg.cholesky_ex(theta_Ln[at[chosen]])
        if failed:
            break
        new_Ln = torch.linalg.solve_triangular(factor, theta_Ln.T, upper=False).T
        F_Lk[:, k : k + len(chosen)] = new_Ln
        left_L -= new_Ln.square().sum(1)
        left_L[at[chosen]] = 0.0
        pivots += at[chosen].tolist()
    return Landmarks(F_Lk[:, : len(pivots)], torch.tensor(pivots, device=diag_L.device), left_L.clamp_min(0))


class LowRankSystem:
    """(FFᵀ + D)⁻¹ for a diagonal D: by a factor of I + FᵀD⁻¹F."""

    def __init__(self, F_Lk: Tensor, D_L: Tensor) -> None:
        self.F_Lk, self.D_L1 = F_Lk, D_L[:, None]
        inner = torch.eye(F_Lk.shape[1], dtype=F_Lk.dtype, device=F_Lk.device)
        for F_lk, D_l1 in zip(F_Lk.split(ROWS_AT_ONCE), self.D_L1.split(ROWS_AT_ONCE)):
            inner.addmm_(F_lk.T, F_lk / D_l1)
        self.chol = torch.linalg.cholesky(inner)

    def solve(self, b_LR: Tensor) -> Tensor:
        w_LR = b_LR / self.D_L1
        return w_LR - self.F_Lk @ torch.cholesky_solve(self.F_Lk.T @ w_LR, self.chol) / self.D_L1

    def inverse_diagonal(self) -> Tensor:
        """(L, 1): of (FFᵀ + D)⁻¹."""
        parts = [
            torch.linalg.solve_triangular(self.chol, (F_lk / D_l1).T, upper=False).square().sum(0)
            for F_lk, D_l1 in zip(self.F_Lk.split(ROWS_AT_ONCE), self.D_L1.split(ROWS_AT_ONCE))
        ]
        return 1 / self.D_L1 - torch.cat(parts)[:, None]

    def explained(self, F_nk: Tensor) -> Tensor:
        """(n,): F_nFᵀ(FFᵀ + D)⁻¹FF_nᵀ."""
        left = torch.linalg.solve_triangular(self.chol, F_nk.T, upper=False)
        return F_nk.square().sum(1) - left.square().sum(0)


@dataclass(frozen=True, eq=False)
class Solution:
    """x with Ax = b by conjugate gradients: the steps taken, and the largest ‖b − Ax‖ / ‖b‖ of a column."""

    x_LR: Tensor
    steps: int
    residual: float


def conjugate_gradients(
    multiply: Callable[[Tensor], Tensor],
    b_LR: Tensor,
    precondition: Callable[[Tensor], Tensor],
    tolerance: float = CG_TOLERANCE,
    most: int = CG_STEPS,
) -> Solution:
    """Solve Ax = b for several columns at once, each with its own steps. A and the preconditioner are positive."""
    x, r = torch.zeros_like(b_LR), b_LR.clone()
    size = b_LR.norm(dim=0).clamp_min(torch.finfo(b_LR.dtype).tiny)
    z = precondition(r)
    p, rz, steps = z.clone(), (r * z).sum(0), 0
    while float((r.norm(dim=0) / size).max()) > tolerance and steps < most:
        steps += 1
        Ap = multiply(p)
        by = torch.nan_to_num(rz / (p * Ap).sum(0))  # 0 where a column is solved
        x += by * p
        r -= by * Ap
        z = precondition(r)
        rz, before = (r * z).sum(0), rz
        p = z + torch.nan_to_num(rz / before) * p
    return Solution(x, steps, float((r.norm(dim=0) / size).max()))


class LargeLabels:
    """What very many labels leave at any points: mean and variance."""

    def __init__(self, frozen: FrozenNetwork, x_L: Inputs, C: int, state: State, most: int = LANDMARKS) -> None:
        """state: of the same network and labels; its Θ is not computed."""
        start, p = time.perf_counter(), state._problem
        self.frozen, self.source = frozen, FactorSource(frozen, x_L, C)
        self.factors = self.factors_of(x_L)
        self.theta_scale = 1.0 if p.settings.theta_scale is None else float(p.settings.theta_scale)
        self.landmarks = pivoted_cholesky(self._kernel_rows, self.theta_scale * self.factors.diagonal(), most)
        F_Lk = self.landmarks.F_Lk
        noise_L = self.landmarks.left_L if p.site_noise is None else self.landmarks.left_L + p.site_noise

        def system(ridge: float) -> LowRankSystem:
            return LowRankSystem(F_Lk, noise_L + ridge)

        self.ridge = self._ridge(p, system)
        self.low_rank = system(self.ridge)
        self.left = float(self.landmarks.left_L.mean()) / self.ridge
        if self.left > 1:
            log.warning(
                "L = %d: what %d landmarks leave of Θ counts as noise, %.1f times λ = %.1e, so variances are too "
                "large; a larger ridge= mends that",
                p.L, len(self.landmarks.pivots), self.left, self.ridge,
            )  # fmt: skip
        self.D_L1 = (noise_L - self.landmarks.left_L + self.ridge)[:, None]
        self.scale, self.solution = 1.0, None if p.free else self._solve(p)
        if not p.free:
            alpha_LC = self.low_rank.solve(p.centred_LC)
            self.scale = 10 * float((alpha_LC.square() / self.low_rank.inverse_diagonal()).mean())
        self.pulled = None if self.solution is None else self.factors.pull(self.solution.x_LR)
        log.info("L = %d: %s, in %.1f s", p.L, self.words, time.perf_counter() - start)

    @property
    def words(self) -> str:
        found = self.solution
        by = "" if found is None else f", {found.steps} steps of conjugate gradients to {found.residual:.0e}"
        return f"{len(self.landmarks.pivots)} landmarks{by}, no L × L matrix"

    @property
    def info(self) -> dict[str, Any]:
        """For ``q.info``."""
        told: dict[str, Any] = {"landmarks": len(self.landmarks.pivots), "left": self.left}
        return told if self.solution is None else told | {"steps": self.solution.steps, "error": self.solution.residual}

    def factors_of(self, x: Inputs) -> TangentFactors:
        return join_factors(self.source.parts(x))

    def _kernel_rows(self, at: Tensor) -> Tensor:
        return self.theta_scale * self.factors.kernel(self.factors.at(at))

    def multiply(self, v_LR: Tensor) -> Tensor:
        """(Θ_LL + D) v."""
        theta_v = self.factors.push(self.factors.pull(v_LR))
        return torch.addcmul(self.theta_scale * theta_v, self.D_L1, v_LR)

    def _ridge(self, p: Problem, system: Callable[[float], LowRankSystem]) -> float:
        if p.ridge is not None:
            return p.ridge
        least = DEFAULT_RIDGE * self.theta_scale * float(self.factors.diagonal().mean())
        if not p.settings.misfit or not p.criterion.quadratic:
            return least
        y_LC = p.centred_LC
        return misfit_by(lambda ridge: system(ridge).solve(y_LC), y_LC, p.residual_L, least)

    def _solve(self, p: Problem) -> Solution:
        found = conjugate_gradients(self.multiply, p.y_LC - p.f_LC, self.low_rank.solve)
        if found.residual > CG_TOLERANCE:
            log.warning(
                "conjugate gradients stopped after %d steps, with a relative residual of %.0e (aim %.0e); a larger "
                "ridge= would need fewer", found.steps, found.residual, CG_TOLERANCE,
            )  # fmt: skip
        return found

    def prior(self, x: Inputs) -> PriorKernel:
        """Θ among some points that are both watched and candidates; of L there is nothing."""
        n = self.factors_of(x)
        diag_n11, none = self.theta_scale * n.diagonal()[:, None, None], n.rows.new_empty(0, len(n))
        return PriorKernel(
            none[:, :0], none.T, none.T, diag_n11, diag_n11, self.theta_scale * n.kernel(n), none, none, {"U": x}
        )

    def at(self, x: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        """f and the mean at some points, (n, C), and S_nn, (n,)."""
        f_nC, n = outputs(self.frozen, x), self.factors_of(x)
        mean_nC = f_nC if self.pulled is None else f_nC + self.theta_scale * n.push(self.pulled)
        F_nk = self.landmarks.rows(self.theta_scale * n.kernel(self.factors.at(self.landmarks.pivots)))
        var_n = self.theta_scale * n.diagonal() - self.low_rank.explained(F_nk)
        return f_nC, mean_nC, var_n.clamp_min(0)
