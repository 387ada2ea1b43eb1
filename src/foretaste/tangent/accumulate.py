"""Θ in float64, added up from slabs of gradient rows and from products that never form a row."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from foretaste.tangent.frozen import to_float64
from foretaste.tangent.fused import centre_fused, fusible
from foretaste.tangent.memory import large_pages

# Gradient rows on their way into Θ: centred as they are written, in the precision they will be multiplied in.


ALIGN = 64  # columns: rows that begin at odd places multiply at a fraction of a GPU's speed
EVEN = 8  # points or channels: so do products with a number of columns that is no multiple of it
PANEL = 1 << 16  # columns that lie together on a GPU, and are summed in float32
HALF_PEAK = 256.0  # what the largest gradient entry is scaled to in float16, whose largest number is 65504
FLOAT64_SLAB = 1 << 17  # entries converted to float64 at once
FLOAT64_SLAB_CUDA = 1 << 27  # there a launch is what costs


class GradientRows:
    """J (N, B, w) less a common row μ, for a slab of w columns, as panels of at most PANEL columns.

    All rows share a large common gradient. What is left without it needs few digits: TF32 keeps ten bits of each entry,
    and so does float16, at twice the speed and half the memory, if entries are scaled into its range. Any μ will do
    (_theta.py), so it is the mean of the first points written, and each row is centred when it is written.
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
        """``old``: rows that are no longer needed, whose memory may do."""
        self.width, self.points = width, points
        self.scale = 2.0 ** round(math.log2(HALF_PEAK / largest)) if half and largest > 0 else 1.0
        self.panel, count, rows = panel_shape(points, width, like.is_cuda)
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
        self.shift_NBB = to_float64(like).new_zeros(points, heads, heads)  # J̃_nb · μ_b'

    def write(self, at: slice, columns: slice, rows_nBw: Tensor) -> None:
        """Points are written from the first on. A rule may have given G itself as rows: they are not overwritten."""
        mu_Bw = self.mu_Bw[:, columns]
        if at.start == 0:
            mu_Bw.copy_(rows_nBw.mean(0))
        if fusible(rows_nBw) and rows_nBw.shape[1] == 1 and rows_nBw.stride(2) == 1:
            to = self.data[:, at, 0]
            self.shift_NBB[at, 0, 0] += centre_fused(rows_nBw[:, 0], mu_Bw[0], to, columns.start, self.scale)
            return
        plain = len(self.data) == 1 and self.scale == 1.0 and self.data.dtype == rows_nBw.dtype
        if plain:  # no copy between
            rows_nBw = torch.sub(rows_nBw, mu_Bw, out=self.data[0, at, :, columns])
        else:
            rows_nBw = rows_nBw - mu_Bw
        step = max(1, (FLOAT64_SLAB_CUDA if rows_nBw.is_cuda else FLOAT64_SLAB) // max(rows_nBw[..., 0].numel(), 1))
        for i in range(0, rows_nBw.shape[2], step):
            some = rows_nBw[:, :, i : i + step]
            self.shift_NBB[at] += to_float64(some) @ to_float64(mu_Bw[:, i : i + step]).T
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
        mu = to_float64(self.mu_Bw)
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


def panel_shape(points: int, width: int, cuda: bool) -> tuple[int, int, int]:
    """Columns of a panel, panels, and points with those added that make products even."""
    if not cuda:
        return width, 1, points
    count = max(1, -(-width // PANEL))
    return -(-width // (count * ALIGN)) * ALIGN, count, -(-points // EVEN) * EVEN


# Θ in float64, added up from slabs of gradient rows and from products that never form a row.


Block = tuple[str, str]
# The float64 kernel of one layer between spans of points i and j, (|i|·B, |j|·B), and its B × B diagonal on a span.
LayerProduct = Callable[[slice, slice], Tensor]
LayerDiagonal = Callable[[slice], Tensor]


class ThetaSum:
    """The blocks (a, b), and the B × B diagonals, of Θ between named sets of points laid out one after another.

    Rows of the Jacobian share a large common component μ, and S will subtract nearly equal numbers, so rows are
    centred before they are multiplied (_rows.py), and μ's part is put back in float64:
    J Jᵀ = J̃ J̃ᵀ + (J̃μ) 1ᵀ + 1 (J̃μ)ᵀ + ‖μ‖². Any μ gives the same Θ.
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
        entries = sum(sizes[a] * sizes[b] for a, b in set(blocks)) + sum(sizes[a] for a in diagonals)
        return 8 * heads**2 * (entries + 2 * sum(sizes.values()))

    @staticmethod
    def working_bytes(sizes: Mapping[str, int], blocks: Sequence[Block], heads: int, device: str) -> int:
        """Of one tile in its own precision and in float64, of the kernels that make it, and of a slab in float64."""
        cuda = device == "cuda"
        tile = max((min(strip_rows(sizes[a], cuda, a == b), sizes[a]) * sizes[b] for a, b in blocks), default=0)
        return 24 * heads**2 * tile + 8 * (FLOAT64_SLAB_CUDA if device == "cuda" else FLOAT64_SLAB)

    def add_rows(self, rows: GradientRows) -> None:
        """Add J Jᵀ of a slab of columns."""
        self.shift_NBB += rows.shift_NBB
        self.common_BB += rows.common()
        for q, panel in enumerate(rows.data):
            for (a, b), theta in self.blocks.items():
                for i, j in self.tiles(a, b):
                    tile = rows.times(q, i, j).to(theta.device)
                    theta[self.local(a, i), self.local(b, j)].add_(tile, alpha=rows.scale**-2)
            for a, diagonal in self.diagonals.items():
                own = own_products(panel[self.spans[a]], rows.mu_Bw.dtype, self.cuda)
                diagonal += own.to(diagonal.device) * rows.scale**-2

    def add_product(self, product: LayerProduct, own: LayerDiagonal) -> None:
        for (a, b), theta in self.blocks.items():
            for i, j in self.tiles(a, b):
                theta[self.local(a, i), self.local(b, j)] += product(i, j)
        for a, diagonal in self.diagonals.items():
            for at in slices(len(diagonal), 64):
                start = self.spans[a].start
                diagonal[at] += own(slice(start + at.start, start + at.stop))

    def tiles(self, a: str, b: str) -> Iterator[tuple[slice, slice]]:
        """Pairs of spans of points that cover the block; on a symmetric one, its lower triangle only."""
        span_a, span_b = self.spans[a], self.spans[b]
        n = span_a.stop - span_a.start
        for cut in slices(n, strip_rows(n, self.cuda, a == b)):
            i = slice(span_a.start + cut.start, span_a.start + cut.stop)
            yield i, slice(span_b.start, i.stop if a == b else span_b.stop)

    def local(self, name: str, at: slice) -> slice:
        start = self.spans[name].start
        return slice((at.start - start) * self.heads, (at.stop - start) * self.heads)

    def finish(self) -> tuple[dict[Block, Tensor], dict[str, Tensor]]:
        """Put the common part back, mirror symmetric blocks."""
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
    """(N, B, B), each point's rows with themselves. A GPU has no good product of one row with one column."""
    if cuda and rows_NBw.shape[1] == 1:
        return torch.linalg.vector_norm(rows_NBw, dim=2, keepdim=True, dtype=dtype).square()
    r = rows_NBw.to(dtype)
    return r @ r.mT


def strip_rows(n: int, cuda: bool, symmetric: bool) -> int:
    """Rows of a strip. On a CPU six strips spare five twelfths of a symmetric product; under 64 rows they lose more
    speed than that, and other products need not be cut so small. On an H200 strips of a thousand rows multiply as fast
    as larger ones (1000 × 6000 at 750 TFLOP/s, 3000 × 3000 at 540), and waste less beyond the diagonal.
    """
    if not symmetric:
        return 4096 if cuda else min(2048, max(256, -(-n // 6)))
    if not cuda:
        return min(2048, max(64, -(-n // 6)))
    count = max(1, -(-n // 1024))
    return -(-n // (count * EVEN)) * EVEN


def slices(n: int, step: int) -> Iterator[slice]:
    for i in range(0, n, step):
        yield slice(i, min(i + step, n))
