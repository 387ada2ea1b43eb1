"""What a layer of infinite width does to covariances: the duals of ReLU and erf, and the window of a convolution.

A dual of a nonlinearity φ gives E φ(u) φ(u′) from the covariance of u and u′. S is the space of the images. The
covariances of n × m pairs are (n, m, *S) if each pixel only meets itself, else (n, m, *S, *S): pixel p of the one image
with pixel q of the other. Variances are (n, *S).
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Correlations within so many rounding errors of ±1 become ±1. Then the angle of two equal points is exactly 0; arccos
# would turn an error of 1e-16 into one of 1e-8.
SNAP_TO_ONE = 32
DUAL_BLOCK_BYTES = (1 << 18, 1 << 25)  # of one tensor: fits a core's cache, fills a GPU


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


Dual = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor | None]]


def relu_dual(k: Tensor, v: Tensor, v2: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    """E φ(u)φ(u′), and E φ′(u)φ′(u′), for (u, u′) ~ N(0, [v k; k v2]) and φ the ReLU: the arc-cosine kernels 1 and 0.

    With c = cos θ the correlation and r = √(v v2): r (sin θ + (π − θ) cos θ) / 2π and (π − θ) / 2π. If a variance is 0
    there is no angle, and θ = π/2, as in neural-tangents.
    """
    info = torch.finfo(k.dtype)
    r = (v * v2).sqrt_()
    c = (k / r.clamp_min(info.tiny)).clamp_(-1, 1)
    c.masked_fill_(c > 1 - SNAP_TO_ONE * info.eps, 1).masked_fill_(c < SNAP_TO_ONE * info.eps - 1, -1)
    turn = torch.acos(-c).div_(2 * math.pi)  # (π − θ) / 2π
    out = turn * c
    sine = (1 - c).mul_(c.add_(1)).sqrt_()  # 1 − c² would be less exact than the angle if c is near 1
    return out.add_(sine, alpha=1 / (2 * math.pi)).mul_(r), turn if slope else None


def erf_dual(k: Tensor, v: Tensor, v2: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    """The same for φ = erf (Williams 1997): 2/π arcsin(2k / √q) and 4/π / √(q − 4k²), q = (1 + 2v)(1 + 2 v2)."""
    q = (1 + 2 * v) * (1 + 2 * v2)
    out = (2 * k / q.sqrt()).clamp_(-1, 1).asin_().mul_(2 / math.pi)
    return out, q.addcmul_(k, k, value=-4).rsqrt_().mul_(4 / math.pi) if slope else None


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
