"""A learner in a folder: JSON for the labels and settings, safetensors for the network and the pool. No pickle.

A save is whole or has not happened. Weights and items lie in files named by their content, and are complete before
``learner.json``, which names them, is put in place by one rename. Files of older saves are removed last. Each file has
the digest of its contents in it, and is refused if it was changed.
"""

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from torch import Tensor, nn

from foretaste.errors import check_regular, printable, seal_holds, seal_json
from foretaste.files import write_whole
from foretaste.network import (
    NETWORKS,
    load_network,
    read_tensors,
    save_network,
    saved_network,
    tensors_digest,
    write_tensors,
)
from foretaste.tangent import Inputs

log = logging.getLogger("foretaste")

SAVED_LEARNER = "learner.json"
SAVING_LOCK = ".saving.lock"
SAVED_VERSION = 2  # 1 had no digests
LONGEST_SAVED = 2_000_000_000  # bytes of learner.json
ONE_TENSOR = "x"  # the name of a pool that is one tensor
STALE = re.compile(r"(network|pool)-[0-9a-f]{16}\.safetensors|\..*\.part")


def write_saved(folder: Path, found: dict[str, Any], net: nn.Module | None, pool: Inputs | None) -> None:
    """Write one save. ``found`` gets the names of the files, and is written last.

    One at a time in a folder, of all threads and processes: another save would remove the files of this one as stale.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / SAVING_LOCK):
        _write_saved(folder, found, net, pool)


def _write_saved(folder: Path, found: dict[str, Any], net: nn.Module | None, pool: Inputs | None) -> None:
    found = found | {"version": SAVED_VERSION, "network_file": None, "pool_file": None}
    if net is not None:
        if other := [key for key, t in net.state_dict().items() if not isinstance(t, Tensor)]:
            raise ValueError(
                f"the state of net has {other[0]!r}, which is no tensor (get_extra_state); a save holds tensors only, "
                "so that loading it runs no code: keep such settings outside of the network's state"
            )
        tensors = {key: t.detach().cpu().contiguous().clone() for key, t in net.state_dict().items()}
        found["network_file"] = f"network-{tensors_digest(tensors, {})}.safetensors"
        if not _is_sealed(folder / found["network_file"]):
            save_network(net, folder / found["network_file"])
    if pool is not None:
        tensors = {ONE_TENSOR: pool} if isinstance(pool, Tensor) else dict(pool)
        tensors = {key: t.detach().cpu().contiguous() for key, t in tensors.items()}
        about = {"one": "yes" if isinstance(pool, Tensor) else "no"}
        found["pool_file"] = f"pool-{tensors_digest(tensors, about)}.safetensors"
        if not _is_sealed(folder / found["pool_file"]):
            write_tensors(folder / found["pool_file"], tensors, about)
    write_whole(folder / SAVED_LEARNER, seal_json(json.dumps(found, allow_nan=False, default=plain_value)))
    for path in folder.iterdir():
        if STALE.fullmatch(path.name) and path.name not in (found["network_file"], found["pool_file"]):
            path.unlink(missing_ok=True)


def plain_value(value: Any) -> Any:
    """What JSON cannot hold by itself: numbers and arrays of numpy and torch."""
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    raise ValueError(
        f"a setting of the learner is a {type(value).__name__}, {value!r:.80}, which a file cannot hold; expected "
        "text, numbers, and lists or dicts of them in options= and fit_options="
    )


def _is_sealed(path: Path) -> bool:
    """Whether a file of an earlier save is there and whole: then it need not be written again."""
    try:
        read_tensors(path, sealed=True)
    except ValueError:
        return False
    return True


def read_saved(folder: Path) -> dict[str, Any]:
    """The contents of learner.json; raises a ValueError that names what is wrong."""
    path = folder / SAVED_LEARNER
    if not path.exists():
        raise FileNotFoundError(f"{folder} has no {SAVED_LEARNER}; expected a folder that learner.save() wrote")
    check_regular(path)
    if path.stat().st_size > LONGEST_SAVED:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; expected at most {LONGEST_SAVED}")
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    version = found.get("version") if isinstance(found, dict) else None
    if version not in (1, SAVED_VERSION):
        raise ValueError(f"{path} is of version {version!r:.20}; this foretaste reads version {SAVED_VERSION}")
    if version == 1 and seal_holds(text) is None:
        words = "%s was saved by an earlier version, without digests: damage to it cannot be told. Save it again"
        log.warning(words, printable(str(folder)))
    elif not seal_holds(text):
        raise ValueError(f"{path} is damaged or was changed: its checksum is not that of its text; put a copy there")
    return found


def saved_file(folder: Path, name: Any) -> Path:
    """A file of the save. Its name must be one that ``write_saved`` gives, so that it cannot leave the folder."""
    if not isinstance(name, str) or not STALE.fullmatch(name) or name.startswith("."):
        raise ValueError(
            f"{folder / SAVED_LEARNER} names the file {name!r:.80}; expected one that learner.save() wrote"
        )
    check_regular(folder / name)
    return folder / name


def read_items(path: Path, sealed: bool) -> Inputs:
    tensors, about = read_tensors(path, sealed=sealed)
    one = about.get("one", "yes") == "yes"  # a dict may have one tensor of that name too
    return tensors[ONE_TENSOR] if one and set(tensors) == {ONE_TENSOR} else tensors


def read_network(path: Path, own: nn.Module | None, given: nn.Module | None, sealed: bool) -> nn.Module:
    """The saved network: the learner's own, one built in, or weights for the user's module."""
    tensors, _ = read_tensors(path, sealed=sealed)
    net = own if given is None else given
    if net is None:
        if saved_network(path).network not in NETWORKS:
            raise ValueError(
                f"{path} has the weights of a network of yours, which a file cannot build; give net=, a network of the "
                "same kind, into which they are loaded"
            )
        return load_network(None, path)
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit the network: {str(error).splitlines()[-1].strip()}") from None
    return net.eval()
