"""Labels in, targets out: class ids and class names become 0/1 rows, and nothing else is guessed.

A network of one output with two classes becomes one of two outputs here (``BinaryOutputs``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.errors import did_you_mean
from foretaste.losses import LOSSES
from foretaste.tangent import Output, Params


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
    home: torch.device  # of the float64 algebra
    names: tuple[str, ...] | None = None
    binary: bool = False

    def targets(self, y: Any, n: int | None = None, name: str = "y") -> Tensor:
        """(n, C) float64 targets of n labels: class ids, names or, in regression, numbers (n,); or targets (n, C)."""
        t = self._tensor(y, name)
        if isinstance(y, Tensor) and t.device != self.device:
            raise ValueError(
                f"{name} is on {t.device} and the network on {self.device}; move it with .to({str(self.device)!r})"
            )
        if t.dim() == 0 or (n is not None and t.shape[0] != n):
            raise ValueError(
                f"{name} has shape {tuple(t.shape)}; expected {'n' if n is None else n} labels, one for each point"
            )
        if t.is_floating_point():
            return self._floats(t, name)
        if self.regression:
            raise ValueError(f"{name} holds integers, which are class ids; regression wants floats: {name}.double()")
        return self._classes(t, name)

    def target(self, y: Any, name: str = "y") -> Tensor:
        """(C,) of one label: a class id or name, a (C,) target, or a number in regression."""
        t = self._tensor(y, name)
        if t.dim() > 1 or (t.dim() == 1 and (t.shape[0] != self.C or not t.is_floating_point())):
            raise ValueError(f"{name} has shape {tuple(t.shape)}; expected {self.expected(one=True)}")
        if t.dim() == 0 or not isinstance(y, Tensor):
            t = t.to(self.device)  # a single number may come from any device
        return self.targets(t.reshape(1, -1) if t.dim() else t[None], 1, name)[0]

    def expected(self, one: bool = False) -> str:
        """What a label may be, for an error message."""
        if self.regression:
            return "a float" if one else "floats (n,)"
        ids = f"class ids below {self.C}"
        return f"one of the {ids}, or floats ({self.C},)" if one else f"integers (n,), {ids}, or floats (n, {self.C})"

    def _tensor(self, y: Any, name: str) -> Tensor:
        """Labels as numbers: names as class ids, and of two classes also True, False, 0.0 and 1.0."""
        if text_labels(y) is not None:
            return names_to_ids(y, self.names, name).to(self.device)
        t = label_tensor(y, name, allow_bool=self.binary)
        if t.dtype == torch.bool or (self.binary and t.is_floating_point() and t.dim() < 2 and zeros_and_ones(t)):
            return t.long()
        return t

    def _classes(self, t: Tensor, name: str) -> Tensor:
        if t.dim() != 1:
            raise ValueError(f"{name} has integers of shape {tuple(t.shape)}; expected {self.expected()}")
        if (bad := (t < 0) | (t >= self.C)).any():
            first = int(bad.nonzero()[0])
            raise ValueError(
                f"{name} has {int(bad.sum())} labels outside the {self.C} classes of the network's outputs, "
                f"first {int(t[first])} at {first}; expected 0 to {self.C - 1}"
            )
        one_hot = torch.zeros(len(t), self.C, dtype=torch.float64, device=self.home)
        return one_hot.scatter_(1, t.long().to(self.home)[:, None], 1.0)

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
        t = t.to(self.home, torch.float64)
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
    home: torch.device,
    classes: Sequence[str] | None = None,
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
    return LabelRules(C, C == 1, loss, device, home, names, binary)


def resolve_class_names(y_L: Any, classes: Sequence[str] | None, C: int) -> tuple[str, ...] | None:
    """The names of the C classes: ``classes``, or the sorted labels if they are text and C of them differ."""
    text = text_labels(y_L)
    if classes is None:
        if text is None:
            return None
        found = tuple(sorted({str(label) for label in text.flat}))
        if len(found) != C:
            raise ValueError(
                f"y_L has {len(found)} different labels ({', '.join(found[:8])}{', ...' * (len(found) > 8)}) and the "
                f"network has {C} outputs; give classes=, all {C} names in the order of the outputs"
            )
        return found
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise TypeError(f"classes is {classes!r}; expected a list of names, as text")
    names = tuple(classes)
    if len(names) != C or len(set(names)) != C:
        raise ValueError(
            f"classes has {len(names)} names, {len(set(names))} of them different, and the network has {C} outputs; "
            f"expected {C} names in the order of the outputs"
        )
    return names


def text_labels(y: Any) -> np.ndarray | None:
    """The labels as an array of text, or None if they are something else. Sequences, numpy and pandas are taken."""
    if y is None or isinstance(y, Tensor | int | float):
        return None
    if isinstance(y, str):
        return np.asarray(y)
    if isinstance(y, list | tuple) and not (y and isinstance(y[0], str)):
        return None  # a long list of numbers is not copied to find that out
    array = np.asarray(y)
    if array.dtype.kind == "U" or (array.dtype.kind == "O" and all(isinstance(label, str) for label in array.flat)):
        return array if array.size else None
    return None


def names_to_ids(y: Any, names: Sequence[str] | None, name: str = "y_L") -> Tensor:
    """Class names as class ids, on the CPU."""
    text = text_labels(y)
    assert text is not None
    if names is None:
        raise ValueError(
            f"{name} holds text, such as {str(text.flat[0])!r}; give classes=, the names in the order of the network's "
            "outputs"
        )
    ids = {label: c for c, label in enumerate(names)}
    for label in text.flat:
        if label not in ids:
            raise ValueError(f"{name} has the unknown class {str(label)!r}{did_you_mean(label, names)}")
    return torch.tensor([ids[label] for label in text.flat], dtype=torch.int64).reshape(text.shape)


def zeros_and_ones(t: Tensor) -> bool:
    return bool(((t == 0) | (t == 1)).all())


def label_tensor(y: Any, name: str, allow_bool: bool = False) -> Tensor:
    """Labels that are numbers, as a tensor."""
    try:
        t = y.detach() if isinstance(y, Tensor) else torch.as_tensor(y)
        if t.is_floating_point() and not hasattr(y, "dtype"):
            t = torch.as_tensor(y, dtype=torch.float64)  # Python's floats are: float32 would round them
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} is a {type(y).__name__} that is no tensor of labels; expected numbers") from None
    if (t.dtype == torch.bool and not allow_bool) or t.is_complex():
        raise ValueError(f"{name} is of {t.dtype}; expected class ids as integers, or floats")
    return t


# A single logit with 0/1 labels is binary classification. With two outputs everything that needs classes works:
#
#     cross-entropy   (0, f)       softmax is (1 − σ(f), σ(f)). The kernel of their sum is Θ_f / 2, the same for both
#                                  logits, so that their difference moves by Θ_f: binary cross-entropy with the logit f.
#     squared loss    (1 − f, f)   Targets are 0/1 rows, the residuals (−e, e), and both move by the kernel Θ_f of the
#                                  second: regression on 0/1, whose class is 1 where f > 1/2.


class BinaryOutputs(nn.Module):
    """A network of one output as a classifier of two classes. It only reads ``net``."""

    def __init__(self, net: nn.Module, loss: str) -> None:
        super().__init__()
        self.net, self.quadratic = net, LOSSES[loss].quadratic
        self.training = net.training

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        f_N1 = self.net(*args, **kwargs)
        f_N1 = getattr(f_N1, "logits", f_N1)
        return torch.cat([1 - f_N1 if self.quadratic else torch.zeros_like(f_N1), f_N1], 1)

    @property
    def kernel_output(self) -> Output:
        """The ``output`` of ``ft.ntk`` whose kernel both classes share."""
        return 1 if self.quadratic else "sum"


def holds_classes(y_L: Any, loss: str, classes: Sequence[str] | None) -> bool:
    """Whether labels for a network of one output are two classes: 0 and 1, False and True, or names.

    Floats are regression, unless the loss is for classes only. Raises where they are neither.
    """
    if classes is not None or text_labels(y_L) is not None:
        return True
    t = torch.empty(0) if y_L is None else label_tensor(y_L, "y_L", allow_bool=True)
    if t.numel() == 0 or t.is_floating_point():
        if LOSSES[loss].quadratic:
            return False
        if t.dim() > 1 or not zeros_and_ones(t):
            raise ValueError(
                f'loss="{loss}" with one output is binary classification, whose labels are 0 and 1; y_L has other '
                'values. Give 0 and 1, or loss="l2" for regression'
            )
        return True
    if not zeros_and_ones(t):
        raise ValueError(
            f"y_L holds integers from {int(t.min())} to {int(t.max())}, which are class ids, and one output tells two "
            "classes apart, 0 and 1; give the network an output for each class. If they are numbers, regression wants "
            "floats: y_L.double()"
        )
    return True


def binary_params(params: Params) -> Params:
    """``params`` of a network, for ``BinaryOutputs`` of it, in which names start with "net."."""
    if params is None or isinstance(params, str):
        return params
    if callable(params):
        return lambda name: params(name.removeprefix("net."))
    return [f"net.{name}" for name in params]
