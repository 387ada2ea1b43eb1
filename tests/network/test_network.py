"""Networks of the paper, and their training."""

import os
from dataclasses import FrozenInstanceError
from functools import partial
from importlib import import_module

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.testing import assert_close

from foretaste.losses import TrainingTargets, training_targets
from foretaste.network import MLP, NETWORKS, WideResNet, build_network, fit, fit_ll4al, prepare, reset, resnet18
from foretaste.network.sgd import (
    FORWARD_CHUNK,
    Died,
    Diverged,
    TrainingRecipe,
    augment_batch,
    batch_indices,
    crop_batch,
    flip_batch,
    is_plain_mlp,
    mlp_gradients,
    one_cycle,
    reestimate_batch_norm,
    with_lower_rates,
)

CPU = torch.device("cpu")


def digits(n, seed=0, images=False):
    """Labelled and other points of scikit-learn's digits, in [0, 1]."""
    x, y = load_digits(return_X_y=True)
    at = np.random.default_rng(seed).permutation(len(x))
    x_N = torch.tensor(x[at] / 16, dtype=torch.float32).view(-1, *((1, 8, 8) if images else (64,)))
    y_N = torch.tensor(y[at])
    return x_N[:n], y_N[:n], x_N[n:], y_N[n:]


def weights(net):
    return torch.cat([t.detach().double().flatten() for t in net.state_dict().values()])


# Architectures


@pytest.mark.parametrize(
    ("make", "one_channel", "three_channels", "hundred_classes"),
    [
        (lambda c, k: WideResNet(1, channels=c, classes=k), 1_440_970, 1_443_850, 1_472_740),
        (lambda c, k: WideResNet(2, channels=c, classes=k), 7_183_050, 7_185_930, 7_243_620),
        (resnet18, 11_172_810, 11_173_962, 11_220_132),
    ],
    ids=["wrn1", "wrn2", "resnet18"],
)
def test_parameter_counts_are_the_papers(make, one_channel, three_channels, hundred_classes):
    counts = [sum(p.numel() for p in make(c, k).parameters()) for c, k in [(1, 10), (3, 10), (3, 100)]]
    assert counts == [one_channel, three_channels, hundred_classes]


SMALL = [
    ("mlp", {"inputs": 48, "hidden": (8,), "classes": 3}),
    ("wrn1", {"channels": 3, "classes": 3, "widen": 1}),
    ("wrn2", {"channels": 3, "classes": 3, "widen": 1, "blocks": 2}),
    ("wrn3", {"channels": 3, "classes": 3, "widen": 1}),
    ("resnet18", {"channels": 3, "classes": 3, "width": 4}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "options"), SMALL, ids=[name for name, _ in SMALL])
def test_outputs_are_each_points_own_and_finite(name, options, dtype):
    net = build_network(name, **options).to(dtype).eval()
    x = torch.randn(5, 3, 4, 4, dtype=dtype)
    f_NC = net(x)
    assert f_NC.shape == (5, 3)
    assert f_NC.dtype == dtype
    assert_close(torch.cat([net(x[i : i + 1]) for i in range(5)]), f_NC)


@pytest.mark.parametrize(("name", "options"), SMALL, ids=[name for name, _ in SMALL])
def test_spec_builds_the_same_network(name, options):
    net = build_network(name, **options)
    again = net.spec.build()
    assert again.spec == net.spec
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in net.state_dict().items()}
    with pytest.raises(FrozenInstanceError):
        net.spec.classes = 4
    assert set(NETWORKS) == {name for name, _ in SMALL}


def test_strides_of_stages():
    x = torch.randn(2, 1, 8, 8)
    shapes = [WideResNet(n, widen=1).stages(WideResNet(n, widen=1).stem(x)).shape[1:] for n in (1, 2, 3)]
    assert shapes == [(32, 8, 8), (64, 4, 4), (128, 2, 2)]
    net = resnet18(1, width=2)
    assert net.stages(net.stem(x)).shape == (2, 16, 1, 1)


