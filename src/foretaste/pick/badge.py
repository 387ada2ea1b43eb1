"""BADGE: a batch that is uncertain and diverse at once (Ash et al. 2020, Alg. 1).

Each candidate has the gradient g of its loss at the predicted class, of the last layer's weights. A batch is a
k-means++ seeding of these: far apart, and long where the network is uncertain. The parts, in order: the strategy,
k-means++ on factors, and the inputs of the last layer.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.acquire import register
from foretaste.batches import batches, join_batches
from foretaste.errors import did_you_mean
from foretaste.lookahead import BinaryOutputs
from foretaste.losses import LOSSES, probabilities
from foretaste.pick.request import Request
from foretaste.tangent import (
    PROBE_POINTS,
    FrozenNetwork,
    Inputs,
    count_points,
    isolated,
    take_points,
    to_float64,
)

FIRST_CENTRES = ("largest", "uniform")

BADGE_GRADIENTS = ("loss", "ce")
# ‖g − g′‖² between two copies of a point, as a fraction of their squared norms: rounding of a pass in that precision.
COPY_TOLERANCE = {torch.float32: 1e-8, torch.float64: 1e-13}


@dataclass(frozen=True)
class BadgeOptions:
    """The options of ``badge``.

    gradient: of the loss the network was trained with ("loss"), or of the cross-entropy in any case ("ce"). They differ
        for loss="l2" only: "loss" is q = f − y, and "ce" is q = p − y with p the projection of f on the simplex.
    first: the first pick has the "largest" norm, as in the authors' code, or is "uniform", as in k-means++.
    bias: include the gradient of the last layer's bias.
    layer: the module whose input is h, if the network does not end in an nn.Linear.
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


@register("badge", needs="classes", select="own", options=BadgeOptions)
def badge(
    request: Request, gradient: str = "loss", first: str = "largest", bias: bool = False, layer: str | None = None
) -> tuple[Tensor, Tensor]:
    """BADGE (Ash et al. 2020, Alg. 1): k-means++ over g = ∂ℓ(f(x), ŷ)/∂W, W the last layer and ŷ the predicted class.

    g = (p − one-hot ŷ) ⊗ h(x) with h the input of W, kept as its two factors. Scores are ‖g‖. Cost: a pass over the
    pool and batch_size · U · (C + D). docs/badge.md explains the choices.
    """
    frozen = request.frozen
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


