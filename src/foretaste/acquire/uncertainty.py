"""Uncertainty of the candidate now (entropy, margin, least confidence), or of the watched points after it (EER, Eq. 2).

The first three need the candidates' own outputs only, and no kernel.
"""

from torch import Tensor

from foretaste.acquire.predictions import (
    current_outputs,
    expect_over_labels,
    finish_scores,
    narrow_blocks,
    need_classes,
    outputs_after,
)
from foretaste.acquire.registry import register
from foretaste.lookahead import State
from foretaste.losses import probabilities, shannon_entropy


@register("entropy", needs="classes", pointwise=True)
def entropy(state: State) -> Tensor:
    """The entropy of the candidate's probabilities, −Σ_y p_j(y) log p_j(y). Costs one forward pass; no options."""
    return finish_scores(state, shannon_entropy(_beliefs(state, "entropy")), "entropy")


@register("margin", needs="classes", pointwise=True)
def margin(state: State) -> Tensor:
    """Minus the lead of the likeliest class over the next: p_j(2nd) − p_j(1st). Costs one forward pass; no options.

    The paper's code takes the two smallest probabilities by mistake (docs/errata.md).
    """
    top_U2 = _beliefs(state, "margin").topk(2, 1).values
    return finish_scores(state, top_U2[:, 1] - top_U2[:, 0], "margin")


@register("least_confidence", needs="classes", pointwise=True)
def least_confidence(state: State) -> Tensor:
    """1 − the probability of the candidate's likeliest class. Costs one forward pass; no options."""
    return finish_scores(state, 1 - _beliefs(state, "least_confidence").amax(1), "least_confidence")


@register("eer", needs=("kernel", "classes"))
def eer(state: State) -> Tensor:
    """Expected error reduction (EER, Eq. 2): −Σ_y p_j(y) Σ_i H(p⁺_i), minus the entropy expected to be left.

    Cost: W·U·C for each label of positive probability; outputs are formed in blocks. No options.
    """
    need_classes(state, "eer", "variance")

    def left(S_Wu: Tensor, a_uC: Tensor) -> Tensor:
        return shannon_entropy(probabilities(outputs_after(state, S_Wu, a_uC), state.loss)).sum(1)

    p_UC = probabilities(current_outputs(state), state.loss)
    return finish_scores(state, -expect_over_labels(state, p_UC, left, narrow_blocks(state)), "eer")


def _beliefs(state: State, name: str) -> Tensor:
    need_classes(state, name, "variance")
    return probabilities(current_outputs(state), state.loss)
