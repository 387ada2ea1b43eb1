"""What arms are made of: kernels, weights and greedy coverage, for S networks at once.

One hidden layer: Θ = h·h' + 1 + (g·g')(x·x' + 1), g = (h > 0) ∘ (last-layer weights of the contrast).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from weight_cells import DEVICE, Cell, problem
from weight_train import Weights, forward

F64 = torch.float64


def contrast(C: int, draw: int) -> Tensor:
    """The balanced signs of a draw, over √C."""
    signs = torch.randperm(C, generator=torch.Generator().manual_seed(draw)) % 2 * 2.0 - 1
    return (signs / math.sqrt(C)).to(DEVICE, F64)


def probabilities(f: Tensor, loss: str) -> Tensor:
    """Softmax, or under the squared loss the nearest point of the simplex."""
    if loss == "ce":
        return f.softmax(-1)
    k = torch.arange(1, f.shape[-1] + 1, dtype=f.dtype, device=f.device)
    f = f - f.amax(-1, keepdim=True)
    ordered = f.sort(-1, descending=True).values
    level = (ordered.cumsum(-1) - 1) / k
    last = (ordered > level).sum(-1, keepdim=True) - 1
    return (f - level.gather(-1, last)).clamp_min(0)


def gap(f: Tensor) -> Tensor:
    """Between the two largest outputs."""
    top = f.topk(2, -1).values
    return top[..., 0] - top[..., 1]


def centre(theta: Tensor) -> Tensor:
    """Subtract the means of rows and columns."""
    return theta - theta.mean(2, keepdim=True) - theta.mean(1, keepdim=True) + theta.mean((1, 2), keepdim=True)


def spread(theta: Tensor) -> Tensor:
    """(Σλ)²/Σλ² of centred kernels."""
    theta = centre(theta)
    return theta.diagonal(dim1=1, dim2=2).sum(1) ** 2 / theta.square().sum((1, 2))


class Asked:
    """S networks of one hidden layer, each with its labels L (S, n) and candidates U (S, u)."""

    draws = ("signs0", "signs3", "signs4", "signs5", "mean1-4", "mean5-8", "trace")  # whose batches are compared

    def __init__(self, cell: Cell, net: Weights, L: Tensor, U: Tensor, dtype: torch.dtype = torch.float32) -> None:
        data = problem(cell.data)
        self.cell, self.net, self.L, self.U, self.n, self.C = cell, net, L, U, L.shape[1], data.C
        self.dtype = dtype  # of the greedy choice
        self.at = torch.cat([L, U], 1)
        *hidden, f = (out.double() for out in forward(net, data.X[self.at]))
        self.hidden = hidden
        self.f_L, self.f_U = f[:, : self.n], f[:, self.n :]
        self.y_L, self.y_U = one_hot(data.y[L], self.C).double(), data.y[U]
        self.p_U = probabilities(self.f_U, cell.loss)
        self.cache: dict[object, Tensor] = {}

    def once(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def forget(self, kernel: str | None = None) -> None:
        """Free Θ of one kernel, or of all."""
        for key in [k for k in self.cache if isinstance(k, tuple) and k[0] == "theta"]:
            if kernel in (None, key[1]):
                del self.cache[key]

    @property
    def products(self) -> Tensor:
        """Inner products of the inputs."""
        P = problem(self.cell.data).products
        return self.once("products", lambda: P[self.at[:, :, None], self.at[:, None, :]])

    def theta(self, kernel: str) -> Tensor:
        """Θ of a kernel by its name; README.md lists them."""
        if kernel == "inputs":
            return self.products
        if kernel == "tang0":  # differs from signs0 in what follows only
            kernel = "signs0"
        return self.once(("theta", kernel), lambda: self.tangents(kernel))

    def tangents(self, kernel: str) -> Tensor:
        (h,), V = self.hidden, self.net[2].double()
        if kernel == "trace":
            scale = V.square().mean(2).sqrt()
        elif kernel.startswith("mean"):  # one hidden layer: the mean over draws is again a scale of units
            a, b = map(int, kernel[4:].split("-"))
            scale = torch.stack([(V @ contrast(self.C, d)).square() for d in range(a, b + 1)]).mean(0).sqrt()
        else:
            scale = V @ contrast(self.C, int(kernel[5:]))
        g = (h > 0).double() * scale[:, None]
        return torch.bmm(h, h.mT).add_(1).add_(torch.bmm(g, g.mT).mul_(self.products + 1))

    def collapsed(self, kernel: str) -> Tensor:
        """(S,): whether tangents spread less than a third of what the inputs do."""

        def find() -> Tensor:
            if kernel in ("inputs", "tang0"):
                return torch.zeros(len(self.L), dtype=torch.bool, device=DEVICE)
            every = -(-self.U.shape[1] // 512)
            some = slice(self.n, None, every)
            return spread(self.theta(kernel)[:, some, some]) < spread(self.products[:, some, some]) / 3

        return self.once(("collapsed", kernel), find)

    def coverage(self, kernel: str) -> tuple[Tensor, Tensor]:
        """How far candidates cover each other, (S, u, u), and how far L covers them, (S, u)."""
        n = self.n
        if kernel.startswith("gauss"):
            k = self.gaussian(fixed=kernel == "gauss1")
        else:
            theta, bad = self.theta(kernel), self.collapsed(kernel)
            if bad.any():
                theta = torch.where(bad[:, None, None], self.products, theta)
            theta = centre(theta)
            scale = theta.diagonal(dim1=1, dim2=2).clamp_min(1e-30).rsqrt()
            k = (theta[:, n:] * scale[:, None] * scale[:, n:, None]).clamp_(0, 1).square_()
        return k[:, :, n:].to(self.dtype).contiguous(), k[:, :, :n].amax(2).to(self.dtype)

    def gaussian(self, fixed: bool) -> Tensor:
        """Herding's kernel of rows of length one; radius 1, or the least distance of two labels."""
        norm = self.products.diagonal(dim1=1, dim2=2).clamp_min(1e-12).rsqrt()
        d2 = (2 - 2 * self.products * norm[:, None] * norm[:, :, None]).clamp_min_(0)
        n = self.n
        if fixed:
            return torch.exp(-d2[:, n:])
        own = d2[:, :n, :n] + 9 * torch.eye(n, device=DEVICE, dtype=F64)
        own = torch.where(own > 1e-8, own, torch.inf)
        return torch.exp(-d2[:, n:] / own.amin((1, 2))[:, None, None])

    def chance(self, kernel: str) -> Tensor:
        """Φ(−g/σ) of U under the linearised posterior; ridge of the misfit under the squared loss."""
        return self.once(("chance", kernel), lambda: self.posterior_chance(kernel))

    def posterior_chance(self, kernel: str) -> Tensor:
        theta, n = self.theta(kernel), self.n
        LL, LU, own = theta[:, :n, :n], theta[:, :n, n:], theta.diagonal(dim1=1, dim2=2)[:, n:]
        ridge = 1e-6 * LL.diagonal(dim1=1, dim2=2).mean(1)
        if self.cell.loss == "ce":
            top = self.f_L.softmax(2).amax(2)
            noise = ridge[:, None] + 1 / (top * (1 - top)).clamp_min(1e-12)
            half = torch.linalg.solve_triangular(torch.linalg.cholesky(LL + torch.diag_embed(noise)), LU, upper=False)
            var, mean, s2 = own - half.square().sum(1), self.f_U, torch.ones(1, device=DEVICE, dtype=F64)
        else:
            y, eye = self.y_L - 1 / self.C, torch.eye(n, device=DEVICE, dtype=F64)
            ridge = misfit_ridge(LL, y, (self.y_L - self.f_L).square().mean((1, 2)), ridge)
            chol = torch.linalg.cholesky(LL + ridge[:, None, None] * eye)
            half = torch.linalg.solve_triangular(chol, LU, upper=False)
            var = own - half.square().sum(1)
            mean = self.f_U + half.mT @ torch.linalg.solve_triangular(chol, self.y_L - self.f_L, upper=False)
            inverse = torch.cholesky_inverse(chol)
            left_out = (inverse @ y).square() / inverse.diagonal(dim1=1, dim2=2)[:, :, None]
            s2 = 10 * left_out.mean((1, 2))[:, None]
        return 0.5 * torch.erfc(gap(mean) / (2 * s2 * var.clamp_min(1e-30)).sqrt() / math.sqrt(2))

    def weight(self, name: str, kernel: str) -> Tensor:
        """(S, u): a weight by its name; README.md lists them."""
        p, apart = 1 - self.p_U.amax(2), 1 - gap(self.p_U)
        simple = {
            "uni": lambda: torch.ones_like(p),
            "p": lambda: p,
            "gap": lambda: apart,
            "rgap": lambda: apart.clamp_min(0).sqrt(),
            "ent": lambda: torch.special.entr(self.p_U).sum(2),
            "pg": lambda: (p * apart).clamp_min(0).sqrt(),
        }
        if name in simple:
            return simple[name]()
        source = "signs0" if kernel in ("inputs", "gauss", "gauss1") else kernel
        bad, phi = self.collapsed(source)[:, None], self.chance(source)
        if name == "phi":
            return torch.where(bad, p, phi)
        own = apart if name in ("cgap", "cgapk") else p
        mixed = torch.where((own > 0).any(1, keepdim=True), (phi * own.clamp_min(0)).sqrt(), phi)
        if name in ("covk", "cgapk"):
            return mixed
        if name == "covg":
            own = apart
        return torch.where(bad & (own > 0).any(1, keepdim=True), own, mixed)


