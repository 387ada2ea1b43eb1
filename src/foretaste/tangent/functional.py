"""Gradients for each point without a rule: through torch.func, or by plain autograd.

``functional_rows`` serves whatever has no rule (an LSTM, a bare nn.Parameter). ``autograd_rows`` is the reference that
the rules and torch.func are checked against.

vmap is never nested: some of its batching rules move the batch dimension to the front without aligning ranks. Under two
vmaps, over C outputs and n points, such a rule (PReLU's backward) sees (n, C, ...) beside (n, ...) and takes n for C:
an error if they differ, wrong gradients if they are equal. So a loop goes over the outputs, and each batch is compared
with autograd on a few of its points.
"""

import logging
import warnings
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.func import jacrev, vmap
from torch.utils.checkpoint import CheckpointError

from foretaste.errors import is_out_of_memory
from foretaste.tangent.frozen import FrozenNetwork, Inputs, count_points, take_points

log = logging.getLogger("foretaste")
SOME_POINTS = 3  # of each batch, on which torch.func is compared with autograd
# How far their gradients may differ, as a share of their size and of the largest. In float32 and TF32, a ReLU whose
# input is nearly 0 may have another sign in another batch. A batching rule that mixes points errs by about 1.
BATCHED = {torch.float32: (1e-2, 1e-4), torch.float64: (1e-8, 1e-12)}
TF32_BATCHED = 0.3, 1e-3


def flat(g: Tensor) -> Tensor:
    """A gradient as one dimension; that of an Embedding(sparse=True) is sparse."""
    return (g.to_dense() if g.is_sparse else g).flatten()


def functional_rows(
    frozen: FrozenNetwork,
    x: Inputs,
    names: Sequence[str],
    rounding: tuple[float, float] | None = None,
    one_more: Callable[[], object] = lambda: None,
) -> dict[str, Tensor]:
    """{name: (N, B, p)}, the gradient of each head at each point, for these parameters only.

    rounding: how far a gradient may differ from autograd's; None: ``BATCHED``.
    one_more: called after each point, where they go one by one.
    """
    if count_points(x) == 1:
        return rows_one_by_one(frozen, x, names, one_more)
    theta = {k: frozen.params[k] for k in names}

    def heads(theta: dict[str, Tensor], one: Inputs) -> Tensor:
        return frozen.heads(frozen.call(take_points(one, None), theta))[0]

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            found = vmap(jacrev(heads, chunk_size=1), in_dims=(None, 0))(theta, x)  # chunk_size=1: no vmap inside
        rows = {k: found[k].reshape(count_points(x), -1, theta[k].numel()) for k in names}
        reason = "" if is_true_sum(frozen, x, rows, rounding or BATCHED[frozen.dtype]) else "it is not autograd's"
    except RuntimeError as e:
        if is_out_of_memory(e):  # fewer points may fit
            raise
        reason = str(e).split("\n")[0]
    if not reason:
        return rows
    log.info("torch.func cannot batch %s (%s); computing one point at a time", ", ".join(names), reason)
    return rows_one_by_one(frozen, x, names, one_more)


def is_true_sum(frozen: FrozenNetwork, x: Inputs, rows: dict[str, Tensor], rounding: tuple[float, float]) -> bool:
    """Whether Σ_ib r_ib J_ib over some points i of a batch and all heads b, with random r, is plain autograd's."""
    n, heads = count_points(x), next(iter(rows.values())).shape[1]
    at = torch.linspace(0, n - 1, min(n, SOME_POINTS)).long().to(frozen.device)
    r_nB = torch.randn(len(at), heads, generator=torch.Generator().manual_seed(0)).to(frozen.device, frozen.dtype)
    theta = {k: frozen.params[k].detach().requires_grad_() for k in rows}
    f_nB = frozen.heads(frozen.call(take_points(x, at), theta))
    if not f_nB.requires_grad:  # the parameters are used under the network's own torch.no_grad()
        return not any(rows_NBp.any() for rows_NBp in rows.values())
    grads = torch.autograd.grad((f_nB * r_nB).sum(), list(theta.values()), materialize_grads=True)
    true = [flat(g) for g in grads]
    gaps = [torch.einsum("nb,nbp->p", r_nB, rows_NBp[at]) - g_p for rows_NBp, g_p in zip(rows.values(), true)]
    gap_P, size_P = (torch.stack(torch._foreach_norm(t)).double() for t in (gaps, true))
    return bool((gap_P <= rounding[0] * size_P + rounding[1] * size_P.max()).all())


def rows_one_by_one(
    frozen: FrozenNetwork, x: Inputs, names: Sequence[str], one_more: Callable[[], object]
) -> dict[str, Tensor]:
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
        one_more()
    return {k: torch.stack(v).unflatten(0, (count_points(x), -1)) for k, v in rows.items()}


def autograd_rows(frozen: FrozenNetwork, x: Inputs, names: Sequence[str]) -> dict[str, Tensor]:
    """{name: (N, p)}: the gradient of the first head in the network's own parameters, if they require grad.

    The network is called as the user calls it, with nothing between. So these gradients are the truth.
    """
    if not names:
        return {}
    weight_1 = torch.ones(1, dtype=frozen.dtype, device=frozen.device)
    points = (take_points(x, slice(i, i + 1)) for i in range(count_points(x)))
    found = [autograd_sum(frozen, frozen.call(one, attached=True), names, weight_1) for one in points]
    return {k: torch.stack([sums[k] for sums in found]) for k in found[0]} if found else {}


def autograd_sum(frozen: FrozenNetwork, f_nC: Tensor, names: Iterable[str], r_n: Tensor) -> dict[str, Tensor]:
    """{name: (p,)}: Σ_i r_i times the gradient of the first head at point i, in the parameters that require grad.

    f_nC: of ``FrozenNetwork.call``, attached.
    """
    chosen = set(names)
    params = {k: p for k, p in frozen.net.named_parameters() if k in chosen and p.requires_grad}
    if not params:
        return {}
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
