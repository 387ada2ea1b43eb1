"""Where tasks run: in this process, in several, on Ray or Slurm. A task may run twice: it must give the same again.

An executor knows nothing of points or studies. ``run`` gives it a function, items, and what every worker needs once.
Parts of an item come in their order; the items come in any order, each part with its number. A worker that is killed is
replaced, and its item is done again. No part is given twice.
"""

import ctypes
import io
import logging
import multiprocessing as mp
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch

from foretaste.errors import Faults, check_known, counted, format_seconds, real_number, whole_number
from foretaste.given import mapped_file

log = logging.getLogger("foretaste")

EXECUTORS = ("serial", "processes", "ray", "submitit")
SHARD_POINTS = 1 << 13
MOST_RESTARTS = 3  # of an item whose worker was killed, without a part between
JOB_MINUTES, JOB_LOOK = 60, 1.0  # of a Slurm job; seconds between two looks at them
MUCH_LONGER = 5  # than the longest silence so far, and a worker counts as silent
# One thread a process by default, and no thread that spins while it waits: small matrices on shared cores are many
# times slower. cuBLAS promises the same bits twice only with a workspace of its own.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}

Prepare = Callable[[int], Any]  # the number of a worker -> what its tasks need; once in each worker
Work = Callable[[Any, Any], Iterator[Any]]  # that, and an item -> the parts of its result
Name = Callable[[Any], str]  # what an item is called in messages
# ``runner(work, items, prepare, name)`` gives the parts, each with the number of its item.
Runner = Callable[[Work, Sequence[Any], Prepare, Name], Iterator[tuple[int, Any]]]


@dataclass(frozen=True)
class Executor:
    """Where the shards of a query, or the arms and seeds of a study, are computed. The answer is the same everywhere.

    Args:
        kind: "serial", in this process, one after the other; "processes", new Python processes on this machine, for
            which a script needs ``if __name__ == "__main__":``; "ray", tasks of Ray (``foretaste[ray]``);
            "submitit", jobs of Slurm (``foretaste[slurm]``), one for each item, with ``sbatch``'s own environment
            variables, such as SBATCH_PARTITION and SBATCH_TIMELIMIT (an hour by default).
        workers: how many tasks run at once. None (default): as many as the cores, or the CPUs of the Ray cluster, do.
        threads: of one worker, and the CPUs that it takes on Ray. None (default): as many as torch uses in this
            process. Another number may change the last bits of a score.
        address: of a Ray cluster, such as "auto" or "head:6379". None (default): the cluster that this process is
            connected to, else one is started on this machine and stopped afterwards. Of submitit: "slurm", "local"
            (processes on this machine), or None, Slurm where it is installed.
        folder: where shards of a query are kept. An interrupted query resumes from it. None (default): they are not
            kept. A study has a folder of its own.
        shard_points: points of a shard, a multiple of 4096; default 8192.
        silence: seconds without a word of a worker after which the log tells of it; default 120.

    Example:
        >>> from foretaste import Executor
        >>> Executor("processes", workers=2).workers
        2
    """

    kind: str = "processes"
    workers: int | None = None
    threads: int | None = None
    address: str | None = None
    folder: str | os.PathLike[str] | None = None
    shard_points: int = SHARD_POINTS
    silence: float = 120.0

    def __post_init__(self) -> None:
        faults = Faults()
        with faults:
            check_known("executor", self.kind, EXECUTORS)
        for name, value in (("workers", self.workers), ("threads", self.threads)):
            with faults:
                _ = value is None or whole_number(name, value, 1)
        with faults:
            if whole_number("shard_points", self.shard_points, 1) % 4096:
                raise ValueError(f"shard_points is {self.shard_points}; expected a multiple of 4096")
        with faults:
            real_number("silence", self.silence, 0, above=True)
        if self.address is not None and self.kind not in ("ray", "submitit"):
            faults.add(f"address={self.address!r} is of a Ray cluster, and the executor is {self.kind!r}")
        if self.kind == "submitit" and self.folder is None:
            faults.add("executor 'submitit' needs folder=, one that all machines share: jobs and shards are kept there")
        faults.raise_all()

    @property
    def used_threads(self) -> int:
        return torch.get_num_threads() if self.threads is None else self.threads

    @contextmanager
    def started(self) -> Iterator["Runner"]:
        """A ``Runner``. Workers, or a cluster that it starts, serve all its runs, and end with the block."""
        if self.kind == "serial":
            yield partial(_run_serially, self)
        elif self.kind == "ray":
            ray = _import_ray()
            with _cluster(ray, self.address):
                yield partial(_run_on_ray, self, ray, _count_workers(ray, self))
        elif self.kind == "submitit":
            yield partial(_run_by_submitit, self, _import_submitit())
        else:
            workers: list[_Process] = []
            with tempfile.TemporaryDirectory() as folder:
                try:
                    yield partial(_run_in_processes, self, Path(folder), workers)
                finally:
                    for w in workers:
                        w.end()


