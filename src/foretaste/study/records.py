"""What a study leaves behind: one plain, JSON-able record a cycle."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict


class Cost(TypedDict):
    """What differs from run to run. Seconds, and bytes."""

    train: float
    measure: float
    query: float | None  # all of the query, calibration included; None in the last cycle, which asks nothing
    stages: dict[str, float]  # of the query: outputs, kernel, score, select, ...
    peak_memory: int  # on a GPU of this cycle, on a CPU of the process until now


class Record(TypedDict):
    """One cycle of one arm and seed: f trained on ``labelled`` points, measured, and what was asked next."""

    arm: str
    against: str | None  # the arm that differences are taken to
    seed: int
    cycle: int  # 0 is before the first query
    labelled: int
    labelled_ids: list[int]  # in the order they were labelled
    accuracy: float  # share of the test points, 0 to 1
    residual: float  # mean squared error of f on its own labels
    interpolates: bool  # f has learned them
    diverged: bool  # its training blew up; what is measured is a network at new weights
    steps: int  # of SGD
    max_lr: float | None  # as used; None where nothing is trained
    candidates: int  # U, how many were offered; 0 in the last cycle
    queried: list[int]  # ids, in the order asked
    predicted: list[int]  # f's class for each, before its label was known
    labels: list[int]  # the oracle's answers
    scale: float | None  # s² in use; None where the strategy has none
    ratio: float  # of s² to its leave-one-out value, for the next cycle
    ridge: float | None
    cost: Cost
    config: dict[str, Any]  # the arm's Trial, whole
    versions: dict[str, str]  # of Python and packages, and the device


def save(records: Iterable[Any], path: Path) -> None:
    """One record a line."""
    path.write_text("".join(map(line, records)), encoding="utf-8")


def line(record: Any) -> str:
    return json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n"


def load(path: str | Path) -> list[Any]:
    """The records of a .jsonl file, or of all of them in a run's folder by arm, seed and cycle.

    A last line without its end is still being written, or was cut off: not a record.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; expected the folder of a run, or a .jsonl file of records")
    found = (path / "records").glob("*/*.jsonl") if path.is_dir() else [path]
    paths = sorted(found, key=lambda p: (p.parent, len(p.stem), p.stem))  # seed 2 before 10
    return [json.loads(text) for one in paths for text in one.read_bytes().split(b"\n")[:-1] if text.strip()]
