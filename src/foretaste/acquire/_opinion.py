"""What a state holds of its points at present, and what every score is checked for."""

import math

import torch
from torch import Tensor

from foretaste.retrain import State

REFERENCES = ("net", "current")


def labelled(state: State) -> bool:
    """Whether any label is kept; one on its way (None) leaves the mean where it was."""
    return any(y is not None for _, y in state.kept)


def opinions(state: State) -> Tensor:
    """(U, C) outputs of the candidates: the network's, or once a label is kept the mean. The former cost no kernel."""
    return state.pool_mean if labelled(state) else state.pool_net


def pseudo_labels(state: State) -> Tensor:
    """(U, C): y′ of Eq. 13, the one-hot of the likeliest class (the paper prints its number)."""
    f_UC = opinions(state)
    return torch.zeros_like(f_UC).scatter_(1, f_UC.argmax(1, keepdim=True), 1.0)


def anchor(state: State, reference: str | None) -> Tensor:
    """(W, C): the outputs that change is measured from.

    "net" is Eq. 13 to the letter. Once a candidate is taken the default is "current", the mean before the candidate:
    from the net, a point already taken and its duplicates would go on scoring high.
    """
    if reference is None:
        reference = "current" if state.kept else "net"
    check_reference(reference)
    return state.net if reference == "net" else state.mean


def check_reference(reference: str | None) -> None:
    if reference is not None and reference not in REFERENCES:
        raise ValueError(f"reference={reference!r}; expected 'net', 'current' or None")


def need_classes(state: State, name: str, instead: str) -> None:
    if state.C < 2:
        raise ValueError(f"{name} needs classes and this network has one output; for regression use {instead}")


def finish(state: State, scores_U: Tensor, name: str) -> Tensor:
    """(U,) float64, −inf where taken; NaN raises, for a ranking of NaN would be a random one."""
    if not isinstance(scores_U, Tensor) or scores_U.shape != (state.U,):
        came = tuple(scores_U.shape) if isinstance(scores_U, Tensor) else type(scores_U).__name__
        raise ValueError(f"{name} returned {came}; expected a tensor ({state.U},), a score for each candidate")
    scores_U = scores_U.detach().to(state.net.device, torch.float64)
    if state.kept:
        scores_U = scores_U.masked_fill(state.taken, -torch.inf)
    if scores_U.numel() and math.isnan(scores_U.min()):  # one number read from the device: NaN goes through min
        bad = scores_U.isnan()
        raise ValueError(f"{name} gives NaN for {int(bad.sum())} candidates, first at {int(bad.nonzero()[0])}")
    return scores_U
