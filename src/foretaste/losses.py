"""The losses a network can be trained with: squared (L2) and cross-entropy (CE).

Everything that depends on the loss is a method of ``Loss``: a third loss is one more class in ``LOSSES``. Only a loss
that is neither quadratic nor a softmax's also needs a solver beside lookahead/cross_entropy.py.

f are a network's outputs, t the targets: 0/1 rows of class ids, or the numbers given.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretaste.errors import check_known


class Loss(ABC):
    """What training, look-ahead and scores ask of a loss. It has no state: ``LOSSES`` has one of each."""

    name: ClassVar[str]  # as in loss="l2"
    title: ClassVar[str]  # in a sentence
    max_lr: ClassVar[float]  # of ``ft.fit``
    ll4al_max_lr: ClassVar[float]  # of ``fit_ll4al``
    quadratic: ClassVar[bool]  # look-ahead is the linear solve of Eq. 12; otherwise damped Newton

    @abstractmethod
    def value(self, f_nC: Tensor, t_n: Tensor) -> Tensor:
        """The training loss of a batch; L2 is averaged over points and classes."""

    @abstractmethod
    def slope(self, f_nC: Tensor, t_n: Tensor) -> Tensor:
        """∂value/∂f, (n, C)."""

    @abstractmethod
    def point_values(self, f_nC: Tensor, t_n: Tensor, reduction: str = "mean") -> Tensor:
        """(n,): the loss of each point. reduction: "mean" or "sum" over classes, of the squared loss."""

    @abstractmethod
    def soft_value(self, f_nC: Tensor, t_nC: Tensor) -> Tensor:
        """``value`` for targets (n, C), written so that torch.func can batch it."""

    @abstractmethod
    def class_probabilities(self, f_NC: Tensor) -> Tensor:
        """(..., C): the probabilities of classes that outputs stand for."""

    @abstractmethod
    def responses(self, f_NC: Tensor) -> Tensor:
        """(..., C): outputs on the scale of the targets, on which residuals and changes are measured."""

    @abstractmethod
    def label_noise(self, f_NC: Tensor) -> Tensor | None:
        """(N,): what a label's own noise adds to Θ_jj, beside the ridge; None: nothing."""

    @abstractmethod
    def training_form(self, y_N: Tensor, t_NC: Tensor) -> Tensor:
        """What ``value`` takes for class ids y_N, whose 0/1 rows are t_NC."""

    @abstractmethod
    def accepts(self, t_NC: Tensor, tolerance: float) -> bool:
        """Whether float targets can be trained towards."""


class SquaredLoss(Loss):
    """‖f − t‖², averaged over points and classes; class ids are trained towards 0/1."""

    name = "l2"
    title = "squared loss"
    max_lr = 0.5
    ll4al_max_lr = 0.05
    quadratic = True

    def value(self, f_nC: Tensor, t_n: Tensor) -> Tensor:
        return F.mse_loss(f_nC, t_n)

    def slope(self, f_nC: Tensor, t_n: Tensor) -> Tensor:
        return (f_nC - t_n).mul_(2 / f_nC.numel())

    def point_values(self, f_nC: Tensor, t_n: Tensor, reduction: str = "mean") -> Tensor:
        square_nC = (f_nC - t_n).square()
        return square_nC.sum(1) if reduction == "sum" else square_nC.mean(1)

    def soft_value(self, f_nC: Tensor, t_nC: Tensor) -> Tensor:
        return (f_nC - t_nC).square().mean()

    def class_probabilities(self, f_NC: Tensor) -> Tensor:
        return simplex(f_NC)

    def responses(self, f_NC: Tensor) -> Tensor:
        return f_NC

    def label_noise(self, f_NC: Tensor) -> None:
        return None

    def training_form(self, y_N: Tensor, t_NC: Tensor) -> Tensor:
        return t_NC

    def accepts(self, t_NC: Tensor, tolerance: float) -> bool:
        return True


