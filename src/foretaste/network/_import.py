"""A network by name: built in, or "package.module:function" of the user's own."""

import contextlib
import copy
import importlib
import inspect
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from foretaste.network._build import NETWORKS, build
from foretaste.network._names import known


def make(
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    classes: int | None = None,
    shape: Sequence[int] | None = None,
) -> nn.Module:
    """A new network for points of ``shape`` and so many classes; ``options`` say otherwise, and have the last word.

    A function or class of the user's own is told ``shape``, ``inputs``, ``channels`` and ``classes`` where it has
    parameters of that name.
    """
    told: dict[str, Any] = {"shape": None if shape is None else tuple(shape), "classes": classes}
    if shape is not None:
        told |= {"inputs": math.prod(shape), "channels": shape[0]}
    told = {key: value for key, value in told.items() if value is not None} | dict(options or {})
    if ":" in name:
        return _imported(name, told, {*(options or {})})
    known("network", name, NETWORKS)
    if name != "mlp" and shape is not None and len(shape) != 3:
        raise ValueError(f"{name} is for images (channels, height, width) and a point is {tuple(shape)}; use mlp")
    own = ("inputs", "classes") if name == "mlp" else ("channels", "classes")
    return build(name, **{key: value for key, value in told.items() if key in own or key in (options or {})})


def _imported(name: str, told: Mapping[str, Any], must: set[str]) -> nn.Module:
    where, _, attribute = name.partition(":")
    if where.endswith(".py") or "/" in where:
        raise ValueError(f"network {name!r} names a file; expected package.module:function, found from this folder")
    try:
        with _here():
            found: Any = importlib.import_module(where)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"network {name!r} cannot be imported: {error}; expected package.module:function, installed or from here"
        ) from None
    if isinstance(found, nn.Module):
        if must:
            raise ValueError(
                f"{name} is a network already made, so it takes no options; given: {', '.join(sorted(must))}"
            )
        return copy.deepcopy(found)
    if not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__}; expected a function or class that makes a torch module")
    takes = inspect.signature(found).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    strangers = [] if anything else sorted(must - {*takes})
    if strangers:
        raise ValueError(f"{name} has no option {', '.join(strangers)}; it takes {', '.join(takes) or 'none'}")
    net = found(**{key: value for key, value in told.items() if key in takes or key in must})
    if not isinstance(net, nn.Module):
        raise TypeError(f"{name} made a {type(net).__name__}; expected a torch module")
    return net


@contextlib.contextmanager
def _here() -> Iterator[None]:
    """The working folder importable, as it is for ``python -m``."""
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)
