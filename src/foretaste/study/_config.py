"""What a study compares, and on what: the settings of Algorithm 1 (docs/studies.md lists them all)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import foretaste.query  # noqa: F401  registers the strategies that pick by themselves
from foretaste.acquire import SELECTS, find, nearest
from foretaste.network import NETWORKS
from foretaste.study._faults import Faults

EXPERIMENTS = ("loop", "theorem", "block")
MODELS = ("network", "gp")
OWN = ("inputs", "channels", "classes")  # of a network, by the data
LL4AL = ("layers", "reduction", "weight", "margin", "stop", "hidden")  # settings of its training


@dataclass(frozen=True)
class Data:
    """name: of a data set, or the path of a .npz, a folder of images or a saved Hugging Face dataset; the rest says
    how it is read, and what is done to its pool."""

    name: str = "digits"
    folder: str | None = None  # where data sets lie; None is $FORETASTE_DATA, or ~/.cache/foretaste
    normalise: str = "auto"  # "auto" (the data set's own), "none", "measured"
    size: int | None = None  # pixels a side, for folders of images of several sizes
    channels: int | None = None
    pixels: int | None = None  # average pictures down to so many a side, for a quick try
    test: float = 0.2  # share kept to measure on, where the source has no test set of its own
    skip_broken: bool = False  # leave out images that cannot be read, and say so
    pool_points: int | None = None  # keep so many of the pool
    test_points: int | None = None  # and of the test set
    imbalance: float = 1.0  # size of the rarest class over that of the most common
    noise: float = 0.0  # share of the pool's labels that are wrong

    def faults(self, at: Faults) -> None:
        at.one_of("normalise", self.normalise, ("auto", "none", "measured"))
        for name in ("size", "channels", "pixels", "pool_points", "test_points"):
            at.whole(name, getattr(self, name), 1, optional=True)
        at.within("test", self.test, 0, 1)
        at.within("imbalance", self.imbalance, 0, 1, low_open=True)
        at.within("noise", self.noise, 0, 1)


@dataclass(frozen=True)
class Labels:
    """``init`` random labels, then ``per_cycle`` more, ``cycles`` times, each of ``subset`` unlabelled points drawn
    anew; None offers the whole pool."""

    init: int = 20
    per_cycle: int = 10
    cycles: int = 7
    subset: int | None = None

    def faults(self, at: Faults) -> None:
        for name, least in {"init": 1, "per_cycle": 1, "cycles": 0}.items():
            at.whole(name, getattr(self, name), least)
        if at.whole("subset", self.subset, 1, optional=True) and self.subset and self.subset < self.per_cycle:
            at.add(f"subset={self.subset} is less than per_cycle={self.per_cycle}; offer at least as many as are asked")

    @property
    def total(self) -> int:
        return self.init + self.per_cycle * self.cycles


@dataclass(frozen=True)
class Network:
    """name: "mlp", "wrn1", "wrn2", "wrn3", "resnet18", or "package.module:function" of your own; the other keys are
    its options. Inputs, channels and classes come from the data."""

    name: str = "mlp"
    options: Mapping[str, Any] = field(default_factory=dict)

    def faults(self, at: Faults) -> None:
        if ":" in self.name:
            return
        if not at.one_of("name", self.name, NETWORKS):
            return
        make, said = NETWORKS[self.name]
        allowed = [f.name for f in fields(make) if f.name not in {*said, *OWN}]  # type: ignore[arg-type]
        strangers = [key for key in self.options if key not in allowed]
        for key in strangers:
            at.add(f"unknown option {key!r} of {self.name}{nearest(key, allowed, 'It takes')}")
        if not strangers:
            try:
                make(**said, **self.options, **({"inputs": 1} if self.name == "mlp" else {}))
            except (ValueError, TypeError) as error:
                at.add(str(error))


@dataclass(frozen=True)
class Train:
    """SGD with a one-cycle schedule, as ``foretaste.network.fit`` has it. start: "cold" trains every cycle from new
    weights, "warm" goes on from the last ones, as the paper does."""

    loss: str = "l2"
    steps: int | None = None
    epochs: int | None = None
    batch: int = 32
    max_lr: float | None = None
    weight_decay: float = 0.0
    augment: str | None = None
    start: str = "cold"
    statistics: str = "labelled"

    def faults(self, at: Faults) -> None:
        at.one_of("loss", self.loss, ("l2", "ce"))
        at.one_of("start", self.start, ("cold", "warm"))
        at.one_of("statistics", self.statistics, ("labelled", "running"))
        if self.augment is not None:
            at.one_of("augment", self.augment, ("flip", "crop", "crop+flip"))
        for name in ("steps", "epochs"):
            at.whole(name, getattr(self, name), 1, optional=True)
        if self.steps is not None and self.epochs is not None:
            at.add(f"steps={self.steps} and epochs={self.epochs} contradict each other; give one")
        at.whole("batch", self.batch, 1)
        at.within("max_lr", self.max_lr, 0, math.inf, low_open=True, optional=True)
        at.within("weight_decay", self.weight_decay, 0, math.inf)


@dataclass(frozen=True)
class Ask:
    """What ``ft.query`` is told besides the strategy."""

    output: str | int = "sum"
    ridge: float | None = None
    watch: int | None = None
    method: str = "auto"
    budget: int | str | None = None
    precision: str = "auto"

    def faults(self, at: Faults) -> None:
        if isinstance(self.output, str):
            at.one_of("output", self.output, ("sum", "first", "trace", "full"))
        at.within("ridge", self.ridge, 0, math.inf, optional=True)
        at.whole("watch", self.watch, 1, optional=True)
        at.one_of("precision", self.precision, ("auto", "float32", "tf32", "half"))
        at.one_of("method", self.method, ("auto", "dense", "direct", "watched", "features", "columns"))


@dataclass(frozen=True)
class Arm:
    """One line of the figure: a strategy, and what it has for itself alone.

    against: the arm that differences are taken to; None is the study's own "random". model: "network", or "gp", a
    Gaussian process with the network's infinite-width kernel that predicts in its place. network, train, query: keys of
    those tables that differ for this arm.
    """

    name: str
    strategy: str
    select: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    against: str | None = None
    model: str = "network"
    network: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)

    def faults(self, at: Faults) -> None:
        at.one_of("select", self.select, ("auto", *SELECTS))
        at.one_of("model", self.model, MODELS)
        try:
            how = find(self.strategy)
        except ValueError as error:
            at.add(str(error))
            return
        if how.picks and self.select not in ("auto", "top"):
            at.add(f"strategy {self.strategy!r} picks a batch by itself; select={self.select!r} is not for it")
        if self.strategy == "ll4al":
            for key in self.options:
                at.one_of("option of ll4al", key, LL4AL)
        else:
            try:
                how.settings(self.options)
            except (ValueError, TypeError) as error:
                at.add(str(error))


def arm_of(spec: str) -> Arm:
    """ "gain sequential" → an arm of that name: a strategy, and after a space how points are selected."""
    name, *select = spec.split() or [spec]
    return Arm(name=spec, strategy=name, select=" ".join(select) or "auto")


@dataclass(frozen=True)
class Trial:
    """One arm as it is run: the study's settings with the arm's own in their place. A record carries it whole."""

    arm: str
    strategy: str
    select: str
    options: Mapping[str, Any]
    model: str
    data: Data
    labels: Labels
    network: Network
    train: Train
    query: Ask

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return _plain(asdict(self))


@dataclass(frozen=True)
class Study:
    """Every arm with every seed. ``experiment`` is "loop", Algorithm 1; "theorem" and "block" check Theorem 3.1 and
    Eq. 12 on the same settings."""

    arms: tuple[Arm, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    title: str = ""
    notes: str = ""  # what is the paper's and what had to be chosen; the page shows it
    experiment: str = "loop"
    widths: tuple[int, ...] = (64, 256, 1024)  # of experiment "theorem"
    plugins: tuple[str, ...] = ()  # Python files or modules that register strategies
    data: Data = field(default_factory=Data)
    labels: Labels = field(default_factory=Labels)
    network: Network = field(default_factory=Network)
    train: Train = field(default_factory=Train)
    query: Ask = field(default_factory=Ask)

    def __post_init__(self) -> None:
        at = Faults()
        at.one_of("experiment", self.experiment, EXPERIMENTS)
        for part in ("data", "labels", "network", "train", "query"):
            getattr(self, part).faults(at.inside(part))
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or not all(type(s) is int for s in self.seeds):
            at.add(f"seeds={list(self.seeds)} must be whole numbers, at least one and none twice")
        names = [arm.name for arm in self.arms]
        if self.experiment == "loop" and not names:
            at.add('there are no arms; give strategies = ["gain", "random"], or [[arms]] tables')
        if self.experiment != "loop" and names:
            at.add(f"experiment={self.experiment!r} compares no strategies; leave the arms out")
        for name in sorted({name for name in names if names.count(name) > 1}):
            at.add(f"two arms are called {name!r}; give each its own name")
        for arm in self.arms:
            inside = at.inside(f"arm {arm.name!r}")
            arm.faults(inside)
            if arm.against is not None:
                inside.one_of("against", arm.against, names)
            if not inside.found:
                for part in ("network", "train", "query"):
                    if getattr(arm, part):
                        try:
                            getattr(self.trial(arm.name), part).faults(inside.inside(part))
                        except TypeError as error:
                            inside.add(str(error))
        at.report()

    def arm(self, name: str) -> Arm:
        if self.experiment != "loop":
            return Arm(name=self.experiment, strategy="random")
        return next(arm for arm in self.arms if arm.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """Of its arms; a check of the mathematics has none and goes by its own name."""
        return tuple(arm.name for arm in self.arms) if self.experiment == "loop" else (self.experiment,)

    @property
    def each(self) -> int:
        """How many records an arm has with one seed."""
        return {"loop": self.labels.cycles + 1, "theorem": 1 + len(self.widths), "block": 1}[self.experiment]

    def trial(self, name: str) -> Trial:
        """The settings under which the arm of that name is run."""
        arm = self.arm(name)
        own = {key: value for key, value in arm.network.items() if key != "name"}
        kind = arm.network.get("name", self.network.name)
        network = Network(kind, {**(self.network.options if kind == self.network.name else {}), **own})
        train = {"steps": None, "epochs": None} if {"steps", "epochs"} & {*arm.train} else {}
        return Trial(
            arm.name, arm.strategy, arm.select, arm.options, arm.model, self.data, self.labels, network,
            _over(self.train, train | dict(arm.train)), _over(self.query, arm.query),
        )  # fmt: skip

    @property
    def size(self) -> int:
        """How many records it will have."""
        return len(self.names) * len(self.seeds) * self.each

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return _plain(asdict(self))


def study(strategies: Iterable[str], **settings: Any) -> Study:
    """A study of strategies by name, such as "gain sequential", each an arm of its own."""
    return Study(arms=tuple(map(arm_of, strategies)), **settings)


def _over(part: Any, keys: Mapping[str, Any]) -> Any:
    allowed = [f.name for f in fields(part)]
    if strangers := [key for key in keys if key not in allowed]:
        raise TypeError("; ".join(f"unknown key {key!r}{nearest(key, allowed, 'It takes')}" for key in strangers))
    return replace(part, **keys)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
