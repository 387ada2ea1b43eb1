"""Other ways to compute Θ: torch.func over all points, and Jacobians recomputed for each pair of blocks.

The latter is what neural-tangents' batching does. Nothing of one pair is kept for the next, so memory stays small. N/b
blocks of b points make N²/(2b²) pairs, and each needs the gradients of 2b points. One pair is timed, and its time is
multiplied by the number of pairs. It runs in JAX if that is installed, otherwise in torch.func. JAX gets a process of
its own, because it affects the GPU and the host's threads for everything measured after it.
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

from benchmarks.measure import synchronize
from foretaste.network import WideResNet

Gradients = Callable[[dict[str, Tensor], Tensor], dict[str, Tensor]]


def forward_pass(net: nn.Module, x: Tensor) -> Tensor:
    """The unit of time: what entropy sampling costs."""
    with torch.no_grad():
        return net(x)


def per_point_gradients(net: nn.Module, x: Tensor, chunk_size: int | None = None) -> Tensor:
    """Θ in the usual way: vmap(grad) of the sum of logits, all gradients side by side, one product."""
    params, gradients = _torch_gradients(net, chunk_size)
    rows = gradients(params, x)
    flat = torch.cat([r.flatten(1) for r in rows.values()], 1)
    del rows
    return flat @ flat.T


def _torch_gradients(net: nn.Module, chunk_size: int | None = None) -> tuple[dict[str, Tensor], Gradients]:
    params = {k: p.detach() for k, p in net.named_parameters() if p.requires_grad}
    buffers = dict(net.named_buffers())

    def output_sum(params: dict[str, Tensor], point: Tensor) -> Tensor:
        f_C = functional_call(net, {**params, **buffers}, (point[None],))[0]
        return f_C.sum() / len(f_C) ** 0.5

    return params, vmap(grad(output_sum), in_dims=(None, 0), chunk_size=chunk_size)


@dataclass(frozen=True)
class BlockPairs:
    """Time of a kernel that is computed pair by pair."""

    library: str  # "JAX 0.11" or "torch.func"
    block: int  # points in a block
    seconds: float  # of all pairs, extrapolated
    count: int  # of pairs
    kernel: Tensor  # of the timed pair, (b, b)


def time_block_pairs(net: nn.Module, x: Tensor, block: int) -> BlockPairs:
    """Time Θ of N points in pairs of blocks on and below the diagonal, extrapolated from the best of four runs."""
    block = min(block, len(x) // 2)
    blocks = -(-len(x) // block)
    count = blocks * (blocks + 1) // 2
    if x.is_cuda:
        torch.cuda.empty_cache()  # memory that torch's cache holds is not free for JAX
    a, b = x[:block], x[block : 2 * block]
    if isinstance(net, WideResNet) and importlib.util.find_spec("jax"):
        with ProcessPoolExecutor(1, get_context("spawn")) as other:
            copy, points = deepcopy(net).cpu(), [t.cpu().numpy() for t in (a, b)]
            library, seconds, kernel = other.submit(_time_jax_pair, copy, *points).result()
    else:
        library = "torch.func"
        seconds, kernel = _best_time(_torch_pair(net), a, b, x.device)
    return BlockPairs(library, block, seconds * count, count, torch.as_tensor(kernel))


def _time_jax_pair(net: WideResNet, a: np.ndarray, b: np.ndarray) -> tuple[str, float, np.ndarray]:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch holds memory beside it
    import jax

    pair = _jax_pair(net, jax)
    seconds, kernel = _best_time(pair, jax.numpy.asarray(a), jax.numpy.asarray(b), torch.device("cpu"))
    return f"JAX {jax.__version__}", seconds, np.array(kernel)


def _best_time(pair: Callable[[Any, Any], Any], a: Any, b: Any, device: torch.device) -> tuple[float, Any]:
    """The best of four runs; the first one compiles."""
    best, kernel = float("inf"), None
    for _ in range(4):
        start = time.perf_counter()
        kernel = pair(a, b)
        if hasattr(kernel, "block_until_ready"):
            kernel.block_until_ready()
        synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best, kernel


def _torch_pair(net: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    params, gradients = _torch_gradients(net)

    def pair(a: Tensor, b: Tensor) -> Tensor:
        of_a, of_b = gradients(params, a), gradients(params, b)
        return sum((of_a[k].flatten(1) @ of_b[k].flatten(1).T for k in of_a), torch.zeros((), device=a.device))

    return pair


def _jax_pair(net: WideResNet, jax: Any) -> Callable[[Any, Any], Any]:
    """The same WideResNet with the same weights, in eval mode, compiled."""
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

    def output_sum(theta: Any, fixed: Any, point: Any) -> Any:
        p = {**theta, **fixed}
        x = conv(p, "stem", point[None])
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
    gradients = jax.vmap(jax.grad(output_sum), in_axes=(None, None, 0))

    @jax.jit
    def pair(a: Any, b: Any) -> Any:
        of_a, of_b = gradients(theta, fixed, a), gradients(theta, fixed, b)
        return sum(of_a[k].reshape(len(a), -1) @ of_b[k].reshape(len(b), -1).T for k in of_a)

    return pair
