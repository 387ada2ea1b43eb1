"""Kernels of layers whose gradient need not be formed: a Linear layer, an embedding.

The gradient of W at point n is Σ_t G_nt A_ntᵀ, so the inner product of two of them is Σ_tt' (A_nt·A_mt')(G_nt·G_mt'):
with one position, an entrywise product of two small Gram matrices. An embedding is a Linear layer on one-hot inputs,
whose A·A' is whether two indices are equal. In float64, for this form cannot be centred first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foretaste.tangent._layers import Calls, Layer, Survey
from foretaste.tangent._rules import positions
from foretaste.tangent._subject import exact
from foretaste.tangent._theta import steps


@dataclass(frozen=True)
class ProductLayer:
    """The weight, the bias, or both, of Linear modules that share them; or the table of embeddings."""

    modules: tuple[nn.Module, ...]
    weight: bool
    bias: bool

    def gather(self, calls: Calls, folded: int = 1) -> tuple[Tensor, Tensor]:
        """A (n, T, D) and G (n, B, T, O) over all calls, in float64; A (n, T) are indices for an embedding.

        Folded heads are as many more outputs: G (n, 1, T, B·O).
        """
        table = type(self.modules[0]) is nn.Embedding
        of = [call for m in self.modules for call in calls[m]]
        a = joined([a.flatten(1) if table else positions(a.flatten(1, 2)) for a, _ in of], 1)
        heads = range(len(of[0][1]))
        g = torch.stack([joined([exact(positions(gs[b].flatten(1, 2))) for _, gs in of], 1) for b in heads], 1)
        g = g.transpose(1, 2).flatten(2)[:, None] if folded > 1 else g
        return a if table else exact(a), g

    def kernel(self, a: Tensor, g: Tensor, i: slice, j: slice, tile_bytes: int) -> Tensor:
        n, heads, t, _ = g[i].shape
        m = g[j].shape[0]
        if t == 1:
            k_g = g[i].flatten(0, 2) @ g[j].flatten(0, 2).T
            k_a = self.inputs(a[i].flatten(0, 1), a[j].flatten(0, 1))
            k_g.view(n, heads, m, heads).mul_(k_a[:, None, :, None])
            return k_g
        out = g.new_empty(n * heads, m * heads)
        view = out.view(n, heads, m, heads)
        for cut in steps(m, max(1, tile_bytes // (24 * t * t * max(n, 1)))):
            at = slice(j.start + cut.start, j.start + cut.stop)
            k_a = self.inputs(a[i].flatten(0, 1), a[at].flatten(0, 1))
            for b in range(heads):
                for c in range(heads):
                    k_g = g[i, b].flatten(0, 1) @ g[at, c].flatten(0, 1).T
                    view[:, b, cut, c] = k_g.mul_(k_a).view(n, t, -1, t).sum((1, 3))
        return out

    def diagonal(self, a: Tensor, g: Tensor, i: slice) -> Tensor:
        """(n, B, B), each point with itself."""
        n, heads, t, _ = g[i].shape
        g_n = g[i].flatten(1, 2)
        k_g = (g_n @ g_n.mT).view(n, heads, t, heads, t)
        k_a = torch.stack([self.inputs(one, one) for one in a[i]])
        return (k_g * k_a[:, None, :, None, :]).sum((2, 4))

    def inputs(self, a: Tensor, b: Tensor) -> Tensor:
        m = self.modules[0]
        if isinstance(m, nn.Embedding):
            same = a[:, None] == b[None]
            return exact(same if m.padding_idx is None else same & (a != m.padding_idx)[:, None])
        k = a @ b.T if self.weight else a.new_zeros(len(a), len(b))
        return k.add_(1) if self.bias else k


def joined(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def split(survey: Survey) -> tuple[list[ProductLayer], list[Layer]]:
    """Which layers are cheaper as products: T²(D + O) operations a pair of points against the D·O of formed rows."""
    products: dict[tuple[nn.Module, ...], dict[str, bool]] = {}
    rest: list[Layer] = []
    for ly in survey.layers:
        kinds = {type(m) for m in ly.modules}
        t = sum(survey.positions[m] for m in ly.modules)
        if kinds == {nn.Linear} and len({n for _, n in ly.sources}) == 1:
            local = ly.sources[0][1]
            pays = t == 1 if local == "bias" else t * t * sum(ly.shape) <= ly.p
            pays = pays or ly.modules in products
        elif kinds == {nn.Embedding} and len({getattr(m, "padding_idx", None) for m in ly.modules}) == 1:
            local, pays = "weight", t * t <= ly.shape[0]
        else:
            pays = False
        if pays:
            products.setdefault(ly.modules, {})[local] = True
        else:
            rest.append(ly)
    return [ProductLayer(m, p.get("weight", False), p.get("bias", False)) for m, p in products.items()], rest
