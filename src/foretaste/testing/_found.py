"""What a query must leave as it found it, written down before and compared after."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def found(net: nn.Module, *inputs: Tensor) -> dict[str, Any]:
    """Weights, gradients, flags, hooks and attributes of ``net``, the inputs, and the state every process shares."""
    seen: dict[str, Any] = {}
    for name, p in net.named_parameters():
        seen[f"parameter {name}"] = p.detach().clone()
        seen[f".grad of {name}"] = None if p.grad is None else p.grad.clone()
        seen[f"requires_grad of {name}"] = p.requires_grad
    for name, b in net.named_buffers():
        seen[f"buffer {name}"] = b.clone()
    for name, m in net.named_modules():
        where = f"module {name or 'net'}"
        seen[f"the training flag of {where}"] = m.training
        seen[f"the attributes of {where}"] = sorted(vars(m))
        for hooks in [v for v in vars(m) if v.endswith(("_hooks", "_hooks_with_kwargs"))]:
            seen[f"{hooks} of {where}"] = [id(h) for h in vars(m)[hooks].values()]
    seen |= {f"input {i}": x.clone() for i, x in enumerate(inputs)}
    return seen | {
        "torch's random state": torch.get_rng_state(),
        "numpy's random state": [str(part) for part in np.random.get_state()],  # noqa: NPY002  that is what is watched
        "python's random state": random.getstate(),
        "whether gradients are on": torch.is_grad_enabled(),
        "the default dtype": torch.get_default_dtype(),
    }


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what differs."""
    return [k for k in before | after if k not in before or k not in after or not _equal(before[k], after[k])]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    return bool(a == b) if type(a) is type(b) else False
