"""Folders of runs, finished or not: what they hold, the report on one, and several compared on one page."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from foretaste.errors import check_regular, counted, format_bytes
from foretaste.report.charts import save_figures, save_numbers
from foretaste.report.claim_pages import check_page
from foretaste.report.pages import findings, page, render_page, study_sections, with_versions
from foretaste.report.summary import RANDOM, ArmPlan, Summary, summarize
from foretaste.report.words import headline
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
        return read_pictures(file) if file.exists() else {}

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


# Several runs on one page. Runs that may be compared share their charts; the others stand one below the other.


class RunGroup(NamedTuple):
    """Runs on the same data, with the same numbers of labels and a seed in common, and a summary of all their arms."""

    runs: tuple[Run, ...]
    summary: Summary


def compare(runs: Sequence[Path], out: Path) -> Path:
    """Write one page, with figures and numbers, on several runs.

    Args:
        runs: The runs' folders.
        out: The folder to write to.

    Returns:
        The path of the page.

    Raises:
        ValueError: A folder is given twice, is not that of a run, or is of an experiment without curves.

    Example:
        >>> from pathlib import Path
        >>> from foretaste import report
        >>> report.compare([Path("runs/fig2a"), Path("runs/cold")], Path("both")).as_posix()
        'both/index.html'
    """
    found = groups(runs)
    shown = []
    for k, (own, s) in enumerate(found):
        suffix = f"-{k + 1}" if len(found) > 1 else ""
        save_figures(s, out, suffix)
        save_numbers(s, out / f"summary{suffix}.csv")
        shown.append(
            {
                "name": " · ".join(dict.fromkeys(run.title for run in own)),
                "headline": headline(s),
                "findings": findings(s),
                "sections": study_sections(s, f"group{k}"),
            }
        )
    every = [run for own, _ in found for run in own]
    n = len(every)
    return render_page(
        "comparison.html", out / "index.html", title="foretaste: runs compared",
        headline=f"{counted(n, 'run')} compared",
        notes=list(dict.fromkeys(f"{run.title}: {line}" for run in every for line in run.notes)),
        warnings=list(dict.fromkeys(f"{run.title}: {line}" for run in every for line in run.warnings)),
        explanation=_explanation(found), groups=shown,
        runs=[{"title": r.title, "about": with_versions({"folder": r.name} | r.about, r.records)} for r in every],
    )  # fmt: skip


def _explanation(found: Sequence[RunGroup]) -> str:
    if len(found) == 1:
        return "Arms of all runs on the same charts, each against the baseline of its own run."
    return (
        f"The runs differ in their data or their numbers of labels, or share no seed. They are shown in {len(found)} "
        "groups, one below the other; nothing is averaged across them."
    )


def groups(paths: Sequence[Path]) -> list[RunGroup]:
    """Put runs together that can be compared: the same data and numbers of labels, and a seed in common.

    Raises a ValueError if a folder is given twice, or holds an experiment without curves.

    Example:
        >>> from pathlib import Path
        >>> from foretaste import report
        >>> [len(group.runs) for group in report.groups([Path("runs/fig2a"), Path("runs/cold")])]
        [2]
    """
    if len({path.resolve() for path in paths}) != len(paths):
        raise ValueError(f"a folder is given twice: {', '.join(map(str, paths))}")
    runs = [read_run(path) for path in paths]
    if strange := [run for run in runs if run.experiment != "loop"]:
        raise ValueError(
            f"{strange[0].path} is of experiment {strange[0].experiment!r}, which has no curves; report it by itself"
        )
    together: list[list[Run]] = []
    for run in runs:
        for group in together:
            if _setting_of(group[0]) == _setting_of(run) and set.intersection(*(_seeds_of(r) for r in [*group, run])):
                group.append(run)
                break
        else:
            together.append([run])
    return [RunGroup(tuple(group), _joint_summary(group)) for group in together]


def _setting_of(run: Run) -> Any:
    """What must be equal: data and numbers of labels. The number of cycles may differ, and where the data lie."""
    data = {key: value for key, value in run.study["data"].items() if key != "folder"}
    labels = {key: value for key, value in run.study["labels"].items() if key != "cycles"}
    return data, run.description.get("data"), run.description.get("standin"), labels


def _seeds_of(run: Run) -> set[int]:
    if not run.records:
        raise ValueError(f"{run.path} has no finished cycle yet; nothing to report")
    return {r["seed"] for r in run.records}


def _joint_summary(runs: list[Run]) -> Summary:
    """Arms of all runs: named "run: arm" where two share a name, each against its own run's baseline."""
    if len(runs) == 1:
        return runs[0].summary()
    names = [name for run in runs for name in run.plan]
    plan: dict[str, ArmPlan] = {}
    records = []
    for run, prefix in zip(runs, _folder_names(runs)):
        new = {name: f"{prefix}: {name}" if names.count(name) > 1 else name for name in run.plan}
        random = next((name for name in new if name.casefold() == RANDOM), None)
        plan |= {new[name]: whole for name, whole in run.plan.items()}
        for r in run.records:
            if r["arm"] in new:
                # Without a baseline an arm is its own: it must not be compared with another run's random.
                other = r.get("against") or random or r["arm"]
                records.append(r | {"arm": new[r["arm"]], "against": new.get(other, other)})
    return summarize(records, plan)


def _folder_names(runs: list[Run]) -> list[str]:
    """The folders' names; with their parents where two have the same."""
    short = [run.name for run in runs]
    return [
        name if short.count(name) == 1 else f"{run.path.resolve().parent.name}/{name}" for run, name in zip(runs, short)
    ]
