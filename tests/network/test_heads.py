"""Heads on features: trained to interpolation with the defaults, and the same query as on the whole network."""

import pytest
import torch
from torch import nn

import foretaste as ft
from foretaste.network import make_head


def blobs(n=120, D=40, classes=4, scale=1.0, shift=0.0, seed=0):
    """Features as a backbone may give them: any size, any mean, overlapping classes."""
    g = torch.Generator().manual_seed(seed)
    centres, y = torch.randn(classes, D, generator=g), torch.arange(n) % classes
    return shift + scale * (centres[y] + torch.randn(n, D, generator=g)), y


@pytest.mark.parametrize(
    ("hidden", "loss", "scale", "shift"),
    [
        (512, "l2", 1.0, 0.0),
        (512, "ce", 1e-3, 5.0),
        (32, "l2", 200.0, -1e3),
        (None, "l2", 1e-3, 5.0),
        (None, "ce", 200.0, -1e3),
    ],
)
def test_the_default_training_interpolates_whatever_the_size_of_features(hidden, loss, scale, shift):
    x, y = blobs(scale=scale, shift=shift)
    torch.manual_seed(0)
    head = make_head(x, 4, hidden=hidden)
    fitted = ft.fit(head, x[:24], y[:24], loss=loss)
    assert fitted.accuracy == 1.0
    assert fitted.interpolates


def test_inputs_are_scaled_to_rows_of_length_one():
    x, _ = blobs(scale=30, shift=7)
    x[:, 3] = 5.0  # a column that never varies
    scaled = make_head(x, 4)[0](x)
    assert scaled.square().sum(1).mean() == pytest.approx(39 / 40, rel=1e-3)
    assert (scaled[:, 3] == 0).all()
    assert make_head(x, 4, hidden=None)[0](x).square().sum(1).mean() == pytest.approx(4 * 39 / 40, rel=1e-3)
    assert make_head(40, 4)[0](torch.ones(1, 40)).square().sum() == pytest.approx(1)
    in_pieces = make_head(x.repeat(50, 1), 4)[0](x)
    torch.testing.assert_close(in_pieces, scaled, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("D", "outputs"), [(1, 1), (2, 1), (1, 2), (600, 2), (600, 10)])
@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_a_linear_head_is_stable_in_any_dimension_and_interpolates_where_it_can(D, outputs, loss):
    if (loss, outputs) == ("ce", 1):
        pytest.skip("cross-entropy of one output needs two classes")
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, D, generator=g)
    y = (x[:, :1] + 0.5) if outputs == 1 else torch.randint(outputs, (60,), generator=g)
    torch.manual_seed(0)
    fitted = ft.fit(make_head(x, outputs, hidden=None), x, y, loss=loss)
    assert fitted.residual < 1
    if outputs == 1 or D == 600:
        assert fitted.interpolates


def test_linear_or_one_hidden_layer_and_the_seed():
    torch.manual_seed(1)
    head = make_head(40, 3, hidden=None)
    assert [type(m) for m in head[1].layers] == [nn.Linear]
    assert [type(m) for m in make_head(40, 3).eval()[1].layers] == [nn.Linear, nn.ReLU, nn.Linear]
    assert make_head(40, 3)[1].layers[0].out_features == 512
    torch.manual_seed(1)
    assert torch.equal(make_head(40, 3, hidden=None)[1].layers[0].weight, head[1].layers[0].weight)


@pytest.mark.parametrize(
    ("features", "classes", "hidden", "says"),
    [
        (torch.zeros(3, 4, 5), 3, 8, r"features are torch.float32 \(3, 4, 5\); expected floats"),
        (torch.zeros(3, 4, dtype=torch.int64), 3, 8, "expected floats"),
        (torch.zeros(0, 4), 3, 8, "expected floats"),
        (torch.full((3, 4), torch.nan), 3, 8, "NaN or infinite"),
        (0, 3, 8, "features is 0"),
        (4, 0, 8, "classes is 0"),
        (4, 3, 0, "hidden is 0"),
        (4, 3, (8, 8), "hidden is a tuple"),
    ],
)
def test_wrong_arguments_are_refused(features, classes, hidden, says):
    with pytest.raises(ValueError, match=says):
        make_head(features, classes, hidden=hidden)


