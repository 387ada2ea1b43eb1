"""ft.query: what is picked, against the same done by hand."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from foretaste import acquire
from foretaste.acquire import register
from foretaste.data import digits
from foretaste.lookahead import KernelSettings, linearize
from foretaste.network import MLP, fit
from foretaste.pick import Request, query
from foretaste.tangent import rank_correlation
from query_cases import LABELLED, NET, RIDGE, X_L, X_U, Y_L, ask, lin, network, points, truth


@pytest.mark.parametrize("strategy", [*LABELLED, "random"])
def test_default_query(strategy):
    q = ask(strategy=strategy)
    assert q.indices.dtype == np.int64
    assert q.indices.shape == (5,)
    assert len(set(q.indices.tolist())) == 5
    assert q.scores.shape == (25,)
    assert q.scores.dtype == torch.float64
    assert q.indices[0] == int(q.scores.argmax())
    assert q.ids == q.indices.tolist()
    assert q.labels == []
    assert list(q.seconds) == ["outputs", "kernel", "score", "select", "total"]
    assert q.seconds["total"] >= sum(v for k, v in q.seconds.items() if k != "total")
    assert len(q) == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        q.indices = q.indices


@pytest.mark.parametrize("strategy", LABELLED)
@pytest.mark.parametrize("select", ["top", "greedy", "fantasy", "sequential"])
def test_the_whole_pool_is_taken_once(strategy, select):
    q = ask(strategy=strategy, select=select, batch_size=25, oracle=truth if select == "sequential" else None)
    assert sorted(q.indices.tolist()) == list(range(25))


def test_auto_is_the_strategys_own():
    assert ask().info["select"] == "greedy"
    assert ask().info["strategy"] == "cover"
    assert ask(strategy="gain").info["select"] == "greedy"
    assert ask(strategy="variance").info["select"] == "greedy"
    assert ask(strategy="mlmoc").info["select"] == "top"
    assert ask(strategy=acquire.gain).info["select"] == "top"


def test_top_takes_the_highest():
    scores = acquire.mlmoc(lin())
    q = ask(strategy="mlmoc")
    assert torch.equal(q.scores, scores)
    assert q.indices.tolist() == scores.argsort(descending=True)[:5].tolist()


@pytest.mark.parametrize("strategy", ["gain", "variance", "mlmoc", "entropy"])
@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_greedy_by_hand(strategy, loss):
    state, picked = lin(loss=loss), []
    for _ in range(5):
        picked.append(int(getattr(acquire, strategy)(state).argmax()))
        state = state.condition(picked[-1], None)
    assert ask(strategy=strategy, select="greedy", loss=loss).indices.tolist() == picked


@pytest.mark.parametrize("strategy", ["gain", "mlmoc", "entropy"])
@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_fantasy_by_hand(strategy, loss):
    state, picked = lin(loss=loss), []
    for n in range(5):
        picked.append(int(getattr(acquire, strategy)(state).argmax()))
        outputs = state.pool_mean if n else state.pool_net
        state = state.condition(picked[-1], int(outputs[picked[-1]].argmax()))
    assert ask(strategy=strategy, select="fantasy", loss=loss).indices.tolist() == picked


@pytest.mark.parametrize("watch", [None, points(9, 5)], ids=["pool", "watched"])
def test_sequential_is_linearizing_anew_each_time(watch):
    """A score of S and the mean both, so that neither may be stale."""

    def score(state):
        S_WU = torch.cat([S_Wu for _, S_Wu in state.blocks()], 1)
        top = state.pool_mean.topk(2, 1).values
        return S_WU.abs().sum(0) / state.u.sqrt() / (0.1 + top[:, 0] - top[:, 1])

    x_L, y_L, picked = X_L, Y_L, []
    for _ in range(6):
        scores = score(lin(x_L, y_L, watch=watch))
        scores[picked] = -math.inf
        picked.append(j := int(scores.argmax()))
        x_L, y_L = torch.cat([x_L, X_U[j : j + 1]]), torch.cat([y_L, torch.tensor([truth(j)])])
    q = ask(strategy=score, select="sequential", oracle=truth, batch_size=6, watch=watch)
    assert q.indices.tolist() == picked
    assert q.labels == [truth(j) for j in picked]


def test_numbers_of_numpy():
    a = ask(batch_size=np.int64(2), seed=np.int64(3), ridge=np.float32(0.5))
    assert a.indices.tolist() == ask(batch_size=2, seed=3, ridge=0.5).indices.tolist()


def test_another_default_device():
    want, mean = ask(), lin().mean
    torch.set_default_device("meta")
    try:
        assert torch.equal(lin().mean, mean)
        for strategy in ("gain", "badge", "coreset", "random"):
            ask(strategy=strategy)
        q = ask()
    finally:
        torch.set_default_device(None)
    assert q.indices.tolist() == want.indices.tolist()


def test_sequential_follows_the_answers():
    right, wrong = (ask(select="sequential", oracle=o, batch_size=8) for o in (truth, lambda j: 0))
    assert right.indices[0] == wrong.indices[0]
    assert right.indices.tolist() != wrong.indices.tolist()


def test_none_passes_a_point_over():
    first = ask(select="sequential", oracle=truth).indices
    asked = []

    def oracle(j):
        asked.append(j)
        return None if j in first[:2] else truth(j)

    q = ask(select="sequential", oracle=oracle)
    assert len(q.indices) == len(q.labels) == 5
    assert not set(first[:2].tolist()) & set(q.indices.tolist())
    assert len(asked) == len(set(asked)) == 5 + len({*first[:2].tolist()} & {*asked})
    assert all(label is not None for label in q.labels)


def test_an_oracle_that_only_skips_ends_the_query():
    asked = []
    q = ask(select="sequential", oracle=lambda j: asked.append(j))
    assert len(q.indices) == 0
    assert q.indices.dtype == np.int64
    assert sorted(asked) == list(range(25))


def test_a_bad_answer_does_not_lose_the_good_ones():
    answers = iter([1, 2, 7])
    with pytest.raises(ValueError, match="outside the 3 classes") as e:
        ask(select="sequential", oracle=lambda j: next(answers))
    note = e.value.__notes__[0]
    assert "before it, [(" in note
    assert note.count("(") == 2


def test_ids_are_what_the_oracle_is_asked():
    ids = [f"image-{i}.png" for i in range(25)]
    asked = []

    def oracle(name):
        asked.append(name)
        return truth(ids.index(name))

    q = ask(select="sequential", oracle=oracle, ids=ids)
    assert q.ids == asked == [ids[j] for j in q.indices]
    assert q.indices.tolist() == ask(select="sequential", oracle=truth).indices.tolist()


@pytest.mark.parametrize("select", ["top", "greedy", "fantasy"])
def test_ties_are_broken_by_the_seed(select):
    def equal(state):
        return torch.zeros(state.U)

    picks = [tuple(ask(strategy=equal, select=select, seed=s).indices.tolist()) for s in (0, 0, 1, 2, 3)]
    assert picks[0] == picks[1]
    assert len(set(picks)) == 4


@pytest.mark.parametrize("strategy", ["gain", "random", "mlmoc"])
def test_the_same_seed_gives_the_same_query(strategy):
    assert ask(strategy=strategy, seed=3).indices.tolist() == ask(strategy=strategy, seed=3).indices.tolist()


def test_random_is_random_and_leaves_the_global_seed():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    picks = {tuple(ask(strategy="random", seed=s).indices.tolist()) for s in range(4)}
    assert len(picks) == 4
    assert torch.equal(before, torch.get_rng_state())


def test_options_reach_the_strategy():
    q = ask(strategy="gain", options={"scale": 0.5})
    assert torch.equal(q.scores, acquire.gain(lin(), scale=0.5))
    assert q.info["options"] == {"scale": 0.5}
    assert not torch.equal(q.scores, ask(strategy="gain").scores)


@pytest.mark.parametrize("strategy", ["random", "margin", "badge"])
def test_progress_counts_picks_where_there_is_no_kernel(strategy):
    seen = []
    ask(strategy=strategy, progress=lambda *counts: seen.append(counts))
    assert seen == [(n, 5) for n in range(1, 6)]


@pytest.mark.parametrize(
    "settings",
    [{}, {"strategy": "mlmoc"}, {"strategy": "gain"}, {"select": "sequential", "oracle": truth}, {"method": "direct"}],
    ids=["cover", "mlmoc", "gain", "sequential", "direct"],
)
def test_progress_counts_the_kernel_and_then_the_picks(settings):
    seen = []
    ask(progress=lambda *counts: seen.append(counts), **settings)
    done = [counts[0] for counts in seen]
    assert {counts[1] for counts in seen} == {len(X_U) + 5}
    assert done == sorted(done)
    assert done.count(len(X_U) + 5) == 1
    assert len(done) > 5  # each pick, and the kernel before


class Scaled(torch.autograd.Function):
    """A product that vmap cannot run, and no rule knows: gradients come point by point."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.T, x.T @ grad


