"""``Learner.mistakes``: labels by how surely they are wrong, held against every label left out in turn."""

import math

import pytest
import torch

import foretaste as ft
from foretaste.label import mistakes
from foretaste.network import MLP, seeded

N, C, D = 60, 3, 4


def points() -> torch.Tensor:
    """Three clusters, in turn."""
    centres = 3 * torch.randn(C, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    noise = torch.randn(N, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return noise + centres[torch.arange(N) % C]


def planted(n: int = 40, wrong: tuple[int, ...] = (5, 17, 30)) -> dict[int, int]:
    return {i: (i + (i in wrong)) % C for i in range(n)}


def make(graph: ft.Graph | None, labels: dict[int, int] | None = None, **more: object) -> ft.Learner:
    with seeded(0, torch.device("cpu")):
        net = MLP(D, (16,), C).double().eval()
    return ft.Learner(net, points(), labels=planted() if labels is None else labels, graph=graph, **more)


def left_out(theta: torch.Tensor, y: list[int], ridge: list[float]) -> list[list[float]]:
    """Kernel regression from 1/C without label n, at n; the system is solved anew for each."""
    found = []
    for n in range(len(y)):
        others = [m for m in range(len(y)) if m != n]
        A = theta[others][:, others] + torch.diag(torch.tensor([ridge[m] for m in others], dtype=torch.float64))
        targets = torch.tensor([[float(c == y[m]) - 1 / C for c in range(C)] for m in others], dtype=torch.float64)
        found.append([1 / C + v for v in (theta[n, others] @ torch.linalg.solve(A, targets)).tolist()])
    return found


def projected(f: list[float]) -> list[float]:
    """The nearest point of the simplex, by bisection on the shift."""
    low, high = min(f) - 1, max(f)
    for _ in range(200):
        t = (low + high) / 2
        low, high = (t, high) if sum(max(v - t, 0) for v in f) > 1 else (low, t)
    return [max(v - low, 0) for v in f]


def oracle(bent: torch.Tensor, plain: torch.Tensor, y: list[int]) -> list[float]:
    """Θ̃ with two λ and Θ with one; then all again, each label worth as much as it is likely."""
    first = judged_once(bent, plain, y, [1.0] * len(y))
    return judged_once(bent, plain, y, [max(1 - w, mistakes.LEAST_WORTH) for w in first])


def judged_once(bent: torch.Tensor, plain: torch.Tensor, y: list[int], worth: list[float]) -> list[float]:
    odds = [0.0] * len(y)
    for theta, share in ((bent, 0.1), (bent, 10.0), (plain, 1.0)):
        size = sum(float(theta[n, n]) for n in range(len(y))) / len(y)
        q = [
            [v + mistakes.FLOOR / C for v in projected(f)]
            for f in left_out(theta, y, [share * size / v for v in worth])
        ]
        best = (-math.inf, [])
        for k in mistakes.POWERS:
            p = [row[c] ** k / sum(v**k for v in row) for row, c in zip(q, y)]
            rate = mistakes.PRIOR_WRONG / mistakes.PRIOR_JUDGED
            for _ in range(mistakes.RATE_STEPS):
                wrong = [rate * (1 - v) / (C - 1) for v in p]
                wrong = [w / (w + (1 - rate) * v) for w, v in zip(wrong, p)]
                rate = (sum(wrong) + mistakes.PRIOR_WRONG) / (len(y) + mistakes.PRIOR_JUDGED)
            fit = sum(math.log(rate * (1 - v) / (C - 1) + (1 - rate) * v) for v in p)
            kept = [min(max(w, mistakes.LEAST_CHANCE), 1 - mistakes.LEAST_CHANCE) for w in wrong]
            best = max(best, (fit, kept), key=lambda one: one[0])
        odds = [o + math.log(w / (1 - w)) / 3 for o, w in zip(odds, best[1])]
    return [1 / (1 + math.exp(-o)) for o in odds]


@pytest.mark.parametrize("graph", [ft.Graph(), ft.Graph(gamma=1.0), None], ids=["auto", "1", "none"])
def test_each_label_is_held_against_all_others(graph: ft.Graph | None) -> None:
    learner = make(graph)
    found = learner.mistakes()
    labels = learner._now.judged_labels({})
    at, y_L = list(labels), torch.tensor([*labels.values()])
    theta_LL, plain_LL = learner._now.judged_kernels(at)
    if learner._now.pool_model is None:  # the network's own Θ, centred
        full = learner._now.model.theta_MM[at][:, at]
        H = torch.eye(len(at), dtype=torch.float64) - 1 / len(at)
        torch.testing.assert_close(theta_LL, H @ full @ H)
        assert plain_LL is theta_LL
    else:  # the wide network's, before the pool has bent it
        torch.testing.assert_close(plain_LL, learner._now.items.kernel.theta_GG[at][:, at])
        assert learner._now.pool_model.evidence.gamma == 0 or (plain_LL - theta_LL).abs().max() > 0.01
    wanted = dict(zip(at, oracle(theta_LL, plain_LL, y_L.tolist())))
    assert {row["id"]: row["wrong"] for row in found} == pytest.approx(wanted, rel=1e-6)
    chances = [row["wrong"] for row in found]
    assert chances == sorted(chances, reverse=True)
    assert {row["id"] for row in found[:3]} == {5, 17, 30}
    assert all(row["likely"] == row["id"] % C and row["label"] != row["likely"] for row in found[:3])
    assert 2 < sum(chances[:10]) < 4.5  # of the first ten


@pytest.mark.parametrize("graph", [ft.Graph(gamma=10.0), None], ids=["pool", "none"])
def test_many_labels_are_judged_in_blocks_each_by_the_others_of_its_own(
    graph: ft.Graph | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mistakes, "MOST_TOGETHER", 15)
    learner, labels = make(graph), planted()
    blocks = mistakes.judged_together(list(labels), N, 0)
    assert [len(at) for at in blocks] == [13, 13, 14]
    assert sorted(p for at in blocks for p in at) == list(labels)
    assert mistakes.judged_together(list(labels)[:15], N, 0) == [list(labels)[:15]]
    one_less = mistakes.judged_together(list(labels)[:-1], N, 0)  # most labels stay with their block
    assert sum(len({*a} & {*b}) for a, b in zip(blocks, one_less)) > 36
    wanted = {}
    for at in blocks:
        theta_LL, plain_LL = learner._now.judged_kernels(at)
        assert len(theta_LL) == len(at)
        wanted |= zip(at, oracle(theta_LL, plain_LL, [labels[p] for p in at]))
    found = learner.mistakes()
    assert {row["id"]: row["wrong"] for row in found} == pytest.approx(wanted, rel=1e-6)
    chances = [row["wrong"] for row in found]
    assert chances == sorted(chances, reverse=True)


def test_labels_that_are_kept_from_the_learner_are_judged_too() -> None:
    labels = planted()
    learner = make(ft.Graph(gamma=10.0), {i: y for i, y in labels.items() if i != 17})
    before = learner.predict_proba()
    found = learner.mistakes(also={17: labels[17]})
    whole = make(ft.Graph(gamma=10.0)).mistakes()
    assert {r["id"]: r["wrong"] for r in found} == pytest.approx({r["id"]: r["wrong"] for r in whole}, rel=1e-6)
    assert 17 not in learner.labels
    torch.testing.assert_close(learner.predict_proba(), before, rtol=0, atol=0)
    with pytest.raises(KeyError, match="99"):
        learner.mistakes(also={99: 0})
    with pytest.raises(ValueError, match="the label is 7"):
        learner.mistakes(also={50: 7})


def test_too_few_labels_say_nothing_and_regression_is_refused() -> None:
    assert make(None, planted(9)).mistakes() == []
    assert ft.Learner(pool=points(), classes=C).mistakes() == []
    with seeded(0, torch.device("cpu")):
        net = MLP(D, (4,), 1).double().eval()
    with pytest.raises(ValueError, match="regression has no classes"):
        ft.Learner(net, points(), labels={i: float(i) for i in range(12)}).mistakes()


def test_classes_of_one_kind_leave_no_doubt() -> None:
    chances = [row["wrong"] for row in make(ft.Graph(), planted(40, wrong=())).mistakes()]
    assert sum(chances) < 2
