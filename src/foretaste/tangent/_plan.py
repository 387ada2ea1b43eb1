"""How to fit the work in memory: which gradients are formed in which pass, and how many points go at a time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from foretaste.tangent._layers import Layer, Survey
from foretaste.tangent._memory import human
from foretaste.tangent._products import ProductLayer, split
from foretaste.tangent._theta import Block, Theta

CHUNK = {"cpu": 32, "cuda": 256}


@dataclass
class Group:
    """What one pass over all points brings home.

    ``formed`` are rows written during the pass. ``stashed`` layers keep A and G, smaller than their rows, and form rows slab by
    slab afterwards; ``products`` keep A and G and never form any. ``functional`` rows come from torch.func.
    """

    formed: list[tuple[Layer, slice]] = field(default_factory=list)
    functional: list[tuple[str, slice]] = field(default_factory=list)
    stashed: list[Layer] = field(default_factory=list)
    products: list[ProductLayer] = field(default_factory=list)
    width: int = 0  # columns of the rows written during the pass
    held: int = 0  # bytes of A and G kept

    @property
    def modules(self) -> list[nn.Module]:
        layers = [*(ly for ly, _ in self.formed), *self.stashed, *self.products]
        return list(dict.fromkeys(m for ly in layers for m in ly.modules))

    @property
    def kept(self) -> list[nn.Module]:
        return list(dict.fromkeys(m for ly in [*self.stashed, *self.products] for m in ly.modules))


@dataclass(frozen=True)
class Plan:
    groups: list[Group] = field(repr=False)
    chunk_size: int
    slab: int  # columns of rows formed at once from what is stashed
    nbytes: int  # estimated peak of the engine's own tensors
    budget: int

    def __str__(self) -> str:
        passes = "1 pass" if len(self.groups) == 1 else f"{len(self.groups)} passes"
        return (
            f"{passes} in chunks of {self.chunk_size}, about {human(self.nbytes)} of a budget of {human(self.budget)}"
        )


def make_plan(
    survey: Survey,
    numels: Mapping[str, int],
    sizes: Mapping[str, int],
    blocks: Sequence[Block],
    diagonals: Sequence[str],
    *,
    item: int,
    budget: int,
    device: str,
) -> Plan:
    """``numels``: entries of each torch.func parameter; ``item``: bytes of one entry of a gradient row."""
    points = sum(sizes.values())
    row = points * survey.heads * item  # bytes of one column of rows
    theta = Theta.nbytes(sizes, blocks, diagonals, survey.heads)
    tile = Theta.working_bytes(sizes, blocks, survey.heads)
    products, layers = split(survey)
    layers = layers[::-1]  # from the top: the first groups then need less of the backward pass

    def a_point(width: int) -> int:
        """Bytes of a pass for one point: activations and their gradients, padded copies, rows not yet in their place."""
        most = max((survey.held[m] for ly in survey.layers for m in ly.modules), default=0)
        return 2 * survey.pass_bytes + 2 * most + 2 * width * survey.heads * item

    def need(ly: Layer) -> int:
        return ly.width(slice(0, ly.grain)) * row

    widest = max([ly.p for ly in layers] + [sum(numels.values())], default=0)
    least = max([need(ly) for ly in layers] + [row] * bool(numels), default=0)
    floor = theta + least + max(tile, a_point(min(widest, budget // (8 * row) + 1)))
    share = max((budget - theta) // 4, 0)
    chunk = max(1, min(CHUNK.get(device, 32), points, share // max(a_point(widest), 1)))
    room = budget - theta - max(tile, chunk * a_point(widest))
    if room < least:
        raise ValueError(
            f"a budget of {human(budget)} is too small for {points} points: Θ takes {human(theta)}, one point's pass "
            f"{human(a_point(widest))}, a slice of gradient rows {human(least)}; budget={human(floor * 1.1)!r} would do"
        )
    groups = list(fill(survey, products, layers, numels, room, row, points))
    peak = max(g.held + max(g.width, slab_of(g, room, row)) * row for g in groups)
    slab = max((slab_of(g, room, row) for g in groups), default=0)
    return Plan(groups, chunk, slab, theta + max(tile, chunk * a_point(widest)) + peak, budget)


def slab_of(group: Group, room: int, row: int) -> int:
    if not group.stashed:
        return 0
    return max(min((room - group.held) // row, sum(ly.p for ly in group.stashed)), 1)


def fill(
    survey: Survey,
    products: list[ProductLayer],
    layers: list[Layer],
    numels: Mapping[str, int],
    room: int,
    row: int,
    points: int,
) -> Iterator[Group]:
    """Groups of at most ``room`` bytes. Rows are cut where they must be; A and G are kept where that is smaller."""
    parts = {ly.name: ly for ly in survey.layers}

    def held(modules: Sequence[nn.Module]) -> int:
        return points * sum(survey.held[m] for m in dict.fromkeys(modules))

    everything = sum(ly.p for ly in layers) * row + sum(numels.values()) * row
    ample = everything + held([m for pr in products for m in pr.modules]) <= room
    reserve = room // 4  # for the rows formed from what is stashed
    group = Group()
    cut: list[Layer] = []
    for pr in products:
        if held(pr.modules) > room - reserve:  # too large to keep: as rows, in slices
            names = [n for n, ly in parts.items() if ly.modules == pr.modules]
            cut += [parts[n] for n in names]
            continue
        if group.held + held(pr.modules) > room - reserve:
            yield group
            group = Group()
        group.products.append(pr)
        group.held += held(pr.modules)
    for ly in [*layers, *cut]:
        keep = held(ly.modules)
        if not ample and keep < ly.p * row // 2 and keep <= room - reserve:
            if group.held + keep + max(reserve, group.width * row) > room:
                yield group
                group = Group()
            group.stashed.append(ly)
            group.held += keep
            continue
        start = 0
        while start < ly.shape[0]:
            fit = (room - group.held - group.width * row) // (ly.width(slice(0, 1)) * row)
            fit = fit // ly.grain * ly.grain
            if fit <= 0:
                yield group
                group = Group()
                continue
            at = slice(start, min(start + fit, ly.shape[0]))
            group.formed.append((ly, at))
            group.width += ly.width(at)
            start = at.stop
    for name, p in numels.items():
        start = 0
        while start < p:
            fit = (room - group.held) // row - group.width
            if fit <= 0:
                yield group
                group = Group()
                continue
            at = slice(start, min(start + fit, p))
            group.functional.append((name, at))
            group.width += at.stop - at.start
            start = at.stop
    if group.modules or group.functional:
        yield group
