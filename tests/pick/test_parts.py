"""Large batches: greedy in parts of near points, against the same typed with loops, and against plain greedy."""

import logging
import multiprocessing

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import foretaste as ft
import strategy_oracles as oracles
from foretaste.acquire import covered_errors
from foretaste.pick import parts as parts_module
from foretaste.pick import streamed
from foretaste.pick.parts import PoolParts, chain

CLUSTERS, D, L = 30, 10, 24


@pytest.fixture(scope="module")
def problem():
    """A trained head, its labelled points, and 300 points in clusters; the first five are copies of labelled ones."""
    g = torch.Generator().manual_seed(0)
    means = torch.randn(CLUSTERS, D, generator=g, dtype=torch.float64)
    of = torch.randint(CLUSTERS, (319,), generator=g)
    x = means[of] + 0.4 * torch.randn(319, D, generator=g, dtype=torch.float64)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(D, 32), nn.ReLU(), nn.Linear(32, 3)).double()
    ft.fit(net, x[:L], of[:L] % 3, steps=150, seed=0)
    return net, x[:L], of[:L] % 3, x[L - 5 :]


@pytest.fixture
def made(monkeypatch) -> list[PoolParts]:
    """Every batch of more than ten is large, parts have 50 points; the parts of a query come here."""
    monkeypatch.setattr(streamed, "LARGE_BATCH", 10)
    monkeypatch.setitem(parts_module.PART_POINTS, "cpu", 50)
    found, pick = [], PoolParts.pick
    monkeypatch.setattr(PoolParts, "pick", lambda self, *given: found.append(self) or pick(self, *given))
    return found


def ask(problem, n: int = 30, **settings):
    return ft.query(*problem, **{"batch_size": n, "method": "streamed", "watch": 80} | settings)


