"""The baseline: points at random."""

import torch
from torch import Tensor

from foretaste.acquire import register
from foretaste.query._request import Request


@register("random", picks=True)
def random(request: Request) -> tuple[Tensor, Tensor]:
    """The ``batch_size`` largest of U uniform draws; costs nothing."""
    draws_U = torch.rand(request.U, generator=request.generator, dtype=torch.float64)
    return draws_U.topk(request.batch_size).indices, draws_U
