"""One arm with one seed, from where it was left to its end."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from foretaste.data import Images, imbalanced, noisy
from foretaste.study._checks import CHECKS
from foretaste.study._config import Data, Study
from foretaste.study._folder import Task
from foretaste.study._seeds import number
from foretaste.study.loop import cycles


def carry_out(study: Study, data: Images, task: Task) -> Iterator[Any]:
    """Its records: those on disk, then the others, each on disk with its weights before it is told of.

    Weights go first and those of the cycle before stay, so whatever is killed when, the last record's are there.
    """
    trial, against = study.trial(task.arm), study.arm(task.arm).against
    with task.held(), quiet():
        done = task.records(trial)
        yield from done
        if len(done) == study.each:
            return
        warm = trial.train.start == "warm" and done and trial.model == "network"
        weights = task.weights(len(done) - 1) if warm else None
        own = altered(data, study.data, task.seed)
        if study.experiment != "loop":
            for check in CHECKS[study.experiment](study, trial, own, task.seed, skip=len(done)):
                task.append(check)
                yield check
            return
        said = {
            "network": trial.network.name,
            "options": trial.network.options if ":" in trial.network.name else None,  # built-in ones say theirs
            "classes": data.classes,
            "normalise": data.normalise,
            "loss": trial.train.loss,
            "shape": data.x[0].shape,
        }
        for record, net in cycles(trial, own, task.seed, against=against, done=done, weights=weights):
            task.keep(record["cycle"], net, **said)
            task.append(record)
            task.forget(before=record["cycle"])
            yield record


def altered(data: Images, how: Data, seed: int) -> Images:
    """The pool as this seed has it: classes made rare, labels made wrong."""
    if how.imbalance < 1:
        data = imbalanced(data, how.imbalance, number(seed, 0, "imbalance"))
    return noisy(data, how.noise, number(seed, 0, "noise")) if how.noise else data


@contextmanager
def quiet() -> Iterator[None]:
    """A record says by itself whether its network has learned its labels; a line a query would drown the progress."""
    log = logging.getLogger("foretaste")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
