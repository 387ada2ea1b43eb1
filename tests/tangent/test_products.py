"""Products by oneDNN are those of torch, and nothing but the machine and torch decides who makes them."""

import os
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from foretaste.tangent import products
from foretaste.tangent.products import LEAST_WORK, add_product, product


@pytest.fixture
def onednn(monkeypatch):
    """As if this machine gained from oneDNN."""
    monkeypatch.setenv("FORETASTE_ONEDNN", "1")
    products.by_onednn.cache_clear()
    if not products.by_onednn():
        pytest.skip("this torch has no product by oneDNN")
    yield
    products.by_onednn.cache_clear()


@pytest.fixture
def calls(onednn, monkeypatch):
    """The products that oneDNN makes."""
    seen: list[tuple[int, ...]] = []
    op = torch.ops.mkldnn._linear_pointwise

    class Watched:
        @staticmethod
        def _linear_pointwise(a, b, *rest):
            seen.append((len(a), len(b), a.shape[1]))
            return op(a, b, *rest)

    monkeypatch.setattr(products, "onednn_ops", lambda: Watched)
    return seen


def pair(n: int, m: int, k: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, k, generator=g, dtype=dtype), torch.randn(m, k, generator=g, dtype=dtype)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("shape", [(64, 200, 4097), (1, 700, 900), (513, 1, 1000), (104, 512, 128)], ids=str)
def test_it_is_the_product_in_float64(shape, strided, calls):
    a, b = pair(*shape)
    if strided:
        a, b = torch.cat([a, a], 1)[:, : shape[2]], b.T.contiguous().T
    true = a.double() @ b.double().T
    atol = 1e-5 * float(a.norm(dim=1).max() * b.norm(dim=1).max()) / shape[2] ** 0.5
    assert_close(product(a, b).double(), true, rtol=0, atol=atol)
    for c in (b[:, 0], true.float().flip(0)):
        out = torch.empty(len(a), len(b))
        made = add_product(c, a, b, out)
        assert made is out
        assert_close(out.double(), true + c, rtol=1e-6, atol=atol)
    assert calls == [shape] * 3


@pytest.mark.parametrize("why", ["float64", "small", "turned off", "bf16", "TF32", "the machine", "the environment"])
def test_all_else_is_left_to_torch(why, calls, monkeypatch):
    a, b = pair(64, 100, 300, torch.float64 if why == "float64" else torch.float32)
    asked = torch.backends.mkldnn.matmul
    if why == "small":
        a = a[: LEAST_WORK // b.numel()]
        assert 0 < a.numel() * len(b) < LEAST_WORK
    elif why == "turned off":
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    elif why in ("bf16", "TF32"):
        asked.fp32_precision = why.lower()
    elif why in ("the machine", "the environment"):
        products.by_onednn.cache_clear()
        if why == "the machine":
            monkeypatch.delenv("FORETASTE_ONEDNN")
            monkeypatch.setattr(products, "slow_mkl", lambda: False)
        else:
            monkeypatch.setenv("FORETASTE_ONEDNN", "0")
            monkeypatch.setattr(products, "slow_mkl", lambda: True)
    try:
        one, out = a.new_ones(100), a.new_empty(len(a), 100)
        assert torch.equal(product(a, b), torch.mm(a, b.T))
        assert torch.equal(add_product(one, a, b, out), torch.addmm(one, a, b.T))
    finally:
        asked.fp32_precision = "none"
    assert calls == []


def test_without_memory_for_onednn_torch_multiplies(onednn, monkeypatch):
    class Full:
        @staticmethod
        def _linear_pointwise(*given):
            raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(products, "onednn_ops", lambda: Full)
    a, b = pair(64, 100, 300)
    assert torch.equal(product(a, b), torch.mm(a, b.T))


@pytest.mark.parametrize("fault", [AttributeError("gone"), TypeError("another signature"), None])
def test_another_torch_is_left_alone(fault, monkeypatch):
    class Other:
        @staticmethod
        def _linear_pointwise(a, b, *rest):
            if fault is None:
                return a @ b.T + 1
            raise fault

    monkeypatch.setenv("FORETASTE_ONEDNN", "1")
    monkeypatch.setattr(products, "onednn_ops", lambda: Other)
    products.by_onednn.cache_clear()
    try:
        assert not products.by_onednn()
        a, b = pair(64, 100, 300)
        assert torch.equal(product(a, b), torch.mm(a, b.T))
    finally:
        products.by_onednn.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["0", "1"])
def test_kernels_of_both_are_true(asked):
    """Θ, κ and a recurrence in a process of their own, against float64."""
    script = """
import torch
from torch import nn
from foretaste.tangent import CentredTangents, FactorSource, freeze, ntk

torch.manual_seed(0)
x = torch.randn(70, 12, 16)

class Last(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.head = inner, nn.Linear(64, 3)

    def forward(self, x):
        return self.head(self.inner(x)[0][:, -1])

flat = nn.Sequential(nn.Flatten(), nn.Linear(192, 300), nn.ReLU(), nn.Linear(300, 3))
for net in (flat, *(Last(kind(16, 64, batch_first=True)) for kind in (nn.LSTM, nn.GRU, nn.RNN))):
    net.eval()
    theta = ntk(net, x)
    kappa = CentredTangents(FactorSource(freeze(net), x, 3), [(x, 1.0)]).hold(x[:30]).rows(x)
    net.double()
    print(float((theta - ntk(net, x.double())).norm() / theta.norm()))
    true = CentredTangents(FactorSource(freeze(net), x.double(), 3), [(x.double(), 1.0)]).hold(x[:30].double())
    print(float((kappa - true.rows(x.double())).abs().max()))
"""
    environment = os.environ | {"FORETASTE_ONEDNN": asked}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    errors = [float(line) for line in done.stdout.split()]
    assert len(errors) == 8
    assert max(errors[::2]) < 1e-5
    assert max(errors[1::2]) < 1e-3
