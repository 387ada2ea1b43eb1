"""Triton kernels for a GPU: each reads memory once where torch reads it several times.

Each has a plain version in torch at its caller, which serves on a CPU, in float64, or without Triton. Tests compare
the two.
"""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # torch is built without a GPU
    triton = None

FUSED_SPAN, FUSED_BLOCK = 16384, 1024  # columns that one program handles, and how many of them at a time


def fusible(t: Tensor) -> bool:
    """Whether the kernels of this file can work on ``t``."""
    return triton is not None and t.is_cuda and t.dtype == torch.float32


def centre_fused(rows_nw: Tensor, mu_w: Tensor, out_qnp: Tensor, first: int, scale: float) -> Tensor:
    """Write (rows − μ)·scale from column ``first`` of the panels on. Returns (rows − μ)·μ in float64, (n,).

    Reads and writes each entry once. The plain version is in ``accumulate.GradientRows.write``.
    """
    n, width = rows_nw.shape
    spans = triton.cdiv(width, FUSED_SPAN)
    partial = torch.empty(n, spans, dtype=torch.float64, device=rows_nw.device)
    _centre[(n, spans)](
        rows_nw, mu_w, out_qnp, partial, width, rows_nw.stride(0), out_qnp.stride(0), out_qnp.stride(1), first,
        out_qnp.shape[2], scale, SPAN=FUSED_SPAN, BLOCK=FUSED_BLOCK,
    )  # fmt: skip
    return partial.sum(1)


def lay_fused(t: Tensor, low: tuple[int, int], extent: tuple[int, int], copies: int, step: int, tail: int) -> Tensor:
    """Lay planes (n, c, h, w) into larger ones, in several shifted copies. Plain version: ``rules.lay_in_grid``."""
    n, c, h, w = t.shape
    length = extent[0] * extent[1] + tail
    out = torch.empty(n, c * copies, length, dtype=t.dtype, device=t.device)
    across = triton.next_power_of_2(extent[1])
    rows = triton.cdiv(length, extent[1])
    down = min(max(1, 2 * FUSED_BLOCK // across), triton.next_power_of_2(rows))
    planes = max(1, 2 * FUSED_BLOCK // (across * down))  # in late layers a plane has few pixels
    _lay[(triton.cdiv(n * c, planes), copies, triton.cdiv(rows, down))](
        t, out, n * c, c, h, w, *t.stride(), low[0], low[1], step, extent[1], length,
        PLANES=planes, DOWN=down, ACROSS=across,
    )  # fmt: skip
    return out


def fused_products(a_nct: Tensor, b_nct: Tensor, less_c: Tensor) -> Tensor:
    """Σ_t (a − less) · b, (n, c), with one read of each. The plain version is in ``rules.batch_norm``."""
    n, c, t = a_nct.shape
    across = min(triton.next_power_of_2(t), FUSED_BLOCK)
    down = max(1, 2 * FUSED_BLOCK // across)
    out = torch.empty(n, c, dtype=a_nct.dtype, device=a_nct.device)
    _products[(triton.cdiv(n * c, down),)](a_nct, b_nct, less_c, out, n * c, c, t, DOWN=down, ACROSS=across)
    return out


if triton is not None:

    @triton.jit
    def _centre(  # type: ignore[no-untyped-def]
        rows, mu, out, partial, width, row_stride, panel_stride, out_stride, first, panel, scale,
        SPAN: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        n = tl.program_id(0).to(tl.int64)
        span = tl.program_id(1)
        total = tl.zeros((BLOCK,), tl.float64)
        for k in range(SPAN // BLOCK):
            at = span * SPAN + k * BLOCK + tl.arange(0, BLOCK)
            inside = at < width
            m = tl.load(mu + at, mask=inside, other=0.0)
            c = tl.load(rows + n * row_stride + at, mask=inside, other=0.0) - m
            total += c.to(tl.float64) * m.to(tl.float64)
            # A block touches two panels at most: if there are several panels, each is wider than a block.
            begin = first + span * SPAN + k * BLOCK
            q = begin // panel
            column = begin - q * panel + tl.arange(0, BLOCK)
            beyond = (column >= panel).to(tl.int32)
            place = (q + beyond).to(tl.int64) * panel_stride + column - beyond * panel
            tl.store(out + n * out_stride + place, (c * scale).to(out.dtype.element_ty), mask=inside)
        tl.store(partial + n * tl.num_programs(1) + span, tl.sum(total, 0))

    @triton.jit
    def _lay(  # type: ignore[no-untyped-def]
        src, out, planes, channels, height, width, s_n, s_c, s_h, s_w, top, left, step, pitch, length,
        PLANES: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    ):  # fmt: skip
        plane = tl.program_id(0).to(tl.int64) * PLANES + tl.arange(0, PLANES)[:, None, None]
        copy = tl.program_id(1)
        row = tl.program_id(2) * DOWN + tl.arange(0, DOWN)[None, :, None]
        column = tl.arange(0, ACROSS)[None, None, :]
        y, x = row - top, column + copy * step - left
        there = (plane < planes) & (column < pitch)
        inside = there & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        base = (plane // channels) * s_n + (plane % channels) * s_c
        value = tl.load(src + base + y * s_h + x * s_w, mask=inside, other=0.0)
        place = row * pitch + column
        to = out + (plane * tl.num_programs(1) + copy) * length
        tl.store(to + place, value, mask=there & (place < length))

    @triton.jit
    def _products(  # type: ignore[no-untyped-def]
        a, b, less, out, count, channels, length, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64) * DOWN + tl.arange(0, DOWN)[:, None]
        there = row < count
        shift = tl.load(less + row % channels, mask=there, other=0.0)
        total = tl.zeros((DOWN, ACROSS), tl.float32)
        for start in range(0, length, ACROSS):
            column = start + tl.arange(0, ACROSS)[None, :]
            inside = there & (column < length)
            at = row * length + column
            total += (tl.load(a + at, mask=inside, other=0.0) - shift) * tl.load(b + at, mask=inside, other=0.0)
        where = tl.program_id(0).to(tl.int64) * DOWN + tl.arange(0, DOWN)
        tl.store(out + where, tl.sum(total, 1), mask=where < count)
