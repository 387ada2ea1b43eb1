"""Labels as class names: their order, which numbers are classes, and how messages list names."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from foretaste.errors import counted, did_you_mean, is_utf8, printable, shorten

NAMES_SHOWN = 10  # in one message
MOST_CLASSES = 100_000  # where labels are numbers: each number up to the largest is a class
DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?")  # 1.0, .5, 2e3; not 7 or 007


def natural_key(name: str) -> tuple[object, ...]:
    """A sort key that puts 2 before 10. Case decides only between names that are equal otherwise.

    >>> sorted(["a10", "a2", "A1"], key=natural_key)
    ['A1', 'a2', 'a10']
    """
    parts = re.split(r"([0-9]+)", name.casefold())
    # Numbers by their length, then their digits: int() refuses thousands of digits.
    keys = ((0, len(n := p.lstrip("0")), n) if p.isdecimal() else (1, 0, p) for p in parts if p)
    return (*keys, (-1, 0, ""), name)


def count_names(names: Iterable[str], one: str, many: str, most: int = NAMES_SHOWN) -> str:
    """How many names there are, and the first of them in place of ``{}``.

    >>> count_names(["b", "a"], "link {} leads", "links {} lead")
    '2 links (a, b) lead'
    """
    ordered = sorted(names, key=natural_key)
    return counted(len(ordered), one, many).replace("{}", f"({shorten(ordered, most)})")


def differing_labels(
    names: Sequence[str], labels: Sequence[str | None], rough: Sequence[object], digest_of: Callable[[int], object],
    what: tuple[str, str],
) -> str | None:  # fmt: skip
    """A note on items that are equal and have different labels; None if there are none.

    Only items of equal ``rough`` are read by ``digest_of``. ``what`` is the word for one item, and for several.
    """
    known = [i for i, label in enumerate(labels) if label is not None]
    count = Counter(rough[i] for i in known)
    groups: dict[object, dict[str, str]] = {}
    for i in known:
        if count[rough[i]] > 1:
            groups.setdefault(digest_of(i), {}).setdefault(str(labels[i]), names[i])
    several = [found for found in groups.values() if len(found) > 1]
    told = [" is ".join(f"{name} ({label})" for label, name in found.items()) for found in several]
    if not told:
        return None
    one = len(told) == 1
    head = f"1 {what[0]} has" if one else f"{len(told)} {what[1]} have"
    return (
        f"{head} several labels: {shorten(told, NAMES_SHOWN)}. No network can learn both: "
        f"give {'it' if one else 'each'} one label"
    )


def check_words(where: object, one: str, many: str, words: Iterable[str]) -> None:
    """Raise if words are not UTF-8: no CSV, page or record could hold them, and that would show only at the end."""
    if bad := {printable(word) for word in words if not is_utf8(word)}:
        raise ValueError(f"{where}: {count_names(bad, one + ' {} is', many + ' {} are')} not UTF-8; write them anew")


def join_faults(faults: Sequence[str]) -> str:
    """The first faults of a file, and how many more there are."""
    more = f"; and {len(faults) - NAMES_SHOWN} more" if len(faults) > NAMES_SHOWN else ""
    return "; ".join(faults[:NAMES_SHOWN]) + more


def class_labels(labels: Sequence[str | None], where: object) -> list[str | None]:
    """Labels as class names; None (no label) stays None.

    Whole numbers written as decimals are classes: 1.0 is class 1. If all labels are numbers and some are not whole,
    they are measurements and not classes.

    >>> class_labels(["1.0", "2", None, "cat"], "t.csv")
    ['1', '2', None, 'cat']
    """
    counts = Counter(labels)
    unlabelled = counts.pop(None, 0)
    decimals = [label for label in counts if label is not None and DECIMAL.fullmatch(label)]
    broken = [label for label in decimals if not float(label).is_integer()]
    if broken and all(_is_number_word(label) for label in counts if label is not None):
        raise ValueError(
            f"{where}: {sum(counts[label] for label in broken)} of {len(labels) - unlabelled} labels are numbers that "
            f"are not whole, such as {broken[0]}; classes are names or whole numbers. To predict numbers use "
            "regression (--regression on the command line)"
        )
    plain = {label: str(int(float(label))) for label in decimals if label not in broken}
    return [plain.get(label, label) if label else label for label in labels] if plain else list(labels)


def _is_number_word(label: str) -> bool:
    return bool(DECIMAL.fullmatch(label)) or label.lstrip("+-").isdecimal() or label.lower() in ("nan", "inf", "-inf")


def cell_text(value: Any) -> str | None:
    """A value of a data frame, a dict or a Parquet file as the cell of a CSV."""
    text = str(value).strip()  # pandas' NA cannot be compared, nor an array: by what they are called
    if value is None or text in ("NaT", "<NA>") or (not isinstance(value, str) and text.lower() == "nan"):
        return None
    return text or None


def array_labels(y: np.ndarray) -> list[str | None]:
    """Labels of an array as words: NaN and empty strings are missing labels."""
    words = [one.decode() if isinstance(one, bytes) else str(one) for one in y.tolist()]
    if y.dtype.kind == "f":
        return [None if missing else word for word, missing in zip(words, np.isnan(y).tolist())]
    return [word or None for word in words]


def named_classes(where: object, labels: list[str | None], classes: tuple[str, ...]) -> list[str | None]:
    """Class ids, counted from 0, as the names of their classes."""
    numbers = [None if label is None else int(label) for label in class_labels(labels, where)]
    if bad := sum(c is not None and not 0 <= c < len(classes) for c in numbers):
        raise ValueError(
            f"{where}: {counted(bad, 'label is', 'labels are')} not among its {len(classes)} classes, counted from 0"
        )
    return [None if c is None else classes[c] for c in numbers]


def label_words(raw: Any, regression: bool, where: object) -> list[str | None]:
    """Labels of an array or a list as words. −1 among whole numbers is no label, as in scikit-learn.

    −1 beside 1 alone is refused: it may be a class, and half of the points would silently be the pool. Every label −1
    is no label at all.
    """
    y = np.asarray(raw)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind == "b":
        what = "truth values" if y.dtype.kind == "b" else f"an array of shape {y.shape}"
        raise ValueError(
            f"{where} are {what}; expected integers, strings, or numbers for regression, one for each point"
        )
    words = [cell_text(v) for v in y.tolist()] if y.dtype == object else array_labels(y)
    if regression:
        return words
    numbers = {word for word in class_labels(words, where) if word is not None}
    if "-1" not in numbers or not all(word.lstrip("-").isdecimal() for word in numbers):
        return words
    if numbers == {"-1"} and None not in words:
        return [None] * len(words)  # nothing is labelled yet
    if numbers <= {"-1", "1"}:
        those = "−1 and 1" if "1" in numbers else "−1"
        raise ValueError(
            f"{where} are {those} alone; −1 is no label here, as in scikit-learn. Write the classes as 0 and 1 (or as "
            "words), and None or NaN for no label"
        )
    return [None if word is None or float(word) == -1 else word for word in words]


def class_names(labels: Sequence[str], where: object, least: int = 0) -> tuple[str, ...]:
    """The classes of labels: whole numbers are class ids from 0, ``least`` of them or more; words stand in order.

    >>> class_names(["2", "0"], "t.csv"), class_names(["b10", "b2"], "t.csv")
    (('0', '1', '2'), ('b2', 'b10'))
    """
    if not all_digits(labels):
        return tuple(sorted(set(labels), key=natural_key))
    largest = max((label.lstrip("0") for label in labels), key=lambda digits: (len(digits), digits), default="")
    if len(largest) > len(str(MOST_CLASSES)) or int(largest or 0) >= MOST_CLASSES:
        raise ValueError(
            f"{where}: label {largest[:20]} is a number, and numbers count classes from 0; expected less than "
            f"{MOST_CLASSES}. Write labels as words, or give classes="
        )
    return tuple(map(str, range(max(least, 1 + int(largest or 0) if labels else 0))))


def class_ids(labels: Sequence[str], classes: Sequence[str], where: object) -> np.ndarray:
    """(N,) int64: the positions of the labels among the classes. Raises with all unknown labels."""
    at = {name: c for c, name in enumerate(classes)}
    unknown = sorted(set(labels) - at.keys(), key=natural_key)
    if unknown and all_digits(labels) and max(map(int, labels)) < len(classes):
        return np.array([int(label) for label in labels], dtype=np.int64)  # ids of classes that have names
    if unknown:
        raise ValueError(
            f"{where}: {counted(len(unknown), 'label is', 'labels are')} no class of the network: "
            f"{shorten([*map(repr, unknown)], NAMES_SHOWN)}{did_you_mean(unknown[0], classes, 'Its classes')}"
        )
    return np.array([at[label] for label in labels], dtype=np.int64)


def all_digits(labels: Iterable[str]) -> bool:
    """Whether every label is a whole number from 0."""
    return all(label.isdecimal() for label in labels)
