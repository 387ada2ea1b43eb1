"""ft.ntk beside neural-tangents on a CPU: the same small CNN and points, in two processes that take turns.

``python -m benchmarks.neural_tangents PYTHON [THREADS ...]``: PYTHON belongs to an environment of its own with
neural-tangents (0.6.5, or its repository's head on PYTHONPATH) and jax 0.5.3. Newer versions of JAX cannot import it.
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

from benchmarks import neural_tangents_process
from benchmarks.measure import Progress, no_progress
from benchmarks.neural_tangents_process import clock_and_cpu_seconds
from foretaste.tangent import ntk

OURS = "ft.ntk"
# NTK_VECTOR_PRODUCTS, the third one, takes N·N2·C backward and forward passes: minutes here.
IMPLEMENTATIONS = ("STRUCTURED_DERIVATIVES", "JACOBIAN_CONTRACTION")
OUR_KERNELS: dict[str, Callable[..., Tensor]] = {
    "trace": lambda net, x, x2: ntk(net, x, x2, output="trace"),
    "full": lambda net, x, x2: ntk(net, x, x2, output="full"),
}


class SmallCNN(nn.Module):
    """Three convolutions 3 × 3 with ReLU, then ten outputs from their mean over positions, or from all (flat)."""

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
class CNNCase:
    """A network and the points of a kernel."""

    name: str
    net: SmallCNN
    x: Tensor
    x2: Tensor | None  # None: x again, and both libraries make use of it


@dataclass(frozen=True)
class NeuralTangentsRow:
    """One kernel of one case, by every contender."""

    case: str
    threads: int
    kind: str  # "trace" (Σ_c Θ_cc / C) or "full"
    ms: dict[str, float]  # median of each contender's turns, by the clock
    cpu_ms: dict[str, float]  # of all processors
    error: dict[str, float]  # relative, to ours in float64

    def ratio(self, ms: Mapping[str, float]) -> float:
        """The best time of theirs over ours. Above 1, ours is faster."""
        return min(v for k, v in ms.items() if k != OURS) / ms[OURS]


def cnn_cases(N: int = 100, seed: int = 0) -> Iterator[CNNCase]:
    """Digits and photographs; one set of points or two; many positions, and few (where structure pays most)."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        for name, shape, options in (
            ("28 × 28 × 1, 32 channels, mean", (1, 28, 28), {}),
            ("32 × 32 × 3, 32 channels, mean", (3, 32, 32), {}),
            ("28 × 28 × 1, 32 channels, flat", (1, 28, 28), {"flat": True}),
            ("28 × 28 × 1, 64 channels, stride 2, flat", (1, 28, 28), {"wide": 64, "stride": 2, "flat": True}),
        ):
            net = SmallCNN(shape, **options).eval()
            x, x2 = torch.rand(N, *shape), torch.rand(N, *shape)
            yield CNNCase(name, net, x, x2)
            if shape == (1, 28, 28) and not options:
                yield CNNCase(f"{name}, one set", net, x, None)


def compare_libraries(
    python: str,
    case: CNNCase,
    *,
    threads: int = 2,
    rounds: int = 9,
    implementations: Sequence[str] = IMPLEMENTATIONS,
) -> tuple[list[NeuralTangentsRow], dict[str, Any]]:
    """Run everything once to warm up and for its values, then in turns. Also returns versions of the other process."""
    torch.set_num_threads(threads)
    x2_64 = None if case.x2 is None else case.x2.double()
    truth = {kind: run(case.net.double(), case.x.double(), x2_64) for kind, run in OUR_KERNELS.items()}
    case.net.float()
    rows = []
    with other_process(python, case, threads, implementations) as (time_theirs, about, kernels):
        for kind, run in OUR_KERNELS.items():
            results = {OURS: run(case.net, case.x, case.x2)}
            results |= {name: torch.from_numpy(kernels[f"{name} {kind}"]) for name in implementations}
            took: dict[str, list[tuple[float, float]]] = {name: [] for name in results}
            for _ in range(rounds):
                took[OURS].append(clock_and_cpu_seconds(lambda run=run: run(case.net, case.x, case.x2)))  # type: ignore[misc]
                for name in implementations:
                    took[name].append(time_theirs(f"{name} {kind}"))
            ms, cpu_ms = ({k: 1e3 * median(t[at] for t in v) for k, v in took.items()} for at in (0, 1))
            error = {k: float((v.double() - truth[kind]).norm() / truth[kind].norm()) for k, v in results.items()}
            rows.append(NeuralTangentsRow(case.name, threads, kind, ms, cpu_ms, error))
    return rows, about


