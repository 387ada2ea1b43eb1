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

import torch
from torch import Tensor, nn

from foretaste.tangent._infinite_counterpart import counterpart as counterpart
from foretaste.tangent._infinite_layers import Conv as Conv
from foretaste.tangent._infinite_layers import Dense as Dense
from foretaste.tangent._infinite_layers import Erf as Erf
from foretaste.tangent._infinite_layers import Relu as Relu
from foretaste.tangent._infinite_shapes import Flatten as Flatten
from foretaste.tangent._infinite_shapes import GlobalAveragePool as GlobalAveragePool
from foretaste.tangent._infinite_shapes import Identity as Identity
from foretaste.tangent._infinite_shapes import Residual as Residual
from foretaste.tangent._infinite_shapes import Serial as Serial
from foretaste.tangent._infinite_state import Covariance, Signal
from foretaste.tangent._infinite_state import Layer as Layer
from foretaste.tangent._infinite_tiles import tiles
from foretaste.tangent._inputs import check
from foretaste.tangent._memory import resolve
from foretaste.tangent._subject import exact, nearest

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
    _check(layer, x, x if x2 is None else x2, kind, parametrisation, dtype)
    start = Signal(x.shape[1], tuple(x.shape[2:]), cells=math.prod(x.shape[2:]))
    last = layer.shape(start)
    if last.space:
        raise ValueError(
            f"the network ends with space {last.space}; end it with Flatten() or GlobalAveragePool(), Dense"
        )
    tangent, standard = kind == "ntk", parametrisation == "standard"
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        x_N = exact(x)  # float64 also for float32: the products of the inputs decide how near points are
        x_M = x_N if x2 is None else exact(x2)
        theta = x_N.new_empty(len(x_N), len(x_M))
        plan = tiles(
            layer,
            last,
            *theta.shape,
            symmetric=x2 is None,
            tangent=tangent,
            dtype=dtype,
            device=x_N.device,
            budget=resolve(budget, x_N.device),
            taken=theta.nbytes + x_N.nbytes + (0 if x2 is None else x_M.nbytes),
        )
        for n, m in plan:
            k = layer.apply(_input(x_N[n], x_M[m], start, last, dtype, tangent, standard))
            tile = k.nngp if not tangent else torch.zeros_like(k.nngp) if k.ntk is None else k.ntk
            if x2 is None:
                theta[m, n] = tile.T
                tile = tile.triu() + tile.triu(1).T if n == m else tile
            theta[n, m] = tile
    return theta


def _input(
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


def _check(layer: Layer, x: Tensor, x2: Tensor, kind: str, parametrisation: str, dtype: torch.dtype) -> None:
    if isinstance(layer, type) or not hasattr(layer, "apply") or not hasattr(layer, "shape"):
        raise TypeError(
            f"net is {layer!r}; expected a torch network, or layers such as Serial(Dense(64), Relu(), Dense(1))"
        )
    for name, value, known in (("kind", kind, ("ntk", "nngp")), ("parametrisation", parametrisation, PARAMETRISATIONS)):
        if value not in known:
            raise ValueError(f"unknown {name} {value!r}{nearest(value, known)}")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype is {dtype}; expected torch.float64 or torch.float32")
    for name, points in (("x", x), ("x2", x2)):
        if not isinstance(points, Tensor) or not points.is_floating_point() or points.dim() < 2:
            what = f"{points.dtype} {tuple(points.shape)}" if isinstance(points, Tensor) else type(points).__name__
            raise TypeError(f"{name} is {what}; expected a floating tensor (N, features) or (N, channels, *space)")
        check(points, name, x.device, x)
