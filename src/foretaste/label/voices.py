"""Several people on one item: what each of them said, which label counts, and how far they agree.

A voice is what a person said when asked, without having seen what others said. An event with the purpose "second" is
the voice of one more person. A person may change a voice until another speaks; what is said after that, in review, is a
decision, and counts whatever the voices are. Without a decision most voices count, of a tie the label that was said
first. A class whose name has changed counts as its new name.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

from foretaste.label.log import LabelEvent

SECOND = "second"  # the purpose of what a second or further person says
GIVEN = "given"  # who gave the labels that were in the data already
FEWEST_SHARED = 5  # items that two people have answered, below which no agreement is told


@dataclass(frozen=True)
class ItemVoices:
    """What was said of one item: person → the event of their voice, in order; the decision; the event that counts."""

    voices: Mapping[str, LabelEvent]
    decision: LabelEvent | None
    counts: LabelEvent | None

    @cached_property
    def labels(self) -> dict[str, str]:
        """Person → class, of those who named one."""
        return {who: event.label for who, event in self.voices.items() if event.label is not None}

    @property
    def purpose(self) -> str | None:
        """Whether the item teaches or measures."""
        return next((event.purpose for event in self.voices.values() if event.purpose != SECOND), None)

    @cached_property
    def disagree(self) -> bool:
        """Whether people named different classes, and nobody has decided."""
        return self.decision is None and len(set(self.labels.values())) > 1

    @property
    def tied(self) -> bool:
        """Whether no class has more voices than all others."""
        best = Counter(self.labels.values()).most_common(2)
        return len(best) == 2 and best[0][1] == best[1][1]


def hear_voices(events: Iterable[LabelEvent]) -> ItemVoices:
    """The voices in all events of one item that were not taken back, oldest first."""
    voices, decision, last = dict[str, LabelEvent](), None, None
    for event in events:
        if event.purpose == SECOND:
            voices[event.who] = event
        elif len(voices) < 2 or last is None:  # one answer takes the place of the other
            voices = {event.who: event}
        elif last.who == event.who and decision is None:
            voices[event.who] = event
        else:
            decision = event
        last = event
    said = [event for event in voices.values() if event.label is not None]
    if decision is not None or len(said) < 2:
        return ItemVoices(voices, decision, decision or next(iter(said or voices.values()), None))
    most = Counter(event.label for event in said).most_common(1)[0][0]  # of a tie the first
    return ItemVoices(voices, None, next(event for event in said if event.label == most))


# How far people agree. Each coefficient is 1 − D_o / D_e: the disagreement that was seen against that of chance.


@dataclass(frozen=True)
class Agreement:
    """How far people agree: 1 is always, 0 no more than by chance. ``low`` and ``high``: the 95 % interval."""

    name: str  # "Cohen's kappa" or "Krippendorff's alpha"
    value: float
    low: float
    high: float
    items: int
    same: float  # the share of pairs of answers to one item that are the same


def cohen_kappa(pairs: Sequence[tuple[str, str]]) -> tuple[float, float]:
    """(κ, chance): κ = (p_o − p_e) / (1 − p_e), with p_e = Σ_c p_1(c) p_2(c) of each person's own shares of classes.

    Both said one and the same class always: κ is 1 by convention, though 0 / 0.
    """
    n, ours, theirs = len(pairs), Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    same, chance = sum(a == b for a, b in pairs) / n, sum(ours[c] * theirs[c] for c in ours) / n**2
    return (1.0 if chance == 1 else (same - chance) / (1 - chance)), chance


def krippendorff_alpha(units: Sequence[Sequence[str]]) -> tuple[float, float]:
    """(α, chance) for classes: α = 1 − D_o / D_e. A unit is what people said of one item, two of them at least.

    With m_u answers in a unit and n in all: D_o = Σ_u Σ_{i≠j} [u_i ≠ u_j] / (m_u − 1) / n, D_e = 1 − Σ_c n_c (n_c − 1)
    / (n (n − 1)); chance is 1 − D_e. Only one class was ever said: 1 by convention.
    """
    seen, all_said = 0.0, Counter[str]()
    for unit in units:
        said = Counter(unit)
        all_said += said
        seen += (len(unit) ** 2 - sum(k * k for k in said.values())) / (len(unit) - 1)
    n = all_said.total()
    chance = sum(k * (k - 1) for k in all_said.values()) / (n * (n - 1))
    return (1.0 if chance == 1 else 1 - seen / n / (1 - chance)), chance


def measure_agreement(units: Sequence[Mapping[str, str]]) -> Agreement | None:
    """Cohen's κ where two people share items, Krippendorff's α where there are more.

    The interval is Wilson's of the share of equal pairs, with one trial an item and the chance as it is: also where all
    agree it has a width.

    Args:
        units: person → class, for each item. Items with one answer are left out.

    Returns:
        The coefficient and its interval; None with too few items.

    Example:
        >>> from foretaste.label import measure_agreement
        >>> same, apart = {"Ada": "cat", "Ben": "cat"}, {"Ada": "dog", "Ben": "cat"}
        >>> round(measure_agreement([same] * 9 + [{"Ada": "dog", "Ben": "dog"}] * 9 + [apart] * 2).value, 2)
        0.8
    """
    shared = [unit for unit in units if len(unit) > 1]
    people = sorted({who for unit in shared for who in unit})
    if len(shared) < FEWEST_SHARED:
        return None
    if len(people) == 2:
        value, chance = cohen_kappa([(unit[people[0]], unit[people[1]]) for unit in shared])
    else:
        value, chance = krippendorff_alpha([list(unit.values()) for unit in shared])
    same = value * (1 - chance) + chance
    low, high = ((p - chance) / (1 - chance) if chance < 1 else 1.0 for p in wilson(same * len(shared), len(shared)))
    name = "Cohen's kappa" if len(people) == 2 else "Krippendorff's alpha"
    return Agreement(name, value, max(low, -1.0), high, len(shared), same)


def wilson(right: float, of: float, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share, by Wilson."""
    share, spread = right / of, z * z / of
    middle = (share + spread / 2) / (1 + spread)
    half = z * sqrt(share * (1 - share) / of + spread / (4 * of)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
