"""From a trained network, its labelled points and a pool to a State."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.retrain._labels import labels_of
from foretaste.retrain._problem import Problem
from foretaste.retrain._settings import check_settings, state_of, watched
from foretaste.retrain._state import State
from foretaste.retrain._theta import at_once, of_network
from foretaste.tangent import Inputs, Output, Params, check_inputs, outputs, size, subject
from foretaste.tangent._subject import exact, probe


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
    precision: str = "auto",
    theta_scale: float = 1.0,
    seed: int = 0,
    eager: bool = False,
    classes: int | None = None,
) -> State:
    """What ``net`` becomes with one label more, without training (Eq. 11, 12; docs/mathematics.md, Look-ahead).

    Θ is computed on first need. Empty L: ``x_L=None, y_L=None``, or no rows. ``watch``: None is x_U; inputs are watched
    instead; an int is that many random pool points by ``seed``. ``time`` is t of Eq. 5, learning rate × steps on
    ½Σ‖f − y‖²; finite, it is solved directly. ``precision`` is of Θ on a CUDA device: "float32", "tf32", "half", or
    "auto", the fastest that ranks a sample as float64 does. ``theta_scale`` multiplies Θ, which changes the answer
    under cross-entropy (and with a given ridge). ``eager`` computes Θ now, and f with it: a pass less, if S is wanted.
    ``classes`` is C, of a network that was already looked at with points like these.
    """
    check_settings(ridge, method, loss, time, theta_scale, precision)
    subj = subject(net, output=output, params=params)
    check_inputs(x_U, "x_U", subj.device)
    if size(x_U) == 0:
        raise ValueError("x_U is empty; expected at least one candidate")
    if (x_L is None) != (y_L is None):
        raise ValueError("one of x_L and y_L is None; give both, or None for both if nothing is labelled")
    C = probe(subj, x_U, "x_U") if classes is None else classes
    labels = labels_of(y_L, C, loss, subj.device, exact(torch.empty(0, device=subj.device)).device)
    y_LC = torch.empty(0, C, dtype=torch.float64, device=labels.home)
    if x_L is not None:
        check_inputs(x_L, "x_L", subj.device, like=x_U)
        if size(x_L) == 0 and torch.as_tensor(y_L).numel() == 0:
            x_L = None
        else:
            y_LC = labels.targets(y_L, size(x_L), "y_L")
    x_W, at_W = watched(watch, x_U, seed)
    if x_W is not None:
        check_inputs(x_W, "watch", subj.device, like=x_U)
        if size(x_W) == 0:
            raise ValueError("watch has no points; give at least one, or None to watch the pool")
    B = C if output == "full" else 1
    f: dict[str, Tensor] = {}
    # Under cross-entropy the mean before any label is f, and what a label adds to A is at least 4 (Problem.system).
    sampled = (y_LC, ridge) if loss == "l2" else (None, (ridge or 0.0) + 4)
    kernels = of_network(
        subj, C, x_L, x_U, x_W, y_LC=sampled[0], ridge=sampled[1], budget=budget, precision=precision,
        scale=float(theta_scale), f=f,
    )  # fmt: skip
    if eager:
        kernels = at_once(kernels)

    passes = "float32" if precision == "auto" else precision

    def f_of(name: str, x: Inputs, said: str) -> Tensor:
        return f[name] if name in f else outputs(subj, x, name=said, precision=passes)

    f_UC = f_of("U", x_U, "x_U")
    f_LC = y_LC if x_L is None else f_of("L", x_L, "x_L")
    f_WC = f_UC if x_W is None else f_UC[list(at_W)] if at_W else f_of("W", x_W, "watch")
    return state_of(Problem(labels, f_LC, f_WC, f_UC, y_LC, kernels, B, x_W is None, at_W, ridge, loss, time), method)
