"""Pools that are read in chunks: the answer is dense's where all is watched, and an honest estimate with a sample."""

import errno
import io
import logging
import os
import re
import sys
import tempfile

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset, TensorDataset

import foretaste as ft
from foretaste.acquire import Shortlist, StreamedCover, cover_greedily, covered_errors, sample_watched
from foretaste.acquire.sampled_cover import STREAM_CHUNK, STREAM_LOOK, KeptRows
from foretaste.given import SlicedPoints, point_format, sliced_points, sliced_tensors
from foretaste.losses import probabilities
from foretaste.pick import streamed
from foretaste.pick.shards import pool_digest
from foretaste.pick.streamed import KEPT_ROWS, SHORTLIST_NUMBERS, SecondStep
from foretaste.tangent import CentredTangents, MeanTangent, PeakMemory, freeze

L, D, C = 20, 12, 4


def problem(rows: int = 160, dtype: torch.dtype = torch.float64, outputs: int = C):
    """A trained head, its labelled points, and a pool whose first five points are copies of labelled ones."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, D, generator=g, dtype=torch.float64)
    y = (x[:, 0] > 0).long() + (2 * (x[:, 1] > 0).long() if outputs > 2 else 0)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(D, 32), nn.ReLU(), nn.Linear(32, outputs)).to(dtype)
    ft.fit(net, x[:L].to(dtype), y[:L], steps=150, seed=0)
    return net, x[:L].to(dtype), y[:L], x[L - 5 :].to(dtype)


NET, X_L, Y_L, X_U = problem()


def ask(x_U=X_U, **settings):
    return ft.query(NET, X_L, Y_L, x_U, **{"batch_size": 12, "method": "streamed"} | settings)


@pytest.mark.parametrize(
    "settings",
    [{}, {"loss": "ce"}, {"select": "top"}, {"output": "full"}, {"options": {"space": "inputs"}}, {"seed": 3}],
    ids=str,
)
def test_all_watched_streamed_is_dense(settings):
    dense, streamed = ask(method="dense", **settings), ask(**settings)
    assert streamed.indices.tolist() == dense.indices.tolist()
    assert streamed.info["method"] == "streamed"
    assert streamed.info["watched"] == len(X_U)
    assert dense.scores[:5].eq(-torch.inf).all()  # copies of labelled points
    assert_close(streamed.scores, dense.scores, rtol=1e-9, atol=1e-12)
    for key in {"ridge", "scale", "residual_L", "output", "space"} & {*dense.info}:
        assert streamed.info[key] == pytest.approx(dense.info[key]), key


def test_nothing_labelled_and_binary_are_dense_too():
    first = [ft.query(NET, None, None, X_U, batch_size=9, method=m).indices.tolist() for m in ("dense", "streamed")]
    assert first[0] == first[1]
    net, x_L, y_L, x_U = problem(outputs=1)
    both = [ft.query(net, x_L, y_L, x_U, batch_size=9, method=m).indices.tolist() for m in ("dense", "streamed")]
    assert both[0] == both[1]


def test_watched_points_may_be_given():
    other = torch.randn(30, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    q = ask(watch=other)
    assert q.info["watched"] == 30
    assert len(set(q.indices.tolist())) == 12


@pytest.mark.parametrize("strategy", ["margin", "entropy", "least_confidence", "random"])
def test_scores_of_outputs_alone_are_the_same_bits(strategy):
    dense, streamed = (ask(X_U.numpy(), strategy=strategy, method=m) for m in ("auto", "streamed"))
    assert streamed.indices.tolist() == dense.indices.tolist()
    assert torch.equal(streamed.scores, dense.scores)


# --- a sample is watched ---


def literal_value(F, batch) -> float:
    """What a batch adds to F over the whole pool, a point."""
    return float(((F.rows(torch.as_tensor(batch)).double().amax(0) - F.covered_W).clamp_min(0) * F.weight_W).mean())


SETS = problem(1200)
F_ALL = covered_errors(ft.linearize(*SETS, output="signs", ridge="misfit"))


def ask_sampled(monkeypatch, seed=0, agreed=9.0, **settings):
    """A shortlist of 40 and a second sample of 100 points, at first."""
    small = {"SHORTLIST": 40, "SHORTLIST_EACH": 2, "SECOND_SAMPLE": {"cpu": 100}, "AGREED": agreed}
    for name, value in small.items():
        monkeypatch.setattr(f"foretaste.pick.streamed.{name}", value)
    return ft.query(*SETS, **{"batch_size": 12, "seed": seed, "method": "streamed", "watch": 200} | settings)


@pytest.mark.parametrize("look", [4, 256], ids=["as on a CPU", "as on a GPU"])
def test_a_batch_chosen_twice_is_near_dense(look, monkeypatch):
    monkeypatch.setitem(STREAM_LOOK, "cpu", look)
    best = literal_value(F_ALL, ft.query(*SETS, batch_size=12, method="dense").indices)
    for seed in range(3):
        q = ft.query(*SETS, batch_size=12, seed=seed, method="streamed", watch=200)
        true = literal_value(F_ALL, q.indices)
        assert q.info["sample"] == 1185  # the shortlist is judged by the whole pool,
        assert q.info["batch_value"]["held_out"] == pytest.approx(true, rel=1e-6)  # and κ of dense is in float32
        assert true > 0.97 * best


def test_the_value_of_a_batch_is_estimated_with_its_error(monkeypatch):
    told, true = [], []
    for seed in range(20):
        q = ask_sampled(monkeypatch, seed)
        assert q.info["shortlist"] == 40
        assert q.info["sample"] == 140
        told.append(q.info["batch_value"])
        true.append(literal_value(F_ALL, q.indices))
    off = np.array([t["held_out"] - v for t, v in zip(told, true)])
    error = np.array([t["error"] for t in told])
    assert abs(off.mean()) < 3 * np.sqrt((error**2).mean() / 20)  # no bias
    assert (np.abs(off) < 2.5 * error).mean() >= 0.9
    assert 0.6 < off.std() / error.mean() < 1.4  # the error is neither too large nor too small
    assert np.mean([t["watched"] for t in told]) > np.mean(true)  # the batch was chosen by these


def test_the_second_sample_grows_until_both_halves_agree(monkeypatch):
    sizes = [ask_sampled(monkeypatch, agreed=a).info["sample"] for a in (9.0, 0.1, -9.0)]
    assert sizes[0] == 140
    assert sizes[0] < sizes[1] < sizes[2] == 1185
    monkeypatch.setitem(SHORTLIST_NUMBERS, "cpu", 40 * 640)
    short = ask_sampled(monkeypatch, agreed=-9.0).info
    assert short["sample"] == 640  # where memory ends; 545 points are held out
    assert short["batch_value"]["error"] > 0


def test_points_that_are_sampled_count_each_for_its_share():
    """F of a shortlist on V, by a literal loop over V."""
    state = ft.linearize(*SETS, output="signs", ridge="misfit")
    e_U = covered_errors(state).weight_W
    kappa2_UU = F_ALL.rows(torch.arange(state.U))
    again = made_shortlist(np.arange(0, 60, 2), size=150)
    F, s = again.coverage, again.sample
    assert s.at_W[:30].tolist() == list(range(0, 60, 2))
    assert not {*s.at_W} & {*s.at_H}
    for i, (at, chance) in enumerate(zip(s.at_W, s.chance_W)):
        assert float(F.weight_W[i]) == pytest.approx(float(e_U[at]) / chance)
        for j in (0, 7, 29):
            assert float(F.rows(torch.tensor([j]))[0, i]) == pytest.approx(float(kappa2_UU[2 * j, at]), abs=1e-6)


def made_shortlist(at_S, size):
    net, x_L, y_L, x_U = SETS
    frozen = freeze(net, output="signs")

    def linearise(x, candidates, eager):
        return ft.linearize(net, x_L, y_L, x[:candidates], watch=x, output="signs", ridge="misfit")

    cover = StreamedCover(linearise, frozen, x_L, x_U, sliced_tensors(x_U, "x_U"))
    with torch.no_grad():
        error_U = 1 - probabilities(net(x_U), "l2").amax(1).numpy()
    return Shortlist(cover, at_S, error_U, size, seed=0)


def test_watched_points_are_drawn_with_their_chances():
    g = np.random.default_rng(0)
    error_U = np.concatenate([g.random(90) * 0.01, [0.9] * 3])
    drawn, sums = np.zeros(93), []
    for seed in range(400):
        s = sample_watched(error_U, 20, 5, seed)
        assert len({*s.at_W, *s.at_H}) == 25
        drawn[s.at_W] += 1
        sums.append([(error_U[at] / chance).sum() for at, chance in ((s.at_W, s.chance_W), (s.at_H, s.chance_H))])
    chance_U = {
        int(j): c for s in [sample_watched(error_U, 20, 5, k) for k in range(50)] for j, c in zip(s.at_W, s.chance_W)
    }
    for j, chance in chance_U.items():
        assert abs(drawn[j] / 400 - chance) < 5 * np.sqrt(chance / 400), j
    assert np.mean(sums, 0) == pytest.approx([error_U.sum()] * 2, rel=0.03)  # neither estimate has a bias
    assert drawn[-3:].min() > 2 * drawn[:90].mean()


def test_no_error_anywhere_is_a_uniform_sample():
    s = sample_watched(np.zeros(50), 10, 5, 0)
    assert s.chance_W == pytest.approx(np.full(10, 0.2))


def test_watched_candidates_are_not_preferred():
    """Points that are like no other cover little but themselves, and of that the pass knows nothing."""
    x = torch.randn(600, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    net = nn.Linear(200, 3).double().eval()
    q = ft.query(net, None, None, x, batch_size=5, method="streamed", watch=150, options={"space": "inputs"})
    watched = np.isin(np.arange(600), sample_watched(np.zeros(600), 150, 0, 0).at_W)
    assert abs(float(q.scores[watched].mean() - q.scores[~watched].mean())) < 0.02 * 0.5  # e = 1/2


def test_how_near_candidates_come_to_being_picked():
    k = torch.tensor([[1.0, 0, 0], [0.9, 0, 0], [0, 0.8, 0], [0, 0.4, 0], [0, 0, 0.1]], dtype=torch.float64)
    near_U = torch.zeros(5).double()
    picks, _ = cover_greedily(lambda at: k[at], torch.zeros(3).double(), 5, 2, torch.Generator(), near_U=near_U)
    assert picks.tolist() == [0, 2]
    assert_close(near_U, torch.tensor([1.0, 0.0, 1.0, 0.5, 0.125]).double())


@pytest.mark.parametrize("seed", range(6))
def test_many_at_a_time_are_the_same_picks(seed):
    """``LazyGainsTensor`` against ``LazyGains``; half of the candidates have a copy, so gains are equal."""
    g = torch.Generator().manual_seed(seed)
    k = (torch.rand(900, 40, generator=g) ** 8).double()
    k[450:] = k[:450]
    order_U, asked = torch.randperm(900, generator=g), []

    def rows(at):
        asked.append(len(at))
        return k[at]

    picks = [
        cover_greedily(
            rows, torch.zeros(40).double(), 900, 30, g, order_U=order_U, look=look, equal=1e-9 * (seed % 2)
        )[0].tolist()
        for look in (4, 256)
    ]  # fmt: skip
    assert picks[0] == picks[1]
    assert len({*picks[0]}) == 30
    exhausted = cover_greedily(rows, torch.ones(40).double(), 900, 7, g, order_U=order_U, look=256)[0]
    assert exhausted.tolist() == order_U[:7].tolist()


# --- sketches ---


def pictures(dtype: torch.dtype = torch.float32):
    """A small convolutional network, its labelled points, and a pool of 420."""
    g = torch.Generator().manual_seed(0)
    x = nn.functional.avg_pool2d(torch.randn(440, 2, 9, 9, generator=g), 3, 1, 1).to(dtype)
    y = (x.mean((1, 2, 3)) > 0).long() + (x[:, 0].mean((1, 2)) > 0).long()
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(2, 24, 3), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 24, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(96, 3),
    ).to(dtype)  # fmt: skip
    ft.fit(net, x[:20], y[:20], steps=60, seed=0)
    return net.eval(), x[:20], y[:20], x[20:]


def literal_pictures_value(sets, batch) -> float:
    return literal_value(covered_errors(ft.linearize(*sets, output="signs", ridge="misfit"), space="tangent"), batch)


@pytest.mark.parametrize("watch", [150, None], ids=["a sample", "all"])
def test_a_batch_by_sketches_is_near_dense(watch, monkeypatch):
    monkeypatch.setattr("foretaste.pick.streamed.SKETCHED", 1000)
    monkeypatch.setattr("foretaste.pick.streamed.SKETCH_SIDE", 16)
    monkeypatch.setattr("foretaste.pick.streamed.SHORTLIST", 60)
    monkeypatch.setattr("foretaste.pick.streamed.SHORTLIST_EACH", 6)
    sets, how = pictures(), {"batch_size": 10, "options": {"space": "tangent"}}
    q = ft.query(*sets, **how, method="streamed", watch=watch)
    assert q.info["sketch"] == 256
    assert q.info["shortlist"] <= 60
    assert q.info["sample"] == 420
    best = literal_pictures_value(sets, ft.query(*sets, **how, method="dense").indices)
    true = literal_pictures_value(sets, q.indices)
    assert true > 0.95 * best
    assert q.info["batch_value"]["watched"] == pytest.approx(true, rel=1e-4)  # κ of the shortlist is exact


@pytest.mark.parametrize("side", [4, 16])
def test_the_recall_of_sketches_is_told(side, monkeypatch, caplog):
    """All candidates are looked at here. Typed out from both scores: how many of the exact top tenth are found."""
    monkeypatch.setattr("foretaste.pick.streamed.SKETCHED", 1000)
    monkeypatch.setattr("foretaste.pick.streamed.SKETCH_SIDE", side)
    monkeypatch.setattr("foretaste.pick.streamed.ENOUGH_RECALL", 0)
    monkeypatch.setattr("foretaste.acquire.sampled_cover.RECALL_POINTS", 512)
    sets, how = pictures(), {"batch_size": 10, "options": {"space": "tangent"}}
    exact = ft.query(*sets, **how, method="dense").scores.tolist()
    with caplog.at_level(logging.INFO, logger="foretaste"):
        q = ft.query(*sets, **how, method="streamed")
    ours, told = q.scores.tolist(), q.info["sketch_recall"]
    assert (told["points"], told["top"]) == (420, 42)
    best, found = (sorted(range(420), key=lambda j: -of[j]) for of in (exact, ours))
    for name, k in (("recall", 42), ("among_twice", 84)):
        assert told[name] == pytest.approx(len({*best[:42]} & {*found[:k]}) / 42, abs=1.5 / 42)  # Θ is in float32
    assert told["recall"] <= told["among_twice"] <= 1
    assert told["kappa_error"] < 1.5 / side
    assert f"sketches have {100 * told['among_twice']:.0f} % of the exact top 42" in caplog.text
    assert q.info["landmarks"] == 0
    monkeypatch.setattr("foretaste.pick.streamed.ENOUGH_RECALL", 1.1)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="foretaste"):
        better = ft.query(*sets, **how, method="streamed").info
    assert better["landmarks"] == 64
    assert "with the exact part of 64 points" in caplog.text
    assert better["sketch_recall"]["kappa_error"] < told["kappa_error"] / 2
    assert better["sketch_recall"]["recall"] >= told["recall"]
    assert better["sketch_recall"]["among_twice"] > 0.95


def test_exact_kappa_is_that_of_held_tangents():
    net, x_L, y_L, x_U = pictures(torch.float64)

    def linearise(x, candidates, eager):
        return ft.linearize(net, x_L, y_L, x[:candidates], watch=x, output="signs", ridge="misfit")

    for x_l in (x_L, None):
        pool = sliced_tensors(x_U, "x_U")
        cover = StreamedCover(linearise, freeze(net, output="signs"), x_l, x_U, pool, space="tangent")
        kappa_nB, covered_n = cover.exact_kappa(x_U[:30], x_U[7:12])
        assert_close(kappa_nB, cover.centred.hold(x_U[7:12]).rows(x_U[:30]), rtol=0, atol=1e-9)
        assert_close(covered_n, cover.covered(x_U[:30]), rtol=0, atol=1e-9)
        assert isinstance(cover.exact_mean, MeanTangent)


class NoForwardMode(torch.autograd.Function):
    """The identity, of which autograd knows no derivative in forward mode."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_exact_kappa_without_a_forward_mode(caplog):
    """Products with the mean tangent come from tangents that are formed."""
    net, x_L, y_L, x_U = pictures(torch.float64)
    caplog.set_level("INFO", "foretaste")
    pool = sliced_tensors(x_U, "x_U")

    class Through(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return NoForwardMode.apply(self.net(x))

    found = []
    for own in (net, Through().eval()):

        def linearise(x, candidates, eager, own=own):
            return ft.linearize(own, x_L, y_L, x[:candidates], watch=x, output="signs", ridge="misfit")

        cover = StreamedCover(linearise, freeze(own, output="signs"), x_L, x_U, pool, space="tangent")
        found.append(cover.exact_kappa(x_U[:9], x_U[7:12]))
    assert isinstance(cover.exact_mean, CentredTangents)
    assert "are formed, for their products with the mean" in caplog.text
    for ours, plain in zip(found[1], found[0]):
        assert_close(ours, plain, rtol=0, atol=1e-9)


def test_sketches_that_are_not_kept_are_made_again(monkeypatch, caplog):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("foretaste.pick.streamed.SKETCHED", 1000)
    sets, how = pictures(), {"batch_size": 10, "options": {"space": "tangent"}, "method": "streamed", "watch": 150}
    kept = ft.query(*sets, **how)
    monkeypatch.setattr("os.posix_fallocate", full)
    again = ft.query(*sets, **how)
    assert "sketches are not kept ([Errno 28] No space left on device)" in caplog.text
    assert again.indices.tolist() == ft.query(*sets, **how, executor="serial").indices.tolist()  # nor are they there
    assert again.info["batch_value"]["watched"] == pytest.approx(kept.info["batch_value"]["watched"], rel=0.02)


# --- chunks, budgets, memory ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_chunks_do_not_change_the_picks(dtype, monkeypatch):
    net, x_L, y_L, x_U = problem(700, dtype)
    picks = []
    for chunk in (4096, 256, 64):
        monkeypatch.setitem(STREAM_CHUNK, "cpu", chunk)
        q = ft.query(net, x_L, y_L, x_U, batch_size=15, method="streamed", watch=100)
        picks.append(q.indices.tolist())
    assert picks[0] == picks[1] == picks[2]


def test_a_budget_does_not_change_the_picks():
    picks = [ask(watch=60, budget=b).indices.tolist() for b in (None, "50MB", "2MB")]
    assert picks[0] == picks[1] == picks[2]


def test_fewer_points_are_watched_where_their_tangents_do_not_fit(caplog):
    net, x_L, y_L, x_U = problem(1500, torch.float32)
    with caplog.at_level(logging.WARNING, "foretaste"):
        q = ft.query(net, x_L, y_L, x_U, batch_size=5, budget="8MB")
    assert q.info["method"] == "streamed"
    assert 200 < q.info["watched"] < 500
    assert "do not fit into a budget of 8 MB" in caplog.text


@pytest.mark.parametrize("room", [0, 7, 20])
def test_rows_are_kept_while_there_is_room(room):
    truth_UW, read = torch.randn(20, 3), list[int]()

    def rows(at_n):
        read.extend(at_n.tolist())
        return truth_UW[at_n]

    kept = KeptRows(torch.empty(room, 3), torch.full((20,), -1, dtype=torch.int32))
    g = torch.Generator().manual_seed(0)
    for _ in range(30):
        at_n = torch.randperm(20, generator=g)[:5]
        assert torch.equal(kept(at_n, rows), truth_UW[at_n])
    assert kept.used <= room
    assert len(read) == {0: 150, 20: 20}.get(room, len(read))
    assert len(set(read[: kept.used])) == kept.used  # what is kept was read once


def test_memory_does_not_grow_with_the_pool(tmp_path, monkeypatch):
    monkeypatch.setitem(SHORTLIST_NUMBERS, "cpu", 1 << 16)
    monkeypatch.setitem(KEPT_ROWS, "cpu", 1000)
    net, x_L, y_L, _ = problem(60, torch.float32)
    peaks = {}
    for rows in (10_000, 40_000):
        x = np.lib.format.open_memmap(tmp_path / f"{rows}.npy", "w+", np.float16, (rows, D))
        x[:] = np.random.default_rng(0).normal(size=(rows, D))
        with PeakMemory() as memory:
            q = ft.query(net, x_L, y_L, x, batch_size=5, method="streamed", watch=128)
        assert len(q) == 5
        peaks[rows] = memory.peak
    assert peaks[40_000] - peaks[10_000] < 64 * 30_000  # a few numbers a candidate
    assert peaks[40_000] < 40_000 * 128 * 4 / 2  # nothing of size U × W


def test_a_file_larger_than_the_budget_is_streamed_by_default(tmp_path, caplog):
    net, x_L, y_L, _ = problem(60, torch.float32)
    np.save(tmp_path / "pool.npy", np.random.default_rng(0).normal(size=(120_000, D)).astype(np.float32))
    x = np.load(tmp_path / "pool.npy", mmap_mode="r")
    with caplog.at_level(logging.INFO, "foretaste"):
        q = ft.query(net, x_L, y_L, x, batch_size=5, budget="5MB")
    assert x.nbytes > 5_000_000
    assert q.info["method"] == "streamed"
    assert f"streamed: 120000 candidates against {q.info['watched']} watched points" in caplog.text
    assert ft.query(net, x_L, y_L, x[:300], batch_size=5).info["method"] == "dense"


def test_dense_that_turns_out_not_to_fit_is_streamed():
    net, x_L, y_L, x_U = problem(820, torch.float32)
    budget = 8 * 805 * 825 + 500_000  # Θ alone would fit
    assert ft.query(net, x_L, y_L, x_U, batch_size=5, budget=budget).info["method"] == "streamed"
    with pytest.raises(ValueError, match=r"a budget of .* is too small"):
        ft.query(net, x_L, y_L, x_U, batch_size=5, budget=budget, method="dense")


# --- sources ---


class Squares(Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], 0


@pytest.mark.parametrize(
    "source",
    [
        lambda x: x.numpy(), Squares, lambda x: TensorDataset(x, torch.zeros(len(x))),
        lambda x: DataLoader(TensorDataset(x), batch_size=7), lambda x: x.half(),
    ],
    ids=["array", "dataset", "pairs", "loader", "half"],
)  # fmt: skip
def test_every_source_gives_the_same_picks_and_ids(source):
    net, x_L, y_L, x_U = problem(160, torch.float32)
    x_U = x_U.half().float()
    ids = [f"p{i}" for i in range(len(x_U))]
    want = ft.query(net, x_L, y_L, x_U, batch_size=7, method="streamed", watch=80, ids=ids)
    got = ft.query(net, x_L, y_L, source(x_U), batch_size=7, method="streamed", watch=80, ids=ids)
    assert got.ids == want.ids == [f"p{j}" for j in want.indices]


def write_rows(folder, kind, x):
    pa = pytest.importorskip("pyarrow", reason="Parquet and Arrow files need pyarrow")
    from pyarrow import parquet

    ids, y = pa.array([f"p{i}" for i in range(len(x))]), pa.array([0] * len(x))
    if "lists" in kind:
        columns = {"id": ids, "f": pa.FixedSizeListArray.from_arrays(pa.array(x.numpy().ravel()), D), "label": y}
    else:
        columns = {"id": ids, **{f"c{k}": pa.array(x[:, k].numpy()) for k in range(D)}, "y": y}
    path = folder / f"pool.{kind.split()[0]}"
    if path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path, row_group_size=40)
    else:
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, pa.table(columns).schema) as file:
            file.write_table(pa.table(columns), max_chunksize=40)
    return path


