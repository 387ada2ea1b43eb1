"""Milliseconds from a label to the next query: condition on a pick, score every candidate anew, take the best.

python -m foretaste.bench._picks [cpu | cuda]
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor

from foretaste.acquire import find_strategy
from foretaste.lookahead import State, from_kernels
from foretaste.query import ProgressCounter, pick_each


@dataclass(frozen=True)
class Row:
    strategy: str
    select: str
    U: int
    batch_size: int
    ms: float  # of a pick, the median
    last_ms: float  # of the last tenth: what a pick costs when the others are kept
    seconds: float  # of the batch, the first scores included, the kernel not
    picked: tuple[int, ...]


def picks(
    strategies: Sequence[str] = ("gain", "mlmoc", "variance"),
    sizes: Sequence[int] = (1000, 4000),
    selects: Sequence[str] = ("greedy", "sequential"),
    *,
    batch_size: int = 20,
    L: int = 100,
    C: int = 10,
    rounds: int = 3,
    device: str = "cpu",
    seed: int = 0,
    said: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Each batch ``rounds`` times, the quickest kept. W = U, a kernel of full rank, a network that interpolates L."""
    rows = []
    for U in sizes:
        state, y_U = pool(L, U, C, device, seed)
        for select in selects:
            for name in strategies:
                best = min((_batch(state, y_U, name, select, batch_size, seed) for _ in range(rounds)), key=_ms)
                rows.append(best)
                said(best)
    return rows


def pool(L: int, U: int, C: int, device: str, seed: int) -> tuple[State, list[int]]:
    """A state as training leaves it, without a network: clusters under a Gaussian kernel, f its regression on L."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, C, (L + U,), generator=g)
    x = torch.randn(C, 16, generator=g)[y] + torch.randn(L + U, 16, generator=g)
    x, y = x.double().to(device), y.to(device)
    theta = torch.cdist(x, x).square_().div_(-32).exp_().add_(1)
    LL, UL, UU = theta[:L, :L].clone(), theta[L:, :L].clone(), theta[L:, L:].clone()
    e_LC = torch.nn.functional.one_hot(y[:L], C).double()
    A = LL + 1e-6 * torch.eye(L, dtype=LL.dtype, device=LL.device)
    f_UC = UL @ torch.linalg.solve(A, e_LC - 1 / C) + 1 / C
    state = from_kernels(LL, None, UL, UU, None, e_LC, None, f_UC, y[:L])
    state.variance_blocks  # Θ, S and its diagonal are not what is measured  # noqa: B018
    return state, y[L:].tolist()


def _batch(state: State, y_U: list[int], name: str, select: str, batch_size: int, seed: int) -> Row:
    """Each pick ends in one number read from the device, so that a host's clock tells the time of a GPU too."""
    score: Callable[[State], Tensor] = find_strategy(name).fn
    at: list[float] = []
    ask = (lambda j: y_U[j]) if select == "sequential" else None
    start = time.perf_counter()
    got = pick_each(
        state,
        score,
        select,
        batch_size,
        torch.Generator().manual_seed(seed),
        ProgressCounter(lambda done, of: at.append(time.perf_counter())),
        ask,
    )
    ms = [1e3 * (b - a) for a, b in pairwise(at)]
    tail = ms[-max(1, len(ms) // 10) :]
    took = time.perf_counter() - start
    return Row(name, select, state.U, batch_size, median(ms), median(tail), took, tuple(got.indices))


def _ms(row: Row) -> float:
    return row.ms


def as_markdown(rows: Sequence[Row]) -> str:
    lines = [
        "| strategy | select | U | batch | ms a pick | ms at the end | s a batch |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| `{r.strategy}` | {r.select} | {r.U} | {r.batch_size} | {r.ms:.3g} | {r.last_ms:.3g} | {r.seconds:.3g} |"
        )
    return "\n".join(lines)


def standard(device: str, quick: bool = False) -> list[Row]:
    """A few picks from pools of two sizes, and a large batch."""
    few, (batch_size, many) = (1000, 4000), (1000, 6000) if device != "cpu" else (300, 2000)
    if quick:
        few, batch_size, many = (50, 100), 20, 80
    found = picks(sizes=few, device=device)
    return found + picks(("gain", "variance"), (many,), ("greedy",), batch_size=batch_size, rounds=1, device=device)


if __name__ == "__main__":
    print(as_markdown(standard(sys.argv[1] if len(sys.argv) > 1 else "cpu")))
