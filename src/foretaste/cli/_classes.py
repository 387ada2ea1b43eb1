"""Labels as words, to positions among a network's outputs."""

from collections.abc import Sequence
from difflib import get_close_matches

import torch
from torch import Tensor

from foretaste.cli._inputs import Points
from foretaste.data._features import listed
from foretaste.data._listing import natural


def classes_of(labelled: Points, outputs: int | None) -> tuple[str, ...]:
    """Integers are class ids from 0; words stand in natural order."""
    labels = labelled.labels or []
    if all_digits(labels):
        return tuple(map(str, range(max(outputs or 0, 1 + max(map(int, labels))))))
    return tuple(sorted(set(labels), key=natural))


def all_digits(labels: Sequence[str]) -> bool:
    return all(label.isdecimal() for label in labels)


def class_ids(points: Points, classes: Sequence[str]) -> Tensor:
    """(N,) positions of the labels among the classes; those unknown are all named."""
    labels = points.labels or []
    at = {name: c for c, name in enumerate(classes)}
    unknown = sorted({label for label in labels if label not in at}, key=natural)
    if unknown and all_digits(labels) and max(map(int, labels)) < len(classes):
        return torch.tensor([int(label) for label in labels])  # ids of classes that have names
    if unknown:
        near = [f"{u!r}" + (f" (nearest {c[0]!r})" if (c := get_close_matches(u, classes, 1)) else "") for u in unknown]
        raise ValueError(
            f"{points.where}: {len(unknown)} labels are no class of the network: {listed(near)}; "
            f"its classes: {short(classes)}"
        )
    return torch.tensor([at[label] for label in labels])


def truth(pool: Points, classes: Sequence[str]) -> tuple[Tensor | None, str | None]:
    if pool.labels is None:
        return None, None
    try:
        return class_ids(pool, classes), None
    except ValueError as error:
        return None, f"labels of the pool are not used: {error}"


def numbers(points: Points) -> Tensor:
    try:
        y = torch.tensor([float(label) for label in points.labels or []])
    except ValueError as error:
        raise ValueError(f"{points.where}: --regression wants numbers as labels ({error})") from None
    if not torch.isfinite(y).all():
        raise ValueError(f"{points.where}: {int((~torch.isfinite(y)).sum())} labels are not finite numbers")
    return y


def short(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
