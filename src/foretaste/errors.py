"""Phrases that errors, logs and reports share: the nearest valid name, sizes, durations, lists."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

LISTED = 40  # names in one message; a network may have thousands of parameters


def did_you_mean(name: object, names: Iterable[str], listed: str = "Known") -> str:
    """The end of a message about an unknown name: the nearest valid one, then all of them.

    >>> "unknown strategy 'mlmok'" + did_you_mean("mlmok", ["badge", "mlmoc"], "Registered")
    "unknown strategy 'mlmok'; did you mean 'mlmoc'? Registered: badge, mlmoc"
    """
    names = [str(n) for n in names]
    close = get_close_matches(str(name), names, 1)
    guess = f"; did you mean {close[0]!r}?" if close else ";"
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{guess} {listed}: {', '.join(names[:LISTED]) or 'none'}{more}"


def check_known(kind: str, name: object, names: Iterable[str]) -> None:
    """Raise unless ``name`` is one of ``names``."""
    names = sorted(names)
    if name not in names:
        raise ValueError(f"unknown {kind} {name!r}{did_you_mean(name, names)}")


def check_counts(**counts: object) -> None:
    """Raise unless every argument is a whole number above zero."""
    for name, n in counts.items():
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(f"{name} is {n!r}; expected a whole number of at least 1")


def format_bytes(n: float) -> str:
    """A size in decimal units, to three digits: 1.44 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 999.5:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"


def format_seconds(seconds: float) -> str:
    """A duration in the unit one would say it in, to two digits: 0.12 s, 45 s, 3.2 min, 1.5 h."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    if seconds >= 9.95:
        return f"{seconds:.0f} s"
    return f"{seconds:.2g} s" if seconds >= 0.001 else "under 1 ms"


def join_words(parts: Sequence[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
