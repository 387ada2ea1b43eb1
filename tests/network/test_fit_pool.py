"""``ft.fit(..., pool=)``: the soft labels of the pool beside x and y."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import one_hot

import foretaste as ft
from foretaste.lookahead import soft_labels
from foretaste.network import MLP

L, U, C, D = 9, 60, 3, 5


def clouds(seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(L + U) % C
    x = torch.randn(L + U, D, generator=g) + 3 * torch.randn(C, D, generator=g)[y]
    return x[:L], y[:L], x[L:], y[L:]


def network(outputs=C, seed=0):
    torch.manual_seed(seed)
    return MLP(D, (12,), outputs)


def weights(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("start", ["warm", "cold"])
def test_it_is_a_training_on_hard_and_soft_labels_together(loss, start):
    x, y, x_U, _ = clouds()
    how = {"loss": loss, "steps": 70, "batch_size": 16, "max_lr": 0.1, "seed": 3, "start": start}
    one, two = network(), network()
    made = ft.fit(one, x, y, pool=x_U, **how)
    evidence, p_UC = soft_labels(x, one_hot(y, C).double(), x_U, seed=3)
    targets = torch.cat([one_hot(y, C).float(), p_UC.float()])
    plain = ft.fit(two, torch.cat([x, x_U]), targets, **how)
    assert same(weights(one), weights(two))
    assert made.pool == evidence.as_dict()
    assert made.pool["used"]
    assert (made.steps, made.loss) == (plain.steps, plain.loss)
    # Measured on the labelled points alone.
    with torch.no_grad():
        f = one(x)
    f = f.softmax(1) if loss == "ce" else f
    assert made.residual == pytest.approx(float((f - one_hot(y, C)).square().mean()), rel=1e-5)
    assert made.accuracy == float((f.argmax(1) == y).double().mean())


@pytest.mark.parametrize("length", [{}, {"steps": 30}, {"epochs": 5}])
def test_where_the_pool_does_not_help_it_is_the_training_without(length):
    x, y, x_U, _ = clouds()
    one, two = network(), network()
    made = ft.fit(one, x, y, pool=x_U, graph=ft.Graph(gamma=0), **length)
    plain = ft.fit(two, x, y, **length)
    assert same(weights(one), weights(two))
    assert not made.pool["used"]
    assert plain.pool is None
    assert (made.residual, made.loss, made.steps) == (plain.residual, plain.loss, plain.steps)


def test_a_pool_of_few_points_is_left_out():
    x, y, x_U, _ = clouds()
    assert not ft.fit(network(), x, y, pool=x_U[:2], steps=5).pool["used"]


@pytest.mark.parametrize(
    ("how", "steps"),
    [({}, 1200), ({"steps": 40}, 40), ({"epochs": 8, "batch_size": 23}, 24), ({"batch_size": 1}, 2880)],
)
def test_length(how, steps):
    """No fewer steps than without the pool: nine points for 320 epochs are 2880 batches of one."""
    x, y, x_U, _ = clouds()
    assert ft.fit(network(), x, y, pool=x_U, max_lr=0.01, **how).steps == steps


def test_sixteen_epochs_of_a_large_pool():
    x, y, _, _ = clouds()
    pool = torch.cat([clouds(0)[2] + 0.01 * k for k in range(5)])
    made = ft.fit(network(), x, y, pool=pool, batch_size=4, max_lr=0.01)
    assert made.steps == 16 * (L + len(pool)) / 4


def test_names_pixels_and_two_classes_of_one_output():
    x, y, x_U, _ = clouds()
    names = [("ant", "bee", "cat")[c] for c in y]
    one, two = network(), network()
    ft.fit(one, x, y, pool=x_U, steps=20)
    ft.fit(two, x.tolist(), names, pool=x_U.numpy(), steps=20)
    assert same(weights(one), weights(two))
    for loss in ("l2", "ce"):
        made = ft.fit(network(1), x, (y > 0).long(), pool=x_U, loss=loss, max_lr=0.1, steps=300)
        assert made.pool["used"]
        assert made.accuracy == 1
    bytes_ = (40 * x + 128).clamp(0, 255).byte(), (40 * x_U + 128).clamp(0, 255).byte()
    floats = [t.float() / 255 for t in bytes_]
    found = [ft.fit(network(), a, y, pool=b, steps=20, normalise=(0.5, 0.2)) for a, b in (bytes_, floats)]
    assert found[0].pool == found[1].pool
    assert found[0].residual == found[1].residual


def test_batch_norm_has_the_statistics_of_all_points_trained_on():
    x, y, x_U, _ = clouds()
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(D), nn.Linear(D, C))
    ft.fit(net, x, y, pool=x_U, steps=20)
    assert torch.allclose(net[0].running_mean, torch.cat([x, x_U]).mean(0), atol=1e-5)


def test_digits_are_learned_from_the_pool():
    x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    x = x.float() / 16
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    at_L, at_U, test = order[:30], order[30:900], order[900:]
    right = []
    for pool in (None, x[at_U]):
        net = MLP(64, (64,), 10)
        ft.fit(net, x[at_L], y[at_L], pool=pool, start="cold")
        with torch.no_grad():
            right.append(float((net(x[test]).argmax(1) == y[test]).double().mean()))
    assert right[1] > right[0] + 0.05  # 0.74 and 0.87


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pool": torch.zeros(20, D + 1)}, r"pool is \(20, 6\) torch.float32; expected points as those of x, \(9, 5\)"),
        ({"pool": torch.zeros(20, D).byte()}, "pool is .* torch.uint8; expected points as those of x"),
        ({"pool": torch.full((20, D), torch.nan)}, "NaN or infinite"),
        ({"pool": torch.zeros(20, D), "graph": ft.Graph(vectors=lambda x: x[:, 0])}, "vectors= returned"),
        ({"pool": torch.zeros(20, D), "y": torch.randn(L, C)}, "pool= is for classes, and y holds numbers"),
    ],
)
def test_what_is_refused_leaves_the_network_as_it_was(given, said):
    x, y, _, _ = clouds()
    net = network().train()
    before = weights(net)
    with pytest.raises(ValueError, match=said):
        ft.fit(net, x, **{"y": y, "steps": 5} | given)
    assert same(before, weights(net))
    assert net.training


def test_a_graph_is_an_ft_graph():
    x, y, x_U, _ = clouds()
    with pytest.raises(ValueError, match=r"graph is 'auto'; expected an ft\.Graph"):
        ft.fit(network(), x, y, pool=x_U, graph="auto", steps=5)
