"""Generated networks: random stacks of layers and odd forwards, their kernel compared with plain autograd."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.utils.prune
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import foretaste as ft
from foretaste.testing.contracts import describe_changes, snapshot_network

from .calls import brute_force, close
from .outcomes import Tally, outcome_of

MOST_OUTPUTS = 4
ACTIVATIONS = [nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, lambda: nn.ReLU(inplace=True), nn.Softplus, nn.Identity, nn.PReLU]


class Bend(nn.Module):
    """A forward of one's own around two layers."""

    def __init__(self, d: int, C: int, how: str) -> None:
        super().__init__()
        self.a, self.b, self.how = nn.Linear(d, d), nn.Linear(d, C), how
        self.scale = nn.Parameter(torch.ones(d))
        if how == "pairs":
            self.pairs = nn.Bilinear(d, d, d, bias=d % 2 == 0)
        if how in ("functional", "einsum"):
            self.whole = nn.Parameter(torch.randn(d, d))

    def forward(self, x: Tensor) -> Tensor:
        match self.how:
            case "residual":
                x = x + torch.tanh(self.a(x))
            case "twice":
                x = torch.tanh(self.a(torch.tanh(self.a(x))))
            case "sorted":  # the batch in another order inside, put back at the end
                order = x[:, 0].argsort()
                return self.b(torch.tanh(self.a(x[order])))[order.argsort()]
            case "frames":  # a point becomes two rows
                x = torch.tanh(self.a(x.repeat_interleave(2, 0))).view(len(x), 2, -1).mean(1)
            case "masked":  # points of some sign alone go through the layer
                on = x[:, 0] > 0
                h = torch.zeros_like(x)
                h[on] = torch.tanh(self.a(x[on]))
                x = x + h
            case "split":
                first, second = self.a(x).split([1, x.shape[1] - 1], 1)
                x = torch.cat([torch.tanh(first), second], 1)
            case "behind":  # the weight is used behind its module's back
                x = torch.tanh(F.linear(x, self.a.weight, self.a.bias)) + self.a(x)
            case "bare":
                x = torch.tanh(self.a(x)) * self.scale
            case "pairs":
                x = torch.tanh(self.pairs(self.a(x), x))
            case "functional":  # weights that no module applies
                x = torch.tanh(F.linear(x, self.whole, self.scale)) + x @ self.whole
            case "einsum":
                x = torch.einsum("nd,ed->ne", torch.tanh(self.a(x)), self.whole) + self.scale
            case "checkpoint":
                x = torch.utils.checkpoint.checkpoint(lambda h: torch.tanh(self.a(h)), x, use_reentrant=False)
            case "no_grad":
                with torch.no_grad():
                    x = torch.tanh(self.a(x))
            case "softmax":
                return torch.softmax(self.b(torch.tanh(self.a(x))), 1)
            case "whole batch":  # points influence one another: must be refused
                x = torch.tanh(self.a(x - x.mean(0)))
        return self.b(x)


BENDS = [
    "residual", "twice", "sorted", "frames", "masked", "split", "behind", "bare", "checkpoint", "no_grad", "softmax",
    "whole batch", "pairs", "functional", "einsum",
]  # fmt: skip


