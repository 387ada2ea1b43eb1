"""Strategies of the user's own, from a Python file or a module, by ``@ft.register("name")``."""

import importlib
import importlib.util
import sys
from pathlib import Path

_seen: set[str] = set()


def plug(source: str) -> None:
    """Import a .py file or a module, once in a process: what it registers has a name from then on."""
    path = Path(source)
    key = str(path.resolve()) if path.suffix == ".py" else source
    if key in _seen:
        return
    if path.suffix != ".py":
        try:
            importlib.import_module(source)
        except ModuleNotFoundError as error:
            raise ValueError(f"plugin {source!r} is neither a .py file nor a module: {error}") from None
    elif not path.is_file():
        raise FileNotFoundError(f"plugin {source} does not exist; expected a Python file that calls ft.register")
    else:
        name = f"foretaste_plugin_{path.stem}_{len(_seen)}"
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
                raise ValueError(f"plugin {source} fails: {type(error).__name__}: {error}") from error
            raise
    _seen.add(key)
