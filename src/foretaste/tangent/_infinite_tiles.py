"""How many pairs of points to take at once, for the memory their covariances need."""

import math
from collections.abc import Callable, Iterator

import torch

from foretaste.tangent._infinite_maps import BLOCK_BYTES
from foretaste.tangent._infinite_shapes import nesting
from foretaste.tangent._infinite_state import Layer, Signal
from foretaste.tangent._memory import human

CPU_TILE = 1 << 26  # more at once is slower on a CPU: fresh pages cost more than the arithmetic
SHARES = 8  # tiles along a side, so that symmetry saves nearly its half


def tiles(
    layer: Layer,
    last: Signal,
    n: int,
    m: int,
    *,
    symmetric: bool,
    tangent: bool,
    dtype: torch.dtype,
    device: torch.device,
    budget: int,
    taken: int,
) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of Θ, the upper half where symmetric; ``taken`` of the budget is Θ and the inputs."""
    one = dtype.itemsize * last.cells ** (2 if last.pooled else 1)
    own = dtype.itemsize * last.cells ** (2 if last.bent else 1)
    held = (2 if tangent else 1) * (1 + nesting(layer))  # K and Θ, once more for each residual block's input
    block = BLOCK_BYTES[device.type == "cuda"]

    def nbytes(rows: int, columns: int) -> int:
        # Besides what is held: a convolution makes both anew by way of an intermediate, a dual works block by block.
        pairs = rows * columns * one
        return pairs * (held + (4 if tangent else 2)) + (rows + columns) * own * (6 + held) + 6 * min(block, pairs)

    if (need := nbytes(1, 1)) > budget - taken:
        kept = "every pixel with every other, for the pooling" if last.pooled else "each pixel with itself"
        raise ValueError(
            f"a budget of {human(budget)} is too small: Θ and the inputs take {human(taken)}, one pair of points "
            f"{human(need)} ({last.cells} pixels, {kept}); budget={human(1.1 * (taken + need))!r} would do"
        )
    room = budget - taken if device.type == "cuda" else max(need, min(budget - taken, CPU_TILE))
    rows = columns = _most(lambda side: nbytes(side, side), room, math.ceil(n / SHARES) if symmetric else max(n, m))
    if not symmetric:
        rows = max(1, min(rows, n))
        columns = _most(lambda side: nbytes(rows, side), room, m)
    return _walk(n, m, rows, columns, symmetric)


def _most(cost: Callable[[int], int], room: int, limit: int) -> int:
    """The largest number up to ``limit`` whose cost fits, by bisection; 1 is known to."""
    low, high = 1, max(limit, 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(middle) <= room else (low, middle - 1)
    return low


def _walk(n: int, m: int, rows: int, columns: int, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    for i in range(0, n, rows):
        for j in range(i if symmetric else 0, m, columns):
            yield slice(i, min(i + rows, n)), slice(j, min(j + columns, m))
