"""Generated calls of the public functions: valid arguments, and one or two of them replaced by something odd."""

import copy
import math
import random
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import foretaste as ft
from foretaste.network import MLP
from foretaste.tangent.frozen import balanced_signs
from foretaste.testing.contracts import describe_changes, snapshot_network

from .outcomes import Tally, WrongError, outcome_of

STRATEGIES = [
    "gain", "variance", "mlmoc", "emoc", "eer", "flips", "entropy", "margin", "least_confidence", "random", "badge",
]  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 10**9, -(10**12), 0.0, 0.5, -2.5, 1e300, math.inf, -math.inf, math.nan, "", "1",
    "sum", "ce", "l2", "none", b"x", [], [1], ["a"], (), (1, 2), {}, {"a": 1}, {1, 2}, object(), lambda: 0, iter([1]),
    range(3), np.int64(3), np.float32(0.5), np.arange(3), np.zeros((2, 2)), np.array(["a", "b"]), torch.tensor(1),
    torch.tensor([1.0, 2.0]), torch.zeros(0), torch.zeros(3, 0), torch.tensor([math.nan]), torch.zeros(2, 3, 4),
    torch.tensor([True, False]), torch.zeros(4, dtype=torch.complex64), torch.zeros(4, 4, dtype=torch.float16),
    torch.eye(3, dtype=torch.uint8), 1j, type, nn.Linear(4, 3), torch.float64, "8GB", "12 parsecs",
]  # fmt: skip
ODD_POINTS: list[Any] = [
    [[1.0, 2.0], [3.0]], [[1.0] * 4] * 3, ["a text", "another"], [None, 1.0], [(torch.zeros(4), 0)] * 3,
    [{"x": 1.0}] * 3, np.array([1, "a", None], dtype=object), np.array([[1.0, math.nan]]), np.full((3, 4), 1e300),
    np.zeros((3, 4), ">f4"), np.ma.masked_equal(np.arange(8.0).reshape(2, 4), 3),
    np.array(["2025-01-01"], "datetime64[D]"),
    TensorDataset(torch.zeros(3, 4)), DataLoader(TensorDataset(torch.zeros(5, 4)), 2),
    DataLoader(TensorDataset(torch.zeros(5, 4)), 2, shuffle=True), nn.Sequential(nn.Linear(4, 3)),
]  # fmt: skip
if find_spec("pandas"):
    import pandas

    ODD_POINTS += [
        pandas.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}), pandas.DataFrame(np.zeros((3, 4)), index=[0, 0, 1]),
        pandas.DataFrame({"a": pandas.array([1, None], "Int64")}), pandas.DataFrame(), pandas.Series(["a", "b", None]),
        pandas.Series([0, 1], index=[7, 9]), pandas.Series([1.5, math.nan], dtype="Float64"),
    ]  # fmt: skip


POINTS = ("x", "x2", "x_L", "x_U", "watch", "y", "y_L")
LONG = ("steps", "epochs")
CALLED = ("progress", "oracle", "strategy", "params")


class Problem:
    """A small trained-looking network, labels and a pool, with their kernel by brute force."""

    def __init__(self, draw: random.Random) -> None:
        g = torch.Generator().manual_seed(draw.randrange(2**31))
        self.C = draw.choice([2, 3, 5])
        with torch.random.fork_rng([]):
            torch.manual_seed(draw.randrange(2**31))
            self.net = MLP(4, (6,), self.C, activation=draw.choice(["erf", "relu"])).double().eval()
        self.x_L = torch.randn(draw.randint(2, 5), 4, generator=g, dtype=torch.float64)
        self.y_L = torch.arange(len(self.x_L)) % self.C
        self.x_U = torch.randn(draw.randint(3, 8), 4, generator=g, dtype=torch.float64)

    def points(self, x: Tensor, draw: random.Random) -> Any:
        """The same points as users may have them."""
        forms: list[Any] = [
            lambda: x, lambda: x.numpy(), lambda: x.tolist(), lambda: list(x), lambda: TensorDataset(x),
            lambda: TensorDataset(x, torch.zeros(len(x))), lambda: DataLoader(TensorDataset(x), draw.randint(1, 4)),
        ]  # fmt: skip
        if find_spec("pandas"):
            forms.append(lambda: pandas.DataFrame(x.numpy()))
        return draw.choice(forms)()

    def labels(self, draw: random.Random) -> dict[str, Any]:
        """The labels as ids or as names."""
        words, numbers = [f"class{c}" for c in range(self.C)], [10 - c for c in range(self.C)]
        if (names := draw.choice([None, words, numbers])) is None:
            return {"y": draw.choice([self.y_L, self.y_L.tolist(), self.y_L.numpy()]), "classes": None}
        return {"y": [names[int(c)] for c in self.y_L], "classes": names}


