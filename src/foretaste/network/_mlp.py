"""A multilayer perceptron on flattened inputs."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from foretaste.network._names import known, positive


class Erf(nn.Module):
    """Here because its infinite-width kernel has a closed form."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.erf(x)


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "erf": Erf, "tanh": nn.Tanh, "gelu": nn.GELU}


@dataclass(frozen=True)
class MLPSpec:
    """What an MLP is made of: ``build()`` makes a new one like it."""

    inputs: int
    hidden: tuple[int, ...] = (256, 256)
    classes: int = 10
    activation: str = "relu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))  # a configuration file has lists
        positive(inputs=self.inputs, classes=self.classes, **{f"hidden[{i}]": h for i, h in enumerate(self.hidden)})
        known("activation", self.activation, ACTIVATIONS)

    def build(self) -> "MLP":
        return MLP(self.inputs, self.hidden, self.classes, self.activation)


class MLP(nn.Module):
    """Linear layers with an activation between them; ``hidden=()`` is a linear model."""

    def __init__(
        self, inputs: int, hidden: tuple[int, ...] = (256, 256), classes: int = 10, activation: str = "relu"
    ) -> None:
        super().__init__()
        self.spec = MLPSpec(inputs, hidden, classes, activation)
        widths = (inputs, *self.spec.hidden)
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), ACTIVATIONS[activation]()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))
