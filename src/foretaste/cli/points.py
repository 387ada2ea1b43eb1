"""Labelled points and pools from users' own files, as the commands take them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from foretaste.data import read_points

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Points:
    """Points of a file, ids and labels as words."""

    where: str
    x: Tensor  # (N, channels, H, W) uint8, or float32
    ids: list[str]
    labels: list[str] | None = None
    features: tuple[str, ...] | None = None  # names of a CSV's columns
    own_ids: bool = False  # whether they are the user's, and not positions
    classes: tuple[str, ...] | None = None  # in the file's own order
    notes: tuple[str, ...] = ()


def read(
    path: Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    skip_broken: bool = False,
    progress: Progress | None = None,
) -> Points:
    """Points as ``foretaste.data.read_points`` reads them; labels count only if every point has one."""
    got = read_points(path, regression=True, size=size, channels=channels, skip_broken=skip_broken, progress=progress)
    labels = got.known_labels if len(got.known_labels) == len(got) else None
    return Points(got.where, got.x, got.ids, labels, got.features, got.own_ids, got.classes, got.notes)
