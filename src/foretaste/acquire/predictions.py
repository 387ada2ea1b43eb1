"""Shared by all scores: current predictions, likeliest labels, the checks of a score, and outputs after a label."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from foretaste.lookahead import State

REFERENCES = ("net", "current")


def labelled(state: State) -> bool:
    """Whether any label is kept. Candidates kept without a label (y=None) do not count: the mean is unchanged."""
    return any(y is not None for _, y in state.kept)


def current_outputs(state: State) -> Tensor:
    """(U, C) outputs of the candidates: the network's, which cost no kernel, or the mean once a label is kept."""
    return state.pool_mean if labelled(state) else state.pool_net


def pseudo_labels(state: State) -> Tensor:
    """(U, C): y′ of Eq. 13, the one-hot of the likeliest class. (The paper writes the number of the class.)"""
    f_UC = current_outputs(state)
    return torch.zeros_like(f_UC).scatter_(1, f_UC.argmax(1, keepdim=True), 1.0)


def reference_outputs(state: State, reference: str | None) -> Tensor:
    """(W, C): the outputs that change is measured from.

    "net" is Eq. 13 to the letter. Once a candidate is taken the default is "current", the mean before the candidate.
    Measured from the net, a point already taken and its duplicates would still score high.
    """
    if reference is None:
        reference = "current" if state.kept else "net"
    check_reference(reference)
    return state.net if reference == "net" else state.mean


def check_reference(reference: str | None) -> None:
    if reference is not None and reference not in REFERENCES:
        raise ValueError(f"reference={reference!r}; expected 'net', 'current' or None")


def check_scale(scale: float | None) -> None:
    """Raise unless it is None or positive."""
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale={scale}; expected a positive number, s² of the posterior's variance, or None")


def need_classes(state: State, name: str, instead: str) -> None:
    if state.C < 2:
        raise ValueError(f"{name} needs classes and this network has one output; for regression use {instead}")


def finish_scores(state: State, scores_U: Tensor, name: str) -> Tensor:
    """(U,) float64, −inf where taken. NaN raises: it cannot be ranked."""
    if not isinstance(scores_U, Tensor) or scores_U.shape != (state.U,):
        came = tuple(scores_U.shape) if isinstance(scores_U, Tensor) else type(scores_U).__name__
        raise ValueError(f"{name} returned {came}; expected a tensor ({state.U},), a score for each candidate")
    scores_U = scores_U.detach().to(state.net.device, torch.float64)
    if state.kept:
        scores_U = scores_U.masked_fill(state.taken, -torch.inf)
    if scores_U.numel() and math.isnan(scores_U.min()):  # one number read from the device: NaN goes through min
        bad = scores_U.isnan()
        raise ValueError(f"{name} gives NaN for {int(bad.sum())} candidates, first at {int(bad.nonzero()[0])}")
    return scores_U


# --- outputs of the watched points after a label, in blocks: for scores without a closed form ---

OUTPUT_BLOCK = 2**21  # numbers of (W, u, C) at a time: 16 MB
CACHED_BLOCK = 2**20  # numbers of S at a time: 8 MB, which stay in the cache from one operation to the next


