"""Pools that are read in chunks: the answer is dense's where all is watched, and an honest estimate with a sample."""

import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset, TensorDataset

import foretaste as ft
from foretaste.acquire import cover_greedily, covered_errors, sample_watched
from foretaste.given import SlicedPoints
from foretaste.tangent import PeakMemory

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


def literal_value(F, batch, itself: bool) -> float:
    """What a batch adds to F over the whole pool, a point; without what picked points add by covering ``itself``."""
    kappa2_BU = F.rows(torch.as_tensor(batch)).double()
    if not itself:
        kappa2_BU[torch.arange(len(batch)), batch] = 0
    return float(((kappa2_BU.amax(0) - F.covered_W).clamp_min(0) * F.weight_W).mean())


def test_the_value_of_a_sampled_batch_is_estimated_and_near_dense():
    sets = problem(1200)
    F = covered_errors(ft.linearize(*sets, output="signs", ridge="misfit"))
    best = literal_value(F, ft.query(*sets, batch_size=12, method="dense").indices.tolist(), itself=True)
    for seed in range(3):
        q = ft.query(*sets, batch_size=12, seed=seed, method="streamed", watch=600)
        told, true = q.info["batch_value"], literal_value(F, q.indices.tolist(), itself=False)
        assert abs(told["held_out"] - true) < 4 * told["error"]
        assert 0.95 * true < told["watched"] < 1.3 * true  # mostly too high: the batch was chosen by it
        assert literal_value(F, q.indices.tolist(), itself=True) > 0.9 * best


def test_watched_points_are_drawn_with_their_chances():
    g = np.random.default_rng(0)
    error_U = np.concatenate([g.random(90) * 0.01, [0.9] * 3])
    drawn, sums = np.zeros(93), []
    for seed in range(400):
        s = sample_watched(error_U, 20, 5, seed)
        assert len({*s.at_W, *s.at_H}) == 25
        drawn[s.at_W] += 1
        sums.append((error_U[s.at_W] / s.chance_W).sum())
    chance_U = {
        int(j): c for s in [sample_watched(error_U, 20, 5, k) for k in range(50)] for j, c in zip(s.at_W, s.chance_W)
    }
    for j, chance in chance_U.items():
        assert abs(drawn[j] / 400 - chance) < 5 * np.sqrt(chance / 400), j
    assert np.mean(sums) == pytest.approx(error_U.sum(), rel=0.02)  # the estimate has no bias
    assert drawn[-3:].min() > 2 * drawn[:90].mean()


def test_no_error_anywhere_is_a_uniform_sample():
    s = sample_watched(np.zeros(50), 10, 5, 0)
    assert s.chance_W == pytest.approx(np.full(10, 0.2))


def test_a_watched_candidate_stands_for_itself_once():
    """Points that are like no other cover little but themselves: one point of 600, of which 150 are watched."""
    x = torch.randn(600, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    net = nn.Linear(200, 3).double().eval()
    q = ft.query(net, None, None, x, batch_size=5, method="streamed", watch=150, options={"space": "inputs"})
    watched = np.isin(np.arange(600), sample_watched(np.zeros(600), 150, 37, 0).at_W)
    more = q.scores[watched].mean() - q.scores[~watched].mean()
    assert abs(float(more) - 0.5 * 150 / 600) < 0.03  # e = 1/2


def test_a_pick_that_is_watched_is_covered_by_itself():
    rows = torch.tensor([[0.0, 0.5], [1.0, 0.0], [0.4, 0.6]], dtype=torch.float64)  # 0 is watched point 0
    picks, _ = cover_greedily(
        lambda at: rows[at], torch.zeros(2).double(), 3, 2, torch.Generator(), own=lambda j: 0 if j == 0 else None,
        first_U=torch.tensor([9.0, 1.0, 1.0]),
    )  # fmt: skip
    assert picks.tolist() == [0, 2]  # 1 would cover point 0, which is labelled now


# --- chunks, budgets, memory ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_chunks_do_not_change_the_picks(dtype, monkeypatch):
    net, x_L, y_L, x_U = problem(700, dtype)
    picks = []
    for chunk in (4096, 256, 64):
        monkeypatch.setattr("foretaste.acquire.sampled_cover.STREAM_CHUNK", chunk)
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


def test_memory_does_not_grow_with_the_pool(tmp_path):
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
        lambda x: DataLoader(TensorDataset(x), batch_size=7),
    ],
    ids=["array", "dataset", "pairs", "loader"],
)  # fmt: skip
def test_every_source_gives_the_same_picks_and_ids(source):
    net, x_L, y_L, x_U = problem(160, torch.float32)
    ids = [f"p{i}" for i in range(len(x_U))]
    want = ft.query(net, x_L, y_L, x_U, batch_size=7, method="streamed", watch=80, ids=ids)
    got = ft.query(net, x_L, y_L, source(x_U), batch_size=7, method="streamed", watch=80, ids=ids)
    assert got.ids == want.ids == [f"p{j}" for j in want.indices]


def test_progress_counts_points_and_then_picks():
    said = []
    ask(progress=lambda done, total: said.append((done, total)))
    assert said == sorted(said)
    assert {total for _, total in said} == {len(X_U) + 12}
    assert said[-1] == (len(X_U) + 12, len(X_U) + 12)


def test_a_source_reads_only_what_is_asked_for():
    read = []

    class Watched(Squares):
        def __getitem__(self, i):
            read.append(i)
            return super().__getitem__(i)

    from foretaste.given import point_format, sliced_points

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
        ft.query(NET, X_L, Y_L, X_U.numpy(), strategy="badge", budget=10_000)
    with pytest.raises(ValueError, match=r"streamed.* is a way to pick, of ft\.query"):
        ft.linearize(NET, X_L, Y_L, X_U, method="streamed")


def test_a_batch_larger_than_the_pool_takes_all(caplog):
    q = ask(X_U[:9], batch_size=12)
    assert sorted(q.indices.tolist()) == list(range(9))
    assert "all of it is picked" in caplog.text
