"""DCoM: coverage while the network is weak, margins when it is good (Mishal and Weinshall 2024).

Each labelled point has a ball of its own radius, as large as its points are predicted to be of its class. How much of
the pool the balls cover is taken for the competence of the network, which mixes density with margin.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import register
from foretaste.errors import real_number, whole_number
from foretaste.losses import probabilities
from foretaste.pick.clusters import cluster_points
from foretaste.pick.contested import margins
from foretaste.pick.herding import largest_pure_radius
from foretaste.pick.request import Request
from foretaste.pick.select import highest_scores
from foretaste.pick.space import Space, SpaceOptions, find_space, pool_outputs
from foretaste.tangent import outputs

PURITY = 0.95  # of the balls of the first radius, as in ProbCover


@dataclass(frozen=True)
class DcomOptions(SpaceOptions):
    """The options of ``dcom``, beside those of a space.

    radius: δ of points without a radius of their own. None: by the rule of ProbCover.
    largest: the largest radius of a ball; None is 1.1 where rows have unit length, as the authors have it, else 2δ.
    resolution: how finely a radius is searched.
    centre, steepness: a and k of the competence (1 + e^(−k(1−a))) / (1 + e^(−k(c−a))), c the share that is covered.
    radii: the radii that the first labelled points were given before, ``q.info["radii"]`` of an earlier query. Those
        of the other points are found with the present network.
    unit_length: scale rows of "inputs" and "last" to unit length, as the authors do.
    """

    radius: float | None = None
    largest: float | None = None
    resolution: float = 0.05
    centre: float = 0.8
    steepness: float = 50.0
    radii: Sequence[float] = ()
    unit_length: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("radius", "largest", "resolution", "steepness"):
            if (value := getattr(self, name)) is not None:
                real_number(f"{name} of strategy 'dcom'", value, 0, above=True)
        real_number("centre of strategy 'dcom'", self.centre)
        if not isinstance(self.unit_length, bool):
            raise ValueError(f"unit_length={self.unit_length!r}; expected True or False")
        for value in self.radii:
            real_number("a radius in radii of strategy 'dcom'", value, 0)


@register("dcom", needs="classes", select="own", options=DcomOptions)
def dcom(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """DCoM (Mishal and Weinshall 2024): s · (lack of margin) + (1 − s) · density, s the competence, one by one.

    The density of a candidate is how many points, of no ball yet, are within the mean radius; a pick covers them. Both
    terms are scaled to 0 … 1 over L ∪ U for each pick. With an empty L it is ProbCover. Scores are those of the first
    pick. Cost: N² distances, in parts, and b·N.
    """
    o = DcomOptions(**options)
    whole_number("the number of radii of strategy 'dcom'", len(o.radii), 0, request.L)
    space = find_space(request, o.space, o.layer, rows=request.U, unit_length=o.unit_length)
    f_UC, L = pool_outputs(request), space.L
    first = o.radius
    if first is None:
        of_N = cluster_points(space, min(request.C, space.N), request.generator).of_N
        first = largest_pure_radius(space, of_N, PURITY)
        first = first if math.isfinite(first) and first > 0 else math.sqrt(space.spread) or 1.0
    f_NC = f_UC if request.x_L is None or not L else torch.cat([outputs(request.frozen, request.x_L, name="x_L"), f_UC])
    largest = o.largest or (1.1 if o.unit_length and space.name != "tangent" else 2 * first)
    radii = ball_radii(space, request.classes_L if L else f_NC[:0, 0], f_NC.argmax(1), o, first, largest)
    covered_N = in_balls(space, radii)
    share = float(covered_N.double().mean())
    competence = (1 + math.exp(-o.steepness * (1 - o.centre))) / (1 + math.exp(-o.steepness * (share - o.centre)))
    reach = sum(radii) / L if L else first
    request.info.update({"radii": radii, "radius": reach, "competence": competence, "coverage": share})
    contested_N = to_unit(-margins(probabilities(f_NC, request.loss)))
    contested_N[:L] = 0
    density_N = torch.zeros_like(contested_N)
    for part in space.chunks((~covered_N).nonzero()[:, 0]):
        density_N += (space.between(part, slice(None)) < reach**2).sum(0)
    density_N[:L] = 0
    first_U, picks = None, list[int]()
    while len(picks) < request.batch_size:
        score_U = (competence * to_unit(contested_N) + (1 - competence) * to_unit(density_N))[L:]
        first_U = score_U.clone() if first_U is None else first_U
        score_U[picks] = -torch.inf
        picks.append(int(highest_scores(score_U, 1, request.generator)))
        at = torch.tensor([L + picks[-1]], device=space.device)
        new = ((space.between(at, slice(None))[0] < reach**2) & ~covered_N).nonzero()[:, 0]
        covered_N[new] = True
        for part in space.chunks(new):
            density_N -= (space.between(part, slice(None)) < reach**2).sum(0)
        density_N[:L] = 0
        contested_N[at] = 0
        request.progress(len(picks), request.batch_size)
    assert first_U is not None
    return torch.tensor(picks), first_U


def to_unit(values_N: Tensor) -> Tensor:
    """Scaled to 0 … 1; all 0 if they are equal."""
    span = values_N.max() - values_N.min()
    return (values_N - values_N.min()) / torch.where(span > 0, span, 1)


def in_balls(space: Space, radii: Sequence[float]) -> Tensor:
    """(N,) bool: the points within the ball of a labelled point, each with its own radius."""
    covered_N = torch.zeros(space.N, dtype=torch.bool, device=space.device)
    r_L = torch.tensor(radii, dtype=torch.float64, device=space.device)
    for part in space.chunks(torch.arange(space.L, device=space.device)):
        covered_N |= (space.between(part, slice(None)) < r_L[part].square()[:, None]).any(0)
    return covered_N


def ball_radii(
    space: Space, y_L: Tensor, guess_N: Tensor, o: DcomOptions, first: float, largest: float
) -> list[float]:  # fmt: skip
    """The radii of the labelled points: those that are given, and for the others the largest that is pure enough.

    Pure is the share of a ball's points that are predicted to be of its centre's class. Asked for is 0.4, and up to 0.6
    as coverage grows; the coverage is that of the given balls, with the mean of their radii for the other points. Found
    by halving, and rounded to two digits, as in the authors' code.
    """
    given, L = [float(r) for r in o.radii], space.L
    mean = sum(given) / len(given) if given else first
    wanted = 0.4 + 0.2 * float(in_balls(space, given + [mean] * (L - len(given))).double().mean())
    for part in space.chunks(torch.arange(len(given), L, device=space.device)):
        d_lN, same_lN = space.between(part, slice(None)).sqrt(), guess_N == y_L[part][:, None]
        low_l, high_l = d_lN.new_zeros(len(part), 1), d_lN.new_full((len(part), 1), largest)
        for _ in range(math.ceil(math.log2(max(largest / o.resolution, 1)))):
            middle_l = (low_l + high_l) / 2
            inside_lN = d_lN < middle_l
            pure_l = (same_lN & inside_lN).sum(1, keepdim=True) / inside_lN.sum(1, keepdim=True).clamp_min(1).double()
            low_l, high_l = (
                torch.where(pure_l >= wanted, middle_l, low_l),
                torch.where(pure_l >= wanted, high_l, middle_l),
            )
        given += [round(r, 2) for r in ((low_l + high_l) / 2)[:, 0].tolist()]
    return given
