"""What all states of one linearisation share: the network's outputs, the targets, λ, and where Θ comes from.

Site layout: Θ has rows (n, b), b < B. B is 1 for a kernel of one number, which all C classes share (Θ ⊗ I_C); then the
classes are C right-hand sides. B is C for the full kernel, whose rows are (point, class).
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from foretaste.lookahead.graph import PoolEvidence
from foretaste.lookahead.kernel_settings import KernelSettings
from foretaste.lookahead.solve import leave_one_out, misfit_ridge
from foretaste.lookahead.targets import LabelRules
from foretaste.losses import LOSSES, Loss
from foretaste.tangent import (
    DEFAULT_RIDGE,
    ENOUGH_CORRELATION,
    BudgetError,
    FrozenNetwork,
    Gram,
    GramJob,
    Inputs,
    KernelProgress,
    PrecisionChoice,
    choose_precision,
    gram,
    kernel_holds,
    remember_choice,
    take_points,
    unmeasured_precision,
)

log = logging.getLogger("foretaste")

UNFITTED = 0.1  # squared loss: the residual on L, as a share of the labels' own mean square, above which we warn
UNFITTED_CLASSES = 0.5  # cross-entropy: the same for softmax outputs; a network at chance leaves about 1
MOST_WATCHED = 4096  # points that an error suggests to watch: with more, rankings hardly change (docs/setting-notes.md)
TOO_LARGE = "some gradients are too large for float16"

# --- Θ between L, W and U, computed when it is first needed ---


@dataclass(frozen=True)
class ThetaBlocks:
    """The blocks that f_lin on L+ needs. With W = U, ``WL`` is ``UL`` and ``WU`` is Θ_UU."""

    LL: Tensor
    WL: Tensor
    UL: Tensor
    WU: Tensor
    diag_U: Tensor  # (U, B, B)
    diag_W: Tensor | None
    outputs: Mapping[str, Tensor] = field(default_factory=dict)  # f on "L", "U" and "W", where Θ is a network's

    def scaled(self, by: float) -> "ThetaBlocks":
        if by == 1.0:
            return self
        UL = self.UL * by
        WL = UL if self.WL is self.UL else self.WL * by
        diag_W = None if self.diag_W is None else self.diag_W * by
        return ThetaBlocks(self.LL * by, WL, UL, self.WU * by, self.diag_U * by, diag_W, self.outputs)


@dataclass(frozen=True, eq=False)
class PriorKernel:
    """Θ before any label, in site layout: (n·B, m·B) blocks, and (n, B, B) diagonals. Not to be written to.

    Its largest block is given as what L leaves of it and what L explains: Θ_UW = base_UW + half_Uᵀ half_W.
    """

    LL: Tensor
    WL: Tensor
    UL: Tensor
    diag_U: Tensor
    diag_W: Tensor
    base_UW: Tensor | None  # None is 0
    half_U: Tensor  # (R, U·B), of any R
    half_W: Tensor
    points: Mapping[str, Any] | None = None  # the inputs "L", "U" and "W" of a network's Θ; "W" only if W ≠ U

    def columns(self, at: slice) -> Tensor:
        """Θ_Wu of candidates ``at``, (W·B, u·B)."""
        B = self.diag_U.shape[1]
        here = slice(at.start * B, at.stop * B)
        theta_uW = self.half_U[:, here].T @ self.half_W
        return (theta_uW if self.base_UW is None else self.base_UW[here] + theta_uW).T


class KernelSource(ABC):
    """Where Θ comes from."""

    points: Mapping[str, Inputs] | None = None  # of "L", "U" and "W", where Θ is a network's; "W" only if W ≠ U
    precision = PrecisionChoice("given")
    ours = True  # whether the blocks that ``load`` gives may be overwritten
    held: ThetaBlocks | None = None  # for ``load``, where they are known
    plain: Callable[[], PriorKernel] | None = None  # Θ before it was bent along the pool

    @abstractmethod
    def load(self) -> ThetaBlocks:
        """All blocks, computed now unless they are held."""

    @abstractmethod
    def row(self, j: int) -> Tensor:
        """Θ(x_j, U) of one candidate, (B, U·B)."""

    def rows(self, js: list[int]) -> Tensor:
        """The same of several candidates, (k·B, U·B)."""
        return torch.cat([self.row(j) for j in js])

    def known_UL(self) -> Tensor | None:
        """Θ_UL where it costs nothing."""
        return None

    def forget(self) -> None:
        """Let go of blocks that are held. After this only rows can be asked for."""
        self.held = None


class GivenKernels(KernelSource):
    """Kernels that are at hand already. at_L: where L is among the candidates, if it is."""

    def __init__(
        self,
        theta: ThetaBlocks,
        theta_UU: Tensor | None = None,
        B: int = 1,
        scale: float = 1.0,
        at_L: list[int] | None = None,
    ) -> None:
        self.held, self.ours = theta.scaled(scale), scale != 1.0
        self.theta_UU, self.B, self.scale, self.at_L = theta_UU, B, scale, at_L

    def load(self) -> ThetaBlocks:
        assert self.held is not None
        return self.held

    def row(self, j: int) -> Tensor:
        return self.rows([j])

    def rows(self, js: list[int]) -> Tensor:
        if self.theta_UU is None:
            raise ValueError(
                f"keeping candidate {js[0]} needs Θ(x_{js[0]}, U), and the watched points are not the pool; give "
                "theta_UU"
            )
        return self.theta_UU[site_index(js, self.B, self.theta_UU.device)].double() * self.scale

    def known_UL(self) -> Tensor | None:
        return None if self.theta_UU is None or self.at_L is None else self.rows(self.at_L).T


class NetworkKernels(KernelSource):
    """Θ, and f on the same points, by one run of the tangent engine. x_W is None for W = U, x_L for an empty L.

    The caller has checked the network and the inputs. ``y_LC`` only helps to choose the precision. ``progress`` is that
    of ``load``.
    """

    def __init__(
        self,
        frozen: FrozenNetwork,
        C: int,
        x_L: Inputs | None,
        x_U: Inputs,
        x_W: Inputs | None,
        y_LC: Tensor,
        settings: KernelSettings,
        progress: KernelProgress | None = None,
    ) -> None:
        self.points = {k: x for k, x in (("L", x_L), ("U", x_U), ("W", x_W)) if x is not None}
        self.w = w = "U" if x_W is None else "W"
        blocks = [(w, "U")]
        if x_L is not None:
            blocks += [("L", "L"), ("U", "L")] + ([("W", "L")] if w == "W" else [])
        diagonals = ["U", "W"] if w == "W" else []
        self.job = GramJob(frozen, self.points, blocks, diagonals, settings.budget, classes=C, progress=progress)
        self.B, self.settings = C if frozen.output == "full" else 1, settings
        self.scale = 1.0 if settings.theta_scale is None else float(settings.theta_scale)
        # Under cross-entropy the mean before any label is f, and what a label adds to A is at least 4 (Problem.system).
        given = settings.given_ridge
        ridge = given if settings.quadratic else (given or 0.0) + 4
        self.ranked_by = y_LC if settings.quadratic else None
        self.own_ridge = None if ridge is None else ridge / self.scale
        self.precision = PrecisionChoice(settings.precision)
        passes = unmeasured_precision(settings.precision, frozen)
        self.row_job = replace(self.job, blocks=[("j", "U")], diagonals=[], precision=passes, progress=None)

    def load(self) -> ThetaBlocks:
        if self.held is not None:
            return self.held
        given = self.job, self.ranked_by, self.own_ridge
        self.precision, sample = choose_precision(self.settings.precision, *given)
        ways = self.precision.ways
        for way in ways:
            last = way == ways[-1]
            if sample is not None and not last and self.precision.spearman:  # another was tried: first on the sample
                self._note(sample.measure([way]))
                if not self.precision.spearman[way] >= ENOUGH_CORRELATION:
                    continue
            try:
                found = gram(replace(self.job, precision=way))
            except BudgetError as e:
                said = f"{e}{suggest_watch(e, self.w == 'W')}"
                raise BudgetError(said, e.job, e.needed, e.budget) from None
            if sample is not None and not last and not self.precision.spearman:
                self._note({found.precision: sample.judge(found)})
                if not self.precision.spearman[found.precision] >= ENOUGH_CORRELATION:
                    del found
                    continue
            why = "; ".join(filter(None, [self.precision.why, TOO_LARGE if found.precision != way else ""]))
            self.precision = replace(self.precision, used=found.precision, why=why)
            self.row_job = replace(self.row_job, frozen=found.frozen, precision=found.precision, check=False)
            theta = self._blocks_of(found)
            if last or kernel_holds(theta.LL, theta.UL, theta.diag_U, self.own_ridge):
                if sample is not None:
                    kept = (way,) if last else (way, "float32")
                    remember_choice(*given, replace(self.precision, used=None, why=sample.why, ways=kept))
                return theta.scaled(self.scale)
            self._note({way: math.nan})
            del found, theta  # before the next is made
        raise AssertionError("a choice has at least one precision to try")

    def _note(self, measured: Mapping[str, float]) -> None:
        self.precision = replace(self.precision, spearman={**self.precision.spearman, **measured})

    def _blocks_of(self, found: Gram) -> ThetaBlocks:
        WU = found.blocks[self.w, "U"]
        LL = found.blocks.get(("L", "L"), WU.new_zeros(0, 0))
        UL = found.blocks.get(("U", "L"), WU.new_zeros(WU.shape[1], 0))
        if self.w == "U":
            diag_U = diagonal_blocks(WU, self.B)
            return ThetaBlocks(LL, UL, UL, WU, diag_U, diag_U, found.outputs)
        WL = found.blocks.get(("W", "L"), WU.new_zeros(WU.shape[0], 0))
        return ThetaBlocks(LL, WL, UL, WU, found.diagonals["U"], found.diagonals["W"], found.outputs)

    def row(self, j: int) -> Tensor:
        x_U = self.job.sets["U"]
        sets = {"j": take_points(x_U, slice(j, j + 1)), "U": x_U}
        return gram(replace(self.row_job, sets=sets)).blocks["j", "U"] * self.scale


def suggest_watch(e: BudgetError, watched: bool) -> str:
    """The end of an error about a pool too large for memory: how many watched points would fit.

    watched: some points are watched already, rather than the whole pool.
    """
    U, L = e.job.sizes["U"], e.job.sizes.get("L", 0)
    blocks = [("W", "U")] + ([("L", "L"), ("U", "L"), ("W", "L")] if L else [])

    def fits(W: int) -> bool:
        return e.fits({"L": L, "U": U, "W": W} if L else {"U": U, "W": W}, blocks, ["U", "W"])

    low, high = 0, min(U, MOST_WATCHED)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    if not low:
        return f"; or take a random part of the {U} candidates"
    digits = 10 ** max(0, len(str(low)) - 2)
    most = low if low == MOST_WATCHED else low // digits * digits  # rounded down to two digits
    if watched:
        return f"; or keep this budget and watch at most {most} points: watch={most}"
    return f"; or keep this budget and give watch={most}: scores then sum over {most} points of the pool, not over all"


def diagonal_blocks(theta: Tensor, B: int) -> Tensor:
    """(N, B, B), copied out of (N·B, N·B)."""
    n = theta.shape[0] // B
    return theta.reshape(n, B, n, B).diagonal(dim1=0, dim2=2).permute(2, 0, 1).clone()


def given_diagonal(diag_W: Tensor | None) -> Tensor:
    """The diagonal of the watched points. Raises if a kernel came without it (``from_kernels``)."""
    if diag_W is None:
        raise ValueError("the diagonal of the watched points' kernel was not given; give diag_W")
    return diag_W


def to_sites(t_NC: Tensor, B: int) -> Tensor:
    """(N, C) as right-hand sides in site space, (N·B, C/B)."""
    return t_NC.reshape(t_NC.shape[0] * B, t_NC.shape[1] // B)


def site_index(js: list[int], B: int, device: torch.device) -> Tensor:
    """The rows of points js in site layout, (k·B,)."""
    j = torch.tensor(js, dtype=torch.int64, device=device)
    return (j[:, None] * B + torch.arange(B, device=device)).flatten()


# --- the problem, and whether the network fits its labels ---


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """f on L, W and U, the targets of L, λ, and where Θ comes from."""

    labels: LabelRules
    f_LC: Tensor
    f_WC: Tensor
    f_UC: Tensor
    y_LC: Tensor
    kernels: KernelSource
    B: int
    same: bool  # W = U
    at_W: dict[int, int]  # candidate -> watched point, where that is known
    settings: KernelSettings
    told: bool = False  # the warning that the network does not fit its labels was given, or does not apply
    pool: PoolEvidence | None = None  # what the pool is worth in the kernel, where that was asked

    @property
    def L(self) -> int:
        return self.f_LC.shape[0]

    @cached_property
    def criterion(self) -> Loss:
        return LOSSES[self.settings.loss]

    @property
    def ridge(self) -> float | None:
        """λ where it was given as a number."""
        return self.settings.given_ridge

    @property
    def free(self) -> bool:
        """Whether the mean before any kept label is f itself, which costs no kernel."""
        return not self.criterion.quadratic or self.L == 0

    @cached_property
    def label_noise_U(self) -> Tensor | None:
        """Cross-entropy: 1 / (p(1 − p)), p the largest probability of the candidate (Laplace).

        It is of f before any label is kept: with fixed noise, S does not depend on the order of labels.
        """
        return self.criterion.label_noise(self.f_UC)

    @property
    def residual_L(self) -> float:
        """Mean squared residual of f on L (cross-entropy: of its softmax); NaN with an empty L."""
        return self.residual_under(self.criterion)

    def residual_under(self, criterion: Loss) -> float:
        """The mean squared residual on L if the network was trained with another loss."""
        return float((criterion.responses(self.f_LC) - self.y_LC).square().mean())

    @property
    def centred_LC(self) -> Tensor:
        """The targets less what is known without a network: their mean in regression, 1/C for classes."""
        return self.y_LC - self.labels.prior(self.y_LC)

    def resolve_ridge(self, theta: ThetaBlocks) -> float:
        """λ as given, or 1e-6 of the mean diagonal of Θ_LL (of the candidates', if L is empty), or by the misfit."""
        if self.ridge is not None:
            return self.ridge
        diag = theta.LL.diagonal() if self.L else theta.diag_U.diagonal(dim1=1, dim2=2)
        least = DEFAULT_RIDGE * float(diag.mean())
        # Under cross-entropy ``system`` has the noise of each label, which carries the misfit already.
        if not self.settings.misfit or self.L == 0 or not self.criterion.quadratic:
            return least
        return misfit_ridge(theta.LL, to_sites(self.centred_LC, self.B), self.residual_L, least)

    def system(self, theta: ThetaBlocks, ridge: float) -> Tensor:
        """A = Θ_LL + λI. Cross-entropy: + diag 1/(p(1 − p)), the curvature that the fitted labels have left.

        A label fitted to p = 0.99 resists little: with λ alone L would be held as rigidly as under L2. Correlation of
        predicted with retrained logit changes (digits, L = 40, two seeds, losses 0.1 to 0.01 of MLPs of widths 512 to
        2048): 0.71 to 0.80 with the noise and output="sum"; 0.41 to 0.60 with λ alone, whichever the output. Real
        changes are 0.95 to 1.2 times those predicted, and 1.7 to 5 times with λ alone.
        """
        A = theta.LL.clone()
        A.diagonal().add_(ridge)
        if (noise := self.site_noise) is not None:
            A.diagonal().add_(noise)
        return A

    @property
    def site_noise(self) -> Tensor | None:
        """(L·B,): what ``system`` adds to the diagonal of Θ_LL beside the ridge; None: nothing."""
        noise_L = self.criterion.label_noise(self.f_LC)
        return None if noise_L is None else noise_L.repeat_interleave(self.B)

    def scale(self, chol: Tensor) -> float:
        """s²: ten times the labels' leave-one-out variance, mean α²/d (docs/mathematics.md, The scale); 1 if L = ∅.

        Ten, because the kernel of a trained network has learned these labels. Θ̃ has not: there it is once.
        Cross-entropy: 1. There S is itself the prior's covariance of the logits, and ``theta_scale`` its calibration.
        """
        if self.free:
            return 1.0
        seen = 1 if self.pool is not None and self.pool.gamma else 10
        alpha, d = leave_one_out(chol, to_sites(self.centred_LC, self.B))
        return seen * float((alpha.square() / d).mean())

    def warn_unfitted(self) -> None:
        """Log a warning if the network does not fit its labels, which look-ahead assumes.

        The mean squared residual on L (cross-entropy: of the softmax outputs) is compared with the mean square of
        y − 1/C, which a network that knows nothing leaves: at most 0.1 of it, 0.5 under cross-entropy, or 1 where λ
        carries the misfit.
        """
        if self.L == 0 or self.told:
            return
        unlearned, residual = float(self.centred_LC.square().mean()), self.residual_L
        if residual <= (UNFITTED if self.criterion.quadratic else UNFITTED_CLASSES) * unlearned:
            return
        if not self.criterion.quadratic:
            f_LC = self.f_LC  # rows that are probabilities: the network applies a softmax itself
            softmax = f_LC.shape[1] > 1 and (f_LC >= 0).all() and ((f_LC.sum(1) - 1).abs() < 1e-4).all()
            log.warning(
                "the softmax outputs do not fit the labels: their mean squared residual on L is %.2g, and equal "
                "probabilities have %.2g. Look-ahead assumes a trained network, and its scores are noise otherwise; %s",
                residual, unlearned,
                "net seems to end in a softmax: let it return logits" if softmax else "train longer",
            )  # fmt: skip
            return
        for other in LOSSES.values():
            if other.quadratic or self.labels.regression:
                continue
            theirs = self.residual_under(other)
            if theirs < residual and theirs <= UNFITTED_CLASSES * unlearned:
                log.warning(
                    'the network\'s mean squared residual on L is %.2g with loss="%s", and %.2g with loss="%s": it '
                    'looks trained with %s. Give loss="%s"; otherwise scores are noise',
                    residual, self.settings.loss, theirs, other.name, other.title, other.name,
                )  # fmt: skip
                return
        if self.settings.misfit and residual < unlearned:
            return  # λ carries it, where the network has learned anything
        log.warning(
            "the network's mean squared residual on L is %.2g (the labels' own is %.2g): look-ahead assumes that "
            "training interpolates L, and its scores are noise otherwise; train longer%s",
            residual, unlearned,
            "" if residual < unlearned else ", and check that labels, classes and points are in the same order",
        )  # fmt: skip
