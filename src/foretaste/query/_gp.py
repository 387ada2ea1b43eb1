"""A Gaussian process with the infinite-width kernel, as a classifier: kernel regression on centred 0/1 targets."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretaste.query._infinite_kernel import Infinite, layer_of
from foretaste.retrain._problem import cholesky
from foretaste.tangent import infinite_ntk
from foretaste.tangent.infinite import Layer, Serial


def gp_predict(
    net: nn.Module | Layer,
    x_L: Tensor,
    y_L: Tensor,
    x: Tensor,
    *,
    classes: int | None = None,
    ridge: float | None = None,
    parametrisation: str = "standard",
    W_std: float | None = None,
    b_std: float | None = None,
    budget: int | str | None = None,
) -> Tensor:
    """(N, C) what strategy ``gp`` predicts of x: 1/C + Θ(x, L) (Θ_LL + λI)⁻¹ (Y − 1/C), float64; argmax is the class.

    net: a network that has a counterpart (its weights do not matter), or layers of ``foretaste.tangent.infinite``.
    y_L: class ids (L,), with ``classes`` of them; or (L, C) targets. ridge: λ, by default 1e-6 of the mean diagonal.
    """
    own = isinstance(net, nn.Module)
    how = Infinite(parametrisation, W_std, b_std, None if own else net)
    layer = layer_of(net if own else nn.Identity(), how)  # type: ignore[arg-type]
    y_LC = _targets(y_L, len(x_L), _classes(layer) if classes is None else classes)
    theta_LL = infinite_ntk(layer, x_L, parametrisation=parametrisation, budget=budget)
    theta_NL = infinite_ntk(layer, x, x_L, parametrisation=parametrisation, budget=budget)
    return regress(theta_LL, theta_NL, y_LC.to(theta_LL), resolved(ridge, theta_LL))


def resolved(ridge: float | None, theta_LL: Tensor) -> float:
    return 1e-6 * float(theta_LL.diagonal().mean()) if ridge is None else ridge


def regress(theta_LL: Tensor, theta_NL: Tensor, y_LC: Tensor, ridge: float) -> Tensor:
    """1/C + Θ_NL (Θ_LL + λI)⁻¹ (Y − 1/C), (N, C)."""
    C = y_LC.shape[1]
    return 1 / C + theta_NL @ torch.cholesky_solve(y_LC - 1 / C, _factor(theta_LL, ridge))


def leave_one_out(theta_LL: Tensor, y_LC: Tensor, ridge: float) -> Tensor:
    """(L, C): the prediction of each labelled point by all others, y_i − α_i / (A⁻¹)_ii with α = A⁻¹(Y − 1/C)."""
    inverse = torch.cholesky_inverse(_factor(theta_LL, ridge))
    return y_LC - inverse @ (y_LC - 1 / y_LC.shape[1]) / inverse.diagonal()[:, None]


def _factor(theta_LL: Tensor, ridge: float) -> Tensor:
    A = theta_LL.clone()
    A.diagonal().add_(ridge)
    return cholesky(A, ridge)


def _classes(layer: Any) -> int | None:
    """The number of outputs: the width of the last layer, if it has one."""
    while isinstance(layer, Serial) and layer.layers:
        layer = layer.layers[-1]
    return getattr(layer, "width", None)


def _targets(y_L: Tensor, L: int, classes: int | None) -> Tensor:
    if not isinstance(y_L, Tensor) or y_L.dim() == 0 or len(y_L) != L or L == 0:
        came = tuple(y_L.shape) if isinstance(y_L, Tensor) else f"a {type(y_L).__name__}"
        raise ValueError(f"y_L is {came} for {L} points; expected a tensor of at least one label, one a point")
    if y_L.is_floating_point():
        if y_L.dim() != 2 or y_L.shape[1] < 2 or not torch.isfinite(y_L).all():
            raise ValueError(f"y_L has floats of shape {tuple(y_L.shape)}; expected finite ({L}, C), or class ids")
        return y_L
    if classes is None or classes < 2:
        raise ValueError(f"classes is {classes}, as the last layer's width is; give classes=, 2 or more")
    if y_L.dim() != 1 or y_L.dtype == torch.bool or int(y_L.min()) < 0 or int(y_L.max()) >= classes:
        raise ValueError(f"y_L holds {y_L.dtype} {tuple(y_L.shape)} outside 0 to {classes - 1}, one a point")
    return F.one_hot(y_L.long(), classes)
