"""The data of a study: read, made smaller, turned into features; and the digests by which a resumed run knows them.

Without digests, a file that was replaced between two starts would mix two data sets in one file of records.
"""

import importlib.util
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from foretaste.data import Answers, Images, digits, fewer, imbalanced, load, noisy, smaller
from foretaste.errors import printable
from foretaste.executors import torch_threads
from foretaste.network import LIBRARY_PREFIXES, column_moments, features, find_backbone
from foretaste.study.config import Data, Features, Study
from foretaste.study.trial_network import derive_seed

log = logging.getLogger("foretaste")

# (channels, pixels a side, classes) of the data sets that digits can stand in for.
STAND_IN_SHAPES = {
    "mnist": (1, 28, 10),
    "fashion-mnist": (1, 28, 10),
    "svhn": (3, 32, 10),
    "cifar10": (3, 32, 10),
    "cifar100": (3, 32, 100),
    "cifar100-coarse": (3, 32, 20),
}
DIGEST_BYTES = 16
DATA_PARTS = {  # as study.json names them, and in words
    "x": "the points",
    "items": "the texts or rows",  # in the place of x, where it is computed from them
    "y": "the labels",
    "pool": "which points are in the pool",
    "test": "which points are in the test set",
    "classes": "the names of the classes",
}


def prepared(
    how: Data,
    device: str,
    standin: bool = False,
    *,
    features: Features | None = None,
    progress: Callable[[int, int], Any] | None = None,
    answers: Answers | None = None,
) -> Images:
    """The data of a study, on a device.

    Args:
        how: the study's ``data`` table.
        device: such as "cpu" or "cuda:0".
        standin: use digits in the shape of the data set if it is not found, and at most as many points as there are.
        features: the study's ``features`` table; its backbone then turns pictures into features.
        progress: called with (points done, all points) while features are computed.
        answers: finds the labels that people have given to the points of a path; ``foretaste.label.find_answers`` for
            those of ``foretaste label``. None takes the labels in the data alone.

    Returns:
        The data, made fewer and smaller as the table says. Notes tell what was done.

    Raises:
        FileNotFoundError: if the data are not found.

    Example:
        >>> from foretaste.study import Data, prepared
        >>> len(prepared(Data(pool_points=100), "cpu").pool)
        100
    """
    with torch_threads(1):  # as in the workers: the number of processes must not change a bit of a record
        try:
            data = load(
                how.name, how.folder, normalise=how.normalise, test=how.test, size=how.size, channels=how.channels,
                skip_broken=how.skip_broken, answers=answers,
            )  # fmt: skip
        except FileNotFoundError:
            if not standin or how.name not in STAND_IN_SHAPES:
                raise
            data = stand_in(how.name)
        pool, test = how.pool_points, how.test_points
        if standin:
            pool, test = (None if n is None else min(n, len(ids)) for n, ids in ((pool, data.pool), (test, data.test)))
        if pool is not None or test:
            data = fewer(data, pool=pool, test=test or None)
        data = data if how.pixels is None else smaller(data, how.pixels)
        return (data if features is None else encode(data, features, device, progress)).to(device)


def stand_in(name: str) -> Images:
    """scikit-learn's digits in the shape of another data set, to try a study without the data. Never for a result."""
    channels, side, classes = STAND_IN_SHAPES[name]
    data = digits()
    x = F.interpolate(data.x.float(), (side, side), mode="bilinear").round().to(torch.uint8)
    note = f"{name} was not found: these are scikit-learn's digits in its shape. A look at the machinery, not a result"
    return replace(
        data, name=f"digits for {name}", x=x.expand(-1, channels, -1, -1).contiguous(),
        classes=tuple(map(str, range(classes))),
        normalise=(data.normalise[0] * channels, data.normalise[1] * channels) if data.normalise else None,
        notes=(*data.notes, note),
    )  # fmt: skip


