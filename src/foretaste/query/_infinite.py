"""Look-ahead with the infinite-width kernel: with the trained network's outputs (``infinite``), or as a model (``gp``).

Both are of Fig. 1b, "NN Inf NTK" and "GP Inf NTK". Θ is that of the network's counterpart at infinite width, which
knows its layers and widths and nothing of its trained weights. It is computed once a query.
"""

import logging
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import mlmoc, register
from foretaste.query._gp import leave_one_out, regress, resolved
from foretaste.query._infinite_kernel import Blocks, Infinite, blocks, layer_of
from foretaste.query._pick import highest
from foretaste.query._request import Request
from foretaste.retrain import from_kernels
from foretaste.retrain._labels import labels_of
from foretaste.tangent import check_inputs, outputs, size, subject

log = logging.getLogger("foretaste")


@register("infinite", needs="classes", picks=True, options=Infinite)
def infinite(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """MLMOC (Eq. 13) with the trained network's f and the infinite-width Θ, as Borsos et al. 2020 use it.

    All else is ``mlmoc``: the residual of f on L, the ridge (1e-6 of this Θ's mean diagonal), the loss. With
    loss="ce" the scale of Θ matters, and the infinite Θ's is that of W_std and the parametrisation. Θ is the same for
    every logit and their sum, so ``output`` plays no part.
    """
    f, k = _known(request, "infinite", Infinite(**options))
    request.info["residual_L"] = float((f.LC - f.y_LC).square().mean())
    return _most_change(request, k, f, request.loss, request.ridge)


@register("gp", needs="classes", picks=True, options=Infinite)
def gp(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """MLMOC (Eq. 13) of a Gaussian process with the infinite-width Θ as the model itself: its mean in place of f.

        m(x) = 1/C + Θ(x, L) (Θ_LL + λI)⁻¹ (Y − 1/C)

    Targets are 0/1, centred by 1/C, and the process starts from zero. The look-ahead is then exact: f⁺ is the process
    fitted anew. Of the network only layers and number of classes count, not its weights nor ``loss``. ``gp_predict``
    tells what it predicts; its accuracy on L, each point left out in turn, goes to the log and, as
    "leave_one_out_accuracy", to ``q.info``; NaN with an empty L.
    """
    f, k = _known(request, "gp", Infinite(**options))
    ridge, accuracy, C = request.ridge, math.nan, f.UC.shape[1]
    m_UC, m_WC = (torch.full_like(f_NC, 1 / C) for f_NC in (f.UC, f.WC))
    if L := len(f.y_LC):
        ridge = resolved(ridge, k.LL)
        m_UC = regress(k.LL, k.UL, f.y_LC, ridge)
        m_WC = m_UC if k.WL is None else regress(k.LL, k.WL, f.y_LC, ridge)
        accuracy = float((leave_one_out(k.LL, f.y_LC, ridge).argmax(1) == f.y_LC.argmax(1)).double().mean())
        log.info("gp: accuracy %.3f on the %d labelled points, each left out in turn", accuracy, L)
    request.info["leave_one_out_accuracy"] = accuracy
    # The mean has absorbed L: with y_L as f on L, no residual is left to be absorbed once more.
    return _most_change(request, k, Known(f.y_LC, m_WC, m_UC, f.y_LC), "l2", ridge)


@dataclass(frozen=True)
class Known:
    """f on L, W and U, and the targets of L."""

    LC: Tensor
    WC: Tensor
    UC: Tensor
    y_LC: Tensor


def _known(request: Request, name: str, how: Infinite) -> tuple[Known, Blocks]:
    """f, checked as ``linearize`` does, and the infinite Θ. No state: it would judge the network's residual on L."""
    if request.params is not None:
        raise ValueError(
            f"params= chooses parameters of the network, and strategy {name!r} has the infinite-width Θ of all its "
            'layers; leave it out, or give options={"spec": layers}'
        )
    layer = layer_of(request.net, how)
    x_L, y_L, x_U, x_W = request.x_L, request.y_L, request.x_U, request.x_W
    if (x_L is None) != (y_L is None):
        raise ValueError("one of x_L and y_L is None; give both, or None for both if nothing is labelled")
    subj = subject(request.net, params=lambda name: True)  # of which only outputs are taken
    f_UC = outputs(subj, x_U, name="x_U")
    f_LC = y_LC = f_UC[:0]
    labels = labels_of(y_L, f_UC.shape[1], request.loss, subj.device, f_UC.device)
    if x_L is not None and (request.L or len(y_L)):
        check_inputs(x_L, "x_L", subj.device, like=x_U)
        y_LC, f_LC = labels.targets(y_L, request.L, "y_L"), outputs(subj, x_L, name="x_L")
    f_WC = f_UC
    if x_W is not x_U:
        check_inputs(x_W, "watch", subj.device, like=x_U)
        if size(x_W) == 0:
            raise ValueError("watch has no points; give at least one, or None to watch the pool")
        f_WC = outputs(subj, x_W, name="watch")
    labelled, apart = x_L if len(y_LC) else None, None if x_W is x_U else x_W
    return Known(f_LC, f_WC, f_UC, y_LC), blocks(layer, labelled, x_U, apart, how.parametrisation, request.budget)


def _most_change(request: Request, k: Blocks, f: Known, loss: str, ridge: float | None) -> tuple[Tensor, Tensor]:
    f_W = None if k.WL is None else f.WC
    state = from_kernels(
        k.LL, k.WL, k.UL, k.WU, k.diag_U, f.LC, f_W, f.UC, f.y_LC, ridge=ridge, loss=loss, method=request.method
    )
    scores_U = mlmoc(state)
    request.info.update(method=type(state).__name__.lower(), watched=state.W, ridge=state.ridge)
    return highest(scores_U, request.batch_size, request.generator), scores_U
