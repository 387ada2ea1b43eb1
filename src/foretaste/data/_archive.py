"""Unpack a tar or zip of strangers: inside its folder, within a size, and all of it or nothing."""

import bz2
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from typing import IO, cast

from foretaste.data._find import size_of

MOST = 16 * 10**9  # bytes that come out
MEMBERS = 1_000_000
RATIO = 1000  # deflate's own limit is 1032: only zeros come near
FREE = 10**8  # bytes below which no ratio is suspicious
BLOCK = 1 << 20

Member = tuple[str, bool, IO[bytes] | None]  # name, whether a folder, its bytes


def unpack(archive: Path, folder: Path, *, most: int = MOST, members: int = MEMBERS) -> Path:
    """Unpack into ``folder``, which must not be there yet (or be empty); it appears when all of it is there.

    An archive that holds one folder of that name is taken to be it. Names that climb out, links, devices, more than
    ``most`` bytes of what really comes out, more than ``members`` names, or damage: nothing is left, and the error says
    why.
    """
    archive, folder = Path(archive), Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is there already; remove it, or unpack {archive.name} elsewhere")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write_all(archive, beside, most, members)
        held = list(beside.iterdir())
        whole = held[0] if [p.name for p in held] == [folder.name] and held[0].is_dir() else beside
        whole.chmod(0o755)  # mkdtemp's own is for its owner alone
        os.replace(whole, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _write_all(archive: Path, into: Path, most: int, members: int) -> None:
    packed, out, seen = archive.stat().st_size, 0, set[str]()
    allowed = max(FREE, RATIO * packed)
    with _members(archive) as entries:
        for count, (name, is_folder, body) in enumerate(entries, 1):
            if count > members:
                raise ValueError(f"{archive}: more than {members} members; expected fewer, so nothing was unpacked")
            path = into / _inside(archive, name)
            if is_folder:
                path.mkdir(parents=True, exist_ok=True)
                continue
            if (key := str(path).casefold()) in seen:
                raise ValueError(f"{archive}: {name!r} stands twice in it; nothing was unpacked")
            seen.add(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            assert body is not None
            with body, path.open("xb") as file:
                while block := body.read(BLOCK):
                    out += len(block)
                    if out > most:
                        raise ValueError(f"{archive}: more than {size_of(most)} come out of it; nothing was unpacked")
                    if out > allowed:
                        raise ValueError(
                            f"{archive}: {size_of(packed)} that unpack to more than {size_of(allowed)}, as a bomb "
                            "does; nothing was unpacked"
                        )
                    file.write(block)
    if not seen:
        raise ValueError(f"{archive} holds no files")


def _inside(archive: Path, name: str) -> Path:
    """``name`` as a path that stays below where it is put, on any system."""
    path = PureWindowsPath(name)  # takes both slashes, drives and shares
    parts = [part for part in path.parts if part != "."]
    if path.anchor or ".." in parts or "\0" in name or any(":" in part for part in parts):
        raise ValueError(f"{archive}: {name!r} leads out of the folder; nothing was unpacked")
    return Path(*parts)


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[Member]]:
    """The members of a tar or zip; damage anywhere while they are read is told as such."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                yield _of_zip(archive, packed)
        else:
            # Inflated here, for tarfile checks no checksum; a stream, so that nothing is read ahead to count members.
            with _inflated(archive) as raw:
                with tarfile.open(fileobj=raw, mode="r|") as packed_tar:
                    yield _of_tar(archive, packed_tar)
                while raw.read(BLOCK):  # to the end, where the checksum stands
                    pass
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{archive} is damaged or no tar or zip: {error}") from None
    except (OSError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, not the archive's
        raise ValueError(f"{archive} is damaged or locked: {error}") from None
    except Exception as error:
        if type(error).__module__ in ("zlib", "_lzma", "lzma"):
            raise ValueError(f"{archive} is damaged: {error}") from None
        raise


def _inflated(archive: Path) -> IO[bytes]:
    with archive.open("rb") as file:
        start = file.read(6)
    if start.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(archive))
    if start == b"\xfd7zXZ\0":
        return cast(IO[bytes], lzma.open(archive))
    if start.startswith(b"BZh"):
        return cast(IO[bytes], bz2.open(archive))
    return archive.open("rb")


def _of_zip(archive: Path, packed: zipfile.ZipFile) -> Iterator[Member]:
    for info in packed.infolist():
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ValueError(f"{archive}: {info.filename!r} is a link or device; nothing was unpacked")
        yield info.filename, info.is_dir(), None if info.is_dir() else packed.open(info)


def _of_tar(archive: Path, packed: tarfile.TarFile) -> Iterator[Member]:
    for info in packed:
        if not (info.isfile() or info.isdir()):
            raise ValueError(f"{archive}: {info.name!r} is a link or device; nothing was unpacked")
        yield info.name, info.isdir(), None if info.isdir() else packed.extractfile(info)
