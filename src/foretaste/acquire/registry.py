"""Names of strategies: ``@register`` stands beside the function, entry points of other packages are found by name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from importlib.metadata import entry_points
from typing import Any, TypeVar

from foretaste.errors import did_you_mean

ENTRY_POINT_GROUP = "foretaste.acquire"
SELECTS = ("top", "greedy", "sequential", "fantasy")
NEEDS = ("kernel", "classes", "regression")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Strategy:
    """A registered function and how it is used.

    ``fn(state, **options) -> (U,) scores``, or with ``picks`` ``fn(request, **options) -> positions``, or positions
    and scores: see ``foretaste.query.Request``.
    """

    name: str
    fn: Callable[..., Any]
    select: str = "top"
    needs: tuple[str, ...] = ()
    picks: bool = False
    options: type | None = None

    def check(self, C: int) -> None:
        """Raise if it is for another kind of network than one of C outputs."""
        if "classes" in self.needs and C < 2:
            others = [s.name for s in _strategies.values() if "classes" not in s.needs]
            raise ValueError(
                f"strategy {self.name!r} needs classes and this network has one output; for regression use one of: "
                f"{', '.join(sorted(others))}"
            )
        if "regression" in self.needs and C > 1:
            raise ValueError(f"strategy {self.name!r} is for regression and this network has {C} outputs")

    def settings(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """The options, checked against the strategy's dataclass, as keywords for ``fn``."""
        known = [f.name for f in fields(self.options)] if self.options else []
        for key in given or {}:
            if key not in known:
                raise ValueError(
                    f"unknown option {key!r} of strategy {self.name!r}{did_you_mean(key, known, 'It takes')}"
                )
        if self.options is None:
            return {}
        options = self.options(**(given or {}))
        return {name: getattr(options, name) for name in known}  # as they are: asdict would copy networks and tensors


_strategies: dict[str, Strategy] = {}


def register(
    name: str,
    *,
    select: str = "top",
    needs: str | Sequence[str] = (),
    picks: bool = False,
    options: type | None = None,
) -> Callable[[F], F]:
    """Give an acquisition ``fn(state) -> (U,)`` (higher = label sooner) a name that ``ft.query`` knows.

    select: what "auto" means for it. needs: "classes" or "regression", refused otherwise; "kernel", computed before it
    is called, and timed. picks: the function takes a request and chooses by itself. options: a dataclass of its
    settings; by default made of the keywords it takes.
    """
    if name in _strategies:
        raise ValueError(f"strategy {name!r} is already registered, by {_strategies[name].fn!r}; choose another name")
    if select not in ("top", "greedy"):
        raise ValueError(f"select={select!r} of strategy {name!r}; expected 'top' or 'greedy'")
    needs = (needs,) if isinstance(needs, str) else tuple(needs)
    for need in needs:
        if need not in NEEDS:
            raise ValueError(f"needs={need!r} of strategy {name!r}{did_you_mean(need, NEEDS, 'Known')}")
    if options is not None and not (isinstance(options, type) and is_dataclass(options)):
        raise TypeError(f"options of strategy {name!r} is {options!r}; expected a dataclass")

    def keep(fn: F) -> F:
        _strategies[name] = Strategy(name, fn, select, needs, picks, options or _keywords(name, fn))
        return fn

    return keep


def _keywords(name: str, fn: Callable[..., Any]) -> type | None:
    _, *rest = inspect.signature(fn).parameters.values()
    if bare := [p.name for p in rest if p.default is p.empty]:
        raise TypeError(f"strategy {name!r}: {bare[0]!r} has no default; a strategy is called with one argument")
    return make_dataclass(f"{name}_options", [(p.name, Any, p.default) for p in rest], frozen=True) if rest else None


def strategies() -> list[str]:
    """Names that ``strategy=`` takes, those of installed packages among them."""
    return sorted({*_strategies, *(e.name for e in entry_points(group=ENTRY_POINT_GROUP))})


def find_strategy(name: str) -> Strategy:
    """The strategy of that name; an entry point is imported only now."""
    if name not in _strategies:
        found = list(entry_points(group=ENTRY_POINT_GROUP, name=name))
        if not found:
            raise ValueError(f"unknown strategy {name!r}{did_you_mean(name, strategies(), 'Registered')}")
        if len(found) > 1:
            raise ValueError(
                f"strategy {name!r} is offered by {', '.join(e.value for e in found)}; uninstall all but one"
            )
        fn = found[0].load()
        if name not in _strategies:  # its module may have called register itself
            register(name)(fn)
    return _strategies[name]
