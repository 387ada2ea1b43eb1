"""A cold start, and the random numbers that govern a training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """The default generators seeded within, and as they were found afterwards: for initialisation and dropout."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        # torch.manual_seed would seed every device there is, and only one is restored.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def frozen(module: nn.Module) -> bool:
    """Whether it has parameters of its own and none of them is trained."""
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(p.requires_grad for p in own)


def reset(net: nn.Module) -> None:
    """Initialise every parameter and buffer anew, by each module's ``reset_parameters``.

    Inner modules come first, as they did when the network was made. Frozen parameters, and the buffers beside them,
    are kept: a pretrained body under a trained head is no part of the training. Buffers of a module that has no
    parameters and no ``reset_parameters`` are constants, and kept too.
    """
    order = [(name, m) for name, m in reversed(list(net.named_modules())) if not frozen(m)]
    for name, module in order:  # first the errors: half a reset helps nobody
        if next(module.parameters(recurse=False), None) is not None and _method(module) is None:
            label = f"module {name!r} ({type(module).__name__})" if name else f"the network ({type(module).__name__})"
            raise ValueError(
                f"a cold start cannot initialise {label}: it has parameters of its own and no reset_parameters(); "
                'give it one, or use start="warm" on a network you made anew'
            )
    kept = [(p, p.detach().clone()) for p in net.parameters() if not p.requires_grad]
    for _, module in order:
        if (again := _method(module)) is not None:
            again()
    with torch.no_grad():
        for p, value in kept:
            p.copy_(value)


def _method(module: nn.Module) -> Callable[[], None] | None:
    """Its ``reset_parameters``; torch's MultiheadAttention and Transformer spell it with an underscore."""
    for name in ("reset_parameters", "_reset_parameters"):
        if callable(method := getattr(module, name, None)):
            return method
    return None
