"""docs/findings.md shows what its records say, and the lab that made them picks what ``ft.query`` picks."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import foretaste as ft

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "findings"


def test_the_page_has_the_tables_of_the_records(script):
    table = script("findings/table")
    cells = table.read()
    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert len(cells) == len(script("findings/problems").CELLS)
    first = table.verdict(table.read("seeds-50-to-59"))
    for part in (table.table(cells), table.verdict(cells), table.rule(cells), table.table(cells, table.BEFORE), first):
        for line in part.splitlines():
            assert line in page


@pytest.mark.parametrize(("folder", "first"), [(".", 60), ("seeds-50-to-59", 50)])
def test_every_record_is_of_a_cell_and_of_unseen_seeds(script, folder, first):
    cells = {cell.name: cell for cell in script("findings/problems").CELLS}
    for name, record in script("findings/table").read(folder).items():
        cell = cells[name]
        assert record["cell"]["data"] == cell.data
        assert set(record["seeds"]) <= set(range(first, first + 10))
        counts = len(record["arms"]), len(record["seeds"]), cell.cycles + 1
        assert (len(record["accuracy"]), len(record["accuracy"][0]), len(record["accuracy"][0][0])) == counts


@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_the_lab_picks_what_a_query_picks(script, loss, monkeypatch):
    problems, lab, rivals = (script(f"findings/{name}") for name in ("problems", "lab", "rivals"))
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


def test_the_pages_say_what_the_records_of_weights_say(script):
    table = script("findings/weight/table")
    cells = table.read()
    page = " ".join((ROOT / "docs" / "findings.md").read_text(encoding="utf-8").split())
    assert table.text() in (FOLDER / "weight" / "README.md").read_text(encoding="utf-8")
    for part in (table.means(cells), table.kept(cells), table.drawn()):
        for line in part.splitlines():
            assert " ".join(line.split()) in page
    tests, left = table.corrected(cells)
    ahead = sum(d.mean > 0 for _, _, d, _ in left)
    assert f"over {tests} tests of a weight in a cell leaves {len(left)}: in {len(left) - ahead} the weight" in page
    assert f"is behind `cover`, in {ahead} ahead" in page
    for before, cell, arm in (
        ("with few labels it is ", "c10-few:ce", "signs0:gap"),
        ("cross-entropy: 1 − gap ", "c100-many:ce", "signs0:gap"),
        (", √(Φ(1 − gap)) ", "c100-many:ce", "signs0:cgap"),
        (", uniform ", "c100-many:ce", "signs0:uni"),
        ("lose most, ", "c10-lt-few:ce", "signs0:gap"),
        (" and ", "c10-lt-few:ce", "signs0:cgap"),
        ("are the exception, ", "bank-lt-few:ce", "signs0:covk"),
        ("they disagree: ", "c10-adam64:l2", "signs0:covk"),
        (" and ", "c10-few-adam:l2", "signs0:covk"),
    ):
        assert before + str(table.difference(cells[cell], arm)).replace("-", "−") in page
    kept = [table.difference(cells[f"{name}:ce"], "signs0:covk") for name in table.COLLAPSED]
    assert f"Keeping Φ is better: {table.over_cells(kept)} over eight cells" in page
    for before, arm in (("the trace is ", "trace:cov"), ("another draw ", "signs3:cov")):
        ce, l2 = (table.over_cells(list(table.differences(cells, loss, arm).values())) for loss in ("ce", "l2"))
        assert before + ce in page
        assert f" and {l2}" in page


def test_every_record_of_weights_is_of_a_cell_and_of_seeds_below_50(script):
    table, lab_cells = script("findings/weight/table"), script("findings/weight/weight_cells")
    for pattern in ("*", "whole/*", "deep/*"):
        for record in table.records(pattern):
            assert set(record["seeds"]) <= set(range(50))
            made = asdict(lab_cells.make_cell(record["cell"]["name"]))
            assert record["cell"] == made
            counts = len(record["arms"]), len(record["seeds"]), made["cycles"] + 1
            assert np.shape(record["accuracy"]) == counts


def test_the_lab_of_weights_runs_and_picks_what_a_query_picks(script, monkeypatch, tmp_path):
    X, y = load_digits(return_X_y=True)
    (tmp_path / "weight").mkdir()
    np.savez(tmp_path / "weight" / "digits.npz", x=X[:600] / 16, y=y[:600], xt=X[600:900] / 16, yt=y[600:900])
    monkeypatch.setenv("FORETASTE_DATA", str(tmp_path))
    verify, lab, lab_cells = (script(f"findings/weight/{name}") for name in ("verify", "weight_lab", "weight_cells"))
    for name, deep in (("digits-few:ce", False), ("digits-few:l2", False), ("digits-few:l2", True)):
        assert [what for what, equal in verify.same(name, 30, 8, 60, deep=deep) if not equal] == []
    cell = replace(lab_cells.make_cell("digits-few:ce"), cycles=1, steps=5, subset=100, hidden=16)
    record = lab.run(cell, ["signs0:cov", "gauss:gap", "random"], [0, 1])
    assert np.shape(record["accuracy"]) == (3, 2, 2)
    assert np.shape(record["overlap"])[1:] == (8, 8)
