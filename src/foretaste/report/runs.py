"""The folder of a run: what it holds, finished or not, and the report on it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from foretaste.errors import check_regular, format_bytes
from foretaste.report.charts import save_figures, save_numbers
from foretaste.report.claim_pages import check_page
from foretaste.report.pages import page
from foretaste.report.summary import ArmPlan, Summary, summarize
from foretaste.study import damaged_record, read_json_lines, read_study_json, record_fault

LARGEST_PICTURES = 10**9  # bytes of the pixels in pictures.npz


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
        return read_pictures(file)

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
    description = read_study_json(about)
    experiment = description["study"].get("experiment") or "loop"
    records = []
    for file in files:
        for k, record in enumerate(read_json_lines(file), 1):
            ours = experiment == "loop" or record.get("kind") == experiment
            if ours and (fault := record_fault(record, experiment)):
                raise damaged_record(file, k, fault)
            records.append(record)
    return Run(path, description, records)


def read_pictures(file: Path) -> dict[int, np.ndarray]:
    """The pixels of pictures.npz by id. Raises if the file is damaged, or holds anything but small pictures."""
    check_regular(file)
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as kept:  # numpy leaves a damaged file open
            sizes = {info.filename: info.file_size for info in kept.zip.infolist()}
            if max(sizes.values(), default=0) > LARGEST_PICTURES:
                raise ValueError(f"it holds more than {format_bytes(LARGEST_PICTURES)}")
            ids, pixels = kept["ids"], kept["pixels"]
        if ids.ndim != 1 or ids.dtype.kind != "i" or pixels.dtype != np.uint8 or len(ids) != len(pixels):
            raise ValueError(f"ids are {ids.dtype} {ids.shape}, pixels {pixels.dtype} {pixels.shape}")
        if pixels.ndim not in (3, 4) or (pixels.ndim == 4 and pixels.shape[3] != 3) or not pixels.size:
            raise ValueError(f"pixels are of shape {pixels.shape}")
    except Exception as error:  # a damaged zip or header can raise anything
        raise ValueError(
            f"{file} is damaged ({str(error) or type(error).__name__}); remove it to have a page without pictures, or "
            "start the run again"
        ) from None
    return dict(zip(ids.tolist(), pixels))


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
