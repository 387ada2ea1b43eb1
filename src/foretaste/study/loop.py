"""Algorithm 1: train f on L, query, ask the oracle, and again."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from foretaste.data import Images, Split, draw
from foretaste.query import query
from foretaste.study._calibrate import FIRST, leave_one_out, surprise
from foretaste.study._config import Trial
from foretaste.study._cost import peak_memory, reset_peak, versions
from foretaste.study._model import Model, model_of
from foretaste.study._seeds import number
from foretaste.study.records import Record


def cycles(
    trial: Trial,
    data: Images,
    seed: int,
    *,
    against: str | None = None,
    done: Sequence[Record] = (),
    weights: Mapping[str, Tensor] | None = None,
) -> Iterator[tuple[Record, nn.Module]]:
    """One arm with one seed: a record a cycle, and the network it tells of.

    The first labels and the order in which the pool is offered depend on the seed alone, initial weights and batches on
    seed and cycle alone: arms are compared in pairs. ``done`` and ``weights`` go on where a run was broken off.
    """
    check(trial, data)
    split, ratio = draw(data.pool, data.test, trial.labels.init, seed), FIRST
    for record in done:
        split, ratio = split.label(record["queried"]), record["ratio"]
    model = model_of(trial, data, weights)
    for cycle in range(len(done), trial.labels.cycles + 1):
        reset_peak(data.x.device)
        record = learn(trial, data, split, model, seed, cycle) | {"against": against}
        if cycle < trial.labels.cycles:
            offered = split.offer(trial.labels.subset, number(seed, cycle, "offer"))
            ask(trial, data, offered, model, record, ratio)
            ratio = record["ratio"]
        record["cost"]["peak_memory"] = peak_memory(data.x.device)
        yield record, model.net
        split = split.label(record["queried"])


def learn(trial: Trial, data: Images, split: Split, model: Model, seed: int, cycle: int) -> Record:
    """f on L, and how it does on the test points."""
    trained = model.train(split.L, seed, cycle)
    began = time.perf_counter()
    right_N = model.classes(split.test) == data.y[split.test]
    return {
        "arm": trial.arm,
        "against": None,
        "seed": seed,
        "cycle": cycle,
        "labelled": len(split.L),
        "labelled_ids": split.L.tolist(),
        "accuracy": float(right_N.double().mean()),
        "residual": trained.residual,
        "interpolates": trained.interpolates,
        "diverged": not math.isfinite(trained.loss),
        "steps": trained.steps,
        "max_lr": model.max_lr,
        "candidates": 0,
        "queried": [],
        "predicted": [],
        "labels": [],
        "scale": None,
        "ratio": FIRST,
        "ridge": None,
        "cost": {
            "train": trained.seconds,
            "measure": time.perf_counter() - began,
            "query": None,
            "stages": {},
            "peak_memory": 0,
        },
        "config": trial.plain(),
        "versions": versions(data.x.device),
    }


def ask(trial: Trial, data: Images, split: Split, model: Model, record: Record, ratio: float) -> None:
    """Query a batch of U and learn its labels; they are written into ``record``.

    For `gain` also the ratio of s² to its leave-one-out value for the next cycle, as these labels show it.
    """
    x_L, y_L, x_U = model.inputs(split.L), data.y[split.L], model.inputs(split.U)
    began = time.perf_counter()
    options: dict[str, Any] = dict(model.options)
    calibrated = trial.strategy == "gain" and trial.train.loss == "l2" and "scale" not in options
    loo = leave_one_out(model.net, x_L, y_L, model.settings) if calibrated else 1.0
    if calibrated:
        options["scale"] = ratio * loo
    q = query(
        model.net,
        x_L,
        y_L,
        x_U,
        strategy=trial.strategy,
        select=trial.select,
        batch_size=trial.labels.per_cycle,
        oracle=(lambda i: int(data.y[i])) if trial.select == "sequential" else None,
        ids=split.U.tolist(),
        seed=number(record["seed"], record["cycle"], "query"),
        options=options,
        **model.settings,
    )
    record["cost"] |= {"query": time.perf_counter() - began, "stages": q.seconds}
    ids = np.asarray(q.ids, dtype=np.int64)
    record["candidates"], record["queried"], record["labels"] = len(split.U), ids.tolist(), data.y[ids].tolist()
    record["predicted"] = model.classes(ids).tolist()
    record["scale"], record["ridge"] = q.info.get("scale"), q.info.get("ridge")
    record["ratio"] = ratio
    if calibrated:
        record["scale"] = options["scale"]
        record["ratio"] = surprise(model.net, x_L, y_L, model.inputs(ids), data.y[ids], model.settings) / loo


def check(trial: Trial, data: Images) -> None:
    """Raise if the data cannot serve the settings."""
    labels, pool = trial.labels, len(data.pool)
    if labels.total > pool:
        raise ValueError(f"{labels.total} labels in all and a pool of {pool}; ask for fewer a cycle, or fewer cycles")
    if isinstance(trial.query.output, int) and trial.query.output not in range(len(data.classes)):
        raise ValueError(
            f"query.output={trial.query.output} and {data.name} has {len(data.classes)} classes; expected the number "
            f"of a logit, 0 to {len(data.classes) - 1}"
        )
    if len(data.test) == 0:
        raise ValueError(f"{data.name} has no test points to measure on; set data.test, the share to keep for that")
