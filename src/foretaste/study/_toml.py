"""A study from TOML: a file of the user's, or one of those that come with the package."""

import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from foretaste.acquire import nearest
from foretaste.study._config import Arm, Ask, Data, Labels, Network, Study, Train, arm_of
from foretaste.study._faults import Faults, Wrong
from foretaste.study._plugins import plug

PARTS: dict[str, type] = {"data": Data, "labels": Labels, "train": Train, "query": Ask}
CONFIGS = files("foretaste.study").joinpath("configs")


def shipped() -> list[str]:
    """Names of the configurations that come with the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in CONFIGS.iterdir() if entry.name.endswith(".toml"))


def read(source: str | Path, changes: Iterable[str] = (), *, plugins: Iterable[str] = ()) -> Study:
    """The study of a TOML file, or of a name in ``shipped()``; ``changes`` are "train.max_lr=0.1" and the like.

    ``plugins`` are Python files or modules that register strategies, besides those the study names.
    """
    table = _parse(_text(source), str(source))
    at = Faults()
    for change in changes:
        _change(table, change, at)
    at.report()
    return study_of(table, plugins=plugins)


def study_of(table: Mapping[str, Any], *, plugins: Iterable[str] = ()) -> Study:
    """The study that a table describes; all that is wrong with it is told at once."""
    at, table = Faults(), dict(table)
    more = tuple(plugins)
    if _is(table.get("plugins", []), tuple[str, ...]):
        table["plugins"] = tuple(dict.fromkeys((*table.get("plugins", ()), *more)))
        for plugin in table["plugins"]:
            plug(plugin)  # before the arms are read: they may name what it registers
    keys: dict[str, Any] = {}
    if "strategies" in table:
        if "arms" in table:
            at.add("strategies and arms contradict each other; give one")
        names = table.pop("strategies")
        if _is(names, tuple[str, ...]):
            table["arms"] = [{"name": a.name, "strategy": a.strategy, "select": a.select} for a in map(arm_of, names)]
        else:
            at.add(f"strategies={names!r}; expected a list of names")
    for part, kind in PARTS.items():
        if part in table:
            keys[part] = _filled(kind, table.pop(part), at.inside(part))
    if "network" in table:
        keys["network"] = _network(table.pop("network"), at.inside("network"))
    if "arms" in table:
        keys["arms"] = _arms(table.pop("arms"), at)
    if isinstance(table.get("notes"), str):  # lines of a paragraph belong together
        table["notes"] = "\n\n".join(" ".join(part.split()) for part in table["notes"].split("\n\n"))
    keys |= _checked(Study, table, at, besides=[*PARTS, "network", "arms", "strategies"])
    try:
        study = Study(**{k: v for k, v in keys.items() if v is not None})
    except Wrong as error:
        for fault in error.faults:
            if not at.found or "there are no arms" not in fault:  # they were refused above
                at.add(fault)
    at.report()
    return study


def _text(source: str | Path) -> str:
    if isinstance(source, Path) or source.endswith(".toml") or "/" in source:
        if not Path(source).is_file():
            raise FileNotFoundError(f"{source} does not exist, or is no file; expected a study in TOML")
        try:
            return Path(source).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{source} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
            ) from None
    names = shipped()
    if source not in names:
        raise ValueError(
            f"unknown study {source!r}{nearest(source, names, 'It is the path of a .toml file, or one of')}"
        )
    return CONFIGS.joinpath(f"{source}.toml").read_text(encoding="utf-8")


def value_of(text: str) -> Any:
    """What stands behind the = of a setting: as TOML has it, or else the word it is."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{source} is not TOML: {error}") from None


def _change(table: dict[str, Any], change: str, at: Faults) -> None:
    """One "key=value": dots go into tables, "arms.NAME.key" into the arm of that name; the value is TOML or a word."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        at.add(f"--set {change!r}; expected key=value, such as train.max_lr=0.1")
        return
    value = value_of(text)
    *way, last = key.strip().split(".")
    if way[:1] == ["arms"]:
        named = {str(arm.get("name", arm.get("strategy"))): arm for arm in table.get("arms", [])}
        if len(way) < 2 or way[1] not in named:
            at.add(f"--set {change!r}: no arm of that name{nearest('.'.join(way[1:]), named, 'Arms')}")
            return
        table, way = named[way[1]], way[2:]
    if key.strip() == "strategies":
        table.pop("arms", None)
    for step in way:
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            at.add(f"--set {change!r}: {step} is no table")
            return
    table[last] = value
    for one, other in (("steps", "epochs"), ("epochs", "steps")):  # a length given now takes the other's place
        if way == ["train"] and last == one:
            table.pop(other, None)


def _filled(kind: type, table: Any, at: Faults) -> Any:
    if not isinstance(table, Mapping):
        at.add(f"is {table!r}; expected a table")
        return None
    return kind(**_checked(kind, table, at))


def _network(table: Any, at: Faults) -> Network | None:
    if not isinstance(table, Mapping) or not isinstance(table.get("name", "mlp"), str):
        at.add(f"is {table!r}; expected a table with a name")
        return None
    return Network(table.get("name", "mlp"), {key: value for key, value in table.items() if key != "name"})


def _arms(tables: Any, at: Faults) -> tuple[Arm, ...] | None:
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        at.add("arms: expected [[arms]] tables")
        return None
    arms = []
    for k, table in enumerate(tables):
        inside = at.inside(f"arm {table.get('name', table.get('strategy', k + 1))!r}")
        keys = _checked(Arm, table, inside)
        if "strategy" not in keys:
            inside.add("has no strategy")
        elif not inside.found:
            arms.append(Arm(**{"name": keys["strategy"]} | keys))
    return tuple(arms)


def _checked(kind: type, table: Mapping[str, Any], at: Faults, besides: Iterable[str] = ()) -> dict[str, Any]:
    """The keys that ``kind`` takes, of the type it takes; of the others a fault each."""
    hints, keys = get_type_hints(kind), {}
    allowed = [f.name for f in fields(kind)]
    for key, value in table.items():
        if key not in allowed:
            at.add(f"unknown key {key!r}{nearest(key, sorted({*allowed, *besides}), 'Known')}")
        elif not _is(value, hints[key]):
            at.add(f"{key}={value!r}; expected {_words(hints[key])}")
        else:
            keys[key] = tuple(value) if isinstance(value, list) and get_origin(hints[key]) is tuple else value
    return keys


def _is(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_is(value, one) for one in get_args(hint))
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_is(v, get_args(hint)[0]) for v in value)
    if origin is not None:
        return isinstance(value, Mapping)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is hint or (hint is type(None) and value is None)


def _words(hint: Any) -> str:
    names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", type(None): "nothing"}
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_words(one) for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is tuple:
        return f"a list, each {_words(get_args(hint)[0])}"
    return names.get(hint, "a table")
