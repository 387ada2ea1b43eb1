"""What the network is made of: which parameters have a rule, verified on a few points, and what each costs to hold."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from foretaste.tangent.frozen import FrozenNetwork, Inputs, count_points, isolated, take_points
from foretaste.tangent.functional import autograd_rows, functional_rows
from foretaste.tangent.memory import PeakMemory
from foretaste.tangent.rules import HEADS, RULES, cut_axis, has_rule

# One forward and one backward that remember each layer's input and its output's gradient, for a chunk of points.


@dataclass
class LayerCall:
    """One call of a module: its input A, and G_b for each head b (absent where head b does not depend on it)."""

    a: Tensor
    shape: torch.Size
    grads: dict[int, Tensor] = field(default_factory=dict)

    def g(self, head: int) -> Tensor:
        if head in self.grads:
            return self.grads[head]
        dtype = next((g.dtype for g in self.grads.values()), torch.get_default_dtype())
        return torch.zeros(self.shape, dtype=dtype, device=self.a.device)


def record_pass(
    frozen: FrozenNetwork, modules: Iterable[nn.Module], x: Inputs
) -> tuple[dict[nn.Module, list[LayerCall]], Tensor]:
    """Run x once; returns the calls of each module in order, and f(x).

    Parameters are detached, so no weight gradient is ever computed. The graph starts at a zero ``token`` added to the
    first remembered outputs, hence reaches no lower than it must. A tensor hook set before an in-place operation sees
    the gradient of the value before it, so ``ReLU(inplace=True)`` behind a layer does no harm.
    """
    token = torch.zeros((), dtype=frozen.dtype, device=frozen.device, requires_grad=True)
    calls: dict[nn.Module, list[LayerCall]] = {m: [] for m in modules}
    head = 0

    def remember(m: nn.Module, args: tuple, kwargs: dict, out: Tensor) -> Tensor:
        call = LayerCall((args[0] if args else kwargs["input"]).detach(), out.shape)
        calls[m].append(call)
        if not out.requires_grad:
            out = out + token
        if out.requires_grad:  # not inside the network's own torch.no_grad()
            out.register_hook(lambda g: call.grads.__setitem__(head, g))
        return out

    hooks = [m.register_forward_hook(remember, with_kwargs=True) for m in calls]
    try:
        f_NC = frozen.call(x)
        heads = frozen.heads(f_NC)
        if heads.requires_grad:
            for head in range(heads.shape[1]):
                last = head == heads.shape[1] - 1
                torch.autograd.grad(heads[:, head].sum(), token, retain_graph=not last, allow_unused=True)
    finally:
        for h in hooks:
            h.remove()
    return calls, f_NC.detach()


# What the network is made of: which parameters have a rule, verified on a few points, and what each costs to hold.


log = logging.getLogger("foretaste")
ParameterUse = tuple[nn.Module, str]


@dataclass(frozen=True)
class LayerParameter:
    """A parameter with a rule: the modules that use it (several where it is tied) under their own names for it."""

    name: str
    sources: tuple[ParameterUse, ...]
    shape: torch.Size
    axis: int  # along which it is cut where it is too large at once
    grain: int  # and how finely it may be

    @property
    def p(self) -> int:
        return self.shape.numel()

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        return tuple(m for m, _ in self.sources)

    @property
    def length(self) -> int:
        return self.shape[self.axis]

    def width(self, at: slice) -> int:
        return (at.stop - at.start) * (self.p // self.length)

    def rows(self, at: slice, calls: "LayerCalls", head: int) -> Tensor:
        """(n, width) gradients of the slice ``at`` of its axis."""
        total = None
        for m, local in self.sources:
            for a, g in calls[m]:
                r = RULES[type(m)](m, local, a.flatten(0, 1), g[:, head].flatten(0, 1), at)
                r = r.view(a.shape[0], a.shape[1], -1).sum(1) if a.shape[1] > 1 else r
                total = r if total is None else total + r
        assert total is not None
        return total

    def heads(self, at: slice, calls: "LayerCalls") -> Tensor:
        """(n, B, width), of every head."""
        count = calls[self.modules[0]][0][1].shape[1]
        (m, local), *tied = self.sources
        if count > 1 and not tied and type(m) in HEADS and len(calls[m]) == 1:
            a, g = calls[m][0]
            together = HEADS[type(m)](m, local, a.flatten(0, 1), g.transpose(1, 2).flatten(0, 1), at)
            if together is not None:
                return together if a.shape[1] == 1 else together.unflatten(0, a.shape[:2]).sum(1)
        rows = [self.rows(at, calls, b) for b in range(count)]
        return rows[0][:, None] if count == 1 else torch.stack(rows, 1)


# For each module, for each of its calls: A (n, fold, ...) and the G of all heads, (n, B, fold, ...).
LayerCalls = dict[nn.Module, list[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class Survey:
    layers: list[LayerParameter]
    functional: list[str]
    heads: int  # B of Θ's B × B blocks
    folded: int  # heads whose gradients stand side by side in one row: C for "trace", Σ_c ∇f_c·∇f_c, else 1
    held: dict[nn.Module, int] = field(repr=False)  # bytes of A and G, a point
    positions: dict[nn.Module, int] = field(repr=False)  # where its weight is used, over all its calls, a point
    axes: dict[nn.Module, int] = field(repr=False)  # which dimension of A and G is the points
    pass_bytes: int  # peak of one forward and backward, a point
    survey_bytes: int  # peak of this survey
    largest: float  # entry of a gradient, among those seen


def align_calls(calls: dict[nn.Module, list[LayerCall]], axes: dict[nn.Module, int], n: int, heads: int) -> LayerCalls:
    """A and G with the points first, then heads, then what the network folded into them (frames, windows).

    The gradients in ``calls`` are freed.
    """

    def points_first(t: Tensor, axis: int) -> Tensor:
        t = t.movedim(axis, 0) if axis else t
        return t.unflatten(0, (n, t.shape[0] // n))

    def every_head(c: LayerCall, axis: int) -> Tensor:
        g = [points_first(c.g(b), axis) for b in range(heads)]
        c.grads.clear()
        return g[0][:, None] if heads == 1 else torch.stack(g, 1)

    return {
        m: [(points_first(c.a, axes[m]), every_head(c, axes[m])) for c in of] for m, of in calls.items() if m in axes
    }


def survey_network(frozen: FrozenNetwork, x: Inputs, classes: int) -> Survey:
    """Run a few points. One head is enough to see what every head does."""
    k = min(2, count_points(x))
    few = take_points(x, slice(k))
    heads, folded = (classes if frozen.output == kind else 1 for kind in ("full", "trace"))
    backward = heads * folded
    one = replace(frozen, output="sum")
    layers = ruled_parameters(frozen)
    modules = list(dict.fromkeys(m for layer in layers for m in layer.modules))
    with isolated(frozen.device):
        with PeakMemory() as single:
            alone, _ = record_pass(one, modules, take_points(few, slice(1)))
        calls, _ = record_pass(one, modules, few)
        axes = {m: axis for m in modules if (axis := find_point_axis(alone[m], calls[m], k)) is not None}
        at_hand = align_calls(calls, axes, k, 1)
        sound, largest = verify_rules(one, few, [ly for ly in layers if all(m in axes for m in ly.modules)], at_hand)
    functional = [name for name in frozen.params if name not in {ly.name for ly in sound}]
    if functional:
        log.info(
            "no rule for %d of %d parameters (%s%s): through torch.func, slower",
            len(functional), len(frozen.params), ", ".join(functional[:4]), ", ..." if len(functional) > 4 else "",
        )  # fmt: skip
    held, positions = {}, {}
    for m, of in at_hand.items():
        held[m] = sum(a.nbytes + backward * g.nbytes for a, g in of) // k
        positions[m] = sum(count_positions(m, a, g) for a, g in of) // k
    a_pass = single.peak + (backward - 1) * sum(g.nbytes for of in at_hand.values() for _, g in of) // k
    # Two points' passes, their gradients by autograd, stacked, and by the rules. Counting them costs more than they do.
    survey_bytes = 2 * k * single.peak + 6 * k * sum(p.nbytes for p in frozen.params.values())
    return Survey(sound, functional, heads, folded, held, positions, axes, a_pass, survey_bytes, largest)


def count_positions(m: nn.Module, a: Tensor, g: Tensor) -> int:
    """Positions at which a Linear, an Embedding or a convolution uses its weight, of all points."""
    if type(m) is nn.Embedding:
        return a.numel()
    return g.numel() // int(getattr(m, "out_channels", g.shape[-1]))


def ruled_parameters(frozen: FrozenNetwork) -> list[LayerParameter]:
    """The chosen parameters all of whose holders are modules with a rule, in the network's order."""
    holders: dict[int, list[ParameterUse | None]] = {}
    for m in frozen.net.modules():
        for local, p in m._parameters.items():
            if p is not None:
                holders.setdefault(id(p), []).append((m, local) if has_rule(m) else None)
    own = dict(frozen.net.named_parameters())
    layers = []
    for name in frozen.params:
        sources = [s for s in holders[id(own[name])] if s is not None]
        if len(sources) == len(holders[id(own[name])]):
            (axis, grain), *others = {cut_axis(m, local) for m, local in sources}
            if not others:
                layers.append(LayerParameter(name, tuple(sources), own[name].shape, axis, grain))
    return layers


