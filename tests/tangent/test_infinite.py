"""The infinite-width kernels against neural-tangents' values, the arc-cosine recursion, and random finite networks."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.testing import assert_close

import foretaste as ft
from foretaste.network import MLP, WideResNet, resnet18
from foretaste.tangent import PeakMemory
from foretaste.tangent.infinite.closed_form import _input_covariance, counterpart, infinite_ntk
from foretaste.tangent.infinite.layers import (
    Conv,
    Dense,
    Erf,
    Flatten,
    GlobalAveragePool,
    Identity,
    Layer,
    Relu,
    Residual,
    Serial,
    Signal,
)

R2 = 2**0.5
PLAIN = {"relu": Relu, "erf": Erf, "flatten": Flatten, "pool": GlobalAveragePool, "identity": Identity}
FIXTURE = json.loads((Path(__file__).parents[1] / "fixtures" / "infinite.json").read_text())
PARAMETRISATIONS = ("standard", "ntk")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layers(spec: list) -> Layer:
    """The nested lists of the fixture as layers."""
    kind, *rest = spec
    if kind in ("serial", "residual"):
        return {"serial": Serial, "residual": Residual}[kind](*map(layers, rest))
    if kind == "dense":
        return Dense(*rest)
    if kind == "conv":
        width, kernel, stride, padding, w, b = rest
        return Conv(width, kernel, stride, kernel // 2 if padding == "same" else 0, w, b)
    return PLAIN[kind]()


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
@pytest.mark.parametrize("parametrisation", PARAMETRISATIONS)
@pytest.mark.parametrize("case", FIXTURE["cases"], ids=lambda case: case["name"])
def test_equals_neural_tangents(case, parametrisation, kind):
    """See fixtures/make_infinite.py. 1e-8: neural-tangents' own angle of a point with itself is 1e-8, not 0."""
    net, key = layers(case["spec"]), f"{parametrisation} {kind}"
    x, x2 = (torch.tensor(case[name], dtype=torch.float64) for name in ("x", "x2"))
    for other, want in ((x2, case[key]), (None, case[f"{key} own"])):
        got = infinite_ntk(net, x, other, kind=kind, parametrisation=parametrisation)
        assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-8, atol=1e-10)


def arc_cosine(x: Tensor, x2: Tensor, widths: list[int], w: float, b: float, standard: bool) -> tuple[float, float]:
    """Cho and Saul's recursion and Jacot's for one pair, as printed: K and Θ of an MLP with a bias in each layer."""
    d = len(x)
    k12, k11, k22, theta = float(x @ x2) / d, float(x @ x) / d, float(x2 @ x2) / d, 0.0
    for layer, fan_in in enumerate([d, *widths]):
        if layer:
            cosine = 1.0 if torch.equal(x, x2) else k12 / math.sqrt(k11 * k22)
            angle = math.acos(cosine)
            k12 = math.sqrt(k11 * k22) / (2 * math.pi) * (math.sin(angle) + (math.pi - angle) * cosine)
            theta = theta * (math.pi - angle) / (2 * math.pi)
            k11, k22 = k11 / 2, k22 / 2
        own = fan_in * k12 + 1 if standard else w**2 * k12 + b**2
        theta = w**2 * theta + own
        k12, k11, k22 = (w**2 * k + b**2 for k in (k12, k11, k22))
    return k12, theta


