"""What a project of Label Studio says of our items, and the store in step with it.

The last annotation of an item counts that was not skipped. What Label Studio says is compared with what it said before,
which the log knows: what people answer on our own page stays until Label Studio says something new. A deleted
annotation is taken back. A deleted task takes back nothing: its item keeps its label, and is asked no more.
"""

import hashlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from foretaste.errors import printable
from foretaste.label.desk import LabelDesk
from foretaste.label.exchange import ITEM_COLUMNS, LABEL_STUDIO_FROM, LABEL_STUDIO_TO, ItemNames, chosen
from foretaste.label.store import StoreConflict, StoreError

log = logging.getLogger(__name__)

SCORE_FIELD = "foretaste_score"
STRANGE_TOLD = 100  # labels that are no class here
HOOK_ACTIONS = (
    "ANNOTATION_CREATED",
    "ANNOTATIONS_CREATED",
    "ANNOTATION_UPDATED",
    "ANNOTATIONS_DELETED",
    "TASKS_CREATED",
    "TASKS_DELETED",
)


class TaskNames:
    """Which task is which item: by its text, or by a name. A copy of another item is that item."""

    def __init__(self, desk: LabelDesk) -> None:
        self.names, self.twins, self.table = ItemNames(desk.data.ids), desk.twins, desk.data.kind == "table"
        texts = desk.data.items if desk.data.kind == "text" else ()
        self.texts = dict(zip(texts, desk.data.ids))

    def find(self, data: Mapping[str, Any]) -> str | None:
        """The item of a task's data; None if no field names one, or fields of no known name mean several."""
        for key in ("foretaste_id", "text", *ITEM_COLUMNS):
            if (item := self._item(data.get(key))) is not None:
                return item
        # A number in a field of any name is a name only where there is nothing else: five stars are not row 5.
        kinds = str | int if self.table else str
        rest = {self._item(v) for k, v in data.items() if k != SCORE_FIELD and isinstance(v, kinds)} - {None}
        return rest.pop() if len(rest) == 1 else None

    def _item(self, value: Any) -> str | None:
        if not isinstance(value, str | int) or value == "":
            return None
        item = self.texts.get(str(value)) or self.names.find(str(value))
        return None if item is None else self.twins.get(item, item)


@dataclass(frozen=True)
class StudioAnswer:
    """What one annotation says. ``label`` is its one choice, of whatever class; None if it has none or several."""

    label: str | None
    skipped: bool
    at: float  # seconds since 1970
    who: str


@dataclass(frozen=True)
class StudioTask:
    """A task that names an item here: its annotations by their numbers, and the score in its data."""

    item: str
    answers: Mapping[int, StudioAnswer] = field(default_factory=dict)
    score: Any = None


@dataclass(frozen=True)
class ChoiceControl:
    """The Choices of a labelling configuration: its name, what it is about, and its values if they are fixed."""

    name: str = LABEL_STUDIO_FROM
    to_name: str = LABEL_STUDIO_TO
    labels: tuple[str, ...] = ()


def find_choices(parsed: Any, classes: Sequence[str]) -> ChoiceControl | None:
    """The Choices that have most of the classes, from a project's ``parsed_label_config``; None if there are none."""
    found = [
        ChoiceControl(name, str((tag.get("to_name") or [LABEL_STUDIO_TO])[0]), tuple(tag.get("labels") or ()))
        for name, tag in (parsed.items() if isinstance(parsed, Mapping) else ())
        if tag.get("type") == "Choices"
    ]
    return max(found, key=lambda c: len({*c.labels} & {*classes}), default=None)


