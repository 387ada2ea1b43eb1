"""``ft.fit``: train a network on the labelled points (§4 of the paper), by one-cycle SGD or by AdamW."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from foretaste.batches import Inputs, batches, count_points, input_parts, join_batches, run_network, take_points
from foretaste.errors import check_known, is_out_of_memory, whole_number
from foretaste.given import (
    ClassName,
    given_tensors,
    holds_classes,
    labels_as_numbers,
    read_labelled,
    resolve_class_names,
)
from foretaste.losses import BinaryOutputs, TrainingTargets, find_loss, training_targets
from foretaste.network.cuda_graph import train_fast
from foretaste.network.models import new_weights
from foretaste.network.sgd import (
    AUGMENTATIONS,
    FORWARD_CHUNK,
    Died,
    PixelNormalise,
    TrainingCallback,
    TrainingProgress,
    TrainingRecipe,
    diverged_error,
    reestimate_batch_norm,
    seeded,
    with_lower_rates,
)
from foretaste.parameters import choose_names

log = logging.getLogger("foretaste")
INTERPOLATES = 0.01  # residual, as a share of the targets' variance, up to which a network has learned its labels
SAME_OUTPUTS = 1e-6  # of the largest output, within which those of a network without live ReLUs are the same

DEFAULT_STEPS, DEFAULT_EPOCHS = 1200, 320
ADAMW_RATE = 1e-3  # of a network with new weights
POOL_EPOCHS = 16  # of L and a pool with soft labels, which need not be interpolated

# (x, targets, pool, graph, seed) → what the pool is worth, and its soft labels; None where it is worth nothing.
SoftLabels = Callable[[Tensor, Tensor, Tensor, Any, int], tuple[Any, Tensor | None]]
_soft_labels: SoftLabels | None = None

TrainedParameters = Callable[[str], bool] | Sequence[str] | str | None


@dataclass(frozen=True)
class Fit:
    """The result of a training, measured on the labelled points in eval mode (except ``loss``).

    Attributes:
        residual: mean of (f − t)² over points and classes, of softmax f for "ce". Look-ahead assumes that it is small.
        loss: the training loss in train mode, mean of the last epoch.
        accuracy: on the labelled points; None for regression.
        seconds: of the whole training.
        steps: SGD steps taken.
        interpolates: whether the residual is at most 0.01 of the variance of the targets (9e-4 for ten classes).
        max_lr: the largest learning rate, as used; None where it is not known.
        retries: how many trainings diverged before this one, each at twice the rate of the next. 0 is usual.
        pool: what the pool is worth by leave-one-out on the labels, with "used": whether the network was trained on its
            soft labels; the keys are those of ``q.info["pool"]``. None where no pool was given.
    """

    residual: float
    loss: float
    accuracy: float | None
    seconds: float
    steps: int
    interpolates: bool
    max_lr: float | None = None
    retries: int = 0
    pool: dict[str, Any] | None = None


def fit(
    net: nn.Module,
    x: Any,
    y: Any,
    *,
    loss: str = "l2",
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int = 32,
    max_lr: float | None = None,
    weight_decay: float = 0.0,
    optimiser: str = "sgd",
    schedule: str | None = None,
    warm_up: float = 0.1,
    clip: float | None = None,
    augment: str | None = None,
    pad: int = 4,
    start: str = "warm",
    statistics: str = "labelled",
    normalise: PixelNormalise | None = None,
    seed: int = 0,
    progress: TrainingProgress | None = None,
    callback: TrainingCallback | None = None,
    fast: str = "auto",
    params: TrainedParameters = None,
    classes: Sequence[ClassName] | None = None,
    pool: Any = None,
    graph: Any = None,
) -> Fit:
    """Train ``net`` in place on x and y, and leave it in eval mode. After an error the network is as it was before.

    A training whose loss becomes NaN or infinite starts again from the same weights at half the learning rate, up to
    three times. The log says so, and ``retries`` of the result.

    Args:
        net: any torch module whose outputs are (N, C), or an object with such ``logits``. Parameters with
            requires_grad=False stay as they are.
        x: (N, ...) labelled points: one tensor of floats, or of uint8 pixels, which are scaled to [0, 1]; a dict of
            tensors, given as ``net(**x)``; or an array, a data frame, a list, a dataset, a DataLoader or what
            ``ft.open`` returns, as in ``ft.query``.
        y: their labels, as in ``ft.query``: (N,) class ids as integers, (N,) names of classes, or float targets:
            (N, C), or (N,) for a network with one output. One output with two classes is trained as (0, f) with "ce"
            and (1 − f, f) with "l2". None: the labels of what ``ft.open`` returns.
        loss: "l2", the squared error averaged over points and classes, towards 0/1 or the floats given; or "ce".
        steps: SGD steps. None (default): 1200 steps or 320 epochs, whichever is more. WideResNets on MNIST need 320
            epochs to interpolate (240 labels, widen 4: residual 1.9e-3 after 200 epochs, 3.6e-4 after 320). With a pool
            that is used, no fewer steps than without it, and at least 16 epochs of x and the pool.
        epochs: the same in passes over x, and the pool where it is used; give steps or epochs.
        batch_size: points in a batch, default 32; all batches have this size, or that of x where x is smaller.
        max_lr: the largest learning rate of the schedule. None: with SGD 0.5 for "l2" and 0.1 for "ce"; with AdamW
            1e-3. Squared loss with many classes needs more: 2 for 77. A pretrained network that is tuned with AdamW
            needs less: 1.5e-4 (docs/fine-tuning.md).
        weight_decay: of the optimiser, 0 (default) or more. SGD adds it to the gradient, AdamW shrinks the weights by
            it apart from the gradient. It is of all trained parameters.
        optimiser: "sgd" (default), with momentum; or "adamw", with β₂ = 0.999 and ε = 1e-8, for transformers.
        schedule: of the learning rate. "one-cycle" (default with "sgd") rises over 30 % of the steps and falls along
            half cosines, and the momentum goes the other way, from 0.95 to 0.85. "linear" (default with "adamw") rises
            over ``warm_up`` of the steps and falls to 0 along lines, with a momentum (β₁ of AdamW) of 0.9.
        warm_up: the share of the steps in which a linear schedule rises; default 0.1.
        clip: the largest norm of a batch's gradient; a longer one is scaled down to it. None (default): no limit.
        augment: of pictures (N, channels, H, W) during training: "flip", "crop" or "crop+flip". None (default): no.
        pad: black pixels around a picture before it is cropped; default 4.
        start: "warm" (default) goes on from the present weights with a fresh optimiser. "cold" draws new weights first.
            Only foretaste's own networks can start cold: weights of any other may be pretrained, and are never drawn
            anew.
        statistics: what BatchNorm uses in eval mode: "labelled" (default), those of x under the trained network, or
            "running", torch's averages over the last batches. The schedule ends near a learning rate of zero, so
            the two agree (residual 2.1e-4 and 2.2e-4, test accuracy 81.6 and 81.1 on 100 MNIST images). In a training
            of only 30 steps "running" is far behind.
        normalise: (mean, std), numbers or one for each channel, applied to x.
        seed: default 0. It governs initialisation, the order of batches, augmentation and dropout. torch's generators
            are untouched.
        progress: called with (steps done, all steps), about fifty times.
        callback: called as often with a ``TrainingReport``: step, steps, epoch, loss, lr. For logs and plots. What it
            raises ends the training, and the network is as it was before.
        fast: on a GPU, "auto" replays the step as a CUDA graph, with products in bfloat16 where the network has
            convolutions (parameters stay in float32; it interpolates as well). "bf16" and "float32" choose the
            precision, "off" launches every operation, as a CPU does. A network that a graph cannot hold is trained
            with "off", and the log says why. With AdamW or ``clip`` there is no graph; "bf16" is then autocast.
        params: which parameters are trained, as in ``ft.query``: "head", "last-block", "lora" or "re:PATTERN"; a
            function of a parameter's name that returns True or False; or names. None (default): those that require
            grad. BatchNorm keeps its statistics where none of its parameters is trained. "last-block" is the last block
            of a backbone with the head.
        classes: the names of the classes, text or whole numbers, in the order of the outputs. Default: if labels are
            text, the sorted labels, provided that there are as many as outputs.
        pool: unlabelled points, as x; of what ``ft.open`` returns, those without a label. The network is trained on
            their soft labels beside x and y: what kernel regression with the pool in its kernel says of them
            (docs/pool.md). Where leave-one-out on y says that the pool does not help, the training is that of x and y
            alone, to the bit. For classes only. None (default): no pool.
        graph: an ``ft.Graph``, how the graph of the pool is made. None (default): of the inputs, as ``normalise``
            leaves them.

    Returns:
        A ``Fit``: residual, loss, accuracy, seconds, steps, whether the network interpolates its labels, the learning
        rate and how often it was halved, and what the pool is worth.

    Raises:
        ValueError: an argument does not fit the network; the message says what to do.
        Diverged: the loss became NaN or infinite at this learning rate and at a half, a quarter and an eighth of it.

    Example:
        >>> import torch
        >>> from foretaste.network import MLP, fit
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> fit(MLP(4, (16,), 2), x, y, steps=200).interpolates
        True
        >>> fit(MLP(4, (16,), 2), x.tolist(), ["cat", "dog", "cat", "dog"], steps=200).accuracy
        1.0
    """
    criterion = find_loss(loss)
    with only_trained(net, params):
        check_trainable(net)
        x, y, classes = read_labelled(net, x, y, classes)
        how = make_recipe(
            net, x, max_lr=default_rate(criterion.max_lr, optimiser) if max_lr is None else max_lr, steps=steps,
            epochs=epochs, batch_size=batch_size, weight_decay=weight_decay, optimiser=optimiser, schedule=schedule,
            warm_up=warm_up, clip=clip, augment=augment, pad=pad, start=start, statistics=statistics,
            normalise=normalise, seed=seed, progress=progress, callback=callback, fast=fast,
        )  # fmt: skip

        def aim() -> Aim:
            return training_goal(net, x, y, loss, how, classes)

        if pool is None:
            return run_training(net, x, how, aim)[0]
        began = time.perf_counter()
        with restored_on_error(net):
            x_U = read_pool_points(net, pool, x, how)
            worth, p_UC = find_soft_labels(x, aim()[1], x_U, how, graph, seed)
        if p_UC is None:
            trained = run_training(net, x, how, aim)[0]
        else:
            x_N = torch.cat([x, x_U])
            if steps is None and epochs is None:
                epochs = POOL_EPOCHS
            size, count = training_length(net, len(x_N), batch_size, steps, epochs)
            soft = replace(how, batch_size=size, steps=max(count, how.steps))
            trained = run_training(net, x, soft, aim, lambda at: (at[0], at[1].with_soft(p_UC)), x_N)[0]
        return replace(trained, seconds=time.perf_counter() - began, pool=worth)


def teach_soft_labels(by: SoftLabels) -> None:
    """Say how ``fit`` finds the soft labels of a pool: that takes kernels, which this folder does not know."""
    global _soft_labels
    _soft_labels = by


def read_pool_points(net: nn.Module, pool: Any, x: Tensor, how: TrainingRecipe) -> Tensor:
    """The unlabelled points. Raises unless they are of the same kind as x."""
    x_U = given_tensors(net, {"pool": pool}, {"pool": "pool"})["pool"].x
    check_one_tensor(x, "pool=")
    if not isinstance(x_U, Tensor) or x_U.shape[1:] != x.shape[1:] or x_U.dtype != x.dtype:
        shape = f"{tuple(x_U.shape)} {x_U.dtype}" if isinstance(x_U, Tensor) else type(x_U).__name__
        raise ValueError(f"pool is {shape}; expected points as those of x, {tuple(x.shape)} {x.dtype}")
    check_training_points(net, x_U, how.augment, how.normalise)
    return x_U


def find_soft_labels(
    x: Tensor, goal: TrainingTargets, x_U: Tensor, how: TrainingRecipe, graph: Any, seed: int
) -> tuple[dict[str, Any], Tensor | None]:
    """What the pool is worth, and its soft labels, (U, C); None where it is worth nothing."""
    if not goal.classes:
        raise ValueError("pool= is for classes, and y holds numbers; leave it out")
    if _soft_labels is None:
        raise RuntimeError("nobody has said how soft labels are found; import foretaste.pick first, or use ft.fit")
    worth, p_UC = _soft_labels(how.feed(x), goal.t_NC, how.feed(x_U), graph, seed)
    return worth.as_dict(), p_UC


def make_recipe(
    net: nn.Module, x: Any, *, steps: int | None, epochs: int | None, batch_size: int, seed: int, **settings: Any
) -> TrainingRecipe:
    """The settings of ``fit``, checked: those that depend on the network or on x here, the others by the recipe."""
    dtype = check_training_points(net, x, settings["augment"], settings["normalise"])
    size, count = training_length(net, count_points(x), batch_size, steps, epochs)
    init_seed, order_seed, draw_seed = draw_seeds(seed, 3)
    return TrainingRecipe(
        steps=count, batch_size=size, dtype=dtype, init_seed=init_seed, order_seed=order_seed, draw_seed=draw_seed,
        **settings,
    )  # fmt: skip


def default_rate(of_sgd: float, optimiser: str) -> float:
    return ADAMW_RATE if optimiser == "adamw" else of_sgd


def draw_seeds(seed: int, n: int) -> list[int]:
    """n seeds of one; the first are the same whatever n is."""
    seed = whole_number("seed", seed, -(2**63))
    return torch.randint(2**62, (n,), generator=Generator().manual_seed(seed)).tolist()


Aim = tuple[nn.Module, TrainingTargets]  # a network and what its outputs are trained towards


def run_training(
    net: nn.Module,
    x: Inputs,
    how: TrainingRecipe,
    aim: Callable[[], Aim],
    beside: Callable[[Aim], Aim] | None = None,
    x_N: Inputs | None = None,
) -> tuple[Fit, nn.Module]:
    """Train by ``how``, at lower learning rates where that diverges, and measure. Returns the network trained, too.

    ``aim`` gives the network with an output for each class and its targets, once the initial weights are there.
    ``beside`` puts something beside it that is trained too. ``x_N``: the points that it is trained on, if not x alone.
    """
    began, device = time.perf_counter(), next(iter(input_parts(x).values())).device
    x_N = x if x_N is None else x_N

    def train(how: TrainingRecipe, may_die: bool) -> tuple[Fit, nn.Module]:
        # Without the user's autocast: look-ahead is of the network as it is in its own precision.
        with restored_on_error(net), seeded(how.init_seed, device), torch.autocast(device.type, enabled=False):
            if how.start == "cold":
                new_weights(net)
            model, goal = aim()
            differed = outputs_differ(labelled_outputs(model, take_points(x, slice(FORWARD_CHUNK)), how))
            trained, towards = (model, goal) if beside is None else beside((model, goal))
            final = train_fast(trained, x_N, towards, how)
            if how.statistics == "labelled":
                reestimate_batch_norm(net, x_N, how, Generator().manual_seed(how.draw_seed))
            trained.eval()
            residual, accuracy = measure_fit(model, x, goal, how, differed, may_die)
            interpolates = residual <= INTERPOLATES * goal.scale()
            return Fit(residual, final, accuracy, 0.0, how.steps, interpolates, how.max_lr), trained

    (done, trained), retries = with_lower_rates(train, how)
    return replace(done, seconds=time.perf_counter() - began, retries=retries), trained


def training_goal(
    net: nn.Module, x: Inputs, y: Any, loss: str, how: TrainingRecipe, classes: Sequence[ClassName] | None
) -> Aim:
    """The network with an output for each class, and its targets: names become class ids, and one output two."""
    outputs, like = count_outputs(net, x, how), next(net.parameters())
    binary = outputs == 1 and holds_classes(y, loss, classes, "y")
    if binary:
        net, outputs = BinaryOutputs(net, loss), 2
    names = resolve_class_names(y, classes, outputs, "y")
    labels = labels_as_numbers(y, names, binary, "y")
    labels = labels if isinstance(y, Tensor) else labels.to(like.device)
    return net, training_targets(labels, loss, count_points(x), outputs, like.device, like.dtype)


@torch.no_grad()
def labelled_outputs(net: nn.Module, x: Inputs, how: TrainingRecipe) -> Tensor:
    """(N, C) outputs, a part of the points at a time."""
    return join_batches([(at, run_network(net, how.feed(part))) for at, part in batches(net, x, FORWARD_CHUNK)])


def outputs_differ(f_NC: Tensor) -> bool:
    """Whether outputs differ between points."""
    return bool((f_NC - f_NC[0]).abs().max() > SAME_OUTPUTS * f_NC.abs().max())


def measure_fit(
    net: nn.Module, x: Inputs, goal: TrainingTargets, how: TrainingRecipe, differed: bool, may_die: bool
) -> tuple[float, float | None]:
    """Mean squared residual, and accuracy if there are classes. Raises ``Diverged`` if nothing is left of the network.

    differed: whether outputs differed between points before the training. Just below a rate that ends in NaN, all ReLUs
    end at 0 for every point, and the outputs are the same everywhere: the network has died. may_die: a warning is
    enough then.
    """
    f_NC = labelled_outputs(net, x, how)
    accuracy = float((f_NC.argmax(1) == goal.t_NC.argmax(1)).double().mean()) if goal.classes else None
    residual = float((goal.criterion.responses(f_NC) - goal.t_NC).square().double().mean())
    if not math.isfinite(residual):
        raise diverged_error(f"the residual is {residual}", how)
    if differed and not outputs_differ(f_NC) and outputs_differ(goal.t_NC):
        error = diverged_error(f"after {how.steps} steps the outputs are the same for all points", how, Died)
        if not may_die:
            raise error
        log.warning("%s; use a wider network, or another seed", error)
    return residual, accuracy


@torch.no_grad()
def count_outputs(net: nn.Module, x: Inputs, how: TrainingRecipe) -> int:
    """The number of outputs C; raises unless the network in eval mode gives finite (n, C)."""
    net.eval()
    n = min(2, count_points(x))
    try:
        f_nC = run_network(net, how.feed(take_points(x, slice(n))))
    except (RuntimeError, IndexError) as e:
        if is_out_of_memory(e):
            raise
        reason = str(e).split("\n")[0]
        shapes = {key: f"{tuple(t.shape)} and {t.dtype}" for key, t in input_parts(x).items()}
        raise ValueError(f"net does not take x, of shape {shapes.get('', shapes)}: {reason}") from e
    if not isinstance(f_nC, Tensor) or f_nC.dim() != 2 or len(f_nC) != n:
        got = tuple(f_nC.shape) if isinstance(f_nC, Tensor) else f"a {type(f_nC).__name__}"
        raise ValueError(f"net returns {got} for {n} points; expected ({n}, C)")
    if not torch.isfinite(f_nC).all():
        raise ValueError("net returns NaN or infinite outputs before training; start from other weights")
    return f_nC.shape[1]


@contextmanager
def only_trained(net: nn.Module, params: TrainedParameters) -> Iterator[None]:
    """Within, the chosen parameters require grad and no others do. None leaves all as they are."""
    if params is None or not isinstance(net, nn.Module):
        yield
        return
    named, chosen = dict(net.named_parameters()), set(choose_names(net, params))
    before = {name: p.requires_grad for name, p in named.items()}
    try:
        for name, p in named.items():
            p.requires_grad_(name in chosen)
        yield
    finally:
        for name, p in named.items():
            p.requires_grad_(before[name])


@contextmanager
def restored_on_error(net: nn.Module) -> Iterator[None]:
    """After an exception or Ctrl-C, restore parameters, buffers and train flags."""
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


# Checks, before anything changes.


def check_trainable(net: nn.Module) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"net is a {type(net).__name__}; expected a torch.nn.Module")
    if not any(p.requires_grad for p in net.parameters()):
        raise ValueError("no parameter of net requires grad, so there is nothing to train")
    kinds = {(p.device, p.dtype) for p in net.parameters()}
    if len(kinds) > 1:
        raise ValueError(f"parameters of net are of several devices or dtypes, {sorted(map(str, kinds))}; use net.to()")
    dtype = next(net.parameters()).dtype
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"net is of {dtype}; training here is in float32 or float64: use net.float()")


def check_training_points(
    net: nn.Module, x: Any, augment: str | None = None, normalise: PixelNormalise | None = None
) -> torch.dtype:
    """The network's dtype. Raises unless x suits the network, and the settings suit x."""
    device, dtype = next((p.device, p.dtype) for p in net.parameters())
    lengths = set[int]()
    for key, t in input_parts(x).items():
        name = f"x[{key!r}]" if key else "x"
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} is a {type(t).__name__}; expected a tensor of all points, or a dict of such")
        if t.dim() < (1 if key else 2) or len(t) == 0:
            raise ValueError(f"{name} has shape {tuple(t.shape)}; expected (N, ...) with at least one labelled point")
        if t.device != device:
            raise ValueError(f"{name} is on {t.device} and the network on {device}; move it with .to({str(device)!r})")
        if t.is_floating_point() and t.dtype != dtype:
            raise ValueError(f"{name} is of {t.dtype} and the network of {dtype}; use {name}.to({dtype})")
        if t.is_floating_point() and not torch.isfinite(t).all():
            raise ValueError(f"{name} has {int((~torch.isfinite(t)).sum())} NaN or infinite values")
        lengths.add(len(t))
    if len(lengths) != 1:
        raise ValueError(f"the tensors of x have {sorted(lengths)} points; expected the same points in each")
    if augment is not None:
        check_known("augment", augment, AUGMENTATIONS)
        check_one_tensor(x, "augment=")
        if x.dim() != 4:
            raise ValueError(f"augment={augment!r} needs images (N, channels, H, W); x has shape {tuple(x.shape)}")
    if normalise is not None:
        check_one_tensor(x, "normalise=")
        check_normalise(normalise, x.shape[1])
    return dtype


