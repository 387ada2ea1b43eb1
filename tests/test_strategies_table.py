"""The table of docs/strategies.md, and the measurements behind it."""

import re
from pathlib import Path

from foretaste.acquire import find_strategy, strategies
from foretaste.bench import _ll4al
from foretaste.bench._strategies import Row, as_markdown, strategy_seconds


def test_rows_are_queries():
    names = ["random", "mlmoc", "change", "ll4al"]
    rows = strategy_seconds(names, L=12, U=15, batch_size=3, hidden=(8,), steps=20, rounds=1)
    assert [row.name for row in rows] == names
    for row in rows:
        assert not row.failed
        assert row.seconds > 0
        assert row.nbytes > 0
        assert len(set(row.picked)) == 3
        assert set(row.picked) <= set(range(15))
    again = strategy_seconds(["mlmoc"], L=12, U=15, batch_size=3, hidden=(8,), steps=20, rounds=1)
    assert again[0].picked == rows[1].picked


def test_quickest_first():
    rows = [
        Row("slow", 12.34, 10**6, [1]),
        Row("quick", 0.0123, 2 * 10**6, [2]),
        Row("big", float("nan"), 0, [], "out"),
    ]
    assert as_markdown(rows).splitlines()[2:] == [
        "| `quick` | 0.012 | 2 MB |",
        "| `slow` | 12 | 1 MB |",
        "| `big` | out | 0 MB |",
    ]


def test_the_page_has_every_strategy_of_ours_once():
    page = (Path(__file__).parents[1] / "docs" / "strategies.md").read_text()
    named = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    ours = [name for name in strategies() if find_strategy(name).fn.__module__.startswith("foretaste.")]
    assert sorted(named) == sorted(ours)


def test_learning_rates():
    rows = _ll4al.learning_rates((0.05,), (0,), L=20, steps=10)
    assert [(r.method, r.max_lr, r.seed) for r in rows] == [("fit", 0.05, 0), ("mean", 0.05, 0), ("sum", 0.05, 0)]
    assert all(-1 <= r.ranking <= 1 for r in rows[1:])
    assert rows[1].residual != rows[2].residual
    assert _ll4al.as_markdown(rows).splitlines()[2].startswith("| fit | 0.05 | ")
    assert len(_ll4al.as_markdown(rows).splitlines()) == 5
