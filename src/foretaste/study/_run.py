"""All arms and seeds of a study, over several processes and GPUs, into a folder that a killed run goes on from."""

import ctypes
import multiprocessing as mp
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from foretaste.data import Images
from foretaste.study._config import Study
from foretaste.study._description import belongs
from foretaste.study._folder import Task, alone
from foretaste.study._plugins import plug
from foretaste.study._prepare import prepared
from foretaste.study._tasks import carry_out
from foretaste.study.records import Record


@dataclass(frozen=True)
class Failure:
    """What a worker could not do: in one line, and where it happened."""

    says: str
    trace: str


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
    folder: Path | None = None,
    *,
    processes: int = 1,
    devices: tuple[str, ...] = ("cpu",),
    standin: bool = False,
    seen: Callable[[Record], None] | None = None,
) -> list[Any]:
    """The records of a study, in the order of its arms, seeds and cycles; ``seen`` is told of each as it comes.

    folder: where records and weights are kept; one that a run was broken off in goes on to the same records as a run
    that never was. None keeps nothing. processes: more than one means new Python processes (spawn), so a script needs
    ``if __name__ == "__main__":``; they take turns on the ``devices``. standin: where the data are not to be had, take
    digits drawn in their shape.
    """
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as where, alone(Path(where)):
        tasks = [Task(Path(where), name, seed) for seed in study.seeds for name in study.names]
        belongs(Path(where), study)
        processes = min(processes, len(tasks))
        if processes <= 1:
            came = _here(study, tasks, devices[0], standin)
        else:
            came = _elsewhere(study, tasks, processes, devices, standin)
        records = []
        for record in came:
            records.append(record)
            if seen is not None:
                seen(record)
    order = {name: k for k, name in enumerate(study.names)}
    return sorted(records, key=lambda r: (order[r["arm"]], study.seeds.index(r["seed"]), r["cycle"]))


def _here(study: Study, tasks: list[Task], device: str, standin: bool) -> Iterator[Record]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the workers have it: the number of processes must not change a bit of a record
    try:
        data = prepared(study.data, device, standin)
        for task in tasks:
            yield from carry_out(study, data, task)
    finally:
        torch.set_num_threads(threads)


def _elsewhere(
    study: Study, tasks: list[Task], processes: int, devices: tuple[str, ...], standin: bool
) -> Iterator[Record]:
    context = mp.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    for task in [*tasks, *[None] * processes]:
        todo.put(task)
    workers = [
        context.Process(target=_work, args=(study, devices[k % len(devices)], standin, todo, done), daemon=True)
        for k in range(processes)
    ]
    left = len(tasks) * study.each
    try:
        with _quietly():
            for worker in workers:
                worker.start()
        while left:
            try:
                answer = done.get(timeout=1)
            except Empty:
                if dead := [w for w in workers if w.exitcode]:
                    raise RuntimeError(
                        f"a worker ended by itself with code {dead[0].exitcode}: out of memory, "
                        'or a script that lacks `if __name__ == "__main__":`'
                    ) from None
                continue
            if isinstance(answer, Failure):
                error = RuntimeError(answer.says)
                error.add_note(answer.trace)
                raise error
            left -= 1
            yield answer
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.terminate()
                worker.join()
        for queue in (todo, done):
            queue.cancel_join_thread()
            queue.close()


def _work(study: Study, device: str, standin: bool, todo: Any, done: Any) -> None:
    _die_with_parent()
    torch.set_num_threads(1)
    parent = mp.parent_process()
    task: Task | None = None
    try:
        for plugin in study.plugins:
            plug(plugin)
        data: Images = prepared(study.data, device, standin)
        while (task := todo.get()) is not None:
            for record in carry_out(study, data, task):
                done.put(record)
                if parent is not None and not parent.is_alive():
                    return
    except Exception as error:
        at = "" if task is None else f"arm {task.arm!r}, seed {task.seed}: "
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        done.put(Failure(f"{at}{kind}{error}", traceback.format_exc()))


def _die_with_parent() -> None:
    """On Linux a worker ends when the process that started it is killed; elsewhere it notices after a record."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def _quietly() -> Iterator[None]:
    """Children started within have one thread each and leave Ctrl-C to us."""
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
