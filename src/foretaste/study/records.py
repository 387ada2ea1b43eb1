"""What a study leaves behind: one plain, JSON-able record a cycle."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict


class Record(TypedDict):
    """One cycle of one strategy and seed: f trained on ``labelled`` points, measured, and what was asked next."""

    strategy: str
    seed: int
    cycle: int  # 0 is before the first query
    labelled: int
    accuracy: float  # share of the test points, 0 to 1
    residual: float  # mean squared error of f on its own labels
    train_seconds: float
    query_seconds: float | None  # None in the last cycle, which asks nothing
    queried: list[int]  # ids, in the order asked
    predicted: list[int]  # f's class for each, before its label was known
    labels: list[int]  # the oracle's answers
    scale: float | None  # s² in use; None where the strategy has none


def save(records: Iterable[Record], path: Path) -> None:
    """One record a line."""
    path.write_text("".join(json.dumps(record, allow_nan=False) + "\n" for record in records), encoding="utf-8")


def load(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
