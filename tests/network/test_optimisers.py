"""AdamW, the linear schedule, clipping and callbacks of ``ft.fit``, against literal loops of torch."""

import copy
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretaste as ft
from foretaste.network import TrainingReport, batch_indices
from foretaste.network.fit import draw_seeds
from foretaste.network.sgd import linear_rate

STEPS, BATCH = 23, 4


class Words(nn.Module):
    """A small transformer on token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        for block in self.blocks:
            h = block(h)
        return self.head(h.mean(1))


@pytest.fixture
def words() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return Words().double(), torch.randint(0, 11, (10, 5)), torch.arange(10) % 3


def by_torch(net: nn.Module, x: Tensor, y: Tensor, optimiser: torch.optim.Optimizer, clip: float | None) -> None:
    """The loop as torch's tutorials have it, on the batches of ``ft.fit`` with seed 5."""
    warm = 4  # a fifth of 23 is 4.6: five steps below the top

    def share(step: int) -> float:
        return (step + 1) / (warm + 2) if step <= warm else (STEPS - step) / (STEPS - warm - 1)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, share)
    order_SB = batch_indices(len(x), BATCH, STEPS, torch.Generator().manual_seed(draw_seeds(5, 3)[1]))
    net.train()
    for at_B in order_SB:
        optimiser.zero_grad()
        F.cross_entropy(net(x[at_B]), y[at_B]).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimiser.step()
        schedule.step()


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_steps_are_torchs(words: tuple[nn.Module, Tensor, Tensor], optimiser: str, clip: float | None) -> None:
    ours, x, y = words
    theirs = copy.deepcopy(ours)
    ft.fit(
        ours, x, y, loss="ce", steps=STEPS, batch_size=BATCH, max_lr=0.01, weight_decay=0.1, optimiser=optimiser,
        schedule="linear", warm_up=0.2, clip=clip, seed=5,
    )  # fmt: skip
    if optimiser == "adamw":
        made: torch.optim.Optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.1)
    else:
        made = torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
    by_torch(theirs, x, y, made, clip)
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, msg=name)


def test_only_what_is_tuned_changes_and_the_same_seed_gives_the_same_bits(
    words: tuple[nn.Module, Tensor, Tensor],
) -> None:
    net, x, y = words
    twin, before = copy.deepcopy(net), copy.deepcopy(net.state_dict())
    how = {"loss": "ce", "steps": 6, "optimiser": "adamw", "clip": 1.0, "params": "last-block", "seed": 3}
    ft.fit(net, x, y, **how)
    ft.fit(twin, x, y, **how)
    now = net.state_dict()
    assert all(torch.equal(value, twin.state_dict()[name]) for name, value in now.items())
    changed = {name for name, value in now.items() if not torch.equal(value, before[name])}
    assert changed == {name for name in now if name.startswith(("blocks.1.", "head."))}


def test_a_warm_start_goes_on_with_a_fresh_optimiser(words: tuple[nn.Module, Tensor, Tensor]) -> None:
    """Two trainings in one process, and the second after its weights went through a copy, end at the same bits."""
    net, x, y = words
    ft.fit(net, x[:6], y[:6], loss="ce", steps=5, optimiser="adamw", seed=1)
    resumed = Words().double()
    resumed.load_state_dict(net.state_dict())
    for one in (net, resumed):
        ft.fit(one, x, y, loss="ce", steps=5, optimiser="adamw", seed=2)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), resumed.parameters()))


@pytest.mark.parametrize(("steps", "warm_up"), [(1, 0.1), (10, 0.0), (10, 0.3), (7, 1.0)])
def test_a_linear_schedule_rises_and_falls_along_lines(steps: int, warm_up: float) -> None:
    shares = [linear_rate(step, steps, warm_up) for step in range(steps)]
    assert all(0 < share <= 1 for share in shares)
    top = min(-(-int(10 * warm_up * steps) // 10), steps - 1)
    assert shares.index(max(shares)) == top
    rises = [b - a for a, b in pairwise(shares[: top + 1])]
    falls = [a - b for a, b in pairwise(shares[top:])]
    assert all(abs(rise - rises[0]) < 1e-12 for rise in rises)
    assert all(abs(fall - falls[0]) < 1e-12 for fall in falls)


def test_a_callback_is_told_where_a_training_is(words: tuple[nn.Module, Tensor, Tensor]) -> None:
    net, x, y = words
    told: list[TrainingReport] = []
    ft.fit(net, x, y, steps=100, batch_size=5, optimiser="adamw", callback=told.append)
    assert [report.step for report in told] == list(range(2, 101, 2))
    assert told[-1].epoch == 50
    assert told[-1].lr == pytest.approx(1e-3 / 90)
    assert told[-1].loss < told[0].loss

    def stop(report: TrainingReport) -> None:
        raise KeyboardInterrupt

    before = copy.deepcopy(net.state_dict())
    with pytest.raises(KeyboardInterrupt):
        ft.fit(net, x, y, steps=100, callback=stop)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimiser": "adam"}, "unknown optimiser 'adam'; did you mean 'adamw'"),
        ({"schedule": "linaer"}, "did you mean 'linear'"),
        ({"warm_up": 1.5}, "warm_up is 1.5; expected a share of the steps"),
        ({"clip": 0}, "clip is 0; expected a number above 0"),
        ({"callback": 3}, "callback is a int; expected a function of a TrainingReport"),
    ],
    ids=lambda v: str(next(iter(v))) if isinstance(v, dict) else "",
)
def test_settings_that_are_wrong(words: tuple[nn.Module, Tensor, Tensor], change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ft.fit(*words, **change)


def test_a_learner_tunes_and_a_saved_one_goes_on_to_the_same_bits(
    words: tuple[nn.Module, Tensor, Tensor], tmp_path: Path
) -> None:
    net, x, y = words
    how = {"steps": 6, "optimiser": "adamw", "clip": 1.0, "params": "last-block"}
    learner = ft.Learner(net.eval(), x, classes=3, loss="ce", params="last-block", fit_options=how)
    learner.teach(list(range(6)), y[:6].tolist())
    learner.retrain(wait=True)
    learner.save(tmp_path / "saved")
    resumed = ft.Learner.load(tmp_path / "saved", net=copy.deepcopy(net))
    for one in (learner, resumed):
        one.teach([6, 7], y[6:8].tolist())
        one.retrain(wait=True)
    tuned = learner.net.state_dict()
    assert all(torch.equal(value, tuned[name]) for name, value in resumed.net.state_dict().items())
    changed = {name for name, value in tuned.items() if not torch.equal(value, net.state_dict()[name])}
    assert changed == {name for name in tuned if name.startswith(("blocks.1.", "head."))}
