"""Columns of a table: which is the id, the label, the text; and a mixed table as numbers, by scikit-learn.

A table may come from a CSV, a data frame, a Hugging Face dataset or a list of dicts; the rules are the same.
"""

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretaste.data.class_names import NAMES_SHOWN, count_names, join_faults
from foretaste.data.pictures import PICTURE_ENDINGS
from foretaste.data.tables import ID_COLUMNS, LABEL_COLUMNS, SPLIT_COLUMNS, Cells, Table, column_sides, is_finite_number
from foretaste.errors import counted, did_you_mean, shorten
from foretaste.given import SURE_IDS

TEXT_COLUMNS = (
    "text", "texts", "sentence", "review", "document", "content", "body", "message", "comment", "abstract", "tweet",
    "question", "description", "headline", "title",
)  # fmt: skip
MISSING_CELLS = {"", "na", "n/a", "nan", "null", "none", "?", "-"}  # of a feature; for a label only "" is missing
ID_WORDS = {"id", "ids", "uid", "uuid", "guid", "pk", "idx"}  # at the end of a name
ID_OWNERS = {
    "account", "case", "client", "customer", "document", "employee", "item", "member", "order", "passenger", "patient",
    "person", "product", "record", "row", "sample", "session", "student", "subject", "transaction", "user",
}  # fmt: skip
ROW_NAMES = {"", "#", "index", "nr", "no", "row", "rownames", "unnamed: 0", "__index_level_0__"}  # what counts the rows
PROSE_WORDS = 4  # a column with as many words in a cell, on average, is text
MOSTLY_NUMBERS = 0.9  # of the cells: then the others are mistakes, and not categories
MANY_VALUES = 20  # words of which most occur once are names, and not categories
RARE_VALUES = 3  # categories that occur less often share one column
MOST_CATEGORIES = 50  # of a column; the rarest share one
DAY = 86_400  # seconds


class TableRows(Sequence[Any]):
    """The rows of a table, each a dict by column. ``whole`` also has the columns that are no features."""

    def __init__(self, table: Table, whole: Table | None = None) -> None:
        self.table, self.whole = table, whole or table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        i = range(len(self))[i]
        return {name: cells[i] for name, cells in self.table.columns.items()}

    def take(self, rows: Sequence[int]) -> "TableRows":
        """Some of the rows, in that order."""
        return TableRows(self.table.take(rows), self.whole.take(rows))

    def contents(self) -> Iterator[bytes]:
        """What each row holds, in any order of the columns. 1 and 1.00 are the same, and so are all kinds of gaps.

        A row of numbers is its float32, as ``number_matrix`` has it: a gap in one row renames no other.
        """
        columns = [self.whole.columns[name] for name in sorted(self.whole.columns)]
        for row in zip(*columns):
            plain = [_plain_cell(cell) for cell in row]
            numbers = all(isinstance(value, float) for value in plain)
            yield np.array(plain, np.float32).tobytes() if numbers else repr(plain).encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class ColumnRoles:
    """What each column of a table is for."""

    id: str | None
    label: str | None
    text: str | None
    features: tuple[str, ...]  # where there is no text
    notes: tuple[str, ...] = ()
    side: tuple[str, ...] = ()  # as in Points; empty where no column says so


