"""``ft.Learner``: a pool that is labelled live. Every label counts at once, without training."""

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.acquire import row_products
from foretaste.data import note_test_side
from foretaste.errors import check_callable, counted, real_number, whole_number
from foretaste.given import POINTS_WANTED, ClassName, check_class_names, is_frame
from foretaste.label.book import Label, Prediction, resolve_kind
from foretaste.label.mistakes import MOST_TOGETHER, doubt_labels, doubt_sets, judged_together
from foretaste.label.pool import Pool, make_pool, open_pool, plain_id, shown_id, unknown_item
from foretaste.label.pool_model import resolve_graph
from foretaste.label.progress import FEWEST_ASKED, FEWEST_DRAWN, compare_random, explain_item
from foretaste.label.rough import RoughProbabilities
from foretaste.label.saving import SAVED_LEARNER, read_saved, write_saved
from foretaste.label.session import Session, ask_settings
from foretaste.label.training import TrainFunction, TrainingPlan, copied_network
from foretaste.lookahead import Graph, KernelSettings
from foretaste.losses import probabilities
from foretaste.tangent import Output, Params, freeze, probe_outputs

log = logging.getLogger("foretaste")


class Learner:
    """A pool that is labelled live: ask for items, teach labels in any order, and the model has learned them.

    A label is absorbed by the linearised network, in milliseconds and without training. ``relabel``, ``unlabel`` and
    ``ignore`` are exact: the learner becomes what it would be had the labels been so from the start. From time to time
    the network is trained anew, by ``retrain``, in the background if wanted; ``drift`` says when. All methods may be
    called from several threads.

    Args:
        net: a trained torch network in eval mode that returns (N, C). It is copied: the learner's trainings leave yours
            as it is, and what you do with yours later does not reach the learner. None (default): a small network of
            the learner's own, trained as soon as two classes have labels.
        pool: the items: an array or tensor (N, ...), a list of them or of numbers, a dict of tensors for a network
            called as ``net(**x)``, a map-style dataset of x or (x, y), a Hugging Face dataset, a DataLoader that does
            not shuffle, or what ``ft.open`` returns. A list of texts and a data frame, whose rows are the items, are
            read as ``ft.open`` reads them: text by TF-IDF, and a column called label has labels. A dataset, or an array
            mapped from a file, is read when its items are needed. Labels inside a dataset's items are not read.
        ids: your ids, text or whole numbers, all different. Default: those of ``pool`` (a column of ids or the index of
            a data frame) if it has any, else positions.
        classes: names of the classes, text or whole numbers, in the order of the network's outputs; or how many there
            are. Where names are whole numbers, a label is a name and no class id. Default: those of ``pool``, of text
            labels, or one for each output.
        labels: labels that are there already: a dict from id to label, or one entry for each item, None where it is
            missing. Default: those of ``pool`` if it has any. With ``net`` they are taken as what it was trained on.
        strategy: a name of ``ft.strategies()``. None (default): "cover"; "variance" for regression and multi_label.
        regression: whether labels are numbers. Default False; a network with one output and loss="l2" is one.
        multi_label: whether a label is any set of the classes: a list of names or class ids, empty for none of them.
            Default False. Each class is a yes-or-no question of its own, and all of them share one kernel.
        loss: what the network was or shall be trained with, "l2" (default) or "ce".
        train: ``train(net, x, y)``, your own training, called with a copy of the network. Default: ``ft.fit``.
        fit_options: options of ``ft.fit``, a dict; for example {"steps": 500}. A network of ``tune_text`` is trained by
            ``fit_tuned``: the head first, then by AdamW.
        background: whether the first training of the learner's own network runs in the background. Default False.
        options: the strategy's own settings, a dict.
        seed: of ties, samples and trainings; default 0.
        output, params, ridge, budget: as in ``ft.query``; trainings too are of ``params``, unless ``fit_options`` has
            others. An output of "auto" (default) and a ridge of None (default) are the strategy's own. λ is resolved on
            the labels of the last training that still hold. A "misfit" is 1e-6 of the mean diagonal where the network
            leaves more than a tenth of their variance.
        theta_scale: a factor of Θ, which matters under cross-entropy: how far one label moves the network. None
            (default): 1 with "l2"; with "ce", so far that a label is fitted as well as those of the last training are.
        watch: over how many items scores sum, default 512: those that the strategy declares, for ``gain`` the most
            contested ones. None: all.
        window: items that are worked on at a time, default 5000. A larger pool is sampled, anew at each training. The
            window moves: every 5 answers a fortieth of it, the items worth least, makes room for others. With
            ``graph`` it stays.
        graph: whether the unlabelled items have a say (docs/learner.md, The pool): None, or ``ft.Graph(...)``, along
            which the kernel is bent. "auto" (default): ``ft.Graph()`` with the learner's own network where the items
            are one tensor of numbers, and None with ``net``, which may know more than the labels here. Leave-one-out
            on the labels of the last training says whether the pool is used, and how much.

    Raises:
        ValueError: arguments do not fit together.
        TypeError: the pool is of a kind that cannot be read.

    Example:
        >>> import torch, foretaste as ft
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.randn(60, 5, generator=g)
        >>> truth = ["left" if v < 0 else "right" for v in x[:, 0]]
        >>> learner = ft.Learner(pool=x, classes=["left", "right"], fit_options={"steps": 50})
        >>> for _ in range(10):
        ...     [i] = learner.query(1)
        ...     learner.teach(i, truth[i])
        >>> len(learner.labels), len(learner.predict())
        (10, 60)
    """

    def __init__(
        self,
        net: nn.Module | None = None,
        pool: Any = None,
        *,
        ids: Sequence[Hashable] | None = None,
        classes: Sequence[ClassName] | int | None = None,
        labels: Mapping[Hashable, Any] | Sequence[Any] | None = None,
        strategy: str | None = None,
        regression: bool = False,
        multi_label: bool = False,
        loss: str = "l2",
        train: TrainFunction | None = None,
        fit_options: Mapping[str, Any] | None = None,
        background: bool = False,
        options: Mapping[str, Any] | None = None,
        seed: int = 0,
        output: Output = "auto",
        params: Params = None,
        ridge: float | str | None = None,
        budget: int | str | None = None,
        theta_scale: float | None = None,
        watch: int | None = 512,
        window: int = 5000,
        graph: Graph | str | None = "auto",
    ) -> None:
        if net is not None and not isinstance(net, nn.Module):
            raise TypeError(f"net is a {type(net).__name__}; expected a torch.nn.Module. Give the items as pool=")
        if pool is None:
            raise TypeError(f"pool is None; give the items: {POINTS_WANTED}")
        check_callable("train", train, "(net, x, y)")
        if output == "full":
            raise ValueError('output="full" is not for live labelling: it takes C² times the memory; use "sum"')
        if params is not None and not callable(params) and not isinstance(params, str | Tensor):
            params = list(params) if isinstance(params, Iterable) else params  # a generator is read once
        settings = KernelSettings(
            loss=loss, output=output, params=params, ridge=ridge, budget=budget, watch=watch, theta_scale=theta_scale,
            seed=whole_number("seed", seed),
        )  # fmt: skip
        window = whole_number("window", window, 2)
        pool = open_pool(pool, ids)
        items = make_pool(pool, ids)
        regression = regression or getattr(pool, "regression", False)
        if labels is None:
            labels = pool.y if getattr(pool, "regression", False) else getattr(pool, "labels", None)
        given = _given_labels(items, labels)
        classes = (getattr(pool, "classes", None) or None) if classes is None else classes
        kind = resolve_kind(classes, probe_network(net, items), list(given.values()), loss, regression, multi_label)
        plan = TrainingPlan(loss, net is None, train, dict(fit_options or {}), settings.seed, settings.params)
        ask = ask_settings(strategy, options, kind, settings.seed)
        along = resolve_graph(graph, items, net is None)
        self._hold(Session(items, kind, settings.for_strategy(ask.how.kernel), window, ask, plan, background, along))
        now, taught = self._now, self._read_labels(given.keys(), given.values())
        for p in (held_out := getattr(pool, "held_out", [])):
            taught.pop(int(p), None)
            now.book.ignore(int(p))
        if len(held_out):
            log.warning("pool: %s", note_test_side(len(held_out)))
        now.book.labels.update(taught)
        if net is None:
            now.net = now.own_network()
            now.train_first()
        else:
            now.net = copied_network(net)
            now.held = now.linearise(now.waiting(now.net, taught))
            now.pool_model = now.bend(now.net, taught)

    def _hold(self, session: Session) -> None:
        self._now, self._lock = session, session.lock
        self._position = {i: p for p, i in enumerate(session.pool.ids)}
        self._rough = RoughProbabilities(session.pool)

    # What there is.

    @property
    def ids(self) -> list[Hashable]:
        """The ids of all items, in the order of the pool."""
        return list(self._now.pool.ids)

    @property
    def classes(self) -> list[Any] | None:
        """The names of the classes, or their numbers; None for regression."""
        kind = self._now.kind
        return None if kind.regression else list(kind.names or range(kind.C))

    @property
    def labels(self) -> dict[Hashable, Any]:
        """The labels so far: id -> class name (class id where classes have no names), or number."""
        with self._lock:
            return {self._now.pool.ids[p]: self._now.kind.show(y) for p, y in self._now.book.labels.items()}

    @property
    def doubts(self) -> dict[Hashable, float]:
        """id -> the chance that its label is wrong, as it was taught; without those that are not doubted."""
        with self._lock:
            kind, ids = self._now.kind, self._now.pool.ids
            return {ids[p]: d for p, y in self._now.book.labels.items() if (d := kind.doubt(y))}

    @property
    def pending(self) -> list[Hashable]:
        """The ids that ``query`` has handed out and that have no label yet."""
        with self._lock:
            return [self._now.pool.ids[p] for p in self._now.book.pending]

    @property
    def ignored(self) -> list[Hashable]:
        """The ids that are left out."""
        with self._lock:
            return [self._now.pool.ids[p] for p in self._now.book.ignored]

    @property
    def net(self) -> nn.Module:
        """The network as it was last trained, on the pool's soft labels too where the pool is used.

        ``predict`` knows more: the labels since.
        """
        assert self._now.net is not None
        return self._now.net

    @property
    def window_ids(self) -> list[Hashable]:
        """The ids that the model works on: all of a pool up to the window, else a part. It predicts these for nothing.

        Empty while there is no trained network.
        """
        with self._lock:
            model = self._now.live
            return [] if model is None else [self._now.pool.ids[p] for p in model.at_M]

    @property
    def ready(self) -> bool:
        """Whether there is a trained network, so that ``predict`` answers."""
        return self._now.held is not None

    def __len__(self) -> int:
        return len(self._now.pool)

    def __repr__(self) -> str:
        with self._lock:
            book = self._now.book
            return (
                f"Learner({counted(len(self), 'item')}, {len(book.labels)} labelled, {len(book.pending)} pending, "
                f"strategy={self._now.ask.how.name!r}, {'trained' if self.ready else 'not trained yet'})"
            )

    # Asking and answering.

    def query(self, n: int = 1) -> list[Hashable]:
        """The next items to label, best first. They are pending until they are taught, released or ignored.

        Pending items are never handed out again, and count as labelled with a label that is not known yet.

        Args:
            n: how many, default 1.

        Returns:
            Up to n ids; fewer, or none, if nothing else is left.
        """
        n = whole_number("n", n, 1)
        with self._lock:
            return [self._now.pool.ids[p] for p in self._now.next_items(n)]

    def teach(self, ids: Any, labels: Any, *, doubts: Any = None) -> None:
        """Give labels, of pending items or of any others, in any order.

        Args:
            ids: one id, or several.
            labels: the label of each: a class name or class id, or a number in regression; with multi_label a list of
                classes, or a list of such lists for several ids.
            doubts: the chance that each label is wrong, for example by how reliable the person is who gave it; for
                labels of one class. The model then learns 1 − doubt of the class, and the rest of all others alike.
                None (default): no label is doubted.

        Raises:
            KeyError: an id is not in the pool.
            ValueError: a label is of no class, or the item already has another label (use ``relabel``). Nothing is
                taught then.
        """
        with self._lock:
            given = self._read_labels(*_pair(ids, labels, self._now.kind.multi), doubts)
            for p, y in given.items():
                if p in self._now.book.ignored:
                    raise ValueError(f"item {self._shown(p)} is ignored; call restore() first")
                if self._now.book.labels.get(p, y) != y:
                    has = self._now.kind.show(self._now.book.labels[p])
                    raise ValueError(
                        f"item {self._shown(p)} already has the label {has!r}; to change it, use relabel()"
                    )
            self._now.absorb({p: y for p, y in given.items() if p not in self._now.book.labels})

    def relabel(self, ids: Any, labels: Any, *, doubts: Any = None) -> None:
        """Change labels, exactly: as if they had been so from the start.

        Args:
            ids: one id, or several; an item without a label is taught.
            labels: the new label of each.
            doubts: the chance that each is wrong, as in ``teach``.

        Raises:
            KeyError: an id is not in the pool.
            ValueError: a label is of no class.
        """
        with self._lock:
            given = self._read_labels(*_pair(ids, labels, self._now.kind.multi), doubts)
            self._now.absorb({p: y for p, y in given.items() if p not in self._now.book.labels})
            for p, y in given.items():
                self._now.book.put(p, y)

    def unlabel(self, ids: Any) -> None:
        """Forget labels, exactly: as if they had never been given. The items may be asked for again.

        Args:
            ids: one id, or several, all with a label.

        Raises:
            KeyError: an id is not in the pool.
            ValueError: an item has no label.
        """
        with self._lock:
            at = self._positions(ids)
            for p in at:
                if p not in self._now.book.labels:
                    raise ValueError(f"item {self._shown(p)} has no label")
            for p in at:
                self._now.book.drop(p)

    def ignore(self, ids: Any) -> None:
        """Leave items out: they are not asked for, and a label they had is forgotten.

        Args:
            ids: one id, or several. ``restore`` takes them back.
        """
        with self._lock:
            for p in self._positions(ids):
                self._now.book.ignore(p)

    def restore(self, ids: Any) -> None:
        """Take ignored items back into the pool. Items that are not ignored stay as they are."""
        with self._lock:
            for p in self._positions(ids):
                self._now.book.ignored.pop(p, None)

    def release(self, ids: Any = None) -> None:
        """Return pending items to the pool: nobody is going to label them now.

        Args:
            ids: one id, or several; None (default): all that are pending. Others stay as they are.
        """
        with self._lock:
            for p in list(self._now.book.pending) if ids is None else self._positions(ids):
                self._now.book.pending.pop(p, None)

    def change_classes(
        self, classes: Sequence[ClassName], renamed: Mapping[ClassName, ClassName] | None = None
    ) -> None:
        """Add, rename, merge or reorder classes. Labels follow, and predictions go on at once; ``retrain`` later.

        The last layer of the network keeps what it knows of each class: outputs of merged classes are added up, and a
        new class begins with an output of 0. With the pool in the kernel nothing but columns changes. A training in
        the background is stopped first.

        Args:
            classes: the names from now on.
            renamed: old name -> new name. Two old names with one new name are merged. Names that are left out stay.

        Raises:
            ValueError: classes have no names, an old class is not among the new ones, or classes are added or merged
                and the network was given.

        Example:
            >>> import torch, foretaste as ft
            >>> x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
            >>> labels = {0: "cat", 1: "dog", 2: "hen"}
            >>> learner = ft.Learner(pool=x, classes=["cat", "dog", "hen"], labels=labels, fit_options={"steps": 20})
            >>> learner.change_classes(["cat", "bird", "cow"], {"hen": "bird", "dog": "cat"})
            >>> learner.labels, learner.predict_proba().shape
            ({0: 'cat', 1: 'cat', 2: 'bird'}, torch.Size([30, 3]))
        """
        names, renamed = check_class_names(classes), dict(renamed or {})
        old = self._now.kind.names
        if old is None:
            raise ValueError("the classes have no names, so none can change; give classes= as names")
        if lost := [name for name in old if renamed.get(name, name) not in names]:
            raise ValueError(f"class {lost[0]!r} is not among the new ones; keep it, or say in renamed= what it is now")
        if len(names) < 2:
            raise ValueError(f"there is {len(names)} class; expected at least two")
        self.stop_training()
        self.wait()
        with self._lock:
            self._now.change_classes(names, [names.index(renamed.get(name, name)) for name in old])
            self._rough = RoughProbabilities(self._now.pool)  # columns are classes

    # What it knows.

    def predict(self, items: Any = None) -> np.ndarray:
        """The predicted class of each item (its number in regression), after all labels so far.

        Args:
            items: ids of the pool, or new inputs (an array, a tensor or a dict of them); None (default): the pool.

        Returns:
            An array: class names, or class ids where classes have no names; floats in regression; with multi_label
            tuples of them, the classes whose output is above a half.

        Raises:
            RuntimeError: nothing has been learned yet.
        """
        f_nC = self._outputs(items).cpu()
        if self._now.kind.regression:
            return f_nC[:, 0].numpy()
        said = [self._now.kind.show(y) for y in self._now.kind.decide(f_nC)]
        if not self._now.kind.multi:
            return np.array(said)
        found = np.empty(len(said), dtype=object)
        found[:] = said
        return found

    def predict_proba(self, items: Any = None) -> Tensor:
        """The probabilities of the classes, (n, C) float64.

        Args:
            items: as for ``predict``.

        Returns:
            A tensor. With loss="l2" the outputs are projected on the simplex; with the pool they are squared too. With
            multi_label each is that of one class, and they need not add up to 1.

        Raises:
            RuntimeError: nothing has been learned yet.
            ValueError: this is regression.
        """
        if self._now.kind.regression:
            raise ValueError("regression has no classes, so no probabilities; use predict()")
        with self._lock:
            f_nC = self._outputs(items)
            return self._now.trained_model().probabilities(f_nC)

    def rough_proba(self, wait: bool = True) -> Tensor:
        """The probabilities of the classes for the whole pool, (N, C), quickly also where it is large.

        Items that the model works on (``window_ids``) have those of ``predict_proba``. The others have those of the
        network as it was last trained: one forward pass a training, while labels since do not move them.

        Args:
            wait: whether to wait for that pass, default True. False returns at once: the pass goes on in the
                background (``rough_progress``), and items that it has not come to have what the network before it
                said, or NaN.

        Raises:
            RuntimeError: nothing has been learned yet.
            ValueError: this is regression.
        """
        kind, pool = self._now.kind, self._now.pool
        if kind.regression:
            raise ValueError("regression has no classes, so no probabilities; use predict()")
        with self._lock:
            model = self._now.trained_model()
            at_M, loss, rough = list(model.at_M), self._now.plan.loss, self._rough
            p_MC = model.probabilities(model.follow(self._now.book).pool_mean)
        p_NC = p_MC.new_empty(len(pool), kind.C)
        if len(at_M) < len(pool):
            squash = partial(torch.clamp, min=0, max=1) if kind.multi else partial(probabilities, loss=loss)
            p_NC = rough.read(model.frozen, squash, p_MC[0], wait)
        p_NC[at_M] = p_MC
        return p_NC

    @property
    def rough_progress(self) -> tuple[int, int] | None:
        """Items that a pass of ``rough_proba(wait=False)`` has looked at, of how many; None if none is under way."""
        return self._rough.progress

    def explain(self, item: Hashable, label: Any = None, *, most: int = 10) -> dict[str, Any]:
        """Why an item is worth a label: what would change in the pool if it had one, and which items it stands for.

        Args:
            item: an id.
            label: the label to suppose. None (default): the one it has, or else its likeliest (in regression, one
                standard deviation above its mean). What a label changed can so be asked after it was given.
            most: how many items to name in each list, default 10.

        Returns:
            A dict that JSON can hold: "id" and "label"; "changes", how many open items would change class (in
            regression: move), and "changed", the first of them: their "id", the class they change "from" and "to", and
            "by" how much their outputs move; "stands_for", how many items are like this one to the model, and
            "nearest", the first of them with "alike" from 0 to 1; "probabilities" of the item's classes; in
            regression "mean" and "deviation". With multi_label also "questions": for each class, how many open items
            would change their answer to it if this one is "yes", and if it is "no".

        Raises:
            KeyError: the id is not in the pool.
            RuntimeError: nothing has been learned yet.
        """
        with self._lock:
            p, kind = self._find(item), self._now.kind
            model = self._now.trained_model()
            model.admit([p])
            known = None if label is None else kind.read(label)
            return explain_item(model, self._now.book, p, known, whole_number("most", most))

    def mistakes(self, also: Mapping[Any, Any] | None = None) -> list[dict[str, Any]]:
        """Labels by how surely they are wrong: each is held against what all other labels say of its item.

        One solve for all labels, no training; more than 2,048 are judged in random blocks, each label against the
        others of its block. The chances of the first n add up to how many of them are expected to be wrong. Answers of
        other threads do not wait for it.

        Args:
            also: id -> label of items that the learner was not taught, to be judged with the others; for example
                those that are kept for a test. The learner does not learn them.

        Returns:
            One dict for each label, the most doubtful first: "id", "label", "wrong", the chance that the label is
            wrong, "likely", the class that the other labels say, and "probability", how sure they are of it. Empty
            while nothing has been learned, or with fewer than ten labels.

        Raises:
            KeyError: an id is not in the pool.
            ValueError: this is regression, or a label is of no class.

        Example:
            >>> import torch, foretaste as ft
            >>> x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
            >>> labels = {i: int(x[i, 0] > 0) for i in range(40)}
            >>> labels[7] = 1 - labels[7]
            >>> learner = ft.Learner(pool=x, classes=2, labels=labels, fit_options={"steps": 50})
            >>> found = learner.mistakes()
            >>> found[0]["id"], found[0]["likely"] == 1 - labels[7]
            (7, True)
        """
        kind = self._now.kind
        if kind.regression:
            raise ValueError("regression has no classes, so no wrong ones; look at predict() and the labels")
        with self._lock:
            given = self._read_labels((also or {}).keys(), (also or {}).values())
            labels = self._now.judged_labels(given)
        if labels is None:
            return []
        rows = list[tuple[int, float, Any, float]]()  # position, how surely wrong, what the others say, how surely
        for at in judged_together(list(labels), len(self._now.pool), self._now.settings.seed):
            with self._lock:
                theta_LL, plain_LL = self._now.judged_kernels(at)
            y_L = [labels[p] for p in at]
            if kind.multi:
                wrong_L, p_LC = doubt_sets(theta_LL, plain_LL, kind.targets(y_L).to(theta_LL))
                sure_L, likely = row_products(torch.maximum(p_LC, 1 - p_LC)), kind.decide(p_LC)
            else:
                classes_L = torch.tensor(y_L, device=theta_LL.device)
                wrong_L, p_LC = doubt_labels(theta_LL, plain_LL, classes_L, kind.C)
                sure_L, likely = p_LC.amax(1), p_LC.argmax(1).tolist()
            rows += zip(at, wrong_L.tolist(), likely, sure_L.tolist())
        rows.sort(key=lambda row: (-row[1], row[0]))
        return [
            {
                "id": self._now.pool.ids[p],
                "label": kind.show(labels[p]),
                "wrong": wrong,
                "likely": kind.show(said),
                "probability": sure,
            }
            for p, wrong, said, sure in rows
        ]

    def saved(self, drawn: Mapping[Any, Any]) -> dict[str, Any] | None:
        """How many labels the order of the questions has saved, measured on items drawn at random.

        Some labels of the m items drawn predict the others: this is what labels in random order reach. The labels that
        were taught, in their order, predict the same items. The two learning curves say how many labels in random order
        one that was asked for is worth. The kernel is that of the model now, for both; nothing is trained.

        Args:
            drawn: id -> label of items drawn at random that the learner was not taught.

        Returns:
            None with fewer than 20 items drawn, 10 labels, or without a model. Else a dict: "random", m − 1; "accuracy"
            of so many in random order; "worth", how many of them one label that was asked for is worth, 1/4 to 16;
            "asked", how many of those do the same; "saved", the difference, with "low" and "high", its 95 % interval.

        Raises:
            KeyError: an id is not in the pool.
            ValueError: this is regression, or a label is of no class.

        Example:
            >>> import torch, foretaste as ft
            >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
            >>> truth = (x[:, 0] > 0).long().tolist()
            >>> learner = ft.Learner(pool=x, classes=2, fit_options={"steps": 50})
            >>> learner.ignore(range(40))
            >>> for _ in range(20):
            ...     ids = learner.query(1)
            ...     learner.teach(ids, [truth[i] for i in ids])
            >>> found = learner.saved({i: truth[i] for i in range(40)})
            >>> found["random"], found["saved"] > 0
            (39, True)
        """
        kind = self._now.kind
        if not kind.single:
            raise ValueError("only one class an item has an accuracy to compare; look at status()")
        with self._lock:
            given = self._read_labels(drawn.keys(), drawn.values())
            taught = [p for p in self._now.book.labels if p not in given]
            labels = self._now.judged_labels(given)
            if labels is None or len(given) < FEWEST_DRAWN or len(taught) < FEWEST_ASKED:
                return None
            at = sorted([*given, *taught][:MOST_TOGETHER])  # of those taught the first count
            theta_NN, _ = self._now.judged_kernels(at)
        row, y_N = {p: n for n, p in enumerate(at)}, torch.tensor([labels[p] for p in at], device=theta_NN.device)
        asked = [row[p] for p in taught if p in row]
        return compare_random(theta_NN, y_N, kind.C, asked, [row[p] for p in given])

    def drift(self) -> dict[str, Any]:
        """How far the linearised model has left the network it was taken of, and whether to train it anew.

        Returns:
            A dict that JSON can hold. "retrain" is the advice, "reason" says why in words. "trained_on", "new" and
            "changed" count labels: those that the network was trained on, those given since, and those of the first
            that were changed or forgotten. "moved": how far the labels since have moved the outputs, in units of
            their spread. "flipped": the share of items that they gave another class. "surprise": the squared error of
            labels before they were absorbed, in units of what the model expected. "wrong" and "wrong_expected": how
            often its class was wrong before the label came, and how often it expected to be.
        """
        with self._lock:
            return self._now.drift()

    def status(self, *, goal: float = 0.02) -> dict[str, Any]:
        """How the labelling goes.

        Args:
            goal: the share of open items that may be wrong at the end, default 0.02.

        Returns:
            A dict that JSON can hold. Counts: "items", "labelled", "pending", "ignored", "open", and labels of each
            class in "classes". "curve": for each label that was predicted before it was taught, the number of "labels"
            then, its "value" (1 if it was right) and the running "accuracy" of the last 50; "accuracy": the last of
            these. Items asked for are harder than the rest, so this is less than the accuracy on the pool. "error":
            the share of open items that are expected to be wrong, "model" as the model says, "corrected" by how often
            it was wrong on the labels so far. "stop" with its "reason"; "drift", as ``drift`` gives it; "training":
            whether one is "running", their "count", and the "failure" of the last, if it failed. "pool": None without
            a graph; else whether it is "used", its "gamma" and "ridge", the share of labels that are predicted right
            when they are left out, "hits" with it and "hits_without", the same in a sentence, "text", and a "warning"
            where answers since the training speak against it, else None.
        """
        with self._lock:
            return self._now.status(real_number("goal", goal, 0))

    def track_record(self) -> list[dict[str, Any]]:
        """What was predicted of each label just before it came, for ``recall``.

        Returns:
            In their order, dicts that JSON can hold if ids can: "id", "predicted", and "error", the chance of being
            wrong that the model gave (in regression, the standard deviation).
        """
        with self._lock:
            show, ids, found = self._now.kind.show, self._now.pool.ids, self._now.book.predictions.values()
            return [{"id": ids[p.position], "predicted": show(p.predicted), "error": p.error} for p in found]

    def recall(self, record: Iterable[Mapping[str, Any]]) -> None:
        """Take over the track record of an earlier learner, so that ``status`` goes on from there.

        For labels that are taught again after a restart: a learner that is given all of them at once has predicted
        none of them. Items without a label now are left out, and so are those that this learner has predicted itself.

        Args:
            record: what ``track_record`` returned.
        """
        with self._lock:
            book, earlier = self._now.book, dict[int, Prediction]()
            for said in record:
                at = self._position.get(plain_id(said["id"]))
                if at in book.labels:
                    predicted, error = self._now.kind.read(said["predicted"]), real_number("error", said["error"], 0)
                    earlier[at] = Prediction(at, predicted, error, 1.0, -1)
            book.predictions = {**earlier, **book.predictions}

    def _outputs(self, items: Any) -> Tensor:
        """(n, C) outputs of the model after the labels."""
        with self._lock:
            at = range(len(self)) if items is None else self._as_positions(items)
            if at is not None:
                return self._now.outputs_at(at)
            if is_frame(items):  # the pool may have been encoded, or have its columns in another order
                raise TypeError(
                    "items is a data frame; expected ids, an array, a tensor or a dict of them: rows of numbers, as "
                    "the pool has them, are items[columns].to_numpy()"
                )
            new, model = make_pool(items), self._now.trained_model()
            if new.whole is None and not isinstance(items, np.ndarray):
                raise TypeError(f"x is a {type(items).__name__}; expected ids, an array, a tensor or a dict of them")
            x = new.take(range(len(new)), model.frozen.device, model.frozen.dtype)
            return model.outputs_of(x, self._now.book)

    # Training.

    def retrain(self, wait: bool = False) -> None:
        """Train the network on all labels so far, in the background, and linearise it anew.

        Labelling goes on meanwhile. When the new network takes over, labels given since are absorbed by it. If the
        training fails, the old network stays. If one is under way already, in the background or in another thread, it
        is not started a second time. A program that ends stops it; a function of yours (``train=``) is waited for.

        Args:
            wait: whether to return only when a network that was trained on all labels so far is in use. Default False.
                A training that is under way is waited for, and another one follows only if labels have changed since.

        Raises:
            ValueError: there are too few labels to train on.
            Diverged: with ``wait``, if the loss became NaN or infinite; the old network stays.
            RuntimeError: with ``wait``, if it is called by your own ``train=``.
        """
        self._now.start_training(wait)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a training in the background.

        Args:
            timeout: seconds; None (default): as long as it takes.

        Returns:
            Whether none is under way any more.
        """
        if (worker := self._now.worker) is None:
            return True
        worker.join(timeout)
        return not worker.is_alive()

    def stop_training(self) -> None:
        """Ask a training in the background to stop. It does so within a few steps; the network from before stays.

        ``wait`` then waits for its end. A function of yours (``train=``) is not stopped. A pass of ``rough_proba``
        stops too.
        """
        self._now.stop_training()
        self._rough.stop()

    @property
    def training(self) -> bool:
        """Whether a training is under way in the background."""
        return self._now.worker is not None

    # Files.

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the learner into a folder: labels, settings, network, and the pool if it is in memory.

        A save is whole or has not happened; an earlier one is replaced. Functions are not saved: ``train``, one as
        ``params``, and those in ``fit_options``.

        Args:
            folder: made if it does not exist.
        """
        with self._lock:
            found = self._now.as_json()
            net = None if self._now.held is None else self._now.net
        write_saved(Path(folder), found, net, self._now.pool.whole)

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        net: nn.Module | None = None,
        pool: Any = None,
        train: TrainFunction | None = None,
        params: Params = None,
        graph: Graph | None = None,
    ) -> "Learner":
        """Read a learner that ``save`` wrote. Its next query is the one that the saved learner would give.

        Args:
            folder: the folder.
            net: a module to load the weights into, if the network is neither built in nor the learner's own.
            pool: the pool, if it was a dataset, whose items are not saved. It must be the same.
            train: your own training, as for ``Learner``.
            params: as for ``Learner``, if it was a function.
            graph: as for ``Learner``, if it had a function as vectors.

        Returns:
            The learner.

        Raises:
            ValueError: the folder is damaged, or does not fit ``net`` or ``pool``.
        """
        folder = Path(folder)
        found = read_saved(folder)
        try:
            session = Session.from_json(folder, found, net, pool, train, params, graph)
        except (KeyError, TypeError, IndexError, AttributeError, OverflowError, RuntimeError) as error:
            raise ValueError(f"{folder / SAVED_LEARNER} is damaged: {type(error).__name__} {error}") from error
        except ValueError as error:
            if str(folder) in str(error) or any(f"{name}=" in str(error) for name in ("net", "pool", "graph")):
                raise
            raise ValueError(f"{folder} is damaged, or does not fit net= or pool=: {error}") from error
        learner = cls.__new__(cls)
        learner._hold(session)
        return learner

    # Ids and labels in.

    def _read_labels(self, ids: Iterable[Any], labels: Iterable[Any], doubts: Any = None) -> dict[int, Label]:
        found: dict[int, Label] = {}
        ids = list(ids)
        doubted = [0.0] * len(ids) if doubts is None else _several(doubts)
        if len(doubted) != len(ids):
            raise ValueError(f"ids are {len(ids)} and doubts {len(doubted)}; expected one doubt for each")
        for i, label, doubt in zip(ids, labels, doubted):
            p = self._find(i)
            try:
                y = self._now.kind.doubted(self._now.kind.read(label), real_number("doubt", doubt, 0))
            except ValueError as error:
                raise ValueError(f"item {self._shown(p)}: {error}") from None
            if found.get(p, y) != y:
                raise ValueError(f"item {self._shown(p)} comes twice, with different labels")
            found[p] = y
        return found

    def _find(self, i: Any) -> int:
        if type(i) in (str, int) and i in self._position:
            return self._position[i]
        try:
            known = plain_id(i)
        except TypeError:
            raise unknown_item(i, self._now.pool.ids) from None
        if known not in self._position:
            raise unknown_item(known, self._now.pool.ids)
        return self._position[known]

    def _positions(self, ids: Any) -> list[int]:
        return list(dict.fromkeys(self._find(i) for i in _several(ids)))

    def _as_positions(self, items: Any) -> list[int] | None:
        """The positions of ids; None if these are inputs."""
        if isinstance(items, Mapping) or is_frame(items):
            return None
        if isinstance(items, Tensor | np.ndarray):
            numbers = items.is_floating_point() if isinstance(items, Tensor) else items.dtype.kind not in "iuUO"
            if numbers or np.ndim(items) > 1:
                return None
        return [self._find(i) for i in _several(items)]

    def _shown(self, p: int) -> str:
        return shown_id(self._now.pool.ids[p])