def exact(problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    F = covered_errors(ft.linearize(*problem, output="signs", ridge="misfit"))
    return F.rows(torch.arange(len(problem[3]))), F.covered_W, F.weight_W


def worth(problem, indices) -> float:
    kappa2_UU, covered_U, weight_U = exact(problem)
    return float(((kappa2_UU[torch.as_tensor(indices)].amax(0) - covered_U).clamp_min(0) * weight_U).mean())


@pytest.mark.parametrize("deeper", [2, 0.01])  # with the second, parts have to be grown again
def test_a_large_batch_is_the_best_of_greedy_in_each_part(problem, made, deeper, monkeypatch):
    monkeypatch.setattr(parts_module, "DEEPER", deeper)
    q = ask(problem)
    (own,) = made
    kappa2_UU, covered_U, weight_U = exact(problem)
    assert_close(own.weight_U, weight_U, rtol=1e-9, atol=1e-12)
    assert_close(own.covered_U, covered_U, rtol=1e-9, atol=1e-12)
    parts = [at_P.tolist() for at_P in own.parts]
    given = kappa2_UU.tolist(), covered_U.tolist(), weight_U.tolist()
    expect = oracles.greedy_in_parts(*given, parts, [0, 1, 2, 3, 4], 30)
    assert q.indices.tolist() == expect
    assert q.info["parts"] == len(own.parts) == 6
    assert q.info["watched"] == len(problem[3])


def test_parts_are_of_near_points(problem, made, monkeypatch):
    """Typed out: points by their nearest centre along the chain, then by the second nearest, cut into equal parts."""
    held, hold = [], parts_module.hold_centres
    monkeypatch.setattr(parts_module, "hold_centres", lambda *given: held.append(hold(*given)) or held[0])
    ask(problem)
    (centres, place_M), (own,) = held[0], made
    kappa_UM, U = centres.rows(problem[3]), len(problem[3])
    keys = []
    for i in range(U):
        nearest = sorted(range(len(centres)), key=lambda m: -float(kappa_UM[i, m]))
        keys.append((int(place_M[nearest[0]]), int(place_M[nearest[1]]), i))
    order = [i for _, _, i in sorted(keys)]
    start = 0
    for at_P in own.parts:
        assert at_P.tolist() == sorted(order[start : start + len(at_P)])
        start += len(at_P)
    assert start == U
    assert max(map(len, own.parts)) - min(map(len, own.parts)) <= 1


def test_a_chain_goes_to_the_nearest_that_is_left():
    at = torch.tensor([0.0, 5.0, 1.0, 9.0, 2.5])
    assert chain(-(at[:, None] - at).abs()) == [0, 2, 4, 1, 3]


def test_one_part_is_plain_greedy(problem, made, monkeypatch):
    monkeypatch.setitem(parts_module.PART_POINTS, "cpu", 10_000)
    dense, large = ask(problem, method="dense", watch=None), ask(problem)
    assert large.indices.tolist() == dense.indices.tolist()
    assert_close(large.scores, dense.scores, rtol=1e-9, atol=1e-12)


def test_what_parts_lose_against_plain_greedy(problem, made):
    """At most 3 % here, of what is 30 % for a random batch. On real data: docs/scaling-notes.md."""
    plain = worth(problem, ask(problem, method="dense", watch=None).indices)
    value = worth(problem, ask(problem).indices)
    random = np.mean([worth(problem, np.random.default_rng(s).permutation(300)[:30]) for s in range(5)])
    assert 0.97 * plain <= value <= plain * (1 + 1e-9)
    assert random < 0.8 * plain


def test_the_value_that_is_told_is_that_of_the_batch(problem, made, monkeypatch):
    q = ask(problem)
    value, true = q.info["batch_value"], worth(problem, q.indices)
    assert value["held_out"] == pytest.approx(true, rel=1e-9)  # all points are looked at
    assert value["error"] == 0
    assert 0.9 * true < value["watched"] <= true
    monkeypatch.setattr(parts_module, "VALUED", 100)
    value = ask(problem).info["batch_value"]
    assert 0 < value["error"] < 0.2 * true
    assert abs(value["held_out"] - true) < 3 * value["error"]


def test_copies_of_labelled_points_come_last_and_nothing_comes_twice(problem, made):
    q = ask(problem, n=len(problem[3]))
    assert sorted(q.indices.tolist()) == list(range(len(problem[3])))
    assert {*q.indices[-5:].tolist()} == {*range(5)}
    assert q.scores[:5].eq(-torch.inf).all()
    assert q.info["batch_value"]["error"] == 0


def test_points_that_add_nothing_fill_up_at_random(problem, made):
    net, x_L, y_L, x_U = problem
    few = net, x_L, y_L, x_U[5:35].repeat(10, 1)  # thirty points, ten times each
    q = ask(few, n=100)
    assert len({*q.indices.tolist()}) == 100
    assert worth(few, q.indices[:60]) == pytest.approx(worth(few, range(300)), rel=1e-9)  # a cut may part ten copies


def test_it_is_told_and_the_answer_is_the_same_again(problem, made, caplog):
    calls: list[tuple[int, int]] = []
    with caplog.at_level(logging.INFO, logger="foretaste"):
        one = ask(problem, progress=lambda *done: calls.append(done))
    assert "grown in 6 parts of the pool, of 50 points" in caplog.text
    done = [at for at, _ in calls]
    assert {of for _, of in calls} == {len(problem[3]) + 30}
    assert done == sorted(done)
    assert done.count(len(problem[3]) + 30) == 1
    assert ask(problem).indices.tolist() == one.indices.tolist()


def in_shards(problem, folder, kind="serial", workers=None, **settings):
    return ask(problem, executor=ft.Executor(kind, workers, folder=folder), **settings)


def same(q, plain):
    """Every bit of two answers but the times; how many shards were computed, and how many kept."""
    assert q.indices.tolist() == plain.indices.tolist()
    assert torch.equal(q.scores, plain.scores)
    assert {k: q.info[k] for k in plain.info} == plain.info
    return q.info["shards"]


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.glob("*-*/*.*")}


