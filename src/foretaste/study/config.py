"""The configuration of a study: what it compares, and on which data (docs/studies.md lists all keys).

Each class is a table of the TOML file.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator

import foretaste.pick  # noqa: F401  registers the strategies that choose a batch by themselves
from foretaste.acquire import SELECTS, find_strategy
from foretaste.errors import check_known, did_you_mean
from foretaste.lookahead import FEWEST_POINTS, METHODS
from foretaste.losses import LOSSES
from foretaste.network import NETWORKS, OPTIMISERS, SCHEDULES, check_tune
from foretaste.study.settings import (
    Count,
    LocatedError,
    Number,
    Options,
    SettingsError,
    Share,
    Text,
    Whole,
    YesNo,
    one_of,
    settings_table,
)
from foretaste.tangent import OUTPUTS, PRECISIONS

EXPERIMENTS = ("loop", "theorem", "block")
MODELS = ("network", "gp", "pool", "soft")
POOL_MODELS = ("pool", "soft")  # those that learn from the unlabelled points
BASELINE = "random"  # the arm that differences are taken to, unless an arm names another
NO_ARMS = 'there are no arms; give strategies = ["gain", "random"], or [[arms]] tables, or both'
TUNING_KEYS = ("tune", "optimiser", "schedule", "warm_up", "clip")
GIVEN_BY_DATA = ("inputs", "channels", "classes")  # options of a network that a study sets itself


@settings_table
class Data:
    """Which data, how they are read, and how the pool is changed.

    name: a data set's name, or the path of a .npz file, a folder of images or a saved Hugging Face dataset.
    """

    name: Text = "digits"
    folder: Text | None = None  # where data sets lie; None is $FORETASTE_DATA, or ~/.cache/foretaste
    normalise: Annotated[Text, one_of("normalise", ("auto", "none", "measured"))] = "auto"  # auto: the data set's own
    size: Count | None = None  # pixels a side, for a folder of images of several sizes
    channels: Count | None = None
    pixels: Count | None = None  # average images down to this many pixels a side, for a quick trial
    test: Share = 0.2  # share of the points kept for the test set, where the source has none
    skip_broken: YesNo = False  # leave out images that cannot be read, with a note
    pool_points: Count | None = None  # keep this many points of the pool
    test_points: Count | None = None  # and of the test set
    imbalance: Annotated[Number, Field(gt=0, le=1)] = 1.0  # size of the rarest class over that of the most common
    noise: Share = 0.0  # share of the pool's labels that are wrong


@settings_table
class Features:
    """Points as features of a frozen network, computed once (``ft.features``). The study's network is then a head.

    backbone: "efficientnet-lite0", or another name that ``foretaste.network.find_backbone`` takes.
    """

    backbone: Text
    layer: Text | None = None  # a submodule whose output is taken
    cache: Text | None = None  # where features are kept; None is $FORETASTE_CACHE, or ~/.cache/foretaste/features


@settings_table
class Labels:
    """``init`` random labels, then ``per_cycle`` more in each of ``cycles`` cycles.

    subset: how many unlabelled points a cycle offers, drawn anew each time; None offers the whole pool.
    """

    init: Count = 20
    per_cycle: Count = 10
    cycles: Annotated[Whole, Field(ge=0)] = 7
    subset: Count | None = None

    @field_validator("subset")
    @classmethod
    def _offers_a_batch(cls, subset: int | None, info: ValidationInfo) -> int | None:
        per_cycle = info.data.get("per_cycle", 0)
        if subset is not None and subset < per_cycle:
            raise ValueError(f"subset={subset} is less than per_cycle={per_cycle}; offer at least as many as are asked")
        return subset

    @property
    def total(self) -> int:
        return self.init + self.per_cycle * self.cycles


@settings_table
class Network:
    """A network by name, with its options.

    name: "mlp", "wrn1", "wrn2", "wrn3", "resnet18", or "package.module:function", a function of yours that builds one.
    options: the other keys of the table. Inputs, channels and classes come from the data.
    """

    name: Text = "mlp"
    options: Options = field(default_factory=dict)

    @property
    def built_in(self) -> bool:
        """Whether it is one of foretaste's own networks, not one that a function of the user's builds."""
        return ":" not in self.name

    def override(self, keys: Options) -> "Network":
        """This network with the keys of an arm. Under another name it keeps none of its options."""
        own = {key: value for key, value in keys.items() if key != "name"}
        name = keys.get("name", self.name)
        return Network(name, {**(self.options if name == self.name else {}), **own})

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if ":" not in name:
            check_known("name", name, NETWORKS)
        return name

    @field_validator("options")
    @classmethod
    def _accepted(cls, options: Options, info: ValidationInfo) -> Options:
        name = info.data.get("name")
        if name not in NETWORKS:
            return options
        spec, fixed = NETWORKS[name]
        allowed = [f.name for f in fields(spec) if f.name not in {*fixed, *GIVEN_BY_DATA}]  # type: ignore[arg-type]
        if unknown := [key for key in options if key not in allowed]:
            raise SettingsError(
                [f"unknown option {key!r} of {name}{did_you_mean(key, allowed, 'It takes')}" for key in unknown]
            )
        try:
            spec(**fixed, **options, **({"inputs": 1} if name == "mlp" else {}))
        except TypeError as error:
            raise ValueError(str(error)) from None
        return options


@settings_table
class Train:
    """SGD with a one-cycle schedule, or AdamW with a linear one, by ``foretaste.network.fit``.

    start: "cold" trains every cycle from initial weights, "warm" from the weights of the cycle before, as the paper
    does. The initial weights of a network of yours are those its function builds, pretrained ones included.
    tune: which parameters are trained, and counted in Θ: "head", "last-block" (with the head), "lora" (adapters, which
    are added where the network has none, and the head) or "re:PATTERN". None: all. optimiser, schedule, warm_up, clip:
    of ``fit``; None is its default.
    """

    loss: Annotated[Text, one_of("loss", LOSSES)] = "l2"
    steps: Count | None = None
    epochs: Count | None = None
    batch: Count = 32
    max_lr: Annotated[Number, Field(gt=0)] | None = None
    weight_decay: Annotated[Number, Field(ge=0)] = 0.0
    augment: Annotated[Text, one_of("augment", ("flip", "crop", "crop+flip"))] | None = None
    start: Annotated[Text, one_of("start", ("cold", "warm"))] = "cold"
    statistics: Annotated[Text, one_of("statistics", ("labelled", "running"))] = "labelled"
    tune: Text | None = None
    optimiser: Annotated[Text, one_of("optimiser", OPTIMISERS)] | None = None
    schedule: Annotated[Text, one_of("schedule", SCHEDULES)] | None = None
    warm_up: Annotated[Share, Field(lt=1)] | None = None
    clip: Annotated[Number, Field(gt=0)] | None = None

    @property
    def plain(self) -> dict[str, Any]:
        """Its settings, without those of fine-tuning that are not given: earlier versions did not have them."""
        return {key: value for key, value in asdict(self).items() if key not in TUNING_KEYS or value is not None}

    @field_validator("tune")
    @classmethod
    def _known_tune(cls, tune: str | None) -> str | None:
        if tune is not None:
            check_tune(tune)
        return tune

    def override(self, keys: Options) -> "Train":
        """This training with the keys of an arm. Steps replace epochs, and the other way round."""
        length = {"steps": None, "epochs": None} if {"steps", "epochs"} & {*keys} else {}
        return replace(self, **length | dict(keys))

    @field_validator("epochs")
    @classmethod
    def _one_length(cls, epochs: int | None, info: ValidationInfo) -> int | None:
        steps = info.data.get("steps")
        if steps is not None and epochs is not None:
            raise ValueError(f"steps={steps} and epochs={epochs} contradict each other; give one")
        return epochs


@settings_table
class Ask:
    """The arguments of ``ft.query`` besides the strategy. output: "auto" is each strategy's own.

    pool: "auto" puts the unlabelled points into the kernel where that helps, "off" leaves them out. None: "auto" for
    arms of the models "pool" and "soft", and off for others. graph_points: in a graph of the pool; None is 5000.
    """

    output: Annotated[Text | Whole, one_of("output", ("auto", *OUTPUTS))] = "auto"
    ridge: Annotated[Number, Field(ge=0)] | None = None
    watch: Count | None = None
    method: Annotated[Text, one_of("method", METHODS)] = "auto"
    budget: Whole | Text | None = None
    precision: Annotated[Text, one_of("precision", ("auto", *PRECISIONS))] = "auto"
    pool: Annotated[Text, one_of("pool", ("auto", "off"))] | None = None
    graph_points: Annotated[Whole, Field(ge=FEWEST_POINTS)] | None = None

    def override(self, keys: Options) -> "Ask":
        """These arguments with the keys of an arm."""
        return replace(self, **keys)

    def of(self, strategy: str) -> "Ask":
        """These arguments for a strategy: its own output in the place of "auto"."""
        return replace(self, output=find_strategy(strategy).kernel_output(self.output))


@settings_table
class Arm:
    """One line of the figure: a strategy, and the settings that differ for it.

    against: the arm that differences are taken to; None is the arm named "random". model: what predicts. "network"; or
    "gp", a Gaussian process with the network's infinite-width kernel in its place; "pool", kernel regression with the
    pool in its kernel, and the network where that does not help; "soft", a network that is trained on the pool's soft
    labels too. network, train, query: the keys of those tables that differ for this arm.
    """

    name: Text
    strategy: Text
    select: Annotated[Text, one_of("select", ("auto", *SELECTS))] = "auto"
    options: Options = field(default_factory=dict)
    against: Text | None = None
    model: Annotated[Text, one_of("model", MODELS)] = "network"
    network: Options = field(default_factory=dict)
    train: Options = field(default_factory=dict)
    query: Options = field(default_factory=dict)

    @field_validator("strategy")
    @classmethod
    def _registered(cls, strategy: str) -> str:
        find_strategy(strategy)
        return strategy

    @field_validator("select")
    @classmethod
    def _applies(cls, select: str, info: ValidationInfo) -> str:
        name = info.data.get("strategy")
        if name is not None and select not in ("auto", "top") and find_strategy(name).picks:
            raise ValueError(f"strategy {name!r} picks a batch by itself; select={select!r} is not for it")
        return select

    @field_validator("options")
    @classmethod
    def _accepted(cls, options: Options, info: ValidationInfo) -> Options:
        name = info.data.get("strategy")
        if name is None:
            return options
        strategy = find_strategy(name)
        if strategy.study.trains is not None:  # the query's options come from the training
            for key in options:
                check_known(f"option of {name}", key, strategy.study.trains.options)
            return options
        try:
            strategy.settings(options)
        except TypeError as error:
            raise ValueError(str(error)) from None
        return options


@dataclass(frozen=True)
class Trial:
    """One arm as it runs: the study's settings, replaced by the arm's own. Every record carries it whole."""

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
    features: Features | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON stores it."""
        return _plain_settings(self)

    @property
    def asks_with_pool(self) -> bool:
        """Whether the query has the pool in its kernel, if that helps."""
        if self.query.pool is None:
            return self.model in POOL_MODELS and not find_strategy(self.strategy).picks
        return self.query.pool == "auto"


