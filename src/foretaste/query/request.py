"""What a strategy that picks by itself is given."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.lookahead import State, linearize, watched_points
from foretaste.tangent import Inputs, Output, Params, check_inputs, count_points, freeze, probe_outputs


@dataclass(frozen=True, eq=False)
class Request:
    """One question: which ``batch_size`` of x_U next? Registered with ``picks=True``, a strategy answers with their
    positions, best first, or with (positions, scores_U).

    ``generator`` is on the CPU and seeded by ``seed``. ``progress(done, total)`` is for work that takes long; where it
    is never called, the picks are counted. ``info`` is the strategy's to fill, and goes into ``q.info``. The other
    settings are those of ``ft.query``, as they came; one that a strategy has no use for changes nothing.
    """

    net: nn.Module
    x_L: Inputs | None
    y_L: Any
    x_U: Inputs
    batch_size: int
    generator: torch.Generator
    loss: str = "l2"
    watch: Inputs | int | None = None
    ridge: float | None = None
    output: Output = "sum"
    method: str = "auto"
    budget: int | str | None = None
    params: Params = None
    precision: str = "auto"
    seed: int = 0
    eager: bool = False  # whether the state's kernel is computed with it
    progress: Callable[[int, int], object] = lambda done, total: None
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def L(self) -> int:
        return 0 if self.x_L is None else count_points(self.x_L)

    @property
    def U(self) -> int:
        return count_points(self.x_U)

    @cached_property
    def C(self) -> int:
        """Outputs of the network, by a few points of the pool: finite, (N, C), and each point's own, or it raises."""
        if self.made is not None:
            return self.made.C
        frozen = freeze(self.net, params=lambda name: True)  # a frozen network has outputs too
        check_inputs(self.x_U, "x_U", frozen.device)
        return probe_outputs(frozen, self.x_U, "x_U")

    @cached_property
    def x_W(self) -> Inputs:
        """The watched points, those of ``state``: x_U itself, the inputs given, or some of x_U by ``seed``."""
        x_W, _ = watched_points(self.watch, self.x_U, self.seed)
        return self.x_U if x_W is None else x_W

    @cached_property
    def state(self) -> State:
        """The linearised network; asked for, it costs a pass over the pool, and a kernel when S is."""
        return linearize(
            self.net, self.x_L, self.y_L, self.x_U, watch=self.watch, output=self.output, ridge=self.ridge,
            method=self.method, loss=self.loss, params=self.params, budget=self.budget,
            precision=self.precision, seed=self.seed, eager=self.eager, classes=self.__dict__.get("C"),
        )  # fmt: skip

    @property
    def made(self) -> State | None:
        """The state, if it was asked for."""
        return self.__dict__.get("state")


# The answer to a query.


@dataclass(frozen=True, eq=False)
class Query:
    """Which points to label, best first.

    indices: int64 positions in x_U, none twice. ids: the caller's, where given. scores: (U,) before the first pick
    (None where a strategy that picks by itself has none). labels: the oracle's answers, in the order of indices.
    seconds: by stage. info: what was used (strategy, select, method, ridge, scale, ...) and the residual of L.
    """

    indices: np.ndarray
    ids: list[Any] | None
    scores: Tensor | None
    labels: list[Any]
    seconds: dict[str, float]
    info: dict[str, Any]

    def __len__(self) -> int:
        return len(self.indices)
