"""Θ in float64, added up from rows of gradients and from layers that need no rows.

J has a row for each point and head, the gradient of that head at that point. All rows share a large common gradient,
and the posterior S will subtract nearly equal entries of Θ. So each row is stored less a common row μ, J̃ = J − 1μᵀ,
and what μ contributes is added in float64:

    J Jᵀ = J̃ J̃ᵀ + (J̃μ) 1ᵀ + 1 (J̃μ)ᵀ + ‖μ‖²

Any μ gives the same Θ. Here it is the mean row of the first batch, which is known when the first rows are written.
Points whose gradient is far larger than that of most do not count in it.

``GradientRows`` holds J̃ for one slab of columns (parameters). ``ThetaSum`` adds J̃ J̃ᵀ of slab after slab to Θ, one
strip of Θ's rows at a time.
"""

import ctypes
import math
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor

from foretaste.tangent.frozen import to_float64
from foretaste.tangent.products import by_onednn, product
from foretaste.tangent.triton_kernels import centre_fused, fusible

# A GPU multiplies at full speed only if rows begin at multiples of ALIGN columns, and if the number of points (or
# channels) is a multiple of EVEN.
ALIGN = 64
EVEN = 8
PANEL = 1 << 16  # columns that lie together on a GPU, and are summed in float32
HALF_PEAK = 256.0  # the largest gradient entry is scaled to this in float16, whose largest number is 65504
FAR_ROW = 16.0  # times the median length of the first rows: longer ones do not count in their mean
FLOAT64_SLAB = 1 << 17  # entries converted to float64 at once
IN_PLACE_ENTRIES = 1 << 22  # of rows that are formed and centred at once where they stay
SUMMED_IN_FLOAT32 = 1 << 14  # products with μ
RUN_LEAST, RUNS_LEAST, RUN_PAIRS = 1 << 12, 4, 1 << 10  # columns of a run, runs, and pairs of points: see ``times``
FLOAT64_SLAB_CUDA = 1 << 27  # on a GPU launches cost more than memory
# On Linux, for tensors on a CPU; see ``large_pages`` and ``keep_memory``.
LARGE_PAGE = 2 << 20  # bytes of a large page
LARGE_PAGE_WORTH = 8 * LARGE_PAGE  # bytes of a tensor from which large pages save time
LARGEST_KEPT = 31 << 20  # bytes of the largest tensor whose freed memory glibc can be made to keep: just under 32 MiB

Block = tuple[str, str]
# The float64 kernel of one layer between spans of points i and j, (|i|·B, |j|·B), and its B × B diagonal on a span.
LayerKernel = Callable[[slice, slice], Tensor]
LayerDiagonal = Callable[[slice], Tensor]


