"""What one layer contributes to Θ, for the layers that have a rule. Add a rule here, at ``RULES``.

In eval mode points are independent. So one forward and one backward of Σ_n f(x_n) give the input A and the gradient G
of the output of every layer, at every point, and the layer's gradient at point n is a product of A_n and G_n alone.

A rule forms that gradient: ``rule(module, name, a, g, at) -> (n, p)`` is the gradient of a slice ``at`` of parameter
``name``, along the dimension that ``cut_axis`` names. The p columns of a whole parameter are in its own order, those of
a convolution in that of ``parameter_order``. No rule is trusted with a network that it was not made for:
``rule_checks.compare_rows`` compares a sum of rows with autograd on points of every kernel's own batches.

A ``ProductLayer`` contributes its part of Θ without forming a gradient; see its docstring.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretaste.tangent.accumulate import EVEN, slices
from foretaste.tangent.bare import Contraction, Spreading, contracted_rows, spread_rows
from foretaste.tangent.frozen import to_float64
from foretaste.tangent.stand_ins import RowsOf, Spread
from foretaste.tangent.triton_kernels import fused_products, fusible, lay_fused

Rule = Callable[[Any, str, Tensor, Tensor, slice], Tensor]
# For each module, for each of its calls: A (n, fold, ...) and the G of all heads, (n, B, fold, ...). ``fold`` counts
# what the network moved into the first dimension beside the points, such as frames or windows; usually 1.
LayerCalls = dict[nn.Module, list[tuple[Tensor, Tensor]]]
MANY_CHANNELS = 16  # of a convolution's input: from here on its weight is cut along them
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


# ---- Rules ----


def linear(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    """Σ_t G_t A_tᵀ over the positions t at which the layer is applied."""
    g_nTo = positions(g)[:, :, at]
    return g_nTo.sum(1) if name == "bias" else (g_nTo.mT @ positions(a)).flatten(1)


def linear_into(a: Tensor, g: Tensor, at: slice, out_nw: Tensor, inputs: bool) -> None:
    """Add ``linear``'s rows of a weight to ``out_nw``, which has no gaps. inputs: ``at`` are some of its inputs."""
    a, g = positions(a), positions(g)
    a, g = (a[:, :, at], g) if inputs else (a, g[:, :, at])
    out_nw.view(len(a), g.shape[2], a.shape[2]).baddbmm_(g.mT, a)


def linear_sum(m: Any, name: str, a: Tensor, g: Tensor) -> Tensor:
    """Σ_n of ``linear``'s rows: all points are positions of one."""
    g_To = g.reshape(-1, g.shape[-1])
    return g_To.sum(0) if name == "bias" else (g_To.T @ a.reshape(-1, a.shape[-1])).flatten()


def positions(t: Tensor) -> Tensor:
    """(n, ..., D) as (n, T, D): a Linear layer is applied at T positions of each point."""
    return t.reshape(t.shape[0], -1, t.shape[-1])


