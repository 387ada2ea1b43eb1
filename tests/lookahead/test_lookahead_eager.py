"""``eager`` makes Θ and f in one run of the engine; nothing else about it differs."""

from importlib import import_module

import pytest
import torch

from cases import CASES, Case
from foretaste.lookahead import problem

linearize_module = import_module("foretaste.lookahead.linearize")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_eager_equals_lazy_and_runs_the_network_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = case.state()
    (at, S_Wu), *_ = lazy.blocks()
    counted = {"gram": 0, "outputs": 0}
    for module, name in ((problem, "gram"), (linearize_module, "outputs")):
        real = getattr(module, name)

        def count(*args, real=real, name=name, **kwargs):
            counted[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, count)
    eager = case.state(eager=True)
    (here, got_Wu), *_ = eager.blocks()
    for name in ("net", "mean", "pool_net", "pool_mean"):
        assert torch.allclose(getattr(eager, name), getattr(lazy, name), rtol=1e-9, atol=1e-11)
    assert at == here
    assert torch.allclose(got_Wu, S_Wu, rtol=1e-8, atol=1e-10)
    assert counted == {"gram": 1, "outputs": 0}


def test_a_kernel_that_was_made_at_once_can_fail_twice() -> None:
    """It was given out once, and the second error said nothing but "pop from empty list"."""
    x_L = torch.ones(3, 4, dtype=torch.float64)
    net = torch.nn.Linear(4, 2).double().eval()
    state = linearize_module.linearize(net, x_L, torch.tensor([0, 1, 0]), 2 * x_L, ridge=0.0, eager=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="Cholesky"):
            _ = state.mean
