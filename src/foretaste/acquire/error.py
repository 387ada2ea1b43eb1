"""Expected error reduction, EER (Eq. 2)."""

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
    """Expected error reduction (EER, Eq. 2): −Σ_y p_j(y) Σ_i H(p⁺_i), minus the entropy expected to be left.

    Cost: W·U·C for each label of positive probability; outputs are formed in blocks. No options.

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
        >>> ft.acquire.eer(state).shape
        torch.Size([4])
    """
    need_classes(state, "eer", "variance")

    def left(S_Wu: Tensor, a_uC: Tensor) -> Tensor:
        return shannon_entropy(probabilities(outputs_after(state, S_Wu, a_uC), state.loss)).sum(1)

    p_UC = probabilities(current_outputs(state), state.loss)
    return finish_scores(state, -expect_over_labels(state, p_UC, left, narrow_blocks(state)), "eer")