@pytest.mark.parametrize("parametrisation", PARAMETRISATIONS)
@pytest.mark.parametrize("widths", [[], [7], [32, 16, 8]], ids=str)
def test_relu_mlp_is_the_arc_cosine_recursion(widths, parametrisation):
    x, w, b = normal(7, 5), 1.3, 0.2
    net = Serial(*(layer for n in widths for layer in (Dense(n, w, b), Relu())), Dense(1, w, b))
    for kind, which in (("nngp", 0), ("ntk", 1)):
        want = [[arc_cosine(a, c, widths, w, b, parametrisation == "standard")[which] for c in x] for a in x]
        want = torch.tensor(want, dtype=torch.float64)
        got = infinite_ntk(net, x, kind=kind, parametrisation=parametrisation)
        assert_close(got, want, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("space", "kernel", "stride", "padding"),
    [((9,), 3, 1, 1), ((6, 7), 3, 2, 1), ((6, 5), (2, 3), (1, 2), (0, 1)), ((4, 4), 5, 3, 4), ((3, 4, 3), 2, 2, 1)],
)
def test_one_convolution_is_exact_at_any_width(space, kernel, stride, padding):
    """Without a nonlinearity Θ of the first layer holds no weights: torch's own strides and padding, to rounding."""
    x = normal(4, 2, *space)
    net = nn.Sequential(
        (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(space) - 1](2, 3, kernel, stride, padding),
        (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[len(space) - 1](1),
        nn.Flatten(),
    )
    assert_close(infinite_ntk(net, x), ft.ntk(net.double().eval(), x, output="first"), rtol=1e-12, atol=1e-12)


# ---- Random finite networks


class Add(nn.Module):
    def __init__(self, a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).mean(2)


class TorchErf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.erf(x)


def finite(layer: Layer, x: Tensor) -> nn.Module:
    """A torch network of the declared widths, and in ``scales`` the deviations of its weights: √(W_std²/fan_in)."""
    match layer:
        case Serial():
            modules = []
            for inner in layer.layers:
                modules.append(finite(inner, x))
                x = modules[-1](x)
            return nn.Sequential(*modules)
        case Residual():
            return Add(finite(layer.body, x), finite(layer.shortcut, x))
        case Dense():
            module = nn.Linear(x.shape[1], layer.width, layer.b_std is not None)
        case Conv():
            conv = (nn.Conv1d, nn.Conv2d)[x.dim() - 3]
            module = conv(x.shape[1], layer.width, *layer.geometry(x.dim() - 2), bias=layer.b_std is not None)
        case _:
            plain = {Relu: nn.ReLU, Erf: TorchErf, Flatten: nn.Flatten, GlobalAveragePool: Mean, Identity: nn.Identity}
            return plain[type(layer)]()
    module = module.double()
    module.scales = {"weight": layer.W_std / math.sqrt(module.weight[0].numel()), "bias": layer.b_std}
    return module


def random_networks(layer: Layer, x: Tensor, many: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """The first of many networks, and Θ of the first logit of each, (many, N, N), all at once through torch.func.

    Weights are N(0, W_std²/fan_in): the limit should be the layer's. In the NTK parametrisation a parameter is its
    deviation times a unit normal: the gradient is as many times smaller.
    """
    net, g = finite(layer, x[:1]).eval(), torch.Generator().manual_seed(0)
    scales = {}
    for name, _ in net.named_parameters():
        module, _, own = name.rpartition(".")
        scales[name] = net.get_submodule(module).scales[own]
    stacked = {
        name: scales[name] * torch.randn(many, *p.shape, dtype=torch.float64, generator=g)
        for name, p in net.named_parameters()
    }
    net.load_state_dict({name: p_S[0] for name, p_S in stacked.items()})

    def kernels(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        one = grad(lambda theta, point: functional_call(net, theta, (point[None],))[0, 0])
        rows = vmap(one, (None, 0))(parameters, x)
        grams = {name: row.flatten(1) @ row.flatten(1).T for name, row in rows.items()}
        return {
            "standard": sum(grams.values(), torch.zeros(())),
            "ntk": sum((scales[name] ** 2 * gram for name, gram in grams.items()), torch.zeros(())),
        }

    return net, vmap(kernels, chunk_size=8)(stacked)


def wide(name: str, n: int) -> tuple[Layer, tuple[int, ...]]:
    def conv(padding: int, stride: int = 1, b_std: float | None = 0.1) -> Conv:
        return Conv(n, 2, stride, padding, R2, b_std)  # space grows by one, and shrinks again

    last = Dense(1, 1.0, 0.1)
    # No biases: pooled, they are much of Θ at small widths, hardly vary, and bend the slope of the standard one.
    bare = (conv(1, 1, None), Relu(), conv(1, 2, None), Relu())
    block = Residual(Serial(Relu(), conv(1), Relu(), conv(0)))
    rectified = Residual(Serial(conv(1), Relu(), conv(0)))  # its identity carries what a ReLU made
    return {
        "mlp": (Serial(Dense(n, R2, 0.1), Relu(), Dense(n, R2, 0.1), Relu(), last), (6,)),
        "mlp_erf": (Serial(Dense(n, R2, 0.1), Erf(), Dense(n, R2, 0.1), Erf(), last), (6,)),
        "conv_flatten": (Serial(conv(1), Relu(), conv(1, 2), Relu(), Flatten(), last), (2, 5, 4)),
        "conv_pool": (Serial(*bare, GlobalAveragePool(), Dense(1)), (2, 5, 4)),
        "residual_pool": (Serial(conv(0), block, Relu(), GlobalAveragePool(), last), (2, 4, 4)),
        "rectified_flatten": (Serial(conv(0), Relu(), rectified, conv(0), Relu(), Flatten(), last), (2, 4, 4)),
    }[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "mlp_erf", "conv_flatten", "conv_pool", "residual_pool", "rectified_flatten"])
def test_finite_networks_approach_it_as_one_over_root_width(name):
    """The distance over 256 networks of each width: a slope of −1/2 on logarithmic axes, and no bias left."""
    widths, many = (16, 32, 64), 256
    distances: dict[str, list[float]] = {p: [] for p in PARAMETRISATIONS}
    for n in widths:
        layer, shape = wide(name, n)
        x = normal(3, *shape)
        net, empirical = random_networks(layer, x, many)
        for p, known in distances.items():
            theta, empirical_SNN = infinite_ntk(layer, x, parametrisation=p), empirical[p]
            known.append(float(((empirical_SNN - theta).flatten(1).norm(dim=1) / theta.norm()).square().mean().sqrt()))
            # Four standard errors of the mean, and what is left of order 1/width: a wrong constant would show.
            bias = (empirical_SNN.mean(0) - theta).norm() / theta.norm()
            assert bias < 4 * known[-1] / math.sqrt(many) + 0.5 / n
    assert_close(empirical["standard"][0], ft.ntk(net, x, output="first"), rtol=1e-10, atol=1e-10)
    log_n = torch.tensor(widths).double().log()
    log_n -= log_n.mean()
    for p, known in distances.items():
        slope = float((log_n * torch.tensor(known).double().log()).sum() / log_n.square().sum())
        print(f"{name}, {p}: slope {slope:.3f}, distances {[round(d, 3) for d in known]}")
        assert -0.6 < slope < -0.4


# ---- Properties


CASES = {
    "mlp": (Serial(Dense(8, R2, 0.1), Relu(), Dense(8, R2, 0.1), Relu(), Dense(1)), (5,)),
    "erf": (Serial(Dense(8, R2, 0.1), Erf(), Dense(1)), (5,)),
    "flatten": (Serial(Conv(8, b_std=0.1), Relu(), Conv(4, 2, 2, 0), Relu(), Flatten(), Dense(1)), (2, 4, 6)),
    "pool": (Serial(Conv(8), Residual(Serial(Relu(), Conv(8))), Relu(), GlobalAveragePool(), Dense(1)), (2, 4, 4)),
    "pool_hidden": (Serial(Conv(8), Relu(), GlobalAveragePool(), Dense(4), Relu(), Dense(1)), (2, 4, 4)),
}
each_case = pytest.mark.parametrize("case", CASES)


@each_case
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_symmetric_positive_and_the_same_in_any_pieces(case, kind):
    net, shape = CASES[case]
    x = normal(11, *shape)
    x[7] = x[3]  # a duplicate
    whole = infinite_ntk(net, x, kind=kind)
    assert whole.shape == (11, 11)
    assert whole.dtype == torch.float64
    assert torch.equal(whole, whole.T)
    assert torch.linalg.eigvalsh(whole)[0] > -1e-12 * whole.diagonal().max()
    small = least_budget(net, x, kind)
    for budget in (small, 3 * small, "1GB"):
        assert_close(infinite_ntk(net, x, kind=kind, budget=budget), whole, rtol=1e-12, atol=1e-12)
        assert_close(infinite_ntk(net, x, x, kind=kind, budget=budget), whole, rtol=1e-12, atol=1e-12)
        got = infinite_ntk(net, x[:4], x[4:], kind=kind, budget=budget)
        assert_close(got, whole[:4, 4:], rtol=1e-12, atol=1e-12)


def least_budget(net: Layer, x: Tensor, kind: str) -> int:
    """The least that one pair at a time fits in, to a kilobyte."""
    for budget in range(1_000, 10**6, 1_000):
        try:
            infinite_ntk(net, x, x, kind=kind, budget=budget)
        except ValueError:
            continue
        return budget
    raise AssertionError("a megabyte is not enough")


@each_case
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_own_tensors_stay_within_the_budget(case, kind, dtype):
    net, shape = CASES[case]
    shape = (shape[0], *(2 * n for n in shape[1:]))
    x, x2 = normal(5, *shape), normal(8, *shape, seed=1)
    for budget in (100_000, 600_000, 2_000_000):
        try:
            with PeakMemory() as memory:
                infinite_ntk(net, x, x2, kind=kind, dtype=dtype, budget=budget)
        except ValueError:
            assert case.startswith("pool")
            continue
        assert memory.peak <= budget


@each_case
def test_float32_is_near(case):
    net, shape = CASES[case]
    x = normal(6, *shape)
    got = infinite_ntk(net, x, dtype=torch.float32)
    assert got.dtype == torch.float64
    assert_close(got, infinite_ntk(net, x), rtol=1e-4, atol=0)


def test_points_on_a_line_give_no_nan_and_a_diagonal_of_no_angle():
    """ReLU is homogeneous: without biases Θ(ax, bx) = ab Θ(x, x) exactly, 0 for opposite points in one hidden layer."""
    x = normal(1, 300)
    near = x + 1e-9 * normal(1, 300, seed=1)
    points = torch.cat([x, x.clone(), 3.7 * x, -x, near, torch.zeros(1, 300)])
    net = Serial(Dense(16, R2), Relu(), Dense(16, R2), Relu(), Dense(1))
    for kind in ("ntk", "nngp"):
        k = infinite_ntk(net, points, kind=kind)
        assert torch.isfinite(k).all()
        assert_close(k[0, 1], k[0, 0], rtol=1e-13, atol=0)
        assert_close(k[0, 2], 3.7 * k[0, 0], rtol=1e-13, atol=0)
        assert_close(k[0, 4], k[0, 0], rtol=1e-7, atol=0)
        assert not k[5].any()
    shallow = infinite_ntk(Serial(Dense(16, R2), Relu(), Dense(1)), points)
    assert shallow[0, 3].abs() < 1e-12 * shallow[0, 0]


def test_flatten_needs_only_a_pixel_with_itself():
    """The cheap form equals the full covariance with its diagonal taken at the end."""
    net = Serial(Conv(8, b_std=0.1), Relu(), Conv(4, 2, 2, 0), Erf(), Flatten(), Dense(3, b_std=0.2), Relu(), Dense(1))
    x = normal(3, 2, 4, 6)
    start = Signal(2, (4, 6), cells=24)
    last = net.shape(start)
    assert not last.pooled
    for own_full in (False, True):
        full = replace(last, pooled=True, bent=own_full)
        k = net.apply(_input_covariance(x, x, start, full, torch.float64, True, True))
        assert_close(k.ntk, infinite_ntk(net, x), rtol=1e-7, atol=0)
        assert_close(k.nngp, infinite_ntk(net, x, kind="nngp"), rtol=1e-12, atol=0)


def test_leaves_inputs_and_gradients_alone():
    x = normal(4, 5).float().requires_grad_()
    before = x.detach().clone()
    k = infinite_ntk(CASES["mlp"][0], x)
    assert not k.requires_grad
    assert torch.equal(x.detach(), before)
    assert infinite_ntk(CASES["mlp"][0], x[:0], x).shape == (0, 4)
    assert infinite_ntk(CASES["mlp"][0], x[:0]).shape == (0, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_case
def test_cuda_equals_cpu(case):
    net, shape = CASES[case]
    x = normal(9, *shape)
    got = infinite_ntk(net, x.cuda())
    assert got.is_cuda
    assert_close(got.cpu(), infinite_ntk(net, x), rtol=1e-10, atol=1e-10)


# ---- Counterparts of torch networks


def parameters(layer: Layer, x: Tensor) -> int:
    return sum(p.numel() for p in finite(layer, x).parameters())


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (MLP(12, (7, 5), 3), (1, 3, 4)),
        (MLP(12, (7,), 3, "erf"), (12,)),
        (WideResNet(2, 2, 1, 3, 10), (3, 8, 8)),
        (WideResNet(3, 1, 1, 1, 5), (1, 8, 8)),
        (resnet18(3, 10, 4), (3, 16, 16)),
    ],
    ids=["mlp", "mlp_erf", "wrn2", "wrn3", "resnet18"],
)
def test_built_in_networks_have_counterparts(net, shape):
    """As many parameters as the network has besides BatchNorm's, and a kernel."""
    layer, x = counterpart(net), normal(2, *shape)
    norm = sum(p.numel() for m in net.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters())
    assert parameters(layer, x) == sum(p.numel() for p in net.parameters()) - norm
    theta = infinite_ntk(net, x)
    assert torch.equal(theta, infinite_ntk(layer, x))
    assert torch.linalg.eigvalsh(theta)[0] > 0


def test_counterpart_of_a_wide_resnet_is_the_network_written_out():
    def conv(width: int, kernel: int = 3, stride: int = 1, *, inputs: int) -> Conv:
        return Conv(width, kernel, stride, kernel // 2, 1.5, 0.1, inputs)

    want = Serial(
        conv(16, inputs=1),
        Residual(Serial(Relu(), conv(32, inputs=16), Relu(), conv(32, inputs=32)), conv(32, 1, inputs=16)),
        Residual(Serial(Relu(), conv(64, inputs=32), Relu(), conv(64, 3, 2, inputs=64)), conv(64, 1, 2, inputs=32)),
        Relu(),
        GlobalAveragePool(),
        Dense(10, 1.5, 0.1, 64),
    )
    assert counterpart(WideResNet(2, 1, 1), W_std=1.5, b_std=0.1) == want


def test_counterpart_of_a_sequential():
    net = nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 6, 3, 2, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
        nn.Conv2d(6, 5, (3, 1), padding="same"),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(5, 3),
    )
    inner = Serial(Conv(6, (3, 3), (2, 2), (1, 1), R2, None, 2), Relu())
    conv = Conv(5, (3, 1), (1, 1), (1, 0), R2, 0.0, 6)
    want = Serial(inner, conv, Relu(), GlobalAveragePool(), Flatten(), Dense(3, R2, 0.0, 5))
    assert counterpart(net) == want
    assert counterpart(nn.DataParallel(net)) == want


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.LSTM(3, 3), "LSTM has no known infinite counterpart"),
        (nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), "module '1', LayerNorm"),
        (nn.Sequential(nn.MaxPool2d(2)), "module '0', MaxPool2d"),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), "groups, dilation or a padding mode"),
        (nn.Sequential(nn.Conv2d(4, 4, 2, padding="same")), "pads unevenly"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(2)), "module '0', AdaptiveAvgPool2d"),
        (MLP(4, (3,), 2, "tanh"), "'tanh' has no closed form"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_networks_without_a_counterpart_say_so(net, message):
    with pytest.raises((TypeError, ValueError), match=message):
        counterpart(net)


@pytest.mark.parametrize(
    ("net", "shape", "message"),
    [
        (Serial(Relu(), Dense(1)), (3,), "not Gaussian"),
        (Serial(Conv(4), Flatten(), Relu(), Dense(1)), (3, 4, 4), "not Gaussian"),
        (Serial(Dense(3), Relu(), Residual(Dense(3)), Relu(), Dense(1)), (3,), "not Gaussian"),
        (Serial(Dense(3), Residual(Relu()), Dense(1)), (3,), "neither branch"),
        (Serial(Dense(3), Residual(Serial(Relu(), Dense(4))), Dense(1)), (3,), "width 4, space .* to width 3"),
        (Serial(Conv(3), Residual(Conv(3, 3, 2)), Flatten(), Dense(1)), (3, 4, 4), "stride"),
        (Serial(Conv(3), Dense(1)), (3, 4, 4), "Flatten"),
        (Serial(Conv(3), Relu()), (3, 4, 4), "ends with space"),
        (Serial(Conv(3), Flatten(), Dense(1)), (3,), "without space"),
        (Serial(Dense(3), GlobalAveragePool()), (3,), "without space"),
        (Serial(Conv(3, 9), Flatten(), Dense(1)), (3, 4, 4), "larger than its padded input"),
        (Serial(Conv(3, (3, 3)), Flatten(), Dense(1)), (3, 4), "one number, or 1"),
        (MLP(5), (3,), "got 3 inputs; expected 5"),
    ],
)
def test_layers_without_a_closed_form_say_so(net, shape, message):
    with pytest.raises(ValueError, match=message):
        infinite_ntk(net, normal(2, *shape))


def test_bad_arguments_say_so():
    net, x = CASES["mlp"][0], normal(3, 5)
    for options, message in (
        ({"kind": "nttk"}, "did you mean 'ntk'"),
        ({"parametrisation": "standart"}, "did you mean 'standard'"),
        ({"dtype": torch.float16}, "expected torch.float64"),
        ({"budget": "100B"}, "would do"),
    ):
        with pytest.raises(ValueError, match=message):
            infinite_ntk(net, x, **options)
    with pytest.raises(ValueError, match="1 NaN"):
        infinite_ntk(net, torch.where(x == x[1, 1], math.nan, x))
    with pytest.raises(ValueError, match="points of shape"):
        infinite_ntk(net, x, normal(3, 6))
    with pytest.raises(TypeError, match="int64"):
        infinite_ntk(net, x.long())
    with pytest.raises(TypeError, match="expected a torch network"):
        infinite_ntk(Relu, x)
