"""What a run's folder says of itself in study.json, and whether a study may go on in it."""

import json
from pathlib import Path
from typing import Any

from foretaste.study._config import Study
from foretaste.study._folder import Task, differences, other, slug, write


def said(folder: Path) -> dict[str, Any] | None:
    """The study in study.json; None without one, or where it was lost: records carry their settings themselves."""
    try:
        return json.loads((folder / "study.json").read_text(encoding="utf-8"))["study"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def belongs(folder: Path, study: Study) -> None:
    """Raise unless what is in the folder is of this study; it may have fewer seeds or other arms."""
    own = ("seeds", "arms", "title", "notes", "plugins")
    if before := said(folder):
        both = before, study.plain()
        there, here = ({key: value for key, value in one.items() if key not in own} for one in both)
        if differ := differences(there, here):
            raise other(folder, differ)
    for name in study.names:
        for seed in study.seeds:
            Task(folder, name, seed).records(study.trial(name))


def describe(folder: Path, study: Study, rest: dict[str, Any]) -> None:
    """Write study.json, at every start: a folder may get more seeds and arms in time. Those it has records of stay."""
    now = study.plain()
    if before := said(folder):
        names = [*study.names]
        kept = [arm for arm in before["arms"] if arm["name"] not in names and _has_records(folder, arm["name"])]
        now["arms"] += kept
        names += [arm["name"] for arm in kept]
        now["seeds"] += [
            s for s in before["seeds"] if s not in now["seeds"] and any(_has_records(folder, n, s) for n in names)
        ]
        if "about" in rest:
            rest = rest | {"about": rest["about"] | {"seeds": ", ".join(map(str, now["seeds"]))}}
    write(folder / "study.json", json.dumps({"study": now} | rest, indent=1, ensure_ascii=False) + "\n")


def _has_records(folder: Path, arm: str, seed: int | str = "*") -> bool:
    return any((folder / "records" / slug(arm)).glob(f"{seed}.jsonl"))
