"""Networks: an MLP, the paper's WideResNets and ResNet18 (§4), a function of the user's own, and heads for features."""

import contextlib
import copy
import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.errors import check_counts, check_known, whole_number


class ErfActivation(nn.Module):
    """erf(x), whose infinite-width kernel has a closed form."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.erf(x)


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "erf": ErfActivation, "tanh": nn.Tanh, "gelu": nn.GELU}


@dataclass(frozen=True)
class MLPSpec:
    """The settings of an MLP; ``build()`` makes a new one."""

    inputs: int
    hidden: tuple[int, ...] = (256, 256)
    classes: int = 10
    activation: str = "relu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))  # a configuration file has lists
        check_counts(inputs=self.inputs, classes=self.classes, **{f"hidden[{i}]": h for i, h in enumerate(self.hidden)})
        check_known("activation", self.activation, ACTIVATIONS)

    def build(self) -> "MLP":
        return MLP(self.inputs, self.hidden, self.classes, self.activation)


class MLP(nn.Module):
    """A multilayer perceptron on flattened inputs.

    Args:
        inputs: values of one point: 784 for a 28×28 image.
        hidden: widths of the hidden layers; () is a linear model.
        classes: outputs.
        activation: "relu", "erf", "tanh" or "gelu".

    Example:
        >>> MLP(784, (256, 256), 10)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, inputs: int, hidden: tuple[int, ...] = (256, 256), classes: int = 10, activation: str = "relu"
    ) -> None:
        super().__init__()
        self.spec: MLPSpec = MLPSpec(inputs, hidden, classes, activation)
        widths = (inputs, *self.spec.hidden)
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), ACTIVATIONS[activation]()]
        self.layers: nn.Sequential = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))


# The paper's WideResNets (§4): pre-activation blocks, one to three stages, a widening factor k.
#
# The paper calls a network of the first stage only "1-layer", of the first two "2-layer". With k = 10 and one block a
# stage these have 1.44 M and 7.18 M parameters (one channel, ten classes). Every convolution has a bias.


@dataclass(frozen=True)
class WideResNetSpec:
    """The settings of a WideResNet; ``build()`` makes a new one."""

    layers: int = 1
    blocks: int = 1
    widen: int = 10
    channels: int = 1
    classes: int = 10

    def __post_init__(self) -> None:
        check_counts(blocks=self.blocks, widen=self.widen, channels=self.channels, classes=self.classes)
        if self.layers not in (1, 2, 3):
            raise ValueError(f"layers is {self.layers!r}; a WideResNet has 1, 2 or 3 stages")

    def build(self) -> "WideResNet":
        return WideResNet(self.layers, self.blocks, self.widen, self.channels, self.classes)


