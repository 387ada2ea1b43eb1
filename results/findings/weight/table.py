"""All tables on the weight of ``cover``, from the records alone: python results/findings/weight/table.py

Differences are to ``cover`` (signs0:cov), paired by seed; in brackets, one standard error.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

HERE = Path(__file__).parent
COVER = "signs0:cov"
WEIGHTS = ["signs0:p", "signs0:gap", "signs0:cgap", "signs0:phi", "signs0:ent", "signs0:uni"]
KERNELS = ["trace:cov", "mean1-4:cov", "signs3:cov", "gauss:cov", "gauss:p", "gauss:gap"]
SHOWN = [*WEIGHTS, *KERNELS, "margin", "random"]
NAMES = {
    "signs0:p": "1 − p",
    "signs0:gap": "1 − gap",
    "signs0:cgap": "√(Φ(1 − gap))",
    "signs0:phi": "Φ",
    "signs0:ent": "entropy",
    "signs0:uni": "uniform",
    "trace:cov": "`cover` with the trace",
    "mean1-4:cov": "`cover`, mean of four draws of signs",
    "signs3:cov": "`cover`, another draw of signs",
    "gauss:cov": "`cover`'s weight, herding's Gaussian",
    "gauss:p": "1 − p, herding's Gaussian",
    "gauss:gap": "1 − gap, herding's Gaussian",
    "margin": "margin",
    "random": "random",
    "signs0:covk": "√(Φ(1 − p))",
    "signs0:cgapk": "√(Φ(1 − gap))",
    "signs0:covg": "1 − gap",
    "signs0:pg": "√((1 − p)(1 − gap))",
    "tang0:cov": "`cover` without the switch",
}
VARIANTS = ["signs0:covk", "signs0:cgapk", "signs0:covg", "signs0:pg"]  # made after seeds 0 to 15 had been seen
COLLAPSED = [
    *("c100-few", "bank-few", "bank-few-adam", "c10-few-adam"),
    *("c100-many", "bank-lt-few", "bank-many", "c100-lt-few"),
]
ADAM = ["c10-adam64:ce", "digits-adam64:ce", "c10-adam64:l2", "digits-adam64:l2", "c10-few-adam:l2", "bank-few-adam:l2"]
SEEDS = {"seeds 0 to 15": range(16), "seeds 16 to 49": range(16, 50), "all seeds": range(50)}
DRAWS = {
    "one hidden layer, cross-entropy": "ce1-*",
    "one hidden layer, squared loss": "l2a-*",
    "two hidden layers": "deep/*",
}


class Difference(NamedTuple):
    """The mean of paired differences, its standard error, the seeds and the p-value of Student's t."""

    mean: float
    error: float
    seeds: int
    p: float

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ({self.error:.2f})"


def records(pattern: str) -> Iterable[dict]:
    """Of all files that match, with each arm's mean accuracy after the first query, (seeds,)."""
    for file in sorted((HERE / "records").glob(f"{pattern}.json")):
        for record in json.loads(file.read_text(encoding="utf-8")):
            accuracy = np.array(record["accuracy"])
            yield record | {"mean": dict(zip(record["arms"], accuracy[:, :, 1:].mean(2)))}


def read() -> dict[str, list[dict]]:
    """The records of each cell."""
    cells: dict[str, list[dict]] = {}
    for tag in ("ce1", "l2a", "two", "last"):
        for record in records(f"{tag}-*"):
            cells.setdefault(record["cell"]["name"], []).append(record)
    return cells


def of_loss(cells: dict[str, list[dict]], loss: str) -> list[str]:
    """The cells of the main tables. Those of AdamW that ran few arms have a table of their own."""
    return [name for name in cells if name.endswith(loss) and name not in ADAM]


def cover(cell: list[dict]) -> float:
    """The accuracy of cover; of a seed that ran twice the last counts."""
    by_seed = {seed: v for record in cell for seed, v in zip(record["seeds"], record["mean"][COVER])}
    return float(np.mean(list(by_seed.values())))


