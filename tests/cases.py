"""One table of small cases: a network, L, U, W and labels. Networks are float64 and in eval mode."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

import oracles
from foretaste.lookahead import State, linearize
from oracles import X


class Pair(nn.Module):
    """Takes a dict of two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 24), nn.Linear(2, 24), nn.Linear(24, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.out(torch.tanh(self.a(left) + self.b(right)))


def mlp(d: int, C: int) -> nn.Module:
    return nn.Sequential(nn.Linear(d, 40), nn.Tanh(), nn.Linear(40, C))


def conv(C: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 9, C))


@dataclass(frozen=True)
class Case:
    name: str
    make_net: Callable[[], nn.Module]
    draw: Callable[[int], X]  # n -> inputs
    L: int
    U: int
    W: int | None = None  # watched points that are not candidates; None: W = U
    some: int | None = None  # that many of the pool
    output: str | int = "sum"
    regression: bool = False
    C: int = 3

    def __str__(self) -> str:
        return self.name

    @cached_property
    def _made(self) -> dict[str, Any]:
        with torch.random.fork_rng([]):
            torch.manual_seed(sum(map(ord, self.name)))
            made: dict[str, Any] = {"net": self.make_net().double().eval()}
            made |= {"L": self.draw(self.L), "U": self.draw(self.U), "W": self.draw(self.W or 1)}
            made["y_L"] = torch.randn(self.L).double() if self.regression else torch.randint(0, self.C, (self.L,))
            made["y_U"] = torch.randn(self.U).double() if self.regression else torch.randint(0, self.C, (self.U,))
        return made

    def on(self, device: str) -> "Case":
        """A copy of this case elsewhere."""
        made = {k: v for k, v in self._made.items() if k != "gradients"}
        made["net"] = copy.deepcopy(made["net"]).to(device)
        for k in ("L", "U", "W"):
            x = made[k]
            made[k] = {n: t.to(device) for n, t in x.items()} if isinstance(x, Mapping) else x.to(device)
        made |= {k: made[k].to(device) for k in ("y_L", "y_U")}
        moved = replace(self)
        moved.__dict__["_made"] = made
        return moved

    @property
    def net(self) -> nn.Module:
        return self._made["net"]

    @property
    def x_L(self) -> X:
        return self._made["L"]

    @property
    def x_U(self) -> X:
        return self._made["U"]

    @property
    def x_W(self) -> X:
        """The watched inputs; those of ``some`` are by the library's own seed, so they are asked of it."""
        if self.some is not None:
            picked = torch.randperm(self.U, generator=torch.Generator().manual_seed(0))[: self.some].sort().values
            return oracles.at(self.x_U, picked)
        return self.x_U if self.W is None else self._made["W"]

    @property
    def y_L(self) -> Tensor:
        return self._made["y_L"]

    @property
    def y_U(self) -> Tensor:
        return self._made["y_U"]

    @property
    def B(self) -> int:
        return self.C if self.output == "full" else 1

    def label(self, j: int) -> int | float:
        """A label of candidate j, as a user gives it."""
        return self.y_U[j].item()

    def target(self, y: Tensor) -> Tensor:
        """(n, C) float64."""
        return y.double()[:, None] if self.regression else oracles.one_hot(y, self.C)

    def state(self, method: str = "auto", **kwargs: Any) -> State:
        watch = self.some if self.some is not None else None if self.W is None else self.x_W
        kwargs = {"output": self.output, "watch": watch, "method": method} | kwargs
        if self.L == 0:
            return linearize(self.net, None, None, self.x_U, **kwargs)
        return linearize(self.net, self.x_L, self.y_L, self.x_U, **kwargs)

    def f(self, name: str) -> Tensor:
        return oracles.f(self.net, {"L": self.x_L, "U": self.x_U, "W": self.x_W}[name])

    def theta(self, a: X, b: X) -> Tensor:
        return self._gradients(a) @ self._gradients(b).T

    def _gradients(self, x: X) -> Tensor:
        if oracles.count(x) == 0:
            return self._gradients(self.x_U)[:0]
        key = b"".join(v.numpy().tobytes() for v in (x.values() if isinstance(x, Mapping) else [x]))
        kept = self._made.setdefault("gradients", {})
        if key not in kept:
            kept[key] = oracles.gradients(self.net, x, self.output)
        return kept[key]

    def plus(self, labels: Mapping[int, Any] | None = None) -> tuple[X, Tensor]:
        """L+ : L and the candidates j with their labels {j: y}, as (x, targets)."""
        js = list(labels or {})
        y_K = torch.tensor([labels[j] for j in js], dtype=self.y_L.dtype) if labels else self.y_L[:0]
        return oracles.join(self.x_L, oracles.at(self.x_U, js)), self.target(torch.cat([self.y_L, y_K]))

    def retrained(
        self, labels: Mapping[int, Any] | None, ridge: float, on: X | None = None, time: float = math.inf
    ) -> Tensor:
        """Eq. 11 (or 5, at a finite time) on L+, from scratch: outputs on the watched points, or ``on`` others."""
        x, y = self.plus(labels)
        on = self.x_W if on is None else on
        parts = self.theta(on, x), self.theta(x, x), oracles.f(self.net, on), oracles.f(self.net, x), y, ridge
        return oracles.kernel_regression(*parts) if math.isinf(time) else oracles.finite_time(*parts, time)


def vectors(d: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randn(n, d).double()


def images(n: int) -> Tensor:
    return torch.randn(n, 1, 5, 5).double()


def pairs(n: int) -> dict[str, Tensor]:
    return {"left": torch.randn(n, 3).double(), "right": torch.randn(n, 2).double()}


CASES = [
    Case("mlp", lambda: mlp(4, 3), vectors(4), L=7, U=11),
    Case("watched", lambda: mlp(4, 3), vectors(4), L=6, U=9, W=5),
    Case("some", lambda: mlp(4, 3), vectors(4), L=6, U=12, some=5),
    Case("full", lambda: mlp(4, 3), vectors(4), L=5, U=7, output="full"),
    Case("full-watched", lambda: mlp(4, 3), vectors(4), L=4, U=6, W=3, output="full"),
    Case("regression", lambda: mlp(2, 1), vectors(2), L=6, U=10, C=1, regression=True),
    Case("regression-watched", lambda: mlp(2, 1), vectors(2), L=6, U=8, W=4, C=1, regression=True),
    Case("conv-first", lambda: conv(4), images, L=6, U=8, C=4, output="first"),
    Case("dict", Pair, pairs, L=5, U=8, W=4),
    Case("one-label", lambda: mlp(3, 2), vectors(3), L=1, U=6, C=2, output=1),
    Case("empty", lambda: mlp(4, 3), vectors(4), L=0, U=9),
    Case("empty-watched", lambda: mlp(4, 3), vectors(4), L=0, U=9, W=6),
    Case("empty-full", lambda: mlp(4, 3), vectors(4), L=0, U=6, output="full"),
]
