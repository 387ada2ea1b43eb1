"""What a study will cost, on a clock of our own."""

import sys
from types import SimpleNamespace

import pytest

from foretaste.errors import format_seconds
from foretaste.study import Data, Estimate, Labels, Train, estimate, prepared, study

ONCE, STEP = 0.3, 0.0005  # seconds that a training takes anyway, and a step
LINEAR, SQUARE = 2e-4, 3e-6  # of a query with n = L + U points


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=0.0)

    def fit(net, x, y, *, steps, **how):
        now.seconds += ONCE + STEP * steps

    def query(net, x_L, y_L, x_U, **how):
        n = len(x_L) + len(x_U)
        now.seconds += LINEAR * n + SQUARE * n**2

    module = sys.modules["foretaste.study.estimate"]  # foretaste.study.estimate is the function
    monkeypatch.setattr(module, "fit", fit)
    monkeypatch.setattr(module, "query", query)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now.seconds))


@pytest.mark.parametrize(
    ("train", "steps"),
    [
        (Train(steps=50), [50, 50, 50]),
        (Train(epochs=40, batch=10), [80, 120, 160]),
        (Train(), [1200, 1200, 1200]),
        (Train(batch=5), [1280, 1920, 2560]),
    ],
)
@pytest.mark.usefixtures("clock")
def test_steps_and_queries_taken_to_full_size(train, steps):
    of = study(("margin", "random"), seeds=(0, 1), labels=Labels(20, 10, 2, subset=200), train=train)
    got = estimate(of, prepared(of.data, "cpu"))
    assert got.trainings == 12
    assert got.step == pytest.approx(STEP)
    assert got.train == pytest.approx(2 * 2 * STEP * sum(steps))  # two arms, two seeds
    asked = sum(LINEAR * n + SQUARE * n**2 for n in (220, 230))
    assert got.query == pytest.approx(2 * asked)  # random costs nothing
    assert got.words(2).startswith(f"about {format_seconds(got.seconds / 2)} on 2 processes: 12 trainings")


@pytest.mark.parametrize("init", [2, 11])
@pytest.mark.usefixtures("clock")
def test_a_pool_smaller_than_the_queries_that_are_timed(init):
    of = study(("margin",), seeds=(0,), data=Data(pool_points=12), labels=Labels(init, 1, 1), train=Train(steps=50))
    got = estimate(of, prepared(of.data, "cpu"))
    assert got.query == pytest.approx(LINEAR * 12 + SQUARE * 12**2)


@pytest.mark.parametrize(("seconds", "says"), [(110, "about 1.8 min on 1 process"), (7, "about 7 s on 1 process")])
def test_an_estimate_in_words(seconds, says):
    words = Estimate(train=seconds, query=0.0, trainings=1, step=0.001).words(1)
    assert words.startswith(says)
    assert "e+" not in words
    assert "queries under 1 ms each" in words
