"""Names of strategies: ``@register`` stands beside the function, entry points of other packages are found by name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from importlib.metadata import entry_points
from typing import Any, TypeVar

from foretaste.acquire.coverage import Coverage
from foretaste.errors import did_you_mean
from foretaste.lookahead import WATCH_BY, KernelSettings

ENTRY_POINT_GROUP = "foretaste.acquire"
SELECTS = ("top", "greedy", "sequential", "fantasy")
NEEDS = ("kernel", "classes", "regression")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class OwnTraining:
    """How a strategy trains the network itself, in the place of ``foretaste.network.fit``. A study then calls it.

    fit: ``fit(net, x_L, y_L, **options, **settings) -> (result, options of the query)``. It takes the settings of
        ``foretaste.network.fit``, trains ``net`` in place and returns a ``foretaste.network.Fit``.
    options: the names of its own options, which an arm of a study may set.
    max_lr: its default learning rate, by the name of the loss.
    untrained: not used any more: a training that diverges at lower learning rates too ends the study.
    """

    fit: Callable[..., tuple[Any, dict[str, Any]]]
    options: tuple[str, ...]
    max_lr: Mapping[str, float]
    untrained: Callable[..., dict[str, Any]] | None = None


@dataclass(frozen=True)
class Strategy:
    """A registered function and how it is used.

    ``fn(state, **options) -> (U,) scores``, or with ``picks`` ``fn(request, **options) -> positions``, or positions
    and scores: see ``foretaste.pick.Request``. ``register`` explains the other fields.
    """

    name: str
    fn: Callable[..., Any]
    select: str = "top"
    needs: tuple[str, ...] = ()
    picks: bool = False
    options: type | None = None
    trains: OwnTraining | None = None
    calibrates: str | None = None
    small: Mapping[str, Any] = field(default_factory=dict)
    instant: bool = False
    watch_by: str = "random"
    ridge: str | None = None
    output: str = "sum"
    coverage: Callable[..., Coverage] | None = None
    first: str | None = None
    check_points: Callable[..., None] | None = None

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

    @property
    def kernel(self) -> KernelSettings:
        """The settings of its kernel where the caller gives none."""
        return KernelSettings(output=self.output, ridge=self.ridge, watch_by=self.watch_by)

    def kernel_output(self, asked: str | int) -> str | int:
        """The output of its kernel: its own where "auto" is asked for."""
        return self.output if isinstance(asked, str) and asked == "auto" else asked

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


DEFAULT_STRATEGY = "cover"  # of a query, for classes

_strategies: dict[str, Strategy] = {}


def register(
    name: str,
    *,
    select: str = "top",
    needs: str | Sequence[str] = (),
    picks: bool = False,
    options: type | None = None,
    trains: OwnTraining | None = None,
    calibrates: str | None = None,
    small: Mapping[str, Any] | None = None,
    instant: bool = False,
    watch_by: str = "random",
    ridge: str | None = None,
    output: str = "sum",
    coverage: Callable[..., Coverage] | None = None,
    first: str | None = None,
    check_points: Callable[..., None] | None = None,
) -> Callable[[F], F]:
    """Give an acquisition ``fn(state) -> (U,)`` (higher = label sooner) a name that ``ft.query`` knows.

    Args:
        name: the name; one that is registered already raises.
        select: what ``select="auto"`` means for it, "top" or "greedy".
        needs: "classes" or "regression", and other networks are refused; "kernel", which is then computed before the
            function is called, and timed.
        picks: the function takes a ``foretaste.pick.Request`` and chooses a batch itself.
        options: a dataclass of its settings. Default: made of the keywords that the function takes.
        trains: its own training, which a study runs in the place of ``foretaste.network.fit``.
        calibrates: the option that holds the scale s² of the posterior's variance. A study calibrates it from the
            labels of each batch, unless the option is given.
        small: options that make it quick, for a study shrunk by ``--smoke``.
        instant: a query takes next to no time. A study does not measure it for its estimate.
        watch_by: which points of the pool a number in ``watch`` takes: "random", or "contested" for a score to which
            points far from a change of class add nothing. See ``ft.linearize``.
        ridge: the λ of its state where the caller gives none: None, or "misfit". See ``ft.linearize``.
        output: the output of its kernel where the caller gives none. See ``ft.ntk``.
        coverage: for a score that is what a candidate adds to a coverage F: ``coverage(state, **options) ->
            foretaste.acquire.Coverage``. Then a greedy batch is grown on F itself, which is cheaper and better than
            conditioning on each pick.
        first: the strategy that chooses in its place while nothing is labelled, with select="auto".
        check_points: ``check_points(x_U, **options)`` raises where the points do not fit the options, before any work.

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
    if select not in ("top", "greedy"):
        raise ValueError(f"select={select!r} of strategy {name!r}; expected 'top' or 'greedy'")
    needs = (needs,) if isinstance(needs, str) else tuple(needs)
    for need in needs:
        if need not in NEEDS:
            raise ValueError(f"needs={need!r} of strategy {name!r}{did_you_mean(need, NEEDS, 'Known')}")
    if watch_by not in WATCH_BY:
        raise ValueError(f"watch_by={watch_by!r} of strategy {name!r}{did_you_mean(watch_by, WATCH_BY)}")
    if picks and watch_by != "random":
        raise ValueError(f"strategy {name!r} picks by itself; watch_by={watch_by!r} is for scores, leave it out")
    if picks and (ridge is not None or coverage is not None):
        raise ValueError(f"strategy {name!r} picks by itself; ridge and coverage are for scores, leave them out")
    if options is not None and not (isinstance(options, type) and is_dataclass(options)):
        raise TypeError(f"options of strategy {name!r} is {options!r}; expected a dataclass")

    def keep(fn: F) -> F:
        own_options = options or _keywords(name, fn)
        made = Strategy(
            name, fn, select, needs, picks, own_options, trains, calibrates, dict(small or {}), instant, watch_by,
            ridge, output, coverage, first, check_points,
        )  # fmt: skip
        known = [f.name for f in fields(made.options)] if made.options else []
        for option in (*([calibrates] if calibrates is not None else []), *made.small):
            if option not in known:
                raise ValueError(
                    f"calibrates or small of strategy {name!r} names {option!r}, which is not one of its options"
                    f"{did_you_mean(option, known, 'It takes')}"
                )
        _strategies[name] = made
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
