"""A labelled data set in memory, and which of its points may be learned from."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

Normalise = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Images:
    """``x[i]`` is a point, ``y[i]`` its class; ``pool`` may be queried, ``test`` only measures.

    Pixels stay bytes, in one tensor on the device of training; a network is fed ``x / 255``, then normalised. That is
    the pool's transform and the test's; random flips and crops are of training alone (``foretaste.network.fit``).
    """

    name: str
    x: Tensor  # (N, channels, H, W) uint8; float32 of any shape for points that are not pictures
    y: Tensor  # (N,) int64, what the oracle says
    pool: np.ndarray  # (pool,) int64 ids into x
    test: np.ndarray  # (test,) int64 ids into x, none of the pool's
    classes: tuple[str, ...]
    normalise: Normalise | None = None  # mean and std of each channel, of pixels in [0, 1]
    files: tuple[str, ...] | None = None  # where each point came from, if from a file of its own
    notes: tuple[str, ...] = ()  # what a reader of results must know: files left out, labels changed

    def picture(self, i: int) -> np.ndarray:
        """The pixels of point ``i`` in [0, 1] as they are looked at: (H, W) or (H, W, 3); a vector is one row."""
        x = self.x[int(i)].cpu()
        pixels = x.numpy() / 255 if x.dtype == torch.uint8 else x.numpy()
        if pixels.ndim != 3:
            return pixels.reshape(1, -1)
        return pixels[0] if len(pixels) != 3 else pixels.transpose(1, 2, 0)

    def to(self, device: torch.device | str) -> "Images":
        return replace(self, x=self.x.to(device), y=self.y.to(device))