def cached_blocks(state: State) -> Iterator[tuple[slice, Tensor]]:
    """``state.blocks`` that fit in a processor's cache, twice as fast as large ones. On a GPU, large ones."""
    if state.mean.device.type != "cpu":
        return state.blocks()
    return state.blocks(max(1, CACHED_BLOCK // (state.W * state.B * state.B)))


def narrow_blocks(state: State) -> Iterator[tuple[slice, Tensor]]:
    """``state.blocks`` that are narrow, so that (W, u, C) of a block is small."""
    return state.blocks(max(1, OUTPUT_BLOCK // (state.W * state.C)))


def outputs_after(state: State, S_Wu: Tensor, a_uC: Tensor) -> Tensor:
    """f⁺_i = mean_i + S_ij a_j (Eq. 12), (u, W, C) for a block's u candidates."""
    B, u = state.B, a_uC.shape[0]
    if B == 1:
        return torch.addcmul(state.mean, S_Wu.T[:, :, None], a_uC[:, None])
    sites = S_Wu.view(state.W * B, u, B).transpose(0, 1)
    return state.mean + (sites @ a_uC.view(u, B, state.C // B)).view(u, state.W, state.C)


def expect_over_labels(
    state: State, p_UC: Tensor, score: Callable[[Tensor, Tensor], Tensor], blocks: Iterator[tuple[slice, Tensor]]
) -> Tensor:
    """Σ_y p_j(y) score(S_Wj, a_j(y)), (U,). Labels of zero probability are skipped: under L2 these are most."""
    scores_U = p_UC.new_zeros(state.U)
    eye_CC = torch.eye(state.C, dtype=p_UC.dtype, device=p_UC.device)
    for at, S_Wu in blocks:
        p_uC = p_UC[at]
        for c in range(state.C):
            on = (p_uC[:, c] > 0).nonzero()[:, 0]
            if not len(on):
                continue
            a_uC = state.push(eye_CC[c].expand(len(on), -1), on + at.start)
            scores_U[on + at.start] += p_uC[on, c] * score(candidate_columns(state, S_Wu, on), a_uC)
    return scores_U


def candidate_columns(state: State, S_Wu: Tensor, on: Tensor) -> Tensor:
    """The block's columns of candidates ``on``; not copied if it is all of them."""
    u = S_Wu.shape[1] // state.B
    if len(on) == u:
        return S_Wu
    return S_Wu.view(-1, u, state.B)[:, on].flatten(1)


def gaps(f_NC: Tensor) -> Tensor:
    """g_i, (N,): between the two largest outputs."""
    top = f_NC.topk(2, 1).values
    return top[:, 0] - top[:, 1]


def chance_of_error(gap_N: Tensor, var_N: Tensor) -> Tensor:
    """Φ(−g/√var): the chance that a gap between two outputs, of mean g ≥ 0, is really negative. 0/0 is a coin toss."""
    z_N = torch.where(gap_N > 0, gap_N / var_N.clamp_min(0).sqrt(), 0.0)
    return 0.5 * torch.erfc(z_N / math.sqrt(2))  # erfc keeps its digits in the tail


# With one kernel for all classes, the C outputs of a point are independent, each N(mean_c, σ²). The largest mean, of
# class t, is the largest output with the chance ∫ φ(z) Π_{c≠t} Φ(z + (mean_t − mean_c)/σ) dz; the rest is the chance of
# an error. With two classes that is Φ(−g/√(2σ²)). The two largest of many classes alone would give at most 1/2.

SMALL_CHANCE = 1e-3  # of an error; below it the chances of the single classes hardly overlap, and are added
NORMAL_POINTS, NORMAL_WEIGHTS = np.polynomial.hermite_e.hermegauss(20)  # ∫ f(z) exp(−z²/2) dz = Σ weight f(z)


def row_products(p_NC: Tensor) -> Tensor:
    """(N,): the product of each row. On a GPU torch compiles ``prod`` at its first use (a second), not ``cumprod``."""
    return p_NC.cumprod(1)[:, -1]


def chance_among_classes(mean_NC: Tensor, var_N: Tensor) -> Tensor:
    """(N,): the chance that another class than that of the largest mean has the largest output.

    var_N: of each output. Right to 1e-5 with ten classes, to 1e-3 with a thousand.
    """
    top_NC = mean_NC.sort(1, descending=True).values
    gap_Nc = top_NC[:, :1] - top_NC[:, 1:]
    chance_N = chance_of_error(gap_Nc, 2 * var_N[:, None]).sum(1)
    at = (chance_N > SMALL_CHANCE).nonzero()[:, 0]
    z_nc = torch.where(gap_Nc[at] > 0, gap_Nc[at] / var_N[at].clamp_min(0).sqrt()[:, None], 0.0)
    right_n = torch.zeros_like(chance_N[at])
    for z, weight in zip(NORMAL_POINTS, NORMAL_WEIGHTS / NORMAL_WEIGHTS.sum()):
        right_n += weight * row_products(torch.special.ndtr(z_nc + z))
    chance_N[at] = 1 - right_n
    return chance_N
