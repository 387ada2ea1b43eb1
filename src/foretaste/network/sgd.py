"""The loop of SGD: minibatches by index from tensors on the device, no host in between."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.sgd import sgd

from foretaste.losses import TrainingTargets
from foretaste.network.mlp_gradients import SMALL_MLP, is_plain_mlp, mlp_gradients, one_thread

# The one-cycle schedule: the learning rate up and down once, the momentum down and up.


WARM_UP_SHARE = 0.3  # of all steps
LOW_MOMENTUM, HIGH_MOMENTUM = 0.85, 0.95
FIRST_SHARE, LAST_SHARE = 1 / 25, 1 / 250_000  # of the largest learning rate


def one_cycle(step: int, steps: int, max_lr: float) -> tuple[float, float]:
    """(learning rate, momentum) of a step; what torch's OneCycleLR gives, without its 20 µs a step.

    Both go along half cosines: over the first 30 % of the steps the learning rate rises from max_lr / 25 and the
    momentum falls from 0.95; then the learning rate falls to nearly nothing and the momentum returns.
    """
    top, end = WARM_UP_SHARE * steps - 1, steps - 1
    if step <= top:
        part = step / top
        return _cosine(FIRST_SHARE, 1.0, part) * max_lr, _cosine(HIGH_MOMENTUM, LOW_MOMENTUM, part)
    part = (step - top) / (end - top)
    return _cosine(1.0, LAST_SHARE, part) * max_lr, _cosine(LOW_MOMENTUM, HIGH_MOMENTUM, part)


def _cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * part))


# Random flips and crops of a batch at once.


AUGMENTATIONS = ("flip", "crop", "crop+flip")


def augment_batch(x: Tensor, how: str, generator: Generator, pad: int = 4) -> Tensor:
    """The images (n, channels, H, W), each cropped and flipped by its own draw; ``generator`` is on their device."""
    for step in how.split("+"):
        x = flip_batch(x, generator) if step == "flip" else crop_batch(x, generator, pad)
    return x


def flip_batch(x: Tensor, generator: Generator) -> Tensor:
    """Each image mirrored left to right with chance 1/2."""
    mirror = torch.rand(len(x), 1, 1, 1, generator=generator, device=x.device) < 0.5
    return torch.where(mirror, x.flip(-1), x)


def crop_batch(x: Tensor, generator: Generator, pad: int = 4) -> Tensor:
    """A window of the original size at a random place of each image padded with ``pad`` zeros (black) all round."""
    n, channels, height, width = x.shape
    down, right = torch.randint(0, 2 * pad + 1, (2, n, 1), generator=generator, device=x.device)
    rows = down + torch.arange(height, device=x.device)
    columns = right + torch.arange(width, device=x.device)
    points = torch.arange(n, device=x.device).view(n, 1, 1, 1)
    planes = torch.arange(channels, device=x.device).view(1, channels, 1, 1)
    return F.pad(x, (pad,) * 4)[points, planes, rows[:, None, :, None], columns[:, None, None, :]]


# Bytes to what a network is fed.


PixelNormalise = tuple[float | Sequence[float], float | Sequence[float]]


def prepare(x: Tensor, dtype: torch.dtype = torch.float32, normalise: PixelNormalise | None = None) -> Tensor:
    """uint8 pixels as numbers in [0, 1]; then (x − mean) / std if asked, of one number or one for each channel.

    Floats are not scaled; anything else (token ids) is left alone.
    """
    if x.dtype == torch.uint8:
        x = x.to(dtype) / 255
    if normalise is None:
        return x
    mean, std = (torch.as_tensor(v, dtype=dtype, device=x.device).flatten() for v in normalise)
    shape = (-1,) + (1,) * (x.dim() - 2)  # (channels, 1, 1) beside (n, channels, H, W)
    return (x - mean.view(shape)) / std.view(shape)


# A cold start, and the random numbers that govern a training.


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """The default generators seeded within, and as they were found afterwards: for initialisation and dropout."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        # torch.manual_seed would seed every device there is, and only one is restored.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def is_frozen(module: nn.Module) -> bool:
    """Whether it has parameters of its own and none of them is trained."""
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(p.requires_grad for p in own)


