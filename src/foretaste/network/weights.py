"""New weights: for foretaste's own networks only, unless the user asks for it."""

from collections.abc import Callable

import torch
from torch import nn

from foretaste.network.models import MLP, ResNet, WideResNet


def new_weights(net: nn.Module) -> None:
    """Draw new weights for a cold start. Refuses a network that is not ours: its weights may be pretrained."""
    if type(net) not in (MLP, WideResNet, ResNet):
        raise ValueError(
            f'start="cold" draws new weights, and this {type(net).__name__} is not one of foretaste\'s own networks: '
            'its weights, perhaps pretrained, would be lost. Build it anew and use start="warm", or call '
            "foretaste.network.reset(net) first if you do mean to draw them anew"
        )
    reset(net)


def is_frozen(module: nn.Module) -> bool:
    """Whether a module has parameters of its own and none of them requires grad."""
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(p.requires_grad for p in own)


def reset(net: nn.Module) -> None:
    """Draw all weights anew, by each module's ``reset_parameters``: of any network, whoever built it.

    ``ft.fit`` never does so to a network that is not foretaste's own: call it yourself where you mean it. Inner modules
    are reset first, as when the network was built. Frozen parameters (requires_grad=False) and the buffers beside them
    are kept. Buffers of a module without parameters and ``reset_parameters`` are constants, and are kept too.

    Args:
        net: the network, changed in place. Seed torch first for the same weights twice.

    Raises:
        ValueError: a module has parameters of its own and no ``reset_parameters``. Nothing is changed then.
    """
    order = [(name, m) for name, m in reversed(list(net.named_modules())) if not is_frozen(m)]
    for name, module in order:  # errors first: nothing is changed by halves
        if next(module.parameters(recurse=False), None) is not None and _reset_method(module) is None:
            label = f"module {name!r} ({type(module).__name__})" if name else f"the network ({type(module).__name__})"
            raise ValueError(
                f"new weights cannot be drawn for {label}: it has parameters of its own and no reset_parameters(); "
                'give it one, or build the network anew and use start="warm"'
            )
    kept = [(p, p.detach().clone()) for p in net.parameters() if not p.requires_grad]
    for _, module in order:
        if (again := _reset_method(module)) is not None:
            again()
    with torch.no_grad():
        for p, value in kept:
            p.copy_(value)


def _reset_method(module: nn.Module) -> Callable[[], None] | None:
    """``reset_parameters``, or ``_reset_parameters``, as torch's MultiheadAttention and Transformer call it."""
    for name in ("reset_parameters", "_reset_parameters"):
        if callable(method := getattr(module, name, None)):
            return method
    return None
