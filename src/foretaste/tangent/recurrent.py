"""nn.LSTM, nn.GRU and nn.RNN in steps, so that the rules of Linear layers serve their weights (stand_ins.py).

At every time t a layer computes its gates from two Linear layers, of its input and of its last state:

    z_t = W_ih x_t + b_ih        r_t = W_hh h_{t-1} + b_hh        h_t = step(z_t, r_t, h_{t-1})

So W_ih is a Linear layer with T positions, A = x and G = ∂f/∂z, and W_hh is one with A = (h_0, ..., h_{T-1}) and
G = ∂f/∂r. The states are computed first, without a graph. ``Recurrence`` then stands in the graph for all of them: its
backward goes through time once and gives ∂f/∂z and ∂f/∂r at every t. autograd would keep a dozen nodes for each step.

Tensors are (T, N, ...) here, with the points second.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from foretaste.tangent.products import add_product, product
from foretaste.tangent.stand_ins import TakenApart, linear_stand_in


@dataclass
class States:
    """What the forward leaves for the backward: h of every step, and what the derivative of a step is made of."""

    h_TNH: Tensor
    r_TNG: Tensor  # W_hh h_{t-1} + b_hh
    last: tuple[Tensor, ...]  # the last state, (N, H) each: h, or h and c
    slopes: Any
    ends: Tensor | None = None  # (N,): the lengths of padded sequences


def tanh(t: Tensor, out: Tensor) -> Tensor:
    """2σ(2t) − 1: torch's own tanh takes five times as long on a slice, and wakes every thread for a few numbers."""
    return torch.mul(t, 2, out=out).sigmoid_().mul_(2).sub_(1)


