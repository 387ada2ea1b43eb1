"""Kernels of layers whose gradient need not be formed: a Linear layer, an embedding, a convolution of few positions.

The gradient of W at point n is Σ_t G_nt A_ntᵀ over the T positions at which W is used, so the inner product of two of
them is Σ_tt' (A_nt·A_mt')(G_nt·G_mt'): with one position, an entrywise product of two small Gram matrices. A
convolution is a Linear layer on the patches that its positions see; an embedding is one on one-hot inputs, whose A·A'
is whether two indices are equal. In float64, for this form cannot be centred first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foretaste.tangent.accumulate import slices
from foretaste.tangent.frozen import to_float64
from foretaste.tangent.rules import patches, positions
from foretaste.tangent.survey import LayerCalls, LayerParameter, Survey

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# What an operation in float64 costs, in those that multiply rows: on an H200 ten, on cards for games more.
EXACT_COST = {"cpu": 2, "cuda": 32}
ENTRY_COST = 100  # operations that one entry of a formed row costs beside them: fresh memory, written, centred, read


@dataclass(frozen=True)
class ProductLayer:
    """The weight, the bias, or both, of modules that share them: Linear, Embedding, or one convolution."""

    modules: tuple[nn.Module, ...]
    weight: bool
    bias: bool
    entries: int  # of A and G, a point

    def gather(self, calls: LayerCalls, folded: int = 1) -> tuple[Tensor, Tensor]:
        """A (n, T, D) and G (n, B, T, O) over all calls, in float64; A (n, T) are indices for an embedding.

        Folded heads are as many more outputs: G (n, 1, T, B·O).
        """
        of = [(m, a, g) for m in self.modules for a, g in calls[m]]
        a = join_calls([product_inputs(m, a, g) for m, a, g in of], 1)
        g = join_calls([product_outputs(m, g) for m, _, g in of], 2)
        return a, g.transpose(1, 2).flatten(2)[:, None] if folded > 1 else g

    def kernel(self, a: Tensor, g: Tensor, i: slice, j: slice, tile_bytes: int) -> Tensor:
        """(|i|·B, |j|·B); what is held at once beside it is ``tile_bytes``."""
        n, heads, t, o = g[i].shape
        m = g[j].shape[0]
        if t == 1:
            k_g = g[i].flatten(0, 2) @ g[j].flatten(0, 2).T
            k_a = self.inputs(a[i].flatten(0, 1), a[j].flatten(0, 1))
            k_g.view(n, heads, m, heads).mul_(k_a[:, None, :, None])
            return k_g
        out = g.new_empty(n, heads, m, heads)
        # Bytes for each point of j: K_A, K_G and their sum; or, of many heads, G and twice what comes of it.
        each = 24 * t * t * max(n, 1) if heads == 1 else 48 * t * heads * o
        for cut in slices(m, max(1, tile_bytes // each)):
            at = slice(j.start + cut.start, j.start + cut.stop)
            if heads > 1:
                self.of_heads(a, g, i, at, tile_bytes, out[:, :, cut])
                continue
            k_a = self.inputs(a[i].flatten(0, 1), a[at].flatten(0, 1))
            k_g = g[i].flatten(0, 2) @ g[at].flatten(0, 2).T
            out[:, 0, cut, 0] = k_g.mul_(k_a).view(n, t, -1, t).sum((1, 3))
        return out.flatten(0, 1).flatten(1)

    def of_heads(self, a: Tensor, g: Tensor, i: slice, j: slice, tile_bytes: int, out_nbmc: Tensor) -> None:
        """Σ_to G_nbto (Σ_t' K_A,nt,mt' G_mct'o): B times fewer operations than a K_G for each pair of heads."""
        n, heads, t, o = g[i].shape
        g_mtco = g[j].transpose(1, 2).flatten(2)
        for rows in slices(n, max(1, tile_bytes // (16 * t * t * len(g_mtco)))):
            some = slice(i.start + rows.start, i.start + rows.stop)
            k_ntmt = self.inputs(a[some].flatten(0, 1), a[j].flatten(0, 1)).view(-1, t, len(g_mtco), t)
            for k_tmt, g_bto, out_bmc in zip(k_ntmt, g[some], out_nbmc[rows]):
                h_mtco = (k_tmt.transpose(0, 1) @ g_mtco).unflatten(2, (heads, o))
                h_mcto = h_mtco.transpose(1, 2).flatten(2)
                out_bmc[:] = (g_bto.flatten(1) @ h_mcto.flatten(0, 1).T).unflatten(1, (-1, heads))

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
            return to_float64(same if m.padding_idx is None else same & (a != m.padding_idx)[:, None])
        k = a @ b.T if self.weight else a.new_zeros(len(a), len(b))
        return k.add_(1) if self.bias else k


def product_inputs(m: nn.Module, a: Tensor, g: Tensor) -> Tensor:
    """One call's A (n, fold, ...) at its positions, (n, T, D) in float64, or (n, T) indices."""
    if type(m) is nn.Embedding:
        return a.flatten(1)
    if type(m) is nn.Linear:
        return to_float64(positions(a.flatten(1, 2)))
    seen = patches(m, a.flatten(0, 1), g.shape[4:]).mT
    return to_float64(seen.unflatten(0, a.shape[:2]).flatten(1, 2))


def product_outputs(m: nn.Module, g: Tensor) -> Tensor:
    """One call's G (n, B, fold, ...) at the same positions, (n, B, T, O) in float64."""
    if type(m) in CONVOLUTIONS:
        return to_float64(g.flatten(4).mT.flatten(2, 3))
    return to_float64(g.reshape(*g.shape[:2], -1, g.shape[-1]))


def join_calls(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def split_products(
    survey: Survey, points: int, pairs: int, device: str
) -> tuple[list[ProductLayer], list[LayerParameter]]:
    """Which layers are cheaper as products, for Θ of so many pairs of points, and the others."""
    products: dict[tuple[nn.Module, ...], dict[str, bool]] = {}
    rest: list[LayerParameter] = []
    for ly in survey.layers:
        kinds = {type(m) for m in ly.modules}
        t = sum(survey.positions[m] for m in ly.modules)
        plain = len({n for _, n in ly.sources}) == 1
        local = ly.sources[0][1]
        if kinds == {nn.Linear} and plain:
            pays = t == 1 or (local == "weight" and product_is_cheaper(survey, ly, t, points, pairs, device))
        elif kinds == {nn.Embedding} and len({getattr(m, "padding_idx", None) for m in ly.modules}) == 1:
            pays = t * t <= ly.shape[0]
        elif len(ly.modules) == 1 and kinds <= set(CONVOLUTIONS) and getattr(ly.modules[0], "groups", 0) == 1:
            pays = local == "weight" and product_is_cheaper(survey, ly, t, points, pairs, device)
        else:
            pays = False
        if pays or (plain and ly.modules in products):
            products.setdefault(ly.modules, {})[local] = True
        else:
            rest.append(ly)
    return [
        ProductLayer(modules, of.get("weight", False), of.get("bias", False), kernel_entries(survey, modules))
        for modules, of in products.items()
    ], rest


def product_is_cheaper(survey: Survey, ly: LayerParameter, t: int, points: int, pairs: int, device: str) -> bool:
    """Whether A and G at T positions cost less than rows, which are formed once a point and multiplied once a pair."""
    o, heads = ly.shape[0], survey.heads
    d, wide = ly.p // o, o * survey.folded
    product = t * t * d + (t * t * wide if heads == 1 else t * heads * o * (t + heads))
    rows = heads**2 * d * wide + heads * d * wide * (ENTRY_COST + t) * points / max(pairs, 1)
    return EXACT_COST.get(device, 2) * product <= rows


def kernel_entries(survey: Survey, modules: tuple[nn.Module, ...]) -> int:
    m = modules[0]
    weight = m._parameters["weight"]
    assert weight is not None
    d, o = (1, weight.shape[1]) if type(m) is nn.Embedding else (weight[0].numel(), weight.shape[0])
    return sum(survey.positions[m] for m in modules) * (d + survey.heads * survey.folded * o)
