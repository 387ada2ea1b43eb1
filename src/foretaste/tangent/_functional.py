"""Per-point gradients through torch.func: for whatever has no rule of its own (an LSTM, a bare nn.Parameter)."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from foretaste.tangent._inputs import Inputs, size, take
from foretaste.tangent._subject import Subject

log = logging.getLogger("foretaste")


def functional_rows(subj: Subject, x: Inputs, names: Sequence[str]) -> dict[str, Tensor]:
    """{name: (N, B, p)}, the gradient of each head at each point for just these parameters."""
    theta = {k: subj.params[k] for k in names}
    full = subj.output == "full"

    def head(theta: dict[str, Tensor], one: Inputs) -> Tensor:
        f_C = subj.heads(subj.call(take(one, None), theta))[0]
        return f_C if full else f_C[0]

    try:
        # cuDNN's and oneDNN's fused recurrences have no batching rule.
        with torch.backends.cudnn.flags(enabled=subj.device.type != "cuda"), torch.backends.mkldnn.flags(enabled=True):
            rows = vmap(jacrev(head) if full else grad(head), in_dims=(None, 0))(theta, x)
    except RuntimeError as e:
        log.info("torch.func cannot batch %s (%s); going point by point", ", ".join(names), str(e).split("\n")[0])
        rows = _one_by_one(subj, x, theta)
    n = size(x)
    return {k: (rows[k] if full else rows[k][:, None]).reshape(n, -1, theta[k].numel()) for k in names}


def _one_by_one(subj: Subject, x: Inputs, theta: dict[str, Tensor]) -> dict[str, Tensor]:
    theta = {k: p.detach().requires_grad_() for k, p in theta.items()}
    rows: dict[str, list[Tensor]] = {k: [] for k in theta}
    for i in range(size(x)):
        heads = subj.heads(subj.call(take(x, slice(i, i + 1)), theta))[0]
        for b in range(len(heads)):
            got = torch.autograd.grad(heads[b], list(theta.values()), retain_graph=True, materialize_grads=True)
            for k, g in zip(theta, got):
                rows[k].append(g)
    n, b = size(x), len(rows[next(iter(rows))]) // size(x)
    shaped = {k: torch.stack(v).reshape(n, b, *theta[k].shape) for k, v in rows.items()}
    return shaped if subj.output == "full" else {k: v[:, 0] for k, v in shaped.items()}
