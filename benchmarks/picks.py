"""Milliseconds from a label to the next query: condition on a pick, score every candidate again, take the best.

A greedy batch of a coverage (``cover``) is grown lazily instead; its κ, made once, counts in the seconds of the batch.

``python -m benchmarks.picks [cpu | cuda]``
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import torch

from foretaste.acquire import find_strategy
from foretaste.lookahead import State, from_kernels
from foretaste.pick import Batch, Oracle, ProgressCounter, pick


@dataclass(frozen=True)
class PickRow:
    """One batch of picks."""

    strategy: str
    select: str
    U: int
    batch_size: int
    ms: float  # of a pick, the median
    last_ms: float  # of the last tenth of the picks: their cost when many labels have been added
    seconds: float  # of the batch, with the first scores, without the kernel
    picked: tuple[int, ...]


def time_picks(
    strategies: Sequence[str] = ("cover", "gain", "mlmoc", "variance"),
    sizes: Sequence[int] = (1000, 4000),
    selects: Sequence[str] = ("greedy", "sequential"),
    *,
    batch_size: int = 20,
    L: int = 100,
    C: int = 10,
    rounds: int = 3,
    device: str = "cpu",
    seed: int = 0,
) -> list[PickRow]:
    """Each batch ``rounds`` times; the fastest picks count, and the seconds of the first batch, which makes κ.

    W = U, with a kernel of full rank and f interpolating L.
    """
    rows = []
    for U in sizes:
        state, y_U = synthetic_state(L, U, C, device, seed)
        for select in selects:
            for name in strategies:
                batches = [pick_batch(state, y_U, name, select, batch_size, seed) for _ in range(rounds)]
                rows.append(replace(min(batches, key=lambda row: row.ms), seconds=batches[0].seconds))
    return rows


def synthetic_state(L: int, U: int, C: int, device: str, seed: int) -> tuple[State, list[int]]:
    """A state as training leaves it, without a network: clusters, a Gaussian kernel, and f its regression on L.

    Also returns the classes of the pool.
    """
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
    state.variance_blocks  # computed now: Θ, S and its diagonal are not what is timed  # noqa: B018
    return state, y[L:].tolist()


def pick_batch(state: State, y_U: list[int], name: str, select: str, batch_size: int, seed: int) -> PickRow:
    """Pick one batch. Each pick reads a number from the device, so the host's clock is right for a GPU too."""
    how, at = find_strategy(name), list[float]()
    oracle = Oracle(lambda j: y_U[j]) if select == "sequential" else None
    start = time.perf_counter()
    counter, g = ProgressCounter(lambda done, of: at.append(time.perf_counter())), torch.Generator().manual_seed(seed)
    got = pick(how, state, Batch(batch_size, g, progress=counter), select=select, oracle=oracle)
    ms = [1e3 * (b - a) for a, b in pairwise(at)]
    tail = ms[-max(1, len(ms) // 10) :]
    took = time.perf_counter() - start
    return PickRow(name, select, state.U, batch_size, median(ms), median(tail), took, tuple(got.indices))


def picks_markdown(rows: Sequence[PickRow]) -> str:
    """One line for each batch."""
    lines = [
        "| strategy | select | U | batch | ms a pick | ms at the end | s a batch |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| `{r.strategy}` | {r.select} | {r.U} | {r.batch_size} | {r.ms:.3g} | {r.last_ms:.3g} | {r.seconds:.3g} |"
        )
    return "\n".join(lines)


def time_standard_picks(device: str, quick: bool = False) -> list[PickRow]:
    """A few picks from pools of two sizes, and one large batch."""
    few, large, (batch_size, many) = (1000, 4000), (1000, 6000), (1000, 6000) if device != "cpu" else (300, 2000)
    if quick:
        few, large, (batch_size, many) = (50, 100), (20, 80), (20, 80)
    rows = time_picks(sizes=few, device=device)
    rows += time_picks(("cover",), (large[1],), ("greedy",), batch_size=large[0], device=device)
    return rows + time_picks(("gain", "variance"), (many,), ("greedy",), batch_size=batch_size, rounds=1, device=device)


if __name__ == "__main__":
    print(picks_markdown(time_standard_picks(sys.argv[1] if len(sys.argv) > 1 else "cpu")))
