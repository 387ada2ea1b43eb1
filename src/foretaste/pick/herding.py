"""Coverage: a point is served by the one labelled point nearest to it. ProbCover, MaxHerding, uncertainty herding.

    F(B) = Σ_i w_i max_{j ∈ L∪B} k_ij

with k a kernel between 0 and 1 and w_i ≥ 0 a weight, grown greedily (acquire/coverage.py). The strategies differ in k
and w.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import KernelRows, cover_greedily, register
from foretaste.errors import real_number, whole_number
from foretaste.lookahead import BinaryOutputs
from foretaste.losses import probabilities
from foretaste.network import fit
from foretaste.pick.clusters import cluster_points
from foretaste.pick.request import Request
from foretaste.pick.space import Space, SpaceOptions, find_similarity, find_space, pool_outputs
from foretaste.tangent import freeze, outputs, resolve_budget

SPLIT_TEMPERATURES = 1 + 0.1 * torch.arange(190, dtype=torch.float64)  # the authors' grid
HELD_OUT = 0.3  # of L
OTHER_WAY = 'use options={"temperature": 1.0}, or another number'
Kernel = Callable[[Tensor, slice], Tensor]  # positions a and a slice b of a space's points -> k, (a, b)


def space_rows(space: Space, kernel: Kernel, budget: int | str | None) -> tuple[KernelRows, Tensor]:
    """k between candidates as ``cover_greedily`` wants it, and how well L covers each candidate.

    All of k is kept where it takes at most half of the budget. Else rows are computed when they are asked for.
    """
    L, U = space.L, space.U
    own = slice(L, None)
    covered_U = space.norms_N.new_zeros(U)
    for part in space.chunks(torch.arange(L, device=space.device)):
        covered_U = torch.maximum(covered_U, kernel(part, own).amax(0))
    if resolve_budget(budget, space.device) < 16 * U * U:
        return lambda at: kernel(at + L, own), covered_U
    k_UU = covered_U.new_empty(U, U)
    for part in space.chunks(torch.arange(U, device=space.device)):
        k_UU[part] = kernel(part + L, own)
    return lambda at: k_UU[at], covered_U


# --- ProbCover ---


@dataclass(frozen=True)
class ProbCoverOptions(SpaceOptions):
    """The options of ``probcover``, beside those of a space.

    radius: δ. None: the largest with which ``purity`` of the balls hold one pseudo-label only.
    purity: α of that rule.
    clusters: how many pseudo-labels k-means makes; None is the number of classes.
    """

    radius: float | None = None
    purity: float = 0.95
    clusters: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius is not None:
            real_number("radius of strategy 'probcover'", self.radius, 0, above=True)
        if not 0 < real_number("purity of strategy 'probcover'", self.purity, 0, above=True) <= 1:
            raise ValueError(f"purity={self.purity} of strategy 'probcover'; expected a share of at most 1")
        if self.clusters is not None:
            whole_number("clusters of strategy 'probcover'", self.clusters, 2)


@register("probcover", needs="classes", select="own", options=ProbCoverOptions)
def probcover(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """ProbCover (Yehuda et al. 2022): the batch whose balls of radius δ hold the most points that no ball holds yet.

    k_ij = 1 where d_ij < δ. δ is the largest radius with which a share ``purity`` of all balls holds points of one
    pseudo-label only, by k-means with as many clusters as classes. Scores are the points that a ball would add.
    """
    o = ProbCoverOptions(**options)
    points, radius = find_space(request, o.space, o.layer, rows=request.U), o.radius
    if radius is None:
        of_N = cluster_points(points, min(o.clusters or request.C, points.N), request.generator).of_N
        radius = largest_pure_radius(points, of_N, o.purity)
    request.info["radius"] = radius
    rows, covered_U = space_rows(points, lambda a, b: (points.between(a, b) < radius**2).double(), request.budget)
    return cover_greedily(
        rows, covered_U, points.U, request.batch_size, request.generator, progress=request.progress
    )  # fmt: skip


def largest_pure_radius(space: Space, of_N: Tensor, purity: float) -> float:
    """The largest δ with which at least ``purity`` of the open balls hold points of one cluster only.

    A ball is pure up to the distance to the nearest point of another cluster; δ is a quantile of these distances.
    """
    foreign_N = space.norms_N.new_empty(space.N)
    for part in space.chunks(torch.arange(space.N, device=space.device)):
        d_nN = space.between(part, slice(None)).masked_fill_(of_N[part][:, None] == of_N, torch.inf)
        foreign_N[part] = d_nN.amin(1)
    impure = space.N - math.ceil(purity * space.N - 1e-9)
    return math.sqrt(float(foreign_N.sort().values[impure]))


# --- MaxHerding and uncertainty herding ---


@dataclass(frozen=True)
class HerdingOptions(SpaceOptions):
    """The options of ``maxherding``, beside those of a space.

    radius: σ of k = exp(−d²/σ²), in the units of the space. None: 1; if rows keep their length, √(Σ of the variances);
        in the tangent space, k is then the correlation of tangents.
    unit_length: scale rows of "inputs" and "last" to unit length, as the authors do. It suits features of an encoder;
        with few columns, where the length of a row says much, use False.
    """

    radius: float | None = None
    unit_length: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius is not None:
            real_number("radius", self.radius, 0, above=True)
        if not isinstance(self.unit_length, bool):
            raise ValueError(f"unit_length={self.unit_length!r}; expected True or False")


@register("maxherding", select="own", options=HerdingOptions)
def maxherding(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """MaxHerding (Bae et al. 2024): F(B) = Σ_i max_{j∈L∪B} exp(−d_ij²/σ²), greedily. Labels and outputs play no part.

    d is between rows of unit length and σ = 1, as the authors have it. Scores are what a point alone would add to F.
    """
    o = HerdingOptions(**options)
    points = find_space(request, o.space, o.layer, rows=request.U, unit_length=o.unit_length)
    return _herd(request, points, o.radius, o.unit_length, None)


@dataclass(frozen=True)
class UncertaintyHerdingOptions(HerdingOptions):
    """The options of ``uherding``, beside those of a space.

    radius: as for ``maxherding``. None: the smallest distance between two labelled points.
    temperature: T of the probabilities p of f/T, from which the weight 1 − (p₁ − p₂) is made. "split": the authors'
        way, the T of least calibration error on the last 30 % of L, with a copy of the network that is trained anew on
        the rest (``ft.fit``).
    """

    temperature: float | str = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        T = self.temperature
        if T != "split" if isinstance(T, str) else T is None or real_number("temperature", T) <= 0:
            raise ValueError(f"temperature={T!r} of strategy 'uherding'; expected a number above 0, or 'split'")


@register("uherding", needs="classes", select="own", options=UncertaintyHerdingOptions)
def uherding(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """Uncertainty herding (Bae et al. 2025): MaxHerding with weights w_i = 1 − (p₁ − p₂) and a radius that adapts.

    σ is the smallest distance between two labelled points (that are no copies), so it shrinks as labels come. p is
    softmax(f/T) under cross-entropy. The authors' networks are trained so; under the squared loss p is the nearest
    point of the simplex to f/T. With fewer than two labels it is MaxHerding.
    """
    o = UncertaintyHerdingOptions(**options)
    points, radius = find_space(request, o.space, o.layer, rows=request.U, unit_length=o.unit_length), o.radius
    weight_U = None
    if request.L >= 2:
        if radius is None and points.name != "tangent":
            radius = smallest_distance(points)
        T = calibrate_by_split(request) if isinstance(o.temperature, str) else o.temperature
        request.info["temperature"] = T
        top_U2 = probabilities(pool_outputs(request) / T, request.loss).topk(2, 1).values
        weight_U = 1 - (top_U2[:, 0] - top_U2[:, 1])
    return _herd(request, points, radius, o.unit_length, weight_U)


def _herd(
    request: Request, points: Space, radius: float | None, unit_length: bool, weight_U: Tensor | None
) -> tuple[Tensor, Tensor]:
    if radius is None and unit_length and points.name != "tangent":
        radius = 1.0
    k = find_similarity(points, radius, request)
    rows, covered_U = space_rows(points, lambda a, b: k(a, b).clamp_min_(0), request.budget)
    return cover_greedily(
        rows, covered_U, points.U, request.batch_size, request.generator, weight_W=weight_U, progress=request.progress
    )  # fmt: skip


def smallest_distance(space: Space) -> float | None:
    """Between two labelled points that are no copies; None if all are."""
    at, least = torch.arange(space.L, device=space.device), math.inf
    for part in space.chunks(at, space.L):
        d_nL = space.between(part, at)
        least = min(least, float(torch.where(d_nL > 0, d_nL, torch.inf).min()))
    return math.sqrt(least) if least < math.inf else None


# --- the temperature with which probabilities are calibrated on labels that the network did not see ---


def calibrate_by_split(request: Request) -> float:
    """T of the least calibration error on the last 30 % of L, of a network trained anew on the first 70 %.

    As in the authors' code: T from 1 to 19.9, as many bins as classes. 1 where L has fewer than four points.
    """
    x_L, held = request.x_L, int(HELD_OUT * request.L)
    if not isinstance(x_L, Tensor) or isinstance(request.net, BinaryOutputs):
        came = "one output for two classes" if isinstance(x_L, Tensor) else "a dict of inputs"
        raise ValueError(f'temperature="split" of uherding trains by ft.fit, which does not take {came}; {OTHER_WAY}')
    if not held:
        return 1.0
    net, y_L = deepcopy(request.net), request.classes_L
    try:
        fit(net, x_L[:-held], y_L[:-held], loss=request.loss, start="cold", seed=request.seed)
    except ValueError as e:
        raise ValueError(f'temperature="split" of uherding trains the network anew: {e}; {OTHER_WAY}') from e
    f_lC = outputs(freeze(net, params=lambda name: True), x_L[-held:])
    errors = [
        expected_calibration_error(probabilities(f_lC / T, request.loss), y_L[-held:], request.C)
        for T in SPLIT_TEMPERATURES.tolist()
    ]
    return float(SPLIT_TEMPERATURES[int(torch.tensor(errors).argmin())])


def expected_calibration_error(p_NC: Tensor, y_N: Tensor, bins: int) -> float:
    """Σ over bins of equal width of |accuracy − confidence|, weighed by their share of points (Guo et al. 2017)."""
    top_N, guess_N = p_NC.max(1)
    bin_N = (top_N * bins).ceil().long().sub_(1).clamp_(0, bins - 1)
    miss = torch.zeros(bins, dtype=p_NC.dtype, device=p_NC.device)
    return float(miss.index_add_(0, bin_N, (guess_N == y_N).to(p_NC) - top_N).abs().sum() / len(y_N))