class Unruly(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3))

    def forward(self, x):
        return Scaled.apply(torch.tanh(x), self.weight)


def test_a_network_whose_points_go_one_by_one_shows_progress():
    seen = []
    q = query(Unruly().eval(), X_L, Y_L, X_U, batch_size=5, progress=lambda *counts: seen.append(counts))
    assert len(q) == 5
    assert len({done for done, _ in seen}) > len(X_U) // 2  # not a jump from nothing to the picks
    assert seen == sorted(seen)


def test_info_says_what_was_used():
    info = ask(strategy="gain").info
    assert info["ridge"] == RIDGE
    assert info["scale"] == lin().scale
    assert info["residual_L"] == lin().residual_L
    assert info["output"] == "sum"
    assert info["method"] == "dense"
    assert ask(method="direct", strategy="mlmoc").info["method"] == "direct"


def test_repr_of_a_query_is_short():
    """A notebook shows it: the points to label, and not a number for each of the pool."""
    q = ask(strategy="random", batch_size=2)
    assert repr(q) == f"Query(2 points by 'random', select='own': indices={q.indices.tolist()})"
    q = query(NET, X_L, Y_L, X_U, strategy="margin", batch_size=21, ids=[f"n{j}" for j in range(len(X_U))])
    assert repr(q) == f"Query(21 points by 'margin', select='top': ids={q.ids[:20]!r}"[:-1] + ", ...])"


