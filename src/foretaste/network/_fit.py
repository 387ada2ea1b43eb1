"""Training on the labelled points (§4): SGD, one cycle, L2 or cross-entropy, warm or cold."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from foretaste.network._checks import check_net, check_points, lengths
from foretaste.network._fast import FAST, train_fast
from foretaste.network._names import known
from foretaste.network._pixels import Normalise
from foretaste.network._reset import reset, seeded
from foretaste.network._targets import Targets, targets
from foretaste.network._train import CHUNK, Progress, Recipe, diverged, reestimate

MAX_LR = {"l2": 0.5, "ce": 0.1}
INTERPOLATES = 0.01


@dataclass(frozen=True)
class Fit:
    """What a training left, measured on the labelled points in eval mode (``loss`` apart).

    residual: mean of (f − t)² over points and classes, of softmax f for CE. Look-ahead assumes that it is small.
    loss: the training loss in train mode, mean of the last epoch.
    accuracy: None for regression.
    interpolates: the residual is at most 0.01 of the variance of the targets: 9e-4 for ten classes.
    """

    residual: float
    loss: float
    accuracy: float | None
    seconds: float
    steps: int
    interpolates: bool


def fit(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    loss: str = "l2",
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int = 32,
    max_lr: float | None = None,
    weight_decay: float = 0.0,
    augment: str | None = None,
    pad: int = 4,
    start: str = "warm",
    statistics: str = "labelled",
    normalise: Normalise | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    fast: str = "auto",
) -> Fit:
    """Train ``net`` in place on x, y and leave it in eval mode; after an error it is as it was.

    loss: "l2", the mean square over batch and classes towards 0/1 or the floats given, or "ce".
    steps or epochs: None is 1200 steps or 320 epochs, whichever is more: what WideResNets on MNIST need to
        interpolate (240 labels, widen 4: residual 1.9e-3 after 200 epochs, 3.6e-4 after 320).
    batch_size: batches run on over the end of an epoch, so all have this size, or that of x where it is smaller.
    max_lr: the top of the one-cycle schedule; None is 0.5 for L2 and 0.1 for CE.
    augment: "flip", "crop" (``pad`` black pixels all round) or "crop+flip".
    start: "warm" goes on from the present weights with a fresh optimiser; "cold" initialises everything anew first.
    statistics: what BatchNorm uses in eval mode: "labelled", those of x under the trained network, or "running",
        torch's averages over the last batches. As the schedule ends near a learning rate of zero the two agree
        (residual 2.1e-4 and 2.2e-4, test accuracy 81.6 and 81.1 on 100 MNIST images); after 30 steps "running" lags
        far behind.
    normalise: (mean, std), numbers or one a channel; uint8 pixels are taken to [0, 1] in any case.
    seed: governs initialisation, order, augmentation and dropout; torch's own generators are left alone.
    progress: called with (steps done, all steps), about fifty times.
    fast: on a GPU, "auto" replays the step as a CUDA graph, with products in bfloat16 where the network has
        convolutions (parameters stay in float32; it interpolates as well); "bf16" and "float32" (as torch is set) say
        which; "off" launches every operation, as a CPU does. A network that a graph cannot hold is trained so too, and
        the log says why.
    """
    began = time.perf_counter()
    known("loss", loss, MAX_LR)
    known("start", start, ("warm", "cold"))
    known("statistics", statistics, ("running", "labelled"))
    known("fast", fast, FAST)
    device, dtype = check_net(net)
    check_points(x, device, dtype, augment, normalise)
    size, count = lengths(net, len(x), batch_size, steps, epochs)
    top = MAX_LR[loss] if max_lr is None else max_lr
    if not (top > 0 and math.isfinite(top)) or not weight_decay >= 0 or pad < 0:
        raise ValueError(
            f"max_lr={top!r}, weight_decay={weight_decay!r}, pad={pad!r}; expected max_lr above 0, the others 0 or more"
        )
    how = Recipe(count, size, float(top), float(weight_decay), augment, pad, normalise, dtype)
    # One seed for each use: the order of batches is then the same for every network and device.
    init_seed, order_seed, draw_seed = torch.randint(2**62, (3,), generator=Generator().manual_seed(seed)).tolist()
    with restored_on_error(net), seeded(init_seed, device):
        if start == "cold":
            reset(net)
        goal = targets(y, loss, len(x), outputs(net, x, how), device, dtype)
        final = train_fast(fast, net, x, goal, how, order_seed, draw_seed, progress)
        if statistics == "labelled":
            reestimate(net, x, how, Generator().manual_seed(draw_seed))
        net.eval()
        residual, accuracy = measure(net, x, goal, how)
        if not math.isfinite(residual):
            raise diverged(f"the residual is {residual}", how)
    seconds = time.perf_counter() - began
    return Fit(residual, final, accuracy, seconds, count, residual <= INTERPOLATES * goal.scale())


@torch.no_grad()
def measure(net: nn.Module, x: Tensor, goal: Targets, how: Recipe) -> tuple[float, float | None]:
    """Mean squared residual, and accuracy if there are classes."""
    f_NC = torch.cat([net(how.feed(part)) for part in x.split(CHUNK)])
    hits = float((f_NC.argmax(1) == goal.t_NC.argmax(1)).double().mean()) if goal.classes else None
    f_NC = f_NC.softmax(1) if goal.loss == "ce" else f_NC
    return float((f_NC - goal.t_NC).square().double().mean()), hits


@torch.no_grad()
def outputs(net: nn.Module, x: Tensor, how: Recipe) -> int:
    """C; raises unless the network in eval mode gives finite (n, C)."""
    net.eval()
    f_nC = net(how.feed(x[:2]))
    if not isinstance(f_nC, Tensor) or f_nC.dim() != 2 or len(f_nC) != len(x[:2]):
        got = tuple(f_nC.shape) if isinstance(f_nC, Tensor) else f"a {type(f_nC).__name__}"
        raise ValueError(f"net returns {got} for {len(x[:2])} points; expected ({len(x[:2])}, C)")
    if not torch.isfinite(f_nC).all():
        raise ValueError('net returns NaN or infinite outputs before training; use start="cold"')
    return f_nC.shape[1]


@contextmanager
def restored_on_error(net: nn.Module) -> Iterator[None]:
    """After an exception or Ctrl-C: parameters, buffers and train flags as they were."""
    tensors = [(t, t.detach().clone()) for t in (*net.parameters(), *net.buffers())]
    flags = [(m, m.training) for m in net.modules()]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for t, before in tensors:
                t.copy_(before)
        for m, training in flags:
            m.training = training
        raise
