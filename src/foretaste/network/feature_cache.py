"""Features on disk: a .npy that grows by whole chunks, and beside it a manifest with a digest of each chunk.

DIGEST.npy        (N, D) float32, complete; DIGEST.npy.part while it is computed
DIGEST.json       the manifest: what the rows are of, and for each chunk its rows and their BLAKE2b
DIGEST.items      a digest of each point: another set of points that has some of them takes their rows
DIGEST.lock       held by the process that computes

The manifest is written after each chunk, whole or not at all. After a crash, rows that it does not list are dropped and
the run resumes. A file whose rows do not match their digests is computed again.
"""

import contextlib
import io
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from PIL import ExifTags, Image
from torch import Tensor, nn

from foretaste.errors import check_regular
from foretaste.files import explain_failed_write, write_whole

log = logging.getLogger("foretaste")

CACHE_VARIABLE = "FORETASTE_CACHE"
CACHE_FORMAT = 1  # enters every digest: files of another layout are not found
SUM_BYTES = 20
LOCK_NOTICE = 5  # seconds after which the log says that it waits for another process
LARGEST_MANIFEST = 1 << 26  # bytes
ITEM = np.dtype(f"S{SUM_BYTES}")  # the digest of a point
MOST_LOST = 0.1  # share of the points of an old file that the file that takes its place may lack
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of an object in memory, another in each process


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
    elif isinstance(part, Image.Image):
        orientation, clear = part.getexif().get(ExifTags.Base.Orientation), part.info.get("transparency")
        palette = part.getpalette() if part.mode in ("P", "PA") else None
        head = f"picture {part.mode} {part.size} {orientation} {palette}"
        _absorb_bytes(h, head if clear is None else f"{head} {clear}", part.tobytes())
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
class FeatureManifest:
    """What DIGEST.json says, apart from words for people who look into the folder."""

    digest: str
    network: str  # the digest of what made the rows: files that share it may take rows of one another
    items: str | None  # the digest of DIGEST.items; None if the points have no digests
    rows: int
    columns: int
    chunks: list[tuple[int, str]]  # rows and digest of each

    @property
    def head(self) -> bytes:
        """The first bytes of the .npy."""
        to = io.BytesIO()
        held = {"descr": "<f4", "fortran_order": False, "shape": (self.rows, self.columns)}
        np.lib.format.write_array_header_1_0(to, held)
        return to.getvalue()

    def size(self, rows: int) -> int:
        """Bytes of the .npy up to a row."""
        return len(self.head) + 4 * rows * self.columns


