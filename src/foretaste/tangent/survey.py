"""What the network is made of: which parameters have a rule, and how much memory a pass takes.

``survey_network`` runs two points through the network before any kernel is computed. It finds the modules whose
gradients a rule can form (rules.py), checks each rule against autograd, and measures the bytes of a pass. Parameters
without a valid rule go through torch.func (functional.py), which is slower.

``record_pass`` is the pass itself: one forward and one backward that record A and G of every layer.
"""

import logging
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from foretaste.tangent.frozen import FrozenNetwork, Inputs, count_points, input_parts, isolated, take_points
from foretaste.tangent.functional import autograd_rows, functional_rows
from foretaste.tangent.rules import HEAD_RULES, RULES, LayerCalls, cut_axis, has_rule, linear, positions

log = logging.getLogger("foretaste")
ORDER_POINTS = 4  # of the batch that shows whether rows are the points in their order
CONSTANT_SUM = 1e-9  # squared gradient of the sum of outputs, as a share of one output's: rounding in float32
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

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        return tuple(m for m, _ in self.uses)

    @property
    def length(self) -> int:
        """Of the dimension along which it is cut."""
        return self.shape[self.axis]

    def width(self, at: slice) -> int:
        """The number of entries in the slice ``at``."""
        return (at.stop - at.start) * (self.numel // self.length)

    def head_rows(self, at: slice, calls: LayerCalls, head: int) -> Tensor:
        """(n, width): the gradient of one head in the slice ``at``, summed over all uses and calls."""
        total = None
        for m, local in self.uses:
            for a, g in calls[m]:
                rows = RULES[type(m)](m, local, a.flatten(0, 1), g[:, head].flatten(0, 1), at)
                rows = rows.view(a.shape[0], a.shape[1], -1).sum(1) if a.shape[1] > 1 else rows
                total = rows if total is None else total + rows
        assert total is not None
        return total

    def weighted_row(self, r_1n: Tensor, calls: LayerCalls) -> Tensor:
        """(1, p): Σ_n r_n J_n of the first head. A Linear layer takes all points as positions of one: it is faster."""
        if any(type(m) is not nn.Linear for m in self.modules):
            return r_1n @ self.head_rows(slice(0, self.length), calls, 0)
        total = None
        for m, local in self.uses:
            for a, g in calls[m]:
                a_1Td, g_nTo = positions(a).flatten(0, 1)[None], positions(g[:, 0]) * r_1n[0, :, None, None]
                row = linear(m, local, a_1Td, g_nTo.flatten(0, 1)[None], slice(0, self.length))
                total = row if total is None else total + row
        assert total is not None
        return total

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
    largest: float  # the largest entry of a gradient that was seen


def survey_network(frozen: FrozenNetwork, x: Inputs, classes: int) -> Survey:
    """Run a few points of ``x``. One head is enough: the others use the same layers.

    Once for each network that is frozen, and points of one shape: a query asks for several kernels of the same points.
    """
    shapes = tuple((k, v.shape[1:], v.dtype) for k, v in input_parts(x).items())
    key = frozen.output, frozen.uneven, classes, min(2, count_points(x)), shapes
    if key not in frozen.surveys:
        frozen.surveys[key] = make_survey(frozen, x, classes)
    return frozen.surveys[key]


def make_survey(frozen: FrozenNetwork, x: Inputs, classes: int) -> Survey:
    k = min(2, count_points(x))
    points = take_points(x, slice(k))
    heads, folded = (classes if frozen.output == kind else 1 for kind in ("full", "trace"))
    backward_passes = heads * folded
    one_head = replace(frozen, output="sum")
    layers = find_ruled_parameters(frozen)
    with isolated(frozen.device):
        with PeakMemory() as memory:
            layers, alone = record_or_none(one_head, layers, take_points(points, slice(1)))
        layers, together = record_or_none(one_head, layers, points)
        modules = list(together)
        axes = {m: axis for m in modules if (axis := find_point_axis(alone[m], together[m], k)) is not None}
        folds = {m: [call.a.shape[axis] // k for call in together[m]] for m, axis in axes.items()}
        calls = align_calls(together, axes, folds, k, 1)
        readable = [layer for layer in layers if all(m in axes for m in layer.modules)]
        verified, largest = verify_rules(one_head, points, readable, calls)
        parameters = [p.nbytes for p in frozen.params.values()]
        each, fixed = 2 * memory.peak + 2 * max(parameters), 2 * sum(parameters)  # of verify_order, for each point
        verified = verify_order(one_head, x, verified, axes, folds)
        if frozen.output == "sum" and classes > 1:
            check_sum(frozen, points)
    with_rule = {layer.name for layer in verified}
    functional = [name for name in frozen.params if name not in with_rule]
    if functional:
        log.info(
            "no rule for %d of %d parameters (%s%s): their gradients go through torch.func, which is slower",
            len(functional), len(frozen.params), ", ".join(functional[:4]), ", ..." if len(functional) > 4 else "",
        )  # fmt: skip
    call_bytes, positions = {}, {}
    for m, pairs in calls.items():
        call_bytes[m] = sum(a.nbytes + backward_passes * g.nbytes for a, g in pairs) // k
        positions[m] = sum(count_positions(m, a, g) for a, g in pairs) // k
    g_bytes = sum(g.nbytes for pairs in calls.values() for _, g in pairs)
    pass_bytes = memory.peak + (backward_passes - 1) * g_bytes // k
    # An estimate: the passes of k points and their gradients by autograd, stacked, and by the rules; then four points.
    # A PeakMemory around them would take longer than they do.
    survey_bytes = max(2 * k * memory.peak + 6 * k * sum(parameters), ORDER_POINTS * each + fixed)
    return Survey(
        verified, functional, heads, folded, call_bytes, positions, axes, folds, pass_bytes, survey_bytes, largest
    )


def find_ruled_parameters(frozen: FrozenNetwork) -> list[LayerParameter]:
    """The chosen parameters that only modules with a rule own, in the network's order."""
    owners: dict[int, list[ParameterUse | None]] = {}
    for label, m in frozen.net.named_modules():
        usable = has_rule(m) and label not in frozen.uneven
        for local, p in m._parameters.items():
            if p is not None:
                owners.setdefault(id(p), []).append((m, local) if usable else None)
    every = dict(frozen.net.named_parameters())
    layers = []
    for name in frozen.params:
        uses = [use for use in owners[id(every[name])] if use is not None]
        if len(uses) == len(owners[id(every[name])]):
            (axis, grain), *others = {cut_axis(m, local) for m, local in uses}
            if not others:
                layers.append(LayerParameter(name, tuple(uses), every[name].shape, axis, grain))
    return layers


def count_positions(m: nn.Module, a: Tensor, g: Tensor) -> int:
    """Positions at which a Linear, an Embedding or a convolution uses its weight, over all points."""
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
    frozen: FrozenNetwork, modules: Iterable[nn.Module], x: Inputs
) -> tuple[dict[nn.Module, list[RecordedCall]], Tensor]:
    """Run x once. Returns the calls of each module in order, and f(x).

    Parameters are detached, so no gradient of a weight is computed. The graph starts at a zero ``token`` that is added
    to the first recorded outputs, so the backward pass goes no lower than it must. A tensor hook that is set before an
    in-place operation sees the gradient of the value before it. So ``ReLU(inplace=True)`` after a layer does no harm.
    """
    token = torch.zeros((), dtype=frozen.dtype, device=frozen.device, requires_grad=True)
    calls: dict[nn.Module, list[RecordedCall]] = {m: [] for m in modules}
    head = 0

    def record(m: nn.Module, args: tuple, kwargs: dict, out: Tensor) -> Tensor:
        call = RecordedCall((args[0] if args else kwargs["input"]).detach(), out.shape, out.dtype)
        calls[m].append(call)
        if not out.requires_grad:
            out = out + token
        if out.requires_grad:  # False inside the network's own torch.no_grad()
            out.register_hook(lambda g: call.grads.__setitem__(head, g))
        return out

    hooks = [m.register_forward_hook(record, with_kwargs=True) for m in calls]
    try:
        f_NC = frozen.call(x)
        heads = frozen.heads(f_NC)
        if heads.requires_grad:
            for head in range(heads.shape[1]):
                last = head == heads.shape[1] - 1
                torch.autograd.grad(heads[:, head].sum(), token, retain_graph=not last, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    return calls, f_NC.detach()


def record_or_none(
    frozen: FrozenNetwork, layers: list[LayerParameter], x: Inputs
) -> tuple[list[LayerParameter], dict[nn.Module, list[RecordedCall]]]:
    """The layers and their calls; none where the network runs, but not with its layers recorded (checkpointing)."""
    modules = list(dict.fromkeys(m for layer in layers for m in layer.modules))
    try:
        return layers, record_pass(frozen, modules, x)[0]
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, KeyError, IndexError) as e:
        log.info("the layers of this network cannot be recorded (%s)", str(e).split("\n")[0])
        return [], {}


def find_point_axis(alone: Sequence[RecordedCall], together: Sequence[RecordedCall], k: int) -> int | None:
    """The dimension of A and G that is k times as long for k points as for one, in every call; None if none is."""

    def find_axis(one: torch.Size, many: torch.Size) -> int | None:
        for d in (0, 1):
            if (
                len(one) > d
                and one[d]
                and many[d] == k * one[d]
                and all(many[e] == one[e] for e in range(len(one)) if e != d)
            ):
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


class UnevenRowsError(RuntimeError):
    """A layer runs on more rows for some points than for others, so that its rows cannot be told apart."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(f"a {type(module).__name__} runs on more rows for some points than for others")
        self.module = module


def align_calls(
    calls: dict[nn.Module, list[RecordedCall]],
    axes: dict[nn.Module, int],
    folds: dict[nn.Module, list[int]],
    n: int,
    heads: int,
) -> LayerCalls:
    """A and G with the points first, then heads (G only), then what the network folded into the points' dimension.

    Frees the gradients in ``calls``. Raises an UnevenRowsError where n points do not have the rows that were seen.
    """
    for m, made in calls.items():
        if m in axes and not has_even_rows(made, axes[m], folds[m], n):
            raise UnevenRowsError(m)

    def points_first(t: Tensor, axis: int) -> Tensor:
        t = t.movedim(axis, 0) if axis else t
        return t.unflatten(0, (n, t.shape[0] // n))

    def all_heads(call: RecordedCall, axis: int) -> Tensor:
        g = [points_first(call.g(b), axis) for b in range(heads)]
        call.grads.clear()
        return g[0][:, None] if heads == 1 else torch.stack(g, 1)

    return {
        m: [(points_first(call.a, axes[m]), all_heads(call, axes[m])) for call in made]
        for m, made in calls.items()
        if m in axes
    }


# ---- Are the rules right for this network? ----


def verify_rules(
    frozen: FrozenNetwork, x: Inputs, layers: list[LayerParameter], calls: LayerCalls
) -> tuple[list[LayerParameter], float]:
    """The layers whose rule agrees with autograd on the points ``x``, and the largest entry of a gradient.

    This makes the rules safe. A rule fails here if the network uses a weight outside its module
    (``F.linear(x, self.embed.weight)``), changes an input in place, or calls a module under torch.utils.checkpoint;
    the parameter then goes through torch.func. Raises where torch.func itself is wrong: a forward that makes new
    parameters out of its own.
    """
    truth = autograd_rows(frozen, x, list(frozen.params))
    zero = torch.zeros((), dtype=frozen.dtype, device=frozen.device)
    largest = torch.stack([zero, *(t.abs().amax() for t in truth.values())]).amax() if truth else zero + 1
    products: dict[str, Tensor] = {}

    def compare(name: str, rows_np: Tensor) -> None:
        # A rule orders its columns freely. So compare the inner products of the rows, which do not depend on the order.
        # ``pop`` frees the true gradient as soon as it is used.
        products[name] = torch.stack([inner_products(rows_np), inner_products(truth.pop(name))])

    for layer in [layer for layer in layers if layer.name in truth]:
        compare(layer.name, layer.head_rows(slice(0, layer.length), calls, 0))
    with_rule = {layer.name for layer in layers}
    without_rule = [name for name in truth if name not in with_rule]
    for name, rows_nbp in functional_rows(frozen, x, without_rule).items() if without_rule else ():
        compare(name, rows_nbp[:, 0])
    agrees = find_agreeing(products, frozen.dtype)
    for name in without_rule:
        if not agrees[name]:
            raise ValueError(
                f"the gradient of {name!r} is lost when net is called with other parameters in their place "
                "(torch.func.functional_call): its forward makes new parameters out of them, as a slice of an "
                "nn.ParameterList does; use list(parameters)[a:b] there"
            )
    verified = [layer for layer in layers if agrees.get(layer.name, True)]
    for layer in layers:
        if layer not in verified:
            log.info("%s is used outside its module's own forward; its rule does not apply", layer.name)
    return verified, float(largest)


def verify_order(
    frozen: FrozenNetwork,
    x: Inputs,
    layers: list[LayerParameter],
    axes: dict[nn.Module, int],
    folds: dict[nn.Module, list[int]],
) -> list[LayerParameter]:
    """The layers whose rows are those of the points, in their order, in a batch of four.

    A forward may sort its batch and put it back, or send some points only through a layer. Then a row of A and G is
    not the point it seems to be. With random weights r_i, autograd's gradient of Σ_i r_i f(x_i) must be Σ_i r_i J_i of
    the rule's rows. One such sum costs one backward pass, for any number of points. Half of the batch is the other half
    backwards, so that no order which a forward prefers can be the batch's own.
    """
    if not layers:
        return layers
    draws = torch.Generator().manual_seed(0)
    half = torch.randperm(count_points(x), generator=draws)[: ORDER_POINTS // 2]
    at = torch.cat([half, half.flip(0)]).to(frozen.device)
    n = len(at)
    r_1n = torch.randn(1, n, generator=draws, dtype=torch.float64).to(frozen.device, frozen.dtype)
    points = take_points(x, at)
    names = {layer.name for layer in layers}
    params = {k: p for k, p in frozen.net.named_parameters() if k in names and p.requires_grad}
    layers, recorded = record_or_none(frozen, layers, points)
    modules = list(recorded)
    fits = {m for m in modules if has_even_rows(recorded[m], axes[m], folds[m], n)}
    calls = align_calls({m: recorded[m] for m in fits}, axes, folds, n, 1)
    heads_n = frozen.heads(frozen.call_attached(points)).sum(1)
    gradients = torch.autograd.grad(heads_n @ r_1n[0], list(params.values()), materialize_grads=True)
    by_autograd = dict(zip(params, gradients))
    products: dict[str, Tensor] = {}
    for layer in layers:
        if layer.name in params and all(m in fits for m in layer.modules):
            by_rule_1p = layer.weighted_row(r_1n, calls)
            pair = by_rule_1p, by_autograd.pop(layer.name).reshape(1, -1)
            products[layer.name] = torch.stack([inner_products(rows_1p) for rows_1p in pair])
    agrees = find_agreeing(products, frozen.dtype)
    kept = [layer for layer in layers if agrees.get(layer.name, layer.name not in params)]
    for layer in layers:
        if layer not in kept:
            log.info("%s does not see the points of a batch in their order; its rule does not apply", layer.name)
    return kept


def has_even_rows(made: Sequence[RecordedCall], axis: int, folds: Sequence[int], n: int) -> bool:
    """Whether each call has the rows of n points that the survey saw: the same number for every point."""
    return len(made) == len(folds) and all(
        len(call.shape) > axis and call.a.shape[axis] == n * fold and call.shape[axis] % n == 0
        for call, fold in zip(made, folds)
    )


def check_sum(frozen: FrozenNetwork, x: Inputs) -> None:
    """Raise if the sum of the outputs is constant, as a softmax's is: its gradient is nothing but rounding."""
    with torch.no_grad():
        sums_n, largest = (f_nC := frozen.call(x)).sum(1), float(f_nC.abs().max())
    if float((sums_n - sums_n[0]).abs().max()) > 1e-3 * largest:
        return
    f_1C = frozen.call_attached(take_points(x, slice(1)))[0]
    params = [p for p in frozen.net.parameters() if p.requires_grad]
    if not params or not f_1C.requires_grad:
        return
    squares = []
    for head in (f_1C.sum(), f_1C[f_1C.detach().argmax()]):
        grads = torch.autograd.grad(head, params, retain_graph=True, materialize_grads=True)
        squares.append(torch.stack([g.double().square().sum() for g in grads]).sum())
    of_sum, of_one = torch.stack(squares).tolist()
    if of_sum < CONSTANT_SUM * of_one:
        raise ValueError(
            "the outputs of net have a constant sum, as those of a softmax have, so the kernel of their sum "
            '(output="sum") is zero; let net return logits, or use output="signs", "trace" or "first"'
        )


def find_agreeing(products: dict[str, Tensor], dtype: torch.dtype) -> dict[str, bool]:
    """Whether the two (n, n) inner products of each entry (2, n, n) agree, up to rounding."""
    # All numbers are read from the device at once: each read waits for it.
    both = torch.stack(list(products.values())).double().cpu() if products else torch.zeros(0, 2, 1, 1)
    gap_P, size_P = (both[:, 0] - both[:, 1]).norm(dim=(1, 2)), both[:, 1].norm(dim=(1, 2))
    relative, floor = (1e-3, 1e-5) if dtype == torch.float32 else (1e-8, 1e-12)
    largest = float(both[:, 1].diagonal(dim1=1, dim2=2).sum(1).max()) if products else 0.0  # squared norm
    return dict(zip(products, (gap_P <= relative * size_P + floor**2 * largest).tolist()))


def inner_products(rows_np: Tensor) -> Tensor:
    """All inner products of a few rows, (n, n). One by one on a GPU, which is slow at products of so few rows."""
    if not rows_np.is_cuda:
        return rows_np @ rows_np.T
    return torch.stack([torch.stack([torch.dot(a, b) for b in rows_np.contiguous()]) for a in rows_np.contiguous()])


# ---- Measuring memory ----


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
        self.watchers: list[weakref.finalize] = []

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        self.outside.clear()
        for watcher in self.watchers:
            watcher.detach()  # else they would live as long as the tensors do

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first use imports torch._dynamo, two seconds of everyone's first kernel

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for t in tree_leaves((args, kwargs)):
            if isinstance(t, Tensor):  # if new, it was made outside: neither it nor its views count
                self.count(t, inside=False)
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, Tensor):
                self.count(t, inside=True)
        return out

    def count(self, t: Tensor, inside: bool) -> None:
        store = t.untyped_storage()
        key, size = store._cdata, store.nbytes() if inside else 0
        if key in self.seen:
            return
        self.seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        if inside:
            self.watchers.append(weakref.finalize(store, self.forget, key, size))
        else:
            self.outside.append(store)

    def forget(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size
