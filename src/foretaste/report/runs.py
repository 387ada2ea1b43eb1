"""The folder of a run: what it holds, finished or not, and the report on it."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from foretaste.report.charts import save_figures, save_numbers
from foretaste.report.checks import check_page
from foretaste.report.pages import page
from foretaste.report.summary import ArmPlan, Summary, summarize


@dataclass(frozen=True)
class Run:
    """A run's folder: what study.json says, and the records so far."""

    path: Path
    description: dict[str, Any]  # study.json
    records: list[Any]

    @property
    def study(self) -> dict[str, Any]:
        """The configuration."""
        return self.description["study"]

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
    def about(self) -> dict[str, str]:
        """How the records were made."""
        return self.description.get("about") or {}

    @property
    def notes(self) -> list[str]:
        """Paragraphs on the study, then on its data."""
        # Lines of a configuration end anywhere; only an empty line ends a paragraph.
        paragraphs = [" ".join(part.split()) for part in (self.study.get("notes") or "").split("\n\n")]
        return [p for p in paragraphs if p] + [f"Data: {note}" for note in self.description.get("data_notes") or []]

    @property
    def warnings(self) -> list[str]:
        """A stand-in for the data means that nothing on the page is a result."""
        standin = self.description.get("standin")
        clear = "not a result" in (standin or "").casefold()
        return [standin if clear else f"Not a result. {standin}"] if standin else []

    @property
    def plan(self) -> dict[str, ArmPlan]:
        """What the folder holds when the run is finished, arms in their order."""
        cycles = 1 + int(self.study["labels"]["cycles"])
        return {arm["name"]: ArmPlan(tuple(self.study["seeds"]), cycles) for arm in self.study["arms"]}

    @cached_property
    def pictures(self) -> dict[int, np.ndarray]:
        """Pixels of queried points by id, as far as the run has written them."""
        file = self.path / "pictures.npz"
        if not file.exists():
            return {}
        with np.load(file, allow_pickle=False) as kept:
            return dict(zip(kept["ids"].tolist(), kept["pixels"]))

    def summary(self) -> Summary:
        """The records that all arms have."""
        if not self.records:
            raise ValueError(f"{self.path} has no finished cycle yet; nothing to report")
        return summarize(self.records, self.plan)


def read_run(path: Path) -> Run:
    """Read the folder of a run, finished or not.

    A last line that is still being written is ignored.

    Args:
        path: The folder, as ``foretaste run`` or ``foretaste.study.run`` made it.

    Returns:
        Its description and its records.

    Raises:
        ValueError: study.json is absent or not JSON, or a line of the records is not JSON.

    Example:
        >>> from pathlib import Path
        >>> from foretaste import report
        >>> run = report.read_run(Path("runs/fig2a"))
        >>> run.title, len(run.records)
        ('A study', 27)
    """
    about = path / "study.json"
    files = sorted((path / "records").glob("*/*.jsonl"))
    if not about.is_file():
        if files:
            raise ValueError(
                f"{path} has records but no study.json, which names the study's arms, seeds and data; start the run "
                "again in this folder: it writes the file and keeps the records"
            )
        raise ValueError(f"{path} has no study.json; expected the folder of a run, such as `foretaste run` makes")
    records = []
    for file in files:
        text = file.read_bytes()
        for k, one in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), start=1):
            try:
                records.append(json.loads(one))
            except ValueError:
                raise ValueError(f"{file}, line {k}, is not a record; remove the file and run it again") from None
    try:
        description = json.loads(about.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{about} is not JSON: {error}; start the run again, which writes the file anew") from None
    return Run(path, description, records)


def folder(run: Path, out: Path | None = None) -> Path:
    """Write the page, the figures and the numbers of a run, finished or not.

    Args:
        run: The run's folder.
        out: The folder to write to. None is ``RUN/report``.

    Returns:
        The path of the page.

    Raises:
        ValueError: The folder is not that of a run, or has no finished cycle yet.

    Example:
        >>> from pathlib import Path
        >>> from foretaste import report
        >>> report.folder(Path("runs/fig2a")).as_posix()
        'runs/fig2a/report/index.html'
    """
    found = read_run(run)
    out = out or run / "report"
    shown: dict[str, Any] = {"title": found.title, "notes": found.notes, "warnings": found.warnings}
    if found.experiment != "loop":
        records = [r for r in found.records if r.get("kind") == found.experiment]
        if not records:
            raise ValueError(f"{run} has no records of experiment {found.experiment!r} yet; nothing to report")
        return check_page(
            found.experiment, records, out, planned=found.study.get("seeds", []), about=found.about, **shown
        )
    s = found.summary()
    save_figures(s, out)
    save_numbers(s, out / "summary.csv")
    classes = found.description.get("classes")
    return page(s, out / "index.html", pictures=found.pictures, classes=classes, about=found.about, **shown)
