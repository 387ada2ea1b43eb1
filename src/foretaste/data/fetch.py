"""Fetch a data set by name into the folder where ``load`` looks, by pooch; unpack archives from unknown sources.

An archive is unpacked inside its folder, within a size, and completely or not at all.
"""

import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from foretaste.data.catalogue import CATALOGUE, RemoteFile, home
from foretaste.errors import check_known, format_bytes
from foretaste.files import is_disk_full

DOWNLOAD_BLOCK = 1 << 18
ARCHIVE_MEMBERS = 1000  # at most
TRANSIENT_STATUS = (408, 425, 429, 500, 502, 503, 504)

DownloadProgress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server (s), how often to try an address, and the first pause (s, then doubled)."""

    timeout: float = 30.0
    tries: int = 4
    wait: float = 1.0


def get(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    progress: DownloadProgress | None = None,
    force: bool = False,
    patience: Patience | None = None,
) -> Path:
    """Download a data set from its publisher. Files that are there and correct are kept.

    ``folder`` is that of data sets: None is $FORETASTE_DATA, else ~/.cache/foretaste. ``progress`` is called with the
    file, the bytes so far and the bytes in all. ``force`` replaces files of other content, and unpacks archives again.

    Example:
        >>> from foretaste.data import get
        >>> get("minst")
        Traceback (most recent call last):
        ...
        ValueError: unknown data set 'minst'; did you mean 'mnist'? Known: cifar10, cifar100, fashion-mnist, mnist, svhn
    """
    check_known("data set", name, CATALOGUE)
    place = Path(folder if folder is not None else home()).expanduser() / name
    missing = [file for file in CATALOGUE[name].files if force or not _is_there(file, place)]
    if not missing:
        return place
    place.mkdir(parents=True, exist_ok=True)
    need, free = sum(file.size + file.unpacked for file in missing), shutil.disk_usage(place).free
    if need > free:
        raise OSError(
            f"{name} needs {format_bytes(need)} and the disk of {place} has {format_bytes(free)} free; make room first"
        )
    for file in missing:
        by_hand = file.becomes is not None and not force and _is_correct(file, place / file.name)
        came = place / file.name if by_hand else download_file(file, place, progress=progress, patience=patience)
        if file.becomes is not None:
            unpack_archive(came, place / file.becomes, most=file.unpacked, members=ARCHIVE_MEMBERS)
            came.unlink()
    return place


def _is_there(file: RemoteFile, place: Path) -> bool:
    """Whether the file is complete. A file has its checksum; a folder appears only when it is complete."""
    if file.becomes is not None:
        return (place / file.becomes).is_dir()
    path = place / file.name
    if _is_correct(file, path):
        return True
    if not path.exists():
        return False
    raise FileExistsError(
        f"{path} is not the publisher's file (its MD5 differs); move it away, or replace it (force=True in Python, "
        "--force on the command line)"
    )


def _is_correct(file: RemoteFile, path: Path) -> bool:
    return path.is_file() and path.stat().st_size == file.size and md5_of(path) == file.md5


def download_file(
    file: RemoteFile, folder: Path, *, progress: DownloadProgress | None = None, patience: Patience | None = None
) -> Path:
    """Fetch ``file`` into ``folder`` by pooch. It is there once its checksum holds, or not at all.

    The addresses are tried in order, each again where the server is busy or the connection breaks.
    """
    import pooch
    from requests import RequestException

    pooch.get_logger().setLevel("WARNING")
    patience = patience or Patience()
    failures = list[str]()
    for url in file.urls:
        for left in reversed(range(patience.tries)):
            download = BoundedDownload(file, progress, patience.timeout)
            try:
                pooch.retrieve(url, f"md5:{file.md5}", fname=file.name, path=folder, downloader=download)
                return folder / file.name
            except (ValueError, RequestException) as error:
                why, transient = _describe_failure(error, file, download.done)
                if left and transient:
                    time.sleep(patience.wait * 2 ** (patience.tries - left - 1))
                    continue
                failures.append(f"{url}: {why}")
                break
            except OSError as error:
                if is_disk_full(error):
                    full = f"no space left on the disk of {folder}; {file.name} needs {format_bytes(file.size)}"
                    raise OSError(error.errno, full) from None
                raise
    raise ConnectionError(
        f"{file.name} could not be fetched ({'; '.join(failures)}); try again later, or put it in {folder} by hand"
    )


class BoundedDownload:
    """A downloader for pooch that takes no more bytes than the file should have, and reports how many came.

    It is the file that pooch's own downloader writes to: pooch has no limit, and counts whole blocks.
    """

    def __init__(self, file: RemoteFile, progress: DownloadProgress | None, timeout: float) -> None:
        self.file, self.progress, self.timeout, self.done = file, progress, timeout, 0

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        from pooch import HTTPDownloader

        headers = {"User-Agent": "foretaste", "Accept-Encoding": "identity"}
        with open(output_file, "wb") as self.raw:
            HTTPDownloader(chunk_size=DOWNLOAD_BLOCK, timeout=self.timeout, headers=headers)(url, self, pooch)

    def write(self, block: bytes) -> None:
        self.done += len(block)
        if self.done > self.file.size:
            raise ValueError(f"sends more than the expected {self.file.size:,} bytes")
        self.raw.write(block)
        if self.progress is not None:
            self.progress(self.file.name, self.done, self.file.size)

    def flush(self) -> None:
        """After each block; nobody reads the file before it is closed."""


def _describe_failure(error: Exception, file: RemoteFile, done: int) -> tuple[str, bool]:
    """What went wrong at an address, and whether it may do better when it is asked again.

    It may where the server is busy, and where the connection broke (after ``done`` bytes) or stalled.
    """
    from requests import ConnectionError, HTTPError, RequestException
    from requests.exceptions import ChunkedEncodingError

    broke = isinstance(error, RequestException) and done > 0
    if isinstance(error, HTTPError) and error.response is not None:
        code = error.response.status_code
        return f"the server says {code} {error.response.reason}", code in TRANSIENT_STATUS
    if isinstance(error, ChunkedEncodingError):
        return "the connection broke off before the end", True
    if "timed out" in str(error):  # requests has several errors for it
        return "the server stalled", isinstance(error, RequestException)
    if isinstance(error, ConnectionError):
        return f"cannot be reached ({error}); is there a network?", broke
    if "does not match the known hash" in str(error):
        return f"its MD5 is not {file.md5}", False
    return str(error) or type(error).__name__, broke


def md5_of(path: Path) -> str:
    """The file's MD5, as publishers print it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


