"""A copy of a network laid out for fast training: channels last, and parameters end to end.

So SGD is a few passes over one vector (9 µs for WRN1 of widen 4 on an H200; torch's fused step, tensor by tensor, takes
22), and all weights go to bfloat16 at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

LOW = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # what autocast takes in bfloat16


@torch.no_grad()
def channels_last(net: nn.Module) -> nn.Module:
    """Weights of 2-d convolutions with the channels last, which lays out everything between them so."""
    for p in net.parameters():
        if p.dim() == 4:
            # Not .contiguous(), which keeps the strides of 1×1 kernels: their outputs would be laid out anew.
            p.data = torch.empty_like(p, memory_format=torch.channels_last).copy_(p)
    return net


@dataclass(frozen=True)
class Flat:
    """Trained parameters θ and their velocities, end to end; of the first, ``low`` is what the network itself uses."""

    params: list[nn.Parameter]
    theta_P: Tensor
    velocity_P: Tensor
    low_Q: Tensor  # the first Q of θ in bfloat16; Q = 0 where all is in the network's own type
    exact: list[Tensor]  # θ, each in the shape of its parameter
    bf16: bool

    def step(self, grads: Sequence[Tensor], lr: Tensor, momentum: Tensor, weight_decay: float) -> None:
        """v ← m v + ∇ + wd θ, θ ← θ − lr v; lr and m are tensors of no dimension."""
        q = len(self.low_Q)
        along = [as_stored(g, p) for g, p in zip(grads, self.params)]
        n = sum(p.dtype == torch.bfloat16 for p in self.params) if q else 0
        self.velocity_P.mul_(momentum)
        for part, some in ((slice(0, q), along[:n]), (slice(q, None), along[n:])):
            if some:
                self.velocity_P[part].add_(torch.cat(some))
        if weight_decay:
            self.velocity_P.add_(self.theta_P, alpha=weight_decay)
        self.theta_P.addcmul_(self.velocity_P, lr, value=-1)
        self.low_Q.copy_(self.theta_P[:q])


@torch.no_grad()
def flatten(net: nn.Module, bf16: bool) -> Flat:
    """Make the trained parameters of ``net`` views of one vector; with ``bf16`` those of LOW of its bfloat16 copy."""
    trained = [p for p in net.parameters() if p.requires_grad]
    others = {id(p) for m in net.modules() if type(m) not in LOW for p in m.parameters(recurse=False)}
    low = [p for p in trained if bf16 and id(p) not in others]
    params = [*low, *(p for p in trained if not bf16 or id(p) in others)]
    theta_P = torch.cat([as_stored(p, p) for p in params])
    low_Q = theta_P[: sum(p.numel() for p in low)].bfloat16()
    exact, at = [], 0
    for k, p in enumerate(params):
        exact.append(theta_P.as_strided(p.shape, p.stride(), at))
        p.data = low_Q.as_strided(p.shape, p.stride(), at) if k < len(low) else exact[-1]
        at += p.numel()
    return Flat(params, theta_P, torch.zeros_like(theta_P), low_Q, exact, bf16)


def as_stored(g: Tensor, p: Tensor) -> Tensor:
    """All values of g in one row, in the order in which p stores its own."""
    if g.stride() != p.stride():
        g = torch.empty_like(p, dtype=g.dtype).copy_(g)
    return g.detach().as_strided((g.numel(),), (1,))
