"""Training as a replayed CUDA graph: small networks on small batches spend their time on launches, not on arithmetic.

A copy of the network is trained, in channels-last, and its weights are taken over at the end; so whatever fails on the
way, the network itself is as it was and the eager loop begins from there.
"""

import copy
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Generator, Tensor, nn

from foretaste.network._graph import TAKEN, CannotCaptureError, own_generator, record, refuse
from foretaste.network._tape import Step, Tape, fed, stepper, tape, velocities
from foretaste.network._targets import Targets
from foretaste.network._train import REPORTS, Progress, Recipe, diverged, train, train_mode

log = logging.getLogger("foretaste")

FAST = ("auto", "off", "bf16", "float32")
SHORT = 60  # steps under which a capture does not pay
TAIL = 0.15  # of all steps in float32 after bfloat16


def train_fast(
    fast: str,
    net: nn.Module,
    x: Tensor,
    goal: Targets,
    how: Recipe,
    order_seed: int,
    draw_seed: int,
    progress: Progress | None,
) -> float:
    """``train``, as a CUDA graph where that is possible; where it is not, the log says why."""
    if fast != "off" and x.is_cuda and how.steps >= SHORT:
        try:
            return by_graph(fast, net, x, goal, how, order_seed, draw_seed, progress)
        except CannotCaptureError as e:
            log.warning("training runs step by step, for it cannot be a CUDA graph: %s", e)
    return train(net, x, goal, how, order_seed, draw_seed, progress)


def phases(fast: str, net: nn.Module, steps: int) -> list[tuple[bool, int]]:
    """[(in bfloat16, until which step)]."""
    if fast == "auto" and not any(p.dim() > 2 for p in net.parameters()):
        fast = "float32"  # no convolution: launches are all there is to save
    whole = {"float32": [(False, steps)], "bf16": [(True, steps)]}
    return whole.get(fast) or [(True, round((1 - TAIL) * steps)), (False, steps)]


def by_graph(
    fast: str,
    net: nn.Module,
    x: Tensor,
    goal: Targets,
    how: Recipe,
    order_seed: int,
    draw_seed: int,
    progress: Progress | None,
) -> float:
    refuse(net, how.dtype)
    device = x.device
    stream = stream_of(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with own_generator(device), torch.cuda.device(device), torch.cuda.stream(stream), deterministic():
        shown, as_shown = fed(x, how)
        t = tape(len(x), how, order_seed, device)
        draws = Generator(device).manual_seed(draw_seed)
        parts = phases(fast, net, how.steps)
        try:
            twin = channels_last(copy.deepcopy(net))
            train_mode(twin)
            v_P = velocities(twin)
            steps = [stepper(twin, shown, goal, as_shown, t, v_P, draws, bf16) for bf16, _ in parts]
            state: list[list[Tensor]] = [[*twin.parameters()], v_P, [*twin.buffers()], [t.losses_S], [t.at]]
            graphs = record(steps, twin, state, draws, stream)
        except CannotCaptureError:
            raise
        except Exception as e:  # whatever a network does that a graph cannot hold: the eager loop does it, or says more
            raise CannotCaptureError(f"{type(e).__name__}: {str(e).partition(chr(10))[0]}") from e
        done = TAKEN * len(graphs)
        final = run(t, [(g.replay, until) for g, (_, until) in zip(graphs, parts)], len(x), how, progress, done)
        take_over(net, twin)
    torch.cuda.current_stream(device).wait_stream(stream)
    return final


@cache
def stream_of(device: torch.device) -> torch.cuda.Stream:
    """One for all trainings: memory is kept by stream, and graphs replayed on several deadlocked in TF32 kernels."""
    return torch.cuda.Stream(device)


def run(t: Tape, parts: list[tuple[Step, int]], n: int, how: Recipe, progress: Progress | None, done: int = 0) -> float:
    """Take the steps of ``t`` from ``done`` on, each part up to its end; return what ``train`` does."""
    every = max(1, how.steps // REPORTS)
    for step, until in parts:
        while done < until:
            to = min(until, done - done % every + every)
            for _ in range(done, to):
                step()
            done = to
            if done % every and done != how.steps:
                continue
            if not math.isfinite(loss := float(t.losses_S[done - 1])):
                raise diverged(f"the loss is {loss} at step {done} of {how.steps}", how)
            if progress is not None:
                progress(done, how.steps)
    return float(t.losses_S[-math.ceil(n / how.batch_size) :].mean())


@torch.no_grad()
def channels_last(net: nn.Module) -> nn.Module:
    """Weights of 2-d convolutions with the channels last, which lays out everything between them so."""
    for p in net.parameters():
        if p.dim() == 4:
            # Not .contiguous(), which keeps the strides of 1×1 kernels: their outputs would be laid out anew.
            p.data = torch.empty_like(p, memory_format=torch.channels_last).copy_(p)
    return net


@torch.no_grad()
def take_over(net: nn.Module, twin: nn.Module) -> None:
    for mine, its in zip((*net.parameters(), *net.buffers()), (*twin.parameters(), *twin.buffers())):
        mine.copy_(its)
    train_mode(net)


@contextmanager
def deterministic() -> Iterator[None]:
    """The same weights from the same seed."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic
    cudnn.deterministic = True
    try:
        yield
    finally:
        cudnn.deterministic = before
