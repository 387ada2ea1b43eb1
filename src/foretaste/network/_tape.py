"""One SGD step that reads its batch and its rates from buffers on the device, by a counter that is there too.

Nothing of it changes from step to step, so a CUDA graph can hold it (``_graph``). Run plainly, on any device, it is the
same arithmetic: tests hold it against the eager loop of ``_train``.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor, nn

from foretaste.network._augment import augmented
from foretaste.network._by_hand import gradients
from foretaste.network._layout import Flat
from foretaste.network._rewritten import Rewritten
from foretaste.network._schedule import one_cycle
from foretaste.network._targets import Targets
from foretaste.network._train import Recipe, batches

Step = Callable[[], None]


@dataclass(frozen=True)
class Tape:
    """S steps of batches of B, and how far they are."""

    order_SB: Tensor
    lr_S: Tensor
    momentum_S: Tensor
    losses_S: Tensor  # written as they are done
    at: Tensor  # (1,): the step that comes next


def tape(n: int, how: Recipe, order_seed: int, device: torch.device) -> Tape:
    """The order of batches and the schedule that the eager loop takes with the same seed."""
    order_SB = batches(n, how.batch_size, how.steps, Generator().manual_seed(order_seed))
    rates_S2 = torch.tensor([one_cycle(s, how.steps, how.max_lr) for s in range(how.steps)], dtype=how.dtype)
    lr_S, momentum_S = (r_S.contiguous().to(device) for r_S in rates_S2.unbind(1))
    losses_S = torch.zeros(how.steps, dtype=how.dtype, device=device)
    return Tape(order_SB.to(device), lr_S, momentum_S, losses_S, torch.zeros(1, dtype=torch.int64, device=device))


def fed(x: Tensor, how: Recipe) -> tuple[Tensor, Recipe]:
    """Points that are the same each time they are shown are made ready once; for others the numbers are at hand."""
    if not how.augment:
        return how.feed(x), replace(how, normalise=None)
    if how.normalise is None:
        return x, how
    mean, std = (torch.as_tensor(v, dtype=how.dtype, device=x.device) for v in how.normalise)
    return x, replace(how, normalise=(mean, std))  # type: ignore[arg-type]


def stepper(
    net: nn.Module, x: Tensor, goal: Targets, how: Recipe, t: Tape, flat: Flat, draws: Generator, last: bool
) -> Step:
    """The next step of ``t``, whatever it is. net: of ``flatten``; x, how: of ``fed``; last: its channels are."""
    gradient = gradients(Mixed(net) if flat.bf16 else net, goal, flat.params)
    mode: AbstractContextManager[object] = Rewritten() if last else nullcontext()

    def step() -> None:
        at_B = t.order_SB.index_select(0, t.at)[0]
        x_B, fit_B = x.index_select(0, at_B), goal.fit_N.index_select(0, at_B)
        if how.augment:
            x_B = how.feed(augmented(x_B, how.augment, draws, how.pad))
        with torch.enable_grad(), mode:
            f_BC, grads = gradient(x_B, fit_B)
        with torch.no_grad():
            lr, momentum = t.lr_S.index_select(0, t.at)[0], t.momentum_S.index_select(0, t.at)[0]
            flat.step(grads, lr, momentum, how.weight_decay)
            t.losses_S.index_copy_(0, t.at, goal.of(f_BC, fit_B)[None])
            t.at.add_(1)

    return step


class Mixed(nn.Module):
    """A network whose products are in bfloat16: parameters, their steps, statistics and the loss stay in float32."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x_n: Tensor) -> Tensor:
        # Without the cache: it would keep weights of one step for the next.
        with torch.autocast(x_n.device.type, torch.bfloat16, cache_enabled=False):
            f_nC: Tensor = self.net(x_n)
        return f_nC.float()
