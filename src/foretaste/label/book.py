"""What has been answered: labels, items that are out, ignored items, and how well each label was predicted."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretaste.errors import did_you_mean, whole_number
from foretaste.given import ClassName, check_class_names
from foretaste.label.voices import in_doubt_steps

# A class id and, as its fraction, the chance that it is wrong; a set of classes as bits; or the number of a regression.
Label = int | float
HALF = 0.5  # an output above it is a yes, where classes do not exclude each other


@dataclass(frozen=True)
class LabelKind:
    """What a label may be: one of C classes, which may have names; any set of them (``multi``); or a number.

    A set is kept as a whole number whose bit c says whether class c is in it.
    """

    C: int
    regression: bool = False
    names: tuple[ClassName, ...] | None = None
    multi: bool = False

    @property
    def single(self) -> bool:
        """Whether a label is one class."""
        return not self.regression and not self.multi

    def read(self, label: Any) -> Label:
        """A class id of a name or of an id; a float in regression. Raises if it is no label of this kind.

        Where names are whole numbers, a number is a name.
        """
        if isinstance(label, Tensor | np.ndarray | np.generic) and np.ndim(label) == 0:
            label = label.item()
        if self.multi:
            if isinstance(label, str | bytes) or not isinstance(label, Iterable):
                raise ValueError(f"the label is {label!r:.60}; expected a list of classes, empty if it is none of them")
            one = LabelKind(self.C, False, self.names)
            return sum(1 << c for c in {int(one.read(each)) for each in label})
        if self.regression:
            try:
                y = math.nan if isinstance(label, bool) or not isinstance(label, Real) else float(label)
            except OverflowError:  # a whole number of 400 digits
                y = math.inf
            if not math.isfinite(y):
                raise ValueError(f"the label is {label!r:.60}; expected a finite number")
            return y
        if isinstance(label, str) and self.names is None:
            raise ValueError(f"the label is {label!r:.60}, and the classes have no names; give a class id, or classes=")
        if self.names is not None and (isinstance(label, str) or not isinstance(self.names[0], str)):
            if not isinstance(label, str | Real) or isinstance(label, bool) or label not in self.names:
                raise ValueError(f"unknown class {label!r:.60}{did_you_mean(label, map(str, self.names), 'Classes')}")
            return self.names.index(label)
        if isinstance(label, bool) and self.C == 2:
            return int(label)
        return self.check_stored(label)

    def check_stored(self, label: Any) -> Label:
        """A label as the book keeps it: a class id, or the number of a regression."""
        if self.regression:
            return self.read(label)
        if self.multi:
            if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < 1 << self.C:
                raise ValueError(f"the label is {label!r:.60}; expected a set of {self.C} classes as a whole number")
            return label
        if isinstance(label, float) and 0 <= label < self.C:
            return self.doubted(int(label), label - int(label))
        if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < self.C:
            named = f", or one of {', '.join(map(str, self.names[:10]))}" if self.names else ""
            raise ValueError(f"the label is {label!r:.60}; expected a class id from 0 to {self.C - 1}{named}")
        return label

    def doubted(self, label: Label, doubt: float) -> Label:
        """A class that is wrong with this chance: then it is any other class with equal chance.

        Raises if there is no such class, or another one would be likelier.
        """
        if not doubt:
            return label
        if not self.single:
            raise ValueError("doubts are for labels of one class")
        if not 0 <= (steps := in_doubt_steps(doubt)) <= in_doubt_steps(1 - 1 / self.C):
            raise ValueError(f"the doubt is {doubt!r:.40}; expected a chance from 0 to {1 - 1 / self.C:.3g}")
        return int(label) + steps

    def plain(self, label: Label) -> Label:
        """A label without its doubt."""
        return int(label) if self.single else label

    def doubt(self, label: Label) -> float:
        """The chance that a label is wrong, by who gave it."""
        return float(label) - int(label) if self.single else 0.0

    def show(self, label: Label) -> Any:
        """A label as the user knows it: a name, where classes have names; a tuple of them for a set."""
        if self.multi:
            return tuple(c if self.names is None else self.names[c] for c in range(self.C) if int(label) >> c & 1)
        return self.plain(label) if self.names is None or self.regression else self.names[int(label)]

    def targets(self, labels: Iterable[Label], dtype: torch.dtype = torch.float64) -> Tensor:
        """(n, C): the number itself, or 1 for each class that the label has and 0 for the others; doubts are shared."""
        values = list(labels)
        if self.regression:
            return torch.tensor(values, dtype=dtype)[:, None]
        if self.single:
            c_n = torch.tensor([int(y) for y in values], dtype=torch.int64)
            doubt_n1 = torch.tensor([[self.doubt(y)] for y in values], dtype=dtype).view(-1, 1)
            y_nC = (doubt_n1 / max(self.C - 1, 1)).expand(-1, self.C).clone()
            return y_nC.scatter_(1, c_n[:, None], 1 - doubt_n1)
        return torch.tensor([[int(y) >> c & 1 for c in range(self.C)] for y in values], dtype=dtype).view(-1, self.C)

    def decide(self, f_nC: Tensor) -> list[Label]:
        """The labels that outputs say: the largest, all above a half, or the number."""
        if self.regression:
            return f_nC[:, 0].tolist()
        if not self.multi:
            return f_nC.argmax(1).tolist()
        return [sum(1 << c for c, yes in enumerate(row) if yes) for row in (f_nC > HALF).tolist()]

    def counts(self, labels: Iterable[Label]) -> list[int]:
        """How many labels have each class."""
        return [int(n) for n in self.targets([self.plain(y) for y in labels]).sum(0)]


@dataclass(frozen=True)
class Prediction:
    """What was predicted for an item just before its label came.

    ``error`` is the chance of being wrong that the model gave (regression: the standard deviation); ``surprise`` is
    ‖y − mean‖² / (C s² u), about 1 where the model knows what it does not know.
    """

    position: int
    predicted: Label
    error: float
    surprise: float
    trained: int  # how many trainings there had been


@dataclass
class LabelBook:
    """Positions with their labels, in the order they were given; those that are out; those that are ignored."""

    labels: dict[int, Label] = field(default_factory=dict)
    pending: dict[int, None] = field(default_factory=dict)  # a set in order
    ignored: dict[int, None] = field(default_factory=dict)
    predictions: dict[int, Prediction] = field(default_factory=dict)

    def put(self, position: int, label: Label) -> None:
        """A first label, or another one. The prediction made before the first one still counts."""
        self.labels[position] = label
        self.pending.pop(position, None)
        self.ignored.pop(position, None)

    def drop(self, position: int) -> None:
        """Forget a label."""
        self.labels.pop(position, None)
        self.predictions.pop(position, None)

    def ignore(self, position: int) -> None:
        self.drop(position)
        self.pending.pop(position, None)
        self.ignored[position] = None

    def missed(self, p: Prediction) -> bool:
        """Whether the class that was predicted is not that of the label."""
        return p.predicted != int(self.labels[p.position])

    def closed(self, position: int) -> bool:
        """Whether the item cannot be asked for."""
        return position in self.labels or position in self.pending or position in self.ignored

    def as_json(self) -> dict[str, Any]:
        return {
            "labels": [[p, y] for p, y in self.labels.items()],
            "pending": list(self.pending),
            "ignored": list(self.ignored),
            "predictions": [
                [p.position, p.predicted, self.labels[p.position], p.error, p.surprise, p.trained]
                for p in self.predictions.values()
            ],
        }

    @staticmethod
    def from_json(found: Mapping[str, Any], n: int, kind: LabelKind) -> "LabelBook":
        """Read what ``as_json`` wrote; a position outside the pool or a label of another kind raises."""
        book = LabelBook()
        for p, y in found["labels"]:
            book.labels[_position(p, n)] = kind.check_stored(y)
        for p in found["pending"]:
            book.pending[_position(p, n)] = None
        for p in found["ignored"]:
            book.ignored[_position(p, n)] = None
        for p, predicted, label, error, surprise, trained in found["predictions"]:
            if book.labels.get(_position(p, n)) != kind.check_stored(label):
                raise ValueError(f"the label of position {p} is {book.labels.get(p)!r:.40} and {label!r:.40}")
            known = kind.check_stored(predicted)
            book.predictions[p] = Prediction(p, known, float(error), float(surprise), int(trained))
        return book


def _position(p: Any, n: int) -> int:
    if isinstance(p, bool) or not isinstance(p, int) or not 0 <= p < n:
        raise ValueError(f"position {p!r:.40} is outside the pool of {n}")
    return p


def resolve_kind(
    classes: Sequence[ClassName] | int | None,
    outputs: int | None,
    labels: Sequence[Any],
    loss: str,
    regression: bool,
    multi: bool = False,
) -> LabelKind:
    """The kind of labels, from what the user said, the network's outputs, and the labels there are."""
    names: tuple[ClassName, ...] | None = None
    if multi and (regression or loss != "l2"):
        raise ValueError("multi_label is for classes and loss='l2'; leave regression out, and loss as it is")
    if isinstance(classes, int | np.integer):
        count: int | None = whole_number("classes", classes, 1)
    elif classes is not None:
        names = check_class_names(classes)
        count = len(names)
    else:
        count = None
        texts = sorted({y for y in labels if isinstance(y, str)})
        if texts and (outputs is None or len(texts) == outputs or (outputs == 1 and len(texts) == 2)):
            names, count = tuple(texts), len(texts)
    if regression or (outputs == 1 and count is None and loss == "l2"):
        if names is not None or count not in (None, 1):
            raise ValueError("regression has no classes; leave classes out, or regression=False")
        return LabelKind(1, True)
    if count is None:
        count = 2 if outputs == 1 else outputs
    if count is None:
        raise ValueError(
            "how many classes are there? Nothing says it: give classes=, their names or their number, or "
            "regression=True"
        )
    if count < 2:
        raise ValueError(f"there is {count} class; expected at least two")
    if outputs not in (None, 1, count) or (outputs == 1 and count != 2):
        raise ValueError(f"the network has {outputs} outputs and there are {count} classes; expected one output each")
    if multi and outputs == 1:
        raise ValueError(f"the network has 1 output and there are {count} classes; expected one output each")
    return LabelKind(count, False, names, multi)
