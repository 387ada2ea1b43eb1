"""Expected error reduction (Eq. 2)."""

from torch import Tensor

from foretaste.acquire._opinion import finish, need_classes, opinions
from foretaste.acquire._outputs import after, expect, narrow_blocks
from foretaste.acquire._probabilities import probabilities, surprise
from foretaste.acquire._registry import register
from foretaste.retrain import State


@register("eer", needs=("kernel", "classes"))
def eer(state: State) -> Tensor:
    """−Σ_y p_j(y) Σ_i H(p⁺_i): minus the expected entropy left on the watched points (Eq. 2), (U,)."""
    need_classes(state, "eer", "variance")

    def left(S_Wu: Tensor, a_uC: Tensor) -> Tensor:
        return surprise(probabilities(after(state, S_Wu, a_uC), state.loss)).sum(1)

    p_UC = probabilities(opinions(state), state.loss)
    return finish(state, -expect(state, p_UC, left, narrow_blocks(state)), "eer")
