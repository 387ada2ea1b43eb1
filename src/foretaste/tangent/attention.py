"""nn.MultiheadAttention in steps, so that the rules of Linear layers serve its projections (stand_ins.py)."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretaste.tangent.stand_ins import RowsOf, Spread, TakenApart, as_stand_in, linear_stand_in

PROJECTIONS = ("q", "k", "v")
PARAMETERS = {"in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "bias_k", "bias_v"}


class AttentionParts(TakenApart, nn.MultiheadAttention):
    """Projections of query, key and value, attention, and the projection of its output."""

    @staticmethod
    def fits(m: Any) -> bool:
        out = m.out_proj
        return (
            m._parameters.keys() <= PARAMETERS
            and type(out) is nn.modules.linear.NonDynamicallyQuantizableLinear
            and out._parameters.keys() == {"weight", "bias"}
        )

    def make_stand_ins(self) -> dict[str, nn.Module]:
        E = self.embed_dim
        made: dict[str, nn.Module] = {"out": linear_stand_in(self.out_proj.weight, self.out_proj.bias)}
        self.covered = (self.out_proj,)
        if self._qkv_same_embed_dim:  # one use if query, key and value are one tensor, else three
            made["qkv"] = linear_stand_in(self.in_proj_weight, self.in_proj_bias)
            weights = dict.fromkeys(PROJECTIONS, self.in_proj_weight)
            first = {"q": 0, "k": E, "v": 2 * E}
        else:
            weights = {"q": self.q_proj_weight, "k": self.k_proj_weight, "v": self.v_proj_weight}
            first = dict.fromkeys(PROJECTIONS, 0)
        for i, name in enumerate(PROJECTIONS):
            rows = RowsOf(E, {"weight": first[name], "bias": i * E})
            made[name] = as_stand_in(rows, weight=weights[name], bias=self.in_proj_bias)
        if self.bias_k is not None:
            made |= {name: as_stand_in(Spread(), weight=getattr(self, name)) for name in ("bias_k", "bias_v")}
        return made

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        if self._qkv_same_embed_dim and query is key and key is value:
            whole = F.linear(query, self.in_proj_weight, self.in_proj_bias)
            return self.stand_ins["qkv"](query, whole).chunk(3, -1)
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        given = zip(PROJECTIONS, (query, key, value), weights, biases)
        return tuple(self.stand_ins[name](a, F.linear(a, w, b)) for name, a, w, b in given)

    def compose(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None] | None:
        if query.dim() != 3 or query.is_nested or (is_causal and attn_mask is None):
            return None
        order = (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3)
        heads = self.num_heads
        q, k, v = (t.unflatten(-1, (heads, -1)).permute(order) for t in self.project(query, key, value))
        mask = merge_masks(attn_mask, key_padding_mask, heads, q.dtype)
        if is_causal and key_padding_mask is None and not need_weights:
            mask = None  # the hint counts, as in torch
        else:
            is_causal = False
        if self.bias_k is not None:
            k, v = (torch.cat([t, self.spread(name, t)], 2) for name, t in (("bias_k", k), ("bias_v", v)))
        if self.add_zero_attn:
            k, v = (F.pad(t, (0, 0, 0, 1)) for t in (k, v))
        if mask is not None and k.shape[2] > key.shape[1 if self.batch_first else 0]:
            mask = F.pad(mask, (0, k.shape[2] - mask.shape[-1]))
        if need_weights:
            scores = (q / math.sqrt(q.shape[-1])) @ k.mT
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            mixed = weights @ v
        else:
            weights, mixed = None, F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)
        mixed = mixed.permute(0, 2, 1, 3) if self.batch_first else mixed.permute(2, 0, 1, 3)
        mixed = mixed.flatten(2)
        out = self.stand_ins["out"](mixed, F.linear(mixed, self.out_proj.weight, self.out_proj.bias))
        return out, weights.mean(1) if weights is not None and average_attn_weights else weights

    def spread(self, name: str, t_NHTd: Tensor) -> Tensor:
        """bias_k or bias_v as one more position of every point, (N, heads, 1, d)."""
        weight: Tensor = getattr(self, name)
        repeated = weight[0].expand(t_NHTd.shape[0], -1)
        return self.stand_ins[name](t_NHTd.flatten(1), repeated).unflatten(1, (t_NHTd.shape[1], 1, -1))


def merge_masks(mask: Tensor | None, padding: Tensor | None, heads: int, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores (N, heads, L, S) or to a broadcast of them: −inf where a mask is True."""
    if mask is not None:
        mask = mask.unflatten(0, (-1, heads)) if mask.dim() == 3 else mask
    if padding is not None:
        padding = padding[:, None, None]
    given = [
        t.to(dtype) if t.is_floating_point() else torch.zeros_like(t, dtype=dtype).masked_fill_(t, -math.inf)
        for t in (mask, padding)
        if t is not None
    ]
    return sum(given[1:], given[0]) if given else None
