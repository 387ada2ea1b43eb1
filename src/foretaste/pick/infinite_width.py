"""Look-ahead with the infinite-width kernel: with the trained network's outputs (``infinite``), or as a model (``gp``).

Both are in Fig. 1b, as "NN Inf NTK" and "GP Inf NTK". Θ is that of the network's counterpart at infinite width. It
depends on layers and widths, not on trained weights, and is computed once for each query.
"""

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretaste.acquire import mlmoc, register
from foretaste.errors import did_you_mean
from foretaste.lookahead import BinaryOutputs, from_kernels, label_rules, leave_one_out, ridge_factor
from foretaste.losses import LOSSES
from foretaste.pick.request import Request
from foretaste.pick.select import highest_scores
from foretaste.tangent import DEFAULT_RIDGE, Inputs, check_inputs, count_points, outputs
from foretaste.tangent.infinite import PARAMETRISATIONS, Layer, Serial, counterpart, infinite_ntk

log = logging.getLogger("foretaste")

DIAGONAL_CHUNK = 8  # points at a time where only the diagonal is needed: a call has a cost too


@dataclass(frozen=True)
class InfiniteOptions:
    """Which infinite network.

    parametrisation: "standard" (torch's, default) or "ntk".
    W_std, b_std: standard deviations of weights and biases in every layer; default √2 and 0. Not with layers in spec.
    spec: layers of ``foretaste.tangent.infinite``, or another network, for a network without a counterpart.
    """

    parametrisation: str = "standard"
    W_std: float | None = None
    b_std: float | None = None
    spec: Any = None

    def __post_init__(self) -> None:
        if self.parametrisation not in PARAMETRISATIONS:
            known = did_you_mean(self.parametrisation, PARAMETRISATIONS, "Known")
            raise ValueError(f"unknown parametrisation {self.parametrisation!r}{known}")
        if self.spec is None or isinstance(self.spec, nn.Module):
            return
        if isinstance(self.spec, type) or not hasattr(self.spec, "apply") or not hasattr(self.spec, "shape"):
            raise TypeError(
                f"spec is {self.spec!r}; expected layers of foretaste.tangent.infinite, as Serial(Dense(64), Relu(), "
                "Dense(10)), or a torch network that has a counterpart"
            )
        if self.W_std is not None or self.b_std is not None:
            raise ValueError("W_std and b_std are for the counterpart of a network; set them in the layers of spec")


# --- the strategies ---