# --- k-means++ seeding (Arthur and Vassilvitskii 2007) of points g = q ⊗ h that are never formed ---
#
#     ⟨g, g′⟩ = ⟨q, q′⟩⟨h, h′⟩,  so  ‖g_i − g_j‖² = n_i + n_j − 2 ⟨q_i, q_j⟩⟨h_i, h_j⟩  with  n = ‖q‖²‖h‖²
#
# A step costs U·(C + D), and the C·D numbers of a g are never stored.


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

    first: "largest" takes the largest norm, ties at random; "uniform" any point. copy: a squared distance below this
    fraction of n_i + n_j is rounding and counts as zero; default 32 ε. If all distances are zero (the rest are copies
    of what was picked), the rest is drawn uniformly. A draw takes U exponentials e of the CPU's ``generator``, and the
    largest D²/e wins. That is exact, never chooses a point of zero weight, and is the same on every device.
    """
    q_UC, h_UD = _unit_rows(q_UC), _unit_rows(h_UD)
    norms_U = q_UC.square().sum(1) * h_UD.square().sum(1)
    copy = 32 * torch.finfo(norms_U.dtype).eps if copy is None else copy
    open_U = torch.ones_like(norms_U)
    nearest_U = torch.full_like(norms_U, torch.inf)
    weight_U = (norms_U == norms_U.max()).to(norms_U) if first == "largest" else open_U
    picks = torch.empty(batch_size, dtype=torch.int64, device=norms_U.device)
    for n in range(batch_size):
        j = draw_weighted(weight_U, generator)
        picks[n : n + 1] = j
        open_U.index_fill_(0, j, 0)
        nearest_U = torch.minimum(nearest_U, _squared_distances(q_UC, h_UD, norms_U, j, copy))
        weight_U = nearest_U * open_U
        weight_U = torch.where(weight_U.max() > 0, weight_U, open_U)
    return picks.cpu()


def _unit_rows(v_UN: Tensor) -> Tensor:
    """Scaled to a largest entry of 1: the choice does not depend on the scale, and fourth powers do not overflow."""
    most = v_UN.abs().max()
    return v_UN / torch.where(most > 0, most, 1)


def _squared_distances(q_UC: Tensor, h_UD: Tensor, norms_U: Tensor, j: Tensor, copy: float) -> Tensor:
    """‖g_i − g_j‖², (U,). j is (1,) and stays on the device: nothing here waits for it."""
    across_U = (q_UC @ q_UC.index_select(0, j)[0]) * (h_UD @ h_UD.index_select(0, j)[0])
    both_U = norms_U + norms_U.index_select(0, j)
    d_U = both_U - 2 * across_U
    return torch.where(d_U > copy * both_U, d_U, 0)


def draw_weighted(weight_U: Tensor, generator: torch.Generator) -> Tensor:
    """(1,): position i with probability weight_i / Σ weight."""
    e_U = torch.empty(len(weight_U), dtype=torch.float64).exponential_(generator=generator)
    e_U = e_U.clamp_min_(1e-30).to(weight_U)  # a draw of 0 would beat every weight
    return (weight_U / weight_U.max() / e_U).argmax(0, keepdim=True)


# --- what goes into the last layer, which is found by running the network ---

InputAndOutput = tuple[Any, Any]  # the input of a layer, and its output


def find_last_layer(frozen: FrozenNetwork, x: Inputs, layer: str | None) -> str:
    """The name of the last nn.Linear whose output is the network's, or ``layer``, if it has an input for each point.

    Three points are run. In ``BinaryOutputs`` names start with "net.", which the caller need not know.
    """
    inside = "net." if isinstance(frozen.net, BinaryOutputs) else ""
    modules = {name: m for name, m in frozen.net.named_modules() if name}
    if layer is not None:
        known = [name.removeprefix(inside) for name in modules if name != "net" or not inside]
        if layer not in known:
            near = did_you_mean(layer, known, "The network has")
            raise ValueError(f'unknown layer {layer!r} in options={{"layer": …}}{near}')
        last_layer_inputs(frozen, take_points(x, slice(PROBE_POINTS)), inside + layer)
        return inside + layer
    linear: dict[str, nn.Module] = {name: m for name, m in modules.items() if isinstance(m, nn.Linear)}
    linear |= {"": frozen.net} if isinstance(frozen.net, nn.Linear) else {}
    with _record_calls(linear) as calls:
        f_NC = _run_frozen(frozen, take_points(x, slice(PROBE_POINTS)))
    for name, (_, out) in reversed(calls.items()):
        if _same_tensor(out, _of_last_layer(frozen, f_NC)):
            return name
    raise ValueError(
        f"no nn.Linear of this network returns what the network returns ({', '.join(linear) or 'it has none'}), so the "
        'features before the last layer are unknown; options={"layer": name} names the module whose input they are'
    )


def last_layer_inputs(
    frozen: FrozenNetwork, x: Inputs, layer: str, *, chunk_size: int = 256, last: bool = False, cut: bool = True
) -> tuple[Tensor, Tensor]:
    """f (N, C) and the inputs of ``layer``, flattened to (N, D); both float64.

    cut: whether padding may be cut. last: the layer's output must be f, at every point. NaN or infinity raises and
    names the first point.
    """
    module = frozen.net.get_submodule(layer)
    f_chunks, h_chunks = [], []
    for at, part in batches(frozen.net if cut else nn.Identity(), x, chunk_size):
        with _record_calls({layer: module}) as calls:
            f_nC = _run_frozen(frozen, part)
        h_nD, out = calls.get(layer, (None, None))
        if not isinstance(h_nD, Tensor) or h_nD.dim() < 2 or len(h_nD) != len(f_nC):
            shape = tuple(h_nD.shape) if isinstance(h_nD, Tensor) else f"a {type(h_nD).__name__}"
            came = "is not called" if layer not in calls else f"is given {shape}"
            raise ValueError(f"layer {layer!r} {came} for {len(f_nC)} points; expected ({len(f_nC)}, D)")
        if h_nD.dim() > 2 and isinstance(at, Tensor):  # a cut batch would have fewer features
            return last_layer_inputs(frozen, x, layer, chunk_size=chunk_size, last=last, cut=False)
        for what, values in (("outputs", f_nC), ("features", h_nD)):
            if not (finite := torch.isfinite(values.flatten(1)).all(1)).all():
                bad = int(torch.arange(count_points(x), device=f_nC.device)[at][(~finite)][0])
                raise ValueError(f"net gives NaN or infinite {what}, first at point {bad} of x_U")
        if last and not _same_tensor(out, _of_last_layer(frozen, f_nC)):
            first = int(torch.arange(count_points(x))[at][0])
            raise ValueError(
                f"layer {layer!r} returns what the network does at the first points and not at others, such as point "
                f'{first}; name the module whose input is to be the features with options={{"layer": name}}'
            )
        f_chunks.append((at, to_float64(f_nC)))
        h_chunks.append((at, to_float64(h_nD.flatten(1))))
    return join_batches(f_chunks), join_batches(h_chunks)


def last_layer_map(frozen: FrozenNetwork, last: nn.Linear) -> tuple[Tensor, Tensor]:
    """The network's outputs as a map of its last layer's inputs, f = W h + b: (C, D) and (C,), in float64."""
    W_CD = last.weight.detach().double()
    b_C = W_CD.new_zeros(len(W_CD)) if last.bias is None else last.bias.detach().double()
    if not isinstance(frozen.net, BinaryOutputs):
        return W_CD, b_C
    if frozen.net.quadratic:
        return torch.cat([-W_CD, W_CD]), torch.cat([1 - b_C, b_C])
    return torch.cat([torch.zeros_like(W_CD), W_CD]), torch.cat([torch.zeros_like(b_C), b_C])


def _of_last_layer(frozen: FrozenNetwork, f_NC: Tensor) -> Tensor:
    """What the last layer returns if the network returns f_NC."""
    return f_NC[:, 1:] if isinstance(frozen.net, BinaryOutputs) else f_NC


def _run_frozen(frozen: FrozenNetwork, x: Inputs) -> Tensor:
    with isolated(frozen.device), torch.no_grad():
        return frozen.call(x)


@contextmanager
def _record_calls(modules: dict[str, nn.Module]) -> Iterator[dict[str, InputAndOutput]]:
    """The last call of each module, in the order of the calls. Tensors are cloned: later layers may write in place."""
    calls: dict[str, InputAndOutput] = {}

    def keep(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        calls.pop(name, None)
        given = args[0] if args else next(iter(kwargs.values()), None)
        calls[name] = tuple(v.clone() if isinstance(v, Tensor) else v for v in (given, out))  # type: ignore[assignment]

    with ExitStack() as hooks:
        for name, module in modules.items():
            hooks.enter_context(module.register_forward_hook(partial(keep, name), with_kwargs=True))
        yield calls


def _same_tensor(out: Any, f_NC: Tensor) -> bool:
    return isinstance(out, Tensor) and out.shape == f_NC.shape and bool((out == f_NC).all())
