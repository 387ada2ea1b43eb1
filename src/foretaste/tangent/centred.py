"""Correlations of tangents, or of their sketches, between points that are held and any number of others.

    κ_ij = (J_i − μ)·(J_j − μ) / (‖J_i − μ‖ ‖J_j − μ‖)

J_i is the tangent ∇f(x_i), μ the mean tangent of a sample. No tangent of a Linear layer is formed: its part of J_i·J_j
is (A_i·A_j)(G_i·G_j), with A its input and G the gradient of its output, and μ of that layer is Σ_i G_i A_iᵀ / N. All
other layers give rows of gradients, less their mean. What of μ and of the lengths can be folded into the factors is:
then κ of a block is one product for the rows, two for each Linear layer, and one entrywise product.

The products are in the network's own precision. What subtracts nearly equal numbers, ‖J_i − μ‖², is in float64.
"""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from foretaste.batches import cut_padding
from foretaste.tangent.accumulate import slices
from foretaste.tangent.frozen import (
    FrozenNetwork,
    Inputs,
    count_points,
    float32_products,
    isolated,
    take_points,
    to_float64,
)
from foretaste.tangent.functional import functional_rows
from foretaste.tangent.kernel import GramJob, gram
from foretaste.tangent.planning import CHUNK_BYTES
from foretaste.tangent.products import product
from foretaste.tangent.rule_checks import settle_rules
from foretaste.tangent.rules import positions
from foretaste.tangent.sketch import TangentSketch
from foretaste.tangent.survey import LayerParameter, Survey, align_calls, modules_of, record_pass, survey_network

PASS_POINTS = {"cpu": 4096, "cuda": 32768}  # at most, in one pass
BLOCK_POINTS = {"cpu": 512, "cuda": 16384}  # whose κ is made at once: on a CPU it stays in the cache
FLOAT64_NUMBERS = {"cpu": 1 << 21, "cuda": 1 << 26}  # of formed rows that are in float64 at once
LANDMARK_RIDGE = 1e-4  # λ, of the mean diagonal of Θ of the landmarks: float32 would not bear much less
NO_SPREAD = 1e-9  # of the mean variance: what rounding leaves of a point that the kernel cannot tell from the mean


@dataclass(frozen=True, eq=False)
class TangentFactors:
    """Tangents of n points: J_i·J_j = Σ (A_i·A_j)(G_i·G_j) + R_i·R_j. The sum is over Linear layers."""

    products: list[tuple[Tensor, Tensor]]  # (n, D) and (n, O) of each
    rows: Tensor  # (n, p): gradients that are formed

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, cut: slice | Tensor) -> "TangentFactors":
        return TangentFactors([(a[cut], g[cut]) for a, g in self.products], self.rows[cut])

    def kernel(self, other: "TangentFactors") -> Tensor:
        """Θ between these points and others, (n, m)."""
        theta_nm = product(self.rows, other.rows)
        for (a, g), (a_m, g_m) in zip(self.products, other.products):
            theta_nm += product(a, a_m).mul_(product(g, g_m))
        return theta_nm

    def diagonal(self) -> Tensor:
        """Θ of each point with itself, (n,)."""
        return self.rows.square().sum(1) + sum(a.square().sum(1) * g.square().sum(1) for a, g in self.products)

    def pull(self, v_nR: Tensor) -> list[Tensor]:
        """Jᵀv: for each Linear layer Σ_i v_i A_i G_iᵀ, (R, D, O), and Σ_i v_i R_i, (R, p)."""
        return [
            *(torch.stack([(a * v_n[:, None]).T @ g for v_n in v_nR.T]) for a, g in self.products),
            v_nR.T @ self.rows,
        ]

    def push(self, pulled: list[Tensor]) -> Tensor:
        """J times what ``pull`` gives, (n, R)."""
        *layers, rows_Rp = pulled
        out_nR = self.rows @ rows_Rp.T
        for (a, g), m_RDO in zip(self.products, layers):
            for r, m_DO in enumerate(m_RDO):
                out_nR[:, r] += (a @ m_DO).mul_(g).sum(1)
        return out_nR


def join_factors(parts: Iterable[TangentFactors]) -> TangentFactors:
    """The factors of several parts, in float64."""
    several = list(parts)
    products = [
        (torch.cat([*map(to_float64, a)]), torch.cat([*map(to_float64, g)]))
        for a, g in (zip(*of) for of in zip(*(part.products for part in several)))
    ]
    return TangentFactors(products, torch.cat([to_float64(part.rows) for part in several]))


