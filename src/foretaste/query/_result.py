"""The answer to a query."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Query:
    """Which points to label, best first.

    indices: int64 positions in x_U, none twice. ids: the caller's, where given. scores: (U,) before the first pick
    (None where a strategy that picks by itself has none). labels: the oracle's answers, in the order of indices.
    seconds: by stage. info: what was used (strategy, select, method, ridge, scale, ...) and the residual of L.
    """

    indices: np.ndarray
    ids: list[Any] | None
    scores: Tensor | None
    labels: list[Any]
    seconds: dict[str, float]
    info: dict[str, Any]

    def __len__(self) -> int:
        return len(self.indices)
