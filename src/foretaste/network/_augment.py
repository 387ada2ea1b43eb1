"""Random flips and crops of a batch at once."""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

AUGMENTATIONS = ("flip", "crop", "crop+flip")


def augmented(x: Tensor, how: str, generator: Generator, pad: int = 4) -> Tensor:
    """The images (n, channels, H, W), each cropped and flipped by its own draw; ``generator`` is on their device."""
    for step in how.split("+"):
        x = flipped(x, generator) if step == "flip" else cropped(x, generator, pad)
    return x


def flipped(x: Tensor, generator: Generator) -> Tensor:
    """Each image mirrored left to right with chance 1/2."""
    mirror = torch.rand(len(x), 1, 1, 1, generator=generator, device=x.device) < 0.5
    return torch.where(mirror, x.flip(-1), x)


def cropped(x: Tensor, generator: Generator, pad: int = 4) -> Tensor:
    """A window of the original size at a random place of each image padded with ``pad`` zeros (black) all round."""
    n, channels, height, width = x.shape
    down, right = torch.randint(0, 2 * pad + 1, (2, n, 1), generator=generator, device=x.device)
    rows = down + torch.arange(height, device=x.device)
    columns = right + torch.arange(width, device=x.device)
    points = torch.arange(n, device=x.device).view(n, 1, 1, 1)
    planes = torch.arange(channels, device=x.device).view(1, channels, 1, 1)
    return F.pad(x, (pad,) * 4)[points, planes, rows[:, None, :, None], columns[:, None, None, :]]
