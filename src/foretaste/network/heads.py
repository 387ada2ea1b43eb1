"""Heads: a small network on features that are already computed, with its inputs scaled inside."""

import math

import torch
from torch import Tensor, nn

from foretaste.errors import whole_number
from foretaste.network.models import MLP

MEASURED_ROWS = 4096  # at once, in float64


class InputScale(nn.Module):
    """length · (x − mean) / deviation / √D: each row has about that length. Nothing in it is trained."""

    def __init__(self, mean_D: Tensor, deviation_D: Tensor, length: float = 1.0) -> None:
        super().__init__()
        self.mean_D: Tensor
        self.scale_D: Tensor
        self.register_buffer("mean_D", mean_D)
        self.register_buffer("scale_D", length / (deviation_D * math.sqrt(len(deviation_D))))

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) - self.mean_D) * self.scale_D


def make_head(features: "Tensor | int", classes: int, *, hidden: "int | None" = 512) -> nn.Module:
    """Make a head for features: an MLP with one hidden layer, or a linear layer, its inputs scaled inside.

    Features of a backbone may have any size. The head standardises each column and divides a row by √D (by √D / 2 for a
    linear head of several outputs). ``ft.fit`` then trains it to interpolation with its default learning rate, on L2 or
    cross-entropy.

    Args:
        features: (N, D) floats whose columns are measured: the pool and the labelled points, without their labels. Or
            the number of columns D: they are then taken to have mean 0 and deviation 1.
        classes: outputs.
        hidden: width of the hidden layer, default 512; None makes the head linear.

    Returns:
        A torch module, (n, D) to (n, classes). Its weights are drawn from torch's generator: seed it first.

    Raises:
        ValueError: features are not finite (N, D) floats, or a number is not a whole one.

    Example:
        >>> import torch, foretaste as ft
        >>> from foretaste.network import make_head
        >>> _ = torch.manual_seed(0)
        >>> x, y = 100 + 30 * torch.randn(20, 64), torch.arange(20) % 4  # as a backbone may give them
        >>> ft.fit(make_head(x, 4), x, y).interpolates
        True
    """
    classes = whole_number("classes", classes, 1)
    if isinstance(features, Tensor):
        mean_D, deviation_D = column_moments(features)
    else:
        D = whole_number("features", features, 1)
        mean_D, deviation_D = torch.zeros(D), torch.ones(D)
    layers = () if hidden is None else (whole_number("hidden", hidden, 1),)
    net = MLP(len(mean_D), layers, classes)
    # A linear layer on rows of length one is too slow for the default number of steps: with 100 images of CIFAR10 and
    # cross-entropy the residual was 4e-3, of length two 2e-4. One output has the steepest squared loss, and keeps one.
    scale = InputScale(mean_D, deviation_D, 2.0 if hidden is None and classes > 1 else 1.0)
    if isinstance(features, Tensor):
        net, scale = net.to(features.device), scale.to(features.device)
    return nn.Sequential(scale, net)


def column_moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each column, in float64 and in pieces. A column that never varies has deviation 1."""
    if features.dim() != 2 or not features.is_floating_point() or not len(features):
        raise ValueError(f"features are {features.dtype} {tuple(features.shape)}; expected floats (N, D)")
    parts = features.split(MEASURED_ROWS)
    zero_D = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    mean_D = sum((part.double().sum(0) for part in parts), zero_D) / len(features)
    if not torch.isfinite(mean_D).all():
        raise ValueError("features have NaN or infinite values")
    squares_D = sum(((part.double() - mean_D).square().sum(0) for part in parts), zero_D)
    deviation_D = (squares_D / len(features)).sqrt()
    # A column of one value leaves rounding, which must not be scaled up.
    still = deviation_D <= 1e-6 * mean_D.abs()
    return mean_D.float(), torch.where(still | (deviation_D == 0), 1.0, deviation_D).float()
