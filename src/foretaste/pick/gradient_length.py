"""Expected gradient length, EGL (Settles et al. 2008): how far one step of training on the label would go."""

import torch
from torch import Tensor

from foretaste.acquire import register
from foretaste.losses import LOSSES, probabilities
from foretaste.pick.request import Request
from foretaste.pick.select import highest_scores
from foretaste.tangent import GramJob, check_inputs, freeze, gram, take_points

GRADIENT_BLOCK = 2**22  # numbers of the C × C blocks of Θ at a time: 32 MB


@register("egl", needs="classes", picks=True)
def egl(request: Request) -> tuple[Tensor, Tensor]:
    """Expected gradient length: Σ_y p_j(y) ‖∂ℓ(f_j, y)/∂θ‖, exact; the highest are picked.

    ∂ℓ/∂θ = Σ_c q_c ∇f_c with q = f − y (½ squared loss) or p − y (cross-entropy). So its squared length is qᵀ Θ_jj q,
    Θ_jj the C × C block that the rules of the tangent engine give: the gradients themselves are never formed, and no
    label needs a pass of its own. Cost: UPC.

    Args:
        request: the question; ``ft.query(..., strategy="egl")`` makes it. ``params`` chooses the parameters of θ.

    Returns:
        The positions of the batch, and (U,) scores.

    Example:
        >>> import torch, foretaste as ft
        >>> x = torch.linspace(-1, 1, 12).view(6, 2)
        >>> len(ft.query(torch.nn.Linear(2, 3).eval(), x[:2], [0, 1], x[2:], strategy="egl", batch_size=3))
        3
    """
    frozen = freeze(request.frozen, output="full", params=request.params)
    check_inputs(request.x_U, "x_U", frozen.device)
    step, parts = max(1, GRADIENT_BLOCK // request.C**2), []
    for start in range(0, request.U, step):
        x_u = take_points(request.x_U, slice(start, start + step))
        own = gram(GramJob(frozen, {"U": x_u}, diagonals=["U"], budget=request.budget, classes=request.C))
        parts.append(expected_lengths(own.diagonals["U"], own.outputs["U"], request.loss))
        request.progress(min(start + step, request.U), request.U)
    scores_U = torch.cat(parts)
    return highest_scores(scores_U, request.batch_size, request.generator), scores_U


def expected_lengths(theta_uCC: Tensor, f_uC: Tensor, loss: str) -> Tensor:
    """(u,): Σ_y p(y) √(q_yᵀ Θ q_y). With q_y = g − e_y it is gᵀΘg − 2 (Θg)_y + Θ_yy: one product for all labels."""
    p_uC = probabilities(f_uC, loss)
    g_uC = f_uC if LOSSES[loss].quadratic else p_uC
    step_uC = torch.einsum("ucd,ud->uc", theta_uCC, g_uC)
    whole_u1 = (step_uC * g_uC).sum(1, keepdim=True)
    square_uC = whole_u1 - 2 * step_uC + theta_uCC.diagonal(dim1=1, dim2=2)
    return (p_uC * square_uC.clamp_min(0).sqrt()).sum(1)
