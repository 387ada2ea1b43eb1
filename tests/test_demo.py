"""The loop of Alg. 1: paired, seeded, and blind to the test points."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from foretaste.data import Images, draw
from foretaste.retrain import linearize
from foretaste.study import Study, _calibrate, cycles, loop, parse, run
from foretaste.study._run import ENVIRONMENT

SMALL = Study(
    strategies=("gain", "random"), seeds=(0, 1), init=6, per_cycle=3, cycles=2, hidden=(16,), steps=60, batch=8
)
TIMES = ("train_seconds", "query_seconds")


def points(n=60):
    """Three clouds in the plane; a third coordinate is each point's own id, so that inputs can be told apart."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    x = np.stack([np.cos(2.1 * y), np.sin(2.1 * y)], 1) + 0.3 * rng.normal(size=(n, 2))
    x = np.concatenate([x, np.arange(n)[:, None] / n], 1)
    ids = rng.permutation(n)
    return Images(
        name="clouds",
        x=torch.as_tensor(x, dtype=torch.float32),
        y=torch.as_tensor(y),
        pool=ids[:40],
        test=ids[40:],
        shape=(1, 3),
        classes=("a", "b", "c"),
    )


def timeless(records):
    return [{k: v for k, v in r.items() if k not in TIMES} for r in records]


@pytest.mark.parametrize("strategy", ["gain", "gain sequential", "mlmoc", "margin", "random"])
def test_records_of_a_run(strategy):
    data = points()
    study = Study(**vars(SMALL) | {"strategies": (strategy,)})
    records = list(cycles(study, data, strategy, seed=1))
    assert [r["cycle"] for r in records] == [0, 1, 2]
    assert [r["labelled"] for r in records] == [6, 9, 12]
    assert [len(r["queried"]) for r in records] == [3, 3, 0]
    for r in records:
        assert r["labels"] == data.y[r["queried"]].tolist()
        assert len(r["predicted"]) == len(r["queried"])
        assert 0 <= r["accuracy"] <= 1
        assert (r["query_seconds"] is None) == (r["cycle"] == 2)
        assert (r["scale"] is not None) == (strategy.startswith("gain") and r["cycle"] < 2)


@pytest.mark.parametrize("strategy", ["gain", "gain sequential", "mlmoc", "margin", "random"])
def test_no_point_is_asked_twice_and_the_test_set_never_leaks(strategy, monkeypatch):
    data, seen = points(), {"fit": [], "query": [], "linearize": [], "oracle": []}

    def ids(x):
        return (x[:, 2] * len(data.x)).round().long().tolist()

    def fit(net, x, y, **rest):
        seen["fit"].append(ids(x))
        assert y.tolist() == data.y[ids(x)].tolist()
        return loop_fit(net, x, y, **rest)

    def query(net, x_L, y_L, x_U, **rest):
        assert ids(x_U) == rest["ids"]
        assert not set(ids(x_L)) & set(ids(x_U))
        seen["query"] += [ids(x_L) + ids(x_U)]
        if rest["oracle"] is not None:
            answer = rest["oracle"]
            rest["oracle"] = lambda i: (seen["oracle"].append(i), answer(i))[1]
        return loop_query(net, x_L, y_L, x_U, **rest)

    def linear(net, x_L, y_L, x_U, **rest):
        seen["linearize"] += [ids(x_L) + ids(x_U)]
        return linearize(net, x_L, y_L, x_U, **rest)

    loop_fit, loop_query = loop.fit, loop.query
    monkeypatch.setattr(loop, "fit", fit)
    monkeypatch.setattr(loop, "query", query)
    monkeypatch.setattr(_calibrate, "linearize", linear)
    records = list(cycles(SMALL, data, strategy, seed=0))
    first = draw(data.pool, data.test, SMALL.init, 0).L.tolist()
    asked = [i for r in records for i in r["queried"]]
    assert seen["fit"] == [first, first + asked[:3], first + asked]
    assert len(set(first + asked)) == len(first + asked)
    assert seen["oracle"] == (asked if strategy == "gain sequential" else [])
    touched = {i for kind in ("fit", "query", "linearize") for group in seen[kind] for i in group}
    assert touched <= set(data.pool.tolist())


def test_strategies_are_paired_by_seed():
    """Before the first query two strategies are one network; two seeds are not."""
    data = points()
    gain, random, other = (next(cycles(SMALL, data, *of)) for of in (("gain", 0), ("random", 0), ("random", 1)))
    for key in ("accuracy", "residual", "labelled"):
        assert gain[key] == random[key]
    assert gain["residual"] != other["residual"]


