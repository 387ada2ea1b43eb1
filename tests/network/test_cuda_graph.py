"""Training as a CUDA graph: its step on any device against the eager loop, and the graph itself on a GPU."""

import logging
import random
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Generator, nn
from torch.testing import assert_close

from benchmarks.training import TrainingWorkload, compare_trainings, training_images, training_markdown
from foretaste.losses import training_targets
from foretaste.network import MLP, LossPrediction, WideResNet, fit, fit_ll4al, resnet18
from foretaste.network.cuda_graph import (
    CannotCaptureError,
    Mixed,
    RewrittenOperations,
    TrainingTwin,
    channels_last,
    check_graph,
    flatten_parameters,
    in_bf16,
    on_the_host,
    refuse_capture,
)
from foretaste.network.loss_prediction import JointNetwork, RankedTargets
from foretaste.network.sgd import TrainingRecipe, train_eager

CPU = torch.device("cpu")
RECIPE = TrainingRecipe(12, 8, 0.5, 0.0, None, 2, None, torch.float64, order_seed=1, draw_seed=2)


def images(n=20, channels=1, dtype=torch.float64, seed=0):
    g = Generator().manual_seed(seed)
    x = torch.rand(n, channels, 6, 6, generator=g)
    y = torch.randint(0, 3, (n,), generator=g)
    return ((x * 255).to(dtype) if dtype == torch.uint8 else x.to(dtype)), y


def wrn(dtype=torch.float64, channels=1, seed=0):
    torch.manual_seed(seed)
    return WideResNet(1, widen=1, channels=channels, classes=3).to(dtype)


def half_frozen():
    net = wrn()
    net.stem.requires_grad_(False)
    net.stages[0].body[0].requires_grad_(False)
    return net


def state(net):
    return {k: v.clone() for k, v in net.state_dict().items()}


def by_tape(net, x, goal, how, bf16=False, last=True):
    twin = TrainingTwin.of(net, x, goal, how, bf16, last)
    loss = twin.run(twin.step)
    twin.give(net)
    return loss


# The step, against the eager loop


@pytest.mark.parametrize(
    ("make", "loss", "dtype", "change"),
    [
        (lambda: MLP(36, (5,), 3).double(), "l2", torch.float64, {}),
        (lambda: MLP(36, (5,), 3, activation="tanh").double(), "ce", torch.float64, {"max_lr": 0.1}),
        (wrn, "l2", torch.float64, {"weight_decay": 1e-2}),
        (wrn, "ce", torch.uint8, {"augment": "crop+flip", "normalise": ((0.4,), (0.3,)), "max_lr": 0.1}),
        (wrn, "l2", torch.uint8, {"normalise": (0.4, 0.3), "steps": 7}),
        (half_frozen, "l2", torch.float64, {"augment": "flip"}),
    ],
    ids=["mlp", "tanh", "decay", "augmented", "normalised", "frozen"],
)
def test_steps_are_those_of_the_eager_loop(make, loss, dtype, change):
    x, y = images(dtype=dtype)
    how = replace(RECIPE, **change)
    eager, taped = make(), make()
    taped.load_state_dict(eager.state_dict())
    before = state(eager)
    goal = training_targets(y, loss, len(x), 3, CPU, torch.float64)
    seen, reports = ([], []), []
    for net, go, said in ((eager, train_eager, seen[0]), (taped, by_tape, seen[1])):
        told = replace(how, progress=lambda done, of, said=said: said.append((done, of)))
        reports.append(go(net, x, goal, told))
    assert_close(taped.state_dict(), eager.state_dict(), rtol=1e-9, atol=1e-11)
    assert any(not torch.equal(v, before[k]) for k, v in state(taped).items())
    assert reports[1] == pytest.approx(reports[0], rel=1e-10)
    assert seen[0] == seen[1]
    assert all(p.grad is None for p in taped.parameters())


def test_float32_steps_are_those_of_the_eager_loop():
    x, y = images(dtype=torch.float32)
    how = replace(RECIPE, dtype=torch.float32, steps=5)
    eager, taped = wrn(torch.float32), wrn(torch.float32)
    goal = training_targets(y, "l2", len(x), 3, CPU, torch.float32)
    train_eager(eager, x, goal, how)
    by_tape(taped, x, goal, how)
    assert_close(taped.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)


