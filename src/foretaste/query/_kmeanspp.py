"""k-means++ seeding (Arthur and Vassilvitskii 2007) of points g = q ⊗ h that are never formed.

    ⟨g, g′⟩ = ⟨q, q′⟩⟨h, h′⟩,  so  ‖g_i − g_j‖² = n_i + n_j − 2 ⟨q_i, q_j⟩⟨h_i, h_j⟩  with  n = ‖q‖²‖h‖²

A step costs U·(C + D), and the C·D of an explicit g never stands in memory.
"""

import torch
from torch import Tensor

FIRST = ("largest", "uniform")


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
    q_UC, h_UD = _unit(q_UC), _unit(h_UD)
    norms_U = q_UC.square().sum(1) * h_UD.square().sum(1)
    copy = 32 * torch.finfo(norms_U.dtype).eps if copy is None else copy
    open_U = torch.ones_like(norms_U)
    nearest_U = torch.full_like(norms_U, torch.inf)
    weight_U = (norms_U == norms_U.max()).to(norms_U) if first == "largest" else open_U
    picks = torch.empty(batch_size, dtype=torch.int64, device=norms_U.device)
    for n in range(batch_size):
        j = _draw(weight_U, generator)
        picks[n : n + 1] = j
        open_U.index_fill_(0, j, 0)
        nearest_U = torch.minimum(nearest_U, _distances(q_UC, h_UD, norms_U, j, copy))
        weight_U = nearest_U * open_U
        weight_U = torch.where(weight_U.max() > 0, weight_U, open_U)
    return picks.cpu()


def _unit(v_UN: Tensor) -> Tensor:
    """Largest entry 1: the choice does not depend on the scale, and squares of squares neither overflow nor vanish."""
    most = v_UN.abs().max()
    return v_UN / torch.where(most > 0, most, 1)


def _distances(q_UC: Tensor, h_UD: Tensor, norms_U: Tensor, j: Tensor, copy: float) -> Tensor:
    """‖g_i − g_j‖², (U,). j is (1,) and stays on the device: nothing here waits for it."""
    across_U = (q_UC @ q_UC.index_select(0, j)[0]) * (h_UD @ h_UD.index_select(0, j)[0])
    both_U = norms_U + norms_U.index_select(0, j)
    d_U = both_U - 2 * across_U
    return torch.where(d_U > copy * both_U, d_U, 0)


def _draw(weight_U: Tensor, generator: torch.Generator) -> Tensor:
    """(1,): position i with probability weight_i / Σ weight."""
    e_U = torch.empty(len(weight_U), dtype=torch.float64).exponential_(generator=generator)
    e_U = e_U.clamp_min_(1e-30).to(weight_U)  # a draw of 0 would beat every weight
    return (weight_U / weight_U.max() / e_U).argmax(0, keepdim=True)