class StudioTasks:
    """The tasks and annotations of a project, as far as they are about items here.

    Args:
        desk: Items, store and learner.
        whole: Whether the project is read as a whole: then an item that has no open task cannot be asked for. If not,
            webhooks are all that is known.
    """

    def __init__(self, desk: LabelDesk, whole: bool) -> None:
        self.desk, self.whole = desk, whole
        self.names = TaskNames(desk)
        self.lock = threading.RLock()
        self.tasks: dict[int, StudioTask] = {}
        self.open: dict[str, int] = {}  # item → its first task that nobody has annotated or skipped
        self.moved = False  # whether the open task of an item has become another
        self.choices: ChoiceControl | None = None
        self._of: dict[str, list[int]] = defaultdict(list)  # item → its tasks
        self._home: dict[int, int] = {}  # annotation → its task: a deleted one comes without
        self._touched: dict[int, float] = {}  # task → when a webhook spoke of it
        self._tab = ""  # under which the log has what this project said
        self._said: dict[str, str | None] = {}  # item → a class, "" for a skip: what Label Studio said last
        self._fresh: set[str] = set()  # items of which it has just spoken: also who says the same again is heard
        self._strange: set[str | None] = set()  # labels that were complained about

    def speak_as(self, tab: str) -> None:
        """Name the project as the log does, and find there what it said so far."""
        with self.lock:
            if tab != self._tab:
                events = [e for e in self.desk.store.events() if e.tab.startswith(f"{tab}:")]
                self._said = {e.item: None if e.kind == "undo" else e.label or "" for e in events}
                self._tab = tab

    def read_task(self, task: Mapping[str, Any]) -> tuple[int, StudioTask] | None:
        """The number of a task, and what it says; None if it names no item here."""
        item = self.names.find(task["data"]) if has_data(task) else None
        if item is None:
            return None
        answers = dict(map(self._read_answer, task.get("annotations") or ()))
        return _number(task.get("id"), "a task"), StudioTask(item, answers, task["data"].get(SCORE_FIELD))

    def take_all(self, found: Mapping[int, StudioTask], since: float) -> None:
        """The project was read, beginning at ``since``: bring everything in step with it."""
        with self.lock:
            self._touched = {number: at for number, at in self._touched.items() if at >= since}
            # A webhook knows more than what was read before it came.
            kept = {number: self.tasks[number] for number in self._touched if number in self.tasks}
            read = {number: task for number, task in found.items() if number not in self._touched}
            for number, task in read.items():
                if number in self.tasks and any(self._is_news(number, *answer) for answer in task.answers.items()):
                    self._fresh.add(task.item)
            self.tasks = read | kept
            self._of, self._home = defaultdict(list), {}
            for number, task in sorted(self.tasks.items()):
                self._of[task.item].append(number)
                self._home |= dict.fromkeys(task.answers, number)
        self._settle_all(self.desk.data.ids)

    def take_hook(self, body: Mapping[str, Any]) -> str:
        """Keep what a webhook says: "kept", "ignored", or "unknown" if the project must be read for it."""
        with self.lock:
            if not self._tab:
                raise StoreError("the project of Label Studio has not been read yet; nothing was kept")
            items = self._note(body)
            self._settle_all(items or ())
        return "kept" if items else "ignored" if items is not None or not self.whole else "unknown"

    def _read_answer(self, annotation: Any) -> tuple[int, StudioAnswer]:
        """The number of an annotation, and what it says."""
        if not isinstance(annotation, Mapping) or not isinstance(annotation.get("result"), list):
            raise ValueError(f"an annotation is {annotation!r:.60}; expected an object with a result, a list")
        choices = chosen(annotation, None if self.choices is None else self.choices.name)
        who = annotation.get("completed_by")
        who = who.get("id") if isinstance(who, Mapping) else who
        return _number(annotation.get("id"), "an annotation"), StudioAnswer(
            choices[0] if len(choices) == 1 else None,
            bool(annotation.get("was_cancelled")),
            _moment(annotation.get("updated_at")),
            printable(f"label-studio:{who or 'annotator'}")[:80],
        )

    def _note(self, body: Mapping[str, Any]) -> set[str] | None:
        """Take over what a webhook says. Returns the items that it is about; None if it does not say which."""
        action, items = body["action"], set[str]()
        tasks = [*_objects(body, "task"), *_objects(body, "tasks")]
        annotations = [*_objects(body, "annotation"), *_objects(body, "annotations")]
        if action == "TASKS_CREATED":  # their annotations do not come with them
            return None
        if not tasks and not annotations and not self.whole:
            raise ValueError("the webhook has no payload; turn it on in its settings")
        if action == "TASKS_DELETED":
            for number in [_number(task.get("id"), "a task") for task in tasks]:
                items |= self._put(number, None)
            return items if tasks else None
        if action == "ANNOTATIONS_DELETED":
            numbers = [_number(annotation.get("id"), "an annotation") for annotation in annotations]
            homes = [self._home.get(number, -1) for number in numbers]
            if not numbers or not all(at in self.tasks for at in homes):
                if self.whole:  # of a task that is no item here, or made since the last reading
                    return None
                raise ValueError(f"annotations {numbers!s:.60} are not known here, so what they said stays")
            for number, at in zip(numbers, homes):
                left = {k: answer for k, answer in self.tasks[at].answers.items() if k != number}
                items |= self._put(at, replace(self.tasks[at], answers=left))
            return items
        about = {_number(task.get("id"), "a task"): task for task in tasks}
        given = [(_number(a.get("task"), "the task of an annotation"), *self._read_answer(a)) for a in annotations]
        for at, number, answer in given:
            item = self.names.find(about[at]["data"]) if has_data(about.get(at)) else None
            if item is not None:
                known = self.tasks.get(at, StudioTask(item))
                known = known if known.item == item else StudioTask(item)
                items |= self._put(at, known)
                if self._is_news(at, number, answer):  # one that comes late, or twice, changes nothing
                    items |= self._put(at, replace(known, answers={**known.answers, number: answer}))
                    self._fresh.add(item)
        return items if annotations else None

    def _is_news(self, task: int, number: int, answer: StudioAnswer) -> bool:
        """Whether an annotation of a known task is new, or has changed since."""
        old = self.tasks[task].answers.get(number)
        return old is None or old.at < answer.at

    def _put(self, number: int, task: StudioTask | None) -> set[str]:
        """Replace what is known of a task; None if it is gone. Returns the items that it was or is about."""
        old = self.tasks.pop(number, None)
        if old is not None:
            self._of[old.item].remove(number)
        if task is not None:
            self.tasks[number] = task
            self._of[task.item] = sorted([*self._of[task.item], number])
            self._home |= dict.fromkeys(task.answers, number)
        if self.whole:
            self._touched[number] = time.monotonic()
        return {known.item for known in (old, task) if known is not None}

    def _settle_all(self, items: Iterable[str]) -> None:
        failed = None
        for item in items:
            try:
                with self.lock:
                    self._settle(item)
            except StoreError as error:  # the others are kept
                failed = error
        if failed is not None:
            raise failed

    def _settle(self, item: str) -> None:
        """Bring the store in step with what Label Studio says of an item; the learner, with whether it can be asked."""
        numbers = self._of.get(item, ())
        answers = sorted(
            ((n, a) for number in numbers for n, a in self.tasks[number].answers.items()),
            key=lambda answer: (answer[1].at, answer[0]),
        )
        given = [a for _, a in answers if not a.skipped]
        wanted = given[-1].label if given else "" if answers else None
        if given and wanted not in self.desk.store.known_classes:
            if wanted not in self._strange and len(self._strange) < STRANGE_TOLD:
                self._strange.add(wanted)
                said = "no one choice" if wanted is None else f"the label {printable(wanted)!r:.80}, no class here"
                log.warning("Label Studio: an annotation has %s; such annotations are not learned", said)
            wanted = None
        if numbers and (wanted != self._said.get(item) or item in self._fresh):
            if wanted:
                self._answer(item, wanted, given[-1].who)
            else:
                self._take_back(item)
                if wanted == "" and self.desk.store.state_of(item) is None:
                    self.desk.answer(self._tab_of(item), answers[-1][1].who, item, "skip", patience=0)
            self._said[item] = wanted
            self._fresh.discard(item)
            self.desk.leave(self._tab_of(item))
        self._place(item, next((n for n in numbers if not self.tasks[n].answers), None))

    def _tab_of(self, item: str) -> str:
        return f"{self._tab}:{hashlib.sha256(item.encode(errors='surrogatepass')).hexdigest()[:16]}"

    def _answer(self, item: str, label: str, who: str) -> None:
        now = self.desk.store.state_of(item)
        kind = "label" if now is None or now.kind == "skip" else "relabel"
        try:
            self.desk.answer(self._tab_of(item), who, item, kind, label, patience=0)
        except StoreConflict:  # somebody has it on our own page: the answer that comes last counts
            self.desk.answer(self._tab_of(item), who, item, "relabel", label, patience=0)

    def _take_back(self, item: str) -> None:
        """Undo what Label Studio said of an item. What was so before stands again."""
        tab = self._tab_of(item)
        while (now := self.desk.store.state_of(item)) is not None and now.tab == tab:
            self.desk.undo(tab, now.who, patience=0)

    def _place(self, item: str, task: int | None) -> None:
        """Say which task can ask for an item; None for none."""
        was = self.open.pop(item, None)
        if task is not None:
            self.open[item] = task
            self.moved |= was not in (None, task)
        away = task is None and (self.whole or bool(self._of.get(item)))
        if away != (item in self.desk.away):
            (self.desk.away.add if away else self.desk.away.discard)(item)
            self.desk.worker.tell(item)


def has_data(task: Any) -> bool:
    """Whether a task has data, as an object."""
    return isinstance(task, Mapping) and isinstance(task.get("data"), Mapping)


def _objects(body: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """One object or several under a key of a webhook."""
    found = body.get(key)
    found = [] if found is None else found if isinstance(found, list) else [found]
    if not all(isinstance(value, Mapping) for value in found):
        raise ValueError(f"{key} is {body[key]!r:.60}; expected an object, or a list of objects")
    return found


def _number(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"the number of {what} is {value!r:.60}; expected a whole number")
    return value


def _moment(value: Any) -> float:
    """Seconds since 1970; 0 for what is no time."""
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, TypeError, OverflowError, OSError):
        return 0.0
