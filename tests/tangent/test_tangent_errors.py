# ruff: noqa: E501
"""Bad input gets a clear error; the network is left as it was, whatever happens."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import foretaste as ft
from foretaste.network import MLP
from foretaste.tangent import outputs, plan
from networks import NETWORKS, Network


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).eval()


def cnn() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)).eval()


def words() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 3)).eval()


class Calls(nn.Module):
    """A network whose forward is given."""

    def __init__(self, forward) -> None:
        super().__init__()
        self.inner, self.how = mlp(), forward

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self.inner, x)


def diverged() -> nn.Module:
    net = mlp()
    net[0].weight.data[0, 0] = float("nan")
    return net


def half_training() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).eval()
    net[1].train()
    return net


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
BAD = {
    "train mode": (lambda: mlp().train(), X, {}, "train mode.*net.eval()"),
    "a submodule in train mode": (half_training, X, {}, "submodule '1' is in train mode"),
    "not a module": (lambda: len, X, {}, "expected a torch.nn.Module"),
    "points influence one another": (
        lambda: Calls(lambda net, x: net(x) - net(x).mean(0)).eval(), X, {}, "points influence one another"),
    "batch statistics in eval mode": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)).eval(),
        X, {}, r"module '1', a BatchNorm1d, has no running statistics.*track_running_stats=True"),
    "NaN inputs": (mlp, X.clone().index_put_((torch.tensor(1), torch.tensor(2)), torch.tensor(torch.nan)), {}, "x has 1 NaN"),
    "infinite inputs": (mlp, X / 0, {}, "NaN or infinite"),
    "NaN parameters": (diverged, X, {}, "parameter '0.weight' has NaN"),
    "NaN outputs": (lambda: Calls(lambda net, x: net(x) / 0).eval(), X, {}, "NaN or infinite outputs"),
    "no trainable parameters": (lambda: mlp().requires_grad_(False), X, {}, "no parameter of net requires grad"),
    "no parameters": (lambda: nn.Flatten().eval(), X, {}, "no parameters"),
    "outputs of one dimension": (lambda: Calls(lambda net, x: net(x)[:, 0]).eval(), X, {}, r"returns \(3,\).*expected \(3, C\)"),
    "outputs of three": (lambda: Calls(lambda net, x: net(x)[:, None]).eval(), X, {}, "expected"),
    "outputs in a tuple": (lambda: Calls(lambda net, x: (net(x), 1)).eval(), X, {}, "returns a tuple"),
    "bfloat16": (lambda: mlp().bfloat16(), X.bfloat16(), {}, "use net.float()"),
    "float16": (lambda: mlp().half(), X.half(), {}, "use net.float()"),
    "several dtypes": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3).double()).eval(), X, {}, "several devices or dtypes"),
    "text": (mlp, ["a", "b"], {}, "x holds text, such as 'a'; expected numbers. ft.open encodes text"),
    "an empty dict": (mlp, {}, {}, "empty dict"),
    "no points": (mlp, X[:0], {}, "no points"),
    "x2 of another shape": (mlp, X, {"x2": torch.randn(3, 5)}, r"x2 has points of shape \(5,\); expected \(4,\)"),
    "a wider x": (mlp, torch.randn(5, 6), {}, r"x has points of shape \(6,\).*layer '0', a Linear, expects 4 features"),
    "a wider x for a norm": (
        lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).eval(), torch.randn(5, 6), {},
        r"layer '0', a BatchNorm1d, expects 4 channels and got"),
    "float64 for float32": (mlp, X.double(), {}, r"x has points of torch.float64.*are torch.float32; .*x\.float\(\)"),
    "float32 for float64": (lambda: mlp().double(), X, {}, r"x has points of torch.float32.*float64; .*x\.double\(\)"),
    "x2 of another dtype": (mlp, X, {"x2": X.double()}, r"x2 is torch.float64; expected torch.float32.*\.to\(torch.float32\)"),
    "integer features": (mlp, X.long(), {}, r"x has points of torch.int64, .*x\.float\(\)"),
    "both at once": (mlp, torch.randn(5, 6).double(), {}, r"x\.float\(\); x has points of shape \(6,\)"),
    "bytes of images": (cnn, torch.zeros(5, 1, 6, 6, dtype=torch.uint8), {}, r"x has points of torch.uint8.*prepare\(x\)"),
    "images without channels": (cnn, torch.zeros(5, 6, 6), {}, r"'0', a Conv2d, expects \(points, 1, height, width\)"),
    "images of another size": (cnn, torch.zeros(5, 1, 8, 8), {}, r"layer '3', a Linear, expects 72 features.*\(3, 128\)"),
    "indices too large": (words, torch.full((5, 2), 9), {}, "indices 0 to 4 and got 9 to 9"),
    "indices that are floats": (words, torch.zeros(5, 2), {}, r"integer indices.*\.long\(\)"),
    "another device": (mlp, X.to("meta"), {}, "x is on meta and the network on cpu"),
    "unknown output": (mlp, X, {"output": "frist"}, "did you mean 'first'"),
    "a logit that is not there": (mlp, X, {"output": 3}, "net has 3 outputs"),
    "unknown parameter": (mlp, X, {"params": ["0.weigth"]}, "did you mean '0.weight'"),
    "a parameter name alone": (mlp, X, {"params": "0.weight"}, r"\['0.weight'\]"),
    "a choice of none": (mlp, X, {"params": lambda name: False}, "selects none"),
    "a budget in words": (mlp, X, {"budget": "lots"}, "'8GB'"),
    "a negative budget": (mlp, X, {"budget": -1}, "budget, in bytes, is -1; expected a number of at least 1"),
    "a budget too small": (mlp, X, {"budget": "1kB"}, "budget='.*' would do"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_says_what_to_do(name: str) -> None:
    make, x, options, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        ft.ntk(make(), x, **options)


@pytest.mark.parametrize("strategy", ["gain", "entropy", "badge", "naive"])
def test_a_query_names_the_argument_that_does_not_fit(strategy: str) -> None:
    def query(x_L: Tensor, x_U: Tensor) -> None:
        ft.query(mlp(), x_L, torch.tensor([0, 1]), x_U, strategy=strategy, batch_size=1)

    with pytest.raises(ValueError, match=r"x_U has points of shape \(6,\).*expects 4 features"):
        query(X[:2], torch.randn(5, 6))
    with pytest.raises(ValueError, match=r"x_U has points of torch.float64.*x_U\.float\(\)"):
        query(X[:2], X.double())
    if strategy != "badge":  # which does not use x_L
        with pytest.raises(ValueError, match=r"x_L has points of shape \(6,\); expected \(4,\)"):
            query(torch.randn(2, 6), X)
        with pytest.raises(ValueError, match=r"x_L is torch.float64; expected torch.float32"):
            query(X[:2].double(), X)


def test_outputs_names_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"x has points of torch.float64"):
        outputs(mlp(), X.double())
    with pytest.raises(ValueError, match="test points has points of shape"):
        outputs(mlp(), torch.randn(5, 6), name="test points")


@pytest.mark.parametrize("n", [1, 255, 256, 257, 295, 512, 600])
def test_outputs_are_those_of_every_point(n: int) -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 2).double().eval()
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    torch.testing.assert_close(outputs(net, x), net(x).detach())
    torch.testing.assert_close(outputs(net, x, chunk_size=7), net(x).detach())


def test_a_network_that_converts_its_inputs_takes_any() -> None:
    net = Calls(lambda net, x: net(x.float() / 255)).eval()
    x = torch.randint(0, 256, (5, 4), dtype=torch.uint8)
    assert torch.equal(ft.ntk(net, x), ft.ntk(net, x.double()))


def test_an_error_of_the_network_itself_stays_what_it_is() -> None:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        raise KeyError("head")

    with pytest.raises(KeyError, match="head") as e:
        ft.ntk(Calls(forward).eval(), X)
    assert "raised by net on the first points of x: ((3, 4), torch.float32)" in e.value.__notes__[0]

    def too_long(net: nn.Module, ids: Tensor) -> Tensor:
        raise ValueError("sequences of 4 tokens; at most 2")

    with pytest.raises(ValueError, match=r"^sequences of 4 tokens"):  # integers are right here
        ft.ntk(Calls(too_long).eval(), torch.zeros(5, 4, dtype=torch.long))


def test_a_network_with_parameters_of_its_own_names_the_type() -> None:
    net = Calls(lambda net, x: x @ net[0].weight.T @ net[2].weight.T).eval()
    with pytest.raises(ValueError, match=r"x has points of torch.float64.*x\.float\(\)"):
        ft.ntk(net, X.double())


@dataclass
class ModelOutput:
    """As Hugging Face's networks return it."""

    logits: Tensor
    loss: None = None


