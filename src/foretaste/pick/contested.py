"""Contested points, spread out: DropQuery, ALFA-Mix, Cluster-Margin and Falcun.

Each asks first which predictions are contested, by dropout, by mixing features, or by the margin, and then spreads the
batch over those points: by k-means, over clusters made before, or by distances between probabilities.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretaste.acquire import register
from foretaste.errors import format_bytes, real_number, whole_number
from foretaste.losses import probabilities
from foretaste.pick.badge import draw_weighted, find_last_layer, last_layer_inputs, last_layer_map, loss_residuals
from foretaste.pick.clusters import central_points, fill_batch
from foretaste.pick.request import Request
from foretaste.pick.select import highest_scores
from foretaste.pick.space import COPY_DISTANCE, Space, SpaceOptions, VectorSpace, find_space, pool_outputs
from foretaste.tangent import outputs, resolve_budget


def spread_over(x_UD: Tensor, contested_U: Tensor, request: Request) -> Tensor:
    """A batch of contested points: nearest to the means of k-means on rows of unit length. Random ones fill it up."""
    order_U = torch.randperm(request.U, generator=request.generator)
    at = order_U[contested_U.cpu()[order_U]]
    request.info["contested"] = len(at)
    if len(at) > request.batch_size:
        x_nD = F.normalize(x_UD[at.to(x_UD.device)])
        space = VectorSpace("contested", 0, x_nD - x_nD.mean(0), COPY_DISTANCE[request.frozen.dtype])
        at = at[central_points(space, request.batch_size, request.generator).cpu()]
    return fill_batch(at, request)


def margins(p_UC: Tensor) -> Tensor:
    """(U,): p₁ − p₂, between the two likeliest classes."""
    top_U2 = p_UC.topk(2, 1).values
    return top_U2[:, 0] - top_U2[:, 1]


# --- DropQuery ---


@dataclass(frozen=True)
class DropQueryOptions:
    """The options of ``dropquery``; the defaults are the authors'.

    draws: how many times numbers are dropped.
    rate: the share of a point's numbers that is dropped.
    candidates: as long as fewer than this many contested points are there for each pick, fewer changed predictions
        are enough.
    space: what is dropped and clustered: the numbers of a point ("inputs"), or the input of the last layer ("last").
        "auto": inputs where points are vectors, else last.
    """

    draws: int = 3
    rate: float = 0.75
    candidates: int = 25
    space: str = "auto"

    def __post_init__(self) -> None:
        SpaceOptions(space=self.space)
        whole_number("draws of strategy 'dropquery'", self.draws, 1)
        whole_number("candidates of strategy 'dropquery'", self.candidates, 0)
        if not 0 < real_number("rate of strategy 'dropquery'", self.rate) < 1:
            raise ValueError(f"rate={self.rate} of strategy 'dropquery'; expected a share between 0 and 1")
        if self.space == "tangent":
            raise ValueError('space="tangent" of strategy \'dropquery\' has nothing to drop; use "inputs" or "last"')


@register("dropquery", needs="classes", select="own", options=DropQueryOptions)
def dropquery(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """DropQuery (Gupte et al. 2024): points whose prediction changes when features are dropped, then k-means on them.

    Contested is a point whose prediction changes in more than half of the draws. While there are fewer than
    ``candidates`` for each pick, the authors' code lowers that number, to one change at least. Scores are the share
    of draws that change the prediction. Cost: ``draws`` passes over the pool.
    """
    o = DropQueryOptions(**options)
    x = request.x_U
    vectors = isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 2
    if o.space == "inputs" and not (isinstance(x, Tensor) and x.is_floating_point()):
        find_space(request, "inputs")  # says what is wrong
    if isinstance(x, Tensor) and (o.space == "inputs" or (o.space == "auto" and vectors)):
        f_UC, h_UD = pool_outputs(request), x.detach()

        def head(h: Tensor) -> Tensor:
            return outputs(request.frozen, h, name="x_U")
    else:
        f_UC, h_UD, W_CD, b_C = linear_head(request, "dropquery", 'options={"space": "inputs"}')

        def head(h: Tensor) -> Tensor:
            return F.linear(h, W_CD, b_C)

    guess_U = f_UC.argmax(1)
    changes_U = torch.zeros_like(guess_U)
    for _ in range(o.draws):
        keep = (torch.rand(h_UD.shape, generator=request.generator) >= o.rate).to(h_UD)
        changes_U += head(h_UD * keep / (1 - o.rate)).argmax(1) != guess_U
    enough = o.draws // 2
    while int((changes_U > enough).sum()) < o.candidates * request.batch_size and enough > 0:
        enough -= 1
    return spread_over(h_UD.flatten(1).double(), changes_U > enough, request), changes_U.double() / o.draws


def linear_head(request: Request, strategy: str, otherwise: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """f and the last layer's inputs h on the candidates, with f = W h + b: (U, C), (U, D), (C, D), (C,)."""
    try:
        name = find_last_layer(request.frozen, request.x_U, None)
    except ValueError as e:
        raise ValueError(f"strategy {strategy!r} needs a network that ends in an nn.Linear; {otherwise}") from e
    last = request.frozen.net.get_submodule(name)
    assert isinstance(last, nn.Linear)
    f_UC, h_UD = last_layer_inputs(request.frozen, request.x_U, name, last=True)
    return f_UC, h_UD, *last_layer_map(request.frozen, last)


