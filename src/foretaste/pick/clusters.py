"""Batches that are spread over a space: k-means, TypiClust, core-set and LCMD.

The parts, in order: k-means in any space; one point of each cluster; the greedy strategies by distance.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import register
from foretaste.errors import whole_number
from foretaste.pick.badge import draw_weighted
from foretaste.pick.request import Request
from foretaste.pick.space import ClusterMeans, Space, SpaceOptions, find_space

LLOYD_ROUNDS = 30


# --- k-means (Lloyd 1982), seeded by k-means++ ---


def cluster_points(space: Space, K: int, generator: torch.Generator, *, fixed: int = 0) -> ClusterMeans:
    """K clusters, of which the first ``fixed`` have the points 0 to fixed − 1 as centres that do not move.

    Seeds are drawn with probability d²/Σd², d to the nearest before. Each round assigns every point to the nearest
    mean, the first among equals; a mean that lost all its points goes to the point that is farthest from its own.
    """
    seeds = seed_centres(space, K, generator, fixed)
    of_N = _nearest_points(space, seeds)
    for _ in range(LLOYD_ROUNDS):
        near_N, d_N = space.nearest_means(ClusterMeans(of_N, K, fixed))
        near_N = _refill(near_N, d_N, K, fixed)
        if torch.equal(near_N, of_N):
            break
        of_N = near_N
    return ClusterMeans(of_N, K, fixed)


def seed_centres(space: Space, K: int, generator: torch.Generator, fixed: int = 0) -> Tensor:
    """(K,) positions of points: the fixed ones, then k-means++. Positions repeat only if all others are copies."""
    picks = list(range(fixed))
    near_N = space.nearest_of(torch.arange(fixed, device=space.device))
    while len(picks) < K:
        weight_N = torch.ones_like(near_N) if not picks else near_N
        weight_N = weight_N if float(weight_N.max()) > 0 else torch.ones_like(near_N)
        j = draw_weighted(weight_N, generator)
        picks.append(int(j))
        near_N = torch.minimum(near_N, space.between(j, slice(None))[0])
    return torch.tensor(picks, device=space.device)


def _nearest_points(space: Space, at: Tensor) -> Tensor:
    """(N,): which of ``at`` is nearest, the first among equals."""
    nearest = []
    for part in space.chunks(torch.arange(space.N, device=space.device), len(at)):
        nearest.append(space.between(part, at).min(1).indices)
    return torch.cat(nearest)


def _refill(near_N: Tensor, d_N: Tensor, K: int, fixed: int) -> Tensor:
    """Clusters without a point get the points farthest from their mean, one each. Copies leave clusters empty."""
    empty = (torch.bincount(near_N, minlength=K)[fixed:] == 0).nonzero()[:, 0] + fixed
    if not len(empty):
        return near_N
    far = d_N.argsort(descending=True, stable=True)[: len(empty)]
    far = far[d_N[far] > 0]
    return near_N.scatter(0, far, empty[: len(far)])


# --- one point of each cluster ---


@register("kmeans", select="own", options=SpaceOptions)
def kmeans(request: Request, space: str = "auto", layer: str | None = None) -> Tensor:
    """k-means: as many clusters as picks, and of each the candidate nearest to its mean; large clusters first.

    Every labelled point is the centre of one more cluster, and does not move, so a batch stays away from L. With an
    empty L it is the batch of Zhdanov (2019) without weights. Cost: 30 rounds of N(L + b) distances at most.
    """
    points = find_space(request, space, layer, means=request.L + request.batch_size)
    return fill_batch(central_points(points, points.L + request.batch_size, request.generator, points.L), request)


def central_points(space: Space, K: int, generator: torch.Generator, fixed: int = 0) -> Tensor:
    """Of each of K clusters, the candidate nearest to its mean, those of large clusters first; none of fixed ones."""
    means = cluster_points(space, K, generator, fixed=fixed)
    of_N, d_N = space.nearest_means(means)
    of_U, d_U = of_N[space.L :], d_N[space.L :]
    picks = []
    for k in torch.bincount(of_U, minlength=means.K)[fixed:].argsort(descending=True, stable=True) + fixed:
        own = (of_U == k).nonzero()[:, 0]
        if len(own):
            picks.append(own[_first_least(d_U[own])])
    return torch.stack(picks) if picks else of_U[:0]


def _first_least(values: Tensor) -> int:
    """The position of the least value, the first among equals: two points are equally far from their mean."""
    return int((values <= (1 + 1e-9) * values.min()).nonzero()[0])


def fill_batch(picks: Tensor, request: Request) -> Tensor:
    """The picks, and random candidates for what is missing of the batch: where points are copies there are fewer."""
    order_U = torch.randperm(request.U, generator=request.generator)
    order_U = order_U[~torch.isin(order_U, picks.cpu())]
    return torch.cat([picks.cpu(), order_U[: request.batch_size - len(picks)]])


@dataclass(frozen=True)
class TypiClustOptions(SpaceOptions):
    """The options of ``typiclust``, beside those of a space; the defaults are the authors'.

    neighbours: how many nearest neighbours make a point typical.
    most_clusters: clusters at most; with larger batches, clusters are visited again.
    least_size: clusters of no more points than this come last.
    """

    neighbours: int = 20
    most_clusters: int = 500
    least_size: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("neighbours", 1), ("most_clusters", 1), ("least_size", 0)):
            whole_number(f"{name} of strategy 'typiclust'", getattr(self, name), least)


@register("typiclust", select="own", options=TypiClustOptions)
def typiclust(request: Request, **options: Any) -> Tensor:
    """TypiClust (Hacohen et al. 2022): L + b clusters of L ∪ U, and the most typical point of each without a label.

    Clusters come in the order of how many labelled points they hold, then of their size. A point is typical if the
    mean distance to its nearest neighbours among the candidates of its cluster is small.
    """
    o = TypiClustOptions(**options)
    points = find_space(request, o.space, o.layer, means=request.L + request.batch_size)
    K = min(points.L + request.batch_size, o.most_clusters, points.N)
    means = cluster_points(points, K, request.generator)
    labelled_K = torch.bincount(means.of_N[: points.L], minlength=K)
    sizes_K = means.sizes_K
    order = sorted(range(K), key=lambda k: (int(labelled_K[k]), -int(sizes_K[k])))
    of_U = means.of_N[points.L :]
    members = {k: (of_U == k).nonzero()[:, 0] for k in order}
    large = [k for k in order if int(sizes_K[k]) > o.least_size]
    picks: list[int] = []
    while len(picks) < request.batch_size:
        # Small clusters wait until nothing is left in large ones.
        turn = [k for k in large if len(members[k])] or [k for k in order if len(members[k])]
        for k in turn[: request.batch_size - len(picks)]:
            best = _first_least(1 / typicality(points, members[k] + points.L, o.neighbours))
            picks.append(int(members[k][best]))
            members[k] = torch.cat([members[k][:best], members[k][best + 1 :]])
    return torch.tensor(picks, dtype=torch.int64)


def typicality(space: Space, at: Tensor, neighbours: int) -> Tensor:
    """(n,): 1 / the mean distance to the nearest neighbours among ``at``, to half of them at most; +inf for copies."""
    k = min(neighbours, len(at) // 2)
    if k == 0:
        return space.norms_N.new_ones(len(at))
    near = [space.between(part, at).topk(k + 1, dim=1, largest=False).values for part in space.chunks(at, len(at))]
    return 1 / torch.cat(near)[:, 1:].sqrt().mean(1)  # the nearest of all is the point itself


# --- greedy strategies by distance ---


@dataclass(frozen=True)
class CoreSetOptions(SpaceOptions):
    """The options of ``coreset``: those of a space, by default the inputs of the last layer as in the paper."""

    space: str = "last"


@register("coreset", select="own", options=CoreSetOptions)
def coreset(request: Request, space: str = "last", layer: str | None = None) -> tuple[Tensor, Tensor]:
    """Core-set (Sener and Savarese 2018), k-centre greedy: each pick is the candidate farthest from L and the picks.

    With an empty L the first is the candidate nearest to the mean of the pool. Scores are the distances to L.
    """
    points = find_space(request, space, layer, rows=request.L + request.batch_size)
    walk = DistanceWalk(points, request)
    scores_U = walk.near_U.sqrt() if points.L else -_from_mean(points)
    if not points.L:
        walk.pick(scores_U)
    while len(walk.picks) < request.batch_size:
        walk.pick(walk.near_U)
    return torch.tensor(walk.picks), scores_U


@dataclass(frozen=True)
class LCMDOptions(SpaceOptions):
    """The options of ``lcmd``: those of a space, by default the tangents as in the paper."""

    space: str = "tangent"


@register("lcmd", select="own", options=LCMDOptions)
def lcmd(request: Request, space: str = "tangent", layer: str | None = None) -> tuple[Tensor, Tensor]:
    """LCMD (Holzmüller et al. 2022): the farthest point of the largest cluster. For classes and for regression.

    L and the picks are centres, and every candidate belongs to the nearest. A cluster is as large as the sum of its
    squared distances. With an empty L the first is the candidate with the longest vector. Scores are distances to L.
    """
    points = find_space(request, space, layer, rows=request.L + request.batch_size)
    walk = DistanceWalk(points, request)
    scores_U = walk.near_U.sqrt() if points.L else points.norms_N.sqrt()
    if not points.L:
        walk.pick(scores_U)
    while len(walk.picks) < request.batch_size:
        size_K = walk.near_U.new_zeros(points.N).index_add_(0, walk.centre_U, walk.near_U)
        in_largest_U = size_K[walk.centre_U] == size_K.max()
        walk.pick(walk.near_U.masked_fill(~in_largest_U, -1.0))
    return torch.tensor(walk.picks), scores_U


class DistanceWalk:
    """Picks one by one; after each, the nearest centre of every candidate and the squared distance to it.

    centre_U: positions in the space. Ties between candidates go to the first in a random order.
    """

    def __init__(self, space: Space, request: Request) -> None:
        self.space, self.request = space, request
        self.order_U = torch.randperm(space.U, generator=request.generator).to(space.device)
        self.open_U = torch.ones(space.U, dtype=torch.bool, device=space.device)
        self.near_U = space.norms_N.new_full((space.U,), torch.inf)
        self.centre_U = torch.zeros(space.U, dtype=torch.int64, device=space.device)
        self.picks: list[int] = []
        for part in space.chunks(torch.arange(space.L, device=space.device)):
            d_nU = space.between(part, slice(None))[:, space.L :]
            self._add(d_nU.amin(0), part[d_nU.argmin(0)])

    def pick(self, score_U: Tensor) -> None:
        """Take the open candidate of the highest score."""
        ranked_U = score_U.masked_fill(~self.open_U, -torch.inf)[self.order_U]
        j = int(self.order_U[(ranked_U == ranked_U.max()).nonzero()[0]])
        self.picks.append(j)
        self.open_U[j] = False
        at = torch.tensor([self.space.L + j], device=self.space.device)
        self._add(self.space.between(at, slice(None))[0, self.space.L :], at.expand(self.space.U))
        self.request.progress(len(self.picks), self.request.batch_size)

    def _add(self, d_U: Tensor, centre_U: Tensor) -> None:
        nearer_U = d_U < self.near_U
        self.near_U = torch.where(nearer_U, d_U, self.near_U)
        self.centre_U = torch.where(nearer_U, centre_U, self.centre_U)


def _from_mean(space: Space) -> Tensor:
    """(N,): distances from the mean of all points."""
    return space.nearest_means(ClusterMeans(torch.zeros(space.N, dtype=torch.int64, device=space.device), 1))[1].sqrt()
