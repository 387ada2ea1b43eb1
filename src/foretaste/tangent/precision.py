"""``precision="auto"``: the fastest precision of Θ that keeps a ranking, measured on a sample of the same points.

The norm of an error in Θ says little, because S subtracts nearly equal numbers. So a sample of L and U is ranked by Θ
in float64 and by Θ in each precision, and the rankings are compared. Where the whole Θ has the pairs of the sample, it
is computed in the fastest precision at once, and the sample is read from it. A sample cannot show everything. So the
whole Θ is checked too: A = Θ_LL + λI must have a Cholesky factor, and every candidate a positive variance.

What was found is remembered for a network, until it is trained again or L has doubled.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from foretaste.tangent.frozen import (
    FrozenNetwork,
    Inputs,
    freeze,
    input_parts,
    take_points,
    without_cudnn,
)
from foretaste.tangent.kernel import Gram, GramJob, gram

log = logging.getLogger("foretaste")

DEFAULT_RIDGE = 1e-6  # λ if none is given, as a share of the mean diagonal of Θ_LL
SAMPLE_POINTS = 128  # of L, and of U
WORTH_MEASURING = 8 * SAMPLE_POINTS  # points; with fewer, Θ in float32 takes no longer than the measurement
ENOUGH_CORRELATION = 0.999  # Spearman's, for the worse of two scores
# Fastest first. Both keep ten bits, so "tf32" hardly ever passes where "half" fails.
TRIED_PRECISIONS = ("half", "tf32")


@dataclass(frozen=True)
class PrecisionChoice:
    """Which precision was asked for, which was used, and why."""

    asked: str
    used: str | None = None  # None until Θ is computed
    spearman: Mapping[str, float] = field(default_factory=dict)  # as measured; NaN if A had no Cholesky factor
    why: str = ""  # of a choice that "auto" made, or of a precision other than ``asked``
    ways: tuple[str, ...] = ()  # the precisions to try for Θ until ``kernel_holds``, fastest first


def served_precision(asked: str, frozen: FrozenNetwork) -> tuple[str, str]:
    """The precision that this network and its device allow, and why it is another than ``asked`` ("" if it is not).

    On a CPU, "half" would round gradients to float16 and gain no time.
    """
    if frozen.dtype == torch.float64:
        return "float64", "" if asked == "float64" else "net is float64"
    if frozen.device.type != "cuda" and asked != "float32":
        return "float32", f"net is on {frozen.device.type}; other precisions are for a CUDA device"
    return asked, ""


def unmeasured_precision(asked: str, frozen: FrozenNetwork) -> str:
    """The precision where none is measured: there "auto" is float32."""
    served, _ = served_precision(asked, frozen)
    return "float32" if served == "auto" else served


def check_precision(precision: str, dtype: torch.dtype) -> None:
    """Raise if float64 is asked for and the network has another dtype."""
    if precision == "float64" and dtype != torch.float64:
        raise ValueError(
            f"precision='float64' is for float64 networks, and net is {str(dtype).removeprefix('torch.')}; "
            "use precision='float32', or net.double() and float64 points"
        )


def choose_precision(
    asked: str, job: GramJob, y_LC: Tensor | None, ridge: float | None
) -> tuple[PrecisionChoice, "ExactSample | None"]:
    """The precisions to try for the Θ of a job between "U" and "L", and what was measured to find them.

    y_LC: the labels by which a sample is ranked; None: the mean is f. ridge: λ; None: the default. Also returns the
    sample by which the first Θ that is tried is to be judged, or None where the choice is made.
    """
    served, why = served_precision(asked, job.frozen)
    if served != "auto":
        return PrecisionChoice(asked, why=why, ways=(served,)), None
    if (points := sum(job.sizes.values())) < WORTH_MEASURING:
        return PrecisionChoice(asked, why=f"{points} points: measuring would take longer", ways=("float32",)), None
    if (found := remembered_choice(job, y_LC, ridge)) is not None:
        return found, None
    try:
        sample = draw_sample(job, y_LC, ridge)
        if (("U", "U") in job.blocks) and job.frozen.output != "full":
            return PrecisionChoice(asked, None, {}, sample.why, (*TRIED_PRECISIONS, "float32")), sample
        spearman = sample.measure(TRIED_PRECISIONS)
    except (RuntimeError, ValueError, TypeError) as e:  # the network casts to float32, or the budget is small
        why = f"float64 could not be measured: {str(e).splitlines()[0][:120]}"
        log.warning("precision='auto' takes float32: %s", why)
        return PrecisionChoice(asked, why=why, ways=("float32",)), None
    good = [p for p in TRIED_PRECISIONS if spearman.get(p, 0.0) >= ENOUGH_CORRELATION]
    choice = PrecisionChoice(asked, None, spearman, sample.why, (*good[:1], "float32"))
    remember_choice(job, y_LC, ridge, choice)
    return choice, None


@dataclass(frozen=True, eq=False)
class ExactSample:
    """A sample of U and L, and its two scores by Θ in float64."""

    job: GramJob  # of the sample, in the network's own dtype
    drawn: Mapping[str, Tensor]  # the positions of its points in "U" and "L"
    y_LC: Tensor | None
    ridge: float | None
    want: tuple[Tensor, Tensor]

    @property
    def why(self) -> str:
        return f"Spearman to float64 on {len(self.drawn['U'])} candidates, at least {ENOUGH_CORRELATION}"

    def measure(self, tried: Sequence[str]) -> dict[str, float]:
        """For each precision, until one is enough: the rank correlation with float64, for the worse of two scores."""
        found: dict[str, float] = {}
        for precision in tried:
            found[precision] = self._agreement(gram(replace(self.job, precision=precision)))
            if found[precision] >= ENOUGH_CORRELATION:
                break
        return found

    def judge(self, whole: Gram) -> float:
        """The same of the sample's part of a whole Θ, which has these points among others."""
        at = self.drawn
        blocks = {(a, b): whole.blocks[a, b][at[a]][:, at[b]] for a, b in self.job.blocks}
        f = {name: whole.outputs[name][n] for name, n in at.items()}
        return self._agreement(replace(whole, blocks=blocks, outputs=f))

    def _agreement(self, sample: Gram) -> float:
        got = score_sample(sample, self.y_LC, self.ridge)
        return math.nan if got is None else min(rank_correlation(a, b) for a, b in zip(got, self.want))