def test_bfloat16_is_in_the_products_only():
    """Outputs, θ and its steps are float32; gradients are near those of float32, and training ends near."""
    x, y = images(dtype=torch.float32)
    goal = training_targets(y, "l2", len(x), 3, CPU, torch.float32)
    net, low = wrn(torch.float32), wrn(torch.float32)
    flat = flatten_parameters(low, bf16=True)
    f_NC = Mixed(low)(x)
    grads = dict(zip(map(id, flat.params), torch.autograd.grad(goal.of(f_NC, goal.fit_N), flat.params)))
    exact = torch.autograd.grad(goal.of(net(x), goal.fit_N), list(net.parameters()))
    assert {f_NC.dtype, flat.theta_P.dtype, flat.velocity_P.dtype} == {torch.float32}
    ours, theirs = (torch.cat([g.flatten() for g in gs]) for gs in ([grads[id(p)] for p in low.parameters()], exact))
    assert not torch.equal(ours, theirs)
    assert float((ours - theirs).norm()) < 0.05 * float(theirs.norm())
    how = replace(RECIPE, dtype=torch.float32, steps=40, max_lr=0.2)
    both = [wrn(torch.float32), wrn(torch.float32)]
    losses = [by_tape(n, x, goal, how, bf16=bf16) for n, bf16 in zip(both, (True, False))]
    assert losses[0] == pytest.approx(losses[1], rel=0.2)
    assert {p.dtype for p in both[0].parameters()} == {torch.float32}
    assert any((p != p.bfloat16()).any() for p in both[0].parameters())  # not the rounded ones


def joint_network(net, stop):
    torch.manual_seed(5)
    layers = ["stem", "stages.0"]
    module = LossPrediction(layers, [16, 32], 8).to(next(net.parameters()))
    return JointNetwork(net, module, stop)


def test_steps_beside_a_loss_module_are_those_of_the_eager_loop():
    """The module's gradient stops within the training: the tape counts passes as the eager loop does."""
    x, y = images()
    goal = training_targets(y, "l2", len(x), 3, CPU, torch.float64)
    ranked = RankedTargets(goal.loss, goal.fit_N, goal.t_NC, goal.classes, "mean", 1.0, 1.0)
    how = replace(RECIPE, max_lr=0.05)
    eager, taped, never = (joint_network(wrn(), stop) for stop in (7, 7, 12))
    finals = [go(net, x, ranked, how) for net, go in ((eager, train_eager), (taped, by_tape))]
    assert finals[1] == pytest.approx(finals[0], rel=1e-10)
    assert_close(taped.state_dict(), eager.state_dict(), rtol=1e-9, atol=1e-11)
    assert int(taped.passes) == 12
    by_tape(never, x, ranked, how)
    assert not torch.allclose(never.net.stem.weight, taped.net.stem.weight, rtol=1e-6)


def test_a_tape_goes_on_from_where_it_is():
    x, y = images()
    goal = training_targets(y, "l2", len(x), 3, CPU, torch.float64)
    eager, taped = wrn(), wrn()
    final = train_eager(eager, x, goal, RECIPE)
    twin = TrainingTwin.of(taped, x, goal, RECIPE, False, True)
    twin.step()
    assert twin.run(twin.step, done=1) == pytest.approx(final, rel=1e-10)
    twin.give(taped)
    assert_close(taped.state_dict(), eager.state_dict(), rtol=1e-9, atol=1e-11)


def test_divergence_is_seen_on_the_tape():
    x, y = images()
    goal = training_targets(y, "ce", len(x), 3, CPU, torch.float64)
    with pytest.raises(RuntimeError, match=r"diverged: the loss is nan at step .*max_lr=1e\+200"):
        by_tape(wrn(), x, goal, replace(RECIPE, max_lr=1e200))


# The copy that is trained


def test_channels_last_is_the_same_network():
    x, y = images(channels=3)
    net, other, twin = wrn(channels=3), wrn(channels=3), channels_last(wrn(channels=3)).eval()
    kernels = [p for p in twin.parameters() if p.dim() == 4]
    assert len(kernels) == 4
    assert all(p.stride(1) == 1 for p in kernels)
    pointwise = next(p for p in kernels if p.shape[2:] == (1, 1))
    assert pointwise.stride() == (16, 1, 16, 16)
    assert twin.stages(twin.stem(x)).is_contiguous(memory_format=torch.channels_last)
    goal = training_targets(y, "l2", len(x), 3, CPU, torch.float64)
    by_tape(net, x, goal, RECIPE, last=True)
    by_tape(other, x, goal, RECIPE, last=False)
    assert_close(net.state_dict(), other.state_dict(), rtol=1e-9, atol=1e-11)
    assert all(p.is_contiguous() for p in net.parameters())


