"""Layers of infinite width without weights: those that remove space, and those that put others together."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from foretaste.tangent._infinite_maps import same_pixel
from foretaste.tangent._infinite_state import Covariance, Layer, Signal


@dataclass(frozen=True)
class Identity:
    """Nothing: the shortcut of a residual block."""

    def shape(self, s: Signal) -> Signal:
        return s

    def apply(self, k: Covariance) -> Covariance:
        return k


@dataclass(frozen=True)
class Flatten:
    """Pixels become channels. Different pixels meet different weights, so only same-pixel covariances survive."""

    def shape(self, s: Signal) -> Signal:
        # Flattened pixels are channels of unequal law, which only another affine layer mixes.
        gaussian = s.gaussian and not s.space
        return replace(s, width=s.width * math.prod(s.space), space=(), gaussian=gaussian)

    def apply(self, k: Covariance) -> Covariance:
        d = len(k.signal.space)

        def mean(t: Tensor, lead: int, full: bool) -> Tensor:
            return (same_pixel(t, d) if full else t).flatten(lead).mean(lead) if d else t

        return _without_space(k, self, mean)


@dataclass(frozen=True)
class GlobalAveragePool:
    """The mean over space: every pixel of one image meets every pixel of the other, which costs cells² a pair."""

    def shape(self, s: Signal) -> Signal:
        if not s.space:
            raise ValueError("GlobalAveragePool() needs images (N, channels, *space); no space came")
        return replace(s, space=(), pooled=True)

    def apply(self, k: Covariance) -> Covariance:
        def mean(t: Tensor, lead: int, full: bool) -> Tensor:
            # Variances do not tell that of the mean. Nothing to come asks for it (Signal.bent); NaN shows if it does.
            return t.flatten(lead).mean(lead) if full else t.new_full(t.shape[:lead], math.nan)

        return _without_space(k, self, mean)


def _without_space(
    k: Covariance, layer: Flatten | GlobalAveragePool, mean: Callable[[Tensor, int, bool], Tensor]
) -> Covariance:
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
    """body(a) + shortcut(a). If one ends in weights of its own their product has mean 0, and their covariances add."""

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
    """How many residual blocks, one within another, hold their input at once."""
    match layer:
        case Serial(layers=layers):
            return max((nesting(inner) for inner in layers), default=0)
        case Residual(body=body, shortcut=shortcut):
            return 1 + max(nesting(body), nesting(shortcut))
        case _:
            return 0
