"""What a learner holds, and what its methods do under the lock: labels, model, trainings, and all of it as JSON."""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.acquire import DEFAULT_STRATEGY, find_strategy
from foretaste.errors import counted, whole_number
from foretaste.given import ClassName, check_class_names
from foretaste.label.book import Label, LabelBook, LabelKind, Prediction
from foretaste.label.choose import MOVED_EVERY, AskSettings, InputCover, ask_items, move_window
from foretaste.label.live_model import (
    LiveModel,
    choose_items,
    freeze_for,
    linearise_pool,
    note_prediction,
)
from foretaste.label.mistakes import FEWEST_LABELS
from foretaste.label.pool import Pool, make_pool
from foretaste.label.pool_model import (
    ItemGraph,
    PoolModel,
    bend_pool,
    graph_as_json,
    graph_from_json,
    make_item_graph,
)
from foretaste.label.progress import advise_stop, describe_pool, learning_curve, measure_drift
from foretaste.label.saving import read_items, read_network, saved_file
from foretaste.label.training import (
    TrainFunction,
    TrainingPlan,
    TrainingStopped,
    carry_outputs,
    copied_network,
    make_own_network,
    stop_at_exit,
    train_network,
)
from foretaste.lookahead import Graph, KernelSettings
from foretaste.tangent import Params

log = logging.getLogger("foretaste")

TRAINING_LOOK_SECONDS = 0.5  # between looks at a training that is waited for


@dataclass(eq=False)
class Training:
    """One training, in ``thread``. At its end it has ``ended``, or an ``error``; neither if it was interrupted."""

    labels: dict[int, Label]
    draw: int
    thread: threading.Thread
    done: threading.Event = field(default_factory=threading.Event)
    ended: bool = False
    stopped: bool = False  # whether it shall stop
    error: Exception | None = None


@dataclass(frozen=True, eq=False)
class WaitingModel:
    """A network whose Θ is computed when it is asked for: while the pool's model answers, nobody needs it."""

    net: nn.Module
    trained: dict[int, Label]
    at_M: list[int]
    size: float | None = None


