"""The settings of a linearisation, checked, and the State they ask for."""

import logging
import math
from dataclasses import replace

import torch
from torch import Tensor

from foretaste.retrain._dense import Dense
from foretaste.retrain._direct import Direct
from foretaste.retrain._posterior import Posterior
from foretaste.retrain._problem import Problem
from foretaste.retrain._state import State
from foretaste.retrain._theta import Loaded, Theta
from foretaste.tangent import Inputs, _subject, size, take
from foretaste.tangent._subject import nearest

log = logging.getLogger("foretaste")

METHODS = ("auto", "dense", "direct")
PRECISIONS = ("auto", *_subject.PRECISIONS)
UNFITTED = 0.1  # of the labels' own mean square: SGD has not interpolated L


def state_of(p: Problem, method: str) -> State:
    """A lazy state. That f does not fit the labels is said when Θ is first asked for: entropy does not mind."""
    kernels = p.kernels

    def load() -> Theta:
        warn_unfitted(p)
        return kernels.load()

    p = replace(p, kernels=replace(kernels, load=load))
    if method == "direct" or not math.isinf(p.time):
        return Direct(p, (), Loaded(p.kernels))
    return Dense(p, (), Posterior(p))


def check_settings(
    ridge: float | None, method: str, loss: str, time: float, theta_scale: float, precision: str = "auto"
) -> None:
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
    if precision not in PRECISIONS:
        faults.append(f"unknown precision {precision!r}{nearest(precision, PRECISIONS)}")
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
