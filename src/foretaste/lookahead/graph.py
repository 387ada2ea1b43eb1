"""The pool in the kernel: Θ bent along a graph of nearest neighbours (docs/mathematics.md, The pool).

A network trained on L alone ignores the points beside it. Let G = L ∪ U, 𝓛 the normalised Laplacian of a graph of
nearest neighbours on G, and M = γ𝓛². The kernel of the same functions with the norm ‖f‖² + f_Gᵀ M f_G is (Sindhwani,
Niyogi and Belkin 2005)

    Θ̃(x, z) = Θ(x, z) − Θ(x, G) (I + MΘ_GG)⁻¹ M Θ(G, z)

As a Gaussian process: one has seen already that f is smooth along the graph. Everything that follows from a kernel
(mean, S, u, look-ahead) follows from Θ̃ as it does from Θ. Its mean starts from what is known without a network, 1/C:

    mean = 1/C + Θ̃_·L (Θ̃_LL + λI)⁻¹ (Y − 1/C)

γ and λ are chosen by leave-one-out, in closed form; γ = 0 is among the choices. That is honest only if Θ has not seen
the labels. Tangents of a trained network have: there leave-one-out chooses γ = 0 where γ > 0 is up to 13 points better.
So Θ here is the kernel of a wide ReLU network before its training, in closed form (docs/pool.md has the figures).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from foretaste.errors import check_callable, check_known, real_number, whole_number
from foretaste.lookahead.solve import cholesky, leave_one_out, ridge_factor
from foretaste.tangent import Inputs, take_points, to_float64
from foretaste.tangent.infinite import Dense, Relu, Serial, infinite_ntk

GAMMAS = (0.0, 1.0, 10.0, 1e2, 1e3, 1e4)  # steps of 100 cost 1.8 points on BANKING77 (docs/pool.md)
RIDGE_SHARES = (1e-3, 1e-2, 1e-1, 1.0)  # of the mean diagonal of Θ̃_LL
FIRST_GAMMA = 1e2  # while nothing is labelled
FEWEST_POINTS = 12  # in a graph
WIDE_NETWORK = Serial(Dense(1, b_std=0.1**0.5), Relu(), Dense(1, W_std=2**0.5, b_std=0.1**0.5))
PLACED_AT_ONCE = 1024  # points outside G, beside all of G
SYMMETRIC_PARTS = 8  # into which Θ̃_GG is cut
OTHER_UNITS = 10  # times the median deviation of columns: then they are in different units
LEAST_SPREAD = 1e-9  # of the mean variance: a point that the kernel cannot tell from the mean has at least this


@dataclass(frozen=True, eq=False, kw_only=True)
class Graph:
    """How the unlabelled pool enters the kernel, for ``pool=`` of ``ft.linearize`` and ``ft.query``.

    vectors: a function from inputs to rows of numbers (n, D) in which near points are alike, for example a pretrained
        backbone. None (default): the inputs themselves, flattened; they must be one tensor of floats.
    neighbours: of each point in the graph; default 10.
    of: what makes points neighbours: "kernel" (default), their distance in Θ, which is mostly one of directions; or
        "inputs", the plain distance of their rows, for few columns and classes that wind around each other.
    gamma: γ. None (default): by leave-one-out on the labels, 0 included. 0 leaves the pool out.
    most: points in the graph, default 10,000: L and a random sample of U. The others follow by the same formula.

    Example:
        >>> import foretaste as ft
        >>> ft.Graph(neighbours=5).gamma is None
        True
    """

    vectors: Callable[[Any], Tensor] | None = None
    neighbours: int = 10
    of: str = "kernel"
    gamma: float | None = None
    most: int = 10_000

    def __post_init__(self) -> None:
        check_callable("vectors", self.vectors, "(x)")
        whole_number("neighbours", self.neighbours, 1)
        check_known("of", self.of, ("kernel", "inputs"))
        whole_number("most", self.most, FEWEST_POINTS)
        if self.gamma is not None:
            real_number("gamma", self.gamma, 0)

    @property
    def gammas(self) -> list[float]:
        """The γ to compare, 0 first."""
        return sorted({0.0, *(GAMMAS if self.gamma is None else [self.gamma])})

    def rows(self, x: Inputs, chunk: int = 1024) -> Tensor:
        """The points as rows of numbers, (n, D) float64."""
        if self.vectors is None:
            if not isinstance(x, Tensor) or not x.is_floating_point():
                raise ValueError(
                    "the graph of the pool needs points that are one tensor of floats; give "
                    "pool=ft.Graph(vectors=...), a function from inputs to rows of numbers, or pool=None"
                )
            return to_float64(x.detach().flatten(1))
        n = len(x) if isinstance(x, Tensor) else len(next(iter(x.values())))
        found = []
        with torch.no_grad():
            for start in range(0, n, chunk):
                part = self.vectors(take_points(x, slice(start, min(start + chunk, n))))
                if not isinstance(part, Tensor) or part.dim() != 2 or len(part) != min(chunk, n - start):
                    shape = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
                    raise ValueError(f"vectors= returned {shape}; expected a tensor (n, D), one row for each point")
                found.append(to_float64(part.detach()))
        rows = torch.cat(found)
        if not torch.isfinite(rows).all():
            raise ValueError("vectors= returned NaN or infinite numbers")
        return rows


def read_pool(pool: Any, name: str = "pool") -> Graph | None:
    """``pool=`` as it is given: None, "auto" or a graph."""
    if isinstance(pool, str) and pool == "auto":
        return Graph()
    if pool is None or isinstance(pool, Graph):
        return pool
    raise ValueError(f'{name} is {pool!r:.40}; expected None, "auto" or ft.Graph(...)')


# --- Θ: the tangent kernel of a wide ReLU network before training, on rows of one length, centred over G ---


@dataclass(frozen=True, eq=False)
class Placed:
    """Points as the kernel takes them: rows of length √D, the mean of Θ(x, G), and 1/√ of their variance.

    inside: where they are in G, if they are.
    """

    x_nD: Tensor
    mean_n: Tensor
    scale_n: Tensor
    inside: range | None = None

    def __getitem__(self, at: slice) -> "Placed":
        inside = None if self.inside is None else self.inside[at]
        return Placed(self.x_nD[at], self.mean_n[at], self.scale_n[at], inside)

    def __len__(self) -> int:
        return len(self.mean_n)

    def take(self, rows_n: Tensor) -> "Placed":
        """Some of the points, in any order."""
        return Placed(self.x_nD[rows_n], self.mean_n[rows_n], self.scale_n[rows_n])

    def join(self, other: "Placed") -> "Placed":
        """These points, and others after them."""
        x_nD, mean_n, scale_n = (
            torch.cat(both)
            for both in ((self.x_nD, other.x_nD), (self.mean_n, other.mean_n), (self.scale_n, other.scale_n))
        )
        return Placed(x_nD, mean_n, scale_n)


class PoolKernel:
    """Θ and the Laplacian of the points G, from which Θ̃ of any points follows for every γ.

    It depends on the points alone, and on no label.
    """

    def __init__(self, x_GD: Tensor, neighbours: int = 10, of: str = "kernel") -> None:
        self.centre_D, self.unit_D = x_GD.mean(0), own_units(x_GD)
        self.length = float(((x_GD - self.centre_D) / self.unit_D).square().sum(1).mean().sqrt())
        u_GD = self._unit(x_GD)
        theta_GG = infinite_ntk(WIDE_NETWORK, u_GD, parametrisation="ntk")
        self.own = float(theta_GG.diagonal().mean())  # Θ(x, x), the same for all rows of one length
        mean_G = theta_GG.mean(1)
        self.mean = float(mean_G.mean())
        self.least = LEAST_SPREAD * self.own
        self.G = Placed(u_GD, mean_G, self._scale(mean_G), range(len(u_GD)))
        self.theta_GG = self._correlate(theta_GG, self.G, self.G)
        near_GG = self.theta_GG
        if of == "inputs":
            row_GD = (x_GD - self.centre_D) / self.unit_D
            near_GG = 1 - torch.cdist(row_GD, row_GD).square() / 2
        self.laplacian = laplacian(near_GG, neighbours)

    def _unit(self, x_nD: Tensor) -> Tensor:
        """Rows of one length, after the typical length was added as one more column.

        Without it a cluster in the middle would be scattered in all directions: iris, 20 labels, 79 % against 97 %.
        """
        u_nD = torch.nn.functional.pad((x_nD - self.centre_D) / self.unit_D, (0, 1), value=self.length)
        return u_nD * (math.sqrt(u_nD.shape[1]) / u_nD.norm(dim=1, keepdim=True).clamp_min(1e-12))

    def _scale(self, mean_n: Tensor) -> Tensor:
        return (self.own - 2 * mean_n + self.mean).clamp_min(self.least).rsqrt()

    def _correlate(self, theta_nm: Tensor, a: Placed, b: Placed) -> Tensor:
        """(Θ_ij − m_i − m_j + m) / √(v_i v_j), in place."""
        theta_nm.sub_(a.mean_n[:, None]).sub_(b.mean_n).add_(self.mean)
        return theta_nm.mul_(a.scale_n[:, None]).mul_(b.scale_n)

    def place(self, x_nD: Tensor) -> Placed:
        """Points that need not be in G."""
        u_nD, G_GD = self._unit(x_nD), self.G.x_nD
        parts = u_nD.split(PLACED_AT_ONCE)
        mean_n = torch.cat([infinite_ntk(WIDE_NETWORK, u, G_GD, parametrisation="ntk").mean(1) for u in parts])
        return Placed(u_nD, mean_n, self._scale(mean_n))

    def add_up(self, x_nD: Tensor, w_GC: Tensor) -> Tensor:
        """Θ(x, G) w, (n, C), of points that need not be in G."""
        found = []
        for u_nD in self._unit(x_nD).split(PLACED_AT_ONCE):
            theta_nG = infinite_ntk(WIDE_NETWORK, u_nD, self.G.x_nD, parametrisation="ntk")
            mean_n = theta_nG.mean(1)
            found.append(self._correlate(theta_nG, Placed(u_nD, mean_n, self._scale(mean_n)), self.G) @ w_GC)
        return torch.cat(found)

    def theta(self, a: Placed, b: Placed) -> Tensor:
        """Θ between two sets of points, (n, m), with 1 on the diagonal. Not to be written to."""
        if a.inside is not None and b.inside is not None:
            return self.theta_GG[a.inside.start : a.inside.stop, b.inside.start : b.inside.stop]
        return self._correlate(infinite_ntk(WIDE_NETWORK, a.x_nD, b.x_nD, parametrisation="ntk"), a, b)

    @cached_property
    def smoothed(self) -> Tensor:
        """𝓛Θ_GG𝓛."""
        half_GG = torch.sparse.mm(self.laplacian, self.theta_GG)
        return torch.sparse.mm(self.laplacian, half_GG.T.contiguous())

    def forget(self) -> None:
        """Free what only ``factor`` needs; it is made again where it is asked for."""
        vars(self).pop("smoothed", None)

    def factor(self, gamma: float) -> Tensor:
        """R with RRᵀ = I + γ𝓛Θ_GG𝓛: then (I + MΘ)⁻¹M = γ𝓛(RRᵀ)⁻¹𝓛, which is symmetric."""
        A_GG = gamma * self.smoothed
        A_GG.diagonal().add_(1)
        return cholesky(A_GG, 1.0, "G")

    def half(self, factor: Tensor, gamma: float, theta_Gn: Tensor) -> Tensor:
        """H_n = √γ R⁻¹𝓛Θ_Gn, (G, n): Θ̃_nm = Θ_nm − H_nᵀH_m."""
        bent_Gn = torch.sparse.mm(self.laplacian, theta_Gn.contiguous()).mul_(math.sqrt(gamma))
        return torch.linalg.solve_triangular(factor, bent_Gn, upper=False)

    def bent(self, gamma: float, factor: Tensor) -> Tensor:
        """Θ̃_GG = Θ_GG − HᵀH. It takes the place of H, from the last columns on: no second matrix is needed."""
        theta_GG, G = self.theta_GG, len(self.theta_GG)
        bent_GG, step = torch.empty_like(theta_GG), max(1, -(-G // SYMMETRIC_PARTS))
        parts = [slice(start, min(start + step, G)) for start in range(0, G, step)]
        for at in parts:
            bent_GG[:, at] = self.half(factor, gamma, theta_GG[:, at])
        for at in reversed(parts):  # it is symmetric: half of the product is enough
            to = slice(at.stop)
            bent_GG[to, at] = torch.addmm(theta_GG[to, at], bent_GG[:, to].T, bent_GG[:, at], alpha=-1)
        for at in parts:
            bent_GG[at.stop :, at] = bent_GG[at, at.stop :].T
        return bent_GG

    def bend(self, gamma: float, a: Placed, b: Placed, bent_Gb: Tensor) -> Tensor:
        """Θ̃_ab = Θ_ab − γΘ_aG 𝓛² Θ̃_Gb, for (I + MΘ)⁻¹M Θ_Gb = MΘ̃_Gb: with Θ̃_Gb at hand no factor is needed.

        For b in G. It multiplies errors of Θ̃_Gb by γ, so that its own results must not be put in: elsewhere ``half``.
        """
        theta_ab = self.theta(a, b)
        if not gamma:
            return theta_ab
        rough_Ga = torch.sparse.mm(self.laplacian, self.theta(self.G, a).contiguous())
        return torch.addmm(theta_ab, torch.sparse.mm(self.laplacian, rough_Ga).T, bent_Gb, alpha=-gamma)


def own_units(x_GD: Tensor) -> Tensor:
    """(D,): what columns are divided by: 1, or their deviations if one is far above the others.

    Then they are in different units, as in a table of raw numbers (wine, 9 labels: 70 % as they are, 90 % divided).
    Else a column that varies little says little: digits lose 3 points if each pixel is divided by its deviation.
    """
    deviation_D = x_GD.std(0, correction=0)
    varies_D = deviation_D > 1e-6 * x_GD.mean(0).abs()
    if not varies_D.any() or deviation_D.max() <= OTHER_UNITS * deviation_D[varies_D].median():
        return torch.ones_like(deviation_D)
    return torch.where(varies_D, deviation_D, 1.0)


def laplacian(near_GG: Tensor, neighbours: int) -> Tensor:
    """𝓛 = I − D^(−1/2) W D^(−1/2), sparse: of the k nearest neighbours, W_ij = exp(−d_ij²/d_ik²), made symmetric.

    d² = 2 − 2 near_ij, which is the distance in the kernel for near = Θ; d_ik that of i to its k-th neighbour. The
    larger of W_ij and W_ji counts.
    """
    G = len(near_GG)
    k = min(neighbours, G - 1)
    near_Gk, at_Gk = near_GG.topk(k + 1, 1)
    own = at_Gk == torch.arange(G, device=near_GG.device)[:, None]
    own[:, -1] |= ~own.any(1)  # copies of a point may stand before it: then the last one goes
    near_Gk, at_Gk = near_Gk[~own].view(G, k), at_Gk[~own].view(G, k)
    d2_Gk = (2 - 2 * near_Gk).clamp_min(0)
    weight_Gk = torch.exp(-d2_Gk / d2_Gk[:, -1:].clamp_min(1e-12))
    i = torch.arange(G, device=near_GG.device).repeat_interleave(k)
    j, w = at_Gk.flatten(), weight_Gk.flatten()
    # Of an edge that is listed from both ends the larger weight counts.
    key = torch.cat([i * G + j, j * G + i])
    edges, place = key.unique(return_inverse=True)
    weight_E = w.new_zeros(len(edges)).scatter_reduce(0, place, torch.cat([w, w]), "amax")
    i, j = edges // G, edges % G
    degree_G = w.new_zeros(G).index_add(0, i, weight_E)
    values = -weight_E * degree_G[i].rsqrt() * degree_G[j].rsqrt()
    diagonal = torch.arange(G, device=w.device)
    at = torch.stack([torch.cat([i, diagonal]), torch.cat([j, diagonal])])
    values_E = torch.cat([values, torch.ones_like(degree_G)])
    with torch.sparse.check_sparse_tensor_invariants(False):
        return torch.sparse_coo_tensor(at, values_E, (G, G)).coalesce()


# --- the evidence: leave-one-out over γ and λ ---


@dataclass(frozen=True)
class PoolEvidence:
    """What leave-one-out on the labels says of the pool.

    gamma, ridge: the γ and λ chosen; γ = 0: the pool does not help, and is left out.
    error, without: mean squared error of a label that is left out, with this γ and with γ = 0, each with its best λ.
    hits, hits_without: the share of labels that are predicted right when they are left out; None in regression.
    neighbours, points: of the graph.
    """

    gamma: float
    ridge: float
    error: float
    without: float
    hits: float | None
    hits_without: float | None
    neighbours: int
    points: int

    def as_dict(self) -> dict[str, Any]:
        """As ``q.info["pool"]`` has it."""
        return vars(self) | {"used": self.gamma > 0}


def weigh_ridges(LL: Tensor, e_LC: Tensor, classes_L: Tensor | None) -> tuple[float, float, float | None]:
    """The least leave-one-out error of all λ, that λ, and the share of labels that are then predicted right."""
    found: list[tuple[float, float, float | None]] = []
    for share in RIDGE_SHARES:
        ridge = share * float(LL.diagonal().mean())
        alpha_LC, d_L1 = leave_one_out(ridge_factor(LL, ridge), e_LC)
        left_LC = alpha_LC / d_L1
        hits = None
        if classes_L is not None:
            hits = float(((e_LC - left_LC).argmax(1) == classes_L).double().mean())
        found.append((float(left_LC.square().sum(1).mean()), ridge, hits))
    return min(found, key=lambda one: one[0])


def choose_gamma(best: dict[float, tuple[float, float, float | None]], graph: Graph, points: int) -> PoolEvidence:
    """The γ of the least error, or the one that is given. ``best`` has what ``weigh_ridges`` says of each."""
    chosen = min(best, key=lambda gamma: best[gamma][0]) if graph.gamma is None else graph.gamma
    error, ridge, hits = best[chosen]
    without, _, hits_without = best[0.0]
    return PoolEvidence(chosen, ridge, error, without, hits, hits_without, graph.neighbours, points)


def weigh_pool(
    kernel: PoolKernel, at_L: Tensor, e_LC: Tensor, classes_L: Tensor | None, graph: Graph
) -> tuple[PoolEvidence, Tensor | None]:
    """The evidence, and the ``factor`` of the γ chosen, None for 0.

    at_L: positions of the labelled points in G. e_LC: their targets less what is known without a network.
    classes_L: their classes; None in regression.
    """
    theta_GL = kernel.theta_GG[:, at_L]
    best: dict[float, tuple[float, float, float | None]] = {}
    kept: Tensor | None = None  # (G, G): only that of the best γ so far
    for gamma in graph.gammas:
        LL, factor = theta_GL[at_L], None
        if gamma:
            factor = kernel.factor(gamma)
            half_GL = kernel.half(factor, gamma, theta_GL)
            LL = LL - half_GL.T @ half_GL
        best[gamma] = weigh_ridges(LL, e_LC, classes_L)
        evidence = choose_gamma(best, graph, len(kernel.theta_GG)) if graph.gamma in (None, gamma) else None
        if evidence is not None and evidence.gamma == gamma:
            kept = factor
    assert evidence is not None  # the last γ is the one that is given, or one of many
    return evidence, kept
