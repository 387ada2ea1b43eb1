"""Θ in float64, added up from slabs of gradient rows and from products that never form a row."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from foretaste.tangent._rows import EVEN, SLAB, SLAB_CUDA, Rows
from foretaste.tangent._subject import exact

Block = tuple[str, str]
# The float64 kernel of one layer between spans of points i and j, (|i|·B, |j|·B), and its B × B diagonal on a span.
Product = Callable[[slice, slice], Tensor]
Diagonal = Callable[[slice], Tensor]


class Theta:
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
        like = exact(like)
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
        tile = max((min(strip(sizes[a], cuda, a == b), sizes[a]) * sizes[b] for a, b in blocks), default=0)
        return 24 * heads**2 * tile + 8 * (SLAB_CUDA if device == "cuda" else SLAB)

    def add_rows(self, rows: Rows) -> None:
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

    def add_product(self, product: Product, own: Diagonal) -> None:
        for (a, b), theta in self.blocks.items():
            for i, j in self.tiles(a, b):
                theta[self.local(a, i), self.local(b, j)] += product(i, j)
        for a, diagonal in self.diagonals.items():
            for at in steps(len(diagonal), 64):
                start = self.spans[a].start
                diagonal[at] += own(slice(start + at.start, start + at.stop))

    def tiles(self, a: str, b: str) -> Iterator[tuple[slice, slice]]:
        """Pairs of spans of points that cover the block; on a symmetric one, its lower triangle only."""
        span_a, span_b = self.spans[a], self.spans[b]
        n = span_a.stop - span_a.start
        for cut in steps(n, strip(n, self.cuda, a == b)):
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


def strip(n: int, cuda: bool, symmetric: bool) -> int:
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


def steps(n: int, step: int) -> Iterator[slice]:
    for i in range(0, n, step):
        yield slice(i, min(i + step, n))
