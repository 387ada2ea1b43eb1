"""Algorithm 1: train f on L, query, ask the oracle, and again."""

import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.data import Images, Split, draw
from foretaste.network import MLP, fit
from foretaste.query import query
from foretaste.study._calibrate import FIRST, leave_one_out, surprise
from foretaste.study._config import Study, parse
from foretaste.study.records import Record


def cycles(study: Study, data: Images, strategy: str, seed: int) -> Iterator[Record]:
    """One strategy with one seed, a record a cycle.

    The first labels depend on the seed alone, initial weights and batch order on seed and cycle alone: strategies are
    compared in pairs. Unlike the paper's, every training starts cold.
    """
    if (total := study.init + study.per_cycle * study.cycles) > len(data.pool):
        raise ValueError(
            f"{total} labels in all and a pool of {len(data.pool)}; ask for fewer a cycle, or fewer cycles"
        )
    split = draw(data.pool, data.test, study.init, seed)
    ratio = FIRST
    for cycle in range(study.cycles + 1):
        net, record = train(study, data, split, strategy, seed, cycle)
        if cycle < study.cycles:
            ratio = ask(study, data, split, net, record, ratio)
        yield record
        split = split.label(record["queried"])


def train(study: Study, data: Images, split: Split, strategy: str, seed: int, cycle: int) -> tuple[nn.Module, Record]:
    """f on L, from new weights, and how it does on the test points."""
    net = MLP(data.x[0].numel(), study.hidden, len(data.classes)).to(data.x.device)
    trained = fit(
        net,
        data.x[split.L],
        data.y[split.L],
        steps=study.steps,
        batch_size=study.batch,
        max_lr=study.max_lr,
        start="cold",
        seed=number(seed, cycle),
    )
    right_N = classes(net, data.x[split.test]) == data.y[split.test]
    return net, {
        "strategy": strategy,
        "seed": seed,
        "cycle": cycle,
        "labelled": len(split.L),
        "accuracy": float(right_N.double().mean()),
        "residual": trained.residual,
        "train_seconds": trained.seconds,
        "query_seconds": None,
        "queried": [],
        "predicted": [],
        "labels": [],
        "scale": None,
    }


def ask(study: Study, data: Images, split: Split, net: nn.Module, record: Record, ratio: float) -> float:
    """Query a batch and learn its labels; they are written into ``record``.

    Returns the ratio of s² to its leave-one-out value for the next cycle, as these labels show it.
    """
    name, select = parse(record["strategy"])
    x_L, y_L, x_U = data.x[split.L], data.y[split.L], data.x[split.U]
    began = time.perf_counter()
    scaled = name == "gain"
    loo = leave_one_out(net, x_L, y_L) if scaled else 1.0
    q = query(
        net,
        x_L,
        y_L,
        x_U,
        strategy=name,
        select=select,
        batch_size=study.per_cycle,
        oracle=(lambda i: int(data.y[i])) if select == "sequential" else None,
        ids=split.U.tolist(),
        seed=number(record["seed"], record["cycle"]),
        options={"scale": ratio * loo} if scaled else None,
    )
    record["query_seconds"] = time.perf_counter() - began
    ids = np.asarray(q.ids, dtype=np.int64)
    x_u, y_u = data.x[ids], data.y[ids]
    record["queried"], record["labels"] = ids.tolist(), y_u.tolist()
    record["predicted"] = classes(net, x_u).tolist()
    if not scaled:
        return ratio
    record["scale"] = ratio * loo
    return surprise(net, x_L, y_L, x_u, y_u) / loo


def classes(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return net(x).argmax(1)


def number(seed: int, cycle: int) -> int:
    """One seed out of two, with no two pairs alike by arithmetic."""
    return int(np.random.SeedSequence([seed, cycle]).generate_state(1)[0])
