"""Sketches of tangents: a few numbers for each point, whose inner products are those of the tangents on average.

The gradient of a weight at a point is Σ_t G_t A_tᵀ over the positions t at which the weight is used. Its sketch is

    Σ_t (S_g G_t)(S_a A_t)ᵀ        S_g, S_a with r orthogonal rows, drawn at random

which has r × r numbers whatever the layer's width, and never forms the gradient. S_a A_t of a convolution is another
convolution, with r random filters. A layer that has no more than r inputs or outputs is kept whole on that side.

Of a Linear layer that acts once on a point there is one product, with nothing to cancel its error. The r² numbers

    a_k = Σ_{p: place(p) = k} ± A_p,    g_k likewise;    sketch_k = Σ_{i + j ≡ k mod r²} a_i g_j

have less of it (a tensor sketch; Pham, Pagh 2013). Places and signs are random, and a Fourier transform makes the sum.

All other parameters are few: their gradients are formed. The parts are added up with random signs, so that a point has
r² numbers, and products between parts cancel on average.

A sketch is linear: sketches less their mean are sketches of the tangents less theirs. The common part of all tangents,
beside which the rest would be lost, is taken off so. The correlation κ of two sketches then differs from that of the
tangents by about 1/r if gradients are spread over layers and positions, or are of layers that act once, and by up to
2/√r if one position of another layer has it all.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any
from zlib import crc32

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretaste.tangent.accumulate import slices
from foretaste.tangent.rules import CONVOLUTIONS, LayerCalls, pad_inputs, positions
from foretaste.tangent.survey import LayerParameter

SKETCH_SEED = 0
CONVOLVE: dict[type, Any] = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}


class TangentSketch:
    """Sketches of ``side``² numbers, always the same for one network.

    layers: parameters with a rule. once: modules that act once on a point. heads: whose gradients stand side by side.
    """

    def __init__(
        self, layers: Sequence[LayerParameter], once: Collection[nn.Module], heads: int, side: int, like: Tensor
    ) -> None:
        self.side, self.heads, self.like = side, heads, like
        draws = torch.Generator().manual_seed(SKETCH_SEED)
        self.formed = [layer for layer in layers if not self._is_wide(layer)]
        wide = [layer for layer in layers if self._is_wide(layer)]
        self.once = [a for a in wide if len(a.uses) == 1 and a.modules[0] in once and type(a.modules[0]) is nn.Linear]
        self.wide = [layer for layer in wide if layer not in self.once]
        self.of_inputs = [self._directions(layer.numel // layer.shape[0], draws) for layer in self.wide]
        self.of_outputs = [self._directions(heads * layer.shape[0], draws) for layer in self.wide]
        self.places = [  # of inputs and outputs
            [self._place(n, draws) for n in (layer.numel // layer.shape[0], heads * layer.shape[0])]
            for layer in self.once
        ]
        self.signs: dict[str, tuple[Tensor, int]] = {}  # by parameter, and where its rest goes

    def _is_wide(self, layer: LayerParameter) -> bool:
        """Whether the layer has more numbers than its sketch, and a form that can be sketched."""
        kinds = all(
            name == "weight" and (type(m) is nn.Linear or (type(m) in CONVOLUTIONS and getattr(m, "groups", 1) == 1))
            for m, name in layer.uses
        )
        return kinds and self.heads * layer.numel > self.side**2

    def _directions(self, n: int, draws: torch.Generator) -> Tensor:
        """(min(r, n), n): orthogonal rows of length √(n/r), or the identity."""
        if n <= self.side:
            return torch.eye(n).to(self.like)
        rows_nr = torch.linalg.qr(torch.randn(n, self.side, generator=draws)).Q
        return (rows_nr.T * math.sqrt(n / self.side)).contiguous().to(self.like)

    def _place(self, n: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """Where n numbers go, as evenly as they can, and with which signs."""
        orders = [torch.randperm(self.numbers, generator=draws) for _ in range(-(-n // self.numbers))]
        signs_n = torch.randint(2, (n,), generator=draws) * 2 - 1
        return torch.cat(orders)[:n].to(self.like.device), signs_n.to(self.like)

    @property
    def numbers(self) -> int:
        return self.side**2

    def __call__(self, calls: LayerCalls, others: Sequence[tuple[str, Tensor]], n: int) -> Tensor:
        """(n, r²): the sketches of n points. others: gradients that are formed already, (n, p) of each name."""
        out = self.like.new_zeros(n, self.numbers)
        for layer, s_a, s_g in zip(self.wide, self.of_inputs, self.of_outputs):
            own = sum(self._sketch(m, a, g, s_a, s_g) for m, _ in layer.uses for a, g in calls[m])
            assert isinstance(own, Tensor)
            self._add(out, layer.name, own.flatten(1))
        for layer, (of_a, of_g) in zip(self.once, self.places):
            ((a, g),) = calls[layer.modules[0]]
            self._add(out, layer.name, self._convolve(positions(a)[:, 0], of_a, g.flatten(1), of_g))
        for layer in self.formed:
            self._add(out, layer.name, layer.rows(slice(0, layer.length), calls).flatten(1))
        for name, rows in others:
            self._add(out, name, rows)
        return out

    def _sketch(self, m: Any, a: Tensor, g: Tensor, s_a: Tensor, s_g: Tensor) -> Tensor:
        """(n, r, r) of one call: A is (n, fold, ...), G (n, B, fold, ...)."""
        n = len(a)
        if type(m) is nn.Linear:
            g_nTo = g.reshape(n, self.heads, -1, g.shape[-1]).transpose(1, 2).flatten(2)
            return (g_nTo @ s_g.T).mT @ (positions(a) @ s_a.T)
        a_n, _ = pad_inputs(m, a.flatten(0, 1))
        pads = m.padding if m.padding_mode == "zeros" else 0
        filters = s_a.unflatten(1, m.weight.shape[1:])
        a_nrt = CONVOLVE[type(m)](a_n, filters, stride=m.stride, padding=pads, dilation=m.dilation).flatten(2)
        each = s_g.unflatten(1, (self.heads, -1)).unbind(1)
        g_nrt = sum(s @ g[:, b].flatten(0, 1).flatten(2) for b, s in enumerate(each))
        assert isinstance(g_nrt, Tensor)
        own = torch.bmm(g_nrt, a_nrt.mT)
        return own if len(own) == n else own.unflatten(0, (n, -1)).sum(1)

    def _convolve(self, a_nD: Tensor, of_a: tuple[Tensor, Tensor], g_nO: Tensor, of_g: tuple[Tensor, Tensor]) -> Tensor:
        """(n, r²): the tensor sketch of G Aᵀ of a layer that acts once on a point."""
        waves = [torch.fft.rfft(self._put(rows, *of)) for rows, of in ((a_nD, of_a), (g_nO, of_g))]
        return torch.fft.irfft(waves[0].mul_(waves[1]), self.numbers)

    def _put(self, rows: Tensor, at_p: Tensor, signs_p: Tensor) -> Tensor:
        """(n, p) -> (n, r²)."""
        out, rows = rows.new_zeros(len(rows), self.numbers), rows * signs_p
        for cut in slices(len(at_p), self.numbers):  # in which no place comes twice
            out[:, at_p[cut]] += rows[:, cut]
        return out

    def _add(self, out: Tensor, name: str, rows: Tensor) -> None:
        """Add (n, p) to (n, r²), r² columns at a time and the rest at a random place, each with a random sign."""
        p, r2 = rows.shape[1], self.numbers
        whole = p // r2 * r2
        if name not in self.signs:
            draws = torch.Generator().manual_seed(crc32(name.encode()) + SKETCH_SEED)
            signs_p = (torch.randint(2, (p,), generator=draws) * 2 - 1).to(self.like)
            self.signs[name] = signs_p, int(torch.randint(r2 - (p - whole) + 1, (), generator=draws))
        signs_p, start = self.signs[name]
        rows = rows * signs_p
        if whole:
            out += rows[:, :whole].unflatten(1, (-1, r2)).sum(1)
        if whole < p:
            out[:, start : start + p - whole] += rows[:, whole:]
