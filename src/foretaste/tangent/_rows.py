"""Gradient rows on their way into Θ: centred as they are written, in the precision they will be multiplied in."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from foretaste.tangent._fused import centre, fusible
from foretaste.tangent._pages import large_pages
from foretaste.tangent._subject import exact

ALIGN = 64  # columns: rows that begin at odd places multiply at a fraction of a GPU's speed
EVEN = 8  # points or channels: so do products with a number of columns that is no multiple of it
PANEL = 1 << 16  # columns that lie together on a GPU, and are summed in float32
PEAK = 256.0  # what the largest gradient entry is scaled to in float16, whose largest number is 65504
SLAB = 1 << 17  # entries converted to float64 at once
SLAB_CUDA = 1 << 27  # there a launch is what costs


class Rows:
    """J (N, B, w) less a common row μ, for a slab of w columns, as panels of at most PANEL columns.

    All rows share a large common gradient. What is left without it needs few digits: TF32 keeps ten bits of each entry,
    and so does float16, at twice the speed and half the memory, if entries are scaled into its range. Any μ will do
    (_theta.py), so it is the mean of the first points written, and each row is centred when it is written.
    """

    def __init__(
        self, points: int, heads: int, width: int, like: Tensor, half: bool, largest: float, old: "Rows | None" = None
    ) -> None:
        """``old``: rows that are no longer needed, whose memory may do."""
        self.width, self.points = width, points
        self.scale = 2.0 ** round(math.log2(PEAK / largest)) if half and largest > 0 else 1.0
        self.panel, count, rows = shape_of(points, width, like.is_cuda)
        of = torch.float16 if half else like.dtype
        shape = (count, rows, heads, self.panel)
        if old is not None and old.data.numel() >= math.prod(shape):
            self.data: Tensor = old.data.view(-1)[: math.prod(shape)].view(shape)
        else:
            self.data = large_pages(like.new_empty(shape, dtype=of))
        self.data[:, points:] = 0
        for q, here, _ in self.pieces(slice(width, count * self.panel)):
            self.data[q, :, :, here] = 0
        self.mu_Bw = like.new_zeros(heads, width)
        self.shift_NBB = exact(like).new_zeros(points, heads, heads)  # J̃_nb · μ_b'

    def write(self, at: slice, columns: slice, rows_nBw: Tensor) -> None:
        """Points are written from the first on. A rule may have given G itself as rows: they are not overwritten."""
        mu_Bw = self.mu_Bw[:, columns]
        if at.start == 0:
            mu_Bw.copy_(rows_nBw.mean(0))
        if fusible(rows_nBw) and rows_nBw.shape[1] == 1 and rows_nBw.stride(2) == 1:
            to = self.data[:, at, 0]
            self.shift_NBB[at, 0, 0] += centre(rows_nBw[:, 0], mu_Bw[0], to, columns.start, self.scale)
            return
        plain = len(self.data) == 1 and self.scale == 1.0 and self.data.dtype == rows_nBw.dtype
        if plain:  # no copy between
            rows_nBw = torch.sub(rows_nBw, mu_Bw, out=self.data[0, at, :, columns])
        else:
            rows_nBw = rows_nBw - mu_Bw
        step = max(1, (SLAB_CUDA if rows_nBw.is_cuda else SLAB) // max(rows_nBw[..., 0].numel(), 1))
        for i in range(0, rows_nBw.shape[2], step):
            some = rows_nBw[:, :, i : i + step]
            self.shift_NBB[at] += exact(some) @ exact(mu_Bw[:, i : i + step]).T
        if plain:
            return
        if self.scale != 1.0:
            rows_nBw *= self.scale
        for q, here, of in self.pieces(columns):
            self.data[q, at, :, here] = rows_nBw[:, :, of]

    def pieces(self, columns: slice) -> Iterator[tuple[int, slice, slice]]:
        """(panel, columns in it, the same counted from the first of ``columns``)."""
        start = columns.start
        while start < columns.stop:
            q, low = divmod(start, self.panel)
            stop = min(columns.stop, (q + 1) * self.panel)
            yield q, slice(low, low + stop - start), slice(start - columns.start, stop - columns.start)
            start = stop

    def common(self) -> Tensor:
        """μ_b · μ_b'."""
        mu = exact(self.mu_Bw)
        return mu @ mu.T

    def times(self, q: int, i: slice, j: slice) -> Tensor:
        """J̃_i J̃_jᵀ · scale² of a panel, (|i|·B, |j|·B), in float32 or the rows' own precision."""
        n = (j.stop - j.start) * self.data.shape[2]
        if self.data.is_cuda:  # rows beyond j are multiplied too, and their products left out
            j = slice(j.start, min(j.start + -(-(j.stop - j.start) // EVEN) * EVEN, self.data.shape[1]))
        a, b = (self.data[q, at].flatten(0, 1) for at in (i, j))
        if a.dtype != torch.float16:
            return (a @ b.T)[:, :n]
        if a.is_cuda:
            return torch.mm(a, b.T, out_dtype=torch.float32)[:, :n]
        return a.float() @ b.float().T  # the same arithmetic: products of two halves are exact in float32


def shape_of(points: int, width: int, cuda: bool) -> tuple[int, int, int]:
    """Columns of a panel, panels, and points with those added that make products even."""
    if not cuda:
        return width, 1, points
    count = max(1, -(-width // PANEL))
    return -(-width // (count * ALIGN)) * ALIGN, count, -(-points // EVEN) * EVEN
