# ruff: noqa: E501
"""A table of small networks, one for each thing a layer can do to a tangent kernel."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from foretaste.network import MLP, WideResNet, resnet18

X = Tensor | Mapping[str, Tensor]


def forbid_gradients(net: nn.Module) -> RemovableHandle:
    """From now on a gradient of ``net`` is an error, so no empirical kernel can be computed."""

    def refuse(gradient: Tensor) -> None:
        raise AssertionError("a kernel was computed")

    def watch(module: nn.Module, args: object, out: Tensor) -> None:
        if out.requires_grad:
            out.register_hook(refuse)

    return net.register_forward_hook(watch)


class Text(nn.Module):
    """Embedding (with padding), attention, LayerNorm, mean over tokens."""

    def __init__(self, tokens: int = 12, d: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, d, padding_idx=0)
        self.q, self.k, self.v = (nn.Linear(d, d) for _ in range(3))
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, 3)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        h = h + F.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h))
        return self.out(self.norm(h).mean(1))


class TokensFirst(nn.Module):
    """Works on (T, N, D) inside, as torch's recurrent and attention modules do by default."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x.transpose(0, 1)))).mean(0)


class Frames(nn.Module):
    """Folds a second dimension into the points, as video networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.conv(x.flatten(0, 1)[:, None])))
        return self.out(h.mean((2, 3)).unflatten(0, x.shape[:2]).mean(1))


class Twice(nn.Module):
    """One module called twice, at other sizes too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mix, self.out = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(32, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.conv(torch.relu(self.conv(x)))[:, :, ::2]).flatten(1)
        return self.out(torch.tanh(self.mix(torch.tanh(self.mix(h)))))


class Tied(nn.Module):
    """The embedding's table is the decoder's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.decode = nn.Embedding(5, 6), nn.Linear(6, 6), nn.Linear(6, 5)
        self.decode.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.mix(self.embed(ids).mean(1))))


class TiedLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.b.weight, self.b.bias = self.a.weight, self.a.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.b(torch.tanh(self.a(x)))))


class TiedConvolutions(nn.Module):
    """One weight in two convolutions that have to be cut along different dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Conv1d(16, 4, 3, padding=1), nn.Conv1d(32, 4, 3, groups=2), nn.Linear(4, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x)).mean(2) + torch.tanh(self.b(torch.cat([x, x.flip(2)], 1))).mean(2)
        return self.out(h)


class UsedOutside(nn.Module):
    """Uses a module's weight outside the module as well: a rule alone would be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(F.linear(torch.tanh(self.a(x)), self.a.weight)))


class Bare(nn.Module):
    """Parameters of its own, one of them without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.scale, self.out = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.tensor(0.7)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(x @ self.w)) * self.scale


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][:, -1])


class OwnPReLU(nn.PReLU):
    """A subclass has no rule: it may compute something else."""


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 8), nn.Embedding(5, 8), nn.Linear(8, 3)

    def forward(self, image: Tensor, tag: Tensor) -> Tensor:
        return self.out(torch.tanh(self.a(image) + self.b(tag)))


