"""The benchmark measures what it says; how fast things are is not tested."""

import json

import pytest
import torch

from foretaste.bench import run
from foretaste.bench._kernels import per_point_gradients, workloads
from foretaste.bench._measure import turns
from foretaste.tangent import ntk
from foretaste.tangent.precision import spearman


def test_turns_counts_bytes_and_keeps_results() -> None:
    got = turns({"big": lambda: torch.ones(1000), "small": lambda: torch.ones(10)}, torch.device("cpu"), rounds=2)
    assert (got["big"].nbytes, got["small"].nbytes) == (4000, 40)
    assert got["big"].seconds > 0
    assert torch.equal(got["small"].result, torch.ones(10))


def test_one_that_runs_out_of_memory_says_so_and_the_others_go_on() -> None:
    def greedy() -> None:
        raise torch.OutOfMemoryError("no")

    got = turns({"greedy": greedy, "modest": lambda: torch.ones(3)}, torch.device("cpu"), rounds=1)
    assert "out of memory" in got["greedy"].failed
    assert not got["modest"].failed


def test_contenders_compute_the_same_kernel() -> None:
    for work in workloads(torch.device("cpu"), quick=True):
        x = work.x[:6].double()
        work.net.double()
        want = per_point_gradients(work.net, x).double()
        assert float((ntk(work.net, x) - want).norm() / want.norm()) <= 1e-10
        assert torch.allclose(per_point_gradients(work.net, x, 2), want, rtol=1e-10)


def test_spearman() -> None:
    a = torch.tensor([3.0, 1.0, 2.0, 10.0])
    assert spearman(a, a**3) == pytest.approx(1)
    assert spearman(a, -a) == pytest.approx(-1)


@pytest.mark.slow
def test_float32_keeps_the_ranking_and_the_run_is_written(tmp_path) -> None:
    found = run(quick=True, out=tmp_path / "bench.json")
    assert json.loads((tmp_path / "bench.json").read_text()) == json.loads(json.dumps(found))
    for a in found["ranking"]:
        assert a["mlmoc"] >= 0.999
        assert a["gain"] >= 0.999
    errors = [r["error"] for r in found["kernels"] if r["error"] == r["error"]]
    assert len(errors) == 8
    assert max(errors) <= 1e-5
