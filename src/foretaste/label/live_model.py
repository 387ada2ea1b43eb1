"""The network, linearised on the pool, which follows every label without training.

Θ of the pool is computed once for a network. The ``State`` after any set of labels follows from it: labels that the
network was trained on are its L, and labels given since are kept by ``condition``. Nothing depends on the order in
which labels came, nor on labels that were taken back: a relabelled learner equals a new one.

    L    labels the network was trained on, and which have not changed since; λ and the scale of Θ follow from them
    K    labels given since, and items that are out, whose label is unknown
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.acquire import chance_among_classes, row_products
from foretaste.label.book import Label, LabelBook, LabelKind, Prediction
from foretaste.label.pool import Pool
from foretaste.lookahead import (
    BinaryOutputs,
    DenseState,
    KernelSettings,
    OtherCandidates,
    PoolState,
    Posterior,
    State,
    binary_params,
    cholesky,
    from_kernels,
    leave_one_out,
    ridge_factor,
    watched_rows,
)
from foretaste.losses import LOSSES, sharpened
from foretaste.tangent import (
    DEFAULT_RIDGE,
    FrozenNetwork,
    GramJob,
    Inputs,
    check_inputs,
    check_output,
    freeze,
    gram,
    outputs,
    probe_outputs,
)

MOST_UNFITTED = 0.1  # of the labels' own mean square: beyond it, a strategy's ridge of the misfit is not used
PRIOR_LABELS = 5  # weight of the scale that the trained labels give, in labels given since
LEAST_LEFT, MOST_LEFT = 0.005, 0.3  # of a label's probability, after a training
# Of s² S_jj: s² is measured on items that were asked for, which are harder than the others (docs/learner.md, When to
# stop).
ORDINARY_SHARE = 0.3
MOST_KEPT = 256  # squared loss: with more labels since the training, they join L in one solve
SPARE_ROWS = 64  # of S, of items that were out and may soon be out again


@dataclass(frozen=True, eq=False)
class ShownLabels:
    """A state, and the labels that it has seen: those of its L, and those that it keeps, by row.

    ``fixed`` are the labels that λ follows from. One object, replaced as a whole: a Ctrl-C then never leaves a state
    beside labels that it has not seen.
    """

    state: State
    fixed: dict[int, Label]
    base: dict[int, Label]
    kept: dict[int, Label | None]


@dataclass(eq=False)
class TrainedBase:
    """The labels of the training that still hold (L), and what they leave of the labels given since (K).

    ``state`` has them as its L, on all of M. It is let go when other labels have joined them in one solve: what it
    holds grows by a row of M for each label. λ, s² and S_KK need L and K alone.
    """

    fixed: dict[int, Label]
    ridge: float
    state: DenseState | None
    at_L: list[int]
    _between: tuple[list[int], Tensor, Tensor] | None = None  # K, H_LK = chol⁻¹ Θ_LK, and S_KK = Θ_KK − HᵀH

    @cached_property
    def solved(self) -> tuple[float, Tensor, Tensor]:
        """s², the factor of A, and chol⁻¹(Y − f)."""
        assert self.state is not None
        p, s = self.state.linearisation.problem, self.state.linearisation.solved
        return self.state.scale, s.chol, torch.linalg.solve_triangular(s.chol, p.y_LC - p.f_LC, upper=False)

    def let_go(self) -> None:
        """Keep what L and K need, and nothing of M."""
        _ = self.solved
        self.state = None

    def surprises(self, rows_K: list[int], y_KC: Tensor, theta_MM: Tensor, f_MC: Tensor) -> Tensor:
        """(k, C): squared residuals of labels since, in units of their variance. Squared loss.

        Each is predicted from L and the others of them. Labels that come one by one cost a row each.
        """
        _, chol, half_R = self.solved
        known, half_LK, S_KK = self._between or ([], theta_MM.new_empty(len(chol), 0), theta_MM.new_empty(0, 0))
        n = next((i for i, (a, b) in enumerate(zip(known, rows_K)) if a != b), min(len(known), len(rows_K)))
        half_LK, S_KK = half_LK[:, :n], S_KK[:n, :n]
        if new := rows_K[n:]:
            half_Ln = torch.linalg.solve_triangular(chol, theta_MM[new][:, self.at_L].T, upper=False)
            half_LK = torch.cat([half_LK, half_Ln], 1)
            S_nK = theta_MM[new][:, rows_K].addmm_(half_Ln.T, half_LK, alpha=-1)
            S_KK = torch.cat([torch.cat([S_KK, S_nK[:, :n].T], 1), S_nK])
        self._between = list(rows_K), half_LK, S_KK
        alpha, d = leave_one_out(ridge_factor(S_KK, self.ridge, "K"), y_KC - f_MC[rows_K] - half_LK.T @ half_R)
        return alpha.square() / d


@dataclass(eq=False)
class LiveModel:
    """A trained network on M items of the pool, and the state after the labels it was last shown.

    Attributes:
        net: the network as the user knows it, in eval mode.
        at_M: the positions of the M items; all of the pool where it fits in the window.
        trained: the labels that the network was trained on.
        theta_MM, f_MC: Θ between the items, times ``theta_scale``, and the network's outputs on them.
        size: the mean diagonal of Θ at the training, before it is scaled.
        scores_M: what the strategy thought of the items when it was last asked.
    """

    net: nn.Module
    frozen: FrozenNetwork
    pool: Pool
    kind: LabelKind
    settings: KernelSettings
    trained: Mapping[int, Label]
    at_M: list[int]
    theta_MM: Tensor
    f_MC: Tensor
    size: float
    theta_scale: float
    scores_M: Tensor | None = None  # of the last question
    _shown: ShownLabels | None = None
    _scaled: tuple[dict[int, Label], float] | None = None
    _base: TrainedBase | None = None

    @cached_property
    def row(self) -> dict[int, int]:
        """Position in the pool -> row of M."""
        return {p: m for m, p in enumerate(self.at_M)}

    @cached_property
    def ranks_N(self) -> Tensor:
        """The order in which items of equal scores are taken, by position and seed: all of the pool."""
        return torch.randperm(len(self.pool), generator=torch.Generator().manual_seed(self.settings.seed))

    @cached_property
    def ranks_M(self) -> Tensor:
        """That order of the M items."""
        return self.ranks_N[torch.tensor(self.at_M)]

    def open_rows(self, book: LabelBook) -> Tensor:
        """The rows that may be asked for: neither labelled, nor out, nor ignored. On the CPU."""
        open_M = torch.ones(len(self.at_M), dtype=torch.bool)
        open_M[[self.row[p] for p in (*book.labels, *book.pending, *book.ignored) if p in self.row]] = False
        return open_M.nonzero()[:, 0]

    def read(self, positions: Sequence[int]) -> Inputs:
        """Items of the pool, as the network takes them."""
        return self.pool.take(positions, self.frozen.device, self.frozen.dtype)

    # The state after the labels.

    def follow(self, book: LabelBook) -> State:
        """The state after exactly these labels. Costs what has changed since the last call."""
        trained, shown = self._trained_base(book), self._shown
        fixed = trained.fixed
        # Under L2, L and K come to the same: labels move to L when there are many.
        most = MOST_KEPT if self.settings.quadratic else len(book.labels)
        if (
            shown is None
            or shown.fixed != fixed
            or any(book.labels.get(p) != y for p, y in shown.base.items())
            or len(book.labels) - len(shown.base) > most
        ):
            self._shown = shown = None  # freed before the next is made
            base = fixed
            if len(book.labels) - len(fixed) > most:
                trained.let_go()
                base = dict(book.labels)
            elif trained.state is None:
                trained.state = self._condition_base(fixed, trained.ridge)
            made = self._condition_base(base, trained.ridge) if trained.state is None else trained.state
            shown = ShownLabels(made, fixed, base, {})
        wanted: dict[int, Label | None] = {self.row[p]: y for p, y in book.labels.items() if p not in shown.base}
        wanted |= {self.row[p]: None for p in book.pending if p in self.row}
        state, kept = shown.state, dict(shown.kept)
        for j in [j for j in kept if j not in wanted]:
            state = state.release(j)
            del kept[j]
        for j, y in wanted.items():
            if j not in kept or kept[j] != y:
                state = state.condition(j, self.kept_label(y))
                kept[j] = y
        if _labels_of(kept) == _labels_of(shown.kept):
            carry_means(shown.state, state)
        elif self.watched is not None:  # the watched items are in the pool: one solve gives both means
            vars(state)["mean"] = state.pool_mean[self.watched]
        self._shown = ShownLabels(state, shown.fixed, shown.base, kept)
        assert isinstance(state, DenseState)
        state.linearisation.forget_rows(kept, SPARE_ROWS)
        return state

    def kept_label(self, y: Label | None) -> Label | Tensor | None:
        """A label as a state keeps it: a set of classes, or a class with a doubt, is a (C,) target."""
        soft = y is not None and (self.kind.multi or self.kind.doubt(y) > 0)
        return self._targets([y])[0] if soft and y is not None else y

    def ridge(self, book: LabelBook) -> float:
        """λ: as given, or resolved on the labels of the training that still hold."""
        return self._trained_base(book).ridge

    def _trained_base(self, book: LabelBook) -> TrainedBase:
        """The labels of the training that still hold; made once.

        λ and the scale of Θ follow from these labels alone: a label that was changed or taken back leaves no trace.
        """
        fixed = {p: y for p, y in self.trained.items() if book.labels.get(p) == y}
        if self._base is None or self._base.fixed != fixed:
            self._fit_kernel(fixed)
            ridge = self._resolve_ridge(fixed)
            self._base = TrainedBase(fixed, ridge, self._condition_base(fixed, ridge), [self.row[p] for p in fixed])
        return self._base

    def _fit_kernel(self, fixed: Mapping[int, Label]) -> None:
        """What of the kernel follows from these labels: under cross-entropy, its scale."""
        if self.settings.theta_scale is not None or self.settings.quadratic:
            return
        scale = fitted_scale(self.f_MC, self.size, {self.row[p]: y for p, y in fixed.items()})
        if scale != self.theta_scale:  # all at once, for a Ctrl-C
            theta_MM = self.theta_MM * (scale / self.theta_scale)
            self.__dict__.update(theta_MM=theta_MM, theta_scale=scale, _shown=None, _base=None, _scaled=None)

    def _resolve_ridge(self, fixed: Mapping[int, Label]) -> float:
        given = self.settings.ridge
        if self.settings.misfit and fixed:
            # A λ of L's misfit also holds back labels given since. Digits, 25 steps a training: 1.4 to 2 points of
            # accuracy less than with 1e-6; 0.2 more where the network fits its labels (benchmarks/learner_path.py).
            # In the order of the pool: λ is a function of the labels, not of their order.
            state = self._condition_base(dict(sorted(fixed.items())), given)
            if state.residual_L <= MOST_UNFITTED * (self.kind.C - 1) / self.kind.C**2:
                return state.ridge
        return DEFAULT_RIDGE * self.size * self.theta_scale if given is None or isinstance(given, str) else given

    def _condition_base(self, base: Mapping[int, Label], ridge: float | str | None) -> DenseState:
        """The state with these labels as its L, and none kept."""
        at, W = [self.row[p] for p in base], self.watched
        theta, f = self.theta_MM, self.f_MC
        theta_LM = theta[at]  # symmetric, and rows lie together in memory
        y_L = None if not at else self._targets(base.values())
        diag_M = None if W is None else theta.diagonal().clone()  # Θ may be written to: ``replace_items``
        state = from_kernels(
            theta_LM[:, at], None if W is None else theta_LM[:, W].T, theta_LM.T, theta if W is None else theta[W],
            diag_M, f[at], None if W is None else f[W], f, y_L,
            theta_UU=None if W is None else theta, diag_W=None if diag_M is None else diag_M[W], at_L=at,
            ridge=ridge, loss=self.settings.loss,
        )  # fmt: skip
        assert isinstance(state, DenseState)
        return state

    def _targets(self, labels: Iterable[Label]) -> Tensor:
        """(n, C) float64 targets."""
        return self.kind.targets(labels).to(self.f_MC.device)

    @cached_property
    def watched(self) -> Tensor | None:
        """The rows that scores sum over; None for all of them.

        "contested": those whose two largest outputs are nearest; else random ones. By the network's outputs alone, so
        that labels and their order do not matter.
        """
        most = self.settings.watch
        if not isinstance(most, int) or len(self.at_M) <= most:
            return None
        contested = self.settings.watch_by == "contested" and self.kind.single
        at = watched_rows(most, len(self.at_M), self.settings.seed, self.after_training if contested else None)
        return at.to(self.f_MC.device)

    @property
    def after_training(self) -> Tensor:
        """(M, C): what the model said before any label since."""
        return self.f_MC

    def probabilities(self, f_nC: Tensor) -> Tensor:
        """(n, C): of classes, from its outputs. Where classes do not exclude each other, of each for itself."""
        return f_nC.clamp(0, 1) if self.kind.multi else LOSSES[self.settings.loss].class_probabilities(f_nC)

    # s², the scale of the posterior's variance.

    def scale(self, book: LabelBook) -> float:
        """s² by leave-one-out over the labels given since the training, which the network has not seen.

        The scale of the state after the training counts as ``PRIOR_LABELS`` labels more. 1 under cross-entropy.
        """
        if not self.settings.quadratic:
            return 1.0
        if self._scaled is None or self._scaled[0] != book.labels:
            base = self._trained_base(book)
            new = {self.row[p]: y for p, y in book.labels.items() if p not in base.fixed and p in self.row}
            s2 = base.solved[0] or 1.0  # one label, or equal ones, leave nothing
            if new:
                surprises = base.surprises(list(new), self._targets(new.values()), self.theta_MM, self.f_MC)
                total = float(surprises.mean(1).sum())
                s2 = (PRIOR_LABELS * s2 + total) / (PRIOR_LABELS + len(new))
            self._scaled = dict(book.labels), s2
        return self._scaled[1]

    # Outputs of items outside M, and of new inputs.

    def outputs_of(self, x: Inputs, book: LabelBook) -> Tensor:
        """(n, C): the linearised network after the labels, on inputs that are not in M: f(x) + Θ(x, L ∪ K) w."""
        frozen = self.frozen
        f_nC = outputs(frozen, x, name="x")
        ridge = self.ridge(book)  # first: it may scale Θ
        at = [p for p in book.labels if p in self.row]
        if not at:
            return f_nC
        sets = {"x": x, "L": self.read(at)}
        job = GramJob(frozen, sets, [("x", "L")], budget=self.settings.budget, classes=self.f_MC.shape[1])
        theta = gram(job).blocks["x", "L"]
        return f_nC + self.theta_scale * theta @ self._weights(book, at, ridge)

    def _weights(self, book: LabelBook, at: Sequence[int], ridge: float) -> Tensor:
        """w of f_lin = f + Θ_·L w over all labels ``at``, (n, C)."""
        rows = torch.tensor([self.row[p] for p in at], device=self.f_MC.device)
        y_NC = self._targets([book.labels[p] for p in at])
        theta = self.theta_MM[rows][:, rows]
        if self.settings.quadratic:
            theta.diagonal().add_(ridge)
            return torch.cholesky_solve(y_NC - self.f_MC[rows], cholesky(theta, ridge))
        # Cross-entropy: mean = f + S_·K α, S = Θ − Θ_·L A⁻¹ Θ_L·, and at the solution α = y − softmax(mean_K).
        state = self.follow(book)
        assert self._shown is not None
        old = torch.tensor([p in self._shown.base for p in at], device=rows.device)
        w_NC = torch.zeros_like(y_NC)
        w_NC[~old] = y_NC[~old] - state.criterion.responses(state.pool_mean[rows[~old]])
        if old.any() and not old.all():
            A = theta[old][:, old]
            noise_L = LOSSES[self.settings.loss].label_noise(self.f_MC[rows[old]])
            assert noise_L is not None
            A.diagonal().add_(ridge + noise_L)
            w_NC[old] = -torch.cholesky_solve(theta[old][:, ~old] @ w_NC[~old], cholesky(A, ridge))
        return w_NC

    def admit(self, positions: Sequence[int]) -> None:
        """Take items of the pool into M that are not in it: a row of Θ each."""
        new = [p for p in positions if p not in self.row]
        if not new:
            return
        sets = {"new": self.read(new), "M": self.read(self.at_M)}
        blocks = [("new", "M"), ("new", "new")]
        job = GramJob(self.frozen, sets, blocks, budget=self.settings.budget, classes=self.f_MC.shape[1])
        made = gram(job)
        theta, f_new = made.blocks, made.outputs["new"]
        cross, own = (self.theta_scale * theta["new", name] for name in ("M", "new"))
        theta_MM = torch.cat([torch.cat([self.theta_MM, cross.T], 1), torch.cat([cross, own], 1)])
        for name in ("row", "watched", "ranks_M"):
            self.__dict__.pop(name, None)
        # All at once: a Ctrl-C between them would leave a Θ of more items than there are outputs.
        self.__dict__.update(
            theta_MM=theta_MM, f_MC=torch.cat([self.f_MC, f_new]), at_M=[*self.at_M, *new],
            _shown=None, _base=None, _scaled=None,
        )  # fmt: skip

    def replace_items(self, rows: Sequence[int], positions: Sequence[int]) -> None:
        """Other items of the pool in the place of some of M: a row of Θ each. None that go are watched or labelled."""
        at_M, at = list(self.at_M), torch.as_tensor(rows, device=self.f_MC.device)
        for m, p in zip(rows, positions):
            at_M[m] = p
        sets = {"new": self.read(positions), "M": self.read(at_M)}
        made = gram(GramJob(self.frozen, sets, [("new", "M")], budget=self.settings.budget, classes=self.f_MC.shape[1]))
        theta_nM, f_MC = self.theta_scale * made.blocks["new", "M"], self.f_MC.clone()
        f_MC[at] = made.outputs["new"]
        _ = self.watched  # by the outputs of the training: it stays
        states = self._exchange(at, theta_nM, f_MC[at])
        before_nM, changed = self.theta_MM[at], {"f_MC": f_MC, "at_M": at_M, "scores_M": None} | states
        try:  # in place: Θ is the largest matrix there is
            self.theta_MM[at] = theta_nM
            self.theta_MM[:, at] = theta_nM.T
            for name in ("row", "ranks_M"):
                self.__dict__.pop(name, None)
            self.__dict__.update(changed)
        except BaseException:  # a Ctrl-C
            if self.at_M is not at_M:
                self.theta_MM[at] = before_nM
                self.theta_MM[:, at] = before_nM.T
            raise

    def _exchange(self, at: Tensor, theta_nM: Tensor, f_nC: Tensor) -> dict[str, Any]:
        """The states that are known, with other items at rows ``at``: not computed anew, unless all are watched."""
        if self.watched is None or self._base is None:
            return {"_shown": None, "_base": None, "_scaled": None}

        def moved(state: State, base: Mapping[int, Label]) -> DenseState:
            assert isinstance(state, DenseState)
            at_L = [self.row[p] for p in base]
            new = OtherCandidates(at, f_nC, theta_nM[:, at_L], theta_nM[:, self.watched], theta_nM)
            posterior = state.linearisation
            if posterior not in bases:
                bases[posterior] = posterior.exchange(new)
            return state.exchange(new, bases[posterior])

        bases: dict[Posterior, Posterior] = {}
        trained, shown = self._base, self._shown
        if shown is not None:
            shown = replace(shown, state=moved(shown.state, shown.base))
        if trained.state is not None:
            trained = replace(trained, state=moved(trained.state, trained.fixed))
        return {"_base": trained, "_shown": shown}


def _labels_of(kept: Mapping[int, Label | None]) -> dict[int, Label]:
    return {j: y for j, y in kept.items() if y is not None}


def carry_means(before: State, after: State) -> None:
    """Means that are known already, for a state with the same labels: an item whose label is unknown moves none."""
    for name in ("mean", "pool_mean"):
        if name in vars(before):
            vars(after).setdefault(name, vars(before)[name])


# What is predicted of an item before its label comes.


def wrong_chances(state: State, scale: float, at: Tensor, multi: bool = False) -> Tensor:
    """(n,): the chance that the class of each of the candidates ``at`` is wrong.

    ``multi``: that not all classes are right, each on its own by its output. L2: that another output of N(mean_j, 0.3
    s² S_jj I) is the largest. Cross-entropy: one less the largest probability; so too with the pool in the kernel,
    whose probabilities are calibrated.
    """
    if multi:
        p_nC = state.pool_mean[at].clamp(0, 1)
        return 1 - row_products(torch.maximum(p_nC, 1 - p_nC))
    if isinstance(state, PoolState):
        return 1 - sharpened(state.pool_mean[at]).amax(1)
    if not state.criterion.quadratic:
        return 1 - state.criterion.class_probabilities(state.pool_mean[at]).amax(1)
    return chance_among_classes(state.pool_mean[at], ORDINARY_SHARE * scale * state.variance_blocks[at, 0, 0])


def note_prediction(model: LiveModel, book: LabelBook, position: int, label: float, trainings: int) -> Prediction:
    """What the model says of an item whose label has just come, before it learns it."""
    state, m = model.follow(book), model.row[position]
    if position in book.pending:  # while it is out its variance counts as known
        out, state = state, state.release(m)
        carry_means(out, state)
    mean_C, u = state.pool_mean[m], float(state.u[m])
    scale = model.scale(book)
    if model.kind.regression:
        error = math.sqrt(max(0.0, scale * u))
        residual = float((mean_C[0] - label) ** 2)
        return Prediction(position, float(mean_C[0]), error, residual / (scale * u), trainings)
    error = float(wrong_chances(state, scale, torch.tensor([m], device=mean_C.device), model.kind.multi))
    y_C = model.kind.targets([label]).to(mean_C)[0]
    residual = float((state.criterion.responses(mean_C) - y_C).square().mean())
    surprise = residual / (scale * u) if state.criterion.quadratic else 2 * residual * model.kind.C / max(error, 1e-3)
    return Prediction(position, model.kind.decide(mean_C[None])[0], error, surprise, trainings)


def freeze_for(net: nn.Module, kind: LabelKind, settings: KernelSettings, x: Inputs) -> tuple[FrozenNetwork, int]:
    """The network as the engine takes it, and its number of outputs; one logit of two classes becomes two outputs."""
    frozen = freeze(net, output=settings.output, params=settings.params)
    check_inputs(x, "pool", frozen.device)
    C = probe_outputs(frozen, x, "pool")
    check_output(frozen, C)
    if C == 1 and not kind.regression:
        two = BinaryOutputs(frozen.net, settings.loss)
        return freeze(two, output=two.kernel_output, params=binary_params(settings.params)), 2
    return frozen, C


def choose_items(pool: Pool, must: Sequence[int], window: int, seed: int) -> list[int]:
    """The M items to work on: the whole pool, or what must be there and a random sample of the rest."""
    if len(pool) <= window:
        return list(range(len(pool)))
    have = dict.fromkeys(must)
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed)).tolist()
    others = [p for p in order if p not in have]
    return sorted([*have, *others[: max(0, window - len(have))]])


def linearise_pool(
    net: nn.Module,
    pool: Pool,
    kind: LabelKind,
    settings: KernelSettings,
    trained: Mapping[int, Label],
    at_M: list[int],
    size: float | None = None,
) -> LiveModel:
    """Θ and the outputs of the network on M items. ``size`` is that of a saved model."""
    parameter = next(net.parameters())
    x_M = pool.take(at_M, parameter.device, parameter.dtype)
    frozen, C = freeze_for(net, kind, settings, x_M)
    if kind.C != C:
        raise ValueError(f"the network has {C} outputs and there are {kind.C} classes; expected one output each")
    made = gram(GramJob(frozen, {"M": x_M}, [("M", "M")], budget=settings.budget, classes=C))
    theta, f_MC = made.blocks["M", "M"], made.outputs["M"]
    size = float(theta.diagonal().mean()) if size is None else size
    if not torch.isfinite(f_MC).all() or not math.isfinite(size):
        raise ValueError("the network returns NaN or infinite outputs on the pool; look at its weights and inputs")
    theta *= (scale := settings.theta_scale or 1.0)
    model = LiveModel(net, frozen, pool, kind, settings, dict(trained), at_M, theta, f_MC, size, scale)
    model.ridge(LabelBook(dict(trained)))  # raises here if the kernel cannot hold the labels
    return model


def fitted_scale(f_MC: Tensor, size: float, trained: Mapping[int, Label]) -> float:
    """Cross-entropy: the factor of Θ at which a label alone is fitted as well as those of the training are.

    A label at j of equal logits solves α = y − softmax(κΘ_jj α). Let r = 1 − p be what it leaves. Its own logit rises
    above the C − 1 others by κΘ_jj r C/(C − 1), and p = 1 − r needs a rise of log((C − 1)(1 − r)/r). With r the mean
    that the network has left on its labels, κ follows. Training goes on until labels are fitted, so κ is large: with
    κ = 1 absorbed labels stay 9 points of accuracy behind a training on digits, so 3. Without labels κ is 1.
    """
    if not trained:
        return 1.0
    C = f_MC.shape[1]
    p_LC = torch.softmax(f_MC[list(trained)], 1)
    y_L = torch.tensor([int(y) for y in trained.values()], device=p_LC.device)
    r = float((1 - p_LC.gather(1, y_L[:, None])).mean().clamp(LEAST_LEFT, MOST_LEFT))
    return math.log((C - 1) * (1 - r) / r) * (C - 1) / (C * r * size)