# --- ALFA-Mix ---
#
# A candidate's features z are mixed with the mean z* of the labelled points of a class, z + α ⊙ (z* − z). The α that
# raises the loss most, to first order, among those with ‖α ⊙ (z* − z)‖ ≤ ε ‖z* − z‖ is (the paper's closed form)
#
#     α = ε ‖z* − z‖ ∇ℓ / ‖∇ℓ‖ ⊘ (z* − z)
#
# so features move by ε ‖z* − z‖ along the gradient of the loss at the predicted class; not where z* and z are equal.


@dataclass(frozen=True)
class AlfaMixOptions:
    """The options of ``alfamix``.

    step: ε √D, and by how much it grows while there are not more contested points than picks, up to 1.
    """

    step: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < real_number("step of strategy 'alfamix'", self.step) <= 1:
            raise ValueError(f"step={self.step} of strategy 'alfamix'; expected a number above 0 and at most 1")


@register("alfamix", needs=("classes", "labels"), select="own", options=AlfaMixOptions)
def alfamix(request: Request, step: float = 0.2) -> Tensor:
    """ALFA-Mix (Parvaneh et al. 2022): points whose prediction changes when features are mixed with those of a class.

    Features are the last layer's inputs, the mixing is the closed form above, and the contested points are spread by
    k-means. A class without labels takes the mean of all labelled points. Cost: a pass over L ∪ U and at most
    UC(C + D) / step.
    """
    f_UC, z_UD, W_CD, b_C = linear_head(request, "alfamix", "use dropquery, or badge with options={'layer': name}")
    assert request.x_L is not None
    name = find_last_layer(request.frozen, request.x_U, None)
    _, z_LD = last_layer_inputs(request.frozen, request.x_L, name, last=True)
    y_L = request.classes_L
    guess_U, D = f_UC.argmax(1), z_UD.shape[1]
    g_UD = F.normalize(loss_residuals(f_UC, request.loss) @ W_CD)
    contested_U = torch.zeros_like(guess_U, dtype=torch.bool)
    for n in range(1, round(1 / step) + 1):
        for c in range(request.C):
            own = z_LD[y_L == c]
            away_UD = (own if len(own) else z_LD).mean(0) - z_UD
            length_U1 = away_UD.norm(dim=1, keepdim=True) * (n * step / D**0.5)
            moved_UD = z_UD + length_U1 * g_UD * (away_UD != 0)
            contested_U |= F.linear(moved_UD, W_CD, b_C).argmax(1) != guess_U
        if int(contested_U.sum()) > request.batch_size:
            break
    return spread_over(z_UD, contested_U, request)


# --- Cluster-Margin ---


@dataclass(frozen=True)
class ClusterMarginOptions(SpaceOptions):
    """The options of ``clustermargin``, beside those of a space.

    candidates: how many points of the smallest margins there are for each pick; 10 is for very large batches.
    cluster_size: the mean size of the clusters, at least.
    """

    candidates: float = 3.0
    cluster_size: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("candidates", "cluster_size"):
            if real_number(f"{name} of strategy 'clustermargin'", getattr(self, name)) < 1:
                raise ValueError(f"{name}={getattr(self, name)} of strategy 'clustermargin'; expected at least 1")


