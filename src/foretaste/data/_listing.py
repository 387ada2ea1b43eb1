"""What lies in a folder: pictures and the rest, never outside of it; and the order people expect names in."""

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from foretaste.data._pixels import ENDINGS

IGNORED = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"}  # what systems leave behind, besides hidden files
NAMED = 10


@dataclass(frozen=True)
class Listing:
    """Paths relative to the root, with slashes, naturally sorted."""

    pictures: tuple[str, ...]
    others: tuple[str, ...]
    folders: tuple[str, ...]


def listing(root: Path) -> Listing:
    """Everything below ``root``; a link that leads out of it, or to a folder, is an error."""
    top = root.resolve()
    pictures, others, folders, bad = list[str](), list[str](), list[str](), list[str]()
    waiting = [""]
    while waiting:
        at = waiting.pop()
        with os.scandir(top / at) as entries:
            for entry in entries:
                name = f"{at}/{entry.name}".lstrip("/")
                if entry.name.startswith(".") or entry.name.lower() in IGNORED:
                    continue
                if entry.is_symlink() and (entry.is_dir() or not within(top, Path(entry.path))):
                    bad.append(name)
                elif entry.is_dir():
                    folders.append(name)
                    waiting.append(name)
                elif os.path.splitext(entry.name)[1].lower() in ENDINGS:
                    pictures.append(name)
                else:
                    others.append(name)
    if bad:
        raise ValueError(
            f"{root}: {told(bad, 'link {} leads', 'links {} lead')} out of the folder or to another folder; "
            "links are followed only to files inside: copy what is meant"
        )
    return Listing(*(tuple(sorted(names, key=natural)) for names in (pictures, others, folders)))


def within(top: Path, path: Path) -> bool:
    """Whether ``path``, its links followed, stays below ``top`` (itself resolved)."""
    return path.resolve().is_relative_to(top)


def natural(name: str) -> tuple[object, ...]:
    """A sort key under which 2 stands before 10, and case matters only between equals."""
    parts = re.split(r"([0-9]+)", name.casefold())
    return (*((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts if p), (-1, 0, ""), name)


def told(names: Iterable[str], one: str, many: str, most: int = NAMED) -> str:
    """``3 links (a, b, c) lead``: how many, and in place of ``{}`` the first of them by name."""
    all_names = sorted(names, key=natural)
    more = f" and {len(all_names) - most} more" if len(all_names) > most else ""
    text, those = one if len(all_names) == 1 else many, f"({', '.join(all_names[:most])}{more})"
    return f"{len(all_names)} {text.replace('{}', those)}"


def other_files(others: Iterable[str]) -> str | None:
    """A note on files that are not pictures, by ending."""
    count = Counter(os.path.splitext(name)[1].lower() or "no ending" for name in others)
    if not count:
        return None
    kinds = ", ".join(f"{n} {ending}" for ending, n in count.most_common(5))
    return f"{sum(count.values())} files are not pictures and were left out: {kinds}"
