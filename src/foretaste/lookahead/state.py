"""State: a network after L and the labels kept since, and what one more label would make of it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any, ClassVar, SupportsIndex

import torch
from torch import Tensor

from foretaste.lookahead.cross_entropy import one_label
from foretaste.lookahead.labels import LabelRules
from foretaste.lookahead.theta import KernelSource, ThetaBlocks, to_sites
from foretaste.losses import LOSSES, Loss
from foretaste.tangent import DEFAULT_RIDGE

# What every state of one linearisation shares: f on L, W and U, the labels, λ, and where Θ comes from.


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    labels: LabelRules
    f_LC: Tensor
    f_WC: Tensor
    f_UC: Tensor
    y_LC: Tensor
    kernels: KernelSource
    B: int
    same: bool  # W = U
    at_W: dict[int, int]  # candidate -> watched point, where that is known
    ridge: float | None
    loss: str
    time: float

    @property
    def L(self) -> int:
        return self.f_LC.shape[0]

    @property
    def criterion(self) -> Loss:
        return LOSSES[self.loss]

    @property
    def free(self) -> bool:
        """Whether the mean before any kept label is f itself, which costs no kernel."""
        return not self.criterion.quadratic or self.L == 0

    @cached_property
    def label_noise_U(self) -> Tensor | None:
        """Cross-entropy: 1 / (p(1 − p)), p the largest probability of the candidate (Laplace).

        Of f before any label is kept: with the noise of a label fixed, S does not depend on the order of labels.
        """
        return self.criterion.label_noise(self.f_UC)

    @property
    def residual_L(self) -> float:
        """Mean squared residual of f on L (cross-entropy: of its softmax); NaN with an empty L."""
        return float((self.criterion.responses(self.f_LC) - self.y_LC).square().mean())

    @property
    def centred_LC(self) -> Tensor:
        return self.y_LC - (self.y_LC.mean(0) if self.labels.regression else 1 / self.labels.C)

    def resolve_ridge(self, theta: ThetaBlocks) -> float:
        """λ as given, or 1e-6 of the mean diagonal of Θ_LL (of the candidates', if L is empty)."""
        if self.ridge is not None:
            return self.ridge
        diag = theta.LL.diagonal() if self.L else theta.diag_U.diagonal(dim1=1, dim2=2)
        return DEFAULT_RIDGE * float(diag.mean())

    def system(self, theta: ThetaBlocks, ridge: float) -> Tensor:
        """A = Θ_LL + λI. Cross-entropy: + diag 1/(p(1 − p)), the curvature that the fitted labels have left.

        A label fitted to p = 0.99 resists little: with λ alone L would be held as rigidly as under L2. Correlation of
        predicted with retrained logit changes (digits, L = 40, two seeds, losses 0.1 to 0.01 of MLPs of widths 512 to
        2048): 0.71 to 0.80 with the noise and output="sum"; 0.41 to 0.60 with λ alone, whichever the output. Real
        changes are 0.95 to 1.2 times those predicted, and 1.7 to 5 times with λ alone.
        """
        A = theta.LL.clone()
        A.diagonal().add_(ridge)
        if (noise_L := self.criterion.label_noise(self.f_LC)) is not None:
            A.diagonal().add_(noise_L.repeat_interleave(self.B))
        return A

    def scale(self, chol: Tensor) -> float:
        """s²: ten times the labels' leave-one-out variance, mean α²/d (docs/mathematics.md, The scale); 1 if L = ∅.

        Cross-entropy: 1. There S is itself the prior's covariance of the logits, and ``theta_scale`` its calibration.
        """
        if self.free:
            return 1.0
        inverse = torch.cholesky_inverse(chol)
        alpha = inverse @ to_sites(self.centred_LC, self.B)
        return 10 * float((alpha.square() / inverse.diagonal()[:, None]).mean())


def cholesky(A: Tensor, ridge: float, what: str = "L") -> Tensor:
    """Raises with the least eigenvalue, and a λ that would hold."""
    chol, info = torch.linalg.cholesky_ex(A)
    if not info.any():
        return chol
    if not torch.isfinite(A).all():
        raise ValueError(f"Θ_{what}{what} has NaN or infinite values; look at the network's outputs and gradients")
    eigenvalues = torch.linalg.eigvalsh(A)
    least, most = float(eigenvalues[0]), float(eigenvalues[-1])
    need = max(1.1 * (ridge - least), 1e-13 * len(A) * most)
    own = DEFAULT_RIDGE * float(A.diagonal().mean())
    hint = f"try ridge > {need:.1e}"
    # With λ = 0 it is mostly rounding that failed, and the least λ against that would hold nothing steady.
    if ridge == 0 and own > need:
        hint = f"some points repeat others; try ridge={own:.1e}, 1e-6 of the mean diagonal, or None for the default"
    elif ridge == 0 and own <= 0:
        hint = "nothing is left of it; try ridge=None, which is 1e-6 of the mean diagonal of Θ_LL"
    raise ValueError(
        f"Cholesky of Θ_{what}{what} + λI failed: {what}={len(A)}, λ={ridge:.1e}, least eigenvalue {least:.1e}; {hint}"
    )


# State: a network after L and the labels kept since, and what one more label would make of it.


COLUMN_BLOCK_BYTES = 64_000_000

KeptLabel = tuple[int, Tensor | None]


@dataclass(frozen=True, eq=False, repr=False)
class State(ABC):
    """f_lin on L and the kept labels (docs/mathematics.md, The base); all tensors are float64, not to be written to.

    Site layout: B is 1 for a single-logit kernel Θ ⊗ I_C, whose C classes are C right-hand sides, and C for the full
    kernel, whose rows are (point, class).
    """

    method: ClassVar[str]  # its name in ``method=``
    _problem: Problem
    kept: tuple[KeptLabel, ...]

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
    def criterion(self) -> Loss:
        """The loss itself, with its slope, probabilities and noise."""
        return self._problem.criterion

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
    def _with(self, kept: tuple[KeptLabel, ...]) -> "State": ...

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
        noise_U = self._problem.label_noise_U
        return self._problem.f_UC.new_full((self.U,), self.ridge) if noise_U is None else noise_U

    def push(self, y_uC: Tensor, at: slice | Tensor = slice(None)) -> Tensor:
        """(u, C): a_j such that f⁺_i = mean_i + S_ij a_j if candidate j of ``at`` had the target y_j (Eq. 12).

        L2: a_j = u_j⁻¹ (y_j − mean_j). Cross-entropy: a = y − softmax(mean_j + S_jj a), by damped Newton; after labels
        are kept, S is the Laplace approximation there, and ``lookahead`` solves them all together.
        """
        if not self.criterion.quadratic:
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
        most = COLUMN_BLOCK_BYTES * (8 if self._problem.f_WC.is_cuda else 1)  # there a launch costs more than a miss
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
