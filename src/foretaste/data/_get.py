"""Fetch a data set by name into the folder where ``load`` looks for it."""

import difflib
import os
import shutil
from pathlib import Path

from foretaste.data._archive import unpack
from foretaste.data._catalogue import CATALOGUE, File
from foretaste.data._download import Patience, Progress, download, md5
from foretaste.data._find import home, size_of


def get(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
    force: bool = False,
    patience: Patience | None = None,
) -> Path:
    """Download ``name`` from its publisher into ``folder``/name, and return that; what is there and right stays.

    ``folder`` is $FORETASTE_DATA or ~/.cache/foretaste unless told; ``progress(file, bytes, of bytes)`` is called as
    they come; ``force`` fetches anew. A call that was cut short is gone on with by the next one.
    """
    check_name(name)
    place = Path(folder if folder is not None else home()).expanduser() / name
    missing = [file for file in CATALOGUE[name].files if force or not _there(file, place)]
    if not missing:
        return place
    place.mkdir(parents=True, exist_ok=True)
    need, free = sum(file.size + file.unpacked for file in missing), shutil.disk_usage(place).free
    if need > free:
        raise OSError(f"{name} needs {size_of(need)} and the disk of {place} has {size_of(free)} free; make room first")
    for file in missing:
        by_hand = file.becomes is not None and not force and _whole(file, place / file.name)
        came = place / file.name if by_hand else download(file, place, progress=progress, patience=patience)
        if file.becomes is not None:
            _unpacked(came, place / file.becomes, file.unpacked)
    return place


def check_name(name: str) -> None:
    if name not in CATALOGUE:
        near = difflib.get_close_matches(name, CATALOGUE, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise ValueError(f"unknown data set {name!r}{hint} There are {', '.join(CATALOGUE)}")


def found(name: str, folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Where ``name`` seems to lie, by the first of its files; whether it is whole is for ``load`` to tell."""
    root = Path(folder if folder is not None else home()).expanduser()
    places = (root / layout for layout in CATALOGUE[name].layouts)
    return next((place for place in places if any((place / file).is_file() for file in CATALOGUE[name].first)), None)


def _there(file: File, place: Path) -> bool:
    """Files are told by their checksum; a folder appears only when all of it is there (``unpack``)."""
    if file.becomes is not None:
        return (place / file.becomes).is_dir()
    path = place / file.name
    if _whole(file, path):
        return True
    if not path.exists():
        return False
    raise FileExistsError(
        f"{path} is not the publisher's file (its MD5 differs); move it away, or replace it by --force (force=True)"
    )


def _whole(file: File, path: Path) -> bool:
    return path.is_file() and path.stat().st_size == file.size and md5(path) == file.md5


def _unpacked(archive: Path, folder: Path, most: int) -> None:
    """Unpack and drop the archive; an older folder gives way only when the new one is whole."""
    fresh = folder.with_name(f"{folder.name}.new") / folder.name
    shutil.rmtree(fresh.parent, ignore_errors=True)
    try:
        unpack(archive, fresh, most=most, members=1000)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(fresh, folder)
    finally:
        shutil.rmtree(fresh.parent, ignore_errors=True)
    archive.unlink()
