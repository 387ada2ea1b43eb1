"""LL4AL (Yoo and Kweon 2019, arXiv 1905.03677): a module beside the network learns to predict its loss."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from foretaste.errors import check_counts, check_known, counted, real_number
from foretaste.losses import TrainingTargets, find_loss, training_targets
from foretaste.network.fit import (
    Aim,
    Fit,
    check_one_tensor,
    check_trainable,
    check_training_points,
    count_outputs,
    draw_seeds,
    make_recipe,
    run_training,
    training_length,
)
from foretaste.network.sgd import (
    FORWARD_CHUNK,
    PixelNormalise,
    TrainingProgress,
    TrainingRecipe,
    seeded,
    train_eager,
    with_lower_rates,
)

FeatureLayers = Sequence[str] | Mapping[str, int | None]

# Where the channels of three and more dimensions stand; a dict of layers tells it of any other module.
CHANNELS_FIRST = (
    "Conv",
    "BatchNorm",
    "InstanceNorm",
    "GroupNorm",
    "MaxPool",
    "AvgPool",
    "AdaptiveMaxPool",
    "AdaptiveAvgPool",
)
CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.TransformerEncoder, nn.TransformerEncoderLayer)


class LossPrediction(nn.Module):
    """l̂(x) = w · [relu(W_k h_k(x) + b_k)]_k + b, h_k the features of a layer, averaged over space or sequence.

    ``layers``: the name of each layer and the dimension of its channels, None if not given. It holds no network.
    """

    def __init__(self, layers: FeatureLayers, widths: Sequence[int], hidden: int = 128) -> None:
        super().__init__()
        check_counts(hidden=hidden)
        self.layers = channel_axes(layers)
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


@dataclass(frozen=True)
class RankedTargets(TrainingTargets):
    """The joint loss, (1/n) Σ l + weight · (2/n) Σ over pairs of the ranking loss; outputs are [f, l̂], (n, C + 1)."""

    reduction: str = "mean"
    weight: float = 1.0
    margin: float = 1.0

    def of(self, f_nC: Tensor, fit_n: Tensor) -> Tensor:
        loss_n = self.criterion.point_values(f_nC[:, :-1], fit_n, self.reduction)
        return loss_n.mean() + self.weight * ranking_loss(f_nC[:, -1], loss_n.detach(), self.margin)


@dataclass(frozen=True)
class OrderTargets(TrainingTargets):
    """The ranking loss alone: ``fit_N`` are the losses that the frozen network has, outputs l̂ (n, 1)."""

    margin: float = 1.0

    def of(self, f_nC: Tensor, fit_n: Tensor) -> Tensor:
        return ranking_loss(f_nC[:, 0], fit_n, self.margin)


class JointNetwork(nn.Module):
    """[f(x), l̂(x)], (n, C + 1); after ``stop`` passes the module's gradient no longer reaches the network.

    Passes are counted on the device: a CUDA graph repeats what one pass did, and the host takes no part in it.
    """

    passes: Tensor

    def __init__(self, net: nn.Module, module: LossPrediction, stop: int) -> None:
        super().__init__()
        self.net, self.module, self.stop = net, module, stop
        device = module.score.weight.device
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64, device=device))

    def forward(self, x: Tensor) -> Tensor:
        f_nC, h = call_with_features(self.net, self.module.layers, lambda: self.net(x))
        still = self.passes < self.stop
        guess_n = self.module([GradientGate.apply(h_k, still) for h_k in h])
        self.passes.add_(1)
        return torch.cat([f_nC, guess_n[:, None]], 1)


class GradientGate(torch.autograd.Function):
    """h as it is; its gradient passes only if ``still``, a tensor of one truth value, is true."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, still: Tensor) -> Tensor:
        ctx.save_for_backward(still)
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (still,) = ctx.saved_tensors
        return torch.where(still, g, torch.zeros_like(g)), None


