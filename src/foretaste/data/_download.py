"""One file from one of several addresses: resumed where it broke off, and named only once its checksum holds."""

import errno
import hashlib
import http.client
import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from foretaste.data._catalogue import File
from foretaste.data._find import size_of

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

BLOCK = 1 << 18
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)

Progress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server, how often to try again in vain, and after how long (doubled each time)."""

    timeout: float = 30.0
    tries: int = 4
    wait: float = 1.0


class Wrong(Exception):
    """This address has not the file: no use to try it again."""


def download(file: File, folder: Path, *, progress: Progress | None = None, patience: Patience | None = None) -> Path:
    """Fetch ``file`` into ``folder`` and return its path; what has come so far waits as NAME.part for the next call."""
    patience = patience or Patience()
    folder.mkdir(parents=True, exist_ok=True)
    target, part = folder / file.name, folder / f"{file.name}.part"
    failures = []
    with _alone(part):
        for url in file.urls:
            try:
                _from_one(url, file, part, progress, patience)
            except (Wrong, http.client.HTTPException, OSError) as error:
                if isinstance(error, OSError) and error.errno in FULL:
                    say = f"no space left on the disk of {folder}; {file.name} needs {size_of(file.size)}"
                    raise OSError(error.errno, say) from None
                if _local(error):
                    raise
                failures.append(f"{url}: {_said(error)}")
            else:
                os.replace(part, target)
                _forget(part)
                return target
    raise ConnectionError(
        f"{file.name} could not be fetched ({'; '.join(failures)}); try again later, which goes on where it stopped, "
        f"or put the file in {folder} by hand"
    )


@contextmanager
def _alone(part: Path) -> Iterator[None]:
    """One process a part; where the system has no such locks, the checksum tells."""
    path = part.with_name(f"{part.name}.lock")
    with path.open("w") as handle:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RuntimeError(f"another process is fetching {part.stem} into {part.parent}; wait for it") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _local(error: Exception) -> bool:
    """Of this machine's disk: no other address would help."""
    if not isinstance(error, OSError) or isinstance(error, urllib.error.URLError):
        return False
    return error.errno in FULL or error.filename is not None


def _hopeless(error: Exception) -> bool:
    """Not to be tried again at the same address."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code not in TRANSIENT
    if isinstance(error, urllib.error.URLError):
        return isinstance(error.reason, (socket.gaierror, FileNotFoundError))
    return _local(error)


def _from_one(url: str, file: File, part: Path, progress: Progress | None, patience: Patience) -> None:
    """Try one address until the part is whole and right, or as often as patience allows without a byte more."""
    left, best, doubted = patience.tries, 0, False
    while True:
        try:
            resumed = _continue(url, file, part, progress, patience.timeout)
            have = part.stat().st_size
            if have < file.size:
                raise http.client.IncompleteRead(b"", file.size - have)
        except (http.client.HTTPException, OSError) as error:
            if _hopeless(error):
                raise
            have = part.stat().st_size if part.exists() else 0
            left, best = (patience.tries, have) if have > best else (left - 1, best)
            if left <= 0:
                raise
            time.sleep(patience.wait * 2 ** (patience.tries - left - 1))
            continue
        got = md5(part)
        if got == file.md5:
            return
        part.unlink()
        _forget(part)
        if not resumed or doubted:
            raise Wrong(f"its MD5 is {got}, expected {file.md5}")
        doubted = True  # the two halves may be of different files: once from the start


def _continue(url: str, file: File, part: Path, progress: Progress | None, timeout: float) -> bool:
    """Read on from where ``part`` ends, if the server has still the same file; whether something was kept."""
    have = part.stat().st_size if part.exists() else 0
    known = _remembered(part)
    if have > file.size or known.get("url") != url:
        have = 0
    if have == file.size:
        return True
    request = urllib.request.Request(url, headers={"User-Agent": "foretaste", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        if known.get("tag"):
            request.add_header("If-Range", known["tag"])
    try:
        answer = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # shorter than what we have of it: another file now
            part.unlink(missing_ok=True)
            _forget(part)
            raise http.client.IncompleteRead(b"", file.size) from None
        raise
    with answer:
        if not (getattr(answer, "status", None) == 206 and _starts_at(answer, have)):
            have = 0
        length = str(answer.headers.get("Content-Length", ""))
        if length.isdecimal() and have + int(length) != file.size:
            raise Wrong(f"has {have + int(length):,} bytes, expected {file.size:,}")
        with part.open("ab" if have else "wb") as out:
            _remember(part, url, answer.headers)
            _pour(answer, out, have, file, progress)
    return have > 0


def _pour(answer: Any, out: IO[bytes], have: int, file: File, progress: Progress | None) -> None:
    start = have
    while True:
        # read1: what came so far is kept when the connection breaks in the middle of a block
        block = answer.read1(BLOCK) if hasattr(answer, "read1") else answer.read(BLOCK)
        if not block:
            break
        have += len(block)
        if have > file.size:
            raise Wrong(f"sends more than the expected {file.size:,} bytes")
        out.write(block)
        if progress is not None:
            progress(file.name, have, file.size)
    if progress is not None and have == start:
        progress(file.name, have, file.size)


def _starts_at(answer: Any, have: int) -> bool:
    return str(answer.headers.get("Content-Range", "")).startswith(f"bytes {have}-")


def _memory(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _remember(part: Path, url: str, headers: Any) -> None:
    """Which version of the file the part is of: its ETag unless weak, or its date."""
    tag = headers.get("ETag") or ""
    tag = headers.get("Last-Modified") or "" if not tag or tag.startswith("W/") else tag
    _memory(part).write_text(json.dumps({"url": url, "tag": tag}))


def _remembered(part: Path) -> dict[str, str]:
    try:
        known = json.loads(_memory(part).read_text())
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in known.items() if isinstance(v, str)} if isinstance(known, dict) else {}


def _forget(part: Path) -> None:
    _memory(part).unlink(missing_ok=True)


def _said(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server says {error.code} {error.reason}"
    if isinstance(error, http.client.IncompleteRead):
        return f"the connection broke off {error.expected or 0:,} bytes before the end"
    if isinstance(error, urllib.error.URLError):
        return f"cannot be reached ({error.reason}); is there a network?"
    if isinstance(error, TimeoutError):
        return "the server stalled"
    return str(error) or type(error).__name__


def md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