def brute_force(net: nn.Module, x: Tensor, output: str | int = "sum") -> Tensor:
    """Θ by plain autograd, a point and an output at a time: (N, N), or (N, N, C, C) for "full"."""
    rows = []
    for point in x:
        f_C = net(point[None])[0]
        match output:
            case "sum":
                heads = f_C.sum()[None] / math.sqrt(len(f_C))
            case "signs":
                heads = (f_C @ balanced_signs(len(f_C)).to(f_C))[None]
            case "trace" | "full":
                heads = f_C
            case _:
                heads = f_C[None, 0 if output == "first" else output]
        for head in heads:
            grads = torch.autograd.grad(head, list(net.parameters()), retain_graph=True, materialize_grads=True)
            rows.append(torch.cat([g.to_dense().flatten() for g in grads]))
    J = torch.stack(rows)
    if output not in ("trace", "full"):
        return J @ J.T
    n, C = len(x), len(rows) // len(x)
    full = (J @ J.T).view(n, C, n, C).permute(0, 2, 1, 3)
    return full if output == "full" else torch.einsum("ijcc->ij", full) / C


def close(got: Tensor, want: Tensor, what: str, tolerance: float = 1e-6) -> None:
    if got.shape != want.shape:
        raise WrongError(f"{what} has shape {tuple(got.shape)}, expected {tuple(want.shape)}")
    gap = float((got - want).abs().max()) if got.numel() else 0.0
    if not gap <= tolerance * max(float(want.abs().max()) if want.numel() else 0.0, 1e-12):
        raise WrongError(f"{what} is off by {gap:.2e}")


def ntk_call(p: Problem, draw: random.Random) -> tuple[dict[str, Any], Any]:
    output = draw.choice(["sum", "signs", "first", p.C - 1, "trace", "full"])
    arguments = {"net": p.net, "x": p.points(p.x_U, draw), "output": output}

    def run(a: dict[str, Any], odd: bool) -> None:
        got = ft.ntk(a.pop("net"), a.pop("x"), a.pop("x2", None), **a)
        if not odd:
            close(got, brute_force(p.net, p.x_U, output), f"ntk {output}")
        elif not isinstance(got, Tensor):
            raise WrongError(f"ntk returned a {type(got).__name__}")

    return arguments | {"x2": None, "params": None, "budget": None, "precision": "float32"}, run


def query_call(p: Problem, draw: random.Random) -> tuple[dict[str, Any], Any]:
    strategy = draw.choice(STRATEGIES)
    batch_size = draw.randint(1, len(p.x_U))
    loss = draw.choice(["l2", "ce"])

    def run(a: dict[str, Any], odd: bool) -> None:
        q = ft.query(a.pop("net"), a.pop("x_L"), a.pop("y_L"), a.pop("x_U"), **a)
        picked = q.indices.tolist()
        if len(set(picked)) != len(picked) or not all(0 <= j < (10**9 if odd else len(p.x_U)) for j in picked):
            raise WrongError(f"picked {picked}")
        if not odd:
            if len(picked) != batch_size:
                raise WrongError(f"{len(picked)} picks, expected {batch_size}")
            if strategy == "variance" and loss == "l2":
                theta = brute_force(p.net, torch.cat([p.x_L, p.x_U]))
                L = len(p.x_L)
                A = theta[:L, :L] + 1e-3 * torch.eye(L, dtype=torch.float64)
                S = theta[L:, L:] - theta[L:, :L] @ torch.linalg.solve(A, theta[:L, L:])
                close(q.scores, S.square().sum(0) / (S.diagonal() + 1e-3), "variance scores")

    labels = p.labels(draw)
    arguments: dict[str, Any] = {
        "net": p.net, "x_L": p.points(p.x_L, draw), "y_L": labels["y"], "x_U": p.points(p.x_U, draw),
        "classes": labels["classes"], "strategy": strategy, "batch_size": batch_size,
        "loss": loss, "ridge": 1e-3, "select": "auto", "oracle": None, "ids": None, "seed": 0, "watch": None,
        "output": "sum", "method": "auto", "budget": None, "params": None, "precision": "auto", "options": None,
        "progress": None,
    }  # fmt: skip
    return arguments, run


