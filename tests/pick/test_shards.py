"""Shards of a pool: the bits of the plain query for any executor, and after anything that can happen on the way."""

import errno
import json
import logging
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import foretaste as ft
from foretaste.acquire import StreamedCover
from foretaste.executors import torch_threads
from foretaste.files import lock_folder
from foretaste.given import sliced_points
from foretaste.pick import streamed
from foretaste.pick.shards import network_digest, pool_digest
from foretaste.tangent import HeldTangents, count_points, freeze
from pick.test_streamed import problem

ROWS = 13_000  # four shards of 4096 points
NET, X_L, Y_L, X_U = problem(ROWS + 15, torch.float32)
PASSES = ("errors", "gains")


def ask(x_U=X_U, **settings):
    return ft.query(NET, X_L, Y_L, x_U, **{"batch_size": 8, "method": "streamed", "watch": 100} | settings)


def in_shards(folder, kind="serial", x_U=X_U, workers=None, **settings):
    return ask(x_U, executor=ft.Executor(kind, workers, folder=folder, shard_points=4096), **settings)


PLAIN = ask()


def same(q, plain=PLAIN):
    """Every bit of two answers but the times."""
    assert q.indices.tolist() == plain.indices.tolist()
    assert torch.equal(q.scores, plain.scores)
    assert {k: q.info[k] for k in plain.info} == plain.info
    return q.info["shards"]


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).glob("*-*/*.*")}


def paths(folder, name="*.safetensors"):
    return sorted(Path(folder).rglob(name))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a query that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    assert same(in_shards(folder)) == {"computed": 8, "kept": 0}
    return folder


@pytest.mark.parametrize("strategy", ["margin", "random"])
def test_other_strategies_are_the_same_too(strategy):
    q, plain = (ask(strategy=strategy, executor=e) for e in ("serial", None))
    assert (q.scores is None) == (plain.scores is None)
    assert plain.scores is None or torch.equal(q.scores, plain.scores)
    assert q.indices.tolist() == plain.indices.tolist()
    assert q.info.get("residual_L") == plain.info.get("residual_L")


def test_a_second_query_reads_all_shards(whole):
    before = contents(whole)
    assert same(in_shards(whole)) == {"computed": 0, "kept": 8}
    assert contents(whole) == before
    assert {p.parent.name.split("-")[0] for p in paths(whole)} == {*PASSES}
    held = json.loads(paths(whole, "manifest.json")[0].read_text())
    assert held["cuts"] == [[0, 4096], [4096, 8192], [8192, 12288], [12288, ROWS]]
    assert len(held["shards"]) == 4


@pytest.mark.slow
def test_processes_give_the_same_bytes(whole, tmp_path):
    """Also a pool in a file, whose points the workers read themselves."""
    same(in_shards(tmp_path / "memory", "processes", workers=2))
    assert contents(tmp_path / "memory") == contents(whole)
    np.save(tmp_path / "x.npy", X_U.numpy())
    shards = same(in_shards(None, "processes", np.load(tmp_path / "x.npy", mmap_mode="r"), workers=3))
    assert shards == {"computed": 8, "kept": 0}


def damage(path):
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("hurt", "told"),
    [(Path.unlink, "is gone; it is computed again"), (damage, "is damaged: its digest is not that of manifest.json")],
)
def test_a_shard_that_is_gone_or_damaged_is_told_and_computed_again(whole, caplog, hurt, told):
    before, victim = contents(whole), paths(whole)[5]
    hurt(victim)
    with caplog.at_level(logging.INFO, "foretaste"):
        assert same(in_shards(whole)) == {"computed": 1, "kept": 7}
    assert f"{victim} {told}" in caplog.text
    assert "resuming: 3 of 4 shards are there" in caplog.text
    assert contents(whole) == before


