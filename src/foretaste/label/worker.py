"""The learner on a thread of its own: answers go in, and out comes what to ask next and why.

Requests never wait for the learner longer than they want to. They read the latest ``ModelView``, which is replaced as a
whole. Until the learner is there (its features are computed first) views are empty and the desk asks at random.
"""

import ctypes
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from foretaste.errors import counted, real_number
from foretaste.label.task import LabelTask

if TYPE_CHECKING:
    from foretaste.label.desk import LabelDesk
    from foretaste.label.learner import Learner

log = logging.getLogger(__name__)

LIKELY_SHOWN = 3  # classes of an item that the page shows
IDLE_SECONDS = 1.0  # between looks at a training in the background
POINTS_KEPT = 400  # of the curve on the items that measure
STOP_GOAL = 0.02  # share of open items that may be wrong when one stops
RECORD_KEPT = 200  # of the predictions before a label came; advice looks at the last 50
M_MMAP_THRESHOLD, LARGE_BLOCK = -3, 1 << 22  # of mallopt, in bytes
TRIMMED_EVERY = 50  # labels after which free memory goes back to the system
KEPT_EVERY = 5  # labels after which what was measured is written again

BuildProgress = Callable[[int, int], None]  # done, of how many


@dataclass(frozen=True)
class BuiltLearner:
    """A learner, and in words what it sees of the items: the features, or the small network."""

    learner: "Learner"
    words: str


@dataclass(frozen=True)
class ModelView:
    """What the model thinks now. ``absorbed`` is the number of the last change that it knows."""

    absorbed: int = 0
    ready: tuple[str, ...] = ()  # what to ask next, best first
    whole: bool = False  # whether no more items are being ranked
    likely: Mapping[str, tuple[tuple[str, float], ...]] = field(default_factory=dict)  # item → (class, probability)
    guesses: Mapping[str, tuple[str, float]] = field(
        default_factory=dict
    )  # item → its label as it is predicted, how sure
    reasons: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # item → what its label would change
    changed: Mapping[str, Any] | None = None  # what the last answer changed
    checked: tuple[tuple[int, int, int], ...] = ()  # (labels, right, of how many) on the items that measure
    advice: Mapping[str, Any] = field(default_factory=dict)  # when to stop, when to retrain
    record: tuple[Mapping[str, Any], ...] = ()  # what was predicted of each label before it came


