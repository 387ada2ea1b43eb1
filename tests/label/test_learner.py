"""``ft.Learner``: exact relabelling, pending items, files, threads and trainings."""

import copy
import gc
import json
import random
import re
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import foretaste as ft
from foretaste.errors import seal_json
from foretaste.label import rough as rough_module
from foretaste.label import session as session_module
from foretaste.label.live_model import LiveModel
from foretaste.lookahead import PoolKernel
from foretaste.lookahead.dense import DenseState
from foretaste.lookahead.problem import Problem, ThetaBlocks
from foretaste.network import MLP, Diverged, read_tensors, seeded
from foretaste.network.sgd import TrainingRecipe, diverged_error
from learner_cases import KINDS, N, make, network, points, truth


def outputs(learner: ft.Learner) -> torch.Tensor:
    """All that the next query depends on: means, variances, and outputs of new points."""
    now = learner._now
    state = now.model.follow(now.book)
    new = learner._outputs(points(9, 5))
    return torch.cat([state.pool_mean.flatten(), state.u, state.watched_variance, new.flatten()])


def ridge_of(learner: ft.Learner) -> float:
    return learner._now.model.ridge(learner._now.book)


def assert_same(a: ft.Learner, b: ft.Learner) -> None:
    torch.testing.assert_close(outputs(a), outputs(b), rtol=1e-8, atol=1e-8)
    assert a.query(3) == b.query(3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("watch", [None, 15])
def test_any_history_equals_being_taught_so_from_the_start(kind: str, watch: int | None) -> None:
    other = {i: truth(kind, i + 1) if kind != "regression" else 2.5 for i in range(N - 1)}
    learner = make(kind, watch=watch)
    learner.teach(range(10, 20), [truth(kind, i) for i in range(10, 20)])
    asked = learner.query(2)
    learner.relabel([12, 15], [other[12], other[15]])
    learner.unlabel([11, 19])
    learner.ignore([14, 30])
    learner.teach(25, truth(kind, 25))
    learner.release(asked)
    learner.relabel(12, truth(kind, 12))

    fresh = make(kind, watch=watch)
    fresh.ignore([30, 14])
    for i in (25, 18, 17, 16, 13, 12, 10):
        fresh.teach(i, truth(kind, i))
    fresh.teach(15, other[15])
    assert fresh.labels == learner.labels
    assert_same(learner, fresh)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_the_network_was_trained_on_can_change(kind: str) -> None:
    old = {i: truth(kind, i) for i in range(6)}
    wrong = 1 - old[2] if kind != "regression" else old[2] + 1
    wrong = wrong if kind.startswith(("binary", "regr")) else (old[2] + 1) % 3
    learner = make(kind)
    learner.teach([20, 21], [truth(kind, 20), truth(kind, 21)])
    learner.unlabel(4)
    learner.relabel(2, wrong)

    fresh = make(kind, labels={i: y for i, y in old.items() if i not in (2, 4)})
    fresh.teach([21, 20, 2], [truth(kind, 21), truth(kind, 20), wrong])
    assert_same(learner, fresh)


@pytest.mark.parametrize("kind", ["l2", "ce", "binary-l2", "binary-ce"])
@pytest.mark.parametrize("steps", [400, 20])
@pytest.mark.parametrize("strategy", ["cover", "gain"])
def test_a_changed_label_leaves_no_trace_in_the_default_ridge_and_scale(kind: str, steps: int, strategy: str) -> None:
    """λ and the scale of Θ follow from labels of the training: a changed one must not count there."""
    old = {i: truth(kind, i) for i in range(12)}
    net = network(3 if kind in ("l2", "ce") else 1)
    loss = "ce" if kind.endswith("ce") else "l2"
    ft.fit(net, points()[:12], torch.tensor(list(old.values())), loss=loss, steps=steps)
    how = {"loss": loss, "classes": 2 if kind.startswith("binary") else 3, "strategy": strategy}

    def trained_on(labels: dict[int, int]) -> ft.Learner:
        return ft.Learner(net, points(), labels=labels, **how)

    learner, other = trained_on(old), (old[2] + 1) % how["classes"]
    learner.teach([20, 21], [truth(kind, 20), truth(kind, 21)])
    learner.query(1)
    learner.relabel(2, other)
    learner.unlabel([4, 20])
    learner.query(1)
    learner.release()
    fresh = trained_on({i: y for i, y in old.items() if i not in (2, 4)})
    fresh.teach([2, 21], [other, truth(kind, 21)])
    assert ridge_of(learner) == pytest.approx(ridge_of(fresh), rel=1e-9)
    assert_same(learner, fresh)

    learner.release()
    learner.relabel([2, 4], [old[2], old[4]])
    learner.unlabel(21)
    assert_same(learner, trained_on(old))


def test_many_labels_join_the_solve_of_the_trained_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make("l2")
    monkeypatch.setattr("foretaste.label.live_model.MOST_KEPT", 4)
    folded = make("l2")
    for learner in (plain, folded):
        for i in range(10, 25):
            learner.teach(i, truth("l2", i))
        learner.relabel(20, 0)
        learner.unlabel([11, 3])
    assert len(folded._now.model._shown.base) > 6
    assert_same(plain, folded)


@pytest.mark.parametrize("kind", ["l2", "ce"])
def test_what_labels_and_trainings_leave_behind_is_freed_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old kernels waited for the garbage collector, which counts objects and does not see how large they are."""
    monkeypatch.setattr("foretaste.label.live_model.MOST_KEPT", 4)
    learner = make(kind, watch=15, fit_options={"steps": 3})

    def alive() -> list[int]:
        return [sum(type(o) is each for o in gc.get_objects()) for each in (LiveModel, Problem, ThetaBlocks)]

    learner.query(1)
    gc.collect()
    before = alive()
    gc.disable()
    try:
        for i in range(10, 30):
            learner.query(1)
            learner.teach(i, truth(kind, i))
            learner.predict()
            learner.explain(i + 1)
            learner.status()
        learner.relabel(3, 0)
        learner.predict()
        learner.retrain(wait=True)
        learner.unlabel([4, 12])
        learner.predict()
        learner.retrain()
        assert learner.wait(60)
        learner.query(1)
        assert alive() == before
    finally:
        gc.enable()
    assert before[2] == 0  # Θ is held once, by the model


def test_predictions_are_the_linearised_network() -> None:
    """f + Θ(x, L) (Θ_LL + λI)⁻¹ (Y − f), typed out, with the kernel of the default strategy."""
    learner, net = make("l2"), network(3)
    learner.teach([20, 21, 22], [truth("l2", i) for i in (20, 21, 22)])
    at = [*range(6), 20, 21, 22]
    y = nn.functional.one_hot(torch.tensor([truth("l2", i) for i in at]), 3).double()
    x, new = points(), points(5, 7)
    f = net(x[at]).detach()
    weights = torch.linalg.solve(ft.ntk(net, x[at], output="signs") + 0.01 * torch.eye(9), y - f)
    for these, given in ((x, None), (x[[3, 30]], [3, 30]), (new, new), (new, new.numpy())):
        expected = net(these).detach() + ft.ntk(net, these, x[at], output="signs") @ weights
        assert learner.predict(given).tolist() == expected.argmax(1).tolist()
        torch.testing.assert_close(learner._outputs(given), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["l2", "regression"])
def test_the_scale_is_leave_one_out_over_the_labels_since(kind: str) -> None:
    """Each label since the training is predicted from all others, one by one."""
    learner = make(kind)
    model, book = learner._now.model, learner._now.book
    prior = model.scale(book)
    new = [20, 25, 30, 31]
    learner.teach(new, [truth(kind, i) for i in new])
    terms = []
    for i in new:
        others = make(kind)
        others.teach([j for j in new if j != i], [truth(kind, j) for j in new if j != i])
        state = others._now.model.follow(others._now.book)
        residual = state.targets(np.array([truth(kind, i)]))[0] - state.pool_mean[i]
        terms.append(float(residual.square().mean() / state.u[i]))
    weight = 5
    expected = pytest.approx((weight * prior + sum(terms)) / (weight + len(new)), rel=1e-8)
    assert model.scale(book) == expected
    learner.unlabel([25, 30])  # what is known of the others stays; these come again, in another order
    learner.teach([27, 30], [truth(kind, 27), truth(kind, 30)])
    model.scale(book)
    learner.unlabel(27)
    learner.teach(25, truth(kind, 25))
    assert model.scale(book) == expected


def test_a_label_that_has_joined_the_others_costs_one_number_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of all items are held for few labels; the trained labels' own state is let go when others join them."""
    monkeypatch.setattr("foretaste.label.live_model.MOST_KEPT", 4)
    monkeypatch.setattr("foretaste.label.live_model.SPARE_ROWS", 3)
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    how = {"classes": 3, "watch": 20, "ridge": 0.01, "graph": None}
    learner = ft.Learner(network(3).float(), x, labels={i: i % 3 for i in range(6)}, **how)
    model = learner._now.model

    def rows_held() -> int:
        """How often a number is held for each of the 200 items, by the model that answers."""
        gc.collect()
        found = {t.data_ptr(): t for t in gc.get_objects() if isinstance(t, torch.Tensor) and 200 in t.shape}
        return sum(t.untyped_storage().nbytes() for t in found.values() if t.dtype == torch.float64) // 1600

    held = []
    for i in range(10, 90):
        learner.query(5)
        learner.release()
        learner.teach(i, i % 3)
        model.follow(learner._now.book)
        if len(model._shown.base) == len(learner.labels):  # all have just joined
            held.append((len(learner.labels), rows_held()))
        assert len(model._shown.state.linearisation.rows) <= len(model._shown.kept) + 3
    assert model._base.state is None
    (n, before), (m, after) = held[1], held[-1]
    assert m - n >= 60
    assert after - before == m - n
    plain = ft.Learner(network(3).float(), x, labels={i: i % 3 for i in range(6)}, **how)
    monkeypatch.setattr("foretaste.label.live_model.MOST_KEPT", 400)
    plain.teach(range(10, 90), [i % 3 for i in range(10, 90)])
    assert model.scale(learner._now.book) == pytest.approx(plain._now.model.scale(plain._now.book), rel=1e-8)
    learner.unlabel(range(12, 90))  # few again: the state of the trained ones comes back
    torch.testing.assert_close(learner.predict_proba(), make_again(how, x).predict_proba(), rtol=1e-8, atol=1e-8)


def make_again(how: dict[str, Any], x: torch.Tensor) -> ft.Learner:
    learner = ft.Learner(network(3).float(), x, labels={i: i % 3 for i in range(6)}, **how)
    learner.teach([10, 11], [1, 2])
    return learner


def test_the_kernel_of_the_first_questions_goes_when_the_model_asks() -> None:
    learner = ft.Learner(pool=points(3, 60).float(), classes=2, fit_options={"steps": 20})
    learner.query(2)
    assert "cover" in vars(learner._now)
    learner.teach([0, 1], [0, 1])
    learner.query(1)
    assert "cover" not in vars(learner._now)


def test_under_cross_entropy_a_label_is_fitted_as_the_trained_ones_are() -> None:
    with seeded(0, torch.device("cpu")):
        net = nn.Linear(4, 3).double().eval()
    net.weight.data *= 6
    x = points()
    trained = {i: int(net(x[i]).argmax()) for i in range(1, 7)}
    learner = ft.Learner(net, x, labels=trained, loss="ce", ridge=1e-9)
    left = float(1 - learner.predict_proba(list(trained)).amax(1).mean())
    scale, size = learner._now.model.theta_scale, float(ft.ntk(net, x, output="signs").diagonal().mean())
    # One label alone on a point of mean size whose logits are equal.
    assert 0.01 < left < 0.3
    alpha = torch.tensor([left, -left / 2, -left / 2], dtype=torch.float64)
    assert float(torch.softmax(scale * size * alpha, 0)[0]) == pytest.approx(1 - left, rel=1e-9)
    assert ft.Learner(net, x, loss="ce")._now.model.theta_scale == 1
    assert ft.Learner(net, x, labels=trained, loss="ce", theta_scale=2.0)._now.model.theta_scale == 2


def test_a_first_batch_covers_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The greedy maximum of Σ_i max_{j ∈ B} κ_ij², with loops; tests/lookahead/test_graph.py has the oracle of κ."""
    learner = ft.Learner(None, points().float(), classes=3)
    learner.teach(7, 1)
    k = PoolKernel(points().float().double()).theta_GG.clamp(0, 1).square()
    chosen = [7]
    for _ in range(4):
        sums = [float(k[:, [*chosen, j]].amax(1).sum()) if j not in chosen else -1.0 for j in range(N)]
        chosen.append(int(np.argmax(sums)))
    assert learner.query(2) + learner.query(2) == chosen[1:]


# --- ids and labels ---


def test_the_users_ids_and_class_names_in_and_out() -> None:
    names = [f"img{i:02}.png" for i in range(N)]
    learner = ft.Learner(network(3), points(), ids=names, classes=["ant", "bee", "cat"])
    asked = learner.query(3)
    assert set(asked) <= set(names)
    assert learner.pending == asked
    learner.teach(asked, ["bee", 2, "ant"])
    assert learner.labels == dict(zip(asked, ["bee", "cat", "ant"]))
    assert learner.pending == []
    assert set(learner.predict(names[:4])) <= {"ant", "bee", "cat"}
    assert learner.predict_proba(names[:4]).sum(1).tolist() == pytest.approx([1] * 4)
    learner.teach(asked[0], "bee")  # the same label again: nothing happens
    with pytest.raises(ValueError, match=r"'img.*already has the label 'bee'.*relabel"):
        learner.teach(asked[0], "cat")
    with pytest.raises(KeyError, match=r"unknown id 'img1\.png'; did you mean 'img\d1"):
        learner.teach("img1.png", "bee")
    with pytest.raises(KeyError, match="unknown id 7, of type int; the ids of this pool are of type str"):
        learner.unlabel(7)
    with pytest.raises(ValueError, match="unknown class 'bea'; did you mean 'bee'"):
        learner.relabel(asked[0], "bea")
    with pytest.raises(ValueError, match="has no label"):
        learner.unlabel(next(i for i in names if i not in asked))
    free = [i for i in names if i not in asked][:2]
    with pytest.raises(ValueError, match="unknown class"):  # all or nothing
        learner.teach(free, ["bee", "wasp"])
    assert len(learner.labels) == 3


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"2 repeated entries, first 'a'"):
        ft.Learner(network(3), points(n=4), ids=["a", "a", "b", "a"])
    with pytest.raises(ValueError, match="3 entries and pool 4 items"):
        ft.Learner(network(3), points(n=4), ids=[1, 2, 3])
    with pytest.raises(TypeError, match="expected text or a whole number"):
        ft.Learner(network(3), points(n=2), ids=[1.5, 2.5])
    with pytest.raises(ValueError, match="pool is empty"):
        ft.Learner(network(3), points()[:0])
    with pytest.raises(TypeError, match=r"net is a Tensor; expected a torch\.nn\.Module\. Give the items as pool="):
        ft.Learner(torch.zeros(5, 2), classes=2)
    with pytest.raises(TypeError, match="pool is a int"):
        ft.Learner(network(3), 3)
    with pytest.raises(ValueError, match="how many classes are there"):
        ft.Learner(None, points())
    with pytest.raises(ValueError, match="network has 3 outputs and there are 2 classes"):
        ft.Learner(network(3), points(), classes=["a", "b"])
    with pytest.raises(ValueError, match="unknown strategy 'gian'; did you mean 'gain'"):
        ft.Learner(network(3), points(), strategy="gian")
    with pytest.raises(ValueError, match="needs classes"):
        ft.Learner(network(1), points(), strategy="margin")
    with pytest.raises(RuntimeError, match="nothing has been learned yet"):
        ft.Learner(None, points(), classes=2).predict()


def test_pending_items_are_never_handed_out_twice() -> None:
    learner = make("l2")
    seen = [*learner.query(5), *learner.query(1), *learner.query(3)]
    learner.teach(seen[4], truth("l2", seen[4]))
    learner.ignore([i for i in range(30, N) if i not in seen])
    seen += learner.query(100)
    assert len(seen) == len(set(seen))
    assert learner.query(1) == []
    assert set(seen) | set(range(6)) | set(learner.ignored) == set(range(N))
    learner.release(seen[7])
    assert learner.query(2) == [seen[7]]
    learner.release()
    assert learner.pending == []
    learner.restore(learner.ignored)
    assert len(learner.query(100)) == N - 6 - 1


def test_an_item_that_is_out_counts_as_labelled_with_an_unknown_label() -> None:
    learner = make("l2")
    before = outputs(learner)
    [i] = learner.query(1)
    state = learner._now.model.follow(learner._now.book)
    again = make("l2")._now.model.follow(make("l2")._now.book).condition(i, None)
    torch.testing.assert_close(state.u, again.u)
    torch.testing.assert_close(state.pool_mean.flatten(), before[: state.pool_mean.numel()])


# --- what it says ---


@pytest.mark.parametrize("kind", KINDS)
def test_explain_is_the_look_ahead_and_what_the_item_stands_for(kind: str) -> None:
    learner = make(kind)
    x = points()
    learner.teach([20, 21], [truth(kind, 20), truth(kind, 21)])
    before = learner._outputs(None)
    found = learner.explain(30, most=N)
    assert json.loads(json.dumps(found)) == found
    learner.teach(30, found["label"])
    after = learner._outputs(None)
    shown = {c["id"]: (c["from"], c["to"]) for c in found["changed"]}
    if kind == "regression":
        assert shown[11] == pytest.approx((float(before[11, 0]), float(after[11, 0])))
    else:
        names = learner.classes
        flips = [i for i in range(N) if int(before[i].argmax()) != int(after[i].argmax()) and i not in learner.labels]
        assert shown == {i: (names[int(before[i].argmax())], names[int(after[i].argmax())]) for i in flips}
        assert found["changes"] == len(flips)
        assert found["probabilities"][str(found["label"])] == max(found["probabilities"].values())
    # Alike is the squared correlation of what the labels leave unexplained.
    net, at = network({"l2": 3, "ce": 3}.get(kind, 1)), [*range(6), 20, 21]
    if kind in ("l2", "regression"):
        theta = ft.ntk(net, x, output="signs" if kind == "l2" else "sum")
        half = torch.linalg.solve(theta[at][:, at] + 0.01 * torch.eye(8), theta[at])
        S = theta - theta[:, at] @ half
        rho = S[30].square() / (S[30, 30] * S.diagonal())
        alike = {n["id"]: n["alike"] for n in found["nearest"]}
        assert alike[33] == pytest.approx(float(rho[33]), rel=1e-6)
        assert 30 not in alike
    assert found["nearest"] == sorted(found["nearest"], key=lambda n: -n["alike"])


def test_explaining_an_item_that_is_out_or_labelled_supposes_that_it_is_not() -> None:
    learner = make("l2")
    [i] = learner.query(1)
    out = learner.explain(i)
    learner.release(i)
    free = learner.explain(i)
    assert out["changed"] == free["changed"]
    assert [n["id"] for n in out["nearest"]] == [n["id"] for n in free["nearest"]]
    assert out["nearest"][0]["alike"] == pytest.approx(free["nearest"][0]["alike"])
    assert learner.explain(i, 2)["label"] == 2
    learner.teach(i, free["label"])
    assert learner.explain(i)["changed"] == free["changed"]
    fresh = make("l2", labels={j: truth("l2", j) for j in range(5)})
    fresh.teach(i, free["label"])
    trained, new = learner.explain(5), fresh.explain(5, truth("l2", 5))
    assert (trained["changes"], trained["label"]) == (new["changes"], new["label"])
    assert trained["moved"] == pytest.approx(new["moved"])
    learner.query(1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_track_record_outlives_the_learner(kind: str) -> None:
    """One that is taught all labels again at once has predicted none of them; with the record it advises as before."""
    first = make(kind)
    for i in range(6, 30):
        first.teach([i], [truth(kind, i)])
    record = json.loads(json.dumps(first.track_record()))
    assert [p["id"] for p in record] == list(range(6, 30))
    again = make(kind, labels=first.labels)
    assert again.track_record() == []
    before = first.status(), again.status()
    again.recall([*record, {"id": 39, "predicted": record[0]["predicted"], "error": 0.1}])  # 39 has no label
    assert again.track_record() == first.track_record()
    after = again.status()
    assert after["curve"] == before[0]["curve"]
    if kind != "regression":
        assert "advice to stop needs 20" in before[1]["reason"]
        assert after["reason"].startswith("about")
        assert after["error"]["ratio"] == pytest.approx(before[0]["error"]["ratio"])
    again.teach([35], [truth(kind, 35)])
    again.recall(record)
    assert [p["id"] for p in again.track_record()] == [*range(6, 30), 35]
    assert again.drift()["wrong"] in (None, 0, 1)  # of this learner's own predictions


def test_status_counts_and_predicts_before_teaching() -> None:
    learner = ft.Learner(network(3), points(), classes=["a", "b", "c"], ridge=0.01)
    assert learner.status()["curve"] == []
    hits = []
    for i in range(12):
        said = learner.predict([i])[0]
        label = "abc"[truth("l2", i)]
        hits.append(float(said == label))
        learner.teach(i, label)
    learner.query(2)
    learner.ignore(39)
    status = learner.status()
    assert json.loads(json.dumps(status)) == status
    assert [c["value"] for c in status["curve"]] == hits
    assert status["accuracy"] == pytest.approx(sum(hits) / 12)
    assert [status[k] for k in ("items", "labelled", "pending", "ignored", "open")] == [N, 12, 2, 1, N - 15]
    assert sum(status["classes"].values()) == 12
    assert 0 <= status["error"]["corrected"] <= 1
    assert not status["stop"]
    # A label that is corrected counts as corrected, and one that is taken back does not count.
    learner.relabel(0, learner.labels[1])
    learner.unlabel(5)
    assert len(learner.status()["curve"]) == 11


def test_what_is_predicted_of_a_label_does_not_depend_on_whether_it_was_asked_for() -> None:
    asked, told = make("l2"), make("l2")
    ids = asked.query(3)
    for i in ids:
        asked.teach(i, truth("l2", i))
    for i in ids:
        told.teach(i, truth("l2", i))
    for a, b in zip(asked._now.book.predictions.values(), told._now.book.predictions.values()):
        assert (a.position, a.predicted) == (b.position, b.predicted)
    # The first is predicted while the others are out, the last while none is.
    a, b = (learner._now.book.predictions[ids[2]] for learner in (asked, told))
    assert (a.error, a.surprise) == pytest.approx((b.error, b.surprise))
    assert 0 < a.error < 1


def test_drift_counts_new_and_changed_labels_and_advises() -> None:
    learner = make("l2")
    assert learner.drift()["retrain"] is False
    learner.teach(range(10, 20), [truth("l2", i) for i in range(10, 20)])
    learner.unlabel(0)
    found = learner.drift()
    assert (found["trained_on"], found["new"], found["changed"]) == (6, 10, 1)
    assert found["retrain"] is True
    assert "11 labels" in found["reason"]
    state = learner._now.model.follow(learner._now.book)
    f, mean = network(3)(points()).detach(), state.pool_mean
    assert found["moved"] == pytest.approx(float((mean - f).norm() / (f - f.mean(0)).norm()))
    assert found["flipped"] == pytest.approx(float((mean.argmax(1) != f.argmax(1)).double().mean()))
    learner.retrain(wait=True)
    assert learner.drift()["retrain"] is False
    assert learner.drift()["new"] == 0


# --- strategies ---


@pytest.mark.parametrize("strategy", ["random", "margin", "entropy", "mlmoc", "variance", "badge"])
def test_other_strategies(strategy: str) -> None:
    learners = [make("l2", strategy=strategy) for _ in range(2)]
    asked = [learner.query(4) + learner.query(2) for learner in learners]
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == 6
    assert not set(asked[0]) & set(range(6))


def test_margin_asks_for_the_smallest_margin() -> None:
    learner = make("l2", strategy="margin")
    learner.teach(39, truth("l2", 39))
    top = learner._outputs(None).topk(2, 1).values
    gaps = (top[:, 0] - top[:, 1]).tolist()
    assert learner.query(3) == sorted(range(6, N - 1), key=gaps.__getitem__)[:3]


# --- pools ---


class Items(torch.utils.data.Dataset):
    """A map-style dataset of (x, y) that counts what is read."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.read = x, set[int]()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        self.read.add(i)
        return self.x[i], 1


class Keyed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network(3)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.cat([a, b], 1))


