"""Executors: parts of every item once and in order, in any process; workers that are killed, stopped, or fail."""

import logging
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
import torch

import foretaste as ft
from foretaste.executors import _MADE, Executor, _cluster, _pack, _Watchdog, as_executor, torch_threads
from foretaste.study import Labels, Train, study
from foretaste.study import run as run_study


def three_parts(context, item):
    """Parts of an item. The first worker that meets "die" or "stop" writes its name down before it does so."""
    number, what, folder = item
    for part in range(3):
        if part == 1 and what in ("die", "stop") and not (mark := Path(folder) / f"{what}{number}").exists():
            mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL if what == "die" else signal.SIGSTOP)
        if what == "fail" and part == 2:
            raise KeyError(f"item {number}")
        yield context, number, part, torch.get_num_threads()


def ready(place):
    return "ready"


def run(executor, items):
    with executor.started() as runner:
        got = list(runner(three_parts, items, ready, lambda item: f"item {item[0]}"))
    for k in range(len(items)):
        assert [part for at, part in got if at == k] == [("ready", k, p, 1) for p in range(3)]
    return got


def test_serial_takes_one_item_after_the_other(tmp_path):
    got = run(Executor("serial", threads=1), [(k, "go", tmp_path) for k in range(3)])
    assert [k for k, _ in got] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@contextmanager
def waking(folder, after):
    """Wakes stopped workers after some seconds."""

    def wake():
        while not (found := list(Path(folder).glob("stop*"))):
            time.sleep(0.05)
        time.sleep(after)
        os.kill(int(found[0].read_text()), signal.SIGCONT)

    thread = threading.Thread(target=wake)
    thread.start()
    yield
    thread.join()


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_a_stopped_one_is_told(tmp_path, caplog, monkeypatch):
    """No part comes twice, and no part is missing; a failure keeps its type and has the worker's traceback."""
    items = [(0, "die", tmp_path), (1, "go", tmp_path), (2, "stop", tmp_path), (3, "die", tmp_path)]
    monkeypatch.setattr("foretaste.executors.MUCH_LONGER", 0)  # the start of a worker is a long silence too
    before = dict(os.environ)
    executor = Executor("processes", workers=2, threads=1, silence=0.5)
    with waking(tmp_path, after=2), caplog.at_level(logging.WARNING, "foretaste"):
        run(executor, items)
    assert dict(os.environ) == before
    assert caplog.text.count("was killed by signal 9; item") == 2
    assert "nothing heard for" in caplog.text
    assert f"of process {(tmp_path / 'stop2').read_text()}, which has item 2" in caplog.text
    with pytest.raises(KeyError, match="item 5") as told, executor.started() as runner:
        list(runner(three_parts, [(5, "fail", tmp_path)], ready, str))
    assert "three_parts" in told.value.__notes__[0]


def always_dies(context, item):
    os.kill(os.getpid(), signal.SIGKILL)
    yield


@pytest.mark.slow
def test_an_item_that_kills_every_worker_is_given_up(monkeypatch):
    monkeypatch.setattr("foretaste.executors.MOST_RESTARTS", 0)
    with (
        pytest.raises(RuntimeError, match=r"4 is given up: process \d+ was killed by signal 9.*use fewer workers"),
        Executor("processes", workers=1).started() as runner,
    ):
        list(runner(always_dies, [4], ready, str))


def test_silence_is_measured_by_what_was_heard_before(monkeypatch, caplog):
    now = [0.0]
    monkeypatch.setattr("foretaste.executors.time.monotonic", lambda: now[0])
    dog = _Watchdog(silence=10)
    for t in (0, 8):  # eight seconds between two words are usual here
        now[0] = t
        dog.hear(0)
    said = []
    for t in range(9, 200):
        now[0] = t
        dog.look(lambda k: said.append(now[0]) or "a worker")
    assert said == [49, 91, 175]  # five times eight, then twice as long each time
    dog.hear(0, over=True)
    now[0] = 1e9
    dog.look(lambda k: pytest.fail("it is done"))


def test_mapped_arrays_travel_by_name(tmp_path):
    """Also views of them; their data stay where they are. A copy-on-write map may differ from its file."""
    np.save(tmp_path / "a.npy", np.arange(600_000).reshape(-1, 6))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    for array in (mapped, mapped[7:], mapped[3:1000:2, 1:4], np.asarray(mapped)[5:9]):
        packed = _pack(lambda c, i, a=array: [a], ready)
        assert len(packed) < 5000
        got = cloudpickle.loads(packed)[0](None, None)[0]
        assert np.array_equal(got, array)
        assert got.dtype == array.dtype
    own = np.load(tmp_path / "a.npy", mmap_mode="c")
    own[0] = -1
    assert len(_pack(lambda c, i, a=own: [a], ready)) > own.nbytes
    assert not _MADE


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"kind": "procesess"}, "unknown executor 'procesess'; did you mean 'processes'"),
        ({"workers": 0, "shard_points": 1000}, "workers is 0.*; shard_points is 1000; expected a multiple of 4096"),
        ({"address": "auto"}, "address='auto' is of a Ray cluster, and the executor is 'processes'"),
    ],
)
def test_wrong_settings_are_told_at_once(settings, told):
    with pytest.raises(ValueError, match=told):
        Executor(**settings)


