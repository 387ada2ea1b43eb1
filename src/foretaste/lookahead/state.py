"""State: a trained network, linearised, after L and the labels kept since; and what one more label would make of it.

A state is a value: its methods return new states and never change it. With A = Θ_LL + λI,

    mean_i = f_i + Θ_iL A⁻¹ (Y − f_L)          outputs after training on L (Eq. 8, 10)
    S_ij   = Θ_ij − Θ_iL A⁻¹ Θ_Lj              what L leaves unexplained between watched point i and candidate j
    u_j    = S_jj + λ
    f⁺_i   = mean_i + S_ij u_j⁻¹ (y − mean_j)  outputs if candidate j had label y (Eq. 12)

There are two kinds: ``DenseState`` (dense.py) keeps S and updates it, ``DirectState`` (direct.py) solves Eq. 11 anew
for each candidate. The derivation is in docs/mathematics.md, The base.
"""

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
from foretaste.lookahead.graph import PoolEvidence
from foretaste.lookahead.problem import PriorKernel, Problem
from foretaste.lookahead.solve import ROUNDING_SHARE, rounding_floor, without_rounding
from foretaste.losses import Loss

COLUMN_BLOCK_BYTES = 64_000_000

KeptLabel = tuple[int, Tensor | None]  # a candidate and its (C,) target; None: picked, and the label not known yet


