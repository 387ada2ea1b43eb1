"""The measurements behind docs/strategies.md: first batches, stopping rules, other libraries, large batches."""

import json
from pathlib import Path

import numpy as np
import torch

from benchmarks import stopping
from benchmarks.first_batch import (
    FirstBatchProblem,
    FirstBatchRow,
    feature_problem,
    first_batch_markdown,
    measure_first_batches,
)
from benchmarks.scikit_activeml import PeerRow, peers_markdown
from benchmarks.stopping import (
    expected_by_learner,
    expected_by_look,
    expected_markdown,
    read_runs,
    run_rounds,
    stopping_markdown,
)
from benchmarks.strategies import time_large_batches

ROOT = Path(__file__).parents[2]


def small_problem():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 3
    x = torch.eye(3)[y] @ torch.randn(3, 4, generator=g) + 0.3 * torch.randn(400, 4, generator=g)
    return FirstBatchProblem("blobs", x[:350], y[:350], x[350:], y[350:], (8,), 40)


def test_first_batches():
    rows = measure_first_batches(small_problem(), (3,), names=("random", "kmeans"), seeds=(0, 1), steps=30)
    assert [(r.name, r.labels, len(r.accuracies)) for r in rows] == [("random", 3, 2), ("kmeans", 3, 2)]
    assert all(0 < r.classes <= 3 for r in rows)
    rows = [FirstBatchRow("p", "random", 5, (0.5, 0.6), 2.0), FirstBatchRow("p", "kmeans", 5, (0.7, 0.8), 3.0)]
    assert first_batch_markdown(rows).splitlines()[3] == "| p | 5 | kmeans | 75.0 | +20.0 ± 0.0 | 3.0 |"


def test_features_from_files(tmp_path):
    np.savez(tmp_path / "a.npz", f=np.ones((5, 4), np.float16), y=np.arange(5))
    np.savez(tmp_path / "b.npz", ft=np.ones((2, 4), np.float16), yt=np.arange(2))
    problem = feature_problem(str(tmp_path / "a.npz"), str(tmp_path / "b.npz"))
    assert problem.x.shape == (5, 4)
    assert float(problem.x[0, 0]) == 0.5
    assert problem.y_test.tolist() == [0, 1]


def test_the_table_of_stopping_rules_is_that_of_the_records():
    table = stopping_markdown(read_runs([str(ROOT / "results" / "stopping" / "digits.json")]))
    page = (ROOT / "docs" / "stopping.md").read_text()
    for line in table.splitlines()[2:]:
        _, _, rule, labels, saved, accuracy, given_up, _ = (cell.strip() for cell in line.split("|"))
        mean = labels.split(" ")[0]
        row = next(r for r in page.splitlines() if r.startswith(f"| {rule.split(' & ')[-1].strip('`').join('``')}"))
        assert mean in row
        assert accuracy in row
        assert saved.split("%")[0] in row
        assert given_up.replace("-", "−") in row


def test_the_tables_of_expected_errors_are_those_of_the_records():
    records = json.loads((ROOT / "results" / "stopping" / "expected.json").read_text())
    lines = expected_markdown(records).splitlines()[2:]
    assert len(lines) == 12
    for line in lines:
        by, problem, loss, cells = (cell.strip() for cell in line.split("|")[1:-1])
        page = (ROOT / "docs" / {"look": "stopping.md", "learner": "learner-notes.md"}[by]).read_text()
        name = f"| {problem}, {'squared loss' if loss == 'l2' else 'cross-entropy'} |"
        row = next(r for r in page.splitlines() if r.startswith(name))
        assert row == f"{name} {' | '.join(cell.split(': ')[1] for cell in cells.split(', '))} |"


def test_expected_errors_are_compared_with_true_ones(monkeypatch):
    monkeypatch.setitem(stopping.EXPECTED_AT, 3, (6, 10))
    monkeypatch.setattr(stopping, "LEARNER_POOL", 40)
    for records in (expected_by_look(small_problem(), "l2", 0), expected_by_learner(small_problem(), "ce", 0)):
        assert [r["labels"] for r in records] == [6, 10]
        assert all(0 <= r["expected"] <= 1 and 0 <= r["wrong"] <= 1 for r in records)


def test_rounds_of_a_run():
    records = run_rounds(small_problem(), 0, batch_size=5, most=10, steps=20)
    assert [r["labelled"] for r in records] == [5, 10]
    assert all(0 < r["error_left"] < 1 and len(r["predictions"]) == 300 for r in records)


def test_peers_are_a_table():
    row = PeerRow("coreset", 100, (0.32, 9.2), (0.17, 4.1), 100)
    assert peers_markdown([row]).splitlines()[2] == "| coreset | 100 | 0.32 / 0.17 | 9 / 4 MB | 100 of 100 | – |"


def test_large_batches_are_queries():
    rows = time_large_batches(("coreset", "bald"), L=5, U=30, batch_size=20)
    assert [len(set(row.picked)) for row in rows] == [20, 20]
