"""Several people on one item: what each of them said, which label counts, and how far they agree.

A voice is what a person said when asked, without having seen what others said. An event with the purpose "second" is
the voice of one more person. A person may change a voice until another speaks; what is said after that, in review, is a
decision, and counts whatever the voices are. Without a decision most voices count, or the class that is likeliest by
how reliable each person is; of a tie the label that was said first. A class whose name has changed counts as its new
name.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, sqrt

import numpy as np

from foretaste.label.log import LabelEvent

SECOND = "second"  # the purpose of what a second or further person says
GIVEN = "given"  # who gave the labels that were in the data already
FEWEST_SHARED = 5  # items that two people have answered, below which no agreement is told
VOTES = ("majority", "reliability")  # by what the label of several voices counts


@dataclass(frozen=True)
class ItemVoices:
    """What was said of one item: person → the event of their voice, in order; the decision; the event that counts.

    doubt: the chance that the label that counts is wrong; 0 where people are not weighed.
    """

    voices: Mapping[str, LabelEvent]
    decision: LabelEvent | None
    counts: LabelEvent | None
    doubt: float = 0.0

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


# How reliable people are: the model of one coin (Dawid and Skene 1979 with one number for each person). A person w is
# right at a rate a_w, and else says any other class with equal chance, so that the class c of item i has
#
#     q_i(c) ∝ Π_w [a_w where w said c, else (1 − a_w)/(C − 1)]       1 for what was decided
#     a_w = (4 + Σ_i q_i(what w said of i)) / (5 + how many items)
#
# by turns (EM). The prior is five answers, four of them right: most people are, and without it two people who always
# agree with each other would be right by definition. Nobody counts against what they say: a_w is 1/C at least.

PRIOR_RIGHT, PRIOR_SAID = 4.0, 5.0
MOST_RELIABLE = 0.98
RELIABILITY_STEP = 0.05  # a_w is told in steps: labels change their doubt now and then, and not with each answer
EM_STEPS = 50
DOUBT_STEP = 2.0**-10


def measure_reliability(shared: Iterable[ItemVoices], C: int) -> dict[str, tuple[float, int]]:
    """Person → (the chance that what they say is right, of how many items), from items that several have answered.

    Args:
        shared: what was said of each item. One that a single person named a class of counts only if it was decided.
        C: how many classes there are.
    """
    said = [heard for heard in shared if len(heard.labels) > (heard.decision is None) and (heard.counts is not None)]
    people = sorted({who for heard in said for who in heard.labels})
    number = {who: w for w, who in enumerate(people)}
    rows = [(n, who, label) for n, heard in enumerate(said) for who, label in heard.labels.items()]
    if not rows or C < 2:
        return {}
    # k: the pairs of an item and a class that somebody named, or that was decided
    pair = {key: k for k, key in enumerate(dict.fromkeys((n, label) for n, _, label in rows))}
    w_V = np.array([number[who] for _, who, _ in rows])
    k_V = np.array([pair[n, label] for n, _, label in rows])
    n_K = np.array([n for n, _ in pair])
    unsaid_N = C - np.bincount(n_K, minlength=len(said))
    decided_N = np.array([heard.decision is not None for heard in said])
    right_K = np.array([said[n].decision is not None and said[n].counts.label == label for n, label in pair])  # type: ignore[union-attr]
    count_W, a_W = np.bincount(w_V), np.full(len(people), PRIOR_RIGHT / PRIOR_SAID)
    for _ in range(EM_STEPS):
        odds_W = np.log(a_W * (C - 1) / (1 - a_W))  # of a class that was said against one that nobody said
        q_K = np.exp(np.bincount(k_V, odds_W[w_V], len(pair)))
        q_K = np.where(decided_N[n_K], right_K, q_K / (np.bincount(n_K, q_K, len(said)) + unsaid_N)[n_K])
        a_W = (PRIOR_RIGHT + np.bincount(w_V, q_K[k_V])) / (PRIOR_SAID + count_W)
        a_W = a_W.clip(1 / C, MOST_RELIABLE)
    return {who: (float(a), int(n)) for who, a, n in zip(people, a_W, count_W)}


def step_reliability(a: float, C: int) -> float:
    """The same in steps, between 1/C, which is chance, and the most that anybody is trusted."""
    return min(max(round(round(a / RELIABILITY_STEP) * RELIABILITY_STEP, 2), 1 / C), MOST_RELIABLE)


def weigh_voices(heard: ItemVoices, trust: Mapping[str, float], C: int) -> ItemVoices:
    """The same voices, of which the class that is likeliest counts; of a tie the one that was said first.

    ``trust``: person → the chance that what they say is right; others have that of the prior. A decision stays.
    """
    if heard.decision is not None or not heard.labels:
        return heard
    odds = dict.fromkeys(heard.labels.values(), 0.0)
    for who, label in heard.labels.items():
        a = trust.get(who, PRIOR_RIGHT / PRIOR_SAID)
        odds[label] += log(a * (C - 1) / (1 - a))
    best = max(odds, key=lambda label: odds[label])
    chances = np.exp(np.array([0.0] * (C - len(odds)) + list(odds.values())) - odds[best])
    counts = next(event for event in heard.voices.values() if event.label == best)
    return replace(heard, counts=counts, doubt=in_doubt_steps(1 - 1 / float(chances.sum())))


def in_doubt_steps(doubt: float) -> float:
    """A doubt as labels keep it, in binary steps: class + doubt come apart exactly."""
    return round(doubt / DOUBT_STEP) * DOUBT_STEP


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