@pytest.mark.parametrize("deeper", [2, 0.01])  # with the second, parts are grown in several rounds
def test_parts_are_shards_that_a_query_resumes_from(problem, made, deeper, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(parts_module, "DEEPER", deeper)
    plain = ask(problem)
    done = same(in_shards(problem, tmp_path), plain)["computed"]
    rounds = len([*tmp_path.glob("parts-*")])
    assert (rounds == 1) == (deeper == 2)
    assert done >= 2 + 6 + (rounds - 1)  # errors, places; six parts, and those that were grown again
    before = contents(tmp_path)
    assert same(in_shards(problem, tmp_path), plain) == {"computed": 0, "kept": done}
    sorted(tmp_path.glob("parts-*/*.safetensors"))[2].unlink()
    assert same(in_shards(problem, tmp_path), plain) == {"computed": 1, "kept": done - 1}
    assert "00002.safetensors is gone; it is computed again" in caplog.text
    assert contents(tmp_path) == before


def test_parts_of_another_query_are_not_taken(problem, made, tmp_path):
    first = same(in_shards(problem, tmp_path), ask(problem))["computed"]
    for settings, kept in (({"n": 60}, 2), ({"seed": 1}, 1), ({"watch": 81}, 1)):  # places stay, errors stay
        other = same(in_shards(problem, tmp_path, **settings), ask(problem, **settings))
        assert other["kept"] == kept
    net, x_L, y_L, x_U = problem
    assert in_shards((net, x_L, y_L.roll(1), x_U), tmp_path).info["shards"]["kept"] == 1  # the outputs' own errors
    assert same(in_shards(problem, tmp_path), ask(problem)) == {"computed": 0, "kept": first}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_parts_have_the_same_bytes_in_processes_and_after_a_kill(problem, made, workers, tmp_path, caplog):
    killed = []

    def kill(done, total):
        if [*tmp_path.glob("there/parts-*/*.safetensors")] and not killed:  # the parts have begun
            killed.append(multiprocessing.active_children()[0])
            killed[0].kill()

    plain = ask(problem)
    same(in_shards(problem, tmp_path / "here"), plain)
    same(in_shards(problem, tmp_path / "there", "processes", workers, progress=kill), plain)
    assert killed
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert len([*tmp_path.glob("there/parts-*/*.safetensors")]) == 6


def test_a_part_for_which_there_is_no_memory_is_told_and_resumed(problem, made, monkeypatch, tmp_path):
    plain, real, left = ask(problem), parts_module.Part.grow, [3]

    def grow(*given):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")
        return real(*given)

    monkeypatch.setattr(parts_module.Part, "grow", grow)
    told = r"out of memory on cpu, by a streamed query of 300 .*smaller budget=.*kept in .*the same query resumes"
    with pytest.raises(MemoryError, match=told):
        in_shards(problem, tmp_path)
    monkeypatch.setattr(parts_module.Part, "grow", real)
    assert same(in_shards(problem, tmp_path), plain) == {"computed": 3, "kept": 5}


def test_sketches_take_the_place_of_wide_tangents_in_parts_too(problem, made, monkeypatch):
    monkeypatch.setattr(streamed, "SKETCHED", 10)
    q = ask(problem)
    assert q.info["sketch"] == streamed.SKETCH_SIDE**2
    assert worth(problem, q.indices) > 0.9 * worth(problem, ask(problem, method="dense", watch=None).indices)


def pictures_problem() -> tuple:
    """The points as pictures of one row each."""
    g = torch.Generator().manual_seed(2)
    means, of = torch.randn(CLUSTERS, 1, 2, D, generator=g).double(), torch.randint(CLUSTERS, (319,), generator=g)
    x = means[of] + 0.4 * torch.randn(319, 1, 2, D, generator=g).double()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, 8, (2, 3)), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)).double()
    ft.fit(net, x[:L], of[:L] % 3, steps=100, seed=0)
    return net, x[:L], of[:L] % 3, x[L - 5 :]


def deep_problem(sets: tuple) -> tuple:
    net = nn.Sequential(nn.Linear(D, 24), nn.Tanh(), nn.LayerNorm(24), nn.Linear(24, 16), nn.GELU(), nn.Linear(16, 3))
    ft.fit(net.double(), *sets[1:3], steps=150, seed=0)
    return net, *sets[1:]


@pytest.mark.parametrize("kind", ["convolution", "deep"])
def test_parts_are_greedy_for_other_networks_too(problem, made, kind):
    sets = pictures_problem() if kind == "convolution" else deep_problem(problem)
    q = ask(sets)
    (own,) = made
    given = [t.tolist() for t in exact(sets)]
    expect = oracles.greedy_in_parts(*given, [at_P.tolist() for at_P in own.parts], [0, 1, 2, 3, 4], 30)
    assert q.indices.tolist() == expect
    plain = worth(sets, ask(sets, method="dense", watch=None).indices)
    assert 0.95 * plain <= worth(sets, q.indices) <= plain * (1 + 1e-9)
