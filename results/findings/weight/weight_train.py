"""Training of many networks at once: all arms and seeds of a cell side by side, on the schedule of ``ft.fit``.

SGD without weight decay moves the first layer by Xᵀ A, X the labelled points. Where there are fewer labels than
columns, A is trained in place of W: the same in exact arithmetic.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from weight_cells import DEVICE, Cell, problem

Weights = list[Tensor]  # W (networks, D, H), b (networks, 1, H), V (networks, H, C), c (networks, 1, C), or more layers


def one_cycle(step: int, steps: int, top: float) -> tuple[float, float]:
    """Learning rate and momentum of torch's OneCycleLR."""

    def cosine(a: float, b: float, share: float) -> float:
        return b + (a - b) / 2 * (1 + math.cos(math.pi * share))

    up, down = 0.3 * steps - 1, steps - 1
    if step <= up:
        share = step / max(up, 1e-9)
        return cosine(top / 25, top, share), cosine(0.95, 0.85, share)
    share = (step - up) / (down - up)
    return cosine(top, top / 25e4, share), cosine(0.85, 0.95, share)


def first_weights(seeds: list[int], cycle: int, sizes: list[int]) -> Weights:
    """Fresh layers for each seed, as torch's Linear draws them: uniform up to 1/√inputs."""
    parts = []
    for seed in seeds:
        g = torch.Generator(DEVICE).manual_seed(seed * 7919 + 13 + 1_000_003 * cycle)
        parts.append(
            [
                torch.empty(rows, b, device=DEVICE).uniform_(-(a**-0.5), a**-0.5, generator=g)
                for a, b in pairwise(sizes)
                for rows in (a, 1)
            ]
        )
    return [torch.stack(part) for part in zip(*parts)]