class PreactivationBlock(nn.Module):
    """BN-ReLU-conv-BN-ReLU-conv, plus the raw input: through a 1×1 convolution where the shape changes."""

    def __init__(self, fan_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(fan_in),
            nn.ReLU(),
            nn.Conv2d(fan_in, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, padding=1),
        )
        changes = stride != 1 or fan_in != width
        self.shortcut = nn.Conv2d(fan_in, width, 1, stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.shortcut(x)


def residual_stages(
    block: Callable[[int, int, int], nn.Module], fan_in: int, width: int, blocks: Sequence[int]
) -> tuple[nn.Sequential, int]:
    """Stages of width w, 2w, 4w, ..., each but the first of stride 2, and the width of the last."""
    made: list[nn.Module] = []
    for stage, count in enumerate(blocks):
        for k in range(count):
            made.append(block(fan_in, width << stage, 2 if stage and not k else 1))
            fan_in = width << stage
    return nn.Sequential(*made), fan_in


class WideResNet(nn.Module):
    """A 3×3 stem to 16k channels; stages of 32k, 64k, 128k, the first of stride 1; BN-ReLU, mean over space, linear.

    Args:
        layers: stages, 1 to 3; the paper's "1-layer" network has one.
        blocks: residual blocks in a stage.
        widen: the factor k of all widths.
        channels: of a picture: 1 grey, 3 colour.
        classes: outputs.

    Example:
        >>> WideResNet(1, widen=1)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(self, layers: int = 1, blocks: int = 1, widen: int = 10, channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.spec: WideResNetSpec = WideResNetSpec(layers, blocks, widen, channels, classes)
        self.stem: nn.Conv2d = nn.Conv2d(channels, 16 * widen, 3, padding=1)
        self.stages: nn.Sequential
        self.stages, width = residual_stages(PreactivationBlock, 16 * widen, 32 * widen, [blocks] * layers)
        self.tail: nn.Sequential = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU())
        self.head: nn.Linear = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.tail(self.stages(self.stem(x))).mean((2, 3)))


# ResNet18 for small images: a 3×3 stem, no max-pool, convolutions without bias.


@dataclass(frozen=True)
class ResNetSpec:
    """The settings of a ResNet; ``build()`` makes a new one. ``blocks``: how many in each stage."""

    channels: int = 3
    classes: int = 10
    width: int = 64
    blocks: tuple[int, ...] = (2, 2, 2, 2)

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", tuple(self.blocks))
        check_counts(channels=self.channels, classes=self.classes, width=self.width)
        check_counts(stages=len(self.blocks), **{f"blocks[{i}]": n for i, n in enumerate(self.blocks)})

    def build(self) -> "ResNet":
        return ResNet(self.channels, self.classes, self.width, self.blocks)


class BasicBlock(nn.Module):
    """ReLU(conv-BN-ReLU-conv-BN + shortcut), the shortcut a 1×1 convolution and BN where the shape changes."""

    def __init__(self, fan_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(fan_in, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or fan_in != width:
            self.shortcut = nn.Sequential(nn.Conv2d(fan_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Stages of width w, 2w, 4w, ..., each but the first of stride 2; mean over space; linear."""

    def __init__(
        self, channels: int = 3, classes: int = 10, width: int = 64, blocks: tuple[int, ...] = (2, 2, 2, 2)
    ) -> None:
        super().__init__()
        self.spec: ResNetSpec = ResNetSpec(channels, classes, width, blocks)
        self.stem: nn.Sequential = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.stages: nn.Sequential
        self.stages, last = residual_stages(BasicBlock, width, width, self.spec.blocks)
        self.head: nn.Linear = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def resnet18(channels: int = 3, classes: int = 10, width: int = 64) -> ResNet:
    """ResNet18: four stages of two blocks, 11.2 M parameters at width 64.

    Args:
        channels: of a picture: 1 grey, 3 colour.
        classes: outputs.
        width: channels of the first stage; each later stage has twice as many as the one before.

    Example:
        >>> resnet18(classes=5, width=8)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 5])
    """
    return ResNet(channels, classes, width)


def feature_layers(net: nn.Module) -> list[str]:
    """The layers that LL4AL reads: hidden activations of an MLP, blocks of a ResNet."""
    if isinstance(net, MLP) and net.spec.hidden:
        return [f"layers.{2 * k + 1}" for k in range(len(net.spec.hidden))]
    if isinstance(net, WideResNet | ResNet):
        return [f"stages.{k}" for k in range(len(net.stages))]
    raise ValueError(
        f"which layers of a {type(net).__name__} LL4AL should read is not known; name them, as in layers=['body.2']"
    )


# New weights: for these networks only, unless the user asks for it.


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
    for name, module in order:  # before anything is changed
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
    names = ("reset_parameters", "_reset_parameters")  # the second in torch's MultiheadAttention and Transformer
    return next((method for name in names if callable(method := getattr(module, name, None))), None)


# Networks by name: built in, or ``package.module:function`` of the user's own.


Spec = MLPSpec | WideResNetSpec | ResNetSpec

# name: (its settings, those that the name already fixes)
NETWORKS: dict[str, tuple[Callable[..., Spec], dict[str, Any]]] = {
    "mlp": (MLPSpec, {}),
    "wrn1": (WideResNetSpec, {"layers": 1}),
    "wrn2": (WideResNetSpec, {"layers": 2}),
    "wrn3": (WideResNetSpec, {"layers": 3}),
    "resnet18": (ResNetSpec, {"blocks": (2, 2, 2, 2)}),
}


def build_network(name: str, **options: Any) -> nn.Module:
    """Make one of the built-in networks.

    Args:
        name: a key of ``NETWORKS``: "mlp", "wrn1", "wrn2", "wrn3", "resnet18".
        options: settings of that network, as in ``MLPSpec``, ``WideResNetSpec`` or ``ResNetSpec``.

    Returns:
        The network, with new weights.

    Example:
        >>> type(build_network("mlp", inputs=64, hidden=(32,))).__name__
        'MLP'
    """
    check_known("network", name, NETWORKS)
    make, fixed = NETWORKS[name]
    names = [f.name for f in fields(make) if f.name not in fixed]  # type: ignore[arg-type]
    for option in options:
        check_known(f"option of {name}", option, names)
    if name == "mlp" and "inputs" not in options:
        raise ValueError("mlp needs inputs=, the number of values of one point: 784 for a 28×28 image")
    return make(**fixed, **options).build()


def make_network(
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    classes: int | None = None,
    shape: Sequence[int] | None = None,
) -> nn.Module:
    """Make a network for given data: built in, or by a function of the user's own.

    Args:
        name: a key of ``NETWORKS``, or "package.module:function". The function gets ``shape``, ``inputs``, ``channels``
            and ``classes`` where it has parameters of that name.
        options: settings of the network; they override what follows from ``classes`` and ``shape``.
        classes: outputs.
        shape: of one point, (channels, height, width) for pictures.

    Returns:
        The network, with new weights or those that the user's function gave it.

    Example:
        >>> make_network("wrn1", options={"widen": 1}, classes=3, shape=(1, 8, 8)).head.out_features
        3
    """
    given, of_data = dict(options or {}), dict[str, Any]()
    if classes is not None:
        of_data["classes"] = classes
    if shape is not None:
        of_data |= {"shape": tuple(shape), "inputs": math.prod(shape), "channels": shape[0]}
    if ":" in name:
        return _imported_network(name, of_data, given)
    check_known("network", name, NETWORKS)
    if name != "mlp" and shape is not None and len(shape) != 3:
        raise ValueError(f"{name} is for images (channels, height, width) and a point is {tuple(shape)}; use mlp")
    own = ("inputs", "classes") if name == "mlp" else ("channels", "classes")
    return build_network(name, **{key: of_data[key] for key in own if key in of_data} | given)


def import_attribute(name: str, what: str) -> Any:
    """The object that "package.module:attribute" names, installed or found from the working folder."""
    where, _, attribute = name.partition(":")
    if where.endswith(".py") or "/" in where:
        raise ValueError(f"{what} {name!r} names a file; expected package.module:function, found from this folder")
    here = os.getcwd()
    sys.path.insert(0, here)  # as ``python -m`` does
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(where)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{what} {name!r} cannot be imported: {error}; expected package.module:function, installed or from here"
        ) from None
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)
    return found


