"""``ft.Learner`` with the pool in its kernel, held against ``ft.linearize`` with it and against its own history."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foretaste as ft
from foretaste.errors import seal_json
from foretaste.label import session as session_module
from foretaste.label.book import Prediction
from foretaste.label.pool_model import PoolModel
from foretaste.label.progress import DOUBTED_ANSWERS, chance_of_errors, describe_worth
from foretaste.lookahead import PoolState
from foretaste.lookahead.graph import GAMMAS
from foretaste.losses import sharpened
from foretaste.network import MLP, seeded

N, C, D = 48, 3, 5
KINDS = ("l2", "ce", "regression")


def points(seed: int = 0, n: int = N) -> torch.Tensor:
    """Three clusters that overlap, in turn."""
    g = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(C, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return torch.randn(n, D, generator=g, dtype=torch.float64) + centres[torch.arange(n) % C]


def truth(kind: str, i: int) -> float | int:
    return float(i % C + 0.1 * points()[i, 0]) if kind == "regression" else i % C


def network(outputs: int = C) -> torch.nn.Module:
    with seeded(0, torch.device("cpu")):
        return MLP(D, (8,), outputs).double().eval()


def make(kind: str = "l2", labels: Any = None, graph: Any = "given", **more: Any) -> ft.Learner:
    labels = {i: truth(kind, i) for i in range(9)} if labels is None else labels
    graph = ft.Graph() if graph == "given" else graph
    loss = "ce" if kind == "ce" else "l2"
    net = network(1 if kind == "regression" else C)
    return ft.Learner(net, points(), labels=labels, loss=loss, graph=graph, **more)


def model_of(learner: ft.Learner) -> PoolModel:
    model = learner._now.live
    assert isinstance(model, PoolModel)
    return model


def outputs(learner: ft.Learner) -> torch.Tensor:
    """All that the next query depends on, and outputs of new points."""
    now = learner._now
    state = now.live.follow(now.book)
    return torch.cat(
        [state.pool_mean.flatten(), state.u, state.watched_variance, learner._outputs(points(9, 5)).flatten()]
    )


def assert_same(a: ft.Learner, b: ft.Learner) -> None:
    for one, other in zip(*(vars(model_of(learner).evidence).values() for learner in (a, b))):
        assert one == other or one == pytest.approx(other, rel=1e-9)
    torch.testing.assert_close(outputs(a), outputs(b), rtol=1e-8, atol=1e-8)
    assert a.query(3) == b.query(3)


def regression_on(learner: ft.Learner, kind: str, x: torch.Tensor) -> np.ndarray:
    """The mean of kernel regression on all labels, with the γ and λ of the learner, on other points."""
    e, labels = model_of(learner).evidence, learner.labels
    at = list(labels)
    y = np.array([labels[i] for i in at]) if kind == "regression" else np.eye(C)[[labels[i] for i in at]]
    prior = np.mean([labels[i] for i in model_of(learner).trained]) if kind == "regression" else 1 / C
    everything = torch.cat([points(), x])
    state = ft.linearize(
        network(C), None, None, points(), watch=everything, pool=ft.Graph(gamma=e.gamma), ridge=e.ridge
    )  # fmt: skip
    bent = torch.cat([block for _, block in state.blocks()], 1).numpy()  # without labels S is Θ̃
    A = bent[np.ix_(at, at)] + e.ridge * np.eye(len(at))
    return (prior + bent[:, at] @ np.linalg.solve(A, y - prior)).reshape(len(everything), -1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("watch", [None, 15])
def test_the_model_is_kernel_regression_on_the_bent_kernel(kind: str, watch: int | None) -> None:
    learner = make(kind, watch=watch)
    at = list(learner.labels)
    y = torch.from_numpy(np.array([learner.labels[i] for i in at]))
    rest = [i for i in range(N) if i not in at]
    net = network(1 if kind == "regression" else C)
    state = ft.linearize(net, points()[at], y, points()[rest], pool="auto")
    assert state.pool.gamma > 0
    assert model_of(learner).evidence.gamma == state.pool.gamma
    assert model_of(learner).evidence.ridge == pytest.approx(state.pool.ridge, rel=1e-9)
    torch.testing.assert_close(learner._outputs(rest), state.pool_mean, rtol=1e-9, atol=1e-9)

    learner.teach([20, 31, 40], [truth(kind, i) for i in (20, 31, 40)])
    new = points(9, 5)
    expected = regression_on(learner, kind, new)
    assert np.abs(learner._outputs(None).numpy() - expected[:N]).max() < 1e-9
    assert np.abs(learner._outputs(new).numpy() - expected[N:]).max() < 1e-9
    if kind != "regression":
        p_NC = learner.predict_proba()
        torch.testing.assert_close(p_NC, sharpened(learner._outputs(None)))
        assert learner.predict().tolist() == p_NC.argmax(1).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", [None, "gain", "variance"])
def test_any_history_equals_being_taught_so_from_the_start(kind: str, strategy: str | None) -> None:
    if kind == "regression" and strategy == "gain":
        pytest.skip("gain needs classes")
    other = {i: 2.5 if kind == "regression" else (i + 1) % C for i in range(N)}
    learner = make(kind, strategy=strategy, watch=15)
    learner.teach(range(10, 20), [truth(kind, i) for i in range(10, 20)])
    asked = learner.query(2)
    learner.relabel([12, 15], [other[12], other[15]])
    learner.unlabel([11, 19])
    learner.ignore([14, 30])
    learner.release(asked)
    learner.relabel(12, truth(kind, 12))

    fresh = make(kind, strategy=strategy, watch=15)
    fresh.ignore([30, 14])
    for i in (18, 17, 16, 13, 12, 10):
        fresh.teach(i, truth(kind, i))
    fresh.teach(15, other[15])
    assert fresh.labels == learner.labels
    assert_same(learner, fresh)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", [None, "variance"])
def test_labels_of_the_training_can_change_and_the_evidence_with_them(kind: str, strategy: str | None) -> None:
    old = {i: truth(kind, i) for i in range(9)}
    wrong = old[2] + 1 if kind == "regression" else (old[2] + 1) % C
    learner = make(kind, strategy=strategy)
    before = model_of(learner).evidence
    learner.teach([20, 21], [truth(kind, 20), truth(kind, 21)])
    learner.query(1)
    learner.unlabel(4)
    learner.relabel(2, wrong)
    learner.query(1)
    learner.release()
    fresh = make(kind, labels={i: y for i, y in old.items() if i not in (2, 4)}, strategy=strategy)
    fresh.teach([21, 20, 2], [truth(kind, 21), truth(kind, 20), wrong])
    assert model_of(learner).evidence.error != pytest.approx(before.error, rel=1e-6)
    assert_same(learner, fresh)

    learner.release()
    learner.relabel([2, 4], [old[2], old[4]])
    learner.unlabel([20, 21])
    assert_same(learner, make(kind, strategy=strategy))


def test_where_the_pool_does_not_help_the_network_answers() -> None:
    """Random inputs in thirty dimensions, and a linear rule: neighbours have no more in common than others."""
    g = torch.Generator().manual_seed(0)
    x, rule = torch.randn(150, 30, generator=g), torch.randn(30, C, generator=g)
    with seeded(0, torch.device("cpu")):
        net = MLP(30, (8,), C).eval()
    given = {"labels": dict(enumerate((x @ rule).argmax(1)[:100].tolist())), "ridge": 0.1}
    learner, alone = (ft.Learner(net, x, graph=graph, **given) for graph in (ft.Graph(), None))
    assert learner._now.live is learner._now.model
    assert learner.status()["pool"]["text"] == "The pool is not used: it predicts a label left out no better."
    assert torch.equal(learner.predict_proba(), alone.predict_proba())
    assert learner.query(4) == alone.query(4)


def test_items_outside_the_window_and_labels_of_them() -> None:
    labels = {i: i % C for i in range(9)}
    learner = make(labels=labels, window=30)
    model = model_of(learner)
    inside = set(model.items.at_G)
    assert len(inside) == 30
    assert not inside.issuperset(labels)  # some are admitted from the start
    outside = [i for i in range(N) if i not in model.row]
    before = learner._outputs(outside[:3])
    model.admit(outside[:3])
    torch.testing.assert_close(learner._outputs(outside[:3]), before, rtol=1e-9, atol=1e-9)
    fresh = make(labels=labels, window=30)
    for one in (learner, fresh):
        one.teach(outside[3:6], [i % C for i in outside[3:6]])
        one.unlabel(outside[4])
    torch.testing.assert_close(learner._outputs(None), fresh._outputs(None), rtol=1e-8, atol=1e-8)
    gamma, placed = model.evidence.gamma, model.placed
    theta = model.items.grow(gamma, placed)
    rows = torch.arange(len(placed))
    torch.testing.assert_close(model.items.bent_columns(gamma, placed, placed, rows), theta, rtol=1e-9, atol=1e-9)
    assert float(torch.linalg.eigvalsh(theta).min()) > -1e-9
    # γ may change with labels that are outside.
    for gamma in GAMMAS:
        bent = model.items.grow(gamma, placed)
        torch.testing.assert_close(model.items.among(gamma, placed, rows), bent, rtol=1e-9, atol=1e-9)


def test_the_learners_own_network_has_the_pool_and_trains_on_soft_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[int, torch.Tensor]] = []
    train = session_module.train_network

    def spy(*given: Any) -> Any:
        seen.append(dict(given[-1]))
        return train(*given)

    monkeypatch.setattr(session_module, "train_network", spy)
    learner = ft.Learner(pool=points().float(), classes=C, fit_options={"steps": 60})
    learner.ignore([40])
    learner.teach(range(12), [i % C for i in range(12)])
    model = model_of(learner)
    [soft] = seen
    assert sorted(soft) == [i for i in range(12, N) if i != 40]
    assert all(float(p_C.sum()) == pytest.approx(1) for p_C in soft.values())
    assert isinstance(model.follow(learner._now.book), PoolState)
    assert model.net is learner.net
    right = (learner.net(points().float()).argmax(1) == torch.arange(N) % C).double().mean()
    assert right > 0.8
    learner.retrain(wait=True)
    assert model_of(learner) is not model
    assert model_of(learner).items is model.items  # the graph is made once


def test_a_training_of_ones_own_gets_the_labels_alone() -> None:
    seen = []

    def train(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        seen.append((len(x), y.dtype))

    learner = ft.Learner(pool=points().float(), classes=C, train=train)
    learner.teach(range(12), [i % C for i in range(12)])
    assert seen == [(12, torch.int64)]


def test_in_the_background_the_network_answers_until_the_graph_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    make_graph = session_module.make_item_graph
    learner = ft.Learner(pool=points().float(), classes=C, background=True, fit_options={"steps": 40})

    def slowly(*given: Any) -> Any:
        found.append((learner.ready, learner._now.pool_model))
        return make_graph(*given)

    monkeypatch.setattr(session_module, "make_item_graph", slowly)
    learner.teach(range(12), [i % C for i in range(12)])
    assert learner.wait(60)
    assert found == [(True, None)]
    assert learner.status()["training"] == {"running": False, "count": 1, "failure": None}
    assert isinstance(learner._now.live, PoolModel)


def test_where_there_is_a_graph() -> None:
    def graph_of(*given: Any, **more: Any) -> Any:
        return ft.Learner(*given, **more)._now.graph

    own = {"classes": C}
    assert graph_of(pool=points().float(), **own) is not None
    assert graph_of(pool=(255 * torch.rand(20, 1, 4, 4)).byte(), **own) is not None  # pixels, flattened
    assert graph_of(pool=points(n=11).float(), **own) is None  # too few
    assert graph_of(network(), points()) is None  # a network that is given may know more
    assert graph_of(network(), points(), graph=ft.Graph(gamma=0)) is None
    tokens = {"pool": torch.randint(9, (20, 4)), "classes": 2}
    net = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(), torch.nn.Linear(16, 2)).eval()
    with pytest.raises(ValueError, match="graph needs items that are one tensor of numbers"):
        graph_of(net, **tokens, graph=ft.Graph())
    assert graph_of(net, **tokens, graph=ft.Graph(vectors=lambda x: x.double())) is not None
    with pytest.raises(ValueError, match=r'graph is 3; expected None, "auto" or ft.Graph'):
        graph_of(network(), points(), graph=3)


def test_saved_and_loaded_gives_the_same_next_query(tmp_path: Path) -> None:
    learner = make(graph=ft.Graph(neighbours=6))
    learner.teach([20, 21], [2, 0])
    learner.query(2)
    learner.save(tmp_path / "a")
    loaded = ft.Learner.load(tmp_path / "a", net=network())
    assert model_of(loaded).evidence == model_of(learner).evidence
    assert_same(learner, loaded)
    # One of an earlier version had no graph, and keeps to that.
    file = tmp_path / "a" / "learner.json"
    found = json.loads(file.read_text())
    found.pop("seal", None)
    assert found["graph"] == {"vectors": False, "neighbours": 6, "of": "kernel", "gamma": None, "most": 10_000}
    del found["graph"]
    file.write_text(seal_json(json.dumps({k: v for k, v in found.items() if k not in ("digest_of_file",)})))
    assert ft.Learner.load(tmp_path / "a", net=network())._now.graph is None

    graph = ft.Graph(vectors=lambda x: 2 * x)
    make(graph=graph).save(tmp_path / "b")
    with pytest.raises(ValueError, match="give graph= again"):
        ft.Learner.load(tmp_path / "b", net=network())
    again = ft.Learner.load(tmp_path / "b", net=network(), graph=graph)
    assert again.query(3) == make(graph=graph).query(3)


def test_status_says_what_the_pool_is_worth() -> None:
    assert make(graph=None).status()["pool"] is None
    learner = make()
    pool, e = learner.status()["pool"], model_of(learner).evidence
    assert pool["used"]
    assert pool["gamma"] == e.gamma
    assert pool["text"] == (
        f"The pool is used: a label left out is predicted right {100 * e.hits:.0f} % of the time with it, "
        f"{100 * e.hits_without:.0f} % without."
    )
    assert pool["warning"] is None
    json.dumps(learner.status())
    text = make("regression").status()["pool"]["text"]
    assert text.startswith("The pool is used: a label left out is missed by ")
    fewer = replace(e, hits=0.6, hits_without=0.7, error=0.25, without=0.36)
    assert describe_worth(fewer) == "a label left out is missed by 0.5 with it, 0.6 without"
    unlabelled = make(labels={})
    assert unlabelled.status()["pool"]["text"] == "The pool is not used yet: there are no labels to weigh it by."


def test_a_warning_where_answers_speak_against_the_pool() -> None:
    learner = make()
    book = learner._now.book
    at = range(20, 20 + DOUBTED_ANSWERS)
    learner.teach(at, [i % C for i in at])

    def warned(wrong: int, error: float, count: int = DOUBTED_ANSWERS, trained: int = 0) -> bool:
        book.predictions = {
            i: Prediction(i, (i + (k < wrong)) % C, error, 1.0, trained) for k, i in enumerate(at[:count])
        }
        return learner.status()["pool"]["warning"] is not None

    assert warned(8, 0.1)
    assert "20 answers it had 8 wrong and counted on 2:" in learner.status()["pool"]["warning"]
    assert not warned(4, 0.1)  # once in 8 of such runs
    assert not warned(8, 0.4)  # it asks for what it is not sure of
    assert not warned(8, 0.1, DOUBTED_ANSWERS - 1)
    assert not warned(8, 0.1, trained=1)  # of another training


def test_the_chance_of_errors_counts_every_way() -> None:
    chances, total = [0.1, 0.5, 0.3], 0.0
    for made in ((a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)):
        if sum(made) >= 2:
            total += math.prod(p if m else 1 - p for m, p in zip(made, chances))
    assert chance_of_errors(2, chances) == pytest.approx(total)
    assert chance_of_errors(0, chances) == pytest.approx(1)


def test_answers_move_their_neighbourhood_and_back() -> None:
    learner = make()
    third = [i for i in range(N) if i % C == 2]
    before = learner.predict_proba(third)
    learner.relabel([2, 5, 8, 14, 20], [0] * 5)
    assert (learner.predict(third) == 0).mean() > 0.9
    learner.relabel([2, 5, 8], [2] * 3)
    learner.unlabel([14, 20])
    torch.testing.assert_close(learner.predict_proba(third), before, rtol=1e-9, atol=1e-9)


def test_while_the_pool_answers_the_networks_own_kernel_is_not_computed() -> None:
    """After a training Θ of 5,000 items is 200 MB that nobody reads; where γ becomes 0 it is computed, and answers."""
    labels = {i: i % C for i in range(9)}
    learner = ft.Learner(pool=points().float(), classes=C, labels=labels, graph=ft.Graph(gamma=10.0))
    now = learner._now
    assert isinstance(now.held, session_module.WaitingModel)
    assert now.held.trained == labels
    learner.teach(9, 0)
    learner.predict()
    assert isinstance(now.held, session_module.WaitingModel)
    assert now.pool_model is not None
    now.pool_model.evidence = replace(now.pool_model.evidence, gamma=0.0)
    f_NC = learner._outputs(None)
    assert now.live is now.held
    assert 9 in now.live.row
    torch.testing.assert_close(f_NC, now.live.follow(now.book).pool_mean)


def test_the_ids_that_the_model_works_on() -> None:
    x, labels = points().float(), {i: i % C for i in range(9)}
    few = ft.Learner(pool=x, classes=C, labels=labels, window=20, fit_options={"steps": 20})
    assert 20 <= len(few.window_ids) < N
    assert {*labels} <= {*few.window_ids}
    assert ft.Learner(pool=x, classes=C).window_ids == []
    assert ft.Learner(pool=x, classes=C, labels=labels, fit_options={"steps": 20}).window_ids == list(range(N))
