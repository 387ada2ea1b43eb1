"""Gradients of a small ReLU network without autograd, whose overhead would cost as much as the arithmetic.

With h_0 = x, h_k = relu(h_{k−1} W_kᵀ + b_k), f = h_{K−1} W_Kᵀ + b_K and d_K = ∂loss/∂f:

    ∂loss/∂W_k = d_kᵀ h_{k−1}      ∂loss/∂b_k = Σ_n d_k      d_{k−1} = (d_k W_k) ∘ [h_{k−1} > 0]
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from foretaste.losses import TrainingTargets
from foretaste.network.models import MLP

MLPStep = Callable[[Tensor, Tensor], tuple[Tensor, list[Tensor]]]
SMALL_MLP = 4_000_000  # multiplications of a forward pass; below it a second thread costs more than it saves


def mlp_gradients(net: nn.Module, goal: TrainingTargets, params: list[nn.Parameter]) -> MLPStep:
    """step(x_n, fit_n) -> (f_nC, gradients in the order of ``params``)."""

    def by_autograd(x_n: Tensor, fit_n: Tensor) -> tuple[Tensor, list[Tensor]]:
        f_nC = net(x_n)
        loss = goal.of(f_nC, fit_n)
        # An unused parameter gets a gradient of zero.
        return f_nC.detach(), list(torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True))

    return _chain_gradients(net, goal) if is_plain_mlp(net, params) else by_autograd


def is_plain_mlp(net: nn.Module, params: list[nn.Parameter]) -> bool:
    """Whether net is our MLP with ReLUs, fully trained and without hooks, which would not be called."""
    return (
        type(net) is MLP
        and all(type(m) is (nn.ReLU if i % 2 else nn.Linear) for i, m in enumerate(net.layers))
        and len(params) == len(list(net.parameters())) == 2 * len(net.spec.hidden) + 2
        and not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in net.modules())
        and not any(p._backward_hooks for p in params)
    )


def _chain_gradients(net: nn.Module, goal: TrainingTargets) -> MLPStep:
    linear = [m for m in net.modules() if isinstance(m, nn.Linear)]

    @torch.no_grad()
    def by_hand(x_n: Tensor, fit_n: Tensor) -> tuple[Tensor, list[Tensor]]:
        h = [x_n.flatten(1)]
        for k, layer in enumerate(linear):
            a = torch.addmm(layer.bias, h[-1], layer.weight.t())
            h.append(a.relu_() if k < len(linear) - 1 else a)
        d = goal.slope(h[-1], fit_n)
        grads: list[Tensor] = []
        for k in reversed(range(len(linear))):
            grads[:0] = [d.t() @ h[k], d.sum(0)]
            if k:
                d = (d @ linear[k].weight).mul_(h[k] > 0)
        return h[-1], grads

    return by_hand


@contextmanager
def one_thread(wanted: bool) -> Iterator[None]:
    threads = torch.get_num_threads()
    if not wanted or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
