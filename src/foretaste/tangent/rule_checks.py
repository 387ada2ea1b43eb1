"""Do the rules of rules.py hold for this network, on the batches that a pass computes?

A dozen points are drawn from the first and the last batch of each set, and run once more by themselves. Row n of the
batch is compared with point n (``compare_marks``), and every rule with autograd (``compare_rows``), on fewer points
where a pass is expensive. ``RuleChecks`` does this. A rule that fails raises a LostRowsError: the pass starts again
without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from foretaste.tangent.frozen import (
    OWN_OUTPUT,
    FrozenNetwork,
    Inputs,
    check_apart,
    compare_outputs,
    count_points,
    input_parts,
    isolated,
    join_points,
    take_points,
)
from foretaste.tangent.functional import autograd_sum
from foretaste.tangent.rules import LayerCalls
from foretaste.tangent.survey import (
    ROUNDING,
    LayerParameter,
    LostRowsError,
    Survey,
    align_calls,
    find_same,
    modules_of,
    points_compared,
    record_pass,
    row_gaps,
    some_entries,
    survey_network,
)

TF32_ROUNDING = 2e-2, 1e-3  # ROUNDING for TF32, twenty times its error
TF32_OUTPUT = 2e-2  # OWN_OUTPUT for TF32
# How far A of a TF32 pass may be from A of the same points by themselves, as a share of their spread and their size.
TF32_MOVED = 0.25, 0.01


# ---- Which points ----


def points_to_draw(sizes: Sequence[int], chunk_size: int, cheap: bool) -> dict[int, tuple[int, int]]:
    """{place of a chunk's first point: (few, many)} of its points to check, for the first and the last of each set.

    The rules are checked on few points. On many, only whether row n is point n, which needs no backward pass: that of a
    dozen points would take a quarter of the time of a small kernel. If a pass is cheap, few = many.
    """
    draws: dict[int, tuple[int, int]] = {}
    start = 0
    for n in sizes:
        few, many = points_compared(n, cheap)
        if n > chunk_size:
            last = start + (n - 1) // chunk_size * chunk_size
            draws |= {start: (few - few // 2, many - many // 2), last: (few // 2, many // 2)}
        elif n:
            draws[start] = few, many
        start += n
    return draws


@dataclass(frozen=True)
class Marks:
    """Some entries of A of every call, which tell points apart: (n, S), and how many of the S each call has."""

    values_nS: Tensor
    widths: list[tuple[nn.Module, int]]

    def by_call(self) -> tuple[Tensor, ...]:
        return self.values_nS.split([width for _, width in self.widths], 1)


def mark_points(calls: LayerCalls) -> Marks:
    parts = [(m, some_entries(a)) for m, pairs in calls.items() for a, _ in pairs]
    dtype = next((t.dtype for _, t in parts if t.is_floating_point()), torch.float64)  # an Embedding's are integers
    return Marks(torch.cat([t.to(dtype) for _, t in parts], 1), [(m, t.shape[1]) for m, t in parts])


@dataclass(frozen=True)
class CheckedPoints:
    """A batch, or some points of it, and what its pass recorded for them: A and G (or neither), marks, and f."""

    x: Inputs
    calls: LayerCalls
    marks: Marks
    f_nC: Tensor

    @property
    def shapes(self) -> object:
        parts = [t for calls in self.calls.values() for pair in calls for t in pair]
        parts += [*input_parts(self.x).values(), self.marks.values_nS]
        return [t.shape[1:] for t in parts], [width for _, width in self.marks.widths]

    @cached_property
    def shares_2n(self) -> Tensor:
        """(2, n): the largest share that each point has in Σ_n |G_n| of any call, and in Σ_n |A_n − mean A|."""
        g_Kn = torch.stack([some_entries(g[:, 0]).abs().sum(1) for pairs in self.calls.values() for _, g in pairs])
        values_nS = self.marks.values_nS
        apart = replace(self.marks, values_nS=(values_nS - values_nS.mean(0)).abs())
        size_2Kn = torch.stack([g_Kn, torch.stack([t.sum(1) for t in apart.by_call()]).to(g_Kn)])
        return (size_2Kn / size_2Kn.sum(2, keepdim=True).clamp_min(torch.finfo(size_2Kn.dtype).tiny)).amax(1)

    def draw(self, count: int, rows: bool) -> "CheckedPoints":
        """At most ``count`` points: about a third at random, the others those that matter most to some layer.

        A layer that few points use (an expert) has no gradient at the others: there any order of its rows looks right.
        The same holds where most inputs of a layer are equal (after a ReLU that is 0 nearly everywhere).

        rows: whether their A and G (of the first head) are kept.
        """
        n, device = count_points(self.x), next(iter(input_parts(self.x).values())).device
        at = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:count]
        at = at.to(device, non_blocking=True)  # else the host waits for the device
        if n > count:
            third = (count + 1) // 3
            most = self.shares_2n.topk(third).indices.flatten().to(device)
            at = torch.cat([at[: max(0, count - len(most))], most])[:count]
        calls = {m: [(a[at], g[at, :1]) for a, g in pairs] for m, pairs in self.calls.items()} if rows else {}
        marks = replace(self.marks, values_nS=self.marks.values_nS[at])
        return CheckedPoints(take_points(self.x, at), calls, marks, self.f_nC[at])


# ---- Comparing them ----


def join_drawn(drawn: Sequence[CheckedPoints]) -> Sequence[CheckedPoints]:
    """The points of several batches as one batch, if all recorded tensors have the same shapes."""
    if len(drawn) < 2 or any(other.shapes != drawn[0].shapes for other in drawn):
        return drawn
    first = drawn[0]
    calls = {
        m: [
            (torch.cat([a for a, _ in same]), torch.cat([g for _, g in same]))
            for same in zip(*(d.calls[m] for d in drawn))
        ]
        for m in first.calls
    }
    marks = replace(first.marks, values_nS=torch.cat([d.marks.values_nS for d in drawn]))
    return [CheckedPoints(join_points(*(d.x for d in drawn)), calls, marks, torch.cat([d.f_nC for d in drawn]))]


def record_alone(
    frozen: FrozenNetwork, survey: Survey, layers: Sequence[LayerParameter], x: Inputs, heads: int = 1
) -> CheckedPoints:
    """A and G of the first head of some points, run by themselves, and f. heads=0: no G, and f is attached.

    Not under torch.no_grad(): a network may run other code then (nn.TransformerEncoder does).
    """
    recorded, f_nC = record_pass(frozen, modules_of(layers), x, heads)
    calls = align_calls(recorded, survey.axes, survey.folds, count_points(x), heads)
    return CheckedPoints(x, calls, mark_points(calls), f_nC)


def compare_rows(
    frozen: FrozenNetwork, layers: Sequence[LayerParameter], points: CheckedPoints, f_nC: Tensor
) -> dict[str, Tensor]:
    """{name: (2,)}: ``row_gaps`` of Σ_i r_i J_i over the points, by the rules and by autograd.

    f_nC: of the points by themselves, attached (``FrozenNetwork.call``).

    This makes the rules safe. A rule fails here if the network uses a weight outside its module
    (``F.linear(x, self.embed.weight)``), changes an input in place, or calls a module under torch.utils.checkpoint. Or
    if a forward sorts its batch and puts it back, or sends only some points through a layer: then row n of A and G does
    not belong to point n. A look at a few points need not show that, so the batch that is computed is the one that is
    checked. With random weights r_i, one backward pass of the points by themselves serves all of them.
    """
    draws = torch.Generator().manual_seed(1)
    r_n = torch.randn(count_points(points.x), generator=draws, dtype=torch.float64).to(frozen.dtype)
    r_n = r_n.to(frozen.device, non_blocking=True)
    truth = autograd_sum(frozen, f_nC, [layer.name for layer in layers], r_n)
    weighted = {
        m: [(a, g[:, :1] * r_n.view(-1, *[1] * (g.dim() - 1))) for a, g in pairs] for m, pairs in points.calls.items()
    }
    return row_gaps({a.name: a.summed_row(weighted) for a in layers if a.name in truth}, truth)


def compare_marks(batch: Marks, alone: Marks, cut: bool = True) -> Marks:
    """(3, S): how far marks in a batch are from those of the same points by themselves; their spread, their size.

    cut: a call of another shape (of a network that cuts its batch to the longest text) is infinitely far; else it is
    left out.

    G is not compared: where the input of a ReLU is nearly 0, its sign is random.
    """
    came_nS, own_nS, widths = batch.values_nS, alone.values_nS, alone.widths
    if batch.widths != widths:
        both = zip(batch.by_call(), alone.by_call(), widths)
        kept = [(a, b, width) for a, b, width in both if cut or a.shape == b.shape]
        came_nS = torch.cat([a if a.shape == b.shape else b + torch.inf for a, b, _ in kept] or [came_nS[:, :0]], 1)
        own_nS = torch.cat([b for _, b, _ in kept] or [own_nS[:, :0]], 1)
        widths = [width for _, _, width in kept]
    compared = (came_nS - own_nS, own_nS - own_nS.mean(0), own_nS)
    return Marks(torch.stack([torch.linalg.vector_norm(t, dim=0, dtype=torch.float64) for t in compared]), widths)


def find_moved(gaps: Marks, rounding: tuple[float, float]) -> list[nn.Module]:
    """The modules whose rows in the batch are not the points in their order.

    gaps: of ``compare_marks``. rounding: what they may be, of the spread and of the size.
    """
    if not gaps.widths:
        return []
    read = replace(gaps, values_nS=gaps.values_nS.cpu())
    size_K3 = torch.stack([t.norm(dim=1) for t in read.by_call()])
    moved_K = size_K3[:, 0] > rounding[0] * size_K3[:, 1] + rounding[1] * size_K3[:, 2]
    return list(dict.fromkeys(m for (m, _), moved in zip(gaps.widths, moved_K.tolist()) if moved))


# ---- The checks of a pass ----


class RuleChecks:
    """Whether the rules of some layers hold for the batches of a pass: points are drawn, compared, and read."""

    def __init__(self, frozen: FrozenNetwork, survey: Survey, layers: Sequence[LayerParameter], coarse: bool) -> None:
        """coarse: the pass is in TF32."""
        self.frozen, self.survey, self.layers, self.coarse = frozen, survey, layers, coarse
        # Points that are not compared yet, and what was compared but not read yet: see ``compare``.
        self.few: list[CheckedPoints] = []
        self.many: list[CheckedPoints] = []
        self.first_look: list[tuple[CheckedPoints, dict[str, Tensor], Marks]] = []
        self.gaps: list[dict[str, Tensor]] = []
        self.mark_gaps: list[Marks] = []
        self.outputs: list[Tensor] = []

    def draw(self, x: Inputs, calls: LayerCalls, f_NC: Tensor, few: int, many: int) -> None:
        """Keep some points of a batch, to check the rules on them."""
        calls = {m: calls[m] for m in modules_of(self.layers)}
        batch = CheckedPoints(x, calls, mark_points(calls), f_NC)
        if not self.coarse and few:
            self.few.append(batch.draw(few, rows=True))
        if self.coarse or few < many:
            self.many.append(batch.draw(many, rows=False))

    def compare(self) -> None:
        """Check the rules on the points that were drawn from the pass. ``read`` has the answer.

        TF32 is too coarse for that, and in float32 a ReLU whose input is nearly 0 may have another sign in another
        batch. Then ``check_alone`` follows.
        """
        for points in [*join_drawn(self.few), *join_drawn(self.many)]:
            if self.coarse:
                self.check_alone(points)
                continue
            alone = record_alone(self.frozen, self.survey, self.layers, points.x, heads=0)
            gaps = compare_rows(self.frozen, self.layers, points, alone.f_nC) if points.calls else {}
            self.first_look.append((points, gaps, compare_marks(points.marks, alone.marks, cut=False)))
            del alone  # and its graph, before the next
        self.few.clear()
        self.many.clear()

    def check_alone(self, points: CheckedPoints) -> None:
        """Check the rules on points by themselves, and whether the pass has these points where they seem to be."""
        alone = record_alone(self.frozen, self.survey, self.layers, points.x)
        self.mark_gaps.append(compare_marks(points.marks, alone.marks))
        self.outputs.append(compare_outputs(points.f_nC, alone.f_nC))
        self.gaps.append(compare_rows(self.frozen, self.layers, alone, self.frozen.call(points.x, attached=True)))

    def read(self) -> None:
        """Raise if a rule does not hold, or if points influence one another. A read waits for the device."""
        dtype = self.frozen.dtype
        for points, gaps, marks in self.first_look:
            if not all(find_same(gaps, dtype).values()) or find_moved(marks, ROUNDING[dtype]):
                self.check_alone(points)
        for outputs in self.outputs:
            check_apart(outputs, TF32_OUTPUT if self.coarse else OWN_OUTPUT[dtype])
        rounding = TF32_ROUNDING if self.coarse and self.frozen.device.type == "cuda" else ROUNDING[dtype]
        for gaps in self.gaps:
            if lost := [name for name, holds in find_same(gaps, dtype, rounding).items() if not holds]:
                raise LostRowsError(
                    "used outside of a module's own forward, or by a layer that does not see the points in their order",
                    names=lost,
                )
        for marks in self.mark_gaps:
            if moved := find_moved(marks, TF32_MOVED if self.coarse else ROUNDING[dtype]):
                raise LostRowsError("a layer does not see the points in their order", modules=moved)
        for read in (self.first_look, self.outputs, self.gaps, self.mark_gaps):
            read.clear()


def settle_rules(frozen: FrozenNetwork, x: Inputs, classes: int) -> FrozenNetwork:
    """The network without the rules that fail on two points. A kernel finds these as it runs, a plan must know them."""
    while True:
        survey, points = survey_network(frozen, x, classes), take_points(x, slice(2))
        if not survey.layers:
            return frozen
        with isolated(frozen.device):
            alone = record_alone(frozen, survey, survey.layers, points)
            gaps = compare_rows(frozen, survey.layers, alone, frozen.call(points, attached=True))
            agrees = find_same(gaps, frozen.dtype)
        if all(agrees.values()):
            return frozen
        frozen = replace(frozen, unruled=frozen.unruled | {name for name, holds in agrees.items() if not holds})