def backwards(*over_time: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """The entries of each time, the last first. All views are made at once: one by one they cost as much as a step."""
    return reversed(list(zip(*over_time)))


class Cell:
    """One kind of recurrence. A class for each, below."""

    weight: Tensor  # W_hh, (G, H)

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, weight.new_zeros(()) if bias is None else bias

    def recur(self, h_NH: Tensor, out_NG: Tensor) -> Tensor:
        """W_hh h + b_hh."""
        return add_product(self.bias, h_NH, self.weight, out=out_NG)

    def run(self, z_TNG: Tensor, first: tuple[Tensor, ...], ends: Tensor | None = None) -> States:
        """All steps. ends: the lengths of padded sequences, (N,); the last c is then that at the end of each."""
        raise NotImplementedError

    def back(self, states: States, g_TNH: Tensor, g_last: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """∂f/∂z and ∂f/∂r, (T, N, G) each, and ∂f/∂ of the first state."""
        raise NotImplementedError


class TanhCell(Cell):
    """h = tanh(z + r), or relu."""

    relu = False

    def run(self, z_TNG: Tensor, first: tuple[Tensor, ...], ends: Tensor | None = None) -> States:
        h, (r, hs) = first[0], (torch.empty_like(z_TNG) for _ in range(2))
        for z_t, r_t, h_t in zip(z_TNG, r, hs):
            torch.add(z_t, self.recur(h, r_t), out=h_t)
            h = h_t.relu_() if self.relu else tanh(h_t, out=h_t)
        return States(hs, r, (h,), (hs > 0).to(hs.dtype) if self.relu else 1 - hs.square())

    def back(self, states: States, g_TNH: Tensor, g_last: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, list[Tensor]]:
        g_z, g_h, weight_HG = torch.empty_like(g_TNH), g_last[0].clone(), self.weight.T
        for g_t, slopes_t, z_t in backwards(g_TNH, states.slopes, g_z):
            torch.mul(g_h.add_(g_t), slopes_t, out=z_t)
            g_h = product(z_t, weight_HG, out=g_h)
        return g_z, g_z, [g_h]


class ReluCell(TanhCell):
    relu = True


class LSTMCell(Cell):
    """i, f, o = σ(·), g = tanh(·) of z + r; c' = f c + i g; h = o tanh(c'). Both biases are in z."""

    def run(self, z_TNG: Tensor, first: tuple[Tensor, ...], ends: Tensor | None = None) -> States:
        (T, N, G), h = z_TNG.shape, first[0]
        H = G // 4
        gates, cs = torch.empty_like(z_TNG), z_TNG.new_empty(T + 1, N, H)
        tanhs, hs = (z_TNG.new_empty(T, N, H) for _ in range(2))
        cs[0] = first[1]
        for z_t, all_t, i, f, g, o, c, next_c, tanh_t, h_t in zip(
            z_TNG, gates, *gates.chunk(4, 2), cs, cs[1:], tanhs, hs
        ):
            add_product(z_t, h, self.weight, out=all_t)
            for gate in (i, f, o):
                gate.sigmoid_()
            torch.mul(f, c, out=next_c).addcmul_(i, tanh(g, out=g))
            h = torch.mul(o, tanh(next_c, out=tanh_t), out=h_t)
        c = cs[T] if ends is None else cs[ends, torch.arange(N, device=cs.device)]
        # r alone is not needed: ∂f/∂r is ∂f/∂z.
        return States(hs, gates, (h, c), (gates, cs, tanhs), ends)

    def back(self, states: States, g_TNH: Tensor, g_last: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, list[Tensor]]:
        gates, cs, tanhs = states.slopes
        i, f, g, o = gates.chunk(4, 2)
        H = i.shape[2]
        # ∂z of i, f and g is ∂c times its slope, ∂z of o is ∂h times its slope, and ∂c grows by ∂h times ``slope_c``.
        slopes = torch.empty_like(gates)
        slopes[..., :H] = i * (1 - i) * g
        slopes[..., H : 2 * H] = f * (1 - f) * cs[:-1]
        slopes[..., 2 * H : 3 * H] = i * (1 - g.square())
        slopes[..., 3 * H :] = o * (1 - o) * tanhs
        slope_c = o * (1 - tanhs.square())
        g_z, (g_h, g_c), ends = torch.empty_like(gates), (t.clone() for t in g_last), states.ends
        g_c = g_c if ends is None else torch.zeros_like(g_c)
        by_c, by_h = ([t.unflatten(2, (4, H))[:, :, at] for t in (g_z, slopes)] for at in (slice(3), 3))
        g_c1, weight_HG = g_c[:, None], self.weight.T
        for t, g_t, slope_t, c_t, slopes_c, o_t, slope_o, z_t, f_t in backwards(
            range(1, len(gates) + 1), g_TNH, slope_c, *by_c, *by_h, g_z, f
        ):
            g_h += g_t
            if ends is not None:
                g_c += g_last[1] * (ends == t)[:, None]
            g_c.addcmul_(g_h, slope_t)
            torch.mul(g_c1, slopes_c, out=c_t)
            torch.mul(g_h, slope_o, out=o_t)
            g_h = product(z_t, weight_HG, out=g_h)
            g_c *= f_t
        return g_z, g_z, [g_h, g_c]


class GRUCell(Cell):
    """s, u = σ(z + r), n = tanh(z_n + s r_n); h' = (1 − u) n + u h."""

    def run(self, z_TNG: Tensor, first: tuple[Tensor, ...], ends: Tensor | None = None) -> States:
        T, N, G = z_TNG.shape
        H = G // 3
        r, su = torch.empty_like(z_TNG), z_TNG.new_empty(T, N, 2 * H)
        ns, hs = z_TNG.new_empty(T, N, H), z_TNG.new_empty(T + 1, N, H)
        hs[0] = first[0]
        cut = 2 * H, H
        for h, next_h, r_t, r_su, r_n, z_su, z_n, su_t, s, u, n in zip(
            hs, hs[1:], r, *r.split(cut, 2), *z_TNG.split(cut, 2), su, *su.chunk(2, 2), ns
        ):
            self.recur(h, r_t)
            torch.add(z_su, r_su, out=su_t).sigmoid_()
            torch.addcmul(z_n, s, r_n, out=n)
            torch.lerp(tanh(n, out=n), h, u, out=next_h)
        return States(hs[1:], r, (hs[T],), (su, ns, hs))

    def back(self, states: States, g_TNH: Tensor, g_last: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, list[Tensor]]:
        su, ns, hs = states.slopes
        s, u = su.chunk(2, 2)
        H = s.shape[2]
        slope_n = (1 - u) * (1 - ns.square())  # ∂z_n is ∂h times this
        slope_s = slope_n * states.r_TNG[..., 2 * H :] * s * (1 - s)
        slope_u = (hs[:-1] - ns) * u * (1 - u)
        slopes = torch.cat([slope_s, slope_u, slope_n * s], 2).unflatten(2, (3, H))
        g_r, g_h = torch.empty_like(states.r_TNG), g_last[0].clone()
        by_gate, g_hs = g_r.unflatten(2, (3, H)), torch.empty_like(ns)
        weight_HG = self.weight.T
        for g_t, h_t, slopes_t, gates_t, r_t, u_t in backwards(g_TNH, g_hs, slopes, by_gate, g_r, u):
            torch.add(g_h, g_t, out=h_t)
            torch.mul(h_t[:, None], slopes_t, out=gates_t)
            add_product(h_t * u_t, r_t, weight_HG, out=g_h)
        g_z = g_r.clone()
        torch.mul(g_hs, slope_n, out=g_z[..., 2 * H :])
        return g_z, g_r, [g_h]


class Recurrence(torch.autograd.Function):
    """h of every step and the last state, which are known; the backward is the cell's."""

    @staticmethod
    def forward(ctx: Any, cell: Cell, states: States, z_TNG: Tensor, r_TNG: Tensor, *first: Tensor) -> tuple[Any, ...]:
        ctx.cell, ctx.states = cell, states
        return states.h_TNH.clone(), *(t.clone() for t in states.last)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        g_TNH, *g_last = grads
        g_z, g_r, g_first = ctx.cell.back(ctx.states, g_TNH, tuple(g_last))
        return None, None, g_z, g_r, *g_first


CELLS = {"LSTM": LSTMCell, "GRU": GRUCell, "RNN_TANH": TanhCell, "RNN_RELU": ReluCell}


class RecurrentParts(TakenApart):
    """Layers and directions one after the other, each with a stand-in for W_ih and one for W_hh."""

    @staticmethod
    def fits(m: Any) -> bool:
        """Not with ``proj_size``, where a projection follows the state."""
        return m.proj_size == 0 and list(m._parameters) == m._flat_weights_names

    def make_stand_ins(self: Any) -> dict[str, nn.Module]:
        made = {}
        for name in self._all_weights:
            weight_ih, weight_hh, *biases = (getattr(self, k) for k in name)
            for kind, weight, bias in zip(("ih", "hh"), (weight_ih, weight_hh), biases or (None, None)):
                made[name[0].replace("weight_ih", kind)] = linear_stand_in(weight, bias)
        return made

    def compose(self: Any, input: Any, hx: Any = None) -> Any:
        packed = input if isinstance(input, PackedSequence) else None
        lengths: Tensor | None = None
        if packed is not None:  # padded, in the order of the caller's points
            x, lengths = pad_packed_sequence(packed)
            lengths = lengths.to(x.device)
        elif input.dim() == 3:
            x = input.transpose(0, 1) if self.batch_first else input
        else:
            return None
        directions = 2 if self.bidirectional else 1
        count = 2 if self.mode == "LSTM" else 1  # states: h, or h and c
        if hx is None:
            hx = x.new_zeros(self.num_layers * directions, x.shape[1], self.hidden_size)
            firsts = [hx] * count
        else:
            firsts = list(hx) if count == 2 else [hx]
        turned = None if lengths is None else turn_within(lengths, len(x))
        lasts: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outs = []
            for direction in range(directions):
                place = layer * directions + direction
                suffix = f"_l{layer}{'_reverse' if direction else ''}"
                seen = turn(x, turned) if direction else x
                h, *last = self.run_layer(seen, suffix, tuple(t[place] for t in firsts), lengths)
                outs.append(turn(h, turned) if direction else h)
                lasts.append(tuple(last))
            x = outs[0] if directions == 1 else torch.cat(outs, 2)
        ends = tuple(torch.stack(t) for t in zip(*lasts))
        if packed is not None:
            assert lengths is not None
            order = packed.sorted_indices
            if order is not None:
                x, lengths = x[:, order], lengths[order]
            data, sizes, *_ = pack_padded_sequence(x, lengths.cpu())
            out: Any = PackedSequence(data, sizes, packed.sorted_indices, packed.unsorted_indices)
        else:
            out = x.transpose(0, 1) if self.batch_first else x
        return out, ends if count == 2 else ends[0]

    def run_layer(
        self: Any, x_TND: Tensor, suffix: str, first: tuple[Tensor, ...], lengths: Tensor | None
    ) -> tuple[Tensor, ...]:
        """h of every step, and the last state, of one layer in one direction."""

        def own(kind: str) -> Any:
            return getattr(self, kind + suffix) if self.bias or kind.startswith("weight") else None

        x_TND = x_TND.contiguous()
        bias_ih, bias_hh = own("bias_ih"), own("bias_hh")
        if self.mode == "LSTM" and self.bias:
            bias_ih, bias_hh = bias_ih + bias_hh, None
        z = self.stand_ins["ih" + suffix](x_TND, F.linear(x_TND, own("weight_ih"), bias_ih))
        cell = CELLS[self.mode](own("weight_hh"), bias_hh)
        with torch.no_grad():
            states = cell.run(z.detach(), tuple(t.detach() for t in first), lengths)
            before = torch.cat([first[0].detach()[None], states.h_TNH[:-1]])
        r = self.stand_ins["hh" + suffix](before, states.r_TNG)
        h, *last = Recurrence.apply(cell, states, z, r, *first)
        if lengths is None:
            return h, *last
        return h, h[lengths - 1, torch.arange(h.shape[1], device=h.device)], *last[1:]


def turn(t_TN: Tensor, turned_TN: Tensor | None) -> Tensor:
    """Reversed in time; padded sequences each within its length."""
    if turned_TN is None:
        return t_TN.flip(0)
    return t_TN.gather(0, turned_TN[..., None].expand_as(t_TN))


def turn_within(lengths_N: Tensor, T: int) -> Tensor:
    """(T, N): the times of each sequence in reverse; those of padding stay."""
    t = torch.arange(T, device=lengths_N.device)[:, None]
    return torch.where(t < lengths_N, lengths_N - 1 - t, t)


class LSTMParts(RecurrentParts, nn.LSTM):
    pass


class GRUParts(RecurrentParts, nn.GRU):
    pass


class RNNParts(RecurrentParts, nn.RNN):
    pass
