"""How a GPU stores rows and cuts products: the plain versions anywhere, the fused kernels against them on a GPU."""

from collections.abc import Callable

import pytest
import torch

import foretaste as ft
from foretaste.network import WideResNet, resnet18
from foretaste.tangent import GramJob, accumulate, freeze, gram, outputs, rules, triton_kernels
from foretaste.tangent.accumulate import GradientRows, ThetaSum, own_products, strip_rows
from foretaste.tangent.frozen import probe_outputs
from foretaste.tangent.planning import CHUNK_MOST, KernelJob, LayerGroup, larger_chunk
from foretaste.tangent.survey import survey_network
from networks import NETWORKS

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels of at most 128 columns, points made even, strips of 16 points, copies of a convolution's input."""
    shape_of: Callable[..., tuple[int, int, int]] = accumulate.panel_shape
    monkeypatch.setattr(accumulate, "PANEL", 128)
    monkeypatch.setattr(accumulate, "panel_shape", lambda points, width, cuda: shape_of(points, width, True))
    monkeypatch.setattr("foretaste.tangent.accumulate.strip_rows", lambda n, cuda, symmetric: 16)
    copies_of: Callable[..., int] = rules.count_copies
    monkeypatch.setattr(rules, "count_copies", lambda kernel, stride, cuda: copies_of(kernel, stride, True))


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("half", [False, True], ids=["single", "half"])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_panels_and_strips_give_the_gram_matrix(heads: int, half: bool) -> None:
    g = torch.Generator().manual_seed(0)
    sizes, width = {"L": 5, "U": 61}, 300
    j_NBw = torch.randn(66, heads, width, generator=g) + 3
    if half:
        j_NBw = j_NBw.half().float()
    rows = GradientRows(66, heads, width, torch.empty(0), half, 4.0)
    assert rows.data.shape == (3, 72, heads, 128)
    for at in (slice(0, 40), slice(40, 66)):
        for columns in (slice(0, 100), slice(100, 300)):  # the second crosses a panel's edge
            rows.write(at, columns, j_NBw[at, :, columns])
    blocks = [("L", "L"), ("U", "L"), ("U", "U")]
    theta = ThetaSum(sizes, blocks, ["U"], heads, torch.empty(0))
    theta.cuda = True
    theta.add_rows(rows)
    got, diagonal = theta.finish()
    flat = j_NBw.double().flatten(0, 1)
    want = flat @ flat.T
    spans = {"L": slice(0, 5 * heads), "U": slice(5 * heads, 66 * heads)}
    tolerance = 2e-3 if half else 1e-5  # of what centring leaves: ten bits of each entry
    for (a, b), block in got.items():
        assert float((block - want[spans[a], spans[b]]).abs().max()) <= tolerance * width
    assert torch.equal(got["U", "U"], got["U", "U"].T)
    own = torch.stack([want[5 * heads :, 5 * heads :].view(61, heads, 61, heads)[n, :, n] for n in range(61)])
    assert float((diagonal["U"] - own).abs().max()) <= tolerance * width


@pytest.mark.parametrize("n", [1, 8, 1024, 1025, 6000, 10007])
def test_strips_of_a_gpu_are_even_and_few(n: int) -> None:
    rows = strip_rows(n, cuda=True, symmetric=True)
    assert rows % 8 == 0
    assert rows <= 1024
    assert -(-n // rows) == -(-n // 1024)


def test_a_checked_network_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = NETWORKS[5].built(), NETWORKS[5].points(6)
    frozen = freeze(net)
    classes = probe_outputs(frozen, x)
    want = ft.ntk(net, x)
    monkeypatch.setattr("foretaste.tangent.kernel.probe_outputs", None)
    monkeypatch.setattr("foretaste.tangent.kernel.check_inputs", None)
    found = gram(GramJob(frozen, {"x": x}, [("x", "x")], classes=classes))
    assert torch.equal(found.blocks["x", "x"], want)
    assert torch.allclose(found.outputs["x"], outputs(net, x), rtol=1e-12)


def test_a_gram_has_the_outputs_of_a_network_without_rules() -> None:
    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 8, dtype=torch.float64).view(4, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    net, x = Bare().eval(), torch.randn(5, 4, dtype=torch.float64)
    found = gram(GramJob(freeze(net), {"L": x[:0], "U": x}, [("U", "U")]))
    assert torch.equal(found.outputs["U"], outputs(net, x))
    assert found.outputs["L"].shape == (0, 2)


def test_a_gram_names_the_network_without_rules_that_failed() -> None:
    """A second job on it need not find that out again."""

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.tanh(torch.nn.functional.linear(self.first(x), self.first.weight)))

    torch.manual_seed(0)
    net, x = Tied().double().eval(), torch.randn(6, 4, dtype=torch.float64)
    job = GramJob(freeze(net), {"x": x}, [("x", "x")])
    found = gram(job)
    assert found.frozen.unruled == {"first.weight"}
    again = gram(GramJob(found.frozen, {"x": x}, [("x", "x")], check=False))
    assert torch.equal(again.blocks["x", "x"], found.blocks["x", "x"])
    assert job.frozen.unruled == frozenset()


