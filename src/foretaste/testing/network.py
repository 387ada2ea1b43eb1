"""The contract of a network: its kernel is that of plain autograd, on all points."""

import copy

import torch
from torch import Tensor, nn

from foretaste.errors import whole_number
from foretaste.tangent import (
    FrozenNetwork,
    Inputs,
    Output,
    count_points,
    double_inputs,
    freeze,
    isolated,
    ntk,
    take_points,
    without_modes,
)

VECTORS = 4
# How far rᵀΘr may be from the true one: of itself, and of the mean diagonal times ‖r‖².
KERNEL_ROUNDING = {torch.float32: (1e-3, 1e-5), torch.float64: (1e-6, 1e-10)}


@without_modes
def check_network(net: nn.Module, x: Inputs, *, output: Output = "sum", batch: int = 32) -> None:
    """Compare the kernel of a network with plain autograd on all of the points.

    ``ft.ntk`` and ``ft.query`` check their rules for layers on a dozen points of each set. A forward that exchanges two
    rows of a batch of 600 passes that. This check sees it, at the cost of one forward and four backward passes over
    the points: rᵀΘr = ‖Jᵀr‖² for random vectors r, and Jᵀr is one gradient of the network. The mean of r is zero, so
    that what the gradients of all points have in common does not hide the rest. All of it is in float64, on a copy of
    the network, if the network can be copied and computes in float64. For "trace" it is Σ_c ‖J_cᵀr‖² / C, C times as
    many passes.

    Args:
        net: in eval mode.
        x: points as the network takes them: some hundred, as many as a batch of yours.
        output: of ``ft.ntk``: "sum" (default), "signs", "first", "trace", "full", or the number of an output.
        batch: points that go through the network at once for the gradient.

    Raises:
        AssertionError: the kernel is wrong.
        ValueError: foretaste refuses the network; the message says why.

    Example:
        >>> import torch
        >>> from foretaste.testing import check_network
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).eval()
        >>> check_network(net, torch.randn(200, 2))
    """
    batch = whole_number("batch", batch, 1)
    ntk(net, take_points(x, slice(2)), output=output)  # raises if foretaste refuses the network
    try:
        twin, wide = copy.deepcopy(net).double(), double_inputs(x)
        freeze(twin, output=output).call_attached(take_points(wide, slice(2)))
    except Exception:  # whatever a forward raises that has a dtype of its own
        twin, wide = net, x
    for got, want, rounding in _compare(twin, wide, output, batch):
        if not abs(got - want) <= rounding:
            raise AssertionError(
                f"Θ of {type(net).__name__} is wrong: rᵀΘr is {got:.6g} for a random r, and by plain autograd it is "
                f"{want:.6g}; let every row that its layers see be one point's, in the order of the batch, and every "
                "weight be used by its own module"
            )


def _compare(net: nn.Module, x: Inputs, output: Output, batch: int) -> list[tuple[float, float, float]]:
    """For each random r: rᵀΘr, ‖Jᵀr‖², and how far rounding may take them apart. Rows of Θ and J are (point, head)."""
    theta, n, frozen = ntk(net, x, output=output).double(), count_points(x), freeze(net, output=output)
    B = theta.shape[2] if output == "full" else 1
    theta_RR = theta.view(n, n, B, B).transpose(1, 2).reshape(n * B, n * B)
    r_KNB = torch.randn(VECTORS, n, B, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    r_KNB = (r_KNB - r_KNB.mean(1, keepdim=True) if n > 1 else r_KNB).to(theta.device)
    want_K = r_KNB.new_zeros(VECTORS)
    with isolated(frozen.device), torch.no_grad():
        heads = frozen.heads(frozen.call(take_points(x, slice(1)))).shape[1]
    for first in range(0, heads, B):  # "trace" is a sum over heads, each with a gradient of its own
        want_K += _squares(frozen, x, slice(first, first + B), r_KNB, batch)
    r_KR = r_KNB.flatten(1)
    got_K = ((r_KR @ theta_RR) * r_KR).sum(1)
    relative, absolute = KERNEL_ROUNDING[frozen.dtype]
    rounding_K = relative * want_K + absolute * theta_RR.diagonal().mean() * r_KR.square().sum(1)
    return list(zip(*(t.tolist() for t in (got_K, want_K, rounding_K))))


def _squares(frozen: FrozenNetwork, x: Inputs, heads: slice, r_KNB: Tensor, batch: int) -> Tensor:
    """(K,): ‖Jᵀr‖² of some heads for each r, by plain autograd."""
    params = [p for p in frozen.net.parameters() if p.requires_grad]
    sums = [torch.zeros(VECTORS, p.numel(), dtype=torch.float64, device=p.device) for p in params]
    for at in (slice(start, start + batch) for start in range(0, count_points(x), batch)):
        with isolated(frozen.device), torch.enable_grad():
            f_nB = frozen.heads(frozen.call_attached(take_points(x, at)))[:, heads]
            for k, r_NB in enumerate(r_KNB):
                more, total = k < VECTORS - 1, (f_nB * r_NB[at].to(f_nB)).sum()
                grads = torch.autograd.grad(total, params, retain_graph=more, materialize_grads=True)
                for sum_KP, g in zip(sums, grads):
                    sum_KP[k] += (g.to_dense() if g.is_sparse else g).flatten().double()
    return sum((sum_KP.square().sum(1) for sum_KP in sums), r_KNB.new_zeros(VECTORS))
