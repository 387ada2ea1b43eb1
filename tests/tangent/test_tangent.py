"""ft.ntk against the Gram matrix of plain per-point gradients, on every network of the table."""

import logging
import subprocess
import sys
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch

import foretaste as ft
import oracles
from foretaste.tangent import GramJob, PeakMemory, count_points, freeze, gram, plan, resolve_budget, take_points
from foretaste.tangent.frozen import balanced_signs
from networks import NETWORKS, Network, OwnPReLU

N = 7


def oracle(net: torch.nn.Module, x: object, x2: object, output: str | int) -> torch.Tensor:
    theta = oracles.ntk(net, x, x2, output)
    if output != "full":
        return theta
    n, m = count_points(x), count_points(x2)
    return theta.view(n, -1, m, theta.shape[1] // m).permute(0, 2, 1, 3)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    assert got.shape == want.shape
    assert got.dtype == torch.float64
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("output", ["sum", "first", 1, "full"])
@pytest.mark.parametrize("case", NETWORKS, ids=str)
def test_ntk_is_the_gram_matrix_of_gradients(case: Network, output: str | int) -> None:
    net, x = case.built(), case.points(N)
    want = oracle(net, x, x, output)
    assert error(ft.ntk(net, x, output=output), want) <= 1e-10
    a, b = take_points(x, slice(0, 3)), take_points(x, slice(3, N))
    assert error(ft.ntk(net, a, b, output=output), want[:3, 3:]) <= 1e-10


def without_rule(name: str, layer: Callable[[], torch.nn.Module], C: int = 3) -> Network:
    return Network(name, lambda: torch.nn.Sequential(torch.nn.Linear(4, 6), layer(), torch.nn.Linear(6, C)), (4,))


WITHOUT_RULES = [case for case in NETWORKS if case.functional] + [
    without_rule("prelu of units", lambda: OwnPReLU(6)),
    without_rule("prelu, one output", OwnPReLU, C=1),
    without_rule("spectral norm", lambda: torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(6, 6))),
]


@pytest.mark.parametrize("output", ["sum", "signs", "first", -1, "trace", "full"])
@pytest.mark.parametrize("case", WITHOUT_RULES, ids=str)
def test_as_many_points_as_classes_without_a_rule(case: Network, output: str | int) -> None:
    """Θ of a PReLU was wrong by up to a fifth: vmap took the n points for the C outputs."""
    net, x = case.built(), case.points(6)
    full = oracle(net, x, x, "full")
    C = full.shape[2]
    weights = {"sum": torch.ones(C, dtype=torch.float64) / C**0.5, "signs": balanced_signs(C).double()}
    if output == "full":
        want = full
    elif output == "trace":
        want = full.diagonal(dim1=2, dim2=3).mean(2)
    else:
        one = torch.eye(C, dtype=torch.float64)[output if isinstance(output, int) else 0]
        want = torch.einsum("ijcd,c,d->ij", full, *2 * [weights.get(output, one)])
    for n in (1, 2, C, C + 1):
        assert error(ft.ntk(net, take_points(x, slice(n)), output=output), want[:n, :n]) <= 1e-10
    rest = take_points(x, slice(6 - C, 6))
    assert error(ft.ntk(net, take_points(x, slice(C)), rest, output=output), want[:C, 6 - C :]) <= 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_batching_rule_that_is_wrong_is_found(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case = next(c for c in NETWORKS if c.name == "prelu of its own class")
    net, x = case.built(dtype), case.points(12, dtype)
    want = oracle(case.built(), case.points(12), case.points(12), "full")
    monkeypatch.setattr("foretaste.tangent.functional.jacrev", lambda f, chunk_size: torch.func.jacrev(f))
    with caplog.at_level(logging.INFO, "foretaste"):
        got = ft.ntk(net, x[:3], x[3:6], output="full")
    assert error(got, want[:3, 3:6]) <= (1e-5 if dtype == torch.float32 else 1e-12)
    assert "torch.func cannot batch 1.weight (it is not autograd's); computing one point at a time" in caplog.text


@pytest.mark.parametrize("case", NETWORKS, ids=str)
def test_float32_is_within_1e5_of_float64(case: Network) -> None:
    want = oracle(case.built(), case.points(N), case.points(N), "sum")
    got = ft.ntk(case.built(torch.float32), case.points(N, torch.float32))
    assert error(got, want) <= 1e-5


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(c, torch.float32) for c in NETWORKS] + [(c, torch.float64) for c in NETWORKS[::4]],
    ids=lambda v: str(v).removeprefix("torch."),
)
def test_any_budget_gives_the_same_and_is_kept(
    case: Network, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "foretaste.tangent.accumulate.FLOAT64_SLAB", 512
    )  # as small beside these networks as it is beside real ones
    net = case.built(dtype)
    # The least budget passes point by point for each of a hundred groups of parameters: a large network has fewer.
    x = case.points(16 if sum(p.numel() for p in net.parameters()) < 5000 else 8, dtype)
    ample = ft.ntk(net, x)
    with pytest.raises(ValueError, match="would do") as e:
        ft.ntk(net, x, budget=1000)
    least = resolve_budget(str(e.value).split("budget='")[1].split("'")[0])
    plans = set()
    for budget in (least, 8 * least):
        with PeakMemory() as memory:
            theta = ft.ntk(net, x, budget=budget)
        assert error(theta, ample) <= (1e-6 if dtype == torch.float32 else 1e-12)
        made = plan(net, x, budget=budget)
        assert memory.peak <= made.nbytes <= budget
        plans.add((made.chunk_size, len(made.groups)))
    assert len(plans) > 1