@dataclass(frozen=True, eq=False, repr=False)
class State(ABC):
    """A linearised network after L and the kept labels, made by ``ft.linearize`` or ``from_kernels``.

    All tensors are float64 and must not be written to. They lie on the network's device (on the CPU where the device
    has no float64). The state is lazy: Θ is computed when a method first needs S.

    Attributes:
        net: (W, C), outputs of the network on the watched points.
        mean: (W, C), outputs of the linearised network there, after L and the kept labels.
        pool_net, pool_mean: (U, C), the same on the candidates.
        u: (U,), S_jj + λ of each candidate; (U, C, C) with ``output="full"``.
        ridge: the λ in use.
        scale: s² of the posterior's variance, which ``gain`` uses.
        residual_L: mean squared residual of the network on L; look-ahead assumes that it is small.
        kept: the labels kept so far, as (candidate, target) pairs.
        taken: (U,) bool, the candidates in ``kept``.
        L, W, U, C: the numbers of labelled points, watched points, candidates and outputs.
        B: 1, or C with ``output="full"``.
        loss, regression, method: the settings in use.

    Example:
        >>> import torch, foretaste as ft
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).eval()
        >>> x, y_L = torch.randn(10, 2), torch.tensor([0, 1, 2, 0])
        >>> state = ft.linearize(net, x[:4], y_L, x[4:])
        >>> state.lookahead(5, 2).shape  # all six candidates are watched, three outputs each
        torch.Size([6, 3])
        >>> kept = state.condition(5, 2)
        >>> bool(torch.allclose(kept.mean, state.lookahead(5, 2))), kept.taken.tolist()
        (True, [False, False, False, False, False, True])
    """

    method: ClassVar[str]  # its name in ``method=``
    _problem: Problem
    kept: tuple[KeptLabel, ...]

    # What one more label does.

    def lookahead(self, j: SupportsIndex, y: Any) -> Tensor:
        """(W, C): outputs on the watched points if candidate j had label y (Eq. 11, 12), without training.

        j is a position in x_U. y is a class id or name, a (C,) target, or a float in regression. Kept labels count;
        candidates kept without a label (y=None) do not.
        """
        j, y_C = self._candidate(j), self._problem.labels.target(y)
        return self._mean_W((*(label for label in self._labelled if label[0] != j), (j, y_C)))

    @abstractmethod
    def _mean_W(self, labelled: tuple[tuple[int, Tensor], ...]) -> Tensor:
        """(W, C): f_lin on the watched points after L and these labels of candidates."""

    @property
    def _labelled(self) -> tuple[tuple[int, Tensor], ...]:
        return tuple((j, y) for j, y in self.kept if y is not None)

    def condition(self, j: SupportsIndex, y: Any = None) -> "State":
        """Keep one more label: the state after training on it too (Eq. 12), without training.

        j and y are as for ``lookahead``. y=None: j will be labelled, and the label is not known yet; S shrinks and the
        mean stays, as greedy batches need it. A candidate that is kept already is relabelled: the new state is the one
        with this label from the start.
        """
        j = self._candidate(j)
        y_C = None if y is None else self._problem.labels.target(y)
        if any(k == j for k, _ in self.kept):
            return self._with(tuple((k, y_C if k == j else y_k) for k, y_k in self.kept))
        return self._with((*self.kept, (j, y_C)))

    def release(self, j: SupportsIndex) -> "State":
        """Undo ``condition`` of candidate j, exactly. Raises a ValueError if it has no kept label."""
        j = self._candidate(j)
        if all(k != j for k, _ in self.kept):
            raise ValueError(f"candidate {j} has no kept label; kept are {[k for k, _ in self.kept][:20]}")
        return self._with(tuple(label for label in self.kept if label[0] != j))

    @abstractmethod
    def _with(self, kept: tuple[KeptLabel, ...]) -> "State":
        """This linearisation with other kept labels."""

    def push(self, y_uC: Tensor, at: slice | Tensor = slice(None)) -> Tensor:
        """(u, C): a_j such that f⁺_i = mean_i + S_ij a_j if candidate j of ``at`` had the target y_j (Eq. 12).

        L2: a_j = u_j⁻¹ (y_j − mean_j). Cross-entropy: a = y − softmax(mean_j + S_jj a), by damped Newton. After labels
        are kept, S is the Laplace approximation there; ``lookahead`` solves all labels together.
        """
        if not self.criterion.quadratic:
            return one_label(self.pool_mean[at], self.variance_blocks[at], y_uC)
        e_uC = y_uC - self.pool_mean[at]
        return e_uC / self.u[at][:, None] if self.B == 1 else torch.linalg.solve(self.u[at], e_uC)

    def targets(self, y: Any) -> Tensor:
        """Labels as (n, C) float64 targets: class ids and names become 0/1 rows. Raises if they do not fit."""
        return self._problem.labels.targets(y)

    # What the network puts out, and what L and the kept labels leave.

    @property
    def net(self) -> Tensor:
        """f on the watched points, (W, C)."""
        return self._problem.f_WC

    @property
    def pool_net(self) -> Tensor:
        """f on the candidates, (U, C)."""
        return self._problem.f_UC

    @cached_property
    def mean(self) -> Tensor:
        """f_lin on the watched points, (W, C)."""
        return self._mean_W(self._labelled)

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

    @abstractmethod
    def blocks(self, width: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """S in blocks of ``width`` columns (default: about 64 MB): (candidates, S_Wu), S_Wu of shape (W·B, u·B).

        A block may be a transposed view of rows, and must not be written to. Raises a ValueError for a state made with
        a finite ``time``, which has no S.
        """

    @cached_property
    def u(self) -> Tensor:
        """S_jj + λ, (U,) or (U, B, B). Cross-entropy: the label's own noise 1/(p(1 − p)) in place of λ.

        Infinite where only rounding is left of S_jj, in near-copies of what is labelled: a label there changes nothing.
        """
        noise_U = self._noise_U
        if self.B > 1:
            return self._u_blocks(self.variance_blocks + torch.diag_embed(noise_U[:, None].expand(-1, self.B)))
        var_U, prior_U = self.variance_blocks[:, 0, 0], self.prior_blocks[:, 0, 0]
        u_U = var_U + noise_U
        if not ((low := u_U <= 0) & ~self.taken).any():
            return u_U.masked_fill(low, 1.0)  # of taken candidates, which no score counts
        low |= var_U <= rounding_floor(self.variance_blocks, self.prior_blocks)
        bad = low & ~self.taken
        if not self.kept and (bad & (var_U < -ROUNDING_SHARE * prior_U)).any():
            j = int(u_U.masked_fill(~bad, math.inf).argmin())
            need = max(2 * (self.ridge - float(u_U[j])), 1e-12 * float(u_U.abs().max()))
            raise ValueError(
                f"S_jj + λ is {float(u_U[j]):.1e} at candidate {j} ({int((u_U <= 0).sum())} are not positive): what is "
                f"labelled leaves it no variance at this precision; try ridge > {need:.1e}"
            )
        return u_U.masked_fill(low, 1.0).masked_fill(bad, math.inf)

    def _u_blocks(self, u_UBB: Tensor) -> Tensor:
        """The same for blocks: directions of which only rounding is left get a noise that no score feels."""
        failed = torch.linalg.cholesky_ex(u_UBB)[1].nonzero()[:, 0].tolist()
        floor_U = rounding_floor(self.variance_blocks, self.prior_blocks) if failed else None
        for j in failed:
            assert floor_U is not None
            allowed = math.inf if self.kept else ROUNDING_SHARE * float(self.prior_blocks[j].diagonal().max())
            u_UBB[j] = without_rounding(u_UBB[j], float(self._noise_U[j]), float(floor_U[j]), allowed)
        return u_UBB

    @property
    @abstractmethod
    def prior_blocks(self) -> Tensor:
        """Θ_jj of the candidates, (U, B, B)."""

    @property
    def _noise_U(self) -> Tensor:
        noise_U = self._problem.label_noise_U
        return self._problem.f_UC.new_full((self.U,), self.ridge) if noise_U is None else noise_U

    @property
    @abstractmethod
    def variance_blocks(self) -> Tensor:
        """S_jj of the candidates, (U, B, B)."""

    @property
    @abstractmethod
    def watched_variance(self) -> Tensor:
        """S_ii of the watched points: (W,) for B = 1, else (W, B, B)."""

    @abstractmethod
    def prior(self) -> PriorKernel:
        """Θ before any label, of which S is what labels leave; its large block comes in parts."""

    @property
    @abstractmethod
    def linearisation(self) -> object:
        """One object for all states that share a kernel: what is computed from Θ alone can be cached by it."""

    # Sizes and settings.

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
        return self._problem.settings.loss

    @property
    def criterion(self) -> Loss:
        """The loss itself, with its slope, probabilities and noise."""
        return self._problem.criterion

    @property
    def regression(self) -> bool:
        return self._problem.labels.regression

    @property
    def residual_L(self) -> float:
        """Mean squared residual of f on L (cross-entropy: of its softmax)."""
        return self._problem.residual_L

    @cached_property
    def taken(self) -> Tensor:
        """(U,) bool: the candidates in ``kept``, with a label or without."""
        taken_U = torch.zeros(self.U, dtype=torch.bool, device=self.net.device)
        taken_U[[j for j, _ in self.kept]] = True
        return taken_U

    @property
    def pool(self) -> PoolEvidence | None:
        """What leave-one-out says of the pool in the kernel; None where it was not asked."""
        return self._problem.pool

    @property
    def precision_info(self) -> dict[str, Any]:
        """The arithmetic Θ was computed in (the setting, if it was not), and why if it was not given."""
        choice = self._problem.kernels.precision
        used: dict[str, Any] = {"precision": choice.used or choice.asked}
        if choice.used and choice.why:
            used["precision_measured"] = {"asked": choice.asked, "spearman": dict(choice.spearman), "why": choice.why}
        return used

    def _candidate(self, j: SupportsIndex) -> int:
        try:
            j = index(j)
        except TypeError:
            raise TypeError(f"a candidate is a position in x_U, a whole number; it is a {type(j).__name__}") from None
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
