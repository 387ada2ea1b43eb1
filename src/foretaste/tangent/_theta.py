"""Θ in float64, added up from slabs of gradient rows and from products that never form a row."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from foretaste.tangent._subject import exact

Block = tuple[str, str]
# The float64 kernel of one layer between spans of points i and j, (|i|·B, |j|·B), and its B × B diagonal on a span.
Product = Callable[[slice, slice], Tensor]
Diagonal = Callable[[slice], Tensor]

SLAB = 1 << 17  # entries converted to float64 at once; on a GPU, where a launch is what costs, many times that
SLABS_CUDA = 1 << 10


class Theta:
    """The blocks (a, b), and the B × B diagonals, of Θ between named sets of points laid out one after another.

    Rows of the Jacobian share a large common component μ, and S will subtract nearly equal numbers, so rows are
    centred before they are multiplied in their own precision, and μ's part is put back in float64:
    J Jᵀ = J̃ J̃ᵀ + (J̃μ) 1ᵀ + 1 (J̃μ)ᵀ + ‖μ‖². Any μ gives the same Θ, so the mean of each slab's own rows serves.
    """

    def __init__(
        self, sizes: Mapping[str, int], blocks: Sequence[Block], diagonals: Sequence[str], heads: int, like: Tensor
    ) -> None:
        self.heads = heads
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
        tile = max((min(tile_size(sizes[a]), sizes[a]) * sizes[b] for a, b in blocks), default=0)
        return 24 * heads**2 * tile + 8 * slab_size(device)

    def add_rows(self, rows_NBw: Tensor) -> None:
        """Add J Jᵀ of a slab of columns. ``rows_NBw`` is centred in place."""
        n, heads, width = rows_NBw.shape
        mu_Bw = rows_NBw.mean(0)
        rows_NBw -= mu_Bw
        flat = rows_NBw.flatten(0, 1)
        for cut in steps(width, max(1, slab_size(rows_NBw.device.type) // max(n * heads, 1))):
            mu = exact(mu_Bw[:, cut])
            self.shift_NBB += (exact(flat[:, cut]) @ mu.T).view(n, heads, heads)
            self.common_BB += mu @ mu.T
        for (a, b), theta in self.blocks.items():
            for i, j in self.tiles(a, b):
                tile = rows_NBw[i].flatten(0, 1) @ rows_NBw[j].flatten(0, 1).T
                theta[self.local(a, i), self.local(b, j)] += tile.to(theta.device)
        for a, diagonal in self.diagonals.items():
            r = rows_NBw[self.spans[a]]
            diagonal += (r @ r.mT).to(diagonal.device)

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
        for cut in steps(n, tile_size(n)):
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


TILE = 2048


def tile_size(n: int) -> int:
    """Six strips spare five twelfths of a symmetric product; strips under 64 rows lose more speed than that."""
    return min(TILE, max(64, -(-n // 6)))


def slab_size(device: str) -> int:
    return SLAB * (SLABS_CUDA if device == "cuda" else 1)


def steps(n: int, step: int) -> Iterator[slice]:
    for i in range(0, n, step):
        yield slice(i, min(i + step, n))
