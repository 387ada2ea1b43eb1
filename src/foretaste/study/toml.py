"""A study from strategies by name, or from TOML: the user's own file, or one in the package; and its plugins."""

import importlib
import importlib.util
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from foretaste.errors import did_you_mean
from foretaste.study.config import NO_ARMS, Study
from foretaste.study.settings import SettingsError

CONFIGS = files("foretaste.study").joinpath("configs")

_imported: set[str] = set()


def shipped() -> list[str]:
    """The names of the studies that come with the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in CONFIGS.iterdir() if entry.name.endswith(".toml"))


def read_study(source: str | Path, changes: Iterable[str] = (), *, plugins: Iterable[str] = ()) -> Study:
    """The study of a TOML file.

    Args:
        source: the path of a .toml file, or a name of ``shipped()``.
        changes: settings to replace, such as "train.max_lr=0.1" or "arms.NAME.select=top".
        plugins: Python files or modules that register strategies, besides those the study names.

    Returns:
        The study, validated.

    Raises:
        SettingsError: with all that is wrong.
        FileNotFoundError: if there is no such file or plugin.

    Example:
        >>> from foretaste import study
        >>> study.read("demo", ["seeds=[0, 1]"]).seeds
        (0, 1)
    """
    text = _toml_text(source)
    try:
        table = tomllib.loads(text)
    except ValueError as error:  # also for numbers with thousands of digits
        raise ValueError(f"{source} is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{source} is nested too deeply to be a study in TOML") from None
    where = source if _is_path(source) else None
    faults = [fault for change in changes if (fault := change_setting(table, change))]
    if faults:
        raise SettingsError(faults, where)
    try:
        return study_of(table, plugins=plugins)
    except SettingsError as error:
        raise SettingsError(error.faults, where) from None


def study(strategies: Iterable[str], **settings: Any) -> Study:
    """A study of strategies by name, each an arm.

    Args:
        strategies: names such as "gain", or "gain sequential": a strategy, and after a space how points are selected.
        settings: the other fields of ``Study``: seeds, data, labels, network, train, query, title, ...

    Returns:
        The study, validated. ``foretaste.study.run`` runs it.

    Raises:
        SettingsError: with all that is wrong.

    Example:
        >>> from foretaste.study import Labels, study
        >>> of = study(["gain sequential", "random"], seeds=(0, 1), labels=Labels(init=20, per_cycle=5, cycles=3))
        >>> of.names, of.size
        (('gain sequential', 'random'), 16)
    """
    return study_of({"strategies": tuple(strategies), **settings})


def study_of(table: Mapping[str, Any], *, plugins: Iterable[str] = ()) -> Study:
    """The study that a table describes, laid out as in a TOML file.

    Args:
        table: the keys of a study (docs/studies.md).
        plugins: Python files or modules that register strategies, besides those the table names.

    Returns:
        The study, validated.

    Raises:
        SettingsError: with all that is wrong.

    Example:
        >>> study_of({"strategies": ["margin", "random"], "train": {"steps": 50}}).train.steps
        50
    """
    table, faults = dict(table), []
    named = table.get("plugins", [])
    if _is_texts(named):
        table["plugins"] = tuple(dict.fromkeys((*named, *plugins)))
        for plugin in table["plugins"]:
            import_plugin(plugin)  # before the arms are validated: they may name what it registers
    if "strategies" in table:
        names, more = table.pop("strategies"), table.get("arms", [])
        if _is_texts(names):
            table["arms"] = [*map(_arm_from_spec, names), *more] if isinstance(more, list) else more
        else:
            faults.append(f"strategies={names!r}; expected a list of names")
    if isinstance(arms := table.get("arms"), list):
        table["arms"] = [_named_arm(arm, k) for k, arm in enumerate(arms, 1)]
    if isinstance(network := table.get("network"), Mapping):
        options = {key: value for key, value in network.items() if key != "name"}
        table["network"] = {"name": network.get("name", "mlp"), "options": options}
    if isinstance(notes := table.get("notes"), str):  # a paragraph may be broken into lines
        table["notes"] = "\n\n".join(" ".join(part.split()) for part in notes.split("\n\n"))
    try:
        made = Study(**table)
    except SettingsError as error:
        faults += [fault for fault in error.faults if not (faults and fault == NO_ARMS)]
    if faults:
        raise SettingsError(faults)
    return made


def change_setting(table: dict[str, Any], change: str) -> str | None:
    """Apply one "key=value" to the table of a study; returns the fault if that cannot be done.

    Dots lead into tables, and "arms.NAME.key" into the arm of that name.
    """
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        return f"--set {change!r}; expected key=value, such as train.max_lr=0.1"
    *path, last = key.strip().split(".")
    if path[:1] == ["arms"]:
        arms = {str(arm.get("name", arm.get("strategy"))): arm for arm in table.get("arms", [])}
        if len(path) < 2 or path[1] not in arms:
            return f"--set {change!r}: no arm of that name{did_you_mean('.'.join(path[1:]), arms, 'Arms')}"
        table, path = arms[path[1]], path[2:]
    if key.strip() == "strategies":
        table.pop("arms", None)
    for step in path:
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            return f"--set {change!r}: {step} is no table"
    table[last] = parse_value(text)
    for given, replaced in (("steps", "epochs"), ("epochs", "steps")):  # the new length replaces the old one
        if path == ["train"] and last == given:
            table.pop(replaced, None)
    return None


def parse_value(text: str) -> Any:
    """The value of a ``key=value`` setting: as TOML, or as a plain word.

    >>> parse_value("[0, 1]"), parse_value("mnist")
    ([0, 1], 'mnist')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text.strip()


def _is_path(source: str | Path) -> bool:
    return isinstance(source, Path) or source.endswith(".toml") or "/" in source


def _toml_text(source: str | Path) -> str:
    if _is_path(source):
        if not Path(source).is_file():
            raise FileNotFoundError(f"{source} does not exist, or is no file; expected a study in TOML")
        try:
            return Path(source).read_text(encoding="utf-8-sig")  # some editors put a byte order mark first
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{source} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
            ) from None
    names = shipped()
    if source not in names:
        listed = "Give the path of a .toml file, or one of"
        raise ValueError(f"unknown study {source!r}{did_you_mean(source, names, listed)}")
    return CONFIGS.joinpath(f"{source}.toml").read_text(encoding="utf-8")


def _arm_from_spec(spec: str) -> dict[str, str]:
    """ "gain sequential": a strategy, and how points are selected."""
    strategy, *select = spec.split() or [spec]
    return {"name": spec, "strategy": strategy, "select": " ".join(select) or "auto"}


def _named_arm(arm: Any, number: int) -> Any:
    """An arm without a name is called as its strategy."""
    return {"name": str(arm.get("strategy", number)), **arm} if isinstance(arm, Mapping) else arm


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)


# Plugins: strategies of the user's own, from a Python file or a module that calls @ft.register


def import_plugin(source: str) -> None:
    """Import a .py file or a module, once in a process. What it registers then has a name."""
    path = Path(source)
    key = str(path.resolve()) if path.suffix == ".py" else source
    if key in _imported:
        return
    if path.suffix == ".py":
        _import_file(path)
    else:
        try:
            importlib.import_module(source)
        except ModuleNotFoundError as error:
            raise ValueError(f"plugin {source!r} is neither a .py file nor a module: {error}") from None
    _imported.add(key)


def _import_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"plugin {path} does not exist; expected a Python file that calls ft.register")
    name = f"foretaste_plugin_{path.stem}_{len(_imported)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception):
            raise ValueError(f"plugin {path} fails: {type(error).__name__}: {error}") from error
        raise
