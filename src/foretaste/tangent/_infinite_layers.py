"""Layers of infinite width that have weights or bend: frozen records that map covariances to covariances.

Weights are N(0, W_std² / fan_in), biases N(0, b_std²); b_std=None is no bias, b_std=0 a trained one that starts at 0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from foretaste.tangent._infinite_maps import Dual, bend, erf_dual, facing, facing_own, relu_dual, window
from foretaste.tangent._infinite_state import Covariance, Signal


@dataclass(frozen=True)
class Dense:
    """A linear layer; ``width`` is that of the finite network (only the standard parametrisation asks for it)."""

    width: int
    W_std: float = 1.0
    b_std: float | None = None
    inputs: int | None = None  # checked where given

    def shape(self, s: Signal) -> Signal:
        _check_affine(self, s)
        if s.space:
            raise ValueError(
                f"{self} comes where space {s.space} is left; put Flatten() or GlobalAveragePool() before it"
            )
        return replace(s, width=self.width, gaussian=True, fresh=True)

    def apply(self, k: Covariance) -> Covariance:
        return _affine(k, self, k.signal.width, lambda t, lead, full: t.clone())


@dataclass(frozen=True)
class Conv:
    """A convolution over any number of dimensions, zeros beyond the border; a number holds for each dimension."""

    width: int
    kernel: int | tuple[int, ...] = 3
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] = 1
    W_std: float = 1.0
    b_std: float | None = None
    inputs: int | None = None  # checked where given

    def geometry(self, d: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        each = [(v,) * d if isinstance(v, int) else tuple(v) for v in (self.kernel, self.stride, self.padding)]
        if any(len(v) != d for v in each):
            raise ValueError(f"{self} on {d} dimensions of space; kernel, stride and padding need one number, or {d}")
        return each[0], each[1], each[2]

    def shape(self, s: Signal) -> Signal:
        _check_affine(self, s)
        if not s.space:
            raise ValueError(f"{self} needs images (N, channels, *space); no space came")
        space = tuple((n + 2 * p - k) // t + 1 for n, k, t, p in zip(s.space, *self.geometry(len(s.space))))
        if min(space) < 1:
            raise ValueError(f"{self} is larger than its padded input of space {s.space}")
        cells = max(s.cells, math.prod(space))
        return replace(s, width=self.width, space=space, gaussian=True, fresh=True, cells=cells)

    def apply(self, k: Covariance) -> Covariance:
        d = len(k.signal.space)
        geometry = self.geometry(d)

        def average(t: Tensor, lead: int, full: bool) -> Tensor:
            axes = [(lead + i, lead + d + i) if full else (lead + i,) for i in range(d)]
            return window(t, axes, *geometry)

        return _affine(k, self, k.signal.width * math.prod(geometry[0]), average)


def _check_affine(layer: Dense | Conv, s: Signal) -> None:
    if layer.inputs is not None and layer.inputs != s.width:
        raise ValueError(f"{layer} has {layer.inputs} inputs; {s.width} came")


def _affine(
    k: Covariance, layer: Dense | Conv, fan_in: int, average: Callable[[Tensor, int, bool], Tensor]
) -> Covariance:
    """K ← W_std² K̄ + b_std², Θ ← W_std² Θ̄ + what the layer's own parameters give; the bar averages over the window.

    That is the new K in the NTK parametrisation, z = W_std/√fan_in · w a + b_std b with w, b ~ N(0, 1); in the standard
    one, z = w a + b, it is |a|² = fan_in · K̄, and 1 for the bias.
    """
    w, b = layer.W_std**2, (layer.b_std or 0.0) ** 2
    ntk = None if k.ntk is None else average(k.ntk, 2, k.full).mul_(w)
    nngp = average(k.nngp, 2, k.full)
    if k.tangent and k.standard:
        bias = 0.0 if layer.b_std is None else 1.0
        ntk = (nngp * fan_in if ntk is None else ntk.add_(nngp, alpha=fan_in)).add_(bias)
    nngp.mul_(w).add_(b)
    if k.tangent and not k.standard:
        ntk = nngp.clone() if ntk is None else ntk.add_(nngp)
    own_n, own_m = (average(own, 1, k.own_full).mul_(w).add_(b) for own in (k.own_n, k.own_m))
    return replace(k, nngp=nngp, ntk=ntk, own_n=own_n, own_m=own_m, signal=layer.shape(k.signal))


@dataclass(frozen=True)
class Relu:
    """max(0, ·)."""

    def shape(self, s: Signal) -> Signal:
        return _bend(self, s)

    def apply(self, k: Covariance) -> Covariance:
        return _nonlinear(k, self, relu_dual)


@dataclass(frozen=True)
class Erf:
    """The error function, 2/√π ∫₀ˣ exp(−t²) dt."""

    def shape(self, s: Signal) -> Signal:
        return _bend(self, s)

    def apply(self, k: Covariance) -> Covariance:
        return _nonlinear(k, self, erf_dual)


def _bend(layer: Relu | Erf, s: Signal) -> Signal:
    if not s.gaussian:
        raise ValueError(
            f"{layer} on what is not Gaussian at infinite width (the input, flattened images, a sum with rectified "
            "terms) has no closed form; it needs Dense or Conv before it"
        )
    return replace(s, gaussian=False, fresh=False, bent=s.bent or s.pooled)


def _nonlinear(k: Covariance, layer: Relu | Erf, dual: Dual) -> Covariance:
    v_n, v_m = k.variances()
    nngp, ntk = bend(dual, k.nngp, *facing(v_n, v_m, k.full), k.ntk)
    own_n, own_m = (bend(dual, own, *facing_own(v, k.own_full), None)[0] for own, v in ((k.own_n, v_n), (k.own_m, v_m)))
    return replace(k, nngp=nngp, ntk=ntk, own_n=own_n, own_m=own_m, signal=layer.shape(k.signal))
