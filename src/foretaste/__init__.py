"""Look-ahead active learning: what a network would become if a point were labelled, without retraining it.

Letters, used everywhere as the last part of a name: L labelled points, U candidates (the pool), W watched points,
C classes, P parameters, N any points; lower case for a chunk of them. ``j`` is a candidate, ``i`` a watched point.
``theta_LU`` is (L, U), ``scores_U`` is (U,).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretaste import acquire as acquire
    from foretaste import testing as testing
    from foretaste.acquire import register as register
    from foretaste.acquire import strategies as strategies
    from foretaste.connect import open as open
    from foretaste.executors import Executor as Executor
    from foretaste.label import Learner as Learner
    from foretaste.lookahead import Graph as Graph
    from foretaste.lookahead import State as State
    from foretaste.lookahead import linearize as linearize
    from foretaste.network import features as features
    from foretaste.network import fit as fit
    from foretaste.pick import Query as Query
    from foretaste.pick import query as query
    from foretaste.tangent import ntk as ntk
    from foretaste.tangent import register_rule as register_rule

__version__ = "0.1.0"

# Where each public name lives. Folders are imported on first use: ``foretaste --help`` must not wait for torch.
_PUBLIC = {
    "Executor": "executors",
    "Graph": "lookahead",
    "Learner": "label",
    "State": "lookahead",
    "linearize": "lookahead",
    "register": "acquire",
    "strategies": "acquire",
    "features": "network",
    "open": "connect",
    "fit": "network",
    "Query": "pick",
    "query": "pick",
    "ntk": "tangent",
    "register_rule": "tangent",
}
_FOLDERS = ("acquire", "testing")


def __getattr__(name: str) -> Any:
    """Import a folder when one of its names is first asked for (PEP 562)."""
    if name not in _PUBLIC and name not in _FOLDERS:
        raise AttributeError(f"module 'foretaste' has no attribute {name!r}")
    import_module("foretaste.pick")  # registers the strategies that pick by themselves
    if name in _FOLDERS:
        return import_module(f"foretaste.{name}")
    globals()[name] = value = getattr(import_module(f"foretaste.{_PUBLIC[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, *_FOLDERS})
