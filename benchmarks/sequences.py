"""Attention and recurrence: ft.ntk beside torch.func and one forward pass. Run ``python -m benchmarks.sequences``.

Contenders take turns in one process, and a ratio is the median over the rounds of the ratio within a round: other work
on a machine slows both. ``--processor`` counts processor time instead of time on the wall, for a shared machine.
torch.func has no batching rule for an LSTM, where it takes long, and fails on a GRU. There it runs on few points, and
times are for each point.
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.measure import peak_bytes
from benchmarks.rivals import forward_pass, per_point_gradients
from foretaste.errors import format_bytes
from foretaste.tangent import ntk

WIDTH, TOKENS, CLASSES = 128, 64, 10
CPU = torch.device("cpu")


class ReadSequence(nn.Module):
    """A mean over tokens or the last output, and a head."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        return self.head(h[0][:, -1] if isinstance(h, tuple) else h.mean(1))


def encoder(wide: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, wide, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


SEQUENCES: dict[str, Callable[[], nn.Module]] = {
    "TransformerEncoder, 2 layers, 512 wide": lambda: encoder(512),
    "TransformerEncoder, 2 layers, 2048 wide": lambda: encoder(2048),
    "LSTM": lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True),
    "GRU": lambda: nn.GRU(WIDTH, WIDTH, batch_first=True),
}


@dataclass(frozen=True)
class SequenceRow:
    """One network. Times are in forward passes over as many points, memory is for each point."""

    name: str
    forward_ms: float  # for each point
    ours: float  # ft.ntk
    tight: float  # ft.ntk in a fifth of torch.func's memory
    func: float  # torch.func, in chunks of 32
    our_bytes: float
    tight_bytes: float
    func_bytes: float
    error: float  # of ft.ntk in float32, relative to plain autograd in float64


def plain_kernel(net: nn.Module, x: Tensor) -> Tensor:
    """Θ of the sum of the outputs by plain autograd, one point at a time."""
    rows = []
    for point in x:
        total = net(point[None]).sum() / CLASSES**0.5
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(total, list(net.parameters()))]))
    rows_NP = torch.stack(rows)
    return rows_NP @ rows_NP.T


def measure_sequence(name: str, points: int, few: int, rounds: int, clock: Callable[[], float]) -> SequenceRow:
    """few: points for torch.func where it has no batching rule."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = ReadSequence(SEQUENCES[name]()).eval()
        x = torch.randn(points, TOKENS, WIDTH)
    counts = dict.fromkeys(("forward", "ours", "tight"), points)
    counts["func"] = few if isinstance(net.inner, nn.RNNBase) else points
    budget: list[int | None] = [None]
    runs: dict[str, Callable[[], object]] = {
        "forward": lambda: forward_pass(net, x),
        "func": lambda: per_point_gradients(net, x[: counts["func"]], 32),
        "ours": lambda: ntk(net, x),
        "tight": lambda: ntk(net, x, budget=budget[0]),
    }
    peaks: dict[str, float] = {}
    times: dict[str, list[float]] = {kind: [] for kind in runs}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        for kind, run in runs.items():
            try:
                peaks[kind] = peak_bytes(run, CPU)[0] / counts[kind]
            except RuntimeError:  # torch.func has no batching rule
                del counts[kind]
            if kind == "func" and kind in peaks:
                budget[0] = int(peaks["func"] * points / 5)
        for turn in range(rounds):
            for kind in counts:
                if kind == "func" and turn and counts["func"] < points:
                    continue  # once is long enough
                start = clock()
                runs[kind]()
                times[kind].append((clock() - start) / counts[kind])
    few_points = x[:8]
    truth = plain_kernel(net.double(), few_points.double())
    error = float((ntk(net.float(), few_points) - truth).norm() / truth.norm())

    def forwards(kind: str) -> float:
        return median(t / one for t, one in zip(times[kind], times["forward"])) if times[kind] else math.nan

    return SequenceRow(
        name, 1e3 * median(times["forward"]), forwards("ours"), forwards("tight"), forwards("func"),
        peaks["ours"], peaks["tight"], peaks.get("func", math.nan), error,
    )  # fmt: skip


def sequence_table(rows: list[SequenceRow], points: int) -> Table:
    """For the terminal."""
    table = Table(
        title=f"Θ of {points} points of {TOKENS} tokens, {WIDTH} wide; {torch.get_num_threads()} threads",
        caption="times in forward passes; memory for each point",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    titles = ("", "forward, ms", "ft.ntk", "in a fifth", "torch.func", "peak", "in a fifth", "torch.func's", "error")
    for title in titles:
        table.add_column(title, justify="left" if not title else "right", no_wrap=True)
    for r in rows:
        fails = math.isnan(r.func)
        bytes_of = [format_bytes(int(b)) for b in (r.our_bytes, r.tight_bytes)]
        table.add_row(
            r.name, f"{r.forward_ms:.2f}", f"{r.ours:.1f}", "" if fails else f"{r.tight:.1f}",
            "fails" if fails else f"{r.func:.1f}", bytes_of[0], "" if fails else bytes_of[1],
            "" if fails else format_bytes(int(r.func_bytes)), f"{r.error:.0e}",
        )  # fmt: skip
    return table


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.sequences")
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--few", type=int, default=32, help="points for torch.func where it is slow")
    parser.add_argument("--processor", action="store_true", help="processor time instead of time on the wall")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    rows: list[SequenceRow] = []
    clock = time.process_time if o.processor else time.perf_counter
    for name in SEQUENCES:
        rows.append(measure_sequence(name, o.points, o.few, o.rounds, clock))
        print(rows[-1], flush=True)
    Console(width=160).print(sequence_table(rows, o.points))


if __name__ == "__main__":
    main()
