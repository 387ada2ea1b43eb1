"""CUDA graphs: a step recorded once and replayed, without the host in between.

A recording holds what one pass did. What the host decides anew each time would be lost in silence, so the pass is
watched for that, and the recording is held against a plain step before it is used.
"""

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

Step = Callable[[], None]
WARM_UP = 2  # plain steps before a capture: libraries make their handles and workspaces then
TAKEN = WARM_UP + 1
AGREES = 0.02  # how far a replayed step may end from a plain one, of the step's own length


class CannotCaptureError(RuntimeError):
    """Why a training cannot be a CUDA graph."""


def refuse(net: nn.Module, dtype: torch.dtype) -> None:
    """Raise where a capture is not even tried."""
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


def record(
    step: Step, net: nn.Module, state: Sequence[Sequence[Tensor]], draws: Generator, stream: torch.cuda.Stream
) -> torch.cuda.CUDAGraph:
    """The graph of a step, which acts on ``state``; TAKEN steps are taken on the way."""
    before = on_the_host(net)
    step()
    with synchronising_raises():
        for _ in range(WARM_UP - 1):
            step()
    if on_the_host(net) != before:
        raise CannotCaptureError("a step draws or counts on the host, which a graph would not repeat")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(draws)
    # thread_local: what other threads of the process do on the GPU meanwhile is theirs.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step()
    check(step, graph.replay, state, [draws, torch.cuda.default_generators[stream.device.index]])
    return graph


def check(step: Step, replay: Step, state: Sequence[Sequence[Tensor]], generators: Sequence[Generator]) -> None:
    """Take one step plainly and again, from the same place, by the graph; raises unless they end together.

    state: groups of tensors (parameters, velocities, ...), each held to the length of its own change.
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
        length, apart = distance(expected, was), distance(expected, group)
        if not apart <= AGREES * length:  # also if it is NaN
            raise CannotCaptureError(f"a replayed step ends {apart:.1e} from a plain one, which is {length:.1e} long")


@torch.no_grad()
def distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    squares = [(s.double() - t.double()).square().sum() for s, t in zip(a, b)]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def on_the_host(net: nn.Module) -> list[Any]:
    """States of the host's generators, and the plain values that modules keep."""
    _, drawn, at, *_ = np.random.get_state()  # noqa: NPY002 (what a network might use)
    kept = [{k: v for k, v in vars(m).items() if isinstance(v, (bool, int, float, str))} for m in net.modules()]
    return [torch.default_generator.get_state().tolist(), random.getstate(), list(drawn), at, kept]


@contextmanager
def synchronising_raises() -> Iterator[None]:
    """A capture that fails leaves the device's generator and allocator in disorder: better to fail before it."""
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
    """The device's default generator on a copy of its state, which a graph may register and a failure spoil."""
    g = torch.cuda.default_generators[device.index]
    found = g.graphsafe_get_state()
    g.graphsafe_set_state(found.clone_state())
    try:
        yield g
    finally:
        g.graphsafe_set_state(found)
