"""One forward and one backward that remember each layer's input and its output's gradient, for a chunk of points."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from foretaste.tangent._inputs import Inputs
from foretaste.tangent._subject import Subject


@dataclass
class Call:
    """One call of a module: its input A, and G_b for each head b (absent where head b does not depend on it)."""

    a: Tensor
    shape: torch.Size
    grads: dict[int, Tensor] = field(default_factory=dict)

    def g(self, head: int) -> Tensor:
        if head in self.grads:
            return self.grads[head]
        dtype = next((g.dtype for g in self.grads.values()), torch.get_default_dtype())
        return torch.zeros(self.shape, dtype=dtype, device=self.a.device)


def record(subj: Subject, modules: Iterable[nn.Module], x: Inputs) -> tuple[dict[nn.Module, list[Call]], Tensor]:
    """Run x once; returns the calls of each module in order, and f(x).

    Parameters are detached, so no weight gradient is ever computed. The graph starts at a zero ``token`` added to the
    first remembered outputs, hence reaches no lower than it must. A tensor hook set before an in-place operation sees
    the gradient of the value before it, so ``ReLU(inplace=True)`` behind a layer does no harm.
    """
    token = torch.zeros((), dtype=subj.dtype, device=subj.device, requires_grad=True)
    calls: dict[nn.Module, list[Call]] = {m: [] for m in modules}
    head = 0

    def remember(m: nn.Module, args: tuple, kwargs: dict, out: Tensor) -> Tensor:
        call = Call((args[0] if args else kwargs["input"]).detach(), out.shape)
        calls[m].append(call)
        if not out.requires_grad:
            out = out + token
        if out.requires_grad:  # not inside the network's own torch.no_grad()
            out.register_hook(lambda g: call.grads.__setitem__(head, g))
        return out

    hooks = [m.register_forward_hook(remember, with_kwargs=True) for m in calls]
    try:
        f_NC = subj.call(x)
        heads = subj.heads(f_NC)
        if heads.requires_grad:
            for head in range(heads.shape[1]):
                last = head == heads.shape[1] - 1
                torch.autograd.grad(heads[:, head].sum(), token, retain_graph=not last, allow_unused=True)
    finally:
        for h in hooks:
            h.remove()
    return calls, f_NC.detach()
