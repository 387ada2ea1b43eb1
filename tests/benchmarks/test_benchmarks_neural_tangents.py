"""The comparison with neural-tangents: both libraries compute the same kernels."""

import os

import pytest
import torch

from benchmarks import neural_tangents as bench
from benchmarks.neural_tangents_process import TRACE_AXES

PYTHON = os.environ.get("FORETASTE_NEURAL_TANGENTS", "")  # of an environment with neural-tangents and jax 0.5.3


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_arrays_are_the_network_with_channels_last(stride: int, flat: bool) -> None:
    """The forward pass of the network in JAX, written here as plain sums over offsets, gives the same outputs."""
    torch.manual_seed(0)
    net = bench.SmallCNN((2, 9, 9), wide=4, stride=stride, flat=flat).double().eval()
    x = torch.randn(3, 2, 9, 9, dtype=torch.float64)
    held = {k: torch.from_numpy(v) for k, v in bench.channels_last_arrays(bench.CNNCase("", net, x, None)).items()}
    assert "x2" not in held
    assert (int(held["stride"]), bool(held["flat"])) == (stride, flat)
    a = held["x1"]
    for k in range(3):
        weight = held[f"convs.{k}.weight"]
        padded = torch.nn.functional.pad(a, (0, 0, 1, 1, 1, 1))
        h, w = (-(-s // stride) for s in a.shape[1:3])
        out = held[f"convs.{k}.bias"].expand(3, h, w, 4).clone()
        for p in range(h):
            for q in range(w):
                patch = padded[:, stride * p : stride * p + 3, stride * q : stride * q + 3]
                out[:, p, q] += torch.einsum("nhwi,hwio->no", patch, weight)
        a = out.relu()
    a = a.flatten(1) if flat else a.mean((1, 2))
    torch.testing.assert_close(a @ held["head.weight"] + held["head.bias"], net(x))


def test_ratio_is_to_the_fastest_of_theirs() -> None:
    ms = {bench.OURS: 2.0, "a": 8.0, "b": 6.0}
    row = bench.NeuralTangentsRow("net", 2, "full", ms, {k: 2 * v for k, v in ms.items()}, dict.fromkeys(ms, 1e-7))
    assert row.ratio(row.ms) == 3.0
    assert "| 2 (4) | 8 (16) | 6 (12) | **3.00** (3.00) |" in bench.neural_tangents_markdown([row])


def test_an_environment_without_neural_tangents_is_named(tmp_path: object) -> None:
    case, names = next(bench.cnn_cases(N=2)), bench.IMPLEMENTATIONS
    with pytest.raises(RuntimeError, match="needs neural-tangents"), bench.other_process("false", case, 1, names):
        pass


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="FORETASTE_NEURAL_TANGENTS names no python that has neural-tangents")
@pytest.mark.parametrize(("two", "stride"), [(True, 1), (False, 2)])
def test_kernels_agree_with_neural_tangents(two: bool, stride: int) -> None:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    net = bench.SmallCNN((1, 8, 8), wide=6, stride=stride, flat=True).eval()
    case = bench.CNNCase("small", net, torch.rand(5, 1, 8, 8), torch.rand(4, 1, 8, 8) if two else None)
    names = (*bench.IMPLEMENTATIONS, "NTK_VECTOR_PRODUCTS")
    rows, about = bench.compare_libraries(PYTHON, case, threads=1, rounds=1, implementations=names)
    torch.set_num_threads(threads)
    assert "jax" in about
    assert [r.kind for r in rows] == list(TRACE_AXES)
    for r in rows:
        assert set(r.error) == {bench.OURS, *names}
        assert max(r.error.values()) <= 1e-5
        assert all(v > 0 for v in r.ms.values())
