"""What a training is given, checked before anything changes."""

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from foretaste.network._augment import AUGMENTATIONS
from foretaste.network._names import known, positive
from foretaste.network._pixels import Normalise

STEPS, EPOCHS = 1200, 320


def check_net(net: nn.Module) -> tuple[torch.device, torch.dtype]:
    if not isinstance(net, nn.Module):
        raise TypeError(f"net is a {type(net).__name__}; expected a torch.nn.Module")
    trained = [p for p in net.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("no parameter of net requires grad, so there is nothing to train")
    kinds = {(p.device, p.dtype) for p in net.parameters()}
    if len(kinds) > 1:
        raise ValueError(f"parameters of net are of several devices or dtypes, {sorted(map(str, kinds))}; use net.to()")
    device, dtype = kinds.pop()
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"net is of {dtype}; training here is in float32 or float64: use net.float()")
    return device, dtype


def check_points(
    x: Tensor, device: torch.device, dtype: torch.dtype, augment: str | None, normalise: Normalise | None
) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}; expected one tensor of all points")
    if x.dim() < 2 or len(x) == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}; expected (N, ...) with at least one labelled point")
    if x.device != device:
        raise ValueError(f"x is on {x.device} and the network on {device}; move it with .to({str(device)!r})")
    if x.is_floating_point() and x.dtype != dtype:
        raise ValueError(f"x is of {x.dtype} and the network of {dtype}; use x.to({dtype})")
    if x.is_floating_point() and not torch.isfinite(x).all():
        raise ValueError(f"x has {int((~torch.isfinite(x)).sum())} NaN or infinite values")
    if augment is not None:
        known("augment", augment, AUGMENTATIONS)
        if x.dim() != 4:
            raise ValueError(f"augment={augment!r} needs images (N, channels, H, W); x has shape {tuple(x.shape)}")
    if normalise is not None:
        mean, std = (torch.as_tensor(v, dtype=torch.float64).flatten() for v in normalise)
        if {len(mean), len(std)} - {1, x.shape[1]} or not (std > 0).all():
            raise ValueError(f"normalise={normalise!r}; expected (mean, std > 0), one number or {x.shape[1]} each")


def lengths(net: nn.Module, n: int, batch_size: int, steps: int | None, epochs: int | None) -> tuple[int, int]:
    """(points in a batch, steps). A single point is taken twice, for BatchNorm cannot train on one."""
    positive(batch_size=batch_size)
    if batch_size == 1 and any(isinstance(m, _BatchNorm) for m in net.modules()):
        raise ValueError("batch_size=1 and net has BatchNorm, which cannot train on one point; use 2 or more")
    size = min(batch_size, max(n, 2))
    if steps is not None and epochs is not None:
        raise ValueError(f"steps={steps} and epochs={epochs} were both given; give one")
    if steps is not None:
        positive(steps=steps)
        return size, steps
    positive(epochs=EPOCHS if epochs is None else epochs)
    of_epochs = math.ceil((epochs or EPOCHS) * n / size)
    return size, max(STEPS, of_epochs) if epochs is None else of_epochs