@pytest.mark.parametrize("wrap", [ModelOutput, lambda f: {"logits": f, "loss": None}], ids=["object", "dict"])
def test_outputs_with_logits_are_taken_as_they_are(wrap: Callable[[Tensor], object]) -> None:
    net, plain = Calls(lambda net, x: wrap(net(x))).eval(), mlp()
    for output in ("sum", "full"):
        assert torch.equal(ft.ntk(net, X, output=output), ft.ntk(plain, X, output=output))
    assert torch.equal(outputs(net, X), outputs(plain, X))
    y = torch.tensor([0, 1])
    for strategy in ("gain", "entropy", "badge"):
        picks = [ft.query(n, X[:2], y, X[2:], batch_size=2, strategy=strategy).indices.tolist() for n in (net, plain)]
        assert picks[0] == picks[1]
    with pytest.raises(TypeError, match=r"returns a dict; expected a tensor.*logits"):
        ft.ntk(Calls(lambda net, x: {"scores": net(x)}).eval(), X)


class Slices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ws = nn.ParameterList([torch.randn(4, 4), torch.randn(4, 3)])

    def forward(self, x: Tensor) -> Tensor:
        for w in self.ws[:-1]:
            x = torch.tanh(x @ w)
        return x @ self.ws[-1]


def test_gradients_that_functional_call_loses_are_refused() -> None:
    with pytest.raises(ValueError, match=r"gradient of 'ws.0' is lost"):
        ft.ntk(Slices().eval(), X)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it loads its compiler
