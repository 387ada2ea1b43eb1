"""Every strategy by its name keeps one contract; and the contract names what a broken one breaks."""

import random as python_random
from itertools import count

import numpy as np
import pytest
import torch
from torch import nn

import foretaste.pick  # noqa: F401  registers the strategies that pick by themselves
from foretaste.acquire import entropy, register, strategies
from foretaste.losses import probabilities
from foretaste.testing import check_strategy
from foretaste.testing.contracts import describe_changes, snapshot_network

# Settings that a strategy cannot do without, or that keep it quick here.
SETTINGS = {
    "bait": {"fisher": "binary"},
    "naive": {"epochs": 1},
    "eer_retrain": {"epochs": 1},
    "bald": {"rate": 0.3, "samples": 20},
    "batchbald": {"rate": 0.3, "samples": 20, "configurations": 40},
    "parbals": {"universes": 2, "draws": 4, "targets": 2, "prior": 1.0},
    "ll4al": {"layers": ["layers.1"], "steps": 20},
}
SLOW = {"eer", "eer_retrain"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in strategies()])
def test_ours_keep_it(name):
    check_strategy(name, **SETTINGS.get(name, {}))


@pytest.mark.parametrize("options", [{"gradient": "ce"}, {"first": "uniform", "bias": True}, {"layer": "layers.0"}])
def test_options_are_passed_on(options):
    check_strategy("badge", **options)
    with pytest.raises(AssertionError, match="runs: ValueError: unknown option 'layr' of strategy 'badge'"):
        check_strategy("badge", layr=None)


def test_a_function_and_a_network_of_ones_own():
    made = []

    def make_net(C):
        made.append(C)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, C))

    def tempered(state, power=1.0):
        return entropy(state) ** power

    check_strategy(tempered, make_net=make_net, power=0.5)
    assert set(made) == {2, 100}
    with pytest.raises(AssertionError, match="runs: KeyError"):
        check_strategy(lambda state: {}["x"])


def test_losses():
    seen = set()

    def spying(state):
        seen.add((state.loss, state.C))
        return entropy(state)

    check_strategy(spying, losses=["ce"])
    assert seen == {("ce", 2), ("ce", 100)}


def by_margin(request):
    """A picking strategy that keeps the contract: the smallest margins."""
    top = probabilities(request.state.pool_net, request.loss).topk(2, 1).values
    return (top[:, 0] - top[:, 1]).argsort()[: request.batch_size]


def blind(request):
    """Reads the network and lets a NaN pass."""
    with torch.no_grad():
        return request.net(request.x_U).nan_to_num().amax(1).argsort()[: request.batch_size]


def angry(request):
    if request.net(request.x_U).isnan().any():
        raise RuntimeError("bad luck")
    return by_margin(request)


def fussy(request):
    if len(request.x_U.unique(dim=0)) == 1:
        raise RuntimeError("only copies")
    return by_margin(request)


def then(action):
    """Picks as it should, and leaves something behind."""

    def pick(request):
        picked = by_margin(request)
        with torch.no_grad():
            action(request.net, request)
        return picked

    return pick


CALLS = count()


@pytest.mark.usefixtures("_names")
def test_what_the_broken_ones_are_made_of_keeps_it():
    register("mine", select="own", needs="classes")(by_margin)
    check_strategy("mine")


@pytest.mark.usefixtures("_names")
@pytest.mark.parametrize(
    ("clause", "fn"),
    [
        ("runs: ValueError: strategy 'mine' picked 4 points, 1 of them different", lambda r: [0] * r.batch_size),
        ("runs: ValueError: strategy 'mine' picked 3 points", lambda r: range(r.batch_size - 1)),
        ("runs: ValueError: strategy 'mine' gave scores", lambda r: (by_margin(r), torch.zeros(3))),
        ("runs: RuntimeError: only copies .*five times", fussy),
        ("seed: the same seed gave", lambda r: [(next(CALLS) + i) % r.U for i in range(r.batch_size)]),
        ("permutation: with the pool permuted it takes", lambda r: range(r.batch_size)),
        ("NaN: outputs of candidate 5 are NaN, and nothing was raised", blind),
        ("NaN: outputs of candidate 5 are NaN, and it raised RuntimeError: bad luck", angry),
        ("untouched: .* changed _forward_hooks of module net", then(lambda net, r: net.register_forward_hook(print))),
        ("untouched: .* changed the training flag of module net", then(lambda net, r: net.train())),
        ("untouched: .* changed the attributes of module net", then(lambda net, r: setattr(net, "seen", 1))),
        ("untouched: .* changed .grad of layers.0.weight", then(lambda net, r: net.zero_grad())),
        ("untouched: .* changed requires_grad of layers.0.bias", then(lambda net, r: net.requires_grad_(True))),
        ("untouched: .* changed parameter layers.0.weight", then(lambda net, r: net.layers[0].weight.mul_(1.001))),
        ("untouched: .* changed input 2", then(lambda net, r: r.x_U.mul_(2))),
        ("untouched: .* changed torch's random state", then(lambda net, r: torch.rand(1))),
        ("untouched: .* changed numpy's random state", then(lambda net, r: np.random.rand())),  # noqa: NPY002
        ("untouched: .* changed python's random state", then(lambda net, r: python_random.random())),
    ],
    ids=lambda v: v[:40] if isinstance(v, str) else "",
)  # fmt: skip
def test_each_clause_is_named(clause, fn):
    register("mine", select="own", needs="classes")(fn)
    with pytest.raises(AssertionError, match=clause):
        check_strategy("mine")


@pytest.mark.usefixtures("_names")
def test_after_an_error_too():
    @register("mine", select="own", needs="classes")
    def mine(request):
        request.net.train()
        if request.net(request.x_U).isnan().any():
            raise ValueError("NaN")
        request.net.eval()
        return by_margin(request)

    with pytest.raises(AssertionError, match="untouched: a query changed the training flag"):
        check_strategy("mine")


def test_found_tells_buffers():
    net = nn.BatchNorm1d(3)
    before = snapshot_network(net)
    assert describe_changes(before, snapshot_network(net)) == []
    net(torch.ones(2, 3))
    assert describe_changes(before, snapshot_network(net)) == [
        "buffer running_mean",
        "buffer running_var",
        "buffer num_batches_tracked",
    ]