@pytest.mark.parametrize("kind", ["parquet", "parquet lists", "arrow lists", "feather"])
def test_parquet_and_arrow_files_are_pools(kind, tmp_path):
    net, x_L, y_L, x_U = problem(160, torch.float32)
    path = write_rows(tmp_path, kind, x_U)
    want = ft.query(net, x_L, y_L, x_U, batch_size=7, method="streamed", watch=80)
    for given in (path, str(path)):
        got = ft.query(net, x_L, y_L, given, batch_size=7, method="streamed", watch=80)
        assert got.ids == [f"p{j}" for j in want.indices]
        assert got.indices.tolist() == want.ids
    assert ft.query(net, x_L, y_L, path, batch_size=7).info["method"] == "dense"


def test_a_parquet_file_is_read_by_every_process_itself(tmp_path):
    """It travels by its name: no points, and no ids."""
    path = write_rows(tmp_path, "parquet", X_U.float())
    pool = sliced_points(path, "x_U", point_format(NET))
    assert not pool.in_memory
    assert pool.ids[3] == "p3"
    assert pool.file == str(path)
    sent = cloudpickle.dumps(pool)
    assert len(sent) < 4000  # of 145 × 12 numbers
    there = cloudpickle.loads(sent)
    assert torch.equal(there.take([7, 3]), pool.take([7, 3]))
    known = pool_digest(pool)
    assert pool_digest(there) == known
    plain = ask(path, watch=60)
    q = ask(path, watch=60, executor=ft.Executor("serial", folder=tmp_path, shard_points=4096))
    assert q.ids == plain.ids
    os.utime(path, ns=(1, 1))
    assert pool_digest(sliced_points(path, "x_U", point_format(NET))) != known


