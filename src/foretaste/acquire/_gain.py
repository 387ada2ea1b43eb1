"""Expected gain in accuracy (DESIGN §3): by how much a label would raise Σ_i max_c f_i(c).

A label at j moves the gap g_i between the two largest outputs of i by N(0, τ²), τ = √2 s |S_ij| / √u_j. If the gap
turns negative the other class wins, and the maximum is higher by that much: E max(−(g + τN), 0) = τ ψ(g/τ) with

    ψ(z) = E max(N − z, 0) = φ(z) − z Φ(−z).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from foretaste.acquire._opinion import finish, need_classes
from foretaste.acquire._outputs import cached_blocks
from foretaste.acquire._registry import register
from foretaste.acquire._variance import whitened
from foretaste.retrain import State

CHUNK = 2**18  # numbers worked on at a time, which stay in the cache from one operation to the next
MANY = 2**20  # pairs (i, j) from which float32 is used
FAR = 6.3  # z/√2 beyond which ψ is below 1e-19: further out float32 turns denormal, which is slow and inexact
FAINT = 1e-10  # of the largest gap


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
    for at, S_Wu in cached_blocks(state):
        if state.B == 1:
            k_u = math.sqrt(2) * s / state.u[at].sqrt()
            scores_U[at] = rises(S_Wu, k_u, g_W, exact)
        else:
            w_WBuB = whitened(state, S_Wu, at).unflatten(0, (state.W, state.B))
            i_W = torch.arange(state.W, device=g_W.device)
            move_WuB = w_WBuB[i_W, top.indices[:, 0]] - w_WBuB[i_W, top.indices[:, 1]]
            scores_U[at] = rises(move_WuB.norm(dim=2), g_W.new_full((at.stop - at.start,), s), g_W, exact)
    return finish(state, scores_U, "gain")


def rises(S_Wu: Tensor, k_u: Tensor, g_W: Tensor, exact: bool) -> Tensor:
    """Σ_i τ_ij ψ(g_i / τ_ij) with τ_ij = |S_ij| k_j, (u,).

    ``exact`` in float64, to 1e-10 of each term; else in float32, to 1e-6 of the sum and three times as fast, and what
    is so small that float32 cannot tell is done again in float64.
    """
    unit = float(g_W.max()) or 1.0
    scores_u = unit * _rises(S_Wu, k_u / unit, g_W / unit, torch.float64 if exact else torch.float32)
    if not exact and len(low := (scores_u < FAINT * unit).nonzero()[:, 0]):
        scores_u[low] = unit * _rises(S_Wu[:, low], k_u[low] / unit, g_W / unit, torch.float64)
    return scores_u


def _rises(S_Wu: Tensor, k_u: Tensor, g_W: Tensor, dtype: torch.dtype) -> Tensor:
    """√2π τψ(z) = τ exp(−x²) − g √(π/2) erfc(x) with x = z/√2: stable, for erfc keeps its digits in the tail."""
    W, u = S_Wu.shape
    far = FAR if dtype == torch.float32 else math.inf
    # A gap of 0 over a τ of 0 must be far too, not NaN.
    g_W1, k_u = g_W.clamp_min(1e-30).to(dtype)[:, None], k_u.to(dtype)
    x_W1, c_W1 = g_W1 / math.sqrt(2), g_W1 * math.sqrt(math.pi / 2)
    step = min(W, max(1, CHUNK // u))
    buffers = torch.empty(3, step, u, dtype=dtype, device=g_W.device)
    total_u = g_W.new_zeros(u)
    for i in range(0, W, step):
        tau, x, rise = buffers[:, : W - i]
        tau.copy_(S_Wu[i : i + step]).mul_(k_u).abs_()
        torch.div(x_W1[i : i + step], tau, out=x).clamp_max_(far)
        torch.mul(x, x, out=rise).mul_(-math.log2(math.e)).exp2_().mul_(tau)  # exp2 takes a third of the time of exp
        rise.addcmul_(x.erfc_(), c_W1[i : i + step], value=-1).clamp_min_(0)
        total_u += rise.sum(0)
    return total_u / math.sqrt(2 * math.pi)
