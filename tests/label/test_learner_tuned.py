"""A learner whose network is a pretrained encoder: what its trainings train, how, and what a saved one goes on to."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretaste as ft
from foretaste.network import TunedText, fit_tuned
from tuned_cases import tuned

QUICK = {"steps": 4, "batch_size": 8}


def plain() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Linear(6, 3)).eval(), torch.randn(20, 6), torch.arange(20) % 3


def changed(before: nn.Module, after: nn.Module) -> set[str]:
    now = after.state_dict()
    return {name for name, value in before.state_dict().items() if not torch.equal(value, now[name])}


@pytest.mark.parametrize(
    ("options", "moved"), [({}, "last-block"), ({"params": "head"}, "head"), ({"params": None}, "every")]
)
def test_trainings_are_of_the_parameters_that_the_kernel_is_of(options: dict[str, Any], moved: str) -> None:
    net, x, y = plain()
    learner = ft.Learner(net, x, classes=3, params="last-block", fit_options={"steps": 3, **options})
    learner.teach(list(range(8)), y[:8].tolist())
    learner.retrain(wait=True)
    last = {name for name in net.state_dict() if name.startswith(("2.", "3."))}
    every = {*net.state_dict()}
    assert changed(net, learner.net) == {"last-block": last, "head": {"3.weight", "3.bias"}, "every": every}[moved]


def test_a_saved_learner_still_trains_them(tmp_path: Path) -> None:
    net, x, y = plain()
    ft.Learner(net, x, classes=3, params="head", fit_options={"steps": 3}).save(tmp_path)
    learner = ft.Learner.load(tmp_path, net=copy.deepcopy(net))
    learner.teach(list(range(8)), y[:8].tolist())
    learner.retrain(wait=True)
    assert changed(net, learner.net) == {"3.weight", "3.bias"}


@pytest.mark.parametrize("tune", ["last-block", "lora", "head"])
def test_a_text_encoder_is_tuned_as_by_fit_tuned(tune: str) -> None:
    net, ids, y = tuned(tune)
    learner = ft.Learner(net, ids, classes=3, loss="ce", fit_options=QUICK, seed=5)
    twin = copy.deepcopy(net)
    for draw, n in enumerate((8, 12), 1):  # the second training goes on from the weights of the first
        learner.teach(list(range(len(learner.labels), n)), y[len(learner.labels) : n].tolist())
        learner.retrain(wait=True)
        fit_tuned(twin, ids[:n], y[:n], seed=5 + draw, **QUICK)
    assert changed(twin, learner.net) == set()
    assert all(name.startswith("head.") or "lora_" in name or "layer.2." in name for name in changed(net, learner.net))
    assert any(name.startswith("head.") for name in changed(net, learner.net))


def test_a_saved_learner_tunes_on_to_the_same_bits(tmp_path: Path) -> None:
    net, ids, y = tuned()
    learner = ft.Learner(net, ids, classes=3, loss="ce", fit_options=QUICK)
    learner.teach(list(range(8)), y[:8].tolist())
    learner.retrain(wait=True)
    learner.save(tmp_path)
    resumed = ft.Learner.load(tmp_path, net=copy.deepcopy(net))
    assert isinstance(resumed.net, TunedText)
    asked = [one.query(3) for one in (learner, resumed)]
    assert asked[0] == asked[1]
    for one in (learner, resumed):
        one.teach([8, 9], y[8:10].tolist())
        one.retrain(wait=True)
    assert changed(learner.net, resumed.net) == set()
    assert torch.equal(learner.predict_proba(), resumed.predict_proba())


def test_fit_options_come_before_those_of_tuning() -> None:
    net, ids, y = tuned()
    told: list[float] = []
    options = {"max_lr": 0.01, "callback": lambda report: told.append(report.lr), "steps": 10}
    learner = ft.Learner(net, ids, classes=3, loss="ce", fit_options=options)
    learner.teach(list(range(8)), y[:8].tolist())
    learner.retrain(wait=True)
    assert max(told) == pytest.approx(0.01 * 9 / 9)
    assert len(told) == 10  # of the tuning alone, not of the head before it


def test_progress_counts_the_steps_of_both_trainings() -> None:
    """So a training in the background can be stopped while it trains the head, too."""
    net, ids, y = tuned()
    told: list[tuple[int, int]] = []
    fit_tuned(net, ids[:8], y[:8], progress=lambda done, total: told.append((done, total)), **QUICK)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert {total for _, total in told} == {told[-1][0]} == {1200 + QUICK["steps"]}
