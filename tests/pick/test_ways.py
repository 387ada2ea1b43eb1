"""Which way a query goes, what it says of that, and what takes the place of dense where there is no memory for it."""

import logging
import re
import weakref
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import Tensor

import foretaste as ft
from foretaste.acquire import StreamedCover, sample_watched
from foretaste.acquire.sampled_cover import STREAM_CHUNK
from foretaste.lookahead import problem as kernels
from foretaste.losses import probabilities
from foretaste.pick import Request
from foretaste.pick.ways import Way
from pick.test_shards import NO_MEMORY
from pick.test_streamed import problem

asking = import_module("foretaste.pick.query")  # foretaste.pick.query is the function
SETS = problem(900)
NET, X_L, Y_L, X_U = SETS
U = len(X_U)
ALL_AT_ONCE = ["gain", "variance", "mlmoc", "badge", "coreset", "uherding", "parbals"]


def ask(x_U=X_U, **settings):
    return ft.query(NET, X_L, Y_L, x_U, **{"batch_size": 8} | settings)


# --- what it says ---


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, rf"dense: points and Θ of {U} candidates take about \S+ .B of a budget of .*; scores are exact"),
        ({"watch": 50}, "is dense: points and Θ .*; scores are exact sums over 50 watched points"),
        ({"strategy": "badge"}, f"dense: strategy 'badge' picks by itself among {U} candidates, in memory"),
        ({"strategy": "margin"}, f"dense: its {U} points are in memory; one forward pass, and scores are exact"),
        (
            {"budget": "6MB"},
            r"is streamed: points .* of a budget of 6 MB; a sample of the pool is watched: q\.info\['batch_va",
        ),
        ({"strategy": "gain", "x_U": X_U.numpy(), "budget": 50_000}, "is shortlist: x_U has .* needs all points at"),
        ({"strategy": "margin", "x_U": X_U.numpy(), "budget": "200kB"}, r"is streamed: its .* 85 kB of a budget of 2"),
    ],
    ids=["cover", "watch", "badge", "margin", "a small budget", "a shortlist", "margin of a file"],
)
def test_auto_says_which_way_it_goes_and_why_before_it_starts(settings, said, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "foretaste")

    class Started(Exception):
        pass

    def start(*given):
        raise Started

    for name in ("pick_dense", "pick_listed", "probe_request"):
        monkeypatch.setattr(asking, name, start)
    with pytest.raises(Started):
        ask(**settings)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith('method="auto" is ')]
    assert len(lines) == 1
    assert re.search(said, lines[0]), lines[0]
    caplog.clear()
    with pytest.raises((Started, ValueError)):
        ask(**settings, method="dense")
    assert "is dense" not in caplog.text


# --- dense that turns out not to fit ---


@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda e: type(e).__name__)
def test_dense_for_which_there_is_no_memory_in_fact_is_streamed(error, monkeypatch, caplog):
    held = []

    class Large:
        pass

    def load(self):
        large = Large()
        held.append(weakref.ref(large))
        raise error

    real, freed = StreamedCover.coverage, []

    def coverage(self, *given):
        freed.append(all(ref() is None for ref in held))
        return real(self, *given)

    want = ask(method="streamed")
    monkeypatch.setattr(StreamedCover, "coverage", coverage)
    monkeypatch.setattr(kernels.NetworkKernels, "load", once(load, kernels.NetworkKernels.load))
    q = ask()
    assert q.indices.tolist() == want.indices.tolist()
    assert q.info["method"] == "streamed"
    assert q.info["not_dense"] == (str(error) or "MemoryError")
    assert f"{q.info['not_dense']}; so the pool is streamed" in caplog.text
    assert freed == [True]  # what the dense query held
    monkeypatch.setattr(kernels.NetworkKernels, "load", load)
    with pytest.raises(type(error)):
        ask(method="dense")


def test_scores_of_outputs_for_which_there_is_no_memory_at_once_are_streamed(monkeypatch):
    want, real = ask(strategy="margin"), Request.__dict__["state"].func

    def state(self):
        if self.U == U:
            raise NO_MEMORY[1]
        return real(self)

    monkeypatch.setattr(Request, "state", property(state))
    monkeypatch.setitem(STREAM_CHUNK, "cpu", 400)
    q = ask(strategy="margin")
    assert q.indices.tolist() == want.indices.tolist()
    assert q.info["method"] == "streamed"
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        ask(strategy="margin", method="dense")


def once(first, then):
    """A method that is another one the first time."""
    left = [first]
    return lambda self: (left.pop() if left else then)(self)


def test_an_error_of_another_kind_is_no_lack_of_memory(monkeypatch):
    def load(self):
        raise RuntimeError("broken")

    monkeypatch.setattr(kernels.NetworkKernels, "load", load)
    for strategy in ("cover", "gain"):
        with pytest.raises(RuntimeError, match="broken"):
            ask(strategy=strategy)


# --- a shortlist ---


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("strategy", ALL_AT_ONCE)
def test_a_shortlist_of_all_is_dense(strategy, loss, monkeypatch):
    """Forced: a budget that holds all points asks for none."""
    few, ids = X_U[:120], [f"p{i}" for i in range(120)]
    settings = {"strategy": strategy, "loss": loss, "ids": ids, "seed": 3}
    dense = ask(few, **settings)
    monkeypatch.setattr(asking, "choose_way", lambda *given: Way("shortlist", 120, "why"))
    q = ask(few, **settings)
    assert q.indices.tolist() == dense.indices.tolist()
    assert q.ids == dense.ids
    assert (q.scores is None) == (dense.scores is None)
    assert q.scores is None or torch.equal(q.scores, dense.scores)
    assert {**q.info, "method": 0} == {**dense.info, "method": 0, "shortlist": 120}
    assert q.info["method"] == "shortlist"


