"""``ft.Learner``: the error that is left, s² of a score, Θ of items that join, and outputs of new inputs, typed out."""

import numpy as np
import pytest
import torch

import foretaste as ft
from foretaste import acquire
from foretaste.label import choose, live_model, progress
from foretaste.label.book import LabelBook
from foretaste.label.live_model import linearise_pool
from learner_cases import KINDS, N, make, network, points, truth

CLASSES = [kind for kind in KINDS if kind != "regression"]


def taught(kind: str, **more: object) -> ft.Learner:
    """Ten labels, six of them from the training; two items are ignored."""
    learner = make(kind, **more)
    learner.teach(range(10, 14), [truth(kind, i) for i in range(10, 14)])
    learner.ignore([30, 31])
    return learner


# --- the error that is left ---


@pytest.mark.parametrize("kind", CLASSES)
def test_the_error_left_is_the_mean_over_open_items_of_what_is_expected_of_each(kind: str) -> None:
    learner = taught(kind)
    out = learner.query(6)
    said = learner.status()["error"]["model"]
    open_ = [i for i in range(N) if i not in (*learner.labels, *learner.ignored, *out)]
    learner.teach(open_, [truth(kind, i) for i in open_])  # at once: each is predicted before any is learned
    expected = {p["id"]: p["error"] for p in learner.track_record()}
    assert said == pytest.approx(sum(expected[i] for i in open_) / len(open_), rel=1e-9)


def with_record(wrong: int, right: int, error: float, kind: str = "l2") -> ft.Learner:
    """One whose predictions were first wrong and then right, each with this chance of an error."""
    ids = range(wrong + right)
    learner = make(kind, labels={i: truth(kind, i) for i in ids})
    said = [(truth(kind, i) + (i < wrong)) % 3 for i in ids]
    learner.recall([{"id": i, "predicted": y, "error": error} for i, y in zip(ids, said)])
    return learner


@pytest.mark.parametrize("kind", ["l2", "ce"])
@pytest.mark.parametrize("wrong", [0, 3, 10])
def test_the_error_left_is_corrected_by_the_errors_made_over_those_expected(kind: str, wrong: int) -> None:
    error = with_record(wrong, 10 - wrong, 0.25, kind).status()["error"]
    ratio = (wrong + progress.PRIOR_ERRORS) / (10 * 0.25 + progress.PRIOR_ERRORS)
    assert error["ratio"] == pytest.approx(ratio, rel=1e-9)
    assert error["corrected"] == pytest.approx(min(1.0, ratio * error["model"]), rel=1e-9)


def test_many_predictions_correct_the_error_left_and_one_hardly_does() -> None:
    assert make("l2").status()["error"]["ratio"] == 1
    assert 1.1 < with_record(1, 0, 0.0).status()["error"]["ratio"] <= 1.5
    assert with_record(36, 0, 0.25).status()["error"]["ratio"] > 2.8


def test_the_latest_predictions_correct_the_error_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "RECENT", 4)
    prior = progress.PRIOR_ERRORS
    assert with_record(6, 4, 0.5).status()["error"]["ratio"] == pytest.approx(prior / (4 * 0.5 + prior))


@pytest.mark.parametrize("kind", ["l2", "regression"])
def test_the_surprise_of_a_label_is_its_squared_error_over_the_variance_expected(kind: str) -> None:
    learner = taught(kind)
    now = learner._now
    state, s2 = now.model.follow(now.book), now.model.scale(now.book)
    variance = s2 * float(state.u[25])
    error = state.targets([truth(kind, 25)])[0] - state.pool_mean[25]
    learner.teach(25, truth(kind, 25))
    said = now.book.predictions[25]
    assert said.surprise == pytest.approx(float(error.square().mean()) / variance, rel=1e-9)
    if kind == "regression":
        assert said.error == pytest.approx(variance**0.5, rel=1e-9)


def test_a_network_of_equal_outputs_has_a_drift() -> None:
    """Nothing to measure it by: then the change itself is told."""
    net = network(3)
    list(net.parameters())[-2].data.zero_()
    learner = ft.Learner(net, points(), ridge=0.01)
    assert learner.drift()["moved"] == 0
    learner.teach(range(6), [truth("l2", i) for i in range(6)])
    change = learner._outputs(None) - net(points()).detach()
    assert learner.drift()["moved"] == pytest.approx(float(change.square().mean().sqrt()), rel=1e-9)


# --- Θ and s² ---


@pytest.mark.parametrize("kind", KINDS)
def test_new_inputs_that_are_in_the_pool_have_the_outputs_of_the_pool(kind: str) -> None:
    """Whatever Θ is scaled by."""
    learner = taught(kind, theta_scale=3.0)
    at = [0, 11, 25, 39]
    torch.testing.assert_close(learner._outputs(points()[at]), learner._outputs(at), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["l2", "ce"])
