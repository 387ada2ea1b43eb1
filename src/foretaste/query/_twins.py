"""Candidates that a taken point has made uninformative, whatever their score says.

Entropy does not know that a copy of a point is on its way to be labelled; S does. Taking j lowers the variance of k by
S_jk²/u_j, and its own by S_jj²/u_j. So the squared correlation of k with j is  ρ² = (drop_k / drop_j) (S_jj / S_kk):
it is 1 for a point that the linearised network cannot move without moving j alike, however noisy labels are.
"""

import torch
from torch import Tensor

from foretaste.retrain import State

TWIN = 1e-5  # 1 − ρ²: what float32 kernels leave between two copies of a point
SPENT = 1e-6  # of the largest variance in the pool: S is rounding below it


def spent(state: State, before: State, j: int) -> Tensor:
    """(U,) bool: twins of j, by ``state`` = ``before`` conditioned on j, and candidates with nothing left to learn."""
    var_U, left_U = _variance(before), _variance(state)
    drop_U = var_U - left_U
    like_j = (drop_U * var_U[j] - drop_U[j] * var_U).abs() <= TWIN * drop_U[j] * var_U
    return like_j | (left_U <= SPENT * var_U.max())


def _variance(state: State) -> Tensor:
    """tr S_jj, (U,)."""
    return torch.einsum("ubb->u", state.variance_blocks)
