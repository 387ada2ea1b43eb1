"""Networks by name, as a configuration file asks for them."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import nn

from foretaste.network._mlp import MLPSpec
from foretaste.network._names import known
from foretaste.network._resnet import ResNetSpec
from foretaste.network._wideresnet import WideResNetSpec

Spec = MLPSpec | WideResNetSpec | ResNetSpec

# name: (what it is made of, what the name alone already says)
NETWORKS: dict[str, tuple[Callable[..., Spec], dict[str, Any]]] = {
    "mlp": (MLPSpec, {}),
    "wrn1": (WideResNetSpec, {"layers": 1}),
    "wrn2": (WideResNetSpec, {"layers": 2}),
    "wrn3": (WideResNetSpec, {"layers": 3}),
    "resnet18": (ResNetSpec, {"blocks": (2, 2, 2, 2)}),
}


def build(name: str, **options: Any) -> nn.Module:
    """A new network: ``build("mlp", inputs=64)``, ``build("wrn1", channels=1, classes=10, widen=4)``."""
    known("network", name, NETWORKS)
    make, said = NETWORKS[name]
    names = [f.name for f in fields(make) if f.name not in said]  # type: ignore[arg-type]
    for option in options:
        known(f"option of {name}", option, names)
    if name == "mlp" and "inputs" not in options:
        raise ValueError("mlp needs inputs=, the number of values of one point: 784 for a 28×28 image")
    return make(**said, **options).build()