def probe_network(net: nn.Module | None, pool: Pool) -> int | None:
    """The number of outputs; raises if the network does not take the pool's items."""
    if net is None:
        return None
    frozen = freeze(net)
    x = pool.take(range(min(3, len(pool))), frozen.device, frozen.dtype)
    return probe_outputs(frozen, x, "pool")


def _given_labels(pool: Pool, labels: Any) -> dict[Hashable, Any]:
    """id -> label, of a dict or of one entry for each item."""
    if labels is None:
        return {}
    if isinstance(labels, Mapping):
        return {plain_id(i): y for i, y in labels.items() if not _missing(y)}
    entries = _several(labels)
    if len(entries) != len(pool):
        raise ValueError(
            f"labels has {counted(len(entries), 'entry', 'entries')} and pool {counted(len(pool), 'item')}; expected "
            "one for each item, None where there is none, or a dict from id to label"
        )
    return {i: y for i, y in zip(pool.ids, entries) if not _missing(y)}


def _is_one(value: Any) -> bool:
    """Whether this is one id or label, and not several of them: text, a number, a tensor without dimensions."""
    if isinstance(value, Tensor | np.ndarray):
        return np.ndim(value) == 0
    return isinstance(value, str | bytes) or not isinstance(value, Iterable)


def _several(value: Any) -> list[Any]:
    """One id or label, or several, as a list."""
    if _is_one(value):
        return [value.item() if isinstance(value, np.ndarray) else value]
    return value.tolist() if isinstance(value, Tensor | np.ndarray) else list(value)


def _pair(ids: Any, labels: Any, multi: bool = False) -> tuple[list[Any], list[Any]]:
    """ids and labels of the same length. ``multi``: a label is a list itself."""
    names, values = _several(ids), [labels] if multi and _is_one(ids) else _several(labels)
    if _is_one(labels) and not _is_one(ids):
        raise ValueError(f"labels is {labels!r:.40} for {counted(len(names), 'id')}; expected one label for each")
    if len(values) != len(names):
        raise ValueError(f"ids are {len(names)} and labels {len(values)}; expected one label for each")
    return names, values


def _missing(label: Any) -> bool:
    """None and NaN (pandas has NA and NaT besides) mean that there is no label."""
    if label is None or type(label).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(label, float) and label != label
