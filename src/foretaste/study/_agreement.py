"""How well predicted changes agree with real ones: numbers that do not depend on how either was made."""

import math
from itertools import combinations

import numpy as np
import torch
from torch import Tensor


def correlation(a: Tensor, b: Tensor) -> float | None:
    """Pearson's, over all entries, with its sign; None where one of them does not vary."""
    a, b = a.double().flatten(), b.double().flatten()
    a, b = a - a.mean(), b - b.mean()
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size > 0 else None


def spearman(a: Tensor, b: Tensor) -> float | None:
    """Pearson's of the ranks, ties sharing theirs; None below three points."""
    return correlation(ranks(a), ranks(b)) if len(a) > 2 else None


def ranks(a: Tensor) -> Tensor:
    """(N,) ranks from 0; equal values get the mean of theirs."""
    _, group_N, count_G = np.unique(a.cpu().numpy(), return_inverse=True, return_counts=True)
    last_G = count_G.cumsum()
    return torch.as_tensor((last_G - (count_G + 1) / 2)[group_N])


def relative_error(predicted: Tensor, real: Tensor) -> float | None:
    """‖predicted − real‖ / ‖real‖: 0 is perfect, 1 what predicting no change would give."""
    size = float(real.norm())
    return float((predicted - real).norm()) / size if size > 0 else None


def slope(predicted: Tensor, real: Tensor) -> float | None:
    """The factor that takes predicted changes nearest to the real ones, in least squares."""
    size = float(predicted.square().sum())
    return float((predicted * real).sum()) / size if size > 0 else None


def ceiling(real_SJWC: Tensor) -> tuple[float, float] | None:
    """(r, most): how well two retrainings of other seeds agree, and the correlation no prediction can exceed.

    A prediction knows nothing of the seed. With reliability r of one retraining, the mean of S has reliability
    S r / (1 + (S − 1) r) (Spearman–Brown), and nothing correlates with it above the square root of that.
    """
    pairs = [correlation(a, b) for a, b in combinations(real_SJWC, 2)]
    known = [r for r in pairs if r is not None]
    if not known:
        return None
    S, r = len(real_SJWC), max(sum(known) / len(known), 0.0)
    return r, math.sqrt(S * r / (1 + (S - 1) * r))
