"""From outputs to probabilities, by the loss the network was trained with."""

import torch
from torch import Tensor

LOSSES = ("l2", "ce")


def probabilities(f_NC: Tensor, loss: str) -> Tensor:
    """(..., C): softmax of logits for "ce"; for "l2" the nearest point of the simplex, for targets were 0/1."""
    if loss not in LOSSES:
        raise ValueError(f"unknown loss {loss!r}; expected one of {', '.join(LOSSES)}")
    if f_NC.shape[-1] < 2:
        raise ValueError("one output has no classes, so no probabilities; for regression use variance or change")
    return torch.softmax(f_NC, -1) if loss == "ce" else simplex(f_NC)


def simplex(f_NC: Tensor) -> Tensor:
    """The Euclidean projection on the simplex, max(f − t, 0) with t such that it adds up to 1.

    Over the sorted entries, t is (Σ of the k largest − 1) / k for the last k whose entry exceeds it.
    """
    k_C = torch.arange(1, f_NC.shape[-1] + 1, dtype=f_NC.dtype, device=f_NC.device)
    # From the largest down: an added constant moves nothing, and large outputs lose no digits.
    f_NC = f_NC - f_NC.amax(-1, keepdim=True)
    sorted_NC = f_NC.sort(-1, descending=True).values
    t_NC = (sorted_NC.cumsum(-1) - 1) / k_C
    last_N1 = (sorted_NC > t_NC).sum(-1, keepdim=True) - 1
    return (f_NC - t_NC.gather(-1, last_N1)).clamp_min(0)


def surprise(p_NC: Tensor) -> Tensor:
    """H = −Σ p log p over the last dimension, (...)."""
    return torch.special.entr(p_NC).sum(-1)
