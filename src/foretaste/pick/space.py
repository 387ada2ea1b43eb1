"""The space in which a strategy measures how near two points are: the inputs, the last layer's inputs, or the tangent.

A space holds L and U in one row of N = L + U points, the labelled ones first. "inputs" and "last" are vectors.
"tangent" has only products: Θ_ij = ⟨∇f_i, ∇f_j⟩, so d²_ij = Θ_ii + Θ_jj − 2Θ_ij, and it serves any network.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from foretaste.errors import did_you_mean, format_bytes
from foretaste.lookahead import check_points
from foretaste.pick.badge import find_last_layer, last_layer_inputs
from foretaste.pick.request import Request
from foretaste.tangent import (
    GramJob,
    Inputs,
    count_points,
    freeze,
    gram,
    join_points,
    outputs,
    resolve_budget,
    unmeasured_precision,
)

SPACES = ("auto", "inputs", "last", "tangent")
DISTANCE_CHUNK = 2**22  # distances computed at a time: 32 MB
PRODUCT_ROWS = 512  # rows of all products computed at a time
PRODUCTS_PAY = 16  # K D / N from which K means cost less by products of all pairs: N² sums a round, not N K D products
COPY_DISTANCE = {torch.float32: 1e-10, torch.float64: 1e-13}  # d² of two copies, as a share of their squared norms


@dataclass(frozen=True)
class SpaceOptions:
    """The options of a strategy that measures distances.

    space: "inputs" (the numbers of a point), "last" (the input of the last linear layer), "tangent" (distances of the
        tangent kernel, for any network), or "auto": inputs where points are vectors, else last.
    layer: the module whose input "last" is, if the network does not end in an nn.Linear.
    """

    space: str = "auto"
    layer: str | None = None

    def __post_init__(self) -> None:
        if self.space not in SPACES:
            raise ValueError(f"space={self.space!r}{did_you_mean(self.space, SPACES, 'Known')}")
        if not isinstance(self.layer, str | None):
            raise ValueError(f"layer={self.layer!r}; expected the name of a module, or None")
        if self.layer is not None and self.space not in ("last", "auto"):
            raise ValueError(f'layer={self.layer!r} is of space="last", and space is {self.space!r}; leave one out')


class Space(ABC):
    """L and U with squared distances between them; L points come first. All numbers are float64."""

    name: str
    L: int

    @property
    def N(self) -> int:
        return len(self.norms_N)

    @property
    def U(self) -> int:
        return self.N - self.L

    @property
    def device(self) -> torch.device:
        return self.norms_N.device

    @property
    @abstractmethod
    def norms_N(self) -> Tensor:
        """Squared norms; those of vectors are taken from their mean."""

    @property
    @abstractmethod
    def spread(self) -> float:
        """Half the mean squared distance between two points, Σ of the variances; 1 for unit vectors around 0."""

    @abstractmethod
    def between(self, a: Tensor, b: Tensor | slice) -> Tensor:
        """(a, b): squared distances between points, given by position. Those of two copies are 0."""

    @abstractmethod
    def nearest_means(self, means: "ClusterMeans") -> tuple[Tensor, Tensor]:
        """The nearest mean of each point, (N,), and the squared distance to it."""

    def nearest_of(self, at: Tensor) -> Tensor:
        """(N,): the squared distance of every point to the nearest of ``at``; +inf if there is none."""
        near_N = self.norms_N.new_full((self.N,), torch.inf)
        for part in self.chunks(at):
            near_N = torch.minimum(near_N, self.between(part, slice(None)).amin(0))
        return near_N

    def chunks(self, at: Tensor, width: int | None = None) -> Iterator[Tensor]:
        """``at`` in parts, so that distances of a part to ``width`` points (all) are few."""
        step = max(1, DISTANCE_CHUNK // max(1, width or self.N))
        yield from at.split(step) if len(at) else ()


@dataclass(frozen=True)
class ClusterMeans:
    """K clusters of the points of a space: the first ``fixed`` are the points 0 to fixed − 1, others the means.

    of_N: the cluster of each point. A cluster without points has no mean, and no point is assigned to it.
    """

    of_N: Tensor
    K: int
    fixed: int = 0

    @property
    def sizes_K(self) -> Tensor:
        return torch.bincount(self.of_N, minlength=self.K)

    @property
    def exists_K(self) -> Tensor:
        """Whether a cluster has a centre."""
        exists_K = self.sizes_K > 0
        exists_K[: self.fixed] = True
        return exists_K


@dataclass(frozen=True, eq=False)
class VectorSpace(Space):
    """Points as vectors, from their common mean: distances stay the same, and rounding is smaller."""

    name: str
    L: int
    x_ND: Tensor
    copy: float

    @cached_property
    def norms_N(self) -> Tensor:
        return self.x_ND.square().sum(1)

    @property
    def spread(self) -> float:
        return float(self.norms_N.mean())

    def between(self, a: Tensor, b: Tensor | slice) -> Tensor:
        both = self.norms_N[a][:, None] + self.norms_N[b]
        return zero_copies(torch.addmm(both, self.x_ND[a], self.x_ND[b].T, alpha=-2), both, self.copy)

    def products(self) -> "KernelSpace":
        """The same space by products of all pairs, of which half are computed."""
        k_NN = self.x_ND.new_empty(self.N, self.N)
        for start in range(0, self.N, PRODUCT_ROWS):
            at, rest = slice(start, start + PRODUCT_ROWS), slice(start + PRODUCT_ROWS, None)
            k_NN[at, start:] = self.x_ND[at] @ self.x_ND[start:].T
            k_NN[rest, at] = k_NN[at, rest].T
        return KernelSpace(self.name, self.L, k_NN, self.copy)

    def nearest_means(self, means: ClusterMeans) -> tuple[Tensor, Tensor]:
        m_KD = self.x_ND.new_zeros(means.K, self.x_ND.shape[1]).index_add_(0, means.of_N, self.x_ND)
        m_KD /= means.sizes_K.clamp_min(1)[:, None]
        m_KD[: means.fixed] = self.x_ND[: means.fixed]
        own_K = m_KD.square().sum(1).masked_fill(~means.exists_K, torch.inf)
        found = []
        for part in self.chunks(torch.arange(self.N, device=self.device), means.K):
            found.append(torch.addmm(own_K, self.x_ND[part], m_KD.T, alpha=-2).min(1))
        near_N, d_N = (torch.cat([getattr(f, key) for f in found]) for key in ("indices", "values"))
        return near_N, (d_N + self.norms_N).clamp_min_(0)


@dataclass(frozen=True, eq=False)
class KernelSpace(Space):
    """Points of which only products are known, Θ."""

    name: str
    L: int
    theta_NN: Tensor
    copy: float

    @cached_property
    def norms_N(self) -> Tensor:
        return self.theta_NN.diagonal().clone()

    @property
    def spread(self) -> float:
        return float(self.norms_N.mean() - self.theta_NN.mean())

    def between(self, a: Tensor, b: Tensor | slice) -> Tensor:
        both = self.norms_N[a][:, None] + self.norms_N[b]
        return zero_copies(torch.sub(both, self.theta_NN[a][:, b], alpha=2), both, self.copy)

    def nearest_means(self, means: ClusterMeans) -> tuple[Tensor, Tensor]:
        """‖φ_i − m_k‖² = Θ_ii − 2 mean_{j∈k} Θ_ij + mean_{j,j′∈k} Θ_jj′."""
        n_K = means.sizes_K.clamp_min(1).to(self.theta_NN)
        to_KN = self.theta_NN.new_zeros(means.K, self.N).index_add_(0, means.of_N, self.theta_NN).div_(n_K[:, None])
        own_K = self.theta_NN.new_zeros(means.K).index_add_(
            0, means.of_N, to_KN.gather(0, means.of_N[None])[0]
        ).div_(n_K)  # fmt: skip
        to_KN[: means.fixed], own_K[: means.fixed] = self.theta_NN[: means.fixed], self.norms_N[: means.fixed]
        own_K = own_K.masked_fill(~means.exists_K, torch.inf)
        d_N, near_N = to_KN.mul_(-2).add_(own_K[:, None]).min(0)
        return near_N, (d_N + self.norms_N).clamp_min_(0)

    def correlation_rows(self, a: Tensor) -> Tensor:
        """(a, N): the correlation of tangents after their mean is removed, for Θ's common part is large."""
        mean_N, scale_N = self._centring
        rows = self.theta_NN[a] - mean_N[a][:, None] - mean_N + mean_N.mean()
        return rows.mul_(scale_N[a][:, None]).mul_(scale_N)

    @cached_property
    def _centring(self) -> tuple[Tensor, Tensor]:
        """The mean of each row of Θ, and 1 / the length of each tangent around their mean."""
        mean_N = self.theta_NN.mean(0)
        own_N = self.norms_N - 2 * mean_N + mean_N.mean()
        return mean_N, own_N.clamp_min(1e-12 * float(self.norms_N.max())).rsqrt()


