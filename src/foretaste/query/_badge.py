"""BADGE: a batch that is uncertain and diverse at once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from foretaste.acquire import nearest, probabilities, register
from foretaste.query._features import features, last_layer
from foretaste.query._kmeanspp import FIRST, kmeanspp
from foretaste.query._request import Request
from foretaste.tangent import subject

GRADIENTS = ("loss", "ce")
# ‖g − g′‖² between two copies of a point, as a fraction of their norms: what a pass in that precision leaves.
COPY = {torch.float32: 1e-8, torch.float64: 1e-13}


@dataclass(frozen=True)
class BadgeOptions:
    """gradient: of the loss the network was trained with ("loss"), or of the cross-entropy whatever it was ("ce").

    They differ for loss="l2" only, where "loss" is q = f − y and "ce" q = p − y with p the projection of f on the
    simplex. first: "largest" norm, as the authors' code has it, or "uniform", as k-means++ has it. bias: the gradient
    of the last layer's bias too. layer: the module whose input is h, where the network does not end in an nn.Linear.
    """

    gradient: str = "loss"
    first: str = "largest"
    bias: bool = False
    layer: str | None = None

    def __post_init__(self) -> None:
        for name, known in (("gradient", GRADIENTS), ("first", FIRST)):
            if (came := getattr(self, name)) not in known:
                raise ValueError(f"{name}={came!r} of strategy 'badge'{nearest(came, known, 'Known')}")
        if not isinstance(self.bias, bool):
            raise ValueError(f"bias={self.bias!r} of strategy 'badge'; expected True or False")
        if not isinstance(self.layer, str | None):
            raise ValueError(f"layer={self.layer!r} of strategy 'badge'; expected the name of a module, or None")


@register("badge", needs="classes", picks=True, options=BadgeOptions)
def badge(
    request: Request, gradient: str = "loss", first: str = "largest", bias: bool = False, layer: str | None = None
) -> tuple[Tensor, Tensor]:
    """Ash et al. 2020, Alg. 1: k-means++ over g = ∂ℓ(f(x), ŷ)/∂W, W the last layer and ŷ the class predicted.

    g = (p − one-hot ŷ) ⊗ h(x), h what goes into W; kept as its two factors. Costs a pass over the pool and
    batch_size · U · (C + D). Scores are ‖g‖. See ``BadgeOptions`` and docs/badge.md for what was chosen.
    """
    subj = subject(request.net, params=lambda name: True)  # a frozen network has features too
    name = last_layer(subj, request.x_U, layer)
    f_UC, h_UD = features(subj, request.x_U, name, last=layer is None)
    q_UC = residuals(f_UC, request.loss, gradient)
    if bias:
        h_UD = torch.cat([h_UD, h_UD.new_ones(len(h_UD), 1)], 1)
    picks = kmeanspp(q_UC, h_UD, request.batch_size, request.generator, first=first, copy=COPY[subj.dtype])
    return picks, q_UC.norm(dim=1) * h_UD.norm(dim=1)


def residuals(f_UC: Tensor, loss: str, gradient: str = "loss") -> Tensor:
    """(U, C): ∂ℓ/∂f at the predicted label; p − ŷ, or f − ŷ of ½‖f − ŷ‖²."""
    q_UC = f_UC.clone() if loss == "l2" and gradient == "loss" else probabilities(f_UC, loss)
    at_U1 = f_UC.argmax(1, keepdim=True)
    return q_UC.scatter_add_(1, at_U1, -torch.ones_like(at_U1, dtype=q_UC.dtype))
