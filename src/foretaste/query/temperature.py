"""The temperature of uncertainty herding: T with which softmax(f/T) is calibrated on labels that f did not see.

There are two ways to get outputs of a network that did not see a label. Leave-one-out outputs come from kernel
regression on Θ_LL, in closed form. The authors train another network on a part of L, and look at the rest.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy

import torch
from torch import Tensor

from foretaste.lookahead import BinaryOutputs, cholesky, label_rules
from foretaste.losses import LOSSES, probabilities
from foretaste.network import fit
from foretaste.query.request import Request
from foretaste.tangent import DEFAULT_RIDGE, freeze, gram, outputs

TEMPERATURES = torch.logspace(-2, 2, 81, dtype=torch.float64)
CALIBRATION_BINS = 15
SPLIT_TEMPERATURES = 1 + 0.1 * torch.arange(190, dtype=torch.float64)  # the authors' grid
HELD_OUT = 0.3  # of L


def calibrate_by_leave_one_out(request: Request) -> float:
    """T of the least expected calibration error of softmax(f/T), f the leave-one-out outputs on L."""
    output = "trace" if request.output == "full" else request.output
    frozen = freeze(request.frozen, output=output, params=request.params)
    assert request.x_L is not None
    pair, f = ("L", "L"), dict[str, Tensor]()
    theta_LL = gram(frozen, {"L": request.x_L}, [pair], budget=request.budget, f=f)[0][pair]
    y_LC = _targets(request, theta_LL.device)
    ridge = DEFAULT_RIDGE * float(theta_LL.diagonal().mean()) if request.given_ridge is None else request.given_ridge
    f_LC = leave_one_out(theta_LL, f["L"], y_LC, request.loss, ridge)
    return least_error(f_LC, y_LC.argmax(1), TEMPERATURES, CALIBRATION_BINS)


def calibrate_by_split(request: Request) -> float:
    """The same as Bae et al. (2025) do: f of a network trained anew on the first 70 % of L, on the others.

    In their code the grid is 1 to 19.9, with as many bins as classes. 1 where L has fewer than four points.
    """
    x_L, held = request.x_L, int(HELD_OUT * request.L)
    if not isinstance(x_L, Tensor) or isinstance(request.net, BinaryOutputs):
        came = "one output for two classes" if isinstance(x_L, Tensor) else "a dict of inputs"
        raise ValueError(f'temperature="split" of uherding trains by ft.fit, which does not take {came}; {OTHER_WAYS}')
    if not held:
        return 1.0
    net, y_LC = deepcopy(request.net), _targets(request, x_L.device)
    try:
        fit(net, x_L[:-held], y_LC[:-held].argmax(1), loss=request.loss, start="cold", seed=request.seed)
    except ValueError as e:
        raise ValueError(f'temperature="split" of uherding trains the network anew: {e}; {OTHER_WAYS}') from e
    f_lC = outputs(freeze(net, params=lambda name: True), x_L[-held:])
    return least_error(f_lC, y_LC[-held:].argmax(1), SPLIT_TEMPERATURES, request.C)


OTHER_WAYS = 'use options={"temperature": "loo"}, or a number'
CALIBRATIONS: Mapping[str, Callable[[Request], float]] = {
    "loo": calibrate_by_leave_one_out,
    "split": calibrate_by_split,
}


def _targets(request: Request, device: torch.device) -> Tensor:
    binary = isinstance(request.net, BinaryOutputs)
    return label_rules(request.y_L, request.C, request.loss, device, device, binary=binary).targets(request.y_L)


def least_error(f_NC: Tensor, y_N: Tensor, temperatures: Tensor, bins: int) -> float:
    """The temperature of the least expected calibration error, the first among equals."""
    errors = [expected_calibration_error((f_NC / T).softmax(1), y_N, bins) for T in temperatures.tolist()]
    return float(temperatures[int(torch.tensor(errors).argmin())])


def leave_one_out(theta_LL: Tensor, f_LC: Tensor, y_LC: Tensor, loss: str, ridge: float) -> Tensor:
    """(L, C): outputs at each labelled point as if it had no label, in closed form; with d = diag A⁻¹,

    L2: y_i − α_i / d_i, kernel regression on the other labels, with A = Θ + λI and α = A⁻¹(Y − 1/C)
    CE: f_i − (1/d_i − n_i)(y_i − p_i), one Newton step, with A = Θ + diag n and n_i = 1/(p(1 − p)) (Laplace)
    """
    noise_L = LOSSES[loss].label_noise(f_LC)
    noise_L = torch.full_like(f_LC[:, 0], ridge) if noise_L is None else noise_L + ridge
    inverse_LL = torch.cholesky_inverse(cholesky(theta_LL + noise_L.diag(), ridge))
    d_L1 = inverse_LL.diagonal()[:, None]
    if LOSSES[loss].quadratic:
        return y_LC - inverse_LL @ (y_LC - 1 / y_LC.shape[1]) / d_L1
    return f_LC - (1 / d_L1 - noise_L[:, None]) * (y_LC - probabilities(f_LC, loss))


def expected_calibration_error(p_NC: Tensor, y_N: Tensor, bins: int = CALIBRATION_BINS) -> float:
    """Σ over bins of equal width of |accuracy − confidence|, weighed by their share of points (Guo et al. 2017)."""
    top_N, guess_N = p_NC.max(1)
    bin_N = (top_N * bins).ceil().long().sub_(1).clamp_(0, bins - 1)
    miss = torch.zeros(bins, dtype=p_NC.dtype, device=p_NC.device)
    return float(miss.index_add_(0, bin_N, (guess_N == y_N).to(p_NC) - top_N).abs().sum() / len(y_N))
