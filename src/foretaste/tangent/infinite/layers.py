"""Layers of infinite width: frozen records that map covariances to covariances.

Weights are N(0, W_std² / fan_in), biases N(0, b_std²). b_std=None means no bias; b_std=0, one that starts at 0.

Two things pass from layer to layer: a ``Signal``, before anything is computed, and a ``Covariance`` for each tile of
pairs of points.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from foretaste.tangent.infinite.covariance import (
    Dual,
    apply_dual,
    convolve_window,
    erf_dual,
    facing,
    facing_own,
    relu_dual,
    same_pixel,
)


@dataclass(frozen=True)
class Signal:
    """What is known of activations before any number is computed."""

    width: int  # channels: of the input, or of the finite network whose limit this is
    space: tuple[int, ...]  # pixels; () once flattened or pooled
    gaussian: bool = False  # Gaussian with independent channels, so a nonlinearity may follow
    fresh: bool = False  # has mean zero given the input of its branch, so it may be added to that input
    pooled: bool = False  # there is pooling, where pixels meet other pixels: needs full covariances
    bent: bool = False  # there is a nonlinearity after it: needs full covariances of each point with itself, too
    cells: int = 1  # the largest number of pixels of any layer


@dataclass(frozen=True)
class Covariance:
    """A tile of n × m pairs: K and Θ, and the second moments of each point with itself, ``own_n`` and ``own_m``.

    K and Θ are (n, m, *S), or (n, m, *S, *S) if ``full``; the others (n, *S), or (n, *S, *S) if ``own_full``.
    """

    nngp: Tensor
    ntk: Tensor | None  # None: not wanted, or zero, as it is at the input
    own_n: Tensor
    own_m: Tensor
    signal: Signal
    full: bool
    own_full: bool
    tangent: bool  # whether Θ is wanted
    standard: bool  # the parametrisation is "standard", not "ntk"

    def variances(self) -> tuple[Tensor, Tensor]:
        """(n, *S) and (m, *S)."""
        if not self.own_full:
            return self.own_n, self.own_m
        d = len(self.signal.space)
        return same_pixel(self.own_n, d), same_pixel(self.own_m, d)


class Layer(Protocol):
    """``shape`` maps a Signal, and raises where there is no closed form. ``apply`` maps a tile of covariances."""

    def shape(self, s: Signal) -> Signal: ...
    def apply(self, k: Covariance) -> Covariance: ...


# ---- Layers with weights ----


@dataclass(frozen=True)
class Dense:
    """A linear layer. ``width`` is that of the finite network; only the standard parametrisation uses it."""

    width: int
    W_std: float = 1.0
    b_std: float | None = None
    inputs: int | None = None  # checked where given

    def shape(self, s: Signal) -> Signal:
        _check_affine(self, s)
        if s.space:
            raise ValueError(
                f"{self} got an input with space {s.space}; put Flatten() or GlobalAveragePool() before it"
            )
        return replace(s, width=self.width, gaussian=True, fresh=True)

    def apply(self, k: Covariance) -> Covariance:
        return _affine(k, self, k.signal.width, lambda t, lead, full: t.clone())


@dataclass(frozen=True)
class Conv:
    """A convolution over any number of dimensions, with zeros beyond the border. A number holds for all dimensions."""

    width: int
    kernel: int | tuple[int, ...] = 3
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] = 1
    W_std: float = 1.0
    b_std: float | None = None
    inputs: int | None = None  # checked where given

    def geometry(self, d: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Kernel, stride and padding in each of d dimensions."""
        each = [(v,) * d if isinstance(v, int) else tuple(v) for v in (self.kernel, self.stride, self.padding)]
        if any(len(v) != d for v in each):
            raise ValueError(f"{self} on {d} dimensions of space; kernel, stride and padding need one number, or {d}")
        return each[0], each[1], each[2]

    def shape(self, s: Signal) -> Signal:
        _check_affine(self, s)
        if not s.space:
            raise ValueError(f"{self} got an input without space; expected images (N, channels, *space)")
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
            return convolve_window(t, axes, *geometry)

        return _affine(k, self, k.signal.width * math.prod(geometry[0]), average)


def _check_affine(layer: Dense | Conv, s: Signal) -> None:
    if layer.inputs is not None and layer.inputs != s.width:
        raise ValueError(f"{layer} got {s.width} inputs; expected {layer.inputs}")