def test_compiled_and_parallel_networks_are_the_network_inside() -> None:
    net = mlp()
    assert torch.equal(ft.ntk(nn.DataParallel(net).eval(), X), ft.ntk(net, X))
    compiled = torch.compile(net)  # never runs compiled: hooks and vmap see the module inside
    assert torch.equal(ft.ntk(compiled.eval(), X), ft.ntk(net, X))


@pytest.mark.parametrize("params", [2, True, math.inf, torch.tensor(1), iter([1]), mlp()])
def test_params_that_are_no_names(params: object) -> None:
    with pytest.raises(TypeError, match=r"params is a \w+.*expected a (sequence of parameter names|function)"):
        ft.ntk(mlp(), X, params=params)


def test_names_from_an_iterator() -> None:
    net = mlp()
    assert torch.equal(ft.ntk(net, X, params=iter([name for name, _ in net.named_parameters()])), ft.ntk(net, X))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_points_that_are_not_dense() -> None:
    for x in (X.to_sparse(), torch.nested.nested_tensor(list(X))):
        with pytest.raises(ValueError, match=r"x is .*expected a dense tensor"):
            ft.ntk(mlp(), x)


def test_points_of_too_few_dimensions() -> None:
    with pytest.raises(ValueError, match="x has one dimension, and net wants more"):
        ft.ntk(MLP(4, (6,), 3).eval(), torch.zeros(2))
    with pytest.raises(ValueError, match="x_U has no dimensions"):
        ft.query(mlp(), X[:2], torch.tensor([0, 1]), torch.tensor(1), batch_size=1, strategy="random")
    with pytest.raises(ValueError, match=r"net does not take x, of shape \(3, 3\)"):
        ft.fit(MLP(4, (6,), 3), torch.eye(3, dtype=torch.uint8), torch.arange(3), steps=2)


