"""Triton kernels for what torch does in several passes over a GPU's memory; each has a plain twin at its caller."""

from typing import Any

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
    _lay[(n * c, triton.cdiv(copies * length, BLOCK))](
        t, out, c, h, w, *t.stride(), low[0], low[1], step, extent[1], length, copies * length, BLOCK=BLOCK
    )
    return out


if triton is not None:

    @triton.jit
    def _centre(
        rows: Any, mu: Any, out: Any, partial: Any, width: Any, row_stride: Any, out_stride: Any, scale: Any,
        SPAN: tl.constexpr, BLOCK: tl.constexpr,
    ) -> None:  # fmt: skip
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
    def _lay(
        src: Any, out: Any, channels: Any, height: Any, width: Any, s_n: Any, s_c: Any, s_h: Any, s_w: Any,
        top: Any, left: Any, step: Any, pitch: Any, length: Any, total: Any, BLOCK: tl.constexpr,
    ) -> None:  # fmt: skip
        plane = tl.program_id(0).to(tl.int64)
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        copy, place = at // length, at % length
        y = place // pitch - top
        x = place % pitch + copy * step - left
        inside = (at < total) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        base = (plane // channels) * s_n + (plane % channels) * s_c
        value = tl.load(src + base + y * s_h + x * s_w, mask=inside, other=0.0)
        tl.store(out + plane * total + at, value, mask=at < total)