def _affine(
    k: Covariance, layer: Dense | Conv, fan_in: int, average: Callable[[Tensor, int, bool], Tensor]
) -> Covariance:
    """K ← W_std² K̄ + b_std², Θ ← W_std² Θ̄ + what the layer's own parameters give. ``average`` is the bar.

    In the NTK parametrisation, z = W_std/√fan_in · w a + b_std b, the own parameters give the new K. In the standard
    one, z = w a + b, they give |a|² = fan_in · K̄, and 1 for the bias.
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


# ---- Nonlinearities ----


@dataclass(frozen=True)
class Relu:
    """max(0, ·)."""

    def shape(self, s: Signal) -> Signal:
        return _shape_nonlinear(self, s)

    def apply(self, k: Covariance) -> Covariance:
        return _nonlinear(k, self, relu_dual)


@dataclass(frozen=True)
class Erf:
    """The error function, 2/√π ∫₀ˣ exp(−t²) dt."""

    def shape(self, s: Signal) -> Signal:
        return _shape_nonlinear(self, s)

    def apply(self, k: Covariance) -> Covariance:
        return _nonlinear(k, self, erf_dual)


def _shape_nonlinear(layer: Relu | Erf, s: Signal) -> Signal:
    """The signal behind a nonlinearity; raises unless it is Gaussian before."""
    if not s.gaussian:
        raise ValueError(
            f"{layer} has no closed form on an input that is not Gaussian at infinite width (the points themselves, "
            "flattened images, a sum with rectified terms); put Dense or Conv before it"
        )
    return replace(s, gaussian=False, fresh=False, bent=s.bent or s.pooled)


def _nonlinear(k: Covariance, layer: Relu | Erf, dual: Dual) -> Covariance:
    """K ← E φ(u) φ(u′), Θ ← Θ · E φ′(u) φ′(u′)."""
    v_n, v_m = k.variances()
    nngp, ntk = apply_dual(dual, k.nngp, *facing(v_n, v_m, k.full), k.ntk)
    own_n, own_m = (
        apply_dual(dual, own, *facing_own(v, k.own_full), None)[0] for own, v in ((k.own_n, v_n), (k.own_m, v_m))
    )
    return replace(k, nngp=nngp, ntk=ntk, own_n=own_n, own_m=own_m, signal=layer.shape(k.signal))


# ---- Layers that remove space, and layers made of layers ----


@dataclass(frozen=True)
class Identity:
    """Passes its input on: the shortcut of a residual block."""

    def shape(self, s: Signal) -> Signal:
        return s

    def apply(self, k: Covariance) -> Covariance:
        return k


@dataclass(frozen=True)
class Flatten:
    """Pixels become channels. Different pixels meet different weights, so only covariances of equal pixels count."""

    def shape(self, s: Signal) -> Signal:
        # Flattened pixels are channels with different distributions. Only another affine layer mixes them.
        gaussian = s.gaussian and not s.space
        return replace(s, width=s.width * math.prod(s.space), space=(), gaussian=gaussian)

    def apply(self, k: Covariance) -> Covariance:
        d = len(k.signal.space)

        def mean(t: Tensor, lead: int, full: bool) -> Tensor:
            return (same_pixel(t, d) if full else t).flatten(lead).mean(lead) if d else t

        return _without_space(k, self, mean)


@dataclass(frozen=True)
class GlobalAveragePool:
    """The mean over space. Every pixel of one image meets every pixel of the other, which costs cells² per pair."""

    def shape(self, s: Signal) -> Signal:
        if not s.space:
            raise ValueError("GlobalAveragePool() got an input without space; expected images (N, channels, *space)")
        return replace(s, space=(), pooled=True)

    def apply(self, k: Covariance) -> Covariance:
        def mean(t: Tensor, lead: int, full: bool) -> Tensor:
            # Variances of pixels do not give that of their mean. No later layer needs it (Signal.bent): else NaN shows.
            return t.flatten(lead).mean(lead) if full else t.new_full(t.shape[:lead], math.nan)

        return _without_space(k, self, mean)


def _without_space(
    k: Covariance, layer: Flatten | GlobalAveragePool, mean: Callable[[Tensor, int, bool], Tensor]
) -> Covariance:
    """Apply ``mean`` to all covariances."""
    ntk = None if k.ntk is None else mean(k.ntk, 2, k.full)
    own_n, own_m = (mean(own, 1, k.own_full) for own in (k.own_n, k.own_m))
    return replace(k, nngp=mean(k.nngp, 2, k.full), ntk=ntk, own_n=own_n, own_m=own_m, signal=layer.shape(k.signal))


@dataclass(frozen=True, init=False)
class Serial:
    """One layer after another."""

    layers: tuple[Layer, ...]

    def __init__(self, *layers: Layer) -> None:
        object.__setattr__(self, "layers", layers)

    def shape(self, s: Signal) -> Signal:
        for layer in self.layers:
            s = layer.shape(s)
        return s

    def apply(self, k: Covariance) -> Covariance:
        for layer in self.layers:
            k = layer.apply(k)
        return k


@dataclass(frozen=True)
class Residual:
    """body(a) + shortcut(a). If one branch ends in its own weights, its mean is zero, and the covariances add."""

    body: Layer
    shortcut: Layer = field(default_factory=Identity)

    def shape(self, s: Signal) -> Signal:
        inside = [branch.shape(replace(s, fresh=False)) for branch in (self.body, self.shortcut)]
        a, b = (branch.shape(s) for branch in (self.body, self.shortcut))
        if (a.width, a.space) != (b.width, b.space):
            raise ValueError(
                f"a residual block adds width {a.width}, space {a.space} to width {b.width}, space {b.space}; "
                "give the shortcut a Conv of the body's width and stride"
            )
        if not any(branch.fresh for branch in inside):
            raise ValueError("neither branch of a residual block ends in Dense or Conv: their sum has no closed form")
        merged = {f: getattr(a, f) or getattr(b, f) for f in ("pooled", "bent")}
        merged |= {f: getattr(a, f) and getattr(b, f) for f in ("gaussian", "fresh")}
        return replace(a, cells=max(a.cells, b.cells), **merged)

    def apply(self, k: Covariance) -> Covariance:
        a, b = self.body.apply(k), self.shortcut.apply(k)
        ntk = a.ntk if b.ntk is None else b.ntk if a.ntk is None else a.ntk + b.ntk
        return replace(
            a,
            nngp=a.nngp + b.nngp,
            ntk=ntk,
            own_n=a.own_n + b.own_n,
            own_m=a.own_m + b.own_m,
            signal=self.shape(k.signal),
        )


def nesting(layer: Layer) -> int:
    """How many residual blocks contain one another, so that each keeps its input at the same time."""
    match layer:
        case Serial(layers=layers):
            return max((nesting(inner) for inner in layers), default=0)
        case Residual(body=body, shortcut=shortcut):
            return 1 + max(nesting(body), nesting(shortcut))
        case _:
            return 0
