"""LL4AL's training (Yoo and Kweon 2019, arXiv 1905.03677, §3): network and loss-prediction module side by side."""

import math
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from foretaste.network._checks import check_net, check_points, lengths
from foretaste.network._fit import INTERPOLATES, Fit, measure, outputs, restored_on_error
from foretaste.network._loss_prediction import (
    Layers,
    LossPrediction,
    check_layers,
    features,
    in_order,
    ranking_loss,
    read_features,
)
from foretaste.network._names import known
from foretaste.network._pixels import Normalise
from foretaste.network._reset import reset, seeded
from foretaste.network._targets import Targets, targets
from foretaste.network._train import Progress, Recipe, diverged, reestimate, train

REDUCTIONS = ("sum", "mean")
# With fit's 0.5 for L2 the ranking loss leaves an MLP on 100 digits at chance, with 0.05 one or two points below fit.
TOP_LR = {"l2": 0.05, "ce": 0.1}


def point_losses(f_nC: Tensor, fit_n: Tensor, loss: str, reduction: str) -> Tensor:
    """(n,): the L2 loss of each point, its sum or mean over classes; cross-entropy has one value a point."""
    if loss == "ce":
        return F.cross_entropy(f_nC, fit_n, reduction="none")
    square_nC = (f_nC - fit_n).square()
    return square_nC.sum(1) if reduction == "sum" else square_nC.mean(1)


@dataclass(frozen=True)
class Ranked(Targets):
    """The joint loss, (1/n) Σ l + weight · (2/n) Σ over pairs of the ranking loss; outputs are [f, l̂], (n, C + 1)."""

    reduction: str = "mean"
    weight: float = 1.0
    margin: float = 1.0

    def of(self, f_nC: Tensor, fit_n: Tensor) -> Tensor:
        loss_n = point_losses(f_nC[:, :-1], fit_n, self.loss, self.reduction)
        return loss_n.mean() + self.weight * ranking_loss(f_nC[:, -1], loss_n.detach(), self.margin)


class Joint(nn.Module):
    """[f(x), l̂(x)], (n, C + 1); after ``stop`` passes the module's gradient no longer reaches the network."""

    def __init__(self, net: nn.Module, module: LossPrediction, stop: int) -> None:
        super().__init__()
        self.net, self.module, self.stop, self.passes = net, module, stop, 0

    def forward(self, x: Tensor) -> Tensor:
        with features(self.net, self.module.layers) as seen:
            f_nC = self.net(x)
        h = in_order(seen, self.module.layers)
        guess_n = self.module([t.detach() for t in h] if self.passes >= self.stop else h)
        self.passes += 1
        return torch.cat([f_nC, guess_n[:, None]], 1)


def fit_ll4al(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    layers: Layers,
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
    normalise: Normalise | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Fit, LossPrediction]:
    """Train ``net`` in place as ``fit`` does, and a new loss-prediction module beside it; (what ``fit`` tells, module).

    layers: names of submodules whose outputs the module reads, each called once in a pass, or {name: dimension of its
        channels} where the outputs are sequences.
    reduction: "mean" over classes, the L2 loss of every other method here, or "sum", the released code's for LL4AL: C
        times the gradient at the same learning rate. Cross-entropy has neither.
    weight, margin: λ and ξ. hidden: the module's width. stop: the share of the steps after which the module's gradient
        no longer reaches the network; 120 of 200 epochs in the paper.
    max_lr: None is 0.05 for L2 and 0.1 for CE. The ranking loss is of order ξ however small the others are: at the
        0.5 of ``fit`` it ruins the network (accuracy 9 % where fit has 90, digits, 100 labels).

    The rest, and the network's initial weights and batches for a seed, are those of ``fit``: with weight=0 and
    reduction="mean" it trains the same network. One-cycle SGD for both instead of the paper's two steps of the learning
    rate. ``Fit.loss`` has the ranking loss in it.
    """
    began = time.perf_counter()
    known("loss", loss, TOP_LR)
    known("start", start, ("warm", "cold"))
    known("statistics", statistics, ("running", "labelled"))
    known("reduction", reduction, REDUCTIONS)
    device, dtype = check_net(net)
    check_points(x, device, dtype, augment, normalise)
    check_layers(net, layers)
    size, count = lengths(net, len(x), batch_size, steps, epochs)
    top = TOP_LR[loss] if max_lr is None else max_lr
    check_numbers(top, weight_decay, pad, weight, margin, stop)
    if loss == "ce" and reduction == "sum":
        raise ValueError('reduction="sum" is of the L2 loss over classes; cross-entropy has one value a point')
    if len(x) < 2 or size < 2:
        raise ValueError(f"LL4AL learns from pairs; {len(x)} points in batches of {size} came, expected at least 2")
    how = Recipe(count, size, float(top), float(weight_decay), augment, pad, normalise, dtype)
    # The first three are those of fit.
    init_seed, order_seed, draw_seed, module_seed = seeds(seed, 4)
    with restored_on_error(net), seeded(init_seed, device):
        if start == "cold":
            reset(net)
        goal = targets(y, loss, len(x), outputs(net, x, how), device, dtype)
        with seeded(module_seed, device):
            widths = [t.shape[1] for t in read_features(net, how.feed(x[:2]), layers)[1]]
            module = LossPrediction(layers, widths, hidden).to(device, dtype)
        ranked = Ranked(goal.loss, goal.fit_N, goal.t_NC, goal.classes, reduction, float(weight), float(margin))
        final = train(Joint(net, module, round(stop * count)), x, ranked, how, order_seed, draw_seed, progress)
        if statistics == "labelled":
            reestimate(net, x, how, Generator().manual_seed(draw_seed))
        net.eval()
        module.eval()
        residual, accuracy = measure(net, x, goal, how)
        if not math.isfinite(residual):
            raise diverged(f"the residual is {residual}", how)
    seconds = time.perf_counter() - began
    return Fit(residual, final, accuracy, seconds, count, residual <= INTERPOLATES * goal.scale()), module


def seeds(seed: int, n: int) -> list[int]:
    return torch.randint(2**62, (n,), generator=Generator().manual_seed(seed)).tolist()


def check_numbers(max_lr: float, weight_decay: float, pad: int, weight: float, margin: float, stop: float) -> None:
    if not (max_lr > 0 and math.isfinite(max_lr)) or not weight_decay >= 0 or pad < 0:
        raise ValueError(
            f"max_lr={max_lr!r}, weight_decay={weight_decay!r}, pad={pad!r}; expected max_lr above 0, the others at "
            "least 0"
        )
    if not (0 <= weight < math.inf and 0 < margin < math.inf and 0 <= stop <= 1):
        raise ValueError(
            f"weight={weight!r}, margin={margin!r}, stop={stop!r}; expected weight of at least 0, margin above 0, "
            "stop from 0 to 1, a share of the steps"
        )
