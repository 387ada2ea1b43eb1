"""State by the block update of Eq. 12: a base after L, plus one factor for each kept label.

After keeping K the posterior is S − S_·K (S_KK + λI)⁻¹ S_K·. Cholesky's factor of S_KK + λI, taken one label at a
time, makes that S − F_WᵀF_U with one block row of F a label:  s = S_j· − F_jᵀF,  s_j + λ = RRᵀ,  F ← [F; R⁻¹s].
The base is never written to. The mean is solved from it again, so relabelling costs k³ and leaves nothing behind.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from foretaste.lookahead.cross_entropy import many_labels
from foretaste.lookahead.factors import Factors, RunningPosterior, UseParts
from foretaste.lookahead.problem import PriorKernel, Problem, diagonal_blocks, given_diagonal, site_index, to_sites
from foretaste.lookahead.solve import (
    ROUNDING_SHARE,
    cholesky,
    inverse_root,
    rounding_floor,
)
from foretaste.lookahead.state import KeptLabel, State

# --- the base: what training on L leaves, mean = f + Θ_·L A⁻¹ R and S = Θ − Θ_·L A⁻¹ Θ_L·  (Eq. 10, 12) ---


@dataclass(frozen=True, eq=False)
class SolvedBase:
    """The means, S and its diagonals after L. Never written to."""

    ridge: float
    scale: float
    mean_WC: Tensor
    mean_UC: Tensor
    half_U: Tensor  # chol⁻¹ Θ_LU, (L·B, U·B)
    half_W: Tensor  # chol⁻¹ Θ_LW; the same tensor if W = U
    chol: Tensor  # of A, (L·B, L·B)
    S_WU: Tensor
    var_U: Tensor  # (U, B, B)
    var_W: Tensor | None


def solve_base(p: Problem) -> SolvedBase:
    """Eq. 10 and S through one Cholesky factor: with A = RRᵀ and H = R⁻¹Θ_L·, S = Θ − HᵀH, mean = f + HᵀR⁻¹(Y − f)."""
    p.warn_unfitted()
    theta = p.kernels.load()
    ridge = p.resolve_ridge(theta)
    chol = cholesky(p.system(theta, ridge), ridge)
    half_U = torch.linalg.solve_triangular(chol, theta.UL.T, upper=False)
    half_W = half_U if p.same else torch.linalg.solve_triangular(chol, theta.WL.T, upper=False)
    mean_WC, mean_UC = p.f_WC, p.f_UC
    if not p.free:
        half_R = torch.linalg.solve_triangular(chol, to_sites(p.y_LC - p.f_LC, p.B), upper=False)
        mean_UC = p.f_UC + (half_U.T @ half_R).reshape(p.f_UC.shape)
        mean_WC = mean_UC if p.same else p.f_WC + (half_W.T @ half_R).reshape(p.f_WC.shape)
    # In place: S is the largest matrix there is, and nothing needs Θ_WU again.
    S_WU = (theta.WU if p.kernels.ours else theta.WU.clone()).addmm_(half_W.T, half_U, alpha=-1)
    if p.same:
        var_U = diagonal_blocks(S_WU, p.B)
        var_W: Tensor | None = var_U
    else:
        var_U = theta.diag_U - squared_blocks(half_U, p.B)
        var_W = None if theta.diag_W is None else theta.diag_W - squared_blocks(half_W, p.B)
    return SolvedBase(ridge, p.scale(chol), mean_WC, mean_UC, half_U, half_W, chol, S_WU, var_U, var_W)


def squared_blocks(half_U: Tensor, B: int) -> Tensor:
    """The (N, B, B) diagonal blocks of HᵀH."""
    if B == 1:
        return half_U.square().sum(0)[:, None, None]
    h = half_U.reshape(half_U.shape[0], half_U.shape[1] // B, B)
    return torch.einsum("lna,lnb->nab", h, h)


@dataclass(eq=False)
class Posterior:
    """The base, solved on first need and shared by every state of one linearisation.

    ``rows`` and ``running`` are caches, of rows S_jU and of S after kept labels: any state can rebuild them.
    """

    problem: Problem
    rows: dict[int, Tensor] = field(default_factory=dict)
    running: RunningPosterior = field(default_factory=RunningPosterior)

    @cached_property
    def solved(self) -> SolvedBase:
        found = vars(self)["solved"] = solve_base(self.problem)  # kept before Θ goes: a Ctrl-C may come in between
        self.problem.kernels.forget()
        return found

    @property
    def known(self) -> bool:
        """Whether the base is solved already."""
        return "solved" in self.__dict__

    @property
    def mean_WC(self) -> Tensor:
        return self.problem.f_WC if self.problem.free else self.solved.mean_WC

    @property
    def mean_UC(self) -> Tensor:
        return self.problem.f_UC if self.problem.free else self.solved.mean_UC

    @cached_property
    def prior_blocks(self) -> Tensor:
        """Θ_jj of the candidates, (U, B, B): S_jj + HᵀH."""
        return self.solved.var_U + squared_blocks(self.solved.half_U, self.problem.B)

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
            self.load_rows([j])
        return self.rows[j]

    def load_rows(self, js: list[int]) -> None:
        """Compute rows that are not known yet, all at once."""
        p, s = self.problem, self.solved
        js = [] if p.same else [j for j in js if j not in self.rows and j not in p.at_W]
        if js:
            S_KU = p.kernels.rows(js) - s.half_U[:, site_index(js, p.B, s.half_U.device)].T @ s.half_U
            self.rows.update(zip(js, S_KU.split(p.B)))

    def forget_rows(self, kept: Collection[int], spare: int) -> None:
        """Keep the rows of candidates ``kept``, and the newest ``spare`` of the others."""
        if len(self.rows) > len(kept) + spare:
            others = [j for j in self.rows if j not in kept]
            for j in others[: len(others) - spare]:
                del self.rows[j]

    def exchange(self, new: "OtherCandidates") -> "Posterior":
        """This base with other candidates in the place of some. Costs what these do: the rest is copied.

        W ≠ U and B = 1. Those that go are neither watched nor have a kept label.
        """
        p, s, at = self.problem, self.solved, new.at
        half_Ln = torch.linalg.solve_triangular(s.chol, new.theta_nL.T, upper=False)
        f_UC, half_U, S_WU, var_U = p.f_UC.clone(), s.half_U.clone(), s.S_WU.clone(), s.var_U.clone()
        f_UC[at], half_U[:, at] = new.f_nC, half_Ln
        S_WU[:, at] = torch.addmm(new.theta_nW.T, s.half_W.T, half_Ln, alpha=-1)
        var_U[at] = new.diag_n[:, None, None] - squared_blocks(half_Ln, 1)
        mean_UC = f_UC
        if not p.free:
            half_R = torch.linalg.solve_triangular(s.chol, p.y_LC - p.f_LC, upper=False)
            mean_UC = s.mean_UC.clone()
            mean_UC[at] = new.f_nC + half_Ln.T @ half_R
        made = Posterior(replace(p, f_UC=f_UC))
        vars(made)["solved"] = replace(s, mean_UC=mean_UC, half_U=half_U, S_WU=S_WU, var_U=var_U)
        if self.rows:
            js = list(self.rows)
            S_KU = torch.cat(list(self.rows.values()))
            S_KU[:, at] = torch.addmm(new.theta_nU[:, js].T, half_U[:, js].T, half_Ln, alpha=-1)
            made.rows.update(zip(js, S_KU.split(1)))
        return made

    def among(self, js: list[int]) -> Tensor:
        """S_KK of candidates js, (k·B, k·B). The last one needs no row: S is symmetric and its diagonal is known."""
        p = self.problem
        at = site_index(js, p.B, p.f_WC.device)
        if p.same:
            return self.solved.S_WU[at][:, at]
        self.load_rows(js[:-1])
        k, nothing = torch.arange(len(js), device=at.device).repeat_interleave(p.B), p.f_WC.new_zeros(p.B, len(at))
        S_KK = torch.cat([*(self.row(j)[:, at] for j in js[:-1]), nothing]).where(k[:, None] < k, 0.0)
        S_KK += S_KK.T.clone()
        S_KK.view(len(js), p.B, len(js), p.B).diagonal(dim1=0, dim2=2).copy_(self.solved.var_U[js].permute(1, 2, 0))
        return S_KK


@dataclass(frozen=True, eq=False)
class OtherCandidates:
    """Candidates that take the places ``at`` of others: f, and Θ with L, with W, and with U as it then is. B = 1."""

    at: Tensor
    f_nC: Tensor
    theta_nL: Tensor
    theta_nW: Tensor
    theta_nU: Tensor

    @property
    def diag_n(self) -> Tensor:
        return self.theta_nU[torch.arange(len(self.at), device=self.at.device), self.at]


# --- the state: the base, plus one factor for each kept label ---


@dataclass(frozen=True, eq=False, repr=False)
class DenseState(State):
    """The default state, ``method="dense"``: look-ahead by the block update of Eq. 12."""

    method: ClassVar[str] = "dense"
    _posterior: Posterior
    _factors: Factors = field(default_factory=Factors)

    @property
    def ridge(self) -> float:
        given = self._problem.ridge
        return self._posterior.solved.ridge if given is None else given

    @property
    def scale(self) -> float:
        return 1.0 if self._problem.free else self._posterior.solved.scale

    @cached_property
    def pool_mean(self) -> Tensor:
        base = self._posterior
        if not self._labelled:
            return base.mean_UC
        if self._problem.same:
            return self.mean
        base.load_rows([j for j, _ in self._labelled])
        S_KU = torch.cat([base.row(j) for j, _ in self._labelled])
        return base.mean_UC + (S_KU.T @ self._weights(self._labelled)).reshape(base.mean_UC.shape)

    def _mean_W(self, labelled: tuple[tuple[int, Tensor], ...]) -> Tensor:
        base = self._posterior
        if not labelled:
            return base.mean_WC
        S_WK = base.columns([j for j, _ in labelled])
        return base.mean_WC + (S_WK @ self._weights(labelled)).reshape(base.mean_WC.shape)

    def _weights(self, labelled: tuple[tuple[int, Tensor], ...]) -> Tensor:
        """α with f⁺ = mean + S_·K α, (k·B, C/B), for all labels at once: from the base, so order does not matter."""
        base = self._posterior
        js = [j for j, _ in labelled]
        S_KK, m_KC, y_KC = base.among(js), base.mean_UC[js], torch.stack([y for _, y in labelled])
        if not self.criterion.quadratic:
            return to_sites(many_labels(m_KC, S_KK, y_KC), self.B)
        S_KK.diagonal().add_(self.ridge)
        e_K = to_sites(y_KC - m_KC, self.B)
        chol, failed = torch.linalg.cholesky_ex(S_KK)
        if not failed:
            return torch.cholesky_solve(e_K, chol)
        rounding = ROUNDING_SHARE * len(js) * float(base.prior_blocks[js].diagonal(dim1=1, dim2=2).max())
        root = inverse_root(S_KK, self.ridge, 0.0, rounding)
        return root.T @ (root @ e_K)

    def _with(self, kept: tuple[KeptLabel, ...]) -> "DenseState":
        return replace(self, kept=kept, _factors=self._extend([j for j, _ in kept]))

    def _extend(self, js: list[int]) -> Factors:
        """The factors of js, in that order. Factors of a common beginning of the two orders are reused."""
        have = self._factors.js
        shared = len(have)
        if tuple(js[:shared]) != have:
            shared = next((n for n, (a, b) in enumerate(zip(have, js)) if a != b), min(shared, len(js)))
        factors = self._factors.first(shared)
        self._posterior.load_rows(js[shared:])
        for j in js[shared:]:
            factors = self._append(factors, j)
        return factors

    def exchange(self, new: OtherCandidates, base: Posterior) -> "DenseState":
        """This state with other candidates in the place of some; ``base`` is its own after ``Posterior.exchange``."""
        js = self._factors.js
        S_Kn = torch.cat([base.row(j)[:, new.at] for j in js]) if js else new.theta_nU[:0]
        factors = self._factors.exchange(new.at, S_Kn, base.solved.var_U[new.at])
        return replace(self, _problem=base.problem, _posterior=base, _factors=factors)

    def _append(self, factors: Factors, j: int) -> Factors:
        """One more factor: s = S_j· − F_jᵀF, s_j + λ = RRᵀ, F ← [F; R⁻¹s]. Here a kept label enters S."""
        base, B, same = self._posterior, self.B, self._problem.same
        here = slice(j * B, (j + 1) * B)
        s_U = base.row(j)
        s_W = s_U if same else base.columns([j]).T
        if factors.js:
            F_U = factors.U()
            f_j = F_U[:, here].T
            s_U = torch.addmm(s_U, f_j, F_U, alpha=-1)
            if not same:
                s_W = torch.addmm(s_W, f_j, factors.W(), alpha=-1)
        noise_U = self._problem.label_noise_U
        noise = self.ridge if noise_U is None else noise_U[j]
        u = s_U[:, here] + (noise if B == 1 else noise * torch.eye(B, dtype=s_U.dtype, device=s_U.device))
        var_U = factors.var_U if factors.js else base.solved.var_U
        known_U = var_U if var_U is not None else base.solved.var_U
        floor = rounding_floor(known_U, base.prior_blocks)[j]
        u_least, floor = torch.stack([u.diagonal().min(), floor]).tolist()  # one read from the device
        if B == 1 and u_least > 0 >= floor:
            R_inverse = u.rsqrt()
            f_U = s_U * R_inverse
            f_W = f_U if same else s_W * R_inverse
            root = R_inverse
        else:
            allowed = math.inf if factors.js else ROUNDING_SHARE * float(base.prior_blocks[j].diagonal().max())
            root = inverse_root((u + u.T) / 2, float(noise), floor, allowed)
            f_U = root @ s_U
            f_W = f_U if same else root @ s_W
        if var_U is not None:
            f_U11 = f_U[0, :, None, None]
            var_U = torch.addcmul(var_U, f_U11, f_U11, value=-1) if B == 1 else var_U - squared_blocks(f_U, B)
        return factors.append(j, root, f_U, f_W, var_U)

    @cached_property
    def taken(self) -> Tensor:
        taken_U = self._factors.taken_U
        return super().taken if taken_U is None else taken_U

    @cached_property
    def variance_blocks(self) -> Tensor:
        var_U, factors = self._posterior.solved.var_U, self._factors
        if not factors.js:
            return var_U
        return var_U - squared_blocks(factors.U(), self.B) if factors.var_U is None else factors.var_U

    @cached_property
    def u(self) -> Tensor:
        # The same values. One number is read from the device if all is well.
        return u_U if self.B == 1 and float((u_U := self.unchecked_u).max()) < math.inf else super().u

    @cached_property
    def unchecked_u(self) -> Tensor:
        """u with B = 1, infinite wherever it is not positive. ``u`` says whether rounding explains that."""
        noise_U = self._problem.label_noise_U
        u_U = self.variance_blocks[:, 0, 0] + (self.ridge if noise_U is None else noise_U)
        return u_U.masked_fill_(u_U <= 0, math.inf)

    @property
    def prior_blocks(self) -> Tensor:
        return self._posterior.prior_blocks

    @cached_property
    def watched_variance(self) -> Tensor:
        var_W = given_diagonal(self._posterior.solved.var_W)
        if self._factors.js:
            var_W = self.variance_blocks if self._problem.same else var_W - squared_blocks(self._factors.W(), self.B)
        return var_W[:, 0, 0] if self.B == 1 else var_W

    def blocks(self, width: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        base_WU, factors, same = self._posterior.solved.S_WU, self._factors, self._problem.same
        running = self._posterior.running
        running.follow(base_WU, factors)
        for at in self._widths(width):
            here = slice(at.start * self.B, at.stop * self.B)
            if factors.js:
                yield at, running.block(base_WU, factors, here, same)
            else:
                yield at, base_WU[here].T if same else base_WU[:, here]

    @property
    def linearisation(self) -> Posterior:
        return self._posterior

    def prior(self) -> PriorKernel:
        # S holds Θ less HᵀH, with H = chol⁻¹ Θ_L·, so that Θ itself need not be kept.
        p, s = self._problem, self._posterior.solved
        var_W = given_diagonal(s.var_W)
        LL = s.chol @ s.chol.T
        LL.diagonal().sub_(s.ridge if (noise := p.site_noise) is None else noise + s.ridge)
        diag_U = s.var_U + squared_blocks(s.half_U, p.B)
        diag_W = diag_U if p.same else var_W + squared_blocks(s.half_W, p.B)
        known_UL = p.kernels.known_UL()
        UL = s.half_U.T @ s.chol.T if known_UL is None else known_UL
        WL = UL if p.same else s.half_W.T @ s.chol.T
        S_UW = s.S_WU if p.same else s.S_WU.T
        return PriorKernel(LL, WL, UL, diag_U, diag_W, S_UW, s.half_U, s.half_W, p.kernels.points)

    @property
    def rows_together(self) -> bool:
        """Whether rows of S are contiguous, as ``from_parts`` gives them."""
        return self._problem.same or self._posterior.solved.S_WU.stride(1) == 1

    @property
    def order(self) -> tuple[int, ...]:
        """The candidates in ``kept``, in the order of the factors."""
        return self._factors.js

    @property
    def newest_factor(self) -> tuple[Tensor, Tensor]:
        """The factor of the candidate that was kept last, (W,) and (U,), with B = 1."""
        k = len(self._factors.js) - 1
        return self._factors.W(k)[0], self._factors.U(k)[0]

    def from_parts(self, use: UseParts, wait: int | None = None) -> Tensor:
        """``use(S_WU, F_W, F_U)`` where S_WU − F_WᵀF_U is S, for code that does not need the difference in memory.

        wait: how many factors may wait to be subtracted.
        """
        base_WU, factors, running = self._posterior.solved.S_WU, self._factors, self._posterior.running

        def by_rows(S_WU: Tensor, F_W: Tensor, F_U: Tensor) -> Tensor:
            return use(S_WU.T if S_WU.stride(1) != 1 and self._problem.same else S_WU, F_W, F_U)

        if not factors.js:
            return by_rows(base_WU, base_WU.new_empty(0, base_WU.shape[0]), base_WU.new_empty(0, base_WU.shape[1]))
        running.follow(base_WU, factors, wait)
        return running.read(base_WU, factors, by_rows)

    def columns(self, at: Tensor) -> Tensor:
        """S_WK of candidates ``at``, (W, k), with B = 1."""
        base_WU, factors, same = self._posterior.solved.S_WU, self._factors, self._problem.same
        if not factors.js:
            return base_WU[at].T if same else base_WU[:, at]

        def take(S_WU: Tensor, F_W: Tensor, F_U: Tensor) -> Tensor:  # W = U: rows, which lie together in memory
            S_WK = S_WU[at].T if same else S_WU[:, at]
            return S_WK.addmm_(F_W.T, F_U[:, at], alpha=-1)

        return self._posterior.running.read(base_WU, factors, take)

    @property
    def _ridge_known(self) -> float | None:
        if self._problem.ridge is None and self._posterior.known:
            return self._posterior.solved.ridge
        return self._problem.ridge