def choose_columns(
    table: Table, *, id: str | None = None, label: str | bool | None = None, text: str | bool | None = None,
    regression: bool = False, ask: bool = True,
) -> ColumnRoles:  # fmt: skip
    """The id, the label, and the text or the features, by the rules of ``ft.open``; a note says which is what, and why.

    ``ask``: stop where no column has the name of a label, and one with few values is mostly empty: it may be the label.
    """
    names = list(table.columns)
    for what, given in (("id", id), ("label", label), ("text", text)):
        if isinstance(given, str) and given not in names:
            raise ValueError(
                f"{table.where} has no column {given!r} for the {what}{did_you_mean(given, names, 'Its columns')}"
            )
    said, notes = list[str](), list(table.notes)
    usual_label = next(iter(_all_usual(names, LABEL_COLUMNS)), None)
    of_label = label if isinstance(label, str) else None if label is False else usual_label
    of_id = id or next((name for name in _id_columns(table) if name != of_label), None)
    if of_id is not None:
        why = "as given" if id else "by its name" if of_id.lower() in SURE_IDS else "no value repeats"
        said.append(f"id = {of_id} ({why})")
    rest = [name for name in names if name not in (of_id, of_label)]
    side: tuple[str, ...] = ()
    for name in _all_usual(rest, SPLIT_COLUMNS):
        if (sides := column_sides(table.columns[name])) is not None:
            rest.remove(name)
            side = side or sides
            notes.append(f"column {name} is a split" + ("" if side else ": left out"))
    chosen = _choose_text(table, rest, text)
    if of_label is not None:
        said.append(f"label = {of_label} ({'by its name' if of_label == usual_label else 'as given'})")
    elif label is None and ask:
        _check_no_hidden_label(table, [name for name in rest if name != chosen], regression)
        said.append("label = none")
    if chosen is not None:
        said.append(f"text = {chosen}")
        if others := [name for name in rest if name != chosen]:
            shown = count_names(others, "column {} is", "columns {} are")
            notes.append(
                f"the text is column {chosen}; {shown} left out. text=False (--text none on the command line) reads a "
                "table"
            )
        rest = []
    elif more := [name for name in rest if _is_id_name(name) and _mostly_differs(table.columns[name])]:
        rest = [name for name in rest if name not in more]
        notes.append(f"{count_names(more, 'column {} has', 'columns {} have')} ids, mostly different: left out")
    if rest:
        said.append(f"features = {shorten(rest, NAMES_SHOWN)}")
    if len(names) > 1:
        notes.insert(0, f"columns: {'; '.join(said)}")
    return ColumnRoles(of_id, of_label, chosen, tuple(rest), tuple(notes), side)


def describe_columns(table: Table, names: Sequence[str]) -> str:
    """Columns and what they hold, for messages: width (numbers), city (3 different words)."""
    shown = [f"{name} ({_describe_cells(table.columns[name])})" for name in names[:NAMES_SHOWN]]
    return shorten([*shown, *names[NAMES_SHOWN:]], NAMES_SHOWN)


def column_kinds(table: Table) -> tuple[dict[str, str], tuple[str, ...]]:
    """Columns by name, each of "numbers", "dates" or "words"; and notes on columns left out and on missing values.

    A column of words of which most occur once (names, addresses) is left out; so is one without a value. A column of
    numbers with a few words in it is an error, for those are mistakes.
    """
    kinds: dict[str, str] = {}
    faults, notes, empty, names = list[str](), list[str](), list[str](), list[str]()
    gaps: dict[str, int] = {}
    for name, cells in table.columns.items():
        present = _present(cells)
        bad = _bad_numbers(cells)
        if not present:
            empty.append(name)
        elif all(os.path.splitext(cell)[1].lower() in PICTURE_ENDINGS for cell in present):
            raise ValueError(f"{table.where}: column {name} holds names of pictures; call it file, to read them")
        elif bad:
            faults += [f"{table.row} {table.lines[i]}: {name} is {cells[i]!r}, not a finite number" for i in bad]
        elif all(map(_is_float, present)):
            kinds[name] = "numbers"
        elif all(map(_is_date, present)):
            kinds[name] = "dates"
        elif len(set(present)) > max(MANY_VALUES, len(present) / 2):
            names.append(name)
        else:
            kinds[name] = "words"
        if present and len(present) < len(cells) and name not in names:
            gaps[name] = len(cells) - len(present)
    if faults:
        raise ValueError(f"{table.where}: {join_faults(faults)}; mend them, or leave the cells empty")
    if empty:
        notes.append(f"{count_names(empty, 'column {} is', 'columns {} are')} empty: left out")
    if names:
        notes.append(f"{count_names(names, 'column {} has', 'columns {} have')} mostly different words: left out")
    if dates := [name for name, kind in kinds.items() if kind == "dates"]:
        notes.append(f"{count_names(dates, 'column {} holds', 'columns {} hold')} dates: taken as days")
    if gaps:
        listed = ", ".join(f"{name} {n}" for name, n in list(gaps.items())[:NAMES_SHOWN])
        notes.append(
            f"{counted(sum(gaps.values()), 'cell is', 'cells are')} missing ({listed}): numbers are filled "
            "with the median, words are a category of their own"
        )
    if not kinds:
        raise ValueError(
            f"{table.where} has no features: {describe_columns(table, list(table.columns)) or 'no columns'}; expected "
            "numbers, categories or text beside id and label"
        )
    return kinds, tuple(notes)