class CrossEntropy(Loss):
    """−Σ_c t_c log softmax(f)_c, averaged over points; t are class ids, or rows of probabilities."""

    name = "ce"
    title = "cross-entropy"
    max_lr = 0.1
    ll4al_max_lr = 0.1
    quadratic = False

    def value(self, f_nC: Tensor, t_n: Tensor) -> Tensor:
        return F.cross_entropy(f_nC, t_n)

    def slope(self, f_nC: Tensor, t_n: Tensor) -> Tensor:
        t_nC = F.one_hot(t_n, f_nC.shape[1]) if t_n.dim() == 1 else t_n
        return (f_nC.softmax(1) - t_nC).div_(len(f_nC))

    def point_values(self, f_nC: Tensor, t_n: Tensor, reduction: str = "mean") -> Tensor:
        return F.cross_entropy(f_nC, t_n, reduction="none")

    def soft_value(self, f_nC: Tensor, t_nC: Tensor) -> Tensor:
        return -(t_nC * f_nC.log_softmax(1)).sum(1).mean()

    def class_probabilities(self, f_NC: Tensor) -> Tensor:
        return torch.softmax(f_NC, -1)

    responses = class_probabilities

    def label_noise(self, f_NC: Tensor) -> Tensor:
        """1 / (p(1 − p)), p the largest probability: the inverse of the loss's curvature there (Laplace)."""
        p_N = torch.softmax(f_NC, 1).amax(1)
        return 1 / (p_N * (1 - p_N)).clamp_min(1e-12)

    def training_form(self, y_N: Tensor, t_NC: Tensor) -> Tensor:
        return y_N.long()

    def accepts(self, t_NC: Tensor, tolerance: float) -> bool:
        return t_NC.shape[1] > 1 and not bool((t_NC < 0).any() or ((t_NC.sum(1) - 1).abs() > tolerance).any())


LOSSES: dict[str, Loss] = {loss.name: loss for loss in (SquaredLoss(), CrossEntropy())}


def find_loss(name: str) -> Loss:
    """The loss of that name, as ``loss=`` takes it."""
    check_known("loss", name, LOSSES)
    return LOSSES[name]


def probabilities(f_NC: Tensor, loss: str) -> Tensor:
    """(..., C): softmax of logits for "ce"; for "l2" the nearest point of the simplex, for targets were 0/1."""
    criterion = find_loss(loss)
    if f_NC.shape[-1] < 2:
        raise ValueError("one output has no classes, so no probabilities; for regression use variance or change")
    return criterion.class_probabilities(f_NC)


def simplex(f_NC: Tensor) -> Tensor:
    """The Euclidean projection on the simplex, max(f − t, 0) with t such that the entries sum to 1.

    Over the sorted entries, t is (Σ of the k largest − 1) / k for the last k whose entry exceeds it.
    """
    k_C = torch.arange(1, f_NC.shape[-1] + 1, dtype=f_NC.dtype, device=f_NC.device)
    # The largest entry becomes 0. An added constant changes nothing, and large outputs lose no digits.
    f_NC = f_NC - f_NC.amax(-1, keepdim=True)
    sorted_NC = f_NC.sort(-1, descending=True).values
    t_NC = (sorted_NC.cumsum(-1) - 1) / k_C
    last_N1 = (sorted_NC > t_NC).sum(-1, keepdim=True) - 1
    return (f_NC - t_NC.gather(-1, last_N1)).clamp_min(0)


def sharpened(mean_NC: Tensor) -> Tensor:
    """Probabilities of kernel regression towards 0/1 targets: projected on the simplex, squared, of sum one.

    The mean of a regression with a ridge is too modest: squares are as well calibrated as a temperature that is fitted
    by leave-one-out, and need no labels for it (docs/pool.md).
    """
    p_NC = simplex(mean_NC).square()
    return p_NC / p_NC.sum(1, keepdim=True)


def shannon_entropy(p_NC: Tensor) -> Tensor:
    """H = −Σ p log p over the last dimension, (...)."""
    return torch.special.entr(p_NC).sum(-1)


@dataclass(frozen=True)
class TrainingTargets:
    """Checked labels of all points. ``fit_N`` is what the loss takes; ``t_NC`` are 0/1 rows, or the numbers given."""

    loss: str
    fit_N: Tensor
    t_NC: Tensor
    classes: bool

    @property
    def criterion(self) -> Loss:
        return LOSSES[self.loss]

    def of(self, f_nC: Tensor, fit_n: Tensor) -> Tensor:
        """The training loss of a batch."""
        return self.criterion.value(f_nC, fit_n)

    def with_soft(self, p_UC: Tensor) -> "TrainingTargets":
        """These and rows of probabilities after them."""
        t_NC = torch.cat([self.t_NC, p_UC.to(self.t_NC)])
        return TrainingTargets(self.loss, t_NC, t_NC, classes=True)

    def scale(self) -> float:
        """The variance of all targets: (1/C)(1 − 1/C) for classes. Equal targets: their mean square; zeros: 1."""
        return float(self.t_NC.var(correction=0)) or float(self.t_NC.square().mean()) or 1.0


