"""Greedy batches by ``gain``, ``variance`` and ``epig``: for each pick, only candidates that could be it are scored.

These scores may rise as a batch grows, so an old score is no bound on the new one, as it is for a coverage. The bounds
here are of the state as it is. Candidates are scored exactly from the highest bound down, until no bound is above the
best score. So the picks are those of plain greedy, which scores all.

``variance`` and ``gain`` have a bound by squares, c + a Σ_i b_i S_ij² / u_j (``SquareBound``), which follows a pick
without a pass over S. S₀ is the running S. F has a row f for each pick since, and S = S₀ − FᵀF. One more row f makes of
Q_j = Σ_i b_i S_ij²

    Q_j − 2 f_j p_j + f_j² Σ_i b_i f_i²,      p = Sᵀ(b∘f) = S₀ᵀ(b∘f) − Σ_s F_s (F_s·b∘f)

f is a combination of column k of S₀, that of the pick, and of rows of F. So S₀ᵀ(b∘f) is the same combination of
S₀ᵀ(b∘S₀_k) and of those before. The products of several likely picks k are made at once, by one matrix product.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from foretaste.lookahead import DenseState, State

LAZY_PAIRS = 2**20  # pairs (i, j) from which bounds are worth their work
LAZY_WAITING = 32  # factors that may wait, for then Q is summed anew
LIKELY_PICKS = 32  # columns multiplied at once
FIRST_SCORED = 16  # candidates scored first, the likeliest
SQUARES_ROUNDING = 1e-8  # of Q at its last sum, added to it
SQUARES_CHUNK = 2**18  # numbers of S at a time


class ScoreBound(Protocol):
    """Bounds on the scores of a state, and scores themselves."""

    def upper(self, state: DenseState, likely: list[int], best: float) -> Tensor:
        """(U,): no score is higher. likely: the likeliest next picks; best: the last best score, for its size."""

    def exact(self, state: DenseState, at: Tensor) -> Tensor:
        """(n,): the scores of candidates ``at``."""


class LazyScores:
    """The scores of a state that could be the highest; −inf for all others. Call it after each pick."""

    def __init__(self, bound: ScoreBound, scores_U: Tensor) -> None:
        self.bound, self.last_U = bound, scores_U.clone()  # of each candidate, the last score that was computed
        self.scored = 0  # candidates scored so far

    def __call__(self, state: State, shut_U: Tensor, equal: float = 0.0) -> Tensor:
        """(U,). shut_U: candidates that cannot be picked. equal: scores that differ by less, relatively, are ties."""
        assert isinstance(state, DenseState)
        last_U = self.last_U.masked_fill(shut_U, -torch.inf)
        likely = last_U.topk(min(LIKELY_PICKS, state.U)).indices.tolist()
        best = float(last_U.max())
        upper_U = self.bound.upper(state, likely, best).masked_fill_(shut_U, -torch.inf)
        scores_U = torch.full_like(upper_U, -torch.inf)

        def score(at: Tensor) -> None:
            scores_U[at] = self.last_U[at] = self.bound.exact(state, at)
            upper_U[at] = -torch.inf
            self.scored += len(at)

        if best > -torch.inf:
            score(torch.minimum(last_U, upper_U).topk(min(FIRST_SCORED, state.U)).indices)
            scores_U.masked_fill_(shut_U, -torch.inf)
            best = float(scores_U.max())
            if len(others := (upper_U >= best - equal * abs(best)).nonzero()[:, 0]):
                score(others)
        return scores_U


def lazy_scores(
    bound: Callable[[], ScoreBound] | None, state: State, scores_U: Tensor, batch_size: int
) -> LazyScores | None:
    """For a greedy batch; None where it would not pay: on a GPU a pass over S costs as much as a few launches."""
    if bound is None or not isinstance(state, DenseState) or state.B > 1 or not state.net.is_cpu:
        return None
    return LazyScores(bound(), scores_U) if state.W * state.U >= LAZY_PAIRS and batch_size > 1 else None


@dataclass(frozen=True)
class SquareWeights:
    """A score is at most ``constant`` + ``times`` Σ_i weight_i S_ij² / u_j, now and as S_ii shrink."""

    weight_W: Tensor
    times: float = 1.0
    constant: float = 0.0


@dataclass(frozen=True)
class Squares:
    """Q of the running S less some rows of F."""

    start: tuple[int, ...]  # the candidates whose factors the running S has taken
    weights: SquareWeights
    first_U: Tensor  # Q of the running S
    Q_U: Tensor
    products: dict[int, Tensor] = field(default_factory=dict)  # k -> S₀ᵀ(b∘S₀_k), (U,)
    moved: tuple[Tensor, ...] = ()  # S₀ᵀ(b∘f) for each factor f, (U,)


class SquareBound:
    """c + a Σ_i b_i S_ij² / u_j as a bound on a score.

    weights: state, best score -> the weights, asked for again whenever Q is summed anew.
    score: columns S_Wn and u_n -> their scores (n,).
    """

    def __init__(
        self,
        weights: Callable[[DenseState, float], SquareWeights],
        score: Callable[[DenseState, Tensor, Tensor], Tensor],
    ) -> None:
        self.weights, self.score = weights, score
        self.squares: Squares | None = None

    def exact(self, state: DenseState, at: Tensor) -> Tensor:
        return self.score(state, state.columns(at), state.u[at])

    def upper(self, state: DenseState, likely: list[int], best: float) -> Tensor:
        made: list[Squares] = []  # the last counts: another thread may write to S meanwhile, and then it is read again

        def follow(S_WU: Tensor, F_W: Tensor, F_U: Tensor) -> Tensor:
            made.append(self._follow(state, likely, best, S_WU, F_W, F_U))
            return made[-1].Q_U

        state.from_parts(follow, LAZY_WAITING)
        found = self.squares = made[-1]
        Q_U = found.Q_U + SQUARES_ROUNDING * found.first_U
        return Q_U.mul_(found.weights.times).div_(state.u).add_(found.weights.constant)

    def _follow(
        self, state: DenseState, likely: list[int], best: float, S_WU: Tensor, F_W: Tensor, F_U: Tensor
    ) -> Squares:
        """Q of S_WU − F_WᵀF_U, from the one before where that has the same S_WU."""
        js = state.order
        start = js[: len(js) - len(F_U)]
        old = self.squares
        if old is None or old.start != start or len(old.moved) > len(F_U):
            weights = self.weights(state, best)
            first_U = weighted_squares(S_WU, weights.weight_W)
            old = Squares(start, weights, first_U, first_U)
        b_W, Q_U, products, moved = old.weights.weight_W, old.Q_U, dict(old.products), list(old.moved)
        for s in range(len(moved), len(F_U)):
            k, f_W, f_U = js[len(start) + s], F_W[s], F_U[s]
            if k not in products:
                several = [k, *(j for j in likely if j != k and j not in products)][:LIKELY_PICKS]
                products |= zip(several, ((S_WU[:, several].T * b_W) @ S_WU).unbind())
            at_k = F_U[:s, k]
            s_W = S_WU[:, k] - at_k @ F_W[:s]
            share = torch.nan_to_num((f_W @ s_W) / (s_W @ s_W))  # f = share · s; 0 where nothing is left of s
            before = torch.stack(moved) if moved else F_U[:0]
            moved.append(share * (products[k] - at_k @ before))
            bf_W = b_W * f_W
            p_U = moved[-1] - (F_W[:s] @ bf_W) @ F_U[:s]
            Q_U = Q_U - 2 * f_U * p_U + f_U.square() * (f_W @ bf_W)
        return Squares(start, old.weights, old.first_U, Q_U.clamp_min(0), products, tuple(moved))


def weighted_squares(S_WU: Tensor, b_W: Tensor) -> Tensor:
    """Σ_i b_i S_ij², (U,)."""
    total_U = S_WU.new_zeros(S_WU.shape[1])
    step = max(1, SQUARES_CHUNK // max(1, S_WU.shape[1]))
    for S_wU, b_w in zip(S_WU.split(step), b_W.split(step)):
        total_U += b_w @ S_wU.square()
    return total_U