def test_every_kind_of_pool_gives_the_same_answers() -> None:
    x = points()
    a, b = x[:, :1], x[:, 1:]
    rows = [{"a": a[i].numpy(), "b": b[i].tolist(), "label": 0} for i in range(N)]
    keyed, plain = Keyed().double().eval(), network(3)
    pools = {"array": x.numpy(), "dataset": Items(x), "rows": [{"x": row} for row in x]}
    learners = [ft.Learner(plain, pool) for pool in pools.values()]
    learners += [ft.Learner(keyed, {"a": a, "b": b}), ft.Learner(keyed, rows)]
    expected = ft.Learner(plain, x)
    asked = expected.query(3)
    expected.teach(asked, [0, 1, 2])
    for learner in learners:
        assert learner.query(3) == asked
        learner.teach(asked, [0, 1, 2])
        torch.testing.assert_close(learner._outputs(None), expected._outputs(None), rtol=1e-6, atol=1e-6)


def test_a_hugging_face_dataset() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": points().tolist(), "label": [0] * N})
    learner = ft.Learner(network(3), rows)
    assert learner.labels == {}
    assert learner.query(2) == ft.Learner(network(3), points()).query(2)


def frame(x: torch.Tensor, **more: object) -> Any:
    return pytest.importorskip("pandas").DataFrame(x.numpy(), **more)


