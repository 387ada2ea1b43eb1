"""The contract of a network: its kernel is that of plain autograd, on all points."""

import copy

import torch
from torch import nn

from foretaste.errors import whole_number
from foretaste.tangent import (
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
    the network, if the network can be copied and computes in float64.

    Args:
        net: in eval mode.
        x: points as the network takes them: some hundred, as many as a batch of yours.
        output: of ``ft.ntk``: one kernel for all outputs, not "trace" or "full".
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
    if output in ("trace", "full"):
        raise ValueError(f"output is {output!r}; expected one kernel for all outputs, such as 'sum' or 'first'")
    ntk(net, take_points(x, slice(2)), output=output)  # refuses what it refuses: the copy below is in float64
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
    """For each random r: rᵀΘr, ‖Jᵀr‖², and how far rounding may take them apart."""
    theta_NN, n, frozen = ntk(net, x, output=output).double(), count_points(x), freeze(net, output=output)
    r_KN = torch.randn(VECTORS, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    r_KN = (r_KN - r_KN.mean(1, keepdim=True) if n > 1 else r_KN).to(theta_NN.device)
    params = [p for p in frozen.net.parameters() if p.requires_grad]
    sums = [torch.zeros(VECTORS, p.numel(), dtype=torch.float64, device=p.device) for p in params]
    for at in (slice(start, start + batch) for start in range(0, n, batch)):
        with isolated(frozen.device), torch.enable_grad():
            f_n = frozen.heads(frozen.call_attached(take_points(x, at)))[:, 0]
            for k, r_N in enumerate(r_KN):
                more = k < VECTORS - 1
                grads = torch.autograd.grad(f_n @ r_N[at].to(f_n), params, retain_graph=more, materialize_grads=True)
                for total, g in zip(sums, grads):
                    total[k] += (g.to_dense() if g.is_sparse else g).flatten().double()
    want_K = sum((total.square().sum(1) for total in sums), r_KN.new_zeros(VECTORS))
    got_K = ((r_KN @ theta_NN) * r_KN).sum(1)
    relative, absolute = KERNEL_ROUNDING[frozen.dtype]
    rounding_K = relative * want_K + absolute * theta_NN.diagonal().mean() * r_KN.square().sum(1)
    return list(zip(*(t.tolist() for t in (got_K, want_K, rounding_K))))
