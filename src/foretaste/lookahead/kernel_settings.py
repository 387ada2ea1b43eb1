"""``KernelSettings``: how a network is linearised. One object for a query, a learner, a study and a command."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from foretaste.errors import Faults, did_you_mean, real_number, whole_number
from foretaste.lookahead.graph import Graph, read_pool
from foretaste.losses import LOSSES
from foretaste.tangent import PRECISIONS, Inputs, Output, Params, read_output, resolve_budget

METHODS = ("auto", "dense", "direct")  # of a state
QUERY_METHODS = (*METHODS, "streamed")
PRECISION_CHOICES = ("auto", *PRECISIONS, "float64")
WATCH_BY = ("random", "contested")


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelSettings:
    """The settings of Θ and of the state on it, as ``ft.linearize`` explains them. Wrong ones raise, all at once.

    output: "auto" is the strategy's own (``for_strategy``).
    watch: None, points, or a number of candidates.
    theta_scale: None is 1; a learner under cross-entropy then fits it.
    pool: the graph along which Θ is bent, or "auto"; None: the pool is left out.
    """

    output: Output = "sum"
    params: Params = None
    ridge: float | str | None = None
    precision: str = "auto"
    budget: int | str | None = None
    method: str = "auto"
    watch: Inputs | int | None = None
    watch_by: str = "random"
    loss: str = "l2"
    time: float = math.inf
    theta_scale: float | None = None
    seed: int = 0
    pool: Graph | None = None

    def __post_init__(self) -> None:
        if isinstance(self.watch, bool):
            raise TypeError("watch is a bool; expected None, inputs, or a number of pool points")
        faults = Faults()
        for name, word, words, listed in (
            ("method", self.method, QUERY_METHODS, "Known"),
            ("loss", self.loss, LOSSES, "The network was trained with one of"),
            ("precision", self.precision, PRECISION_CHOICES, "Known"),
            ("watch_by", self.watch_by, WATCH_BY, "Known"),
        ):
            if not isinstance(word, str) or word not in words:
                shown = repr(word) if isinstance(word, str) else f"a {type(word).__name__}"
                faults.add(f"unknown {name} {shown}{did_you_mean(word, words, listed)}")
        if self.ridge is not None and not self.misfit:
            with faults.ending(', "misfit", or None for 1e-6 of the diagonal'):
                real_number("ridge", self.ridge, 0)
        with faults.ending(", or inf for convergence"):
            real_number("time", self.time, 0, above=True, finite=False)
        if self.theta_scale is not None:
            with faults:
                real_number("theta_scale", self.theta_scale, 0, above=True)
        if self.budget is not None:
            with faults:
                resolve_budget(self.budget)
        if not (isinstance(self.output, str) and self.output == "auto"):
            with faults:
                read_output(self.output)
        if isinstance(self.watch, int):
            with faults.ending(", or None to watch the whole pool"):
                whole_number("watch", self.watch, 1)
        with faults:
            whole_number("seed", self.seed, -(2**63))
        if self.pool is not None:
            with faults:
                object.__setattr__(self, "pool", read_pool(self.pool))
        if not faults:
            self._check_together(faults)
        faults.raise_all()

    def _check_together(self, faults: Faults) -> None:
        if self.method in ("dense", "streamed") and not math.isinf(self.time):
            faults.add(f'time={self.time:g} is solved directly; use method="auto" or "direct"')
        if self.pool is not None and (self.method == "direct" or not math.isinf(self.time)):
            faults.add('method="direct" and finite time are of the network; with pool= use method="auto"')
        if not self.quadratic and (self.method == "direct" or not math.isinf(self.time)):
            faults.add(
                'method="direct" and finite time are Eq. 5 and 11, of the squared loss; with another loss use "dense"'
            )

    @property
    def quadratic(self) -> bool:
        """Whether the network was trained with the squared loss."""
        return LOSSES[self.loss].quadratic

    @property
    def misfit(self) -> bool:
        """Whether λ is to carry the misfit of the network."""
        return isinstance(self.ridge, str) and self.ridge == "misfit"

    @property
    def given_ridge(self) -> float | None:
        """λ if it is a number, else None."""
        return None if isinstance(self.ridge, str) else self.ridge

    @property
    def watched_points(self) -> Inputs | None:
        """The watched points, where they are given as points."""
        return self.watch if isinstance(self.watch, Tensor | Mapping) else None

    def for_strategy(self, own: "KernelSettings") -> "KernelSettings":
        """These settings, with those of a strategy where they leave the choice to it."""
        output = own.output if isinstance(self.output, str) and self.output == "auto" else self.output
        ridge = own.ridge if self.ridge is None else self.ridge
        return replace(self, output=output, ridge=ridge, watch_by=own.watch_by)