@pytest.mark.parametrize("columns", [None, ["a", "b", "c", "d"]])
def test_the_rows_of_a_data_frame_are_items(columns: list[str] | None) -> None:
    """Its columns were taken for items, or a bare KeyError came."""
    x = points(n=60).float()
    side = (x[:, 0] > 0).int().tolist()
    how: dict[str, Any] = {"classes": 2, "fit_options": {"steps": 100}}
    framed, plain = ft.Learner(pool=frame(x, columns=columns), **how), ft.Learner(pool=x, **how)
    assert framed.ids == plain.ids == list(range(60))
    for learner in (framed, plain):
        for _ in range(3):
            asked = learner.query(4)
            learner.teach(asked, [side[int(i)] for i in asked])
    assert framed.labels == plain.labels
    torch.testing.assert_close(framed._outputs(None), plain._outputs(None))
    with pytest.raises(TypeError, match=r"items is a data frame; .*items\[columns\]\.to_numpy\(\)"):
        framed.predict(frame(x, columns=columns))


def test_a_data_frame_has_ids_and_labels_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    x = points(n=12).float()
    index = [f"row{i}" for i in range(12)]
    assert ft.Learner(network(3), frame(x, index=index)).ids == index
    assert ft.Learner(network(3), frame(x)[3:]).ids == list(range(3, 12))
    named = frame(x, columns=list("abcd"), index=[0] * 12).assign(id=index, label=["cat", "dog", *[None] * 10])
    learner = ft.Learner(pool=named)
    assert (learner.ids, learner.classes) == (index, ["cat", "dog"])
    assert learner.labels == {"row0": "cat", "row1": "dog"}
    with pytest.raises(
        ValueError, match=r"the index of pool repeats 0, .*pool\.reset_index\(drop=True\), or give ids="
    ):
        ft.Learner(network(3), frame(x, index=[0] * 12))
    assert ft.Learner(network(3), frame(x, index=[0] * 12), ids=index).ids == index
    mixed = frame(x, columns=list("abcd")).assign(city=["Rome", "Oslo", "Kyiv"] * 4, empty=None)
    assert ft.Learner(pool=mixed, classes=2).query(2)
    assert "pool: 1 column (empty) is empty: left out" in caplog.text


