"""What a network is fed: one tensor, or a dict of tensors called as ``net(**x)``; the first dimension is the points."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Inputs = Tensor | Mapping[str, Tensor]


def parts(x: Inputs) -> dict[str, Tensor]:
    return dict(x) if isinstance(x, Mapping) else {"": x}


def size(x: Inputs) -> int:
    return next(iter(parts(x).values())).shape[0]


def take(x: Inputs, at: Any) -> Inputs:
    """The points ``at`` (a slice or an index tensor)."""
    return {k: v[at] for k, v in x.items()} if isinstance(x, Mapping) else x[at]


def nbytes(x: Inputs) -> int:
    return sum(v.numel() * v.element_size() for v in parts(x).values())


def finite(t: Tensor) -> bool:
    """No NaN or infinity, told by the extremes: no copy as large as the tensor is made."""
    if not t.is_floating_point() or t.numel() == 0:
        return True
    return bool(torch.isfinite(torch.stack(t.aminmax())).all())


def check(x: Inputs, name: str, device: torch.device, like: Inputs | None = None) -> None:
    """Raise with every fault of ``x`` at once; ``like`` is an input whose point shape it must share."""
    if not isinstance(x, (Tensor, Mapping)):
        hint = "; torch.from_numpy makes one of an array" if type(x).__module__ == "numpy" else ""
        raise TypeError(f"{name} is a {type(x).__name__}; expected a tensor or a dict of tensors{hint}")
    if not parts(x):
        raise ValueError(f"{name} is an empty dict; expected at least one tensor")
    faults: list[str] = []
    for key, v in parts(x).items():
        label = f"{name}[{key!r}]" if key else name
        if not isinstance(v, Tensor):
            raise TypeError(f"{label} is a {type(v).__name__}; expected a tensor")
        if v.dim() == 0:
            faults.append(f"{label} has no dimensions; the first must be the points")
            continue
        if v.shape[0] != size(x):
            faults.append(f"{label} has {v.shape[0]} points where another entry of the dict has {size(x)}")
        if v.device != device:
            faults.append(f"{label} is on {v.device} and the network on {device}; move it with .to({str(device)!r})")
        elif not finite(v):
            faults.append(f"{label} has {int((~torch.isfinite(v)).sum())} NaN or infinite values")
    if like is not None and not faults:
        a = {k: tuple(v.shape[1:]) for k, v in parts(x).items()}
        b = {k: tuple(v.shape[1:]) for k, v in parts(like).items()}
        if a != b:
            got, want = (str(s.get("", s)) for s in (a, b))
            faults.append(f"{name} has points of shape {got}; expected {want} as the others have")
    if faults:
        raise ValueError("; ".join(faults))
