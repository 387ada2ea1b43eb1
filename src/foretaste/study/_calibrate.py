"""The scale s² of `gain`, from labels that were not known when they were predicted (docs/mathematics.md, The scale).

Leave-one-out residuals of L put s² 4 to 100 times too low, for the kernel has learned those labels. The residuals of a
new batch before it is absorbed are honest:  s² = mean_j ‖y_j − mean_j‖² / (C u_j).  Their ratio to the leave-one-out
value is carried to the next batch, where that value is another.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.retrain import linearize

FIRST = 10.0  # times leave-one-out, before any batch was answered; what state.scale takes


def leave_one_out(net: nn.Module, x_L: Tensor, y_L: Tensor, settings: Mapping[str, Any]) -> float:
    """s² by leaving one of L out; the pool is of no account, so one point stands for it."""
    return linearize(net, x_L, y_L, x_L[:1], **_without_watch(settings)).scale / FIRST


def surprise(net: nn.Module, x_L: Tensor, y_L: Tensor, x_u: Tensor, y_u: Tensor, settings: Mapping[str, Any]) -> float:
    """s² by the labels ``y_u`` of new points, as the network trained on L predicted them."""
    state = linearize(net, x_L, y_L, x_u, **_without_watch(settings))
    e_uC = state.targets(y_u) - state.pool_mean
    if state.B == 1:
        return float(torch.mean(e_uC.square().sum(1) / (state.C * state.u)))
    return float(torch.mean(e_uC * torch.linalg.solve(state.u, e_uC)))  # u_j is C × C: mean eᵀ u⁻¹ e / C


def _without_watch(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "watch"}