def test_inputs_so_large_that_the_kernel_overflows() -> None:
    net = MLP(4, (6,), 3).eval()
    for scale in (1e20, 1e25):
        with pytest.raises(ValueError, match=r"Θ is too large for torch.float32.*scale the inputs.*net.double\(\)"):
            ft.ntk(net, scale * X)
    double = copy.deepcopy(net).double()
    torch.testing.assert_close(ft.ntk(net, 1e18 * X), ft.ntk(double, 1e18 * X.double()), rtol=1e-5, atol=0)  # not yet
    assert torch.isfinite(ft.ntk(double, 1e25 * X.double())).all()


def test_autocast_and_no_grad_around_it_change_nothing() -> None:
    net = mlp()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        inside = ft.ntk(net, X)
    assert torch.equal(inside, ft.ntk(net, X))


def snapshot(net: nn.Module) -> dict[str, object]:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_with_kwargs")
    return {
        "state": copy.deepcopy(net.state_dict()),
        "grads": [None if p.grad is None else p.grad.clone() for p in net.parameters()],
        "flags": [p.requires_grad for p in net.parameters()],
        "identity": [id(p) for p in net.parameters()] + [id(b) for b in net.buffers()],
        "versions": [p._version for p in net.parameters()] + [b._version for b in net.buffers()],
        "training": [m.training for m in net.modules()],
        "hooks": [[list(getattr(m, h)) for h in hooks] for m in net.modules()],
        "rng": torch.get_rng_state(),
        "threads": torch.get_num_threads(),
    }


def same(a: object, b: object) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def assert_untouched(before: dict[str, object], net: nn.Module) -> None:
    after = snapshot(net)
    assert [k for k in before if not same(before[k], after[k])] == []


class Noisy(nn.Module):
    """Draws random numbers and counts its calls in a buffer, without effect on its output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.inner(x) + 0 * torch.rand(()).to(x)


@pytest.mark.parametrize("case", [*NETWORKS[::5], Network("noisy", Noisy, (4,))], ids=str)
def test_the_network_is_as_it_was(case: Network) -> None:
    net = case.built()
    next(net.parameters()).grad = torch.ones_like(next(net.parameters()))
    before = snapshot(net)
    ft.ntk(net, case.points(4), output="full")
    plan(net, case.points(4))
    outputs(net, case.points(4))
    assert_untouched(before, net)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("after", [2, 5, 8])
def test_also_after_an_exception_or_ctrl_c(
    stop: type[BaseException], after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretaste.tangent.planning.CHUNK_BYTES", {"cpu": 1})  # sixteen points at a time
    count = 0

    class Stops(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal count
            count += 1
            if count > after:
                raise stop
            return x

    net = nn.Sequential(nn.Linear(4, 6), Stops(), nn.BatchNorm1d(6), nn.Linear(6, 3)).eval()
    x = torch.randn(200, 4)
    before = snapshot(net)
    with pytest.raises(stop):
        ft.ntk(net, x)
    assert_untouched(before, net)


def test_a_network_in_distributed_data_parallel_is_the_network_inside(tmp_path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("this build of torch has no torch.distributed")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = mlp()
        wrapped = nn.parallel.DistributedDataParallel(net).eval()
        assert torch.equal(ft.ntk(wrapped, X), ft.ntk(net, X))
        y = torch.tensor([0, 1])
        q = ft.query(wrapped, X[:2], y, X[2:], batch_size=2, seed=1)
        assert q.indices.tolist() == ft.query(net, X[:2], y, X[2:], batch_size=2, seed=1).indices.tolist()
    finally:
        torch.distributed.destroy_process_group()
