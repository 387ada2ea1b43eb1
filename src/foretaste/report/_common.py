"""What all arms have in common, while a study is still running or where arms were run differently."""

from collections.abc import Collection, Mapping
from itertools import groupby
from typing import NamedTuple

Key = tuple[str, int, int]  # arm, seed, cycle


class Plan(NamedTuple):
    """What an arm is to have when it is finished."""

    seeds: tuple[int, ...]
    cycles: int  # the one before the first query included


class Common(NamedTuple):
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    cycles: int
    missing: tuple[str, ...]


def common(have: Collection[Key], plan: Mapping[str, Plan] | None, labelled: Mapping[int, int]) -> Common:
    """The largest block of seeds × cycles that every arm has, and in words what is outside of it.

    Arms that share no seed would leave nothing: those without the seed that most arms have are left out, and named.
    """
    every = Plan(tuple(sorted({s for _, s, _ in have})), 1 + max(c for _, _, c in have))
    met = dict.fromkeys(name for name, _, _ in have)
    plan = dict(plan or {}) | {name: every for name in met if name not in (plan or {})}
    keys = set(have)
    done = {(name, s): _unbroken(keys, name, s) for name, s, _ in have}
    words = _behind(plan, done, labelled)
    arms = [name for name in plan if any(n for (other, _), n in done.items() if other == name)]
    if not arms:
        raise ValueError("no arm has its cycle 0, the one before the first query; expected records from there on")
    if (block := _block(arms, done)) is None:
        own = {s: [name for name in arms if done.get((name, s), 0)] for _, s in done}
        kept = own[max(sorted(own), key=lambda s: len(own[s]))]
        words += [f"{name} is left out: it shares no seed with the others." for name in arms if name not in kept]
        arms = kept
        block = _block(arms, done)
        assert block is not None  # the seed that was chosen
    seeds, cycles = block
    lost = len(keys) - len(arms) * len(seeds) * cycles
    if words or lost:
        span = f"{_seeds(seeds)} up to {labelled[cycles - 1]} labels"
        words.append(
            f"Shown is what all arms have, {span}" + (f"; {lost} further records are left out." if lost else ".")
        )
    return Common(tuple(arms), tuple(seeds), cycles, tuple(words))


def _unbroken(keys: set[Key], name: str, seed: int) -> int:
    """How many cycles there are from 0 on, none missing."""
    n = 0
    while (name, seed, n) in keys:
        n += 1
    return n


def _block(arms: list[str], done: Mapping[tuple[str, int], int]) -> tuple[list[int], int] | None:
    """Seeds and number of cycles that all arms have, such that seeds × queries is largest; None if there are none."""
    seeds = sorted({s for _, s in done})
    found = []
    for cycles in range(1, 1 + max(done.values())):
        kept = [s for s in seeds if all(done.get((name, s), 0) >= cycles for name in arms)]
        if kept:
            found.append((len(kept) * (cycles - 1), len(kept), cycles, kept))
    if not found:
        return None
    _, _, cycles, kept = max(found)
    return kept, cycles


def _behind(plan: Mapping[str, Plan], done: Mapping[tuple[str, int], int], labelled: Mapping[int, int]) -> list[str]:
    """What is not there yet, arms in the same state in one sentence."""
    states: dict[tuple[tuple[int, tuple[int, ...]], ...], list[str]] = {}
    for name, (seeds, cycles) in plan.items():
        short = sorted((n, s) for s in seeds if (n := done.get((name, s), 0)) < cycles)
        state = tuple((n, tuple(s for _, s in group)) for n, group in groupby(short, key=lambda pair: pair[0]))
        if state:
            states.setdefault(state, []).append(name)
    out = []
    for state, names in states.items():
        if len(state) == 1 and state[0][0] == 0 and all(state[0][1] == plan[name].seeds for name in names):
            said = "nothing yet"
        else:
            said = ", ".join(
                f"{_seeds(seeds)} {'unfinished at ' + str(labelled[n - 1]) + ' labels' if n else 'not begun'}"
                for n, seeds in state
            )
        who = "every arm" if len(names) == len(plan) > 1 else "; ".join(names)  # names have commas
        out.append(f"{who}: {said}.")
    return out


def _seeds(seeds: Collection[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
