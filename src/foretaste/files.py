"""Files and folders that are written whole or not at all, or locked; full disks; places that may not be written to."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

FULL_DISK = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
KEPT = "free some space and try again; what was complete before is kept"


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, whole or not at all. Text is UTF-8, with line feeds on every system."""
    with whole_file(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A new file beside ``path``, to be written in the block. It takes the place of ``path`` when the block ends.

    Its contents are on the disk before it is renamed, so a crash never leaves half a file. After an error ``path`` is
    as it was.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield part
            with part.open("r+b") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        _flush_names(path.parent)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """The same for a folder: fill the one that is given. ``folder`` must be absent or empty."""
    with _explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            yield part
            part.chmod(0o755)  # mkdtemp makes it private
            if folder.exists():
                folder.rmdir()
            os.replace(part, folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a folder. Raises if another process holds it."""
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "locks" / "run", timeout=0):
            yield
    except Timeout:
        raise RuntimeError(f"another process is running in {folder}; wait for it, or choose another folder") from None


def _flush_names(folder: Path) -> None:
    with suppress(OSError):  # Windows has no such thing
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain_failed_write(error, path) from None


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that the disk, or the user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in FULL_DISK


def explain_failed_write(error: OSError, path: Path, advice: str = KEPT) -> OSError:
    """The error, with what to do if the disk is full or the place may not be written to."""
    at = Path(error.filename or path)
    if is_disk_full(error) and "the disk is full" not in str(error):
        return OSError(error.errno, f"the disk is full, {path} could not be written; {advice}")
    if error.errno in NOT_WRITABLE and (at in (path, *path.parents) or at.name.startswith(f".{path.name}.")):
        return OSError(error.errno, f"{path} cannot be written ({error.strerror}); choose another folder")
    return error
