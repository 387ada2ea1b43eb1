"""Expected gain in accuracy (docs/mathematics.md, Gain): by how much a label would raise Σ_i max_c f_i(c).

A label at j moves the gap g_i between the two largest outputs of i by N(0, τ²), τ = √2 s |S_ij| / √u_j. If the gap
turns negative the other class wins, and the maximum is higher by that much: E max(−(g + τN), 0) = τ ψ(g/τ) with

    ψ(z) = E max(N − z, 0) = φ(z) − z Φ(−z).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from foretaste.acquire.lazy_scores import SQUARES_ROUNDING, SquareBound, SquareWeights
from foretaste.acquire.predictions import cached_blocks, check_scale, finish_scores, gaps, need_classes
from foretaste.acquire.registry import StudyHints, register
from foretaste.acquire.variance import whiten_columns
from foretaste.acquire.watched_sums import (
    RISE_BITS,
    RISE_FAR,
    RISE_OVER_BITS,
    RISE_UNDER_BITS,
    SumTerm,
    can_fuse_sums,
    sum_terms,
)
from foretaste.lookahead import DenseState, KernelSettings, State

GAIN_CHUNK = 2**20  # numbers worked on at a time: with fewer, threads spend their time waking up
WORTH_QUICK_RISE = 2**20  # pairs (i, j) from which float32 is used
QUICK_ROUNDING = 1e-5  # more than the relative error of a sum in float32
FAINT_RISE = 1e-24  # of the largest gap: below it, float32 may be near RISE_FAR

RiseBuffer = dict[torch.dtype, Tensor]
RiseFunction = Callable[[Tensor, Tensor, Tensor, Tensor], None]


@dataclass(frozen=True)
class GainOptions:
    """scale: s² of the posterior's variance; None (default) is ``state.scale``."""

    scale: float | None = None

    def __post_init__(self) -> None:
        check_scale(self.scale)


# h(τ) = τψ(g/τ) is at most β τ², with β the largest of h(τ)/τ² = zψ(z)/g for z = g/τ not below g/τ_max, where
# τ_max² = 2 s² S_ii: a correlation is at most 1. zψ(z) has its maximum at STEEP_GAP. For a gap near 0, β is too large
# to be of use. Since h falls by at most half of what g grows, such gaps are raised, and half of that is added: to a
# share of the mean τ, the share that leaves the fewest candidates of a sample above the best score.

STEEP_GAP, STEEP_RISE = 0.6120, 0.1012284  # z, and more than zψ(z) there
RAISED_SHARES = (1e-3, 0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6)
BOUND_SAMPLE = 256  # candidates


