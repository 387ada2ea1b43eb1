"""What a layer of infinite width does to covariances: the duals of ReLU and erf, and the window of a convolution.

Covariances of a tile of n × m pairs lie as (n, m, *S) where only a pixel with itself is needed, S the space of the
images, or as (n, m, *S, *S), pixel p of the one with pixel q of the other; variances as (n, *S).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Correlations this many units of rounding from ±1 are ±1: the angle of two equal points is then exactly 0, where
# arccos would make 1e-8 of 1e-16.
SNAP = 32


def outer(v1: Tensor, v2: Tensor, full: bool) -> Tensor:
    """The products of standing variances: (n, m, *S), or (n, m, *S, *S) for every pair of pixels."""
    d = v1.dim() - 1
    if not full:
        return v1[:, None] * v2[None]
    return v1.reshape(v1.shape[0], 1, *v1.shape[1:], *(1,) * d) * v2.reshape(1, v2.shape[0], *(1,) * d, *v2.shape[1:])


def outer_own(v: Tensor) -> Tensor:
    """The same for each point with itself: (n, *S, *S)."""
    d = v.dim() - 1
    return v.reshape(*v.shape, *(1,) * d) * v.reshape(v.shape[0], *(1,) * d, *v.shape[1:])


def same_pixel(k: Tensor, d: int) -> Tensor:
    """(..., *S, *S) to its diagonal (..., *S), d the dimensions of S."""
    if d == 0:
        return k
    lead, space = k.shape[: -2 * d], k.shape[-d:]
    return k.reshape(*lead, math.prod(space), math.prod(space)).diagonal(dim1=-2, dim2=-1).reshape(*lead, *space)


def relu_dual(k: Tensor, v1v2: Tensor, ntk: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """E φ(u)φ(u′) and Θ·E φ′(u)φ′(u′) for (u, u′) Gaussian, φ the ReLU: the arc-cosine kernels of degree 1 and 0.

    With c = cos θ the correlation and r = √(v v′): r (sin θ + (π − θ) cos θ) / 2π and (π − θ) / 2π. Where a variance
    is 0 there is no angle; θ = π/2 there, as neural-tangents has it. ``v1v2`` is overwritten.
    """
    info = torch.finfo(k.dtype)
    r = v1v2.sqrt_().clamp_min_(info.tiny)
    c = (k / r).clamp_(-1, 1)
    c.masked_fill_(c > 1 - SNAP * info.eps, 1).masked_fill_(c < SNAP * info.eps - 1, -1)
    turn = torch.acos(-c).div_(2 * math.pi)  # (π − θ) / 2π
    out = turn * c
    sine = (1 - c).mul_(c.add_(1)).sqrt_()  # 1 − c² would not be as exact as the angle where c is near 1
    out.add_(sine, alpha=1 / (2 * math.pi)).mul_(r)
    return out, None if ntk is None else turn.mul_(ntk)


def erf_dual(k: Tensor, v1v2: Tensor, ntk: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The same for φ = erf (Williams 1997): 2/π arcsin(2k / √q) and 4/π / √(q − 4k²), q = (1 + 2v)(1 + 2v′).

    ``v1v2`` is q here, and overwritten.
    """
    slope = None
    if ntk is not None:
        slope = torch.addcmul(v1v2, k, k, value=-4).rsqrt_().mul_(4 / math.pi).mul_(ntk)
    c = torch.div(k, v1v2.sqrt_(), out=v1v2).mul_(2).clamp_(-1, 1)
    return c.asin_().mul_(2 / math.pi), slope


def window(
    k: Tensor, axes: Sequence[Sequence[int]], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """The mean over a convolution's window, zeros beyond the border, as a new tensor; axes of one entry move together.

    cov[p, q] ← Σ_δ cov[s p + δ, s q + δ] / |δ|: the same offset on both sides, for different offsets meet different
    weights, which are independent. Separable, so one direction after the other.
    """
    out = k
    for along, size, step, pad in zip(axes, kernel, stride, padding):
        if (size, step, pad) != (1, 1, 0):
            out = _slide(out, along, size, step, pad)
    return out.clone() if out is k else out.div_(math.prod(kernel))


def _slide(k: Tensor, along: Sequence[int], size: int, step: int, pad: int) -> Tensor:
    length = k.shape[along[0]]
    many = (length + 2 * pad - size) // step + 1
    out = k.new_zeros([many if i in along else n for i, n in enumerate(k.shape)])
    for offset in range(size):
        shift = offset - pad
        first = max(0, -(shift // step))  # the outputs o whose o·step + shift lies within [0, length)
        count = min(many - 1, (length - 1 - shift) // step) - first + 1
        if count > 0:
            into, of = out, k
            for a in along:
                into = into.narrow(a, first, count)
                of = of[(slice(None),) * a + (slice(first * step + shift, length, step),)].narrow(a, 0, count)
            into += of
    return out