def whole_network(loss, hidden):
    """A convolutional backbone, its features of 60 pictures, and a head trained on 12 of them."""
    torch.manual_seed(0)
    backbone = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    ).eval()
    x = torch.rand(60, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 3
    f = ft.features(backbone, x, cache=False)
    head = make_head(f, 3, hidden=hidden)
    ft.fit(head, f[:12], y[:12], loss=loss)
    return backbone, head, x, f, y


@pytest.mark.parametrize(
    ("strategy", "loss", "hidden"),
    [("gain", "l2", 64), ("gain", "ce", 64), ("mlmoc", "l2", None), ("badge", "ce", 64), ("margin", "l2", 64)],
)
def test_a_query_on_features_is_that_on_the_whole_network_with_the_heads_parameters(loss, hidden, strategy):
    backbone, head, x, f, y = whole_network(loss, hidden)
    net = nn.Sequential(backbone, head).eval()
    how = {"strategy": strategy, "batch_size": 8, "loss": loss, "seed": 0}
    on_features = ft.query(head, f[:12], y[:12], f[12:], **how)
    on_network = ft.query(net, x[:12], y[:12], x[12:], params=lambda name: name.startswith("1."), **how)
    assert on_network.indices.tolist() == on_features.indices.tolist()
    # The features agree to float32's rounding: they are computed in batches of other sizes.
    torch.testing.assert_close(
        torch.as_tensor(on_network.scores), torch.as_tensor(on_features.scores), rtol=2e-4, atol=1e-6
    )


def test_kernels_of_the_head_agree():
    backbone, head, x, f, _ = whole_network("l2", 64)
    net = nn.Sequential(backbone, head).eval()
    ours = ft.ntk(net, x, params=lambda name: name.startswith("1."))
    torch.testing.assert_close(ours, ft.ntk(head, f), rtol=1e-5, atol=1e-6)


# The last block of a backbone with the head


def test_a_part_of_the_parameters_is_trained_and_asked():
    backbone, head, x, _, y = whole_network("l2", 32)
    net = nn.Sequential(backbone, head).eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    flags = [p.requires_grad for p in net.parameters()]
    last = ["0.0.weight", "0.0.bias", *(name for name, _ in net.named_parameters() if name.startswith("1."))]
    fitted = ft.fit(net, x[:12], y[:12], params=last, max_lr=0.05, steps=60)
    moved = {k for k, v in net.state_dict().items() if not torch.equal(v, before[k])}
    assert moved == set(last)  # neither the parameters nor the statistics of BatchNorm
    assert [p.requires_grad for p in net.parameters()] == flags
    assert fitted.steps == 60
    q = ft.query(net, x[:12], y[:12], x[12:], params=last, batch_size=3)
    assert len(set(q.indices.tolist())) == 3

    again = nn.Sequential(backbone, head)
    again.load_state_dict(before)
    ft.fit(again, x[:12], y[:12], params=lambda name: name in last, max_lr=0.05, steps=60)
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in again.state_dict().items())


def test_parameters_to_train_that_are_not_there_are_refused():
    x, y = blobs()
    head = make_head(x, 4, hidden=8)
    for params, says in (
        (["layers.9"], "unknown parameter 'layers.9'"),
        ([], "params= selects none of the 4 parameters"),
        (lambda name: False, "params= selects none"),
    ):
        with pytest.raises(ValueError, match=says):
            ft.fit(head, x, y, params=params, steps=1)
    with pytest.raises(TypeError, match="params is a string"):
        ft.fit(head, x, y, params="1.layers.0.weight", steps=1)
    assert all(p.requires_grad for p in head.parameters())


def test_columns_that_hardly_vary_are_not_scaled_up_where_columns_are_alike() -> None:
    x = torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    x[:, 7] = 2e-8 + 1e-9 * x[:, 7]
    x[:, 9] *= 0.01  # little, but it counts
    as_given, alike = (make_head(x, 3, alike=alike)[0].scale_D for alike in (False, True))
    assert as_given[7] > 1e7
    assert float(alike[7]) == pytest.approx(40**-0.5)
    others = [d for d in range(40) if d != 7]
    assert torch.equal(alike[others], as_given[others])