def batches(seeds: list[int], cycle: int, n: int, size: int, steps: int) -> Tensor:
    """(steps, S, size): permutations of n; an epoch leaves out what does not fill a batch."""
    each = n // size
    epochs = -(-steps // each)
    out = []
    for seed in seeds:
        g = torch.Generator().manual_seed(seed + 999 + 1_000_003 * cycle)
        out.append(torch.rand(epochs, n, generator=g).argsort(1)[:, : each * size].reshape(-1, size)[:steps])
    return torch.stack(out, 1).to(DEVICE)


def slope(loss: str, f: Tensor, t: Tensor) -> Tensor:
    """The gradient of the batch's mean loss by the outputs."""
    size, C = t.shape[-2:]
    return (f - t).mul_(2 / (size * C)) if loss == "l2" else (f.softmax(-1) - t).div_(size)


def train(cell: Cell, L: Tensor, seeds: list[int], cycle: int) -> tuple[Weights, Tensor]:
    """Networks of one hidden layer on labels L (S, A, n), and the share of its labels that each has learned."""
    X, Y, _, _, C, products = problem(cell.data)
    S, A, n = L.shape
    R, D, H = S * A, X.shape[1], cell.hidden
    W0, b, V, c = first_weights(seeds, cycle, [D, H, C])
    size = min(cell.batch, n)
    order = batches(seeds, cycle, n, size, cell.steps)
    b, V, c = (part.repeat_interleave(A, 0) for part in (b, V, c))
    at = L.reshape(R, n)
    t = one_hot(Y[at], C).float()
    x = X[at]
    span = cell.opt == "sgd" and n < D
    if span:
        K = products[at[:, :, None], at[:, None, :]].float()
        Z0 = (X[L.reshape(S, A * n)] @ W0).reshape(R, n, H)
        M = torch.zeros(R, n, H, device=DEVICE)
    else:
        M = W0.repeat_interleave(A, 0)
    params = [M, b, V, c]
    speed = [torch.zeros_like(p) for p in params]
    second = [torch.zeros_like(p) for p in params] if cell.opt == "adam" else []
    start = torch.arange(R, device=DEVICE)[:, None] * n
    for step in range(cell.steps):
        flat = (start + order[step].repeat_interleave(A, 0)).reshape(-1)

        def rows(of: Tensor, flat: Tensor = flat) -> Tensor:
            return of.view(R * n, -1)[flat].view(R, size, -1)

        if span:
            z = torch.baddbmm(rows(Z0), rows(K), M).add_(b)
        else:
            xb = rows(x)
            z = torch.baddbmm(b, xb, M)
        h = z.relu_()
        g = slope(cell.loss, torch.baddbmm(c, h, V), rows(t))
        dh = torch.bmm(g, V.mT).mul_(h > 0)
        if cell.opt == "adam":
            grads = [torch.bmm(xb.mT, dh), dh.sum(1, keepdim=True), torch.bmm(h.mT, g), g.sum(1, keepdim=True)]
            adam_step(cell, step, params, speed, second, grads)
            continue
        lr, momentum = one_cycle(step, cell.steps, cell.max_lr())
        if span:
            speed[0].mul_(momentum).view(R * n, H).index_add_(0, flat, dh.reshape(-1, H))
        else:
            speed[0].baddbmm_(xb.mT, dh, beta=momentum)
        speed[1].mul_(momentum).add_(dh.sum(1, keepdim=True))
        speed[2].baddbmm_(h.mT, g, beta=momentum)
        speed[3].mul_(momentum).add_(g.sum(1, keepdim=True))
        for p, v in zip(params, speed):
            p.add_(v, alpha=-lr)
    if span:
        W = torch.baddbmm(W0.repeat_interleave(A, 0), x.mT, M)
        fitted = (Z0 + torch.bmm(K, M) + b).relu_()
    else:
        W, fitted = M, torch.baddbmm(b, x, M).relu_()
    learned = (torch.baddbmm(c, fitted, V).argmax(2) == Y[at]).float().mean(1)
    return [W, b, V, c], learned


def adam_step(cell: Cell, step: int, params: Weights, first: Weights, second: Weights, grads: Weights) -> None:
    """One step of AdamW, weight decay 0.01, on a cosine schedule."""
    lr = cell.max_lr() * 0.5 * (1 + math.cos(math.pi * step / cell.steps))
    one, two = 1 - 0.9 ** (step + 1), 1 - 0.999 ** (step + 1)
    for p, v, v2, grad in zip(params, first, second, grads):
        v.mul_(0.9).add_(grad, alpha=0.1)
        v2.mul_(0.999).addcmul_(grad, grad, value=0.001)
        p.mul_(1 - lr * 1e-2)
        p.addcdiv_(v, (v2 / two).sqrt_().add_(1e-8), value=-lr / one)


def forward(net: Weights, x: Tensor) -> list[Tensor]:
    """The outputs of each layer, the last without ReLU."""
    out = []
    for k in range(0, len(net), 2):
        x = torch.baddbmm(net[k + 1], x, net[k])
        if k + 2 < len(net):
            x = x.relu_()
        out.append(x)
    return out


def accuracy(cell: Cell, net: Weights, together: int = 16) -> Tensor:
    """Of each network, in percent."""
    data = problem(cell.data)
    hits = []
    for k in range(0, len(net[0]), together):
        part = [p[k : k + together] for p in net]
        f = forward(part, data.X_test.expand(len(part[0]), -1, -1))[-1]
        hits.append((f.argmax(2) == data.y_test).double().mean(1))
    return 100 * torch.cat(hits)


def train_deep(cell: Cell, L: Tensor, seeds: list[int], cycle: int) -> tuple[Weights, Tensor]:
    """As train, for two hidden layers of half the width, by SGD."""
    X, Y, _, _, C, _ = problem(cell.data)
    S, A, n = L.shape
    R, D, H = S * A, X.shape[1], cell.hidden // 2
    params = [part.repeat_interleave(A, 0) for part in first_weights(seeds, cycle, [D, H, H, C])]
    order = batches(seeds, cycle, n, min(cell.batch, n), cell.steps)
    at = L.reshape(R, n)
    x, t = X[at], one_hot(Y[at], C).float()
    rows = torch.arange(R, device=DEVICE)[:, None]
    speed = [torch.zeros_like(p) for p in params]
    for step in range(cell.steps):
        now = order[step].repeat_interleave(A, 0)
        h0 = x[rows, now]
        h1, h2, f = forward(params, h0)
        g = slope(cell.loss, f, t[rows, now])
        d2 = torch.bmm(g, params[4].mT).mul_(h2 > 0)
        d1 = torch.bmm(d2, params[2].mT).mul_(h1 > 0)
        lr, momentum = one_cycle(step, cell.steps, cell.max_lr())
        for i, (h, d) in enumerate(((h0, d1), (h1, d2), (h2, g))):
            speed[2 * i].baddbmm_(h.mT, d, beta=momentum)
            speed[2 * i + 1].mul_(momentum).add_(d.sum(1, keepdim=True))
        for p, v in zip(params, speed):
            p.add_(v, alpha=-lr)
    return params, (forward(params, x)[-1].argmax(2) == Y[at]).float().mean(1)
