"""Training as a replayed CUDA graph: small networks on small batches spend their time on launches, not on arithmetic.

A copy of the network is trained, with channels last, and its weights are copied back at the end. Whatever fails on the
way, the network itself is unchanged, and the eager loop starts from there. WRN1 on MNIST, batch 32, on an H200: 0.47 ms
a step of widen 4 (eagerly 2.2 to 2.6) and 1.00 of widen 10 (2.4 to 2.7), with residuals and test accuracies of the
eager loop; a recording takes 25 ms.
"""

import copy
import logging
import math
import random
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from foretaste.losses import TrainingTargets
from foretaste.network.layout import FlatParameters, RewrittenOperations, channels_last, flatten_parameters
from foretaste.network.sgd import (
    PROGRESS_REPORTS,
    Gradients,
    TrainingRecipe,
    augment_batch,
    batch_indices,
    deterministic,
    diverged_error,
    find_gradients,
    one_cycle,
    train_eager,
    train_mode,
)

log = logging.getLogger("foretaste")

ONE_STREAM = threading.RLock()  # else a graph would also record what another thread does on the stream
SHORT_TRAINING = 60  # steps; for fewer, recording takes longer than it saves


TapeStep = Callable[[], None]


@dataclass(frozen=True)
class Tape:
    """The batches and rates of all S steps, on the device, and the position of the next step."""

    order_SB: Tensor
    lr_S: Tensor
    momentum_S: Tensor
    losses_S: Tensor  # written by each step
    at: Tensor  # (1,): the step that comes next


def train_fast(net: nn.Module, x: Tensor, goal: TrainingTargets, how: TrainingRecipe) -> float:
    """Train as a CUDA graph where that is possible, else by the eager loop; the log says why."""
    if how.fast != "off" and x.is_cuda and how.steps >= SHORT_TRAINING:
        try:
            return train_by_graph(net, x, goal, how)
        except CannotCaptureError as e:
            log.warning("training runs step by step, because it cannot be a CUDA graph: %s", e)
    return train_eager(net, x, goal, how)


def in_bf16(fast: str, net: nn.Module) -> bool:
    """Whether products are in bfloat16. "auto": if there are convolutions; otherwise launches dominate anyway."""
    return fast == "bf16" or (fast == "auto" and any(isinstance(m, nn.Conv2d) for m in net.modules()))


def train_by_graph(net: nn.Module, x: Tensor, goal: TrainingTargets, how: TrainingRecipe) -> float:
    refuse_capture(net, how.dtype)
    bf16, stream = in_bf16(how.fast, net), stream_of(x.device)
    stream.wait_stream(torch.cuda.current_stream(x.device))
    with (
        ONE_STREAM,
        own_generator(x.device) as draws,
        torch.cuda.device(x.device),
        torch.cuda.stream(stream),
        deterministic(),
    ):
        fresh = draws.get_state()
        for last in (True, False):
            draws.set_state(fresh)
            try:
                twin = TrainingTwin.of(net, x, goal, how, bf16, last)
                graph = record_graph(twin, stream)
                break
            except CannotCaptureError:
                raise
            except Exception as e:  # a graph cannot hold this network; the eager loop can
                if last and "view size" in str(e):
                    continue  # the network calls .view() on a tensor with channels last
                raise CannotCaptureError(f"{type(e).__name__}: {str(e).partition(chr(10))[0]}") from e
        final = twin.run(graph.replay, TAKEN_BY_GRAPH)
        twin.give(net)
    torch.cuda.current_stream(x.device).wait_stream(stream)
    return final


@cache
def stream_of(device: torch.device) -> torch.cuda.Stream:
    """One stream for all trainings: graphs replayed on several streams deadlocked in TF32 kernels."""
    return torch.cuda.Stream(device)


