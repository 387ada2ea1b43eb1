"""All arms and seeds of a study, in one process or several, into a folder from which an interrupted run resumes."""

import ctypes
import logging
import math
import multiprocessing as mp
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from foretaste.data import Answers, Images
from foretaste.errors import errors_only, real_number
from foretaste.network import Diverged, single_threaded
from foretaste.study.claims import CHECKS
from foretaste.study.config import Study
from foretaste.study.folder import (
    PictureFile,
    Task,
    check_data,
    check_folder,
    describe,
    lock_folder,
    stored_json,
    write_study,
)
from foretaste.study.loop import check_goes_on, check_trials, cycles, is_cut_short, replay
from foretaste.study.records import Record
from foretaste.study.study_data import altered, data_digest, prepared
from foretaste.study.toml import import_plugin
from foretaste.study.trial_network import train_first

log = logging.getLogger("foretaste")
# One thread a process, and no thread that spins while it waits: small matrices on shared cores are many times slower.
# cuBLAS promises the same bits twice only with a workspace of its own.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


def run(
    study: Study,
    folder: str | Path | None = None,
    *,
    processes: int = 1,
    devices: Sequence[str] = ("cpu",),
    standin: bool = False,
    data: Images | None = None,
    description: Mapping[str, Any] | None = None,
    seen: Callable[[Record], None] | None = None,
    minutes: float | None = None,
    answers: Answers | None = None,
) -> list[Any]:
    """Run every arm of a study with every seed.

    Args:
        study: what to run; ``study``, ``read`` and ``study_of`` make one.
        folder: where study.json, records, weights and pictures are kept; ``foretaste.report.folder`` makes the page
            from it. An interrupted run resumes and gives identical records, and so does one with fewer cycles than
            ``study``, or fewer arms or seeds. None keeps nothing.
        processes: how many to use. More than one starts new Python processes (spawn), so a script needs
            ``if __name__ == "__main__":``.
        devices: such as ("cuda:0", "cuda:1"); the processes take turns on them.
        standin: use scikit-learn's digits, in the right shape, if the data set is not found. Never for a result.
        data: the study's data as ``prepared`` returns them, if they are in memory already.
        description: what study.json holds besides the configuration, as ``describe`` returns it. None keeps what the
            folder has, or describes the study and the data.
        seen: called with each record as it comes, those that are on disk already among them.
        minutes: stop after this time, each process with its next record. The same call later resumes, also on another
            machine; without the weights of the last cycle only where training starts cold.
        answers: as in ``prepared``.

    Returns:
        The records, in the order of arms, seeds and cycles. With ``minutes`` there may be fewer than ``study.size``.

    Raises:
        ValueError: if the folder holds a run with other settings, other data or other plugins, or is damaged.
        RuntimeError: if another process runs in the folder, or a worker fails.

    Example:
        >>> from foretaste.study import Labels, Train, run, study
        >>> of = study(["random"], seeds=(0,), labels=Labels(init=20, per_cycle=5, cycles=1), train=Train(steps=5))
        >>> [record["labelled"] for record in run(of)]
        [20, 25]
    """
    # Wall-clock time, for it is the same in all processes.
    deadline = math.inf if minutes is None else time.time() + 60 * real_number("minutes", minutes, 0, above=True)
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as where, lock_folder(Path(where)):
        root = Path(where)
        check_folder(root, study)
        tasks = [Task(root, name, seed) for seed in study.seeds for name in study.names]
        processes = min(processes, len(tasks))
        here = processes <= 1
        if data is None and (here or folder is not None):
            on = devices[0] if here else "cpu"
            data = prepared(study.data, on, standin, features=study.features, answers=answers)
        if data is not None:
            check_trials(study, data)
        check_more_cycles(study, tasks)
        pictures, digest = None, None
        if folder is not None and data is not None:
            description = description or stored_json(root)
            made = description or describe(study, data, processes=max(1, processes), device=devices[0])
            digest = check_data(root, study, data)
            write_study(root, study, {**made, "digest": digest})
            pictures = PictureFile(root, data)
        if here and data is not None:
            stream = _run_here(study, tasks, data, deadline)
        else:
            stream = _run_in_processes(WorkOrder(study, standin, digest, deadline, answers), tasks, processes, devices)
        records = []
        try:
            for record in stream:
                records.append(record)
                if pictures is not None:
                    pictures.add(record)
                if seen is not None:
                    seen(record)
        finally:
            if pictures is not None:
                pictures.write()
    for record in records:
        log_retries(record)
    order = {name: k for k, name in enumerate(study.names)}
    return sorted(records, key=lambda r: (order[r["arm"]], study.seeds.index(r["seed"]), r["cycle"]))


def log_retries(record: Mapping[str, Any]) -> None:
    """Say so where a training was repeated. ``fit`` says it too, but a task silences its warnings."""
    if record.get("retries"):
        log.warning(
            "arm %s, seed %d, cycle %d: training diverged and was repeated at max_lr=%g",
            record["arm"], record["seed"], record["cycle"], record["max_lr"],
        )  # fmt: skip


def check_more_cycles(study: Study, tasks: Sequence[Task]) -> None:
    """Raise if a finished run cannot be continued to more cycles; called before study.json is rewritten."""
    for task in tasks if study.experiment == "loop" else ():
        trial = study.trial(task.arm)
        if is_cut_short(trial, done := task.records(trial)):
            check_goes_on(trial)
            if trial.train.start == "warm" and trial.model != "gp":
                task.weights(len(done) - 1)