def zero_copies(d_ab: Tensor, both_ab: Tensor, copy: float) -> Tensor:
    """Distances below ``copy`` of the two squared norms are rounding: those of copies must be 0. Overwrites both."""
    return d_ab.masked_fill_(d_ab <= both_ab.mul_(copy), 0)


# --- how alike two points are ---


@dataclass(frozen=True)
class Similarity:
    """k between points of a space: exp(−d²/σ²), or for radius None the correlation of tangents. Its diagonal is 1."""

    space: Space
    radius: float | None

    def __call__(self, a: Tensor, b: Tensor | slice) -> Tensor:
        if self.radius is None:
            assert isinstance(self.space, KernelSpace)
            return self.space.correlation_rows(a)[:, b]
        return self.space.between(a, b).mul_(-1 / self.radius**2).exp_()


def find_similarity(space: Space, radius: float | None, request: Request) -> Similarity:
    """σ is the radius given, else √(Σ of the variances); in the tangent space k is then the correlation."""
    if radius is None and space.name != "tangent":
        radius = math.sqrt(space.spread) or 1.0
    request.info["radius"] = radius
    return Similarity(space, radius)


# --- which space a request has ---


def find_space(
    request: Request,
    space: str = "auto",
    layer: str | None = None,
    rows: int = 0,
    means: int = 0,
    unit_length: bool = False,
) -> Space:
    """The space of a request's points. Raises before any work if the points or the network have no such space.

    unit_length: scale vectors to length 1; one of length 0 stays. Tangents are as they are.
    rows: of how many points the caller will want the distances to all, or
    means: to how many means the distances of all, again and again. Products of all pairs are made once where that is
        cheaper, and within the budget.
    """
    if space == "auto":
        x = request.x_U
        vectors = isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point()
        space = "inputs" if vectors and layer is None else "last"
    request.info["space"] = space
    first = request.x_U if isinstance(request.x_U, Tensor) else next(iter(request.x_U.values()))
    check_points(request.x_L if request.L else None, request.x_U, None, first.device)
    if space == "tangent":
        return _tangent_space(request)
    make = _input_space if space == "inputs" else partial(_last_layer_space, layer=layer)
    found = make(request, unit_length=unit_length)
    N, D = found.x_ND.shape
    worth = N > 1 and (2 * rows >= N or means * D > PRODUCTS_PAY * N)
    fits = resolve_budget(request.budget, found.device) >= 24 * N * N
    return found.products() if worth and fits else found


