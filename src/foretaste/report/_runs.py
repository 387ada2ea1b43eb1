"""A run's folder, read: also one that is still being written."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from foretaste.report._common import Plan
from foretaste.report._summary import Summary, summarize


@dataclass(frozen=True)
class Run:
    """What study.json says, and the records there are."""

    path: Path
    told: dict[str, Any]
    records: list[Any]

    @property
    def study(self) -> dict[str, Any]:
        return self.told["study"]

    @property
    def experiment(self) -> str:
        return self.study.get("experiment") or "loop"

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def title(self) -> str:
        return self.study.get("title") or self.name

    @property
    def notes(self) -> list[str]:
        """Of the study, then of its data."""
        # Configurations break lines where their own width ends; only an empty line ends a paragraph.
        paragraphs = [" ".join(part.split()) for part in (self.study.get("notes") or "").split("\n\n")]
        return [p for p in paragraphs if p] + [f"Data: {note}" for note in self.told.get("data_notes") or []]

    @property
    def warnings(self) -> list[str]:
        """A stand-in for the data makes everything on the page no result."""
        standin = self.told.get("standin")
        said = "not a result" in (standin or "").casefold()
        return [standin if said else f"Not a result. {standin}"] if standin else []

    @property
    def plan(self) -> dict[str, Plan]:
        """What the folder is to hold in the end, arms in their order."""
        cycles = 1 + int(self.study["labels"]["cycles"])
        return {arm["name"]: Plan(tuple(self.study["seeds"]), cycles) for arm in self.study["arms"]}

    @cached_property
    def pictures(self) -> dict[int, np.ndarray]:
        file = self.path / "pictures.npz"
        if not file.exists():
            return {}
        with np.load(file, allow_pickle=False) as kept:
            return dict(zip(kept["ids"].tolist(), kept["pixels"]))

    def summary(self) -> Summary:
        if not self.records:
            raise ValueError(f"{self.path} has no finished cycle yet; nothing to report")
        return summarize(self.records, self.plan)


def read(path: Path) -> Run:
    """A run's folder. A last line that is still being written is not a record yet; any other that is none is told."""
    about = path / "study.json"
    if not about.is_file():
        raise ValueError(f"{path} has no study.json; expected the folder of a run, as foretaste run makes it")
    records = []
    for file in sorted((path / "records").glob("*/*.jsonl")):
        text = file.read_bytes()
        for k, one in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), start=1):
            try:
                records.append(json.loads(one))
            except ValueError:
                raise ValueError(f"{file}, line {k}, is no record; take the file away and run it anew") from None
    try:
        told = json.loads(about.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{about} is not JSON: {error}; start the run again, which writes it anew") from None
    return Run(path, told, records)
