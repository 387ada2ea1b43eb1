"""``ft.register_rule`` and its contract test, ``foretaste.testing.check_rule``."""

import doctest
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretaste as ft
import oracles
from foretaste.tangent import REGISTERED, rules
from foretaste.testing import check_rule


class Gate(nn.Module):
    """σ(x · w) times x, with a number of its own: neither parameter is called weight."""

    def __init__(self, d: int = 4) -> None:
        super().__init__()
        self.w, self.power = nn.Parameter(torch.linspace(-1, 1, d)), nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x @ self.w)[..., None] * x * self.power


def gate_rows(m: Gate, name: str, a: Tensor, g: Tensor) -> Tensor:
    s = torch.sigmoid(a @ m.w)[..., None]
    if name == "power":
        return (g * s * a).flatten(1).sum(1)
    return ((g * a).sum(-1, keepdim=True) * s * (1 - s) * a * m.power).flatten(1, -2).sum(1)


@pytest.fixture
def register() -> Iterator[Callable[..., None]]:
    def add(rule: Callable[..., Tensor]) -> None:
        ft.register_rule(Gate)(rule)

    yield add
    REGISTERED.pop(Gate, None)
    rules.RULES.pop(Gate, None)


def test_a_registered_rule_is_used(register: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), Gate(), nn.Flatten(), nn.Linear(12, 3)).double().eval()
    x = torch.randn(6, 3, 5, dtype=torch.float64)
    want = oracles.ntk(net, x, x, "sum")
    with caplog.at_level(logging.INFO, "foretaste"):
        assert float((ft.ntk(net, x) - want).norm() / want.norm()) <= 1e-12
    said = "(Gate: 1.w): their gradients go through torch.func, with one more forward and backward for each point"
    assert said in caplog.text
    assert "ft.register_rule" in caplog.text
    caplog.clear()
    register(gate_rows)
    check_rule(Gate(), torch.randn(4, 3, 4))
    with caplog.at_level(logging.INFO, "foretaste"):
        assert float((ft.ntk(net, x) - want).norm() / want.norm()) <= 1e-12
    assert not caplog.records


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda rows, m: 1.001 * rows, r"wrong for 'w': at point 0 it is .* away"),
        (lambda rows, m: rows.flip(0), r"wrong for 'w': at point 0"),
        (lambda rows, m: rows.sum(0), r"gives \(4,\) for 'w'; expected \(3, 4\)"),
        (lambda rows, m: m.w.data.add_(0 * m.w + 1) is None or rows, "wrong|changes w"),
    ],
)
def test_a_rule_that_is_wrong_is_refused(spoil: Any, said: str, register: Callable[..., None]) -> None:
    register(lambda m, name, a, g: spoil(gate_rows(m, name, a, g), m))
    with pytest.raises(AssertionError, match=said):
        check_rule(Gate(), torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)))


def test_what_cannot_be_registered_or_checked(register: Callable[..., None]) -> None:
    with pytest.raises(ValueError, match="Gate has no registered rule; add one"):
        check_rule(Gate(), torch.randn(3, 4))
    register(gate_rows)
    with pytest.raises(ValueError, match="Gate has a rule; a rule is registered once"):
        register(gate_rows)
    with pytest.raises(ValueError, match="Linear has a rule"):
        ft.register_rule(nn.Linear)
    with pytest.raises(TypeError, match="expected a class of modules"):
        ft.register_rule(Gate())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="x has 1 points; expected at least 2"):
        check_rule(Gate(), torch.randn(1, 4))


def test_the_example_runs() -> None:
    before = dict(REGISTERED)
    result = doctest.testmod(rules)
    assert result.attempted
    assert not result.failed
    for kind in REGISTERED.keys() - before.keys():
        REGISTERED.pop(kind)
        rules.RULES.pop(kind)
