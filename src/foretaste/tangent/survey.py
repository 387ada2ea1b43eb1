"""What the network is made of: which parameters have a rule, and how much memory a pass takes.

``survey_network`` runs two points through the network before any kernel is computed. It finds the modules whose
gradients a rule can form (rules.py), and measures the bytes of a pass. Parameters without a rule go through torch.func
(functional.py), which is slower.

``record_pass`` is the pass itself: one forward and one backward that record A and G of every layer. rule_checks.py
tells whether the rules hold for it.
"""

import logging
import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from foretaste.errors import format_bytes, is_out_of_memory
from foretaste.tangent.bare import BareUses, places_points, watch_bare
from foretaste.tangent.frozen import (
    OWN_OUTPUT,
    FrozenNetwork,
    Inputs,
    check_apart,
    compare_outputs,
    count_points,
    input_parts,
    isolated,
    take_points,
)
from foretaste.tangent.functional import autograd_rows, flat, functional_rows
from foretaste.tangent.rules import (
    HEAD_RULES,
    RULES,
    SUM_RULES,
    LayerCalls,
    ProductLayer,
    cut_axis,
    has_rule,
    linear_into,
    parameter_order,
)
from foretaste.tangent.stand_ins import TakenApart

log = logging.getLogger("foretaste")
# How far two computations of a gradient may differ: as a share of its size, and of the network's largest gradient.
ROUNDING = {torch.float32: (1e-3, 1e-5), torch.float64: (1e-8, 1e-12)}
LOST = 0.3  # share of a gradient: if torch.func loses a parameter it misses more; a ReLU near 0 changes less
CHECK_POINTS = 12  # points of each set that are checked (rule_checks.py)
CHECK_SHARE, CHECK_LEAST = 60, 3  # where a pass is expensive, compare n // 60 points with autograd, at least 3
CHEAP_POINT = 1 << 16  # bytes of one point's pass, up to which all of CHECK_POINTS are compared with autograd
SOME_ENTRIES = 256  # entries of A and G of a point, enough to tell points apart
CONSTANT_SUM = 1e-9  # squared gradient of the sum of outputs, as a share of one output's: rounding in float32
ONEDNN_BYTES = 1 << 14  # of a recurrence on a CPU beside its weights, however small it is
ParameterUse = tuple[nn.Module, str]  # a module, and its own name for a parameter: "weight"


