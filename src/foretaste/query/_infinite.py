"""Look-ahead with the infinite-width kernel: with the trained network's outputs (``infinite``), or as a model (``gp``).

Both are of Fig. 1b, "NN Inf NTK" and "GP Inf NTK". Θ is that of the network's counterpart at infinite width, which
knows its layers and widths and nothing of its trained weights. It is computed once a query.
"""

import logging
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import mlmoc, register
from foretaste.query._gp import leave_one_out, regress, resolved
from foretaste.query._infinite_kernel import Blocks, Infinite, blocks, layer_of
from foretaste.query._lookaheads import asked, ranked, watched
from foretaste.query._request import Request
from foretaste.retrain import State, from_kernels
from foretaste.tangent import outputs

log = logging.getLogger("foretaste")


@register("infinite", needs="classes", picks=True, options=Infinite)
def infinite(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """MLMOC (Eq. 13) with the trained network's f and the infinite-width Θ, as Borsos et al. 2020 use it.

    All else is ``mlmoc``: the residual of f on L, the ridge (1e-6 of this Θ's mean diagonal), the loss. With
    loss="ce" the scale of Θ matters, and the infinite Θ's is that of W_std and the parametrisation.
    """
    state, f_WC, k = _ask(request, "infinite", Infinite(**options))
    f_LC = outputs(request.net, request.x_L, name="x_L") if state.L else state.pool_net[:0]  # type: ignore[arg-type]
    y_L = request.y_L if state.L else None
    return _most_change(request, k, f_LC, f_WC, state.pool_net, y_L, request.loss, state._problem.ridge)


@register("gp", needs="classes", picks=True, options=Infinite)
def gp(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """MLMOC (Eq. 13) of a Gaussian process with the infinite-width Θ as the model itself: its mean in place of f.

        m(x) = 1/C + Θ(x, L) (Θ_LL + λI)⁻¹ (Y − 1/C)

    Targets are 0/1, centred by 1/C, and the process starts from zero. The look-ahead is then exact: f⁺ is the process
    fitted anew. Of the network only layers and number of classes count, not its weights nor ``loss``. ``gp_predict``
    tells what it predicts; its accuracy on L, each point left out in turn, goes to the log.
    """
    state, f_WC, k = _ask(request, "gp", Infinite(**options))
    ridge = state._problem.ridge
    m_UC, m_WC = (torch.full_like(f_NC, 1 / state.C) for f_NC in (state.pool_net, f_WC))
    y_LC = m_UC[:0]
    if state.L:
        y_LC, ridge = state.targets(request.y_L), resolved(ridge, k.LL)
        m_UC = regress(k.LL, k.UL, y_LC, ridge)
        m_WC = m_UC if k.WL is None else regress(k.LL, k.WL, y_LC, ridge)
        hits = float((leave_one_out(k.LL, y_LC, ridge).argmax(1) == y_LC.argmax(1)).double().mean())
        log.info("gp: accuracy %.3f on the %d labelled points, each left out in turn", hits, state.L)
    # The mean has absorbed L: with y_L as f on L, no residual is left to be absorbed once more.
    return _most_change(request, k, y_LC, m_WC, m_UC, y_LC, "l2", ridge)


def _ask(request: Request, name: str, how: Infinite) -> tuple[State, Tensor, Blocks]:
    """The network's state (checks, f; its own Θ is never computed), f on the watched points, and the infinite Θ."""
    layer = layer_of(request.net, how)
    state = asked(request, name)
    x_W, f_WC = watched(request, how.watch)
    x_L = request.x_L if state.L else None
    return state, f_WC, blocks(layer, x_L, request.x_U, None if x_W is request.x_U else x_W, how)


def _most_change(
    request: Request, k: Blocks, f_LC: Tensor, f_WC: Tensor, f_UC: Tensor, y_L: Any, loss: str, ridge: float | None
) -> tuple[Tensor, Tensor]:
    f_W = None if k.WL is None else f_WC
    state = from_kernels(k.LL, k.WL, k.UL, k.WU, k.diag_U, f_LC, f_W, f_UC, y_L, ridge=ridge, loss=loss)
    return ranked(request, mlmoc(state))