def test_a_dict_of_tensors():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = NET

        def forward(self, x):
            return self.net(x)

    q = query(Net().eval(), {"x": X_L}, Y_L, {"x": X_U}, ridge=RIDGE, batch_size=5)
    assert q.indices.tolist() == ask().indices.tolist()


def test_regression():
    net, y_L = network(C=1), points(6, 3)[:, 0]
    for strategy in ("variance", "change", "random"):
        assert len(query(net, X_L, y_L, X_U, strategy=strategy, batch_size=4)) == 4
    greedy, fantasy = (
        query(net, X_L, y_L, X_U, strategy="change", select=s, batch_size=6) for s in ("greedy", "fantasy")
    )
    assert greedy.indices.tolist() == fantasy.indices.tolist()
    q = query(net, X_L, y_L, X_U, strategy="change", select="sequential", oracle=lambda j: 0.5, batch_size=3)
    assert q.labels == [0.5] * 3


def test_empty_L():
    q = query(NET, None, None, X_U, batch_size=5, strategy="gain", select="greedy")
    assert len(set(q.indices.tolist())) == 5
    assert q.info["scale"] == 1


def test_a_first_batch_covers_the_pool():
    cover = query(NET, None, None, X_U, batch_size=5, strategy="cover").indices.tolist()
    for x_L, y_L in ((None, None), (X_U[:0], torch.zeros(0, dtype=torch.int64)), (X_U[:0], [])):
        q = query(NET, x_L, y_L, X_U, batch_size=5, strategy="gain", options={"scale": 3.0})
        assert q.indices.tolist() == cover
        assert q.info["first"] == "cover"
        assert q.info["strategy"] == "gain"
    assert "first" not in query(NET, X_L, Y_L, X_U, batch_size=5, strategy="gain").info
    with pytest.raises(ValueError, match="'gain' needs classes"):
        query(network(C=1), None, None, X_U, strategy="gain")


@pytest.mark.usefixtures("_names")
def test_a_registered_function_runs_by_name():
    @register("influence")
    def influence(state):
        return torch.cat([S_Wu.abs().sum(0) for _, S_Wu in state.blocks()]) / state.u

    q = ask(strategy="influence")
    assert q.indices.tolist() == influence(lin()).argsort(descending=True)[:5].tolist()
    assert len(ask(strategy="influence", select="greedy")) == 5


@pytest.mark.usefixtures("_names")
def test_a_strategy_that_picks_for_itself():
    requests = []

    @register("first", select="own")
    def first(request: Request, skip=0):
        requests.append(request)
        request.info["skipped"] = skip
        return range(skip, skip + request.batch_size)

    q = ask(strategy="first", options={"skip": 2})
    assert q.indices.tolist() == [2, 3, 4, 5, 6]
    assert q.scores is None
    (request,) = requests
    assert request.net is NET
    assert request.x_U is X_U
    assert request.made is None
    assert q.info["skipped"] == 2
    assert q.info["strategy"] == "first"
    assert torch.equal(request.state.pool_net, lin().pool_net)
    for wrong in (lambda r: [0, 0, 1, 2, 3], lambda r: [0], lambda r: [0, 1, 2, 3, 25]):
        register(f"wrong{id(wrong)}", select="own")(wrong)
        with pytest.raises(ValueError, match="expected 5 different positions below 25"):
            ask(strategy=f"wrong{id(wrong)}")