def compare_all_cases(
    python: str, threads: int, quick: bool = False, progress: Progress = no_progress
) -> list[NeuralTangentsRow]:
    """All cases; quick: the first one with few points."""
    rows: list[NeuralTangentsRow] = []
    for case in islice(cnn_cases(10), 1) if quick else cnn_cases():
        progress(f"neural-tangents: {case.name}")
        rows += compare_libraries(python, case, threads=threads, rounds=1 if quick else 9)[0]
    return rows


@contextmanager
def other_process(
    python: str, case: CNNCase, threads: int, implementations: Sequence[str]
) -> Iterator[tuple[Callable[[str], tuple[float, float]], dict[str, Any], Mapping[str, np.ndarray]]]:
    """Start the process with neural-tangents. Yields a function that times one run there, its versions, its kernels."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "case.npz", **channels_last_arrays(case))  # type: ignore[arg-type]
        command = [python, str(Path(neural_tangents_process.__file__)), folder, str(threads), *implementations]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            names, answers = process.stdin, process.stdout
            about = answers.readline()
            if not about:
                raise RuntimeError(
                    f"{python} ended before its first answer (its error is above); it needs neural-tangents and JAX"
                )

            def time_theirs(name: str) -> tuple[float, float]:
                print(name, file=names, flush=True)
                clock, processors = map(float, answers.readline().split())
                return clock, processors

            with np.load(Path(folder) / "kernels.npz") as kernels:
                yield time_theirs, json.loads(about), {k: kernels[k] for k in kernels.files}
            names.close()


def channels_last_arrays(case: CNNCase) -> dict[str, np.ndarray]:
    """Weights and points with channels last, as the network in JAX needs them."""
    net = case.net
    tensors = {k: p.permute(2, 3, 1, 0) if p.dim() == 4 else p for k, p in net.named_parameters()}
    weight = net.head.weight
    if net.flat:  # its columns are channels and positions, in the order of flatten
        h, w = (-(-s // net.stride**3) for s in case.x.shape[2:])
        weight = weight.unflatten(1, (-1, h, w)).permute(0, 2, 3, 1).flatten(1)
    tensors |= {"head.weight": weight.T, "x1": case.x.permute(0, 2, 3, 1)}
    if case.x2 is not None:
        tensors["x2"] = case.x2.permute(0, 2, 3, 1)
    arrays = {k: v.detach().contiguous().numpy() for k, v in tensors.items()}
    return arrays | {"stride": np.array(net.stride), "flat": np.array(net.flat)}


def neural_tangents_markdown(rows: Sequence[NeuralTangentsRow]) -> str:
    """Milliseconds by the clock, and of processors in brackets."""
    names = list(rows[0].ms)
    columns = " | ".join(f"`{name}`" for name in names)
    lines = [
        f"| network | threads | kernel | {columns} | best of theirs / ours | errors |",
        f"|---|---|---|{'---|' * len(names)}---|---|",
    ]
    for r in rows:
        times = " | ".join(f"{r.ms[name]:.0f} ({r.cpu_ms[name]:.0f})" for name in names)
        errors = ", ".join(f"{r.error[name]:.0e}" for name in names)
        ratios = f"**{r.ratio(r.ms):.2f}** ({r.ratio(r.cpu_ms):.2f})"
        lines.append(f"| {r.case} | {r.threads} | {r.kind} | {times} | {ratios} | {errors} |")
    return "\n".join(lines)


if __name__ == "__main__":
    found: list[NeuralTangentsRow] = []
    for threads in map(int, sys.argv[2:] or ("2", "1")):
        found += compare_all_cases(sys.argv[1], threads, progress=lambda name: print(name, file=sys.stderr))
    print(neural_tangents_markdown(found))