def test_a_full_disk_of_temporary_files_says_what_to_do(tmp_path, monkeypatch):
    class Full(io.BytesIO):
        def write(self, raw):
            raise OSError(errno.ENOSPC, "No space left on device")

    path = write_rows(tmp_path, "parquet", X_U)
    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    with pytest.raises(OSError, match=r"the disk is full, and x_U, pool\.parquet, .* free some space .*TMPDIR") as told:
        ask(path)
    assert told.value.errno == errno.ENOSPC


def test_an_item_that_cannot_be_read_is_named():
    class Torn(Squares):
        def __getitem__(self, i):
            if i == 123:
                raise OSError("the disk is gone")
            return super().__getitem__(i)

    net, x_L, y_L, x_U = problem(160, torch.float32)
    with pytest.raises(OSError, match="the disk is gone") as told:
        ft.query(net, x_L, y_L, Torn(x_U), batch_size=7, method="streamed", watch=80)
    assert told.value.__notes__ == ["while item 123 of x_U was read"]


def test_what_is_wrong_with_a_parquet_file_is_told(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow", reason="Parquet and Arrow files need pyarrow")
    from pyarrow import parquet

    for columns, said in (
        ({"a": [1.0], "word": ["x"]}, r"columns that are not numbers: word \(string\)"),
        ({"f": [[1.0, 2.0], [1.0]]}, "lists of 1 to 2 numbers; expected one length"),
        ({"f": [[1.0], None]}, "rows without a list in column 'f'"),
        ({"f": [[1.0]], "g": [[1.0]]}, "several columns of lists, f, g; keep one"),
        ({"a": pa.array([], pa.float32())}, "has no points"),
    ):
        parquet.write_table(pa.table(columns), tmp_path / "bad.parquet")
        with pytest.raises(ValueError, match=said):
            ask(tmp_path / "bad.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"bad\.parquet cannot be read"):
        ask(tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match=r"none\.arrow cannot be read"):
        ask(tmp_path / "none.arrow")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"needs the package pyarrow: pip install 'foretaste\[parquet\]'"):
        ask(tmp_path / "bad.parquet")


def test_lists_of_a_hugging_face_dataset_are_read_many_at_a_time():
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    net, x_L, y_L, x_U = problem(160, torch.float32)
    source = datasets.Dataset.from_dict({"f": x_U.tolist(), "label": [0] * len(x_U)})
    read = sliced_points(source, "x_U", point_format(net))
    assert torch.equal(read.take([3, 1]), x_U[[3, 1]])
    assert torch.equal(read.take(slice(4, 9)), x_U[4:9])
    want = ft.query(net, x_L, y_L, x_U, batch_size=7, method="streamed", watch=80)
    assert ft.query(net, x_L, y_L, source, batch_size=7, method="streamed", watch=80).ids == want.ids


@pytest.mark.parametrize("watch", [None, 60])
@pytest.mark.parametrize(
    "settings", [{}, {"select": "top"}, {"strategy": "margin"}, {"strategy": "random"}, {"executor": "serial"}], ids=str
)
def test_progress_is_one_scale_and_its_end_the_last_call(settings, watch, monkeypatch):
    monkeypatch.setitem(STREAM_CHUNK, "cpu", 50)
    said = []
    ask(progress=lambda done, total: said.append((done, total)), watch=watch, **settings)
    assert said == sorted(said)
    assert {total for _, total in said} == {len(X_U) + 12}
    assert [done for done, _ in said].count(len(X_U) + 12) == 1


def test_every_phase_of_a_cover_on_a_sample_moves_the_progress(monkeypatch):
    """None is silent: the forward pass, the pass, the first batch, and each sample that chooses again."""
    said, phases = [], []

    def note(name, real, *at):
        def call(*given, **named):
            before = len(said)
            found = real(*given, **named)
            phases.append((name, said[before:]))
            return found

        return call

    monkeypatch.setitem(STREAM_CHUNK, "cpu", 250)
    for name in ("error_of_outputs", "pick_covering", "pick_twice"):
        monkeypatch.setattr(streamed, name, note(name, getattr(streamed, name)))
    monkeypatch.setattr(StreamedCover, "coverage", note("pass", StreamedCover.coverage))
    monkeypatch.setattr(Shortlist, "value", note("value", Shortlist.value))
    ask_sampled(monkeypatch, agreed=-9.0, progress=lambda done, total: said.append(done))  # the sample doubles
    moved = [(name, len({*told})) for name, told in phases if name not in ("pick_covering", "pick_twice")]
    assert [name for name, _ in moved] == ["error_of_outputs", "pass", *["value"] * (len(moved) - 2)]
    assert len(moved) > 4
    assert all(steps for _, steps in moved[:-1])  # all of the pool is watched at last, and nothing is held out
    first_batch = next(told for name, told in phases if name == "pick_covering")
    assert len({*first_batch}) > 12
    again = next(told for name, told in phases if name == "pick_twice")
    assert again[-1] == 1197
    assert max(first_batch) < again[-2] < 1197
    assert said[-1] == 1197


def test_all_that_a_streamed_cover_takes_is_told_before_the_pass(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "foretaste")
    told = []
    real = StreamedCover.coverage
    monkeypatch.setattr(StreamedCover, "coverage", lambda *given: told.append(caplog.text) or real(*given))
    ask_sampled(monkeypatch)
    assert re.search(
        r"streamed: 1185 candidates against 200 watched points; about .+ \(.+ so far, .+ for the pass over the pool, "
        r".+ for the picks\), and .+B\n", told[0]
    )  # fmt: skip


def test_samples_double_until_they_have_the_pool_or_memory_ends():
    """Typed out: all of the rest where twice the sample would be more than it; less where memory is short."""
    assert SecondStep(1000, 40, 10**6, 100, 1000).sizes(40) == [100, 200, 400, 960]
    assert SecondStep(1000, 40, 40 * 340, 100, 1000).sizes(40) == [100, 200, 300]
    assert SecondStep(1000, 40, 10**6, 100, 150).sizes(40) == [100, 150]
    assert SecondStep(40, 40, 10**6, 100, 40).sizes(40) == [0]
    assert SecondStep(1000, 40, 10**6, 100, 150).work(40) == (40 + 100 + 100) + (40 + 150 + 150)
    assert SecondStep(1000, 40, 10**6, 500, 1000).work(40) == 40 + 960


def test_a_source_reads_only_what_is_asked_for():
    read = []

    class Watched(Squares):
        def __getitem__(self, i):
            read.append(i)
            return super().__getitem__(i)

    source = sliced_points(Watched(X_U), "x_U", point_format(NET))
    assert isinstance(source, SlicedPoints)
    assert torch.equal(source.take([3, 1]), X_U[[3, 1]])
    assert read == [3, 1]
    assert [at for at, _ in source.chunks(100)] == [slice(0, 100), slice(100, 145)]


# --- errors ---


def test_a_nan_is_told_with_its_row():
    x = X_U.numpy().copy()
    x[131, 3] = np.nan
    with pytest.raises(ValueError, match=r"x_U has 1 NaN or infinite values.*first in point 131"):
        ask(x, watch=50)
    with pytest.raises(ValueError, match=r"first in point 131"):
        ask(torch.from_numpy(x), watch=50)


def test_what_cannot_be_streamed_says_what_can():
    with pytest.raises(ValueError, match=r"method=\"streamed\" is for cover .*strategy 'gain' with select='greedy'"):
        ask(strategy="gain")
    with pytest.raises(ValueError, match=r"needs all points at once\. These read a pool in chunks: cover"):
        ft.query(NET, X_L, Y_L, X_U.numpy(), strategy="badge", budget=10_000, method="dense")
    with pytest.raises(ValueError, match=r"streamed.* is a way to pick, of ft\.query"):
        ft.linearize(NET, X_L, Y_L, X_U, method="streamed")


def test_a_batch_larger_than_the_pool_takes_all(caplog):
    q = ask(X_U[:9], batch_size=12)
    assert sorted(q.indices.tolist()) == list(range(9))
    assert "all of it is picked" in caplog.text


def test_scores_on_a_sample_are_those_of_dense_without_bias():
    """Of ``select="top"``: what a candidate adds for others, in the mean over samples, within the error of that."""
    W, U, how = 200, len(SETS[3]), {"select": "top", "options": {"space": "tangent"}}
    F = covered_errors(ft.linearize(*SETS, output="signs", ridge="misfit"), space="tangent")
    dense = ft.query(*SETS, batch_size=12, method="dense", **how)
    own_U = F.weight_W * (1 - F.covered_W)  # of itself a candidate that is not watched knows nothing
    want_U = (dense.scores - own_U)[5:]  # the first five are copies of labelled points
    asked = [ft.query(*SETS, batch_size=12, method="streamed", watch=W, seed=s, **how) for s in range(24)]
    told = torch.stack([q.scores[5:] * U / W for q in asked])
    off, error = told.mean(0) - want_U, told.std(0) / len(told) ** 0.5
    assert abs(float(off.mean())) < 3 * float(told.mean(1).std()) / len(told) ** 0.5
    assert float((off.abs() < 2.5 * error).double().mean()) > 0.95
    for q in asked:
        assert q.info["batch_value"].keys() == {"watched"}
        assert q.indices.tolist() == q.scores.topk(12).indices.tolist()
    best = literal_value(F, dense.indices)
    assert np.mean([literal_value(F, q.indices) for q in asked]) > 0.8 * best
