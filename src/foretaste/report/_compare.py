"""Several runs on one page. What may be compared shares its charts; what may not stands below each other."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from foretaste.report._common import Plan
from foretaste.report._files import figures, numbers
from foretaste.report._headline import headline
from foretaste.report._page import head, made, versions, write
from foretaste.report._runs import Run, read
from foretaste.report._sections import numbers as sections
from foretaste.report._sections import words
from foretaste.report._summary import RANDOM, Summary, summarize


class Group(NamedTuple):
    """Runs on the same data with the same numbers of labels and at least one seed in common, and their arms."""

    runs: tuple[Run, ...]
    summary: Summary


def compare(runs: Sequence[Path], out: Path) -> Path:
    """Write the page, figures and numbers of several runs' folders into ``out`` and return where the page is."""
    found = groups(runs)
    parts = [_top(found)]
    for k, (own, s) in enumerate(found):
        suffix = f"-{k + 1}" if len(found) > 1 else ""
        figures(s, out, suffix)
        numbers(s, out / f"summary{suffix}.csv")
        parts.append(
            f"<h2 class=group>{escape(_named(own))}</h2>\n<h3 class=said>{escape(headline(s))}</h3>\n{words(s)}"
        )
        parts.append(sections(s, f"group{k}"))
    for run in (run for own, _ in found for run in own):
        about = {"folder": run.name} | (run.told.get("about") or {})
        parts.append(made(about | ({} if "versions" in about else versions(run.records)), f"How {run.title} was made"))
    return write(out / "index.html", "foretaste: runs compared", parts)


def groups(paths: Sequence[Path]) -> list[Group]:
    """Which runs can share charts, in the order given."""
    if len({path.resolve() for path in paths}) != len(paths):
        raise ValueError(f"a folder is given twice: {', '.join(map(str, paths))}")
    runs = [read(path) for path in paths]
    if strange := [run for run in runs if run.experiment != "loop"]:
        raise ValueError(
            f"{strange[0].path} is of experiment {strange[0].experiment!r}, which has no curves; report it by itself"
        )
    together: list[list[Run]] = []
    for run in runs:
        for group in together:
            if _kind(group[0]) == _kind(run) and set.intersection(*(_seeds(r) for r in [*group, run])):
                group.append(run)
                break
        else:
            together.append([run])
    return [Group(tuple(group), _joined(group)) for group in together]


def _kind(run: Run) -> Any:
    """Data and numbers of labels. How many cycles there are may differ, and so may where the data lie."""
    data = {key: value for key, value in run.study["data"].items() if key != "folder"}
    labels = {key: value for key, value in run.study["labels"].items() if key != "cycles"}
    return data, run.told.get("data"), run.told.get("standin"), labels


def _seeds(run: Run) -> set[int]:
    if not run.records:
        raise ValueError(f"{run.path} has no finished cycle yet; nothing to report")
    return {r["seed"] for r in run.records}


def _joined(runs: list[Run]) -> Summary:
    """Arms of all runs: named "run: arm" where two share a name, each against its own run's baseline."""
    if len(runs) == 1:
        return runs[0].summary()
    names = [name for run in runs for name in run.plan]
    called = _folders(runs)
    plan: dict[str, Plan] = {}
    records = []
    for run, prefix in zip(runs, called):
        new = {name: f"{prefix}: {name}" if names.count(name) > 1 else name for name in run.plan}
        random = next((name for name in new if name.casefold() == RANDOM), None)
        plan |= {new[name]: whole for name, whole in run.plan.items()}
        for r in run.records:
            if r["arm"] in new:
                # An arm is its own baseline where it has none: another run's random is not meant.
                other = r.get("against") or random or r["arm"]
                records.append(r | {"arm": new[r["arm"]], "against": new.get(other, other)})
    return summarize(records, plan)


def _folders(runs: list[Run]) -> list[str]:
    """The folders' names; with their parents where two have the same."""
    short = [run.name for run in runs]
    return [
        name if short.count(name) == 1 else f"{run.path.resolve().parent.name}/{name}" for run, name in zip(runs, short)
    ]


def _named(runs: tuple[Run, ...]) -> str:
    return " · ".join(dict.fromkeys(run.title for run in runs))


def _top(found: list[Group]) -> str:
    n = sum(len(own) for own, _ in found)
    text = "<p>Arms of all runs on the same charts, each against the baseline of its own run.</p>\n"
    if len(found) > 1:
        text = (
            f"<p>The runs differ in their data, their numbers of labels, or share no seed, and are shown in "
            f"{len(found)} groups, one below the other; nothing is averaged across them.</p>\n"
        )
    warnings = dict.fromkeys(f"{run.title}: {line}" for own, _ in found for run in own for line in run.warnings)
    notes = dict.fromkeys(f"{run.title}: {line}" for own, _ in found for run in own for line in run.notes)
    return head(
        "foretaste: runs compared", f"{n} {'run' if n == 1 else 'runs'} compared", text, list(notes), list(warnings)
    )