@pytest.mark.parametrize("text", ["", "{}", '{"job": 1, "cuts": [], "shards": {"0": "a"}}', "[" * 5000])
def test_a_damaged_manifest_is_told(whole, caplog, text):
    before, manifest = contents(whole), paths(whole, "manifest.json")[0]
    manifest.write_text(text)
    assert same(in_shards(whole)) == {"computed": 4, "kept": 4}
    assert f"{manifest} is damaged, or of other shards" in caplog.text
    assert contents(whole) == before


def test_a_full_disk_is_told_and_resumed(whole, tmp_path, monkeypatch):
    """Whichever write it is that fails: at most one shard is computed again."""
    real, computed = os.fsync, 0
    for writes in (1, 4, 5, 0):
        left = [writes]

        def fsync(handle, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr("foretaste.files._flush_names", lambda folder: None)  # it hides errors, and counts too
        with pytest.raises(OSError, match=r"the disk is full, .* could not be written; free some space"):
            in_shards(tmp_path)
        done = len(paths(tmp_path))
        assert computed <= done
        computed = done
    monkeypatch.setattr(os, "fsync", real)
    shards = same(in_shards(tmp_path))
    assert shards["kept"] >= computed - 1
    assert contents(tmp_path) == contents(whole)


def short_of_memory(monkeypatch, error, most, calls=10**9):
    """Memory for so many points at a time; after so many calls for none."""
    real, left = HeldTangents.factors_of, [calls]

    def factors_of(self, x):
        left[0] -= 1
        if count_points(x) > most or left[0] < 0:
            raise error
        return real(self, x)

    monkeypatch.setattr(HeldTangents, "factors_of", factors_of)
    return lambda: monkeypatch.setattr(HeldTangents, "factors_of", real)


NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("by", ["plain", "serial"])
def test_out_of_memory_in_a_pass_takes_fewer_points_at_a_time(monkeypatch, caplog, error, by):
    """The same batch; its scores but for the last bits, for products of other shapes are rounded otherwise."""
    short_of_memory(monkeypatch, error, most=1100)
    q = ask() if by == "plain" else in_shards(None)
    assert "out of memory with 4096 points at a time; trying 2048" in caplog.text
    assert caplog.text.count("trying 1024") == 2  # remembered: once for the pass, once for the sample after it
    assert q.indices.tolist() == PLAIN.indices.tolist()
    torch.testing.assert_close(q.scores[5:], PLAIN.scores[5:], rtol=1e-5, atol=1e-7 * float(PLAIN.scores[5:].max()))


@pytest.mark.parametrize("strategy", ["margin", "cover"])
def test_out_of_memory_for_outputs_takes_fewer_points_too(monkeypatch, caplog, strategy):
    """The forward pass over the pool: all of `margin`, and what `cover` is sampled by."""
    where = streamed.OutputErrors if strategy == "cover" else streamed.OutputScores
    real = where.__call__

    def call(self, at, x):
        if at.stop - at.start > 3000:
            raise NO_MEMORY[1]
        return real(self, at, x)

    plain = ask(strategy=strategy)
    monkeypatch.setattr(where, "__call__", call)
    for q in (ask(strategy=strategy), ask(strategy=strategy, executor="serial")):
        assert q.indices.tolist() == plain.indices.tolist()
    assert caplog.text.count("out of memory with 4096 points at a time; trying 2048") == 2


def test_out_of_memory_in_lazy_picks_reads_fewer_candidates_at_a_time(monkeypatch, caplog):
    real, read = StreamedCover._read_factors, []

    def read_factors(self, at_n):
        if len(at_n) > 1:
            raise NO_MEMORY[1]
        read.append(len(at_n))
        return real(self, at_n)

    monkeypatch.setattr(StreamedCover, "_read_factors", read_factors)
    assert ask().indices.tolist() == PLAIN.indices.tolist()
    assert "out of memory with 4 points at a time; trying 2" in caplog.text
    assert caplog.text.count("trying 1") == 1  # remembered
    assert sum(read) == PLAIN.info["rows_read"]


@pytest.mark.slow
def test_out_of_memory_in_another_process_is_told_and_fewer_points_are_taken(capfd, tmp_path):
    """Told in the worker's own log, which is on the standard error; for good, by the query."""

    class Narrow(torch.nn.Module):  # of a function: a worker gets it whole, and need not import this file
        def __init__(self, most):
            super().__init__()
            self.most = most

        def forward(self, x):
            if len(x) > self.most and multiprocessing.parent_process() is not None:
                raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")
            return x

    def query(most):
        how = ft.Executor("processes", workers=1, folder=tmp_path / str(most), shard_points=4096)
        net = torch.nn.Sequential(Narrow(most), *NET).eval()
        return ft.query(net, X_L, Y_L, X_U[:5000], batch_size=8, method="streamed", watch=100, executor=how)

    want = ask(X_U[:5000])
    assert query(1500).indices.tolist() == want.indices.tolist()
    told = capfd.readouterr().err
    assert "out of memory with 4096 points at a time; trying 2048" in told
    assert "trying 1024" in told
    with pytest.raises(MemoryError, match=r"give a smaller budget=.*use fewer workers.*complete is kept in .* resumes"):
        query(0)


@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda e: type(e).__name__)
def test_out_of_memory_for_good_is_told_and_what_is_complete_is_kept(whole, monkeypatch, tmp_path, error):
    enough = short_of_memory(monkeypatch, error, most=5000, calls=3)  # the trial, and two shards
    told = r"out of memory on cpu, by a streamed query of 13000 candidates .*smaller budget=.*watch=.*"
    with pytest.raises(MemoryError, match=told + r"complete is kept in .*, and the same query resumes") as e:
        in_shards(tmp_path)
    assert e.value.__cause__ is not None
    done = len(paths(tmp_path))
    assert 4 < done < 8
    with pytest.raises(MemoryError, match=told + "or free some memory \\("):
        ask()
    enough()
    assert same(in_shards(tmp_path)) == {"computed": 8 - done, "kept": done}
    assert contents(tmp_path) == contents(whole)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("after", [3, 6])
