"""Bytes to what a network is fed."""

from collections.abc import Sequence

import torch
from torch import Tensor

Normalise = tuple[float | Sequence[float], float | Sequence[float]]


def prepare(x: Tensor, dtype: torch.dtype = torch.float32, normalise: Normalise | None = None) -> Tensor:
    """uint8 pixels as numbers in [0, 1]; then (x − mean) / std if asked, of one number or one for each channel.

    Floats are not scaled; anything else (token ids) is left alone.
    """
    if x.dtype == torch.uint8:
        x = x.to(dtype) / 255
    if normalise is None:
        return x
    mean, std = (torch.as_tensor(v, dtype=dtype, device=x.device).flatten() for v in normalise)
    shape = (-1,) + (1,) * (x.dim() - 2)  # (channels, 1, 1) beside (n, channels, H, W)
    return (x - mean.view(shape)) / std.view(shape)
