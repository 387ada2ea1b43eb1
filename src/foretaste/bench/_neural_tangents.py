"""ft.ntk beside neural-tangents on a CPU: the same small CNN and points, the two processes taking turns.

python -m foretaste.bench._neural_tangents PYTHON [THREADS ...]: PYTHON is that of an environment of its own which has
neural-tangents (0.6.5, or its repository's head on PYTHONPATH) with jax 0.5.3, for no newer JAX imports it.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.bench import _neural_tangents_side as side
from foretaste.tangent import ntk


class SmallCNN(nn.Module):
    """Three convolutions 3 × 3 with ReLU; their mean over positions, or all of them (flat), to ten outputs."""

    def __init__(self, shape: tuple[int, int, int], wide: int = 32, stride: int = 1, flat: bool = False) -> None:
        super().__init__()
        self.stride, self.flat = stride, flat
        self.convs = nn.ModuleList(nn.Conv2d(i, wide, 3, stride, padding=1) for i in (shape[0], wide, wide))
        h, w = (-(-s // stride**3) for s in shape[1:])
        self.head = nn.Linear(wide * h * w if flat else wide, 10)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.relu(conv(x))
        return self.head(x.flatten(1) if self.flat else x.mean((2, 3)))


@dataclass(frozen=True)
class Case:
    name: str
    net: SmallCNN
    x: Tensor
    x2: Tensor | None  # None: x again, and both sides are told so


@dataclass(frozen=True)
class Row:
    case: str
    threads: int
    kind: str  # "trace", of Σ_c Θ_cc / C, or "full"
    ms: dict[str, float]  # median of each contender's turns, by the clock
    cpu_ms: dict[str, float]  # of all processors
    error: dict[str, float]  # relative, to ours in float64

    def ratio(self, ms: Mapping[str, float]) -> float:
        """The best of theirs over ours: above 1 ours is faster."""
        return min(v for k, v in ms.items() if k != OURS) / ms[OURS]


OURS = "ft.ntk"
# Its third way, NTK_VECTOR_PRODUCTS, takes N·N2·C backward and forward passes: minutes here.
WAYS = ("STRUCTURED_DERIVATIVES", "JACOBIAN_CONTRACTION")
KERNELS: dict[str, Callable[..., Tensor]] = {
    "trace": lambda net, x, x2: ntk(net, x, x2, output="trace"),
    "full": lambda net, x, x2: ntk(net, x, x2, output="full"),
}


def cases(N: int = 100, seed: int = 0) -> Iterator[Case]:
    """Digits and photographs; one set of points or two; many positions, and few, where structure pays most."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        for name, shape, how in (
            ("28 × 28 × 1, 32 channels, mean", (1, 28, 28), {}),
            ("32 × 32 × 3, 32 channels, mean", (3, 32, 32), {}),
            ("28 × 28 × 1, 32 channels, flat", (1, 28, 28), {"flat": True}),
            ("28 × 28 × 1, 64 channels, stride 2, flat", (1, 28, 28), {"wide": 64, "stride": 2, "flat": True}),
        ):
            net = SmallCNN(shape, **how).eval()
            x, x2 = torch.rand(N, *shape), torch.rand(N, *shape)
            yield Case(name, net, x, x2)
            if shape == (1, 28, 28) and not how:
                yield Case(f"{name}, one set", net, x, None)


def compare(
    python: str, one: Case, *, threads: int = 2, rounds: int = 9, ways: Sequence[str] = WAYS
) -> tuple[list[Row], dict[str, Any]]:
    """Everything once to warm up, and for its values; then in turns. Also what the other side says of itself."""
    torch.set_num_threads(threads)
    truth = {k: run(one.net.double(), one.x.double(), double(one.x2)) for k, run in KERNELS.items()}
    one.net.float()
    rows = []
    with other(python, one, threads, ways) as (ask, about, kernels):
        for kind, run in KERNELS.items():
            found = {OURS: run(one.net, one.x, one.x2)}
            found |= {way: torch.from_numpy(kernels[f"{way} {kind}"]) for way in ways}
            took: dict[str, list[tuple[float, float]]] = {k: [] for k in found}
            for _ in range(rounds):
                took[OURS].append(side.timed(lambda run=run: run(one.net, one.x, one.x2)))  # type: ignore[misc]
                for way in ways:
                    took[way].append(ask(f"{way} {kind}"))
            ms, cpu_ms = ({k: 1e3 * median(t[at] for t in v) for k, v in took.items()} for at in (0, 1))
            error = {k: float((v.double() - truth[kind]).norm() / truth[kind].norm()) for k, v in found.items()}
            rows.append(Row(one.name, threads, kind, ms, cpu_ms, error))
    return rows, about


