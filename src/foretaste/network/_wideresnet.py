"""The paper's WideResNets (§4): pre-activation blocks, one to three stages, a widening factor k.

The paper calls a network of the first stage only "1-layer", of the first two "2-layer". With k = 10 and one block a
stage these have 1.44 M and 7.18 M parameters (one channel, ten classes). Every convolution has a bias.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from foretaste.network._names import positive


@dataclass(frozen=True)
class WideResNetSpec:
    """What a WideResNet is made of: ``build()`` makes a new one like it."""

    layers: int = 1
    blocks: int = 1
    widen: int = 10
    channels: int = 1
    classes: int = 10

    def __post_init__(self) -> None:
        positive(blocks=self.blocks, widen=self.widen, channels=self.channels, classes=self.classes)
        if self.layers not in (1, 2, 3):
            raise ValueError(f"layers is {self.layers!r}; a WideResNet has 1, 2 or 3 stages")

    def build(self) -> "WideResNet":
        return WideResNet(self.layers, self.blocks, self.widen, self.channels, self.classes)


class PreactivationBlock(nn.Module):
    """BN-ReLU-conv-BN-ReLU-conv, plus the raw input: through a 1×1 convolution where the shape changes."""

    def __init__(self, fan_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(fan_in),
            nn.ReLU(),
            nn.Conv2d(fan_in, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, padding=1),
        )
        changes = stride != 1 or fan_in != width
        self.shortcut = nn.Conv2d(fan_in, width, 1, stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.shortcut(x)


class WideResNet(nn.Module):
    """A 3×3 stem to 16k channels; stages of 32k, 64k, 128k, the first of stride 1; BN-ReLU, mean over space, linear."""

    def __init__(self, layers: int = 1, blocks: int = 1, widen: int = 10, channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.spec = WideResNetSpec(layers, blocks, widen, channels, classes)
        width = 16 * widen
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        stages: list[nn.Module] = []
        for stage in range(layers):
            for block in range(blocks):
                stages.append(PreactivationBlock(width, 32 * widen << stage, 2 if stage and not block else 1))
                width = 32 * widen << stage
        self.stages = nn.Sequential(*stages)
        self.tail = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.tail(self.stages(self.stem(x))).mean((2, 3)))
