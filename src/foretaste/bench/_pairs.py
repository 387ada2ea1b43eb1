"""Jacobians recomputed for every pair of blocks, as neural-tangents' batching does: in JAX, else by torch.func.

Nothing of one pair is kept for the next, so that memory stays small: N/b blocks of b points cost N²/(2b²) pairs, each
with the gradients of 2b points. One pair is timed, and the time multiplied by the number of pairs. JAX runs in a
process of its own: what it does to the card and to the host's threads is not to weigh on what is measured after it.
"""

import importlib.util
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from foretaste.network import WideResNet


@dataclass(frozen=True)
class Pairs:
    by: str  # "JAX 0.11" or "torch.func"
    block: int
    seconds: float  # of all pairs, extrapolated
    count: int
    kernel: Tensor  # of the timed pair, (b, b)


def recomputed(net: nn.Module, x: Tensor, block: int) -> Pairs:
    """Θ of N points in pairs of blocks on and under the diagonal, extrapolated from the best of three."""
    block = min(block, len(x) // 2)
    blocks = -(-len(x) // block)
    count = blocks * (blocks + 1) // 2
    if x.is_cuda:
        torch.cuda.empty_cache()  # what torch keeps for itself JAX would lack
    a, b = x[:block], x[block : 2 * block]
    if isinstance(net, WideResNet) and importlib.util.find_spec("jax"):
        with ProcessPoolExecutor(1, get_context("spawn")) as other:
            twin, points = deepcopy(net).cpu(), [t.cpu().numpy() for t in (a, b)]
            by, seconds, kernel = other.submit(by_jax, twin, *points).result()
    else:
        by, pair = "torch.func", in_torch(net)
        seconds, kernel = best(pair, a, b, x.device)
    return Pairs(by, block, seconds * count, count, torch.as_tensor(kernel))


def by_jax(net: WideResNet, a: np.ndarray, b: np.ndarray) -> tuple[str, float, np.ndarray]:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch holds memory beside it
    import jax

    seconds, got = best(in_jax(net, jax), jax.numpy.asarray(a), jax.numpy.asarray(b), torch.device("cpu"))
    return f"JAX {jax.__version__}", seconds, np.array(got)


def best(pair: Callable[[Any, Any], Any], a: Any, b: Any, device: torch.device) -> tuple[float, Any]:
    """Of four: the first compiles."""
    return min((timed(pair, a, b, device) for _ in range(4)), key=lambda t: t[0])


def timed(pair: Callable[[Any, Any], Any], a: Any, b: Any, device: torch.device) -> tuple[float, Any]:
    start = time.perf_counter()
    got = pair(a, b)
    if hasattr(got, "block_until_ready"):
        got.block_until_ready()
    elif device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, got


def in_torch(net: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    params, buffers = {k: p.detach() for k, p in net.named_parameters()}, dict(net.named_buffers())

    def head(params: dict[str, Tensor], one: Tensor) -> Tensor:
        f_C = functional_call(net, {**params, **buffers}, (one[None],))[0]
        return f_C.sum() / len(f_C) ** 0.5

    rows = vmap(grad(head), in_dims=(None, 0))

    def pair(a: Tensor, b: Tensor) -> Tensor:
        of_a, of_b = rows(params, a), rows(params, b)
        return sum((of_a[k].flatten(1) @ of_b[k].flatten(1).T for k in of_a), torch.zeros((), device=a.device))

    return pair


def in_jax(net: WideResNet, jax: Any) -> Callable[[Any, Any], Any]:
    """The same WideResNet with the same weights, in eval mode, jitted."""
    jnp, lax = jax.numpy, jax.lax
    state = {k: jnp.asarray(v.detach().cpu().numpy()) for k, v in net.state_dict().items() if v.is_floating_point()}
    learned = {k for k, _ in net.named_parameters()}
    modules = dict(net.named_modules())

    def conv(p: Any, name: str, x: Any) -> Any:
        m: Any = modules[name]
        pads = [(k, k) for k in m.padding]
        dims = ("NCHW", "OIHW", "NCHW")
        y = lax.conv_general_dilated(x, p[f"{name}.weight"], m.stride, pads, dimension_numbers=dims)
        return y + p[f"{name}.bias"][:, None, None]

    def norm(p: Any, name: str, x: Any) -> Any:
        m: Any = modules[name]
        scale = p[f"{name}.weight"] / jnp.sqrt(p[f"{name}.running_var"] + m.eps)
        return (x - p[f"{name}.running_mean"][:, None, None]) * scale[:, None, None] + p[f"{name}.bias"][:, None, None]

    def head(theta: Any, fixed: Any, one: Any) -> Any:
        p = {**theta, **fixed}
        x = conv(p, "stem", one[None])
        for k in range(len(net.stages)):
            at = f"stages.{k}"
            y = conv(p, f"{at}.body.2", jax.nn.relu(norm(p, f"{at}.body.0", x)))
            y = conv(p, f"{at}.body.5", jax.nn.relu(norm(p, f"{at}.body.3", y)))
            x = y + (conv(p, f"{at}.shortcut", x) if f"{at}.shortcut.weight" in p else x)
        x = jax.nn.relu(norm(p, "tail.0", x)).mean((2, 3))
        f_C = (x @ p["head.weight"].T + p["head.bias"])[0]
        return f_C.sum() / len(f_C) ** 0.5

    theta = {k: v for k, v in state.items() if k in learned}
    fixed = {k: v for k, v in state.items() if k not in learned}
    rows = jax.vmap(jax.grad(head), in_axes=(None, None, 0))

    @jax.jit
    def pair(a: Any, b: Any) -> Any:
        of_a, of_b = rows(theta, fixed, a), rows(theta, fixed, b)
        return sum(of_a[k].reshape(len(a), -1) @ of_b[k].reshape(len(b), -1).T for k in of_a)

    return pair