def find_point_axis(alone: Sequence[LayerCall], company: Sequence[LayerCall], k: int) -> int | None:
    """Which dimension grows with the number of points, the same for A and G in every call; None where there is none."""

    def axis(one: torch.Size, many: torch.Size) -> int | None:
        for d in (0, 1):
            if len(one) > d and many[d] == k * one[d] and all(many[e] == one[e] for e in range(len(one)) if e != d):
                return d
        return None

    if not company or len(alone) != len(company):
        return None
    found = {axis(s, t) for c1, ck in zip(alone, company) for s, t in ((c1.a.shape, ck.a.shape), (c1.shape, ck.shape))}
    return found.pop() if len(found) == 1 else None


def verify_rules(
    frozen: FrozenNetwork, x: Inputs, layers: list[LayerParameter], calls: LayerCalls
) -> tuple[list[LayerParameter], float]:
    """The layers whose rule gives autograd's own per-point gradient on a few points; the others are said in the log.

    This is what makes the rules safe: a weight used behind its module's back (``F.linear(x, self.embed.weight)``),
    an input changed in place, a module called under torch.utils.checkpoint fail here and go through torch.func.
    What torch.func itself gets wrong (a forward that wraps its parameters anew) is refused.
    """
    truth = autograd_rows(frozen, x, list(frozen.params))
    like = torch.zeros((), dtype=frozen.dtype, device=frozen.device)
    largest = torch.stack([like, *(t.abs().amax() for t in truth.values())]).amax() if truth else like + 1
    pairs: dict[str, Tensor] = {}

    def compare(name: str, rows_np: Tensor) -> None:
        # Columns are in the rule's own order: compare what order does not change, all inner products of the rows.
        pairs[name] = torch.stack(
            [inner_products(rows_np), inner_products(truth.pop(name))]
        )  # the truth is freed as soon as it is used

    known = [ly for ly in layers if ly.name in truth]
    for ly in known:
        compare(ly.name, ly.rows(slice(0, ly.length), calls, 0))
    named = {ly.name for ly in layers}
    rest = [name for name in truth if name not in named]
    for name, rows_nbp in functional_rows(frozen, x, rest).items() if rest else ():
        compare(name, rows_nbp[:, 0])
    # One number is read from the device for all parameters: each read waits for it.
    found = torch.stack(list(pairs.values())).double().cpu() if pairs else torch.zeros(0, 2, 1, 1)
    gap_P, size_P = (found[:, 0] - found[:, 1]).norm(dim=(1, 2)), found[:, 1].norm(dim=(1, 2))
    loose, floor = (1e-3, 1e-5) if frozen.dtype == torch.float32 else (1e-8, 1e-12)
    most = float(found[:, 1].diagonal(dim1=1, dim2=2).sum(1).max()) if pairs else 0.0  # largest squared norm
    agrees = dict(zip(pairs, (gap_P <= loose * size_P + floor**2 * most).tolist()))
    for name in rest:
        if not agrees[name]:
            raise ValueError(
                f"the gradient of {name!r} is lost when net is called with other parameters in their place "
                "(torch.func.functional_call): its forward wraps them anew, as a slice of an nn.ParameterList does; "
                "use list(parameters)[a:b] there"
            )
    sound = [ly for ly in layers if agrees.get(ly.name, True)]
    for ly in layers:
        if ly not in sound:
            log.info("%s is used outside its module's own forward; its rule does not apply", ly.name)
    return sound, float(largest)


def inner_products(rows_np: Tensor) -> Tensor:
    """All inner products of a few rows, (n, n); one by one on a GPU, whose matrix products are not made for these."""
    if not rows_np.is_cuda:
        return rows_np @ rows_np.T
    return torch.stack([torch.stack([torch.dot(a, b) for b in rows_np.contiguous()]) for a in rows_np.contiguous()])