@pytest.mark.parametrize("case", NETWORKS, ids=str)
def test_only_what_has_no_rule_goes_through_torch_func(case: Network, caplog: pytest.LogCaptureFixture) -> None:
    net = case.built()
    with caplog.at_level(logging.INFO, "foretaste"):
        ft.ntk(net, case.points(4))
    messages = [r.getMessage() for r in caplog.records if "through torch.func" in r.getMessage()]
    if case.functional:
        assert len(messages) == 1
        assert f"no rule for {len(case.functional)} of" in messages[0]
    else:
        assert not messages


def test_blocks_and_diagonals_come_from_one_run() -> None:
    case = NETWORKS[5]
    net, x = case.built(), case.points(12)
    sets = {"L": take_points(x, slice(0, 3)), "W": take_points(x, slice(3, 7)), "U": take_points(x, slice(7, 12))}
    for output, heads in (("sum", 1), ("full", 3)):
        want = oracles.ntk(net, x, x, output)
        found = gram(GramJob(freeze(net, output=output), sets, [("L", "L"), ("W", "L"), ("W", "U")], ["U"]))
        blocks, diagonals = found.blocks, found.diagonals
        cut = {"L": slice(0, 3 * heads), "W": slice(3 * heads, 7 * heads), "U": slice(7 * heads, 12 * heads)}
        for (a, b), theta in blocks.items():
            assert error(theta, want[cut[a], cut[b]]) <= 1e-12
        own = torch.stack([want[k * heads : (k + 1) * heads, k * heads : (k + 1) * heads] for k in range(7, 12)])
        assert error(diagonals["U"], own) <= 1e-12


def test_an_empty_set_gives_empty_blocks() -> None:
    case = NETWORKS[0]
    net, x = case.built(), case.points(5)
    sets = {"L": take_points(x, slice(0)), "U": x}
    blocks = gram(GramJob(freeze(net), sets, [("L", "L"), ("U", "L"), ("U", "U")])).blocks
    assert blocks["L", "L"].shape == (0, 0)
    assert blocks["U", "L"].shape == (5, 0)
    assert error(blocks["U", "U"], oracles.ntk(net, x, x)) <= 1e-12


def test_params_chooses() -> None:
    net, x = NETWORKS[0].built(), NETWORKS[0].points(5)
    names = [k for k, _ in net.named_parameters()]
    parts = sum(ft.ntk(net, x, params=[k]) for k in names)
    assert error(parts, ft.ntk(net, x)) <= 1e-12
    assert (
        error(
            ft.ntk(net, x, params=lambda k: k.endswith("bias")),
            sum(ft.ntk(net, x, params=[k]) for k in names if "bias" in k),
        )
        <= 1e-12
    )
    net.requires_grad_(False)
    last = list(net.parameters())[-1].requires_grad_()
    assert error(ft.ntk(net, x), ft.ntk(net, x, params=[names[-1]])) <= 1e-12
    assert last.requires_grad


def test_progress_reaches_its_end() -> None:
    net, x = NETWORKS[5].built(), NETWORKS[5].points(50)
    seen: list[tuple[int, int]] = []
    ft.ntk(net, x, progress=lambda done, total: seen.append((done, total)))
    assert seen
    assert seen[-1][0] == seen[-1][1]
    assert sorted(seen) == seen


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", NETWORKS, ids=str)
def test_device_does_not_change_it(case: Network, dtype: torch.dtype) -> None:
    net, x = case.built(dtype), case.points(N, dtype)
    here = ft.ntk(net, x)
    there_x = {k: v.cuda() for k, v in x.items()} if isinstance(x, dict) else x.cuda()
    there = ft.ntk(net.cuda(), there_x)
    assert there.is_cuda
    assert error(there.cpu(), here) <= (1e-6 if dtype == torch.float32 else case.device_gap)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "half"])
def test_a_device_says_the_same_twice(precision: str) -> None:
    """cuDNN has gradients that differ in their last bits each time."""
    case = next(c for c in NETWORKS if c.name == "wrn")
    net, x = case.built(torch.float32).cuda(), case.points(300, torch.float32).cuda()
    before = torch.backends.cudnn.deterministic
    first, *others = (ft.ntk(net, x, precision=precision) for _ in range(4))
    assert all(torch.equal(first, theta) for theta in others)
    assert torch.backends.cudnn.deterministic == before