def standard(
    python: str, threads: int, quick: bool = False, said: Callable[[str], None] = lambda name: None
) -> list[Row]:
    """All cases; quick: few points of the first."""
    rows: list[Row] = []
    for one in islice(cases(10), 1) if quick else cases():
        said(f"neural-tangents: {one.name}")
        rows += compare(python, one, threads=threads, rounds=1 if quick else 9)[0]
    return rows


def double(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.double()


@contextmanager
def other(
    python: str, one: Case, threads: int, ways: Sequence[str]
) -> Iterator[tuple[Callable[[str], tuple[float, float]], dict[str, Any], Mapping[str, np.ndarray]]]:
    """The other environment's process: ask it for a run's seconds; what it is; its kernels."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "case.npz", **arrays(one))  # type: ignore[arg-type]
        command = [python, str(Path(side.__file__)), folder, str(threads), *ways]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            into, out = process.stdin, process.stdout
            line = out.readline()
            if not line:
                raise RuntimeError(
                    f"{python} stopped before its first answer (above); it needs neural-tangents and JAX"
                )

            def ask(name: str) -> tuple[float, float]:
                print(name, file=into, flush=True)
                clock, processors = map(float, out.readline().split())
                return clock, processors

            with np.load(Path(folder) / "kernels.npz") as kernels:
                yield ask, json.loads(line), {k: kernels[k] for k in kernels.files}
            into.close()


def arrays(one: Case) -> dict[str, np.ndarray]:
    """Weights and points with channels last, as the other side has them."""
    net = one.net
    found = {k: p.permute(2, 3, 1, 0) if p.dim() == 4 else p for k, p in net.named_parameters()}
    weight = net.head.weight
    if net.flat:  # its columns go with the channels and positions
        h, w = (-(-s // net.stride**3) for s in one.x.shape[2:])
        weight = weight.unflatten(1, (-1, h, w)).permute(0, 2, 3, 1).flatten(1)
    found |= {"head.weight": weight.T, "x1": one.x.permute(0, 2, 3, 1)}
    if one.x2 is not None:
        found["x2"] = one.x2.permute(0, 2, 3, 1)
    held = {k: v.detach().contiguous().numpy() for k, v in found.items()}
    return held | {"stride": np.array(net.stride), "flat": np.array(net.flat)}


def as_markdown(rows: Sequence[Row]) -> str:
    """Milliseconds by the clock, and of processors in brackets."""
    ways = list(rows[0].ms)
    lines = [
        f"| network | threads | kernel | {' | '.join(f'`{w}`' for w in ways)} | best of theirs / ours | errors |",
        f"|---|---|---|{'---|' * len(ways)}---|---|",
    ]
    for r in rows:
        times = " | ".join(f"{r.ms[w]:.0f} ({r.cpu_ms[w]:.0f})" for w in ways)
        errors = ", ".join(f"{r.error[w]:.0e}" for w in ways)
        ratios = f"**{r.ratio(r.ms):.2f}** ({r.ratio(r.cpu_ms):.2f})"
        lines.append(f"| {r.case} | {r.threads} | {r.kind} | {times} | {ratios} | {errors} |")
    return "\n".join(lines)


if __name__ == "__main__":
    found: list[Row] = []
    for threads in map(int, sys.argv[2:] or ("2", "1")):
        found += standard(sys.argv[1], threads, said=lambda name: print(name, file=sys.stderr))
    print(as_markdown(found))
