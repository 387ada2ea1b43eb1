"""Parameters that a forward uses without a module: Θ by their rules against plain gradients."""

import logging
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretaste as ft
import oracles

SHAPES = {"w": (8, 6), "v": (6, 8), "b": (6,), "place": (1, 5, 8), "first": (1, 1, 8), "scale": (), "heads": (2, 4, 3)}
Forward = Callable[["Bare", Tensor], Tensor]


class Bare(nn.Module):
    def __init__(self, forward: Forward, names: str) -> None:
        super().__init__()
        self.inner, self.out = forward, nn.Linear(6, 3)
        for name in names.split():
            setattr(self, name, nn.Parameter(torch.randn(SHAPES[name]) / 2))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(self, x))
        return self.out(h.mean(1) if h.dim() == 3 else h)


def with_first(m: Bare, x: Tensor) -> Tensor:
    return torch.cat([m.first.expand(len(x), -1, -1), x], 1) @ m.w * m.scale


RULED: dict[str, tuple[Forward, str]] = {
    "@": (lambda m, x: x @ m.w, "w"),
    "@ and +": (lambda m, x: x @ m.w + m.b, "w b"),
    "@ of a transpose": (lambda m, x: x @ m.v.T, "v"),
    "F.linear": (lambda m, x: F.linear(x, m.v, m.b), "v b"),
    "F.linear of a transpose": (lambda m, x: F.linear(x, m.w.T, m.b), "w b"),
    "one position": (lambda m, x: F.linear(x[:, 0], m.v) * m.b, "v b"),
    "added": (lambda m, x: (x + m.place) @ m.w, "w place"),
    "added in place": (lambda m, x: x.clone().add_(m.place) @ m.w, "w place"),
    "multiplied": (lambda m, x: (m.place * x) @ m.w, "w place"),
    "expanded, a number": (with_first, "w first scale"),
    "repeated": (lambda m, x: (x + m.first.repeat(len(x), 5, 1)) @ m.w, "w first"),
    "einsum": (lambda m, x: torch.einsum("ntd, do -> nto", x, m.w), "w"),
    "einsum, weight first": (lambda m, x: torch.einsum("od,ntd->nto", m.v, x), "v"),
    "einsum of heads": (lambda m, x: torch.einsum("nthd,hdk->nthk", x.view(-1, 5, 2, 4), m.heads).flatten(2), "heads"),
    "used twice": (lambda m, x: torch.tanh(x @ m.w) @ m.v @ m.w, "v w"),
    "tokens first": (lambda m, x: (x.transpose(0, 1) @ m.w + m.b).transpose(0, 1), "w b"),
}  # fmt: skip
UNRULED: dict[str, tuple[Forward, str]] = {
    "a part of it": (lambda m, x: x[..., :4] @ m.w[:4] + x[..., 4:] @ m.w[4:], "w"),
    "a product of weights": (lambda m, x: x @ (m.w @ m.v @ m.w), "v w"),
    "two kinds of use": (lambda m, x: x @ m.w + m.w.square().sum(), "w"),
    "einsum without an arrow": (lambda m, x: torch.einsum("nd,do", x[:, 0], m.w), "w"),
}


def built(forward: Forward, names: str) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return Bare(forward, names).double().eval(), torch.randn(6, 5, 8, dtype=torch.float64)


def theta_and_oracle(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    theta = ft.ntk(net, x, output="full").permute(0, 2, 1, 3).reshape(18, 18)
    return theta, oracles.ntk(net, x, x, "full")


@pytest.mark.parametrize("name", RULED)
def test_a_use_with_a_rule(name: str, caplog: pytest.LogCaptureFixture) -> None:
    net, x = built(*RULED[name])
    with caplog.at_level(logging.INFO, "foretaste"):
        got, want = theta_and_oracle(net, x)
    assert not caplog.records, caplog.text
    assert float((got - want).norm() / want.norm()) <= 1e-12


@pytest.mark.parametrize("name", UNRULED)
def test_other_uses_are_right_too(name: str, caplog: pytest.LogCaptureFixture) -> None:
    net, x = built(*UNRULED[name])
    with caplog.at_level(logging.INFO, "foretaste"):
        got, want = theta_and_oracle(net, x)
    assert "no rule for" in caplog.text
    assert float((got - want).norm() / want.norm()) <= 1e-12
