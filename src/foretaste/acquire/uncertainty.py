"""Entropy, margin, least confidence: from the candidates' own outputs, so that no kernel is computed."""

from torch import Tensor

from foretaste.acquire.predictions import current_outputs, finish_scores, need_classes
from foretaste.acquire.registry import register
from foretaste.lookahead import State
from foretaste.losses import probabilities, shannon_entropy


@register("entropy", needs="classes")
def entropy(state: State) -> Tensor:
    """H(p_j), (U,)."""
    return finish_scores(state, shannon_entropy(_beliefs(state, "entropy")), "entropy")


@register("margin", needs="classes")
def margin(state: State) -> Tensor:
    """Minus the lead of the likeliest class over the next (the paper's code takes the two smallest), (U,)."""
    top_U2 = _beliefs(state, "margin").topk(2, 1).values
    return finish_scores(state, top_U2[:, 1] - top_U2[:, 0], "margin")


@register("least_confidence", needs="classes")
def least_confidence(state: State) -> Tensor:
    """1 − the probability of the likeliest class, (U,)."""
    return finish_scores(state, 1 - _beliefs(state, "least_confidence").amax(1), "least_confidence")


def _beliefs(state: State, name: str) -> Tensor:
    need_classes(state, name, "variance")
    return probabilities(current_outputs(state), state.loss)
