"""The temperature of uncertainty herding: with it, probabilities are calibrated on labels the network did not see."""

from copy import deepcopy

import torch
from torch import Tensor

from foretaste.lookahead import BinaryOutputs, label_rules
from foretaste.losses import probabilities
from foretaste.network import fit
from foretaste.pick.request import Request
from foretaste.tangent import freeze, outputs

SPLIT_TEMPERATURES = 1 + 0.1 * torch.arange(190, dtype=torch.float64)  # the authors' grid
HELD_OUT = 0.3  # of L


def calibrate_by_split(request: Request) -> float:
    """T of the least expected calibration error, as Bae et al. (2025) find it.

    f is of a network trained anew on the first 70 % of L, and looked at on the others.

    In their code the grid is 1 to 19.9, with as many bins as classes. 1 where L has fewer than four points.
    """
    x_L, held = request.x_L, int(HELD_OUT * request.L)
    if not isinstance(x_L, Tensor) or isinstance(request.net, BinaryOutputs):
        came = "one output for two classes" if isinstance(x_L, Tensor) else "a dict of inputs"
        raise ValueError(f'temperature="split" of uherding trains by ft.fit, which does not take {came}; {OTHER_WAY}')
    if not held:
        return 1.0
    binary = isinstance(request.net, BinaryOutputs)
    rules = label_rules(request.y_L, request.C, request.loss, x_L.device, x_L.device, binary=binary)
    net, y_L = deepcopy(request.net), rules.targets(request.y_L).argmax(1)
    try:
        fit(net, x_L[:-held], y_L[:-held], loss=request.loss, start="cold", seed=request.seed)
    except ValueError as e:
        raise ValueError(f'temperature="split" of uherding trains the network anew: {e}; {OTHER_WAY}') from e
    f_lC = outputs(freeze(net, params=lambda name: True), x_L[-held:])
    errors = [
        expected_calibration_error(probabilities(f_lC / T, request.loss), y_L[-held:], request.C)
        for T in SPLIT_TEMPERATURES.tolist()
    ]
    return float(SPLIT_TEMPERATURES[int(torch.tensor(errors).argmin())])


OTHER_WAY = 'use options={"temperature": 1.0}, or another number'


def expected_calibration_error(p_NC: Tensor, y_N: Tensor, bins: int) -> float:
    """Σ over bins of equal width of |accuracy − confidence|, weighed by their share of points (Guo et al. 2017)."""
    top_N, guess_N = p_NC.max(1)
    bin_N = (top_N * bins).ceil().long().sub_(1).clamp_(0, bins - 1)
    miss = torch.zeros(bins, dtype=p_NC.dtype, device=p_NC.device)
    return float(miss.index_add_(0, bin_N, (guess_N == y_N).to(p_NC) - top_N).abs().sum() / len(y_N))
