"""The kernels of infinitely wide networks in closed form: the NTK, and the NNGP (the process at initialisation).

    from foretaste.tangent.infinite import Conv, Dense, GlobalAveragePool, Relu, Residual, Serial, infinite_ntk
    body = Serial(Relu(), Conv(64), Relu(), Conv(64))
    infinite_ntk(Serial(Conv(64), Residual(body), Relu(), GlobalAveragePool(), Dense(10)), x)

K is the second moment of an activation between two points, Θ the kernel of Eq. 4 for one logit; layer by layer

    affine   K ← W_std² K̄ + b_std²          Θ ← W_std² Θ̄ + (own parameters, below)
    φ        K ← E φ(u) φ(u′)               Θ ← Θ · E φ′(u) φ′(u′)                     (u, u′) ~ N(0, K)

where the bar is the mean over a convolution's window. BatchNorm is left out of the infinite model: on batch statistics
it has no closed form here, and frozen as it starts it is the identity. W_std keeps the scale instead.

"ntk" parametrisation: z = W_std/√fan_in · w a + b_std b with w, b ~ N(0, 1); own parameters give the new K.

"standard" parametrisation, that of torch: z = w a + b with w ~ N(0, W_std²/fan_in), b ~ N(0, b_std²); own parameters
give fan_in · K̄, and 1 for a bias. fan_in is that of the declared widths: in the limit of Sohl-Dickstein et al. 2020
(arXiv 2001.07301), neural-tangents' with s = 1, all widths grow in proportion while learning rates fall, so that each
layer keeps the weight its declared width gives it. The empirical Θ of a torch network so initialised tends to this one
relatively: Θ_net / Θ → 1 as 1/√width.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from foretaste.errors import did_you_mean, format_bytes
from foretaste.tangent.frozen import check_inputs, to_float64
from foretaste.tangent.infinite.counterpart import counterpart
from foretaste.tangent.infinite.covariance import DUAL_BLOCK_BYTES
from foretaste.tangent.infinite.layers import (
    Covariance,
    Layer,
    Signal,
    nesting,
)
from foretaste.tangent.memory import resolve_budget

# How many pairs of points to take at once, for the memory their covariances need.


CPU_TILE = 1 << 26  # more at once is slower on a CPU: fresh pages cost more than the arithmetic
SHARES = 8  # tiles along a side, so that symmetry saves nearly its half


def tile_sizes(
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
    block = DUAL_BLOCK_BYTES[device.type == "cuda"]

    def nbytes(rows: int, columns: int) -> int:
        # Besides what is held: a convolution makes both anew by way of an intermediate, a dual works block by block.
        pairs = rows * columns * one
        return pairs * (held + (4 if tangent else 2)) + (rows + columns) * own * (6 + held) + 6 * min(block, pairs)

    if (need := nbytes(1, 1)) > budget - taken:
        kept = "every pixel with every other, for the pooling" if last.pooled else "each pixel with itself"
        raise ValueError(
            f"a budget of {format_bytes(budget)} is too small: Θ and the inputs take {format_bytes(taken)}, one "
            f"pair of points {format_bytes(need)} ({last.cells} pixels, {kept}); "
            f"budget={format_bytes(1.1 * (taken + need))!r} would do"
        )
    room = budget - taken if device.type == "cuda" else max(need, min(budget - taken, CPU_TILE))
    rows = columns = _most_points(
        lambda side: nbytes(side, side), room, math.ceil(n / SHARES) if symmetric else max(n, m)
    )
    if not symmetric:
        rows = max(1, min(rows, n))
        columns = _most_points(lambda side: nbytes(rows, side), room, m)
    return _walk_layers(n, m, rows, columns, symmetric)


def _most_points(cost: Callable[[int], int], room: int, limit: int) -> int:
    """The largest number up to ``limit`` whose cost fits, by bisection; 1 is known to."""
    low, high = 1, max(limit, 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(middle) <= room else (low, middle - 1)
    return low


def _walk_layers(n: int, m: int, rows: int, columns: int, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    for i in range(0, n, rows):
        for j in range(i if symmetric else 0, m, columns):
            yield slice(i, min(i + rows, n)), slice(j, min(j + columns, m))


# The kernels of infinitely wide networks in closed form: the NTK, and the NNGP (the process at initialisation).


PARAMETRISATIONS = ("standard", "ntk")


def infinite_ntk(
    net: Layer | nn.Module,
    x: Tensor,
    x2: Tensor | None = None,
    *,
    kind: str = "ntk",
    parametrisation: str = "standard",
    budget: int | str | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Θ, or K of the outputs for ``kind="nngp"``, between x and x2 at infinite width: (N, N2), float64.

    ``net`` is a layer of this module, or a network that has a ``counterpart``. Points are (N, features) or
    (N, channels, *space). A pair takes as many numbers as an image has pixels, or their square where there is global
    average pooling; ``budget`` bounds the pairs taken at once. ``dtype=torch.float32`` computes in that.
    """
    layer = counterpart(net) if isinstance(net, nn.Module) else net
    _check_layer(layer, x, x if x2 is None else x2, kind, parametrisation, dtype)
    start = Signal(x.shape[1], tuple(x.shape[2:]), cells=math.prod(x.shape[2:]))
    last = layer.shape(start)
    if last.space:
        raise ValueError(
            f"the network ends with space {last.space}; end it with Flatten() or GlobalAveragePool(), Dense"
        )
    tangent, standard = kind == "ntk", parametrisation == "standard"
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        x_N = to_float64(x)  # float64 also for float32: the products of the inputs decide how near points are
        x_M = x_N if x2 is None else to_float64(x2)
        theta = x_N.new_empty(len(x_N), len(x_M))
        plan = tile_sizes(
            layer,
            last,
            *theta.shape,
            symmetric=x2 is None,
            tangent=tangent,
            dtype=dtype,
            device=x_N.device,
            budget=resolve_budget(budget, x_N.device),
            taken=theta.nbytes + x_N.nbytes + (0 if x2 is None else x_M.nbytes),
        )
        for n, m in plan:
            k = layer.apply(_input_covariance(x_N[n], x_M[m], start, last, dtype, tangent, standard))
            tile = k.nngp if not tangent else torch.zeros_like(k.nngp) if k.ntk is None else k.ntk
            if x2 is None:
                theta[m, n] = tile.T
                tile = tile.triu() + tile.triu(1).T if n == m else tile
            theta[n, m] = tile
    return theta


