"""The benchmarks of a GPU, small and on a CPU: they measure what they claim to. Speed is not tested."""

import json
import math

import pytest
import torch

from benchmarks.__main__ import find_device, run_queries
from benchmarks.growth import BASE, SERIES, fit_power
from benchmarks.queries import (
    QUERY_WORKLOADS,
    QueryRow,
    queries_markdown,
    real_images,
    synthetic_images,
    train_on,
)
from benchmarks.rivals import per_point_gradients, time_block_pairs
from foretaste.network import WideResNet

CPU = torch.device("cpu")


@pytest.mark.parametrize("library", ["torch.func", "JAX"])
def test_a_pair_of_blocks_is_a_block_of_the_kernel(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "JAX":
        pytest.importorskip("jax")
        monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # on a GPU its default is TF32
    else:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    torch.manual_seed(0)
    net = WideResNet(widen=1).eval()
    for m in net.modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(m.running_var, 0.5, 2)
            torch.nn.init.normal_(m.running_mean)
            torch.nn.init.normal_(m.weight)
    x = torch.randn(10, 1, 8, 8)
    got = time_block_pairs(net, x, 3)
    want = per_point_gradients(net, x)[:3, 3:6]
    assert got.library.startswith(library)
    assert got.count == 4 * 5 // 2
    assert float((got.kernel - want).norm() / want.norm()) <= 1e-5


def test_synthetic_pools_have_the_shapes_of_the_real_ones(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("FORETASTE_DATA", str(tmp_path))
    for work in QUERY_WORKLOADS:
        x, y = synthetic_images(work.small(), 3, CPU)
        assert x.shape == (60, 3, 32, 32)
        assert int(y.max()) < work.classes
    with pytest.raises((FileNotFoundError, ValueError)):
        real_images("mnist", 10, CPU)
    pool = train_on(QUERY_WORKLOADS[0].small(), CPU)
    assert "synthetic" in pool.name
    assert (len(pool.x_L), len(pool.x_U)) == (12, 48)


def test_real_images_are_found_and_standardised(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    import numpy as np

    g = np.random.default_rng(0)
    np.savez(tmp_path / "mnist.npz", x=g.integers(0, 255, (50, 8, 8), dtype=np.uint8), y=np.arange(50) % 5)
    monkeypatch.setenv("FORETASTE_DATA", str(tmp_path))
    x, y = real_images("mnist", 30, CPU)
    assert x.shape == (30, 1, 8, 8)
    assert abs(float(x.mean())) < 1e-5
    assert float(x.std()) == pytest.approx(1, abs=1e-2)
    assert len(y) == 30


def test_power_of_a_power() -> None:
    at = [1.0, 2.0, 5.0, 9.0]
    assert fit_power(at, [3 * a**1.7 for a in at]) == pytest.approx(1.7)
    assert math.isnan(fit_power([1.0], [2.0]))
    assert set(SERIES) == set(BASE)


def test_a_contender_that_failed_has_a_row() -> None:
    text = queries_markdown([QueryRow("w", "badge", float("nan"), float("nan"), 0, float("nan"), "out of memory")])
    assert "| badge | – | – | – |  |  | out of memory |" in text


def test_names_and_devices_are_checked() -> None:
    with pytest.raises(ValueError, match="unknown benchmark 'wrn9'; did you mean 'wrn2'"):
        run_queries(CPU, only=["wrn9"], quick=True)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device"):
            find_device("cuda")


@pytest.mark.slow
def test_a_small_run_is_whole(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("FORETASTE_DATA", str(tmp_path))
    monkeypatch.setattr("benchmarks.queries.NAIVE_CANDIDATES", 2)
    out = tmp_path / "bench.json"
    found = run_queries(CPU, only=["wrn1", "picks", "training", "growth"], quick=True, out=out)
    assert json.loads(out.read_text())["about"] == json.loads(json.dumps(found["about"]))
    rows = {r["name"]: r for r in found["queries"]}
    assert not found["failed"]
    assert rows["entropy: one forward pass"]["forwards"] == 1
    assert rows["mlmoc, float32"]["spearman"] >= 0.999
    assert rows["mlmoc, half"]["tflops"] > 0
    assert "float32" in rows["mlmoc, auto"]["note"]
    assert any(name.startswith("Jacobians recomputed") for name in rows)
    assert "extrapolated from 2 candidates" in rows["naive: SGD, 15 epochs a candidate"]["note"]
    assert {r["U"] for r in found["picks"]} == {50, 80, 100}
    assert all(r["ms"] > 0 for r in found["picks"])
    assert [r["fast"] for r in found["training"]] == ["off"]
    assert [c["axis"] for c in found["growth"]] == ["L", "U", "P", "W", "C"]
    assert (tmp_path / "bench.svg").read_text().startswith("<?xml")
