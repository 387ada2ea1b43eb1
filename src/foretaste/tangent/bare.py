"""Parameters that a forward uses itself, without a module: by F.linear, @, einsum, +, * or expand.

``BareUses`` watches the torch functions that a pass calls. A use of such a parameter gets a stand-in (stand_ins.py): a
module that passes the result on, and that a rule serves as it serves a layer. A parameter is known by its memory, so
that a detached copy and a view of all of it (``w.T``, ``w[None]``) are known too.

A use of another kind has no stand-in. Then the rule of that parameter misses a part of its gradient, the checks find
that (rule_checks.py), and torch.func takes over.
"""

import operator
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from foretaste.tangent.stand_ins import as_stand_in, linear_stand_in

MATMUL = {torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__, Tensor.__rmatmul__, operator.matmul}
ADD = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}
MULTIPLY = {torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__}
EXPAND = {Tensor.expand, Tensor.expand_as, Tensor.repeat}


class Spreading(nn.Module):
    """A weight that is added to something, multiplied with it (``times``), or repeated. Broadcast as torch does it."""

    axis = 0  # of the points, in the output

    def __init__(self, shape: tuple[int, ...], times: bool) -> None:
        super().__init__()
        self.shape, self.times = shape, times


class Contraction(nn.Module):
    """``torch.einsum(f"{a},{w}->{out}", A, weight)``."""

    axis = 0  # of the points, in A and in the output

    def __init__(self, a: str, w: str, out: str) -> None:
        super().__init__()
        self.a, self.w, self.out = a, w, out


class BareUses(TorchFunctionMode):
    """Finds the uses of some parameters while it is active, and hands each to its stand-in."""

    def __init__(self, params: Iterable[nn.Parameter], made: dict[Any, nn.Module] | None = None) -> None:
        """made: stand-ins by kind of use. None: they are made here, as uses are found."""
        super().__init__()
        self.params = {p.data_ptr(): p for p in params}
        self.finding, self.made = made is None, {} if made is None else made

    def find(self, t: Any) -> tuple[nn.Parameter, bool] | None:
        """The parameter of which ``t`` is a view, and whether it is transposed. None if it is not all of one."""
        if not isinstance(t, Tensor) or t.numel() == 0:
            return None
        p = self.params.get(t.data_ptr())
        if p is None or t.numel() != p.numel() or t.dtype != p.dtype:
            return None
        if t.is_contiguous():
            return p, False
        return (p, True) if t.dim() == 2 and t.T.is_contiguous() else None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not isinstance(out, Tensor) or not (given := [*args, *(kwargs or {}).values()]):
            return out
        if func is torch.einsum and isinstance(given[1], list | tuple):
            given = [given[0], *given[1]]
        if not any(isinstance(t, Tensor) and t.data_ptr() in self.params for t in given if isinstance(t, Tensor)):
            return out
        return self.hand_on(func, given, kwargs or {}, out)

    def hand_on(self, func: Any, given: list[Any], kwargs: dict[str, Any], out: Tensor) -> Tensor:
        if func is F.linear:
            w, b = self.find(given[1]), self.find(given[2]) if len(given) > 2 else None
            if w is not None and given[1].dim() == 2 and w[0].dim() == 2:
                bias = b[0] if b is not None else None
                if w[1]:
                    out = self.contraction(w[0], given[0], "io", out)
                    return out if bias is None else self.spreading(bias, given[2], out, out, False)
                return self.linear(w[0], bias, given[0], out)
            return out if b is None else self.spreading(b[0], given[2], out, out, False)
        if func in MATMUL and len(given) == 2:
            a, t = (given[1], given[0]) if func is Tensor.__rmatmul__ else given
            w = self.find(t)
            if w is None or w[0].dim() != 2 or t.dim() != 2 or a.dim() < 2 or self.find(a):
                return out
            if w[1]:  # x @ w.T
                return self.linear(w[0], None, a, out)
            return self.contraction(w[0], a, "io", out)
        if func is torch.einsum and len(given) == 3:
            return self.einsum(given, out)
        if (func in ADD or func in MULTIPLY) and len(given) == 2 and not kwargs:
            first, second = given
            w = self.find(second)
            a, t = (first, second) if w is not None else (second, first)
            w = w or self.find(first)
            if w is None or w[1] or not isinstance(a, Tensor) or self.find(a):
                return out
            return self.spreading(w[0], t, a.expand_as(out) if func in MULTIPLY else out, out, func in MULTIPLY)
        if func in EXPAND and (w := self.find(given[0])) is not None and not w[1]:
            return self.spreading(w[0], given[0], out, out, False)
        return out

    def linear(self, p: nn.Parameter, bias: nn.Parameter | None, a: Tensor, out: Tensor) -> Tensor:
        return self.use(("linear", id(p), id(bias)), lambda: linear_stand_in(p, bias), a, out)

    def contraction(self, p: nn.Parameter, a: Tensor, w: str, out: Tensor) -> Tensor:
        """A (..., i) times a weight (i, o)."""
        rest = "abcdefgh"[: a.dim() - 1]
        return self.use(("einsum", id(p), a.dim()), partial(contracted, p, rest + w[0], w, rest + w[1]), a, out)

    def einsum(self, given: list[Any], out: Tensor) -> Tensor:
        equation = given[0].replace(" ", "") if isinstance(given[0], str) else ""
        if "->" not in equation or "." in equation:
            return out
        (first, second), to = equation.split("->")[0].split(","), equation.split("->")[1]
        terms = [(first, given[1], second, given[2]), (second, given[2], first, given[1])]
        for a_sub, a, w_sub, t in terms:
            w = self.find(t)
            if w is None or w[0].dim() != t.dim() or self.find(a):
                continue
            w_sub = w_sub[::-1] if w[1] else w_sub
            if set(w_sub) <= {*a_sub, *to} and all(len(set(s)) == len(s) for s in (a_sub, w_sub, to)):
                key = "einsum", id(w[0]), equation
                return self.use(key, partial(contracted, w[0], a_sub, w_sub, to), a, out)
        return out

    def spreading(self, p: nn.Parameter, t: Tensor, a: Tensor, out: Tensor, times: bool) -> Tensor:
        shape = (1,) * (out.dim() - t.dim()) + tuple(t.shape)
        if len(shape) != out.dim():
            return out
        key = "spread", id(p), shape, times
        return self.use(key, lambda: as_stand_in(Spreading(shape, times), weight=p), a, out)

    def use(self, key: Any, make: Callable[[], nn.Module], a: Tensor, out: Tensor) -> Tensor:
        if self.finding and key not in self.made:
            self.made[key] = made = make()
            made.bare_use = key
        return self.made[key](a, out) if key in self.made else out


