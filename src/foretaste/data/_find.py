"""Where data sets lie: one folder for all of them, each in a layout that its publisher or torchvision uses."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

MOST = 16 * 10**9  # bytes of one data set in memory; more is refused before it is read


def home() -> Path:
    """$FORETASTE_DATA where it is set, else ~/.cache/foretaste."""
    told = os.environ.get("FORETASTE_DATA")
    return Path(told).expanduser() if told else Path.home() / ".cache" / "foretaste"


def find(
    name: str, folder: str | os.PathLike[str], layouts: Sequence[str], wanted: Mapping[str, Sequence[str]]
) -> dict[str, Path]:
    """The first place under ``folder`` that has all ``wanted`` files, each by one of its spellings."""
    root = Path(folder).expanduser()
    places = [root / layout for layout in layouts]
    found = [{role: path for role, names in wanted.items() if (path := first(place, names))} for place in places]
    for here in found:
        if len(here) == len(wanted):
            return here
    get = f"`foretaste data get {name}` fetches them"
    fullest = max(range(len(places)), key=lambda k: len(found[k]))
    if found[fullest]:
        missing = ", ".join(names[0] for role, names in wanted.items() if role not in found[fullest])
        there = ", ".join(path.name for path in found[fullest].values())
        raise FileNotFoundError(
            f"{name} is not whole in {places[fullest]}: missing {missing}; there are {there}; {get}"
        )
    files = ", ".join(names[0] for names in wanted.values())
    if not root.is_dir():
        raise FileNotFoundError(f"{name} is not there: {root} is not a folder; looked for {files}; {get}")
    looked = ", ".join(str(place) for place in places)
    raise FileNotFoundError(f"{name} is not in {root}: looked for {files} in {looked}; {get}")


def first(place: Path, names: Sequence[str]) -> Path | None:
    return next((place / name for name in names if (place / name).is_file()), None)


def size_of(count: float) -> str:
    """Bytes as people say them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} bytes"
