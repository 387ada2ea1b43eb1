"""State: a network after L and the labels kept since, and what one more label would make of it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from foretaste.retrain._newton import one_label
from foretaste.retrain._problem import Problem

BLOCK_BYTES = 64_000_000

Label = tuple[int, Tensor | None]


@dataclass(frozen=True, eq=False, repr=False)
class State(ABC):
    """f_lin on L and the kept labels (docs/mathematics.md, The base); all tensors are float64, not to be written to.

    Site layout: B is 1 for a single-logit kernel Θ ⊗ I_C, whose C classes are C right-hand sides, and C for the full
    kernel, whose rows are (point, class).
    """

    _problem: Problem
    kept: tuple[Label, ...]

    @property
    def L(self) -> int:
        return self._problem.L

    @property
    def W(self) -> int:
        return self._problem.f_WC.shape[0]

    @property
    def U(self) -> int:
        return self._problem.f_UC.shape[0]

    @property
    def C(self) -> int:
        return self._problem.f_UC.shape[1]

    @property
    def B(self) -> int:
        return self._problem.B

    @property
    def loss(self) -> str:
        return self._problem.loss

    @property
    def regression(self) -> bool:
        return self._problem.labels.regression

    @property
    def net(self) -> Tensor:
        """f on the watched points, (W, C)."""
        return self._problem.f_WC

    @property
    def pool_net(self) -> Tensor:
        """f on the candidates, (U, C)."""
        return self._problem.f_UC

    @property
    def residual_L(self) -> float:
        """Mean squared residual of f on L; the look-ahead assumes that it is small."""
        return self._problem.residual_L

    @cached_property
    def taken(self) -> Tensor:
        """(U,) bool: the candidates whose label is kept, or on its way."""
        taken_U = torch.zeros(self.U, dtype=torch.bool, device=self.net.device)
        taken_U[[j for j, _ in self.kept]] = True
        return taken_U

    def targets(self, y: Any) -> Tensor:
        """Labels as (n, C) float64 targets, checked."""
        return self._problem.labels.targets(y)

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """f_lin on the watched points, (W, C)."""

    @property
    @abstractmethod
    def pool_mean(self) -> Tensor:
        """f_lin on the candidates, (U, C)."""

    @property
    @abstractmethod
    def ridge(self) -> float:
        """The λ in use; costs a kernel where it was not given."""

    @property
    @abstractmethod
    def scale(self) -> float:
        """s² of the posterior's variance: ten times the leave-one-out value; 1 with an empty L or cross-entropy."""

    @property
    @abstractmethod
    def variance_blocks(self) -> Tensor:
        """S_jj of the candidates, (U, B, B)."""

    @property
    @abstractmethod
    def watched_variance(self) -> Tensor:
        """S_ii of the watched points: (W,) for B = 1, else (W, B, B)."""

    @abstractmethod
    def blocks(self, width: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """S in column blocks: (candidates, S_Wu (W·B, u·B)), ``width`` candidates each, about 64 MB by default.

        A block may be a transposed view of rows, and is not to be written to.
        """

    @abstractmethod
    def lookahead(self, j: SupportsIndex, y: Any) -> Tensor:
        """Outputs on the watched points if candidate j had label y, (W, C). Labels on their way do not count."""

    @abstractmethod
    def _with(self, kept: tuple[Label, ...]) -> "State": ...

    @cached_property
    def u(self) -> Tensor:
        """S_jj + λ, (U,) or (U, B, B). Cross-entropy: the label's own noise 1/(p(1 − p)) in place of λ."""
        noise_U = self._noise_U
        if self.B > 1:
            return self.variance_blocks + torch.diag_embed(noise_U[:, None].expand(-1, self.B))
        u_U = self.variance_blocks[:, 0, 0] + noise_U
        low = u_U <= 0
        if (bad := low & ~self.taken).any():
            j = int(u_U.masked_fill(~bad, math.inf).argmin())
            need = max(2 * (self.ridge - float(u_U[j])), 1e-12 * float(u_U.abs().max()))
            raise ValueError(
                f"S_jj + λ is {float(u_U[j]):.1e} at candidate {j} ({int(bad.sum())} are not positive): what is "
                f"labelled leaves it no variance at this precision; try ridge > {need:.1e}"
            )
        return u_U.masked_fill(low, 1.0)  # of taken candidates, which no score counts

    @property
    def _noise_U(self) -> Tensor:
        p = self._problem
        return p.label_noise_U if p.loss == "ce" else p.f_UC.new_full((self.U,), self.ridge)

    def push(self, y_uC: Tensor, at: slice | Tensor = slice(None)) -> Tensor:
        """(u, C): a_j such that f⁺_i = mean_i + S_ij a_j if candidate j of ``at`` had the target y_j (Eq. 12).

        L2: a_j = u_j⁻¹ (y_j − mean_j). Cross-entropy: a = y − softmax(mean_j + S_jj a), by damped Newton; after labels
        are kept, S is the Laplace approximation there, and ``lookahead`` solves them all together.
        """
        if self.loss == "ce":
            return one_label(self.pool_mean[at], self.variance_blocks[at], y_uC)
        e_uC = y_uC - self.pool_mean[at]
        return e_uC / self.u[at][:, None] if self.B == 1 else torch.linalg.solve(self.u[at], e_uC)

    def condition(self, j: SupportsIndex, y: Any = None) -> "State":
        """Retrain on one more label (Eq. 12), without training. y = None: it is on its way, S shrinks, the mean stays.

        A candidate already kept is relabelled, which equals having been taught so from the start.
        """
        j = self._candidate(j)
        y_C = None if y is None else self._problem.labels.target(y)
        if any(k == j for k, _ in self.kept):
            return self._with(tuple((k, y_C if k == j else y_k) for k, y_k in self.kept))
        return self._with((*self.kept, (j, y_C)))

    def release(self, j: SupportsIndex) -> "State":
        """Undo a kept label."""
        j = self._candidate(j)
        if all(k != j for k, _ in self.kept):
            raise ValueError(f"candidate {j} has no kept label; kept are {[k for k, _ in self.kept][:20]}")
        return self._with(tuple(label for label in self.kept if label[0] != j))

    def _candidate(self, j: SupportsIndex) -> int:
        j = index(j)
        if not 0 <= j < self.U:
            raise IndexError(f"candidate {j} is outside the pool of {self.U}; expected a position 0 to {self.U - 1}")
        return j

    def _widths(self, width: int | None) -> Iterator[slice]:
        if width is not None and width < 1:
            raise ValueError(f"width is {width}; expected at least one candidate a block")
        most = BLOCK_BYTES * (8 if self._problem.f_WC.is_cuda else 1)  # there a launch costs more than a miss
        step = width or max(1, most // (8 * self.W * self.B * self.B))
        for start in range(0, self.U, step):
            yield slice(start, min(start + step, self.U))

    @property
    def _ridge_known(self) -> float | None:
        return self._problem.ridge

    def __repr__(self) -> str:
        ridge = "lazy" if self._ridge_known is None else f"{self._ridge_known:.3g}"
        full = ", full kernel" if self.B > 1 else ""
        return (
            f"{type(self).__name__}(L={self.L}, U={self.U}, W={self.W}, C={self.C}, loss={self.loss!r}, ridge={ridge}, "
            f"kept={len(self.kept)}{full})"
        )
