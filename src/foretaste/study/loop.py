"""Algorithm 1: train f on L, query, ask the oracle, and again."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.acquire import find_strategy
from foretaste.data import Images, Split, draw
from foretaste.lookahead import linearize
from foretaste.losses import LOSSES
from foretaste.network import Fit
from foretaste.pick import query
from foretaste.study.config import Study, Trial
from foretaste.study.records import Record, peak_memory, reset_peak_memory, software_versions
from foretaste.study.trial_network import Model, derive_seed, model_of

FIRST_RATIO = 10.0  # of s² to its leave-one-out value, before the first batch is labelled; state.scale takes the same


def cycles(
    trial: Trial,
    data: Images,
    seed: int,
    *,
    against: str | None = None,
    done: Sequence[Record] = (),
    weights: Mapping[str, Tensor] | None = None,
    first: Callable[[Model, np.ndarray, int], Fit] | None = None,
) -> Iterator[tuple[Record, nn.Module]]:
    """Run one arm with one seed; yields each cycle's record and its network.

    The first labels, and the order in which the pool is offered, depend on the seed alone. Initial weights and batches
    depend on seed and cycle alone. So arms can be compared in pairs. ``done`` holds the records of an interrupted run,
    and ``weights`` its last network; the run resumes after them. If they are all of a study with fewer cycles, the last
    one comes again, with the query that it lacks. ``first`` trains the network of cycle 0 in the place of
    ``model.train``.
    """
    check_trial(trial, data)
    split, model = replay(trial, data, seed, done), model_of(trial, data, weights)
    asked = done[:-1] if is_cut_short(trial, done) else done
    ratio = asked[-1]["ratio"] if asked else FIRST_RATIO
    for cycle in range(len(asked), trial.labels.cycles + 1):
        reset_peak_memory(data.x.device)
        if cycle < len(done):
            record = continued(trial, model, split, seed, done[cycle], weights is not None)
        else:
            record = learn(trial, data, split, model, seed, cycle, first if cycle == 0 else None) | {"against": against}
        if cycle < trial.labels.cycles:
            offered = split.offer(trial.labels.subset, derive_seed(seed, cycle, "offer"))
            ask(trial, data, offered, model, record, ratio)
            ratio = record["ratio"]
        record["cost"]["peak_memory"] = peak_memory(data.x.device)
        yield record, model.net
        split = split.label(record["queried"])


def is_cut_short(trial: Trial, done: Sequence[Record]) -> bool:
    """Whether these are all records of a study with fewer cycles, whose last one queries nothing."""
    return bool(done) and done[-1]["cycle"] < trial.labels.cycles and not done[-1]["queried"]


def check_goes_on(trial: Trial) -> None:
    """Raise if a finished run of this arm cannot go on to more cycles."""
    if find_strategy(trial.strategy).study.trains is not None and trial.train.start == "warm":
        raise ValueError(
            f"arm {trial.arm!r} cannot go on to more cycles: {trial.strategy} trains a part beside the network, which "
            "is not kept. Choose another folder for it"
        )


def continued(trial: Trial, model: Model, split: Split, seed: int, last: Record, loaded: bool) -> Record:
    """The last record of a shorter study, without its query, and ``model`` as it was: loaded, or trained once more."""
    check_goes_on(trial)
    if not loaded or model.own_training is not None:
        model.train(split.L, seed, last["cycle"])
    model.settle(split.L, seed, last["cycle"])
    return {**last, "cost": {**last["cost"]}, "config": trial.plain()}


def replay(trial: Trial, data: Images, seed: int, done: Sequence[Record]) -> Split:
    """L, U and test after the records of an interrupted run. Raises unless these are the points that it had."""
    split = draw(data.pool, data.test, trial.labels.init, seed)
    for record in done:
        queried = np.asarray(record["queried"], dtype=np.int64)
        possible = np.isin(queried, split.U).all() and len(np.unique(queried)) == len(queried)
        if record["labelled_ids"] != split.L.tolist() or not possible:
            raise ValueError(
                f"the records of arm {trial.arm!r} and seed {seed} have other labelled points in cycle "
                f"{record['cycle']} than this run: they were edited, or made by a version of foretaste or numpy that "
                "draws others. Remove them or choose another folder, and the run makes them anew"
            )
        split = split.label(queried)
    return split


def learn(
    trial: Trial, data: Images, split: Split, model: Model, seed: int, cycle: int,
    first: Callable[[Model, np.ndarray, int], Fit] | None = None,
) -> Record:  # fmt: skip
    """Train f on L and measure it on the test points."""
    trained = model.train(split.L, seed, cycle) if first is None else first(model, split.L, seed)
    began = time.perf_counter()
    model.settle(split.L, seed, cycle)
    right_N = model.classes(split.test) == data.y[split.test]
    return {
        "arm": trial.arm, "against": None, "seed": seed, "cycle": cycle,
        "labelled": len(split.L), "labelled_ids": split.L.tolist(), "accuracy": float(right_N.double().mean()),
        "residual": trained.residual, "interpolates": trained.interpolates, "retries": trained.retries,
        "steps": trained.steps, "max_lr": model.max_lr if trained.max_lr is None else trained.max_lr,
        # What ``ask`` fills in
        "candidates": 0, "queried": [], "predicted": [], "labels": [], "scale": None, "ratio": FIRST_RATIO,
        "ridge": None, "pool": trained.pool or model.pool,
        "cost": {
            "train": trained.seconds, "measure": time.perf_counter() - began, "query": None, "stages": {},
            "peak_memory": 0,
        },
        "config": trial.plain(), "versions": software_versions(data.x.device),
    }  # fmt: skip


def ask(trial: Trial, data: Images, split: Split, model: Model, record: Record, ratio: float) -> None:
    """Query a batch of U and look its labels up; both are written into ``record``.

    A strategy with a scale s² has it calibrated here. The new labels then give the ratio for the next cycle.
    """
    x_L, y_L, x_U = model.inputs(split.L), data.y[split.L], model.inputs(split.U)
    began = time.perf_counter()
    options: dict[str, Any] = dict(model.options)
    scale = calibrated_option(trial)
    loo = 1.0
    if scale is not None:
        loo = leave_one_out_scale(model.net, x_L, y_L, model.settings)
        options[scale] = ratio * loo
    q = query(
        model.net, x_L, y_L, x_U, strategy=trial.strategy, select=trial.select, batch_size=trial.labels.per_cycle,
        oracle=(lambda i: int(data.y[i])) if trial.select == "sequential" else None, ids=split.U.tolist(),
        seed=derive_seed(record["seed"], record["cycle"], "query"), options=options, **model.settings,
    )  # fmt: skip
    record["cost"] |= {"query": time.perf_counter() - began, "stages": q.seconds}
    ids = np.asarray(q.ids, dtype=np.int64)
    record["candidates"], record["queried"], record["labels"] = len(split.U), ids.tolist(), data.y[ids].tolist()
    record["predicted"] = model.classes(ids).tolist()
    record["scale"], record["ridge"] = q.info.get("scale"), q.info.get("ridge")
    record["pool"] = record.get("pool") or q.info.get("pool")
    record["ratio"] = ratio
    if scale is not None:
        record["scale"] = options[scale]
        record["ratio"] = new_label_scale(model.net, x_L, y_L, model.inputs(ids), data.y[ids], model.settings) / loo


def check_trials(study: Study, data: Images) -> None:
    """Raise if these data do not allow the settings of an arm. Nothing is allocated before."""
    for name in study.names if study.experiment == "loop" else ():
        check_trial(study.trial(name), data)


def check_trial(trial: Trial, data: Images) -> None:
    """Raise if these data do not allow these settings."""
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


# The scale s² of a posterior's variance (docs/mathematics.md, The scale).
#
# Leave-one-out residuals of L put s² 4 to 100 times too low, because the kernel has learned those labels. The residuals
# of new labels before they are learned are honest:  s² = mean_j ‖y_j − mean_j‖² / (C u_j).  Their ratio to the
# leave-one-out value is carried to the next cycle, where the leave-one-out value is another.


def calibrated_option(trial: Trial) -> str | None:
    """The option of the trial's strategy that holds s². None if it has none, if it is given, or under another loss.

    With the pool in the kernel a state's own scale is right: that kernel has not seen the labels.
    """
    option = find_strategy(trial.strategy).study.calibrates
    own = option in trial.options or trial.asks_with_pool
    return None if own or not LOSSES[trial.train.loss].quadratic else option


def leave_one_out_scale(net: nn.Module, x_L: Tensor, y_L: Tensor, settings: Mapping[str, Any]) -> float:
    """s² by leaving out one labelled point at a time. The pool does not matter, so one point stands for it."""
    return linearize(net, x_L, y_L, x_L[:1], **_watching_the_pool(settings)).scale / FIRST_RATIO


def new_label_scale(
    net: nn.Module, x_L: Tensor, y_L: Tensor, x_u: Tensor, y_u: Tensor, settings: Mapping[str, Any]
) -> float:
    """s² by the labels ``y_u`` of new points, compared with what the network trained on L predicts."""
    state = linearize(net, x_L, y_L, x_u, **_watching_the_pool(settings))
    e_uC = state.targets(y_u) - state.pool_mean
    if state.B == 1:
        return float(torch.mean(e_uC.square().sum(1) / (state.C * state.u)))
    return float(torch.mean(e_uC * torch.linalg.solve(state.u, e_uC)))  # u_j is C × C: mean eᵀ u⁻¹ e / C


def _watching_the_pool(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "watch"}
