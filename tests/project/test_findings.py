"""docs/findings.md shows what its records say, and the lab that made them picks what ``ft.query`` picks."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

import foretaste as ft

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "findings"


@pytest.fixture
def findings(monkeypatch):
    """Import a file of results/findings."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = torch.is_grad_enabled()
    yield importlib.import_module
    torch.set_grad_enabled(before)  # the lab turns gradients off
    for name in ("problems", "lab", "rivals", "table"):
        sys.modules.pop(name, None)


def test_the_page_has_the_tables_of_the_records(findings):
    table = findings("table")
    cells = table.read()
    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert len(cells) == len(findings("problems").CELLS)
    first = table.verdict(table.read("seeds-50-to-59"))
    for part in (table.table(cells), table.verdict(cells), table.rule(cells), table.table(cells, table.BEFORE), first):
        for line in part.splitlines():
            assert line in page


@pytest.mark.parametrize(("folder", "first"), [(".", 60), ("seeds-50-to-59", 50)])
def test_every_record_is_of_a_cell_and_of_unseen_seeds(findings, folder, first):
    cells = {cell.name: cell for cell in findings("problems").CELLS}
    for name, record in findings("table").read(folder).items():
        cell = cells[name]
        assert record["cell"]["data"] == cell.data
        assert set(record["seeds"]) <= set(range(first, first + 10))
        counts = len(record["arms"]), len(record["seeds"]), cell.cycles + 1
        assert (len(record["accuracy"]), len(record["accuracy"][0]), len(record["accuracy"][0][0])) == counts


@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_the_lab_picks_what_a_query_picks(findings, loss, monkeypatch):
    problems, lab, rivals = (findings(name) for name in ("problems", "lab", "rivals"))
    X, y, _, _, C = problems.problem("digits")
    cell = problems.Cell("x", "digits", 30, 8, 1, hidden=(32,), steps=60, loss=loss)
    L, U = torch.arange(30), torch.arange(30, 180)
    w = [part.double() for part in lab.train(cell, [L], [3])[0]]
    X = X.double()
    monkeypatch.setattr(lab, "problem", lambda name: (X, y, X, y, C))
    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, C)).double().eval()
    for layer, k in ((0, 0), (2, 2)):
        net[layer].weight.copy_(w[k].T)
        net[layer].bias.copy_(w[k + 1][0])
    for name in ("cover", "cover trace", "gain", "margin", "maxherding", "uherding"):
        asked = lab.Asked(cell, w, L, U, 3, torch.Generator().manual_seed(1))
        how = {"output": "trace"} if "trace" in name else {}
        q = ft.query(net, X[L], y[L], X[U], strategy=name.split()[0], batch_size=8, loss=loss, **how)
        assert rivals.STRATEGIES[name](asked) == q.indices.tolist()
    if loss == "l2":
        asked = lab.Asked(cell, w, L, U, 3, torch.Generator().manual_seed(1))
        how = {"select": "sequential", "oracle": lambda j: int(y[U[j]])}
        q = ft.query(net, X[L], y[L], X[U], strategy="cover", batch_size=8, **how)
        assert rivals.cover_sequentially(asked) == q.indices.tolist()
