"""LL4AL's module for a network already trained: the ranking loss on features that no longer change."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foretaste.network._checks import check_points, lengths
from foretaste.network._ll4al import TOP_LR, check_numbers, point_losses, seeds
from foretaste.network._loss_prediction import Layers, LossPrediction, ranking_loss, read_features
from foretaste.network._names import known
from foretaste.network._reset import seeded
from foretaste.network._targets import Targets, targets
from foretaste.network._train import Recipe, train


@dataclass(frozen=True)
class Order(Targets):
    """The ranking loss alone: ``fit_N`` are the losses that the frozen network has, outputs l̂ (n, 1)."""

    margin: float = 1.0

    def of(self, f_nC: Tensor, fit_n: Tensor) -> Tensor:
        return ranking_loss(f_nC[:, 0], fit_n, self.margin)


class Alone(nn.Module):
    """The module on the features of all layers in one row each."""

    def __init__(self, module: LossPrediction, widths: list[int]) -> None:
        super().__init__()
        self.module, self.widths = module, widths

    def forward(self, h_nD: Tensor) -> Tensor:
        return self.module(h_nD.split(self.widths, 1))[:, None]


def fit_ll4al_alone(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    layers: Layers,
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
    known("loss", loss, TOP_LR)
    p = next(net.parameters(), None)
    if p is None or p.dtype not in (torch.float32, torch.float64):
        came = "no parameters" if p is None else f"parameters in {p.dtype}"
        raise ValueError(f"net has {came}; expected a network in float32 or float64")
    device, dtype = p.device, p.dtype
    check_points(x, device, dtype, None, None)
    size, count = lengths(nn.Identity(), len(x), batch_size, steps, None)
    check_numbers(max_lr, 0.0, 0, 1.0, margin, 0.0)
    if len(x) < 2 or size < 2:
        raise ValueError(f"LL4AL learns from pairs; {len(x)} points in batches of {size} came, expected at least 2")
    f_NC, h = read_features(net, x, layers)
    if not (fine := torch.isfinite(f_NC).flatten(1).all(1)).all():
        raise ValueError(f"net returns NaN or infinite outputs, first at point {int((~fine).nonzero()[0])} of x")
    goal = targets(y, loss, len(x), f_NC.shape[1], device, dtype)
    loss_N = point_losses(f_NC, goal.fit_N, loss, "mean")
    widths = [t.shape[1] for t in h]
    how = Recipe(count, size, float(max_lr), 0.0, None, 0, None, dtype)
    module_seed, order_seed, draw_seed = seeds(seed, 3)
    with seeded(module_seed, device):
        module = LossPrediction(layers, widths, hidden).to(device, dtype)
        order = Order(loss, loss_N, goal.t_NC, goal.classes, float(margin))
        train(Alone(module, widths), torch.cat(h, 1), order, how, order_seed, draw_seed, None)
    return module.eval()
