"""Triton kernels for what torch does in several passes over a GPU's memory; each has a plain twin at its caller."""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of torch: the plain twins serve
    triton = None

SPAN, BLOCK = 16384, 1024


def fusible(t: Tensor) -> bool:
    return triton is not None and t.is_cuda and t.dtype == torch.float32


def centre(rows_nw: Tensor, mu_w: Tensor, out_nw: Tensor, scale: float) -> Tensor:
    """Write (rows − μ)·scale to ``out``; returns (rows − μ)·μ in float64, (n,). One read, one write."""
    n, width = rows_nw.shape
    spans = triton.cdiv(width, SPAN)
    partial = torch.empty(n, spans, dtype=torch.float64, device=rows_nw.device)
    _centre[(n, spans)](
        rows_nw, mu_w, out_nw, partial, width, rows_nw.stride(0), out_nw.stride(0), scale, SPAN=SPAN, BLOCK=BLOCK
    )
    return partial.sum(1)


def lay(t: Tensor, low: tuple[int, int], extent: tuple[int, int], copies: int, step: int, tail: int) -> Tensor:
    """Planes (n, c, h, w) laid into larger ones, several times over: see ``_rules.lay``, whose twin this is."""
    n, c, h, w = t.shape
    length = extent[0] * extent[1] + tail
    out = torch.empty(n, c * copies, length, dtype=t.dtype, device=t.device)
    across = triton.next_power_of_2(extent[1])
    down = max(1, 2 * BLOCK // across)
    rows = triton.cdiv(length, extent[1])
    _lay[(n * c, copies, triton.cdiv(rows, down))](
        t, out, c, h, w, *t.stride(), low[0], low[1], step, extent[1], length, DOWN=down, ACROSS=across
    )
    return out


if triton is not None:

    @triton.jit
    def _centre(  # type: ignore[no-untyped-def]
        rows, mu, out, partial, width, row_stride, out_stride, scale,
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
            tl.store(out + n * out_stride + at, (c * scale).to(out.dtype.element_ty), mask=inside)
        tl.store(partial + n * tl.num_programs(1) + span, tl.sum(total, 0))

    @triton.jit
    def _lay(  # type: ignore[no-untyped-def]
        src, out, channels, height, width, s_n, s_c, s_h, s_w, top, left, step, pitch, length,
        DOWN: tl.constexpr, ACROSS: tl.constexpr,
    ):  # fmt: skip
        plane = tl.program_id(0).to(tl.int64)
        copy = tl.program_id(1)
        row = tl.program_id(2) * DOWN + tl.arange(0, DOWN)[:, None]
        column = tl.arange(0, ACROSS)[None, :]
        y, x = row - top, column + copy * step - left
        inside = (column < pitch) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        base = (plane // channels) * s_n + (plane % channels) * s_c
        value = tl.load(src + base + y * s_h + x * s_w, mask=inside, other=0.0)
        place = row * pitch + column
        to = out + (plane * tl.num_programs(1) + copy) * length
        tl.store(to + place, value, mask=(column < pitch) & (place < length))
