"""Errors that name the nearest valid name."""

from collections.abc import Iterable
from difflib import get_close_matches


def known(kind: str, name: object, names: Iterable[str]) -> None:
    """Raise unless ``name`` is one of ``names``."""
    names = list(names)
    if name not in names:
        close = get_close_matches(str(name), names, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"unknown {kind} {name!r}; {hint}Known: {', '.join(sorted(names))}")


def positive(**sizes: object) -> None:
    """Raise unless every one is a whole number above zero."""
    for name, n in sizes.items():
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(f"{name} is {n!r}; expected a whole number of at least 1")
