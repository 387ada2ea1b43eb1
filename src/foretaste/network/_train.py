"""The loop of SGD: minibatches by index from tensors on the device, no host in between."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.sgd import sgd

from foretaste.network._augment import augmented
from foretaste.network._by_hand import SMALL, gradients, is_chain, one_thread
from foretaste.network._pixels import Normalise, prepare
from foretaste.network._reset import frozen
from foretaste.network._schedule import one_cycle
from foretaste.network._targets import Targets

Progress = Callable[[int, int], object]
CHUNK = 512  # points of one forward pass without gradients
REPORTS = 50  # how often a training looks at its loss and reports progress


@dataclass(frozen=True)
class Recipe:
    """Settings of one training, already checked."""

    steps: int
    batch_size: int
    max_lr: float
    weight_decay: float
    augment: str | None
    pad: int
    normalise: Normalise | None
    dtype: torch.dtype

    def feed(self, x: Tensor) -> Tensor:
        return prepare(x, self.dtype, self.normalise)


def train(
    net: nn.Module, x: Tensor, goal: Targets, how: Recipe, order_seed: int, draw_seed: int, progress: Progress | None
) -> float:
    """Run the schedule once with a fresh optimiser; return the mean training loss of the last epoch."""
    params = [p for p in net.parameters() if p.requires_grad]
    momentum_P = [torch.zeros_like(p) for p in params]
    order_SB = batches(len(x), how.batch_size, how.steps, Generator().manual_seed(order_seed)).to(x.device)
    draws = Generator(x.device).manual_seed(draw_seed)
    step = gradients(net, goal, params)
    every = max(1, how.steps // REPORTS)
    epoch = math.ceil(len(x) / how.batch_size)
    losses: deque[Tensor] = deque(maxlen=epoch)
    fused = x.device.type in ("cpu", "cuda")
    train_mode(net)
    small = is_chain(net, params) and how.batch_size * sum(p.numel() for p in params) < SMALL
    with one_thread(small and x.device.type == "cpu"), torch.enable_grad(), deterministic():
        for done, at_B in enumerate(order_SB.unbind(), 1):
            x_B, fit_B = x.index_select(0, at_B), goal.fit_N.index_select(0, at_B)
            if how.augment:
                x_B = augmented(x_B, how.augment, draws, how.pad)
            f_BC, grads = step(how.feed(x_B), fit_B)
            lr, momentum = one_cycle(done - 1, how.steps, how.max_lr)
            with torch.no_grad():
                sgd(
                    params,  # type: ignore[arg-type]
                    grads,
                    momentum_P,  # type: ignore[arg-type]
                    fused=fused,
                    has_sparse_grad=False,
                    weight_decay=how.weight_decay,
                    momentum=momentum,
                    lr=lr,
                    dampening=0.0,
                    nesterov=False,
                    maximize=False,
                )
                if done > how.steps - epoch or done % every == 0:
                    losses.append(goal.of(f_BC, fit_B))
            if done % every == 0 or done == how.steps:
                if not math.isfinite(loss := float(losses[-1])):
                    raise diverged(f"the loss is {loss} at step {done} of {how.steps}", how)
                if progress is not None:
                    progress(done, how.steps)
    return float(torch.stack(list(losses)).mean())


class Diverged(RuntimeError):
    """A training whose loss is no longer a number."""


@contextmanager
def deterministic() -> Iterator[None]:
    """The same weights from the same seed: costs 1 to 3 % of a step."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic
    cudnn.deterministic = True
    try:
        yield
    finally:
        cudnn.deterministic = before


def diverged(what: str, how: Recipe) -> Diverged:
    return Diverged(
        f"training diverged: {what}, with max_lr={how.max_lr:g}; lower it, to max_lr={how.max_lr / 5:g} say. "
        "The network is as it was before"
    )


def batches(n: int, size: int, steps: int, generator: Generator) -> Tensor:
    """(steps, size) positions: permutations of all points end to end, cut into batches of one size.

    An epoch that ends within a batch goes on with the next, so there is no small last batch for BatchNorm to fail on.
    """
    epochs = math.ceil(steps * size / n)
    return torch.cat([torch.randperm(n, generator=generator) for _ in range(epochs)])[: steps * size].view(steps, size)


def train_mode(net: nn.Module) -> None:
    """Frozen modules stay in eval mode: the statistics of a frozen BatchNorm are frozen too."""
    net.train()
    for module in net.modules():
        if frozen(module):
            module.eval()


@torch.no_grad()
def reestimate(net: nn.Module, x: Tensor, how: Recipe, generator: Generator) -> None:
    """Set BatchNorm's running statistics to those of the points themselves, as the trained network sees them."""
    train_mode(net)
    norms = [m for m in net.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    if not norms:
        return
    net.eval()
    momenta = [m.momentum for m in norms]
    for m in norms:
        m.train()
        m.reset_running_stats()
        m.momentum = None  # torch's word for a plain average
    try:
        # Chunks of mixed points: statistics of chunks sorted by class would miss the spread between classes.
        mixed = torch.randperm(len(x), generator=generator).to(x.device)
        for at in mixed.tensor_split(math.ceil(len(x) / CHUNK)):
            net(how.feed(x[at if len(at) > 1 else at.repeat(2)]))
    finally:
        for m, momentum in zip(norms, momenta):
            m.momentum = momentum
