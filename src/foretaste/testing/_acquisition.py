"""The contract of an acquisition function, fn(state) -> (U,) scores."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.retrain import State, linearize

Acquisition = Callable[[State], Tensor]


@dataclass(frozen=True)
class Setting:
    """A small network with its labels and a pool, in which candidate 7 is a copy of candidate 3."""

    C: int = 2
    dtype: torch.dtype = torch.float64
    loss: str = "l2"
    watch: bool = False
    order: tuple[int, ...] = tuple(range(11))

    def __str__(self) -> str:
        watched = "a watched set of its own" if self.watch else "the pool watched"
        return f"C = {self.C}, {str(self.dtype).removeprefix('torch.')}, loss {self.loss!r}, {watched}"

    def state(self) -> State:
        g = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64).to(self.dtype)

        net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, self.C)).to(self.dtype)
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(normal(*p.shape) / 2)
        x_L, x_U, x_W = normal(6, 4), normal(11, 4), normal(5, 4)
        x_U[7] = x_U[3]
        y_L = normal(6).double() if self.C == 1 else torch.arange(6) % self.C
        return linearize(
            net.eval(), x_L, y_L, x_U[list(self.order)], watch=x_W if self.watch else None, loss=self.loss, ridge=1e-3
        )


def check_acquisition(fn: Acquisition, *, regression: bool = False) -> None:
    """Raise an AssertionError that says which clause ``fn(state) -> (U,)`` breaks, and where.

    Shape; finite but for candidates taken; the same each time, and the state left as it was; permuting the pool
    permutes the scores; copies in the pool score alike. On networks of 2 and 10 classes (with ``regression``, of one
    output), in float32 and float64, by both losses, with a watched set other than the pool, before and after labels.
    """
    level = logging.getLogger("foretaste").level
    logging.getLogger("foretaste").setLevel(logging.ERROR)  # that these networks are untrained is no news
    try:
        for setting in _settings(regression):
            _check(fn, setting)
    finally:
        logging.getLogger("foretaste").setLevel(level)


def _settings(regression: bool) -> list[Setting]:
    if regression:
        return [Setting(C=1), Setting(C=1, dtype=torch.float32, watch=True)]
    return [
        Setting(C=2),
        Setting(C=2, dtype=torch.float32, watch=True),
        Setting(C=10, dtype=torch.float32),
        Setting(C=10, watch=True),
        Setting(C=10, loss="ce"),
    ]


def _check(fn: Acquisition, setting: Setting) -> None:
    state = setting.state()
    y: Any = 0.5 if setting.C == 1 else 1
    scores_U = _scores(fn, state, setting, "before any label")
    _scores(fn, state.condition(2, y), setting, "after a label")
    _scores(fn, state.condition(2, None), setting, "with a label on its way")
    tolerance = 1e-6 if setting.dtype == torch.float64 else 1e-2  # S subtracts nearly equal numbers
    slack = tolerance * max(float(scores_U.abs().max()), 1e-12)
    if float((scores_U[3] - scores_U[7]).abs()) > slack:
        raise AssertionError(
            f"duplicates: candidates 3 and 7 are the same point and score {float(scores_U[3]):.6g} and "
            f"{float(scores_U[7]):.6g} ({setting})"
        )
    order = (5, 2, 9, 0, 10, 7, 1, 4, 8, 3, 6)
    permuted_U = _scores(fn, replace(setting, order=order).state(), setting, "with the pool permuted")
    if float((off := (permuted_U - scores_U[list(order)]).abs()).max()) > slack:
        j = int(off.argmax())
        raise AssertionError(
            f"permutation: with the pool permuted candidate {order[j]} scores {float(permuted_U[j]):.6g}, and "
            f"{float(scores_U[order[j]]):.6g} before ({setting})"
        )


def _scores(fn: Acquisition, state: State, setting: Setting, when: str) -> Tensor:
    where = f"({setting}; {when})"
    seen = [t.clone() for t in _public(state)]
    try:
        scores_U, again_U = fn(state), fn(state)
    except Exception as e:
        raise AssertionError(f"runs: {type(e).__name__}: {e} {where}") from e
    if not isinstance(scores_U, Tensor) or scores_U.shape != (state.U,):
        came = tuple(scores_U.shape) if isinstance(scores_U, Tensor) else type(scores_U).__name__
        raise AssertionError(f"shape: returned {came}; expected a tensor ({state.U},) {where}")
    free_U = ~state.taken
    if not torch.isfinite(scores_U[free_U]).all():
        j = int((~torch.isfinite(scores_U) & free_U).nonzero()[0])
        raise AssertionError(f"finite: candidate {j} scores {float(scores_U[j])} and is not taken {where}")
    if not torch.equal(scores_U[free_U], again_U[free_U]):
        raise AssertionError(f"deterministic: a second call on the same state gives other scores {where}")
    if any(not torch.equal(a, b) for a, b in zip(seen, _public(state))):
        raise AssertionError(f"pure: the state's tensors were written to {where}")
    return scores_U.double()


def _public(state: State) -> list[Tensor]:
    S_WU = torch.cat([S_Wu for _, S_Wu in state.blocks()], 1)
    return [state.net, state.mean, state.pool_net, state.pool_mean, state.u, S_WU]
