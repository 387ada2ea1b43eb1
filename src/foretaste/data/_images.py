"""A labelled data set in memory, and which of its points may be learned from."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Images:
    """``x[i]`` is a point, ``y[i]`` its class; ``pool`` may be queried, ``test`` only measures."""

    name: str
    x: Tensor  # (N, ...) float32 in [0, 1]
    y: Tensor  # (N,) int64
    pool: np.ndarray  # (pool,) int64 ids into x
    test: np.ndarray  # (test,) int64 ids into x, none of the pool's
    shape: tuple[int, ...]  # of one picture, for showing it
    classes: tuple[str, ...]

    def picture(self, i: int) -> np.ndarray:
        """The pixels of point ``i`` as they are looked at."""
        return self.x[int(i)].reshape(self.shape).cpu().numpy()