@register("clustermargin", needs="classes", select="own", options=ClusterMarginOptions)
def clustermargin(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """Cluster-Margin (Citovsky et al. 2021): the smallest margins, one from each cluster in turn, small clusters first.

    Clusters of L ∪ U are made by average linkage, which in the space of the inputs are the same in every round. The
    candidates with the smallest margins are visited cluster by cluster, in the order of how many each holds, again
    and again; of each one at random. Scores are minus the margin. Cost: N² distances, which are kept.
    """
    o = ClusterMarginOptions(**options)
    scores_U = -margins(probabilities(pool_outputs(request), request.loss))
    n = min(request.U, max(request.batch_size, int(o.candidates * request.batch_size)))
    near = highest_scores(scores_U, n, request.generator)
    space = find_space(request, o.space, o.layer)
    of_N = linkage_clusters(space, max(1, int(space.N / o.cluster_size)), request.budget)
    members: dict[int, list[int]] = {}
    for j in near.tolist():
        members.setdefault(int(of_N[space.L + j]), []).append(j)
    turns = sorted(members.values(), key=len)
    picks: list[int] = []
    while len(picks) < request.batch_size:
        for own in [t for t in turns if t][: request.batch_size - len(picks)]:
            picks.append(own.pop(int(torch.randint(len(own), (1,), generator=request.generator))))
    return torch.tensor(picks), scores_U


def linkage_clusters(space: Space, K: int, budget: int | str | None) -> Tensor:
    """(N,): the cluster of each point; the two clusters of the least mean distance are joined until K are left."""
    from scipy.cluster.hierarchy import fcluster, linkage  # here: 0.2 s

    N = space.N
    if N == 1:
        return torch.zeros(1, dtype=torch.int64)
    if (need := 12 * N * N) > (room := resolve_budget(budget)):
        raise ValueError(
            f"average linkage of {N} points takes {format_bytes(need)} and the budget is {format_bytes(room)}; raise "
            "budget, or give fewer candidates"
        )
    d = torch.empty(N * (N - 1) // 2, dtype=torch.float64)
    start = 0
    for i in range(N - 1):
        stop = start + N - 1 - i
        d[start:stop] = space.between(torch.tensor([i], device=space.device), slice(i + 1, None))[0].sqrt()
        start = stop
    return torch.from_numpy(fcluster(linkage(d.numpy(), "average"), K, "maxclust")).long()


# --- Falcun ---


@dataclass(frozen=True)
class FalcunOptions:
    """The options of ``falcun``.

    gamma: the power of the relevance that a pick is drawn by; 0 is random, a large one takes the highest.
    """

    gamma: float = 10.0

    def __post_init__(self) -> None:
        real_number("gamma of strategy 'falcun'", self.gamma, 0)


@register("falcun", needs="classes", select="own", options=FalcunOptions)
def falcun(request: Request, gamma: float = 10.0) -> tuple[Tensor, Tensor]:
    """Falcun (Gilhuber et al. 2024): picks drawn with probability ∝ (u + d)^γ, u = 1 − (p₁ − p₂).

    d begins as u, then is the least L1 distance of p to the picks, if that is less; it is scaled to 0 … 1 over what is
    left. Features and labelled points play no part. Scores are u. Cost: a pass over the pool and b·UC.
    """
    p_UC = probabilities(pool_outputs(request), request.loss)
    u_U = 1 - margins(p_UC)
    d_U, open_U = u_U.clone(), torch.ones_like(u_U, dtype=torch.bool)
    picks: list[int] = []
    while len(picks) < request.batch_size:
        left = d_U[open_U]
        relevance_U = torch.ones_like(u_U)
        if float(left.sum()) > 0:
            span = left.max() - left.min()
            relevance_U = ((d_U - left.min()) / (span if span > 0 else 1) + u_U).clamp_min_(0) ** gamma
        weight_U = relevance_U * open_U
        j = int(draw_weighted(weight_U if float(weight_U.max()) > 0 else open_U.to(u_U), request.generator))
        open_U[j] = False
        d_U = torch.minimum(d_U, (p_UC - p_UC[j]).abs().sum(1))
        picks.append(j)
    return torch.tensor(picks), u_U