class LearnerWorker(threading.Thread):
    """Builds the learner, then keeps it in step with the store.

    ``checked`` and ``record`` are those of a ``ModelView`` of earlier sessions. ``keep`` is called with the view at
    first and every fifth label. ``trains_itself``: also when the learner advises it, not only when a person asks.
    """

    def __init__(
        self,
        build: Callable[[BuildProgress], BuiltLearner],
        classes: Sequence[str],
        *,
        checked: Iterable[Sequence[int]] = (),
        record: Iterable[Mapping[str, Any]] = (),
        keep: Callable[[ModelView], None] | None = None,
        goal: float = STOP_GOAL,
        trains_itself: bool = True,
    ) -> None:
        super().__init__(name="foretaste-learner")  # no daemon: it would be cut off within torch at exit
        self.view = ModelView(
            checked=tuple((int(n), int(k), int(m)) for n, k, m in checked), record=tuple(dict(p) for p in record)
        )
        self._build, self._classes, self._keep = build, list(classes), keep
        self._kept: int | None = None  # labels when the measures were last kept
        self._trimmed = 0  # labels when free memory last went back
        self._trains_itself, self._goal = trains_itself, real_number("goal", goal, 0)
        self._turn = threading.Condition()
        self._dirty: dict[str, None] = {}
        self._missed: dict[str, None] = {}
        self._told = 0
        self._tabs, self._ahead = 1, 0
        self._closing = self._retrain = self._stale = self._classes_changed = False
        self._phase, self._words, self._error = "waiting", "", ""
        self._done = self._total = 0
        self._labels = 0
        self._learner: Learner | None = None
        self._predicted: dict[str, str] | None = None  # of the items that the model works on

    # Called by the desk

    def connect(self, desk: "LabelDesk") -> None:
        """Say where to look: which items there are, what each should be, which are on a screen or skipped."""
        self._desk = desk

    def tell(self, item: str) -> int:
        """Something about an item has changed. Returns the number of the change."""
        with self._turn:
            self._dirty[item] = None
            self._told += 1
            self._turn.notify_all()
            return self._told

    def serve(self, items: Iterable[str], tabs: int) -> None:
        """Items went to a screen; so many tabs are active. The next items are ranked ahead."""
        with self._turn:
            self._tabs = max(1, tabs)
            if set(items) & set(self.view.ready):
                self._stale = True
                self._turn.notify_all()

    def rank_ahead(self, count: int) -> None:
        """Keep at least so many items ranked, for a queue that is elsewhere."""
        with self._turn:
            self._ahead, self._stale = count, True
            self._turn.notify_all()

    def wait_for(self, number: int, seconds: float) -> bool:
        """Wait until the learner knows a change, if there is a learner. Whether it does."""
        with self._turn:
            if self._learner is None or self._error:
                return False
            return self._turn.wait_for(lambda: self.view.absorbed >= number or self._closing, seconds)

    def ask_retrain(self) -> None:
        """Train the network anew, in the background."""
        with self._turn:
            self._retrain = True
            self._turn.notify_all()

    def tell_classes(self) -> None:
        """The classes have changed: the model follows, with all labels."""
        with self._turn:
            self._classes_changed = True
            self._turn.notify_all()

    def close(self, seconds: float | None = None) -> None:
        """Stop the thread and a training, and wait until both have ended the step they are in."""
        with self._turn:
            self._closing = True
            self._turn.notify_all()
        if self._learner is not None:
            self._learner.stop_training()
        if self.is_alive():
            self.join(seconds)
        if self._learner is not None:  # the thread may have started one since
            self._learner.stop_training()
            self._learner.wait(seconds)

    def predictions(self) -> list[tuple[str, str, float]]:
        """Each item with its likeliest class and the probability of that, after all labels so far."""
        learner = self._learner
        if learner is None or not learner.ready:
            raise ValueError("there are no predictions yet; answer items of two classes first")
        said, sure_N = self._say(learner)
        return list(zip(self._desk.data.ids, said, sure_N.tolist()))

    @property
    def _task(self) -> LabelTask:
        return self._desk.store.task

    def _say(self, learner: "Learner", items: Sequence[str] | None = None) -> tuple[list[str], np.ndarray]:
        """What is predicted of items, or of all, as text, and how sure each is; NaN for numbers."""
        task = self._task
        if task.kind == "number":
            said = [task.said(value) for value in learner.predict(items)]
            return said, np.full(len(said), np.nan)
        p_NC, names = np.asarray(learner.predict_proba(items)), [str(name) for name in learner.classes or ()]
        if task.one:  # of the same probabilities: the outputs of a large window with many classes take a while
            return [names[c] for c in p_NC.argmax(1)], p_NC.max(1)
        return [task.said(value) for value in learner.predict(items)], np.maximum(p_NC, 1 - p_NC).prod(1)

    def probabilities(self) -> tuple[list[str], np.ndarray] | None:
        """The names of the classes, and their probabilities for each item, rough in a large pool; None if no model.

        NaN for items that the network has yet to look at: nobody waits for that (``describe`` says how far it is).
        """
        learner = self._learner
        if learner is None or not learner.ready:
            return None
        return [str(name) for name in learner.classes or ()], np.asarray(learner.rough_proba(wait=False))

    def alike(self, item: str, most: int) -> list[str]:
        """The items that are most like one to the model, the nearest first."""
        learner = self._learner
        if learner is None or not learner.ready:
            return []
        return [str(row["id"]) for row in learner.explain(item, most=most)["nearest"]]

    def follow(self, items: Iterable[str]) -> list[int]:
        """How many other predictions change if each of the items is what the model says.

        0 for what the model does not work on now: to take it in would cost a copy of Θ for each.
        """
        learner = self._learner
        if learner is None or not learner.ready:
            return [0 for _ in items]
        inside = {str(i) for i in learner.window_ids}
        return [int(learner.explain(i, most=0)["changes"]) if i in inside else 0 for i in items]

    def mistakes(self, also: Mapping[str, str]) -> list[dict[str, Any]]:
        """What ``Learner.mistakes`` says of the labels, and of others that it was not taught; empty without a model."""
        learner = self._learner
        if learner is None or not learner.ready or self._task.kind == "number":
            return []
        found = learner.mistakes({item: self._task.taught(label) for item, label in also.items()})
        return [row | {name: self._task.said(row[name]) for name in ("label", "likely")} for row in found]

    def saved(self, drawn: Mapping[str, str]) -> dict[str, Any] | None:
        """What ``Learner.saved`` says of the labels of items drawn at random; None without a model."""
        learner = self._learner
        return None if learner is None or not learner.ready or not self._task.one else learner.saved(drawn)

    def describe(self) -> dict[str, Any]:
        """What the model is, and what it is doing."""
        learner, phase = self._learner, self._phase
        if phase == "ready" and learner is not None:
            phase = "training" if learner.training else "ready" if learner.ready else "first labels"
        return {
            "phase": phase,
            "words": self._words,
            "error": self._error,
            "done": self._done,
            "total": self._total,
            "labels": self._labels,
            "answers": learner is not None and learner.ready,
            "looked": None if learner is None else learner.rough_progress,
        }

    # The thread

    @property
    def _ending(self) -> bool:
        """Whether the desk is closed, or the program ends without having closed it."""
        return self._closing or not threading.main_thread().is_alive()

    def run(self) -> None:
        try:
            self._phase = "features"
            built = self._build(self._progress)
            self._words = built.words
            self._take_over(built.learner)
        except Exception as error:  # told on the page; labelling goes on in a random order
            if self._ending:  # nobody is there to be told
                return
            log.warning("the model could not be made: %s", error)
            self._phase, self._error = "failed", str(error) or type(error).__name__
            self._publish(absorbed=self._told)
            return
        while self._next_turn():
            try:
                self._one_turn()
            except Exception as error:
                if self._ending:  # the store is closed perhaps
                    return
                log.warning("the model could not follow: %s", error, exc_info=True)
                self._error = str(error) or type(error).__name__
                self._publish(absorbed=self._told)

    def _progress(self, done: int, total: int) -> None:
        if self._ending:
            raise RuntimeError("the desk was closed")
        self._done, self._total = done, total

    def _take_over(self, learner: "Learner") -> None:
        """Bring a new learner to where the people are."""
        with self._turn:
            number, self._dirty = self._told, {}
        self._learner = learner
        self._follow_classes(learner)
        self._follow(learner, self._desk.data.ids)
        guide, task = self._desk.store.guide, self._task
        said = [{**p, "predicted": task.counts_as(task.said(p["predicted"]), guide)} for p in self.view.record]
        known = [p for p in said if {*task.names(p["predicted"])} <= {*self._classes}]
        learner.recall([{**p, "predicted": task.taught(p["predicted"])} for p in known])
        self._phase = "ready"
        self._rank(learner, number)

    def _is_called(self) -> bool:
        """Whether an answer waits, or the end."""
        with self._turn:
            return bool(self._dirty) or self._ending

    def _next_turn(self) -> bool:
        """Wait for something to do; a training that has ended counts."""
        learner = self._learner
        assert learner is not None
        was = learner.training
        with self._turn:
            while not (self._dirty or self._retrain or self._stale or self._classes_changed or self._ending):
                self._turn.wait(IDLE_SECONDS)
                if was and not learner.training:
                    break
            return not self._ending

    def _one_turn(self) -> None:
        learner = self._learner
        assert learner is not None
        with self._turn:
            items, number, self._dirty = [*{**self._missed, **self._dirty}], self._told, {}
            retrain, self._retrain, self._stale = self._retrain, False, False
            classes, self._classes_changed = self._classes_changed, False
        if classes and self._follow_classes(learner):
            self._missed, items = dict.fromkeys(self._desk.data.ids), list(self._desk.data.ids)
            retrain = learner.ready and len(set(learner.labels.values())) > 1
        before, labels = self._predicted or self._predict(learner), self._labels
        self._missed = dict.fromkeys(items)  # tried again if this turn fails
        self._follow(learner, items)
        self._missed = {}
        self._rank(learner, number)
        if retrain:
            learner.retrain()
        if learner.ready:
            self._explain(learner, items, before if self._labels != labels else None)
            self._measure(learner)
        if abs(self._labels - self._trimmed) >= TRIMMED_EVERY:
            self._trimmed = self._labels
            return_free_memory()
        self._error = ""

    def _predict(self, learner: "Learner") -> dict[str, str] | None:
        """What is predicted of the items that the model works on, where the last turn had no time to say it."""
        if not learner.ready or self._task.kind == "number":
            return None
        ids = [str(i) for i in learner.window_ids]
        return dict(zip(ids, map(self._task.said, learner.predict(ids))))

    def _follow_classes(self, learner: "Learner") -> bool:
        """Add, rename and merge until the learner has the classes of the store, in an order of its own; whether it did.

        A class that a split brings back gets its labels from ``_follow``.
        """
        guide, old = self._desk.store.guide, [str(name) for name in learner.classes or ()]
        now = [guide.counts_as(name) for name in old]
        names = [*dict.fromkeys(now), *(name for name in guide.names if name not in now)]
        if names != old:
            learner.change_classes(names, dict(zip(old, now)))
            self._predicted = None
        self._classes = names
        return names != old

    def _follow(self, learner: "Learner", items: Iterable[str]) -> None:
        """Teach, relabel, unlabel, ignore and restore until the learner knows what the store knows."""
        task, ignored = self._task, {*learner.ignored}
        labels = {item: task.said(label) for item, label in learner.labels.items()}
        doubts = learner.doubts
        new, again, aside = dict[str, str](), dict[str, str](), list[str]()
        for item in items:
            wanted, known = self._desk.wanted(item), "" if item in ignored else labels.get(item)
            if wanted == known and (not wanted or self._desk.doubt(item) == doubts.get(item, 0.0)):
                continue
            if known == "":
                learner.restore([item])
            if wanted == "":
                aside.append(item)
            elif wanted is None:
                if known:
                    learner.unlabel([item])
            elif known:
                again[item] = wanted
            else:
                new[item] = wanted
        if aside:
            learner.ignore(aside)
        for given, tell in ((again, learner.relabel), (new, learner.teach)):
            if given:
                tell(list(given), [task.taught(y) for y in given.values()], doubts=list(map(self._desk.doubt, given)))
        self._labels = len(learner.labels)

    def _rank(self, learner: "Learner", number: int) -> None:
        """What to ask next: one item first, so that nobody waits for the others."""
        skipped = self._desk.skipped()
        # Skipped items stay pending, or they would be asked for again and again.
        busy = {*self._desk.store.held(), *skipped}
        learner.release([i for i in learner.pending if i not in busy])

        def ask() -> list[str]:
            while (found := [str(i) for i in learner.query(1)]) and found[0] in skipped:
                pass
            return found

        ready = ask()
        self._publish(absorbed=number, ready=tuple(ready), whole=False)
        for _ in range(max(self._tabs, self._ahead - 1)):
            if self._is_called():
                return
            more = ask()
            if not more:
                break
            ready += more
            self._publish(ready=tuple(ready))
        self._publish(whole=True)

    def _explain(self, learner: "Learner", items: Sequence[str], before: Mapping[str, str] | None) -> None:
        """Probabilities and reasons of what is on a screen or comes next, and what the last answer changed.

        An answer that waits goes before what the last one changed.
        """
        labels, ignored = learner.labels, {*learner.ignored}
        shown = [i for i in dict.fromkeys((*self._desk.store.held(), *self.view.ready)) if i not in labels]
        likely, task = dict[str, tuple[tuple[str, float], ...]](), self._task
        if shown and task.kind != "number":
            for item, p_C in zip(shown, np.asarray(learner.predict_proba(shown))):
                best = np.argsort(-p_C, kind="stable")[:LIKELY_SHOWN] if task.one else range(len(p_C))
                likely[item] = tuple((self._classes[c], float(p_C[c])) for c in best)
        guesses = {i: (label, float(p)) for i, label, p in zip(shown, *self._say(learner, shown))} if shown else {}
        self._publish(likely=likely, guesses=guesses)
        self._predicted = None
        if self._is_called():
            return
        # What changed is counted on the items that the model works on: the others of a large pool take seconds.
        ids, changed = [str(i) for i in learner.window_ids], self.view.changed
        said, sure_N = self._say(learner, ids)
        after = dict(zip(ids, said))
        if before is not None and before.keys() == after.keys() and items and task.kind != "number":
            item = items[-1]  # numbers are left out: every answer moves all of them a little
            sure_N[[i == item for i in ids]] = np.nan  # it does not follow from itself
            label = task.said(labels[item]) if item in labels else None
            was_N, now_N = (np.array([*answers.values()]) for answers in (before, after))
            changed = describe_change(item, was_N, now_N, label, sure_N)
        self._predicted = after
        self._publish(changed=changed)
        reasons = {item: self.view.reasons[item] for item in shown if item in self.view.reasons}
        for item in shown:
            if self._is_called():
                return
            if item not in ignored:
                reasons[item] = describe_reason(learner.explain(item), task)
                self._publish(reasons=dict(reasons))

    def _measure(self, learner: "Learner") -> None:
        """Accuracy on the items that measure, and advice."""
        if self._is_called():
            return
        truth = {i: label for i in self._desk.check_ids if (label := self._desk.label_of(i)) is not None}
        checked = list(self.view.checked)
        if truth:
            right = sum(map(self._task.near, self._say(learner, list(truth))[0], truth.values()))
            point = (self._labels, right, len(truth))
            checked = [p for p in checked if p[0] < self._labels] + [point]  # after an undo: those ahead are gone
        status = learner.status(goal=self._goal)
        self._publish(
            checked=tuple(checked[-POINTS_KEPT:]),
            advice=describe_advice(status),
            record=tuple(learner.track_record()[-RECORD_KEPT:]),
        )
        if self._keep is not None and (self._kept is None or abs(self._labels - self._kept) >= KEPT_EVERY):
            self._kept = self._labels
            self._keep(self.view)
        if self._trains_itself and (status.get("drift") or {}).get("retrain") and not learner.training:
            learner.retrain()

    def _publish(self, **changes: Any) -> None:
        with self._turn:
            self.view = replace(self.view, **changes)
            self._turn.notify_all()


