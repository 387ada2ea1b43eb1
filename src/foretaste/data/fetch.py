"""Fetch a data set by name into the folder where ``load`` looks: mirrors, resume, checksums."""

import errno
import hashlib
import http.client
import json
import os
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from foretaste.data.archive import unpack_archive
from foretaste.data.catalogue import CATALOGUE, RemoteFile, home
from foretaste.errors import check_known, format_bytes

DOWNLOAD_BLOCK = 1 << 18
DISK_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
TRANSIENT_STATUS = (408, 425, 429, 500, 502, 503, 504)

DownloadProgress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server (s), how many tries without progress, and the first pause (s, then doubled)."""

    timeout: float = 30.0
    tries: int = 4
    wait: float = 1.0


class WrongFileError(Exception):
    """This address does not have the file: trying again is useless."""


def get(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    progress: DownloadProgress | None = None,
    force: bool = False,
    patience: Patience | None = None,
) -> Path:
    """Download a data set from its publisher. Files that are there and correct are kept.

    An interrupted download resumes in the next call.

    Args:
        name: mnist, fashion-mnist, svhn, cifar10 or cifar100.
        folder: the folder of data sets; None is $FORETASTE_DATA, else ~/.cache/foretaste.
        progress: called as ``progress(file, bytes so far, bytes in all)``.
        force: download again, and replace files of other content.
        patience: timeouts and retries.

    Returns:
        ``folder``/``name``, where the files are.

    Raises:
        ValueError: the name is unknown.
        FileExistsError: a file of that name has other content, and ``force`` is False.
        ConnectionError: no address has the file, or none can be reached.
        OSError: the disk is too small.

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
            _unpack_and_delete(came, place / file.becomes, file.unpacked)
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


def _unpack_and_delete(archive: Path, folder: Path, most: int) -> None:
    """Unpack, then delete the archive. An older folder is replaced only when the new one is complete."""
    fresh = folder.with_name(f"{folder.name}.new") / folder.name
    shutil.rmtree(fresh.parent, ignore_errors=True)
    try:
        unpack_archive(archive, fresh, most=most, members=1000)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(fresh, folder)
    finally:
        shutil.rmtree(fresh.parent, ignore_errors=True)
    archive.unlink()


def download_file(
    file: RemoteFile, folder: Path, *, progress: DownloadProgress | None = None, patience: Patience | None = None
) -> Path:
    """Fetch ``file`` into ``folder``. It gets its name once its checksum holds; until then it is NAME.part.

    The addresses are tried in order. A part stays when all of them fail, and the next call resumes it.
    """
    patience = patience or Patience()
    folder.mkdir(parents=True, exist_ok=True)
    target, part = folder / file.name, folder / f"{file.name}.part"
    failures = []
    with _lock_part(part):
        for url in file.urls:
            try:
                _download_from(url, file, part, progress, patience)
            except (WrongFileError, http.client.HTTPException, OSError) as error:
                if isinstance(error, OSError) and error.errno in DISK_FULL:
                    full = f"no space left on the disk of {folder}; {file.name} needs {format_bytes(file.size)}"
                    raise OSError(error.errno, full) from None
                if _is_local(error):
                    raise
                failures.append(f"{url}: {_describe_failure(error)}")
            else:
                os.replace(part, target)
                _forget_version(part)
                return target
    raise ConnectionError(
        f"{file.name} could not be fetched ({'; '.join(failures)}); try again later, which resumes where it stopped, "
        f"or put the file in {folder} by hand"
    )


@contextmanager
def _lock_part(part: Path) -> Iterator[None]:
    """Let one process at a time write this part."""
    path = part.with_name(f"{part.name}.lock")
    try:
        with FileLock(path, timeout=0):
            try:
                yield
            finally:
                with suppress(OSError):  # Windows deletes it on release
                    path.unlink()
    except Timeout:
        raise RuntimeError(f"another process is fetching {part.stem} into {part.parent}; wait for it") from None


def _is_local(error: Exception) -> bool:
    """Whether the fault is on this machine's disk, so that no other address would help."""
    if not isinstance(error, OSError) or isinstance(error, urllib.error.URLError):
        return False
    return error.errno in DISK_FULL or error.filename is not None


