"""Unpack a tar or zip from an unknown source: inside its folder, within a size, and complete or not at all."""

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from typing import IO, cast

from foretaste.errors import format_bytes
from foretaste.files import whole_folder

LARGEST_ARCHIVE = 16 * 10**9  # bytes after unpacking
MOST_MEMBERS = 1_000_000
BOMB_RATIO = 1000  # deflate reaches 1032 at most, and only on zeros
NEVER_A_BOMB = 10**8  # bytes; below this no ratio is suspicious
UNPACK_BLOCK = 1 << 20

ArchiveMember = tuple[str, bool, IO[bytes] | None]  # name, whether it is a folder, its bytes


def unpack_archive(archive: Path, folder: Path, *, most: int = LARGEST_ARCHIVE, members: int = MOST_MEMBERS) -> Path:
    """Unpack a tar or zip from an unknown source into ``folder``, which must be absent or empty.

    The folder appears only when it is complete. An archive that holds one folder of the same name becomes that folder.
    Nothing is left, and an error says why, if a name leads out of the folder, or there are links or devices, more than
    ``most`` bytes or ``members`` names, or damage.
    """
    archive, folder = Path(archive), Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is there already; remove it, or unpack {archive.name} elsewhere")
    with whole_folder(folder) as beside:
        inside = beside / folder.name
        _write_members(archive, beside, most, members)
        if list(beside.iterdir()) == [inside] and inside.is_dir():
            inside = inside.rename(beside.with_name(f"{beside.name}.inside"))
            beside.rmdir()
            inside.rename(beside)
    return folder


def _write_members(archive: Path, into: Path, most: int, members: int) -> None:
    packed, out, seen = archive.stat().st_size, 0, set[str]()
    allowed = max(NEVER_A_BOMB, BOMB_RATIO * packed)
    with _open_members(archive) as entries:
        for count, (name, is_folder, body) in enumerate(entries, 1):
            if count > members:
                raise ValueError(f"{archive}: more than {members} members; expected fewer, so nothing was unpacked")
            path = into / _relative_path(archive, name)
            if is_folder:
                path.mkdir(parents=True, exist_ok=True)
                continue
            if (key := str(path).casefold()) in seen:
                raise ValueError(f"{archive}: {name!r} stands twice in it; nothing was unpacked")
            seen.add(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            assert body is not None
            with body, path.open("xb") as file:
                while block := body.read(UNPACK_BLOCK):
                    out += len(block)
                    if out > most:
                        raise ValueError(f"{archive}: more than {format_bytes(most)} come out; nothing was unpacked")
                    if out > allowed:
                        raise ValueError(
                            f"{archive}: {format_bytes(packed)} unpack to more than {format_bytes(allowed)}, as a bomb "
                            "does; nothing was unpacked"
                        )
                    file.write(block)
    if not seen:
        raise ValueError(f"{archive} holds no files")


def _relative_path(archive: Path, name: str) -> Path:
    """A member's name as a path below the folder, on any system."""
    path = PureWindowsPath(name)  # knows both slashes, drives and shares
    parts = [part for part in path.parts if part != "."]
    if path.anchor or ".." in parts or "\0" in name or any(":" in part for part in parts):
        raise ValueError(f"{archive}: {name!r} leads out of the folder; nothing was unpacked")
    return Path(*parts)


@contextmanager
def _open_members(archive: Path) -> Iterator[Iterator[ArchiveMember]]:
    """The members of a tar or zip. Damage found while they are read raises a ValueError."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                yield _zip_members(archive, packed)
        else:
            # We decompress, since tarfile checks no checksum; as a stream, so that nothing is read ahead.
            with _decompressed(archive) as raw:
                with tarfile.open(fileobj=raw, mode="r|") as packed_tar:
                    yield _tar_members(archive, packed_tar)
                while raw.read(UNPACK_BLOCK):  # to the end, where the checksum stands
                    pass
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{archive} is damaged or no tar or zip: {error}") from None
    except (OSError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault, not the archive's
        raise ValueError(f"{archive} is damaged or locked: {error}") from None
    except Exception as error:
        if type(error).__module__ in ("zlib", "_lzma", "lzma"):
            raise ValueError(f"{archive} is damaged: {error}") from None
        raise


def _decompressed(archive: Path) -> IO[bytes]:
    with archive.open("rb") as file:
        start = file.read(6)
    if start.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(archive))
    if start == b"\xfd7zXZ\0":
        return cast(IO[bytes], lzma.open(archive))
    if start.startswith(b"BZh"):
        return cast(IO[bytes], bz2.open(archive))
    return archive.open("rb")


def _zip_members(archive: Path, packed: zipfile.ZipFile) -> Iterator[ArchiveMember]:
    for info in packed.infolist():
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ValueError(f"{archive}: {info.filename!r} is a link or device; nothing was unpacked")
        yield info.filename, info.is_dir(), None if info.is_dir() else packed.open(info)


def _tar_members(archive: Path, packed: tarfile.TarFile) -> Iterator[ArchiveMember]:
    for info in packed:
        if not (info.isfile() or info.isdir()):
            raise ValueError(f"{archive}: {info.name!r} is a link or device; nothing was unpacked")
        yield info.name, info.isdir(), None if info.isdir() else packed.extractfile(info)