def test_half_rows_keep_what_is_left_of_theta() -> None:
    """The arithmetic of float16 rows on a GPU, done on a CPU: centring keeps what is small beside the common part."""
    case = next(c for c in NETWORKS if c.name == "wrn")
    net, x = case.built(torch.float32), case.points(30, torch.float32)
    x = 0.3 * x + 2  # points that are much alike: a large common gradient
    want = oracle(case.built(), x.double(), x.double(), "sum")
    half, single = ft.ntk(net, x, precision="half"), ft.ntk(net, x)

    def left(theta: torch.Tensor) -> torch.Tensor:
        """What five labelled points do not explain of the others."""
        return theta[5:, 5:] - theta[5:, :5] @ torch.linalg.solve(theta[:5, :5], theta[:5, 5:])

    assert error(half, want) <= 1e-5
    assert error(left(half), left(want)) <= 2e-3  # ten bits of each entry
    assert error(left(single), left(want)) <= 1e-4
    rows = oracles.gradients(net, x, "sum").half().double()  # not centred
    assert error(left(rows @ rows.T), left(want)) > 10 * error(left(half), left(want))


def test_precision_is_checked() -> None:
    net, x = NETWORKS[0].built(), NETWORKS[0].points(4)
    with pytest.raises(ValueError, match="did you mean 'half'"):
        ft.ntk(net, x, precision="halv")
    with pytest.raises(ValueError, match="for float32 networks"):
        ft.ntk(net, x, precision="half")


class Scattered(torch.nn.Module):
    """A network for which a device has no memory: for more than ``most`` points at once, or the first time only."""

    asked: ClassVar[list[int]] = []  # of the class: the engine works on copies

    def __init__(self, most: int | None = None, error: Exception | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head, self.most = torch.nn.Linear(6, 3), most
        self.error = error or torch.OutOfMemoryError("CUDA out of memory")
        Scattered.asked = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 4:  # the survey runs fewer
            Scattered.asked.append(len(x))
            if (len(Scattered.asked) == 1) if self.most is None else len(x) > self.most:
                raise self.error
        return self.head(x)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_in_pieces_is_given_back_and_asked_for_again() -> None:
    x = torch.randn(40, 6, device="cuda")
    net = Scattered().cuda().eval()
    assert error(ft.ntk(net, x), ft.ntk(net.head, x)) <= 1e-12
    assert Scattered.asked[:2] == [40, 40]


SHORT_OF_MEMORY = """
import logging, resource, torch, foretaste as ft
from foretaste.tangent import plan
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.Flatten()]
net = torch.nn.Sequential(*layers, torch.nn.Linear(32 * 12 * 12, 10)).eval()
x = torch.randn(200, 3, 16, 16)
ft.ntk(net, x[:2])
planned = plan(net, x, budget="64GB").nbytes
logging.basicConfig(level=logging.INFO, format="%(message)s")
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + planned // 2, -1))
got = ft.ntk(net, x, budget="64GB")
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
want = ft.ntk(net, x)
print("gap", float((got - want).norm() / want.norm()))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a limit of memory that Linux keeps")
def test_a_process_that_runs_out_of_memory_gives_the_same_kernel() -> None:
    """No stand-in: the system refuses half of what was planned, for the budget claims 64 GB."""
    run = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "starting again with half of it" in run.stderr
    assert float(run.stdout.split()[-1]) <= 1e-6


@pytest.mark.parametrize(
    "said",
    [
        None,
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
    ],
    ids=["torch", "python", "cpu", "cublas", "cudnn"],
)
@pytest.mark.parametrize("output", ["sum", "full"])
def test_out_of_memory_halves_the_chunk_and_gives_the_same_kernel(said: Exception | None, output: str) -> None:
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    net = Scattered(most=12, error=said).eval()
    theta = ft.ntk(net, x, output=output)
    assert Scattered.asked == [40, 20, 10, 6, 10, 10, 10, 6]  # six of the first and of the last ten are checked
    assert error(theta, ft.ntk(net.head, x, output=output)) <= 1e-12
    with pytest.raises(RuntimeError, match="another fault"):
        ft.ntk(Scattered(most=12, error=RuntimeError("another fault")).eval(), x)


def test_out_of_memory_for_a_single_point_says_so() -> None:
    class Never(torch.nn.Module):
        """No memory for one of the points, alone or with others."""

        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if bool((x[:, 0] == 7.0).any()):
                raise MemoryError
            return self.head(x)

    x = torch.zeros(12, 6)
    x[8] = 7.0  # no check runs it
    with pytest.raises(MemoryError, match=r"Θ of 12 points does not fit .* take fewer points, a smaller watch="):
        ft.ntk(Never().eval(), x)
