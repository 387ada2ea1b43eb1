"""From a trained network, its labelled points and a pool to a State."""

import logging
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.errors import did_you_mean
from foretaste.lookahead.dense import DenseState, Posterior
from foretaste.lookahead.direct import DirectState
from foretaste.lookahead.labels import label_rules
from foretaste.lookahead.state import Problem, State
from foretaste.lookahead.theta import (
    LoadedTheta,
    ThetaBlocks,
    diagonal_blocks,
    given_kernels,
    kernels_of_network,
    load_now,
)
from foretaste.losses import LOSSES
from foretaste.tangent import (
    PRECISIONS,
    Inputs,
    Output,
    Params,
    check_inputs,
    count_points,
    freeze,
    outputs,
    probe_outputs,
    take_points,
    to_float64,
)

# The settings of a linearisation, checked, and the State they ask for.


log = logging.getLogger("foretaste")

METHODS = ("auto", "dense", "direct")
PRECISION_CHOICES = ("auto", *PRECISIONS)
UNFITTED = 0.1  # of the labels' own mean square: SGD has not interpolated L


def make_state(p: Problem, method: str) -> State:
    """A lazy state. That f does not fit the labels is said when Θ is first asked for: entropy does not mind."""
    kernels = p.kernels

    def load() -> ThetaBlocks:
        warn_unfitted(p)
        return kernels.load()

    p = replace(p, kernels=replace(kernels, load=load))
    if method == "direct" or not math.isinf(p.time):
        return DirectState(p, (), LoadedTheta(p.kernels))
    return DenseState(p, (), Posterior(p))


def check_settings(
    ridge: float | None, method: str, loss: str, time: float, theta_scale: float, precision: str = "auto"
) -> None:
    """Raise with every fault of the settings at once."""
    faults = []
    if ridge is not None and not (isinstance(ridge, (int, float)) and 0 <= ridge < math.inf):
        faults.append(f"ridge is {ridge!r}; expected a number ≥ 0, or None for 1e-6 of the mean diagonal of Θ_LL")
    if method not in METHODS:
        faults.append(f"unknown method {method!r}; available now: {', '.join(METHODS)}")
    if loss not in LOSSES:
        faults.append(f"unknown loss {loss!r}{did_you_mean(loss, LOSSES, 'The network was trained with one of')}")
    if not time > 0:
        faults.append(f"time is {time!r}; expected a number above 0, or inf for convergence")
    elif not math.isinf(time) and method == "dense":
        faults.append(f'time={time:g} is solved directly; use method="auto" or "direct"')
    if loss in LOSSES and not LOSSES[loss].quadratic and (method == "direct" or not math.isinf(time)):
        faults.append(
            'method="direct" and finite time are Eq. 5 and 11, of the squared loss; with another loss use "dense"'
        )
    if not 0 < theta_scale < math.inf:
        faults.append(f"theta_scale is {theta_scale!r}; expected a number above 0")
    if precision not in PRECISION_CHOICES:
        faults.append(f"unknown precision {precision!r}{did_you_mean(precision, PRECISION_CHOICES)}")
    if faults:
        raise ValueError("; ".join(faults))


def watched_points(watch: Inputs | int | None, x_U: Inputs, seed: int) -> tuple[Inputs | None, dict[int, int]]:
    """The watched inputs (None: the pool itself), and where candidates stand among them if that is known."""
    if watch is None:
        return None, {}
    if isinstance(watch, bool) or not isinstance(watch, int):
        if isinstance(watch, bool):
            raise TypeError("watch is a bool; expected None, inputs, or a number of pool points")
        return watch, {}
    n = count_points(x_U)
    if not 1 <= watch <= n:
        raise ValueError(f"watch={watch} of a pool of {n}; expected 1 to {n}, or None to watch all of it")
    picked = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:watch].sort().values.tolist()
    first = next(iter(x_U.values())) if not isinstance(x_U, Tensor) else x_U
    return take_points(x_U, torch.tensor(picked, device=first.device)), {j: i for i, j in enumerate(picked)}


