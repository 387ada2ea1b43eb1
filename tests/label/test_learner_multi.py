"""``ft.Learner`` where a label is a set of classes: each class is a yes-or-no question, and all share one kernel."""

from pathlib import Path

import numpy as np
import pytest
import torch

import foretaste as ft

N, D, NAMES = 60, 4, ("red", "round", "small")


def items() -> tuple[torch.Tensor, list[tuple[str, ...]]]:
    """Points, and which of three half spaces each lies in."""
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inside = torch.stack([x[:, 0] > 0, x[:, 1] > 0.4, x[:, 2] + x[:, 3] > 0], 1).tolist()
    return x, [tuple(name for name, yes in zip(NAMES, row) if yes) for row in inside]


def make(n: int = 20, **more: object) -> tuple[ft.Learner, list[tuple[str, ...]]]:
    x, truth = items()
    labels = {i: list(truth[i]) for i in range(n)}
    learner = ft.Learner(pool=x, classes=NAMES, multi_label=True, labels=labels, fit_options={"steps": 60}, **more)
    return learner, truth


def targets(sets: list[tuple[str, ...]]) -> torch.Tensor:
    return torch.tensor([[float(name in one) for name in NAMES] for one in sets], dtype=torch.float64)


@pytest.mark.parametrize("graph", [None, "auto"])
def test_every_class_is_a_question_of_its_own_solved_by_one_kernel(graph: str | None) -> None:
    """mean = f + Θ_·L (Θ_LL + λI)⁻¹ (Y − f), with Y of ones and zeros: typed here for all labels at once."""
    learner, truth = make(graph=graph)
    for i in range(20, 26):
        learner.teach(i, truth[i])
    model = learner._now.live
    assert model is not None
    at = list(range(26))
    A = model.theta_MM[at][:, at] + model.ridge(learner._now.book) * torch.eye(26, dtype=torch.float64)
    f_NC = model.f_MC
    want = f_NC + model.theta_MM[:, at] @ torch.linalg.solve(A, targets(truth[:26]) - f_NC[at])
    torch.testing.assert_close(learner._outputs(None), want, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(learner.predict_proba(), want.clamp(0, 1))
    said = learner.predict()
    assert [set(s) for s in said] == [{n for n, v in zip(NAMES, row) if v > 0.5} for row in want.tolist()]
    right = np.mean([(name in a) == (name in b) for a, b in zip(said[26:], truth[26:]) for name in NAMES])
    assert right > 0.75


def test_look_ahead_for_each_question() -> None:
    """What is promised if one class is yes is what happens when it is taught so, whatever the other classes say."""
    learner, _ = make(graph=None)
    item = learner.query(1)[0]
    told = learner.explain(item)
    assert set(told["questions"]) == set(NAMES) == set(told["probabilities"])
    before = (learner.predict_proba() > 0.5).numpy()
    open_ = [i for i in range(N) if i not in learner.labels and i != item]
    for label in (("red",), ("round", "small"), ()):
        learner.teach(item, label)
        after = (learner.predict_proba() > 0.5).numpy()
        for c, name in enumerate(NAMES):
            word = "yes" if name in label else "no"
            assert told["questions"][name][word] == int((before != after)[open_, c].sum())
        learner.unlabel(item)


def test_any_history_ends_the_same_and_is_saved(tmp_path: Path) -> None:
    learner, truth = make(graph=None, seed=3)
    learner.teach([20, 21], [["red"], []])
    learner.relabel(20, truth[20])
    learner.relabel(3, ["small"])
    learner.relabel(3, truth[3])
    learner.unlabel(21)
    other, _ = make(graph=None, seed=3)
    other.teach(20, truth[20])
    torch.testing.assert_close(learner.predict_proba(), other.predict_proba(), rtol=1e-9, atol=1e-9)
    learner.save(tmp_path)
    again = ft.Learner.load(tmp_path)
    assert again.labels == learner.labels == {i: truth[i] for i in range(21)}
    assert again.query(2) == learner.query(2)
    assert learner.status()["classes"] == {n: sum(n in truth[i] for i in range(21)) for n in NAMES}


def test_a_wrong_answer_to_one_question_is_found() -> None:
    learner, truth = make(40, graph=None)
    learner.relabel(7, set(truth[7]) ^ {"red"})
    found = learner.mistakes()
    place = [row["id"] for row in found].index(7)
    assert place < 8
    assert all(0 <= row["wrong"] <= 1 for row in found)


def test_classes_change_with_the_sets() -> None:
    learner, truth = make(graph=None)
    learner.change_classes(["red", "shape", "new"], {"round": "shape", "small": "shape"})
    was = {"red": "red", "round": "shape", "small": "shape"}
    assert learner.labels == {i: tuple(dict.fromkeys(was[n] for n in truth[i])) for i in range(20)}
    assert learner.predict_proba().shape == (N, 3)


def test_what_is_refused() -> None:
    learner, _ = make()
    for label, words in (("red", "expected a list of classes"), (["rad"], "unknown class 'rad'"), (1, "a list")):
        with pytest.raises(ValueError, match=words):
            learner.teach(40, label)
    with pytest.raises(ValueError, match="multi_label is for classes"):
        ft.Learner(pool=items()[0], classes=3, multi_label=True, loss="ce")