def altered(data: Images, how: Data, seed: int) -> Images:
    """The pool of one seed: with rare classes and wrong labels, if the study asks for them."""
    if how.imbalance < 1:
        data = imbalanced(data, how.imbalance, derive_seed(seed, 0, "imbalance"))
    return noisy(data, how.noise, derive_seed(seed, 0, "noise")) if how.noise else data


# Features


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


# Digests


def data_digest(data: Images) -> dict[str, str]:
    """A digest of each part of the data.

    The normalisation is left out: it follows from the points and the settings, and its last bit may differ between
    machines. So may the last bits of all that is computed: for features what is shown counts in their place, for texts
    and tables what was read.
    """
    x = data.x if data.shown is None else data.shown
    points = {"x": _array_digest(x.cpu().numpy())} if data.read is None else {"items": data.read}
    arrays = {"y": data.y.cpu().numpy(), "pool": data.pool, "test": data.test}
    parts = points | {name: _array_digest(array) for name, array in arrays.items()}
    return parts | {"classes": _bytes_digest("\0".join(data.classes).encode("utf-8", "surrogatepass"))}


def code_digest(study: Study) -> dict[str, str]:
    """A digest of each plugin's file, and of the file of each network that is not built in, by file or module name."""
    networks = [study.network, *(study.trial(name).network for name in study.names)]
    modules = [network.name.partition(":")[0] for network in networks if not network.built_in]
    backbone, colon, _ = study.features.backbone.partition(":") if study.features else ("", "", "")
    if colon and backbone not in LIBRARY_PREFIXES:
        modules.append(backbone)
    files: dict[str, set[Path]] = {}
    for source in (*study.plugins, *modules):
        if file := _file_of(source):
            name = file.name if source.endswith(".py") else source
            files.setdefault(name, set()).add(file)
    return {name: _bytes_digest(b"\0".join(f.read_bytes() for f in sorted(found))) for name, found in files.items()}


def check_digest(
    folder: Path, stored: Mapping[str, Any] | None, data: Images, study: Study, begun: bool
) -> dict[str, Any]:
    """Raise if the run in the folder was begun with other data or code; returns what study.json is to keep.

    ``stored`` are the digests in its study.json, None in a folder of an earlier version. ``begun``: the folder has
    records. Without any, nothing can be mixed.
    """
    here = {"data": data_digest(data), "code": code_digest(study)}
    if not begun:
        return here
    if stored is None:
        log.warning(
            "%s was begun by an earlier version, which kept no digest of the data. Whether the data is still the same "
            "cannot be checked; later starts can",
            printable(str(folder)),
        )
        return here
    then, now = stored.get("data", {}), here["data"]
    if changed := [DATA_PARTS[part] for part in now if then.get(part, now[part]) != now[part]]:
        raise changed_error(folder, f"the data {data.name!r} has changed: {', '.join(changed)}", "the data")
    code = stored.get("code", {})
    if edited := sorted(name for name, digest in here["code"].items() if code.get(name, digest) != digest):
        raise changed_error(folder, f"the code of {', '.join(edited)} has changed", "the code")
    return {"data": now, "code": {**code, **here["code"]}}


def changed_error(folder: Path, what: str, restore: str) -> ValueError:
    return ValueError(
        f"{folder} holds a run with records, and since then {what}. Records of both would be mixed: put {restore} of "
        "the first start back, choose another folder, or remove this one"
    )


def _file_of(source: str) -> Path | None:
    """The file of a plugin or module; None for one without a file, such as a package without __init__."""
    if source.endswith(".py"):
        return Path(source).resolve()
    try:
        spec = importlib.util.find_spec(source)
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(spec.origin) if spec and spec.origin and Path(spec.origin).is_file() else None


def _array_digest(array: np.ndarray) -> str:
    flat = np.ascontiguousarray(array).reshape(-1)
    return _bytes_digest(f"{array.dtype.str} {array.shape} ".encode(), flat.view(np.uint8).data)


def _bytes_digest(*parts: bytes | memoryview) -> str:
    found = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        found.update(part)
    return found.hexdigest()