def watch_bare(modules: Iterable[nn.Module]) -> BareUses | nullcontext[None]:
    """Active during a pass that records ``modules``, if some of them stand for bare uses."""
    made = {m.bare_use: m for m in modules if hasattr(m, "bare_use")}
    params = [p for m in made.values() for p in m.parameters()]
    return BareUses(params, made) if made else nullcontext()


def places_points(m: nn.Module, axis: int) -> bool:
    """Whether the points can be in this dimension of A and of the output. Tells the rule of a bare use."""
    if isinstance(m, Spreading):
        m.axis = axis
        return m.shape[axis] == 1
    if isinstance(m, Contraction):
        m.axis = axis
        return axis < len(m.out) and m.a[axis] == m.out[axis] and m.a[axis] not in m.w
    return True


def contracted(p: nn.Parameter, a: str, w: str, out: str) -> nn.Module:
    return as_stand_in(Contraction(a, w, out), weight=p)


def spread_rows(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    """G, or G times A, summed over the dimensions along which the weight is repeated."""
    g = g * a if m.times else g
    shape = m.shape[: m.axis] + m.shape[m.axis + 1 :]
    where = [d + 1 for d, size in enumerate(shape) if size == 1]
    rows = g.sum(where) if where else g
    return rows.reshape(len(g), *(m.weight.shape or (1,)))[:, at].flatten(1)


def contracted_rows(m: Any, name: str, a: Tensor, g: Tensor, at: slice) -> Tensor:
    """Σ over all that the weight does not have, for each point."""
    point = m.a[m.axis]
    subs = {k: point + s.replace(point, "") for k, s in (("a", m.a), ("g", m.out))}
    cut = m.w[0]
    a, g = (
        t.narrow(s.index(cut), at.start, at.stop - at.start) if cut in s else t
        for t, s in ((a, subs["a"]), (g, subs["g"]))
    )
    return torch.einsum(f"{subs['a']},{subs['g']}->{point}{m.w}", a, g).flatten(1)
