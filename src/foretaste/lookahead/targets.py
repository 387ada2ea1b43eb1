"""Labels in, targets out: class ids and class names become 0/1 rows, and nothing else is guessed.

Labels as users give them are read in ``foretaste.given``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.errors import counted
from foretaste.given import ClassName, holds_classes, label_tensor, labels_as_numbers, resolve_class_names
from foretaste.lookahead.kernel_settings import KernelSettings
from foretaste.losses import LOSSES, BinaryOutputs
from foretaste.tangent import Params


@dataclass(frozen=True)
class LabelRules:
    """What a label may be: C outputs, class ids unless ``regression`` (C = 1), probabilities if the loss is "ce".

    ``names`` are the names of the classes, in the order of the outputs: then a label may be a name. ``binary`` is of
    ``BinaryOutputs``: then a label may also be True or False, or 0.0 or 1.0.
    """

    C: int
    regression: bool
    loss: str
    device: torch.device  # of the network, where given labels must be
    float64_device: torch.device  # of the float64 algebra
    names: tuple[ClassName, ...] | None = None
    binary: bool = False

    def targets(self, y: Any, n: int | None = None, name: str = "y") -> Tensor:
        """(n, C) float64 targets of n labels: class ids, names or, in regression, numbers (n,); or targets (n, C)."""
        if isinstance(y, Tensor):
            self._check_device(y, name)
        return self._rows(labels_as_numbers(y, self.names, self.binary, name), n, name)

    def prior(self, y_LC: Tensor) -> Tensor:
        """(C,): what is known without a network: the targets' mean in regression (0 without any), 1/C for classes."""
        if self.regression and len(y_LC):
            return y_LC.mean(0)
        return y_LC.new_full((self.C,), 0.0 if self.regression else 1 / self.C)

    def _check_device(self, t: Tensor, name: str) -> None:
        if t.device != self.device:
            raise ValueError(
                f"{name} is on {t.device} and the network on {self.device}; move it with .to({str(self.device)!r})"
            )

    def _rows(self, t: Tensor, n: int | None, name: str) -> Tensor:
        if t.dim() == 0 or (n is not None and t.shape[0] != n):
            raise ValueError(
                f"{name} has shape {tuple(t.shape)}; expected {'n' if n is None else n} labels, one for each point"
            )
        if t.is_floating_point():
            return self._floats(t, name)
        if self.regression:
            raise ValueError(f"{name} holds integers, which are class ids; regression wants floats: {name}.double()")
        return self._classes(t, name)

    def target(self, y: Any) -> Tensor:
        """(C,) of one label: a class id or name, a (C,) target, or a number in regression."""
        t = labels_as_numbers(y, self.names, self.binary, "y")
        if t.dim() > 1 or (t.dim() == 1 and (t.shape[0] != self.C or not t.is_floating_point())):
            raise ValueError(f"y has shape {tuple(t.shape)}; expected {self.expected(one=True)}")
        if t.dim() and isinstance(y, Tensor):  # a single number may come from any device
            self._check_device(y, "y")
        return self._rows(t.reshape(1, -1) if t.dim() else t[None], 1, "y")[0]

    def expected(self, one: bool = False) -> str:
        """What a label may be, for an error message."""
        if self.regression:
            return "a float" if one else "floats (n,)"
        ids = f"class ids below {self.C}"
        return f"one of the {ids}, or floats ({self.C},)" if one else f"integers (n,), {ids}, or floats (n, {self.C})"

    def _classes(self, t: Tensor, name: str) -> Tensor:
        if t.dim() != 1:
            raise ValueError(f"{name} has integers of shape {tuple(t.shape)}; expected {self.expected()}")
        if (bad := (t < 0) | (t >= self.C)).any():
            first = int(bad.nonzero()[0])
            raise ValueError(
                f"{name} has {counted(int(bad.sum()), 'label')} outside the {self.C} classes of the network's outputs, "
                f"first {int(t[first])} at {first}; expected 0 to {self.C - 1}. If they are names, give classes="
            )
        one_hot = torch.zeros(len(t), self.C, dtype=torch.float64, device=self.float64_device)
        return one_hot.scatter_(1, t.long().to(self.float64_device)[:, None], 1.0)

    def _floats(self, t: Tensor, name: str) -> Tensor:
        if t.dim() == 1 and self.C == 1:
            t = t[:, None]
        if t.dim() != 2 or t.shape[1] != self.C:
            hint = "; class ids must be integers: y.long()" if t.dim() == 1 and not self.regression else ""
            raise ValueError(f"{name} has floats of shape {tuple(t.shape)}; expected {self.expected()}{hint}")
        if not (finite := torch.isfinite(t)).all():
            row = int((~finite).any(1).nonzero()[0])
            raise ValueError(
                f"{name} has {int((~finite).sum())} NaN or infinite values, first at {row}; drop those points"
            )
        t = t.to(self.float64_device, torch.float64)
        if not LOSSES[self.loss].accepts(t, 1e-6):
            raise ValueError(
                f'{name} has rows that are not probabilities; loss="{self.loss}" needs rows ≥ 0 that sum to 1'
            )
        return t


def label_rules(
    y_L: Any,
    C: int,
    loss: str,
    device: torch.device,
    float64_device: torch.device,
    classes: Sequence[ClassName] | None = None,
    binary: bool = False,
) -> LabelRules:
    """Regression is one output and floats; integers and text are always classes."""
    names = resolve_class_names(y_L, classes, C)
    if C == 1:
        floats = y_L is None or (y := label_tensor(y_L, "y_L")).is_floating_point() or y.numel() == 0
        if not floats:
            raise ValueError(
                "y_L holds integers, which are class ids, but there is one output; regression wants floats: "
                "y_L.double(). A classifier needs an output for each class"
            )
    if C == 1 and not LOSSES[loss].quadratic:
        raise ValueError(f'loss="{loss}" needs an output for each class; this network has one. Use loss="l2"')
    return LabelRules(C, C == 1, loss, device, float64_device, names, binary)


def settle_binary(
    net: nn.Module, C: int, y_L: Any, settings: KernelSettings, classes: Sequence[ClassName] | None
) -> tuple[nn.Module, int, KernelSettings]:
    """A network of one output and two classes, as one of two outputs, C = 2, and the settings for it.

    Other networks come back as they are.
    """
    if C > 1 or not holds_classes(y_L, settings.loss, classes):
        return net, C, settings
    two = BinaryOutputs(net, settings.loss)
    return two, 2, replace(settings, output=two.kernel_output, params=binary_params(settings.params))


def binary_params(params: Params) -> Params:
    """``params`` of a network, for ``BinaryOutputs`` of it, in which names start with "net."."""
    if isinstance(params, str) and params.startswith("re:"):
        return lambda name: re.search(params[3:], name.removeprefix("net.")) is not None
    if params is None or isinstance(params, str):
        return params
    if callable(params):
        return lambda name: params(name.removeprefix("net."))
    return [f"net.{name}" for name in params]