def map_large_blocks() -> None:
    """Let every block of 4 MB or more go back to the system when it is freed, for a process that runs for hours.

    Else glibc raises that size to 32 MB by itself, and keeps what many labels leave in pieces: 300 MB and more.
    """
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
    except (AttributeError, OSError, TypeError):  # another C library
        return


def return_free_memory() -> None:
    """Give free pages back to the system. glibc keeps what large tensors of several threads leave: 200 MB and more."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return
    trim(0)


def describe_change(
    item: str, before: np.ndarray, after: np.ndarray, label: str | None = None, sure_N: np.ndarray | None = None
) -> dict[str, Any]:
    """How many predictions of the pool an answer has changed, and between which classes most.

    "followed": how many others now have the label of the answer, and how sure that is on average. ``sure_N`` are the
    probabilities of the predictions after it, NaN for the item itself.
    """
    moved = before != after
    pairs = Counter(zip(before[moved].tolist(), after[moved].tolist())).most_common(3)
    most = [{"from": str(a), "to": str(b), "count": n} for (a, b), n in pairs]
    found: dict[str, Any] = {"item": item, "moved": int(moved.sum()), "of": len(after), "most": most}
    if label is not None and sure_N is not None and (with_it := moved & (after == label) & ~np.isnan(sure_N)).any():
        found["followed"] = {"label": label, "count": int(with_it.sum()), "sure": float(sure_N[with_it].mean())}
    return found


def describe_reason(found: Mapping[str, Any], task: LabelTask | None = None) -> dict[str, Any]:
    """Why an item is asked for, in sentences, from what ``Learner.explain`` returns."""
    task = task or LabelTask()
    changes, alike = int(found.get("changes", 0)), int(found.get("stands_for", 0))
    pairs = Counter(tuple(task.words(task.said(c[k])) for k in ("from", "to")) for c in found.get("changed", ()))
    if task.kind == "number":
        words = f"The model says {found['mean']:.3g}, give or take {found['deviation']:.2g}."
        words += f" It stands for {counted(alike, 'item')} like it." if alike else ""
        return {"text": words, "changes": 0, "stands_for": alike}
    words = "no other prediction changes."
    if changes:
        words = counted(changes, "other prediction changes", "other predictions change")
        for (before, after), n in pairs.most_common(1):
            words += f", {'mostly ' if n < changes else ''}from {before} to {after}."
    words = f"If it is {task.words(task.said(found.get('label')))}, {words}"
    if alike:
        words += f" It stands for {counted(alike, 'item')} like it."
    return {
        "text": words,
        "changes": changes,
        "stands_for": alike,
        **({"questions": found["questions"]} if "questions" in found else {}),
    }


def describe_advice(status: Mapping[str, Any]) -> dict[str, Any]:
    """When to stop, when to retrain and what the pool is worth, from what ``Learner.status`` returns."""
    drift = status.get("drift") or {}
    failure = (status.get("training") or {}).get("failure")
    advice: dict[str, Any] = {}
    if status.get("reason"):
        now = bool(status.get("stop"))
        words = f"you may stop: {status['reason']}" if now else str(status["reason"])
        advice["stop"] = {"now": now, "text": _as_sentence(words)}
    if drift.get("reason"):
        text = _as_sentence(str(drift["reason"]))
        if failure:
            text = f"The last training failed, and the network from before stays: {failure}. {text}"
        advice["retrain"] = {"now": bool(drift.get("retrain")), "text": text}
    if pool := status.get("pool"):
        warning = pool["warning"]
        advice["pool"] = {
            "now": bool(warning),
            "text": " ".join([pool["text"], *([_as_sentence(warning)] if warning else [])]),
        }
    return advice


def _as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