def difference(cell: list[dict], arm: str, seeds: Iterable[int] = range(50)) -> Difference | None:
    """Paired within a record, so that both arms ran side by side. A seed counts once."""
    found: dict[int, float] = {}
    for record in cell:
        if arm in record["mean"]:
            found = dict(zip(record["seeds"], record["mean"][arm] - record["mean"][COVER])) | found
    d = np.array([found[seed] for seed in seeds if seed in found])
    if not len(d):
        return None
    mean, error = float(d.mean()), float(d.std(ddof=1)) / math.sqrt(len(d))
    p = 2 * float(student.sf(abs(mean) / error, len(d) - 1)) if error > 0 else 1.0
    return Difference(mean, error, len(d), p)


def over_cells(found: list[Difference]) -> str:
    """The mean over cells; its error is that of the seeds, the cells being given."""
    error = math.sqrt(sum(d.error**2 for d in found)) / len(found)
    return f"{np.mean([d.mean for d in found]):+.2f} ({error:.2f})"


def differences(cells: dict[str, list[dict]], loss: str, arm: str) -> dict[str, Difference]:
    """By cell, where the arm ran."""
    found = {name: difference(cells[name], arm) for name in of_loss(cells, loss)}
    return {name: d for name, d in found.items() if d}


def holm(ps: list[float]) -> np.ndarray:
    """p-values corrected for their number."""
    ordered = np.sort(ps) * np.arange(len(ps), 0, -1)
    out = np.empty(len(ps))
    out[np.argsort(ps)] = np.minimum(np.maximum.accumulate(ordered), 1)
    return out


def line(*parts: object) -> str:
    """A row of a table."""
    return "| " + " | ".join(map(str, parts)) + " |"


def head(*parts: str) -> list[str]:
    """The first two lines of a table."""
    return [line(*parts), "|" + "---|" * len(parts)]


def by_cell(cells: dict[str, list[dict]], loss: str) -> str:
    """Every cell and arm of a loss. Bold: p < 0.05, not corrected."""
    lines = head("cell", "cover", *SHOWN)
    for name in of_loss(cells, loss):
        found = [difference(cells[name], arm) for arm in SHOWN]
        row = ["" if d is None else f"**{d}**" if d.p < 0.05 else str(d) for d in found]
        lines.append(line(name.split(":")[0], f"{cover(cells[name]):.1f}", *row))
    return "\n".join(lines)


def means(cells: dict[str, list[dict]]) -> str:
    """Each arm over all cells of a loss: the mean, and in how many cells it is ahead and behind, p < 0.05."""
    lines = head("", "cross-entropy", "ahead, behind", "squared loss", "ahead, behind")
    for arm in SHOWN:
        row = []
        for loss in ("ce", "l2"):
            found = list(differences(cells, loss, arm).values())
            ahead, behind = (sum(d.p < 0.05 and sign * d.mean > 0 for d in found) for sign in (1, -1))
            row += [over_cells(found), f"{ahead}, {behind} of {len(found)}"]
        lines.append(line(NAMES[arm], *row))
    return "\n".join(lines)


def corrected(cells: dict[str, list[dict]]) -> tuple[int, list[tuple[str, str, Difference, float]]]:
    """How many tests of a weight in a cell there are, and what Holm's correction leaves at 0.05."""
    found = [
        (arm, name, d) for loss in ("ce", "l2") for arm in WEIGHTS for name, d in differences(cells, loss, arm).items()
    ]
    ps = holm([d.p for _, _, d in found])
    return len(found), [(arm, name, d, float(p)) for (arm, name, d), p in zip(found, ps) if p < 0.05]


def left(cells: dict[str, list[dict]]) -> str:
    """What the correction leaves, as a table; first the weights that are ahead."""
    lines = head("weight", "cell", "difference", "seeds", "p, corrected")
    for arm, name, d, p in sorted(corrected(cells)[1], key=lambda row: row[2].mean < 0):
        lines.append(line(NAMES[arm], name, d, d.seeds, f"{p:.4f}"))
    return "\n".join(lines)


def kept(cells: dict[str, list[dict]]) -> str:
    """Other weights where tangents collapse under cross-entropy: the mean over the eight cells, by seeds."""
    lines = head("weight where tangents have collapsed", *SEEDS)
    for arm in [*VARIANTS, "tang0:cov"]:
        row = []
        for seeds in SEEDS.values():
            found = [difference(cells[f"{name}:ce"], arm, seeds) for name in COLLAPSED]
            row.append(over_cells([d for d in found if d]) if any(found) else "–")
        lines.append(line(NAMES[arm], *row))
    return "\n".join(lines)


