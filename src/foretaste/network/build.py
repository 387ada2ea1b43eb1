"""Networks by name: built in, or ``package.module:function`` of the user's own."""

import contextlib
import copy
import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from torch import nn

from foretaste.errors import check_known
from foretaste.network.models import MLPSpec, ResNetSpec, WideResNetSpec

Spec = MLPSpec | WideResNetSpec | ResNetSpec

# name: (its settings, those that the name already fixes)
NETWORKS: dict[str, tuple[Callable[..., Spec], dict[str, Any]]] = {
    "mlp": (MLPSpec, {}),
    "wrn1": (WideResNetSpec, {"layers": 1}),
    "wrn2": (WideResNetSpec, {"layers": 2}),
    "wrn3": (WideResNetSpec, {"layers": 3}),
    "resnet18": (ResNetSpec, {"blocks": (2, 2, 2, 2)}),
}


def build_network(name: str, **options: Any) -> nn.Module:
    """Make one of the built-in networks.

    Args:
        name: a key of ``NETWORKS``: "mlp", "wrn1", "wrn2", "wrn3", "resnet18".
        options: settings of that network, as in ``MLPSpec``, ``WideResNetSpec`` or ``ResNetSpec``.

    Returns:
        The network, with new weights.

    Example:
        >>> type(build_network("mlp", inputs=64, hidden=(32,))).__name__
        'MLP'
    """
    check_known("network", name, NETWORKS)
    make, said = NETWORKS[name]
    names = [f.name for f in fields(make) if f.name not in said]  # type: ignore[arg-type]
    for option in options:
        check_known(f"option of {name}", option, names)
    if name == "mlp" and "inputs" not in options:
        raise ValueError("mlp needs inputs=, the number of values of one point: 784 for a 28×28 image")
    return make(**said, **options).build()


def make_network(
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    classes: int | None = None,
    shape: Sequence[int] | None = None,
) -> nn.Module:
    """Make a network for given data: built in, or by a function of the user's own.

    Args:
        name: a key of ``NETWORKS``, or "package.module:function". The function gets ``shape``, ``inputs``, ``channels``
            and ``classes`` where it has parameters of that name.
        options: settings of the network; they override what follows from ``classes`` and ``shape``.
        classes: outputs.
        shape: of one point, (channels, height, width) for pictures.

    Returns:
        The network, with new weights or those that the user's function gave it.

    Example:
        >>> make_network("wrn1", options={"widen": 1}, classes=3, shape=(1, 8, 8)).head.out_features
        3
    """
    told: dict[str, Any] = {"shape": None if shape is None else tuple(shape), "classes": classes}
    if shape is not None:
        told |= {"inputs": math.prod(shape), "channels": shape[0]}
    told = {key: value for key, value in told.items() if value is not None} | dict(options or {})
    if ":" in name:
        return _imported_function(name, told, {*(options or {})})
    check_known("network", name, NETWORKS)
    if name != "mlp" and shape is not None and len(shape) != 3:
        raise ValueError(f"{name} is for images (channels, height, width) and a point is {tuple(shape)}; use mlp")
    own = ("inputs", "classes") if name == "mlp" else ("channels", "classes")
    return build_network(name, **{key: value for key, value in told.items() if key in own or key in (options or {})})


def import_attribute(name: str, what: str) -> Any:
    """The object that "package.module:attribute" names, installed or found from the working folder."""
    where, _, attribute = name.partition(":")
    if where.endswith(".py") or "/" in where:
        raise ValueError(f"{what} {name!r} names a file; expected package.module:function, found from this folder")
    try:
        with _import_from_here():
            found: Any = importlib.import_module(where)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{what} {name!r} cannot be imported: {error}; expected package.module:function, installed or from here"
        ) from None
    return found


def _imported_function(name: str, told: Mapping[str, Any], must: set[str]) -> nn.Module:
    found = import_attribute(name, "network")
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
def _import_from_here() -> Iterator[None]:
    """Make the working folder importable, as ``python -m`` does."""
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)