@pytest.mark.parametrize("bf16", [False, True])
def test_parameters_end_to_end(bf16):
    """Tied, frozen and odd parameters; the network computes what it did, and takes a step where θ does."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
            self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
            self.second.weight = self.first.weight
            self.scale = nn.Parameter(torch.ones(4))
            self.first.bias.requires_grad_(False)

        def forward(self, x):
            h = self.norm(self.conv(x)).mean((2, 3))
            return self.head(self.second(self.first(h)) * self.scale)

    net = channels_last(Odd())
    before, x = state(net), torch.rand(5, 2, 6, 6)
    f_NC = net(x).detach()
    flat = flatten_parameters(net, bf16)
    assert len(flat.params) == sum(p.requires_grad for p in net.parameters()) == 9
    low = {name for name, p in net.named_parameters() if p.dtype == torch.bfloat16}
    assert low == (
        {"conv.weight", "conv.bias", "first.weight", "second.bias", "head.weight", "head.bias"} if bf16 else set()
    )
    assert_close(Mixed(net)(x) if bf16 else net(x), f_NC, rtol=0.1 if bf16 else 1e-5, atol=0.05 if bf16 else 1e-6)
    names = {id(p): name for name, p in net.named_parameters()}
    grads = [torch.randn(p.shape, dtype=p.dtype) for p in flat.params]  # laid out otherwise than conv.weight
    lr, momentum = torch.tensor(0.5), torch.tensor(0.9)
    for _ in range(2):
        with torch.no_grad():
            flat.step(grads, lr, momentum, 0.1)
    for p, theta, g in zip(flat.params, flat.exact, grads):
        start, g = before[names[id(p)]], g.float()
        v = g + 0.1 * start
        once = start - 0.5 * v
        assert_close(theta, once - 0.5 * (0.9 * v + g + 0.1 * once), rtol=1e-5, atol=1e-6)
        assert torch.equal(p.detach(), theta.to(p.dtype))


@pytest.mark.parametrize("last", [False, True])
def test_rewritten_functions_are_themselves(last):
    layout = torch.channels_last if last else torch.contiguous_format
    conv = nn.Conv2d(3, 4, 3, 2, padding=1).double()
    x = torch.randn(5, 3, 6, 6).double().contiguous(memory_format=layout).requires_grad_()
    found = []
    for mode in (RewrittenOperations(), nullcontext()):
        with mode:
            h = conv(x)
            mean = h.contiguous(memory_format=layout).mean((2, 3))
            out = mean.sin().sum() + h.mean((-1,)).sum() + h.mean() + h.mean(dim=(2, 3), keepdim=True).sum()
        names = [type(t.grad_fn).__name__ for t in (h, mean)]
        found.append((names, (out, *torch.autograd.grad(out, [x, conv.weight, conv.bias]))))
    assert found[0][0] == ["BiasedConvolutionBackward", "PixelMeanBackward" if last else "MeanBackward1"]
    assert found[1][0] == ["ConvolutionBackward0", "MeanBackward1"]
    assert_close(found[0][1], found[1][1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("channels", "bias", "how"), [
    (1, True, {"padding": 1}), (3, True, {"stride": (2, 1), "padding": (0, 2)}), (3, False, {}),
    (1, False, {"stride": 3}),
])  # fmt: skip
def test_a_first_convolution_is_a_product(channels, bias, how):
    conv = nn.Conv2d(channels, 5, 3, bias=bias, **how).double()
    x = torch.randn(4, channels, 7, 8).double()
    found = []
    for mode in (RewrittenOperations(), nullcontext()):
        with mode:
            h = conv(x)
        found.append((h, *torch.autograd.grad(h.sin().sum(), list(conv.parameters()))))
    assert found[0][0].is_contiguous(memory_format=torch.channels_last)
    assert type(found[0][0].grad_fn).__name__ == "PermuteBackward0"
    assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


def test_not_every_convolution_is_first():
    x = torch.randn(4, 2, 9, 9)
    odd = [nn.Conv2d(2, 4, 3, dilation=2), nn.Conv2d(2, 4, 3, groups=2), nn.Conv2d(2, 4, 3, padding="same")]
    odd += [nn.Conv2d(2, 4, 5), nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect")]
    for conv in odd:
        with RewrittenOperations():
            h = conv(x)
        assert_close(h, conv(x))


def test_a_frozen_bias_gets_no_gradient():
    conv = nn.Conv2d(1, 2, 3)
    conv.bias.requires_grad_(False)
    with RewrittenOperations():
        out = conv(torch.ones(2, 1, 3, 3)).sum()
    out.backward()
    assert conv.bias.grad is None
    assert_close(conv.weight.grad, torch.full((2, 1, 3, 3), 2.0))


def test_products_in_bfloat16_where_there_are_convolutions():
    assert [in_bf16(fast, wrn()) for fast in ("auto", "bf16", "float32")] == [True, True, False]
    assert [in_bf16(fast, MLP(4)) for fast in ("auto", "bf16", "float32")] == [False, True, False]


# What a graph cannot hold


class Counts(nn.Linear):
    seen = 0

    def forward(self, x):
        self.seen += 1
        return super().forward(x)


class Draws(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (1 + (random.random() < 0.5))


class DrawsByTorch(nn.Linear):
    def forward(self, x):
        return super().forward(x) if torch.rand(1) < 0.5 else super().forward(-x)


@pytest.mark.parametrize("make", [Counts, Draws, DrawsByTorch])
def test_what_happens_on_the_host_is_noticed(make):
    net = nn.Sequential(make(4, 3))
    plain = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    for n, changes in ((net, True), (plain, False)):
        before = on_the_host(n)
        n(torch.ones(2, 4))
        assert (on_the_host(n) != before) is changes


def test_refused_before_it_is_tried():
    refuse_capture(MLP(4), torch.float32)
    with pytest.raises(CannotCaptureError, match=r"torch\.float64"):
        refuse_capture(MLP(4), torch.float64)
    with pytest.raises(CannotCaptureError, match="wrapped in DataParallel"):
        refuse_capture(nn.DataParallel(MLP(4)), torch.float32)
    with pytest.raises(CannotCaptureError, match="module '0' is recurrent"):
        refuse_capture(nn.Sequential(nn.LSTM(2, 3)), torch.float32)
    hooked = MLP(4)
    hooked.layers[0].register_forward_hook(lambda *_: None)
    with pytest.raises(CannotCaptureError, match=r"module 'layers\.0' has hooks"):
        refuse_capture(hooked, torch.float32)
    hooked = MLP(4)
    hooked.layers[0].weight.register_hook(lambda g: g)
    with pytest.raises(CannotCaptureError, match=r"parameter 'layers\.0\.weight' has a hook"):
        refuse_capture(hooked, torch.float32)


@pytest.mark.parametrize(("factor", "agrees"), [(1.0, True), (1.005, True), (1.1, False), (float("nan"), False)])
def test_a_replay_is_held_against_a_step(factor, agrees):
    p, count, draws = torch.zeros(5), torch.zeros(1), Generator().manual_seed(0)

    def step(by=1.0):
        p.add_(by * torch.rand(5, generator=draws))
        count.add_(1)

    held = [[p], [count], []]
    if agrees:
        check_graph(step, lambda: step(factor), held, [draws])
        assert count == 1
        assert_close(p, factor * torch.rand(5, generator=Generator().manual_seed(0)))
        return
    with pytest.raises(CannotCaptureError, match="a replayed step ends"):
        check_graph(step, lambda: step(factor), held, [draws])


def test_a_counter_that_stands_still_is_noticed():
    p, count = torch.zeros(5), torch.zeros(1)

    def step():
        p.add_(1)
        count.add_(1)

    with pytest.raises(CannotCaptureError):
        check_graph(step, lambda: p.add_(1), [[p], [count]], [])


# fit


def test_on_a_cpu_all_is_eager():
    x, y = images(dtype=torch.float32)
    nets = [wrn(torch.float32) for _ in range(3)]
    for net, how in zip(nets, ("auto", "off", "bf16")):
        fit(net, x, y, steps=4, fast=how)
    for net in nets[1:]:
        assert_close(net.state_dict(), nets[0].state_dict(), rtol=0, atol=0)
    with pytest.raises(ValueError, match="did you mean 'off'"):
        fit(nets[0], x, y, fast="of")


# On a GPU

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def on_gpu(n=60, channels=1, size=12):
    g = Generator().manual_seed(0)
    y = torch.randint(0, 3, (n,), generator=g)
    x = torch.rand(n, channels, size, size, generator=g) * 0.5
    x[torch.arange(n), :, y * 3] += 1  # a bright row says the class
    return x.cuda(), y.cuda()


class TestGraph:
    pytestmark = gpu

    @pytest.mark.parametrize("augment", [None, "crop+flip"])
    def test_float32_graph_is_the_eager_training(self, augment, caplog):
        x, y = on_gpu()
        nets = [wrn(torch.float32).cuda() for _ in range(2)]
        cudnn: object = torch.backends.cudnn
        before = (cudnn.conv.fp32_precision, cudnn.deterministic)  # type: ignore[attr-defined]
        cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
        try:
            # A small learning rate: rounding errors then do not grow.
            done = [
                fit(n, x, y, steps=60, max_lr=0.01, augment=augment, fast=f, statistics="running")
                for n, f in zip(nets, ("off", "float32"))
            ]
        finally:
            cudnn.conv.fp32_precision = before[0]  # type: ignore[attr-defined]
        assert not caplog.records
        assert cudnn.deterministic == before[1]  # type: ignore[attr-defined]
        assert_close(nets[1].state_dict(), nets[0].state_dict(), rtol=1e-3, atol=1e-4)
        assert done[1].loss == pytest.approx(done[0].loss, rel=1e-3)

    @pytest.mark.parametrize("fast", ["auto", "bf16", "float32", "off"])
    def test_interpolates_and_repeats_itself(self, fast, caplog):
        x, y = on_gpu()
        rng, host = torch.cuda.get_rng_state(), torch.get_rng_state()
        results, seen = [], []
        for seed in (0, 0, 1):
            net = wrn(torch.float32).cuda()
            done = fit(net, x, y, start="cold", steps=400, seed=seed, fast=fast, augment="flip",
                       progress=lambda d, of: seen.append(d))  # fmt: skip
            assert done.residual <= 1e-3
            assert not net.training
            assert all(p.grad is None and p.requires_grad and p.is_contiguous() for p in net.parameters())
            results.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
        assert not caplog.records
        assert torch.equal(results[0], results[1])
        assert not torch.equal(results[0], results[2])
        assert seen[: len(seen) // 3] == list(range(8, 401, 8))
        torch.cuda.synchronize()
        torch.set_rng_state(host)
        assert torch.equal(torch.cuda.get_rng_state(), rng)

    def test_a_loss_module_is_trained_in_the_graph(self, caplog):
        x, y = on_gpu()
        nets = [wrn(torch.float32).cuda() for _ in range(3)]
        before = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
        torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
        try:
            done = [
                fit_ll4al(n, x, y, layers=["stages.0"], steps=60, max_lr=0.005, fast=fast, statistics="running")
                for n, fast in zip(nets, ("off", "float32", "auto"))
            ]
        finally:
            torch.backends.cudnn.conv.fp32_precision = before  # type: ignore[attr-defined]
        assert not caplog.records
        assert_close(nets[1].state_dict(), nets[0].state_dict(), rtol=1e-3, atol=1e-4)
        assert_close(done[1][1].state_dict(), done[0][1].state_dict(), rtol=1e-3, atol=1e-4)
        assert done[2][0].loss == pytest.approx(done[0][0].loss, rel=0.05)

    def test_dropout_is_drawn_anew_and_seeded(self, caplog):
        x, y = on_gpu()
        torch.manual_seed(0)
        make = nn.Sequential(nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3)).cuda()
        start = state(make)
        results = []
        for fast in ("float32", "float32", "off"):
            make.load_state_dict(start)
            fit(make, x, y, steps=60, max_lr=0.05, fast=fast)
            results.append(state(make))
        assert not caplog.records
        assert_close(results[0], results[1], rtol=0, atol=0)
        assert_close(results[0], results[2], rtol=1e-3, atol=1e-4)  # the very draws of the eager loop

    @pytest.mark.parametrize("kind", ["item", "host", "numbers", "hook"])
    def test_what_cannot_be_captured_is_trained_and_said(self, kind, caplog):
        class Odd(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = nn.Conv2d(1, 4, 3), nn.Linear(400, 3)

            def forward(self, x):
                h = self.body(x)
                if kind == "item":
                    h = h / 2 if float(h.detach().mean()) > 1e9 else h
                elif kind == "host":
                    h = h * (1 + (random.random() < 0.5))
                elif kind == "numbers":
                    h = h + torch.tensor(1.0, device=h.device)
                return self.head(h.flatten(1))

        x, y = on_gpu()
        net = Odd().cuda()
        if kind == "hook":
            net.body.register_forward_hook(lambda *_: None)
        with caplog.at_level(logging.WARNING, "foretaste"):
            done = fit(net, x, y, steps=100, max_lr=0.01)
        assert [r.getMessage()[:36] for r in caplog.records] == ["training runs step by step, because "]
        assert done.residual < 0.1
        caplog.clear()
        assert fit(wrn(torch.float32).cuda(), x, y, steps=300, start="cold").residual < 1e-2  # graphs work as before
        assert not caplog.records
        assert torch.cuda.get_sync_debug_mode() == 0

    def test_a_view_of_pixels_is_captured_too(self, caplog):
        class Views(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = nn.Conv2d(1, 4, 3), nn.Linear(400, 3)

            def forward(self, x):
                h = self.body(x)
                return self.head(nn.functional.dropout(h.view(len(h), -1), 0.1, self.training))

        x, y = on_gpu()
        nets = [Views().cuda() for _ in range(2)]
        nets[1].load_state_dict(nets[0].state_dict())
        for net, fast in zip(nets, ("float32", "off")):
            fit(net, x, y, steps=100, max_lr=0.002, fast=fast)
        assert not caplog.records
        assert_close(nets[0].state_dict(), nets[1].state_dict(), rtol=1e-2, atol=1e-3)

    def test_a_capture_that_breaks_leaves_nothing_behind(self, caplog):
        """The host is waited for only when a graph is captured: no check before it can see that."""

        class Breaks(nn.Linear):
            def forward(self, x):
                if torch.cuda.is_current_stream_capturing():
                    torch.cuda.synchronize()
                return nn.functional.dropout(super().forward(x), 0.1, self.training)

        x, y = on_gpu()
        net = nn.Sequential(nn.Flatten(), Breaks(144, 3)).cuda()
        start = state(net)
        with caplog.at_level(logging.WARNING, "foretaste"):
            fit(net, x, y, steps=100, max_lr=0.1)
        assert len(caplog.records) == 1
        again = state(net)
        net.load_state_dict(start)
        fit(net, x, y, steps=100, max_lr=0.1, fast="off")
        assert_close(again, state(net), rtol=1e-5, atol=1e-6)
        caplog.clear()
        assert fit(wrn(torch.float32).cuda(), x, y, steps=300, start="cold").residual < 1e-2
        assert not caplog.records
        torch.rand(3, device="cuda")

    def test_frozen_parts_and_an_interrupt(self):
        x, y = on_gpu()
        net = half_frozen().float().cuda()
        before = state(net)
        fit(net, x, y, steps=80)
        same = [k for k, v in net.state_dict().items() if torch.equal(v, before[k])]
        assert {"stem.weight", "stages.0.body.0.weight", "stages.0.body.0.running_mean"} <= set(same)
        assert "stages.0.body.2.weight" not in same
        before = state(net)

        def stop(done, of):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit(net, x, y, steps=80, progress=stop)
        assert_close(state(net), before, rtol=0, atol=0)

    def test_divergence(self):
        x, y = on_gpu()
        net = resnet18(1, 3, width=4).cuda()
        before = state(net)
        with pytest.raises(RuntimeError, match="diverged"):
            fit(net, x, y, steps=100, max_lr=1e12, loss="ce")
        assert_close(state(net), before, rtol=0, atol=0)


def test_the_benchmark_is_paired():
    x, y = training_images(None, CPU)
    small = TrainingWorkload("mlp", lambda: MLP(784, (8,)), 20, steps=20, seeds=2)
    rows = compare_trainings(small, x, y, ("off", "auto"))
    assert [r.fast for r in rows] == ["off", "auto"]
    assert rows[0].accuracies == rows[1].accuracies  # on a CPU both are one
    assert rows[0].residuals[0] != rows[0].residuals[1]
    table = training_markdown(rows)
    assert "| mlp | auto |" in table
    assert "+0.00 ± 0.00" in table
