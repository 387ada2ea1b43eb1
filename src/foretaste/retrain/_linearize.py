"""From a trained network, its labelled points and a pool to a State."""

import logging
import math
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.retrain._dense import Dense
from foretaste.retrain._direct import Direct
from foretaste.retrain._labels import labels_of
from foretaste.retrain._posterior import Posterior
from foretaste.retrain._problem import Problem
from foretaste.retrain._state import State
from foretaste.retrain._theta import Kernels, Loaded, Theta, diagonal_blocks, given, of_network
from foretaste.tangent import Inputs, Output, Params, check_inputs, outputs, size, subject, take

log = logging.getLogger("foretaste")

METHODS = ("auto", "dense", "direct")
UNFITTED = 0.1  # of the labels' own mean square: SGD has not interpolated L


def linearize(
    net: nn.Module,
    x_L: Inputs | None,
    y_L: Any,
    x_U: Inputs,
    *,
    watch: Inputs | int | None = None,
    output: Output = "sum",
    ridge: float | None = None,
    method: str = "auto",
    loss: str = "l2",
    time: float = math.inf,
    params: Params = None,
    budget: int | str | None = None,
    theta_scale: float = 1.0,
    seed: int = 0,
) -> State:
    """What ``net`` becomes with one label more, without training (Eq. 11, 12; DESIGN §3). Θ is computed on first need.

    Empty L: ``x_L=None, y_L=None``, or no rows. ``watch``: None is x_U; inputs are watched instead; an int is that many
    random pool points by ``seed``. ``time`` is t of Eq. 5, learning rate × steps on ½Σ‖f − y‖²; finite, it is solved
    directly. ``theta_scale`` multiplies Θ, which changes the answer under cross-entropy (and with a given ridge).
    """
    options(ridge, method, loss, time, theta_scale)
    subj = subject(net, output=output, params=params)
    check_inputs(x_U, "x_U", subj.device)
    if size(x_U) == 0:
        raise ValueError("x_U is empty; expected at least one candidate")
    f_UC = outputs(subj, x_U, name="x_U")
    if f_UC.dim() != 2:
        raise ValueError(f"net returns {tuple(f_UC.shape)} for {size(x_U)} points; expected ({size(x_U)}, C)")
    labels = labels_of(y_L, f_UC.shape[1], loss, subj.device, f_UC.device)
    if (x_L is None) != (y_L is None):
        raise ValueError("one of x_L and y_L is None; give both, or None for both if nothing is labelled")
    f_LC = y_LC = f_UC[:0]
    if x_L is not None:
        check_inputs(x_L, "x_L", subj.device, like=x_U)
        if size(x_L) == 0 and torch.as_tensor(y_L).numel() == 0:
            x_L = None
        else:
            y_LC = labels.targets(y_L, size(x_L), "y_L")
            f_LC = outputs(subj, x_L, name="x_L")
    x_W, at_W = watched(watch, x_U, seed)
    if isinstance(watch, int):
        f_WC = f_UC[list(at_W)]
    elif x_W is not None:
        check_inputs(x_W, "watch", subj.device, like=x_U)
        if size(x_W) == 0:
            raise ValueError("watch has no points; give at least one, or None to watch the pool")
        f_WC = outputs(subj, x_W, name="watch")
    else:
        f_WC = f_UC
    B = f_UC.shape[1] if output == "full" else 1
    kernels = of_network(net, x_L, x_U, x_W, B=B, output=output, params=params, budget=budget, scale=float(theta_scale))
    return state_of(Problem(labels, f_LC, f_WC, f_UC, y_LC, kernels, B, x_W is None, at_W, ridge, loss, time), method)


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
    options(ridge, method, loss, time, theta_scale)
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


def state_of(p: Problem, method: str) -> State:
    warn_unfitted(p)
    if method == "direct" or not math.isinf(p.time):
        return Direct(p, (), Loaded(p.kernels))
    return Dense(p, (), Posterior(p))


def options(ridge: float | None, method: str, loss: str, time: float, theta_scale: float) -> None:
    """Raise with every fault of the settings at once."""
    faults = []
    if ridge is not None and not (isinstance(ridge, (int, float)) and 0 <= ridge < math.inf):
        faults.append(f"ridge is {ridge!r}; expected a number ≥ 0, or None for 1e-6 of the mean diagonal of Θ_LL")
    if method not in METHODS:
        faults.append(f"unknown method {method!r}; available now: {', '.join(METHODS)}")
    if loss not in ("l2", "ce"):
        faults.append(f"unknown loss {loss!r}; expected 'l2' or 'ce', the one the network was trained with")
    if not time > 0:
        faults.append(f"time is {time!r}; expected a number above 0, or inf for convergence")
    elif not math.isinf(time) and method == "dense":
        faults.append(f'time={time:g} is solved directly; use method="auto" or "direct"')
    if loss == "ce" and (method == "direct" or not math.isinf(time)):
        faults.append(
            'method="direct" and finite time are Eq. 5 and 11, of the squared loss; with loss="ce" use "dense"'
        )
    if not 0 < theta_scale < math.inf:
        faults.append(f"theta_scale is {theta_scale!r}; expected a number above 0")
    if faults:
        raise ValueError("; ".join(faults))


def watched(watch: Inputs | int | None, x_U: Inputs, seed: int) -> tuple[Inputs | None, dict[int, int]]:
    """The watched inputs (None: the pool itself), and where candidates stand among them if that is known."""
    if watch is None:
        return None, {}
    if isinstance(watch, bool) or not isinstance(watch, int):
        if isinstance(watch, bool):
            raise TypeError("watch is a bool; expected None, inputs, or a number of pool points")
        return watch, {}
    n = size(x_U)
    if not 1 <= watch <= n:
        raise ValueError(f"watch={watch} of a pool of {n}; expected 1 to {n}, or None to watch all of it")
    picked = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:watch].sort().values.tolist()
    first = next(iter(x_U.values())) if not isinstance(x_U, Tensor) else x_U
    return take(x_U, torch.tensor(picked, device=first.device)), {j: i for i, j in enumerate(picked)}


def warn_unfitted(p: Problem) -> None:
    if p.L == 0 or p.loss == "ce":
        return
    of = float(p.centred_LC.square().mean())
    if p.residual_L > UNFITTED * of:
        log.warning(
            "the network's mean squared residual on L is %.2g (the labels' own is %.2g): look-ahead assumes that "
            "training interpolates L, and its scores are noise otherwise; train longer",
            p.residual_L,
            of,
        )


__all__ = ["Kernels", "from_kernels", "linearize"]
