"""Tables of settings: frozen pydantic dataclasses. All faults are told at once, each with what was expected.

pydantic finds the faults; this file says them in our words, with the nearest valid name for an unknown key.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, TypeAlias, TypeVar, dataclass_transform, get_args, get_type_hints

import pydantic.dataclasses
from pydantic import AfterValidator, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from foretaste.errors import check_known, did_you_mean, is_utf8, printable


def _check_utf8(text: str) -> str:
    """Records and pages are UTF-8; a text from the command line need not be."""
    if not is_utf8(text):
        raise ValueError(f"'{printable(text)}' is not UTF-8; expected a text that is")
    return text


Text: TypeAlias = Annotated[StrictStr, AfterValidator(_check_utf8)]
Whole: TypeAlias = StrictInt
YesNo: TypeAlias = StrictBool
Number: TypeAlias = StrictInt | StrictFloat  # 1 stays 1: records hold the number as it was written
Count: TypeAlias = Annotated[StrictInt, Field(ge=1)]
Share: TypeAlias = Annotated[Number, Field(ge=0, le=1)]
Options: TypeAlias = Mapping[str, Any]
Location: TypeAlias = tuple[int | str, ...]

EXPECTED = {  # by pydantic's type of error
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table",
    "mapping_type": "a table",
    "dataclass_type": "a table",
    "finite_number": "a finite number",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
}

SHOWN_CHARACTERS = 60  # of a value in a message

TableClass = TypeVar("TableClass")


class SettingsError(ValueError):
    """All faults of a configuration, each a sentence in ``faults``. ``where`` is the file that has them."""

    def __init__(self, faults: Sequence[str], where: object = None) -> None:
        self.faults: list[str] = list(faults)
        said = faults[0] if len(faults) == 1 else f"{len(faults)} things are wrong: " + "; ".join(faults)
        super().__init__(said if where is None else f"{where}: {said}")


class LocatedError(SettingsError):
    """Faults that involve several tables. They say themselves where they are."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def settings_table(cls: type[TableClass]) -> type[TableClass]:
    """Make a class a frozen pydantic dataclass that refuses unknown keys and raises ``SettingsError``."""
    made: Any = pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid", validate_default=True))(
        cls
    )
    validated = made.__init__

    @wraps(validated)
    def __init__(self: Any, *args: Any, **keys: Any) -> None:
        try:
            validated(self, *args, **keys)
        except ValidationError as error:
            raise SettingsError(describe_faults(error, made, keys)) from None

    made.__init__ = __init__
    return made


def one_of(kind: str, names: Iterable[str]) -> AfterValidator:
    """Accept only these names, or a number where the type allows one. The error tells the nearest name."""

    def check(name: Any) -> Any:
        if isinstance(name, str):
            check_known(kind, name, names)
        return name

    return AfterValidator(check)


def describe_faults(error: ValidationError, table: type, keys: Mapping[str, Any]) -> list[str]:
    """One sentence for each fault: where it is, what came, what was expected.

    pydantic has one error for each type that a value may have; together they are one fault.
    """
    expected: dict[str, list[str]] = {}
    faults: list[str] = []
    for found in error.errors(include_url=False):
        kind, context = found["type"], found.get("ctx", {})
        where, inner, loc = _table_of(found["loc"], kind == "value_error", table, keys)
        if kind == "value_error":
            cause = context["error"]
            where = "" if isinstance(cause, LocatedError) else where
            faults += [where + fault for fault in getattr(cause, "faults", [str(cause)])]
        elif kind in ("unexpected_keyword_argument", "unexpected_positional_argument"):
            known = sorted({*(f.name for f in fields(inner)), *getattr(inner, "also_known", ())})
            faults.append(f"{where}unknown key {loc[0]!r}{did_you_mean(loc[0], known)}")
        elif kind == "missing":
            faults.append(f"{where}has no {loc[0]}")
        else:
            fault = f"{where}{_key_at(loc, inner)}={found['input']!r}; expected "
            if fault not in expected:
                faults.append(fault)
            expected.setdefault(fault, []).append(EXPECTED.get(kind, found["msg"]).format(**context))
    return [fault + _alternatives(expected.get(fault, [])) for fault in faults]


def first_fault(error: ValidationError) -> str:
    """The first fault of a value that was read from a file: where it is, what is there, what was expected."""
    found = error.errors(include_url=False)[0]
    where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in found["loc"]).lstrip(".")
    if found["type"] == "missing":
        return f"it has no {where}"
    expected = EXPECTED.get(found["type"], found["msg"]).format(**found.get("ctx", {}))
    return f"{where or 'it'} is {repr(found['input'])[:SHOWN_CHARACTERS]}; expected {expected}"


def _table_of(loc: Location, whole: bool, table: type, keys: Mapping[str, Any]) -> tuple[str, type, Location]:
    """The table that a fault is in, in words and as a class, and the location within it.

    whole: the fault may be of a table as a whole, not of one of its keys.
    """
    if not loc or not isinstance(loc[0], str) or loc[0] not in {f.name for f in fields(table)}:
        return "", table, loc
    hint = get_type_hints(table)[loc[0]]
    if type(None) in get_args(hint):  # a table that may be left out
        hint = get_args(hint)[0]
    if is_dataclass(hint) and (len(loc) > 1 or whole):
        return f"{loc[0]}: ", hint, loc[1:]  # type: ignore[return-value]
    item = next(iter(get_args(hint)), None)
    if is_dataclass(item) and len(loc) > (1 if whole else 2):  # a list of tables, each with a name
        entry = keys[loc[0]][loc[1]]
        name = entry.get("name") if isinstance(entry, Mapping) else entry.name
        return f"{loc[0].removesuffix('s')} {name!r}: ", item, loc[2:]  # type: ignore[return-value]
    return "", table, loc


def _key_at(loc: Location, table: type) -> str:
    """The key, with its position in a list. Further parts of a location are pydantic's names of types."""
    key = fields(table)[loc[0]].name if isinstance(loc[0], int) else loc[0]  # positional
    return f"{key}[{loc[1]}]" if len(loc) > 1 and isinstance(loc[1], int) else key


def _alternatives(words: Sequence[str]) -> str:
    return " or ".join(w for w in dict.fromkeys(words) if not (w == "a whole number" and "a number" in words))
