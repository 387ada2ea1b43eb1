"""Entropy, margin, least confidence: from the candidates' own outputs, without a kernel."""

from torch import Tensor

from foretaste.acquire.predictions import current_outputs, finish_scores, need_classes
from foretaste.acquire.registry import register
from foretaste.lookahead import State
from foretaste.losses import probabilities, shannon_entropy


@register("entropy", needs="classes")
def entropy(state: State) -> Tensor:
    """The entropy of the candidate's probabilities, −Σ_y p_j(y) log p_j(y). Costs one forward pass; no options.

    Args:
        state: a classifier, linearised.

    Returns:
        (U,) float64, −inf where a candidate is taken.

    Raises:
        ValueError: the network has one output; use ``variance``.

    Example:
        >>> import torch, foretaste as ft
        >>> x = torch.linspace(-1, 1, 12).view(6, 2)
        >>> state = ft.linearize(torch.nn.Linear(2, 3).eval(), x[:2], [0, 1], x[2:])
        >>> ft.acquire.entropy(state).shape
        torch.Size([4])
    """
    return finish_scores(state, shannon_entropy(_beliefs(state, "entropy")), "entropy")


@register("margin", needs="classes")
def margin(state: State) -> Tensor:
    """Minus the lead of the likeliest class over the next: p_j(2nd) − p_j(1st). Costs one forward pass; no options.

    The paper's code takes the two smallest probabilities by mistake (docs/errata.md).

    Args:
        state: a classifier, linearised.

    Returns:
        (U,) float64, −inf where a candidate is taken.

    Raises:
        ValueError: the network has one output; use ``variance``.

    Example:
        >>> import torch, foretaste as ft
        >>> x = torch.linspace(-1, 1, 12).view(6, 2)
        >>> state = ft.linearize(torch.nn.Linear(2, 3).eval(), x[:2], [0, 1], x[2:])
        >>> ft.acquire.margin(state).shape
        torch.Size([4])
    """
    top_U2 = _beliefs(state, "margin").topk(2, 1).values
    return finish_scores(state, top_U2[:, 1] - top_U2[:, 0], "margin")


@register("least_confidence", needs="classes")
def least_confidence(state: State) -> Tensor:
    """1 − the probability of the candidate's likeliest class. Costs one forward pass; no options.

    Args:
        state: a classifier, linearised.

    Returns:
        (U,) float64, −inf where a candidate is taken.

    Raises:
        ValueError: the network has one output; use ``variance``.

    Example:
        >>> import torch, foretaste as ft
        >>> x = torch.linspace(-1, 1, 12).view(6, 2)
        >>> state = ft.linearize(torch.nn.Linear(2, 3).eval(), x[:2], [0, 1], x[2:])
        >>> ft.acquire.least_confidence(state).shape
        torch.Size([4])
    """
    return finish_scores(state, 1 - _beliefs(state, "least_confidence").amax(1), "least_confidence")


def _beliefs(state: State, name: str) -> Tensor:
    need_classes(state, name, "variance")
    return probabilities(current_outputs(state), state.loss)
