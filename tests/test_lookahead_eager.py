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
