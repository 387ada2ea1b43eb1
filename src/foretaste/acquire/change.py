"""How far the watched outputs would move: MLMOC (Eq. 13), EMOC (Eq. 3), and how many predictions would flip."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from foretaste.acquire.predictions import (
    cached_blocks,
    check_reference,
    current_outputs,
    expect_over_labels,
    finish_scores,
    narrow_blocks,
    need_classes,
    outputs_after,
    pseudo_labels,
    reference_outputs,
)
from foretaste.acquire.registry import register
from foretaste.acquire.watched_sums import SumTerm, can_fuse_sums, sum_terms
from foretaste.lookahead import KernelSettings, State
from foretaste.losses import probabilities


@dataclass(frozen=True)
class ChangeOptions:
    """The options of ``mlmoc``, ``emoc`` and ``flips``.

    reference: the outputs that change is measured from: "net" is Eq. 13 to the letter, "current" the mean before the
        candidate. None (default): "net", and "current" once a candidate is taken.
    """

    reference: str | None = None

    def __post_init__(self) -> None:
        check_reference(self.reference)


@register("mlmoc", needs=("kernel", "classes"), options=ChangeOptions)
def mlmoc(state: State, reference: str | None = None) -> Tensor:
    """Most likely model output change (MLMOC, Eq. 13): Σ_i ‖f⁺_i − f_i‖, with the candidate's likeliest label.

    Change is measured from f and not from f_lin, so the residual of L stays in, as Eq. 13 says. Cross-entropy: between
    softmax outputs. Cost: one pass over S, W·U·C.
    """
    need_classes(state, "mlmoc", "change")
    y_UC, from_WC = pseudo_labels(state), reference_outputs(state, reference)
    if from_WC is state.mean and state.criterion.quadratic and can_fuse_sums(state):
        return finish_scores(state, state.push(y_UC).norm(dim=1) * sum_terms(state, SumTerm.LENGTH), "mlmoc")
    move, blocks = _moves(state, from_WC)
    scores_U = y_UC.new_empty(state.U)
    for at, S_Wu in blocks:
        scores_U[at] = move(S_Wu, state.push(y_UC[at], at))
        del S_Wu  # its memory is used for the next block
    return finish_scores(state, scores_U, "mlmoc")


@register("emoc", needs=("kernel", "classes"), options=ChangeOptions)
def emoc(state: State, reference: str | None = None) -> Tensor:
    """Expected model output change (EMOC, Eq. 3): Σ_y p_j(y) Σ_i ‖f⁺_i − f_i‖.

    As ``mlmoc``, in expectation over every label of the candidate. Cost: W·U·C for each label of positive probability.
    """
    need_classes(state, "emoc", "change")
    move, blocks = _moves(state, reference_outputs(state, reference))
    return finish_scores(
        state, expect_over_labels(state, probabilities(current_outputs(state), state.loss), move, blocks), "emoc"
    )


@register("flips", needs=("kernel", "classes"), options=ChangeOptions, kernel=KernelSettings(watch_by="contested"))
def flips(state: State, reference: str | None = None) -> Tensor:
    """How many watched predictions would change: |{i : argmax f⁺_i ≠ argmax f_i}|, with the likeliest label.

    The score of the paper's released code. Cost: W·U·C. In a query with ``watch`` a number, the most contested points
    are watched: the others hardly ever flip.
    """
    need_classes(state, "flips", "change")
    y_UC, from_W = pseudo_labels(state), reference_outputs(state, reference).argmax(1)
    scores_U = y_UC.new_empty(state.U)
    for at, S_Wu in narrow_blocks(state):
        f_uWC = outputs_after(state, S_Wu, state.push(y_UC[at], at))
        scores_U[at] = (f_uWC.argmax(2) != from_W).sum(1).to(scores_U.dtype)
    return finish_scores(state, scores_U, "flips")


@register("change", needs=("kernel", "regression"))
def change(state: State) -> Tensor:
    """Expected output change in regression: E Σ_i |f⁺_i − mean_i| = √(2/π) Σ_i |S_ij| / √u_j, with y ~ N(mean_j, u_j).

    Eq. 3 for a network of one output. Cost: one pass over S, W·U.
    """
    if state.C > 1:
        raise ValueError(
            f"change is for regression and this network has {state.C} outputs; use mlmoc, emoc or variance"
        )
    if can_fuse_sums(state):
        return finish_scores(
            state, math.sqrt(2 / math.pi) * sum_terms(state, SumTerm.LENGTH) / state.u.sqrt(), "change"
        )
    scores_U = state.mean.new_empty(state.U)
    for at, S_Wu in cached_blocks(state):
        scores_U[at] = math.sqrt(2 / math.pi) * S_Wu.abs().sum(0) / state.u[at].sqrt()
        del S_Wu
    return finish_scores(state, scores_U, "change")


# --- how the change is summed ---

MoveBlock = Callable[[Tensor, Tensor], Tensor]


def _moves(state: State, from_WC: Tensor) -> tuple[MoveBlock, Iterator[tuple[slice, Tensor]]]:
    """A function (S_Wu, a_uC) -> (u,) of Σ_i ‖f⁺_i − from_i‖, and the blocks to call it on."""
    if state.B == 1 and state.criterion.quadratic:
        r_WC = None if from_WC is state.mean or torch.equal(from_WC, state.mean) else state.mean - from_WC
        spare = state.mean.new_empty(0, 0)

        def by_lengths(S_Wu: Tensor, a_uC: Tensor) -> Tensor:
            # One buffer for all blocks, with their strides: fresh pages cost as much as the arithmetic.
            nonlocal spare
            if spare[:, : S_Wu.shape[1]].stride() != S_Wu.stride() or spare.shape < S_Wu.shape:
                spare = torch.empty_like(S_Wu)
            return move_lengths(S_Wu, a_uC, r_WC, spare[:, : S_Wu.shape[1]])

        return by_lengths, cached_blocks(state)
    responses = state.criterion.responses
    q_WC = responses(from_WC)

    def by_outputs(S_Wu: Tensor, a_uC: Tensor) -> Tensor:
        f_uWC = outputs_after(state, S_Wu, a_uC)
        return (responses(f_uWC) - q_WC).norm(dim=2).sum(1)

    return by_outputs, narrow_blocks(state)


def move_lengths(S_Wu: Tensor, a_uC: Tensor, r_WC: Tensor | None, out: Tensor) -> Tensor:
    """Σ_i ‖r_i + S_ij a_j‖ = Σ_i sqrt(‖r_i‖² + S_ij (2 r_i·a_j + S_ij ‖a_j‖²)), (u,): no (W, u, C). None is r = 0."""
    if r_WC is None:
        return a_uC.norm(dim=1) * torch.abs(S_Wu, out=out).sum(0)
    aa_u, rr_W1 = a_uC.square().sum(1), r_WC.square().sum(1, keepdim=True)
    torch.mm(r_WC, 2 * a_uC.T, out=out).addcmul_(S_Wu, aa_u).mul_(S_Wu).add_(rr_W1)
    # Rounding can leave a square of zero just below it.
    return out.clamp_min_(0).sqrt_().sum(0)