def test_initial_weights_depend_on_seed_and_cycle_alone(monkeypatch):
    """With no step of training, what is left is the initialisation."""
    drawn = {}
    real = loop.fit

    def fit(net, x, y, **rest):
        out = real(net, x, y, **rest | {"steps": 1, "max_lr": 1e-30})
        drawn[key][len(x)] = torch.cat([p.detach().flatten() for p in net.parameters()])
        return out

    monkeypatch.setattr(loop, "fit", fit)
    for key in (("margin", 0), ("random", 0), ("random", 1)):
        drawn[key] = {}
        list(cycles(SMALL, points(), *key))
    for n in (6, 9, 12):
        torch.testing.assert_close(drawn["margin", 0][n], drawn["random", 0][n], rtol=0, atol=0)
        assert not torch.equal(drawn["random", 0][n], drawn["random", 1][n])
    assert not torch.equal(drawn["random", 0][6], drawn["random", 0][9])


def test_same_seed_same_records():
    data = points()
    a, b = (timeless(cycles(SMALL, data, "gain", 0)) for _ in range(2))
    assert a == b


def test_scale_is_carried_from_batch_to_batch(monkeypatch):
    """s² of a cycle is its leave-one-out value times what the last batch's residuals said, typed out here."""
    data, kept = points(), []
    real = loop.query

    def query(net, x_L, y_L, x_U, **rest):
        q = real(net, x_L, y_L, x_U, **rest)
        state = linearize(net, x_L, y_L, x_U)
        honest = [
            float(((data.y[i] == torch.arange(3)).double() - state.pool_mean[j]).square().sum() / (3 * state.u[j]))
            for i, j in zip(q.ids, q.indices)
        ]
        kept.append((rest["options"]["scale"], state.scale / 10, np.mean(honest)))
        return q

    monkeypatch.setattr(loop, "query", query)
    records = list(cycles(SMALL, data, "gain", 0))
    (s0, loo0, honest0), (s1, loo1, _) = kept
    assert s0 == pytest.approx(10 * loo0)
    assert s1 == pytest.approx(loo1 * honest0 / loo0)
    assert [r["scale"] for r in records[:2]] == [s0, s1]


def test_parse():
    assert parse("gain") == ("gain", "auto")
    assert parse("gain sequential") == ("gain", "sequential")


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"strategies": ("gian",)}, "unknown strategy 'gian'; did you mean 'gain'"),
        ({"strategies": ("gain sideways",)}, "'gain sideways'.*sequential"),
        ({"strategies": ()}, "at least one"),
        ({"seeds": (1, 1)}, "none twice"),
        ({"cycles": -1, "steps": 0}, "cycles=-1.*steps=0"),
        ({"data": "mnist"}, "unknown data 'mnist'; known: digits"),
    ],
)
def test_study_says_what_is_wrong(over, says):
    with pytest.raises(ValueError, match=says):
        Study(**over)


def test_a_pool_too_small_is_refused():
    with pytest.raises(ValueError, match="43 labels"):
        list(cycles(Study(init=10, per_cycle=11, cycles=3), points(), "random", 0))


QUICK = Study(strategies=("margin", "random"), seeds=(3, 1), cycles=1, hidden=(16,), steps=40)


@pytest.mark.slow
def test_processes_change_nothing_but_the_times():
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = run(QUICK)
    finally:
        torch.set_num_threads(threads)
    seen = []
    there = run(QUICK, processes=2, seen=seen.append)
    assert timeless(there) == timeless(here)
    assert [(r["strategy"], r["seed"], r["cycle"]) for r in there] == [
        (name, seed, c) for name in ("margin", "random") for seed in (3, 1) for c in (0, 1)
    ]
    assert sorted(map(str, seen)) == sorted(map(str, there))
    assert {name: os.environ.get(name) for name in ENVIRONMENT} == before


@pytest.mark.slow
def test_an_error_in_a_worker_is_told():
    study = Study(strategies=("random",), seeds=(0, 1), init=1190, per_cycle=10, cycles=1, hidden=(16,), steps=5)
    with pytest.raises(RuntimeError, match=r"strategy 'random', seed [01]: ValueError: .*1200") as caught:
        run(study, processes=2)
    assert "Traceback" in caught.value.__notes__[0]


def alive(group):
    """Processes of a group that still run; one that has ended may wait a moment for its parent to take note."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended while we looked
            state, _, pgid, *_ = path.read_text().rpartition(") ")[2].split()
            found += [path] if pgid == str(group) and state != "Z" else []
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_interrupt_ends_cleanly(tmp_path):
    """Ctrl-C reaches every process of the terminal's group; ours end at once, without a traceback."""
    code = "from foretaste.cli import main; main()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, "demo", "--out", str(tmp_path / "demo")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(6)  # in the midst of it
    assert child.poll() is None
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "Traceback" not in out + err
    assert "interrupted" in err
    deadline = time.monotonic() + 10  # multiprocessing's own tracker ends a moment after its parent
    while alive(child.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(child.pid)