def gain_bound(scale: float | None = None) -> SquareBound:
    """By squares: Σ_i τψ(g_i/τ) ≤ Σ_i β_i τ_ij², nearly equal for the points that count."""

    def weights(state: DenseState, best: float) -> SquareWeights:
        s2, g_W = state.scale if scale is None else scale, gaps(state.mean)
        var_W = state.watched_variance.clamp_min(0)
        tau_W = (2 * s2 * (var_W + SQUARES_ROUNDING * var_W.max())).sqrt()
        at = torch.arange(0, state.U, -(-state.U // BOUND_SAMPLE))
        square_Wn = state.columns(at).square().mul_(2 * s2 / state.u[at])
        rms_W, found = square_Wn.mean(1).sqrt(), list[tuple[float, float, SquareWeights]]()
        for share in RAISED_SHARES:
            raised_W = torch.maximum(g_W, share * rms_W).clamp_min(torch.finfo(g_W.dtype).tiny)
            z_W, most_W = raised_W / tau_W, torch.empty_like(tau_W)
            exact_rise(tau_W, z_W.clone(), raised_W, most_W)
            beta_W = torch.where(z_W < STEEP_GAP, STEEP_RISE / raised_W, most_W / tau_W.square())
            beta_W = torch.nan_to_num(beta_W, posinf=0.0)  # τ_max = 0: nothing is left to learn there
            constant = float((raised_W - g_W).sum() / 2)
            upper_n = constant + beta_W @ square_Wn
            above = float((upper_n >= best).sum())
            found.append((above, float(upper_n.mean()), SquareWeights(beta_W, 2 * s2, constant)))
        return min(found, key=lambda way: way[:2])[2]

    def score(state: DenseState, S_Wn: Tensor, u_n: Tensor) -> Tensor:
        k_n, g_W = (2 * (state.scale if scale is None else scale) / u_n).sqrt(), gaps(state.mean)
        scores_n = rises(S_Wn, k_n, g_W, exact=False)
        near = (scores_n >= scores_n.max() * (1 - QUICK_ROUNDING)).nonzero()[:, 0]
        scores_n[near] = rises(S_Wn[:, near], k_n[near], g_W, exact=True)
        return scores_n

    return SquareBound(weights, score)


@register(
    "gain", select="greedy", needs=("kernel", "classes", "labels"), options=GainOptions,
    kernel=KernelSettings(watch_by="contested"), study=StudyHints(calibrates="scale"), bound=gain_bound,
)  # fmt: skip
def gain(state: State, scale: float | None = None) -> Tensor:
    """The expected gain in accuracy: Σ_i τ_ij ψ(g_i / τ_ij), the expected rise of Σ_i max_c f_i(c).

    g_i is the gap between the two largest outputs of watched point i. τ_ij = √2 s |S_ij| / √u_j is how far a label at j
    may move it, and ψ(z) = φ(z) − zΦ(−z). Not in the paper; docs/mathematics.md, Gain. Cross-entropy: gaps of logits,
    and u_j holds the label's own noise. Cost: one pass over S, W·U. In a query with ``watch`` a number, the most
    contested points are watched, which hold nearly all of the sum. While nothing is labelled, ``ft.query`` takes
    ``cover`` instead: which outputs of an untrained network are contested says nothing.
    """
    need_classes(state, "gain", "variance: there is no gap")
    check_scale(scale)
    s = math.sqrt(state.scale if scale is None else scale)
    exact = state.W * state.U < WORTH_QUICK_RISE
    if not exact and can_fuse_sums(state):
        return _in_one_pass(state, s)
    top = state.mean.topk(2, 1)
    g_W = top.values[:, 0] - top.values[:, 1]
    scores_U = g_W.new_empty(state.U)
    open_U = ~state.taken if state.kept else None
    room: RiseBuffer = {}
    for at, S_Wu in cached_blocks(state):
        if state.B == 1:
            k_u = math.sqrt(2) * s / state.u[at].sqrt()
            scores_U[at] = rises(S_Wu, k_u, g_W, exact, room, None if open_U is None else open_U[at])
        else:
            w_WBuB = whiten_columns(state, S_Wu, at).unflatten(0, (state.W, state.B))
            i_W = torch.arange(state.W, device=g_W.device)
            move_WuB = w_WBuB[i_W, top.indices[:, 0]] - w_WBuB[i_W, top.indices[:, 1]]
            scores_U[at] = rises(move_WuB.norm(dim=2), g_W.new_full((at.stop - at.start,), s), g_W, exact, room)
        del S_Wu  # before the next block is made, in the same memory: fresh pages cost as much as the arithmetic
    return finish_scores(state, scores_U, "gain")


def _in_one_pass(state: State, s: float) -> Tensor:
    """The same scores by one read of S on a GPU."""
    assert isinstance(state, DenseState)
    unit, gap_W = _gaps(state.mean)
    near_U = state.unchecked_u.rsqrt() * (math.sqrt(2) * s / unit)
    scores_U = sum_terms(state, SumTerm.RISE, near_U, gap_W)
    open_U = scores_U.masked_fill(state.taken, torch.inf) if state.kept else scores_U
    if not float(open_U.min()) >= FAINT_RISE:  # or NaN: one number read from the device finds all that could be wrong
        _ = state.u  # raises if a variance is not positive
        low = (open_U < FAINT_RISE).nonzero()[:, 0]
        scores_U[low] = _rises(state.columns(low), near_U[low], gap_W, torch.float64, exact_rise, {})
        return finish_scores(state, scores_U.mul_(unit), "gain")
    scores_U.mul_(unit)
    return scores_U.masked_fill_(state.taken, -torch.inf) if state.kept else scores_U


def _gaps(mean_WC: Tensor) -> tuple[float, Tensor]:
    """The largest gap, and the gaps in units of it. Cached: a greedy batch does not change the mean."""
    version = -1 if mean_WC.is_inference() else mean_WC._version
    found = _gap_cache.get(mean_WC)
    if found is None or found[0] != version or version < 0:
        unit, gap_W = _in_units(gaps(mean_WC))
        found = _gap_cache[mean_WC] = version, float(unit), gap_W
    return found[1:]


_gap_cache = WeakIdKeyDictionary()  # keyed by the tensor object, not by its values


def _in_units(g_W: Tensor) -> tuple[Tensor, Tensor]:
    """The largest gap, and the gaps in units of it, at least 1e-30: 0/0 would be NaN, and must be far."""
    unit = g_W.max()
    unit = torch.where(unit > 0, unit, 1.0)
    return unit, (g_W / unit).clamp_min(1e-30)


def rises(
    S_Wu: Tensor, k_u: Tensor, g_W: Tensor, exact: bool, room: RiseBuffer | None = None, open_u: Tensor | None = None
) -> Tensor:
    """Σ_i τ_ij ψ(g_i / τ_ij) with τ_ij = |S_ij| k_j, (u,).

    ``exact``: in float64, to 1e-10 of each term. Else in float32, to 1e-6 of the sum and four times as fast; sums that
    are too small for float32 are computed again in float64, for candidates of ``open_u`` (None: all). ``room`` holds
    buffers for the next block.
    """
    room = {} if room is None else room
    unit, g_W = _in_units(g_W)
    k_u = k_u / unit
    if exact:
        return unit * _rises(S_Wu, k_u, g_W, torch.float64, exact_rise, room)
    scores_u = _rises(S_Wu, k_u, g_W * RISE_BITS, torch.float32, quick_rise, room)
    faint_u = scores_u < FAINT_RISE
    if len(low := (faint_u if open_u is None else faint_u & open_u).nonzero()[:, 0]):
        scores_u[low] = _rises(S_Wu[:, low], k_u[low], g_W, torch.float64, exact_rise, room)
    return unit * scores_u


def _rises(S_Wu: Tensor, k_u: Tensor, g_W: Tensor, dtype: torch.dtype, rise: RiseFunction, room: RiseBuffer) -> Tensor:
    """Some rows at a time, of S or of its transpose, whichever is contiguous, in buffers that fit in the cache."""
    across = S_Wu.stride(0) == 1
    S, k, g = (S_Wu.T, k_u[:, None], g_W) if across else (S_Wu, k_u, g_W[:, None])
    k, g = k.to(dtype).expand(S.shape), g.to(dtype).expand(S.shape)
    n, m = S.shape
    step = n if S.is_cuda else min(n, max(1, GAIN_CHUNK // m))
    if dtype not in room or room[dtype].numel() < 3 * step * m:
        room[dtype] = torch.empty(3 * step * m, dtype=dtype, device=S.device)
    buffers = room[dtype][: 3 * step * m].view(3, step, m)
    total_u = g_W.new_zeros(S_Wu.shape[1])
    for start in range(0, n, step):
        at = slice(start, start + step)
        tau, z, out = buffers[:, : n - start]
        tau.copy_(S[at]).mul_(k[at]).abs_()
        torch.div(g[at], tau, out=z)
        rise(tau, z, g[at], out)
        if across:
            total_u[at] = out.sum(1)
        else:
            total_u += out.sum(0)
    return total_u


# --- τψ(g/τ) for many pairs at a time: in float64 by erfc, in float32 by a quotient ---


def exact_rise(tau: Tensor, z: Tensor, g: Tensor, out: Tensor) -> None:
    """τψ(z) = τφ(z) − g erfc(z/√2)/2, in float64: stable, for erfc keeps its digits in the tail. Overwrites z."""
    torch.mul(z, z, out=out).mul_(-0.5).exp_().mul_(tau).mul_(1 / math.sqrt(2 * math.pi))
    out.addcmul_(z.mul_(math.sqrt(0.5)).erfc_(), g, value=-0.5).clamp_min_(0)


def quick_rise(tau: Tensor, z: Tensor, g: Tensor, out: Tensor) -> None:
    """τψ(z / BITS) = τ 2^(−z²) over(z) / under(z), for float32. Overwrites τ and z. Coefficients: watched_sums.py."""
    zero, over, under = _rise_constants(z.dtype, z.device)
    torch.addcmul(zero, z.clamp_max_(RISE_FAR * RISE_BITS), z, value=-1, out=out).exp2_().mul_(tau)
    out.mul_(_horner(over, RISE_OVER_BITS[-1], z, tau))
    out.div_(_horner(under, RISE_UNDER_BITS[-1], z, tau))


def _horner(lower: tuple[Tensor, ...], highest: float, z: Tensor, out: Tensor) -> Tensor:
    torch.add(lower[-1], z, alpha=highest, out=out)
    for coefficient in reversed(lower[:-1]):
        torch.addcmul(coefficient, out, z, out=out)
    return out


@cache
def _rise_constants(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """0 and all coefficients but the highest, as tensors: then nothing is copied to a GPU at every block."""

    def tensor(c: float) -> Tensor:
        return torch.tensor(c, dtype=dtype, device=device)

    with torch.inference_mode(False):
        return tensor(0.0), tuple(map(tensor, RISE_OVER_BITS[:-1])), tuple(map(tensor, RISE_UNDER_BITS[:-1]))
