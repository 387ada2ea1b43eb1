"""The features before the last layer: found where they are, and nothing guessed where they are not."""

import pytest
import torch
from torch import nn

from badge_cases import NET, X_U, ask, network, normal
from foretaste.network import build_network
from foretaste.pick import query
from foretaste.pick.badge import find_last_layer, last_layer_inputs
from foretaste.tangent import freeze


class Net(nn.Module):
    """A body and a head, with something after it or in an unusual order."""

    def __init__(self, after=None, flip=False):
        super().__init__()
        body, head = nn.Linear(4, 5), nn.Linear(5, 3)
        for name, module in [("head", head), ("body", body)] if flip else [("body", body), ("head", head)]:
            self.add_module(name, module)
        self.after = after or nn.Identity()
        self.double().eval()

    def forward(self, x):
        return self.after(self.head(self.body(x).tanh()))


def found(net, x_U=X_U):
    frozen = freeze(net)
    return find_last_layer(frozen, x_U, None)


def test_it_is_found_by_running():
    assert found(NET) == "2"
    assert found(Net()) == "head"
    assert found(Net(flip=True)) == "head"
    assert found(Net(after=nn.Dropout(0.5)).eval()) == "head"
    assert found(nn.Linear(4, 3).double().eval()) == ""
    square = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3))).double().eval()
    assert found(square, normal(5, 3)) == "2"
    for name, options, x in [
        ("mlp", {"inputs": 4, "hidden": (6,), "classes": 3}, normal(5, 4)),
        ("wrn1", {"channels": 1, "classes": 3, "widen": 1}, normal(4, 1, 8, 8)),
        ("resnet18", {"channels": 1, "classes": 3}, normal(2, 1, 8, 8)),
    ]:
        net = build_network(name, **options).double().eval()
        frozen = freeze(net)
        layer = net.get_submodule(found(net, x))
        f_UC, h_UD = last_layer_inputs(frozen, x, found(net, x), last=True)
        torch.testing.assert_close(layer(h_UD), f_UC, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("after", [nn.ReLU(inplace=True), nn.Tanh(), nn.LogSoftmax(1)], ids=str)
def test_what_does_not_end_in_a_linear_layer_is_refused(after):
    net = Net(after)
    with torch.no_grad():
        net.head.bias.fill_(10.0)  # a network that is mostly positive must not pass for its last layer
        net.head.bias[0] = -10
    with pytest.raises(ValueError, match=r'no nn.Linear of this network returns .*\(body, head\).*options={"layer"'):
        ask(net)
    assert len(ask(net, options={"layer": "head"})) == 6


def test_a_layer_that_is_the_last_only_at_first():
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).double().eval()
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.zero_()
    x_U = X_U.abs()
    assert len(ask(net, x_U)) == 6
    x_U[-1] *= -1
    with pytest.raises(ValueError, match="layer '0' returns what the network does at the first points and not"):
        ask(net, x_U)


def test_no_linear_layer_at_all():
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double().eval()
    with pytest.raises(ValueError, match=r"no nn.Linear.*\(it has none\)"):
        ask(net, normal(8, 1, 5, 5), batch_size=3)
    assert len(ask(net, normal(8, 1, 5, 5), batch_size=3, options={"layer": "0"})) == 3


def test_a_named_layer_gives_its_input():
    net = Net()
    q = ask(net, options={"layer": "body"}, loss="ce")
    p_UC = net(X_U).softmax(1)
    q_UC = p_UC - nn.functional.one_hot(p_UC.argmax(1), 3)
    torch.testing.assert_close(q.scores, (q_UC.norm(dim=1) * X_U.norm(dim=1)).detach())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": "heda"}, r"unknown layer 'heda' in options={\"layer\": …}; did you mean 'head'"),
        ({"layer": 3}, "layer=3 of strategy 'badge'"),
        ({"gradient": "los"}, "gradient='los' of strategy 'badge'; did you mean 'loss'"),
        ({"first": "random"}, "first='random' of strategy 'badge'.*known: largest, uniform"),
        ({"bias": 1}, "bias=1 of strategy 'badge'; expected True or False"),
        ({"layers": "head"}, "unknown option 'layers' of strategy 'badge'; did you mean 'layer'"),
    ],
)
def test_options(options, message):
    with pytest.raises(ValueError, match=message):
        ask(Net(), options=options)


def test_a_layer_that_is_not_called():
    net = Net()
    net.spare = nn.Linear(2, 2).double().eval()
    with pytest.raises(ValueError, match="layer 'spare' is not called for 3 points"):
        ask(net, options={"layer": "spare"})


def test_a_layer_whose_rows_are_not_the_points():
    class Joined(nn.Module):
        def __init__(self):
            super().__init__()
            self.flat = nn.Flatten(0)
            self.net = network()

        def forward(self, x):
            self.flat(x)
            return self.net(x)

    class Wide(Joined):
        def forward(self, x):
            self.flat(x.reshape(-1))
            return self.net(x)

    with pytest.raises(ValueError, match=r"layer 'flat' is given \(12,\) for 3 points; expected \(3, D\)"):
        ask(Wide().eval(), options={"layer": "flat"})
    assert len(ask(Joined().eval(), options={"layer": "flat"})) == 6


def test_a_pool_in_a_dict():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = NET

        def forward(self, x):
            return self.net(x)

    assert ask(Named().eval(), {"x": X_U}).indices.tolist() == ask().indices.tolist()


def test_chunks_do_not_matter():
    frozen, x_U = freeze(NET), normal(50, 4)
    whole = last_layer_inputs(frozen, x_U, "2")
    for a, b in zip(whole, last_layer_inputs(frozen, x_U, "2", chunk_size=7)):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_frozen_network():
    net = network().requires_grad_(False)
    assert ask(net).indices.tolist() == ask().indices.tolist()


def test_bad_networks():
    with pytest.raises(ValueError, match="'badge' needs classes and this network has one output"):
        ask(network(C=1))
    with pytest.raises(ValueError, match="train mode"):
        ask(network().train())
    with pytest.raises(ValueError, match="unknown loss 'mse'"):
        ask(loss="mse")
    with pytest.raises(ValueError, match="x_U has 4 NaN or infinite"):
        ask(x_U=X_U.index_fill(0, torch.tensor([2]), float("nan")))


def test_nan_outputs_name_the_first_point():
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double().eval()
    with torch.no_grad():
        net[0].weight.fill_(1.0)
    x_U = X_U.clone()
    x_U[[7, 11]] = 1e308  # finite, and its sum is not
    with pytest.raises(ValueError, match="net gives NaN or infinite outputs, first at point 7 of x_U"):
        ask(net, x_U)


def test_nothing_is_left_on_the_network():
    net = network()
    for settings in ({}, {"options": {"layer": "0"}}):
        query(net, None, None, X_U, strategy="badge", batch_size=3, **settings)
    with pytest.raises(ValueError, match="unknown layer"):
        query(net, None, None, X_U, strategy="badge", batch_size=3, options={"layer": "9"})
    for module in net.modules():
        assert not module._forward_hooks
        assert not module._forward_hooks_with_kwargs
        assert not module._forward_pre_hooks
