"""A state with the pool in its kernel: Θ̃ in the place of Θ, and the class prior in the place of the network (graph.py).

Its mean is kernel regression from 1/C (from the labels' mean in regression) and does not use the network's outputs: a
trained network interpolates L, so that nothing would be left to be learned along the graph.
"""

import logging
import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from foretaste.errors import counted
from foretaste.lookahead.dense import DenseState, Posterior
from foretaste.lookahead.graph import (
    FEWEST_POINTS,
    FIRST_GAMMA,
    PLACED_AT_ONCE,
    RIDGE_SHARES,
    Graph,
    Placed,
    PoolEvidence,
    PoolKernel,
    weigh_pool,
)
from foretaste.lookahead.kernel_settings import KernelSettings
from foretaste.lookahead.problem import KernelSource, PriorKernel, Problem, ThetaBlocks
from foretaste.lookahead.solve import ridge_factor
from foretaste.lookahead.targets import LabelRules
from foretaste.losses import sharpened
from foretaste.tangent import Inputs, PrecisionChoice, count_points

log = logging.getLogger("foretaste")


class BentKernels(KernelSource):
    """Θ̃ between L, W and U: Θ − HᵀH, with H = √γ R⁻¹𝓛Θ_G· (``PoolKernel.half``)."""

    precision = PrecisionChoice("float64", "float64")

    def __init__(self, graph: Graph, kernel: PoolKernel, factor: Tensor, gamma: float, sets: dict[str, Placed]) -> None:
        self.graph, self.kernel, self.factor, self.gamma, self.sets = graph, kernel, factor, gamma, sets
        self.plain = partial(unbent, kernel, sets)

    @cached_property
    def halves(self) -> dict[str, Tensor]:
        """H of each set. The mean needs that of L alone."""
        return {"L": self.half_L} | {name: self._half(at) for name, at in self.sets.items() if name != "L"}

    @cached_property
    def half_L(self) -> Tensor:
        return self._half(self.sets["L"] if "L" in self.sets else self.kernel.G[:0])

    def _half(self, at: Placed) -> Tensor:
        return self.kernel.half(self.factor, self.gamma, self.kernel.theta(self.kernel.G, at))

    def factor_L(self, L: int, ridge: float) -> Tensor:
        """The lower factor of Θ̃_LL + λI; L is the first of G."""
        return ridge_factor(self.kernel.theta_GG[:L, :L] - self.half_L.T @ self.half_L, ridge)

    def spread(self, alpha_LC: Tensor) -> Tensor:
        """w_GC with Θ̃_nL α = Θ_nG w for any points n: Θ̃_nL = Θ_nL − Θ_nG √γ𝓛R⁻ᵀH_L, and L is the first of G."""
        back_GC = torch.linalg.solve_triangular(self.factor.T, self.half_L @ alpha_LC, upper=True)
        w_GC = torch.sparse.mm(self.kernel.laplacian, back_GC).mul_(-math.sqrt(self.gamma))
        w_GC[: len(alpha_LC)] += alpha_LC
        return w_GC

    def block(self, rows: str, columns: str, at: slice = slice(None)) -> Tensor:
        """Θ̃ of points ``at`` of one set, and all of another."""
        theta = self.kernel.theta(self.sets[rows][at], self.sets[columns])
        return torch.addmm(theta, self.halves[rows][:, at].T, self.halves[columns], alpha=-1)

    def own(self, name: str) -> Tensor:
        """The diagonal of Θ̃, (n, 1, 1)."""
        return (1 - self.halves[name].square().sum(0))[:, None, None]

    def load(self) -> ThetaBlocks:
        if self.held is not None:
            return self.held
        w = "W" if "W" in self.sets else "U"
        WU, diag_U = self.block(w, "U"), self.own("U")
        empty = "L" not in self.sets
        LL = WU.new_zeros(0, 0) if empty else self.block("L", "L")
        UL = WU.new_zeros(WU.shape[1], 0) if empty else self.block("U", "L")
        if w == "U":
            return ThetaBlocks(LL, UL, UL, WU, diag_U, diag_U)
        WL = WU.new_zeros(WU.shape[0], 0) if empty else self.block("W", "L")
        return ThetaBlocks(LL, WL, UL, WU, diag_U, self.own("W"))

    def row(self, j: int) -> Tensor:
        return self.block("U", "U", slice(j, j + 1))


