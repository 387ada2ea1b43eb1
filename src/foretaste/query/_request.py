"""What a strategy that picks by itself is given."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from foretaste.retrain import State
from foretaste.tangent import Inputs, size


@dataclass(frozen=True, eq=False)
class Request:
    """One question: which ``batch_size`` of x_U next? Registered with ``picks=True``, a strategy answers with their
    positions, best first, or with (positions, scores_U). ``generator`` is on the CPU and seeded by the caller."""

    net: nn.Module
    x_L: Inputs | None
    y_L: Any
    x_U: Inputs
    loss: str
    batch_size: int
    generator: torch.Generator
    linearize: Callable[[], State]

    @property
    def U(self) -> int:
        return size(self.x_U)

    @cached_property
    def state(self) -> State:
        """The linearised network; asked for, it costs a pass over the pool, and a kernel when S is."""
        return self.linearize()

    @property
    def made(self) -> State | None:
        """The state, if it was asked for."""
        return self.__dict__.get("state")
