"""``foretaste.testing.check_network``: what a dozen points do not show, all points do."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretaste as ft
from foretaste.testing import check_network
from networks import NETWORKS, Network


class Odd(nn.Module):
    """Exchanges two rows of a batch inside, or uses a weight outside its module for two points."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.below, self.inner, self.head, self.how = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 3), how

    def forward(self, x: Tensor) -> Tensor:
        h = self.below(x).tanh()
        if self.how == "exchanged":
            order = torch.arange(len(x))
            if len(x) > 100:
                order[[60, 61]] = order[[61, 60]]
            return self.head(self.inner(h[order])[order].tanh())
        outside = F.linear(h, self.inner.weight, self.inner.bias) * (x[:, :1] == 0.5) / 5
        return self.head((self.inner(h) + outside).tanh())


@pytest.mark.parametrize("how", ["exchanged", "outside"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_dozen_points_do_not_show(how: str, dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    net = Odd(how).to(dtype).eval()
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(3)).to(dtype)
    check_network(nn.Sequential(net.below, nn.Tanh(), net.inner, nn.Tanh(), net.head).eval(), x)
    if how == "outside":
        x[[80, 81], 0] = 0.5
    with caplog.at_level("INFO", "foretaste"):
        ft.ntk(net, x)
    assert "no rule" not in caplog.text
    with pytest.raises(
        AssertionError, match=r"Θ of Odd is wrong: rᵀΘr is .*; let every row that its layers see be one"
    ):
        check_network(net, x)


@pytest.mark.parametrize("case", [case for case in NETWORKS if "resnet18" not in case.name], ids=str)
def test_ordinary_networks_pass(case: Network) -> None:
    check_network(case.built(torch.float32), case.points(20, torch.float32))


class Single(nn.Module):
    """Computes in float32 whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert self.below.weight.dtype == torch.float32
        return self.head(self.below(x).tanh())


def test_a_network_that_knows_float32_only() -> None:
    torch.manual_seed(0)
    check_network(Single().eval(), torch.randn(90, 4), output="first")


OUTPUTS = ["sum", "signs", "first", 2, "trace", "full"]


@pytest.mark.parametrize("output", OUTPUTS)
def test_every_output_is_compared(output: str | int) -> None:
    """With as many points as classes too: a PReLU's kernel was wrong there, and "trace" and "full" were refused."""
    for case in NETWORKS:
        if case.functional:
            for n in (3, 10):
                check_network(case.built(torch.float32), case.points(n, torch.float32), output=output)
    net = Odd("exchanged").eval()
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(3))
    with pytest.raises(AssertionError, match="Θ of Odd is wrong"):
        check_network(net, x, output=output)


@pytest.mark.parametrize("output", ["trace", "full"])
def test_a_kernel_with_outputs_and_points_exchanged_is_told(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What vmap did to a PReLU with as many points as classes, if no batch were compared with autograd."""
    monkeypatch.setattr("foretaste.tangent.functional.jacrev", lambda f, chunk_size: torch.func.jacrev(f))
    monkeypatch.setattr("foretaste.tangent.functional.is_true_sum", lambda *args: True)
    case = next(c for c in NETWORKS if c.name == "prelu of its own class")
    with pytest.raises(AssertionError, match="Θ of Sequential is wrong"):
        check_network(case.built(), case.points(3), output=output)


class Logits(nn.Module):
    """Returns a dict, as networks of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.below(x).tanh())}


def test_networks_that_return_a_dict() -> None:
    """They ended in an AttributeError."""
    check_network(Logits().eval(), torch.randn(20, 4))


@pytest.mark.parametrize("batch", [0, -1, 1.5])
def test_a_batch_of_no_points_is_no_fault_of_the_network(batch: int) -> None:
    """-1 told that Θ is wrong."""
    with pytest.raises(ValueError, match=f"batch is {batch}; expected a whole number of at least 1"):
        check_network(nn.Linear(4, 3).eval(), torch.randn(20, 4), batch=batch)


def test_what_foretaste_refuses_is_refused() -> None:
    """The copy in float64 passed: of a network in float16, and of a float64 network with float32 points."""
    x = torch.randn(20, 4)
    with pytest.raises(ValueError, match=r"net has parameters in torch\.float16, too coarse"):
        check_network(nn.Linear(4, 3).eval().half(), x.half())
    with pytest.raises(ValueError, match="float32"):
        check_network(nn.Linear(4, 3).eval().double(), x)


def test_within_inference_mode() -> None:
    """It ended in a RuntimeError of autograd; ``ft.ntk`` works there."""
    with torch.inference_mode():
        check_network(nn.Linear(4, 3).eval(), torch.randn(20, 4))
