"""Which layers LL4AL reads in the networks of this folder."""

from torch import nn

from foretaste.network._mlp import MLP
from foretaste.network._resnet import ResNet
from foretaste.network._wideresnet import WideResNet


def feature_layers(net: nn.Module) -> list[str]:
    """Names of the hidden activations of an MLP, of the blocks of a ResNet."""
    if isinstance(net, MLP) and net.spec.hidden:
        return [f"layers.{2 * k + 1}" for k in range(len(net.spec.hidden))]
    if isinstance(net, WideResNet | ResNet):
        return [f"stages.{k}" for k in range(len(net.stages))]
    raise ValueError(
        f"which layers of a {type(net).__name__} LL4AL should read is not known; name them, as in layers=['body.2']"
    )