def _imported_network(name: str, of_data: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    """The network of "package.module:function", called with all options and with what it takes of ``of_data``."""
    found = import_attribute(name, "network")
    if isinstance(found, nn.Module):
        if options:
            raise ValueError(
                f"{name} is a network already made, so it takes no options; given: {', '.join(sorted(options))}"
            )
        return copy.deepcopy(found)
    if not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__}; expected a function or class that makes a torch module")
    takes = inspect.signature(found).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    if unknown := [] if anything else sorted({*options} - {*takes}):
        raise ValueError(f"{name} has no option {', '.join(unknown)}; it takes {', '.join(takes) or 'none'}")
    net = found(**{key: value for key, value in of_data.items() if key in takes} | options)
    if not isinstance(net, nn.Module):
        raise TypeError(f"{name} made a {type(net).__name__}; expected a torch module")
    return net


# Heads: a small network on features that are already computed, with its inputs scaled inside.


MEASURED_ROWS = 4096  # at once, in float64


DEAD = 1e-3  # of the median deviation: columns below it are not scaled up


class InputScale(nn.Module):
    """length · (x − mean) / deviation / √D: each row has about that length. Nothing in it is trained."""

    def __init__(self, mean_D: Tensor, deviation_D: Tensor, length: float = 1.0) -> None:
        super().__init__()
        self.mean_D: Tensor
        self.scale_D: Tensor
        self.register_buffer("mean_D", mean_D)
        self.register_buffer("scale_D", length / (deviation_D * math.sqrt(len(deviation_D))))

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) - self.mean_D) * self.scale_D


