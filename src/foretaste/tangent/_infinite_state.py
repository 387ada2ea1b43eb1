"""What passes from layer to layer of an infinitely wide network: a Signal beforehand, a Covariance for each tile."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from foretaste.tangent._infinite_maps import same_pixel


@dataclass(frozen=True)
class Signal:
    """What is known of activations before any number is computed."""

    width: int  # channels: of the input, or of the finite network whose limit this is
    space: tuple[int, ...]  # pixels; () once flattened or pooled
    gaussian: bool = False  # Gaussian with independent channels: a nonlinearity may follow
    fresh: bool = False  # of zero mean whatever entered the branch: may be added to it
    pooled: bool = False  # pooling was passed: pixels meet other pixels, so full covariances are needed
    bent: bool = False  # and a nonlinearity after it: also those of each point with itself
    cells: int = 1  # the most pixels anywhere


@dataclass(frozen=True)
class Covariance:
    """A tile of n × m pairs. ``own_n`` and ``own_m`` are second moments of each point with itself.

    (n, m, *S), or (n, m, *S, *S) where ``full``; (n, *S), or (n, *S, *S) where ``own_full``.
    """

    nngp: Tensor
    ntk: Tensor | None  # None: not followed, or zero, as it is at the input
    own_n: Tensor
    own_m: Tensor
    signal: Signal
    full: bool
    own_full: bool
    tangent: bool  # follow the NTK
    standard: bool  # the parametrisation

    def variances(self) -> tuple[Tensor, Tensor]:
        if not self.own_full:
            return self.own_n, self.own_m
        d = len(self.signal.space)
        return same_pixel(self.own_n, d), same_pixel(self.own_m, d)


class Layer(Protocol):
    """``shape`` carries a Signal through and raises where no closed form exists; ``apply`` maps a tile."""

    def shape(self, s: Signal) -> Signal: ...
    def apply(self, k: Covariance) -> Covariance: ...