def conv(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    """The correlation of A with G, at each offset of the kernel."""
    if name == "bias":
        return per_channel(g[:, at])
    a, pads = pad_inputs(m, a)
    groups = m.groups
    if groups > 1:  # ``at`` has whole groups only
        per = m.out_channels // groups
        first, last = at.start // per, -(-at.stop // per)
        wide = m.in_channels // groups
        a, groups = a[:, first * wide : last * wide], last - first
    a, g = (a[:, at], g) if by_inputs(m) else (a, g[:, at])
    return correlate(a, g, m.kernel_size, m.stride, m.dilation, groups, pads)


def pad_inputs(m: Any, a: Tensor) -> tuple[Tensor, Sequence[int]]:
    """A with its padding, if that is not of zeros, and the zeros that are left to add, as F.pad takes them."""
    pads = m._reversed_padding_repeated_twice
    return (a, pads) if m.padding_mode == "zeros" else (F.pad(a, pads, mode=m.padding_mode), (0,) * len(pads))


def by_inputs(m: Any) -> bool:
    """Whether a convolution's weight is cut along its input's channels. Then other channels need not be read."""
    return m.groups == 1 and m.in_channels >= MANY_CHANNELS


def conv_heads(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor | None:
    """``conv`` for every head of G (n, B, ...) at once, (n, B, p); None if one head at a time is better.

    All heads share A's patches. So on a CPU, one product with all heads beats one product per offset and head. The
    patches may take three times the memory of G, or that of the rows: a plan has room for that.
    """
    if name == "bias" or a.is_cuda or m.groups > 1:
        return None
    a, g = (a[:, at], g) if by_inputs(m) else (a, g[:, :, at])
    wide, tall, size = a.shape[1] * prod(m.kernel_size), g.shape[1] * g.shape[2], g.shape[3:]
    if wide > 3 * tall and prod(size) > tall:
        return None
    return torch.bmm(g.reshape(len(a), tall, -1), patches(m, a, size).mT).view(len(a), g.shape[1], -1)


def conv_sum(m: Any, name: str, a: Tensor, g: Tensor) -> Tensor:
    """Σ_n of ``conv``'s rows: the points are one more dimension of space, in which the kernel has length 1."""
    if name == "bias":
        return g.flatten(2).sum((0, 2))
    a, pads = pad_inputs(m, a)
    a, g = a.transpose(0, 1)[None], g.transpose(0, 1)[None]
    return correlate(a, g, (1, *m.kernel_size), (1, *m.stride), (1, *m.dilation), m.groups, (*pads, 0, 0))[0]


def conv_transpose(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    """A convolution with A and G exchanged. The first dimension of its weight is the input's channels."""
    if name == "bias":
        return per_channel(g[:, at])
    pads = [p for d in reversed(m.padding) for p in (d, d)]
    groups = m.groups
    if groups > 1:
        per, wide = m.in_channels // groups, m.out_channels // groups
        first, last = at.start // per, -(-at.stop // per)
        g, groups = g[:, first * wide : last * wide], last - first
    return correlate(g, a[:, at], m.kernel_size, m.stride, m.dilation, groups, pads)


def batch_norm(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    """A weight and a bias for each channel (the second dimension). In eval mode the statistics are constants."""
    if name == "bias":
        return per_channel(g[:, at])
    rstd, mean = torch.rsqrt(m.running_var[at] + m.eps), m.running_mean[at]
    a, g = a[:, at], g[:, at]
    if a.is_cuda and a.dim() > 2 and fusible(a) and fusible(g) and a.is_contiguous() and g.is_contiguous():
        return fused_products(a.flatten(2), g.flatten(2), mean) * rstd
    return per_channel(g * (a - mean.view(1, -1, *[1] * (a.dim() - 2)))) * rstd


def group_norm(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    """A weight and a bias for each channel."""
    if name == "bias":
        return per_channel(g[:, at])
    return per_channel(g[:, at] * F.group_norm(a, m.num_groups, eps=m.eps)[:, at])


def per_channel(t: Tensor) -> Tensor:
    """The sum over space, (n, channels)."""
    return t.flatten(2).sum(2) if t.dim() > 2 else t


def last_norm(normalise: Callable[..., Tensor]) -> Rule:
    """The rule of a norm with a weight and a bias for each entry of the last dimensions."""

    def rows(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
        g = g if name == "bias" else g * normalise(a, m.normalized_shape, eps=m.eps)
        k = len(m.normalized_shape)
        g = g.reshape(g.shape[0], -1, *g.shape[-k:]).sum(1)
        return g[:, at].flatten(1)

    return rows


def prelu(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    """G times the negative part of A: summed over all, or over space for each channel (the second dimension)."""
    rows = g * a.clamp(max=0)
    return rows.flatten(1).sum(1, keepdim=True) if m.num_parameters == 1 else per_channel(rows[:, at])


def rows_of(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    """``linear`` at the rows of a larger parameter that the layer uses, and 0 at the others."""
    first = m.first[name]
    start, stop = (min(max(k - first, 0), m.size) for k in (at.start, at.stop))
    inside = linear(m, name, a, g, slice(start, stop))
    each = 1 if name == "bias" else a.shape[-1]
    return (
        F.pad(inside, ((start + first - at.start) * each, (at.stop - stop - first) * each))
        if stop > start
        else (inside.new_zeros(len(a), (at.stop - at.start) * each))
    )


def repeated(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    """G itself, for a weight of which every point has a copy."""
    return g.reshape(len(g), *m.weight.shape)[:, at].flatten(1)


def embedding(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    """G at the rows of the table that a point looks up, summed if it looks one up twice. The padding row has none."""
    n, width = a.shape[0], at.stop - at.start
    a, g = a.reshape(n, -1), positions(g)
    seen = (a >= at.start) & (a < at.stop)
    if m.padding_idx is not None:
        seen &= a != m.padding_idx
    rows = g.new_zeros(n, width, g.shape[-1])
    where = (a - at.start).clamp(0, width - 1)
    return rows.scatter_add_(1, where[..., None].expand_as(g), g * seen[..., None]).flatten(1)


# ---- Geometry of convolutions ----


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

    This is the weight gradient of every convolution: one product for each offset k of the kernel. ``pads`` are zeros
    around ``big``, as F.pad takes them.

    At stride 1 no patch is copied. ``small`` is laid into a grid whose lines are as long as those of ``big``, with
    zeros between. Then the positions t of one offset are one contiguous run of ``big``, shifted by the offset. A GPU
    multiplies only aligned runs at full speed, so there ``big`` has a copy for each offset of the last dimension.
    """
    n, cs = small.shape[:2]
    if all(s == 1 for s in stride):
        low = tuple(reversed(pads[::2])) or (0,) * len(kernel)
        high = tuple(reversed(pads[1::2])) or low
        extent = tuple(e + a + b for e, a, b in zip(big.shape[2:], low, high))
        copies = count_copies(kernel, stride, big.is_cuda)
        if copies > 1:
            extent = (*extent[:-1], -(-extent[-1] // 4) * 4)
        run = small.shape[2] * prod(extent[1:])
        pitch = [prod(extent[d + 1 :]) for d in range(len(extent))]
        rest = product(*(range(k) for k in (kernel[:-1] if copies > 1 else kernel)))
        starts = [sum(o * d * p for o, d, p in zip(k, dilation, pitch)) for k in rest]
        small = lay_in_grid(small, (0,) * len(kernel), (small.shape[2], *extent[1:]))
        big = lay_in_grid(big, low, extent, copies, dilation[-1], max(starts[-1] + run - prod(extent), 0))
        views = [big[:, :, s : s + run] for s in starts]
    else:
        big = F.pad(big, list(pads)) if any(pads) else big
        size, small = small.shape[2:], small.flatten(2)
        offsets = product(*(range(k) for k in kernel))
        views = [big[pick_positions(k, dilation, stride, size)].flatten(2) for k in offsets]
    small = small.reshape(n * groups, cs // groups, -1)
    wide = views[0].shape[1] // groups
    shape = (n * groups, cs // groups, wide)
    if big.is_cuda:
        rows = small.new_empty(shape[0], len(views), *shape[1:])
    else:  # a CPU would do a batched product into strided memory one matrix at a time
        rows = small.new_empty(len(views), *shape).transpose(0, 1)
    for slot, view in zip(rows.unbind(1), views):
        torch.bmm(small, view.reshape(n * groups, wide, -1).mT, out=slot)
    return rows.reshape(n, -1)


def count_copies(kernel: tuple[int, ...], stride: tuple[int, ...], cuda: bool) -> int:
    """How often ``correlate`` lays out its input: once for each offset of the last dimension, or once."""
    return kernel[-1] if cuda and all(s == 1 for s in stride) else 1


def lay_in_grid(
    t: Tensor, low: tuple[int, ...], extent: tuple[int, ...], copies: int = 1, step: int = 0, tail: int = 0
) -> Tensor:
    """Lay each channel into a grid of zeros of size ``extent``, from ``low`` on: (n, c·copies, prod(extent) + tail).

    Copy k of a channel begins k·``step`` earlier in the last dimension.
    """
    n, c, *size = t.shape
    if copies == 1 and tail == 0 and extent == tuple(size):
        return t.flatten(2)
    if t.is_cuda and t.dim() == 4 and fusible(t):
        return lay_fused(t, (low[0], low[1]), (extent[0], extent[1]), copies, step, tail)
    out = t.new_zeros(n, c, copies, prod(extent) + tail)
    grid = out[..., : prod(extent)].unflatten(3, extent)
    inner = tuple(slice(a, a + z) for a, z in zip(low[:-1], size[:-1]))
    for k in range(copies):
        first = low[-1] - k * step
        start, stop = max(first, 0), min(first + size[-1], extent[-1])
        grid[(slice(None), slice(None), k, *inner, slice(start, stop))] = t[..., start - first : stop - first]
    return out.flatten(1, 2)


def pick_positions(k: tuple[int, ...], dilation: tuple[int, ...], stride: tuple[int, ...], size: torch.Size) -> Any:
    """The index of the positions stride·t + dilation·k, for t up to ``size``."""
    return (..., *(slice(o * d, o * d + s * (z - 1) + 1, s) for o, d, s, z in zip(k, dilation, stride, size)))


def patches(m: Any, a: Tensor, size: Sequence[int]) -> Tensor:
    """(n, D, T): the part of A that each of the T output positions sees. ``size`` is their layout, D the weight's."""
    mode = "constant" if m.padding_mode == "zeros" else m.padding_mode
    pads = m._reversed_padding_repeated_twice
    a = F.pad(a, pads, mode=mode) if any(pads) else a.contiguous()
    steps = a.stride()[2:]
    strides = [*(s * d for s, d in zip(steps, m.dilation)), *(s * d for s, d in zip(steps, m.stride))]
    windows = a.as_strided((*a.shape[:2], *m.kernel_size, *size), (*a.stride()[:2], *strides), a.storage_offset())
    return windows.reshape(len(a), a.shape[1] * prod(m.kernel_size), -1)


# ---- The table of rules ----


RULES: dict[type, Rule] = {
    nn.Linear: linear,
    **dict.fromkeys(CONVOLUTIONS, conv),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), conv_transpose),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), batch_norm),
    nn.GroupNorm: group_norm,
    nn.LayerNorm: last_norm(F.layer_norm),
    nn.RMSNorm: last_norm(F.rms_norm),
    nn.Embedding: embedding,
    nn.PReLU: prelu,
    RowsOf: rows_of,
    Spread: repeated,
    Spreading: spread_rows,
    Contraction: contracted_rows,
}


OwnRule = Callable[[Any, str, Tensor, Tensor], Tensor]
REGISTERED: dict[type, OwnRule] = {}


def register_rule(kind: type[nn.Module]) -> Callable[[OwnRule], OwnRule]:
    """Register a rule: how the gradient of a module's parameters is formed, for every point of a batch at once.

    A module without a rule works too, through torch.func: one more forward and backward for each point. Each kernel
    compares its rules with autograd on a dozen points, and gives up one that fails. ``foretaste.testing.check_rule``
    is the contract test.

    Args:
        kind: the class of the module, exactly: a subclass needs a rule of its own. Its forward takes one tensor first
            and returns one tensor, both with a dimension for the points, and uses its parameters on each point alone.

    Returns:
        A decorator for ``rule(module, name, a, g) -> (n, ...)``: the gradient of the parameter ``name`` at each of n
        points, of shape (n, *parameter.shape). ``a`` is the module's input, (n, ...), and ``g`` the gradient of a
        number for each point with respect to the module's output, of the output's shape.

    Raises:
        TypeError: if ``kind`` is no class of modules.
        ValueError: if it has a rule.

    Example:
        >>> import foretaste as ft
        >>> import torch
        >>> class Scale(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.factor = torch.nn.Parameter(torch.ones(4))
        ...     def forward(self, x):
        ...         return torch.tanh(x) * self.factor
        >>> @ft.register_rule(Scale)
        ... def scale_rows(module, name, a, g):
        ...     return g * torch.tanh(a)
        >>> ft.testing.check_rule(Scale(), torch.randn(5, 4))
    """
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise TypeError(f"kind is {kind!r}; expected a class of modules, as in @ft.register_rule(MyLayer)")
    if kind in RULES:
        raise ValueError(f"{kind.__name__} has a rule; a rule is registered once, for one exact class")

    def add(rule: OwnRule) -> OwnRule:
        def rows(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
            with torch.no_grad():  # a rule may use the module's parameters
                found = rule(m, name, a, g)
            return found.reshape(len(g), *(m._parameters[name].shape or (1,)))[:, at].flatten(1)

        REGISTERED[kind], RULES[kind] = rule, rows
        return rule

    return add


# Rules for all heads at once, for "full" and "trace".
HEAD_RULES: dict[type, Callable[[Any, str, Tensor, Tensor, slice], Tensor | None]] = {
    **dict.fromkeys(CONVOLUTIONS, conv_heads)
}


# Rules for the sum of the rows of all points, (p,), with the columns of RULES: faster than the rows themselves.
SUM_RULES: dict[type, Callable[[Any, str, Tensor, Tensor], Tensor]] = {
    nn.Linear: linear_sum,
    **dict.fromkeys(CONVOLUTIONS, conv_sum),
}


def parameter_order(m: Any, name: str, row_p: Tensor) -> Tensor:
    """The columns of a rule's row in the order of the parameter's own entries. Only convolutions have another."""
    if name == "bias" or not hasattr(m, "kernel_size"):
        return row_p
    first, second = m.weight.shape[:2]
    copies = count_copies(m.kernel_size, m.stride, row_p.is_cuda)
    return row_p.view(m.groups, -1, first // m.groups, second, copies).permute(0, 2, 3, 1, 4).flatten()


def has_rule(m: nn.Module) -> bool:
    """Whether RULES has this very type. A subclass, or a parametrised or pruned module, may compute something else."""
    if type(m) in REGISTERED:
        return bool(m._parameters)
    if "weight" not in m._parameters or not m._parameters.keys() <= {"weight", "bias"}:
        return False
    if type(m) is nn.Embedding:
        return not m.scale_grad_by_freq
    if isinstance(m, nn.modules.batchnorm._BatchNorm):
        return type(m) in RULES and m.running_mean is not None
    return type(m) in RULES


def cut_axis(m: nn.Module, name: str) -> tuple[int, int]:
    """The dimension along which parameter ``name`` is cut if it is too large, and the smallest slice (its grain)."""
    groups = getattr(m, "groups", 1) if name == "weight" else 1
    p = m._parameters[name]
    assert p is not None
    if not p.dim() or type(m) in REGISTERED:
        return 0, 1
    if RULES[type(m)] is conv and name == "weight" and by_inputs(m):
        return 1, EVEN if p.is_cuda and p.shape[1] % EVEN == 0 else 1
    return 0, p.shape[0] // groups if groups > 1 else 1


# ---- Layers that need no gradient ----


@dataclass(frozen=True)
class ProductLayer:
    """A layer whose part of Θ comes from products of A and of G, without its gradient.

    The gradient of W at point n is Σ_t G_nt A_ntᵀ over the T positions at which W is used. So the inner product of two
    of them is Σ_tt' (A_nt·A_mt')(G_nt·G_mt'). With one position it is an entrywise product of two small Gram matrices.
    A convolution is a Linear layer on the patches that its positions see. An embedding is one on one-hot inputs, where
    A·A' is whether two indices are equal. In float64, because this form cannot be centred first.

    Stands for the weight, the bias, or both, of Linear layers or embeddings that share them, or of one convolution.
    """

    modules: tuple[nn.Module, ...]
    weight: bool
    bias: bool
    entries: int  # of A and G, for each point

    def gather(self, calls: LayerCalls, folded: int = 1) -> tuple[Tensor, Tensor]:
        """A (n, T, D) and G (n, B, T, O) over all calls, in float64. For an embedding A (n, T) are indices.

        With folded heads, G is (n, 1, T, B·O): heads become outputs.
        """
        found = [(m, a, g) for m in self.modules for a, g in calls[m]]
        a = join_calls([product_inputs(m, a, g) for m, a, g in found], 1)
        g = join_calls([product_outputs(m, g) for m, _, g in found], 2)
        return a, g.transpose(1, 2).flatten(2)[:, None] if folded > 1 else g

    def kernel(self, a: Tensor, g: Tensor, i: slice, j: slice, tile_bytes: int) -> Tensor:
        """Its part of Θ between points i and j, (|i|·B, |j|·B). Intermediate results take ``tile_bytes``."""
        n, heads, t, o = g[i].shape
        m = g[j].shape[0]
        if t == 1:
            k_g = g[i].flatten(0, 2) @ g[j].flatten(0, 2).T
            k_a = self.input_kernel(a[i].flatten(0, 1), a[j].flatten(0, 1))
            k_g.view(n, heads, m, heads).mul_(k_a[:, None, :, None])
            return k_g
        out = g.new_empty(n, heads, m, heads)
        # Bytes for each point of j: K_A, K_G and their sum; or, with several heads, G and two tensors of its size.
        each = 24 * t * t * max(n, 1) if heads == 1 else 48 * t * heads * o
        for cut in slices(m, max(1, tile_bytes // each)):
            at = slice(j.start + cut.start, j.start + cut.stop)
            if heads > 1:
                self.kernel_of_heads(a, g, i, at, tile_bytes, out[:, :, cut])
                continue
            k_a = self.input_kernel(a[i].flatten(0, 1), a[at].flatten(0, 1))
            k_g = g[i].flatten(0, 2) @ g[at].flatten(0, 2).T
            out[:, 0, cut, 0] = k_g.mul_(k_a).view(n, t, -1, t).sum((1, 3))
        return out.flatten(0, 1).flatten(1)

    def kernel_of_heads(self, a: Tensor, g: Tensor, i: slice, j: slice, tile_bytes: int, out_nbmc: Tensor) -> None:
        """Write Σ_to G_nbto (Σ_t' K_A,nt,mt' G_mct'o). A K_G for each pair of heads would cost B times more."""
        n, heads, t, o = g[i].shape
        g_mtco = g[j].transpose(1, 2).flatten(2)
        for rows in slices(n, max(1, tile_bytes // (16 * t * t * len(g_mtco)))):
            part = slice(i.start + rows.start, i.start + rows.stop)
            k_ntmt = self.input_kernel(a[part].flatten(0, 1), a[j].flatten(0, 1)).view(-1, t, len(g_mtco), t)
            for k_tmt, g_bto, out_bmc in zip(k_ntmt, g[part], out_nbmc[rows]):
                h_mtco = (k_tmt.transpose(0, 1) @ g_mtco).unflatten(2, (heads, o))
                h_mcto = h_mtco.transpose(1, 2).flatten(2)
                out_bmc[:] = (g_bto.flatten(1) @ h_mcto.flatten(0, 1).T).unflatten(1, (-1, heads))

    def diagonal(self, a: Tensor, g: Tensor, i: slice) -> Tensor:
        """Its part of Θ between each point and itself, (n, B, B)."""
        n, heads, t, _ = g[i].shape
        g_n = g[i].flatten(1, 2)
        k_g = (g_n @ g_n.mT).view(n, heads, t, heads, t)
        k_a = self.input_kernel(a[i], a[i])
        return (k_g * k_a[:, None, :, None, :]).sum((2, 4))

    def input_kernel(self, a: Tensor, b: Tensor) -> Tensor:
        """K_A (..., |a|, |b|): A·A', plus 1 for a bias."""
        m = self.modules[0]
        if isinstance(m, nn.Embedding):
            same = a[..., :, None] == b[..., None, :]
            return to_float64(same if m.padding_idx is None else same & (a != m.padding_idx)[..., :, None])
        k = a @ b.mT if self.weight else a.new_zeros(*a.shape[:-1], b.shape[-2])
        return k.add_(1) if self.bias else k


def product_inputs(m: nn.Module, a: Tensor, g: Tensor) -> Tensor:
    """A (n, fold, ...) of one call as (n, T, D) in float64, or as indices (n, T)."""
    if type(m) is nn.Embedding:
        return a.flatten(1)
    if type(m) is nn.Linear:
        return to_float64(positions(a))
    seen = patches(m, a.flatten(0, 1), g.shape[4:]).mT
    return to_float64(seen.unflatten(0, a.shape[:2]).flatten(1, 2))


def product_outputs(m: nn.Module, g: Tensor) -> Tensor:
    """G (n, B, fold, ...) of one call as (n, B, T, O) in float64."""
    if type(m) in CONVOLUTIONS:
        return to_float64(g.flatten(4).mT.flatten(2, 3))
    return to_float64(g.reshape(*g.shape[:2], -1, g.shape[-1]))


def join_calls(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