@dataclass(frozen=True)
class LayerParameter:
    """A parameter with a rule, and the modules that use it: several if it is tied."""

    name: str
    uses: tuple[ParameterUse, ...]
    shape: torch.Size
    axis: int  # the dimension along which it is cut, if it is too large to handle at once
    grain: int  # the smallest slice of that dimension; longer ones are multiples of it

    @property
    def numel(self) -> int:
        return self.shape.numel()

    @cached_property
    def modules(self) -> tuple[nn.Module, ...]:
        return tuple(m for m, _ in self.uses)

    @property
    def length(self) -> int:
        """Of the dimension along which it is cut."""
        return self.shape[self.axis]

    def width(self, at: slice) -> int:
        """The number of entries in the slice ``at``."""
        return (at.stop - at.start) * (self.numel // self.length)

    def of_calls(self, calls: Mapping[nn.Module, Sequence[Any]]) -> "LayerParameter":
        """Without the uses that a pass does not make: an attention projects its inputs together or one by one."""
        called = tuple(use for use in self.uses if calls[use[0]])
        return replace(self, uses=called or self.uses)

    def head_rows(self, at: slice, calls: LayerCalls, head: int) -> Tensor:
        """(n, width): the gradient of one head in the slice ``at``, summed over all uses and calls."""

        def rows(m: nn.Module, local: str, a: Tensor, g: Tensor) -> Tensor:
            found = RULES[type(m)](m, local, a.flatten(0, 1), g[:, head].flatten(0, 1), at)
            return found.view(a.shape[0], a.shape[1], -1).sum(1) if a.shape[1] > 1 else found

        return reduce(torch.add, (rows(m, local, a, g) for m, local in self.uses for a, g in calls[m]))

    def rows_into(self, at: slice, calls: LayerCalls, points: slice, out_nw: Tensor, inputs: bool = False) -> None:
        """Add the rows of some points of a Linear layer's weight, of one head, to ``out_nw``.

        inputs: ``at`` are some of the layer's inputs, and not of its outputs.
        """
        for a, g in calls[self.modules[0]]:
            linear_into(a[points], g[points, 0], at, out_nw, inputs)

    def summed_row(self, calls: LayerCalls) -> Tensor:
        """(p,): Σ_n J_n of the first head, in the order of the parameter's entries."""
        found = list[Tensor]()
        for m, local in self.uses:
            for a, g in calls[m]:
                a, g = a.flatten(0, 1), g[:, 0].flatten(0, 1)
                if type(m) in SUM_RULES:
                    row = SUM_RULES[type(m)](m, local, a, g)
                else:
                    row = RULES[type(m)](m, local, a, g, slice(0, self.length)).sum(0)
                found.append(parameter_order(m, local, row))
        return reduce(torch.add, found)

    def rows(self, at: slice, calls: LayerCalls) -> Tensor:
        """(n, B, width): the gradients of all heads."""
        count = calls[self.modules[0]][0][1].shape[1]
        (m, local), *tied = self.uses
        if count > 1 and not tied and type(m) in HEAD_RULES and len(calls[m]) == 1:
            a, g = calls[m][0]
            together = HEAD_RULES[type(m)](m, local, a.flatten(0, 1), g.transpose(1, 2).flatten(0, 1), at)
            if together is not None:
                return together if a.shape[1] == 1 else together.unflatten(0, a.shape[:2]).sum(1)
        rows = [self.head_rows(at, calls, b) for b in range(count)]
        return rows[0][:, None] if count == 1 else torch.stack(rows, 1)


@dataclass(frozen=True)
class Survey:
    """What a look at two points shows. Bytes and positions are for one point."""

    layers: list[LayerParameter]
    functional: list[str]  # the parameters without a rule
    heads: int  # B of Θ's B × B blocks
    folded: int  # heads whose gradients stand side by side in one row: C for "trace", Σ_c ∇f_c·∇f_c, else 1
    call_bytes: dict[nn.Module, int] = field(repr=False)  # of A and G
    positions: dict[nn.Module, int] = field(repr=False)  # at which a module's weight is used, over all its calls
    axes: dict[nn.Module, int] = field(repr=False)  # the dimension of A and G that counts the points
    folds: dict[nn.Module, list[int]] = field(repr=False)  # rows of A in that dimension for each point, by call
    pass_bytes: int  # peak of one forward and backward
    survey_bytes: int  # peak of this survey, for all its points
    alone_bytes: int  # peak of one head's pass, for one point
    mark_bytes: int  # of the marks
    parameter_bytes: int

    def forms_in_place(self, layer: LayerParameter, device: str, half: bool) -> bool:
        """Whether its rows are formed where they stay: the weight of a Linear layer at several positions, on a CPU."""
        (m, local), *tied = layer.uses
        linear = type(m) is nn.Linear and local == "weight" and self.positions[m] > 1 and not tied
        return linear and device == "cpu" and not half and self.heads * self.folded == 1

    def check_bytes(self, points: int, few: int = CHECK_POINTS) -> int:
        """Peak of the checks on a batch of ``points``: a pass of some of them, their marks, and both gradients.

        few: how many are compared with autograd. Of the others there is a forward pass.
        """
        passes = max(2 * min(points, few), min(points, CHECK_POINTS))
        return passes * (self.alone_bytes + 4 * self.mark_bytes) + 3 * self.parameter_bytes

    @property
    def cheap(self) -> bool:
        return self.alone_bytes <= CHEAP_POINT


def points_compared(n: int, cheap: bool) -> tuple[int, int]:
    """(few, many) of a set of n: the rules are compared on few points, on many whether row n is point n."""
    many = min(n, CHECK_POINTS)
    return many if cheap else min(many, max(CHECK_LEAST, n // CHECK_SHARE)), many


def survey_network(frozen: FrozenNetwork, x: Inputs, classes: int) -> Survey:
    """Survey a network with a few points of ``x``. Cached for each frozen network and shape of points.

    One head is run: the other heads use the same layers.
    """
    k = min(2, count_points(x))
    key = frozen.output, frozen.unruled, classes, k, tuple((n, v.shape[1:], v.dtype) for n, v in input_parts(x).items())
    if key in frozen.surveys:
        return frozen.surveys[key]
    points = take_points(x, slice(k))
    heads, folded = (classes if frozen.output == kind else 1 for kind in ("full", "trace"))
    backward_passes = heads * folded
    one_head = replace(frozen, output="sum")
    layers = find_ruled_parameters(frozen, points)
    with isolated(frozen.device):
        with PeakMemory() as memory:
            layers, alone, f_1C = record_or_none(one_head, layers, take_points(points, slice(1)))
        layers, together, f_kC = record_or_none(one_head, layers, points)
        if k > 1 and (shared := find_shared(one_head, layers, points, alone, together, f_kC)):
            frozen.shared.update(shared)
            layers, alone, _ = record_or_none(one_head, layers, take_points(points, slice(1)))
            layers, together, _ = record_or_none(one_head, layers, points)
        layers = [layer.of_calls(together) for layer in layers]
        modules = modules_of(layers)
        axes = {m: axis for m in modules if (axis := find_point_axis(alone[m], together[m], k)) is not None}
        axes = {m: axis for m, axis in axes.items() if places_points(m, axis)}
        folds = {m: [call.a.shape[axis] // k for call in together[m]] for m, axis in axes.items()}
        calls = align_calls(together, axes, folds, k, 1)
        readable = [layer for layer in layers if all(m in axes for m in layer.modules)]
        with_rule = {layer.name for layer in readable}
        functional = [name for name in frozen.params if name not in with_rule]
        check_apart(compare_outputs(f_kC[:1], f_1C), OWN_OUTPUT[frozen.dtype])
        if functional and k > 1:  # nothing else compares outputs there
            f_1C = frozen.call(take_points(points, slice(1, 2))).detach()
            check_apart(compare_outputs(f_kC[1:], f_1C), OWN_OUTPUT[frozen.dtype])
        verify_functional(one_head, points, functional)
        if frozen.output == "sum" and classes > 1:
            check_sum(frozen, points, f_kC)
    if functional:
        log.info(
            "no rule for %d of %d parameters (%s): their gradients go through torch.func, with one more forward and "
            "backward for each point and %s of gradients; ft.register_rule adds a rule for a module",
            len(functional), len(frozen.params), name_modules(frozen, functional),
            format_bytes(sum(frozen.params[name].nbytes for name in functional)),
        )  # fmt: skip
    call_bytes, positions = {}, {}
    for m, pairs in calls.items():
        call_bytes[m] = sum(a.nbytes + backward_passes * g.nbytes for a, g in pairs) // k
        positions[m] = sum(count_positions(m, a, g) for a, g in pairs) // k
    entries = sum([some_entries(a).shape[1] for pairs in calls.values() for a, _ in pairs])
    g_bytes = sum([g.nbytes for pairs in calls.values() for _, g in pairs])
    pass_bytes = memory.peak + (backward_passes - 1) * g_bytes // k
    parameters = sum([p.nbytes for p in frozen.params.values()])
    parameters += ONEDNN_BYTES * any(isinstance(m, nn.RNNBase) for m in frozen.net.modules())
    # An estimate: passes of k points and their gradients by autograd, stacked, and by the rules. A PeakMemory around
    # them would take longer than they do.
    survey_bytes = 2 * k * memory.peak + 6 * k * sum(frozen.params[name].nbytes for name in functional)
    found = frozen.surveys[key] = Survey(
        readable, functional, heads, folded, call_bytes, positions, axes, folds, pass_bytes, survey_bytes, memory.peak,
        8 * entries if frozen.dtype == torch.float64 else 4 * entries, parameters,
    )  # fmt: skip
    return found


def find_ruled_parameters(frozen: FrozenNetwork, x: Inputs) -> list[LayerParameter]:
    """The chosen parameters that only modules with a rule own, or that a forward uses itself, in the network's order.

    x: a few points, run where there are parameters of the second kind.
    """
    owners: dict[int, list[ParameterUse | None]] = {}
    modules = list(frozen.net.modules())
    apart = [m for m in modules if isinstance(m, TakenApart)]
    covered = {*apart, *(m for one in apart for m in one.covered)}
    for m in [m for m in modules if m not in covered] + [m for one in apart for m in one.stand_ins.values()]:
        usable = has_rule(m)
        for local, p in m._parameters.items():
            if p is not None:
                owners.setdefault(id(p), []).append((m, local) if usable else None)
    every = dict(frozen.net.named_parameters())
    names = [name for name in frozen.params if name not in frozen.unruled]
    bare = [every[name] for name in names if not any(owners[id(every[name])])]
    if bare:
        for p in bare:
            owners[id(p)] = []
        for m in find_bare_uses(frozen, bare, x):
            for local, p in m._parameters.items():
                if p is not None:
                    owners[id(p)].append((m, local))
    layers = []
    for name in names:
        uses = [use for use in owners[id(every[name])] if use is not None]
        if uses and len(uses) == len(owners[id(every[name])]):
            (axis, grain), *others = {cut_axis(m, local) for m, local in uses}
            if not others:
                shape = every[name].shape or torch.Size([1])
                layers.append(LayerParameter(name, tuple(uses), shape, axis, grain))
    return layers


def name_modules(frozen: FrozenNetwork, names: Sequence[str]) -> str:
    """The modules that own these parameters, by class: "Gate: a.w, b.w and 3 more; Norm: c.weight"."""
    owned: dict[str, list[str]] = {}
    for name in names:
        owned.setdefault(type(frozen.net.get_submodule(name.rpartition(".")[0])).__name__, []).append(name)
    return "; ".join(
        f"{kind}: {', '.join(of[:2])}{f' and {len(of) - 2} more' if len(of) > 2 else ''}" for kind, of in owned.items()
    )


def find_bare_uses(frozen: FrozenNetwork, params: list[nn.Parameter], x: Inputs) -> list[nn.Module]:
    """Stand-ins for the uses of parameters that no module with a rule owns (bare.py)."""
    with isolated(frozen.device), torch.no_grad(), BareUses(params) as found:
        frozen.call(x)
    return list(found.made.values())


def count_positions(m: nn.Module, a: Tensor, g: Tensor) -> int:
    """How often a Linear, an Embedding or a convolution uses its weight, over all points."""
    if type(m) is nn.Embedding:
        return a.numel()
    return g.numel() // int(getattr(m, "out_channels", g.shape[-1]))


# ---- One forward and one backward ----


@dataclass
class RecordedCall:
    """One call of a module: its input A, and G for each head. A head that does not depend on the call has no G."""

    a: Tensor
    shape: torch.Size  # of the output
    dtype: torch.dtype  # likewise
    grads: dict[int, Tensor] = field(default_factory=dict)

    def g(self, head: int) -> Tensor:
        if head in self.grads:
            return self.grads[head]
        return torch.zeros(self.shape, dtype=self.dtype, device=self.a.device)


def record_pass(
    frozen: FrozenNetwork, modules: Iterable[nn.Module], x: Inputs, heads: int | None = None
) -> tuple[dict[nn.Module, list[RecordedCall]], Tensor]:
    """Run x once. Returns the calls of each module in order, and f(x).

    heads: the first so many alone; None: all. With 0, A alone is recorded, and f is attached to the network's own
    parameters (``FrozenNetwork.call``).

    Parameters are detached, so no gradient of a weight is computed. The graph starts at a zero ``token`` that is added
    to the first recorded outputs, so the backward pass goes no lower than it must. A tensor hook that is set before an
    in-place operation sees the gradient of the value before it. So ``ReLU(inplace=True)`` after a layer does no harm.
    """
    token = torch.zeros((), dtype=frozen.dtype, device=frozen.device, requires_grad=True)
    calls: dict[nn.Module, list[RecordedCall]] = {m: [] for m in modules}
    head, n = 0, count_points(x)

    def record(m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> Tensor | None:
        a = (args[0] if args else kwargs["input"]).detach()
        # A module that is called once for all points: each gets a copy of A, unless its input has one already.
        if m in frozen.shared and (heads == 0 or not out.requires_grad):
            a, out = for_each_point(a, n), for_each_point(out, n).clone()
        call = RecordedCall(a, out.shape, out.dtype)
        calls[m].append(call)
        if heads == 0:
            return None
        if out.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"a {type(m).__name__} of net computes in {out.dtype} (torch.autocast in its forward), too coarse for "
                "a ranking by Θ; leave it out in eval mode: `torch.autocast(..., enabled=self.training)`"
            )
        if not out.requires_grad:
            out = out + token
        if out.requires_grad:  # False inside the network's own torch.no_grad()
            out.register_hook(lambda g: call.grads.__setitem__(head, g))
        return out

    with ExitStack() as hooks:
        for m in calls:
            hooks.enter_context(m.register_forward_hook(record, with_kwargs=True))
        hooks.enter_context(watch_bare(calls))
        if heads == 0:
            return calls, frozen.call(x, attached=True)
        f_NC = frozen.call(x)
        f_NB = frozen.heads(f_NC)[:, :heads]
        if f_NB.requires_grad:
            for head in range(f_NB.shape[1]):
                last = head == f_NB.shape[1] - 1
                torch.autograd.grad(f_NB[:, head].sum(), token, retain_graph=not last, allow_unused=True)
    return calls, f_NC.detach()


def record_or_none(
    frozen: FrozenNetwork, layers: list[LayerParameter], x: Inputs
) -> tuple[list[LayerParameter], dict[nn.Module, list[RecordedCall]], Tensor]:
    """The layers, their calls, and f. No layers if the network runs only without recording (checkpointing)."""
    try:
        return layers, *record_pass(frozen, modules_of(layers), x)
    except (RuntimeError, KeyError, IndexError) as e:
        if is_out_of_memory(e):
            raise
        log.info("the layers of this network cannot be recorded (%s)", str(e).split("\n")[0])
        return [], {}, frozen.call(x).detach()


def for_each_point(t: Tensor, n: int) -> Tensor:
    """A view of one value that stands for all points, with a dimension of n points first."""
    return t.expand(n, *t.shape[1:]) if t.dim() > 1 and t.shape[0] == 1 else t.expand(n, *t.shape)


def find_shared(
    frozen: FrozenNetwork,
    layers: list[LayerParameter],
    x: Inputs,
    alone: dict[nn.Module, list[RecordedCall]],
    together: dict[nn.Module, list[RecordedCall]],
    f_NC: Tensor,
) -> set[nn.Module]:
    """The modules that a pass calls once for all points, as an embedding of positions: if a copy for each point does.

    A copy of such an output for each point has a gradient for each point. It must not change f: a network may use the
    output in a way that does not broadcast.
    """

    def constant(m: nn.Module) -> bool:
        one, many = alone[m], together[m]
        same = [c1.shape == ck.shape and torch.equal(c1.a, ck.a) for c1, ck in zip(one, many)]
        bare = hasattr(m, "bare_use")  # its rule knows the shapes of A and of the output
        return not bare and bool(many) and len(one) == len(many) and all(same)

    found = {m for m in modules_of(layers) if constant(m)}
    for tried in [found, *({m} for m in found)] if len(found) > 1 else [found] if found else []:
        try:
            _, f_nC = record_pass(replace(frozen, shared=tried), modules_of(layers), x)
        except (RuntimeError, IndexError, ValueError):
            continue
        gap = compare_outputs(f_nC, f_NC).tolist() if f_nC.shape == f_NC.shape else [math.inf, 1.0]
        if gap[0] <= OWN_OUTPUT[frozen.dtype] * max(gap[1], 1e-12):
            return tried
    return set()


def find_point_axis(alone: Sequence[RecordedCall], together: Sequence[RecordedCall], k: int) -> int | None:
    """The dimension of A and G that is k times as long for k points as for one, in every call; None if none is."""

    def find_axis(one: torch.Size, many: torch.Size) -> int | None:
        for d in (0, 1) if all(one) else ():  # an empty tensor has no dimension of points
            if len(one) > d and many[d] == k * one[d] and all(many[e] == one[e] for e in range(len(one)) if e != d):
                return d
        return None

    if not together or len(alone) != len(together):
        return None
    axes = {
        find_axis(one, many)
        for c1, ck in zip(alone, together)
        for one, many in ((c1.a.shape, ck.a.shape), (c1.shape, ck.shape))
    }
    return axes.pop() if len(axes) == 1 else None


class LostRowsError(RuntimeError):
    """The rule of some parameters does not hold on a batch.

    names: the parameters. modules: modules whose rows cannot be told apart, with all their parameters.
    """

    def __init__(self, why: str, names: Sequence[str] = (), modules: Sequence[nn.Module] = ()) -> None:
        super().__init__(why)
        self.names, self.modules = names, modules


def align_calls(
    calls: dict[nn.Module, list[RecordedCall]],
    axes: dict[nn.Module, int],
    folds: dict[nn.Module, list[int]],
    n: int,
    heads: int,
) -> LayerCalls:
    """A and G with the points first, then heads (G only), then what the network folded into the points' dimension.

    heads=0: A only. Frees the gradients in ``calls``. Raises a LostRowsError if n points do not have n times the rows
    of one point in the survey.
    """
    calls = {m: made for m, made in calls.items() if m in axes}
    for m, made in calls.items():
        axis = axes[m]
        rows = [call.a.shape[axis] if len(call.shape) > axis and call.shape[axis] % n == 0 else 0 for call in made]
        if rows != [n * fold for fold in folds[m]]:
            raise LostRowsError(f"a {type(m).__name__} runs on more rows for some points than others", modules=[m])

    def points_first(t: Tensor, axis: int) -> Tensor:
        t = t.movedim(axis, 0) if axis else t
        return t.unflatten(0, (n, t.shape[0] // n))

    def all_heads(call: RecordedCall, axis: int) -> Tensor:
        g = [points_first(call.g(b), axis) for b in range(heads)]
        call.grads.clear()
        return call.a[:0] if not heads else g[0][:, None] if heads == 1 else torch.stack(g, 1)

    aligned: LayerCalls = {}
    for m, made in calls.items():
        aligned[m] = [(points_first(call.a, axes[m]), all_heads(call, axes[m])) for call in made]
    return aligned


# ---- Are the rules right for this network? ----


def verify_functional(frozen: FrozenNetwork, x: Inputs, names: Sequence[str]) -> None:
    """Raise if torch.func does not give autograd's gradients, because a forward makes new parameters of its own."""
    truth = autograd_rows(frozen, x, names)
    if not truth:
        return
    rows = functional_rows(frozen, x, list(truth))
    gaps = row_gaps({name: rows[name][:, 0] for name in truth}, truth)
    for name, agrees in find_same(gaps, frozen.dtype, (LOST, ROUNDING[frozen.dtype][1])).items():
        if not agrees:
            raise ValueError(
                f"the gradient of {name!r} is lost when net is called with other parameters in their place "
                "(torch.func.functional_call): its forward makes new parameters out of them, as a slice of an "
                "nn.ParameterList does; use list(parameters)[a:b] there"
            )


def modules_of(layers: Sequence[LayerParameter | ProductLayer]) -> list[nn.Module]:
    """Each module once, in the order of its first parameter."""
    return list(dict.fromkeys([m for layer in layers for m in layer.modules]))


def some_entries(t: Tensor) -> Tensor:
    """(n, s): some entries of each point, evenly spaced, s at most SOME_ENTRIES. No copy of the tensor is made."""
    steps = [1] * (t.dim() - 1)
    sizes = list(t.shape[1:])
    while math.prod(sizes) > SOME_ENTRIES:
        longest = sizes.index(max(sizes))
        steps[longest] = 2 * steps[longest] + 1
        sizes[longest] = -(-t.shape[1 + longest] // steps[longest])
    return t[(slice(None), *map(partial(slice, None, None), steps))].flatten(1)


def row_gaps(rows: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, Tensor]:
    """{name: (2,)}: the distance of the rows from the true ones, and the length of these. Few launches on a GPU."""
    if not rows:
        return {}
    true = [truth[name].reshape(row.shape) for name, row in rows.items()]
    gaps_P, sizes_P = (
        torch.stack(torch._foreach_norm(t)) for t in (torch._foreach_sub(list(rows.values()), true), true)
    )
    return dict(zip(rows, torch.stack([gaps_P, sizes_P], 1)))


def find_same(
    gaps: dict[str, Tensor], dtype: torch.dtype, rounding: tuple[float, float] | None = None
) -> dict[str, bool]:
    """Whether the rows of each entry of ``row_gaps`` are the true ones.

    rounding: how far they may differ, as a share of their size and of the largest; None: ``ROUNDING`` of the dtype.
    """
    if not gaps:
        return {}
    gap_P, size_P = torch.stack(list(gaps.values())).double().cpu().unbind(1)  # one read: each waits for the device
    if not torch.isfinite(gap_P + size_P).all():
        raise overflow_error(dtype)
    share, floor = rounding or ROUNDING[dtype]
    return dict(zip(gaps, (gap_P <= share * size_P + floor * size_P.max()).tolist()))


def largest_entry(frozen: FrozenNetwork, x: Inputs) -> float:
    """The largest entry of the gradients at the first two points; 1 where no parameter requires grad."""
    rows = autograd_rows(replace(frozen, output="sum"), take_points(x, slice(2)), list(frozen.params))
    return float(torch.stack([rows_np.abs().amax() for rows_np in rows.values()]).amax()) if rows else 1.0


def check_sum(frozen: FrozenNetwork, x: Inputs, f_nC: Tensor) -> None:
    """Raise if the sum of the outputs is constant, as a softmax's is: its gradient is nothing but rounding."""
    sums_n, largest = f_nC.sum(1), float(f_nC.abs().max())
    if float((sums_n - sums_n[0]).abs().max()) > 1e-3 * largest:
        return
    f_1C = frozen.call(take_points(x, slice(1)), attached=True)[0]
    params = [p for p in frozen.net.parameters() if p.requires_grad]
    if not params or not f_1C.requires_grad:
        return
    squares = []
    for head in (f_1C.sum(), f_1C[f_1C.detach().argmax()]):
        grads = torch.autograd.grad(head, params, retain_graph=True, materialize_grads=True)
        squares.append(torch.stack([flat(g).double().square().sum() for g in grads]).sum())
    of_sum, of_one = torch.stack(squares).tolist()
    if of_sum < CONSTANT_SUM * of_one:
        raise ValueError(
            "the outputs of net have a constant sum, as those of a softmax have, so the kernel of their sum "
            '(output="sum") is zero; let net return logits, or use output="signs", "trace" or "first"'
        )


def overflow_error(dtype: torch.dtype) -> ValueError:
    remedy = "" if dtype == torch.float64 else ", or use net.double() and float64 points"
    return ValueError(
        f"Θ is too large for {dtype}: inner products of gradients overflow, or a gradient of net is NaN; scale the "
        f"inputs{remedy}"
    )


# ---- Measuring memory ----


@cache
def makes_memory(func: Any) -> bool:
    """Whether an operator may return new memory, and not just its arguments or parts of them."""
    return any(result.alias_info is None for result in func._schema.returns)


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of live tensors that are made inside it, on any device. ``peak`` is their maximum.

    Example:
        >>> import torch
        >>> from foretaste.tangent import PeakMemory
        >>> with PeakMemory() as memory:
        ...     y = torch.ones(1000) * 2
        >>> memory.peak
        8000
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: set[int] = set()
        self.outside: list[Any] = []  # storages made outside, kept alive so that their addresses stay theirs
        self.watchers: list[weakref.finalize[Any, Any]] = []

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        self.outside.clear()
        for watcher in self.watchers:
            watcher.detach()  # else they would live as long as the tensors do

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first kernel imports torch._dynamo, which takes two seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and count new tensors among its arguments and results: alone, in lists, beside other things.

        A new one among the arguments was made outside: it and its views are free.
        """
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not makes_memory(func):
            return out
        for values, inside in (([*args, *kwargs.values()], False), ([out], True)):
            while values:
                value = values.pop()
                if isinstance(value, list | tuple):
                    values.extend(value)
                if not isinstance(value, Tensor) or (key := (store := value.untyped_storage())._cdata) in self.seen:
                    continue
                self.seen.add(key)
                if inside:
                    self.now += store.nbytes()
                    self.peak = max(self.peak, self.now)
                    self.watchers.append(weakref.finalize(store, self.forget, key, store.nbytes()))
                else:
                    self.outside.append(store)
        return out

    def forget(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size
