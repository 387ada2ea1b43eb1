"""All arms and seeds of a study, in processes or on Ray, into a folder from which an interrupted run resumes."""

import logging
import math
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from foretaste.data import Answers, Images
from foretaste.errors import errors_only, real_number
from foretaste.executors import Executor, as_executor, torch_threads
from foretaste.files import lock_folder
from foretaste.network import Diverged
from foretaste.study.claims import CHECKS
from foretaste.study.config import Study
from foretaste.study.folder import (
    PictureFile,
    Task,
    check_data,
    check_folder,
    describe,
    stored_json,
    write_study,
)
from foretaste.study.loop import check_goes_on, check_trials, cycles, is_cut_short, replay
from foretaste.study.records import Record
from foretaste.study.study_data import altered, data_digest, prepared
from foretaste.study.toml import import_plugin
from foretaste.study.trial_network import train_first

log = logging.getLogger("foretaste")


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
    executor: Executor | str = "processes",
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
        executor: where the processes run: "processes" (default), on this machine; "ray", or an ``ft.Executor`` of that
            kind, on a Ray cluster whose machines share ``folder`` (docs/scaling.md); each takes a CPU. "serial": here.

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
        root, how = Path(where).resolve(), as_executor(executor) or Executor()
        check_folder(root, study)
        tasks = [Task(root, name, seed) for seed in study.seeds for name in study.names]
        processes = min(processes, len(tasks))
        here = how.kind == "serial" or (how.kind == "processes" and processes <= 1)
        if how.kind in ("ray", "submitit") and any(device != "cpu" for device in devices):
            told = f"executor {how.kind!r} runs a study on CPUs, and devices is {devices}; use processes on GPUs"
            raise ValueError(told)
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
            work = WorkOrder(study, root, devices, standin, digest, deadline, answers)
            stream = work.run(replace(how, workers=processes, threads=1), tasks)
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


# Here, in processes, or on Ray


@dataclass(frozen=True)
class WorkOrder:
    """What every worker needs besides its tasks."""

    study: Study
    folder: Path
    devices: Sequence[str]
    standin: bool
    digest: Mapping[str, Any] | None
    deadline: float
    answers: Answers | None

    def prepare(self, place: int) -> Images:
        """The data, which a worker reads itself. They must be those that the parent has read (``digest``)."""
        try:
            if not self.folder.is_dir():
                raise ValueError(
                    f"{socket.gethostname()} does not see {self.folder}; on several machines a study needs a folder "
                    "that all of them share"
                )
            for plugin in self.study.plugins:
                import_plugin(plugin)
            device = self.devices[place % len(self.devices)]
            data = prepared(self.study.data, device, self.standin, features=self.study.features, answers=self.answers)
            if self.digest is not None and data_digest(data) != self.digest["data"]:
                raise ValueError(
                    f"the data {data.name!r} changes while the run reads it, or differs from machine to machine; start "
                    "again when it is complete"
                )
            return data
        except Exception as error:
            raise _as_failure(error) from error

    def run(self, how: Executor, tasks: Sequence[Task]) -> Iterator[Record]:
        with how.started() as runner:
            for _, record in runner(self.records, tasks, self.prepare, _task_name):
                yield record

    def records(self, data: Images, task: Task) -> Iterator[Record]:
        """The records of a task."""
        try:
            yield from run_task(self.study, data, task, self.deadline)
        except Exception as error:
            raise _as_failure(error, f"{_task_name(task)}: ") from error


def _task_name(task: Task) -> str:
    return f"arm {task.arm!r}, seed {task.seed}"


def _as_failure(error: Exception, at: str = "") -> RuntimeError:
    kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
    return RuntimeError(f"{at}{kind}{error}")


def _run_here(study: Study, tasks: Sequence[Task], data: Images, deadline: float = math.inf) -> Iterator[Record]:
    with torch_threads(1):
        for task in tasks:
            try:
                yield from run_task(study, data, task, deadline)
            except Diverged as error:
                raise Diverged(f"{_task_name(task)}: {error}") from error
