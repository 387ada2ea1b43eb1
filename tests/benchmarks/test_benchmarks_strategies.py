"""The table of docs/strategies.md, and the measurements behind it."""

import re
from pathlib import Path

from benchmarks.strategies import StrategyRow, ll4al_markdown, strategies_markdown, time_strategies, train_ll4al
from foretaste.acquire import find_strategy, strategies


def test_rows_are_queries():
    names = ["random", "mlmoc", "change", "ll4al"]
    rows = time_strategies(names, L=12, U=15, batch_size=3, hidden=(8,), steps=20, rounds=1)
    assert [row.name for row in rows] == names
    for row in rows:
        assert not row.failed
        assert row.seconds > 0
        assert row.nbytes > 0
        assert len(set(row.picked)) == 3
        assert set(row.picked) <= set(range(15))
    again = time_strategies(["mlmoc"], L=12, U=15, batch_size=3, hidden=(8,), steps=20, rounds=1)
    assert again[0].picked == rows[1].picked


def test_fastest_first():
    rows = [
        StrategyRow("slow", 12.34, 10**6, [1]),
        StrategyRow("quick", 0.0123, 2 * 10**6, [2]),
        StrategyRow("big", float("nan"), 0, [], "out"),
    ]
    assert strategies_markdown(rows).splitlines()[2:] == [
        "| `quick` | 0.012 | 2 MB |",
        "| `slow` | 12 | 1 MB |",
        "| `big` | out | 0 MB |",
    ]


def test_the_page_has_every_strategy_of_ours_once():
    page = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()
    named = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    ours = [name for name in strategies() if find_strategy(name).fn.__module__.startswith("foretaste.")]
    assert sorted(named) == sorted(ours)


def test_learning_rates():
    rows = train_ll4al((0.05,), (0,), L=20, steps=10)
    assert [(r.method, r.max_lr, r.seed) for r in rows] == [("fit", 0.05, 0), ("mean", 0.05, 0), ("sum", 0.05, 0)]
    assert all(-1 <= r.ranking <= 1 for r in rows[1:])
    assert rows[1].residual != rows[2].residual
    assert ll4al_markdown(rows).splitlines()[2].startswith("| fit | 0.05 | ")
    assert len(ll4al_markdown(rows).splitlines()) == 5