def test_bad_networks():
    with pytest.raises(ValueError, match="did you mean 'resnet18'"):
        build_network("resnet", channels=1)
    with pytest.raises(ValueError, match="did you mean 'widen'"):
        build_network("wrn1", widening=4)
    with pytest.raises(ValueError, match="mlp needs inputs"):
        build_network("mlp")
    with pytest.raises(ValueError, match="1, 2 or 3 stages"):
        WideResNet(4)
    with pytest.raises(ValueError, match="did you mean 'relu'"):
        MLP(4, activation="rely")
    with pytest.raises(ValueError, match=r"hidden\[1\] is 0"):
        MLP(4, hidden=(3, 0))


# Parts of the training


@pytest.mark.parametrize("steps", [1, 2, 7, 10, 100])
def test_schedule_is_torchs_one_cycle(steps):
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.7, total_steps=steps)
    for step in range(steps):
        group = optimiser.param_groups[0]
        assert one_cycle(step, steps, 0.7) == pytest.approx((group["lr"], group["momentum"]), rel=1e-12)
        optimiser.step()
        if step < steps - 1:
            theirs.step()


def test_batches_show_every_point_equally_and_have_one_size():
    order_SB = batch_indices(10, 4, 25, torch.Generator().manual_seed(0))
    assert order_SB.shape == (25, 4)
    for epoch in order_SB.flatten().view(10, 10):
        assert epoch.sort().values.tolist() == list(range(10))


@pytest.mark.parametrize("hidden", [(), (7,), (7, 5)], ids=str)
@pytest.mark.parametrize("kind", ["l2", "ce", "soft", "regression"])
def test_gradients_by_hand_are_autograds(kind, hidden):
    net = MLP(6, hidden, 4).double()
    x = torch.randn(9, 2, 3).double()
    y = torch.randint(0, 4, (9,))
    y = {"soft": torch.rand(9, 4).softmax(1), "regression": torch.randn(9, 4)}.get(kind, y)
    goal = training_targets(y, "ce" if kind in ("ce", "soft") else "l2", 9, 4, CPU, torch.float64)
    params = list(net.parameters())
    assert is_plain_mlp(net, params)
    f_NC, grads = mlp_gradients(net, goal)(x, goal.fit_N)
    loss = goal.of(net(x), goal.fit_N)
    assert_close(f_NC, net(x).detach())
    assert_close(grads, list(torch.autograd.grad(loss, params)))


def test_by_hand_only_what_it_knows():
    hooked = MLP(4)
    hooked.layers[0].register_forward_hook(lambda *_: None)
    half = MLP(4)
    half.layers[0].weight.requires_grad_(False)
    for net in (hooked, half, MLP(4, activation="tanh"), nn.Linear(4, 2), WideResNet(1, widen=1)):
        assert not is_plain_mlp(net, [p for p in net.parameters() if p.requires_grad])


def test_steps_are_torchs_sgd():
    """The whole loop against torch's optimiser, scheduler and autograd, on the same order."""
    x, y, *_ = digits(20)
    ours, theirs = MLP(64, (16,)).double(), MLP(64, (16,)).double()
    theirs.load_state_dict(ours.state_dict())
    fit(ours, x.double(), y, steps=30, batch_size=20, weight_decay=1e-2)
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.5, total_steps=30)
    for step in range(30):  # full batches: the order does not matter
        optimiser.zero_grad()
        F.mse_loss(theirs(x.double()), F.one_hot(y, 10).double()).backward()
        optimiser.step()
        if step < 29:
            schedule.step()
    assert_close(weights(ours), weights(theirs), rtol=1e-10, atol=1e-12)


# Augmentation and pixels


def test_flip_and_crop_are_what_they_say():
    x = torch.arange(64 * 2 * 5 * 6.0).view(64, 2, 5, 6) + 1
    g = torch.Generator().manual_seed(0)
    mirrored = [bool((a == b.flip(-1)).all()) for a, b in zip(flip_batch(x, g), x)]
    kept = [bool((a == b).all()) for a, b in zip(flip_batch(x, g.manual_seed(0)), x)]
    assert [not m for m in mirrored] == kept
    assert 16 < sum(mirrored) < 48
    seen = set()
    for image, crop in zip(x, crop_batch(x, g, pad=2)):
        padded = F.pad(image, (2,) * 4)
        at = [(i, j) for i in range(5) for j in range(5) if (padded[:, i : i + 5, j : j + 6] == crop).all()]
        assert len(at) == 1
        seen |= set(at)
    assert {i for i, _ in seen} == {j for _, j in seen} == set(range(5))


