"""The loss-prediction module of LL4AL (Yoo and Kweon 2019, arXiv 1905.03677), on named layers of any network."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from foretaste.network._names import known, positive
from foretaste.network._train import CHUNK

Layers = Sequence[str] | Mapping[str, int]

# Where the channels of three and more dimensions stand; a dict of layers tells it of any other module.
FIRST = ("Conv", "BatchNorm", "InstanceNorm", "GroupNorm", "MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool")
LAST = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.TransformerEncoder, nn.TransformerEncoderLayer)


class LossPrediction(nn.Module):
    """l̂(x) = w · [relu(W_k h_k(x) + b_k)]_k + b, h_k the features of a layer, averaged over space or sequence.

    ``layers``: name of each layer, and the dimension its channels stand in where that was told. It holds no network.
    """

    def __init__(self, layers: Layers, widths: Sequence[int], hidden: int = 128) -> None:
        super().__init__()
        positive(hidden=hidden)
        self.layers = axes_of(layers)
        self.read = nn.ModuleList(nn.Linear(width, hidden) for width in widths)
        self.score = nn.Linear(hidden * len(widths), 1)

    def forward(self, h: Sequence[Tensor]) -> Tensor:
        """(n,) predicted losses, of features (n, width_k) in the order of ``layers``."""
        return self.score(torch.cat([F.relu(read(h_k)) for read, h_k in zip(self.read, h)], 1))[:, 0]


def ranking_loss(guess_n: Tensor, loss_n: Tensor, margin: float = 1.0) -> Tensor:
    """Mean over pairs of max(0, −sign(l_i − l_j) (l̂_i − l̂_j) + ξ), the paper's Eq. 2, sign(0) being −1.

    Pairs are neighbours, (0, 1), (2, 3), ...: batches come shuffled. The last of an odd number has no partner.
    """
    even = len(loss_n) // 2 * 2
    (i, j), (l_i, l_j) = (t[:even].view(-1, 2).unbind(1) for t in (guess_n, loss_n))
    sign = torch.where(l_i > l_j, 1.0, -1.0).to(guess_n.dtype)
    return F.relu(margin - sign * (i - j)).mean()


def axes_of(layers: Layers) -> dict[str, int | None]:
    if isinstance(layers, str) or not isinstance(layers, (Sequence, Mapping)) or not layers:
        raise ValueError(
            f"layers is {layers!r}; expected names of submodules, as ['stages.0', 'tail'], at least one, "
            "or a dict {name: dimension of its channels}"
        )
    if len(set(layers)) != len(layers):
        raise ValueError(f"layers names one twice: {', '.join(layers)}")
    return dict(layers) if isinstance(layers, Mapping) else dict.fromkeys(layers)


def check_layers(net: nn.Module, layers: Layers) -> None:
    names = [name for name, _ in net.named_modules() if name]
    for name in axes_of(layers):
        known("feature layer", name, names)


@contextmanager
def features(net: nn.Module, axes: Mapping[str, int | None]) -> Iterator[dict[str, Tensor]]:
    """One pass of ``net`` within leaves the layers' pooled outputs; the hooks are gone afterwards."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, axis: int | None) -> Any:
        def hook(module: nn.Module, args: Any, out: Any) -> None:
            if name in seen:
                raise ValueError(f"feature layer {name!r} is called more than once in a pass; name one called once")
            # At once, and never the output itself: an in-place activation may follow.
            seen[name] = pooled(name, module, out, axis)

        return hook

    handles = []
    try:
        for name, axis in axes.items():
            handles.append(net.get_submodule(name).register_forward_hook(keep(name, axis)))
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def in_order(seen: Mapping[str, Tensor], axes: Mapping[str, int | None]) -> list[Tensor]:
    if unseen := [name for name in axes if name not in seen]:
        raise ValueError(f"feature layer {unseen[0]!r} is never called in a pass of the network; name one that is")
    return [seen[name] for name in axes]


def pooled(name: str, module: nn.Module, out: Any, axis: int | None) -> Tensor:
    """(n, channels): the mean over all other dimensions."""
    if not isinstance(out, Tensor) or not out.is_floating_point() or out.dim() < 2:
        what = f"{out.dtype} {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise ValueError(f"feature layer {name!r} gives {what}; expected a floating tensor (n, channels, ...)")
    if out.dim() == 2:
        return out.clone()
    if axis is None:
        if isinstance(module, LAST):
            axis = -1
        elif out.dim() > 3 or type(module).__name__.startswith(FIRST):
            axis = 1
        else:
            raise ValueError(
                f"feature layer {name!r}, a {type(module).__name__}, gives {tuple(out.shape)}: channels may come first "
                f"or last; tell with layers={{{name!r}: 1}} or {{{name!r}: -1}}"
            )
    return out.movedim(axis, 1).flatten(2).mean(2)


@torch.no_grad()
def read_features(net: nn.Module, x: Tensor | Mapping[str, Tensor], layers: Layers) -> tuple[Tensor, list[Tensor]]:
    """Outputs (N, C) and features of every point, in eval mode; nothing of the network or of torch's RNG changes."""
    axes = axes_of(layers)
    check_layers(net, axes)  # type: ignore[arg-type]
    if any(m.training for m in net.modules()):
        raise ValueError("net is in train mode; call net.eval() first")
    device = next(net.parameters()).device
    N = len(x if isinstance(x, Tensor) else next(iter(x.values())))
    f, h = [], []
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.autocast(device.type, enabled=False):
        for start in range(0, N, CHUNK):
            at = slice(start, start + CHUNK)
            args, named = ((x[at],), {}) if isinstance(x, Tensor) else ((), {k: v[at] for k, v in x.items()})
            with features(net, axes) as seen:
                f.append(functional_call(net, {k: b.clone() for k, b in net.named_buffers()}, args, named))
            h.append(in_order(seen, axes))
    return torch.cat(f), [torch.cat(parts) for parts in zip(*h)]


def predict_losses(net: nn.Module, module: LossPrediction, x: Tensor | Mapping[str, Tensor]) -> Tensor:
    """(N,) predicted losses in float64; their order is what was learned, not their size. NaN raises."""
    f_NC, h = read_features(net, x, module.layers)  # type: ignore[arg-type]
    if (got := [t.shape[1] for t in h]) != (want := [read.in_features for read in module.read]):
        raise ValueError(f"layers {', '.join(module.layers)} have widths {got}; the module was trained on {want}")
    with torch.no_grad(), torch.autocast(h[0].device.type, enabled=False):
        guess_N = module(h)
    for what, values in (("outputs of net", f_NC.flatten(1)), ("predicted losses", guess_N[:, None])):
        if not (fine := torch.isfinite(values).all(1)).all():
            first = int((~fine).nonzero()[0])
            raise ValueError(f"{what} are NaN or infinite for {int((~fine).sum())} points, first at {first}")
    return guess_N.cpu().double() if guess_N.device.type == "mps" else guess_N.double()
