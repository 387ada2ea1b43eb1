"""The records of a study: one plain, JSON-able record a cycle, with its cost and the versions it was made with."""

import json
import platform
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

import torch

from foretaste.errors import seal_json
from foretaste.study.stored import read_json_lines

PACKAGES = ("foretaste", "torch", "numpy", "scikit-learn")


class Cost(TypedDict):
    """Seconds and bytes. The only part of a record that differs from run to run."""

    train: float
    measure: float
    query: float | None  # the whole query, calibration included; None in the last cycle, which queries nothing
    stages: dict[str, float]  # of the query: outputs, kernel, score, select, ...
    peak_memory: int  # on a GPU the peak of this cycle, on a CPU that of the process so far


class Record(TypedDict):
    """One cycle of one arm and seed: f trained on ``labelled`` points, measured, and the points queried next."""

    arm: str
    against: str | None  # the arm that differences are taken to
    seed: int
    cycle: int  # 0 is before the first query
    labelled: int
    labelled_ids: list[int]  # in the order in which they were labelled
    accuracy: float  # share of the test points, 0 to 1
    residual: float  # mean squared error of f on its own labels
    interpolates: bool  # f has learned its labels
    retries: int  # trainings that diverged before this one, each at twice the learning rate of the next
    steps: int  # of SGD
    max_lr: float | None  # as used; None where nothing is trained
    candidates: int  # U, how many points were offered; 0 in the last cycle
    queried: list[int]  # ids, in the order in which they were picked
    predicted: list[int]  # f's class for each, before its label was known
    labels: list[int]  # the oracle's answers
    scale: float | None  # s² in use; None where the strategy has none
    ratio: float  # of s² to its leave-one-out value, for the next cycle
    ridge: float | None
    cost: Cost
    config: dict[str, Any]  # the arm's Trial, whole
    versions: dict[str, str]  # of Python and packages, and the device


def save_records(records: Iterable[Any], path: Path) -> None:
    """Write records into a .jsonl file, one a line."""
    path.write_text("".join(map(record_line, records)), encoding="utf-8")


def record_line(record: Any) -> str:
    """A record and its checksum, by which ``read_json_lines`` sees that a line was changed."""
    return seal_json(json.dumps(record, allow_nan=False, ensure_ascii=False)) + "\n"


def load_records(path: str | Path) -> list[Any]:
    """Read the records of a run.

    Args:
        path: the folder of a run, or a .jsonl file of records. It may belong to a run that is still going on.

    Returns:
        The records by arm, seed and cycle. A last line without an end is still being written and is left out.

    Raises:
        FileNotFoundError: if there is no such folder or file.
        ValueError: if a line is not a record, or was changed after it was written; the error names the file and the
            line.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from foretaste import study
        >>> path = Path(tempfile.mkdtemp()) / "records.jsonl"
        >>> study.save([{"arm": "gain", "cycle": 0}], path)
        >>> study.load(path)
        [{'arm': 'gain', 'cycle': 0}]
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; expected the folder of a run, or a .jsonl file of records")
    found = (path / "records").glob("*/*.jsonl") if path.is_dir() else [path]
    paths = sorted(found, key=lambda p: (p.parent, len(p.stem), p.stem))  # seed 2 before 10
    return [record for one in paths for record in read_json_lines(one)]


def reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """Bytes: on a GPU since ``reset_peak_memory``, on a CPU the most this process has held so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def software_versions(device: torch.device) -> dict[str, str]:
    """Of Python and the packages that matter, and the name of the device."""
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} {platform.machine()}"
    return _package_versions() | {"device": where}


@cache
def _package_versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: _version_of(name) for name in PACKAGES}


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from its sources
        return "not installed"