def test_what_was_complete_is_kept_when_the_query_is_stopped(whole, tmp_path, after):
    def stop(done, total):
        if len(paths(tmp_path)) == after:
            raise Stopped

    with pytest.raises(Stopped):
        in_shards(tmp_path, progress=stop)
    shards = same(in_shards(tmp_path))
    assert shards == {"computed": 8 - after, "kept": after}
    assert contents(tmp_path) == contents(whole)


def test_shards_that_come_in_any_order(whole, tmp_path, monkeypatch):
    """Arrival order is never trusted: neither answer nor files change."""
    from foretaste import executors

    real = executors._run_serially
    monkeypatch.setattr(executors, "_run_serially", lambda *a: reversed(list(real(*a))))
    said = []
    same(in_shards(tmp_path, progress=lambda done, total: said.append(done)))
    assert said == sorted(said)
    assert contents(tmp_path) == contents(whole)


@pytest.mark.parametrize("other", ["net", "x_L", "x_U", "watch", "threads"])
def test_shards_of_another_query_are_not_taken(whole, other):
    before = contents(whole)
    net, x_L, x_U, settings = NET, X_L, X_U, {"watch": 100}
    if other == "net":
        net = torch.nn.Sequential(*NET).eval()
        net[0].bias.data[0] += 1e-6
    elif other == "x_L":
        x_L = X_L + 1e-6
    elif other == "x_U":
        x_U = X_U.clone()
        x_U[9000, 3] += 1e-6
    elif other == "watch":
        settings = {"watch": 101}
    how = ft.Executor("serial", threads=3 if other == "threads" else None, folder=whole, shard_points=4096)
    try:
        q = ft.query(net, x_L, Y_L, x_U, batch_size=8, method="streamed", executor=how, **settings)
    finally:
        if other == "net":
            net[0].bias.data[0] -= 1e-6
    assert q.info["shards"]["computed"] >= 4
    assert before.items() <= contents(whole).items()


class Shaped(torch.nn.Module):
    """A head whose print does not say what it does: ``act`` is not in it, nor are weights."""

    def __init__(self, act):
        super().__init__()
        self.first, self.last, self.act = NET[0], NET[2], act

    def forward(self, x):
        return self.last(self.act(self.first(x)))


