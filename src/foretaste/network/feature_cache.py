"""Features on disk: a .npy that grows by whole chunks, and beside it the sums that tell how far it can be believed.

DIGEST.npy        (N, D) float32, complete; DIGEST.npy.part while it is computed
DIGEST.jsonl      what it is of, then one line a chunk: its rows and their BLAKE2b
DIGEST.items      a digest of each point: another set of points that has some of them takes their rows
DIGEST.lock       held by the process that computes

A line of sums is written after its rows. So a killed run leaves rows that are told by their sums, and perhaps more,
which are cut off; the next run goes on behind them. A file whose rows do not fit their sums is removed.
"""

import contextlib
import io
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from foretaste.errors import check_regular, printable
from foretaste.files import explain_failed_write, write_whole

log = logging.getLogger("foretaste")

CACHE_VARIABLE = "FORETASTE_CACHE"
CACHE_FORMAT = 1  # enters every digest: files of another layout are not found
SUM_BYTES = 20
READ_AT_ONCE = 1 << 22  # bytes
LOCK_NOTICE = 5  # seconds after which waiting for another process is told
LONGEST_LINE = 1 << 16  # characters of a line of sums
ITEM = np.dtype(f"S{SUM_BYTES}")  # the digest of a point
MOST_LOST = 0.1  # share of the points of an old file that the file that takes its place may lack
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of an object in memory, another in each process

ComputeRows = Callable[[int], Iterator[Tensor]]  # from a row on: chunks (n, D) float32 on the CPU


def feature_home() -> Path:
    """Where ``ft.features`` keeps its files: $FORETASTE_CACHE where it is set, else ~/.cache/foretaste/features.

    Returns:
        The folder, which may not exist yet. Files in it may be deleted at any time; they are computed again.

    Example:
        >>> from foretaste.network import feature_home
        >>> feature_home().is_absolute() or "FORETASTE_CACHE is a relative path"
        True
    """
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given).expanduser() if given else Path.home() / ".cache" / "foretaste" / "features"


# Digests


def digest_of(parts: Iterable[object]) -> str:
    """One digest of words, tensors, pictures and lists of them."""
    h = blake2b(digest_size=SUM_BYTES)
    for part in parts:
        absorb(h, part)
    return h.hexdigest()