def test_texts_are_read_as_ft_open_reads_them() -> None:
    """numpy's TypeError came."""
    texts = [f"{'good fine' if i % 2 else 'bad dull'} film number {i}" for i in range(20)]
    words = ["bad", "good"]
    opened = ft.Learner(pool=ft.open(texts), classes=words, fit_options={"steps": 100})
    made: list[Any] = [texts, tuple(texts), np.array(texts), np.array(texts, dtype=object)]
    for pool in made:
        learner = ft.Learner(pool=pool, classes=words, fit_options={"steps": 100})
        assert learner.ids == list(range(20))
        assert learner.query(3) == [int(i) for i in opened.query(3)]
        opened.release()
    learner.teach(range(6), [words[i % 2] for i in range(6)])
    assert learner.predict().tolist() == [words[i % 2] for i in range(20)]
    with pytest.raises(ValueError, match=r"names of pictures as strings, such as 'a\.png'; give pathlib\.Path"):
        ft.Learner(pool=["a.png", "b.png"], classes=2)


def test_an_item_of_nested_lists_is_taken_whole() -> None:
    """Of each item, only the first row was taken, as if it were x of (x, y)."""
    x = torch.arange(24.0).reshape(6, 2, 2)
    for pool in (x.tolist(), tuple(x.tolist()), [row.tolist() for row in x], list(x)):
        assert torch.equal(ft.Learner(pool=pool, classes=2)._now.pool.read([0, 5]).float(), x[[0, 5]])


def test_a_loader_is_a_pool_unless_it_shuffles() -> None:
    items = Items(points())
    loader = torch.utils.data.DataLoader(items, batch_size=7)
    assert ft.Learner(network(3), loader).query(3) == ft.Learner(network(3), points()).query(3)
    with pytest.raises(ValueError, match="pool is a DataLoader that shuffles"):
        ft.Learner(network(3), torch.utils.data.DataLoader(items, shuffle=True))


def test_opened_points_without_labels_or_with_numbers() -> None:
    """They were refused: "there is 0 class", "regression has no classes"."""
    x = points().numpy()
    assert ft.Learner(network(3), ft.open(x)).classes == [0, 1, 2]
    learner = ft.Learner(network(1), ft.open(x, label=[1.5, 2.5, *[None] * (N - 2)], regression=True))
    assert learner.labels == {"0": 1.5, "1": 2.5}


def test_whole_numbers_name_classes(tmp_path: Path) -> None:
    trained = {i: [10, 1, 7][int(truth("l2", i))] for i in range(6)}
    numbered, plain = make("l2", classes=[10, 1, 7], labels=trained), make("l2")
    for learner, names in ((numbered, [10, 1, 7]), (plain, [0, 1, 2])):
        learner.teach([20, 21, 22], [names[2], names[0], names[1]])
        learner.relabel(22, names[0])
    assert_same(numbered, plain)
    assert (numbered.labels[20], numbered.labels[22]) == (7, 10)
    assert set(numbered.predict().tolist()) <= {10, 1, 7}
    assert numbered.explain(23, 7)["label"] == 7
    assert numbered.status()["classes"].keys() == {"10", "1", "7"}
    for label in (0, 2, True, "10", 3.5, object()):
        with pytest.raises(ValueError, match="unknown class"):
            numbered.teach(25, label)
    numbered.teach(25, np.float64(7))  # a column with gaps has whole numbers as floats
    numbered.save(tmp_path)
    loaded = ft.Learner.load(tmp_path, net=network(3))
    assert (loaded.classes, loaded.labels) == ([10, 1, 7], numbered.labels)
    assert loaded.query(3) == numbered.query(3)
    loaded.recall(numbered.track_record())


def test_missing_labels_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    labels = pandas.Series([1, None, 0, *[None] * (N - 3)], dtype="Int64")
    assert ft.Learner(network(3), points(), labels=labels).labels == {0: 1, 2: 0}


def test_a_pool_with_labels_partly_filled_in() -> None:
    opened = SimpleNamespace(
        ids=[f"row{i}" for i in range(N)],
        x=points().float(),
        labels=["yes", "no", None, "yes", *[None] * (N - 4)],
        classes=["no", "yes"],
    )
    learner = ft.Learner(None, opened, fit_options={"steps": 50})
    assert learner.labels == {"row0": "yes", "row1": "no", "row3": "yes"}
    assert learner.ready
    assert set(learner.predict()) <= {"no", "yes"}


def test_the_test_side_of_a_pool_is_ignored(tmp_path, caplog) -> None:
    x, y = points().float().numpy(), np.arange(N) % 2
    y[4:10] = -1
    np.savez(tmp_path / "a.npz", x_train=x[:10], y_train=y[:10], x_test=x[10:], y_test=y[10:])
    learner = ft.Learner(None, ft.open(tmp_path / "a.npz"), fit_options={"steps": 20})
    assert learner.labels == {"0": "0", "1": "1", "2": "0", "3": "1"}
    assert learner.ignored == [str(i) for i in range(10, N)]
    assert sorted(learner.query(N)) == [str(i) for i in range(4, 10)]
    assert f"{N - 10} points of the test or validation split are left out" in caplog.text


def test_a_pool_larger_than_the_window_is_sampled_and_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretaste.label.pool.POOL_CHUNK", 7)
    items = Items(points(n=200))
    learner = ft.Learner(network(3), items, window=30)
    assert len(items.read) <= 33
    outside = next(i for i in range(200) if i not in items.read)
    learner.teach(outside, 1)
    assert outside in learner._now.model.row
    full = ft.Learner(network(3), points(n=200), ridge=ridge_of(learner))
    full.teach(outside, 1)
    torch.testing.assert_close(learner._outputs(None), full._outputs(None), rtol=1e-8, atol=1e-8)
    asked = learner.query(10)
    learner.teach(asked, [i % 3 for i in asked])
    learner.retrain(wait=True)
    assert set(asked) <= set(learner._now.model.row)
    assert len(learner._now.model.at_M) == 30


# --- the learner's own network ---