def warn_unfitted(p: Problem) -> None:
    if p.L == 0 or not p.criterion.quadratic:
        return
    of = float(p.centred_LC.square().mean())
    if p.residual_L > UNFITTED * of:
        log.warning(
            "the network's mean squared residual on L is %.2g (the labels' own is %.2g): look-ahead assumes that "
            "training interpolates L, and its scores are noise otherwise; train longer",
            p.residual_L,
            of,
        )


# From a trained network, its labelled points and a pool to a State.


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
    frozen = freeze(net, output=output, params=params)
    check_inputs(x_U, "x_U", frozen.device)
    if count_points(x_U) == 0:
        raise ValueError("x_U is empty; expected at least one candidate")
    if (x_L is None) != (y_L is None):
        raise ValueError("one of x_L and y_L is None; give both, or None for both if nothing is labelled")
    C = probe_outputs(frozen, x_U, "x_U") if classes is None else classes
    labels = label_rules(y_L, C, loss, frozen.device, to_float64(torch.empty(0, device=frozen.device)).device)
    y_LC = torch.empty(0, C, dtype=torch.float64, device=labels.home)
    if x_L is not None:
        check_inputs(x_L, "x_L", frozen.device, like=x_U)
        if count_points(x_L) == 0 and torch.as_tensor(y_L).numel() == 0:
            x_L = None
        else:
            y_LC = labels.targets(y_L, count_points(x_L), "y_L")
    x_W, at_W = watched_points(watch, x_U, seed)
    if x_W is not None:
        check_inputs(x_W, "watch", frozen.device, like=x_U)
        if count_points(x_W) == 0:
            raise ValueError("watch has no points; give at least one, or None to watch the pool")
    B = C if output == "full" else 1
    f: dict[str, Tensor] = {}
    # Under cross-entropy the mean before any label is f, and what a label adds to A is at least 4 (Problem.system).
    sampled = (y_LC, ridge) if LOSSES[loss].quadratic else (None, (ridge or 0.0) + 4)
    kernels = kernels_of_network(
        frozen, C, x_L, x_U, x_W, y_LC=sampled[0], ridge=sampled[1], budget=budget, precision=precision,
        scale=float(theta_scale), f=f,
    )  # fmt: skip
    if eager:
        kernels = load_now(kernels)

    passes = "float32" if precision == "auto" else precision

    def f_of(name: str, x: Inputs, said: str) -> Tensor:
        return f[name] if name in f else outputs(frozen, x, name=said, precision=passes)

    f_UC = f_of("U", x_U, "x_U")
    f_LC = y_LC if x_L is None else f_of("L", x_L, "x_L")
    f_WC = f_UC if x_W is None else f_UC[list(at_W)] if at_W else f_of("W", x_W, "watch")
    return make_state(Problem(labels, f_LC, f_WC, f_UC, y_LC, kernels, B, x_W is None, at_W, ridge, loss, time), method)


# A State on kernels of one's own: an infinite-width kernel, a Gaussian process.


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
    labels = label_rules(y_L, C, loss, f_UC.device, f_UC.device)
    UL, WU = theta_UL.double(), theta_WU.double()
    WL = UL if theta_WL is None else theta_WL.double()
    d_U = diagonal_blocks(WU, B) if diag_U is None else diag_U.double().reshape(U, B, B)
    d_W = d_U if same else None if diag_W is None else diag_W.double().reshape(W, B, B)
    kernels = given_kernels(ThetaBlocks(theta_LL.double(), WL, UL, WU, d_U, d_W), theta_UU, B, float(theta_scale))
    y_LC = labels.targets(y_L, L, "y_L") if L else f_UC[:0]
    return make_state(Problem(labels, f_LC, f_WC, f_UC, y_LC, kernels, B, same, {}, ridge, loss, time), method)