class GradientRows:
    """J̃ (N, B, w) for a slab of w columns, in panels of at most PANEL columns.

    Rows are centred as they are written. A centred row needs few digits: TF32 keeps ten bits of each entry. So does
    float16, at twice the speed and half the memory, if entries are scaled into its range.
    """

    def __init__(
        self,
        points: int,
        heads: int,
        width: int,
        like: Tensor,
        half: bool,
        largest: float,
        old: "GradientRows | None" = None,
    ) -> None:
        """Make room for ``points`` rows of ``heads`` heads and ``width`` columns.

        like: new tensors take its dtype and device.
        half: store the rows in float16.
        largest: the largest entry of a gradient that was seen.
        old: rows that are no longer needed; their memory is used again if it is large enough.
        """
        self.width, self.points = width, points
        self.scale = 2.0 ** round(math.log2(HALF_PEAK / largest)) if half and largest > 0 else 1.0
        self.panel, count, rows = panel_shape(points, width, like.is_cuda)
        dtype = torch.float16 if half else like.dtype
        shape = (count, rows, heads, self.panel)
        if old is not None and old.memory.numel() >= math.prod(shape):
            self.memory: Tensor = old.memory  # all of it, of which older rows may have used a part
        else:
            self.memory = large_pages(like.new_empty(math.prod(shape), dtype=dtype))
        self.data = self.memory[: math.prod(shape)].view(shape)
        self.data[:, points:] = 0
        for q, inside, _ in self.pieces(slice(width, count * self.panel)):
            self.data[q, :, :, inside] = 0
        self.mu_Bw = like.new_zeros(heads, width)
        self.shift_NBB = to_float64(like).new_zeros(points, heads, heads)  # J̃_nb · μ_b'

    def write(self, at: slice, columns: slice, rows_nBw: Tensor) -> None:
        """Write some columns of the points ``at``, starting with the first point.

        ``rows_nBw`` is not changed: it may be G itself, for the bias of a layer.
        """
        mu_Bw = self.mu_Bw[:, columns]
        if at.start == 0:
            mu_Bw.copy_(common_row(rows_nBw))
        if rows_nBw.is_cuda and fusible(rows_nBw) and rows_nBw.shape[1] == 1 and rows_nBw.stride(2) == 1:
            to = self.data[:, at, 0]
            self.shift_NBB[at, 0, 0] += centre_fused(rows_nBw[:, 0], mu_Bw[0], to, columns.start, self.scale)
            return
        plain = len(self.data) == 1 and self.scale == 1.0 and self.data.dtype == rows_nBw.dtype
        if plain:  # without an intermediate copy
            rows_nBw = torch.sub(rows_nBw, mu_Bw, out=self.data[0, at, :, columns])
        else:
            rows_nBw = rows_nBw - mu_Bw
        step = max(1, (FLOAT64_SLAB_CUDA if rows_nBw.is_cuda else FLOAT64_SLAB) // max(rows_nBw[..., 0].numel(), 1))
        for i in range(0, rows_nBw.shape[2], step):
            part = rows_nBw[:, :, i : i + step]
            self.shift_NBB[at] += to_float64(part) @ to_float64(mu_Bw[:, i : i + step]).T
        if plain:
            return
        if self.scale != 1.0:
            rows_nBw *= self.scale
        for q, inside, source in self.pieces(columns):
            self.data[q, at, :, inside] = rows_nBw[:, :, source]

    def form(self, at: slice, form_rows: Callable[[slice, Tensor], None]) -> None:
        """Write all columns of the points ``at``, starting with the first point, without a copy (one head, on a CPU).

        ``form_rows(part, out_nw)`` adds the rows of some of these points to ``out_nw``, counted from the first of them.
        Each part is small enough to be multiplied with μ while it is in the processor's cache.
        """
        rows_nw, mu_w = self.data[0, at, 0], self.mu_Bw[0]
        parts = list(slices(len(rows_nw), max(1, IN_PLACE_ENTRIES // max(self.width, 1))))
        if at.start == 0:
            for part in parts:
                form_rows(part, rows_nw[part].zero_())
            mu_w.copy_(common_row(rows_nw[:, None])[0])
            rows_nw -= mu_w
        # Products with μ summed in float32, each row in dozens of partial sums, have the error of J̃ itself.
        less_w, shift_n = -mu_w, self.shift_NBB[at, 0, 0]
        for part in parts:
            if at.start:
                form_rows(part, rows_nw[part].copy_(less_w))
            for columns in slices(self.width, SUMMED_IN_FLOAT32):
                shift_n[part] += to_float64(rows_nw[part, columns] @ mu_w[columns])

    def pieces(self, columns: slice) -> Iterator[tuple[int, slice, slice]]:
        """Cut ``columns`` at the panels' edges: (panel, columns inside it, the same columns counted from the first)."""
        start = columns.start
        while start < columns.stop:
            q, low = divmod(start, self.panel)
            stop = min(columns.stop, (q + 1) * self.panel)
            yield q, slice(low, low + stop - start), slice(start - columns.start, stop - columns.start)
            start = stop

    def count_runs(self, i: slice, j: slice) -> int:
        """Into how many runs of columns ``times`` cuts its rows; 0 if none."""
        pairs = (i.stop - i.start) * (j.stop - j.start)
        others = self.data.is_cuda or self.data.dtype != torch.float32 or self.data.shape[2] > 1
        if others or pairs < RUN_PAIRS or by_onednn():
            return 0
        most = min(self.width // RUN_LEAST, 2 * FLOAT64_SLAB // pairs)
        return next((runs for runs in range(most, RUNS_LEAST - 1, -1) if self.width % runs == 0), 0)

    def times(self, q: int, i: slice, j: slice) -> Tensor:
        """J̃_i J̃_jᵀ · scale² of panel q, (|i|·B, |j|·B), in float32, float64, or the rows' own precision.

        A CPU multiplies few long rows a fifth faster in runs of columns, which its cores share and which stay in their
        caches. The runs' products are summed in float64. They take no more memory than ``write`` does.
        """
        n = (j.stop - j.start) * self.data.shape[2]
        if runs := self.count_runs(i, j):
            a, b = (self.data[q, at, 0].unflatten(1, (runs, -1)).transpose(0, 1) for at in (i, j))
            return torch.bmm(a, b.mT).sum(0, dtype=torch.float64)
        if self.data.is_cuda:  # multiply some rows beyond j too, to make their number even, and drop their products
            j = slice(j.start, min(j.start + -(-(j.stop - j.start) // EVEN) * EVEN, self.data.shape[1]))
        a, b = (self.data[q, at].flatten(0, 1) for at in (i, j))
        if a.dtype != torch.float16:
            return product(a, b)[:, :n]
        if a.is_cuda:
            return torch.mm(a, b.T, out_dtype=torch.float32)[:, :n]
        return a.float() @ b.float().T  # as exact: the product of two float16 numbers is a float32 number


def common_row(rows_nBw: Tensor) -> Tensor:
    """μ (B, w): the mean of the rows, without those that are far longer than most.

    One row 3000 times as long as the others would make μ that much longer than they are, and their differences to μ
    would keep few of their digits.
    """
    length_n = torch.linalg.vector_norm(rows_nBw, dim=(1, 2))
    usual = length_n.median()
    far_n = (length_n > FAR_ROW * usual) & (usual > 0)
    if rows_nBw.is_cuda:  # without a read, which would wait for the device
        near_n = (~far_n).to(rows_nBw.dtype)
        return torch.tensordot(near_n, rows_nBw.masked_fill(far_n[:, None, None], 0.0), 1) / near_n.sum()
    return rows_nBw[~far_n].mean(0) if bool(far_n.any()) else rows_nBw.mean(0)


def panel_shape(points: int, width: int, cuda: bool) -> tuple[int, int, int]:
    """The columns of a panel, the number of panels, and the number of rows with padding."""
    if not cuda:
        return width, 1, points
    count = max(1, -(-width // PANEL))
    return -(-width // (count * ALIGN)) * ALIGN, count, -(-points // EVEN) * EVEN


class ThetaSum:
    """Some blocks (a, b) of Θ, and some B × B diagonals, between named sets of points.

    The rows of all sets lie one after another; ``spans`` says where each set is.
    """

    def __init__(
        self, sizes: Mapping[str, int], blocks: Sequence[Block], diagonals: Sequence[str], heads: int, like: Tensor
    ) -> None:
        self.heads, self.cuda = heads, like.is_cuda
        self.spans: dict[str, slice] = {}
        start = 0
        for name, n in sizes.items():
            self.spans[name] = slice(start, start := start + n)
        like = to_float64(like)
        self.blocks = {(a, b): like.new_zeros(sizes[a] * heads, sizes[b] * heads) for a, b in dict.fromkeys(blocks)}
        self.diagonals = {a: like.new_zeros(sizes[a], heads, heads) for a in diagonals}
        self.shift_NBB = like.new_zeros(start, heads, heads)  # J̃_nb · μ_b'
        self.common_BB = like.new_zeros(heads, heads)  # μ_b · μ_b'

    @staticmethod
    def nbytes(sizes: Mapping[str, int], blocks: Sequence[Block], diagonals: Sequence[str], heads: int) -> int:
        """Bytes of the sum itself."""
        entries = sum(sizes[a] * sizes[b] for a, b in set(blocks)) + sum(sizes[a] for a in diagonals)
        return 8 * heads**2 * (entries + 2 * sum(sizes.values()))

    @staticmethod
    def working_bytes(sizes: Mapping[str, int], blocks: Sequence[Block], heads: int, device: str) -> int:
        """Bytes of one tile in its own precision and in float64, of its factors, and of a slab in float64."""
        cuda = device == "cuda"
        tile = max((min(strip_rows(sizes[a], cuda, a == b), sizes[a]) * sizes[b] for a, b in blocks), default=0)
        return 24 * heads**2 * tile + 8 * (FLOAT64_SLAB_CUDA if cuda else FLOAT64_SLAB)

    def add_rows(self, rows: GradientRows) -> None:
        """Add J Jᵀ of a slab of columns."""
        self.shift_NBB += rows.shift_NBB
        mu_Bw = to_float64(rows.mu_Bw)
        self.common_BB += mu_Bw @ mu_Bw.T
        for q, panel in enumerate(rows.data):
            for (a, b), theta in self.blocks.items():
                for i, j in self.tiles(a, b):
                    tile = rows.times(q, i, j).to(theta.device)
                    theta[self.local(a, i), self.local(b, j)].add_(tile, alpha=rows.scale**-2)
            for a, diagonal in self.diagonals.items():
                own = own_products(panel[self.spans[a]], rows.mu_Bw.dtype, self.cuda)
                diagonal += own.to(diagonal.device) * rows.scale**-2

    def add_kernel(self, kernel: LayerKernel, own: LayerDiagonal, step: int) -> None:
        """Add the kernel of a layer whose rows are not formed. step: points of which ``own`` is asked at once."""
        for (a, b), theta in self.blocks.items():
            for i, j in self.tiles(a, b):
                theta[self.local(a, i), self.local(b, j)] += kernel(i, j)
        for a, diagonal in self.diagonals.items():
            for at in slices(len(diagonal), step):
                start = self.spans[a].start
                diagonal[at] += own(slice(start + at.start, start + at.stop))

    def tiles(self, a: str, b: str) -> Iterator[tuple[slice, slice]]:
        """Pairs of spans of points that cover the block, or the lower triangle of a symmetric block."""
        span_a, span_b = self.spans[a], self.spans[b]
        n = span_a.stop - span_a.start
        for cut in slices(n, strip_rows(n, self.cuda, a == b)):
            i = slice(span_a.start + cut.start, span_a.start + cut.stop)
            yield i, slice(span_b.start, i.stop if a == b else span_b.stop)

    def local(self, name: str, at: slice) -> slice:
        """The rows of set ``name``'s own block for the points ``at``, counted over all sets."""
        start = self.spans[name].start
        return slice((at.start - start) * self.heads, (at.stop - start) * self.heads)

    def finish(self) -> tuple[dict[Block, Tensor], dict[str, Tensor]]:
        """Add what μ contributes, mirror symmetric blocks, and return blocks and diagonals."""
        for (a, b), theta in self.blocks.items():
            d_a, d_b = self.shift_NBB[self.spans[a]], self.shift_NBB[self.spans[b]]
            view = theta.view(len(d_a), self.heads, len(d_b), self.heads)
            view += d_a[:, :, None, :]
            view += (d_b.mT + self.common_BB).permute(1, 0, 2)
            if a == b:
                for i, _ in self.tiles(a, b):
                    at = self.local(a, i)
                    theta[: at.start, at] = theta[at, : at.start].T
                    theta[at, at] = (theta[at, at] + theta[at, at].T) / 2
        for a, diagonal in self.diagonals.items():
            d = self.shift_NBB[self.spans[a]]
            diagonal += d + d.mT + self.common_BB
        return self.blocks, self.diagonals


def own_products(rows_NBw: Tensor, dtype: torch.dtype, cuda: bool) -> Tensor:
    """(N, B, B): the products of each point's rows with themselves. On a GPU a norm is faster than a product."""
    if cuda and rows_NBw.shape[1] == 1:
        return torch.linalg.vector_norm(rows_NBw, dim=2, keepdim=True, dtype=dtype).square()
    r = rows_NBw.to(dtype)
    return r @ r.mT


def strip_rows(n: int, cuda: bool, symmetric: bool) -> int:
    """How many rows of a block are multiplied at once.

    On a CPU, six strips save five twelfths of a symmetric product. Strips under 64 rows lose more speed than they save.
    On an H200, strips of a thousand rows multiply as fast as larger ones (1000 × 6000 at 750 TFLOP/s, 3000 × 3000 at
    540), and compute less beyond the diagonal.
    """
    if not symmetric:
        return 4096 if cuda else min(2048, max(256, -(-n // 6)))
    if not cuda:
        return min(2048, max(64, -(-n // 6)))
    count = max(1, -(-n // 1024))
    return -(-n // (count * EVEN)) * EVEN


def slices(n: int, step: int) -> Iterator[slice]:
    """0 to n in slices of at most ``step``."""
    for i in range(0, n, step):
        yield slice(i, min(i + step, n))


def large_pages(t: Tensor) -> Tensor:
    """Return ``t``, a new tensor. On Linux, first ask for large pages for its memory.

    Fresh memory comes page by page, which costs as much as using it. Large pages are 512 times fewer.
    """
    if (
        sys.platform != "linux"
        or t.device.type != "cpu"
        or t.nbytes < LARGE_PAGE_WORTH
        or not hasattr(mmap, "MADV_HUGEPAGE")
    ):
        return t
    start = -(-t.data_ptr() // LARGE_PAGE) * LARGE_PAGE
    length = (t.data_ptr() + t.nbytes - start) // LARGE_PAGE * LARGE_PAGE
    with suppress(OSError, AttributeError):  # only advice: nothing depends on it
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)
    return t


@cache
def keep_memory() -> None:
    """Once per process, make glibc keep the freed memory of tensors of up to LARGEST_KEPT bytes, and use it again.

    glibc returns large blocks to the system until one of that size was freed. So allocate one and free it, without
    writing to it. Without this, passes take 1.5 times as long in some processes, by chance. The environment variable
    FORETASTE_KEEP_MEMORY=0 turns this off.
    """
    if sys.platform != "linux" or os.environ.get("FORETASTE_KEEP_MEMORY") == "0":
        return
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        libc.free(libc.malloc(ctypes.c_size_t(LARGEST_KEPT)))
