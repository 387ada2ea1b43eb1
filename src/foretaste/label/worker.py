"""The learner on a thread of its own: answers go in, and out comes what to ask next and why.

Requests never wait for the learner longer than they want to. They read the latest ``ModelView``, which is replaced as a
whole; the thread alone calls the learner. Until the learner is there (its features are computed first) views are empty
and the session asks in a random order.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from foretaste.errors import format_seconds

log = logging.getLogger(__name__)

READY_SPARE = 3  # items ranked beyond one for each tab, so that a burst of answers finds some
LIKELY_SHOWN = 3  # classes of an item that the page shows


class LiveLearner(Protocol):
    """What the thread needs of a learner: the verbs of ``ft.Learner``."""

    def query(self, n: int) -> Sequence[Any]: ...
    def teach(self, ids: Sequence[Any], labels: Sequence[Any]) -> Any: ...
    def relabel(self, id: Any, label: Any) -> Any: ...
    def unlabel(self, id: Any) -> Any: ...
    def ignore(self, ids: Sequence[Any]) -> Any: ...
    def release(self, ids: Sequence[Any]) -> Any: ...
    def explain(self, id: Any) -> Any: ...
    def drift(self) -> Any: ...


@dataclass(frozen=True)
class ModelView:
    """What the model thinks now. ``absorbed`` is the number of the last change that it knows."""

    absorbed: int = 0
    ready: tuple[str, ...] = ()  # what to ask next, best first
    likely: Mapping[str, tuple[tuple[str, float], ...]] = field(default_factory=dict)  # item → (class, probability)
    reasons: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # item → what its label would change
    changed: Mapping[str, Any] | None = None  # what the last answer changed
    checked: tuple[tuple[int, int, int], ...] = ()  # (labels, right, of how many) on the items that measure
    advice: Mapping[str, Any] = field(default_factory=dict)  # when to stop, when to retrain