# Archives


def unpack_archive(archive: Path, folder: Path, *, most: int, members: int) -> Path:
    """Unpack a .tar.gz from an unknown source. ``folder`` appears, or is replaced, only when it is complete.

    An archive that holds one folder of the same name becomes that folder. Nothing is left, and an error says why, if a
    name leads out of the folder, or there are links or devices, more than ``most`` bytes or ``members`` names, or
    damage.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        # We decompress, since tarfile checks no checksum; as a stream, so that nothing is read ahead.
        with gzip.open(archive) as raw:
            with tarfile.open(fileobj=raw, mode="r|") as packed:
                _write_members(archive, packed, beside, most, members)
            while raw.read(DOWNLOAD_BLOCK):  # to the end, where the checksum stands
                pass
        held = list(beside.iterdir())
        whole = held[0] if [p.name for p in held] == [folder.name] and held[0].is_dir() else beside
        whole.chmod(0o755)  # mkdtemp makes it private
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(whole, folder)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{archive} is damaged or no .tar.gz: {error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _write_members(archive: Path, packed: tarfile.TarFile, into: Path, most: int, members: int) -> None:
    out, seen = 0, set[str]()
    for count, info in enumerate(packed, 1):
        if count > members:
            raise ValueError(f"{archive}: more than {members} members; expected fewer, so nothing was unpacked")
        if not (info.isfile() or info.isdir()):
            raise ValueError(f"{archive}: {info.name!r} is a link or device; nothing was unpacked")
        path = into / _relative_path(archive, info.name)
        if info.isdir():
            path.mkdir(parents=True, exist_ok=True)
            continue
        if (key := str(path).casefold()) in seen:
            raise ValueError(f"{archive}: {info.name!r} stands twice in it; nothing was unpacked")
        seen.add(key)
        out += info.size
        if out > most:
            raise ValueError(f"{archive}: more than {format_bytes(most)} come out; nothing was unpacked")
        path.parent.mkdir(parents=True, exist_ok=True)
        body = packed.extractfile(info)
        assert body is not None
        with body, path.open("xb") as file:
            shutil.copyfileobj(body, file)
    if not seen:
        raise ValueError(f"{archive} holds no files")


def _relative_path(archive: Path, name: str) -> Path:
    """A member's name as a path below the folder, on any system."""
    path = PureWindowsPath(name)  # knows both slashes, drives and shares
    parts = [part for part in path.parts if part != "."]
    if path.anchor or ".." in parts or "\0" in name or any(":" in part for part in parts):
        raise ValueError(f"{archive}: {name!r} leads out of the folder; nothing was unpacked")
    return Path(*parts)