def linearize_call(p: Problem, draw: random.Random) -> tuple[dict[str, Any], Any]:
    def run(a: dict[str, Any], odd: bool) -> None:
        j, y = a.pop("j"), a.pop("y")
        state = ft.linearize(a.pop("net"), a.pop("x_L"), a.pop("y_L"), a.pop("x_U"), **a)
        after = state.lookahead(j, y)
        kept = state.condition(j, y)
        if after.shape != state.mean.shape:
            raise WrongError(f"lookahead has shape {tuple(after.shape)}")
        close(kept.mean, after, "condition against lookahead")
        close(kept.release(j).mean, state.mean, "release")

    arguments: dict[str, Any] = {
        "net": p.net, "x_L": p.points(p.x_L, draw), "y_L": p.y_L, "x_U": p.points(p.x_U, draw),
        "j": draw.randrange(len(p.x_U)),
        "y": draw.randrange(p.C), "watch": None, "output": draw.choice(["sum", "first", "full"]), "ridge": 1e-3,
        "method": draw.choice(["auto", "dense"]), "loss": "l2", "time": math.inf, "params": None, "budget": None,
        "precision": "auto", "theta_scale": 1.0, "seed": 0,
    }  # fmt: skip
    return arguments, run


def fit_call(p: Problem, draw: random.Random) -> tuple[dict[str, Any], Any]:
    def run(a: dict[str, Any], odd: bool) -> None:
        net = a.pop("net")
        net = copy.deepcopy(net) if isinstance(net, nn.Module) else net  # training changes it, as it should
        done = ft.fit(net, a.pop("x"), a.pop("y"), **a)
        if not math.isfinite(done.residual):
            raise WrongError(f"residual {done.residual}")

    arguments: dict[str, Any] = {
        "net": p.net, "x": p.points(p.x_L, draw), **p.labels(draw), "loss": "l2", "steps": 3, "epochs": None,
        "batch_size": 2, "max_lr": None,
        "weight_decay": 0.0, "augment": None, "pad": 4, "start": "warm", "statistics": "labelled", "normalise": None,
        "seed": 0, "progress": None, "fast": "auto",
    }  # fmt: skip
    return arguments, run


def run(count: int, seed: int = 0) -> Tally:
    """``count`` calls; half of them have one or two odd arguments."""
    tally, draw = Tally(), random.Random(seed)
    problem = Problem(draw)
    for k in range(count):
        if k % 20 == 0:
            problem = Problem(draw)
        arguments, call = draw.choice([ntk_call, query_call, linearize_call, fit_call])(problem, draw)
        odd = draw.sample(sorted(arguments), draw.choice([0, 0, 1, 1, 1, 2]))
        for name in odd:
            arguments[name] = draw.choice(ODD + ODD_POINTS if name in POINTS else ODD)
            if name in LONG and isinstance(arguments[name], int | float) and arguments[name] > 10:
                arguments[name] = -1  # a long training is no fault
        before = snapshot_network(problem.net, problem.x_L, problem.y_L, problem.x_U)
        outcome, words = outcome_of(partial(call, dict(arguments), bool(odd)))
        what = f"{call.__qualname__.split('.')[0]} with { ({n: arguments[n] for n in odd})!r:.300}"
        if outcome == "raw error" and any(callable(arguments[n]) for n in odd if n in CALLED):
            outcome = "clear error"  # of a function of the caller's, which was called as it should be
        if changed := describe_changes(before, snapshot_network(problem.net, problem.x_L, problem.y_L, problem.x_U)):
            outcome, words = "left behind", f"{changed[:3]} after {outcome}: {words}"
            problem = Problem(draw)
        tally.add(outcome, f"{what}: {words}")
    return tally
