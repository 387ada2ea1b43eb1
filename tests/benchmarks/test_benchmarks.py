"""The benchmarks measure what they claim to. How fast things are is not tested."""

import json
import math
import time
from pathlib import Path

import pytest
import torch

from benchmarks import sequences
from benchmarks.__main__ import main, read_arguments, run_kernels
from benchmarks.checks import time_checks
from benchmarks.kernels import kernel_workloads
from benchmarks.loading import names_on_disk, time_loading
from benchmarks.measure import take_turns
from benchmarks.rivals import per_point_gradients
from benchmarks.startup import time_startup
from foretaste import tangent
from foretaste.network import MLP
from foretaste.tangent import ntk, rank_correlation


def test_take_turns_counts_bytes_and_keeps_results() -> None:
    got = take_turns({"big": lambda: torch.ones(1000), "small": lambda: torch.ones(10)}, torch.device("cpu"), rounds=2)
    assert (got["big"].nbytes, got["small"].nbytes) == (4000, 40)
    assert got["big"].seconds > 0
    assert torch.equal(got["small"].result, torch.ones(10))


def test_a_contender_without_memory_says_so_and_the_others_continue() -> None:
    def greedy() -> None:
        raise torch.OutOfMemoryError("no")

    got = take_turns({"greedy": greedy, "modest": lambda: torch.ones(3)}, torch.device("cpu"), rounds=1)
    assert "out of memory" in got["greedy"].failed
    assert not got["modest"].failed


def test_contenders_compute_the_same_kernel() -> None:
    for work in kernel_workloads(torch.device("cpu"), quick=True):
        x = work.x[:6].double()
        work.net.double()
        want = per_point_gradients(work.net, x).double()
        assert float((ntk(work.net, x) - want).norm() / want.norm()) <= 1e-10
        assert torch.allclose(per_point_gradients(work.net, x, 2), want, rtol=1e-10)


def test_rank_correlation() -> None:
    a = torch.tensor([3.0, 1.0, 2.0, 10.0])
    assert rank_correlation(a, a**3) == pytest.approx(1)
    assert rank_correlation(a, -a) == pytest.approx(-1)


@pytest.mark.slow
def test_float32_keeps_the_ranking_and_the_run_is_written(tmp_path) -> None:
    found = run_kernels(quick=True, out=tmp_path / "bench.json")
    assert json.loads((tmp_path / "bench.json").read_text()) == json.loads(json.dumps(found))
    for a in found["ranking"]:
        assert a["mlmoc"] >= 0.999
        assert a["gain"] >= 0.999
    errors = [r["error"] for r in found["kernels"] if r["error"] == r["error"]]
    assert len(errors) == 8
    # Rounding alone is 1e-7. A ReLU whose input rounds across zero adds 1e-5 (seen with torch.func and ours alike).
    assert max(errors) <= 1e-4


def test_workloads_do_not_depend_on_what_ran_before() -> None:
    first = kernel_workloads(torch.device("cpu"), quick=True)
    torch.rand(3)
    again = kernel_workloads(torch.device("cpu"), quick=True)
    for one, other in zip(first, again, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(one.net.parameters(), other.net.parameters(), strict=True))


def test_options_are_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    given: dict = {}
    monkeypatch.setattr("benchmarks.__main__.run_kernels", lambda **options: given.update(options))
    main([])
    assert given == {"quick": False, "out": None, "threads": None, "neural_tangents": None}
    main(["--quick", "--threads", "2", "--out", str(tmp_path), "--neural-tangents", "python"])
    assert given == {"quick": True, "out": tmp_path, "threads": 2, "neural_tangents": Path("python")}
    monkeypatch.setattr("benchmarks.__main__.run_queries", lambda device, **options: given.update(options, on=device))
    main(["--device", "cpu", "--only", "picks", "--only", "growth"])
    assert given["on"] == torch.device("cpu")
    assert given["only"] == ["picks", "growth"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threads", "0"], "expected at least 1"),
        (["--threads", "x"], "invalid int value"),
        (["--only", "picks"], "give both"),
    ],
)
def test_wrong_options_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_arguments(words)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_loading_times_every_data_set() -> None:
    assert "digits" in names_on_disk()
    ((images, clock, _),) = time_loading(["digits"]).values()
    assert images == 1797
    assert clock > 0


def test_startup_times_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.startup.COMMANDS", {"nothing": ["-c", "pass"], "again": ["-c", "pass"]})
    took = time_startup(2)
    assert list(took) == ["nothing", "again"]
    assert all(len(seconds) == 2 and seconds == sorted(seconds) and seconds[0][0] > 0 for seconds in took.values())


def test_checks_are_switched_off_and_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    compare = tangent.rule_checks.compare_rows
    monkeypatch.setattr(tangent.rule_checks, "compare_rows", lambda *args: compared.append(1) or compare(*args))
    row = ("MLP", lambda: MLP(4, (5,), 10), (4,), 6, 30, "float32")
    (timed,) = time_checks((row,), "cpu", rounds=1)
    assert len(compared) == 2  # in two of four queries
    assert timed.checked > 0
    assert timed.unchecked > 0


@pytest.mark.slow
def test_sequences_are_measured_beside_torch_func(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "TOKENS", 4)
    rows = [sequences.measure_sequence(name, 12, 4, 1, time.perf_counter) for name in (*sequences.SEQUENCES,)[::3]]
    assert all(r.ours > 0 and r.our_bytes > 0 and r.error < 1e-4 for r in rows)
    assert rows[0].func > 0
    assert rows[0].tight_bytes <= rows[0].func_bytes
    assert math.isnan(rows[1].func)  # torch.func has no rule for a GRU
    assert "fails" in str(list(sequences.sequence_table(rows, 12).columns[4].cells))
