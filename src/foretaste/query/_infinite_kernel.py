"""The infinite-width kernel between L, W and U, and the options that say which."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.acquire import nearest
from foretaste.tangent import Inputs, counterpart, infinite_ntk
from foretaste.tangent.infinite import PARAMETRISATIONS, Layer

DIAGONAL = 8  # points at a time where only the diagonal is wanted: a call has its price too


@dataclass(frozen=True)
class Infinite:
    """The infinite network.

    spec: layers of ``foretaste.tangent.infinite``, or a network that has a counterpart, for a network that has none.
    parametrisation: "standard" (torch's) or "ntk". W_std, b_std: of every layer, √2 and 0 unless told; layers have
    their own.
    """

    parametrisation: str = "standard"
    W_std: float | None = None
    b_std: float | None = None
    spec: Any = None

    def __post_init__(self) -> None:
        if self.parametrisation not in PARAMETRISATIONS:
            known = nearest(self.parametrisation, PARAMETRISATIONS, "Known")
            raise ValueError(f"unknown parametrisation {self.parametrisation!r}{known}")
        if self.spec is None or isinstance(self.spec, nn.Module):
            return
        if isinstance(self.spec, type) or not hasattr(self.spec, "apply") or not hasattr(self.spec, "shape"):
            raise TypeError(
                f"spec is {self.spec!r}; expected layers of foretaste.tangent.infinite, as Serial(Dense(64), Relu(), "
                "Dense(10)), or a torch network that has a counterpart"
            )
        if self.W_std is not None or self.b_std is not None:
            raise ValueError("W_std and b_std are of a counterpart; the layers of spec have their own, set them there")


def layer_of(net: nn.Module, how: Infinite) -> Layer:
    """The infinite network that is meant; raises, naming the option, where ``net`` has no counterpart."""
    if not isinstance(how.spec, nn.Module | None):
        return how.spec
    scale = {"W_std": how.W_std, "b_std": how.b_std}
    given: dict[str, float] = {k: v for k, v in scale.items() if v is not None}
    try:
        return counterpart(net if how.spec is None else how.spec, **given)
    except (TypeError, ValueError) as e:
        remedy = '; options={"spec": layers} says which infinite network to use' if how.spec is None else ""
        raise type(e)(f"{e}{remedy}") from None


@dataclass(frozen=True)
class Blocks:
    """Θ between L, W and U; WL and diag_U are None for W = U."""

    LL: Tensor
    WL: Tensor | None
    UL: Tensor
    WU: Tensor
    diag_U: Tensor | None


def blocks(
    layer: Layer, x_L: Inputs | None, x_U: Inputs, x_W: Inputs | None, parametrisation: str, budget: int | str | None
) -> Blocks:
    """One run of the kernel, over L and U with themselves (half the work), or L and W with L and U."""
    for name, x in (("x_L", x_L), ("x_U", x_U), ("watch", x_W)):
        if x is not None and not (isinstance(x, Tensor) and x.is_floating_point()):
            what = x.dtype if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise TypeError(f"{name} is {what}; the infinite-width kernel takes floating tensors")

    def theta(x: Tensor, x2: Tensor | None = None) -> Tensor:
        return infinite_ntk(layer, x, x2, parametrisation=parametrisation, budget=budget)

    def after_L(x: Any) -> Tensor:
        return x if x_L is None else torch.cat([x_L, x])  # type: ignore[list-item]

    L = 0 if x_L is None else len(x_L)
    if x_W is None:
        t = theta(after_L(x_U))
        return Blocks(t[:L, :L], None, t[L:, :L], t[L:, L:], None)
    t = theta(after_L(x_W), after_L(x_U))
    diag_U = torch.cat([theta(x_u).diagonal() for x_u in x_U.split(DIAGONAL)])  # type: ignore[union-attr]
    return Blocks(t[:L, :L], t[L:, :L], t[:L, L:].T, t[L:, L:], diag_U)