def test_with_no_label_it_proposes_a_first_batch_and_then_trains_itself() -> None:
    x = torch.cat([points(1, 30) * 0.2 + c for c in (-3, 0, 3)])
    learner = ft.Learner(None, x.float(), classes=["a", "b", "c"], fit_options={"steps": 100})
    first = learner.query(3)
    assert {i // 30 for i in first} == {0, 1, 2}  # one of each cluster
    assert not learner.ready
    learner.teach(first[0], "abc"[first[0] // 30])
    assert not learner.ready
    learner.teach(first[1:], ["abc"[i // 30] for i in first[1:]])
    assert learner.ready
    right = learner.predict() == np.array(["abc"[i // 30] for i in range(90)])
    assert right.mean() > 0.95


def test_regression_with_its_own_network() -> None:
    x = points(n=80)
    learner = ft.Learner(None, x.float(), regression=True, fit_options={"steps": 200})
    for _ in range(20):
        [i] = learner.query(1)
        learner.teach(i, float(x[i, 0]))
    learner.retrain(wait=True)
    error = torch.as_tensor(learner.predict()) - x[:, 0]
    assert float(error.square().mean()) < 0.5 * float(x[:, 0].var())


# --- training ---


def test_background_training_keeps_the_labels_given_meanwhile() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def train(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        begun.set()
        assert go_on.wait(20)
        ft.fit(net, x, y, steps=30)

    learner = make("l2", train=train)
    before = [p.clone() for p in learner.net.parameters()]
    learner.retrain()
    assert begun.wait(20)
    assert learner.training
    asked = learner.query(4)
    learner.teach(asked[:3], [truth("l2", i) for i in asked[:3]])
    learner.unlabel(2)
    learner.retrain()  # one is under way: nothing happens
    labels, old = learner.labels, learner.net
    go_on.set()
    assert learner.wait(20)
    assert not learner.training
    assert learner.labels == labels
    assert learner.pending == asked[3:]
    assert learner.net is not old
    for p, q in zip(before, old.parameters()):
        torch.testing.assert_close(p, q)  # the user's network is untouched
    # As if the new network had been given from the start, trained on the six labels and then taught.
    fresh = ft.Learner(learner.net, points(), labels={i: y for i, y in labels.items() if i not in asked}, ridge=0.01)
    fresh.teach(asked[:3], [labels[i] for i in asked[:3]])
    torch.testing.assert_close(outputs(learner)[: N * 3], outputs(fresh)[: N * 3], rtol=1e-8, atol=1e-8)
    assert asked[3] not in learner.query(N)


class HeldTraining:
    """A ``train=`` that waits for ``go_on``. ``seen`` has the number of labels of each call."""

    def __init__(self, error: type[BaseException] | None = None) -> None:
        self.begun, self.go_on, self.seen, self.error = threading.Event(), threading.Event(), list[int](), error

    def __call__(self, net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        self.seen.append(len(x))
        self.begun.set()
        assert self.go_on.wait(20)
        if self.error is not None and len(self.seen) == 1:
            raise self.error("as planned")
        with torch.no_grad():
            next(net.parameters()).add_(0.01)


def retrain_in_thread(learner: ft.Learner) -> tuple[threading.Thread, list[BaseException]]:
    errors = list[BaseException]()

    def work() -> None:
        try:
            learner.retrain(wait=True)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, errors


def waiting_beside(train: HeldTraining, learner: ft.Learner, count: int = 2) -> list[BaseException]:
    """What retrain(wait=True) raises in threads that call it while a training is under way."""
    done, waiting = learner._now.under_way.done, set[int]()
    wait = done.wait

    def noted(timeout: float) -> bool:
        waiting.add(threading.get_ident())
        return wait(timeout)

    done.wait = noted
    others = [retrain_in_thread(learner) for _ in range(count)]
    end = time.monotonic() + 20
    while len(waiting) < count and time.monotonic() < end:
        time.sleep(0.002)
    train.go_on.set()
    for thread, _ in others:
        thread.join(20)
        assert not thread.is_alive()
    return [error for _, errors in others for error in errors]


@pytest.mark.parametrize("background", [False, True])
def test_who_waits_shares_the_training_under_way(background: bool) -> None:
    """Two threads that called retrain(wait=True) trained twice, the second for nothing."""
    train = HeldTraining()
    learner = make("l2", train=train)
    if background:
        learner.retrain()
    else:
        first, errors = retrain_in_thread(learner)
    assert train.begun.wait(20)
    learner.retrain()  # not a second time
    assert waiting_beside(train, learner) == []
    assert learner.wait(20)
    if not background:
        first.join(20)
        assert errors == []
    assert train.seen == [6]
    assert learner.status()["training"] == {"running": False, "count": 1, "failure": None}


@pytest.mark.parametrize("background", [False, True])
def test_labels_that_the_training_under_way_lacks_are_trained_on_once_more(background: bool) -> None:
    train = HeldTraining()
    learner = make("l2", train=train)
    first = None
    if background:
        learner.retrain()
    else:
        first, _ = retrain_in_thread(learner)
    assert train.begun.wait(20)
    learner.teach([10, 11], [truth("l2", 10), truth("l2", 11)])
    assert waiting_beside(train, learner, 3) == []
    assert train.seen == [6, 8]  # once more for all three
    assert learner.drift()["trained_on"] == 8
    if first is not None:
        first.join(20)


def test_who_waits_gets_the_error_of_the_training() -> None:
    train = HeldTraining(ArithmeticError)
    learner = make("l2", train=train)
    first, errors = retrain_in_thread(learner)
    assert train.begun.wait(20)
    others = waiting_beside(train, learner)
    first.join(20)
    assert [str(e) for e in errors + others] == ["as planned"] * 3
    assert train.seen == [6]
    learner.retrain(wait=True)
    assert train.seen == [6, 6]


def test_who_waits_trains_after_a_training_that_is_interrupted() -> None:
    train = HeldTraining(KeyboardInterrupt)
    learner = make("l2", train=train)
    first, errors = retrain_in_thread(learner)
    assert train.begun.wait(20)
    assert waiting_beside(train, learner) == []
    first.join(20)
    assert [type(e) for e in errors] == [KeyboardInterrupt]
    assert train.seen == [6, 6]


def test_an_interrupt_of_who_waits_leaves_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    train = HeldTraining()
    learner = make("l2", train=train)
    first, errors = retrain_in_thread(learner)
    assert train.begun.wait(20)
    monkeypatch.setattr(learner._now.under_way.done, "wait", Interrupter(None, 1))
    with pytest.raises(KeyboardInterrupt):
        learner.retrain(wait=True)
    monkeypatch.undo()
    learner.teach(10, truth("l2", 10))  # no lock is held
    assert waiting_beside(train, learner, 1) == []
    first.join(20)
    assert errors == []
    assert train.seen == [6, 7]


@pytest.mark.parametrize("own", [False, True])
def test_a_training_that_waits_for_itself_is_refused(own: bool) -> None:
    learner: ft.Learner

    def train(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        learner.retrain(wait=True)

    learner = ft.Learner(pool=points().float(), classes=3, train=train) if own else make("l2", train=train)
    with pytest.raises(RuntimeError, match="must not start another"):
        learner.teach([0, 1, 2], [0, 1, 2]) if own else learner.retrain(wait=True)


@pytest.mark.parametrize("kind", ["l2", "ce"])
def test_the_expected_error_counts_every_class_of_the_open_items(kind: str) -> None:
    """l2: how often another output than the largest mean is the largest, of outputs drawn with 0.3 s² S_jj."""
    learner = make(kind)
    asked = learner.query(1)
    learner.teach(range(10, 30), [truth(kind, i) for i in range(10, 30)])
    learner.ignore([35])
    now = learner._now
    state, book = now.model.follow(now.book), now.book
    left = [i for i in range(N) if i not in (*book.labels, *asked, 35)]
    mean, g = state.pool_mean[left], torch.Generator().manual_seed(0)
    if kind == "ce":
        want = 1 - torch.softmax(mean, 1).amax(1)
    else:
        sigma = (0.3 * now.model.scale(book) * state.variance_blocks[left, 0, 0]).sqrt()
        drawn = mean + sigma[:, None] * torch.randn(20_000, *mean.shape, generator=g, dtype=torch.float64)
        want = (drawn.argmax(2) != mean.argmax(1)).double().mean(0)
    error = learner.status()["error"]
    assert error["model"] == pytest.approx(float(want.mean()), abs=0.005)
    record = list(book.predictions.values())
    made = sum(p.predicted != book.labels[p.position] for p in record)
    assert error["ratio"] == pytest.approx((made + 5) / (sum(p.error for p in record) + 5))
    assert error["corrected"] == pytest.approx(error["model"] * error["ratio"])


def test_a_training_that_diverges_leaves_the_old_network(caplog: pytest.LogCaptureFixture) -> None:
    learner = make("l2", fit_options={"max_lr": 1e9, "steps": 50})
    before = outputs(learner)
    with pytest.raises(Diverged):
        learner.retrain(wait=True)
    learner.retrain()
    assert learner.wait(20)
    assert "the network from before stays" in caplog.text
    assert learner.status()["training"]["failure"].startswith("Diverged")
    torch.testing.assert_close(outputs(learner), before)


def test_a_training_that_diverges_is_repeated_at_half_the_rate(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = sys.modules["foretaste.network.fit"]
    real = module.train_fast

    def train(net: nn.Module, x: torch.Tensor, goal: object, how: TrainingRecipe) -> float:
        if how.max_lr > 0.2:
            nn.init.constant_(next(net.parameters()), torch.nan)
            raise diverged_error("the loss is nan at step 1 of 50", how)
        return real(net, x, goal, how)

    monkeypatch.setattr(module, "train_fast", train)
    fast, slow = (make("l2", fit_options={"max_lr": rate, "steps": 50}) for rate in (0.5, 0.125))
    for learner in (fast, slow):
        learner.retrain(wait=True)
    assert "the loss is nan at step 1 of 50, with max_lr=0.25; trying again with max_lr=0.125" in caplog.text
    assert fast.status()["training"]["failure"] is None
    assert_same(fast, slow)


def test_a_training_that_makes_nan_leaves_the_old_network() -> None:
    def train(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        for p in net.parameters():
            p.data.fill_(torch.nan)

    learner = make("l2", train=train)
    before = outputs(learner)
    with pytest.raises(ValueError, match="NaN"):
        learner.retrain(wait=True)
    torch.testing.assert_close(outputs(learner), before)


def test_one_logit_is_trained_as_two_classes() -> None:
    for loss in ("l2", "ce"):
        learner = make(f"binary-{loss}", fit_options={"steps": 300})
        learner.teach(range(10, 30), [truth("binary", i) for i in range(10, 30)])
        learner.retrain(wait=True)
        given = np.array(["low", "high"])[[truth("binary", i) for i in range(10, 30)]]
        assert (learner.predict(range(10, 30)) == given).all()


# --- files ---


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_gives_the_same_next_query(kind: str, tmp_path: Path) -> None:
    learner = make(kind)
    learner.teach([10, 11], [truth(kind, 10), truth(kind, 11)])
    asked = learner.query(3)
    learner.relabel(asked[0], truth(kind, asked[0]))
    learner.ignore(33)
    learner.unlabel(1)
    learner.save(tmp_path / "saved")
    again = ft.Learner.load(tmp_path / "saved")
    assert again.labels == learner.labels
    assert again.pending == learner.pending
    assert again.ignored == [33]
    assert_same(again, learner)
    left = {p.name for p in (tmp_path / "saved").iterdir() if p.suffix not in (".json", ".safetensors")}
    assert left == {".saving.lock"}


def test_a_preset_of_parameters_is_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = points().float()
    net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).eval()
    learner = ft.Learner(net, x, classes=3, strategy="variance", params="head")
    learner.teach([0, 1, 2], [0, 1, 2])
    learner.save(tmp_path)
    again = ft.Learner.load(tmp_path, net=copy.deepcopy(net))
    assert json.loads((tmp_path / "learner.json").read_text())["settings"][2] == "head"
    assert again.query(3) == learner.query(3)


def test_saving_the_learners_own_network_before_and_after_training(tmp_path: Path) -> None:
    learner = ft.Learner(None, points().float(), classes=3, strategy="random", fit_options={"steps": 20})
    asked = learner.query(3)
    learner.save(tmp_path)
    assert ft.Learner.load(tmp_path).query(2) == learner.query(2)
    learner.teach(asked, [0, 1, 2])
    learner.save(tmp_path)
    learner.teach(learner.query(1), [0])
    learner.save(tmp_path)
    again = ft.Learner.load(tmp_path)
    assert again.query(3) == learner.query(3)
    assert len(list(tmp_path.glob("network-*"))) == 1
    again.retrain(wait=True)
    learner.retrain(wait=True)
    torch.testing.assert_close(again._outputs(None), learner._outputs(None))


def test_a_save_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make("l2")
    learner.save(tmp_path)
    learner.teach(20, 1)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="the disk is full"):
        learner.save(tmp_path)
    monkeypatch.undo()
    assert 20 not in ft.Learner.load(tmp_path).labels
    learner.save(tmp_path)
    assert ft.Learner.load(tmp_path).labels == learner.labels


def test_damaged_and_foreign_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no learner\.json"):
        ft.Learner.load(tmp_path)
    learner = ft.Learner(Keyed().double().eval(), {"a": points()[:, :1], "b": points()[:, 1:]})
    learner.save(tmp_path)
    with pytest.raises(
        ValueError, match=r"of a network of yours, .*; give net=, a network of the same kind, into"
    ) as told:
        ft.Learner.load(tmp_path)
    assert "wrn1" not in str(told.value)  # nothing that Learner.load does not take
    assert ft.Learner.load(tmp_path, net=Keyed().double()).query(3) == learner.query(3)
    with pytest.raises(ValueError, match="does not fit the network"):
        ft.Learner.load(tmp_path, net=network(3))
    with pytest.raises(ValueError, match="is not the one"):
        ft.Learner.load(tmp_path, net=Keyed().double(), pool={"a": points(1)[:, :1], "b": points()[:, 1:]})
    path = tmp_path / "learner.json"
    text = path.read_text()
    path.write_text(seal_json(unsealed(text).replace("network-", "../network-")))
    with pytest.raises(ValueError, match=r"expected one that learner\.save\(\) wrote"):
        ft.Learner.load(tmp_path, net=Keyed().double())
    path.write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match="not valid JSON"):
        ft.Learner.load(tmp_path)
    path.write_text('{"version": 1}')
    with pytest.raises(ValueError, match="is damaged"):
        ft.Learner.load(tmp_path)


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("strategy", lambda was: was[:1]),
        ("strategy", lambda was: ["mlmok", {}]),
        ("settings", lambda was: [was[0], "null", *was[2:]]),
        ("counts", lambda was: [[], 0]),
        ("book", lambda was: was | {"labels": [[10**20, 1]]}),
        ("kind", lambda was: [-1, False, None]),
    ],
)
def test_damage_in_learner_json_names_the_folder(tmp_path: Path, key: str, changed) -> None:
    make("l2").save(tmp_path)
    path = tmp_path / "learner.json"
    found = json.loads(unsealed(path.read_text()))
    path.write_text(seal_json(json.dumps(found | {key: changed(found[key])})))
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        ft.Learner.load(tmp_path)


def unsealed(text: str) -> str:
    return re.sub(r', "checksum": "[0-9a-f]{16}"', "", text)


def test_a_saved_learner_with_one_bit_changed_is_refused(tmp_path: Path) -> None:
    """It was loaded, with other labels, weights or items."""
    learner, draw = make("l2"), random.Random(0)
    learner.save(tmp_path)
    files = [path for path in tmp_path.iterdir() if path.suffix in (".json", ".safetensors")]
    assert len(files) == 3
    for path in files:
        raw = path.read_bytes()
        for _ in range(40):
            changed = bytearray(raw)
            changed[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
            path.write_bytes(changed)
            with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
                ft.Learner.load(tmp_path)
        learner.save(tmp_path)  # a damaged file is written again, though one of its name is there
        assert ft.Learner.load(tmp_path).labels == learner.labels
    assert_same(ft.Learner.load(tmp_path), learner)


def test_a_learner_of_an_earlier_version_is_loaded_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner = make("l2")
    learner.save(tmp_path)
    ft.Learner.load(tmp_path)
    assert "earlier version" not in caplog.text
    path = tmp_path / "learner.json"
    path.write_text(unsealed(path.read_text()).replace('"version": 2', '"version": 1'))
    for file in tmp_path.glob("*.safetensors"):
        tensors, about = read_tensors(file)
        save_file(tensors, file, metadata=about)
    assert_same(ft.Learner.load(tmp_path), learner)
    assert "was saved by an earlier version, without digests" in caplog.text


def test_a_dataset_is_given_again(tmp_path: Path) -> None:
    learner = ft.Learner(network(3), Items(points()))
    learner.teach(3, 1)
    learner.save(tmp_path)
    with pytest.raises(ValueError, match="give pool="):
        ft.Learner.load(tmp_path)
    assert ft.Learner.load(tmp_path, pool=Items(points())).query(2) == learner.query(2)


def test_the_page_of_the_learner_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "learner.md").read_text(encoding="utf-8")
    [code] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    space: dict[str, object] = {}
    exec(compile(code, "learner.md", "exec"), space)
    assert "corrected" in capsys.readouterr().out
    assert len(space["learner"].labels) == 12  # type: ignore[attr-defined]


# --- threads ---


def test_threads_never_get_the_same_item(tmp_path: Path) -> None:
    learner = ft.Learner(network(3), points(n=120), train=lambda net, x, y: ft.fit(net, x, y, steps=10))
    got: list[int] = []
    errors: list[BaseException] = []

    def annotate(worker: int) -> None:
        try:
            for k in range(10):
                [i] = learner.query(1)
                got.append(i)
                learner.teach(i, i % 3)
                learner.predict([0, 1])
                learner.status()
                if k == 3 and worker == 0:
                    learner.retrain()
                if k == 5:
                    learner.relabel(i, (i + 1) % 3)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=annotate, args=(w,)) for w in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert learner.wait(60)
    assert not errors
    assert len(got) == len(set(got)) == 40 == len(learner.labels)
    state = learner._now.model.follow(learner._now.book)
    fresh = ft.Learner(learner.net, points(n=120), ridge=state.ridge)
    fresh.teach(*zip(*learner.labels.items()))
    torch.testing.assert_close(learner._outputs(None), fresh._outputs(None), rtol=1e-8, atol=1e-8)


ENDS = """
import torch, foretaste as ft
from foretaste.network import sgd
sgd.PROGRESS_REPORTS = 6000  # every 50 steps: between two reports nothing stops a training
x = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
learner = ft.Learner(pool=x, classes=2, fit_options={"steps": 300_000}, background=True)
for i in range(6):
    learner.teach(i, int(x[i, 0] > 0))
print("end", learner.training, flush=True)
"""


def test_a_program_that_ends_stops_a_training_in_the_background():
    """Cut off within torch, the process would abort; waited for, it would train for hours."""
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end True\n", "")


def test_a_training_that_a_daemon_starts_is_waited_for_at_exit_too() -> None:
    """Threads inherit it: the training was a daemon, was cut off within torch at exit, and the process aborted."""
    learner, go = make("l2", train=lambda net, x, y: go.wait(60)), threading.Event()
    starter = threading.Thread(target=learner.retrain, daemon=True)
    starter.start()
    starter.join(60)
    daemon = learner._now.worker.daemon
    go.set()
    assert learner.wait(60)
    assert not daemon


def test_a_training_in_the_background_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretaste.network.sgd.PROGRESS_REPORTS", 1000)  # every 100 steps
    learner = make("l2", fit_options={"steps": 100_000})
    before = learner.net
    learner.stop_training()  # none is under way
    learner.retrain()
    learner.stop_training()
    assert learner.wait(120)
    assert learner.net is before
    assert learner.status()["training"] == {"running": False, "count": 1, "failure": None}
    learner.teach(20, truth("l2", 20))  # and it goes on


def test_a_network_that_is_trained_on_elsewhere_does_not_reach_the_learner(tmp_path: Path) -> None:
    """Θ of the pool is of the weights as they were; outputs of new points came from the new weights."""
    net, x = network(3), points()
    learner = ft.Learner(net, x, labels={i: truth("l2", i) for i in range(6)}, window=20)
    before = outputs(learner), learner.predict_proba(x)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1)
    net.train()
    torch.testing.assert_close(outputs(learner), before[0])
    torch.testing.assert_close(learner.predict_proba(x), before[1])
    learner.save(tmp_path)
    torch.testing.assert_close(ft.Learner.load(tmp_path).predict_proba(x), before[1])


def test_a_network_that_cannot_be_copied_is_used_as_it_is() -> None:
    net = network(3)
    net.guard = threading.Lock()
    learner = ft.Learner(net, points(), labels={i: truth("l2", i) for i in range(6)})
    assert learner.net is net
    assert len(learner.query(2)) == 2


@pytest.mark.parametrize(
    "more",
    [
        {"fit_options": {"progress": print, "steps": 10}},
        {"budget": np.int64(10**9)},
        {"ridge": np.float32(0.25), "theta_scale": np.float32(0.5)},
        {"output": np.int64(1)},
        {"options": {"scale": np.float32(1)}},
        {"params": (k for k in ("layers.0.weight", "layers.2.weight"))},
        {"pool": {"x": points()}},
        {"pool": points().bfloat16()},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_a_learner_takes_it_can_save(tmp_path: Path, more: dict) -> None:
    pool = more.pop("pool", points())
    learner = ft.Learner(network(3), pool, labels={i: truth("l2", i) for i in range(6)}, **more)
    learner.teach(10, 1)
    learner.save(tmp_path)
    loaded = ft.Learner.load(tmp_path)
    torch.testing.assert_close(loaded.predict_proba(range(N)), learner.predict_proba(range(N)))
    assert loaded.query(3) == learner.query(3)


def test_threads_that_save_into_one_folder_leave_one_whole_save(tmp_path: Path) -> None:
    learners = [make("l2", seed=k) for k in range(3)]
    for k, learner in enumerate(learners):
        with torch.no_grad():
            next(learner.net.parameters()).add_(0.1 * k)  # files of other names
    failures = list[Exception]()

    def work(learner: ft.Learner) -> None:
        for _ in range(15):
            try:
                learner.save(tmp_path)
            except Exception as error:
                failures.append(error)

    workers = [threading.Thread(target=work, args=(learner,)) for learner in learners]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    assert len(ft.Learner.load(tmp_path).labels) == 6


def test_what_no_file_can_hold_is_named(tmp_path: Path) -> None:
    learner = ft.Learner(pool=points(), classes=3, fit_options={"steps": {1}})
    with pytest.raises(ValueError, match=r"is a set, \{1\}, which a file cannot hold"):
        learner.save(tmp_path)

    class Extra(MLP):
        def get_extra_state(self) -> dict:
            return {"a": 1}

        def set_extra_state(self, state: dict) -> None:
            pass

    net = Extra(4, (8,), 3).double().eval()
    with pytest.raises(ValueError, match=r"the state of net has '_extra_state', which is no tensor"):
        ft.Learner(net, points()).save(tmp_path)


def test_ids_and_labels_without_dimensions() -> None:
    learner = make("l2")
    learner.teach(torch.tensor(10), torch.tensor(1))
    learner.teach(np.array(11), np.array(2))
    assert (learner.labels[10], learner.labels[11]) == (1, 2)
    with pytest.raises(KeyError, match=r"unknown id 12\.0, of type float"):
        learner.teach(12.0, 1)
    with pytest.raises(ValueError, match="for 1 id; expected one label for each"):
        learner.teach([12], torch.tensor(1))


def test_a_learners_ridge_is_that_of_a_query_on_the_labels_of_the_training() -> None:
    net, x, trained = network(3), points(), torch.tensor([truth("l2", i) for i in range(6)])
    ft.fit(net, x[:6], trained, steps=400)
    list(net.parameters())[-1].data += 0.05  # what it leaves: a hundredth of their variance
    how = {"output": "sum", "ridge": None}
    state = ft.linearize(net, x[:6], trained, x, ridge="misfit")
    learner = ft.Learner(net, x, labels=dict(enumerate(trained.tolist())), **how)
    assert ridge_of(learner) == pytest.approx(state.ridge, rel=1e-6)
    backwards = ft.Learner(net, x, labels={i: int(trained[i]) for i in reversed(range(6))}, **how)
    assert ridge_of(backwards) == ridge_of(learner)
    learner.teach(20, truth("l2", 20))
    assert ridge_of(learner) == ridge_of(backwards)  # until the next training
    small = ridge_of(ft.Learner(net, x, labels=dict(enumerate(trained.tolist())), strategy="gain", **how))
    assert small == pytest.approx(1e-6 * float(ft.ntk(net, x).diagonal().mean()), rel=1e-6)
    assert 100 * small < ridge_of(learner)
    unfitted = ridge_of(make("l2", **how))
    assert unfitted == pytest.approx(1e-6 * float(ft.ntk(network(3), x).diagonal().mean()), rel=1e-6)
    with pytest.raises(ValueError, match="ridge"):
        make("l2", ridge="mistfit")


def test_odd_classes_labels_and_pools() -> None:
    assert ft.Learner(pool=points(), classes=np.int64(3)).classes == [0, 1, 2]
    with pytest.raises(ValueError, match="classes is True; expected a whole number"):
        ft.Learner(pool=points(), classes=True)
    with pytest.raises(ValueError, match="expected a finite number"):
        ft.Learner(pool=points(), regression=True).teach(0, 10**400)
    for pool in (points() > 0, torch.arange(N)):
        with pytest.raises(ValueError, match=r"expected one row of numbers for each item, as pool\.float\(\) gives"):
            ft.Learner(pool=pool, classes=3)


# --- Ctrl-C ---


class Interrupter:
    """Wraps a function: its n-th call raises KeyboardInterrupt, as Ctrl-C would there."""

    def __init__(self, function, n: int) -> None:
        self.function, self.left = function, n

    def __call__(self, *args, **kwargs):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("kind", ["l2", "ce"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_an_interrupt_leaves_no_label_that_the_model_has_not_seen(
    kind: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = make(kind), make(kind)
    a.teach([10, 11, 12], [truth(kind, i) for i in (10, 11, 12)])
    with monkeypatch.context() as patch:
        interrupted = Interrupter(DenseState.condition, n)
        patch.setattr(DenseState, "condition", lambda *args: interrupted(*args))
        with pytest.raises(KeyboardInterrupt):
            a.predict()
    b.teach([10, 11, 12], [truth(kind, i) for i in (10, 11, 12)])
    assert_same(a, b)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_an_interrupted_query_puts_nothing_out(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make("l2", strategy="gain"), make("l2", strategy="gain")
    with monkeypatch.context() as patch:
        interrupted = Interrupter(DenseState.condition, n)
        patch.setattr(DenseState, "condition", lambda *args: interrupted(*args))
        with pytest.raises(KeyboardInterrupt):
            a.query(4)
    assert a.pending == []
    assert_same(a, b)


def interrupt_at(line: int, name: str, call) -> bool:
    """Ctrl-C at a line of the function ``name``, the n-th that runs; whether there are so many."""
    left = line

    def trace(frame, event: str, arg: object):
        nonlocal left
        left -= event == "line"
        if not left:
            raise KeyboardInterrupt
        return trace

    sys.settrace(lambda frame, *_: trace if frame.f_code.co_name == name else None)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return left <= 0


def test_an_interrupt_while_an_item_joins_the_window_leaves_it_whole() -> None:
    """At every line of ``admit`` in turn."""
    b = make("l2", window=10)
    p = next(p for p in range(N) if p not in b._now.model.row)
    b.teach(p, truth("l2", p))
    for line in range(1, 50):
        a = make("l2", window=10)
        came = interrupt_at(line, "admit", partial(a._now.model.admit, [p]))
        a.teach(p, truth("l2", p))
        torch.testing.assert_close(outputs(a), outputs(b), rtol=1e-8, atol=1e-8)
        if not came:
            break
    assert line > 10


def test_an_interrupt_while_items_are_exchanged_leaves_the_window_whole() -> None:
    """At every line of ``replace_items`` in turn: Θ, outputs and states are those of the old items, or of the new."""
    b = make("l2", window=20, watch=5)
    rows = [m for m in b._now.model.open_rows(b._now.book).tolist() if m not in b._now.model.watched.tolist()][:4]
    new = [p for p in range(N) if p not in b._now.model.row][:4]
    for line in range(1, 80):
        a = make("l2", window=20, watch=5)
        a.predict()
        model = a._now.model
        came = interrupt_at(line, "replace_items", partial(model.replace_items, rows, new))
        x = points()[model.at_M]
        torch.testing.assert_close(model.theta_MM, ft.ntk(model.net, x, output="signs"), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(model.f_MC, model.net(x).detach(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(model.follow(a._now.book).pool_net, model.f_MC)
        assert [model.row[p] for p in model.at_M] == list(range(len(model.at_M)))
        if not came:
            break
    assert line > 20


def test_an_interrupted_teach_counts_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    a = make("l2")
    with monkeypatch.context() as patch:
        patch.setattr(session_module, "note_prediction", Interrupter(session_module.note_prediction, 2))
        with pytest.raises(KeyboardInterrupt):
            a.teach([10, 11], [truth("l2", i) for i in (10, 11)])
    assert 10 not in a.labels
    assert a.status()["curve"] == []


def test_pictures_of_sixteen_bits_are_scaled_and_not_cut_off():
    """They were white from 256 of 65,535 on."""
    deep = np.arange(0, 65536, 4100, dtype=np.uint16).reshape(4, 4)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    learner = ft.Learner(net, [Image.fromarray(deep), Image.new("L", (4, 4))], classes=["a", "b"])
    with torch.no_grad():
        wanted = net(torch.from_numpy(np.rint(deep / 257) / 255).float()[None])
    torch.testing.assert_close(learner.predict_proba([0]), ft.losses.probabilities(wanted, "l2"), check_dtype=False)


@pytest.mark.parametrize("graph", [None, "auto"])
def test_a_doubted_label_is_learned_as_much_as_it_is_likely(graph, tmp_path):
    """mean = f + Θ_·L (Θ_LL + λI)⁻¹ (Y − f), where Y has 1 − d for the class and d/(C − 1) for each other."""
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth = (2 * (x[:, 0] > 0) + (x[:, 1] > 0)).tolist()
    learner = ft.Learner(pool=x, classes=4, graph=graph, fit_options={"steps": 40})
    learner.teach(range(20), truth[:20], doubts=[0.25 if i % 3 == 0 else 0.0 for i in range(20)])
    learner.teach(range(20, 26), truth[20:26], doubts=[0.5] * 6)
    learner.relabel([1, 21], [truth[1], truth[21]], doubts=[0.125, 0.0])
    doubts = dict.fromkeys(range(0, 20, 3), 0.25) | dict.fromkeys((20, 22, 23, 24, 25), 0.5) | {1: 0.125}
    assert learner.doubts == doubts
    assert learner.labels == dict(enumerate(truth[:26]))
    y_LC = torch.zeros(26, 4, dtype=torch.float64)
    for i in range(26):
        for c in range(4):
            y_LC[i, c] = 1 - doubts.get(i, 0.0) if c == truth[i] else doubts.get(i, 0.0) / 3
    model = learner._now.live
    at = list(range(26))
    A = model.theta_MM[at][:, at] + model.ridge(learner._now.book) * torch.eye(26, dtype=torch.float64)
    want = model.f_MC + model.theta_MM[:, at] @ torch.linalg.solve(A, y_LC - model.f_MC[at])
    torch.testing.assert_close(learner._outputs(None), want, rtol=1e-7, atol=1e-9)
    assert sum(learner.status()["classes"].values()) == 26
    learner.save(tmp_path / "saved")
    assert ft.Learner.load(tmp_path / "saved", pool=x).doubts == doubts
    with pytest.raises(ValueError, match=r"expected a chance from 0 to 0\.75"):
        learner.teach(40, 1, doubts=0.8)
    with pytest.raises(ValueError, match="one doubt for each"):
        learner.teach([40, 41], [1, 2], doubts=[0.1])
    assert 40 not in learner.labels


@pytest.mark.parametrize("graph", [None, "auto"])
def test_the_whole_of_a_large_pool_is_predicted_roughly_by_the_network(graph, monkeypatch):
    """The items of the window as the model says, the others as the network; and no forward pass until it is trained."""
    x = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
    truth = (2 * (x[:, 0] > 0) + (x[:, 1] > 0)).tolist()
    learner = ft.Learner(pool=x, classes=4, graph=graph, window=40, fit_options={"steps": 40})
    learner.teach(range(20), truth[:20])
    inside = [int(i) for i in learner.window_ids]
    outside = [i for i in range(90) if i not in inside]
    assert outside
    passes = list[int]()
    look = rough_module.outputs
    monkeypatch.setattr(rough_module, "outputs", lambda *given: passes.append(1) or look(*given))
    found = learner.rough_proba()
    torch.testing.assert_close(found[inside], learner.predict_proba(inside))
    with torch.no_grad():
        want = ft.losses.simplex(learner.net(x[outside]).double())
    torch.testing.assert_close(found[outside], want, rtol=1e-5, atol=1e-6)
    learner.teach(30, truth[30])
    learner.rough_proba()
    learner.rough_proba(wait=False)
    assert len(passes) == 1
    learner.retrain(wait=True)
    learner.rough_proba()
    assert len(passes) == 2
    whole = ft.Learner(pool=x, classes=4, graph=graph, labels=dict(enumerate(truth[:20])), fit_options={"steps": 40})
    torch.testing.assert_close(whole.rough_proba(), whole.predict_proba())


def test_nobody_waits_for_the_network_to_look_at_a_large_pool(monkeypatch):
    """At first the window is known and the rest is NaN; after a training the rest is as the network before it said."""
    monkeypatch.setattr("foretaste.label.pool.POOL_CHUNK", 16)
    x = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
    learner = ft.Learner(pool=x, classes=2, graph=None, window=40, fit_options={"steps": 40})
    learner.teach(range(20), (x[:20, 0] > 0).long().tolist())
    gate, look = threading.Semaphore(0), rough_module.outputs
    monkeypatch.setattr(rough_module, "outputs", lambda *given: gate.acquire(timeout=60) and look(*given))

    def outside() -> list[int]:
        return sorted({*range(90)} - {int(i) for i in learner.window_ids})

    def until(done: tuple[int, int] | None) -> torch.Tensor:
        while learner.rough_progress != done:
            time.sleep(0.005)
        return learner.rough_proba(wait=False)

    found = learner.rough_proba(wait=False)
    assert found[outside()].isnan().all()
    assert not found[[int(i) for i in learner.window_ids]].isnan().any()
    assert learner.rough_progress == (0, 90)
    gate.release(2)
    found = until((32, 90))
    assert found.isnan().any(1).nonzero()[:, 0].tolist() == [i for i in outside() if i >= 32]
    gate.release(4)
    first = until(None)
    torch.testing.assert_close(first, learner.rough_proba())
    before = outside()
    learner.teach(range(20, 30), (x[20:30, 0] > 0).long().tolist())
    learner.retrain(wait=True)
    both = sorted({*before} & {*outside()})
    gate.release(3)
    learner.rough_proba(wait=False)
    second = until((48, 90))
    torch.testing.assert_close(second[[i for i in both if i >= 48]], first[[i for i in both if i >= 48]])
    gate.release(3)
    until(None)
    assert (learner.rough_proba() - first)[both].abs().max() > 1e-6
    learner.retrain(wait=True)
    learner.rough_proba(wait=False)
    gate.release(1)
    learner.stop_training()  # within the items that it is at
    assert learner.rough_progress is None
    gate.release(12)
    learner.rough_proba(wait=False)  # another one begins
    assert not until(None).isnan().any()


def test_a_network_that_cannot_look_at_the_pool_says_so(monkeypatch):
    def broken(*given):
        raise ValueError("net returns NaN")

    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    learner = ft.Learner(pool=x, classes=2, graph=None, window=40, fit_options={"steps": 20})
    learner.teach(range(20), (x[:20, 0] > 0).long().tolist())
    monkeypatch.setattr(rough_module, "outputs", broken)
    learner.rough_proba(wait=False)
    while learner.rough_progress is not None:
        time.sleep(0.005)
    with pytest.raises(ValueError, match="net returns NaN"):
        learner.rough_proba(wait=False)
