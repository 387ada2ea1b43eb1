"""A query's question and answer: ``Request`` is what a strategy that picks by itself is given, ``Query`` the result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.errors import counted
from foretaste.given import ClassName
from foretaste.lookahead import KernelSettings, State, check_points, label_rules, linearise, watched_points
from foretaste.losses import BinaryOutputs
from foretaste.tangent import (
    FrozenNetwork,
    Inputs,
    count_points,
    freeze,
    probe_outputs,
    take_points,
)

REPR_POINTS = 20  # of a batch that ``repr`` shows


def silent(done: int, total: int) -> None:
    """Nobody asked for progress."""


@dataclass(frozen=True, eq=False)
class Request:
    """The question: which ``batch_size`` points of x_U next?

    A function registered with ``ft.register(name, select="own")`` takes a request. It returns the positions of its
    picks, best first, or a tuple (positions, scores), scores of shape (U,).

    Attributes:
        net: the network. A network of one output with two classes comes as one of two outputs
            (``foretaste.lookahead.BinaryOutputs``).
        x_L, y_L: labelled points and their labels; None if there are none. Class names have become class ids.
        x_U: the candidates. Exact copies of labelled points are not among them, unless there is nothing else.
        batch_size: how many to pick, at most ``U``.
        generator: a random generator on the CPU, seeded by ``seed``. Use it, and no other.
        kernel: the settings of the kernel, a ``foretaste.lookahead.KernelSettings``. They can be read from the request
            too: loss, watch, ridge, output, method, budget, params, precision, seed. A strategy may ignore those that
            do not concern it.
        classes: the names of the classes, as given to ``ft.query``.
        eager: whether ``state`` computes its kernel at once.
        progress: ``progress(done, total)``, to be called by a strategy that takes long. If it is never called, picks
            are counted.
        info: a dict that the strategy may fill; it goes into ``q.info``.
        subject, outputs: the frozen network and its number of outputs, where they are known. Use ``frozen`` and ``C``.

    Example:
        >>> import torch, foretaste as ft
        >>> @ft.register("oldest", select="own")
        ... def oldest(request):
        ...     return range(request.batch_size)
        >>> x = torch.randn(10, 2)
        >>> ft.query(torch.nn.Linear(2, 3).eval(), x[:2], [0, 1], x[2:], strategy="oldest", batch_size=3).indices
        array([0, 1, 2])
    """

    net: nn.Module
    x_L: Inputs | None
    y_L: Any
    x_U: Inputs
    batch_size: int
    generator: torch.Generator
    kernel: KernelSettings = field(default_factory=KernelSettings)
    classes: Sequence[ClassName] | None = None
    eager: bool = False
    progress: Callable[[int, int], object] = silent
    info: dict[str, Any] = field(default_factory=dict)
    subject: FrozenNetwork | None = None
    outputs: int | None = None

    loss: ClassVar[property] = property(attrgetter("kernel.loss"))
    watch: ClassVar[property] = property(attrgetter("kernel.watch"))
    ridge: ClassVar[property] = property(attrgetter("kernel.ridge"))
    output: ClassVar[property] = property(attrgetter("kernel.output"))
    method: ClassVar[property] = property(attrgetter("kernel.method"))
    budget: ClassVar[property] = property(attrgetter("kernel.budget"))
    params: ClassVar[property] = property(attrgetter("kernel.params"))
    precision: ClassVar[property] = property(attrgetter("kernel.precision"))
    seed: ClassVar[property] = property(attrgetter("kernel.seed"))

    @property
    def L(self) -> int:
        """The number of labelled points."""
        return 0 if self.x_L is None else count_points(self.x_L)

    @property
    def U(self) -> int:
        """The number of candidates."""
        return count_points(self.x_U)

    @cached_property
    def C(self) -> int:
        """The number of outputs. The first use checks the points and runs three of them, unless that was done."""
        if self.outputs is not None:
            return self.outputs
        check_points(None, self.x_U, None, self.frozen.device)
        C = probe_outputs(self.frozen, self.x_U, "x_U", kernel_follows=self.eager)
        # After the probe: an x_U that the network does not take must not be blamed on x_L.
        check_points(self.x_L, self.x_U, self.kernel.watched_points, self.frozen.device)
        return C

    @cached_property
    def classes_L(self) -> Tensor:
        """(L,): the class id of each labelled point; of soft labels the likeliest."""
        device = self.frozen.device
        binary = isinstance(self.net, BinaryOutputs)
        return label_rules(self.y_L, self.C, self.loss, device, device, binary=binary).targets(self.y_L).argmax(1)

    @cached_property
    def frozen(self) -> FrozenNetwork:
        """The network, checked and copied once. With all its parameters: one without trainable ones has outputs too."""
        return self.subject or freeze(self.net, params=lambda name: True)

    @property
    def given_net(self) -> nn.Module:
        """The network as it was given to ``ft.query``, also if it has one output and two classes."""
        return self.net.net if isinstance(self.net, BinaryOutputs) else self.net

    @cached_property
    def x_W(self) -> Inputs:
        """The watched points: x_U itself, the inputs given, or some points of x_U."""
        x_W, _ = watched_points(self.kernel, self.x_U)
        return self.x_U if x_W is None else x_W

    @cached_property
    def state(self) -> State:
        """The linearised network. Its first use costs a pass over the pool, and a kernel when S is needed."""
        C, kernel = self.C, self.kernel
        frozen = freeze(self.frozen, output=kernel.output, params=kernel.params)
        # A strategy that picks by itself counts its own work.
        progress = self.progress if self.eager and self.progress is not silent else None
        return linearise(frozen, C, self.x_L, self.y_L, self.x_U, kernel, self.classes, self.eager, progress)

    @property
    def made(self) -> State | None:
        """The state if the strategy has used it, else None."""
        return self.__dict__.get("state")

    def for_workers(self, labels: bool) -> "Request":
        """The same question, which another process can be asked: no progress, no generator; with or without labels."""
        x_L, y_L, classes = (self.x_L, self.y_L, self.classes) if labels else (None, None, None)
        plain = Request(self.net, x_L, y_L, self.x_U, self.batch_size, torch.Generator(), self.kernel, classes)
        return replace(plain, eager=self.eager, subject=self.frozen, outputs=self.C)

    def restrict_to(self, positions_u: Tensor) -> "Request":
        """The same question about some candidates only. The network is not copied again."""
        x_u, subject = take_points(self.x_U, positions_u), vars(self).get("frozen", self.subject)
        return replace(self, x_U=x_u, batch_size=min(self.batch_size, len(positions_u)), subject=subject)


@dataclass(frozen=True, eq=False)
class Query:
    """The answer of ``ft.query``: which points to label, best first. ``len(q)`` is their number.

    Attributes:
        indices: int64 array (n,) of positions in x_U, none twice.
        ids: the ids of these points: the caller's, or else the index of a data frame, or those of ``ft.open``.
            Positions, where there are none.
        scores: (U,) float64 tensor, the score of every candidate before the first pick; higher = label sooner. −inf for
            copies of labelled points, and for what is not on a shortlist. None if the strategy has no scores.
        labels: what the oracle said, in the order of ``indices``; empty without an oracle.
        seconds: time of each stage: "outputs", "kernel", "score", "select", "total".
        info: what was used: "strategy", "select", "options", "loss", "seed", "ridge" and "scale" (None if no kernel was
            needed); with a state also "method", "output", "watched", "residual_L" and "precision"; "classes" if classes
            have names, "binary" if one output tells two classes apart, and what the strategy adds. A streamed cover has
            "shortlist", "sample", "batch_value" and "rows_read" besides (docs/scaling.md). Where "method" is
            "shortlist", "shortlist" is how many candidates were looked at. "not_dense": why a query that began dense is
            not.
    """

    indices: np.ndarray
    ids: list[Any]
    scores: Tensor | None
    labels: list[Any]
    seconds: dict[str, float]
    info: dict[str, Any]

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        points = list(self.ids)
        name = "indices" if points == self.indices.tolist() else "ids"
        more = ", ..." if len(points) > REPR_POINTS else ""
        first = ", ".join(map(repr, points[:REPR_POINTS]))
        how = f"{self.info.get('strategy')!r}, select={self.info.get('select')!r}"
        return f"Query({counted(len(self), 'point')} by {how}: {name}=[{first}{more}])"