def test_a_pass_on_a_gpu_takes_what_the_plan_leaves() -> None:
    """The plan has room for ten points with the widest rows. The pass forms narrow rows, and may take half the rest."""
    case = next(c for c in NETWORKS if c.name == "wrn")
    frozen, x = freeze(case.built(torch.float32)), case.points(3, torch.float32)
    found = survey_network(frozen, x, probe_outputs(frozen, x))
    narrow, wide = sorted(found.layers, key=lambda layer: layer.numel)[:: len(found.layers) - 1]
    groups = [LayerGroup(formed=[(narrow, slice(0, narrow.shape[0]))], stashed=[wide])]
    for device, left in (("cuda", 0), ("cuda", 10**8), ("cuda", 10**10), ("cpu", 10**10)):
        job = KernelJob(found, {}, {"x": 3000}, [("x", "x")], (), entry_bytes=2, device=device)
        work = 10 * job.point_bytes(wide.numel) + found.check_bytes(3000)
        points, taken = larger_chunk(job, groups, 10, work, left)
        if device == "cpu":
            assert (points, taken) == (10, work)
            continue
        assert points * job.point_bytes(narrow.numel) + found.check_bytes(3000) <= taken <= work + left
        room = work - found.check_bytes(3000) + left // 2
        assert points == min(CHUNK_MOST, room // job.point_bytes(narrow.numel))
        assert points >= (CHUNK_MOST if left == 10**10 else 10)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("half", [False, True], ids=["single", "half"])
def test_fused_rows_are_the_plain_ones(half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulate, "PANEL", 2048)
    g = torch.Generator(device="cuda").manual_seed(0)
    j_N1w = torch.randn(37, 1, 5000, generator=g, device="cuda") + 1
    made = []
    for fuses in (True, False):
        if not fuses:
            monkeypatch.setattr(accumulate, "fusible", lambda t: False)
        rows = GradientRows(37, 1, 5000, j_N1w[:0], half, 4.0)
        for at in (slice(0, 20), slice(20, 37)):
            for columns in (slice(0, 1111), slice(1111, 5000)):
                rows.write(at, columns, j_N1w[at, :, columns])
        made.append(rows)
    assert torch.equal(made[0].data, made[1].data)
    assert torch.allclose(made[0].shift_NBB, made[1].shift_NBB, rtol=1e-12, atol=1e-9)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("size", [(4, 4), (7, 5), (28, 28)], ids=str)
def test_fused_planes_and_norms_are_the_plain_ones(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator(device="cuda").manual_seed(0)
    a, b = (torch.randn(9, 11, *size, generator=g, device="cuda") for _ in range(2))
    extent = (size[0] + 2, -(-(size[1] + 2) // 4) * 4)
    norm = torch.nn.BatchNorm2d(11).cuda().eval()
    torch.nn.init.normal_(norm.running_mean)
    laid, rows = rules.lay_in_grid(a, (1, 1), extent, 3, 1, 7), rules.batch_norm(norm, "weight", a, b, slice(2, 9))
    whole = rules.batch_norm(norm, "weight", a, b, slice(0, 11))
    assert triton_kernels.fusible(a)
    monkeypatch.setattr(rules, "fusible", lambda t: False)
    assert torch.equal(laid, rules.lay_in_grid(a, (1, 1), extent, 3, 1, 7))
    plain = rules.batch_norm(norm, "weight", a, b, slice(0, 11))
    assert torch.allclose(whole, plain, rtol=1e-4, atol=1e-4)
    assert torch.allclose(rows, plain[:, 2:9], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("of", [torch.float16, torch.float32, torch.float64], ids=str)
def test_a_row_with_itself_is_the_same_both_ways(of: torch.dtype) -> None:
    rows = torch.randn(5, 1, 700, generator=torch.Generator().manual_seed(0)).to(of)
    to = torch.float64 if of == torch.float64 else torch.float32
    want = rows.double().square().sum(2, keepdim=True)
    for cuda in (True, False):
        got = own_products(rows, to, cuda)
        assert got.dtype == to
        assert torch.allclose(got.double(), want, rtol=1e-5 if to == torch.float32 else 1e-12)
    wide = torch.randn(5, 3, 70, dtype=torch.float64)
    assert torch.allclose(own_products(wide, torch.float64, True), wide @ wide.mT)


@pytest.mark.parametrize("device", ["cpu", "as on a gpu", pytest.param("cuda", marks=[pytest.mark.gpu, gpu])])
@pytest.mark.parametrize(
    ("m", "shape"),
    [
        (torch.nn.Linear(5, 3), (4, 5)),
        (torch.nn.Conv1d(4, 6, 3, padding=2, dilation=2), (4, 9)),
        (torch.nn.Conv2d(3, 5, 3, padding=1), (3, 7, 6)),
        (torch.nn.Conv2d(4, 6, (3, 2), stride=(2, 1), groups=2), (4, 9, 8)),
        (torch.nn.Conv2d(3, 5, 3, padding=1, padding_mode="reflect"), (3, 7, 6)),
        (torch.nn.Conv2d(3, 5, (3, 4), padding="same"), (3, 7, 6)),
        (torch.nn.Conv2d(20, 8, 3, stride=2, padding=1), (20, 8, 8)),
        (torch.nn.Conv3d(2, 3, 2, padding=(1, 0, 1)), (2, 4, 5, 3)),
        (torch.nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2), (4, 5)),
        (torch.nn.ConvTranspose2d(3, 5, (3, 2), padding=1, dilation=(1, 2)), (3, 6, 5)),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Using padding=.same.")
def test_rows_have_the_columns_of_the_parameter_and_sums_are_sums_of_rows(
    m: torch.nn.Module, shape: tuple[int, ...], device: str, request: pytest.FixtureRequest
) -> None:
    if device == "as on a gpu":
        request.getfixturevalue("as_on_a_gpu")
        device = "cpu"
    g = torch.Generator().manual_seed(0)
    m = m.to(device, torch.float64)
    a = torch.randn(5, *shape, generator=g, dtype=torch.float64).to(device)
    out = m(a)
    G = torch.randn(out.shape, generator=g, dtype=torch.float64).to(device)
    for name, p in m.named_parameters():
        rows_np = rules.RULES[type(m)](m, name, a, G, slice(0, p.shape[rules.cut_axis(m, name)[0]]))
        summed_p = rows_np.sum(0)
        if type(m) in rules.SUM_RULES:
            torch.testing.assert_close(rules.SUM_RULES[type(m)](m, name, a, G), summed_p, rtol=1e-12, atol=1e-12)
        (grad,) = torch.autograd.grad(out, p, G, retain_graph=True)
        torch.testing.assert_close(rules.parameter_order(m, name, summed_p), grad.flatten(), rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "half"])
@pytest.mark.parametrize("output", ["sum", "trace"])
@pytest.mark.parametrize("name", ["wrn", "resnet18"])
def test_a_gpu_loses_no_rule(name: str, output: str, precision: str, caplog: pytest.LogCaptureFixture) -> None:
    """A query is right without rules, and several times as slow: the checks of the rules must not fail by chance."""
    torch.manual_seed(0)
    net = (WideResNet(layers=1, widen=2, channels=3) if name == "wrn" else resnet18(width=16)).eval().cuda()
    x = torch.randn(300, 3, 32, 32, device="cuda")
    with caplog.at_level("INFO", "foretaste"):
        ft.ntk(net, x[:260], x[260:], output=output, precision=precision)
    assert "no rule" not in caplog.text