def read_manifest(path: Path) -> FeatureManifest | None:
    """None if it is not there, cannot be read, or is of other features than its name says."""
    try:
        check_regular(path)
        if path.stat().st_size > LARGEST_MANIFEST:
            return None
        stored = json.loads(path.read_bytes())
        found = FeatureManifest(**{f.name: stored[f.name] for f in fields(FeatureManifest)})
        counts = [found.rows, found.columns, *(n for n, _ in found.chunks)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if found.digest == path.stem and all(type(n) is int and n > 0 for n in counts) else None


def good_chunks(path: Path, manifest: FeatureManifest) -> list[tuple[int, str]]:
    """The chunks of a .npy, from the first on, that match their digests."""
    good = []
    with path.open("rb") as file:
        size = path.stat().st_size
        if file.read(len(manifest.head)) != manifest.head:
            return []
        for rows, wanted in manifest.chunks:
            length = 4 * rows * manifest.columns
            if length > size or digest_bytes(file.read(length)) != wanted:
                break
            good.append((rows, wanted))
    return good


def digest_bytes(raw: bytes) -> str:
    """The digest of the bytes of a file."""
    return blake2b(raw, digest_size=SUM_BYTES).hexdigest()


class FeatureFile:
    """The files of one digest in a folder. ``about`` is for people who look into it; ``network`` as in the manifest."""

    def __init__(self, folder: Path, digest: str, about: Mapping[str, Any], rows: int, network: str) -> None:
        self.folder, self.digest, self.about, self.rows, self.network = folder, digest, about, rows, network
        self.files = [folder / f"{digest}{ending}" for ending in (".npy", ".npy.part", ".json", ".items")]
        self.path, self.part, self.manifest, self.items = self.files
        self.lock = FileLock(folder / f"{digest}.lock")

    def read(self) -> Tensor | None:
        """The complete features, memory-mapped; None if there are none, or if they are damaged."""
        self._check_kinds()
        if not self.path.exists():
            return None
        manifest, good = read_manifest(self.manifest), 0
        try:
            if manifest is not None:
                good = sum(n for n, _ in good_chunks(self.path, manifest))
                if good == self.rows == manifest.rows and self.path.stat().st_size == manifest.size(good):
                    # Copy on write: the tensor may be written to, and the file stays as it is.
                    return torch.from_numpy(np.load(self.path, mmap_mode="c", allow_pickle=False))
        except FileNotFoundError:  # another process found it damaged, and has just removed it
            return None
        why = "has no manifest" if manifest is None else f"is damaged: {good} of {self.rows} rows match their digests"
        log.warning("%s %s; it is computed again", self.path, why)
        return None

    def _check_kinds(self) -> None:
        """Raise if a pipe or a folder has the name of one of the files: a pipe would be read for ever."""
        for path in self.files:
            with contextlib.suppress(FileNotFoundError):
                check_regular(path)

    def remove(self) -> None:
        """Forget what is there. Other processes that have it open keep what they see."""
        for path in self.files:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the file. Waits for another process that computes it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire(timeout=LOCK_NOTICE)
        except Timeout:
            log.info("another process computes these features (%s); waiting for it", self.part)
            self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()

    def write(
        self, compute: Callable[[int], Iterator[Tensor]], done: Callable[[int], object], items: bytes | None
    ) -> None:
        """Compute what is missing and name the file as complete.

        ``compute`` gives chunks (n, D) float32 from a row on; ``done`` is told how many rows are on disk; ``items`` are
        the digests of the points, None if they have none.
        """
        self._check_kinds()
        manifest, of_items = read_manifest(self.manifest), None if items is None else digest_bytes(items)
        chunks = good_chunks(self.part, manifest) if manifest is not None and self.part.exists() else []
        good = sum(n for n, _ in chunks)
        if manifest is None or not chunks:
            self.remove()
            manifest = None
        else:
            manifest = replace(manifest, items=of_items, chunks=chunks)
            os.truncate(self.part, manifest.size(good))
            log.info("resuming: %d of %d rows are there (%s)", good, self.rows, self.part)
        if items is not None:
            write_whole(self.items, items)
        done(good)
        for rows_nD in compute(good):
            raw = np.ascontiguousarray(rows_nD.numpy(), dtype="<f4")
            if manifest is None:
                manifest = FeatureManifest(self.digest, self.network, of_items, self.rows, raw.shape[1], chunks)
            try:
                with self.part.open("ab") as file:
                    file.write((manifest.head if not good else b"") + raw.tobytes())
            except OSError as error:
                advice = f"make room and call again, it resumes. Or give cache= another folder, or set {CACHE_VARIABLE}"
                raise explain_failed_write(error, self.part, advice) from None
            chunks.append((len(raw), digest_bytes(raw.tobytes())))
            write_whole(self.manifest, json.dumps({**self.about, **asdict(manifest)}))
            good += len(raw)
            done(good)
        if good != self.rows:
            raise RuntimeError(f"{good} rows were computed of {self.rows}")
        os.replace(self.part, self.path)

    # Other files, of the same network and other points

    def known_rows(self, items: bytes) -> "KnownRows | None":
        """What other files in the folder, complete or not, hold of these points; None if nothing."""
        wanted_N = np.frombuffer(items, ITEM)
        file_N, row_N, rows = np.full(len(wanted_N), -1), np.zeros(len(wanted_N), np.int64), list[np.ndarray]()
        for other, manifest in self._others():
            theirs_n, held_nD = other._held(manifest)
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
        for other, manifest in self._others():
            theirs = other._item_digests(manifest)
            if len(theirs) and np.isin(theirs, mine, invert=True).sum() < MOST_LOST * len(theirs):
                with contextlib.suppress(Timeout, OSError), other.lock.acquire(timeout=0):
                    other.remove()

    def _others(self) -> "Iterator[tuple[FeatureFile, FeatureManifest]]":
        for path in sorted(self.folder.glob("*.json")):
            manifest = None if path == self.manifest else read_manifest(path)
            if manifest is not None and manifest.network == self.network:
                yield FeatureFile(self.folder, path.stem, {}, manifest.rows, self.network), manifest

    def _item_digests(self, manifest: FeatureManifest) -> np.ndarray:
        """(N,) of the points; none if they cannot be read."""
        try:
            self._check_kinds()
            raw = self.items.read_bytes()
        except (OSError, ValueError):
            return np.empty(0, ITEM)
        fits = len(raw) == SUM_BYTES * self.rows and manifest.items == digest_bytes(raw)
        return np.frombuffer(raw if fits else b"", ITEM)

    def _held(self, manifest: FeatureManifest) -> tuple[np.ndarray, np.ndarray]:
        """The digests of the points whose rows match their digests, and the rows (n, D), memory-mapped."""
        theirs = self._item_digests(manifest)
        path = self.path if self.path.exists() else self.part
        try:
            good = min(sum(n for n, _ in good_chunks(path, manifest)), self.rows) if len(theirs) else 0
            if good:
                return theirs[:good], np.memmap(path, "<f4", "r", len(manifest.head), (good, manifest.columns))
        except (OSError, ValueError):  # another process has just removed it
            pass
        return np.empty(0, ITEM), np.empty((0, 0), np.float32)


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

    def take(self, points: np.ndarray) -> Tensor:
        """(n, D): the rows of some points that are there."""
        out_nD = np.empty((len(points), self.rows[0].shape[1]), np.float32)
        for k, rows in enumerate(self.rows):
            here = self.file_N[points] == k
            out_nD[here] = rows[self.row_N[points[here]]]
        return torch.from_numpy(out_nD)
