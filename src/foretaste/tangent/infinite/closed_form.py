"""The kernels of infinitely wide networks in closed form, NTK and NNGP; the infinite counterpart of a torch network.

K, the NNGP kernel, is the second moment of an activation between two points: that of the process at initialisation. Θ,
the NTK, is the kernel of Eq. 4 for one logit. Layer by layer

    affine   K ← W_std² K̄ + b_std²          Θ ← W_std² Θ̄ + (the layer's own parameters, below)
    φ        K ← E φ(u) φ(u′)               Θ ← Θ · E φ′(u) φ′(u′)                     (u, u′) ~ N(0, K)

where the bar is the mean over a convolution's window. The infinite model has no BatchNorm. On batch statistics it has
no closed form here, and with its initial running statistics it is the identity. W_std keeps the scale instead.

"ntk" parametrisation: z = W_std/√fan_in · w a + b_std b with w, b ~ N(0, 1). The layer's own parameters give the new K.

"standard" parametrisation, that of torch: z = w a + b with w ~ N(0, W_std²/fan_in), b ~ N(0, b_std²). The layer's own
parameters give fan_in · K̄, and 1 for a bias. fan_in comes from the declared widths. This is the limit of Sohl-Dickstein
et al. 2020 (arXiv 2001.07301), neural-tangents' with s = 1: all widths grow in proportion while learning rates fall, so
each layer keeps the weight that its declared width gives it. The empirical Θ of a torch network with this
initialisation tends to this Θ: Θ_net / Θ → 1 as 1/√width.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.errors import did_you_mean, format_bytes
from foretaste.tangent.frozen import check_inputs, to_float64, unwrap
from foretaste.tangent.infinite.layers import (
    DUAL_BLOCK_BYTES,
    Conv,
    Covariance,
    Dense,
    Erf,
    Flatten,
    GlobalAveragePool,
    Identity,
    Layer,
    Relu,
    Residual,
    Serial,
    Signal,
    nesting,
)
from foretaste.tangent.planning import resolve_budget

PARAMETRISATIONS = ("standard", "ntk")
CPU_TILE_BYTES = 1 << 26  # larger tiles are slower on a CPU: fresh memory costs more than the arithmetic
TILES_PER_SIDE = 8  # of a symmetric kernel, so that symmetry saves nearly half of the work


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
    """The kernel of an infinitely wide network between x and x2, in closed form.

    Args:
        net: layers of ``foretaste.tangent.infinite``, or a torch network that has a ``counterpart``. Trained weights
            are ignored.
        x: N points, a floating tensor (N, features) or (N, channels, *space).
        x2: N2 points of the same shape. None (default) means ``x``, at half the work.
        kind: "ntk" (default) for Θ, or "nngp" for K, the covariance of the outputs at initialisation.
        parametrisation: "standard" (default), that of torch, or "ntk".
        budget: how much memory the computation may take: bytes, or a string such as "8GB". None (default) means half
            of what is free, or 0.9 of it on a GPU. A pair of images takes as many numbers as an image has pixels, or
            the square of that if the network has global average pooling.
        dtype: torch.float64 (default) or torch.float32, which is faster and less exact.

    Returns:
        A float64 tensor (N, N2), for one logit.

    Raises:
        ValueError: if a layer has no closed form where it stands, or if the budget is too small.
        TypeError: if the network has no infinite counterpart, or if the points are not floating tensors.

    Example:
        >>> import torch
        >>> from foretaste.tangent.infinite import Conv, Dense, GlobalAveragePool, Relu, Residual, Serial, infinite_ntk
        >>> body = Serial(Relu(), Conv(64), Relu(), Conv(64))
        >>> layers = Serial(Conv(64), Residual(body), Relu(), GlobalAveragePool(), Dense(10))
        >>> infinite_ntk(layers, torch.randn(5, 3, 8, 8)).shape
        torch.Size([5, 5])
    """
    layer = counterpart(net) if isinstance(net, nn.Module) else net
    _check_arguments(layer, x, x if x2 is None else x2, kind, parametrisation, dtype)
    start = Signal(x.shape[1], tuple(x.shape[2:]), cells=math.prod(x.shape[2:]))
    last = layer.shape(start)
    if last.space:
        raise ValueError(
            f"the network ends with space {last.space}; end it with Flatten() or GlobalAveragePool(), Dense"
        )
    tangent, standard = kind == "ntk", parametrisation == "standard"
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        x_N = to_float64(x)  # also for dtype float32: products of inputs decide how near points are
        x_M = x_N if x2 is None else to_float64(x2)
        theta = x_N.new_empty(len(x_N), len(x_M))
        taken = theta.nbytes + x_N.nbytes + (0 if x2 is None else x_M.nbytes)
        rows, columns = plan_tile(layer, last, theta, x2 is None, tangent, dtype, budget, taken)
        for n, m in tiles(len(x_N), len(x_M), rows, columns, symmetric=x2 is None):
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
    """Products of the inputs, averaged over channels. ``last`` says which pairs of pixels the layers need."""
    full, own_full, c = last.pooled, last.bent, x_n.shape[1]
    a, b = x_n.reshape(len(x_n), c, -1), x_m.reshape(len(x_m), c, -1)
    between = torch.einsum("ncp,mcq->nmpq" if full else "ncp,mcp->nmp", a, b).div_(c).to(dtype)
    nngp = between.reshape(len(a), len(b), *start.space * (2 if full else 1))
    within = (torch.einsum("ncp,ncq->npq" if own_full else "ncp,ncp->np", t, t).div_(c).to(dtype) for t in (a, b))
    own_n, own_m = (own.reshape(len(own), *start.space * (2 if own_full else 1)) for own in within)
    return Covariance(nngp, None, own_n, own_m, start, full, own_full, tangent, standard)


def _check_arguments(layer: Layer, x: Tensor, x2: Tensor, kind: str, parametrisation: str, dtype: torch.dtype) -> None:
    """Raise unless all arguments of ``infinite_ntk`` are valid."""
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
        check_inputs(points, name, x.device, x[:1].to(points.dtype))  # float32 and float64 may be mixed


# ---- How many pairs of points are computed at once ----


def plan_tile(
    layer: Layer,
    last: Signal,
    theta: Tensor,
    symmetric: bool,
    tangent: bool,
    dtype: torch.dtype,
    given: int | str | None,
    taken: int,
) -> tuple[int, int]:
    """Rows and columns of Θ that are computed at once, within the given budget.

    last: the signal behind the last layer. taken: bytes of Θ and the inputs, which count as part of the budget.
    """
    (n, m), device = theta.shape, theta.device
    budget = resolve_budget(given, device)
    pair_bytes = dtype.itemsize * last.cells ** (2 if last.pooled else 1)
    own_bytes = dtype.itemsize * last.cells ** (2 if last.bent else 1)
    # Tensors that live throughout: K and Θ, once more for the input of each residual block around.
    kept = (2 if tangent else 1) * (1 + nesting(layer))
    block = DUAL_BLOCK_BYTES[device.type == "cuda"]

    def nbytes(rows: int, columns: int) -> int:
        # Besides: a convolution makes K and Θ anew, each with an intermediate result; a dual works in blocks.
        pairs = rows * columns * pair_bytes
        own = (rows + columns) * own_bytes
        return pairs * (kept + (4 if tangent else 2)) + own * (6 + kept) + 6 * min(block, pairs)

    if (need := nbytes(1, 1)) > budget - taken:
        which = "each with every other, for the pooling" if last.pooled else "each with itself"
        raise ValueError(
            f"a budget of {format_bytes(budget)} is too small: Θ and the inputs take {format_bytes(taken)}, one "
            f"pair of points {format_bytes(need)} ({last.cells} pixels, {which}); "
            f"budget={format_bytes(1.1 * (taken + need))!r} would do"
        )
    room = budget - taken if device.type == "cuda" else max(need, min(budget - taken, CPU_TILE_BYTES))
    longest = math.ceil(n / TILES_PER_SIDE) if symmetric else max(n, m)
    rows = columns = _largest_fitting(lambda side: nbytes(side, side), room, longest)
    if not symmetric:
        rows = max(1, min(rows, n))
        columns = _largest_fitting(lambda side: nbytes(rows, side), room, m)
    return rows, columns


def _largest_fitting(cost: Callable[[int], int], room: int, limit: int) -> int:
    """The largest number up to ``limit`` whose cost is at most ``room``, by bisection. 1 is known to fit."""
    low, high = 1, max(limit, 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(middle) <= room else (low, middle - 1)
    return low


def tiles(n: int, m: int, rows: int, columns: int, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    """Spans of rows and columns that cover Θ, or its upper half if it is symmetric."""
    for i in range(0, n, rows):
        for j in range(i if symmetric else 0, m, columns):
            yield slice(i, min(i + rows, n)), slice(j, min(j + columns, m))


# ---- The counterpart of a torch network: of this library's networks, and of an nn.Sequential ----


log = logging.getLogger("foretaste")

SKIPPED = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, nn.Identity)
POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def counterpart(net: nn.Module, *, W_std: float = 2**0.5, b_std: float = 0.0) -> Serial:
    """The layers of ``net`` at infinite width.

    Only layers and widths count; trained weights do not. BatchNorm and dropout are left out. One thing differs: the
    identity shortcuts of a ResNet start before the ReLU, not after it. A sum with a rectified term is not Gaussian at
    infinite width, so a ReLU behind it has no closed form.

    Args:
        net: an MLP, WideResNet or ResNet of this library, or an nn.Sequential of Linear, Conv, ReLU, Erf, Flatten,
            AdaptiveAvgPool to size 1, BatchNorm and dropout.
        W_std: standard deviation of the weights times √fan_in. Default √2, as in He's initialisation.
        b_std: standard deviation of the biases. Default 0: biases are trained and start at 0.

    Returns:
        The layers, as a ``Serial``, for ``infinite_ntk``.

    Raises:
        TypeError: if ``net``, or one of its modules, has no infinite counterpart.
        ValueError: if its activation has no closed form here.

    Example:
        >>> from torch import nn
        >>> from foretaste.tangent import counterpart
        >>> counterpart(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), W_std=1.0).layers[1:]
        (Relu(), Dense(width=3, W_std=1.0, b_std=0.0, inputs=8))
    """
    net = unwrap(net)
    spec = getattr(net, "spec", None)
    if isinstance(net, nn.Sequential):
        return Serial(*_convert_modules(net, W_std, b_std))
    if (known := SPECS.get(type(spec).__name__)) is None:
        raise TypeError(
            f"{type(net).__name__} has no known infinite counterpart; expected an MLP, WideResNet or ResNet of this "
            "library, an nn.Sequential, or layers of foretaste.tangent.infinite: Serial(Conv(64), Relu(), ...)"
        )
    return known(spec, W_std, b_std)


def _mlp(spec: Any, w: float, b: float) -> Serial:
    """Of ``foretaste.network.MLP``."""
    activations: dict[str, type[Relu] | type[Erf]] = {"relu": Relu, "erf": Erf}
    if spec.activation not in activations:
        raise ValueError(f"activation {spec.activation!r} has no closed form here; the infinite MLP knows relu and erf")
    widths = (spec.inputs, *spec.hidden)
    hidden = [layer for a, h in pairwise(widths) for layer in (Dense(h, w, b, a), activations[spec.activation]())]
    return Serial(Flatten(), *hidden, Dense(spec.classes, w, b, widths[-1]))


def _wide_resnet(spec: Any, w: float, b: float) -> Serial:
    """Of ``foretaste.network.WideResNet``, whose blocks have their ReLUs before the convolutions."""
    conv = partial(_conv, w, b)
    at = 16 * spec.widen
    layers: list[Layer] = [conv(spec.channels, at)]
    for stage in range(spec.layers):
        width = 32 * spec.widen << stage
        for block in range(spec.blocks):
            stride = 2 if stage and not block else 1
            body = Serial(Relu(), conv(at, width), Relu(), conv(width, width, 3, stride))
            plain = stride == 1 and at == width
            layers.append(Residual(body, Identity() if plain else conv(at, width, 1, stride)))
            at = width
    return Serial(*layers, Relu(), GlobalAveragePool(), Dense(spec.classes, w, b, at))


def _resnet(spec: Any, w: float, b: float) -> Serial:
    """Of ``foretaste.network.resnet18``. Its convolutions have no bias."""
    conv = partial(_conv, w, None)
    at = spec.width
    layers: list[Layer] = [conv(spec.channels, at)]
    for stage, blocks in enumerate(spec.blocks):
        width = spec.width << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            body = Serial(conv(at, width, 3, stride), Relu(), conv(width, width))
            if stride == 1 and at == width:
                layers.append(Residual(Serial(Relu(), body)))
            else:
                layers += [Relu(), Residual(body, conv(at, width, 1, stride))]
            at = width
    log.info("the infinite ResNet's identity shortcuts start before the ReLU: behind it they have no closed form")
    return Serial(*layers, Relu(), GlobalAveragePool(), Dense(spec.classes, w, b, at))


def _conv(w: float, b: float | None, inputs: int, width: int, kernel: int = 3, stride: int = 1) -> Conv:
    return Conv(width, kernel, stride, kernel // 2, w, b, inputs)


SPECS = {"MLPSpec": _mlp, "WideResNetSpec": _wide_resnet, "ResNetSpec": _resnet}


def _convert_modules(net: nn.Sequential, w: float, b: float) -> Iterable[Layer]:
    """The layers of an nn.Sequential, one by one."""
    for name, module in net.named_children():
        if isinstance(module, nn.Sequential):
            yield Serial(*_convert_modules(module, w, b))
        elif isinstance(module, nn.Linear):
            yield Dense(module.out_features, w, b if module.bias is not None else None, module.in_features)
        elif isinstance(module, CONVS):
            yield _convert_conv(name, module, w, b)
        elif isinstance(module, nn.ReLU):
            yield Relu()
        elif type(module).__name__ == "Erf":
            yield Erf()
        elif isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
            yield Flatten()
        elif isinstance(module, POOLS) and module.output_size in (1, (1,), (1, 1), (1, 1, 1)):
            yield GlobalAveragePool()
        elif not isinstance(module, SKIPPED):
            raise TypeError(
                f"module {name!r}, {module}, has no infinite counterpart; known are Linear, Conv, ReLU, Erf, Flatten, "
                "AdaptiveAvgPool to 1, and BatchNorm and dropout, which are left out"
            )


def _convert_conv(name: str, m: nn.Conv1d | nn.Conv2d | nn.Conv3d, w: float, b: float) -> Conv:
    if m.groups != 1 or any(n != 1 for n in m.dilation) or m.padding_mode != "zeros":
        raise TypeError(f"module {name!r}, {m}, has groups, dilation or a padding mode that the infinite Conv has not")
    if isinstance(m.padding, str):
        if m.padding == "same" and any(n % 2 == 0 for n in m.kernel_size):
            raise TypeError(f"module {name!r}, {m}, pads unevenly, which the infinite Conv does not; use odd kernels")
        padding = tuple(n // 2 if m.padding == "same" else 0 for n in m.kernel_size)
    else:
        padding = tuple(m.padding)
    bias = b if m.bias is not None else None
    return Conv(m.out_channels, tuple(m.kernel_size), tuple(m.stride), padding, w, bias, m.in_channels)
