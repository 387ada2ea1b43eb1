"""Gradient rows on their way into Θ: centred as they are written, in the precision they will be multiplied in."""

import math

import torch
from torch import Tensor

from foretaste.tangent._fused import centre, fusible
from foretaste.tangent._subject import exact

ALIGN = 64  # columns: rows that begin at odd places multiply at a fraction of a GPU's speed
PEAK = 256.0  # what the largest gradient entry is scaled to in float16, whose largest number is 65504
SLAB = 1 << 17  # entries converted to float64 at once
SLAB_CUDA = 1 << 27  # there a launch is what costs


class Rows:
    """J (N, B, w) less a common row μ, for a slab of w columns.

    All rows share a large common gradient. What is left without it needs few digits: TF32 keeps ten bits of each entry,
    and so does float16, at twice the speed and half the memory, if entries are scaled into its range. Any μ will do
    (_theta.py), so it is the mean of the first points written, and each row is centred when it is written.
    """

    def __init__(self, points: int, heads: int, width: int, like: Tensor, half: bool, largest: float) -> None:
        self.width = width
        self.scale = 2.0 ** round(math.log2(PEAK / largest)) if half and largest > 0 else 1.0
        padded = -(-width // ALIGN) * ALIGN if like.is_cuda else width
        self.data = like.new_empty(points, heads, padded, dtype=torch.float16 if half else like.dtype)
        self.data[:, :, width:] = 0
        self.mu_Bw = like.new_zeros(heads, width)
        self.shift_NBB = exact(like).new_zeros(points, heads, heads)  # J̃_nb · μ_b'

    def write(self, at: slice, columns: slice, rows_nBw: Tensor) -> None:
        """Points are written from the first on. A rule may have given G itself as rows: they are not overwritten."""
        mu_Bw = self.mu_Bw[:, columns]
        if at.start == 0:
            mu_Bw.copy_(rows_nBw.mean(0))
        if fusible(rows_nBw) and rows_nBw.shape[1] == 1 and rows_nBw.stride(2) == 1:
            out_nw = self.data[at, 0, columns]
            self.shift_NBB[at, 0, 0] += centre(rows_nBw[:, 0], mu_Bw[0], out_nw, self.scale)
            return
        rows_nBw = rows_nBw - mu_Bw
        step = max(1, (SLAB_CUDA if rows_nBw.is_cuda else SLAB) // max(rows_nBw[..., 0].numel(), 1))
        for i in range(0, rows_nBw.shape[2], step):
            some = rows_nBw[:, :, i : i + step]
            self.shift_NBB[at] += exact(some) @ exact(mu_Bw[:, i : i + step]).T
        if self.scale != 1.0:
            rows_nBw *= self.scale
        self.data[at, :, columns] = rows_nBw

    def common(self) -> Tensor:
        """μ_b · μ_b'."""
        mu = exact(self.mu_Bw)
        return mu @ mu.T

    def times(self, i: slice, j: slice, columns: slice) -> Tensor:
        """J̃_i J̃_jᵀ · scale² of some columns, (|i|·B, |j|·B), in float32 or the rows' own precision."""
        a, b = (self.data[at, :, columns].flatten(0, 1) for at in (i, j))
        if a.dtype != torch.float16:
            return a @ b.T
        if a.is_cuda:
            return torch.mm(a, b.T, out_dtype=torch.float32)
        return a.float() @ b.float().T  # the same arithmetic: products of two halves are exact in float32