def kept_by_cell(cells: dict[str, list[dict]]) -> str:
    """The same by cell, all seeds; how many networks had collapsed; p of the first, corrected over the eight."""
    arms = [*VARIANTS, "tang0:cov", "gauss:gap", "signs0:uni"]
    lines = head("cell", "cover", "collapsed", *arms, "p of covk, corrected")
    names = [f"{name}:ce" for name in COLLAPSED]
    ps = holm([difference(cells[name], "signs0:covk").p for name in names])
    for name in names + ADAM:
        cell = cells[name]
        share = np.mean([np.mean(record["collapsed"]) for record in cell])
        row = [difference(cell, arm) or "" for arm in arms]
        p = f"{ps[names.index(name)]:.3f}" if name in names else ""
        lines.append(line(name, f"{cover(cell):.1f}", f"{share:.2f}", *row, p))
    return "\n".join(lines)


def shares(record: dict) -> dict[str, float]:
    """What two batches of a record have in common, mean over cycles and seeds."""
    overlap, draws = np.array(record["overlap"]).mean(0), record["draws"]

    def common(first: list[str], second: list[str]) -> float:
        pairs = [(draws.index(a), draws.index(b)) for a in first for b in second]
        return float(np.mean([overlap[a, b] for a, b in pairs if a < b]))

    signs, four = [draw for draw in draws if draw.startswith("signs")], ["mean1-4", "mean5-8"]
    return {
        "two draws": common(signs, signs),
        "two means of four draws": common(four, four),
        "a draw and the trace": common(signs, ["trace"]),
        "a mean of four and the trace": common(four, ["trace"]),
        "trace, `cover`'s weight and 1 − gap": common(["trace"], ["trace:gap"]),
    }


def drawn() -> str:
    """Shares in common, mean over cells of more than two classes where tangents have not collapsed."""
    rows = []
    for title, pattern in DRAWS.items():
        kind = [r for r in records(pattern) if np.mean(r["collapsed"]) < 0.05 and "cancer" not in r["cell"]["name"]]
        found = [shares(record) for record in kind]
        rows.append(line(title, len(found), *(f"{np.mean([f[key] for f in found]):.2f}" for key in found[0])))
    return "\n".join([*head("networks", "cells", *found[0]), *rows])


def drawn_by_cell() -> str:
    """Shares in common, each cell."""
    rows = []
    for title, pattern in DRAWS.items():
        for record in records(pattern):
            found = shares(record) | {"collapsed": float(np.mean(record["collapsed"]))}
            rows.append(line(title, record["cell"]["name"], *(f"{share:.2f}" for share in found.values())))
    return "\n".join([*head("networks", "cell", *found), *rows])


def besides(pattern: str) -> str:
    """Accuracies of the records that the other tables leave out."""
    found = list(records(pattern))
    lines = head("cell", "cover", *found[0]["arms"][1:])
    for record in found:
        row = [difference([record], arm) for arm in record["arms"][1:]]
        lines.append(line(record["cell"]["name"], f"{cover([record]):.1f}", *row))
    return "\n".join(lines)


def text() -> str:
    """All tables, as README.md has them."""
    cells = read()
    parts = {
        "Means over cells": means(cells),
        "Cross-entropy, by cell (bold: p < 0.05, not corrected)": by_cell(cells, "ce"),
        "Squared loss, by cell (bold: p < 0.05, not corrected)": by_cell(cells, "l2"),
        f"What Holm's correction leaves of {corrected(cells)[0]} tests of a weight in a cell, at 0.05": left(cells),
        "Collapsed tangents, cross-entropy, means over eight cells": kept(cells),
        "Collapsed tangents and AdamW, by cell": kept_by_cell(cells),
        "Shares of a batch in common, means over cells": drawn(),
        "Shares of a batch in common, by cell": drawn_by_cell(),
        "All 5,000 points offered, seeds 16 to 27": besides("whole/*"),
        "Two hidden layers, seeds 0 to 15": besides("deep/*"),
    }
    return "\n\n".join(f"### {title}\n\n{part}" for title, part in parts.items())


if __name__ == "__main__":
    print(text())