@settings_table
class Study:
    """Every arm with every seed.

    experiment: "loop" is Algorithm 1; "theorem" and "block" check Theorem 3.1 and Eq. 12 with the same settings.
    """

    also_known: ClassVar[tuple[str, ...]] = (
        "strategies",
    )  # a key of TOML files: arms by name, before those of [[arms]]

    arms: tuple[Arm, ...] = ()
    seeds: tuple[Whole, ...] = (0, 1, 2)
    title: Text = ""
    notes: Text = ""  # which settings are the paper's and which had to be chosen; the page shows it
    experiment: Annotated[Text, one_of("experiment", EXPERIMENTS)] = "loop"
    widths: tuple[Count, ...] = (64, 256, 1024)  # of experiment "theorem"
    plugins: tuple[Text, ...] = ()  # Python files or modules that register strategies
    data: Data = field(default_factory=Data)
    features: Features | None = None
    labels: Labels = field(default_factory=Labels)
    network: Network = field(default_factory=Network)
    train: Train = field(default_factory=Train)
    query: Ask = field(default_factory=Ask)

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds or len(set(seeds)) != len(seeds):
            raise ValueError(f"seeds={list(seeds)}; expected whole numbers, at least one and none twice")
        return seeds

    @field_validator("arms")
    @classmethod
    def _named_apart(cls, arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
        names = [arm.name for arm in arms]
        twice = sorted({name for name in names if names.count(name) > 1})
        faults = [f"two arms are called {name!r}; give each its own name" for name in twice]
        for arm in arms:
            if arm.against is not None and arm.against not in names:
                faults.append(f"arm {arm.name!r}: unknown against {arm.against!r}{did_you_mean(arm.against, names)}")
        if faults:
            raise LocatedError(faults)
        return arms

    @field_validator("experiment")
    @classmethod
    def _suits_the_arms(cls, experiment: str, info: ValidationInfo) -> str:
        arms = info.data.get("arms")  # missing if they are faulty
        if experiment == "loop" and arms == ():
            raise LocatedError([NO_ARMS])
        if experiment != "loop" and arms:
            raise LocatedError([f"experiment={experiment!r} compares no strategies; leave the arms out"])
        return experiment

    @field_validator("query")
    @classmethod
    def _pool_suits_the_arms(cls, table: Ask, info: ValidationInfo) -> Ask:
        faults = []
        for arm in info.data.get("arms", ()):
            strategy = find_strategy(arm.strategy)
            if strategy.picks and arm.query.get("pool", table.pool) == "auto":
                faults.append(f'arm {arm.name!r}: {arm.strategy} picks by itself, and takes no pool = "auto"')
            if strategy.study.trains is not None and arm.model == "soft":
                faults.append(
                    f'arm {arm.name!r}: {arm.strategy} trains the network itself; model = "soft" is not for it'
                )
        if faults:
            raise LocatedError(faults)
        return table

    @field_validator("train")
    @classmethod
    def _tuning_suits_the_arms(cls, table: Train, info: ValidationInfo) -> Train:
        faults = []
        for arm in info.data.get("arms", ()):
            given = [key for key in TUNING_KEYS if {**asdict(table), **arm.train}.get(key) is not None]
            if given and (arm.model == "gp" or find_strategy(arm.strategy).study.trains is not None):
                what = "the model gp trains nothing" if arm.model == "gp" else f"{arm.strategy} trains by itself"
                faults.append(f"arm {arm.name!r}: {what}, and takes no {', '.join(given)} of [train]")
        if faults:
            raise LocatedError(faults)
        return table

    @field_validator("network", "train", "query")
    @classmethod
    def _accepts_the_arms_keys(cls, table: Any, info: ValidationInfo) -> Any:
        name, faults = str(info.field_name), list[str]()
        for arm in info.data.get("arms", ()):
            try:
                table.override(getattr(arm, name))
            except SettingsError as error:
                faults += [f"arm {arm.name!r}: {name}: {fault}" for fault in error.faults]
        if faults:
            raise LocatedError(faults)
        return table

    def arm(self, name: str) -> Arm:
        """The arm of that name; an experiment without a loop has one, which is never queried."""
        if self.experiment != "loop":
            return Arm(name=self.experiment, strategy=BASELINE)
        return next(arm for arm in self.arms if arm.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its arms; an experiment without a loop has one, its own name."""
        return tuple(arm.name for arm in self.arms) if self.experiment == "loop" else (self.experiment,)

    @property
    def each(self) -> int:
        """How many records one arm has with one seed."""
        return {"loop": self.labels.cycles + 1, "theorem": 1 + len(self.widths), "block": 1}[self.experiment]

    @property
    def size(self) -> int:
        """How many records the whole study has."""
        return len(self.names) * len(self.seeds) * self.each

    def trial(self, name: str) -> Trial:
        """The settings with which the arm of that name runs."""
        arm = self.arm(name)
        return Trial(
            arm.name, arm.strategy, arm.select, arm.options, arm.model, self.data, self.labels,
            self.network.override(arm.network), self.train.override(arm.train),
            self.query.override(arm.query).of(arm.strategy), self.features,
        )  # fmt: skip

    def plain(self) -> dict[str, Any]:
        """As JSON stores it."""
        return _plain_settings(self)


def _plain_settings(of: "Study | Trial") -> dict[str, Any]:
    """As JSON stores it. Settings that earlier versions did not have are left out where they are None."""
    plain = {key: value for key, value in _jsonable(asdict(of)).items() if key != "features" or value is not None}
    later = ("pool", "graph_points")
    query = {key: value for key, value in plain["query"].items() if key not in later or value is not None}
    return plain | {"query": query, "train": of.train.plain}


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _jsonable(v) for key, v in value.items()}
    return [_jsonable(v) for v in value] if isinstance(value, list | tuple) else value