def reset(net: nn.Module) -> None:
    """Initialise every parameter and buffer anew, by each module's ``reset_parameters``.

    Inner modules come first, as they did when the network was made. Frozen parameters, and the buffers beside them,
    are kept: a pretrained body under a trained head is no part of the training. Buffers of a module that has no
    parameters and no ``reset_parameters`` are constants, and kept too.
    """
    order = [(name, m) for name, m in reversed(list(net.named_modules())) if not is_frozen(m)]
    for name, module in order:  # first the errors: half a reset helps nobody
        if next(module.parameters(recurse=False), None) is not None and _reset_method(module) is None:
            label = f"module {name!r} ({type(module).__name__})" if name else f"the network ({type(module).__name__})"
            raise ValueError(
                f"a cold start cannot initialise {label}: it has parameters of its own and no reset_parameters(); "
                'give it one, or use start="warm" on a network you made anew'
            )
    kept = [(p, p.detach().clone()) for p in net.parameters() if not p.requires_grad]
    for _, module in order:
        if (again := _reset_method(module)) is not None:
            again()
    with torch.no_grad():
        for p, value in kept:
            p.copy_(value)


def _reset_method(module: nn.Module) -> Callable[[], None] | None:
    """Its ``reset_parameters``; torch's MultiheadAttention and Transformer spell it with an underscore."""
    for name in ("reset_parameters", "_reset_parameters"):
        if callable(method := getattr(module, name, None)):
            return method
    return None


# The loop of SGD: minibatches by index from tensors on the device, no host in between.


TrainingProgress = Callable[[int, int], object]
FORWARD_CHUNK = 512  # points of one forward pass without gradients
PROGRESS_REPORTS = 50  # how often a training looks at its loss and reports progress


@dataclass(frozen=True)
class TrainingRecipe:
    """Settings of one training, already checked."""

    steps: int
    batch_size: int
    max_lr: float
    weight_decay: float
    augment: str | None
    pad: int
    normalise: PixelNormalise | None
    dtype: torch.dtype

    def feed(self, x: Tensor) -> Tensor:
        return prepare(x, self.dtype, self.normalise)


def train_eager(
    net: nn.Module,
    x: Tensor,
    goal: TrainingTargets,
    how: TrainingRecipe,
    order_seed: int,
    draw_seed: int,
    progress: TrainingProgress | None,
) -> float:
    """Run the schedule once with a fresh optimiser; return the mean training loss of the last epoch."""
    params = [p for p in net.parameters() if p.requires_grad]
    momentum_P = [torch.zeros_like(p) for p in params]
    order_SB = batch_indices(len(x), how.batch_size, how.steps, Generator().manual_seed(order_seed)).to(x.device)
    draws = Generator(x.device).manual_seed(draw_seed)
    step = mlp_gradients(net, goal, params)
    every = max(1, how.steps // PROGRESS_REPORTS)
    epoch = math.ceil(len(x) / how.batch_size)
    losses: deque[Tensor] = deque(maxlen=epoch)
    fused = x.device.type in ("cpu", "cuda")
    train_mode(net)
    small = is_plain_mlp(net, params) and how.batch_size * sum(p.numel() for p in params) < SMALL_MLP
    with one_thread(small and x.device.type == "cpu"), torch.enable_grad(), deterministic():
        for done, at_B in enumerate(order_SB.unbind(), 1):
            x_B, fit_B = x.index_select(0, at_B), goal.fit_N.index_select(0, at_B)
            if how.augment:
                x_B = augment_batch(x_B, how.augment, draws, how.pad)
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
                    raise check_diverged(f"the loss is {loss} at step {done} of {how.steps}", how)
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


def check_diverged(what: str, how: TrainingRecipe) -> Diverged:
    return Diverged(
        f"training diverged: {what}, with max_lr={how.max_lr:g}; lower it, to max_lr={how.max_lr / 5:g} say. "
        "The network is as it was before"
    )


def batch_indices(n: int, size: int, steps: int, generator: Generator) -> Tensor:
    """(steps, size) positions: permutations of all points end to end, cut into batches of one size.

    An epoch that ends within a batch goes on with the next, so there is no small last batch for BatchNorm to fail on.
    """
    epochs = math.ceil(steps * size / n)
    return torch.cat([torch.randperm(n, generator=generator) for _ in range(epochs)])[: steps * size].view(steps, size)


def train_mode(net: nn.Module) -> None:
    """Frozen modules stay in eval mode: the statistics of a frozen BatchNorm are frozen too."""
    net.train()
    for module in net.modules():
        if is_frozen(module):
            module.eval()


@torch.no_grad()
def reestimate_batch_norm(net: nn.Module, x: Tensor, how: TrainingRecipe, generator: Generator) -> None:
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
        for at in mixed.tensor_split(math.ceil(len(x) / FORWARD_CHUNK)):
            net(how.feed(x[at if len(at) > 1 else at.repeat(2)]))
    finally:
        for m, momentum in zip(norms, momenta):
            m.momentum = momentum