def test_items_that_join_a_window_have_the_kernel_of_the_whole_pool(kind: str) -> None:
    how = {"theta_scale": 3.0, "output": "sum"}
    learner = taught(kind, window=20, **how)
    model = learner._now.model
    joined = [p for p in range(N) if p not in model.row][:5]
    before = len(model.at_M)
    learner.teach(joined, [truth(kind, i) for i in joined])
    assert model.at_M[before:] == joined
    x = points()[model.at_M]
    torch.testing.assert_close(model.theta_MM, 3 * ft.ntk(network(3), x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model.f_MC, network(3)(x).detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("strategy", ["gain", "cover"])
def test_scores_take_the_scale_that_labels_since_the_training_have_shown(strategy: str) -> None:
    learner = taught("l2", strategy=strategy)
    now = learner._now
    state, s2 = now.model.follow(now.book), now.model.scale(now.book)
    score = getattr(acquire, strategy)
    scores = score(state, **choose.learned_options(now.model, state, now.book, now.ask))
    torch.testing.assert_close(scores, score(state, scale=s2), rtol=1e-12, atol=0)
    assert not torch.allclose(scores, score(state))


def test_advice_counts_one_label_as_one() -> None:
    learner = make("l2")
    learner.teach(10, truth("l2", 10))
    assert learner.drift()["reason"].startswith("1 label is new or changed since the network was trained")
    assert learner.status()["reason"].startswith("1 label was predicted before the answer; advice to stop needs")


# --- a pool larger than the window ---


LARGE = points(3, 400)


def large(window: int, pool: object = LARGE, loss: str = "l2") -> ft.Learner:
    labels = {i: class_of(i) for i in range(6)}
    return ft.Learner(network(3), pool, labels=labels, window=window, watch=20, loss=loss, ridge=0.01)


def class_of(i: int) -> int:
    return int(LARGE[i, :3].argmax())


@pytest.mark.parametrize("most_kept", [256, 16])
@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_a_window_that_has_moved_is_that_of_its_items(
    loss: str, most_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its states are exchanged part by part. They equal those that are solved anew, and stay so as labels change."""
    monkeypatch.setattr(live_model, "MOST_KEPT", most_kept)  # labels join L, on the way
    learner = large(100, loss=loss)
    model, book = learner._now.model, learner._now.book
    first, watched = {*model.at_M}, model.watched
    at_first = [model.at_M[m] for m in watched.tolist()]
    asked, came = [], set()
    for _ in range(8 * choose.MOVED_EVERY + 1):
        asked += learner.query(1)
        learner.teach(asked[-1], class_of(asked[-1]))
        came |= {*model.at_M} - first
    out = learner.query(2)
    assert model is learner._now.model
    assert len(set(asked)) == len(asked)
    assert 10 <= len(came) <= 24  # it moved eight times, by three; a new item may leave again
    assert {*learner.labels, *out} <= {*model.at_M}  # what is labelled or out stays,
    assert [model.at_M[m] for m in watched.tolist()] == at_first  # and so do those that stand for the pool

    def assert_as_solved_anew() -> None:
        again = linearise_pool(model.net, model.pool, model.kind, model.settings, model.trained, model.at_M, model.size)
        again.watched = model.watched
        near = {"rtol": 1e-8, "atol": 1e-8}
        torch.testing.assert_close(model.theta_MM, again.theta_MM, **near)
        torch.testing.assert_close(model.f_MC, again.f_MC, **near)
        state, other = model.follow(book), again.follow(LabelBook(dict(book.labels), pending=dict(book.pending)))
        open_M = model.open_rows(book)
        for name in ("mean", "pool_mean", "watched_variance"):
            torch.testing.assert_close(getattr(state, name), getattr(other, name), **near)
        torch.testing.assert_close(state.u[open_M], other.u[open_M], **near)
        ((_, S_WU),), ((_, other_WU),) = state.blocks(100), other.blocks(100)
        torch.testing.assert_close(S_WU, other_WU, **near)
        assert model.scale(book) == pytest.approx(again.scale(book), rel=1e-8)
        if state.L == other.L:  # κ is centred over L too, and here labels have joined it at other times
            torch.testing.assert_close(acquire.cover(state), acquire.cover(other), **near)
            asks = [choose.ask_items(m, LabelBook(dict(book.labels)), learner._now.ask, 3, 0) for m in (model, again)]
            assert asks[0] == asks[1]

    assert_as_solved_anew()
    learner.relabel(asked[3], (class_of(asked[3]) + 1) % 3)  # one of those since the training,
    assert_as_solved_anew()
    learner.unlabel(asked[7])
    assert_as_solved_anew()
    learner.unlabel(2)  # and one of the training
    assert_as_solved_anew()


def test_a_window_of_the_whole_pool_does_not_move() -> None:
    learner, other = large(400), large(10_000)
    for _ in range(choose.MOVED_EVERY + 5):
        (i,), (j,) = learner.query(1), other.query(1)
        assert i == j
        for each in (learner, other):
            each.teach(i, class_of(i))
    assert learner._now.model.at_M == list(range(400))


def test_items_that_leave_the_window_are_those_of_least_worth() -> None:
    learner = large(100)
    learner.teach(learner.query(1)[0], 0)
    model, book = learner._now.model, learner._now.book
    scores, before = model.scores_M, list(model.at_M)
    free = [m for m in model.open_rows(book).tolist() if m not in model.watched.tolist()]
    choose.move_window(model, book, 0)
    gone = [m for m in range(100) if model.at_M[m] != before[m]]
    assert gone == sorted(sorted(free, key=lambda m: float(scores[m]))[:3])


def test_a_mapped_file_is_read_when_its_items_are_needed(tmp_path) -> None:
    np.save(tmp_path / "pool.npy", LARGE.numpy())
    mapped = np.load(tmp_path / "pool.npy", mmap_mode="r")
    learner, plain = large(100, mapped), large(100)
    assert learner._now.pool.whole is None
    assert learner.query(4) == plain.query(4)
    for each in (learner, plain):
        each.teach(each.pending, [0, 1, 2, 0])
    torch.testing.assert_close(learner.predict_proba(), plain.predict_proba())
    torch.testing.assert_close(learner.predict_proba(mapped[:9]), plain.predict_proba(LARGE[:9]))
