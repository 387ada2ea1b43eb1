"""Names of strategies: ``@register`` stands beside the function, entry points of other packages are found by name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from importlib.metadata import entry_points
from typing import Any, TypeVar

from foretaste.acquire.coverage import Coverage
from foretaste.acquire.lazy_scores import ScoreBound
from foretaste.errors import did_you_mean
from foretaste.lookahead import KernelSettings

ENTRY_POINT_GROUP = "foretaste.acquire"
SELECTS = ("top", "greedy", "sequential", "fantasy")
NEEDS = ("kernel", "classes", "regression", "labels")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class OwnTraining:
    """How a strategy trains the network itself, in the place of ``foretaste.network.fit``. A study then calls it.

    fit: ``fit(net, x_L, y_L, **options, **settings) -> (result, options of the query)``. It takes the settings of
        ``foretaste.network.fit``, trains ``net`` in place and returns a ``foretaste.network.Fit``.
    options: the names of its own options, which an arm of a study may set.
    max_lr: its default learning rate, by the name of the loss.
    """

    fit: Callable[..., tuple[Any, dict[str, Any]]]
    options: tuple[str, ...]
    max_lr: Mapping[str, float]


@dataclass(frozen=True)
class StudyHints:
    """What a study does for a strategy. A query needs none of it.

    trains: its own training, which a study runs in the place of ``foretaste.network.fit``.
    calibrates: the option that holds the scale s² of the posterior's variance. A study calibrates it from the labels of
        each batch, unless the option is given.
    small: options that make it quick, for a study shrunk by ``--smoke``.
    instant: a query takes next to no time. A study does not measure it for its estimate.
    """

    trains: OwnTraining | None = None
    calibrates: str | None = None
    small: Mapping[str, Any] = field(default_factory=dict)
    instant: bool = False


@dataclass(frozen=True)
class Strategy:
    """A registered function and how it is used; ``register`` explains the fields.

    ``fn(state, **options) -> (U,) scores``. With ``select="own"``, ``fn(request, **options) -> positions``, or
    positions and scores: see ``foretaste.pick.Request``.
    """

    name: str
    fn: Callable[..., Any]
    select: str = "top"
    needs: tuple[str, ...] = ()
    options: type | None = None
    kernel: KernelSettings = field(default_factory=KernelSettings)
    study: StudyHints = field(default_factory=StudyHints)
    coverage: Callable[..., Coverage] | None = None
    pointwise: bool = False
    bound: Callable[..., ScoreBound] | None = None

    @property
    def picks(self) -> bool:
        """Whether it picks a batch by itself."""
        return self.select == "own"

    @property
    def covers_first(self) -> bool:
        """Whether ``ft.query`` covers the pool with it, or in its place, while nothing is labelled."""
        return self.coverage is not None or "labels" in self.needs

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

    def kernel_output(self, asked: str | int) -> str | int:
        """The output of its kernel: its own where "auto" is asked for."""
        return self.kernel.output if isinstance(asked, str) and asked == "auto" else asked

    def settings(self, given: Mapping[str, Any] | None, x_U: Any = None) -> dict[str, Any]:
        """The options, checked against the strategy's dataclass and the points, as keywords for ``fn``."""
        known = option_names(self.options)
        for key in given or {}:
            if key not in known:
                raise ValueError(
                    f"unknown option {key!r} of strategy {self.name!r}{did_you_mean(key, known, 'It takes')}"
                )
        if self.options is None:
            return {}
        options = self.options(**(given or {}))
        if x_U is not None and hasattr(options, "check_points"):
            options.check_points(x_U)
        return {name: getattr(options, name) for name in known}  # as they are: asdict would copy networks and tensors


def option_names(options: type | None) -> list[str]:
    return [f.name for f in fields(options)] if options else []


DEFAULT_STRATEGY = "cover"  # of a query, for classes

_strategies: dict[str, Strategy] = {}


