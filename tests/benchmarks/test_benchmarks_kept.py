"""Ratios of the benchmarks are kept by commit, and a rise is told."""

import json
from pathlib import Path

import pytest

from benchmarks import kept


def results(factor: float = 1.0, quick: bool = False) -> dict:
    row = {"workload": "MLP, 800 points", "seconds": 1.0, "nbytes": 1, "error": 0.0, "failed": ""}
    rows = [
        {**row, "name": "one forward", "forwards": 1.0, "speedup": 100.0, "memory": 0.0},
        {**row, "name": "ft.ntk", "forwards": 8.0 * factor, "speedup": 100.0 / factor, "memory": 0.01},
        {**row, "name": "ft.ntk in 374 MB", "forwards": 9.0, "speedup": 80.0, "memory": 0.2},
        {**row, "name": "ft.ntk", "workload": "WRN1", "forwards": 0, "speedup": 0, "memory": 0, "failed": "memory"},
    ]
    return {"about": [{"device": "2 CPU threads", "quick": quick}], "kernels": rows}


def run(tmp_path: Path, found: dict, commit: str) -> None:
    (tmp_path / "bench.json").write_text(json.dumps(found))
    where = ["--kept", str(tmp_path / "ratios.jsonl"), "--figure", str(tmp_path / "kept.svg")]
    kept.main([str(tmp_path / "bench.json"), "--commit", commit, *where])


def test_ratios_are_kept_and_a_rise_is_told(tmp_path: Path) -> None:
    run(tmp_path, results(), "a" * 12)
    run(tmp_path, results(1.19), "b" * 12)  # the median is between: 8.76
    run(tmp_path, results(9, quick=True), "c" * 12)  # another kind of run
    with pytest.raises(SystemExit) as told:
        run(tmp_path, results(1.5), "d" * 12)
    faults = str(told.value.code).splitlines()[1:]
    assert [fault.split(":")[1].strip() for fault in faults] == [
        "ft.ntk, seconds to a forward pass",
        "ft.ntk, seconds to torch.func",
    ]
    assert "12, before 8.76 (+37 %)" in faults[0]
    runs = kept.read_kept(tmp_path / "ratios.jsonl")
    assert [r.commit[0] for r in runs] == ["a", "b", "c", "d"]  # a run that alarms is kept too
    assert runs[0].ratios["MLP, 800 points: ft.ntk in a fifth of the memory, memory to torch.func"] == 0.2
    assert len(runs[0].ratios) == 6
    drawn = (tmp_path / "kept.svg").read_text()
    assert drawn.count("aaaaaaa") == drawn.count("ddddddd") > 0
    assert "ccccccc" not in drawn


def test_what_is_committed_can_be_read() -> None:
    runs = kept.read_kept()
    assert runs
    assert all(run.ratios for run in runs)
