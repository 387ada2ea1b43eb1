"""Retraining for real: SGD from the trained weights on L and one candidate more, many candidates at once.

For the candidates of a chunk, u of them, every parameter is stacked to (u, ...) and one step of all u networks is one
call of ``torch.func.functional_call`` under vmap:

    m ← μ m + ∇ℓ(θ; B)      θ ← θ − η m      B a minibatch of L ∪ {(x_j, y_j)}

as torch.optim.SGD has it. All networks take the same minibatches in the same order: what differs is the candidate
alone. They run in eval mode: BatchNorm keeps the statistics it has, as the linearisation assumes and the paper does,
and dropout is off. The user's network is only read.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vmap

from foretaste.network._train import batches
from foretaste.tangent import Inputs, Subject, size, take
from foretaste.tangent._subject import exact, untouched

PIECE = 256  # watched points evaluated at a time

Weights = dict[str, Tensor]  # stacked, (u, ...) each
Measure = Callable[[Tensor, slice], Tensor]  # (outputs of u networks (u, w, C), which watched points) -> (u,)


@dataclass(frozen=True, eq=False)
class Step:
    """A minibatch: positions in L, and how often the candidate stands in it."""

    at_L: Tensor
    times: int


def epochs_of(
    L: int, epochs: int, minibatch: int, generator: torch.Generator, device: torch.device
) -> tuple[Step, ...]:
    """``epochs`` passes over the L + 1 points in minibatches of one size; a batch runs on into the next epoch."""
    n = min(minibatch, L + 1)
    order = batches(L + 1, n, math.ceil(epochs * (L + 1) / n), generator)
    return tuple(Step(at[at < L].to(device), int((at == L).sum())) for at in order)


@dataclass(frozen=True, eq=False)
class Retraining:
    """One SGD, the same for every candidate."""

    subj: Subject
    x_L: Inputs | None
    y_LC: Tensor
    steps: tuple[Step, ...]
    loss: str
    lr: float
    momentum: float
    stacked: bool = True  # under vmap; else one candidate at a time by plain autograd

    def values(self, x_u: Inputs, y_uC: Tensor, x_W: Inputs, measure: Measure) -> Tensor:
        """Retrain on each candidate with its target; Σ of ``measure`` over the watched points, (u,) float64."""
        with untouched(self.subj.device), quiet():
            if self.stacked:
                return self._values(x_u, y_uC, x_W, measure)
            ones = [slice(i, i + 1) for i in range(len(y_uC))]
            return torch.cat([self._values(take(x_u, at), y_uC[at], x_W, measure) for at in ones])

    def _values(self, x_u: Inputs, y_uC: Tensor, x_W: Inputs, measure: Measure) -> Tensor:
        theta = self.train(x_u, y_uC)
        pieces = [measure(exact(f_uwC), at) for at, f_uwC in self.outputs(theta, x_W)]
        return torch.stack(pieces).sum(0)

    def train(self, x_u: Inputs, y_uC: Tensor) -> Weights:
        """The u networks after all steps."""
        theta = {k: p.expand(len(y_uC), *p.shape).clone() for k, p in self.subj.params.items()}
        moving = {k: torch.zeros_like(p) for k, p in theta.items()} if self.momentum else {}
        for step in self.steps:
            slopes = self.slopes(theta, x_u, y_uC, step)
            for k, p in theta.items():
                slope = slopes.pop(k)  # freed before the next is made
                if self.momentum:
                    slope = moving[k].mul_(self.momentum).add_(slope)
                p.add_(slope, alpha=-self.lr)
        return theta

    def slopes(self, theta: Weights, x_u: Inputs, y_uC: Tensor, step: Step) -> Weights:
        """∇ℓ of each network on its own minibatch."""

        def loss(theta: Weights, x_1: Inputs, y_C: Tensor) -> Tensor:
            x_B, y_BC = self.minibatch(step, x_1, y_C)
            return loss_of(self.subj.call(x_B, theta), y_BC, self.loss)

        if self.stacked:
            return vmap(grad(loss))(theta, x_u, y_uC)
        leaves = {k: p[0].detach().requires_grad_() for k, p in theta.items()}
        value = loss(leaves, take(x_u, 0), y_uC[0])
        found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return {k: g[None] for k, g in zip(leaves, found)}

    def minibatch(self, step: Step, x_1: Inputs, y_C: Tensor) -> tuple[Inputs, Tensor]:
        """A minibatch without the candidate is the same tensor for all networks, which spares their first layer."""
        at, n = step.at_L, step.times
        x_n, y_nC = repeated(x_1, n), y_C.expand(n, -1)
        if len(at) == 0 or self.x_L is None:
            return x_n, y_nC
        x_L, y_LC = take(self.x_L, at), self.y_LC[at]
        return (joined(x_L, x_n), torch.cat([y_LC, y_nC])) if n else (x_L, y_LC)

    @torch.no_grad()
    def outputs(self, theta: Weights, x_W: Inputs) -> Iterator[tuple[slice, Tensor]]:
        """f⁺ on the watched points, (u, w, C) a piece."""
        for start in range(0, size(x_W), PIECE):
            at = slice(start, min(start + PIECE, size(x_W)))
            x_w = take(x_W, at)
            if self.stacked:
                yield at, vmap(self.subj.call, in_dims=(None, 0))(x_w, theta)
            else:
                yield at, self.subj.call(x_w, {k: p[0] for k, p in theta.items()})[None]


def loss_of(f_BC: Tensor, y_BC: Tensor, loss: str) -> Tensor:
    """L2: the mean square over points and classes; CE: −Σ_c y_c log softmax f_c, mean over points. As ``ft.fit``."""
    if loss == "l2":
        return (f_BC - y_BC).square().mean()
    return -(y_BC * f_BC.log_softmax(1)).sum(1).mean()


def repeated(x_1: Inputs, n: int) -> Inputs:
    """n copies of one point, which has no dimension of points yet."""
    return x_1.expand(n, *x_1.shape) if isinstance(x_1, Tensor) else {k: v.expand(n, *v.shape) for k, v in x_1.items()}


def joined(a: Inputs, b: Inputs) -> Inputs:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.cat([a, b])
    assert not isinstance(a, Tensor)  # both are dicts of the same names: linearize has checked
    assert not isinstance(b, Tensor)
    return {k: torch.cat([a[k], b[k]]) for k in a}


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # vmap's, for an operation without a rule
        yield
