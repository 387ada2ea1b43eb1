"""Look-ahead active learning: what a network would become if a point were labelled, without retraining it.

Letters, used everywhere as the last part of a name: L labelled points, U candidates (the pool), W watched points,
C classes, P parameters, N any points; lower case for a chunk of them. ``j`` is a candidate, ``i`` a watched point.
``theta_LU`` is (L, U), ``scores_U`` is (U,).
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretaste import acquire as acquire
    from foretaste import testing as testing
    from foretaste.acquire import register as register
    from foretaste.acquire import strategies as strategies
    from foretaste.connect import open as open
    from foretaste.label import Learner as Learner
    from foretaste.lookahead import State as State
    from foretaste.lookahead import linearize as linearize
    from foretaste.network import features as features
    from foretaste.network import fit as fit
    from foretaste.query import Query as Query
    from foretaste.query import query as query
    from foretaste.tangent import ntk as ntk

__version__ = "0.1.0"

# Where each public name lives. Folders are imported on first use: ``foretaste --help`` must not wait for torch.
_PUBLIC = {
    "Learner": "label",
    "State": "lookahead",
    "linearize": "lookahead",
    "register": "acquire",
    "strategies": "acquire",
    "features": "network",
    "open": "connect",
    "fit": "network",
    "Query": "query",
    "query": "query",
    "ntk": "tangent",
}
_FOLDERS = ("acquire", "testing")


class _LazyPackage(ModuleType):
    """The package itself, which imports a folder when one of its names is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if name in _PUBLIC or name in _FOLDERS:
            import_module("foretaste.query")  # registers the strategies that pick by themselves
        if name in _PUBLIC:
            value = getattr(import_module(f"foretaste.{_PUBLIC[name]}"), name)
            self.__dict__[name] = value
            return value
        if name in _FOLDERS:
            return import_module(f"foretaste.{name}")
        raise AttributeError(f"module 'foretaste' has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing the folder ``foretaste.query`` would otherwise hide the function ``foretaste.query``.
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_PUBLIC, *_FOLDERS})


sys.modules[__name__].__class__ = _LazyPackage
