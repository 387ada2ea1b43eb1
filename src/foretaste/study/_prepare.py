"""The data of a study, on its device."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from foretaste.data import Images, digits, fewer, load, smaller
from foretaste.study._config import Data

# (channels, pixels a side, classes) of the data sets that a stand-in may take the place of.
SHAPES = {
    "mnist": (1, 28, 10),
    "fashion-mnist": (1, 28, 10),
    "svhn": (3, 32, 10),
    "cifar10": (3, 32, 10),
    "cifar100": (3, 32, 100),
    "cifar100-coarse": (3, 32, 20),
}


def prepared(how: Data, device: str, standin: bool = False) -> Images:
    """Read, made fewer if asked, and on the device.

    ``standin``, for a look at the machinery: digits in their shape where the data are not found, and as many points as
    there are where more are asked for.
    """
    try:
        data = load(
            how.name, how.folder, normalise=how.normalise, test=how.test, size=how.size, channels=how.channels,
            skip_broken=how.skip_broken,
        )  # fmt: skip
    except FileNotFoundError:
        if not standin or how.name not in SHAPES:
            raise
        data = stand_in(how.name)
    pool, test = how.pool_points, how.test_points
    if standin:
        pool, test = (None if n is None else min(n, len(ids)) for n, ids in ((pool, data.pool), (test, data.test)))
    if pool is not None or test:
        data = fewer(data, pool=pool, test=test or None)
    return (data if how.pixels is None else smaller(data, how.pixels)).to(device)


def stand_in(name: str) -> Images:
    """scikit-learn's digits in the shape of another data set, so that everything can be tried; never for a result."""
    channels, side, classes = SHAPES[name]
    data = digits()
    x = F.interpolate(data.x.float(), (side, side), mode="bilinear").round().to(torch.uint8)
    says = f"{name} was not found: these are scikit-learn's digits in its shape. A look at the machinery, not a result"
    return replace(
        data,
        name=f"digits for {name}",
        x=x.expand(-1, channels, -1, -1).contiguous(),
        classes=tuple(map(str, range(classes))),
        normalise=(data.normalise[0] * channels, data.normalise[1] * channels) if data.normalise else None,
        notes=(*data.notes, says),
    )