class Encoder(nn.Module):
    """torch's own transformer layer: its attention keeps a bare in_proj_weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x).mean(1))


def seq(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)


def flat(c: int) -> tuple[nn.Module, ...]:
    return nn.Flatten(), nn.Linear(c, 3)


@dataclass(frozen=True)
class Network:
    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] | None = None
    draw: Callable[[int], X] | None = None
    functional: tuple[str, ...] = ()  # parameters that have no rule
    device_gap: float = 1e-12  # between float64 results of torch on a CPU and on a GPU

    def __str__(self) -> str:
        return self.name

    def built(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            net = self.make()
            for m in net.modules():  # statistics and affine weights that are not 0 and 1
                if isinstance(m, nn.modules.batchnorm._BatchNorm):
                    m.running_mean.normal_(0, 0.3), m.running_var.uniform_(0.5, 2)
                if isinstance(m, (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)):
                    m.weight.data.normal_(1, 0.2), m.bias.data.normal_(0, 0.2)
        return net.to(dtype).eval()

    def points(self, n: int, dtype: torch.dtype = torch.float64) -> X:
        with torch.random.fork_rng([]):
            torch.manual_seed(1)
            x = self.draw(n) if self.draw else torch.randn(n, *(self.shape or ()))

        def cast(t: Tensor) -> Tensor:
            return t.to(dtype) if t.is_floating_point() else t

        return {k: cast(v) for k, v in x.items()} if isinstance(x, Mapping) else cast(x)


def ids(high: int, length: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randint(0, high, (n, length))


NETWORKS = [
    Network("mlp", lambda: MLP(6, (16, 12), 3), (6,)),
    Network("linear without bias", lambda: seq(nn.Linear(6, 9, bias=False), nn.Tanh(), nn.Linear(9, 3, bias=False)), (6,)),
    Network("linear over positions", lambda: seq(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 4), *flat(12)), (3, 5)),
    Network("linear over many positions", lambda: seq(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), *flat(72)), (6, 3, 5)),
    Network("conv1d dilated", lambda: seq(nn.Conv1d(2, 4, 3, dilation=2, padding=2), nn.ReLU(), *flat(40)), (2, 10)),
    Network("conv2d", lambda: seq(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, (2, 3)), *flat(60)), (2, 6, 6)),
    Network("conv2d strided", lambda: seq(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(inplace=True), *flat(36)), (2, 6, 6)),
    Network("conv2d grouped", lambda: seq(nn.Conv2d(4, 8, 3, groups=2, padding=1), nn.ReLU(), *flat(200)), (4, 5, 5)),
    Network("conv2d grouped, strided", lambda: seq(nn.Conv2d(4, 8, 3, 2, groups=4), nn.ReLU(), *flat(32)), (4, 5, 5)),
    Network("depthwise separable", lambda: seq(nn.Conv2d(4, 4, 3, groups=4, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 1), *flat(150)), (4, 5, 5)),
    Network("conv2d same, reflect", lambda: seq(nn.Conv2d(2, 3, (3, 2), padding="same", padding_mode="reflect"), nn.Tanh(), *flat(75)), (2, 5, 5)),
    Network("conv2d circular", lambda: seq(nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode="circular"), nn.Tanh(), *flat(105)), (2, 5, 5)),
    Network("conv2d of many channels", lambda: seq(nn.Conv2d(2, 18, 3, padding=1), nn.ReLU(), nn.Conv2d(18, 5, 3, stride=2, padding=1, padding_mode="circular"), *flat(45)), (2, 6, 6)),
    Network("conv1d of many channels, dilated", lambda: seq(nn.Conv1d(17, 20, 2, dilation=2), nn.Tanh(), nn.Conv1d(20, 4, 1), *flat(24)), (17, 8)),
    Network("conv3d", lambda: seq(nn.Conv3d(1, 3, (2, 3, 3), dilation=(1, 2, 1), padding=1), nn.Tanh(), *flat(225)), (1, 4, 5, 5)),
    Network("conv3d strided", lambda: seq(nn.Conv3d(2, 3, 2, stride=(1, 2, 2)), nn.Tanh(), *flat(36)), (2, 4, 4, 5)),
    Network("transposed", lambda: seq(nn.ConvTranspose2d(2, 3, 3, padding=1), nn.ReLU(), *flat(75)), (2, 5, 5)),
    Network("transposed strided, grouped", lambda: seq(nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), nn.ReLU(), *flat(384)), (4, 4, 4)),
    Network("transposed 1d dilated", lambda: seq(nn.ConvTranspose1d(2, 3, 3, dilation=2), nn.ReLU(), *flat(36)), (2, 8)),
    Network("transposed 3d", lambda: seq(nn.ConvTranspose3d(1, 2, 2, 2), nn.ReLU(), *flat(256)), (1, 2, 4, 2)),
    Network("batchnorm", lambda: seq(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), *flat(36)), (2, 5, 5)),
    Network("batchnorm1d", lambda: seq(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), (6,)),
    Network("groupnorm", lambda: seq(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), *flat(36)), (2, 5, 5)),
    Network("layernorm of two dimensions", lambda: seq(nn.Conv2d(2, 4, 3), nn.LayerNorm((3, 3)), nn.Tanh(), *flat(36)), (2, 5, 5)),
    Network("rmsnorm", lambda: seq(nn.Linear(6, 8), nn.RMSNorm(8), nn.Tanh(), nn.Linear(8, 3)), (6,)),
    Network("instancenorm", lambda: seq(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Tanh(), *flat(36)), (2, 5, 5),
            functional=("1.weight", "1.bias")),
    Network("attention on an embedding", Text, draw=ids(12, 4)),
    Network("embedding, long texts", Text, draw=ids(12, 20)),
    Network("transformer layer", Encoder, (4, 8)),
    Network("lstm", Recurrent, (5, 4)),
    Network("tokens first", TokensFirst, (5, 4)),
    Network("frames", Frames, (3, 5, 5)),
    Network("a module called twice", Twice, (2, 4, 8)),
    Network("tied embedding", Tied, draw=ids(5, 3)),
    Network("tied linear", TiedLinear, (6,)),
    Network("tied convolutions", TiedConvolutions, (16, 6), functional=("a.weight",)),
    Network("a weight used outside its module", UsedOutside, (6,), functional=("a.weight",)),
    Network("prelu", lambda: seq(nn.Linear(6, 8), nn.PReLU(), nn.Linear(8, 3)), (6,)),
    Network("prelu of channels", lambda: seq(nn.Conv2d(2, 4, 3), nn.PReLU(4), *flat(36)), (2, 5, 5)),
    Network("prelu of its own class", lambda: seq(nn.Linear(6, 8), OwnPReLU(), nn.Linear(8, 3)), (6,), functional=("1.weight",)),
    Network("bare parameters", Bare, (6,)),
    Network("weight norm", lambda: seq(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3)), (6,),
            functional=("0.parametrizations.weight.original0", "0.parametrizations.weight.original1"),
            device_gap=1e-7),  # its fused kernel divides in float32 on a GPU
    Network("dict input", Pair, draw=lambda n: {"image": torch.randn(n, 6), "tag": torch.randint(0, 5, (n,))}),
    Network("wrn", lambda: WideResNet(layers=2, blocks=1, widen=1, channels=1, classes=4), (1, 8, 8)),
    Network("resnet18", lambda: resnet18(channels=3, classes=5, width=8), (3, 8, 8)),
]  # fmt: skip
