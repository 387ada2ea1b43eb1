"""Digests of a run's data and of the code that it imports: a run resumes with the same ones only.

Without them, a file that was replaced between two starts would mix two data sets in one file of records.
"""

import importlib.util
import logging
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from foretaste.data import Images
from foretaste.errors import printable
from foretaste.network import LIBRARY_PREFIXES
from foretaste.study.config import Study

log = logging.getLogger("foretaste")

DIGEST_BYTES = 16
DATA_PARTS = {  # as study.json names them, and in words
    "x": "the points",
    "items": "the texts or rows",  # in the place of x, where it is computed from them
    "y": "the labels",
    "pool": "which points are in the pool",
    "test": "which points are in the test set",
    "classes": "the names of the classes",
}


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

    Args:
        folder: of the run.
        stored: the digests in its study.json; None in a folder of an earlier version.
        data: the data of now.
        study: the study of now.
        begun: whether the folder has records. Without any, nothing can be mixed.
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