@dataclass(eq=False)
class Session:
    """The state of a learner. Methods are called with ``lock`` held, but for those of trainings.

    ``net`` is the network as last trained. ``held`` is its model, linearised or not yet; None until there is a trained
    network. ``pool_model`` has the pool in its kernel, along ``items``, the graph of ``graph``; None where the pool is
    left out. ``under_way`` is the training that others may wait for, in the background or in a caller's thread;
    ``worker`` is the thread of the first kind. ``last_trained`` is the number of the latest training that succeeded.
    """

    pool: Pool
    kind: LabelKind
    settings: KernelSettings
    window: int
    ask: AskSettings
    plan: TrainingPlan
    background: bool
    graph: Graph | None = None
    net: nn.Module | None = None
    held: LiveModel | WaitingModel | None = None
    items: ItemGraph | None = None
    pool_model: PoolModel | None = None
    book: LabelBook = field(default_factory=LabelBook)
    queries: int = 0
    trainings: int = 0
    failure: str | None = None
    worker: threading.Thread | None = None
    under_way: Training | None = None
    last_trained: int = 0
    moved: tuple[LiveModel, int] | None = None  # whose window moved last, and after how many labels
    lock: threading.RLock = field(default_factory=threading.RLock)

    @cached_property
    def cover(self) -> InputCover:
        return InputCover(self.pool, self.settings.seed)

    # Labels.

    def next_items(self, n: int) -> list[int]:
        """Up to n positions to ask for, now pending.

        By coverage of the inputs without a network, and while the learner's own has fewer labels than classes: on
        MNIST 52 % are right after ten labels and 63 % after twenty, where ``gain`` alone has 42 % and 57 %.
        """
        few = self.plan.own and len(self.book.labels) + len(self.book.pending) < self.kind.C
        # A strategy that picks by itself looks at the network.
        model = self.model if self.ask.how.picks else self.live
        if model is None or few:
            found = self.cover.ask(self.book, n)
        else:
            if type(model) is LiveModel and len(self.pool) > len(model.at_M):
                self.move_window(model)
            found = ask_items(model, self.book, self.ask, n, self.queries)
            self.__dict__.pop("cover", None)  # 80 MB that nobody asks any more
        self.queries += 1
        return found

    def move_window(self, model: LiveModel) -> None:
        """A pool larger than the window: after some answers, part of the window makes room for other items."""
        if self.moved is None or self.moved[0] is not model:
            self.moved = model, len(self.book.labels)
        if len(self.book.labels) - self.moved[1] >= MOVED_EVERY:
            move_window(model, self.book, self.settings.seed + 1000003 * (self.queries + 1))
            self.moved = model, len(self.book.labels)

    def absorb(self, given: Mapping[int, Label]) -> None:
        """Teach new labels. What was predicted for them before is noted first."""
        if not given:
            return
        notes: dict[int, Prediction] = {}
        self.admit(list(given))
        if (model := self.live) is not None:
            notes = {p: note_prediction(model, self.book, p, y, self.trainings) for p, y in given.items()}
        for p, y in given.items():
            self.book.put(p, y)
        self.book.predictions.update(notes)  # last: a Ctrl-C leaves no prediction without its label
        self.train_first()

    def status(self, goal: float) -> dict[str, Any]:
        """What ``Learner.status`` returns."""
        book, kind = self.book, self.kind
        curve, names = learning_curve(book, kind), kind.names or range(kind.C)
        counts = None
        if not kind.regression:
            counts = {str(name): n for name, n in zip(names, kind.counts(book.labels.values()))}
        return {
            "items": len(self.pool),
            "labelled": len(book.labels),
            "pending": len(book.pending),
            "ignored": len(book.ignored),
            "open": len(self.pool) - len(book.labels) - len(book.pending) - len(book.ignored),
            "classes": counts,
            "curve": curve,
            "accuracy": curve[-1].get("accuracy") if curve else None,
            "ready": self.held is not None,
            "training": {"running": self.worker is not None, "count": self.trainings, "failure": self.failure},
            "drift": self.drift(),
            "strategy": self.ask.how.name,
            "pool": None if self.pool_model is None else describe_pool(self.pool_model, book, self.trainings),
            **advise_stop(self.live, book, goal),
        }

    def drift(self) -> dict[str, Any]:
        """What ``Learner.drift`` returns."""
        if (model := self.live) is not None:
            return measure_drift(model, self.book, self.trainings)
        can = self.can_train()
        reason = "there is no trained network yet" + ("" if can else ", and labels of two classes are needed for one")
        return {"retrain": can, "reason": reason, "trained_on": 0, "new": len(self.book.labels)}

    def change_classes(self, names: tuple[ClassName, ...], new_of: Sequence[int]) -> None:
        """The classes have these names from now on, and class c is ``new_of[c]``. Raises while a training is under way.

        The weights of the network's last layer move with the classes, so that predictions go on; a training comes
        later. With the same classes only their names change.
        """
        if self.under_way is not None:
            raise RuntimeError("a training is under way; wait for it, or stop it")
        kind = LabelKind(len(names), False, names, self.kind.multi)
        if list(new_of) == list(range(kind.C)):
            self.kind = kind
            for each in (self.held, self.pool_model):
                if isinstance(each, LiveModel):
                    each.kind = kind
            return
        if not self.plan.own or self.net is None:
            raise ValueError(
                f"the network was given, and has {counted(self.kind.C, 'output')}; classes can be added or merged with "
                "the learner's own network only"
            )
        find_strategy(self.ask.how.name).check(kind.C)
        was, trained = self.net, None if self.held is None else moved_labels(self.held.trained, new_of, self.kind.multi)
        before = self.kind, self.net, self.book, self.held, self.pool_model
        said = moved_labels({p: q.predicted for p, q in self.book.predictions.items()}, new_of, self.kind.multi)
        predictions = {p: replace(q, predicted=said[p]) for p, q in self.book.predictions.items()}
        try:
            labels = moved_labels(self.book.labels, new_of, self.kind.multi)
            self.book = LabelBook(labels, dict(self.book.pending), dict(self.book.ignored), predictions)
            self.kind = kind
            self.net = self.own_network()
            carry_outputs(was, self.net, list(new_of), self.plan.loss == "l2")
            if trained is not None:
                self.held = self.waiting(self.net, trained, self.last_trained)
                self.pool_model = None if self.pool_model is None else self.bend(self.net, trained)
                self.admit([*self.book.labels, *self.book.pending])
        except BaseException:
            self.kind, self.net, self.book, self.held, self.pool_model = before
            raise

    # Outputs.

    @property
    def model(self) -> LiveModel | None:
        """The network's own model, linearised now if it has waited."""
        if isinstance(self.held, WaitingModel):
            self.held = self.linearise(self.held)
            self.admit([*self.book.labels, *self.book.pending])
        return self.held

    def admit(self, positions: Sequence[int]) -> None:
        """Take items into the models that are there."""
        for each in (self.held, self.pool_model):
            if isinstance(each, LiveModel):
                each.admit(positions)

    @property
    def live(self) -> LiveModel | None:
        """The model that answers: with the pool where leave-one-out says that it helps, else the network's."""
        return self.pool_model if self.pool_model is not None and self.pool_model.helps(self.book) else self.model

    def trained_model(self) -> LiveModel:
        if (model := self.live) is None:
            raise RuntimeError(
                f"nothing has been learned yet from {counted(len(self.book.labels), 'label')}; teach items of two "
                "classes first"
            )
        return model

    def outputs_at(self, positions: Sequence[int]) -> Tensor:
        """(n, C) outputs of the model after the labels, on items of the pool."""
        model = self.trained_model()
        state = model.follow(self.book)
        f_nC = state.pool_mean[[model.row.get(p, 0) for p in positions]]
        others = [i for i, p in enumerate(positions) if p not in model.row]
        for some in self.pool.chunks(others):
            f_nC[list(some)] = model.outputs_of(model.read([positions[i] for i in some]), self.book)
        return f_nC

    def judged_labels(self, also: Mapping[int, Label]) -> dict[int, int] | None:
        """Position → label, of all labels and some others; None if there are too few to judge, or no model."""
        labels = {**also, **self.book.labels}
        model = self.pool_model or self.model
        few = model is None or len(labels) < FEWEST_LABELS
        return None if few else {p: int(y) for p, y in sorted(labels.items())}

    def judged_kernels(self, at: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Θ̃ and Θ between some positions, for ``doubt_labels``.

        Θ̃ is of the last γ; without a graph it is Θ. A network's own Θ is centred: its labels share a large part of it.
        """
        model = self.pool_model or self.model
        assert model is not None
        model.admit(at)
        model.follow(self.book)  # the γ of the labels that hold now
        rows_L = torch.tensor([model.row[p] for p in at], device=model.theta_MM.device)
        plain_LL = theta_LL = model.theta_MM[rows_L[:, None], rows_L]
        if self.pool_model is None:
            plain_LL = theta_LL = theta_LL - theta_LL.mean(0) - theta_LL.mean(1, keepdim=True) + theta_LL.mean()
        elif self.pool_model.evidence.gamma:
            plain_LL = self.pool_model.items.among(0.0, self.pool_model.placed, rows_L)
        return theta_LL, plain_LL

    # Trainings.

    def start_training(self, wait: bool) -> None:
        """Train on the labels there are now, in a thread or at once. One that is under way is left, or waited for.

        If the one that is waited for has other labels, a training comes after it: this one, or that of another who
        waits. Called without the lock.
        """
        if not wait:
            return self.train_behind()
        first: int | None = None  # the training that was under way at first: those after it have all labels of now
        while (found := self.train_now(first)) is not None:
            if found.thread is threading.current_thread():
                raise RuntimeError("a training is under way in this thread; train= must not start another")
            with self.lock:
                fits = first is not None or found.labels == self.book.labels
            while self.under_way is found and not found.done.wait(TRAINING_LOOK_SECONDS):
                pass
            if fits and found.error is not None:
                raise found.error
            if fits and found.ended:
                return None
            first = first or found.draw
        return None

    def next_training(self) -> Training:
        if not self.can_train():
            raise ValueError(
                f"{counted(len(self.book.labels), 'label is', 'labels are')} too few to train on; expected two "
                "classes, or two different numbers in regression"
            )
        self.trainings += 1
        return Training(dict(self.book.labels), self.trainings, threading.current_thread())

    def train_behind(self) -> None:
        """Train in a thread, unless a training is under way."""
        with self.lock:
            if self.under_way is not None:
                return
            training = self.next_training()
            # No daemon, whoever starts it: a daemon is cut off within torch at exit, and the process aborts.
            worker = threading.Thread(target=self.work, args=(training,), name="foretaste-training", daemon=False)
            self.under_way, self.worker, training.thread = training, worker, worker
            try:
                worker.start()
            except BaseException:
                if not worker.is_alive():
                    self.under_way = self.worker = None
                raise

    def train_now(self, after: int | None) -> Training | None:
        """Train here, unless a training after number ``after`` has ended. If one is under way: that one."""
        training: Training | None = None
        try:
            with self.lock:
                if self.under_way is not None:
                    return self.under_way
                if after is not None and self.last_trained > after:
                    return None
                training = self.next_training()
                self.under_way = training
            self.train(training)
        finally:
            if training is not None:
                self.end_training(training)
        return None

    def work(self, training: Training) -> None:
        """A training in a thread. It never raises: ``failure`` says what went wrong."""
        try:
            self.train(training)
        except TrainingStopped:
            log.info("the training was stopped and the network from before stays")
        except Exception as error:
            log.warning("the training failed and the network from before stays: %s", error)
        finally:
            self.worker = None
            self.end_training(training)

    def end_training(self, training: Training) -> None:
        # Those who wait look at ``under_way`` too: a Ctrl-C here may come before ``done`` is set.
        if self.under_way is training:
            self.under_way = None
        training.done.set()

    def train(self, training: Training) -> None:
        """Train a copy and linearise it, without the lock; then swap it in. Labels given meanwhile are in the book."""
        labels, draw = training.labels, training.draw
        try:
            assert self.net is not None
            if self.graph is not None and self.items is None and self.held is None and training.thread is self.worker:
                self.renew(labels, draw, None)  # the graph takes a while: until then the network answers
            self.renew(labels, draw, self.bend(self.net, labels))
            training.ended, self.last_trained = True, max(self.last_trained, draw)
        except Exception as error:
            training.error = error
            if not isinstance(error, TrainingStopped):
                self.failure = f"{type(error).__name__}: {error}"
            raise

    def renew(self, labels: Mapping[int, Label], draw: int, pool_model: PoolModel | None) -> None:
        """Train a copy of the network, on soft labels of the pool too where that helps, and swap all of it in."""
        assert self.net is not None
        given = LabelBook(dict(labels), ignored=dict(self.book.ignored))
        helps = pool_model is not None and pool_model.helps(given)
        soft: dict[int, Tensor] = {}
        if pool_model is not None and helps and self.plan.takes_soft_labels(self.kind):
            soft = pool_model.soft_labels(given)
        trained = train_network(self.net, self.pool, labels, self.kind, self.plan, draw, self.look, soft)
        self.look()
        waiting = self.waiting(trained, labels, draw)
        model = waiting if helps and not self.ask.how.picks else self.linearise(waiting)
        models = [each for each in (model, pool_model) if isinstance(each, LiveModel)]
        with self.lock:
            now = LabelBook(dict(self.book.labels), dict(self.book.pending))
        for each in models:  # what takes long, before the lock: nobody waits for it
            each.admit([*now.labels, *now.pending])
            each.follow(now)  # raises here if the new kernel cannot hold the labels
        with self.lock:
            for each in models:
                each.admit([*self.book.labels, *self.book.pending])
                each.follow(self.book)
            if pool_model is not None:
                like = next(trained.parameters())
                x = self.pool.take(pool_model.at_M[:1], like.device, like.dtype)
                pool_model.net, pool_model.frozen = trained, freeze_for(trained, self.kind, self.settings, x)[0]
            self.net, self.held, self.pool_model, self.failure = trained, model, pool_model, None

    def bend(self, net: nn.Module, trained: Mapping[int, Label]) -> PoolModel | None:
        """The model with the pool in its kernel after these labels. The graph is made at the first call."""
        if self.graph is None:
            return None
        if self.items is None:
            like, seed = next(net.parameters()), self.settings.seed
            self.items = make_item_graph(self.graph, self.pool, self.window, seed, like, self.look)
        return bend_pool(self.items, net, self.pool, self.kind, self.settings, trained)

    def look(self, done: int = 0, total: int = 0) -> None:
        """Raise if the training under way must not go on."""
        stop_at_exit(done, total)
        if self.under_way is not None and self.under_way.stopped:
            raise TrainingStopped(f"it was stopped after {done} of {total} steps")

    def stop_training(self) -> None:
        """Ask a training in the background to stop; the network from before stays."""
        training = self.under_way
        if training is not None and training.thread is self.worker:
            training.stopped = True

    def waiting(self, net: nn.Module, trained: Mapping[int, Label], draw: int = 0) -> WaitingModel:
        """The items that a network is to be linearised on."""
        with self.lock:
            must = [*dict.fromkeys([*trained, *self.book.labels, *self.book.pending])]
        at_M = choose_items(self.pool, must, self.window, self.settings.seed + 1000003 * draw)
        return WaitingModel(net, dict(trained), at_M)

    def linearise(self, model: WaitingModel) -> LiveModel:
        return linearise_pool(model.net, self.pool, self.kind, self.settings, model.trained, model.at_M, model.size)

    def can_train(self) -> bool:
        return len(set(map(self.kind.plain, self.book.labels.values()))) > 1

    def train_first(self) -> None:
        """The learner's own network is trained as soon as it can be."""
        if self.held is not None or self.worker is not None or not self.plan.own or not self.can_train():
            return
        if self.background:
            self.train_behind()
        else:  # with the lock held, so it must not wait for another training, which needs the lock to end
            training = self.next_training()
            self.under_way = self.under_way or training
            try:
                self.train(training)
            finally:
                self.end_training(training)

    def own_network(self) -> nn.Module:
        at = choose_items(self.pool, (), self.window, self.settings.seed)
        x = self.pool.take(at, torch.device("cpu"), torch.float32)
        return make_own_network(x, self.kind, self.settings.seed)

    # Files.

    def as_json(self) -> dict[str, Any]:
        s, model = self.settings, self.held
        everything = model is not None and model.at_M == list(range(len(self.pool)))
        params = None if callable(s.params) else s.params if isinstance(s.params, str | None) else list(s.params)
        return {
            "ids": list(self.pool.ids),
            "digest": self.pool.digest(),
            "kind": [self.kind.C, self.kind.regression, self.kind.names, *([True] if self.kind.multi else [])],
            "book": self.book.as_json(),
            "counts": [self.queries, self.trainings],
            "strategy": [self.ask.how.name, self.ask.given],
            "own": self.plan.own,
            "fit_options": {k: v for k, v in self.plan.options.items() if not callable(v)},
            "background": self.background,
            "graph": None if self.graph is None else graph_as_json(self.graph),
            "settings": [
                s.loss, s.output, params, s.ridge, s.budget, s.watch, self.window, s.seed, s.theta_scale,
            ],
            "model": None if model is None else {
                "trained": [[p, y] for p, y in model.trained.items()],
                "at": None if everything else model.at_M,
                "size": model.size,
            },
        }  # fmt: skip

    @staticmethod
    def from_json(
        folder: Path,
        found: Mapping[str, Any],
        net: nn.Module | None,
        pool: Any,
        train: TrainFunction | None,
        params: Params,
        graph: Graph | None = None,
    ) -> "Session":
        """A session as it was saved, its kernel computed anew."""
        if pool is None:
            if found["pool_file"] is None:
                raise ValueError(f"the pool of {folder} was a dataset, whose items are not saved; give pool=")
            pool = read_items(saved_file(folder, found["pool_file"]), found["version"] > 1)
        loss, output, names, ridge, budget, watch, window, seed, theta_scale = found["settings"]
        C, regression, classes, *multi = found["kind"]
        named = None if classes is None else check_class_names(classes)
        kind = LabelKind(int(C), bool(regression), named, bool(multi))
        strategy, options = found["strategy"]
        ask = ask_settings(strategy, options, kind, seed)
        settings = KernelSettings(
            loss=loss, output=output, params=names if params is None else params, ridge=ridge, budget=budget,
            watch=watch, theta_scale=theta_scale, seed=seed,
        ).for_strategy(ask.how.kernel)  # fmt: skip
        plan = TrainingPlan(loss, bool(found["own"]), train, dict(found["fit_options"]), seed, settings.params)
        items = make_pool(pool, found["ids"])
        if items.digest() != found["digest"]:
            raise ValueError(f"the pool is not the one that {folder} was saved with: its ids or items differ")
        graph = graph_from_json(found.get("graph"), graph)
        made = Session(items, kind, settings, int(window), ask, plan, bool(found["background"]), graph)
        made.book = LabelBook.from_json(found["book"], len(items), kind)
        made.queries, made.trainings = (whole_number("counts", n) for n in found["counts"])
        made.net = made.own_network() if plan.own else None
        if found["network_file"] is not None:
            weights = saved_file(folder, found["network_file"])
            made.net = copied_network(read_network(weights, made.net, net, found["version"] > 1))
        if (saved := found["model"]) is not None and made.net is not None:
            trained = {int(p): kind.check_stored(y) for p, y in saved["trained"]}
            at_M = list(range(len(items))) if saved["at"] is None else [int(p) for p in saved["at"]]
            made.held = WaitingModel(made.net, trained, at_M, saved.get("size"))
            made.pool_model = made.bend(made.net, trained)
            made.admit([*made.book.labels, *made.book.pending])
            assert made.live is not None  # what does not fit together is found now
        return made


def moved_labels(labels: Mapping[int, Label], new_of: Sequence[int], multi: bool = False) -> dict[int, Label]:
    """The same labels where class c has become ``new_of[c]``; ``multi``: labels are sets of classes."""
    if multi:
        bits = {p: {new for old, new in enumerate(new_of) if int(y) >> old & 1} for p, y in labels.items()}
        return {p: sum(1 << c for c in some) for p, some in bits.items()}
    return {p: new_of[int(y)] + (y - int(y)) for p, y in labels.items()}


def ask_settings(strategy: str | None, options: Mapping[str, Any] | None, kind: LabelKind, seed: int) -> AskSettings:
    """The strategy and its options, checked."""
    how = find_strategy(strategy or (DEFAULT_STRATEGY if kind.single else "variance"))
    how.check(kind.C)
    return AskSettings(how, how.settings(options), dict(options or {}), seed)
