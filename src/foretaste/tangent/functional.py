"""Gradients for each point without a rule: through torch.func, or by plain autograd.

``functional_rows`` serves whatever has no rule (an LSTM, a bare nn.Parameter). ``autograd_rows`` is the reference that
the rules and torch.func are checked against.
"""

import logging
import warnings
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.utils.checkpoint import CheckpointError

from foretaste.tangent.frozen import FrozenNetwork, Inputs, count_points, is_out_of_memory, take_points

log = logging.getLogger("foretaste")


def flat(g: Tensor) -> Tensor:
    """A gradient as one dimension; that of an Embedding(sparse=True) is sparse."""
    return (g.to_dense() if g.is_sparse else g).flatten()


def functional_rows(frozen: FrozenNetwork, x: Inputs, names: Sequence[str]) -> dict[str, Tensor]:
    """{name: (N, B, p)}, the gradient of each head at each point, for these parameters only."""
    theta = {k: frozen.params[k] for k in names}
    all_outputs = frozen.output in ("full", "trace")

    def head(theta: dict[str, Tensor], one: Inputs) -> Tensor:
        f_B = frozen.heads(frozen.call(take_points(one, None), theta))[0]
        return f_B if all_outputs else f_B[0]

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            rows = vmap(jacrev(head) if all_outputs else grad(head), in_dims=(None, 0))(theta, x)
    except RuntimeError as e:
        if is_out_of_memory(e) and count_points(x) > 1:  # fewer may fit
            raise
        reason = str(e).split("\n")[0]
        log.info("torch.func cannot batch %s (%s); computing one point at a time", ", ".join(names), reason)
        return rows_one_by_one(frozen, x, names)
    return {k: rows[k].reshape(count_points(x), -1, theta[k].numel()) for k in names}


def rows_one_by_one(frozen: FrozenNetwork, x: Inputs, names: Sequence[str]) -> dict[str, Tensor]:
    """The same by plain autograd, one point at a time: slow, but right wherever autograd is."""
    theta = {k: frozen.params[k].detach().requires_grad_() for k in names}
    rows: dict[str, list[Tensor]] = {k: [] for k in names}
    for i in range(count_points(x)):
        heads = frozen.heads(frozen.call(take_points(x, slice(i, i + 1)), theta))[0]
        for b in range(len(heads)):
            more = b < len(heads) - 1
            if not heads.requires_grad:  # the parameters are used under the network's own torch.no_grad()
                for k in names:
                    rows[k].append(torch.zeros_like(theta[k]).flatten())
                continue
            try:
                grads = torch.autograd.grad(heads[b], list(theta.values()), retain_graph=more, materialize_grads=True)
            except CheckpointError:
                raise ValueError(
                    "net recomputes a part of its forward (torch.utils.checkpoint), which does not work with other "
                    "parameters in their place; leave the checkpoint out in eval mode: `if self.training:`"
                ) from None
            for k, g in zip(names, grads):
                rows[k].append(flat(g))
    return {k: torch.stack(v).unflatten(0, (count_points(x), -1)) for k, v in rows.items()}


def autograd_rows(frozen: FrozenNetwork, x: Inputs, names: Sequence[str]) -> dict[str, Tensor]:
    """{name: (N, p)}: the gradient of the first head in the network's own parameters, if they require grad.

    The network is called as the user calls it, with nothing between. So these gradients are the truth.
    """
    weight_1 = torch.ones(1, dtype=frozen.dtype, device=frozen.device)
    found = [autograd_sum(frozen, take_points(x, slice(i, i + 1)), names, weight_1) for i in range(count_points(x))]
    return {k: torch.stack([sums[k] for sums in found]) for k in found[0]} if found else {}


def autograd_sum(frozen: FrozenNetwork, x: Inputs, names: Iterable[str], r_n: Tensor) -> dict[str, Tensor]:
    """{name: (p,)}: Σ_i r_i times the gradient of the first head at point i, in the parameters that require grad."""
    chosen = set(names)
    params = {k: p for k, p in frozen.net.named_parameters() if k in chosen and p.requires_grad}
    if not params:
        return {}
    f_nC = frozen.call_attached(x)
    if not f_nC.requires_grad:
        raise ValueError(
            "net's output does not depend on its parameters through autograd; remove torch.no_grad() from its forward"
        )
    try:
        total = frozen.heads(f_nC)[:, 0] @ r_n
        grads = torch.autograd.grad(total, list(params.values()), materialize_grads=True)
    except RuntimeError as e:
        if is_out_of_memory(e):
            raise
        reason = str(e).split("\n")[0]
        raise ValueError(f"autograd fails on net, called as it is: {reason}; mend its forward first") from e
    return {k: flat(g) for k, g in zip(params, grads)}