def test_an_executor_by_name():
    assert as_executor("serial") == ft.Executor("serial")
    with pytest.raises(TypeError, match=r"executor is a int; expected ft\.Executor"):
        as_executor(3)


def test_what_cannot_travel_is_told():
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r'cannot be sent to another process .*use executor="serial"'):
        _pack(lambda c, i: [lock], ready)


def test_ray_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'pip install "foretaste\[ray\]"'), Executor("ray").started():
        pass


# --- Ray ---

NICENESS = "RAY_worker_niceness"


def test_workers_of_a_cluster_of_ours_have_the_priority_of_the_query(monkeypatch):
    """Ray would start them with nice 15: beside any other work they hardly run. What the user has set stays."""
    seen = []
    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **given: seen.append(os.environ[NICENESS]),
        shutdown=lambda: seen.append("ended"),
    )
    for own in ({}, {NICENESS: "3"}):
        monkeypatch.setattr(os, "environ", dict(own))
        with _cluster(ray, None):
            pass
    assert seen == ["0", "ended", "3", "ended"]


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of four CPUs, whatever the machine has."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install foretaste[ray]")
    monkeypatch.setenv(NICENESS, "0")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers do not know the tests' folder
    yield ray
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    ray.shutdown()


def timeless(records):
    return [{k: v for k, v in r.items() if k not in ("cost", "checksum")} for r in records]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray and of the interpreter under it, not of ours
@pytest.mark.usefixtures("cluster")
def test_ray(tmp_path):
    """One test, for a cluster takes ten seconds to start."""
    told = r"5 workers of 1 thread take 5 CPUs, and the Ray cluster has 4: it would wait for ever"
    with pytest.raises(ValueError, match=told), Executor("ray", workers=5, threads=1).started():
        pass
    # A worker is killed; an error keeps its type.
    how = Executor("ray", workers=2, threads=1, shard_points=4096)
    run(how, [(k, "die" if k == 1 else "go", tmp_path) for k in range(4)])
    assert (tmp_path / "die1").exists()
    with pytest.raises(KeyError, match="item 5"), how.started() as runner:
        list(runner(three_parts, [(5, "fail", tmp_path)], ready, str))
    # A query and a study are the plain ones.
    x = torch.randn(5000, 6, generator=torch.Generator().manual_seed(0))
    net, ask = (
        torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval(),
        {"watch": 64},
    )
    for n, shards in ((20, 4), (600, 6)):  # the second in two parts
        with torch_threads(1):
            plain, q = (
                ft.query(net, x[:9], torch.arange(9) % 3, x[9:], batch_size=n, method="streamed", **ask, executor=e)
                for e in (None, how)
            )
        assert torch.equal(q.scores, plain.scores)
        assert q.indices.tolist() == plain.indices.tolist()
        assert q.info["shards"] == {"computed": shards, "kept": 0}
    of = study(["random", "margin"], seeds=(0,), labels=Labels(init=20, per_cycle=5, cycles=1), train=Train(steps=5))
    assert timeless(run_study(of, tmp_path / "study", processes=2, executor="ray")) == timeless(run_study(of))


# --- Slurm ---


def test_submitit_needs_a_folder_and_the_package(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match=r"'submitit' needs folder=, one that all machines share"):
        Executor("submitit")
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ImportError, match=r'pip install "foretaste\[slurm\]"'):
        Executor("submitit", folder=tmp_path).started().__enter__()


@pytest.mark.slow
def test_submitit(tmp_path, caplog, monkeypatch):
    """Its local jobs, in the place of Slurm's. One is killed; an error keeps its type; a query is the plain one."""
    pytest.importorskip("submitit", reason="submitit is not installed: pip install foretaste[slurm]")
    monkeypatch.setattr("foretaste.executors.JOB_LOOK", 0.1)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # jobs do not know the tests' folder
    try:
        how = Executor("submitit", workers=2, threads=1, address="local", folder=tmp_path, shard_points=4096)
        run(how, [(0, "die", tmp_path)])
        assert "was killed; item 0 is done again" in caplog.text
        with pytest.raises(KeyError, match="item 5"), how.started() as runner:
            list(runner(three_parts, [(5, "fail", tmp_path)], ready, str))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    x = torch.randn(4000, 6, generator=torch.Generator().manual_seed(0))
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
    with torch_threads(1):
        plain, q = (
            ft.query(net, x[:9], torch.arange(9) % 3, x[9:], method="streamed", strategy="margin", executor=e)
            for e in (None, how)
        )
    assert torch.equal(q.scores, plain.scores)
    assert q.info["shards"] == {"computed": 1, "kept": 0}
    assert not (tmp_path / "jobs").exists()