def make_head(features: "Tensor | int", classes: int, *, hidden: "int | None" = 512, alike: bool = False) -> nn.Module:
    """Make a head for features: an MLP with one hidden layer, or a linear layer, its inputs scaled inside.

    Features of a backbone may have any size. The head standardises each column and divides a row by √D (by √D / 2 for a
    linear head of several outputs). ``ft.fit`` then trains it to interpolation with its default learning rate, on L2 or
    cross-entropy.

    Args:
        features: (N, D) floats whose columns are measured: the pool and the labelled points, without their labels. Or
            the number of columns D: they are then taken to have mean 0 and deviation 1.
        classes: outputs.
        hidden: width of the hidden layer, default 512; None makes the head linear.
        alike: whether columns are of one kind, as an encoder's are and those of a table in several units are not
            (default False). Columns that vary a thousand times less than most are then left as they are, not scaled up.
            Needed where the encoder is trained too: what is 1e-8 for every text now need not stay so.

    Returns:
        A torch module, (n, D) to (n, classes). Its weights are drawn from torch's generator: seed it first.

    Raises:
        ValueError: features are not finite (N, D) floats, or a number is not a whole one.

    Example:
        >>> import torch, foretaste as ft
        >>> from foretaste.network import make_head
        >>> _ = torch.manual_seed(0)
        >>> x, y = 100 + 30 * torch.randn(20, 64), torch.arange(20) % 4  # as a backbone may give them
        >>> ft.fit(make_head(x, 4), x, y).interpolates
        True
    """
    classes = whole_number("classes", classes, 1)
    if isinstance(features, Tensor):
        mean_D, deviation_D = column_moments(features, alike=alike)
    else:
        D = whole_number("features", features, 1)
        mean_D, deviation_D = torch.zeros(D), torch.ones(D)
    layers = () if hidden is None else (whole_number("hidden", hidden, 1),)
    net = MLP(len(mean_D), layers, classes)
    # A linear layer on rows of length one is too slow for the default number of steps: with 100 images of CIFAR10 and
    # cross-entropy the residual was 4e-3, of length two 2e-4. One output has the steepest squared loss, and keeps one.
    scale = InputScale(mean_D, deviation_D, 2.0 if hidden is None and classes > 1 else 1.0)
    if isinstance(features, Tensor):
        net, scale = net.to(features.device), scale.to(features.device)
    return nn.Sequential(scale, net)


def column_moments(features: Tensor, *, alike: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each column, in float64 and in pieces. A column that never varies has deviation 1.

    alike: so has one that varies DEAD times as much as the median column, or less.
    """
    if features.dim() != 2 or not features.is_floating_point() or not len(features):
        raise ValueError(f"features are {features.dtype} {tuple(features.shape)}; expected floats (N, D)")
    parts = features.split(MEASURED_ROWS)
    zero_D = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    mean_D = sum((part.double().sum(0) for part in parts), zero_D) / len(features)
    if not torch.isfinite(mean_D).all():
        raise ValueError("features have NaN or infinite values")
    squares_D = sum(((part.double() - mean_D).square().sum(0) for part in parts), zero_D)
    deviation_D = (squares_D / len(features)).sqrt()
    # A column of one value leaves rounding, which must not be scaled up.
    still = deviation_D <= 1e-6 * mean_D.abs()
    if alike:
        still |= deviation_D <= DEAD * deviation_D.median()
    return mean_D.float(), torch.where(still | (deviation_D == 0), 1.0, deviation_D).float()