def draw_sample(job: GramJob, y_LC: Tensor | None, ridge: float | None) -> ExactSample:
    """Draw a sample of the points of a job, and score it in float64."""
    frozen, g = job.frozen, torch.Generator().manual_seed(0)
    drawn = {
        name: torch.randperm(job.sizes[name], generator=g)[:SAMPLE_POINTS].to(frozen.device)
        for name in ("U", "L")
        if name in job.sets
    }
    sets = {name: take_points(job.sets[name], at) for name, at in drawn.items()}
    if y_LC is not None and "L" in sets:
        y_LC = y_LC[drawn["L"].to(y_LC.device)]
    if frozen.output == "full":  # "sum" rounds in the same way, at 1/C² of the work
        frozen = replace(frozen, output="sum")
    # Rules are not checked here: the kernel that follows checks them.
    blocks = [("U", "U")] + ([("L", "L"), ("U", "L")] if "L" in sets else [])
    job = GramJob(frozen, sets, blocks, budget=job.budget, classes=job.classes, check=False)
    twin = freeze(deepcopy(frozen.net).double(), output=frozen.output, params=list(frozen.params))
    with without_cudnn():
        exact = replace(job, frozen=twin, sets={k: double_inputs(x) for k, x in sets.items()})
        want = score_sample(gram(exact), y_LC, ridge)
    if want is None:
        raise ValueError("the sample's kernel has no Cholesky factor, even in float64")
    return ExactSample(job, drawn, y_LC, ridge, want)


# --- what is remembered of a network ---

_choices = WeakIdKeyDictionary()  # by a network's first parameter: {what it depends on: (L, choice)}


def _remembered_by(job: GramJob, y_LC: Tensor | None, ridge: float | None) -> tuple[Any, ...]:
    frozen, at_W = job.frozen, tuple(job.blocks)
    # A network that was trained since is another one: else a run that is resumed could choose otherwise.
    trained = tuple(0 if p.is_inference() else p._version for p in frozen.net.parameters())
    return frozen.output, tuple(frozen.params), frozen.dtype, frozen.device, y_LC is None, ridge, at_W, trained