@pytest.mark.parametrize("how", ["flip", "crop", "crop+flip"])
def test_augmentation_keeps_shape_and_type_and_is_seeded(how):
    x = torch.randint(0, 256, (16, 3, 8, 8), dtype=torch.uint8)
    once, again, other = (augment_batch(x, how, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert once.shape == x.shape
    assert once.dtype == x.dtype
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


def test_prepare():
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    assert_close(prepare(x, torch.float32), torch.tensor([0, 0.2, 1]).view(1, 3, 1, 1))
    got = prepare(x, torch.float64, ((0.0, 0.2, 0.5), 0.5))
    assert_close(got, torch.tensor([0, 0, 1.0]).double().view(1, 3, 1, 1))
    assert_close(prepare(torch.ones(2, 4), torch.float32, (3.0, 2.0)), -torch.ones(2, 4))


# fit


@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_mlp_interpolates_digits(loss):
    x, y, x_T, y_T = digits(20)
    net = MLP(64)
    result = fit(net, x, y, loss=loss, start="cold")
    assert result.steps == 1200
    assert result.residual <= 1e-3
    assert result.interpolates
    assert result.accuracy == 1
    with torch.no_grad():
        f_LC = net(x) if loss == "l2" else net(x).softmax(1)
        assert float((f_LC - F.one_hot(y, 10)).square().mean()) == pytest.approx(result.residual, rel=1e-4)
        assert float((net(x_T).argmax(1) == y_T).float().mean()) > 0.5
    assert not net.training


def test_too_short_a_training_does_not_interpolate():
    x, y, *_ = digits(50)
    result = fit(MLP(64), x, y, steps=5, start="cold")
    assert not result.interpolates
    assert result.residual > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("statistics", ["running", "labelled"])
def test_wideresnet_interpolates_digits(statistics):
    x, y, *_ = digits(40, images=True)
    result = fit(WideResNet(1, widen=1), x, y, start="cold", statistics=statistics, steps=200)
    assert result.residual <= 2e-4
    assert result.residual < result.loss  # eval mode has all points' statistics, each batch its own


def test_running_statistics_lag_behind_a_short_training():
    x, y, *_ = digits(40, images=True)
    by = {s: fit(WideResNet(1, widen=1), x, y, start="cold", statistics=s, steps=30) for s in ("running", "labelled")}
    assert by["labelled"].loss == by["running"].loss
    assert by["labelled"].residual < 0.7 * by["running"].residual


@pytest.mark.slow
def test_wideresnet_interpolates_mnist():
    if not os.environ.get("FORETASTE_DATA"):
        pytest.skip("needs MNIST: set FORETASTE_DATA to a folder with its files")
    from foretaste.data import load

    data = load("mnist")
    ids = torch.from_numpy(data.pool[:20])
    result = fit(WideResNet(1, widen=1), data.x[ids], data.y[ids], start="cold", steps=300)
    assert result.residual <= 1e-3


def test_regression():
    x = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
    y = 3 * x[:, 0] - 7
    by_rows, by_number = MLP(5, classes=1), MLP(5, classes=1)
    a = fit(by_rows, x, y[:, None], start="cold", max_lr=0.02)
    b = fit(by_number, x, y, start="cold", max_lr=0.02)
    assert torch.equal(weights(by_rows), weights(by_number))
    assert a.interpolates
    assert a.accuracy is None
    assert a.residual <= 0.01 * float(y.var(correction=0))
    assert a.residual == b.residual == pytest.approx(float((by_number(x)[:, 0] - y).square().mean().detach()), rel=1e-3)


def test_soft_labels_under_cross_entropy_equal_ids():
    x, y, *_ = digits(20)
    one, two = MLP(64), MLP(64)
    fit(one, x, y, loss="ce", start="cold", steps=20)
    fit(two, x, F.one_hot(y, 10).float(), loss="ce", start="cold", steps=20)
    assert_close(weights(one), weights(two))


@pytest.mark.parametrize("make", [lambda: MLP(64, (16,)), lambda: WideResNet(1, widen=1)], ids=["mlp", "wrn"])
def test_seeds_govern_everything_and_touch_nothing(make):
    x, y, *_ = digits(40, images=True)
    augment = None if isinstance(make(), MLP) else "crop+flip"
    before = torch.get_rng_state()
    results = []
    for seed in (3, 3, 4):
        net = make()
        torch.set_rng_state(before)
        fit(net, x, y, start="cold", steps=4, seed=seed, augment=augment)
        assert torch.equal(torch.get_rng_state(), before)
        results.append(weights(net))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_seed_governs_dropout_and_order():
    x, y, *_ = digits(40)
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(5)
        net = nn.Sequential(nn.Linear(64, 16), nn.Dropout(), nn.Linear(16, 10))
        torch.manual_seed(seed + len(results))  # the surroundings differ
        fit(net, x, y, steps=4, seed=seed)
        results.append(weights(net))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_warm_goes_on_and_cold_begins_anew():
    x, y, *_ = digits(40)
    trained = MLP(64, (16,))
    first = fit(trained, x, y, start="cold", steps=300)
    state = {k: v.clone() for k, v in trained.state_dict().items()}
    warm = fit(trained, x, y, steps=5)
    assert warm.residual <= first.residual * 1.5  # five more steps do not undo it
    cold = fit(trained, x, y, start="cold", steps=5)
    assert cold.residual > 10 * warm.residual
    fresh = MLP(64, (16,))
    fit(fresh, x, y, start="cold", steps=5)
    assert torch.equal(weights(fresh), weights(trained))
    again = MLP(64, (16,))
    again.load_state_dict(state)
    assert fit(again, x, y, steps=5).residual == warm.residual


def test_cold_start_resets_buffers_and_keeps_what_is_frozen():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    for m in (net[0], net[1]):
        m.requires_grad_(False)
    net(torch.randn(8, 4))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    reset(net)
    after = net.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before if k[0] in "01")
    assert_close(after["3.running_mean"], torch.zeros(4))
    assert after["3.num_batches_tracked"] == 0
    assert not torch.equal(before["2.weight"], after["2.weight"])
    fit(net, torch.randn(8, 4), torch.tensor([0, 1] * 4), steps=3)
    assert all(torch.equal(before[k], net.state_dict()[k]) for k in before if k[0] in "01")


@pytest.mark.parametrize("train", [fit, partial(fit_ll4al, layers=["0"])], ids=["fit", "fit_ll4al"])
def test_a_cold_start_never_erases_weights_of_a_users_network(train):
    net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    before = weights(net)
    x, y, *_ = digits(20)
    with pytest.raises(ValueError, match=r"this Sequential is not one of foretaste's own networks.*start=\"warm\""):
        train(net, x, y, start="cold", steps=3)
    assert torch.equal(weights(net), before)
    reset(net)  # asked for, it is done
    assert not torch.equal(weights(net), before)


def test_new_weights_keep_a_frozen_parameter_of_a_module_that_is_trained():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    net[0].weight.requires_grad_(False)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    reset(net)
    assert torch.equal(net[0].weight, before["0.weight"])
    assert not torch.equal(net[0].bias, before["0.bias"])
    assert not torch.equal(net[1].weight, before["1.weight"])


def test_statistics_of_points_sorted_by_class_are_those_of_all_of_them():
    """BatchNorm's variance is averaged over chunks: chunks of one class would miss the spread between classes."""
    x = torch.cat([torch.randn(FORWARD_CHUNK, 3) - 4, torch.randn(FORWARD_CHUNK, 3) + 4])
    net = nn.Sequential(nn.BatchNorm1d(3))
    recipe = TrainingRecipe(1, 2, 0.1, 0.0, None, 0, None, torch.float32)
    reestimate_batch_norm(net, x, recipe, torch.Generator().manual_seed(0))
    assert_close(net[0].running_mean, x.mean(0), rtol=1e-3, atol=1e-3)
    assert_close(net[0].running_var, x.var(0), rtol=0.02, atol=0)


@pytest.mark.parametrize(
    ("t", "scale"),
    [([[1.0], [3.0]], 1.0), ([[3.0], [3.0]], 9.0), ([[0.0], [0.0]], 1.0), ([[1.0, 0.0], [0.0, 1.0]], 0.25)],
)
def test_the_scale_of_targets(t, scale):
    t = torch.tensor(t)
    assert TrainingTargets("l2", t, t, classes=False).scale() == scale


def test_the_users_autocast_changes_no_training():
    x, y, *_ = digits(20)
    results = []
    for on in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            results.append((fit(net, x, y, steps=20).residual, weights(net)))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


def test_cold_start_names_the_module_it_cannot_reset():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.by = nn.Parameter(torch.ones(64))

        def forward(self, x):
            return x * self.by

    net = nn.Sequential(Scale(), nn.Linear(64, 10))
    before = weights(net)
    x, y, *_ = digits(20)
    with pytest.raises(ValueError, match=r"module '0' \(Scale\).*reset_parameters"):
        reset(net)
    assert torch.equal(weights(net), before)
    fit(net, x, y, steps=3)
    assert not torch.equal(weights(net), before)


def test_reset_of_attention_is_its_construction():
    net = nn.TransformerEncoderLayer(8, 2, 16)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(7)
    reset(net)
    assert_close(net.self_attn.out_proj.bias.detach(), torch.zeros(8))
    assert not any((p == 7).any() for p in net.parameters())


def test_labelled_statistics_are_those_of_the_points():
    x = torch.randn(30, 4) * 3 + 2
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    fit(net, x, torch.arange(30) % 2, steps=3, statistics="labelled")
    assert_close(net[0].running_mean, x.mean(0))
    assert_close(net[0].running_var, x.var(0))
    assert net[0].momentum == 0.1


@pytest.mark.parametrize(("n", "batch_size"), [(1, 32), (2, 32), (3, 2), (33, 32)])
def test_batchnorm_never_meets_a_batch_of_one(n, batch_size):
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    result = fit(net, torch.randn(n, 4), torch.arange(n) % 2, epochs=2, batch_size=batch_size)
    assert result.steps == -(-2 * n // min(batch_size, max(n, 2)))


def test_lengths_and_progress():
    x, y, *_ = digits(64)
    seen = []
    result = fit(MLP(64, (32,)), x, y, epochs=60, progress=lambda done, total: seen.append((done, total)))
    assert result.steps == 120
    assert seen[-1] == (120, 120)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert 50 <= len(seen) <= 62
    assert fit(MLP(64, (1,)), torch.rand(160, 64), torch.arange(160) % 10).steps == 1600  # 320 epochs


def test_uint8_equals_its_floats():
    x = torch.randint(0, 256, (12, 1, 6, 6), dtype=torch.uint8)
    y = torch.arange(12) % 3
    nets = [MLP(36, (8,), 3) for _ in range(2)]
    fit(nets[0], x, y, start="cold", steps=10, normalise=(0.5, 0.25))
    fit(nets[1], (x / 255 - 0.5) / 0.25, y, start="cold", steps=10)
    assert_close(weights(nets[0]), weights(nets[1]))


def test_divergence_says_what_to_do_and_leaves_the_network():
    x, y, *_ = digits(20)
    net = WideResNet(1, widen=1).train()
    before = weights(net)
    told = r"diverged: the loss is nan at step .* of 20, with max_lr=1e\+12, and 3 times more, down to .*; lower it"
    with pytest.raises(RuntimeError, match=told):
        fit(net, x.view(-1, 1, 8, 8), y, max_lr=1e12, steps=20, loss="ce")
    assert torch.equal(weights(net), before)
    assert all(m.training for m in net.modules())


@pytest.mark.parametrize("how", ["warm", "cold", "ll4al"])
def test_a_training_that_diverges_is_repeated_at_half_the_rate(how, caplog):
    """On full batches and the squared loss, SGD with this momentum is stable up to a rate of about 3.8 / curvature."""
    x, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    ones = torch.cat([x, torch.ones(30, 1)], 1)
    curvature = float(torch.linalg.eigvalsh(2 * ones.T @ ones / (30 * 3))[-1])
    train, shared = fit, {"steps": 300, "batch_size": 30, "start": "warm" if how == "warm" else "cold"}
    if how == "ll4al":
        train, shared = (lambda *a, **k: fit_ll4al(*a, **k)[0]), shared | {"layers": ["layers.0"], "weight": 0.0}
    nets = [build_network("mlp", inputs=4, hidden=(), classes=3) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    drawn = torch.get_rng_state()
    with caplog.at_level("WARNING", "foretaste"):
        got = train(nets[0], x, y, max_lr=6 / curvature, **shared)
    want = train(nets[1], x, y, max_lr=3 / curvature, **shared)
    assert (got.retries, want.retries, got.max_lr) == (1, 0, want.max_lr)
    assert got.residual == want.residual
    assert torch.equal(weights(nets[0]), weights(nets[1]))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert caplog.text.count("training diverged: the loss is inf at step") == 1
    assert f"with max_lr={6 / curvature:g}; trying again with max_lr={3 / curvature:g}" in caplog.text


def test_a_network_that_dies_has_diverged(monkeypatch, caplog):
    """Just below the rates that end in NaN, no ReLU is left. It was taken for a trained network."""
    x, y, *_ = digits(40)
    module = import_module("foretaste.network.fit")
    real = module.train_fast

    def train(net, x, goal, how):
        final = real(net, x, goal, how)
        if how.max_lr > 0.2:
            nn.init.constant_(net.layers[0].bias, -1e9)
        return final

    monkeypatch.setattr(module, "train_fast", train)
    nets = [MLP(64, (16,), 10) for _ in range(2)]
    with caplog.at_level("WARNING", "foretaste"):
        got = fit(nets[0], x, y, start="cold", max_lr=0.5, steps=100)
    fit(nets[1], x, y, start="cold", max_lr=0.125, steps=100)
    assert (got.retries, got.max_lr) == (2, 0.125)
    assert "after 100 steps the outputs are the same for all points, with max_lr=0.5; trying again" in caplog.text
    assert torch.equal(weights(nets[0]), weights(nets[1]))
    died = fit(nets[0], x, y, max_lr=16, steps=20)  # at every rate: a network of few units often does
    assert (died.retries, died.max_lr, died.interpolates) == (3, 2, False)
    assert "with max_lr=2; use a wider network, or another seed" in caplog.text
    # The same outputs for the same points, or the same labels, are no fault of the training.
    assert fit(nets[0], torch.ones(6, 64), y[:6], max_lr=0.5, start="cold", steps=20).retries == 0
    assert fit(nets[0], x, torch.zeros(40, dtype=torch.int64), max_lr=0.5, start="cold", steps=20).retries == 0


@pytest.mark.parametrize("first", [Died, Diverged])
def test_a_dead_network_is_accepted_the_last_time_if_it_died_at_every_rate(first):
    seen, errors = [], [first, Died, Died, Died]

    def train(how, may_die):
        seen.append((how.max_lr, may_die))
        if not may_die:
            raise errors[len(seen) - 1]("as planned")
        return "dead"

    how = TrainingRecipe(5, 5, 0.8, 0.0, None, 0, None, torch.float32)
    if first is Died:
        assert with_lower_rates(train, how) == ("dead", 3)
    else:
        with pytest.raises(Diverged, match="as planned, and 3 times more"):
            with_lower_rates(train, how)
    assert seen == [(0.8, False), (0.4, False), (0.2, False), (0.1, first is Died)]


@pytest.mark.usefixtures("two_threads")
def test_an_interrupt_leaves_the_network():
    x, y, *_ = digits(20)
    net = MLP(64)
    before = weights(net)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(net, x, y, progress=stop)
    assert torch.equal(weights(net), before)
    assert torch.get_num_threads() == 2
    assert all(p.grad is None for p in net.parameters())


X, Y = torch.rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": Y + 1}, "labels from 1 to 3; expected 0 to 2"),
        ({"y": Y[:5]}, r"shape \(5,\) for the 6 points"),
        ({"y": Y > 0}, "torch.bool"),
        ({"y": Y[:, None]}, "integer y has shape"),
        ({"y": torch.rand(6)}, r"expected \(6, 3\)"),
        ({"y": torch.full((6, 3), torch.nan)}, "18 NaN"),
        ({"y": torch.rand(6, 3), "loss": "ce"}, "sum to 1"),
        ({"y": Y.to("meta")}, "y is on meta"),
        ({"x": X.to("meta")}, "x is on meta"),
        ({"x": X.double()}, r"use x.to\(torch.float32\)"),
        ({"x": X * torch.nan}, "24 NaN"),
        ({"x": X[:0]}, "at least one labelled point"),
        ({"loss": "l3"}, "known: ce, l2"),
        ({"start": "col"}, "did you mean 'cold'"),
        ({"statistics": "label"}, "did you mean 'labelled'"),
        ({"augment": "flips"}, "did you mean 'flip'"),
        ({"augment": "flip"}, r"needs images \(N, channels, H, W\)"),
        ({"steps": 3, "epochs": 3}, "give one"),
        ({"steps": 0}, "steps is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"max_lr": -1.0}, "max_lr is -1.0; expected a number above 0"),
        ({"max_lr": "1"}, "max_lr is '1'; expected a number above 0"),
        ({"weight_decay": 1j}, "weight_decay is 1j; expected a number of at least 0"),
        ({"pad": (1, 2)}, "pad is a tuple; expected a whole number"),
        ({"seed": "sum"}, "seed is 'sum'; expected a whole number"),
        ({"progress": [1]}, "progress is a list; expected a function"),
        ({"loss": np.arange(3)}, "unknown loss a ndarray; known: ce, l2"),
        ({"normalise": ((0, 0), 1)}, "one number or 4 each"),
        ({"normalise": "none"}, "one number or 4 each"),
        ({"normalise": 3}, "one number or 4 each"),
        ({"net": MLP(4, classes=1)}, "one output tells two classes apart.*regression wants floats"),
        ({"y": ["a", "b"] * 6}, "2 different labels \\(a, b\\) and the network has 3 outputs; give classes="),
        ({"y": object()}, "y is a object that is no tensor of labels"),
        ({"x": []}, "x has no labelled points"),
        ({"net": MLP(4).half()}, r"use net.float\(\)"),
        ({"net": MLP(4).requires_grad_(False)}, "nothing to train"),
        ({"net": nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3).double())}, "several devices or dtypes"),
        ({"net": nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), "batch_size": 1}, "cannot train on one point"),
        ({"net": nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)))}, r"returns \(2, 2, 3\) for 2 points"),
    ],
    ids=lambda v: str(next(iter(v))) if isinstance(v, dict) else "",
)
def test_bad_input(change, message):
    given = {"net": MLP(4, (5,), 3), "x": X, "y": Y} | change
    with pytest.raises(ValueError, match=message):
        fit(given.pop("net"), given.pop("x"), given.pop("y"), **given)