class AloneNetwork(nn.Module):
    """The module on the features of all layers in one row each."""

    def __init__(self, module: LossPrediction, widths: list[int]) -> None:
        super().__init__()
        self.module, self.widths = module, widths

    def forward(self, h_nD: Tensor) -> Tensor:
        return self.module(h_nD.split(self.widths, 1))[:, None]


def fit_ll4al(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    layers: FeatureLayers,
    loss: str = "l2",
    reduction: str = "mean",
    weight: float = 1.0,
    margin: float = 1.0,
    stop: float = 0.6,
    hidden: int = 128,
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int = 32,
    max_lr: float | None = None,
    weight_decay: float = 0.0,
    augment: str | None = None,
    pad: int = 4,
    start: str = "warm",
    statistics: str = "labelled",
    normalise: PixelNormalise | None = None,
    seed: int = 0,
    fast: str = "auto",
    progress: TrainingProgress | None = None,
) -> tuple[Fit, LossPrediction]:
    """Train ``net`` in place as ``fit`` does, and a new loss-prediction module beside it.

    With weight=0 and reduction="mean" the network is the one that ``fit`` trains: initial weights and batches depend on
    the seed in the same way. Both are trained by one-cycle SGD, instead of the paper's two steps of the learning rate.

    Args:
        net: the network, trained in place.
        x: (N, ...) labelled points.
        y: (N,) class ids, or float targets.
        layers: names of submodules whose outputs the module reads, each called once in a pass. Or
            {name: dimension of its channels}, where the outputs are sequences.
        loss: "l2" (default) or "ce".
        reduction: "mean" (default) over classes is the L2 loss of every other method here. "sum" is that of the paper's
            released code: C times the gradient at the same learning rate. Cross-entropy has neither.
        weight: λ, the weight of the ranking loss.
        margin: ξ, the margin of the ranking loss.
        stop: the share of the steps after which the module's gradient no longer reaches the network. The paper has 120
            of 200 epochs.
        hidden: the width of the module.
        max_lr: None (default): 0.05 for "l2" and 0.1 for "ce". The ranking loss is of the order of ξ, however small the
            other is: at the 0.5 of ``fit`` it ruins the network (accuracy 9 % instead of 90, digits, 100 labels).
        steps, epochs, batch_size, weight_decay, augment, pad: as in ``fit``.
        start, statistics, normalise, seed, fast, progress: as in ``fit``.

    Returns:
        A ``Fit``, whose loss includes the ranking loss, and the module.

    Raises:
        ValueError: an argument does not fit the network.
        Diverged: the loss became NaN or infinite at this learning rate and at a half, a quarter and an eighth of it.

    Example:
        >>> from foretaste.network import MLP, fit_ll4al
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> done, module = fit_ll4al(MLP(4, (16,), 2), x, y, layers=["layers.0"], steps=20)
        >>> done.steps
        20
    """
    criterion = find_loss(loss)
    check_known("reduction", reduction, ("sum", "mean"))
    check_trainable(net)
    check_one_tensor(x, "LL4AL")
    how = make_recipe(
        net, x, max_lr=criterion.ll4al_max_lr if max_lr is None else max_lr, steps=steps, epochs=epochs,
        batch_size=batch_size, weight_decay=weight_decay, augment=augment, pad=pad, start=start, statistics=statistics,
        normalise=normalise, seed=seed, progress=progress, fast=fast,
    )  # fmt: skip
    check_layers(net, layers)
    check_ranking(len(x), how.batch_size, weight, margin, stop)
    if not criterion.quadratic and reduction == "sum":
        raise ValueError('reduction="sum" is of the L2 loss over classes; cross-entropy has one value a point')
    module_seed = draw_seeds(seed, 4)[-1]

    def aim() -> Aim:
        return net, training_targets(y, loss, len(x), count_outputs(net, x, how), x.device, how.dtype)

    def beside(of_net: Aim) -> Aim:
        goal = of_net[1]
        with seeded(module_seed, x.device):
            widths = [t.shape[1] for t in read_features(net, how.feed(x[:2]), layers)[1]]
            module = LossPrediction(layers, widths, hidden).to(x.device, how.dtype)
        ranked = RankedTargets(**vars(goal), reduction=reduction, weight=float(weight), margin=float(margin))
        return JointNetwork(net, module, round(stop * how.steps)), ranked

    done, joint = run_training(net, x, how, aim, beside)
    return done, joint.module  # type: ignore[return-value]


