"""The memory layout of fast training on a GPU: channels last, and all parameters in one vector.

SGD is then a few passes over one vector (9 µs for WRN1 of widen 4 on an H200; torch's fused step, tensor by tensor,
takes 22), and all weights go to bfloat16 at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

LOW_PRECISION = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # what autocast takes in bfloat16


@torch.no_grad()
def channels_last(net: nn.Module) -> nn.Module:
    """Store the weights of 2-d convolutions with channels last; activations between them follow."""
    for p in net.parameters():
        if p.dim() == 4:
            # Not .contiguous(): it keeps the strides of 1×1 kernels, and their outputs would be copied.
            p.data = torch.empty_like(p, memory_format=torch.channels_last).copy_(p)
    return net


@dataclass(frozen=True)
class FlatParameters:
    """All trained parameters θ in one vector, with their velocities and a bfloat16 copy of the first Q."""

    params: list[nn.Parameter]
    theta_P: Tensor
    velocity_P: Tensor
    low_Q: Tensor  # the first Q of θ in bfloat16, which the network uses; Q = 0 without bfloat16
    exact: list[Tensor]  # θ, each in the shape of its parameter

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
def flatten_parameters(net: nn.Module, bf16: bool) -> FlatParameters:
    """Make the trained parameters of ``net`` views of one vector; with ``bf16``, those of products of its low copy."""
    trained = [p for p in net.parameters() if p.requires_grad]
    others = {id(p) for m in net.modules() if type(m) not in LOW_PRECISION for p in m.parameters(recurse=False)}
    low = [p for p in trained if bf16 and id(p) not in others]
    params = [*low, *(p for p in trained if not bf16 or id(p) in others)]
    theta_P = torch.cat([as_stored(p, p) for p in params])
    low_Q = theta_P[: sum(p.numel() for p in low)].bfloat16()
    exact, at = [], 0
    for k, p in enumerate(params):
        exact.append(theta_P.as_strided(p.shape, p.stride(), at))
        p.data = low_Q.as_strided(p.shape, p.stride(), at) if k < len(low) else exact[-1]
        at += p.numel()
    return FlatParameters(params, theta_P, torch.zeros_like(theta_P), low_Q, exact)


def as_stored(g: Tensor, p: Tensor) -> Tensor:
    """All values of g in one row, in the order in which p stores its own."""
    if g.stride() != p.stride():
        g = torch.empty_like(p, dtype=g.dtype).copy_(g)
    return g.detach().as_strided((g.numel(),), (1,))


# Operations that torch is slow at in training with channels last, computed in another way with the same values.
# Times are of (32, 128, 28, 28) in bfloat16 on an H200, where a step of WRN1 (widen 4, batch 32) took 653 µs before.


FEW_VALUES = 32  # values of a patch


class RewrittenOperations(TorchFunctionMode):
    """Inside this mode, 2-d convolutions and the mean over pixels take a faster way with the same result."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[int, torch.dtype], Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.conv2d and not kwargs and len(args) == 7 and args[0].dim() == 4:
            x, weight, bias, *how = args
            if is_first_convolution(x, weight, *how):
                return first_convolution(x, weight, bias, *how[:2])
            if bias is not None:
                return BiasedConvolution.apply(torch.conv2d(x, weight, None, *how), bias, self)
        if (
            func is torch.Tensor.mean
            and not kwargs
            and len(args) == 2
            and args[1] == (2, 3)
            and is_channels_last(args[0])
        ):
            return PixelMean.apply(args[0], self)
        return func(*args, **(kwargs or {}))

    def ones(self, n: int, of: Tensor) -> Tensor:
        if (n, of.dtype) not in self.kept:
            self.kept[n, of.dtype] = torch.ones(n, dtype=of.dtype, device=of.device)
        return self.kept[n, of.dtype]


def is_channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def by_pixel(x: Tensor) -> Tensor:
    """(n, H·W, C) of (n, C, H, W): no copy where channels are last."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)


class BiasedConvolution(torch.autograd.Function):
    """h + b, b one for each channel; its gradient by a product with ones: 7 µs, where torch's sum takes 28."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, b_C: Tensor, how: RewrittenOperations) -> Tensor:
        ctx.of, ctx.how = b_C.dtype, how
        return h + b_C.to(h.dtype).view(-1, 1, 1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None, None]:
        if not ctx.needs_input_grad[1]:
            return g, None, None
        if not is_channels_last(g):
            return g, g.sum((0, 2, 3)).to(ctx.of), None
        rows_MC = by_pixel(g).flatten(0, 1)
        return g, (rows_MC.t() @ ctx.how.ones(len(rows_MC), g)).to(ctx.of), None


class PixelMean(torch.autograd.Function):
    """Mean over the last two of (n, C, H, W) with channels last, by a product with ones: 4 µs, where torch takes 12."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: RewrittenOperations) -> Tensor:
        ctx.shape = x.shape
        rows = by_pixel(x)
        return (how.ones(rows.shape[1], x) @ rows).div_(rows.shape[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        share = (g / (ctx.shape[2] * ctx.shape[3]))[:, :, None, None]
        return share.expand(ctx.shape).contiguous(memory_format=torch.channels_last), None


def is_first_convolution(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> bool:
    """A convolution of the images themselves: they have so few channels that cuDNN pads them with zeros."""
    plain = isinstance(padding, tuple) and dilation == (1, 1) and groups == 1
    return plain and not x.requires_grad and weight[0].numel() < FEW_VALUES and weight.requires_grad


def first_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
    """One matrix product: patches padded with ones, times kernels padded with the bias, which gets its gradient too."""
    size, (high, wide) = weight[0].numel(), weight.shape[2:]
    k = -(-(size + 1) // 16) * 16  # tensor cores take rows of sixteen
    with torch.no_grad():
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        padded = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
        patches = padded.unfold(2, high, stride[0]).unfold(3, wide, stride[1]).permute(0, 2, 3, 1, 4, 5)
        n, down, right = patches.shape[:3]
        rows = x.new_ones(n, down, right, k)
        rows[..., :size].unflatten(3, patches.shape[3:]).copy_(patches)
    kernels = [weight.flatten(1)] if bias is None else [weight.flatten(1), bias[:, None]]
    kernels_OK = F.pad(torch.cat(kernels, 1), (0, k - size - (bias is not None)))
    return (rows.view(-1, k) @ kernels_OK.t()).view(n, down, right, -1).permute(0, 3, 1, 2)