def training_targets(
    y: Tensor, loss: str, n: int, outputs: int, device: torch.device, dtype: torch.dtype
) -> TrainingTargets:
    """Check the labels of n points for a network with that many outputs; raises a ValueError that says what to do."""
    if not isinstance(y, Tensor):
        raise TypeError(f"y is a {type(y).__name__}; expected a tensor of class ids or of targets")
    if y.device != device:
        raise ValueError(f"y is on {y.device} and the network on {device}; move it with .to({str(device)!r})")
    if y.dim() == 0 or len(y) != n:
        raise ValueError(f"y has shape {tuple(y.shape)} for the {n} points of x; expected one label each")
    if y.is_floating_point():
        return _float_targets(y, loss, outputs, dtype)
    if y.dtype == torch.bool or y.is_complex():
        raise ValueError(f"y is of {y.dtype}; expected integers (class ids) or floats (targets)")
    if y.dim() != 1:
        raise ValueError(f"integer y has shape {tuple(y.shape)}; expected ({n},) class ids, or y.float() for targets")
    if outputs == 1:
        raise ValueError("y holds class ids but the network has one output; give floats for regression")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= outputs:
        raise ValueError(
            f"y has labels from {low} to {high}; expected 0 to {outputs - 1}, as the network has {outputs}"
        )
    t_NC = F.one_hot(y.long(), outputs).to(dtype)
    return TrainingTargets(loss, find_loss(loss).training_form(y, t_NC), t_NC, classes=True)


def _float_targets(y: Tensor, loss: str, outputs: int, dtype: torch.dtype) -> TrainingTargets:
    t_NC = (y[:, None] if y.dim() == 1 else y).to(dtype)
    if t_NC.dim() != 2 or t_NC.shape[1] != outputs:
        expected = f"({len(y)}, {outputs})" + (f" or ({len(y)},)" if outputs == 1 else "; class ids are integers")
        raise ValueError(f"float y has shape {tuple(y.shape)}; expected {expected}")
    if not torch.isfinite(t_NC).all():
        raise ValueError(f"y has {int((~torch.isfinite(t_NC)).sum())} NaN or infinite values")
    criterion = find_loss(loss)
    if not criterion.accepts(t_NC, 1e-4):
        raise ValueError(
            f'loss="{loss}" takes class ids, or rows of probabilities that sum to 1; use loss="l2" for numbers'
        )
    return TrainingTargets(loss, t_NC, t_NC, classes=not criterion.quadratic)


# A single logit with 0/1 labels is binary classification. With two outputs everything that needs classes works:
#
#     cross-entropy   (0, f)       softmax is (1 − σ(f), σ(f)). The kernel of their sum is Θ_f / 2, the same for both
#                                  logits, so that their difference moves by Θ_f: binary cross-entropy with the logit f.
#     squared loss    (1 − f, f)   Targets are 0/1 rows, the residuals (−e, e), and both move by the kernel Θ_f of the
#                                  second: regression on 0/1, whose class is 1 where f > 1/2.


class BinaryOutputs(nn.Module):
    """A network of one output as a classifier of two classes. It only reads ``net``."""

    def __init__(self, net: nn.Module, loss: str) -> None:
        super().__init__()
        self.net: nn.Module = net
        self.quadratic: bool = LOSSES[loss].quadratic
        self.training = net.training

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        f_N1 = self.net(*args, **kwargs)
        f_N1 = getattr(f_N1, "logits", f_N1)
        return torch.cat([1 - f_N1 if self.quadratic else torch.zeros_like(f_N1), f_N1], 1)

    @property
    def kernel_output(self) -> str | int:
        """The ``output`` of ``ft.ntk`` whose kernel both classes share."""
        return 1 if self.quadratic else "sum"
