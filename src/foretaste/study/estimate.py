"""What a study will cost on this machine; and the same study made small, to see whether it works here."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from foretaste.acquire import find_strategy
from foretaste.data import Images
from foretaste.errors import counted, errors_only, format_seconds
from foretaste.executors import torch_threads
from foretaste.lookahead import Graph, linearize
from foretaste.network import POOL_EPOCHS, fit, training_length
from foretaste.pick import query
from foretaste.study.config import POOL_MODELS, Arm, Network, Study, Trial
from foretaste.study.loop import check_trials
from foretaste.study.trial_network import Model, model_of

FEWEST_STEPS, MOST_STEPS = 4, 256  # of the trainings that are timed
CLEAR_DIFFERENCE = 0.05  # seconds; a smaller difference may be the clock's
TIMED_POOLS = (24, 48)  # candidates of the queries that are timed
TIMED_GRAPHS = (300, 600)  # points of the graphs of a pool that are timed
S_TOO = 2.0  # a query with the pool in its kernel, in posteriors' means: S takes as long again
SMOKE_RATE = 0.01  # the highest learning rate of an arm's own in a smoke run


@dataclass(frozen=True)
class Estimate:
    """Seconds that one process needs for the whole study. Right within a factor of two or so."""

    train: float
    query: float
    trainings: int
    step: float  # one SGD step of the slowest network

    @property
    def seconds(self) -> float:
        return self.train + self.query

    def words(self, processes: int) -> str:
        """The estimate as a sentence, for so many processes."""
        whole = self.seconds / max(1, processes)
        return (
            f"about {format_seconds(whole)} on {counted(processes, 'process', 'processes')}: "
            f"{counted(self.trainings, 'training')} ({format_seconds(self.train / self.trainings)} each, "
            f"{1e3 * self.step:.1f} ms a step), queries {format_seconds(self.query / self.trainings)} each"
        )


def estimate(study: Study, data: Images) -> Estimate:
    """Estimate what a study costs, from a few training steps and two small queries of each arm.

    >>> from foretaste.study import Labels, Train, estimate, prepared, study
    >>> of = study(["random"], seeds=(0,), labels=Labels(init=20, per_cycle=5, cycles=1), train=Train(steps=5))
    >>> estimate(of, prepared(of.data, "cpu")).trainings
    2
    """
    check_trials(study, data)  # before a list of all cycles is made: there may be very many
    train = ask = slowest = 0.0
    steps: dict[str, float] = {}
    growth = (0.0, 0.0)
    labels = study.labels
    sizes = [labels.init + labels.per_cycle * cycle for cycle in range(labels.cycles + 1)]
    with torch_threads(1), errors_only():
        for arm in study.arms:
            trial = study.trial(arm.name)
            model = model_of(trial, data)
            pool = min(model.graph.most, len(data.pool))
            if trial.model != "gp":
                how = trial.train
                key = repr((trial.network, trial.train.loss, trial.train.batch, trial.train.augment))
                if key not in steps:
                    steps[key] = _seconds_of_step(trial, data)
                slowest = max(slowest, steps[key])
                lengths = [training_length(model.net, L, how.batch, how.steps, how.epochs)[1] for L in sizes]
                if trial.model == "soft" and how.steps is None:
                    soft = training_length(model.net, pool, how.batch, None, how.epochs or POOL_EPOCHS)[1]
                    lengths = [max(soft, length) for length in lengths]
                train += steps[key] * sum(lengths)
            if trial.model in POOL_MODELS or trial.asks_with_pool:
                growth = growth if any(growth) else _growth_of_pool(model)
            if trial.model in POOL_MODELS:
                train += len(sizes) * (growth[0] * pool**2 + growth[1] * pool**3)
            U = min(labels.subset or len(data.pool), len(data.pool) - labels.init)
            hints = find_strategy(trial.strategy).study
            if not hints.instant and hints.trains is None:  # the query of the latter needs a trained network
                linear, square = _growth_of_query(trial, data)
                ask += sum(linear * (L + U) + square * (L + U) ** 2 for L in sizes[:-1])
            if trial.asks_with_pool:
                n = min(model.graph.most, labels.init + U)
                ask += labels.cycles * S_TOO * (growth[0] * n**2 + growth[1] * n**3)
    n = len(study.seeds)
    return Estimate(n * train, n * ask, n * len(study.arms) * len(sizes), slowest)


def _seconds_of_step(trial: Trial, data: Images) -> float:
    """Seconds of one step, from the difference of two short trainings: what is done once cancels out."""
    ids = data.pool[: max(trial.train.batch, 2)]

    def seconds(steps: int) -> float:
        model = Model(trial, data)
        began = time.perf_counter()
        fit(
            model.net, data.x[ids], data.y[ids], loss=trial.train.loss, steps=steps, batch_size=trial.train.batch,
            max_lr=1e-6, augment=trial.train.augment, start="warm", normalise=data.normalise,
            params=model.tuned, optimiser=trial.train.optimiser or "sgd",
        )  # fmt: skip
        _wait_for(data)
        return time.perf_counter() - began

    seconds(1)  # pays for what is done once in a process
    steps, once = FEWEST_STEPS, seconds(1)
    while (more := seconds(1 + steps) - once) < CLEAR_DIFFERENCE and steps < MOST_STEPS:
        steps *= 4
    return max(more, 0.0) / steps


def _growth_of_query(trial: Trial, data: Images) -> tuple[float, float]:
    """a and b of t = a n + b n², through the times of two queries. n = L + U, in the proportions of the study."""
    share = trial.labels.init / (trial.labels.init + (trial.labels.subset or len(data.pool)))
    model = model_of(replace(trial, select="auto"), data)
    found = []
    for u in TIMED_POOLS:
        L = max(2, round(u * share / (1 - share))) if share < 0.9 else u
        L = min(L, len(data.pool) - 1)  # a small pool leaves at least one candidate
        ids = data.pool[: L + u]
        if trial.model == "gp":
            model.train(ids[:L], 0, 0)
        began = time.perf_counter()
        query(
            model.net, model.inputs(ids[:L]), data.y[ids[:L]], model.inputs(ids[L:]), strategy=trial.strategy,
            batch_size=1, options=model.options, **model.settings | {"watch": None},
        )  # fmt: skip
        _wait_for(data)
        found.append((len(ids), time.perf_counter() - began))
    return _growth(found, power=1)


def _growth_of_pool(model: Model) -> tuple[float, float]:
    """a and b of t = a n² + b n³ for a mean with the pool in its kernel, through the times of two small graphs."""
    ids, found = model.data.pool, []
    for n in TIMED_GRAPHS:
        x = model.inputs(ids[:n])
        y = model.data.y[ids[: n // 10]]
        began = time.perf_counter()
        _ = linearize(model.net, x[: len(y)], y, x[len(y) :], pool=Graph()).mean
        _wait_for(model.data)
        found.append((len(x), time.perf_counter() - began))
    return _growth(found, power=2)


def _growth(found: list[tuple[int, float]], power: int) -> tuple[float, float]:
    """a and b of t = a nᵖ + b nᵖ⁺¹ through two points (n, t); of a small pool both may be the whole of it."""
    (n, s), (m, t) = found
    b = max((t / m**power - s / n**power) / (m - n), 0.0) if n < m else 0.0
    return max(t / m**power - b * m, 0.0), b


def _wait_for(data: Images) -> None:
    if data.x.device.type == "cuda":
        torch.cuda.synchronize(data.x.device)


# Small


def smoke(study: Study) -> Study:
    """The study made small enough for a minute, with the same arms. Never for a result.

    Two seeds, two cycles, few and small images, narrow networks, short trainings.

    >>> from foretaste.study import read, smoke
    >>> smoke(read("fig2a")).train.steps
    12
    """
    labels = study.labels
    per_cycle = min(labels.per_cycle, 4)
    subset = min(labels.subset or 16, 16)
    data = replace(
        study.data, test_points=_at_most(study.data.test_points, 40), pixels=_at_most(study.data.pixels, 8),
        # A backbone takes far longer for a point than anything else here.
        pool_points=_at_most(study.data.pool_points, 400 if study.features is None else 60),
    )  # fmt: skip
    labels = replace(
        labels, init=min(labels.init, 16), per_cycle=per_cycle, subset=max(subset, per_cycle),
        cycles=min(labels.cycles, 2),
    )  # fmt: skip
    train = replace(
        study.train, steps=min(study.train.steps or 12, 12), epochs=None, batch=min(study.train.batch, 8),
        max_lr=min(study.train.max_lr or 0.1, 0.1),
    )  # fmt: skip
    return replace(
        study, seeds=study.seeds[:2], data=data, labels=labels, train=train,
        widths=tuple(sorted({min(width, 64 * 4**k) for k, width in enumerate(study.widths)})),
        network=Network(study.network.name, narrow(study.network.name, study.network.options)),
        arms=tuple(_small_arm(arm, study.network.name) for arm in study.arms),
    )  # fmt: skip


def narrow(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a narrow network of that kind. A network of the user's own keeps its options."""
    if ":" in name:
        return dict(options)
    small = {
        "widen": lambda n: 1,
        "width": lambda n: min(n, 8),
        "hidden": lambda h: [min(n, 64) for n in h],
    }
    defaults: dict[str, dict[str, Any]] = {"wrn": {"widen": 10}, "resnet": {"width": 64}, "mlp": {"hidden": (256, 256)}}
    known = next((own for kind, own in defaults.items() if name.startswith(kind)), {})
    return {key: small[key](value) if key in small else value for key, value in ({**known, **options}).items()}


def _small_arm(arm: Arm, network: str) -> Arm:
    own = {key: value for key, value in arm.network.items() if key != "name"}
    narrowed = {key: value for key, value in narrow(arm.network.get("name", network), own).items() if key in own}
    train = {key: value for key, value in arm.train.items() if key not in ("steps", "epochs", "batch")}
    if train.get("max_lr") is not None:  # in so few steps there is no time to warm up
        train["max_lr"] = min(train["max_lr"], SMOKE_RATE)
    options = {**arm.options, **find_strategy(arm.strategy).study.small}
    return replace(arm, network=dict(arm.network) | narrowed, train=train, options=options)


def _at_most(value: int | None, most: int) -> int:
    return most if value is None else min(value, most)
