"""Coverage of the expected error (docs/mathematics.md, Cover): a point is served by the one label nearest to it.

    F(B) = Σ_i e_i max_{j ∈ L∪B} κ_ij²

e_i is the chance that i's class is wrong, in which the linearised posterior and the network's own probabilities have
equal say; κ_ij the correlation of the tangents of i and j, and κ_ij² the share of i's variance that a label at j
explains. ``gain`` lets each label say a little about every point; on pretrained features that loses to herding, which
counts the nearest label only. F does so with the network's own kernel. It is submodular: a batch is grown greedily, by
lazy evaluation (foretaste.pick).

Some trainings collapse the kernel. A head trained by Adam on features can map all points of a predicted class to nearly
one tangent; then κ says what the network believes, and not who is near whom. ``spread`` measures it, and the inputs
take the place of the tangents in κ.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from foretaste.acquire.coverage import Coverage, added_coverage
from foretaste.acquire.predictions import chance_of_error, check_scale, finish_scores, labelled, need_classes
from foretaste.acquire.registry import register
from foretaste.errors import check_known
from foretaste.lookahead import KernelSettings, PoolState, PriorKernel, State
from foretaste.losses import probabilities
from foretaste.tangent import NO_SPREAD, float32_products, to_float64

log = logging.getLogger("foretaste")

NO_INPUT_VECTORS = (
    'space="inputs" of cover needs inputs that are one tensor of floats; use options={"space": "tangent"}, or "auto"'
)
COVER_SPACES = ("auto", "tangent", "inputs")
COLLAPSED = 1 / 3  # of the inputs' spread: below it the tangents are not used
SPREAD_POINTS = 512  # on which spreads are compared
CORRELATION_CHUNK = 2**20  # numbers of κ made at a time: 8 MB, which stay in the cache
CORRELATION_CHUNK_GPU = 2**24
SINGLE_PRECISION = 2**20  # pairs (i, j) from which κ is kept in float32: it is between 0 and 1


@dataclass(frozen=True)
class CoverOptions:
    """The options of ``cover``.

    scale: s² of the posterior's variance; None (default) is ``state.scale``.
    space: whose correlations κ are: "tangent", "inputs" (vectors or pictures of floats), or "auto" (default): tangent,
        and inputs where the tangents have collapsed, which means that their spread is below a third of the inputs'.
    """

    scale: float | None = None
    space: str = "auto"

    def __post_init__(self) -> None:
        check_scale(self.scale)
        check_known("space", self.space, COVER_SPACES)

    def check_points(self, x_U: Any) -> None:
        """Raise if the correlations of the inputs are asked for, and these are no vectors."""
        if self.space == "inputs" and not has_input_vectors({"U": x_U}):
            raise ValueError(NO_INPUT_VECTORS)


def covered_errors(state: State, scale: float | None = None, space: str = "auto") -> Coverage:
    """F of a state, as a greedy batch needs it."""
    need_classes(state, "cover", "variance: there is no chance of error")
    check_scale(scale)
    check_known("space", space, COVER_SPACES)
    kappa2_UW, covered_W, used = correlations(state, space)
    if state.kept:
        covered_W = torch.maximum(covered_W, kappa2_UW[[j for j, _ in state.kept]].amax(0).to(covered_W))
    weight_W = error_chances(state, scale)
    return Coverage(lambda at: kappa2_UW[at], covered_W, weight_W, {"space": used})


@register(
    "cover", select=covered_errors, needs=("kernel", "classes"), options=CoverOptions,
    kernel=KernelSettings(output="signs", ridge="misfit"),
)  # fmt: skip
def cover(state: State, scale: float | None = None, space: str = "auto") -> Tensor:
    """Coverage of the expected error: how much a label at j adds to F(B) = Σ_i e_i max_{j ∈ L∪B} κ_ij².

    κ_ij is the correlation of Θ, centred over the pool and L and cut at 0; its square is the share of i's variance that
    a label at j explains. e_i = √(Φ(−g_i / (√2 s √S_ii)) (1 − p_i)) is the chance that i's class is wrong, g_i the gap
    between the two largest outputs of the posterior's mean, p_i the largest probability of the network; 1/2 while
    nothing is labelled. Not in the paper; docs/mathematics.md, Cover. In ``ft.query`` the ridge carries the misfit of
    the network, unless one is given (``ft.linearize``, ridge="misfit"): so e_i holds for networks that do not
    interpolate their labels. Where others are better: docs/findings.md; ``margin`` was a point ahead with 100 classes,
    600 labels and more, and a network that leaves most of their variance unfitted. Cost: one pass over Θ, W·U, and lazy
    passes over few candidates for each pick.
    """
    F = covered_errors(state, scale, space)
    all_U = torch.arange(state.U, device=F.covered_W.device)
    scores_U = added_coverage(F.rows, all_U, F.covered_W, F.weight_W)
    return finish_scores(state, scores_U, "cover")


def error_chances(state: State, scale: float | None = None) -> Tensor:
    """(W,): e_i, the geometric mean of two chances that i's class is wrong: the posterior's and the network's, 1 − p_i.

    1/2 where nothing is labelled: then no output means anything. A network of the squared loss can be sure of every
    point; then the posterior alone speaks. With the pool in the kernel it is one less the gap of the two largest
    probabilities: docs/pool.md compares weights.
    """
    if state.L == 0 and not labelled(state):
        return torch.full_like(state.mean[:, 0], 0.5)
    f_WC = state.mean if labelled(state) else state.net
    if isinstance(state, PoolState):
        top_W2 = probabilities(f_WC, state.loss).topk(2, 1).values
        return 1 - top_W2[:, 0] + top_W2[:, 1]
    return with_own_chance(posterior_chances(state, scale), f_WC, state.loss)


def with_own_chance(chance_W: Tensor, f_WC: Tensor, loss: str) -> Tensor:
    """The geometric mean of the posterior's chance of error and the network's own, where that has any."""
    own_W = 1 - probabilities(f_WC, loss).amax(1)
    return (chance_W * own_W).sqrt() if own_W.any() else chance_W


def posterior_chances(state: State, scale: float | None = None) -> Tensor:
    """(W,): Φ(−g_i / σ_i), σ_i² the posterior's variance of the gap between the two largest outputs.

    With one kernel for all classes σ_i² = 2 s² S_ii.
    """
    top = state.mean.topk(2, 1)
    gap_W = top.values[:, 0] - top.values[:, 1]
    var_W = state.watched_variance
    if state.B > 1:
        i_W, (a_W, b_W) = torch.arange(state.W, device=gap_W.device), top.indices.unbind(1)
        var_W = (var_W[i_W, a_W, a_W] + var_W[i_W, b_W, b_W] - 2 * var_W[i_W, a_W, b_W]) / 2
    s2 = state.scale if scale is None else scale
    return chance_of_error(gap_W, 2 * s2 * var_W)


# --- κ: the correlation of Θ, centred, cut at 0 ---
#
# All tangents share a large common part, which says nothing about who is near whom. So Θ is centred: with rows W∪L and
# columns U∪L, Θ_ij − m_i − m_j + m with m_i, m_j and m the means of row i, of column j and of all. For W = U this is
# the kernel of the tangents less their mean over U∪L. With the pool, Θ is centred already, and taken before it is bent:
# bent along the graph, κ is up to a point worse (docs/pool.md).


def correlations(state: State, space: str = "auto") -> tuple[Tensor, Tensor, str]:
    """κ² as (U, W); max over L of κ_il², (W,), 0 if nothing is labelled; and the space. Made once a linearisation."""
    made: dict[str, tuple[Tensor, Tensor, str]] = _correlation_cache.setdefault(state.linearisation, {})
    if space not in made:
        theta = state.unbent() if isinstance(state, PoolState) else state.prior()
        use = choose_space(theta) if space == "auto" else space
        if use not in made:
            centred = not isinstance(state, PoolState)
            made[use] = (*_correlate(theta if use == "tangent" else input_kernel(theta.points), centred), use)
        made[space] = made[use]
    return made[space]


_correlation_cache = WeakIdKeyDictionary()


def choose_space(theta: PriorKernel) -> str:
    """ "inputs" where the tangents have collapsed, else "tangent". On at most 512 points of W and of U."""
    points = theta.points
    if points is None or not has_input_vectors(points):
        return "tangent"

    def measure(theta: PriorKernel) -> float:
        theta = single_output(theta)
        own_u, own_w = (some_points(d[:, 0, 0]) for d in (theta.diag_U, theta.diag_W))
        theta_uw = some_points(theta.half_U.T) @ some_points(theta.half_W.T).T
        if theta.base_UW is not None:
            theta_uw += some_points(some_points(theta.base_UW).T).T
        return spread(theta_uw, own_u, own_w)

    x = {name: some_points(points[name]) for name in points if name != "L"}
    of_tangents, of_inputs = measure(theta), measure(input_kernel(x))
    if of_tangents >= COLLAPSED * of_inputs:
        return "tangent"
    log.info("tangents have a spread of %.1f and inputs of %.1f; cover uses the inputs", of_tangents, of_inputs)
    return "inputs"


def some_points(of_N: Tensor) -> Tensor:
    """Every n-th row, at most 512."""
    return of_N[:: -(-len(of_N) // SPREAD_POINTS)]


def spread(theta_wu: Tensor, own_w: Tensor, own_u: Tensor) -> float:
    """In how many directions points differ: v_w v_u / mean Θ̃², v the mean variances: (Σλ)²/Σλ² of eigenvalues λ.

    Θ̃ is centred over the points given, and ``own`` are Θ_ii. 0 if all points are the same.
    """
    rows_w, columns_u, mean = theta_wu.mean(1), theta_wu.mean(0), theta_wu.mean()
    v_w, v_u = ((own - 2 * m + mean).clamp_min(0).mean() for own, m in ((own_w, rows_w), (own_u, columns_u)))
    square = (theta_wu - rows_w[:, None] - columns_u + mean).square().mean()
    return float(v_w * v_u / square) if square > 0 else 0.0


def has_input_vectors(points: Mapping[str, Any] | None) -> bool:
    """Whether the inputs are tensors of floats."""
    return points is not None and all(isinstance(x, Tensor) and x.is_floating_point() for x in points.values())


def input_kernel(points: Mapping[str, Any] | None) -> PriorKernel:
    """x·x′ of the inputs."""
    if points is None or not has_input_vectors(points):
        raise ValueError(NO_INPUT_VECTORS)
    x_U = to_float64(points["U"].detach().flatten(1))
    x_L = to_float64(points["L"].detach().flatten(1)) if "L" in points else x_U[:0]
    x_W = to_float64(points["W"].detach().flatten(1)) if "W" in points else x_U
    diag_U, diag_W = (x.square().sum(1)[:, None, None] for x in (x_U, x_W))
    half_U = x_U.T
    half_W = half_U if x_W is x_U else x_W.T
    return PriorKernel(x_L @ x_L.T, x_W @ x_L.T, x_U @ x_L.T, diag_U, diag_W, None, half_U, half_W)


def single_output(theta: PriorKernel) -> PriorKernel:
    """The same with B = 1: the mean of the diagonal of each B × B block, which is the kernel of output="trace"."""
    B = theta.diag_U.shape[1]
    if B == 1:
        return theta
    LL, WL, UL = (mean_diagonals(block, B) for block in (theta.LL, theta.WL, theta.UL))
    base_UW = None if theta.base_UW is None else mean_diagonals(theta.base_UW, B)
    half_U, half_W = (
        h.unflatten(1, (-1, B)).transpose(1, 2).flatten(0, 1) / B**0.5 for h in (theta.half_U, theta.half_W)
    )
    diag_U, diag_W = (d.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] for d in (theta.diag_U, theta.diag_W))
    return PriorKernel(LL, WL, UL, diag_U, diag_W, base_UW, half_U, half_W, theta.points)


def mean_diagonals(theta: Tensor, B: int) -> Tensor:
    """(n, m): the mean of the diagonal of each B × B block."""
    return theta.unflatten(0, (-1, B)).unflatten(2, (-1, B)).diagonal(dim1=1, dim2=3).mean(2)


def _correlate(theta: PriorKernel, centred: bool = True) -> tuple[Tensor, Tensor]:
    """κ², (U, W), and how well L covers each point, (W,).

    With Θ_ij = base_ij + h_i·h_j and c a mean of h, Θ_ij − m_i − m_j + m is (h_i − c)·(h_j − c) + base_ij − α_i − β_j.
    Without the common part both terms are small, so the product can be in float32.
    """
    theta = single_output(theta)
    (U, L), W = theta.UL.shape, len(theta.WL)
    LL, WL, UL, base_UW = theta.LL, theta.WL, theta.UL, theta.base_UW
    c_W, c_U = (h.mean(1) if centred else h.new_zeros(len(h)) for h in (theta.half_W, theta.half_U))
    sums_W, sums_U = U * (theta.half_W.T @ c_U), W * (theta.half_U.T @ c_W)
    if base_UW is not None:
        sums_W, sums_U = sums_W + base_UW.T @ base_UW.new_ones(U), sums_U + base_UW @ base_UW.new_ones(W)
    mean_W, mean_U = (sums_W + WL.sum(1)) / (U + L), (sums_U + UL.sum(1)) / (W + L)
    mean_L = (WL.sum(0) + LL.sum(0)) / (W + L)
    mean = (sums_W.sum() + WL.sum() + UL.sum() + LL.sum()) / ((W + L) * (U + L))
    if not centred:
        mean_W, mean_U, mean_L, mean = (torch.zeros_like(t) for t in (mean_W, mean_U, mean_L, mean))
    own = (theta.diag_W[:, 0, 0], mean_W), (theta.diag_U[:, 0, 0], mean_U), (LL.diagonal(), mean_L)
    scale_W, scale_U, scale_L = (inverse_spread(diag - 2 * m + mean) for diag, m in own)
    alpha_W = mean_W - theta.half_W.T @ c_U
    beta_U = mean_U - mean - theta.half_U.T @ c_W + c_W @ c_U
    dtype = torch.float64 if W * U < SINGLE_PRECISION else torch.float32
    h_W, h_U = ((h - c[:, None]).to(dtype) for h, c in ((theta.half_W, c_W), (theta.half_U, c_U)))
    kappa2_UW = torch.empty(U, W, dtype=dtype, device=WL.device)
    step = max(1, (CORRELATION_CHUNK if WL.is_cpu else CORRELATION_CHUNK_GPU) // W)
    room_uW = alpha_W.new_empty(min(step, U), W)  # one buffer: fresh pages cost as much as the arithmetic
    base_UW = alpha_W.new_zeros(1, W).expand(U, W) if base_UW is None else base_UW
    by_W, by_U = scale_W.to(dtype), scale_U.to(dtype)[:, None]
    same = theta.half_W is theta.half_U  # then W is U, and κ symmetric
    for start in range(0, U, step):
        at, to = slice(start, min(start + step, U)), slice(start if same else 0, W)
        room_uw = room_uW[: at.stop - start, : W - to.start]
        torch.sub(base_UW[at, to], alpha_W[to], out=room_uw).sub_(beta_U[at][:, None])
        kappa_uw = kappa2_UW[at, to].copy_(room_uw)
        with float32_products("float32"):  # never TF32
            kappa_uw.addmm_(h_U[:, at].T, h_W[:, to])
        kappa_uw.mul_(by_W[to]).mul_(by_U[at]).clamp_(0, 1).square_()
        if same:
            kappa2_UW[at.stop :, at] = kappa2_UW[at, at.stop :].T
    covered_W = mean_W.new_zeros(W)
    if L:
        kappa_WL = (WL - mean_W[:, None] - mean_L + mean) * scale_W[:, None] * scale_L
        covered_W = kappa_WL.clamp_(0, 1).amax(1).square()
    return kappa2_UW, covered_W


def inverse_spread(var_N: Tensor) -> Tensor:
    """1/√v; 0 where v is nothing but rounding, so that such a point covers nothing."""
    least = NO_SPREAD * var_N.clamp_min(0).mean()
    return torch.where(var_N > least, var_N, torch.inf).rsqrt()
