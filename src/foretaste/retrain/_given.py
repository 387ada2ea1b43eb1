"""A State on kernels of one's own: an infinite-width kernel, a Gaussian process."""

import math
from typing import Any

from torch import Tensor

from foretaste.retrain._labels import labels_of
from foretaste.retrain._problem import Problem
from foretaste.retrain._settings import check_settings, state_of
from foretaste.retrain._state import State
from foretaste.retrain._theta import Theta, diagonal_blocks, given


def from_kernels(
    theta_LL: Tensor,
    theta_WL: Tensor | None,
    theta_UL: Tensor,
    theta_WU: Tensor,
    diag_U: Tensor | None,
    f_L: Tensor,
    f_W: Tensor | None,
    f_U: Tensor,
    y_L: Any,
    *,
    theta_UU: Tensor | None = None,
    diag_W: Tensor | None = None,
    ridge: float | None = None,
    method: str = "auto",
    loss: str = "l2",
    time: float = math.inf,
    theta_scale: float = 1.0,
) -> State:
    """A State on kernels of one's own, in site layout (rows (n, b), b < B; B is 1 or C), and outputs f (N, C).

    W = U: theta_WL and f_W are None and theta_WU is Θ_UU. Otherwise ``diag_U``, (U,) or (U, B, B), is needed, and
    ``theta_UU`` once a label is kept.
    """
    check_settings(ridge, method, loss, time, theta_scale)
    same = f_W is None
    if same != (theta_WL is None):
        raise ValueError("one of f_W and theta_WL is None; both are for W = U, and neither otherwise")
    if diag_U is None and not same:
        raise ValueError("diag_U is None and the watched points are not the pool; give the diagonal of Θ_UU")
    f_LC, f_UC = f_L.double(), f_U.double()
    f_WC = f_UC if f_W is None else f_W.double()
    U, C = f_UC.shape
    B = theta_UL.shape[0] // U
    W, L = f_WC.shape[0], f_LC.shape[0]
    faults = [
        f"{name} is {tuple(t.shape)}, expected {want}"
        for name, t, want in (
            ("theta_LL", theta_LL, (L * B, L * B)),
            ("theta_WL", theta_UL if theta_WL is None else theta_WL, (W * B, L * B)),
            ("theta_UL", theta_UL, (U * B, L * B)),
            ("theta_WU", theta_WU, (W * B, U * B)),
        )
        if tuple(t.shape) != want
    ]
    if theta_UU is not None and tuple(theta_UU.shape) != (U * B, U * B):
        faults.append(f"theta_UU is {tuple(theta_UU.shape)}, expected {(U * B, U * B)}")
    for name, diag, n in (("diag_U", diag_U, U), ("diag_W", diag_W, W)):
        if diag is not None and diag.numel() != n * B * B:
            faults.append(f"{name} is {tuple(diag.shape)}, expected {(n, B, B)}")
    if B not in (1, C):
        faults.append(f"theta_UL has {theta_UL.shape[0]} rows for {U} candidates, expected {U} or {U * C}")
    if faults:
        raise ValueError(f"kernels do not fit together: {'; '.join(faults)}")
    labels = labels_of(y_L, C, loss, f_UC.device, f_UC.device)
    UL, WU = theta_UL.double(), theta_WU.double()
    WL = UL if theta_WL is None else theta_WL.double()
    d_U = diagonal_blocks(WU, B) if diag_U is None else diag_U.double().reshape(U, B, B)
    d_W = d_U if same else None if diag_W is None else diag_W.double().reshape(W, B, B)
    kernels = given(Theta(theta_LL.double(), WL, UL, WU, d_U, d_W), theta_UU, B, float(theta_scale))
    y_LC = labels.targets(y_L, L, "y_L") if L else f_UC[:0]
    return state_of(Problem(labels, f_LC, f_WC, f_UC, y_LC, kernels, B, same, {}, ridge, loss, time), method)
