"""Many small active-learning runs at once: networks are trained together, tangent kernels are in closed form.

All runs of a cell have the same number of labels at each cycle, so their networks train in batched products. Where
there are fewer labels than inputs, the first layer moves only in the span of the labelled points: it is trained in
coordinates of that span, which changes nothing under SGD. A cell of nine strategies and six seeds takes 3 to 60 seconds
of one core. What the product computes is computed here again, and equal to it (docs/findings.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from problems import Cell, problem
from torch import Tensor
from torch.nn.functional import one_hot

torch.set_grad_enabled(False)
Weights = list[Tensor]  # of each layer its matrix (inputs, outputs) and its bias (1, outputs)


# --- training ---


def one_cycle(step: int, steps: int, top: float) -> tuple[float, float]:
    """Learning rate and momentum of ``ft.fit``."""
    up, down = float(0.3 * steps) - 1, steps - 1

    def cosine(a: float, b: float, p: float) -> float:
        return b + (a - b) / 2 * (1 + math.cos(math.pi * p))

    if step <= up:
        p = step / max(up, 1e-9)
        return cosine(top / 25, top, p), cosine(0.95, 0.85, p)
    p = (step - up) / (down - up)
    return cosine(top, top / 25e4, p), cosine(0.85, 0.95, p)


def first_weights(seed: int, widths: tuple[int, ...]) -> Weights:
    g, out = torch.Generator().manual_seed(seed * 7919 + 13), list[Tensor]()
    for a, b in pairwise(widths):
        k = 1 / math.sqrt(a)
        out += [torch.empty(a, b).uniform_(-k, k, generator=g), torch.empty(1, b).uniform_(-k, k, generator=g)]
    return out


def train(cell: Cell, labelled: list[Tensor], seeds: list[int]) -> list[Weights]:
    """A network for each set of labelled points; all sets have the same size."""
    D, n = problem(cell.data)[0].shape[1], len(labelled[0])
    inputs = n if cell.opt == "sgd" and n < D else D
    widths = (inputs, *cell.hidden, problem(cell.data)[4])
    together = max(1, min(12, 400_000 // sum(a * b for a, b in pairwise(widths)) + 1))
    return [
        w
        for k in range(0, len(labelled), together)
        for w in _train_together(cell, labelled[k : k + together], seeds[k : k + together], inputs < D)
    ]


def _train_together(cell: Cell, labelled: list[Tensor], seeds: list[int], in_span: bool) -> list[Weights]:
    X, y, _, _, C = problem(cell.data)
    n = len(labelled[0])
    size = min(cell.batch, max(n, 2))
    drawn = [first_weights(s, (X.shape[1], *cell.hidden, C)) for s in seeds]
    P = [torch.stack(parts) for parts in zip(*drawn)]
    x, t = torch.stack([X[at] for at in labelled]), torch.stack([one_hot(y[at], C).float() for at in labelled])
    if in_span:
        Q, whole = torch.linalg.qr(x.transpose(1, 2)).Q, P[0]
        P[0] = Q.transpose(1, 2) @ whole
        start, x = P[0].clone(), x @ Q
    order = torch.stack([_batches(s, n, size, cell.steps) for s in seeds], 1)
    V, V2 = ([torch.zeros_like(p) for p in P] for _ in range(2))
    rows = torch.arange(len(seeds))[:, None]
    outside, speed = 1.0, 0.0  # what weight decay leaves of the first layer outside the span
    for step in range(cell.steps):
        at = order[step]
        grads = _gradients(cell.loss, P, x[rows, at], t[rows, at])
        lr, momentum = one_cycle(step, cell.steps, cell.max_lr())
        if cell.opt == "adam":
            _adam(cell, P, V, V2, grads, step)
            continue
        for p, v, grad in zip(P, V, grads):
            v.mul_(momentum).add_(grad.add_(p, alpha=cell.wd) if cell.wd else grad)
            p.add_(v, alpha=-lr)
        speed = speed * momentum + cell.wd * outside
        outside -= lr * speed
    if in_span:
        P[0] = outside * whole + Q @ (P[0] - outside * start)
    return [[p[r] for p in P] for r in range(len(seeds))]


def _batches(seed: int, n: int, size: int, steps: int) -> Tensor:
    g = torch.Generator().manual_seed(seed + 999)
    epochs = math.ceil(steps * size / n)
    return torch.cat([torch.randperm(n, generator=g) for _ in range(epochs)])[: steps * size].view(steps, size)


def _gradients(loss: str, P: list[Tensor], x: Tensor, t: Tensor) -> list[Tensor]:
    layers, h = len(P) // 2, [x]
    for i in range(layers):
        a = torch.baddbmm(P[2 * i + 1], h[-1], P[2 * i])
        h.append(a.relu_() if i < layers - 1 else a)
    f, (_, size, C) = h[-1], t.shape
    g = (f - t).mul_(2 / (size * C)) if loss == "l2" else (f.softmax(2) - t).div_(size)
    grads = [g] * len(P)
    for i in reversed(range(layers)):
        grads[2 * i + 1], grads[2 * i] = g.sum(1, keepdim=True), torch.bmm(h[i].transpose(1, 2), g)
        if i:
            g = torch.bmm(g, P[2 * i].transpose(1, 2)).mul_(h[i] > 0)
    return grads


def _adam(cell: Cell, P: list[Tensor], V: list[Tensor], V2: list[Tensor], grads: list[Tensor], step: int) -> None:
    """AdamW with a cosine schedule."""
    lr = cell.max_lr() * 0.5 * (1 + math.cos(math.pi * step / cell.steps))
    first, second = 1 - 0.9 ** (step + 1), 1 - 0.999 ** (step + 1)
    for p, v, v2, grad in zip(P, V, V2, grads):
        v.mul_(0.9).add_(grad, alpha=0.1)
        v2.mul_(0.999).addcmul_(grad, grad, value=0.001)
        p.mul_(1 - lr * cell.wd)
        p.addcdiv_(v, (v2 / second).sqrt_().add_(1e-8), value=-lr / first)


def forward(w: Weights, x: Tensor) -> list[Tensor]:
    """The input of each layer, and the outputs."""
    h = [x]
    for i in range(len(w) // 2):
        a = h[-1] @ w[2 * i] + w[2 * i + 1]
        h.append(a.relu() if i < len(w) // 2 - 1 else a)
    return h


# --- what a strategy is given ---

_products: dict[str, Tensor] = {}


@dataclass
class Asked:
    """A trained network, L and U. Kernels are over L and U together, L first; they are computed once."""

    cell: Cell
    w: Weights
    L: Tensor
    U: Tensor
    seed: int
    generator: torch.Generator
    made: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.X, y, _, _, self.C = problem(self.cell.data)
        self.at, self.n = torch.cat([self.L, self.U]), len(self.L)
        self.h = forward(self.w, self.X[self.at])
        f = self.h[-1].double()
        self.f_L, self.f_U, self.y_L = f[: self.n], f[self.n :], one_hot(y[self.L], self.C).double()
        self.y_U = y[self.U]  # for strategies that are told each label before the next pick

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    @property
    def products(self) -> Tensor:
        """x·x′."""
        if self.cell.data not in _products:
            _products[self.cell.data] = self.X @ self.X.T
        return self.once("products", lambda: _products[self.cell.data][self.at][:, self.at].double())

    def theta(self, output: str) -> Tensor:
        """The tangent kernel of a network with one hidden layer: "sum", "signs" or "trace"."""
        return self.once(("theta", output), lambda: self._theta(output))

    def _theta(self, output: str) -> Tensor:
        h, last, C = self.h[1].double(), self.w[2].double(), self.C
        if output == "trace":
            g = (h > 0).double() * last.square().mean(1).sqrt()
        else:
            v = torch.full((C,), 1 / math.sqrt(C), dtype=torch.float64)
            if output == "signs":
                v *= torch.randperm(C, generator=torch.Generator().manual_seed(0)) % 2 * 2.0 - 1
            g = (last @ v) * (h > 0)
        return h @ h.T + 1 + (g @ g.T) * (self.products + 1)

    def posterior(self, output: str, misfit: bool) -> tuple[Tensor, Tensor, float, Tensor]:
        """Mean, S, s² and the noise of a label, on U."""
        return self.once(("posterior", output, misfit), lambda: self._posterior(output, misfit))

    def _posterior(self, output: str, misfit: bool) -> tuple[Tensor, Tensor, float, Tensor]:
        theta, n, ce = self.theta(output), self.n, self.cell.loss == "ce"
        ridge = 1e-6 * float(theta.diagonal()[:n].mean())
        if misfit and not ce:
            ridge = misfit_ridge(
                theta[:n, :n], self.y_L - 1 / self.C, float((self.y_L - self.f_L).square().mean()), ridge
            )
        A = theta[:n, :n].clone()
        A.diagonal().add_(ridge)
        noise = torch.full((len(self.U),), ridge, dtype=torch.float64)
        if ce:
            top_L, top_U = (f.softmax(1).amax(1) for f in (self.f_L, self.f_U))
            A.diagonal().add_(1 / (top_L * (1 - top_L)).clamp_min(1e-12))
            noise = 1 / (top_U * (1 - top_U)).clamp_min(1e-12)
        chol = torch.linalg.cholesky(A)
        half = torch.linalg.solve_triangular(chol, theta[:n, n:], upper=False)
        S = theta[n:, n:] - half.T @ half
        if ce:
            return self.f_U, S, 1.0, noise
        mean = self.f_U + half.T @ torch.linalg.solve_triangular(chol, self.y_L - self.f_L, upper=False)
        inverse = torch.cholesky_inverse(chol)
        alpha = inverse @ (self.y_L - 1 / self.C)
        return mean, S, 10 * float((alpha.square() / inverse.diagonal()[:, None]).mean()), noise

    def collapsed(self, output: str) -> bool:
        """Whether the tangents have less than a third of the inputs' spread."""
        every = -(-len(self.U) // 512)
        own, inputs = (spread(k[self.n :: every, self.n :: every]) for k in (self.theta(output), self.products))
        return own < inputs / 3

    def kappa(self, output: str) -> Tensor:
        """(U, L + U): correlations of the centred kernel, cut at 0; of the inputs, if the tangents have collapsed."""
        theta = self.products if self.collapsed(output) else self.theta(output)
        theta = theta - theta.mean(0, keepdim=True)
        theta = theta - theta.mean(1, keepdim=True)
        d = theta.diagonal().clamp_min(1e-30).rsqrt()
        return (theta[self.n :] * d * d[self.n :, None]).clamp_(0, 1)


def spread(theta: Tensor) -> float:
    """(Σλ)²/Σλ² of the eigenvalues of a centred kernel."""
    theta = theta - theta.mean(0, keepdim=True)
    theta = theta - theta.mean(1, keepdim=True)
    return float(theta.diagonal().sum() ** 2 / theta.square().sum())


def misfit_ridge(theta: Tensor, y: Tensor, residual: float, least: float) -> float:
    """λ with which kernel regression leaves that residual, by bisection in the eigenvectors of Θ_LL."""
    values, vectors = torch.linalg.eigh(theta)
    values, b = values.clamp_min(0), (vectors.T @ y).square().sum(1) / y.numel()

    def left(ridge: float) -> float:
        return float((b * (ridge / (values + ridge)) ** 2).sum())

    if left(least) >= residual:
        return least
    low, high = math.log(least), math.log(least * 1e12)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if left(math.exp(middle)) < residual else (low, middle)
    return math.exp(low)


# --- the loop ---

Pick = Callable[[Asked], list[int]]


def run(cell: Cell, strategies: dict[str, Pick], seeds: list[int]) -> np.ndarray:
    """Test accuracy in percent, (strategies, seeds, cycles + 1). Cold starts; the first labels are shared."""
    X, _, X_test, y_test, _ = problem(cell.data)
    names, keys = list(strategies), [(a, k) for k in range(len(seeds)) for a in range(len(strategies))]
    first = [torch.randperm(len(X), generator=torch.Generator().manual_seed(s + 5000))[: cell.init] for s in seeds]
    labelled = {(a, k): first[k] for a, k in keys}
    accuracy = np.zeros((len(names), len(seeds), cell.cycles + 1))
    for cycle in range(cell.cycles + 1):
        asked = [(0, k) for k in range(len(seeds))] if cycle == 0 else keys
        nets = dict(zip(asked, train(cell, [labelled[key] for key in asked], [seeds[k] for _, k in asked])))
        hits = {key: float((forward(w, X_test)[-1].argmax(1) == y_test).float().mean()) for key, w in nets.items()}
        for a, k in keys:
            key = (a, k) if cycle else (0, k)
            accuracy[a, k, cycle] = 100 * hits[key]
            if cycle == cell.cycles:
                continue
            free = torch.ones(len(X), dtype=torch.bool)
            free[labelled[a, k]] = False
            order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seeds[k] * 100 + cycle + 7))
            U = order[free[order]][: cell.subset]
            generator = torch.Generator().manual_seed(seeds[k] * 1000 + cycle)
            question = Asked(cell, nets[key], labelled[a, k], U, seeds[k], generator)
            labelled[a, k] = torch.cat([labelled[a, k], U[torch.tensor(strategies[names[a]](question))]])
    return accuracy
