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

from foretaste.acquire import pseudo_labels, register
from foretaste.query._lookaheads import Running, asked, ranked, rates, retrained, watched
from foretaste.query._naive import moved
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
    how, state = OneStep(**options), asked(request, "onestep")
    x_W, f_WC = watched(request, how.watch)
    jobs_U2 = torch.stack([torch.arange(request.U, device=f_WC.device), pseudo_labels(state).argmax(1)], 1)
    alone = (Step(torch.empty(0, dtype=torch.int64, device=f_WC.device), 1),)
    change = moved(f_WC, request.loss)
    scores_U = retrained(request, "onestep", jobs_U2, alone, how.lr, 0.0, change, x_W, how)
    return ranked(request, scores_U)
