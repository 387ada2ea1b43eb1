"""When to stop: rules that look at the rounds so far and say, in words, whether the next batch is worth its labels.

A ``Round`` is what one look at a state says; ``look`` makes it. A rule is called with the rounds so far and returns a
``StopVerdict``. Rules combine: ``ErrorLeft(0.05) & StablePredictions()``, or ``| Budget(500)``.

With mean and S a Gaussian posterior, s² its scale and g_i the gap between the two largest outputs of i,

    e_i                             the chance that i's class is wrong: that another output of N(mean_i, s² S_ii I) is
                                    the largest. Cross-entropy: the geometric mean of that and of 1 − p_i
    c_i = Φ(−g_i / √(2 s² v_i))     the chance that a batch changes i's class; it removes v_i of i's variance

docs/stopping.md has what was measured of e_i.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from torch import Tensor

from foretaste.acquire import chance_among_classes, chance_of_error
from foretaste.errors import counted, join_words, real_number, whole_number
from foretaste.lookahead import State, carry_misfit


@dataclass(frozen=True, eq=False)
class Round:
    """What is known before a batch is labelled. None: not looked at, or the network has no classes.

    labelled: how many labels there are.
    error_left: the mean of e_i over the watched points, the error that the posterior expects.
    change: the mean of c_i, the share of watched predictions that the next batch is expected to change.
    predictions: (W,), the class of each watched point.
    """

    labelled: int
    error_left: float | None = None
    change: float | None = None
    predictions: Tensor | None = field(default=None, repr=False)


def look(state: State, batch: Iterable[int] | None = None, *, scale: float | None = None) -> Round:
    """What stopping rules need to know of a state and of the batch that is chosen next.

    A state with the default λ, of a network that does not fit its labels, is looked at with the λ of the misfit
    (``ft.linearize``, ridge="misfit"): with a tiny λ it would be the posterior of another network, one that fits.

    Args:
        state: ``ft.linearize`` of the trained network. Watch the same points in every round (``watch=``): then
            predictions of two rounds can be compared. output="sum" (default): s² is ten times leave-one-out for that.
        batch: the next picks, ``q.indices`` of a query with the same pool; None: no change is predicted.
        scale: s² of the posterior's variance. None (default): ``state.scale``. Give ``q.info["scale"]`` where it was
            calibrated: the expected error is no better than it.

    Returns:
        A ``Round``.

    Raises:
        ValueError: scale is not positive, or the full kernel was used.

    Example:
        >>> import torch, foretaste as ft
        >>> from foretaste.pick import look
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).eval()
        >>> x = torch.randn(30, 2)
        >>> seen = look(ft.linearize(net, x[:6], torch.arange(6) % 3, x[6:]), batch=[0, 5])
        >>> seen.labelled, 0 < seen.error_left < 1, 0 < seen.change < 1
        (6, True, True)
    """
    labelled = state.L + sum(y is not None for _, y in state.kept)
    if state.C < 2:
        return Round(labelled)
    if state.B > 1:
        raise ValueError('look needs a kernel of one number for each pair; use another output than "full"')
    state = carry_misfit(state)
    s2 = state.scale if scale is None else real_number("scale", scale, 0, above=True)
    top_W2 = state.mean.topk(2, 1).values
    g_W, before_W = top_W2[:, 0] - top_W2[:, 1], state.watched_variance
    change = None
    if batch is not None:
        after = state
        for j in batch:
            after = after.condition(int(j), None)
        change = float(chance_of_error(g_W, 2 * s2 * (before_W - after.watched_variance)).mean())
    wrong_W = chance_among_classes(state.mean, s2 * before_W)
    if not state.criterion.quadratic:
        wrong_W = (wrong_W * (1 - state.criterion.class_probabilities(state.mean).amax(1))).sqrt()
    return Round(labelled, float(wrong_W.mean()), change, state.mean.argmax(1))


# --- rules ---


@dataclass(frozen=True)
class StopVerdict:
    """Whether to stop, and why, in words. It counts as true or false in an ``if``."""

    stop: bool
    reason: str

    def __bool__(self) -> bool:
        return self.stop


class StopRule(ABC):
    """A rule is called with the rounds so far, the latest last. ``&`` and ``|`` combine rules."""

    def __call__(self, rounds: Sequence[Round]) -> StopVerdict:
        if not rounds:
            return StopVerdict(False, "nothing is labelled yet")
        return self.judge(rounds)

    @abstractmethod
    def judge(self, rounds: Sequence[Round]) -> StopVerdict:
        """The verdict on at least one round."""

    def __and__(self, other: "StopRule") -> "StopRule":
        return _combine(self, other, every=True)

    def __or__(self, other: "StopRule") -> "StopRule":
        return _combine(self, other, every=False)


@dataclass(frozen=True)
class CombinedRule(StopRule):
    """Stop when every one of these says so (``a & b``), or when one of them does (``a | b``)."""

    rules: tuple[StopRule, ...]
    every: bool

    def judge(self, rounds: Sequence[Round]) -> StopVerdict:
        said = [rule.judge(rounds) for rule in self.rules]
        stop = all(said) if self.every else any(said)
        return StopVerdict(stop, join_words([v.reason for v in said if v.stop == stop]))


def _combine(a: StopRule, b: StopRule, every: bool) -> CombinedRule:
    parts = [r.rules if isinstance(r, CombinedRule) and r.every == every else (r,) for r in (a, b)]
    return CombinedRule((*parts[0], *parts[1]), every)


@dataclass(frozen=True)
class Budget(StopRule):
    """Stop when there are ``labels`` labels."""

    labels: int

    def __post_init__(self) -> None:
        whole_number("labels", self.labels, 1)

    def judge(self, rounds: Sequence[Round]) -> StopVerdict:
        n = rounds[-1].labelled
        return StopVerdict(n >= self.labels, f"{n} of {self.labels} labels are given")


@dataclass(frozen=True)
class ErrorLeft(StopRule):
    """Stop when the expected error, the mean of e_i, is at most ``below``."""

    below: float = 0.05

    def __post_init__(self) -> None:
        _check_share("below", self.below)

    def judge(self, rounds: Sequence[Round]) -> StopVerdict:
        e = _known(rounds[-1].error_left, "ErrorLeft", "look(state)")
        return _compared("the expected error is", e, self.below)


@dataclass(frozen=True)
class SmallChange(StopRule):
    """Stop when the next batch is expected to change at most a share ``below`` of the predictions, ``rounds`` times."""

    below: float = 0.01
    rounds: int = 1

    def __post_init__(self) -> None:
        _check_share("below", self.below)
        whole_number("rounds", self.rounds, 1)

    def judge(self, rounds: Sequence[Round]) -> StopVerdict:
        latest = [_known(r.change, "SmallChange", "look(state, q.indices)") for r in rounds[-self.rounds :]]
        said = _compared("the share of predictions that the next batch changes is", max(latest), self.below)
        if said.stop and len(latest) < self.rounds:
            return StopVerdict(False, f"{said.reason}, in {len(latest)} of {self.rounds} rounds")
        return said


@dataclass(frozen=True)
class StablePredictions(StopRule):
    """Stop when predictions of consecutive rounds agree on a share ``agree`` of points, ``rounds`` times in a row.

    As Bloodgood and Vijay-Shanker (2009), with plain agreement.
    """

    agree: float = 0.99
    rounds: int = 3

    def __post_init__(self) -> None:
        _check_share("agree", self.agree)
        whole_number("rounds", self.rounds, 1)

    def judge(self, rounds: Sequence[Round]) -> StopVerdict:
        latest = [_predicted(r) for r in rounds[-self.rounds - 1 :]]
        if len({len(p) for p in latest}) > 1:
            sizes = ", ".join(str(len(p)) for p in latest)
            raise ValueError(f"rounds have predictions of {sizes} points; watch the same in all: ft.linearize(watch=)")
        if len(latest) <= self.rounds:
            return StopVerdict(
                False, f"predictions of {counted(len(latest), 'round')} are known, {self.rounds + 1} are compared"
            )
        least = min(float((a == b).double().mean()) for a, b in pairwise(latest))
        reason = f"predictions agree on {least:.1%} at least, {self.agree:.1%} is asked for"
        return StopVerdict(least >= self.agree, reason)


def _predicted(r: Round) -> Tensor:
    if r.predictions is None:
        raise ValueError("StablePredictions needs predictions, and a round has none; make rounds by look(state)")
    return r.predictions


def _known(value: float | None, rule: str, maker: str) -> float:
    if value is None:
        raise ValueError(
            f"{rule} needs what {maker} finds for classes, and this round has none; regression has Budget only"
        )
    return value


def _check_share(name: str, value: float) -> None:
    if not 0 < real_number(name, value) <= 1:
        raise ValueError(f"{name} is {value}; expected a share above 0 and at most 1")


def _compared(what: str, value: float, below: float) -> StopVerdict:
    word = "at most" if value <= below else "above"
    return StopVerdict(value <= below, f"{what} {value:.2%}, {word} {below:.2%}")
