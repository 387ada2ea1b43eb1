"""State by the block update of Eq. 12: a base after L, plus one factor for each kept label.

After keeping K the posterior is S − S_·K (S_KK + λI)⁻¹ S_K·. Cholesky's factor of S_KK + λI, taken one label at a
time, makes that S − F_W F_Uᵀ with one block column of F a label:  s = S_·j − F F_jᵀ,  s_j + λ = RRᵀ,  F ← [F, s R⁻ᵀ].
The base is never copied. The mean is solved from the base again, so relabelling costs k³ and leaves nothing behind.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from foretaste.retrain._newton import many_labels
from foretaste.retrain._posterior import Posterior
from foretaste.retrain._problem import cholesky
from foretaste.retrain._state import Label, State
from foretaste.retrain._theta import sites


@dataclass(frozen=True, eq=False)
class Factor:
    """The block column of one kept candidate: (W·B, B) and (U·B, B), one tensor if W = U."""

    j: int
    f_W: Tensor
    f_U: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Dense(State):
    _posterior: Posterior
    _factors: tuple[Factor, ...] = ()

    @property
    def ridge(self) -> float:
        given = self._problem.ridge
        return self._posterior.solved.ridge if given is None else given

    @property
    def scale(self) -> float:
        return 1.0 if self._problem.free else self._posterior.solved.scale

    @cached_property
    def mean(self) -> Tensor:
        return self._mean_W(self._labelled)

    @cached_property
    def pool_mean(self) -> Tensor:
        base = self._posterior
        if not self._labelled:
            return base.mean_UC
        if self._problem.same:
            return self.mean
        S_KU = torch.cat([base.row(j) for j, _ in self._labelled])
        return base.mean_UC + (S_KU.T @ self._weights(self._labelled)).reshape(base.mean_UC.shape)

    @property
    def _labelled(self) -> tuple[tuple[int, Tensor], ...]:
        return tuple((j, y) for j, y in self.kept if y is not None)

    def _mean_W(self, labelled: tuple[tuple[int, Tensor], ...]) -> Tensor:
        base = self._posterior
        if not labelled:
            return base.mean_WC
        S_WK = torch.cat([base.column(j) for j, _ in labelled], 1)
        return base.mean_WC + (S_WK @ self._weights(labelled)).reshape(base.mean_WC.shape)

    def _weights(self, labelled: tuple[tuple[int, Tensor], ...]) -> Tensor:
        """α with f⁺ = mean + S_·K α, (k·B, C/B), for all labels at once: from the base, so order does not matter."""
        base = self._posterior
        js = [j for j, _ in labelled]
        S_KK, m_KC, y_KC = base.among(js), base.mean_UC[js], torch.stack([y for _, y in labelled])
        if self.loss == "ce":
            return sites(many_labels(m_KC, S_KK, y_KC), self.B)
        S_KK.diagonal().add_(self.ridge)
        return torch.cholesky_solve(sites(y_KC - m_KC, self.B), cholesky(S_KK, self.ridge, "K"))

    def lookahead(self, j: SupportsIndex, y: Any) -> Tensor:
        j, y_C = self._candidate(j), self._problem.labels.target(y)
        return self._mean_W((*(label for label in self._labelled if label[0] != j), (j, y_C)))

    def _with(self, kept: tuple[Label, ...]) -> "Dense":
        return replace(self, kept=kept, _factors=self._extend([j for j, _ in kept]))

    def _extend(self, js: list[int]) -> tuple[Factor, ...]:
        """The factors of js, in that order; those that the two orders share from the start are kept."""
        factors: tuple[Factor, ...] = ()
        for have, j in zip(self._factors, js):
            if have.j != j:
                break
            factors += (have,)
        for j in js[len(factors) :]:
            factors += (self._factor(j, factors),)
        return factors

    def _factor(self, j: int, factors: tuple[Factor, ...]) -> Factor:
        base, B = self._posterior, self.B
        here = slice(j * B, (j + 1) * B)
        s_U, s_W = base.row(j).T, base.column(j)
        if factors:
            F_U = torch.cat([f.f_U for f in factors], 1)
            s_U = s_U - F_U @ F_U[here].T
            if not self._problem.same:
                s_W = s_W - torch.cat([f.f_W for f in factors], 1) @ F_U[here].T
        u = s_U[here].clone()
        u.diagonal().add_(float(self._noise_U[j]))
        R = cholesky((u + u.T) / 2, self.ridge, "j")
        f_U = torch.linalg.solve_triangular(R, s_U.T, upper=False).T
        f_W = f_U if self._problem.same else torch.linalg.solve_triangular(R, s_W.T, upper=False).T
        return Factor(j, f_W, f_U)

    @cached_property
    def _F_U(self) -> Tensor:
        return torch.cat([f.f_U for f in self._factors], 1)

    @cached_property
    def _F_W(self) -> Tensor:
        return self._F_U if self._problem.same else torch.cat([f.f_W for f in self._factors], 1)

    @cached_property
    def variance_blocks(self) -> Tensor:
        var_U = self._posterior.solved.var_U
        if not self._factors:
            return var_U
        F = self._F_U.reshape(self.U, self.B, -1)
        return var_U - F @ F.mT

    @cached_property
    def watched_variance(self) -> Tensor:
        var_W = self._posterior.solved.var_W
        if var_W is None:
            raise ValueError("the diagonal of the watched points' kernel was not given; give diag_W")
        if self._factors:
            F = self._F_W.reshape(self.W, self.B, -1)
            var_W = var_W - F @ F.mT
        return var_W[:, 0, 0] if self.B == 1 else var_W

    def blocks(self, width: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        S_WU = self._posterior.solved.S_WU
        for at in self._widths(width):
            here = slice(at.start * self.B, at.stop * self.B)
            block = S_WU[:, here]
            yield at, torch.addmm(block, self._F_W, self._F_U[here].T, alpha=-1) if self._factors else block

    @property
    def _ridge_known(self) -> float | None:
        if self._problem.ridge is None and self._posterior.known:
            return self._posterior.solved.ridge
        return self._problem.ridge
