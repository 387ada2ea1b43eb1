"""Reading what a run has written: lines of JSON and their shape. Whatever is damaged is named, with what to do."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foretaste.errors import check_regular, seal_holds

LARGEST_STUDY_JSON = 10**8  # bytes
SHOWN_CHARACTERS = 60  # of a value in a message

Shape = Any  # a predicate named after what it accepts, a list of one shape, or a dict; see ``shape_fault``


def a_whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def a_count(value: Any) -> bool:
    return a_whole_number(value) and 0 <= value < 2**63


def a_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def a_duration(value: Any) -> bool:
    return a_finite_number(value) and 0 <= value < 1e12


def a_share(value: Any) -> bool:
    return a_finite_number(value) and 0 <= value <= 1


def a_text(value: Any) -> bool:
    return isinstance(value, str)


def a_truth_value(value: Any) -> bool:
    return isinstance(value, bool)


def a_table(value: Any) -> bool:
    return isinstance(value, dict)


def or_null(shape: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def accepted(value: Any) -> bool:
        return value is None or shape(value)

    accepted.__name__ = f"{shape.__name__} or null"
    return accepted


RECORD_SHAPE: Shape = {
    "arm": a_text,
    "seed": a_count,
    "cycle": a_count,
    "labelled": a_count,
    "labelled_ids": [a_whole_number],
    "accuracy": a_share,
    "residual": a_finite_number,
    "interpolates": a_truth_value,
    "queried": [a_whole_number],
    "predicted": [a_whole_number],
    "labels": [a_whole_number],
    "cost": {"train": a_duration, "query": or_null(a_duration), "stages": {"*": a_duration}, "peak_memory": a_count},
    "against?": or_null(a_text),
    "diverged?": a_truth_value,  # of old records: the accuracy is that of a network at its initial weights
    "retries?": a_count,
    "ratio?": a_finite_number,
    "config?": a_table,
    "versions?": {"*": a_text},
}
CHECK_SHAPES: dict[str, Shape] = {  # records of the experiments without a loop
    "theorem": {
        "seed": a_count,
        "width?": or_null(a_count),
        "warm_cold_kernel?": or_null(a_finite_number),
        "warm_cold_network?": or_null(a_finite_number),
    },
    "block": {
        "seed": a_count,
        "L": a_count,
        "U": a_count,
        "largest_difference": a_finite_number,
        "relative_difference": a_finite_number,
        "same_top": a_share,
        "seconds_block": a_duration,
        "seconds_direct": a_duration,
        "arm?": or_null(a_text),
    },
}
STUDY_SHAPE: Shape = {
    "study": {
        "arms": [{"name": a_text}],
        "seeds": [a_count],
        "labels": {"cycles": a_count},
        "data": a_table,
        "experiment?": or_null(a_text),
        "title?": or_null(a_text),
        "notes?": or_null(a_text),
    },
    "about?": {"*": a_text},
    "classes?": [a_text],
    "data?": or_null(a_text),
    "data_notes?": [a_text],
    "standin?": or_null(a_text),
    "digest?": {"data?": {"*": a_text}, "code?": {"*": a_text}},
}


def shape_fault(value: Any, shape: Shape, at: str = "") -> str | None:
    """Where a value does not have a shape, in words; None if it has.

    A shape is a predicate, ``[shape]`` for a list, or a dict by key. A key that ends in "?" may be missing; "*" stands
    for every key. Further keys are allowed: later versions may write more.
    """
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _unexpected(at, value, "a list")
        return next((fault for k, v in enumerate(value) if (fault := shape_fault(v, shape[0], f"{at}[{k}]"))), None)
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            return _unexpected(at, value, "a table")
        keys = dict.fromkeys(value, shape["*"]) if "*" in shape else shape
        for key, inner in keys.items():
            name, here = key.removesuffix("?"), f"{at}.{key.removesuffix('?')}".lstrip(".")
            if name not in value:
                if key.endswith("?"):
                    continue
                return f"it has no {here}"
            if fault := shape_fault(value[name], inner, here):
                return fault
        return None
    return None if shape(value) else _unexpected(at, value, shape.__name__.replace("_", " "))


def _unexpected(at: str, value: Any, expected: str) -> str:
    return f"{at or 'it'} is {repr(value)[:SHOWN_CHARACTERS]}; expected {expected}"


def record_fault(record: Any, experiment: str = "loop") -> str | None:
    """What is wrong with a record of that experiment; None if nothing is."""
    shape = RECORD_SHAPE if experiment == "loop" else CHECK_SHAPES.get(experiment, {})
    if fault := shape_fault(record, shape):
        return fault
    if experiment == "theorem" and record.get("warm_cold_network") is not None and not record.get("width"):
        return "it has a gap of a network and no width"
    same = experiment != "loop" or len(record["queried"]) == len(record["predicted"]) == len(record["labels"])
    return None if same else "queried, predicted and labels differ in length"


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file. A last line without an end is still being written, and is left out.

    A line whose checksum is not that of its text was changed, and so was one without that follows one with: earlier
    versions wrote none. Checksums are left out of the objects.
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
            raise damaged_record(path, k, "it was changed after it was written, for its checksum is another")
        sealed = sealed or holds is True
        one.pop("checksum", None)
        found.append(one)
    return found


def damaged_record(path: Path, line: int, fault: str) -> ValueError:
    """The error about a line of a file of records that cannot be read."""
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
    if fault := shape_fault(stored, STUDY_SHAPE):
        raise ValueError(f"{path} does not describe a study: {fault}; {again}")
    return stored