def fit_ll4al_alone(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    layers: FeatureLayers,
    loss: str = "l2",
    margin: float = 1.0,
    hidden: int = 128,
    steps: int = 600,
    batch_size: int = 32,
    max_lr: float = 0.05,
    seed: int = 0,
) -> LossPrediction:
    """A loss-prediction module for a network already trained, which stays as it is. Not the paper's method.

    Beside the network, the module sees losses fall as training goes; here it only sees what is left of them. On digits
    (MLP, 100 labels, two seeds) its ranking of held-out losses was within 0.1 of the other's. Of a network that
    interpolates L, by the L2 loss, neither has anything to learn from: Spearman −0.4 to 0.2 there.
    """
    criterion = find_loss(loss)
    p = next(net.parameters(), None)
    if p is None or p.dtype not in (torch.float32, torch.float64):
        came = "no parameters" if p is None else f"parameters in {p.dtype}"
        raise ValueError(f"net has {came}; expected a network in float32 or float64")
    check_one_tensor(x, "LL4AL")
    device, dtype = x.device, check_training_points(net, x)
    size, count = training_length(nn.Identity(), len(x), batch_size, steps, None)
    check_ranking(len(x), size, 1.0, margin, 0.0)
    f_NC, h = read_features(net, x, layers)
    if not (fine := torch.isfinite(f_NC).flatten(1).all(1)).all():
        raise ValueError(f"net returns NaN or infinite outputs, first at point {int((~fine).nonzero()[0])} of x")
    goal = training_targets(y, loss, len(x), f_NC.shape[1], device, dtype)
    loss_N = criterion.point_values(f_NC, goal.fit_N)
    widths = [t.shape[1] for t in h]
    module_seed, order_seed, _ = draw_seeds(seed, 3)
    how = TrainingRecipe(count, size, max_lr, 0.0, None, 0, None, dtype, order_seed=order_seed)

    def train(how: TrainingRecipe, may_die: bool) -> LossPrediction:
        with seeded(module_seed, device):
            module = LossPrediction(layers, widths, hidden).to(device, dtype)
            order = OrderTargets(loss, loss_N, goal.t_NC, goal.classes, float(margin))
            train_eager(AloneNetwork(module, widths), torch.cat(h, 1), order, how)
        return module.eval()

    return with_lower_rates(train, how)[0]


def check_ranking(n: int, batch_size: int, weight: float, margin: float, stop: float) -> None:
    real_number("weight", weight, 0)
    real_number("margin", margin, 0, above=True)
    if real_number("stop", stop, 0) > 1:
        raise ValueError(f"stop is {stop}; expected a share of the steps, from 0 to 1")
    if n < 2 or batch_size < 2:
        raise ValueError(f"LL4AL learns from pairs; {n} points in batches of {batch_size} came, expected at least 2")


def predict_losses(net: nn.Module, module: LossPrediction, x: Tensor | Mapping[str, Tensor]) -> Tensor:
    """(N,) predicted losses in float64; their order is what was learned, not their size. NaN raises."""
    f_NC, h = read_features(net, x, module.layers)
    if (got := [t.shape[1] for t in h]) != (want := [read.in_features for read in module.read]):
        raise ValueError(f"layers {', '.join(module.layers)} have widths {got}; the module was trained on {want}")
    with torch.no_grad(), torch.autocast(h[0].device.type, enabled=False):
        guess_N = module(h)
    for what, values in (("outputs of net", f_NC.flatten(1)), ("predicted losses", guess_N[:, None])):
        if not (fine := torch.isfinite(values).all(1)).all():
            first = int((~fine).nonzero()[0])
            raise ValueError(f"{what} are NaN or infinite for {counted(int((~fine).sum()), 'point')}, first at {first}")
    return guess_N.cpu().double() if guess_N.device.type == "mps" else guess_N.double()