@pytest.mark.usefixtures("_names")
def test_a_request_has_every_setting():
    """Under its own name, and ``state`` is what linearize makes of them."""
    requests = []
    register("first", select="own")(lambda request: requests.append(request) or range(request.batch_size))
    settings = {
        "loss": "ce", "watch": 7, "ridge": RIDGE, "output": "first", "method": "dense", "budget": "1GB",
        "params": ["0.weight"], "seed": 3,
    }  # fmt: skip
    ask(strategy="first", **settings)
    (request,) = requests
    assert {name: getattr(request, name) for name in settings} == settings
    assert (request.L, request.U, request.C, request.batch_size) == (6, 25, 3, 5)
    of_linearize = linearize(NET, X_L, Y_L, X_U, **settings)
    assert torch.equal(request.state.u, of_linearize.u)
    assert torch.equal(request.state.net, of_linearize.net)
    at_W = torch.randperm(25, generator=torch.Generator().manual_seed(3))[:7].sort().values
    assert torch.equal(request.x_W, X_U[at_W])
    assert torch.equal(of_linearize.net, of_linearize.pool_net[at_W])
    assert request.made.C == request.C
    x_W = points(9, 5)
    ask(strategy="first", watch=x_W)
    assert requests[-1].x_W is x_W
    ask(strategy="first")
    assert requests[-1].x_W is X_U


@pytest.mark.usefixtures("_names")
def test_a_strategy_may_count_its_own_progress():
    @register("slow", select="own")
    def slow(request):
        for done in range(1, 4):
            request.progress(done, 3)
        return range(request.batch_size)

    seen = []
    ask(strategy="slow", progress=lambda *counts: seen.append(counts))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert len(ask(strategy="slow")) == 5


@pytest.mark.usefixtures("_names")
@pytest.mark.parametrize(("needs", "C", "message"), [("classes", 1, "needs classes"), ("regression", 3, "3 outputs")])
def test_what_a_picking_strategy_needs_is_checked(needs, C, message):
    register("first", select="own", needs=needs)(lambda request: pytest.fail("it was asked"))
    with pytest.raises(ValueError, match=message):
        query(network(C), X_L, Y_L if C > 1 else Y_L.double(), X_U, strategy="first", batch_size=5)
    register("free", select="own")(lambda request: range(5))
    assert len(query(nn.Identity(), None, None, X_U, strategy="free", batch_size=5)) == 5  # it is never run


@pytest.mark.parametrize(("strategy", "contested"), [("gain", True), ("flips", True), ("mlmoc", False)])
def test_a_number_watches_the_points_that_matter_to_the_score(strategy, contested):
    """Those of the smallest gap for gain and flips; for the others random ones, by the seed."""
    top = NET(X_U).detach().topk(2, 1).values
    small = (top[:, 0] - top[:, 1]).argsort()[:8].sort().values
    chance = torch.randperm(25, generator=torch.Generator().manual_seed(3))[:8].sort().values
    q = ask(strategy=strategy, watch=8, seed=3)
    by_hand = ask(strategy=strategy, watch=X_U[small if contested else chance], seed=3)
    torch.testing.assert_close(q.scores, by_hand.scores, rtol=1e-9, atol=1e-12)
    assert q.indices.tolist() == by_hand.indices.tolist()
    state = lin(watch=8, watch_by="contested")
    assert torch.equal(state.net, state.pool_net[small])


def test_a_fifth_of_the_pool_ranks_it_as_all_of_it_does():
    """Digits, 40 labels, an MLP: Spearman of gain 0.99; 0.8 to 0.9 with a random fifth."""
    d = digits()
    order = torch.randperm(len(d.x), generator=torch.Generator().manual_seed(0))
    x, y = d.x[order].float() / 255, d.y[order]
    net = MLP(64, (256, 256), 10)
    fit(net, x[:40], y[:40], start="cold", seed=0)
    all_U, few_U = (
        query(net, x[:40], y[:40], x[40:1320], strategy="gain", watch=n, batch_size=1).scores for n in (None, 256)
    )
    random_U = acquire.gain(linearize(net, x[:40], y[:40], x[40:1320], watch=256))
    assert rank_correlation(all_U, few_U) > 0.98
    assert rank_correlation(all_U, few_U) > rank_correlation(all_U, random_U) + 0.03


@pytest.mark.usefixtures("_names")
def test_what_a_number_watches_is_declared():
    with pytest.raises(ValueError, match="unknown watch_by 'contestd'; did you mean 'contested'"):
        KernelSettings(watch_by="contestd")
    with pytest.raises(ValueError, match="'x' picks by itself; kernel= is for scores"):
        register("x", select="own", kernel=KernelSettings(watch_by="contested"))
    with pytest.raises(ValueError, match='watch_by="contested" needs classes'):
        linearize(network(C=1), X_L, points(6, 3)[:, 0], X_U, watch=5, watch_by="contested")