class DeepAsked(Asked):
    """Networks of two hidden layers; kernels "unitK", "umeanA-B" and "twin" besides."""

    draws = (
        *("signs0", "signs3", "signs4", "mean1-4", "mean5-8", "unit0", "unit1", "unit2", "umean3-6", "umean7-10"),
        *("twin", "trace"),
    )

    def part(self, scale: Tensor) -> Tensor:
        """(δ2·δ2')(h1·h1' + 1) + (δ1·δ1')(x·x' + 1), the output's gradient by h2 being scale (S, H)."""
        h1, h2 = self.hidden
        d2 = (h2 > 0).double() * scale[:, None]
        d1 = (d2 @ self.net[2].double().mT) * (h1 > 0)
        inner = self.once("inner", lambda: torch.bmm(h1, h1.mT).add_(1))
        return torch.bmm(d2, d2.mT).mul_(inner).add_(torch.bmm(d1, d1.mT).mul_(self.products + 1))

    def scale(self, kind: str, draw: int) -> Tensor:
        """Of one output: a contrast of classes ("signs"), or random signs of hidden units ("unit")."""
        V = self.net[4].double()
        if kind == "signs":
            return V @ contrast(self.C, draw)
        g = torch.Generator().manual_seed(1000 + draw)
        signs = torch.randint(0, 2, (V.shape[1],), generator=g) * 2.0 - 1
        return V.square().mean(2).sqrt() * signs.to(DEVICE, F64)

    def tangents(self, kernel: str) -> Tensor:
        V, h2 = self.net[4].double(), self.hidden[1]
        kind = "unit" if kernel.startswith("u") else "signs"
        if kernel == "trace":
            scales = [V[:, :, c] for c in range(self.C)]
        elif kernel == "twin":
            scales = [V.square().mean(2).sqrt()]
        elif "mean" in kernel:
            a, b = map(int, kernel.split("mean")[1].split("-"))
            scales = [self.scale(kind, draw) for draw in range(a, b + 1)]
        else:
            scales = [self.scale(kind, int(kernel.removeprefix(kind)))]
        return sum(self.part(s) for s in scales) / len(scales) + torch.bmm(h2, h2.mT) + 1