@register("infinite", needs="classes", select="own", options=InfiniteOptions)
def infinite(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """MLMOC (Eq. 13) with the trained network's f and the infinite-width Θ, as in Borsos et al. 2020.

    All else is as in ``mlmoc``: the residual of f on L, the ridge (1e-6 of this Θ's mean diagonal), the loss. With
    loss="ce" the scale of Θ matters; that of the infinite Θ comes from W_std and the parametrisation. Θ is the same for
    every logit and for their sum, so ``output`` is not used. Options: ``InfiniteOptions``. Cost: the infinite kernel of
    all pairs of points, and one pass over S.
    """
    p = _infinite_problem(request, "infinite", InfiniteOptions(**options))
    responses_LC = LOSSES[request.loss].responses(p.f_LC)  # cross-entropy: softmax outputs, as targets are
    request.info["residual_L"] = float((responses_LC - p.y_LC).square().mean())
    return _most_change(request, p, request.loss, request.kernel.given_ridge)


@register("gp", needs="classes", select="own", options=InfiniteOptions)
def gp(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """MLMOC (Eq. 13) of a Gaussian process with the infinite-width Θ as the model itself: its mean in place of f.

        m(x) = 1/C + Θ(x, L) (Θ_LL + λI)⁻¹ (Y − 1/C)

    Targets are 0/1, centred by 1/C, and the process starts from zero. The look-ahead is then exact: f⁺ is the process
    fitted anew. Of the network only its layers and the number of classes are used, not its weights, and not ``loss``.
    ``gp_predict`` gives its predictions. Its leave-one-out accuracy on L goes to the log and to ``q.info``, as
    "leave_one_out_accuracy"; NaN with an empty L. Options: ``InfiniteOptions``. Cost: as ``infinite``.
    """
    p = _infinite_problem(request, "gp", InfiniteOptions(**options))
    ridge, accuracy, y_LC = request.kernel.given_ridge, math.nan, p.y_LC
    m_UC, m_WC = (torch.full_like(f_NC, 1 / request.C) for f_NC in (p.f_UC, p.f_WC))
    if L := len(y_LC):
        ridge = gp_ridge(ridge, p.LL)
        m_UC = gp_regress(p.LL, p.UL, y_LC, ridge)
        m_WC = m_UC if p.WL is None else gp_regress(p.LL, p.WL, y_LC, ridge)
        accuracy = float((gp_leave_one_out(p.LL, y_LC, ridge).argmax(1) == y_LC.argmax(1)).double().mean())
        log.info("gp: accuracy %.3f on the %d labelled points, each left out in turn", accuracy, L)
    request.info["leave_one_out_accuracy"] = accuracy
    # The mean has learned L already. With y_L as f on L, no residual is left to be learned again.
    return _most_change(request, replace(p, f_LC=y_LC, f_WC=m_WC, f_UC=m_UC), "l2", ridge)


@dataclass(frozen=True)
class InfiniteProblem:
    """Θ and f between L, W and U, and the targets of L. WL and diag_U are None for W = U."""

    LL: Tensor
    WL: Tensor | None
    UL: Tensor
    WU: Tensor
    diag_U: Tensor | None
    f_LC: Tensor
    f_WC: Tensor
    f_UC: Tensor
    y_LC: Tensor


def _infinite_problem(request: Request, name: str, how: InfiniteOptions) -> InfiniteProblem:
    """f, checked as in ``linearize``, and the infinite Θ. Not by a state: it would warn about the residual on L."""
    if request.params is not None:
        raise ValueError(
            f"params= chooses parameters of the network, and strategy {name!r} has the infinite-width Θ of all its "
            'layers; leave it out, or give options={"spec": layers}'
        )
    layer = infinite_layer(request.given_net, how)
    x_L, y_L, x_U, x_W = request.x_L, request.y_L, request.x_U, request.x_W
    if (x_L is None) != (y_L is None):
        raise ValueError("one of x_L and y_L is None; give both, or None for both if nothing is labelled")
    frozen = request.frozen  # only its outputs are used
    f_UC = outputs(frozen, x_U, name="x_U")
    f_LC = y_LC = f_UC[:0]
    binary = isinstance(request.net, BinaryOutputs)
    labels = label_rules(y_L, f_UC.shape[1], request.loss, frozen.device, f_UC.device, binary=binary)
    if x_L is not None and (request.L or len(y_L)):
        check_inputs(x_L, "x_L", frozen.device, like=x_U)
        y_LC, f_LC = labels.targets(y_L, request.L, "y_L"), outputs(frozen, x_L, name="x_L")
    f_WC = f_UC
    if x_W is not x_U:
        check_inputs(x_W, "watch", frozen.device, like=x_U)
        if count_points(x_W) == 0:
            raise ValueError("watch has no points; give at least one, or None to watch the pool")
        f_WC = outputs(frozen, x_W, name="watch")
    labelled, apart = x_L if len(y_LC) else None, None if x_W is x_U else x_W
    theta = infinite_blocks(layer, labelled, x_U, apart, how.parametrisation, request.budget)
    return InfiniteProblem(*theta, f_LC, f_WC, f_UC, y_LC)


def _most_change(request: Request, p: InfiniteProblem, loss: str, ridge: float | None) -> tuple[Tensor, Tensor]:
    """The batch of highest MLMOC on these kernels and outputs, and all scores."""
    f_W = None if p.WL is None else p.f_WC
    # The sum of the two logits (0, f) of a binary network has the kernel Θ_f / 2 (``BinaryOutputs``).
    halved = isinstance(request.net, BinaryOutputs) and not LOSSES[loss].quadratic
    state = from_kernels(
        p.LL, p.WL, p.UL, p.WU, p.diag_U, p.f_LC, f_W, p.f_UC, p.y_LC, ridge=ridge, loss=loss, method=request.method,
        theta_scale=0.5 if halved else 1.0,
    )  # fmt: skip
    scores_U = mlmoc(state)
    request.info.update(method=state.method, watched=state.W, ridge=state.ridge)
    return highest_scores(scores_U, request.batch_size, request.generator), scores_U


# --- a Gaussian process with the infinite-width kernel, as a classifier: kernel regression on centred 0/1 targets ---


def gp_predict(
    net: nn.Module | Layer,
    x_L: Tensor,
    y_L: Tensor,
    x: Tensor,
    *,
    classes: int | None = None,
    ridge: float | None = None,
    parametrisation: str = "standard",
    W_std: float | None = None,
    b_std: float | None = None,
    budget: int | str | None = None,
) -> Tensor:
    """Predictions of the Gaussian process of strategy ``gp``: 1/C + Θ(x, L) (Θ_LL + λI)⁻¹ (Y − 1/C).

    Args:
        net: a network that has a counterpart (its weights are not used), or layers of ``foretaste.tangent.infinite``.
        x_L: (L, ...) labelled points.
        y_L: class ids (L,), or targets (L, C).
        x: (N, ...) points to predict.
        classes: the number of classes. None (default): the width of the last layer.
        ridge: λ. None (default): 1e-6 of the mean diagonal of Θ_LL.
        parametrisation, W_std, b_std: see ``InfiniteOptions``.
        budget: memory, in bytes or as "8GB". None (default): half of the free memory.

    Returns:
        (N, C) float64; argmax is the class.

    Raises:
        TypeError: a layer has no infinite-width counterpart.
        ValueError: labels do not fit.

    Example:
        >>> import torch
        >>> from foretaste.pick import gp_predict
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> x_L, y_L = torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
        >>> gp_predict(net, x_L, y_L, torch.tensor([[0.8, 0.1]])).argmax(1)
        tensor([1])
    """
    own = isinstance(net, nn.Module)
    how = InfiniteOptions(parametrisation, W_std, b_std, None if own else net)
    layer = infinite_layer(net if own else nn.Identity(), how)  # type: ignore[arg-type]
    y_LC = _gp_targets(y_L, len(x_L), _gp_classes(layer) if classes is None else classes)
    theta_LL = infinite_ntk(layer, x_L, parametrisation=parametrisation, budget=budget)
    theta_NL = infinite_ntk(layer, x, x_L, parametrisation=parametrisation, budget=budget)
    return gp_regress(theta_LL, theta_NL, y_LC.to(theta_LL), gp_ridge(ridge, theta_LL))


def gp_ridge(ridge: float | None, theta_LL: Tensor) -> float:
    """λ as given, or 1e-6 of the mean diagonal of Θ_LL."""
    return DEFAULT_RIDGE * float(theta_LL.diagonal().mean()) if ridge is None else ridge


def gp_regress(theta_LL: Tensor, theta_NL: Tensor, y_LC: Tensor, ridge: float) -> Tensor:
    """1/C + Θ_NL (Θ_LL + λI)⁻¹ (Y − 1/C), (N, C)."""
    C = y_LC.shape[1]
    return 1 / C + theta_NL @ torch.cholesky_solve(y_LC - 1 / C, ridge_factor(theta_LL, ridge))


def gp_leave_one_out(theta_LL: Tensor, y_LC: Tensor, ridge: float) -> Tensor:
    """(L, C): the prediction of each labelled point by all others, y_i − α_i / (A⁻¹)_ii with α = A⁻¹(Y − 1/C)."""
    alpha_LC, d_L1 = leave_one_out(ridge_factor(theta_LL, ridge), y_LC - 1 / y_LC.shape[1])
    return y_LC - alpha_LC / d_L1


def _gp_classes(layer: Any) -> int | None:
    """The number of outputs: the width of the last layer, if it has one."""
    while isinstance(layer, Serial) and layer.layers:
        layer = layer.layers[-1]
    return getattr(layer, "width", None)


def _gp_targets(y_L: Tensor, L: int, classes: int | None) -> Tensor:
    if not isinstance(y_L, Tensor) or y_L.dim() == 0 or len(y_L) != L or L == 0:
        came = tuple(y_L.shape) if isinstance(y_L, Tensor) else f"a {type(y_L).__name__}"
        raise ValueError(f"y_L is {came} for {L} points; expected a tensor of at least one label, one a point")
    if y_L.is_floating_point():
        if y_L.dim() != 2 or y_L.shape[1] < 2 or not torch.isfinite(y_L).all():
            raise ValueError(f"y_L has floats of shape {tuple(y_L.shape)}; expected finite ({L}, C), or class ids")
        return y_L
    if classes is None or classes < 2:
        raise ValueError(f"classes is {classes}, as the last layer's width is; give classes=, 2 or more")
    if y_L.dim() != 1 or y_L.dtype == torch.bool or int(y_L.min()) < 0 or int(y_L.max()) >= classes:
        raise ValueError(f"y_L holds {y_L.dtype} {tuple(y_L.shape)} outside 0 to {classes - 1}, one a point")
    return F.one_hot(y_L.long(), classes)


# --- the infinite-width kernel between L, W and U ---


def infinite_layer(net: nn.Module, how: InfiniteOptions) -> Layer:
    """The infinite network to use. Raises and names the option if ``net`` has no counterpart."""
    if not isinstance(how.spec, nn.Module | None):
        return how.spec
    scale = {"W_std": how.W_std, "b_std": how.b_std}
    given: dict[str, float] = {k: v for k, v in scale.items() if v is not None}
    try:
        return counterpart(net if how.spec is None else how.spec, **given)
    except (TypeError, ValueError) as e:
        hint = '; options={"spec": layers} says which infinite network to use' if how.spec is None else ""
        raise type(e)(f"{e}{hint}") from None


def infinite_blocks(
    layer: Layer, x_L: Inputs | None, x_U: Inputs, x_W: Inputs | None, parametrisation: str, budget: int | str | None
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]:
    """LL, WL, UL, WU and diag_U of Θ in one run: L and U with themselves (half the work), or L and W with L and U."""
    for name, x in (("x_L", x_L), ("x_U", x_U), ("watch", x_W)):
        if x is not None and not (isinstance(x, Tensor) and x.is_floating_point()):
            what = x.dtype if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise TypeError(f"{name} is {what}; the infinite-width kernel takes floating tensors")

    def theta(x: Tensor, x2: Tensor | None = None) -> Tensor:
        return infinite_ntk(layer, x, x2, parametrisation=parametrisation, budget=budget)

    def after_L(x: Any) -> Tensor:
        return x if x_L is None else torch.cat([x_L, x])  # type: ignore[list-item]

    L = 0 if x_L is None else len(x_L)
    if x_W is None:
        t = theta(after_L(x_U))
        return t[:L, :L], None, t[L:, :L], t[L:, L:], None
    t = theta(after_L(x_W), after_L(x_U))
    diag_U = torch.cat([theta(x_u).diagonal() for x_u in x_U.split(DIAGONAL_CHUNK)])  # type: ignore[union-attr]
    return t[:L, :L], t[L:, :L], t[:L, L:].T, t[L:, L:], diag_U
