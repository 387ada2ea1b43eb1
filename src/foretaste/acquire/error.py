"""Expected error reduction (Eq. 2)."""

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


@register("eer", needs=("kernel", "classes"))
def eer(state: State) -> Tensor:
    """−Σ_y p_j(y) Σ_i H(p⁺_i): minus the expected entropy left on the watched points (Eq. 2), (U,)."""
    need_classes(state, "eer", "variance")

    def left(S_Wu: Tensor, a_uC: Tensor) -> Tensor:
        return shannon_entropy(probabilities(outputs_after(state, S_Wu, a_uC), state.loss)).sum(1)

    p_UC = probabilities(current_outputs(state), state.loss)
    return finish_scores(state, -expect_over_labels(state, p_UC, left, narrow_blocks(state)), "eer")
