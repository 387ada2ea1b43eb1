"""Layers of infinite width: frozen records that map covariances to covariances.

Weights are N(0, W_std² / fan_in), biases N(0, b_std²). b_std=None means no bias; b_std=0, one that starts at 0.

Two things pass from layer to layer: a ``Signal``, before anything is computed, and a ``Covariance`` for each tile of
pairs of points.

S is the space of the images. The covariances of n × m pairs are (n, m, *S) if each pixel only meets itself, else
(n, m, *S, *S): pixel p of the one image with pixel q of the other. Variances are (n, *S).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

# Correlations within so many rounding errors of ±1 become ±1. Then the angle of two equal points is exactly 0; arccos
# would turn an error of 1e-16 into one of 1e-8.
SNAP_TO_ONE = 32
DUAL_BLOCK_BYTES = (1 << 18, 1 << 25)  # of one tensor: fits a core's cache, fills a GPU
Dual = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor | None]]


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
class Nonlinearity(ABC):
    """K ← E φ(u) φ(u′), Θ ← Θ · E φ′(u) φ′(u′): the dual of φ, in closed form."""

    @staticmethod
    @abstractmethod
    def dual(k: Tensor, v: Tensor, v2: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
        """E φ(u)φ(u′), and E φ′(u)φ′(u′) if ``slope``, for (u, u′) ~ N(0, [v k; k v2])."""

    def shape(self, s: Signal) -> Signal:
        if not s.gaussian:
            raise ValueError(
                f"{self} has no closed form on an input that is not Gaussian at infinite width (the points "
                "themselves, flattened images, a sum with rectified terms); put Dense or Conv before it"
            )
        return replace(s, gaussian=False, fresh=False, bent=s.bent or s.pooled)

    def apply(self, k: Covariance) -> Covariance:
        v_n, v_m = k.variances()
        nngp, ntk = apply_dual(self.dual, k.nngp, *facing(v_n, v_m, k.full), k.ntk)
        own_n, own_m = (
            apply_dual(self.dual, own, *facing_own(v, k.own_full), None)[0]
            for own, v in ((k.own_n, v_n), (k.own_m, v_m))
        )
        return replace(k, nngp=nngp, ntk=ntk, own_n=own_n, own_m=own_m, signal=self.shape(k.signal))


class Relu(Nonlinearity):
    """max(0, ·)."""

    @staticmethod
    def dual(k: Tensor, v: Tensor, v2: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
        """The arc-cosine kernels 1 and 0.

        With c = cos θ the correlation and r = √(v v2): r (sin θ + (π − θ) cos θ) / 2π and (π − θ) / 2π. If a variance
        is 0 there is no angle, and θ = π/2, as in neural-tangents.
        """
        info = torch.finfo(k.dtype)
        r = (v * v2).sqrt_()
        c = (k / r.clamp_min(info.tiny)).clamp_(-1, 1)
        c.masked_fill_(c > 1 - SNAP_TO_ONE * info.eps, 1).masked_fill_(c < SNAP_TO_ONE * info.eps - 1, -1)
        turn = torch.acos(-c).div_(2 * math.pi)  # (π − θ) / 2π
        out = turn * c
        sine = (1 - c).mul_(c.add_(1)).sqrt_()  # 1 − c² would be less exact than the angle if c is near 1
        return out.add_(sine, alpha=1 / (2 * math.pi)).mul_(r), turn if slope else None


class Erf(Nonlinearity):
    """The error function, 2/√π ∫₀ˣ exp(−t²) dt."""

    @staticmethod
    def dual(k: Tensor, v: Tensor, v2: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
        """Williams 1997: 2/π arcsin(2k / √q) and 4/π / √(q − 4k²), q = (1 + 2v)(1 + 2 v2)."""
        q = (1 + 2 * v) * (1 + 2 * v2)
        out = (2 * k / q.sqrt()).clamp_(-1, 1).asin_().mul_(2 / math.pi)
        return out, q.addcmul_(k, k, value=-4).rsqrt_().mul_(4 / math.pi) if slope else None


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


# ---- What a layer does to covariances: duals in blocks, and the window of a convolution ----


def facing(v_n: Tensor, v_m: Tensor, full: bool) -> tuple[Tensor, Tensor]:
    """Variances (n, *S) and (m, *S) as views that broadcast to the shape of the covariances between them."""
    if not full:
        return v_n[:, None], v_m[None]
    one = (1,) * (v_n.dim() - 1)
    return v_n.reshape(len(v_n), 1, *v_n.shape[1:], *one), v_m.reshape(1, len(v_m), *one, *v_m.shape[1:])


def facing_own(v: Tensor, full: bool) -> tuple[Tensor, Tensor]:
    """The same for each point with itself."""
    one = (1,) * (v.dim() - 1) if full else ()
    return v.reshape(*v.shape, *one), v.reshape(len(v), *one, *v.shape[1:])


def same_pixel(k: Tensor, d: int) -> Tensor:
    """The diagonal (..., *S) of (..., *S, *S); S has d dimensions."""
    if d == 0:
        return k
    lead, space = k.shape[: -2 * d], k.shape[-d:]
    return k.reshape(*lead, math.prod(space), math.prod(space)).diagonal(dim1=-2, dim2=-1).reshape(*lead, *space)


def apply_dual(dual: Dual, k: Tensor, v: Tensor, v2: Tensor, ntk: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """K and Θ behind a nonlinearity, computed in blocks. ``v`` and ``v2`` come from ``facing``.

    A dual reads its block a dozen times, so the block should fit the cache. Blocks also bound the memory.
    """
    k_out = torch.empty_like(k, memory_format=torch.contiguous_format)
    ntk_out = None if ntk is None else torch.empty_like(k_out)
    block = DUAL_BLOCK_BYTES[k.device.type == "cuda"] // k.element_size()

    def compute(k: Tensor, v: Tensor, v2: Tensor, ntk: Tensor | None, k_out: Tensor, ntk_out: Tensor | None) -> None:
        if k.numel() <= block:
            out, slope = dual(k, v, v2, ntk is not None)
            k_out.copy_(out)
            if ntk is not None and slope is not None and ntk_out is not None:
                torch.mul(ntk, slope, out=ntk_out)
            return
        axis = next(i for i, n in enumerate(k.shape) if n > 1)
        step = max(1, k.shape[axis] * block // k.numel())
        for i in range(0, k.shape[axis], step):
            at = (slice(None),) * axis + (slice(i, i + step),)
            side, side2 = (t[at] if t.shape[axis] > 1 else t for t in (v, v2))
            pair = (ntk[at], ntk_out[at]) if ntk is not None and ntk_out is not None else (None, None)
            compute(k[at], side, side2, pair[0], k_out[at], pair[1])

    compute(k, v, v2, ntk, k_out, ntk_out)
    return k_out, ntk_out


def convolve_window(
    k: Tensor, axes: Sequence[Sequence[int]], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """The mean over a convolution's window, with zeros beyond the border, as a new tensor.

    cov[p, q] ← Σ_δ cov[s p + δ, s q + δ] / |δ|. The offset is the same on both sides: different offsets meet different
    weights, which are independent. So the axes in one entry of ``axes`` move together. The mean is separable, so each
    direction is done in turn.
    """
    out = k
    for along, size, step, pad in zip(axes, kernel, stride, padding):
        if (size, step, pad) != (1, 1, 0):
            out = _slide(out, along, size, step, pad)
    return out.clone() if out is k else out.div_(math.prod(kernel))


def _slide(k: Tensor, along: Sequence[int], size: int, step: int, pad: int) -> Tensor:
    """The sum over a window in one direction, along one axis or along two that move together."""
    length = k.shape[along[0]]
    many = (length + 2 * pad - size) // step + 1
    out = k.new_zeros([many if i in along else n for i, n in enumerate(k.shape)])
    for offset in range(size):
        shift = offset - pad
        first = max(0, -(shift // step))  # of the outputs o for which o·step + shift lies within [0, length)
        count = min(many - 1, (length - 1 - shift) // step) - first + 1
        if count > 0:
            into, of = out, k
            for a in along:
                into = into.narrow(a, first, count)
                of = of[(slice(None),) * a + (slice(first * step + shift, length, step),)].narrow(a, 0, count)
            into += of
    return out
