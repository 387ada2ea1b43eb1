"""Were the committed numbers met again? Records made on another day, by another process, beside the committed ones.

    python results/repeats.py

`results/repeat/` holds studies run again with the same command. An accuracy is met if the mean of the repeated seeds
lies within the committed 95 % interval of the mean over all its seeds; a rounding difference if it is as small.
"""

from pathlib import Path

import numpy as np
from scipy.stats import t

from foretaste.study import load

HERE = Path(__file__).parent
AFTER_FIRST = 1  # accuracies are averaged over the cycles after the first query


def interval(values: list[float]) -> tuple[float, float]:
    n = len(values)
    return float(np.mean(values)), float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n))


def accuracies(folder: Path, arm: str, cycle: int | None) -> dict[int, float]:
    """By seed, in %: at one cycle, or the mean over the cycles after the first query; complete seeds only."""
    found: dict[int, list[float]] = {}
    for r in sorted((r for r in load(folder) if r["arm"] == arm), key=lambda r: r["cycle"]):
        found.setdefault(r["seed"], []).append(100 * r["accuracy"])
    most = max(map(len, found.values()))
    whole = {seed: each for seed, each in found.items() if len(each) == most}
    return {seed: float(np.mean(each[AFTER_FIRST:])) if cycle is None else each[cycle] for seed, each in whole.items()}


def rows() -> list[tuple[str, str, str, str, bool]]:
    """(what, committed, repeated, on which seeds, met)."""
    found = []
    for arm in ("NTK", "Random"):
        for cycle, words in ((None, "mean of five cycles"), (1, "at 120 labels"), (5, "at 200 labels")):
            old, new = (accuracies(HERE / part, arm, cycle) for part in ("mnist", "repeat/mnist"))
            mean, half = interval(list(old.values()))
            again = float(np.mean(list(new.values())))
            found.append((f"MNIST, {arm}, {words}", f"{mean:.2f} ± {half:.2f}", f"{again:.2f}", seeds(new),
                          abs(again - mean) <= half))  # fmt: skip
    for width in (32, 128, 512, 2048):
        old, new = (gaps(HERE / part, width) for part in ("theorem", "repeat/theorem"))
        mean, half = interval(list(old.values()))
        again = float(np.mean(list(new.values())))
        found.append((f"theorem, gap at width {width}", f"{mean:.4f} ± {half:.4f}", f"{again:.4f}", seeds(new),
                      abs(again - mean) <= half))  # fmt: skip
    for name, key, most in (
        ("theorem", "warm_cold_kernel", 1e-12),
        ("block", "relative_difference", 1e-10),
    ):
        old, new = ({r["seed"]: r[key] for r in load(HERE / part) if key in r} for part in (name, f"repeat/{name}"))
        found.append((f"{name}, {key.replace('_', ' ')}", f"{max(old.values()):.1e}", f"{max(new.values()):.1e}",
                      seeds(new), max(new.values()) < most))  # fmt: skip
    return found


def gaps(folder: Path, width: int) -> dict[int, float]:
    return {r["seed"]: r["warm_cold_network"] for r in load(folder) if r.get("width") == width}


def seeds(found: dict[int, float]) -> str:
    return ", ".join(map(str, sorted(found)))


if __name__ == "__main__":
    print("| | committed | again | seeds | met |\n|---|---|---|---|---|")
    for what, committed, again, which, met in rows():
        print(f"| {what} | {committed} | {again} | {which} | {'yes' if met else '**no**'} |")