def as_executor(given: "Executor | str | None") -> Executor | None:
    """An executor as users give it."""
    if given is None or isinstance(given, Executor):
        return given
    if not isinstance(given, str):
        raise TypeError(f"executor is a {type(given).__name__}; expected ft.Executor(...) or {', '.join(EXECUTORS)}")
    return Executor(given)


def usable_cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def torch_threads(n: int) -> Iterator[None]:
    """torch on n threads of the CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run_serially(
    how: Executor, work: Work, items: Sequence[Any], prepare: Prepare, name: Name
) -> Iterator[tuple[int, Any]]:
    with torch_threads(how.used_threads):
        context = prepare(0)
        for k in range(len(items)):
            for part in work(context, items[k]):
                yield k, part


# --- what travels to a worker ---


class _Packer(cloudpickle.Pickler):
    """Arrays that are mapped from a file travel as the name of the file."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray) and (found := mapped_file(obj)) is not None:
            return _map_file, (*found, obj.dtype, obj.shape, obj.strides)
        return super().reducer_override(obj)


def _map_file(path: str, offset: int, dtype: np.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    return np.ndarray(shape, dtype, np.memmap(path, np.uint8, "r"), offset, strides)


def _pack(work: Work, prepare: Prepare) -> bytes:
    to = io.BytesIO()
    try:
        _Packer(to).dump((work, prepare))
    except Exception as error:
        raise TypeError(
            f"the network, the pool or the strategy cannot be sent to another process ({type(error).__name__}: "
            f'{error}); use executor="serial", or a dataset that opens its files when it is read'
        ) from error
    return to.getvalue()


_MADE: dict[str, tuple[Work, Any]] = {}  # in a worker: what the tasks of the last job need


def _parts(job: str, packed: Callable[[], bytes], place: int, item: Any) -> Iterator[Any]:
    """In a worker: the parts of an item. What all items of a job need is made once."""
    if job not in _MADE:
        _MADE.clear()
        work, prepare = cloudpickle.loads(packed())
        _MADE[job] = work, prepare(place)
    work, context = _MADE[job]
    return work(context, item)


# --- a worker that is silent ---


@dataclass
class _Watchdog:
    """Tells of workers from which nothing was heard for long: for ``silence`` seconds, and much longer than before."""

    silence: float
    heard: dict[int, float] = field(default_factory=dict)  # when, of each item in progress
    told: dict[int, float] = field(default_factory=dict)  # the silence that was told
    longest: float = 0.0  # silence that ended

    def hear(self, k: int, over: bool = False) -> None:
        now = time.monotonic()
        if k in self.heard:
            self.longest = max(self.longest, now - self.heard[k])
        self.heard[k] = now
        self.told.pop(k, None)
        if over:
            del self.heard[k]

    def look(self, who: Callable[[int], str]) -> None:
        for k, when in self.heard.items():
            quiet = time.monotonic() - when
            if quiet > max(self.silence, MUCH_LONGER * self.longest, 2 * self.told.get(k, 0.0)):
                self.told[k] = quiet
                log.warning("nothing heard for %s of %s", format_seconds(quiet), who(k))


# --- processes ---


@dataclass(frozen=True)
class WorkerFailure:
    """The error of a worker, and its traceback."""

    error: Exception
    trace: str


def _failure(error: Exception) -> WorkerFailure:
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return WorkerFailure(error, traceback.format_exc())


@dataclass(eq=False)
class _Process:
    process: Any
    pipe: Connection
    place: int
    doing: int | None = None

    def __str__(self) -> str:
        return f"process {self.process.pid} was killed by signal {-self.process.exitcode}"

    def end(self) -> None:
        self.process.terminate()
        self.process.join()
        self.pipe.close()

    def lost(self) -> int | None:
        """What it was doing, if it was killed. Raises if it ended by itself."""
        self.process.join()
        if self.process.exitcode >= 0:
            raise RuntimeError(
                f"a worker ended by itself with code {self.process.exitcode}; does the script lack "
                '`if __name__ == "__main__":`?'
            )
        return self.doing


def _run_in_processes(
    how: Executor,
    folder: Path,
    workers: list[_Process],
    work: Work,
    items: Sequence[Any],
    prepare: Prepare,
    name: Name,
) -> Iterator[tuple[int, Any]]:
    n, dog = how.workers or max(1, usable_cores() // how.used_threads), _Watchdog(how.silence)
    given, killed, waiting = [0] * len(items), [0] * len(items), deque(range(len(items)))  # parts, workers; items
    job = folder / uuid.uuid4().hex
    job.write_bytes(_pack(work, prepare))
    try:
        while waiting or any(w.doing is not None for w in workers):
            for _ in range(min(n - len(workers), len(waiting) - sum(w.doing is None for w in workers))):
                taken = {w.place for w in workers}
                workers.append(_start(how.used_threads, next(place for place in range(n) if place not in taken)))
            for w in workers:
                if w.doing is None and waiting:
                    w.doing = k = waiting.popleft()
                    with suppress(OSError):  # it is dead; noticed below
                        w.pipe.send((job, items[k], given[k]))
                    dog.hear(k)
            ready = wait([w.pipe for w in workers], timeout=1)
            for w in [w for w in workers if w.pipe in ready]:
                try:
                    said = w.pipe.recv()
                except (EOFError, OSError):
                    workers.remove(w)
                    if (lost := w.lost()) is not None:
                        killed[lost] += 1
                        dog.hear(lost, over=True)
                        if killed[lost] > MOST_RESTARTS:
                            raise RuntimeError(
                                f"{name(items[lost])} is given up: {w}, as {killed[lost] - 1} others before it; signal "
                                "9 is mostly the system out of memory: use fewer workers"
                            ) from None
                        log.warning("%s; %s is done again", w, name(items[lost]))
                        waiting.appendleft(lost)
                    continue
                if isinstance(said, WorkerFailure):
                    said.error.add_note(said.trace)
                    raise said.error
                assert w.doing is not None
                at, (over, part) = w.doing, said
                dog.hear(at, over)
                if over:
                    w.doing = None
                else:
                    given[at], killed[at] = given[at] + 1, 0
                    yield at, part
            pids = {w.doing: w.process.pid for w in workers}
            dog.look(lambda k: f"process {pids[k]}, which has {name(items[k])}")  # noqa: B023
    finally:
        for w in [w for w in workers if w.doing is not None]:  # the run was given up
            workers.remove(w)
            w.end()


def _start(threads: int, place: int) -> _Process:
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_work_in_process, args=(threads, place, there), daemon=True)
    with _environment_of_workers(threads):
        process.start()
    there.close()  # so that the end of the worker is the end of the pipe
    return _Process(process, here, place)


def _work_in_process(threads: int, place: int, pipe: Connection) -> None:
    """A worker: takes items from the pipe; sends (False, part) for each part, (True, None) at the end."""
    _die_with_parent()
    torch.set_num_threads(threads)
    parent = mp.parent_process()
    try:
        while parent is None or parent.is_alive():
            job, item, given = pipe.recv()
            for part in islice(_parts(job.name, job.read_bytes, place, item), given, None):
                pipe.send((False, part))
            pipe.send((True, None))
    except (EOFError, BrokenPipeError):  # the parent has ended
        return
    except Exception as error:
        pipe.send(_failure(error))


def _environment(threads: int) -> dict[str, str]:
    return {**ENVIRONMENT, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def _die_with_parent() -> None:
    """On Linux a worker ends when the process that started it is killed; elsewhere it notices after an item."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def _environment_of_workers(threads: int) -> Iterator[None]:
    """Processes started within have so many threads, and ignore Ctrl-C: the parent ends them."""
    own = _environment(threads)
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
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


# --- Ray ---


def _run_on_ray(
    how: Executor, ray: Any, n: int, work: Work, items: Sequence[Any], prepare: Prepare, name: Name
) -> Iterator[tuple[int, Any]]:
    threads, dog, job = how.used_threads, _Watchdog(how.silence), _pack(work, prepare)
    key, packed = uuid.uuid4().hex, ray.put(job)
    # A task is a stream of parts. Ray would start a killed one again by itself, but only so many times in all.
    settings = {"num_cpus": threads, "num_returns": "streaming", "max_retries": 0}
    task = ray.remote(**settings, runtime_env={"env_vars": _environment(threads)})(_work_on_ray)
    waiting, running, places = deque(range(len(items))), dict[Any, int](), dict[int, str]()
    given, killed = [0] * len(items), [0] * len(items)
    try:
        while waiting or running:
            while waiting and len(running) < n:
                k = waiting.popleft()
                running[task.remote(key, packed, items[k], given[k], threads, _versions())] = k
                dog.hear(k)
            ready = ray.wait(list(running), timeout=1)[0]
            if not ready:
                _check_cluster(ray, threads)
            for stream in ready:
                k = running[stream]
                try:
                    place, part = _fetch(ray, next(stream), threads)
                except StopIteration:
                    del running[stream]
                    dog.hear(k, over=True)
                    continue
                except ray.exceptions.RayTaskError as error:
                    cause = error.cause if isinstance(error.cause, Exception) else RuntimeError(str(error))
                    cause.add_note(str(error))
                    raise cause from None
                except ray.exceptions.RayError as error:
                    del running[stream]
                    dog.hear(k, over=True)
                    killed[k] += 1
                    where, why = places.pop(k, "a worker"), str(error).splitlines()[0]
                    if killed[k] > MOST_RESTARTS:
                        raise RuntimeError(
                            f"{name(items[k])} is given up: {where} ended ({why}), as {killed[k] - 1} others; "
                            "mostly it is out of memory: use fewer workers, or more memory a CPU"
                        ) from None
                    log.warning("%s ended (%s); %s is done again", where, why, name(items[k]))
                    waiting.appendleft(k)
                    continue
                dog.hear(k)
                if place is not None:
                    places[k] = place
                else:
                    given[k], killed[k] = given[k] + 1, 0
                    yield k, part
            dog.look(lambda k: f"{name(items[k])}: {places.get(k) or _free(ray)}")
    finally:
        for stream in running:
            with suppress(Exception):
                ray.cancel(stream, force=True)


def _fetch(ray: Any, part: Any, threads: int) -> Any:
    while True:
        try:
            return ray.get(part, timeout=10)
        except ray.exceptions.GetTimeoutError:  # it was lost with its machine, and is computed again
            _check_cluster(ray, threads)


def _check_cluster(ray: Any, threads: int) -> None:
    if ray.cluster_resources().get("CPU", 0) < threads:
        raise RuntimeError(
            "the Ray cluster has lost its machines, and would wait for ever; start it again, and then the run: what is "
            "complete is kept where it has a folder"
        )


def _work_on_ray(
    key: str, packed: bytes, item: Any, given: int, threads: int, versions: tuple[str, ...]
) -> Iterator[Any]:
    """A task: first where it runs, then (None, part) for each part. What all tasks need is made once in a worker."""
    _check_versions(versions)
    nice = os.nice(0) if hasattr(os, "nice") else 0  # not on Windows
    low = f" (of low priority, nice {nice})" if nice > 0 else ""
    yield f"process {os.getpid()} on {socket.gethostname()}{low}", None
    torch.set_num_threads(threads)
    for part in islice(_parts(key, lambda: packed, 0, item), given, None):
        yield None, part


def _check_versions(versions: tuple[str, ...]) -> None:
    if _versions() != versions:
        raise RuntimeError(
            f"{socket.gethostname()} has {', '.join(_versions())}; expected {', '.join(versions)}, as where the run "
            "was started: other versions give other bits"
        )


def _versions() -> tuple[str, ...]:
    return f"foretaste {version('foretaste')}", f"torch {torch.__version__}", f"Python {sys.version.split()[0]}"


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ImportError('executor "ray" needs Ray; install it with: pip install "foretaste[ray]"') from None
    return ray


@contextmanager
def _cluster(ray: Any, address: str | None) -> Iterator[None]:
    """The cluster that this process is connected to; else the one at an address; else a new one on this machine."""
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default: beside any other work they hardly run
    new = {"include_dashboard": False} if address is None else {}
    ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **new)
    try:
        yield
    finally:
        ray.shutdown()


def _count_workers(ray: Any, how: Executor) -> int:
    """Raises if the cluster has too few CPUs: Ray would wait for more, for ever and silently."""
    has, each = int(ray.cluster_resources().get("CPU", 0)), how.used_threads
    n = how.workers or max(1, has // each)
    if n * each > has:
        raise ValueError(
            f"{counted(n, 'worker')} of {counted(each, 'thread')} take {counted(n * each, 'CPU')}, and the Ray cluster "
            f"has {has}: it would wait for ever; give fewer workers= or threads=, or declare more, such as "
            f"ray.init(num_cpus={n * each})"
        )
    return n


def _free(ray: Any) -> str:
    free, has = (int(of.get("CPU", 0)) for of in (ray.available_resources(), ray.cluster_resources()))
    return f"no worker has begun it; {free} of {has} CPUs of the Ray cluster are free"


# --- Slurm, by submitit ---


def _import_submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise ImportError(
            'executor "submitit" needs submitit; install it with: pip install "foretaste[slurm]"'
        ) from None
    return submitit


def _run_by_submitit(
    how: Executor, submitit: Any, work: Work, items: Sequence[Any], prepare: Prepare, name: Name
) -> Iterator[tuple[int, Any]]:
    assert how.folder is not None
    folder = Path(how.folder).expanduser().resolve() / "jobs" / uuid.uuid4().hex
    folder.mkdir(parents=True)
    (folder / "work").write_bytes(_pack(work, prepare))
    jobs = submitit.AutoExecutor(folder / "log", cluster=how.address)
    jobs.update_parameters(cpus_per_task=how.used_threads, timeout_min=JOB_MINUTES, name="foretaste")
    waiting, running, killed = deque(range(len(items))), dict[int, Any](), [0] * len(items)
    dog = _Watchdog(how.silence)
    try:
        while waiting or running:
            while waiting and len(running) < (how.workers or usable_cores()):
                k = waiting.popleft()
                with _environment_of_workers(how.used_threads):
                    running[k] = jobs.submit(_work_as_job, folder / "work", items[k], how.used_threads, _versions())
                dog.hear(k)
            over = [k for k, job in running.items() if job.done()]
            for k in over:
                job = running.pop(k)
                dog.hear(k, over=True)
                try:
                    said = job.result()
                except submitit.core.utils.UncompletedJobError as error:
                    killed[k] += 1
                    if killed[k] > MOST_RESTARTS:
                        raise RuntimeError(f"{name(items[k])} is given up, after {killed[k]} jobs: {error}") from None
                    log.warning("job %s was killed; %s is done again", job.job_id, name(items[k]))
                    waiting.appendleft(k)
                    continue
                if isinstance(said, WorkerFailure):
                    said.error.add_note(said.trace)
                    raise said.error
                yield from ((k, part) for part in said)
            if not over:
                dog.look(lambda k: f"job {running[k].job_id}, which has {name(items[k])}")
                time.sleep(JOB_LOOK)
    finally:
        for job in running.values():
            job.cancel(check=False)
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another run has its jobs there
            folder.parent.rmdir()


def _work_as_job(packed: Path, item: Any, threads: int, versions: tuple[str, ...]) -> "list[Any] | WorkerFailure":
    """A job: all parts of an item, or its error."""
    try:
        _check_versions(versions)
        torch.set_num_threads(threads)
        return list(_parts(str(packed), packed.read_bytes, 0, item))
    except Exception as error:
        return _failure(error)