def misfit_ridge(LL: Tensor, y: Tensor, residual: Tensor, least: Tensor) -> Tensor:
    """The ridge at which the linearised network misses its labels as much as the network does."""
    eye = torch.eye(LL.shape[1], device=LL.device, dtype=LL.dtype)
    target = torch.minimum(residual, 0.98 * y.square().mean((1, 2))).clamp_min(1e-300)

    def excess(log: Tensor) -> Tensor:
        ridge = log.exp()
        chol = torch.linalg.cholesky(LL + ridge[:, None, None] * eye)
        return (ridge**2 * torch.cholesky_solve(y, chol).square().mean((1, 2)) / target).log()

    low, high = least.log(), least.log() + math.log(1e6)
    below, above = excess(low), excess(high)
    done = below >= 0
    while ((above < 0) & ~done).any():
        move = above < 0
        low, below = torch.where(move, high, low), torch.where(move, above, below)
        high = torch.where(move, high + math.log(100), high)
        above = torch.where(move, excess(high), above)
    found = torch.where(done, low, high)
    for _ in range(60):  # regula falsi, the end that stays halved (Illinois)
        if done.all():
            break
        middle = torch.where(done, found, low - below * (high - low) / (above - below))
        here = excess(middle)
        found = torch.where(done, found, middle)
        done = done | (here.abs() < 1e-3)
        under = here < 0
        low, high = torch.where(under, middle, low), torch.where(under, high, middle)
        below, above = torch.where(under, here, below / 2), torch.where(under, above / 2, here)
    return found.exp()


def gains(k: Tensor, weight: Tensor, covered: Tensor) -> Tensor:
    """(S, u): the weighted coverage that each candidate would add."""
    return torch.bmm(weight[:, None], (k - covered[:, :, None]).clamp_min_(0))[:, 0]


def greedy(k: Tensor, covered: Tensor, weight: Tensor, batch: int) -> Tensor:
    """(S, batch) positions, each the one with the largest gain."""
    weight = weight.to(k)
    rows = torch.arange(len(k), device=k.device)
    taken = torch.zeros_like(covered)
    picks = []
    for _ in range(batch):
        j = gains(k, weight, covered).sub_(taken).argmax(1)
        picks.append(j)
        taken[rows, j] = torch.inf
        covered = torch.maximum(covered, k[rows, j])
    return torch.stack(picks, 1)


def ask(asked: Asked, arm: str, orders: Tensor) -> Tensor:
    """(S, batch) positions in U that an arm picks: kernel:weight, random or margin."""
    batch = asked.cell.per
    if arm == "random":
        return orders[:, :batch]
    if arm == "margin":
        outputs = asked.p_U if asked.cell.loss == "ce" else asked.f_U
        return gap(outputs).argsort(dim=1, stable=True)[:, :batch]
    kernel, weight = arm.split(":")
    return greedy(*asked.coverage(kernel), asked.weight(weight, kernel), batch)