def dense(draw: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    d = draw.randint(2, 5)
    layers: list[nn.Module] = []
    at = d
    for _ in range(draw.randint(0, 3)):
        wide = draw.randint(2, 6)
        layers += [nn.Linear(at, wide, bias=draw.random() < 0.8), draw.choice(ACTIVATIONS)()]
        at = wide
        norm = draw.choice([None, None, nn.BatchNorm1d, nn.LayerNorm, nn.RMSNorm, lambda n: nn.GroupNorm(1, n)])
        layers += [norm(at)] if norm else []
    layers.append(draw.choice([nn.Linear(at, draw.randint(1, 4)), Bend(at, draw.randint(2, 4), draw.choice(BENDS))]))
    return nn.Sequential(*layers), (d,)


def convolutional(draw: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    size = draw.randint(4, 7)
    channels = draw.choice([1, 2, 4])
    layers: list[nn.Module] = []
    at = channels
    for _ in range(draw.randint(1, 2)):
        groups = draw.choice([1, 1, at])
        wide = groups * draw.randint(1, 3)
        kernel = draw.choice([1, 3])
        layers.append(nn.Conv2d(
            at, wide, kernel, stride=draw.choice([1, 2]), padding=draw.choice([kernel // 2, 1]),
            dilation=1, groups=groups, bias=draw.random() < 0.7,
            padding_mode=draw.choice(["zeros", "zeros", "reflect", "circular"]),
        ))  # fmt: skip
        layers += [nn.BatchNorm2d(wide)] if draw.random() < 0.5 else []
        layers.append(draw.choice(ACTIVATIONS)())
        at = wide
    layers += [nn.AdaptiveAvgPool2d(draw.choice([1, 2])), nn.Flatten(), nn.LazyLinear(draw.randint(2, 4))]
    return nn.Sequential(*layers), (channels, size, size)


class Sequence(nn.Module):
    """An embedding, then attention, a recurrent layer, bare parameters or a mean over tokens."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        d = 4
        self.embed = nn.Embedding(9, d, padding_idx=draw.choice([None, 0]), scale_grad_by_freq=draw.random() < 0.1)
        self.kind = draw.choice(["mean", "recurrent", "packed", "attention", "encoder", "decoder", "bare", "first"])
        self.bias, self.masked = draw.random() < 0.7, draw.random() < 0.5
        first, layers, both = draw.random() < 0.7, draw.choice([1, 1, 2]), draw.random() < 0.3
        self.causal = draw.random() < 0.3
        self.first, self.memory = first, draw.choice(["itself", "others", "three", "widths"])
        if self.kind in ("recurrent", "packed"):
            kind = draw.choice([nn.LSTM, nn.GRU, nn.RNN])
            extra = {"proj_size": 3} if kind is nn.LSTM and draw.random() < 0.2 else {}
            self.inner: nn.Module = kind(d, d, layers, bias=self.bias, batch_first=first, bidirectional=both, **extra)
            d = (3 if extra else d) * (2 if both else 1)
        elif self.kind == "attention":
            more = {"add_bias_kv": draw.random() < 0.2, "add_zero_attn": draw.random() < 0.2, "batch_first": first}
            apart = {"kdim": d, "vdim": d + 1} if self.memory == "widths" else {}  # separate projections
            self.inner = nn.MultiheadAttention(d, draw.choice([1, 2]), bias=self.bias, **more, **apart)
        elif self.kind in ("encoder", "decoder"):
            make = nn.TransformerEncoderLayer if self.kind == "encoder" else nn.TransformerDecoderLayer
            stack = nn.TransformerEncoder if self.kind == "encoder" else nn.TransformerDecoder
            one = make(d, 2, 6, batch_first=first, norm_first=draw.random() < 0.3, bias=self.bias)
            self.inner = stack(one, layers) if draw.random() < 0.4 else one
        elif self.kind == "bare":
            self.place, self.mix = nn.Parameter(torch.randn(1, 5, d)), nn.Parameter(torch.randn(d, d))
        self.out = nn.Linear(d, draw.randint(2, 4))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        mask = ids == 1 if self.masked else None
        if mask is not None:
            mask[:, 0] = False
        turned = h if self.first else h.transpose(0, 1)
        if self.kind == "recurrent":
            h = self.inner(turned)[0]
        elif self.kind == "packed":
            lengths = (ids != 1).sum(1).clamp(min=1).cpu()
            packed = pack_padded_sequence(turned, lengths, self.first, enforce_sorted=False)
            h = pad_packed_sequence(self.inner(packed)[0], self.first, total_length=5)[0]
        elif self.kind == "attention":
            others = torch.tanh(turned) if self.memory != "itself" else turned
            third = others.square() if self.memory == "three" else others
            if self.memory == "widths":
                third = torch.cat([third, third[..., :1]], -1)
            seen = {"key_padding_mask": mask, "attn_mask": self.later(ids)}
            h = self.inner(turned, others, third, need_weights=self.bias, **seen)[0]
        elif self.kind == "encoder":
            h = self.inner(turned, self.later(ids), src_key_padding_mask=mask)
        elif self.kind == "decoder":
            h = self.inner(turned, torch.tanh(turned), tgt_mask=self.later(ids), memory_key_padding_mask=mask)
        elif self.kind == "bare":
            h = torch.einsum("ntd,de->nte", h + self.place, self.mix) if self.bias else (h * self.place) @ self.mix.T
        if self.kind not in ("bare", "mean", "first") and not self.first:
            h = h.transpose(0, 1)
        return self.out(h[:, 0] if self.kind == "first" else h.mean(1))

    def later(self, ids: Tensor) -> Tensor | None:
        """A mask of what comes later, as booleans."""
        T = ids.shape[1]
        return torch.ones(T, T, dtype=torch.bool).triu(1) if self.causal else None


def reparametrised(draw: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    net, shape = dense(draw)
    linear = [m for m in net.modules() if type(m) is nn.Linear]
    for m in linear[:1]:
        how: Callable[..., Any] = draw.choice([
            torch.nn.utils.parametrizations.weight_norm,
            torch.nn.utils.parametrizations.spectral_norm,
            torch.nn.utils.parametrizations.orthogonal,
            lambda m: torch.nn.utils.prune.random_unstructured(m, "weight", 0.3),
        ])  # fmt: skip
        how(m)
    return net, shape


def make(draw: random.Random) -> tuple[nn.Module, Tensor]:
    """A network in eval mode and a few points for it: as many as it has outputs, in a third of the cases."""
    n = draw.choice((2, 3, 4, 6, 13, 41))  # of large sets, some points only are checked
    torch.manual_seed(draw.randrange(2**31))
    kind = draw.choice(["dense", "dense", "convolutional", "sequence", "reparametrised"])
    if kind == "sequence":
        net: nn.Module = Sequence(draw)
        x = torch.randint(0, 9, (max(n, MOST_OUTPUTS), 5))
    else:
        net, shape = {"dense": dense, "convolutional": convolutional, "reparametrised": reparametrised}[kind](draw)
        x = torch.randn(max(n, MOST_OUTPUTS), *shape)
    C = net(x).shape[1]  # BatchNorm has seen something, lazy layers are made
    x = x[: C if draw.random() < 1 / 3 else n].clone()
    if draw.random() < 0.8:
        net, x = net.double(), x.double() if x.is_floating_point() else x
    if draw.random() < 0.2:
        next(iter(net.parameters())).requires_grad_(False)
    return net.eval(), x


def run(count: int, seed: int = 0) -> Tally:
    """``count`` networks: Θ of each equals autograd's, or the network is refused by name."""
    tally, draw = Tally(), random.Random(seed)
    with torch.random.fork_rng([]):
        for _ in range(count):
            net, x = make(draw)
            output = draw.choice(["sum", "signs", "first", 0, "trace", "full"])

            def check(net: nn.Module = net, x: Tensor = x, output: str | int = output) -> None:
                inputs = x.clone().requires_grad_(x.is_floating_point() and draw.random() < 0.2)
                got = ft.ntk(net, inputs, output=output)
                trained = [p for p in net.parameters() if p.requires_grad]
                want = brute_force(_Trained(net, trained), x, output).double()
                close(got, want, f"ntk {output}", 1e-6 if trained[0].dtype == torch.float64 else 2e-3)

            before = snapshot_network(net, x)
            outcome, words = outcome_of(check)
            if outcome == "raw error" and outcome_of(partial(net, x))[0] != "right":
                outcome = "clear error"  # the network's own: it cannot be called at all
            if changed := describe_changes(before, snapshot_network(net, x)):
                outcome, words = "left behind", f"{changed[:3]} after {outcome}: {words}"
            tally.add(outcome, f"{' '.join(repr(net).split())[:300]}: {words}")
    return tally


class _Trained(nn.Module):
    """A network of which some parameters count."""

    def __init__(self, net: nn.Module, trained: list[nn.Parameter]) -> None:
        super().__init__()
        self._net, self._list = [net], trained

    def forward(self, x: Tensor) -> Tensor:
        return self._net[0](x)

    def parameters(self, recurse: bool = True) -> Any:
        return iter(self._list)
