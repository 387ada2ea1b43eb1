"""BADGE: a batch that is uncertain and diverse at once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from foretaste.acquire import register
from foretaste.errors import did_you_mean
from foretaste.losses import LOSSES, probabilities
from foretaste.query.last_layer import find_last_layer, last_layer_inputs
from foretaste.query.request import Request
from foretaste.tangent import freeze

# k-means++ seeding (Arthur and Vassilvitskii 2007) of points g = q ⊗ h that are never formed.
#
#     ⟨g, g′⟩ = ⟨q, q′⟩⟨h, h′⟩,  so  ‖g_i − g_j‖² = n_i + n_j − 2 ⟨q_i, q_j⟩⟨h_i, h_j⟩  with  n = ‖q‖²‖h‖²
#
# A step costs U·(C + D), and the C·D of an explicit g never stands in memory.


FIRST_CENTRES = ("largest", "uniform")


def kmeanspp(
    q_UC: Tensor,
    h_UD: Tensor,
    batch_size: int,
    generator: torch.Generator,
    *,
    first: str = "largest",
    copy: float | None = None,
) -> Tensor:
    """(batch_size,) different positions, on the CPU: each drawn with probability D²/ΣD², D to the nearest one before.

    first: "largest" is the largest norm, equals by lot; "uniform" is any. copy: a squared distance below this fraction
    of n_i + n_j is rounding, and counts as none; 32 ε unless told. Where no distance is left (the rest are copies of
    what was picked), the rest is drawn uniformly. A draw is U exponentials of the CPU's ``generator``, the largest D²/e
    wins: it is exact, it cannot choose a point of no weight, and it is the same on every device.
    """
    q_UC, h_UD = _unit_rows(q_UC), _unit_rows(h_UD)
    norms_U = q_UC.square().sum(1) * h_UD.square().sum(1)
    copy = 32 * torch.finfo(norms_U.dtype).eps if copy is None else copy
    open_U = torch.ones_like(norms_U)
    nearest_U = torch.full_like(norms_U, torch.inf)
    weight_U = (norms_U == norms_U.max()).to(norms_U) if first == "largest" else open_U
    picks = torch.empty(batch_size, dtype=torch.int64, device=norms_U.device)
    for n in range(batch_size):
        j = _draw_weighted(weight_U, generator)
        picks[n : n + 1] = j
        open_U.index_fill_(0, j, 0)
        nearest_U = torch.minimum(nearest_U, _squared_distances(q_UC, h_UD, norms_U, j, copy))
        weight_U = nearest_U * open_U
        weight_U = torch.where(weight_U.max() > 0, weight_U, open_U)
    return picks.cpu()


def _unit_rows(v_UN: Tensor) -> Tensor:
    """Largest entry 1: the choice does not depend on the scale, and squares of squares neither overflow nor vanish."""
    most = v_UN.abs().max()
    return v_UN / torch.where(most > 0, most, 1)


def _squared_distances(q_UC: Tensor, h_UD: Tensor, norms_U: Tensor, j: Tensor, copy: float) -> Tensor:
    """‖g_i − g_j‖², (U,). j is (1,) and stays on the device: nothing here waits for it."""
    across_U = (q_UC @ q_UC.index_select(0, j)[0]) * (h_UD @ h_UD.index_select(0, j)[0])
    both_U = norms_U + norms_U.index_select(0, j)
    d_U = both_U - 2 * across_U
    return torch.where(d_U > copy * both_U, d_U, 0)


def _draw_weighted(weight_U: Tensor, generator: torch.Generator) -> Tensor:
    """(1,): position i with probability weight_i / Σ weight."""
    e_U = torch.empty(len(weight_U), dtype=torch.float64).exponential_(generator=generator)
    e_U = e_U.clamp_min_(1e-30).to(weight_U)  # a draw of 0 would beat every weight
    return (weight_U / weight_U.max() / e_U).argmax(0, keepdim=True)


# BADGE: a batch that is uncertain and diverse at once.


BADGE_GRADIENTS = ("loss", "ce")
# ‖g − g′‖² between two copies of a point, as a fraction of their norms: what a pass in that precision leaves.
COPY_TOLERANCE = {torch.float32: 1e-8, torch.float64: 1e-13}


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
        for name, known in (("gradient", BADGE_GRADIENTS), ("first", FIRST_CENTRES)):
            if (came := getattr(self, name)) not in known:
                raise ValueError(f"{name}={came!r} of strategy 'badge'{did_you_mean(came, known, 'Known')}")
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
    frozen = freeze(request.net, params=lambda name: True)  # a frozen network has features too
    name = find_last_layer(frozen, request.x_U, layer)
    f_UC, h_UD = last_layer_inputs(frozen, request.x_U, name, last=layer is None)
    q_UC = loss_residuals(f_UC, request.loss, gradient)
    if bias:
        h_UD = torch.cat([h_UD, h_UD.new_ones(len(h_UD), 1)], 1)
    picks = kmeanspp(q_UC, h_UD, request.batch_size, request.generator, first=first, copy=COPY_TOLERANCE[frozen.dtype])
    return picks, q_UC.norm(dim=1) * h_UD.norm(dim=1)


def loss_residuals(f_UC: Tensor, loss: str, gradient: str = "loss") -> Tensor:
    """(U, C): ∂ℓ/∂f at the predicted label; p − ŷ, or f − ŷ of ½‖f − ŷ‖²."""
    q_UC = f_UC.clone() if LOSSES[loss].quadratic and gradient == "loss" else probabilities(f_UC, loss)
    at_U1 = f_UC.argmax(1, keepdim=True)
    return q_UC.scatter_add_(1, at_U1, -torch.ones_like(at_U1, dtype=q_UC.dtype))
