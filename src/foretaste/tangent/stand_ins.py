"""Modules that use several weights in one forward, taken apart: a stand-in for each use of a weight.

A rule (rules.py) needs the input A and the output of one use of a weight. ``nn.MultiheadAttention`` and ``nn.LSTM``
have no module for each of theirs. So in the frozen copy of a network such a module gets a class that computes the same,
and hands each A and output to a stand-in: a module that is in no network and only passes its output on.
``record_pass`` hooks it as it hooks any layer. While no stand-in has a hook, the module's own forward runs.

attention.py and recurrent.py have these classes; ``frozen.TAKEN_APART`` lists them.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def pass_on(a: Tensor, out: Tensor) -> Tensor:
    """The forward of a stand-in."""
    return out


class RowsOf(nn.Module):
    """A Linear layer whose weight and bias are rows of larger parameters, from ``first`` on."""

    def __init__(self, size: int, first: dict[str, int]) -> None:
        super().__init__()
        self.size, self.first = size, first


class Spread(nn.Module):
    """A weight that is repeated for every point."""


def as_stand_in(m: nn.Module, **params: Any) -> nn.Module:
    """``m`` as a stand-in for a use of these parameters, which stay those of the network."""
    for name in ("weight", "bias"):
        m._parameters[name] = params.get(name)
    m.forward = pass_on
    return m.eval()


def linear_stand_in(weight: Any, bias: Any) -> nn.Module:
    """For a weight that is used as a Linear layer uses it."""
    m = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(m)
    m.out_features, m.in_features = weight.shape[0], weight[0].numel()
    return as_stand_in(m, weight=weight, bias=bias)


class TakenApart:
    """A class in the place of a torch module's own. Subclasses have ``fits``, ``make_stand_ins`` and ``compose``."""

    stand_ins: dict[str, nn.Module]
    covered: Sequence[nn.Module]  # other modules whose parameters the stand-ins use

    @staticmethod
    def fits(m: Any) -> bool:
        """Whether it can be done for this module: not if it is pruned or parametrised, and computes its weights."""
        raise NotImplementedError

    def make_stand_ins(self) -> dict[str, nn.Module]:
        raise NotImplementedError

    def compose(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward, in steps that the stand-ins see. None if it cannot be done for this input."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not any(m._forward_hooks for m in self.stand_ins.values()):
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        if not any(p.requires_grad for p in self.parameters()):  # type: ignore[attr-defined]
            made = self.compose(*args, **kwargs)
            return super().forward(*args, **kwargs) if made is None else made  # type: ignore[misc]
        # The network as the user calls it, which rules are compared with: its own forward. The stand-ins see A alone.
        with torch.no_grad():
            self.compose(*args, **kwargs)
        return super().forward(*args, **kwargs)  # type: ignore[misc]


class BilinearParts(TakenApart, nn.Bilinear):
    """x1ᵀ W x2 is a Linear layer on the products of the entries of x1 and x2."""

    @staticmethod
    def fits(m: Any) -> bool:
        return list(m._parameters) == ["weight", "bias"]

    def make_stand_ins(self) -> dict[str, nn.Module]:
        return {"weight": linear_stand_in(self.weight, self.bias)}

    def compose(self, input1: Tensor, input2: Tensor) -> Tensor:
        products = (input1[..., :, None] * input2[..., None, :]).flatten(-2)
        return self.stand_ins["weight"](products, F.linear(products, self.weight.flatten(1), self.bias))
