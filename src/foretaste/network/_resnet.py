"""ResNet18 for small images: a 3×3 stem, no max-pool, convolutions without bias."""

from dataclasses import dataclass

from torch import Tensor, nn

from foretaste.network._names import positive


@dataclass(frozen=True)
class ResNetSpec:
    """What a ResNet is made of: ``build()`` makes a new one like it. ``blocks`` counts them stage by stage."""

    channels: int = 3
    classes: int = 10
    width: int = 64
    blocks: tuple[int, ...] = (2, 2, 2, 2)

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", tuple(self.blocks))
        positive(channels=self.channels, classes=self.classes, width=self.width)
        positive(stages=len(self.blocks), **{f"blocks[{i}]": n for i, n in enumerate(self.blocks)})

    def build(self) -> "ResNet":
        return ResNet(self.channels, self.classes, self.width, self.blocks)


class BasicBlock(nn.Module):
    """ReLU(conv-BN-ReLU-conv-BN + shortcut), the shortcut a 1×1 convolution and BN where the shape changes."""

    def __init__(self, fan_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(fan_in, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or fan_in != width:
            self.shortcut = nn.Sequential(nn.Conv2d(fan_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Stages of width w, 2w, 4w, ..., each but the first of stride 2; mean over space; linear."""

    def __init__(
        self, channels: int = 3, classes: int = 10, width: int = 64, blocks: tuple[int, ...] = (2, 2, 2, 2)
    ) -> None:
        super().__init__()
        self.spec = ResNetSpec(channels, classes, width, blocks)
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        stages: list[nn.Module] = []
        at = width
        for stage, count in enumerate(self.spec.blocks):
            for block in range(count):
                stages.append(BasicBlock(at, width << stage, 2 if stage and not block else 1))
                at = width << stage
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(at, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def resnet18(channels: int = 3, classes: int = 10, width: int = 64) -> ResNet:
    """Four stages of two blocks: 11.2 M parameters at width 64."""
    return ResNet(channels, classes, width)
