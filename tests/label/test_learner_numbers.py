"""``ft.Learner``: the error that is left, s² of a score, Θ of items that join, and outputs of new inputs, typed out."""

import pytest
import torch

import foretaste as ft
from foretaste import acquire
from foretaste.label import choose, progress
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
