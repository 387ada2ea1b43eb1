"""What a study will cost, from a few steps and two small queries of each arm on this machine."""

import time
from dataclasses import dataclass, replace

import torch

from foretaste.data import Images
from foretaste.network import fit
from foretaste.network._checks import lengths
from foretaste.query import query
from foretaste.study._config import Study, Trial
from foretaste.study._model import Model, model_of
from foretaste.study._tasks import quiet
from foretaste.study.loop import check

STEPS, MOST_STEPS = 4, 256
CLEAR = 0.05  # seconds: a difference of less may be the clock's
SMALL = (24, 48)  # candidates of the queries that are timed


@dataclass(frozen=True)
class Estimate:
    """Seconds of one process for the whole study, and where they go. Right within a factor of two or so."""

    train: float
    query: float
    trainings: int
    step: float  # of one SGD step of the slowest network

    @property
    def seconds(self) -> float:
        return self.train + self.query

    def words(self, processes: int) -> str:
        whole = self.seconds / max(1, processes)
        return (
            f"about {span(whole)} on {processes} {'process' if processes == 1 else 'processes'}: {self.trainings} "
            f"trainings ({span(self.train / self.trainings)} each, {1e3 * self.step:.1f} ms a step), queries "
            f"{span(self.query / self.trainings)} each"
        )


def estimate(study: Study, data: Images) -> Estimate:
    """Times each network's training step and each arm's query at two small sizes, and takes them to full size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with quiet():
            return _estimate(study, data)
    finally:
        torch.set_num_threads(threads)


def _estimate(study: Study, data: Images) -> Estimate:
    train = ask = worst = 0.0
    steps: dict[str, float] = {}
    labels = study.labels
    sizes = [labels.init + labels.per_cycle * cycle for cycle in range(labels.cycles + 1)]
    for arm in study.arms:
        trial = study.trial(arm.name)
        check(trial, data)
        model = model_of(trial, data)
        if trial.model == "network":
            how = trial.train
            key = repr((trial.network, trial.train.loss, trial.train.batch, trial.train.augment))
            if key not in steps:
                steps[key] = _step(trial, data)
            worst = max(worst, steps[key])
            train += steps[key] * sum(lengths(model.net, L, how.batch, how.steps, how.epochs)[1] for L in sizes)
        U = min(labels.subset or len(data.pool), len(data.pool) - labels.init)
        if trial.strategy not in ("random", "ll4al"):
            linear, square = _growth(trial, data, model)
            ask += sum(linear * (L + U) + square * (L + U) ** 2 for L in sizes[:-1])
    n = len(study.seeds)
    return Estimate(n * train, n * ask, n * len(study.arms) * len(sizes), worst)


def _step(trial: Trial, data: Images) -> float:
    """Seconds of one step, from the difference of two short trainings: what is done once drops out."""
    ids = data.pool[: max(trial.train.batch, 2)]

    def seconds(steps: int) -> float:
        net = Model(trial, data).net
        began = time.perf_counter()
        fit(
            net, data.x[ids], data.y[ids], loss=trial.train.loss, steps=steps, batch_size=trial.train.batch,
            max_lr=1e-6, augment=trial.train.augment, start="cold", normalise=data.normalise,
        )  # fmt: skip
        _wait(data)
        return time.perf_counter() - began

    seconds(1)  # pays for what is done once in a process
    steps, once = STEPS, seconds(1)
    while (more := seconds(1 + steps) - once) < CLEAR and steps < MOST_STEPS:
        steps *= 4
    return max(more, 0.0) / steps


def _growth(trial: Trial, data: Images, model: Model) -> tuple[float, float]:
    """t = a n + b n² through the times of two queries, n = L + U in the proportions of the study."""
    share = trial.labels.init / (trial.labels.init + (trial.labels.subset or len(data.pool)))
    model = model_of(replace(trial, select="auto"), data)
    found = []
    for u in SMALL:
        L = max(2, round(u * share / (1 - share))) if share < 0.9 else u
        L = min(L, len(data.pool) - 1)  # a small pool leaves at least one to ask for
        ids = data.pool[: L + u]
        if trial.model == "gp":
            model.train(ids[:L], 0, 0)
        began = time.perf_counter()
        query(
            model.net, model.inputs(ids[:L]), data.y[ids[:L]], model.inputs(ids[L:]), strategy=trial.strategy,
            batch_size=1, options=model.options, **model.settings | {"watch": None},
        )  # fmt: skip
        _wait(data)
        found.append((len(ids), time.perf_counter() - began))
    (n, s), (m, t) = found
    if n == m:  # all of a small pool, twice
        return t / m, 0.0
    square = max((t / m - s / n) / (m - n), 0.0)
    return max(t / m - square * m, 0.0), square


def _wait(data: Images) -> None:
    if data.x.device.type == "cuda":
        torch.cuda.synchronize(data.x.device)


def span(seconds: float) -> str:
    """In the unit one would say it in."""
    for unit, size in (("days", 172_800), ("h", 5400), ("min", 100)):
        if seconds >= size:
            return f"{seconds / {'days': 86_400, 'h': 3600, 'min': 60}[unit]:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