def sums_like(part: TangentFactors) -> Tensor:
    return to_float64(part.rows[:0]).sum(0)


class FactorSource:
    """Where the factors of a network's tangents come from.

    x: some points, at least two where there are two. C: the network's outputs. ``inputs_only``: the inputs take the
    place of the tangents. ``sketch``: so do sketches of the tangents (sketch.py), with the square of so many numbers.
    ``landmarks``: points whose part of a tangent is exact; only what they leave of it is sketched. ``budget``: of Θ
    with these.
    """

    def __init__(
        self,
        frozen: FrozenNetwork,
        x: Inputs,
        C: int,
        inputs_only: bool = False,
        sketch: int | None = None,
        landmarks: Inputs | None = None,
        budget: int | None = None,
    ) -> None:
        self.inputs_only, self.sketch, self.C, self.budget = inputs_only, sketch, C, budget
        self.x_M = None if sketch is None else landmarks
        self.flat: set[nn.Module] = set()  # Linear layers whose G is the same at every point
        if inputs_only:
            return
        self.frozen = settle_rules(frozen, x, C)
        self.survey: Survey = survey_network(self.frozen, x, C)
        if sketch is not None:
            return
        (first,) = self.parts(take_points(x, slice(self.pass_points)))
        for m, (_, g) in zip(self.layers[0], first.products):
            # Only of the layer that gives the outputs: its G is that of the head, at any point.
            if g.shape[1] // self.survey.folded == C and bool((g == g[:1]).all()):
                self.flat.add(m)

    def parts(self, x: Inputs) -> Iterator[TangentFactors]:
        """The factors of some points, one part for each pass.

        Sketches are made in TF32 on a GPU: of ResNet18, κ of sketches is off by 0.014 with it and 0.017 without.
        """
        if self.inputs_only:
            assert isinstance(x, Tensor)
            yield TangentFactors([], x.detach().flatten(1))
            return
        half_nM = None if self.x_M is None else self._explained(x)
        for at in slices(count_points(x), self.pass_points):
            with isolated(self.frozen.device, "float32" if self.sketch is None else "tf32"):
                part = self._pass(take_points(x, at))
            yield part if half_nM is None else self._with_exact(part.rows, half_nM[at])

    # Landmarks M: with A = Θ_MM + λI = RRᵀ and h_i = R⁻¹Θ_Mi, Θ_ij = h_i·h_j + S_ij. S_ij is the product of what M
    # leaves of two tangents, J_i − Θ_iM A⁻¹ J_M, whose sketch is s_i − h_iᵀ R⁻¹ s_M: sketches are linear. So a point
    # has the numbers of both, and only S has the error of a sketch. (λ takes λ Θ_iM A⁻² Θ_Mj off, which is less still.)

    @cached_property
    def landmark_root(self) -> Tensor:
        """R, (M, M)."""
        theta_MM = self._theta("M", "M").clone()
        theta_MM.diagonal().add_(LANDMARK_RIDGE * float(theta_MM.diagonal().mean()))
        return torch.linalg.cholesky(theta_MM)

    @cached_property
    def landmark_sketches(self) -> Tensor:
        """R⁻¹ s_M, (M, r²)."""
        assert self.x_M is not None
        with isolated(self.frozen.device):
            parts = [self._pass(take_points(self.x_M, at)) for at in slices(count_points(self.x_M), self.pass_points)]
        s_M = to_float64(torch.cat([part.rows for part in parts]))
        return torch.linalg.solve_triangular(self.landmark_root, s_M, upper=False)

    def _theta(self, a: str, b: str, **more: Inputs) -> Tensor:
        assert self.x_M is not None
        sets: dict[str, Inputs] = {"M": self.x_M, **more}
        return gram(GramJob(self.frozen, sets, [(a, b)], budget=self.budget, classes=self.C, check=False)).blocks[a, b]

    def _explained(self, x: Inputs) -> Tensor:
        """h of some points, (n, M)."""
        return torch.linalg.solve_triangular(self.landmark_root, self._theta("x", "M", x=x).T, upper=False).T

    def _with_exact(self, s_n: Tensor, half_nM: Tensor) -> TangentFactors:
        left_n = s_n - (half_nM @ self.landmark_sketches).to(s_n)
        return TangentFactors([], torch.cat([left_n, half_nM.to(s_n)], 1))

    @cached_property
    def layers(self) -> tuple[dict[nn.Module, tuple[bool, bool]], list[LayerParameter]]:
        """Linear layers that act once on a point, with whether weight and bias are wanted; and all other parameters."""
        linear: dict[nn.Module, tuple[bool, bool]] = {}
        if self.sketch is not None:
            return linear, self.survey.layers
        for layer in self.survey.layers:
            m, name = layer.uses[0]
            alone = len(layer.uses) == 1 and len(self.survey.folds[m]) == 1 and self.survey.positions[m] == 1
            if type(m) is nn.Linear and alone and name == "weight":
                bias = any(other.uses == ((m, "bias"),) for other in self.survey.layers)
                linear[m] = (True, bias)
        rest = [layer for layer in self.survey.layers if not (len(layer.uses) == 1 and layer.uses[0][0] in linear)]
        return linear, rest

    @cached_property
    def sketches(self) -> TangentSketch:
        assert self.sketch is not None
        s, like = self.survey, next(iter(self.frozen.params.values()))
        once = {m for m, count in s.positions.items() if count == 1}
        return TangentSketch(s.layers, once, s.heads * s.folded, self.sketch, like)

    @property
    def width(self) -> int:
        """Numbers of a point's factors: the multiplications that one κ costs."""
        if self.sketch is not None:
            return self.sketches.numbers + (0 if self.x_M is None else count_points(self.x_M))
        linear, rest = self.layers
        wide = self.survey.folded
        products = sum(m.in_features + wide * m.out_features for m in linear if isinstance(m, nn.Linear))
        functional = sum(self.frozen.params[name].numel() for name in self.survey.functional)
        return products + wide * (sum(layer.numel for layer in rest) + functional)

    @cached_property
    def pass_points(self) -> int:
        """Points in one pass. By the network alone: a budget must not change rounding, and so a pick."""
        s = self.survey
        formed = sum(layer.numel for layer in (self.layers[1] if self.sketch is None else self.sketches.formed))
        each = 3 * s.pass_bytes + 4 * s.mark_bytes + 3 * s.heads * s.folded * formed * 4
        device = self.frozen.device.type
        return max(1, min(PASS_POINTS.get(device, 4096), CHUNK_BYTES.get(device, 1 << 28) // max(each, 1)))

    def _pass(self, x: Inputs) -> TangentFactors:
        x = cut_padding(self.frozen.net, x)
        (linear, rest), s, n = self.layers, self.survey, count_points(x)
        products, rows = list[tuple[Tensor, Tensor]](), list[Tensor]()
        modules = list(dict.fromkeys([*linear, *modules_of(rest)]))
        if modules:
            calls, f_nC = record_pass(self.frozen, modules, x)
            if not torch.isfinite(f_nC).all():
                raise ValueError("net returns NaN or infinite outputs for some of the points")
            ready = align_calls(calls, s.axes, s.folds, n, s.heads * s.folded)
            if self.sketch is not None:
                return TangentFactors([], self.sketches(ready, self._functional_rows(x), n))
            for m, (_, bias) in linear.items():
                ((a, g),) = ready[m]
                a, g = positions(a)[:, 0], g.flatten(1)
                a = torch.cat([a, a.new_ones(n, 1)], 1) if bias else a
                if m in self.flat:
                    rows.append(a * torch.linalg.vector_norm(g[:1]))
                else:
                    products.append((a, g))
            rows += [layer.rows(slice(0, layer.length), ready).flatten(1) for layer in rest]
        rows += [r for _, r in self._functional_rows(x)]
        like = next(iter(self.frozen.params.values()))
        return TangentFactors(products, torch.cat(rows, 1) if rows else like.new_empty(n, 0))

    def _functional_rows(self, x: Inputs) -> list[tuple[str, Tensor]]:
        """The gradients of parameters without a rule, by name."""
        names = self.survey.functional
        return [(k, r.flatten(1)) for k, r in functional_rows(self.frozen, x, names).items()] if names else []


class CentredTangents:
    """Tangents less the mean tangent μ of some points. These come in parts, each with the weight of its points."""

    def __init__(self, source: FactorSource, points: Iterable[tuple[Inputs, float]]) -> None:
        self.source, total, means = source, 0.0, list[Tensor]()
        for x, weight in points:
            total += weight * count_points(x)
            for part in source.parts(x):
                sums = [to_float64(g).T @ to_float64(a) for a, g in part.products]
                sums += [sum((to_float64(part.rows[at]).sum(0) for at in self._some(part)), start=sums_like(part))]
                sums = [weight * of for of in sums]
                means = [mu + more for mu, more in zip(means, sums)] if means else sums
        *self.mean_products, self.mean_rows = [mu / total for mu in means]  # (O, D) of each Linear layer; (p,)
        self.square = sum(float(mu.square().sum()) for mu in self.mean_products)  # ‖μ‖² of the Linear layers
        self.length2 = self.square + float(self.mean_rows.square().sum())  # ‖μ‖²

    def _some(self, part: TangentFactors) -> Iterator[slice]:
        """Points whose rows are in float64 at a time."""
        numbers = FLOAT64_NUMBERS.get(part.rows.device.type, FLOAT64_NUMBERS["cpu"])
        return slices(len(part), max(1, numbers // max(1, part.rows.shape[1])))

    def products(self, x: Inputs) -> Tensor:
        """(n,): J_i·μ, float64. Tangents are formed for few points at a time."""
        parts = list[Tensor]()
        for part in self.source.parts(x):
            of_rows = [to_float64(part.rows[cut]) @ self.mean_rows for cut in self._some(part)]
            parts.append(self._linear_products(part) + torch.cat(of_rows))
        return torch.cat(parts)

    def _linear_products(self, part: TangentFactors) -> Tensor:
        """(n,): J_i·μ of the Linear layers."""
        mean_n = self.mean_rows.new_zeros(len(part))
        for (a, g), mu in zip(part.products, self.mean_products):
            mean_n += ((to_float64(g) @ mu) * to_float64(a)).sum(1)
        return mean_n

    def correlatable(self, x: Inputs, held: bool, least: float | None = None) -> tuple[TangentFactors, float]:
        """Factors of points such that their products with those of held points are κ.

        held: whether these are the held points. Two columns carry −J·μ of both sides and ‖μ‖², and differ.
        least: the variance up to which a point counts as the mean itself, which covers nothing. None: of these points.
        Returned too.
        """
        n, start = count_points(x), 0
        products, mean_n, var_n = list[list[tuple[Tensor, Tensor]]](), *self.mean_rows.new_zeros(2, n)
        rows: Tensor | None = None
        for part in self.source.parts(x):
            at = slice(start, start := start + len(part))
            rows = part.rows.new_empty(n, part.rows.shape[1] + 2) if rows is None else rows
            torch.sub(part.rows, self.mean_rows.to(part.rows), out=rows[at, :-2])
            mean_n[at] = self._linear_products(part)
            for a, g in part.products:
                var_n[at] += to_float64(a).square().sum(1) * to_float64(g).square().sum(1)
            for cut in self._some(part):
                here = slice(at.start + cut.start, at.start + cut.stop)
                var_n[here] += (to_float64(part.rows[cut]) - self.mean_rows).square().sum(1)
            products.append(part.products)
        assert rows is not None
        var_n += self.square - 2 * mean_n
        least = NO_SPREAD * float(var_n.clamp_min(0).mean()) if least is None else least
        by_n = torch.where(var_n > least, var_n, torch.inf).rsqrt()
        rows[:, -2] = 1.0 if held else self.square - mean_n
        rows[:, -1] = -mean_n if held else 1.0
        by_n1 = by_n.to(rows)[:, None]
        joined = [(torch.cat([a for a, _ in of]), torch.cat([g for _, g in of]).mul_(by_n1)) for of in zip(*products)]
        return TangentFactors(joined, rows.mul_(by_n1)), least

    def hold(self, x_W: Inputs) -> "HeldTangents":
        """Keep some points, to be correlated with others."""
        return HeldTangents(self, x_W)


class MeanTangent:
    """μ, the mean tangent of some points, for networks whose tangents are too wide to be formed for many.

    J_i·μ is the derivative of the network's heads at x_i along μ: one pass in forward mode. points: in parts, each with
    the weight of its points. step: points in a pass. Raises a RuntimeError where an operation has no forward mode.
    """

    def __init__(self, frozen: FrozenNetwork, points: Iterable[tuple[Inputs, float]], step: int) -> None:
        self.frozen, self.step, total = frozen, step, 0.0
        self.mean: list[dict[str, Tensor]] = []  # by head
        for x, weight in points:
            total += weight * count_points(x)
            for at in slices(count_points(x), step):
                sums = self._gradients(cut_padding(frozen.net, take_points(x, at)))
                self.mean = self.mean or [{k: torch.zeros_like(t) for k, t in of.items()} for of in sums]
                for to, of in zip(self.mean, sums):
                    for k in to:
                        to[k].add_(of[k], alpha=weight)
        for of in self.mean:
            for t in of.values():
                t.div_(total)
        self.length2 = sum(float(to_float64(t).square().sum()) for of in self.mean for t in of.values())

    def _gradients(self, x: Inputs) -> list[dict[str, Tensor]]:
        """Σ_n ∇h_b(x_n) of each head b."""
        with isolated(self.frozen.device):
            params = {k: p.detach().requires_grad_() for k, p in self.frozen.params.items()}
            h_B = self.frozen.heads(self.frozen.call(x, params)).sum(0)
            found = [
                torch.autograd.grad(h, list(params.values()), retain_graph=True, materialize_grads=True) for h in h_B
            ]
        return [dict(zip(params, of)) for of in found]

    def products(self, x: Inputs) -> Tensor:
        """(n,): J_i·μ, float64; of all heads together."""
        parts = (take_points(x, at) for at in slices(count_points(x), self.step))
        return torch.cat([self._along(cut_padding(self.frozen.net, part)) for part in parts])

    def _along(self, x: Inputs) -> Tensor:
        parts = [to_float64(next(iter(self.frozen.params.values()))).new_zeros(count_points(x))]
        for b, of in enumerate(self.mean):
            with (
                isolated(self.frozen.device),
                torch.no_grad(),
                sdpa_kernel(SDPBackend.MATH),  # the others have no forward mode
                warnings.catch_warnings(action="ignore", category=DeprecationWarning),  # of torch's own parts
                forward_ad.dual_level(),
            ):
                params = {k: forward_ad.make_dual(p.detach(), of[k]) for k, p in self.frozen.params.items()}
                moved = forward_ad.unpack_dual(self.frozen.heads(self.frozen.call(x, params))[:, b]).tangent
            if moved is not None:
                parts.append(to_float64(moved))
        return torch.stack(parts).sum(0)


class HeldTangents:
    """W points whose factors are kept; κ of any others with them."""

    def __init__(self, centred: CentredTangents, x_W: Inputs) -> None:
        self.centred = centred
        self.factors, self.least = centred.correlatable(x_W, held=True)

    def __len__(self) -> int:
        return len(self.factors)

    @property
    def nbytes(self) -> int:
        return self.factors.rows.nbytes + sum(a.nbytes + g.nbytes for a, g in self.factors.products)

    def factors_of(self, x: Inputs) -> TangentFactors:
        """What ``blocks`` makes of points."""
        return self.centred.correlatable(x, held=False, least=self.least)[0]

    def blocks(self, x: Inputs | TangentFactors) -> Iterator[tuple[slice, Tensor]]:
        """κ of points with the W held ones, cut at 0 and 1, some points at a time. Each block overwrites the last."""
        factors = x if isinstance(x, TangentFactors) else self.factors_of(x)
        step, W = BLOCK_POINTS.get(factors.rows.device.type, 512), len(self)
        rooms = [factors.rows.new_empty(min(step, len(factors)), W) for _ in range(3 if factors.products else 1)]
        for at in slices(len(factors), step):
            with float32_products("float32"):  # never TF32
                yield at, self._multiply(factors.at(at), [room[: at.stop - at.start] for room in rooms])

    def _multiply(self, n: TangentFactors, rooms: list[Tensor]) -> Tensor:
        kappa_nW = product(n.rows, self.factors.rows, rooms[0])
        for (a, g), (a_W, g_W) in zip(n.products, self.factors.products):
            kappa_nW.addcmul_(product(a, a_W, rooms[1]), product(g, g_W, rooms[2]))
        return kappa_nW.clamp_(0, 1)

    def rows(self, x: Inputs | TangentFactors) -> Tensor:
        """(n, W): κ of some points."""
        return torch.cat([kappa_nW.clone() for _, kappa_nW in self.blocks(x)])
