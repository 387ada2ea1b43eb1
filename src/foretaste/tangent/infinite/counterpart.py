"""The infinitely wide counterpart of a torch network: of this library's networks, and of an nn.Sequential."""

import logging
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Any

from torch import nn

from foretaste.tangent.frozen import unwrap
from foretaste.tangent.infinite.layers import (
    Conv,
    Dense,
    Erf,
    Flatten,
    GlobalAveragePool,
    Identity,
    Layer,
    Relu,
    Residual,
    Serial,
)

log = logging.getLogger("foretaste")

SKIPPED = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, nn.Identity)
POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def counterpart(net: nn.Module, *, W_std: float = 2**0.5, b_std: float = 0.0) -> Serial:
    """The layers of ``net`` at infinite width.

    Only layers and widths count; trained weights do not. BatchNorm and dropout are left out. One thing differs: the
    identity shortcuts of a ResNet start before the ReLU, not after it. A sum with a rectified term is not Gaussian at
    infinite width, so a ReLU behind it has no closed form.

    Args:
        net: an MLP, WideResNet or ResNet of this library, or an nn.Sequential of Linear, Conv, ReLU, Erf, Flatten,
            AdaptiveAvgPool to size 1, BatchNorm and dropout.
        W_std: standard deviation of the weights times √fan_in. Default √2, as in He's initialisation.
        b_std: standard deviation of the biases. Default 0: biases are trained and start at 0.

    Returns:
        The layers, as a ``Serial``, for ``infinite_ntk``.

    Raises:
        TypeError: if ``net``, or one of its modules, has no infinite counterpart.
        ValueError: if its activation has no closed form here.

    Example:
        >>> from torch import nn
        >>> from foretaste.tangent import counterpart
        >>> counterpart(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), W_std=1.0).layers[1:]
        (Relu(), Dense(width=3, W_std=1.0, b_std=0.0, inputs=8))
    """
    net = unwrap(net)
    spec = getattr(net, "spec", None)
    if isinstance(net, nn.Sequential):
        return Serial(*_convert_modules(net, W_std, b_std))
    if (known := SPECS.get(type(spec).__name__)) is None:
        raise TypeError(
            f"{type(net).__name__} has no known infinite counterpart; expected an MLP, WideResNet or ResNet of this "
            "library, an nn.Sequential, or layers of foretaste.tangent.infinite: Serial(Conv(64), Relu(), ...)"
        )
    return known(spec, W_std, b_std)


def _mlp(spec: Any, w: float, b: float) -> Serial:
    """Of ``foretaste.network.MLP``."""
    activations: dict[str, type[Relu] | type[Erf]] = {"relu": Relu, "erf": Erf}
    if spec.activation not in activations:
        raise ValueError(f"activation {spec.activation!r} has no closed form here; the infinite MLP knows relu and erf")
    widths = (spec.inputs, *spec.hidden)
    hidden = [layer for a, h in pairwise(widths) for layer in (Dense(h, w, b, a), activations[spec.activation]())]
    return Serial(Flatten(), *hidden, Dense(spec.classes, w, b, widths[-1]))


def _wide_resnet(spec: Any, w: float, b: float) -> Serial:
    """Of ``foretaste.network.WideResNet``, whose blocks have their ReLUs before the convolutions."""
    conv = partial(_conv, w, b)
    at = 16 * spec.widen
    layers: list[Layer] = [conv(spec.channels, at)]
    for stage in range(spec.layers):
        width = 32 * spec.widen << stage
        for block in range(spec.blocks):
            stride = 2 if stage and not block else 1
            body = Serial(Relu(), conv(at, width), Relu(), conv(width, width, 3, stride))
            plain = stride == 1 and at == width
            layers.append(Residual(body, Identity() if plain else conv(at, width, 1, stride)))
            at = width
    return Serial(*layers, Relu(), GlobalAveragePool(), Dense(spec.classes, w, b, at))


def _resnet(spec: Any, w: float, b: float) -> Serial:
    """Of ``foretaste.network.resnet18``. Its convolutions have no bias."""
    conv = partial(_conv, w, None)
    at = spec.width
    layers: list[Layer] = [conv(spec.channels, at)]
    for stage, blocks in enumerate(spec.blocks):
        width = spec.width << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            body = Serial(conv(at, width, 3, stride), Relu(), conv(width, width))
            if stride == 1 and at == width:
                layers.append(Residual(Serial(Relu(), body)))
            else:
                layers += [Relu(), Residual(body, conv(at, width, 1, stride))]
            at = width
    log.info("the infinite ResNet's identity shortcuts start before the ReLU: behind it they have no closed form")
    return Serial(*layers, Relu(), GlobalAveragePool(), Dense(spec.classes, w, b, at))


def _conv(w: float, b: float | None, inputs: int, width: int, kernel: int = 3, stride: int = 1) -> Conv:
    return Conv(width, kernel, stride, kernel // 2, w, b, inputs)


SPECS = {"MLPSpec": _mlp, "WideResNetSpec": _wide_resnet, "ResNetSpec": _resnet}


def _convert_modules(net: nn.Sequential, w: float, b: float) -> Iterable[Layer]:
    """The layers of an nn.Sequential, one by one."""
    for name, module in net.named_children():
        if isinstance(module, nn.Sequential):
            yield Serial(*_convert_modules(module, w, b))
        elif isinstance(module, nn.Linear):
            yield Dense(module.out_features, w, b if module.bias is not None else None, module.in_features)
        elif isinstance(module, CONVS):
            yield _convert_conv(name, module, w, b)
        elif isinstance(module, nn.ReLU):
            yield Relu()
        elif type(module).__name__ == "Erf":
            yield Erf()
        elif isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
            yield Flatten()
        elif isinstance(module, POOLS) and module.output_size in (1, (1,), (1, 1), (1, 1, 1)):
            yield GlobalAveragePool()
        elif not isinstance(module, SKIPPED):
            raise TypeError(
                f"module {name!r}, {module}, has no infinite counterpart; known are Linear, Conv, ReLU, Erf, Flatten, "
                "AdaptiveAvgPool to 1, and BatchNorm and dropout, which are left out"
            )


def _convert_conv(name: str, m: nn.Conv1d | nn.Conv2d | nn.Conv3d, w: float, b: float) -> Conv:
    if m.groups != 1 or any(n != 1 for n in m.dilation) or m.padding_mode != "zeros":
        raise TypeError(f"module {name!r}, {m}, has groups, dilation or a padding mode that the infinite Conv has not")
    if isinstance(m.padding, str):
        if m.padding == "same" and any(n % 2 == 0 for n in m.kernel_size):
            raise TypeError(f"module {name!r}, {m}, pads unevenly, which the infinite Conv does not; use odd kernels")
        padding = tuple(n // 2 if m.padding == "same" else 0 for n in m.kernel_size)
    else:
        padding = tuple(m.padding)
    bias = b if m.bias is not None else None
    return Conv(m.out_channels, tuple(m.kernel_size), tuple(m.stride), padding, w, bias, m.in_channels)