def test_out_of_memory_is_not_blamed_on_the_points():
    class Full(nn.Linear):
        def forward(self, x):
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")

    with pytest.raises(RuntimeError, match=r"^.enforce fail"):
        fit(Full(64, 10), *digits(20)[:2], steps=2)


def test_numbers_of_numpy_are_numbers():
    a, b = MLP(4, (5,), 3), MLP(4, (5,), 3)
    fit(a, X, Y, start="cold", steps=np.int64(4), seed=np.int64(3), max_lr=np.float32(0.5), batch_size=np.int32(4))
    fit(b, X, Y, start="cold", steps=4, seed=3, max_lr=0.5, batch_size=4)
    assert torch.equal(weights(a), weights(b))


def test_wrong_types():
    with pytest.raises(TypeError, match="x is a str; expected a tensor, an array"):
        fit(MLP(4, (5,), 3), "x", Y)
    with pytest.raises(TypeError, match="net is a function"):
        fit(lambda x: x, X, Y)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_fit_on_cuda():
    x, y, *_ = digits(100, images=True)
    before = torch.cuda.get_rng_state()
    results = []
    for _ in range(2):
        net = WideResNet(1, widen=2).cuda()
        result = fit(net, x.cuda(), y.cuda(), start="cold", max_lr=1.0, augment=None)
        results.append(result.residual)
    assert max(results) <= 1e-3
    net = resnet18(1, width=8).cuda()
    fit(net, x.cuda(), y.cuda(), start="cold", steps=20, augment="crop+flip", loss="ce", statistics="labelled")
    assert next(net.parameters()).is_cuda
    torch.cuda.set_rng_state(before)
    fit(MLP(64).cuda(), x.cuda(), y.cuda(), start="cold", steps=20)
    assert torch.equal(torch.cuda.get_rng_state(), before)