def register(
    name: str,
    *,
    select: str | Callable[..., Coverage] = "top",
    needs: str | Sequence[str] = (),
    options: type | None = None,
    kernel: KernelSettings | None = None,
    study: StudyHints | None = None,
    pointwise: bool = False,
    bound: Callable[..., ScoreBound] | None = None,
) -> Callable[[F], F]:
    """Give an acquisition ``fn(state) -> (U,)`` (higher = label sooner) a name that ``ft.query`` knows.

    Args:
        name: the name; one that is registered already raises.
        select: what ``select="auto"`` means for it. "top" (default): the highest scores. "greedy": one by one, each
            pick conditioned on. "own": the function takes a ``foretaste.pick.Request`` and picks a batch itself. Or,
            for a score that is what a candidate adds to a coverage F, a function ``coverage(state, **options) ->
            foretaste.acquire.Coverage``: a greedy batch is then grown on F itself, which is cheaper and better.
        needs: one or several. "classes" or "regression": other networks are refused. "kernel": it is computed before
            the function is called, and timed. "labels": while nothing is labelled, ``ft.query`` covers the pool
            (``cover``) instead.
        options: a dataclass of its settings. Its method ``check_points(x_U)``, if there is one, raises before any work
            where the points do not fit. Default: made of the keywords that the function takes.
        kernel: the output, ridge and watch_by of its state where the caller of ``ft.query`` gives none, as
            ``foretaste.lookahead.KernelSettings(output=..., ridge=..., watch_by=...)``. See ``ft.linearize``.
        study: what a study does for it, a ``foretaste.acquire.StudyHints``: its own training, a calibration, options
            for a small run.
        pointwise: whether a candidate's score is of its own outputs alone, whatever else is in the pool. Then a pool
            that does not fit into memory is read and scored in chunks. Default False.
        bound: for a greedy score that is bounded cheaply, a function ``bound(**options) ->
            foretaste.acquire.ScoreBound``. Large batches are then grown by it: the same picks, and few scores for each.

    Returns:
        A decorator, which returns the function itself.

    Example:
        >>> import foretaste as ft
        >>> @ft.register("largest_output")
        ... def largest_output(state):
        ...     return state.pool_mean.amax(1)
        >>> "largest_output" in ft.strategies()
        True
    """
    if name in _strategies:
        raise ValueError(f"strategy {name!r} is already registered, by {_strategies[name].fn!r}; choose another name")
    coverage, how = (select, "greedy") if callable(select) else (None, select)
    if how not in ("top", "greedy", "own"):
        raise ValueError(f"select={how!r} of strategy {name!r}; expected 'top', 'greedy', 'own' or a coverage")
    needs = (needs,) if isinstance(needs, str) else tuple(needs)
    for need in needs:
        if need not in NEEDS:
            raise ValueError(f"needs={need!r} of strategy {name!r}{did_you_mean(need, NEEDS, 'Known')}")
    if how == "own" and kernel is not None:
        raise ValueError(f"strategy {name!r} picks by itself; kernel= is for scores, leave it out")
    if options is not None and not (isinstance(options, type) and is_dataclass(options)):
        raise TypeError(f"options of strategy {name!r} is {options!r}; expected a dataclass")
    hints = study or StudyHints()

    def keep(fn: F) -> F:
        own = options or _keywords(name, fn)
        known = option_names(own)
        for option in (*([hints.calibrates] if hints.calibrates is not None else []), *hints.small):
            if option not in known:
                raise ValueError(
                    f"calibrates or small of strategy {name!r} names {option!r}, which is not one of its options"
                    f"{did_you_mean(option, known, 'It takes')}"
                )
        _strategies[name] = Strategy(
            name, fn, how, needs, own, kernel or KernelSettings(), hints, coverage, pointwise, bound
        )
        return fn

    return keep


def _keywords(name: str, fn: Callable[..., Any]) -> type | None:
    _, *rest = inspect.signature(fn).parameters.values()
    if bare := [p.name for p in rest if p.default is p.empty]:
        raise TypeError(f"strategy {name!r}: {bare[0]!r} has no default; a strategy is called with one argument")
    return make_dataclass(f"{name}_options", [(p.name, Any, p.default) for p in rest], frozen=True) if rest else None


def strategies() -> list[str]:
    """The names that ``strategy=`` of ``ft.query`` takes, sorted.

    Strategies of installed packages are among them: a package offers one by an entry point of the group
    "foretaste.acquire".

    Returns:
        A list of names. docs/strategies.md describes those of foretaste.

    Example:
        >>> import foretaste as ft
        >>> "gain" in ft.strategies(), "random" in ft.strategies()
        (True, True)
    """
    return sorted({*_strategies, *(e.name for e in entry_points(group=ENTRY_POINT_GROUP))})


def find_strategy(name: str) -> Strategy:
    """The strategy of that name. An entry point is imported here, when it is first used."""
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
