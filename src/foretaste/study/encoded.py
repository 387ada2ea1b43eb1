"""The points of a study as features of a backbone: computed once by ``ft.features``, scaled for a head."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretaste.data import Images
from foretaste.network import column_moments, features, find_backbone
from foretaste.study.config import Features


class ChosenPictures:
    """Some of the pictures of a data set, by position."""

    def __init__(self, x: Tensor, ids: np.ndarray) -> None:
        self.x, self.ids = x, ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> Tensor:
        return self.x[int(self.ids[i])]


def encode(
    data: Images, how: Features, device: str = "cpu", progress: Callable[[int, int], Any] | None = None
) -> Images:
    """The same data set with features in the place of pictures. Ids, labels and what is shown stay.

    Columns are standardised over the pool and divided by √D, as a head does (``make_head``): rows have a length of
    about one. Points that are in neither pool nor test are not computed, and are zero.
    """
    if data.x.dim() != 4 or data.x.dtype != torch.uint8:
        raise ValueError(
            f"[features] backbone={how.backbone!r} takes pictures, and a point of {data.name} is {data.x.dtype} "
            f"{tuple(data.x.shape[1:])}; leave [features] out"
        )
    ids = np.union1d(data.pool, data.test)
    rows = features(
        find_backbone(how.backbone), ChosenPictures(data.x.cpu(), ids), layer=how.layer, cache=how.cache,
        device=device, progress=progress,
    )  # fmt: skip
    mean_D, deviation_D = column_moments(rows[torch.from_numpy(np.isin(ids, data.pool))])
    x_ND = torch.zeros(len(data.x), rows.shape[1])
    x_ND[torch.from_numpy(ids)] = (rows - mean_D) / (deviation_D * math.sqrt(rows.shape[1]))
    layer = f", layer {how.layer}" if how.layer else ""
    note = f"points are {rows.shape[1]} features of {how.backbone}{layer}, standardised over the pool"
    return replace(data, x=x_ND, normalise=None, shown=data.x.cpu(), notes=(*data.notes, note))
