"""Several runs on one page. Runs that may be compared share their charts; the others stand one below the other."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from foretaste.errors import counted
from foretaste.report.charts import save_figures, save_numbers
from foretaste.report.pages import findings, render_page, study_sections, with_versions
from foretaste.report.runs import Run, read_run
from foretaste.report.summary import RANDOM, ArmPlan, Summary, summarize
from foretaste.report.words import headline


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
        "comparison.html",
        out / "index.html",
        title="foretaste: runs compared",
        headline=f"{counted(n, 'run')} compared",
        notes=list(dict.fromkeys(f"{run.title}: {line}" for run in every for line in run.notes)),
        warnings=list(dict.fromkeys(f"{run.title}: {line}" for run in every for line in run.warnings)),
        explanation=_explanation(found),
        groups=shown,
        runs=[{"title": run.title, "about": _how_made(run)} for run in every],
    )


def _explanation(found: Sequence[RunGroup]) -> str:
    if len(found) == 1:
        return "Arms of all runs on the same charts, each against the baseline of its own run."
    return (
        f"The runs differ in their data or their numbers of labels, or share no seed. They are shown in {len(found)} "
        "groups, one below the other; nothing is averaged across them."
    )


def _how_made(run: Run) -> dict[str, str]:
    return with_versions({"folder": run.name} | run.about, run.records)


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