def unbent(kernel: PoolKernel, sets: Mapping[str, Placed]) -> PriorKernel:
    """Θ between L, W and U before it is bent: who is near whom, by the points alone."""
    U = sets["U"]
    W, L = sets.get("W", U), sets.get("L", U[:0])
    one_U, one_W = (points.scale_n.new_ones(len(points), 1, 1) for points in (U, W))
    none_U = none_W = U.scale_n.new_zeros(0, len(U))
    if W is not U:
        none_W = U.scale_n.new_zeros(0, len(W))
    theta = kernel.theta
    return PriorKernel(theta(L, L), theta(W, L), theta(U, L), one_U, one_W, theta(U, W), none_U, none_W)


@dataclass(eq=False)
class PoolPosterior(Posterior):
    """The base on Θ̃. Its means are known before S is: they cost no Θ̃ of the pool."""

    @cached_property
    def chol(self) -> Tensor:
        """The factor of A = Θ̃_LL + λI."""
        assert self.problem.ridge is not None
        return self._kernels.factor_L(len(self.problem.y_LC), self.problem.ridge)

    @cached_property
    def alpha_LC(self) -> Tensor:
        """A⁻¹(Y − 1/C)."""
        return torch.cholesky_solve(self.problem.y_LC - self.problem.f_LC, self.chol)

    @cached_property
    def weights_GC(self) -> Tensor:
        """w with mean = 1/C + Θ_·G w."""
        return self._kernels.spread(self.alpha_LC)

    @property
    def _kernels(self) -> BentKernels:
        assert isinstance(self.problem.kernels, BentKernels)
        return self.problem.kernels

    def _mean_of(self, name: str, prior_nC: Tensor) -> Tensor:
        kernel, at = self._kernels.kernel, self._kernels.sets[name]
        parts = [at[i : i + PLACED_AT_ONCE] for i in range(0, len(prior_nC), PLACED_AT_ONCE)]
        return prior_nC + torch.cat([kernel.theta(part, kernel.G) @ self.weights_GC for part in parts])

    @cached_property
    def mean_UC(self) -> Tensor:
        return self.problem.f_UC if self.problem.free else self._mean_of("U", self.problem.f_UC)

    @cached_property
    def mean_WC(self) -> Tensor:
        if self.problem.free or self.problem.same:
            return self.mean_UC
        return self._mean_of("W", self.problem.f_WC)

    def mean_at(self, x: Inputs) -> Tensor:
        """The mean after L on any points, (n, C)."""
        p, rows = self.problem, self._kernels.graph.rows(x)
        prior_nC = p.f_UC[:1].expand(len(rows), -1)
        return prior_nC if p.free else prior_nC + self._kernels.kernel.add_up(rows, self.weights_GC)


@dataclass(frozen=True, eq=False, repr=False)
class PoolState(DenseState):
    """A ``DenseState`` on Θ̃. Its ``net`` is the posterior after L: what is trained on L and the pool."""

    @property
    def net(self) -> Tensor:
        return self._posterior.mean_WC

    @property
    def pool_net(self) -> Tensor:
        return self._posterior.mean_UC

    def unbent(self) -> PriorKernel:
        """Θ before it is bent. ``cover`` takes its correlations from it."""
        assert self._problem.kernels.plain is not None
        return self._problem.kernels.plain()

    def mean_at(self, x: Inputs) -> Tensor:
        """The posterior's mean on any points, (n, C), as after L: kept labels do not count."""
        assert isinstance(self._posterior, PoolPosterior)
        return self._posterior.mean_at(x)

    @property
    def scale(self) -> float:
        base, p = self._posterior, self._problem
        if p.free or not isinstance(base, PoolPosterior):
            return super().scale
        return p.scale(base.chol)

    @cached_property
    def residual_L(self) -> float:
        """Mean squared residual of the posterior on L: λA⁻¹(Y − 1/C)."""
        base, p = self._posterior, self._problem
        if isinstance(base, PoolPosterior):
            return float((self.ridge * base.alpha_LC).square().mean())
        return float((self.ridge * torch.cholesky_solve(p.y_LC - p.f_LC, base.solved.chol)).square().mean())