def is_complete_numbers(table: Table) -> bool:
    """Whether every cell is a number: then the table is features as they are."""
    return all(cell and not _is_missing(cell) and _is_float(cell) for cells in table.columns.values() for cell in cells)


def number_matrix(table: Table) -> Tensor:
    """(N, D) float32 of a table of numbers."""
    return torch.from_numpy(np.array([list(map(float, c)) for c in table.columns.values()], np.float32).T.copy())  # type: ignore[arg-type]


def encode_table(rows: Sequence[Any]) -> Tensor:
    """(N, D) float32: numbers standardised, categories one-hot, missing values filled and marked.

    Fitted on all rows, by scikit-learn. Rare categories share a column; a column that has gaps gets another one that
    says where.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    assert isinstance(rows, TableRows)
    table = rows.table
    kinds, _ = column_kinds(table)
    names = sorted(kinds, key=lambda name: tuple(VALUE_OF).index(kinds[name]))
    cells = np.empty((len(table), len(names)), dtype=object)
    for k, name in enumerate(names):
        value, gap = VALUE_OF[kinds[name]]
        cells[:, k] = [gap if _is_missing(cell) else value(cell) for cell in table.columns[name]]
    words = [k for k, name in enumerate(names) if kinds[name] == "words"]
    numbers = [k for k in range(len(names)) if k not in words]
    one_hot = OneHotEncoder(
        min_frequency=RARE_VALUES, max_categories=MOST_CATEGORIES, handle_unknown="ignore", sparse_output=False
    )
    parts = [
        ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        ("gaps", MissingIndicator(features="missing-only"), numbers),
        ("words", one_hot, words),
    ]
    made = ColumnTransformer([part for part in parts if part[2]]).fit_transform(cells)
    return torch.from_numpy(np.ascontiguousarray(made, dtype=np.float32))


def join_tables(a: Table, b: Table, where: str) -> Table:
    """The rows of both. Raises where columns differ."""
    if list(a.columns) != list(b.columns):
        missing, over = [n for n in a.columns if n not in b.columns], [n for n in b.columns if n not in a.columns]
        found = (("lacks", missing), ("has besides", over))
        faults = [f"{what}: {', '.join(names[:10])}" for what, names in found if names]
        raise ValueError(
            f"columns of {b.where} are not those of {a.where}; it {'; '.join(faults) or 'has another order'}"
        )
    columns = {name: [*a.columns[name], *b.columns[name]] for name in a.columns}
    return Table(where, columns, [*a.lines, *b.lines], a.row)


def _choose_text(table: Table, names: list[str], text: str | bool | None) -> str | None:
    if isinstance(text, str):
        return text
    if text is False:
        return None
    words = [
        name
        for name in names
        if not _mostly(_is_float, table.columns[name]) and not _mostly(_is_date, table.columns[name])
    ]
    counts = {name: [len(cell.split()) for cell in table.columns[name] if cell] for name in words}
    prose = [name for name in words if sum(counts[name]) >= PROSE_WORDS * max(1, len(counts[name]))]
    usual = _all_usual(prose, TEXT_COLUMNS) or ([] if prose else _all_usual(words, TEXT_COLUMNS))
    if usual or len(prose) == 1:
        return (usual or prose)[0]
    if len(prose) > 1:
        raise ValueError(
            f"{table.where}: {', '.join(prose)} may all be the text; name one with text=, or text=False for none"
        )
    if text:
        raise ValueError(
            f"{table.where} has no column of text; its columns are {describe_columns(table, names) or 'none'}. "
            "Name the column with text="
        )
    return None


def _all_usual(names: Sequence[str], spellings: Sequence[str]) -> list[str]:
    plain = {name.lower().replace(" ", "_"): name for name in reversed(names)}
    return [plain[s] for s in spellings if s in plain]


def _id_columns(table: Table) -> list[str]:
    """Columns that tell rows apart, likeliest first: one called id; others where no value repeats.

    A column of measurements may have different values throughout: the name must say that it is an id, too.
    """
    usual = _all_usual(list(table.columns), ID_COLUMNS)
    named = [*usual, *(name for name in table.columns if name not in usual and _is_id_name(name))]
    return [name for name in named if name.lower() in SURE_IDS or _tells_apart(table.columns[name])]


def _is_id_name(name: str) -> bool:
    """Whether a name is that of an id: customer_id, PassengerId, userid, uuid, or what counts the rows.

    >>> [_is_id_name(name) for name in ("customer_id", "PassengerId", "Unnamed: 0", "humid", "paid")]
    [True, True, True, False, False]
    """
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    if name.strip().lower() in ROW_NAMES or not words:
        return name.strip().lower() in ROW_NAMES
    return words[-1] in ID_WORDS or words[0] == "id" or words[-1].removesuffix("id") in ID_OWNERS


def _tells_apart(cells: Cells) -> bool:
    return None not in cells and len(set(cells)) == len(cells) and not any(map(_is_fraction, _present(cells)))


def _mostly_differs(cells: Cells) -> bool:
    present = _present(cells)
    return len(set(present)) > max(MANY_VALUES, len(present) / 2) and not any(map(_is_fraction, present))


def _is_fraction(cell: str) -> bool:
    return _is_float(cell) and not float(cell).is_integer()


def _check_no_hidden_label(table: Table, names: Sequence[str], regression: bool) -> None:
    """Raise if a column may be the label under another name: few different values, and mostly empty."""
    may_be = [name for name in names if _may_be_label(table.columns[name], regression)]
    if may_be:
        filled = ", ".join(
            f"{name} ({_describe_cells(table.columns[name])}, {len(_present(table.columns[name]))} of {len(table)} "
            "cells filled)"
            for name in may_be[:NAMES_SHOWN]
        )
        raise ValueError(
            f"{table.where}: no column is called label, and {filled} may be it; name it with label= "
            f"(--label {may_be[0]} on the command line), or label=False (--label none on the command line) if nothing "
            "is labelled yet"
        )


def _may_be_label(cells: Cells, regression: bool) -> bool:
    present = _present(cells)
    n = len(set(present))
    if 2 * len(present) > len(cells) or n < 2:
        return False
    if regression:
        return all(map(_is_float, present))
    few = n < len(present) and n <= max(MANY_VALUES, len(present) / 2)
    return few and not any(map(_is_fraction, present)) and not all(map(_is_date, present))


def _mostly(test: Any, cells: Cells) -> bool:
    present = _present(cells)
    return sum(map(test, present)) >= MOSTLY_NUMBERS * len(present) if present else True


def _bad_numbers(cells: Cells) -> list[int]:
    """Rows of a column of numbers that hold something else."""
    bad = [i for i, cell in enumerate(cells) if cell and not _is_missing(cell) and not is_finite_number(cell)]
    present = len(_present(cells))
    infinite = all(_is_float(str(cells[i])) for i in bad)
    return bad if bad and (infinite or present - len(bad) >= MOSTLY_NUMBERS * present) else []


def _describe_cells(cells: Cells) -> str:
    present = _present(cells)
    if not present:
        return "empty"
    if _mostly(_is_float, cells):
        return "numbers"
    if _mostly(_is_date, cells):
        return "dates"
    return counted(len(set(present)), "different word")


def _present(cells: Cells) -> list[str]:
    return [cell for cell in cells if cell is not None and not _is_missing(cell)]


def _is_missing(cell: str | None) -> bool:
    return cell is None or cell.lower() in MISSING_CELLS


def _is_float(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_date(cell: str) -> bool:
    try:
        datetime.fromisoformat(cell)
    except ValueError:
        return False
    return True


def _plain_cell(cell: str | None) -> str | float | None:
    if cell is None or _is_missing(cell):
        return None
    return float(np.float32(cell)) if is_finite_number(cell) else cell


def _days_of(cell: str) -> float:
    """Days since 1970; without a time zone, as if in UTC."""
    when = datetime.fromisoformat(cell)
    away = when.utcoffset()
    days = (when.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds() / DAY
    return days - (away.total_seconds() / DAY if away else 0)


VALUE_OF: dict[str, tuple[Any, Any]] = {  # what a cell of each kind becomes, and what a gap does; in this order
    "numbers": (float, math.nan), "dates": (_days_of, math.nan), "words": (str, "(missing)"),
}  # fmt: skip
