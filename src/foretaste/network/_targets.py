"""What a network is trained towards: class ids, or numbers."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Targets:
    """``fit_N``: what the loss takes, (N, C) for L2, ids or (N, C) for CE; ``t_NC``: 0/1 or the numbers given."""

    loss: str
    fit_N: Tensor
    t_NC: Tensor
    classes: bool

    def of(self, f_nC: Tensor, fit_n: Tensor) -> Tensor:
        """The loss: L2 is averaged over points and classes."""
        return F.mse_loss(f_nC, fit_n) if self.loss == "l2" else F.cross_entropy(f_nC, fit_n)

    def slope(self, f_nC: Tensor, fit_n: Tensor) -> Tensor:
        """∂loss/∂f: 2 (f − t) / (n C) for L2, (softmax f − t) / n for CE."""
        if self.loss == "l2":
            return (f_nC - fit_n).mul_(2 / f_nC.numel())
        t_nC = F.one_hot(fit_n, f_nC.shape[1]) if fit_n.dim() == 1 else fit_n
        return (f_nC.softmax(1) - t_nC).div_(len(f_nC))

    def scale(self) -> float:
        """The variance of all targets: (1/C)(1 − 1/C) for classes. Of equal targets, their mean square; of zeros, 1."""
        return float(self.t_NC.var(correction=0)) or float(self.t_NC.square().mean()) or 1.0


def targets(y: Tensor, loss: str, n: int, outputs: int, device: torch.device, dtype: torch.dtype) -> Targets:
    """Check the labels of n points for a network of C outputs; raises a ValueError that says what to do."""
    if not isinstance(y, Tensor):
        raise TypeError(f"y is a {type(y).__name__}; expected a tensor of class ids or of targets")
    if y.device != device:
        raise ValueError(f"y is on {y.device} and the network on {device}; move it with .to({str(device)!r})")
    if y.dim() == 0 or len(y) != n:
        raise ValueError(f"y has shape {tuple(y.shape)} for the {n} points of x; expected one label each")
    if y.is_floating_point():
        return _numbers(y, loss, outputs, dtype)
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
    return Targets(loss, t_NC if loss == "l2" else y.long(), t_NC, classes=True)


def _numbers(y: Tensor, loss: str, outputs: int, dtype: torch.dtype) -> Targets:
    t_NC = (y[:, None] if y.dim() == 1 else y).to(dtype)
    if t_NC.dim() != 2 or t_NC.shape[1] != outputs:
        expected = f"({len(y)}, {outputs})" + (f" or ({len(y)},)" if outputs == 1 else "; class ids are integers")
        raise ValueError(f"float y has shape {tuple(y.shape)}; expected {expected}")
    if not torch.isfinite(t_NC).all():
        raise ValueError(f"y has {int((~torch.isfinite(t_NC)).sum())} NaN or infinite values")
    if loss == "ce" and (outputs == 1 or (t_NC < 0).any() or ((t_NC.sum(1) - 1).abs() > 1e-4).any()):
        raise ValueError('loss="ce" takes class ids, or rows of probabilities that sum to 1; use loss="l2" for numbers')
    return Targets(loss, t_NC, t_NC, classes=loss == "ce")
