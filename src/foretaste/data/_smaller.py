"""Pictures made smaller, for a quick try."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from foretaste.data._images import Images

CHUNK = 4096


def smaller(data: Images, pixels: int) -> Images:
    """Every picture averaged down to ``pixels`` a side at most; what is no picture, or small enough, stays."""
    if data.x.dtype != torch.uint8 or data.x.dim() != 4 or max(data.x.shape[2:]) <= pixels:
        return data
    size = [min(side, pixels) for side in data.x.shape[2:]]
    x = torch.cat(
        [F.interpolate(part.float(), size, mode="area").round().to(torch.uint8) for part in data.x.split(CHUNK)]
    )
    was = "×".join(map(str, data.x.shape[2:]))
    return replace(data, x=x, notes=(*data.notes, f"pictures averaged from {was} down to {'×'.join(map(str, size))}"))
