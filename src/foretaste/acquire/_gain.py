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

from foretaste.acquire._opinion import finish, need_classes
from foretaste.acquire._outputs import cached_blocks
from foretaste.acquire._registry import register
from foretaste.acquire._variance import whitened
from foretaste.retrain import State

CHUNK = 2**20  # numbers worked on at a time: fewer, and threads spend their time waking up
MANY = 2**20  # pairs (i, j) from which float32 is used
FAR = 12.0  # z beyond which float32 turns denormal, which is slow and inexact
FAINT = 1e-24  # of the largest gap: below it float32 has come near FAR

# ψ(z) exp(z²/2) / s² as a polynomial in s = KNEE / (KNEE + z): the fit of least maximum error,
# 5e-7 relative on 0 ≤ z ≤ 13. Twice as fast as erfc, and without its cancellation.
KNEE = 4.375
FIT = (0.021020026, 0.038351293, 0.085824711, -0.046500623, 0.38066086, -0.42814406, 0.49694578, -0.1492159)
BITS = math.sqrt(0.5 * math.log2(math.e))  # exp(−z²/2) = 2^−(BITS z)²

Room = dict[torch.dtype, Tensor]
Rise = Callable[[Tensor, Tensor, Tensor, Tensor], None]


@dataclass(frozen=True)
class Scale:
    """scale: s² of the posterior's variance; None is ``state.scale``."""

    scale: float | None = None

    def __post_init__(self) -> None:
        check_scale(self.scale)


def check_scale(scale: float | None) -> None:
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale={scale}; expected a positive number, s² of the posterior's variance, or None")


@register("gain", select="greedy", needs=("kernel", "classes"), options=Scale)
def gain(state: State, scale: float | None = None) -> Tensor:
    """Σ_i τ_ij ψ(g_i / τ_ij), (U,). Cross-entropy: gaps of logits, and u_j holds the label's own noise."""
    need_classes(state, "gain", "variance: there is no gap")
    check_scale(scale)
    s = math.sqrt(state.scale if scale is None else scale)
    top = state.mean.topk(2, 1)
    g_W = top.values[:, 0] - top.values[:, 1]
    scores_U = g_W.new_empty(state.U)
    exact = state.W * state.U < MANY
    room: Room = {}
    for at, S_Wu in cached_blocks(state):
        if state.B == 1:
            k_u = math.sqrt(2) * s / state.u[at].sqrt()
            scores_U[at] = rises(S_Wu, k_u, g_W, exact, room)
        else:
            w_WBuB = whitened(state, S_Wu, at).unflatten(0, (state.W, state.B))
            i_W = torch.arange(state.W, device=g_W.device)
            move_WuB = w_WBuB[i_W, top.indices[:, 0]] - w_WBuB[i_W, top.indices[:, 1]]
            scores_U[at] = rises(move_WuB.norm(dim=2), g_W.new_full((at.stop - at.start,), s), g_W, exact, room)
        del S_Wu  # before the next block is made, in the same memory: fresh pages cost as much as the arithmetic
    return finish(state, scores_U, "gain")


def rises(S_Wu: Tensor, k_u: Tensor, g_W: Tensor, exact: bool, room: Room | None = None) -> Tensor:
    """Σ_i τ_ij ψ(g_i / τ_ij) with τ_ij = |S_ij| k_j, (u,).

    ``exact`` in float64, to 1e-10 of each term; else in float32, to 1e-6 of the sum and four times as fast, and what
    is so small that float32 cannot tell is done again in float64. ``room`` is where buffers stay for the next block.
    """
    room = {} if room is None else room
    unit = g_W.max()
    unit = torch.where(unit > 0, unit, 1.0)
    k_u, g_W = k_u / unit, (g_W / unit).clamp_min(1e-30)  # a gap of 0 over a τ of 0 must be far too, not NaN
    if exact:
        return unit * _rises(S_Wu, k_u, g_W, torch.float64, _rise, room)
    scores_u = _rises(S_Wu, k_u, g_W * BITS, torch.float32, _quick_rise, room)
    if len(low := (scores_u < FAINT).nonzero()[:, 0]):
        scores_u[low] = _rises(S_Wu[:, low], k_u[low], g_W, torch.float64, _rise, room)
    return unit * scores_u


def _rises(S_Wu: Tensor, k_u: Tensor, g_W: Tensor, dtype: torch.dtype, rise: Rise, room: Room) -> Tensor:
    """Rows at a time, of S or of its transpose as they lie in memory, in buffers that stay in the cache."""
    across = S_Wu.stride(0) == 1
    S, k, g = (S_Wu.T, k_u[:, None], g_W) if across else (S_Wu, k_u, g_W[:, None])
    k, g = k.to(dtype).expand(S.shape), g.to(dtype).expand(S.shape)
    n, m = S.shape
    step = n if S.is_cuda else min(n, max(1, CHUNK // m))
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


def _rise(tau: Tensor, z: Tensor, g: Tensor, out: Tensor) -> None:
    """τψ(z) = τφ(z) − g erfc(z/√2)/2: stable, for erfc keeps its digits in the tail. Overwrites z."""
    torch.mul(z, z, out=out).mul_(-0.5).exp_().mul_(tau).mul_(1 / math.sqrt(2 * math.pi))
    out.addcmul_(z.mul_(math.sqrt(0.5)).erfc_(), g, value=-0.5).clamp_min_(0)


def _quick_rise(tau: Tensor, z: Tensor, g: Tensor, out: Tensor) -> None:
    """τψ(z / BITS) = τ 2^(−z²) s² Σ_k fit_k sᵏ with s = 1/(z + BITS·KNEE). Overwrites τ and z."""
    nought, *fit = _fit(z.dtype, z.device)
    torch.addcmul(nought, z.clamp_max_(FAR * BITS), z, value=-1, out=out).exp2_().mul_(tau)
    s, poly = z.add_(KNEE * BITS).reciprocal_(), tau
    torch.add(fit[-1], s, alpha=FIT[-1] * (KNEE * BITS) ** (len(FIT) + 1), out=poly)
    for coefficient in reversed(fit[:-1]):
        torch.addcmul(coefficient, poly, s, out=poly)
    out.mul_(poly).mul_(s.square_())


@cache
def _fit(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """0 and the FIT of KNEE·BITS·s but its last, each a tensor of its own: no copy to a GPU at every block."""
    fit = [c * (KNEE * BITS) ** (k + 2) for k, c in enumerate(FIT[:-1])]
    return tuple(torch.tensor(c, dtype=dtype, device=device) for c in (0.0, *fit))