# Features of named layers.


@torch.no_grad()
def read_features(
    net: nn.Module, x: Tensor | Mapping[str, Tensor], layers: FeatureLayers
) -> tuple[Tensor, list[Tensor]]:
    """Outputs (N, C) and features of every point, in eval mode; nothing of the network or of torch's RNG changes."""
    axes = check_layers(net, layers)
    if any(m.training for m in net.modules()):
        raise ValueError("net is in train mode; call net.eval() first")
    device = next(net.parameters()).device
    N = len(x if isinstance(x, Tensor) else next(iter(x.values())))
    f, h = [], []
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.autocast(device.type, enabled=False):
        for start in range(0, N, FORWARD_CHUNK):
            at = slice(start, start + FORWARD_CHUNK)
            args, named = ((x[at],), {}) if isinstance(x, Tensor) else ((), {k: v[at] for k, v in x.items()})
            buffers = {k: b.clone() for k, b in net.named_buffers()}
            f_nC, h_n = call_with_features(net, axes, partial(functional_call, net, buffers, args, named))
            f.append(f_nC)
            h.append(h_n)
    return torch.cat(f), [torch.cat(parts) for parts in zip(*h)]


def call_with_features(
    net: nn.Module, axes: Mapping[str, int | None], call: Callable[[], Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """What ``call``, one pass of ``net``, returns, and the pooled outputs of the layers in that pass."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, args: Any, out: Any) -> None:
        if name in seen:
            raise ValueError(f"feature layer {name!r} is called more than once in a pass; name one called once")
        # At once, and never the output itself: an in-place activation may follow.
        seen[name] = pool_features(name, module, out, axes[name])

    with ExitStack() as hooks:
        for name in axes:
            hooks.enter_context(net.get_submodule(name).register_forward_hook(partial(keep, name)))
        f_nC = call()
    if unseen := [name for name in axes if name not in seen]:
        raise ValueError(f"feature layer {unseen[0]!r} is never called in a pass of the network; name one that is")
    return f_nC, [seen[name] for name in axes]


def pool_features(name: str, module: nn.Module, out: Any, axis: int | None) -> Tensor:
    """(n, channels): the mean over all other dimensions."""
    if not isinstance(out, Tensor) or not out.is_floating_point() or out.dim() < 2:
        what = f"{out.dtype} {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise ValueError(f"feature layer {name!r} gives {what}; expected a floating tensor (n, channels, ...)")
    if out.dim() == 2:
        return out.clone()
    if axis is None:
        if isinstance(module, CHANNELS_LAST):
            axis = -1
        elif out.dim() > 3 or type(module).__name__.startswith(CHANNELS_FIRST):
            axis = 1
        else:
            raise ValueError(
                f"feature layer {name!r}, a {type(module).__name__}, gives {tuple(out.shape)}: channels may come first "
                f"or last; tell with layers={{{name!r}: 1}} or {{{name!r}: -1}}"
            )
    return out.movedim(axis, 1).flatten(2).mean(2)


def channel_axes(layers: FeatureLayers) -> dict[str, int | None]:
    if isinstance(layers, str) or not isinstance(layers, (Sequence, Mapping)) or not layers:
        raise ValueError(
            f"layers is {layers!r}; expected names of submodules, as ['stages.0', 'tail'], at least one, "
            "or a dict {name: dimension of its channels}"
        )
    if len(set(layers)) != len(layers):
        raise ValueError(f"layers names one twice: {', '.join(layers)}")
    return dict(layers) if isinstance(layers, Mapping) else dict.fromkeys(layers)


def check_layers(net: nn.Module, layers: FeatureLayers) -> dict[str, int | None]:
    """``channel_axes``. Raises for a layer that the network does not have."""
    names = [name for name, _ in net.named_modules() if name]
    for name in (axes := channel_axes(layers)):
        check_known("feature layer", name, names)
    return axes
