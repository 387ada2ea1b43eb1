"""What the watched points would put out after a label, in blocks: for scores that no closed form gives."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from foretaste.retrain import State

BLOCK = 2**21  # numbers of (W, u, C) at a time: 16 MB
CACHED = 2**20  # numbers of S at a time: 8 MB, which stay in the cache from one operation to the next


def cached_blocks(state: State) -> Iterator[tuple[slice, Tensor]]:
    """``state.blocks`` that fit in a processor's cache: twice as fast as large ones. A GPU prefers those."""
    if state.mean.device.type != "cpu":
        return state.blocks()
    return state.blocks(max(1, CACHED // (state.W * state.B * state.B)))


def narrow_blocks(state: State) -> Iterator[tuple[slice, Tensor]]:
    """``state.blocks`` so narrow that (W, u, C) of a block is small."""
    return state.blocks(max(1, BLOCK // (state.W * state.C)))


def after(state: State, S_Wu: Tensor, a_uC: Tensor) -> Tensor:
    """f⁺_i = mean_i + S_ij a_j (Eq. 12), (u, W, C) for a block's u candidates."""
    B, u = state.B, a_uC.shape[0]
    if B == 1:
        return torch.addcmul(state.mean, S_Wu.T[:, :, None], a_uC[:, None])
    sites = S_Wu.view(state.W * B, u, B).transpose(0, 1)
    return state.mean + (sites @ a_uC.view(u, B, state.C // B)).view(u, state.W, state.C)


def expect(
    state: State, p_UC: Tensor, score: Callable[[Tensor, Tensor], Tensor], blocks: Iterator[tuple[slice, Tensor]]
) -> Tensor:
    """Σ_y p_j(y) score(S_Wj, a_j(y)), (U,). Labels of no probability are not looked at: most, after a projection."""
    scores_U = p_UC.new_zeros(state.U)
    eye_CC = torch.eye(state.C, dtype=p_UC.dtype, device=p_UC.device)
    for at, S_Wu in blocks:
        p_uC = p_UC[at]
        for c in range(state.C):
            on = (p_uC[:, c] > 0).nonzero()[:, 0]
            if not len(on):
                continue
            a_uC = state.push(eye_CC[c].expand(len(on), -1), on + at.start)
            scores_U[on + at.start] += p_uC[on, c] * score(columns(state, S_Wu, on), a_uC)
    return scores_U


def columns(state: State, S_Wu: Tensor, on: Tensor) -> Tensor:
    """The block's columns of candidates ``on``, without a copy where it is all of them."""
    u = S_Wu.shape[1] // state.B
    if len(on) == u:
        return S_Wu
    return S_Wu.view(-1, u, state.B)[:, on].flatten(1)
