"""What is asked of an item: one class, any set of classes, or a number. The log keeps each answer as text.

one       the name of a class
several   the names of all classes that are so, each behind a bar, in their order: "|red|round"; none of them: "|"
number    a number from ``low`` to ``high`` in steps: "3.5"
"""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from foretaste.errors import check_known

if TYPE_CHECKING:
    from foretaste.label.classes import ClassGuide

TASKS = ("one", "several", "number")
BAR = "|"
NEAR = 0.1  # of the scale: a number counts as predicted right within it
MOST_MARKS = 100_000


@dataclass(frozen=True)
class LabelTask:
    """How people answer. The scale is that of numbers."""

    kind: str = "one"
    low: float = 0.0
    high: float = 10.0
    step: float = 1.0

    def __post_init__(self) -> None:
        check_known("task", self.kind, TASKS)
        sizes = (self.low, self.high, self.step)
        if not all(math.isfinite(v) for v in sizes) or self.low >= self.high or self.step <= 0:
            raise ValueError(
                f"the scale is {self.low:g} to {self.high:g} by {self.step:g}; expected low < high, step > 0"
            )
        if (self.high - self.low) / self.step > MOST_MARKS:
            raise ValueError(f"the scale has more than {MOST_MARKS:,} steps; give a larger step, as in 0:10:0.5")

    @property
    def one(self) -> bool:
        return self.kind == "one"

    def as_json(self) -> dict[str, Any]:
        """As a setting of the store, and for the page."""
        return asdict(self) if self.kind == "number" else {"kind": self.kind}

    def check(self, label: object, classes: Sequence[str], known: Sequence[str]) -> str:
        """A label as the log keeps it; raises if it is none. ``known``: also classes of old names."""
        if self.one:
            check_known("class", label, classes if label not in known else known)
            return str(label)
        if not isinstance(label, str):
            raise ValueError(f"the label is {label!r:.60}; expected text")
        if self.kind == "number":
            return self.said(_on_scale(label, self.low, self.high))
        names = self.names(label)
        for name in names:
            check_known("class", name, classes if name not in known else known)
        return self.said(sorted(names, key=[*classes, *known].index))

    def may_be(self, label: str, classes: Sequence[str]) -> bool:
        """Whether a label of the log can be one of this task, with all classes that ever were."""
        task = LabelTask("number", -sys.float_info.max / 4, sys.float_info.max / 4, sys.float_info.max / 8)
        try:  # the scale may have been another one
            (task if self.kind == "number" else self).check(label, classes, classes)
        except ValueError:
            return False
        return True

    def names(self, label: str) -> list[str]:
        """The classes of a label, each once; none for a number."""
        if self.kind == "several":
            return list(dict.fromkeys(name for name in label.split(BAR) if name))
        return [label] if self.one else []

    def said(self, value: Any) -> str:
        """A label of the learner as text."""
        if self.kind == "several":
            return BAR + BAR.join(map(str, value))
        return f"{value:.6g}" if self.kind == "number" else str(value)

    def words(self, label: str) -> str:
        """A label for a reader."""
        return label if self.kind != "several" else ", ".join(self.names(label)) or "none of them"

    def taught(self, label: str) -> Any:
        """A label as the learner takes it."""
        return float(label) if self.kind == "number" else self.names(label) if self.kind == "several" else label

    def counts_as(self, label: str, guide: "ClassGuide") -> str:
        """The same label with the names that classes have now."""
        if self.kind == "several":
            names = {guide.counts_as(name) for name in self.names(label)}
            return self.said(
                sorted(names, key=lambda name: (guide.names.index(name) if name in guide.names else 0, name))
            )
        return guide.counts_as(label) if self.one else label

    def near(self, guess: str, label: str) -> bool:
        """Whether a prediction counts as right."""
        if self.kind == "number":
            return abs(float(guess) - float(label)) <= NEAR * (self.high - self.low) + 1e-9
        return guess == label


def read_task(kind: str | None, scale: str | None, kept: dict[str, Any] | None) -> LabelTask:
    """The task that is asked for: by name and scale, as LOW:HIGH or LOW:HIGH:STEP; else as the last time."""
    before = LabelTask(**kept) if kept else LabelTask()
    if kind is None:
        kind = "number" if scale is not None else before.kind
    if scale is None:
        return before if before.kind == kind else LabelTask(kind)
    if kind != "number":
        raise ValueError(f"a scale is for numbers, and the task is {kind}; leave --scale out")
    try:
        parts = [float(part) for part in scale.split(":")]
        low, high, step = parts if len(parts) == 3 else (*parts, 1.0)
    except ValueError:
        raise ValueError(f"the scale is {scale!r:.40}; expected LOW:HIGH or LOW:HIGH:STEP, such as 0:10:0.5") from None
    return LabelTask("number", low, high, step)


def check_bars(names: Iterable[str]) -> None:
    """Raise if a class of a set has the bar that stands between classes in its name."""
    if bad := [name for name in names if BAR in name]:
        raise ValueError(f"class {bad[0]!r:.60} has a {BAR} in its name, which stands between classes; rename it")


def _on_scale(label: str, low: float, high: float) -> float:
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not low <= value <= high:  # nan too
        raise ValueError(f"the label is {label!r:.40}; expected a number from {low:g} to {high:g}")
    return value