def as_pool_state(state: DenseState, evidence: PoolEvidence, plain: Callable[[], PriorKernel]) -> PoolState:
    """A state that was made on blocks of Θ̃ and the class prior, as what it is. ``plain`` gives Θ before it is bent."""
    kernels = copy(state._problem.kernels)
    kernels.plain = plain
    problem = replace(state._problem, kernels=kernels, pool=evidence, told=True)  # told: a prior need not fit L
    return PoolState(problem, (), Posterior(problem))


def linearise_along(
    graph: Graph,
    labels: LabelRules,
    x_L: Inputs | None,
    y_LC: Tensor,
    x_U: Inputs,
    x_W: Inputs | None,
    at_W: dict[int, int],
    settings: KernelSettings,
) -> tuple[PoolEvidence, PoolState | None]:
    """The evidence, and the state on Θ̃; None where the pool does not help (γ = 0) or is too small for a graph."""
    rows = {name: graph.rows(x) for name, x in (("L", x_L), ("U", x_U), ("W", x_W)) if x is not None}
    L, U = len(y_LC), count_points(x_U)
    if L + U < FEWEST_POINTS:
        log.info("pool: %s, too few for a graph; it is left out", counted(L + U, "point"))
        return PoolEvidence(0.0, 0.0, 0.0, 0.0, None, None, graph.neighbours, L + U), None
    x_GD, inside = rows["U"], slice(L, None)
    if graph.most < L + U:
        generator = torch.Generator().manual_seed(settings.seed)
        sample = torch.randperm(U, generator=generator)[: max(graph.most - L, FEWEST_POINTS)].sort().values
        x_GD = x_GD[sample.to(x_GD.device)]
    if L:
        x_GD = torch.cat([rows["L"], x_GD])
    kernel = PoolKernel(x_GD, graph.neighbours, graph.of)
    prior = labels.prior(y_LC)
    if L:
        classes_L = None if labels.regression else y_LC.argmax(1)
        evidence, factor = weigh_pool(kernel, torch.arange(L, device=x_GD.device), y_LC - prior, classes_L, graph)
    else:
        gamma = FIRST_GAMMA if graph.gamma is None else graph.gamma
        factor = kernel.factor(gamma) if gamma else None
        evidence = PoolEvidence(gamma, RIDGE_SHARES[1], 0.0, 0.0, None, None, graph.neighbours, len(x_GD))
    if factor is None:
        return evidence, None
    sets = {name: kernel.place(x) for name, x in rows.items() if name != "U" or graph.most < L + U}
    if L:
        sets["L"] = kernel.G[:L]
    if "U" not in sets:
        sets["U"] = kernel.G[inside]
    kernels = BentKernels(graph, kernel, factor, evidence.gamma, sets)
    f_UC = prior.expand(U, -1)
    f_WC = f_UC if x_W is None else prior.expand(len(rows["W"]), -1)
    ridge = settings.ridge if isinstance(settings.ridge, float | int) else evidence.ridge
    own = replace(settings, loss="l2", ridge=ridge, pool=None, output="sum", method="dense")
    p = Problem(labels, prior.expand(L, -1), f_WC, f_UC, y_LC, kernels, 1, x_W is None, at_W, own, True, evidence)
    return evidence, PoolState(p, (), PoolPosterior(p))


def soft_labels(
    x_L: Inputs, y_LC: Tensor, x_U: Inputs, graph: Graph | None = None, seed: int = 0
) -> tuple[PoolEvidence, Tensor | None]:
    """The evidence, and the posterior's probabilities of the pool, (U, C): what a network can be trained on beside L.

    y_LC are targets of classes, 0/1 or probabilities. None where the pool does not help.
    """
    if graph is not None and not isinstance(graph, Graph):
        raise ValueError(f"graph is {graph!r:.40}; expected an ft.Graph, or None")
    rules = LabelRules(y_LC.shape[1], False, "l2", y_LC.device, y_LC.device)
    settings = KernelSettings(seed=seed)
    evidence, state = linearise_along(graph or Graph(), rules, x_L, y_LC.double(), x_U, None, {}, settings)
    return evidence, None if state is None else sharpened(state.pool_mean)
