"""Per-point gradients of one layer from its input A and its output's gradient G, for the layers that have a rule.

In eval mode points are independent, so one forward and one backward of Σ_n f(x_n) gives A and G for all of them, and a
layer's gradient at point n is a product of A_n and G_n alone. Every rule is ``rows(module, name, a, g, at) -> (n, p)``:
the gradient of a slice ``at`` of parameter ``name``, along the dimension that ``cut`` tells. The order of the p columns
is arbitrary, but the same for all points. Whether a rule is right for a given network is not assumed: the engine
compares it with autograd on a few points first (_layers.py).
"""

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretaste.tangent.accumulate import EVEN
from foretaste.tangent.fused import fused_products, fusible, lay_fused

Rule = Callable[[Any, str, Tensor, Tensor, slice], Tensor]
MANY_POSITIONS = 16  # channels of a convolution's input, which is then what its weight is cut along


def correlate(
    big: Tensor,
    small: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    pads: Sequence[int] = (),
) -> Tensor:
    """(n, p) rows of out[n, k, s, b] = Σ_t small[n, s, t] · big[n, b, stride·t + dilation·k], in some order of k, s, b.

    The weight gradient of every convolution, one product for each kernel offset k; ``pads`` are zeros around ``big`` as
    F.pad takes them. At stride 1 no patch is ever copied: with ``small`` laid into rows as long as ``big``'s, all
    positions t of one offset are one contiguous run of ``big``, shifted by the offset; the columns between are zeros of
    ``small``. A GPU multiplies only aligned runs at full speed, so there ``big`` is laid out once for each offset of
    the last dimension, and the others are aligned.
    """
    n, cs = small.shape[:2]
    if all(s == 1 for s in stride):
        low = tuple(reversed(pads[::2])) or (0,) * len(kernel)
        high = tuple(reversed(pads[1::2])) or low
        extent = tuple(e + a + b for e, a, b in zip(big.shape[2:], low, high))
        copies = kernel[-1] if big.is_cuda else 1
        if copies > 1:
            extent = (*extent[:-1], -(-extent[-1] // 4) * 4)
        run = small.shape[2] * prod(extent[1:])
        pitch = [prod(extent[d + 1 :]) for d in range(len(extent))]
        rest = product(*(range(k) for k in (kernel[:-1] if copies > 1 else kernel)))
        starts = [sum(o * d * p for o, d, p in zip(k, dilation, pitch)) for k in rest]
        small = lay_rows(small, (0,) * len(kernel), (small.shape[2], *extent[1:]))
        big = lay_rows(big, low, extent, copies, dilation[-1], max(starts[-1] + run - prod(extent), 0))
        views = [big[:, :, s : s + run] for s in starts]
    else:
        big = F.pad(big, list(pads)) if any(pads) else big
        size, small = small.shape[2:], small.flatten(2)
        offsets = product(*(range(k) for k in kernel))
        views = [big[pick_channels(k, dilation, stride, size)].flatten(2) for k in offsets]
    small = small.reshape(n * groups, cs // groups, -1)
    wide = views[0].shape[1] // groups
    shape = (n * groups, cs // groups, wide)
    if big.is_cuda:
        rows = small.new_empty(shape[0], len(views), *shape[1:])
    else:  # there a batched product into strided memory goes one by one
        rows = small.new_empty(len(views), *shape).transpose(0, 1)
    for slot, view in zip(rows.unbind(1), views):
        torch.bmm(small, view.reshape(n * groups, wide, -1).mT, out=slot)
    return rows.reshape(n, -1)


def lay_rows(
    t: Tensor, low: tuple[int, ...], extent: tuple[int, ...], copies: int = 1, step: int = 0, tail: int = 0
) -> Tensor:
    """(n, c·copies, prod(extent) + tail): each channel at ``low`` in a grid of zeros, then begun ``step`` later, ..."""
    n, c, *size = t.shape
    if copies == 1 and tail == 0 and extent == tuple(size):
        return t.flatten(2)
    if t.dim() == 4 and fusible(t):
        return lay_fused(t, (low[0], low[1]), (extent[0], extent[1]), copies, step, tail)
    out = t.new_zeros(n, c, copies, prod(extent) + tail)
    grid = out[..., : prod(extent)].unflatten(3, extent)
    inner = tuple(slice(a, a + z) for a, z in zip(low[:-1], size[:-1]))
    for k in range(copies):
        first = low[-1] - k * step
        start, stop = max(first, 0), min(first + size[-1], extent[-1])
        grid[(slice(None), slice(None), k, *inner, slice(start, stop))] = t[..., start - first : stop - first]
    return out.flatten(1, 2)


def pick_channels(k: tuple[int, ...], dilation: tuple[int, ...], stride: tuple[int, ...], size: torch.Size) -> Any:
    """Index of the positions stride·t + dilation·k, for t up to ``size``."""
    return (..., *(slice(o * d, o * d + s * (z - 1) + 1, s) for o, d, s, z in zip(k, dilation, stride, size)))


def conv(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    if name == "bias":
        return g[:, at].flatten(2).sum(2)
    pads = m._reversed_padding_repeated_twice
    if m.padding_mode != "zeros":
        a, pads = F.pad(a, pads, mode=m.padding_mode), ()
    groups = m.groups
    if groups > 1:  # whole groups only: the plan cuts there
        per = m.out_channels // groups
        first, last = at.start // per, -(-at.stop // per)
        wide = m.in_channels // groups
        a, groups = a[:, first * wide : last * wide], last - first
    a, g = (a[:, at], g) if by_inputs(m) else (a, g[:, at])
    return correlate(a, g, m.kernel_size, m.stride, m.dilation, groups, pads)


def by_inputs(m: Any) -> bool:
    """Whether a convolution's weight is cut along its input's channels: patches of the others are then not formed."""
    return m.groups == 1 and m.in_channels >= MANY_POSITIONS


def conv_heads(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor | None:
    """``conv`` for every head of G (n, B, ...), (n, B, p), from one copy of A's patches; None: head by head is better.

    Patches are shared by the heads, so that on a CPU one product with all of their outputs beats a product for each
    offset. They may take the memory of three times the heads' G, or of the rows: what a plan has room for.
    """
    if name == "bias" or a.is_cuda or m.groups > 1:
        return None
    a, g = (a[:, at], g) if by_inputs(m) else (a, g[:, :, at])
    wide, tall, size = a.shape[1] * prod(m.kernel_size), g.shape[1] * g.shape[2], g.shape[3:]
    if wide > 3 * tall and prod(size) > tall:
        return None
    return torch.bmm(g.reshape(len(a), tall, -1), patches(m, a, size).mT).view(len(a), g.shape[1], -1)


def patches(m: Any, a: Tensor, size: Sequence[int]) -> Tensor:
    """(n, D, T): what each of the T output positions, laid out as ``size``, sees of A; D as in the weight (o, D)."""
    mode = "constant" if m.padding_mode == "zeros" else m.padding_mode
    pads = m._reversed_padding_repeated_twice
    a = F.pad(a, pads, mode=mode) if any(pads) else a.contiguous()
    steps = a.stride()[2:]
    strides = [*(s * d for s, d in zip(steps, m.dilation)), *(s * d for s, d in zip(steps, m.stride))]
    windows = a.as_strided((*a.shape[:2], *m.kernel_size, *size), (*a.stride()[:2], *strides), a.storage_offset())
    return windows.reshape(len(a), a.shape[1] * prod(m.kernel_size), -1)


def conv_transpose(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    """A convolution with the roles of A and G exchanged; its weight's first dimension is the input's channels."""
    if name == "bias":
        return g[:, at].flatten(2).sum(2)
    pads = [p for d in reversed(m.padding) for p in (d, d)]
    groups = m.groups
    if groups > 1:
        per, wide = m.in_channels // groups, m.out_channels // groups
        first, last = at.start // per, -(-at.stop // per)
        g, groups = g[:, first * wide : last * wide], last - first
    return correlate(g, a[:, at], m.kernel_size, m.stride, m.dilation, groups, pads)


def positions(t: Tensor) -> Tensor:
    """(n, ..., D) as (n, T, D)."""
    return t.reshape(t.shape[0], -1, t.shape[-1])


def linear(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    g_nTo = positions(g)[:, :, at]
    return g_nTo.sum(1) if name == "bias" else (g_nTo.mT @ positions(a)).flatten(1)


def batch_norm(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    """One weight and bias for each channel, the second dimension; the statistics are constants in eval mode."""
    if name == "bias":
        return per_channel(g[:, at])
    rstd, mean = torch.rsqrt(m.running_var[at] + m.eps), m.running_mean[at]
    a, g = a[:, at], g[:, at]
    if a.dim() > 2 and fusible(a) and fusible(g) and a.is_contiguous() and g.is_contiguous():
        return fused_products(a.flatten(2), g.flatten(2), mean) * rstd
    return per_channel(g * (a - mean.view(1, -1, *[1] * (a.dim() - 2)))) * rstd


def group_norm(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    if name == "bias":
        return per_channel(g[:, at])
    return per_channel(g[:, at] * F.group_norm(a, m.num_groups, eps=m.eps)[:, at])


def per_channel(t: Tensor) -> Tensor:
    return t.flatten(2).sum(2) if t.dim() > 2 else t


def last_norm(normal: Callable[[Any, Tensor], Tensor]) -> Rule:
    """A norm with a weight and bias for each entry of the last dimensions."""

    def rows(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
        g = g if name == "bias" else g * normal(m, a)
        k = len(m.normalized_shape)
        g = g.reshape(g.shape[0], -1, *g.shape[-k:]).sum(1)
        return g[:, at].flatten(1)

    return rows


def layer_normal(m: Any, a: Tensor) -> Tensor:
    return F.layer_norm(a, m.normalized_shape, eps=m.eps)


def rms_normal(m: Any, a: Tensor) -> Tensor:
    return F.rms_norm(a, m.normalized_shape, eps=m.eps)


def embedding(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    """Each point's rows of the table, summed where it looks one up twice; the padding row has no gradient."""
    n, width = a.shape[0], at.stop - at.start
    a, g = a.reshape(n, -1), positions(g)
    seen = (a >= at.start) & (a < at.stop)
    if m.padding_idx is not None:
        seen &= a != m.padding_idx
    rows = g.new_zeros(n, width, g.shape[-1])
    where = (a - at.start).clamp(0, width - 1)
    return rows.scatter_add_(1, where[..., None].expand_as(g), g * seen[..., None]).flatten(1)


RULES: dict[type, Rule] = {
    nn.Linear: linear,
    nn.Conv1d: conv,
    nn.Conv2d: conv,
    nn.Conv3d: conv,
    nn.ConvTranspose1d: conv_transpose,
    nn.ConvTranspose2d: conv_transpose,
    nn.ConvTranspose3d: conv_transpose,
    nn.BatchNorm1d: batch_norm,
    nn.BatchNorm2d: batch_norm,
    nn.BatchNorm3d: batch_norm,
    nn.SyncBatchNorm: batch_norm,
    nn.GroupNorm: group_norm,
    nn.LayerNorm: last_norm(layer_normal),
    nn.RMSNorm: last_norm(rms_normal),
    nn.Embedding: embedding,
}


HEADS: dict[type, Callable[[Any, str, Tensor, Tensor, slice], Tensor | None]] = {
    nn.Conv1d: conv_heads,
    nn.Conv2d: conv_heads,
    nn.Conv3d: conv_heads,
}


def has_rule(m: nn.Module) -> bool:
    """Exact types only: a subclass, or a parametrised module (its class changes), may compute something else."""
    if type(m) is nn.Embedding:
        return m.max_norm is None and not m.scale_grad_by_freq
    if isinstance(m, nn.modules.batchnorm._BatchNorm):
        return type(m) in RULES and m.running_mean is not None
    return type(m) in RULES


def cut_axis(m: nn.Module, name: str) -> tuple[int, int]:
    """Which dimension of parameter ``name`` is cut where it is too large, and how finely it may be."""
    groups = getattr(m, "groups", 1) if name == "weight" else 1
    p = m._parameters[name]
    assert p is not None
    if RULES[type(m)] is conv and name == "weight" and by_inputs(m):
        return 1, EVEN if p.is_cuda and p.shape[1] % EVEN == 0 else 1
    return 0, p.shape[0] // groups if groups > 1 else 1