# One arm with one seed


def run_task(study: Study, data: Images, task: Task, deadline: float = math.inf) -> Iterator[Any]:
    """The records of one arm and seed: those on disk, then the missing ones, until the deadline has passed.

    A record and its weights are on disk before the record is yielded. Weights are written first, and those of the cycle
    before are removed last. So the weights of the last record exist whenever the process is killed.
    """
    trial, against = study.trial(task.arm), study.arm(task.arm).against
    with task.locked(), errors_only():
        done = task.records(trial, study.experiment)
        own = altered(data, study.data, task.seed) if len(done) < study.each else data
        if len(done) < study.each and study.experiment == "loop":
            replay(trial, own, task.seed, done)  # raises before anybody sees records that do not fit
        more = study.experiment == "loop" and is_cut_short(trial, done)  # the last record is rewritten with a query
        yield from done[:-1] if more else done
        if len(done) == study.each or time.time() >= deadline:
            yield from done[-1:] if more else ()
            return
        last = len(done) - 1
        warm = trial.train.start == "warm" and done and trial.model != "gp"
        weights = task.weights(last) if warm else None
        if more and not warm and trial.model != "gp" and task.has_weights(last):
            with suppress(ValueError):  # damaged weights are trained again
                weights = task.weights(last)
        if study.experiment != "loop":
            for checked in CHECKS[study.experiment](study, trial, own, task.seed, skip=len(done)):
                task.append(checked)
                yield checked
                if time.time() >= deadline:
                    return
            return
        description = {
            "network": trial.network.name, "classes": data.classes, "normalise": data.normalise,
            "options": None if trial.network.built_in else trial.network.options,  # built-in ones know their own
            "loss": trial.train.loss, "shape": data.x[0].shape,
        }  # fmt: skip
        first = partial(train_first, task.folder)
        for record, net in cycles(trial, own, task.seed, against=against, done=done, weights=weights, first=first):
            if record["cycle"] < len(done):
                task.replace_last(record)
            else:
                task.save_weights(record["cycle"], net, **description)
                task.append(record)
                task.remove_weights(before=record["cycle"])
            yield record
            if time.time() >= deadline:
                return


# Processes


@dataclass(frozen=True)
class WorkOrder:
    """What every worker needs besides its tasks."""

    study: Study
    standin: bool
    digest: Mapping[str, Any] | None
    deadline: float
    answers: Answers | None


@dataclass(frozen=True)
class WorkerFailure:
    """The error of a worker: one line, and its traceback."""

    message: str
    trace: str


def _run_here(study: Study, tasks: Sequence[Task], data: Images, deadline: float = math.inf) -> Iterator[Record]:
    with single_threaded():
        for task in tasks:
            try:
                yield from run_task(study, data, task, deadline)
            except Diverged as error:
                raise Diverged(f"arm {task.arm!r}, seed {task.seed}: {error}") from error


def _run_in_processes(
    order: WorkOrder, tasks: Sequence[Task], processes: int, devices: Sequence[str]
) -> Iterator[Record]:
    context = mp.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    for task in [*tasks, *[None] * processes]:
        todo.put(task)
    workers = [
        context.Process(target=_work, args=(order, devices[k % len(devices)], todo, done), daemon=True)
        for k in range(processes)
    ]
    working = processes
    try:
        with _environment_of_workers():
            for worker in workers:
                worker.start()
        while working:
            try:
                answer = done.get(timeout=1)
            except Empty:
                if dead := [w for w in workers if w.exitcode]:
                    raise RuntimeError(
                        f"a worker ended by itself with code {dead[0].exitcode}: out of memory, "
                        'or a script that lacks `if __name__ == "__main__":`'
                    ) from None
                continue
            if isinstance(answer, WorkerFailure):
                error = RuntimeError(answer.message)
                error.add_note(answer.trace)
                raise error
            if answer is None:
                working -= 1
            else:
                yield answer
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.terminate()
                worker.join()
        for queue in (todo, done):
            queue.cancel_join_thread()
            queue.close()


def _work(order: WorkOrder, device: str, todo: Any, done: Any) -> None:
    """A worker: runs tasks from one queue, and puts records, then None, or its failure, into the other.

    It reads the data itself. They must be those that the parent has read (``digest``).
    """
    study, digest = order.study, order.digest
    _die_with_parent()
    torch.set_num_threads(1)
    parent = mp.parent_process()
    task: Task | None = None
    try:
        for plugin in study.plugins:
            import_plugin(plugin)
        data = prepared(study.data, device, order.standin, features=study.features, answers=order.answers)
        if digest is not None and data_digest(data) != digest["data"]:
            raise ValueError(f"the data {data.name!r} changes while the run reads it; start again when it is complete")
        while (task := todo.get()) is not None:
            for record in run_task(study, data, task, order.deadline):
                done.put(record)
                if parent is not None and not parent.is_alive():
                    return
        done.put(None)
    except Exception as error:
        at = "" if task is None else f"arm {task.arm!r}, seed {task.seed}: "
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        done.put(WorkerFailure(f"{at}{kind}{error}", traceback.format_exc()))


def _die_with_parent() -> None:
    """On Linux a worker ends when the process that started it is killed; elsewhere it notices after a record."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def _environment_of_workers() -> Iterator[None]:
    """Processes started within have one thread each, and ignore Ctrl-C: the parent ends them."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