def _input_space(request: Request, unit_length: bool) -> VectorSpace:
    x = request.x_U
    if isinstance(x, Tensor) and x.is_floating_point():
        N, D = request.L + request.U, x[0].numel()
        need, budget = 16 * N * D, resolve_budget(request.budget)  # twice: they are moved to their mean
        if need > budget:
            raise ValueError(
                f"{N} points of {D} numbers take {format_bytes(need)} and the budget is {format_bytes(budget)}; raise "
                'budget, or take a space of fewer numbers: options={"space": "last"}'
            )
        parts = [p.detach() for p in _points(request) if isinstance(p, Tensor)]
        return _vector_space("inputs", parts, request.L, unit_length)
    came = f"a tensor of {str(x.dtype).removeprefix('torch.')}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
    raise ValueError(
        f'space="inputs" measures distances between points, and x_U is {came}; use options={{"space": "last"}}, the '
        'input of the last layer, or "tangent"'
    )


def _vector_space(
    name: str, parts: list[Tensor], L: int, unit_length: bool, dtype: torch.dtype = torch.float64
) -> VectorSpace:
    """dtype: the precision that the vectors were computed in."""
    x_ND = torch.cat([p.flatten(1).double() for p in parts])
    if not (finite := torch.isfinite(x_ND).all(1)).all():
        bad = int((~finite).nonzero()[0])
        where = f"point {bad} of x_L" if bad < L else f"point {bad - L} of x_U"
        raise ValueError(f"{where} is NaN or infinite in space {name!r}; distances need finite numbers")
    if unit_length:
        x_ND = normalize(x_ND)
    return VectorSpace(name, L, x_ND - x_ND.mean(0), COPY_DISTANCE[dtype])


def _last_layer_space(request: Request, layer: str | None, unit_length: bool) -> VectorSpace:
    frozen = request.frozen
    name = find_last_layer(frozen, request.x_U, layer)
    parts = [last_layer_inputs(frozen, x, name, last=layer is None)[1] for x in _points(request)]
    return _vector_space("last", parts, request.L, unit_length, frozen.dtype)


def _tangent_space(request: Request) -> KernelSpace:
    output = "trace" if request.output == "full" else request.output
    frozen = freeze(request.frozen, output=output, params=request.params)
    pair, precision = ("LU", "LU"), unmeasured_precision(request.precision, frozen)
    sets = {"LU": join_points(*_points(request))}
    theta_NN = gram(GramJob(frozen, sets, [pair], budget=request.budget, precision=precision)).blocks[pair]
    return KernelSpace("tangent", request.L, theta_NN, COPY_DISTANCE[frozen.dtype] * 1e3)


def _points(request: Request) -> list[Inputs]:
    return [x for x in (request.x_L, request.x_U) if x is not None and count_points(x)]


def pool_outputs(request: Request) -> Tensor:
    """f on the candidates, (U, C) float64, without a kernel."""
    return outputs(request.frozen, request.x_U)
