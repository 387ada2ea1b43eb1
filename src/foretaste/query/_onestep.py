"""Look-ahead by one step of SGD on the candidate alone: Fig. 1b's "NN 1-step".

To first order, with the full kernel Θ_ij (C, C) and −∂ℓ/∂f_j = 2(y′ − f_j)/C for L2, y′ − softmax f_j for CE,

    f⁺_i − f_i = η Θ_ij (−∂ℓ/∂f_j) + O(η²)

so L has no say in it: where the linearised look-ahead has S_ij / u_j, what L leaves unexplained, this has Θ_ij; and to
that order η scales all scores alike. What is scored here is the real f⁺, after the real step.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import register
from foretaste.query._lookaheads import Running, rates
from foretaste.query._naive import most_moved
from foretaste.query._request import Request
from foretaste.query._retraining import Step


@dataclass(frozen=True)
class OneStep(Running):
    """lr: η, by default what ``naive`` trains with: its first step, had the minibatch been the candidate alone."""

    lr: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        rates(self.lr)


@register("onestep", needs="classes", picks=True, options=OneStep)
def onestep(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """Σ_i ‖f(x_i; θ) − f(x_i; θ − η ∇ℓ(x′, y′))‖ with the likeliest label y′ = argmax f(x′) (Eq. 13).

    Käding, Rodner, Freytag and Denzler, Active and Continuous Exploration with Deep Neural Networks and Expected Model
    Output Changes, 2016; they take the expectation over labels (Eq. 3), the paper's Fig. 1b the likeliest one. Costs
    U backward and U W forward passes.
    """
    how = OneStep(**options)
    alone = Step(torch.empty(0, dtype=torch.int64, device=request.state.net.device), 1)
    return most_moved(request, "onestep", (alone,), how.lr, 0.0, how)