def _is_permanent(error: Exception) -> bool:
    """Whether the same address would fail again."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code not in TRANSIENT_STATUS
    if isinstance(error, urllib.error.URLError):
        return isinstance(error.reason, (socket.gaierror, FileNotFoundError))
    return _is_local(error)


def _download_from(
    url: str, file: RemoteFile, part: Path, progress: DownloadProgress | None, patience: Patience
) -> None:
    """Use one address until the part is correct. Gives up after ``patience.tries`` tries without a new byte."""
    left, best, restarted = patience.tries, 0, False
    while True:
        try:
            resumed = _resume_part(url, file, part, progress, patience.timeout)
            have = part.stat().st_size
            if have < file.size:
                raise http.client.IncompleteRead(b"", file.size - have)
        except (http.client.HTTPException, OSError) as error:
            if _is_permanent(error):
                raise
            have = part.stat().st_size if part.exists() else 0
            left, best = (patience.tries, have) if have > best else (left - 1, best)
            if left <= 0:
                raise
            time.sleep(patience.wait * 2 ** (patience.tries - left - 1))
            continue
        got = md5_of(part)
        if got == file.md5:
            return
        part.unlink()
        _forget_version(part)
        if not resumed or restarted:
            raise WrongFileError(f"its MD5 is {got}, expected {file.md5}")
        restarted = True  # the two halves may come from different files: start once more from zero


def _resume_part(url: str, file: RemoteFile, part: Path, progress: DownloadProgress | None, timeout: float) -> bool:
    """Read on from the end of ``part`` if the server still has the same file. True if some of the part was kept."""
    have = part.stat().st_size if part.exists() else 0
    version = _part_version(part)
    if have > file.size or version.get("url") != url:
        have = 0
    if have == file.size:
        return True
    request = urllib.request.Request(url, headers={"User-Agent": "foretaste", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        if version.get("tag"):
            request.add_header("If-Range", version["tag"])
    try:
        answer = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the file is shorter than our part, so it is another file now
            part.unlink(missing_ok=True)
            _forget_version(part)
            raise http.client.IncompleteRead(b"", file.size) from None
        raise
    with answer:
        if not (getattr(answer, "status", None) == 206 and _starts_at(answer, have)):
            have = 0
        length = str(answer.headers.get("Content-Length", ""))
        if length.isdecimal() and have + int(length) != file.size:
            raise WrongFileError(f"has {have + int(length):,} bytes, expected {file.size:,}")
        with part.open("ab" if have else "wb") as out:
            _keep_version(part, url, answer.headers)
            _copy_answer(answer, out, have, file, progress)
    return have > 0


def _copy_answer(answer: Any, out: IO[bytes], have: int, file: RemoteFile, progress: DownloadProgress | None) -> None:
    start = have
    while True:
        # read1: if the connection breaks in the middle of a block, what came so far is kept
        block = answer.read1(DOWNLOAD_BLOCK) if hasattr(answer, "read1") else answer.read(DOWNLOAD_BLOCK)
        if not block:
            break
        have += len(block)
        if have > file.size:
            raise WrongFileError(f"sends more than the expected {file.size:,} bytes")
        out.write(block)
        if progress is not None:
            progress(file.name, have, file.size)
    if progress is not None and have == start:
        progress(file.name, have, file.size)


def _starts_at(answer: Any, have: int) -> bool:
    return str(answer.headers.get("Content-Range", "")).startswith(f"bytes {have}-")


def _version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _keep_version(part: Path, url: str, headers: Any) -> None:
    """Remember which version of the file the part belongs to: its ETag unless weak, else its date."""
    tag = headers.get("ETag") or ""
    tag = headers.get("Last-Modified") or "" if not tag or tag.startswith("W/") else tag
    _version_file(part).write_text(json.dumps({"url": url, "tag": tag}))


def _part_version(part: Path) -> dict[str, str]:
    try:
        known = json.loads(_version_file(part).read_text())
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in known.items() if isinstance(v, str)} if isinstance(known, dict) else {}


def _forget_version(part: Path) -> None:
    _version_file(part).unlink(missing_ok=True)


def _describe_failure(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server says {error.code} {error.reason}"
    if isinstance(error, http.client.IncompleteRead):
        return f"the connection broke off {error.expected or 0:,} bytes before the end"
    if isinstance(error, urllib.error.URLError):
        return f"cannot be reached ({error.reason}); is there a network?"
    if isinstance(error, TimeoutError):
        return "the server stalled"
    return str(error) or type(error).__name__


def md5_of(path: Path) -> str:
    """The file's MD5, as publishers print it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