OTHER_FORWARDS = {
    "outputs": lambda h: torch.relu(h) + 1e-3 * torch.tanh(h),
    "gradients": lambda h: torch.relu(h).detach() + 2 * (torch.relu(h) - torch.relu(h).detach()),
    "no gradients": lambda h: torch.relu(h).detach(),
}


@pytest.mark.parametrize("strategy", ["cover", "margin"])
@pytest.mark.parametrize("other", OTHER_FORWARDS)
def test_shards_of_another_forward_are_not_taken(tmp_path, strategy, other):
    """Weights and print are equal. Scores of outputs alone may be shared where outputs are equal."""

    def shards(act):
        how = ft.Executor("serial", folder=tmp_path, shard_points=4096)
        query = {"batch_size": 8, "method": "streamed", "watch": 100, "strategy": strategy, "executor": how}
        return ft.query(Shaped(act).eval(), X_L, Y_L, X_U, **query).info["shards"]

    passes = 8 if strategy == "cover" else 4
    assert shards(torch.relu) == {"computed": passes, "kept": 0}
    kept = 4 if strategy == "margin" and other != "outputs" else 0
    assert shards(OTHER_FORWARDS[other])["kept"] == kept
    assert shards(torch.relu) == {"computed": 0, "kept": passes}


def test_the_digest_of_a_network_is_the_same_for_any_threads_and_place_in_memory():
    """A pool that is mapped from a file begins at any byte, and MKL takes other kernels there."""
    frozen, raw = freeze(NET), torch.zeros(X_U[:32].numel() * 4 + 64, dtype=torch.uint8)
    digests = {True: set(), False: set()}
    for threads, offset in ((1, 0), (2, 4), (3, 20)):
        moved = raw[offset : offset + X_U[:32].numel() * 4].view(torch.float32).view(32, -1).copy_(X_U[:32])
        with torch_threads(threads):
            for by_gradients, found in digests.items():
                found.add(network_digest(frozen, moved, by_gradients))
    assert [len(found) for found in digests.values()] == [1, 1]
    assert digests[True] != digests[False]


@pytest.mark.slow
def test_a_new_process_finds_all_shards(whole):
    code = "import sys; from pick.test_shards import in_shards; print(in_shards(sys.argv[1]).info['shards'])"
    path = os.pathsep.join(sys.path)
    ran = subprocess.run(
        [sys.executable, "-c", code, str(whole)], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert ran.stdout.strip() == "{'computed': 0, 'kept': 8}", ran.stderr


def test_a_file_that_changes_is_another_pool(tmp_path):
    np.save(tmp_path / "x.npy", X_U.numpy())
    read = lambda: sliced_points(np.load(tmp_path / "x.npy", mmap_mode="r"), "x_U", None)  # noqa: E731
    first = pool_digest(read())
    assert pool_digest(read()) == first
    os.utime(tmp_path / "x.npy", ns=(1, 1))
    assert pool_digest(read()) != first
    own, other = (sliced_points(TensorDataset(x), "x_U", None) for x in (X_U, X_U + 1e-3))
    assert pool_digest(own) != pool_digest(other)


def test_two_queries_in_one_folder(tmp_path):
    in_shards(tmp_path)
    with (
        lock_folder(paths(tmp_path)[0].parent),
        pytest.raises(RuntimeError, match="another process is running in"),
    ):
        in_shards(tmp_path)


def test_a_nan_has_its_row_from_a_worker_too(tmp_path):
    x = X_U.numpy().copy()
    x[9131, 3] = np.nan
    with pytest.raises(ValueError, match=r"x_U has 1 NaN or infinite values.*first in point 9131"):
        in_shards(tmp_path, x_U=x)


def test_copies_of_labelled_points_are_found_in_shards():
    """The first five points of the pool are copies."""
    q = in_shards(None)
    assert q.scores[:5].eq(-torch.inf).all()
    assert torch.isfinite(q.scores[5:]).all()