def check_one_tensor(x: Any, what: str) -> None:
    """Raise if x is a dict of tensors."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}; {what} needs one tensor of all points")


def check_normalise(normalise: PixelNormalise, channels: int) -> None:
    """Raise unless ``normalise`` is (mean, std > 0), each one number or one for each channel."""
    try:
        mean, std = (torch.as_tensor(v, dtype=torch.float64).flatten() for v in normalise)
        good = not {len(mean), len(std)} - {1, channels} and bool((std > 0).all()) and bool(mean.isfinite().all())
    except (TypeError, ValueError, RuntimeError):
        good = False
    if not good:
        raise ValueError(f"normalise={normalise!r:.100}; expected (mean, std > 0), one number or {channels} each")


def training_length(net: nn.Module, n: int, batch_size: int, steps: int | None, epochs: int | None) -> tuple[int, int]:
    """(points in a batch, steps). A single point is used twice: BatchNorm cannot train on one."""
    batch_size = whole_number("batch_size", batch_size, 1)
    if batch_size == 1 and any(isinstance(m, _BatchNorm) for m in net.modules()):
        raise ValueError("batch_size=1 and net has BatchNorm, which cannot train on one point; use 2 or more")
    size = min(batch_size, max(n, 2))
    if steps is not None and epochs is not None:
        raise ValueError(f"steps={steps} and epochs={epochs} were both given; give one")
    if steps is not None:
        return size, whole_number("steps", steps, 1)
    of_epochs = math.ceil(whole_number("epochs", DEFAULT_EPOCHS if epochs is None else epochs, 1) * n / size)
    return size, max(DEFAULT_STEPS, of_epochs) if epochs is None else of_epochs