def absorb(h: Any, part: object) -> None:
    """Add a part with its type and length, so that no two lists of parts look the same."""
    if isinstance(part, Tensor):
        t = part.detach().cpu().contiguous()
        _absorb_bytes(h, f"tensor {t.dtype} {tuple(t.shape)}", t.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(part, np.ndarray | np.generic):
        a = np.ascontiguousarray(part)
        if a.dtype.hasobject:
            raise TypeError("an array of Python objects has no digest; expected numbers or strings")
        _absorb_bytes(h, f"array {a.dtype.str} {a.shape}", a.reshape(-1).view(np.uint8))
    elif isinstance(part, str):
        _absorb_bytes(h, "str", part.encode("utf-8", "surrogatepass"))
    elif isinstance(part, bytes):
        _absorb_bytes(h, "bytes", part)
    elif isinstance(part, bool | int | float | None):
        _absorb_bytes(h, type(part).__name__, repr(part).encode())
    elif isinstance(part, Mapping):
        _absorb_bytes(h, f"mapping {len(part)}", b"")
        for key in sorted(part, key=str):
            absorb(h, str(key))
            absorb(h, part[key])
    elif isinstance(part, list | tuple):
        _absorb_bytes(h, f"list {len(part)}", b"")
        for one in part:
            absorb(h, one)
    elif callable(getattr(part, "tobytes", None)) and hasattr(part, "mode") and hasattr(part, "size"):
        orientation = part.getexif().get(0x0112) if hasattr(part, "getexif") else None
        palette = part.getpalette() if getattr(part, "mode", "") in ("P", "PA") else None  # type: ignore[attr-defined]
        head = f"picture {part.mode} {part.size} {orientation} {palette}"
        if (clear := getattr(part, "info", {}).get("transparency")) is not None:
            head += f" {clear}"
        _absorb_bytes(h, head, part.tobytes())  # type: ignore[attr-defined]
    else:
        raise TypeError(
            f"a {type(part).__name__} has no digest; expected tensors, arrays, pictures, strings, or lists and dicts "
            "of them. Give the data a string attribute `digest` that changes with its contents"
        )


def _absorb_bytes(h: Any, head: str, raw: Any) -> None:
    h.update(f"{head} {len(raw)}:".encode())
    h.update(raw)


def weights_digest(module: nn.Module) -> str:
    """A digest of every parameter and buffer, kept in state_dict or not, and of the text that the module prints as."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    text = ADDRESS.sub("", repr(module))
    return digest_of([kind, text, *(part for pair in named for part in pair)])


# The files of one digest


@dataclass(frozen=True)
class FeatureFile:
    """The file of one digest in a folder. ``about`` is for people who look into the folder.

    ``network`` is the digest of what made the rows: files that share it may take rows of one another.
    """

    folder: Path
    digest: str
    about: Mapping[str, Any]
    rows: int
    network: str

    @property
    def path(self) -> Path:
        return self.folder / f"{self.digest}.npy"

    @property
    def part(self) -> Path:
        return self.folder / f"{self.digest}.npy.part"

    @property
    def sums(self) -> Path:
        return self.folder / f"{self.digest}.jsonl"

    @property
    def items(self) -> Path:
        return self.folder / f"{self.digest}.items"

    @property
    def lock(self) -> FileLock:
        return FileLock(self.folder / f"{self.digest}.lock")

    def read(self) -> Tensor | None:
        """The complete features, memory-mapped; None if there are none, or if they are damaged."""
        self._check_kinds()
        if not self.path.exists():
            return None
        width, head, lines = self._read_sums()
        try:
            good = 0 if width is None else _good_rows(self.path, head, width, lines)
            if width is not None and good == self.rows and self.path.stat().st_size == len(head) + 4 * good * width:
                # Copy on write: the tensor may be written to, and the file stays as it is.
                return torch.from_numpy(np.load(self.path, mmap_mode="c", allow_pickle=False))
        except FileNotFoundError:  # another process found it damaged, and has just removed it
            return None
        log.warning("%s is damaged: %d of %d rows fit their sums; it is computed again", self.path, good, self.rows)
        return None

    def _check_kinds(self) -> None:
        """Raise if a pipe or a folder has the name of one of the files: a pipe would be read for ever."""
        for path in (self.path, self.part, self.sums, self.items):
            with contextlib.suppress(FileNotFoundError):
                check_regular(path)

    def remove(self) -> None:
        """Forget what is there. Other processes that have it open keep what they see."""
        for path in (self.path, self.part, self.sums, self.items):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the file. Waits for another process that computes it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = self.lock
        try:
            lock.acquire(timeout=LOCK_NOTICE)
        except Timeout:
            log.info("another process computes these features (%s); waiting for it", self.part)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def write(self, compute: ComputeRows, done: Callable[[int], object], items: bytes | None) -> None:
        """Compute what is missing and name the file as complete. ``done`` is told the rows that are on disk.

        ``items`` are the digests of the points, None if they have none.
        """
        self._check_kinds()
        width, head, lines = self._read_sums()
        good = 0
        if width is not None and self.part.exists():
            good = _good_rows(self.part, head, width, lines)
        if good == 0:
            self.remove()
            width = None
        else:
            assert width is not None
            kept = _lines_until(lines, good)
            os.truncate(self.part, len(head) + 4 * good * width)
            write_whole(self.sums, "".join(f"{line}\n" for line in [json.dumps(self._header(width, items)), *kept]))
            log.info("resuming: %d of %d rows are there (%s)", good, self.rows, self.part)
        if items is not None:
            self.items.write_bytes(items)
        done(good)
        for rows_nD in compute(good):
            raw = np.ascontiguousarray(rows_nD.numpy(), dtype="<f4")
            if width is None:
                width = raw.shape[1]
                self.part.write_bytes(npy_header(self.rows, width))
                self.sums.write_text(json.dumps(self._header(width, items)) + "\n")
            self._append(raw.tobytes(), len(raw))
            good += len(raw)
            done(good)
        if good != self.rows:
            raise RuntimeError(f"{good} rows were computed of {self.rows}")
        os.replace(self.part, self.path)

    def _append(self, raw: bytes, rows: int) -> None:
        try:
            with self.part.open("ab") as file:
                file.write(raw)
            with self.sums.open("a") as file:
                file.write(json.dumps({"rows": rows, "sum": _sum_of(raw)}) + "\n")
        except OSError as error:
            advice = f"make room and call again, it resumes. Or give cache= another folder, or set {CACHE_VARIABLE}"
            raise explain_failed_write(error, self.part, advice) from None

    def _header(self, width: int, items: bytes | None) -> dict[str, Any]:
        of = {"network": self.network, "items": None if items is None else _sum_of(items)}
        return {**self.about, **of, "digest": self.digest, "rows": self.rows, "columns": width}

    def _read_sums(self) -> tuple[int | None, bytes, list[str]]:
        """(columns, the .npy's header, the lines of sums); columns None if the file is not there or not readable."""
        try:
            with self.sums.open(encoding="utf-8", errors="replace") as file:
                lines = [line.rstrip("\n") for line in iter(lambda: file.readline(LONGEST_LINE), "")]
            header = json.loads(lines[0])
            width = header["columns"]
            if header["digest"] != self.digest or header["rows"] != self.rows or type(width) is not int or width < 1:
                raise ValueError("of other features")
        except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            if self.sums.exists():
                log.warning("%s cannot be read (%s)", self.sums, printable(str(error))[:120])
            return None, b"", []
        return width, npy_header(self.rows, width), lines[1:]

    # Other files, of the same network and other points

    def known_rows(self, items: bytes) -> "KnownRows | None":
        """What other files in the folder, complete or not, hold of these points; None if nothing."""
        wanted_N = np.frombuffer(items, ITEM)
        file_N, row_N, rows = np.full(len(wanted_N), -1), np.zeros(len(wanted_N), np.int64), list[np.ndarray]()
        for other in self._others():
            theirs_n, held_nD = other._held()
            if not len(held_nD) or (rows and held_nD.shape[1] != rows[0].shape[1]):
                continue
            order = np.argsort(theirs_n, kind="stable")
            at_N = order[np.searchsorted(theirs_n, wanted_N, sorter=order).clip(max=len(order) - 1)]
            new_N = (theirs_n[at_N] == wanted_N) & (file_N < 0)
            if new_N.any():
                file_N[new_N], row_N[new_N] = len(rows), at_N[new_N]
                rows.append(held_nD)
        return KnownRows(tuple(rows), file_N, row_N) if rows else None

    def remove_superseded(self, items: bytes) -> None:
        """Remove files whose points this one has, but for a few. Files that another process computes are left alone."""
        mine = np.frombuffer(items, ITEM)
        for other in self._others():
            theirs = other._item_digests()
            if len(theirs) and np.isin(theirs, mine, invert=True).sum() < MOST_LOST * len(theirs):
                with contextlib.suppress(Timeout, OSError), other.lock.acquire(timeout=0):
                    other.remove()

    def _others(self) -> "Iterator[FeatureFile]":
        for path in sorted(self.folder.glob("*.jsonl")):
            header = _sums_header(path)
            if path != self.sums and header.get("network") == self.network and type(header.get("rows")) is int:
                yield FeatureFile(self.folder, path.stem, {}, header["rows"], self.network)

    def _item_digests(self) -> np.ndarray:
        """(N,) of the points; none if they cannot be read."""
        try:
            self._check_kinds()
            raw = self.items.read_bytes()
        except (OSError, ValueError):
            return np.empty(0, ITEM)
        fits = len(raw) == SUM_BYTES * self.rows and _sums_header(self.sums).get("items") == _sum_of(raw)
        return np.frombuffer(raw if fits else b"", ITEM)

    def _held(self) -> tuple[np.ndarray, np.ndarray]:
        """The digests of the points whose rows fit their sums, and the rows (n, D), memory-mapped."""
        theirs, nothing = self._item_digests(), (np.empty(0, ITEM), np.empty((0, 0), np.float32))
        if not len(theirs):
            return nothing
        width, head, lines = self._read_sums()
        path = self.path if self.path.exists() else self.part
        try:
            good = 0 if width is None else min(_good_rows(path, head, width, lines), self.rows)
            if not good:
                return nothing
            assert width is not None
            return theirs[:good], np.memmap(path, "<f4", "r", len(head), (good, width))
        except (OSError, ValueError):  # another process has just removed it
            return nothing


@dataclass(frozen=True, eq=False)
class KnownRows:
    """Rows of points that are in other files already."""

    rows: tuple[np.ndarray, ...]  # (n, D) of each file, memory-mapped
    file_N: np.ndarray  # which of the files has a point; −1 if none
    row_N: np.ndarray  # its row there

    @property
    def known(self) -> np.ndarray:
        """Positions of the points that are there."""
        return np.flatnonzero(self.file_N >= 0)

    @property
    def missing(self) -> np.ndarray:
        """Positions of the points that are not."""
        return np.flatnonzero(self.file_N < 0)

    def take(self, points: np.ndarray) -> Tensor:
        """(n, D): the rows of some points that are there."""
        out_nD = np.empty((len(points), self.rows[0].shape[1]), np.float32)
        for k, rows in enumerate(self.rows):
            here = self.file_N[points] == k
            out_nD[here] = rows[self.row_N[points[here]]]
        return torch.from_numpy(out_nD)


def _sums_header(path: Path) -> dict[str, Any]:
    """The first line of a file of sums; empty if it cannot be read."""
    try:
        check_regular(path)
        with path.open(encoding="utf-8", errors="replace") as file:
            header = json.loads(file.readline(LONGEST_LINE))
    except (OSError, ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


def npy_header(rows: int, columns: int) -> bytes:
    """The first bytes of a .npy of (rows, columns) float32."""
    to = io.BytesIO()
    held = {"descr": "<f4", "fortran_order": False, "shape": (rows, columns)}
    np.lib.format.write_array_header_1_0(to, held)
    return to.getvalue()


def _sum_of(raw: bytes) -> str:
    return blake2b(raw, digest_size=SUM_BYTES).hexdigest()


def _good_rows(path: Path, head: bytes, width: int, lines: Sequence[str]) -> int:
    """How many rows from the first on fit their sums. Reads the file in pieces, so that it is never all in memory."""
    good = 0
    with path.open("rb") as file:
        if file.read(len(head)) != head:
            return 0
        for line in lines:
            try:
                held = json.loads(line)
                n, wanted = held["rows"], held["sum"]
            except (ValueError, KeyError, TypeError, RecursionError):
                break
            if type(n) is not int or n < 1:
                break
            h, left = blake2b(digest_size=SUM_BYTES), 4 * n * width
            while left and (raw := file.read(min(left, READ_AT_ONCE))):
                h.update(raw)
                left -= len(raw)
            if left or h.hexdigest() != wanted:
                break
            good += n
    return good


def _lines_until(lines: Sequence[str], rows: int) -> list[str]:
    kept, seen = [], 0
    for line in lines:
        if seen == rows:
            break
        kept.append(line)
        seen += json.loads(line)["rows"]
    return kept