@dataclass(frozen=True, eq=False)
class TrainingTwin:
    """A copy of the network in the fastest layout, with its tape.

    A step reads its batch and its rates from buffers on the device, at a position that is a buffer too. Nothing about
    it changes on the host, so a CUDA graph can hold it. Run without a graph, on any device, it is the same arithmetic;
    tests compare it with the eager loop.
    """

    net: nn.Module
    x: Tensor  # already prepared, unless it is augmented
    goal: TrainingTargets
    how: TrainingRecipe
    flat: FlatParameters
    tape: Tape
    draws: Generator
    gradients: Gradients
    mode: AbstractContextManager[object]

    @classmethod
    def of(
        cls, net: nn.Module, x: Tensor, goal: TrainingTargets, how: TrainingRecipe, bf16: bool, last: bool
    ) -> "TrainingTwin":
        """``last``: channels last."""
        twin = copy.deepcopy(net)
        train_mode(twin)
        flat = flatten_parameters(channels_last(twin) if last else twin, bf16)
        tape = make_tape(len(x), how, x.device)
        if not how.augment:
            x, how = how.feed(x), replace(how, normalise=None)
        elif how.normalise is not None:
            mean, std = (torch.as_tensor(v, dtype=how.dtype, device=x.device) for v in how.normalise)
            how = replace(how, normalise=(mean, std))  # type: ignore[arg-type]
        draws = Generator(x.device).manual_seed(how.draw_seed)
        gradients = find_gradients(Mixed(twin) if bf16 else twin, goal, flat.params)
        return cls(twin, x, goal, how, flat, tape, draws, gradients, RewrittenOperations() if last else nullcontext())

    def step(self) -> None:
        """Take the next step of the tape."""
        t, goal, how = self.tape, self.goal, self.how
        at_B = t.order_SB.index_select(0, t.at)[0]
        x_B, fit_B = self.x.index_select(0, at_B), goal.fit_N.index_select(0, at_B)
        if how.augment:
            x_B = how.feed(augment_batch(x_B, how.augment, self.draws, how.pad))
        with torch.enable_grad(), self.mode:
            f_BC, grads = self.gradients(x_B, fit_B)
        with torch.no_grad():
            lr, momentum = t.lr_S.index_select(0, t.at)[0], t.momentum_S.index_select(0, t.at)[0]
            self.flat.step(grads, lr, momentum, how.weight_decay)
            t.losses_S.index_copy_(0, t.at, goal.of(f_BC, fit_B)[None])
            t.at.add_(1)

    def run(self, step: TapeStep, done: int = 0) -> float:
        """Take all steps after the first ``done``; return what ``train_eager`` does."""
        how, losses_S = self.how, self.tape.losses_S
        every = max(1, how.steps // PROGRESS_REPORTS)
        while done < how.steps:
            to = min(how.steps, done - done % every + every)
            for _ in range(done, to):
                step()
            done = to
            if not math.isfinite(loss := float(losses_S[done - 1])):
                raise diverged_error(f"the loss is {loss} at step {done} of {how.steps}", how)
            if how.progress is not None:
                how.progress(done, how.steps)
        return float(losses_S[-math.ceil(len(self.x) / how.batch_size) :].mean())

    def state(self) -> list[list[Tensor]]:
        """All tensors that a step changes."""
        t, flat = self.tape, self.flat
        return [[flat.theta_P], [flat.velocity_P], [flat.low_Q], [*self.net.buffers()], [t.losses_S], [t.at]]

    @torch.no_grad()
    def give(self, net: nn.Module) -> None:
        """Copy parameters and buffers back to the original network, which is left in train mode."""
        exact = {id(p): theta for p, theta in zip(self.flat.params, self.flat.exact)}
        for mine, its in zip((*net.parameters(), *net.buffers()), (*self.net.parameters(), *self.net.buffers())):
            mine.copy_(exact.get(id(its), its))
        train_mode(net)


def make_tape(n: int, how: TrainingRecipe, device: torch.device) -> Tape:
    """The same batches and schedule as the eager loop has."""
    order_SB = batch_indices(n, how.batch_size, how.steps, Generator().manual_seed(how.order_seed))
    rates_S2 = torch.tensor([one_cycle(s, how.steps, how.max_lr) for s in range(how.steps)], dtype=how.dtype)
    lr_S, momentum_S = (r_S.contiguous().to(device) for r_S in rates_S2.unbind(1))
    losses_S = torch.zeros(how.steps, dtype=how.dtype, device=device)
    return Tape(order_SB.to(device), lr_S, momentum_S, losses_S, torch.zeros(1, dtype=torch.int64, device=device))


class Mixed(nn.Module):
    """A network with products in bfloat16; parameters, updates, statistics and the loss stay in float32."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x_n: Tensor) -> Tensor:
        # No cache: it would reuse the weights of the step before.
        with torch.autocast(x_n.device.type, torch.bfloat16, cache_enabled=False):
            f_nC: Tensor = self.net(x_n)
        return f_nC.float()


# Recording. A graph repeats what one step did on the device. What the host decides anew at each step would be lost
# silently. So the first steps are watched for that, and the graph is compared with a plain step before it is used.

GRAPH_WARM_UP = 2  # plain steps before a capture, in which libraries allocate their workspaces
TAKEN_BY_GRAPH = GRAPH_WARM_UP + 1
GRAPH_TOLERANCE = 0.02  # how far a replayed step may end from a plain one, of the step's own length


class CannotCaptureError(RuntimeError):
    """Why a training cannot be a CUDA graph."""


def refuse_capture(net: nn.Module, dtype: torch.dtype) -> None:
    """Raise for networks whose capture is not even tried."""
    if dtype != torch.float32:
        raise CannotCaptureError(f"the network is of {dtype}; the fused step reads its learning rate in float32")
    if isinstance(net, (nn.parallel.DistributedDataParallel, nn.DataParallel)) or hasattr(net, "_orig_mod"):
        raise CannotCaptureError(f"the network is wrapped in {type(net).__name__}")
    for name, m in net.named_modules():
        if isinstance(m, nn.RNNBase):
            raise CannotCaptureError(f"module {name!r} is recurrent: cuDNN keeps its weights in a layout of its own")
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
            raise CannotCaptureError(f"module {name!r} has hooks, which a graph would not call")
    for name, p in net.named_parameters():
        if p._backward_hooks:
            raise CannotCaptureError(f"parameter {name!r} has a hook, which a graph would not call")


def record_graph(twin: TrainingTwin, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """The graph of a step. Takes TAKEN_BY_GRAPH steps on the way."""
    before = on_the_host(twin.net)
    twin.step()
    with synchronising_raises():
        for _ in range(GRAPH_WARM_UP - 1):
            twin.step()
    if on_the_host(twin.net) != before:
        raise CannotCaptureError("a step draws or counts on the host, which a graph would not repeat")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(twin.draws)
    # thread_local: other threads may use the GPU meanwhile.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        twin.step()
    generators = [twin.draws, torch.cuda.default_generators[stream.device.index]]
    check_graph(twin.step, graph.replay, twin.state(), generators)
    return graph


def check_graph(
    step: TapeStep, replay: TapeStep, state: Sequence[Sequence[Tensor]], generators: Sequence[Generator]
) -> None:
    """Take one step plainly, and from the same place by the graph; raises unless both end at the same place.

    state: groups of tensors (parameters, velocities, ...). Each may differ by a share of its own change.
    """
    before = [[t.detach().clone() for t in group] for group in state]
    drawn = [g.get_state() for g in generators]
    step()
    plain = [[t.detach().clone() for t in group] for group in state]
    with torch.no_grad():
        for group, was in zip(state, before):
            for t, value in zip(group, was):
                t.copy_(value)
    for g, at in zip(generators, drawn):
        g.set_state(at)
    replay()
    for group, was, expected in zip(state, before, plain):
        length, apart = total_distance(expected, was), total_distance(expected, group)
        if not apart <= GRAPH_TOLERANCE * length:  # also if it is NaN
            raise CannotCaptureError(f"a replayed step ends {apart:.1e} from a plain one, which is {length:.1e} long")


@torch.no_grad()
def total_distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """The Euclidean distance of two lists of tensors, each list taken as one vector."""
    squares = [(s.double() - t.double()).square().sum() for s, t in zip(a, b)]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def on_the_host(net: nn.Module) -> list[Any]:
    """The state of the host's generators, and plain values that modules keep."""
    _, drawn, at, *_ = np.random.get_state()  # noqa: NPY002 (what a network might use)
    kept = [{k: v for k, v in vars(m).items() if isinstance(v, (bool, int, float, str))} for m in net.modules()]
    return [torch.default_generator.get_state().tolist(), random.getstate(), list(drawn), at, kept]


@contextmanager
def synchronising_raises() -> Iterator[None]:
    """Raise if the host waits for the device: a capture would fail, and leave generator and allocator in disorder."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it may miss some
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def own_generator(device: torch.device) -> Iterator[Generator]:
    """The device's default generator, on a copy of its state that a failed capture may spoil."""
    g = torch.cuda.default_generators[device.index]
    found = g.graphsafe_get_state()
    g.graphsafe_set_state(found.clone_state())
    try:
        yield g
    finally:
        g.graphsafe_set_state(found)
