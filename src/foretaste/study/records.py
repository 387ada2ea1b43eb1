"""The records of a study, one JSON line a cycle; study.json beside them. Both are validated when they are read.

Keys that are not listed here are allowed: later versions may write more. ``NotRequired`` are those that earlier
versions did not write.
"""

import json
import platform
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeAlias

import torch
from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic takes that of typing from Python 3.12 on

from foretaste.errors import check_regular, seal_holds, seal_json
from foretaste.study.settings import first_fault

PACKAGES = ("foretaste", "torch", "numpy", "scikit-learn")
LARGEST_STUDY_JSON = 10**8  # bytes

Natural: TypeAlias = Annotated[StrictInt, Field(ge=0, lt=2**63)]
Finite: TypeAlias = Annotated[StrictFloat, Field(allow_inf_nan=False)]  # 1 is one too
Seconds: TypeAlias = Annotated[StrictFloat, Field(ge=0, lt=1e12)]
Proportion: TypeAlias = Annotated[StrictFloat, Field(ge=0, le=1)]


class Cost(TypedDict):
    """Seconds and bytes. The only part of a record that differs from run to run."""

    train: Seconds
    measure: NotRequired[Seconds]
    query: Seconds | None  # the whole query, calibration included; None in the last cycle, which queries nothing
    stages: dict[str, Seconds]  # of the query: outputs, kernel, score, select, ...
    peak_memory: Natural  # on a GPU the peak of this cycle, on a CPU that of the process so far


class Record(TypedDict):
    """One cycle of one arm and seed: f trained on ``labelled`` points, measured, and the points queried next."""

    arm: StrictStr
    against: NotRequired[StrictStr | None]  # the arm that differences are taken to
    seed: Natural
    cycle: Natural  # 0 is before the first query
    labelled: Natural
    labelled_ids: list[StrictInt]  # in the order in which they were labelled
    accuracy: Proportion  # of the test points
    residual: Finite  # mean squared error of f on its own labels
    interpolates: StrictBool  # f has learned its labels
    retries: NotRequired[Natural]  # trainings that diverged before this one; each try halves the learning rate
    diverged: NotRequired[StrictBool]  # of old records: the accuracy is that of a network at its initial weights
    steps: NotRequired[Natural]  # of SGD
    max_lr: NotRequired[Finite | None]  # as used; None where nothing is trained
    candidates: NotRequired[Natural]  # U, how many points were offered; 0 in the last cycle
    queried: list[StrictInt]  # ids, in the order in which they were picked
    predicted: list[StrictInt]  # f's class for each, before its label was known
    labels: list[StrictInt]  # the oracle's answers
    scale: NotRequired[Finite | None]  # s² in use; None where the strategy has none
    ratio: NotRequired[Finite]  # of s² to its leave-one-out value, for the next cycle
    ridge: NotRequired[Finite | None]
    pool: NotRequired[dict[str, Any] | None]  # what it is worth to what predicts, else to the query; None: not asked
    cost: Cost
    config: NotRequired[dict[str, Any]]  # the arm's Trial, whole
    versions: NotRequired[dict[str, StrictStr]]  # of Python and packages, and the device


class TheoremRecord(TypedDict):
    """Theorem 3.1 at one width: how far warm start is from cold start."""

    seed: Natural
    width: NotRequired[Natural | None]
    warm_cold_kernel: NotRequired[Finite | None]
    warm_cold_network: NotRequired[Finite | None]
    config: NotRequired[dict[str, Any]]


class BlockRecord(TypedDict):
    """Eq. 12 compared with Eq. 11."""

    seed: Natural
    L: Natural
    U: Natural
    largest_difference: Finite
    relative_difference: Finite
    same_top: Proportion
    seconds_block: Seconds
    seconds_direct: Seconds
    arm: NotRequired[StrictStr | None]
    config: NotRequired[dict[str, Any]]


class StoredArm(TypedDict):
    name: StrictStr


class StoredLabels(TypedDict):
    cycles: Natural


class StoredStudy(TypedDict):
    """What a report needs of a configuration."""

    arms: list[StoredArm]
    seeds: list[Natural]
    labels: StoredLabels
    data: dict[str, Any]
    experiment: NotRequired[StrictStr | None]
    title: NotRequired[StrictStr | None]
    notes: NotRequired[StrictStr | None]


class StoredDigests(TypedDict):
    data: NotRequired[dict[str, StrictStr]]
    code: NotRequired[dict[str, StrictStr]]


class StudyJson(TypedDict):
    """study.json: the configuration, the data, and how the records were made."""

    study: StoredStudy
    about: NotRequired[dict[str, StrictStr]]
    classes: NotRequired[list[StrictStr]]
    data: NotRequired[StrictStr | None]
    data_notes: NotRequired[list[StrictStr]]
    standin: NotRequired[StrictStr | None]
    digest: NotRequired[StoredDigests]


STUDY_JSON = TypeAdapter(StudyJson)
RECORD_OF: dict[str, TypeAdapter[Any]] = {
    "loop": TypeAdapter(Record),
    "theorem": TypeAdapter(TheoremRecord),
    "block": TypeAdapter(BlockRecord),
}


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


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file. A last line without an end is still being written, and is left out.

    A line was changed if its checksum is wrong, or missing where an earlier line has one. Files of early versions have
    none. The objects come without checksums.
    """
    check_regular(path)
    found, raw, sealed = [], path.read_bytes(), False
    for k, line in enumerate(raw[: raw.rfind(b"\n") + 1].split(b"\n")[:-1], 1):
        if not line.strip():
            continue
        try:
            one = json.loads(line)
        except (ValueError, RecursionError):
            raise damaged_record(path, k, "it is not JSON") from None
        if not isinstance(one, dict):
            raise damaged_record(path, k, "it is not a table")
        holds = seal_holds(line.strip().decode(errors="replace"))
        if holds is False or (sealed and holds is None):
            raise damaged_record(path, k, "its checksum is wrong: it was changed after it was written")
        sealed = sealed or holds is True
        one.pop("checksum", None)
        found.append(one)
    return found


def record_fault(record: Any, experiment: str = "loop") -> str | None:
    """What is wrong with a record of that experiment; None if nothing is."""
    try:
        RECORD_OF[experiment].validate_python(record)
    except ValidationError as error:
        return first_fault(error)
    if experiment == "theorem" and record.get("warm_cold_network") is not None and not record.get("width"):
        return "it has a gap of a network and no width"
    same = experiment != "loop" or len(record["queried"]) == len(record["predicted"]) == len(record["labels"])
    return None if same else "queried, predicted and labels differ in length"


def damaged_record(path: Path, line: int, fault: str) -> ValueError:
    """The error about a line that is not a record."""
    return ValueError(
        f"{path}, line {line}, is not a record: {fault}. Remove the file and start the run again: it makes these "
        "records anew"
    )


def read_study_json(path: Path) -> dict[str, Any]:
    """study.json of a run. Raises if it is no file, not JSON, or lacks what a study has."""
    check_regular(path)
    again = "start the run again in this folder, which writes the file anew"
    if path.stat().st_size > LARGEST_STUDY_JSON:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, which is too much; {again}")
    try:
        stored = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {str(error)[:200]}; {again}") from None
    try:
        STUDY_JSON.validate_python(stored)
    except ValidationError as error:
        raise ValueError(f"{path} does not describe a study: {first_fault(error)}; {again}") from None
    return stored


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