def remembered_choice(job: GramJob, y_LC: Tensor | None, ridge: float | None) -> PrecisionChoice | None:
    """What was measured for this network before, with at least half as many labels."""
    found = _choices.get(next(job.frozen.net.parameters()), {}).get(_remembered_by(job, y_LC, ridge))
    L = job.sizes.get("L", 0)
    if found is None or not found[0] <= L <= 2 * found[0]:
        return None
    choice: PrecisionChoice = found[1]
    return replace(choice, why=f"{choice.why}; measured before, at L = {found[0]}")


def remember_choice(job: GramJob, y_LC: Tensor | None, ridge: float | None, choice: PrecisionChoice) -> None:
    """Remember what was measured: its ``ways`` are tried at once for the next Θ of this network."""
    mine = _choices.setdefault(next(job.frozen.net.parameters()), {})
    mine[_remembered_by(job, y_LC, ridge)] = job.sizes.get("L", 0), choice


def score_sample(sample: Gram, y_LC: Tensor | None, ridge: float | None) -> tuple[Tensor, Tensor] | None:
    """Two scores of the sample, which watches itself: Σ_i S_ij²/u_j, and MLMOC (Eq. 13).

    None if A has no Cholesky factor. If y_LC is None, the mean is f.
    """
    theta, f = sample.blocks, sample.outputs
    S_UU, f_UC = theta["U", "U"], f["U"]
    mean_UC = f_UC
    if ridge is None:
        labelled = "L" if "L" in f else "U"
        ridge = DEFAULT_RIDGE * float(theta[labelled, labelled].diagonal().mean())
    if "L" in f:
        LL, UL = theta["L", "L"], theta["U", "L"]
        chol, info = torch.linalg.cholesky_ex(LL + ridge * torch.eye(len(LL), dtype=LL.dtype, device=LL.device))
        if info:
            return None
        S_UU = S_UU - UL @ torch.cholesky_solve(UL.T, chol)
        if y_LC is not None:
            mean_UC = f_UC + UL @ torch.cholesky_solve(y_LC - f["L"], chol)
    u_U = S_UU.diagonal() + ridge
    if not bool((u_U > 0).all()):
        return None
    r_UC, C = mean_UC - f_UC, f_UC.shape[1]
    e_UC = torch.ones_like(f_UC) if C == 1 else torch.nn.functional.one_hot(f_UC.argmax(1), C) - mean_UC
    s_UU = S_UU / u_U
    square = r_UC.square().sum(1)[:, None] + 2 * s_UU * (r_UC @ e_UC.T) + s_UU.square() * e_UC.square().sum(1)
    return S_UU.square().sum(0) / u_U, square.clamp_min(0).sqrt().sum(0)


def kernel_holds(LL: Tensor, UL: Tensor, diag_UBB: Tensor, ridge: float | None) -> bool:
    """Whether A has a Cholesky factor, and every candidate a positive posterior variance."""
    if len(LL) == 0:
        return True
    ridge = DEFAULT_RIDGE * float(LL.diagonal().mean()) if ridge is None else ridge
    A = LL.clone()
    A.diagonal().add_(ridge)
    chol, info = torch.linalg.cholesky_ex(A)
    if info:
        return False
    half = torch.linalg.solve_triangular(chol, UL.T, upper=False)
    own_U = diag_UBB.diagonal(dim1=1, dim2=2).flatten()
    return bool((own_U - half.square().sum(0) + ridge > 0).all())


def double_inputs(x: Inputs) -> Inputs:
    """The same points in float64; integers stay."""

    def wide(t: Tensor) -> Tensor:
        return t.double() if t.is_floating_point() else t

    return wide(x) if isinstance(x, Tensor) else {k: wide(t) for k, t in input_parts(x).items()}


def rank_correlation(a_N: Tensor, b_N: Tensor) -> float:
    """Spearman's rank correlation, with ties. 1 for a single point, NaN if one of the two is constant."""
    if len(a_N) < 2:
        return 1.0
    from scipy.stats import rankdata

    ranks = [rankdata(t.double().cpu().numpy()) for t in (a_N, b_N)]
    return float(torch.corrcoef(torch.from_numpy(np.stack(ranks)))[0, 1])
