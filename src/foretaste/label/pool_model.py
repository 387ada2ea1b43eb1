"""A learner's model with the pool in its kernel: Θ̃ in the place of Θ, the class prior in the place of the network.

lookahead/graph.py has the derivation. Θ, the graph and Θ̃ of each γ depend on the items alone: they are made once in the
life of a session. Which γ and λ are used follows by leave-one-out from the labels of the last training that still hold,
as λ of a ``LiveModel`` does: a label that was changed or taken back leaves no trace. With γ = 0 the network's own model
answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.label.book import Label, LabelBook, LabelKind
from foretaste.label.live_model import LiveModel, choose_items, freeze_for
from foretaste.label.pool import Pool
from foretaste.lookahead import (
    FEWEST_POINTS,
    DenseState,
    Graph,
    KernelSettings,
    Placed,
    PoolEvidence,
    PoolKernel,
    as_pool_state,
    cholesky,
    choose_gamma,
    read_pool,
    unbent,
    weigh_ridges,
)
from foretaste.losses import sharpened
from foretaste.tangent import Inputs

HALVES_AT_ONCE = 256  # columns of H
NOT_WEIGHED = PoolEvidence(0.0, 0.0, 0.0, 0.0, None, None, 0, 0)


def resolve_graph(given: Any, pool: Pool, own: bool) -> Graph | None:
    """``graph=`` of a learner; None where the pool is left out.

    "auto" is for the learner's own network. One that was given may know more than the labels here say, and the pool's
    model starts from the labels alone.
    """
    graph = read_pool(given, "graph")
    if graph is None or graph.gamma == 0 or len(pool) < FEWEST_POINTS:
        return None
    if graph.vectors is None:
        x = pool.take([0], torch.device("cpu"), torch.float32)
        plain = isinstance(x, Tensor) and x.is_floating_point()
        if isinstance(given, str):
            return graph if plain and own else None
        if not plain:
            raise ValueError(
                "graph needs items that are one tensor of numbers; give graph=ft.Graph(vectors=...), a function from "
                "items to rows of numbers, or graph=None"
            )
    return graph


def graph_as_json(graph: Graph) -> dict[str, Any]:
    """As a file holds it; a function is not saved."""
    return vars(graph) | {"vectors": graph.vectors is not None}


def graph_from_json(found: Mapping[str, Any] | None, given: Graph | None) -> Graph | None:
    """The graph of a saved learner; None for one of an earlier version, which had none."""
    if found is None or given is not None:
        return None if found is None else given
    if found["vectors"]:
        raise ValueError("the learner had a graph with vectors=, a function, which is not saved; give graph= again")
    return Graph(**{**found, "vectors": None})


@dataclass(frozen=True, eq=False)
class ItemGraph:
    """The kernel of the items G, and its factor for each γ > 0. They depend on the items alone.

    Θ̃_GG is made for the γ that is used, and kept until another one is.
    """

    graph: Graph
    at_G: list[int]
    kernel: PoolKernel
    factors: dict[float, Tensor]
    _bent: dict[float, Tensor] = field(default_factory=dict)

    def theta(self, gamma: float) -> Tensor:
        """Θ̃_GG."""
        if not gamma:
            return self.kernel.theta_GG
        if gamma not in self._bent:
            bent_GG = self.kernel.bent(gamma, self.factors[gamma])
            self._bent.clear()
            self._bent[gamma] = bent_GG
        return self._bent[gamma]

    def halves(self, gamma: float, placed: Placed) -> Tensor:
        """H of any items (``PoolKernel.half``)."""
        return self.kernel.half(self.factors[gamma], gamma, self.kernel.theta(self.kernel.G, placed))

    def among(self, gamma: float, placed: Placed, rows_L: Tensor) -> Tensor:
        """Θ̃ between rows of ``placed``, which are of G or after it. H is not kept: there are five of G × L."""
        points, G = placed.take(rows_L), len(self.at_G)
        theta_LL = self.kernel.theta(points, points)
        if not gamma:
            return theta_LL
        half_GL = theta_LL.new_empty(G, len(points))
        for start in range(0, len(points), HALVES_AT_ONCE):
            at = slice(start, start + HALVES_AT_ONCE)
            inside = bool((rows_L[at] < G).all())
            theta_Gn = self.kernel.theta_GG[:, rows_L[at]] if inside else self.kernel.theta(self.kernel.G, points[at])
            half_GL[:, at] = self.kernel.half(self.factors[gamma], gamma, theta_Gn)
        return torch.addmm(theta_LL, half_GL.T, half_GL, alpha=-1)

    def grow(self, gamma: float, placed: Placed) -> Tensor:
        """Θ̃ between G and other items after them."""
        bent_GG, new = self.theta(gamma), placed[len(self.at_G) :]
        if not len(new):
            return bent_GG
        cross, own = self.kernel.bend(gamma, new, self.kernel.G, bent_GG), self.kernel.theta(new, new)
        if gamma:
            half_Gn = self.halves(gamma, new)
            own = own - half_Gn.T @ half_Gn
        return torch.cat([torch.cat([bent_GG, cross.T], 1), torch.cat([cross, own], 1)])

    def bent_columns(self, gamma: float, a: Placed, placed: Placed, rows_L: Tensor) -> Tensor:
        """Θ̃ between any points and rows of ``placed``, which are of G or after it."""
        G = len(self.at_G)
        theta_aL, inside = a.x_nD.new_empty(len(a), len(rows_L)), rows_L < G
        at_G, others = rows_L[inside], placed.take(rows_L[~inside])
        theta_aL[:, inside] = self.kernel.bend(gamma, a, self.kernel.G.take(at_G), self.theta(gamma)[:, at_G])
        if len(others):
            theta_aL[:, ~inside] = self.kernel.theta(a, others)
            if gamma:
                theta_aL[:, ~inside] -= self.halves(gamma, a).T @ self.halves(gamma, others)
        return theta_aL


def make_item_graph(
    graph: Graph, pool: Pool, window: int, seed: int, like: Tensor, look: Callable[[], object]
) -> ItemGraph:
    """The graph of the items, or of a random sample of ``window``. ``look`` is called between the steps."""
    at_G = choose_items(pool, (), min(window, graph.most), seed)
    kernel = PoolKernel(graph.rows(pool.take(at_G, like.device, like.dtype)), graph.neighbours, graph.of)
    factors = {}
    for gamma in filter(None, graph.gammas):
        look()
        factors[gamma] = kernel.factor(gamma)
    kernel.forget()
    return ItemGraph(graph, at_G, kernel, factors)


@dataclass(eq=False)
class PoolModel(LiveModel):
    """A ``LiveModel`` on Θ̃, whose outputs before any label are the class prior (the labels' mean in regression).

    Attributes:
        items: Θ̃ of each γ.
        evidence: what leave-one-out says of the labels of the training that still hold.
        learned_MC: the mean after those labels.
    """

    items: ItemGraph = field(kw_only=True)
    evidence: PoolEvidence = field(default=NOT_WEIGHED, kw_only=True)
    learned_MC: Tensor = field(kw_only=True)

    def helps(self, book: LabelBook) -> bool:
        """Whether γ > 0, so that this model answers."""
        self._trained_base(book)
        return self.evidence.gamma > 0

    @cached_property
    def placed(self) -> Placed:
        """The items of M as the kernel takes them."""
        return self._place(self.at_M)

    def _place(self, at_M: Sequence[int]) -> Placed:
        kernel, G = self.items.kernel, len(self.items.at_G)
        if len(at_M) == G:
            return kernel.G
        return kernel.G.join(kernel.place(self.items.graph.rows(self.read(at_M[G:]))))

    @property
    def after_training(self) -> Tensor:
        return self.learned_MC

    def probabilities(self, f_nC: Tensor) -> Tensor:
        return f_nC.clamp(0, 1) if self.kind.multi else sharpened(f_nC)

    def _fit_kernel(self, fixed: Mapping[int, Label]) -> None:
        """γ, λ and the prior follow from the labels, in the order of the pool. Without labels γ is 0."""
        graph, at = self.items.graph, sorted(fixed)
        evidence, prior_C = (
            NOT_WEIGHED,
            self.f_MC.new_full((self.kind.C,), 0 if self.kind.regression else 1 / self.kind.C),
        )
        rows_L = torch.tensor([self.row[p] for p in at], dtype=torch.int64, device=self.f_MC.device)
        if at:
            y_LC = self._targets([fixed[p] for p in at])
            prior_C = prior_C if self.kind.single else y_LC.mean(0)
            classes_L = y_LC.argmax(1) if self.kind.single else None
            weighed = {
                g: weigh_ridges(self.items.among(g, self.placed, rows_L), y_LC - prior_C, classes_L)
                for g in graph.gammas
            }
            evidence = choose_gamma(weighed, graph, len(self.items.at_G))
        theta_MM = self.theta_MM
        if evidence.gamma != self.evidence.gamma:
            theta_MM = self.items.grow(evidence.gamma, self.placed)
        f_MC = learned_MC = prior_C.expand(len(self.at_M), -1)
        if at:
            ridge = self._ridge_of(evidence)
            A_LL = theta_MM[rows_L][:, rows_L]
            A_LL.diagonal().add_(ridge)
            learned_MC = f_MC + theta_MM[:, rows_L] @ torch.cholesky_solve(y_LC - prior_C, cholesky(A_LL, ridge))
        self.__dict__.pop("watched", None)
        self.__dict__.update(  # all at once, for a Ctrl-C
            theta_MM=theta_MM, f_MC=f_MC, learned_MC=learned_MC, evidence=evidence,
            _shown=None, _base=None, _scaled=None,
        )  # fmt: skip

    def _ridge_of(self, evidence: PoolEvidence) -> float:
        given = self.settings.given_ridge
        return evidence.ridge if given is None else given

    def _resolve_ridge(self, fixed: Mapping[int, Label]) -> float:
        return self._ridge_of(self.evidence)

    def _condition_base(self, base: Mapping[int, Label], ridge: float | str | None) -> DenseState:
        sets = {"U": self.placed}
        for name, rows in (("L", [self.row[p] for p in base]), ("W", self.watched)):
            if rows is not None:
                sets[name] = self.placed.take(torch.as_tensor(rows, dtype=torch.int64, device=self.f_MC.device))
        plain = partial(unbent, self.items.kernel, sets)
        return as_pool_state(super()._condition_base(base, ridge), self.evidence, plain)

    def outputs_of(self, x: Inputs, book: LabelBook) -> Tensor:
        """(n, C): the posterior's mean on inputs that are not in M."""
        ridge = self.ridge(book)  # first: it may change γ
        placed = self.items.kernel.place(self.items.graph.rows(x))
        at = [p for p in book.labels if p in self.row]
        f_nC = self.f_MC[:1].expand(len(placed), -1)
        if not at:
            return f_nC.clone()
        rows_L = torch.tensor([self.row[p] for p in at], device=f_nC.device)
        theta_nL = self.items.bent_columns(self.evidence.gamma, placed, self.placed, rows_L)
        return f_nC + theta_nL @ self._weights(book, at, ridge)

    def admit(self, positions: Sequence[int]) -> None:
        """Take items of the pool into M that are not in it."""
        new = [p for p in positions if p not in self.row]
        if not new:
            return
        at_M = [*self.at_M, *new]
        placed = self._place(at_M)
        theta_MM = self.items.grow(self.evidence.gamma, placed)
        f_MC = self.f_MC[:1].expand(len(at_M), -1)
        for name in ("row", "watched", "ranks_M"):
            self.__dict__.pop(name, None)
        self.__dict__.update(  # all at once, for a Ctrl-C
            theta_MM=theta_MM, f_MC=f_MC, learned_MC=f_MC, at_M=at_M, placed=placed,
            _shown=None, _base=None, _scaled=None,
        )  # fmt: skip

    def soft_labels(self, book: LabelBook) -> dict[int, Tensor]:
        """Position → probabilities of the classes after the training's labels, of items that are open in the book.

        From the mean alone: S is made when the network is trained, so that two models do not stand beside each other
        all the while.
        """
        p_MC = self.probabilities(self.learned_MC)
        left_out = {*book.labels, *book.ignored}
        return {p: p_C for p, p_C in zip(self.at_M, p_MC) if p not in left_out}


def bend_pool(
    items: ItemGraph,
    net: nn.Module,
    pool: Pool,
    kind: LabelKind,
    settings: KernelSettings,
    trained: Mapping[int, Label],
) -> PoolModel:
    """The model on these items, after labels that the network was trained on or is about to be."""
    parameter = next(net.parameters())
    frozen, _ = freeze_for(net, kind, settings, pool.take(items.at_G[:1], parameter.device, parameter.dtype))
    settings = replace(settings, loss="l2", theta_scale=1.0)
    theta_MM = items.theta(0.0)
    f_MC = theta_MM.new_zeros(len(items.at_G), kind.C)
    model = PoolModel(
        net, frozen, pool, kind, settings, dict(trained), list(items.at_G), theta_MM, f_MC, 1.0, 1.0,
        items=items, learned_MC=f_MC,
    )  # fmt: skip
    model.admit(list(trained))
    model.helps(LabelBook(dict(trained)))
    return model
