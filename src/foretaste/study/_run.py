"""All strategies and seeds of a study, over several processes."""

import multiprocessing as mp
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty
from typing import Any

import torch

from foretaste.study._config import DATA, Study
from foretaste.study.loop import cycles
from foretaste.study.records import Record

Task = tuple[str, int]


@dataclass(frozen=True)
class Failure:
    """What a worker could not do: in one line, and where it happened."""

    says: str
    trace: str


# One thread a process, and no thread that spins while it waits: small matrices on shared cores are many times slower.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def run(study: Study, *, processes: int = 1, seen: Callable[[Record], None] | None = None) -> list[Record]:
    """The records of a study, in the order of its strategies, seeds and cycles; ``seen`` is told of each as it comes.

    More than one process means new Python processes (spawn), so a script needs ``if __name__ == "__main__":``.
    """
    tasks: list[Task] = [(strategy, seed) for seed in study.seeds for strategy in study.strategies]
    processes = min(processes, len(tasks))
    records = []
    for record in _here(study, tasks) if processes <= 1 else _elsewhere(study, tasks, processes):
        records.append(record)
        if seen is not None:
            seen(record)
    return sorted(
        records, key=lambda r: (study.strategies.index(r["strategy"]), study.seeds.index(r["seed"]), r["cycle"])
    )


def _here(study: Study, tasks: list[Task]) -> Iterator[Record]:
    data = DATA[study.data]()
    for strategy, seed in tasks:
        yield from cycles(study, data, strategy, seed)


def _elsewhere(study: Study, tasks: list[Task], processes: int) -> Iterator[Record]:
    context = mp.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    for task in [*tasks, *[None] * processes]:
        todo.put(task)
    workers = [context.Process(target=_work, args=(study, todo, done), daemon=True) for _ in range(processes)]
    left = len(tasks) * (study.cycles + 1)
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


def _work(study: Study, todo: Any, done: Any) -> None:
    torch.set_num_threads(1)
    parent = mp.parent_process()
    data = DATA[study.data]()
    while (task := todo.get()) is not None:
        try:
            for record in cycles(study, data, *task):
                done.put(record)
                if parent is not None and not parent.is_alive():
                    return
        except Exception as error:
            says = f"strategy {task[0]!r}, seed {task[1]}: {type(error).__name__}: {error}"
            done.put(Failure(says, traceback.format_exc()))
            return


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