def _input_covariance(
    x_n: Tensor, x_m: Tensor, start: Signal, last: Signal, dtype: torch.dtype, tangent: bool, standard: bool
) -> Covariance:
    """The inputs' products, averaged over channels; which pixels meet is what the layers to come need."""
    full, own_full, c = last.pooled, last.bent, x_n.shape[1]
    a, b = x_n.reshape(len(x_n), c, -1), x_m.reshape(len(x_m), c, -1)
    between = torch.einsum("ncp,mcq->nmpq" if full else "ncp,mcp->nmp", a, b).div_(c).to(dtype)
    nngp = between.reshape(len(a), len(b), *start.space * (2 if full else 1))
    within = (torch.einsum("ncp,ncq->npq" if own_full else "ncp,ncp->np", t, t).div_(c).to(dtype) for t in (a, b))
    own_n, own_m = (own.reshape(len(own), *start.space * (2 if own_full else 1)) for own in within)
    return Covariance(nngp, None, own_n, own_m, start, full, own_full, tangent, standard)


def _check_layer(layer: Layer, x: Tensor, x2: Tensor, kind: str, parametrisation: str, dtype: torch.dtype) -> None:
    if isinstance(layer, type) or not hasattr(layer, "apply") or not hasattr(layer, "shape"):
        raise TypeError(
            f"net is {layer!r}; expected a torch network, or layers such as Serial(Dense(64), Relu(), Dense(1))"
        )
    for name, value, known in (("kind", kind, ("ntk", "nngp")), ("parametrisation", parametrisation, PARAMETRISATIONS)):
        if value not in known:
            raise ValueError(f"unknown {name} {value!r}{did_you_mean(value, known)}")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype is {dtype}; expected torch.float64 or torch.float32")
    for name, points in (("x", x), ("x2", x2)):
        if not isinstance(points, Tensor) or not points.is_floating_point() or points.dim() < 2:
            what = f"{points.dtype} {tuple(points.shape)}" if isinstance(points, Tensor) else type(points).__name__
            raise TypeError(f"{name} is {what}; expected a floating tensor (N, features) or (N, channels, *space)")
        check_inputs(points, name, x.device, x)