def literal_shortlist(size, seed=0, loss="l2"):
    with torch.no_grad():
        error_U = 1 - probabilities(NET(X_U), loss).amax(1).numpy()
    return sample_watched(error_U, size, 0, seed).at_W


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("strategy", ["gain", "variance", "badge"])
def test_a_shortlist_is_dense_among_the_points_that_are_drawn(strategy, loss, caplog):
    """A budget that neither holds Θ nor, of a file, the points."""
    ids, budget = [f"p{i}" for i in range(U)], {"badge": 60_000}.get(strategy, 3_000_000)
    pool = X_U.numpy() if strategy == "badge" else X_U
    q = ask(pool, strategy=strategy, loss=loss, ids=ids, budget=budget, seed=2)
    S = q.info["shortlist"]
    assert 8 < S < U / 2
    assert q.info["method"] == "shortlist"
    assert ("not_dense" in q.info) == (strategy != "badge")
    at_S = literal_shortlist(S, 2, loss)
    want = ask(X_U[at_S], strategy=strategy, loss=loss, seed=2, budget=budget)  # which cuts Θ to its chunks
    assert q.indices.tolist() == at_S[want.indices].tolist()
    assert q.ids == [f"p{j}" for j in q.indices]
    if want.scores is not None:
        assert torch.equal(q.scores[at_S], want.scores)
        assert q.scores[np.delete(np.arange(U), at_S)].eq(-torch.inf).all()
    said = f"So {S} of the {U} candidates were looked at ({100 * S / U:.2g} %), drawn half evenly and half by"
    assert [said in r.getMessage() for r in caplog.records if r.levelno == logging.WARNING].count(True) == 1
    with pytest.raises(ValueError, match=r"a budget of .* is too small|needs all points at once"):
        ask(pool, strategy=strategy, loss=loss, budget=budget, method="dense")


def test_labels_and_positions_of_a_shortlist_are_those_of_the_pool():
    asked = []

    def oracle(name):
        asked.append(name)
        return int(Y_L[0])

    how = {"strategy": "gain", "select": "sequential", "oracle": oracle, "budget": 3_000_000}
    q = ask(ids=[f"p{i}" for i in range(U)], **how)
    assert asked == q.ids == [f"p{j}" for j in q.indices]
    assert q.labels == [int(Y_L[0])] * 8
    asked.clear()
    assert ask(**how).indices.tolist() == asked == q.indices.tolist()

    def leave(j):
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(j)
        return int(Y_L[0])

    asked.clear()
    with pytest.raises(KeyboardInterrupt) as told:
        ask(**{**how, "oracle": leave})
    assert told.value.answered == [(j, int(Y_L[0])) for j in q.indices[:2]]


@pytest.mark.parametrize("budget", [3_000_000, None])
def test_where_memory_ends_after_an_answer_nothing_is_asked_again(budget):
    asked = []

    def oracle(j):
        if asked:
            raise MemoryError
        asked.append(j)
        return int(Y_L[0])

    with pytest.raises(MemoryError) as told:
        ask(strategy="gain", select="sequential", oracle=oracle, budget=budget)
    assert told.value.answered == [(asked[0], int(Y_L[0]))]


def test_a_strategy_without_memory_gets_fewer_points_until_it_has(monkeypatch):
    looked_at = []

    def hungry(state):
        looked_at.append(state.U)
        if state.U > 100:
            raise MemoryError
        return state.pool_net.amax(1)

    q = ask(strategy=hungry, executor="serial")
    assert looked_at[0] == U
    assert looked_at == sorted(looked_at, reverse=True)
    assert 70 < q.info["shortlist"] == looked_at[-1] <= 100
    assert q.info["not_dense"] == "MemoryError"
    with pytest.raises(MemoryError):
        ask(strategy=hungry, method="dense")
    with pytest.raises(MemoryError):  # not even the batch
        ask(strategy=hungry, batch_size=101)


def test_without_labels_a_shortlist_is_drawn_evenly():
    def hungry(state):
        if state.U > 200:
            raise MemoryError
        return state.pool_net.amax(1)

    q = ft.query(NET, None, None, X_U, strategy=hungry, batch_size=8)
    at_S = sample_watched(np.zeros(U), q.info["shortlist"], 0, 0).at_W
    assert torch.isfinite(q.scores).nonzero()[:, 0].tolist() == at_S.tolist()


def test_progress_of_a_shortlist_never_falls():
    said: list[tuple[int, int]] = []
    ask(strategy="gain", budget=3_000_000, progress=lambda *counts: said.append(counts))
    assert said == sorted(said)
    assert {total for _, total in said} == {U + 8}
    assert [done for done, _ in said].count(U + 8) == 1


def test_regression_has_shortlists_too():
    net, x_L, y_L, x_U = problem(900, outputs=1)
    q = ft.query(net, x_L, y_L.double(), x_U, strategy="variance", batch_size=8, budget=3_000_000)
    assert 8 < q.info["shortlist"] < U / 2
    assert isinstance(q.scores, Tensor)
    assert int(torch.isfinite(q.scores).sum()) <= q.info["shortlist"]
