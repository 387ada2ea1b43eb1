"""``ft.features``: what a frozen network makes of every point, computed once and kept on disk.

The module always runs on passes of one size (8 points on a CPU, 64 on a GPU): points i·8 to i·8+7, the last pass filled
up with its last point. The size of a batch decides which kernels BLAS and the convolutions take, and with it the last
bits of each row; so it must not depend on how many points are read or written at a time, or on where a run was
interrupted. ``tests/oracles.py`` has the plain loop.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.errors import changed, check_callable, check_known, whole_number
from foretaste.network.backbones import Backbone, as_backbone
from foretaste.network.feature_cache import (
    CACHE_FORMAT,
    CACHE_VARIABLE,
    SUM_BYTES,
    FeatureFile,
    KnownRows,
    absorb,
    digest_of,
    feature_home,
    weights_digest,
)

log = logging.getLogger("foretaste")

PASS_ON_CPU, PASS_ON_GPU = 8, 64  # points of one pass; on a CPU 8 images of 160 px are faster than 32
CHUNK_ROWS = 1024  # points between two writes

FeatureProgress = Callable[[int, int], object]


def features(
    backbone: "Backbone | nn.Module | str",
    data: Any,
    *,
    layer: str | None = None,
    cache: "str | os.PathLike[str] | bool | None" = None,
    chunk_size: int | None = None,
    device: "torch.device | str | None" = None,
    progress: FeatureProgress | None = None,
) -> Tensor:
    """Compute what a frozen network makes of every point, once, and keep it on disk.

    The second call with the same weights, preprocessing, layer and data reads the file. Where some points are new,
    those alone are computed. An interrupted call resumes. Two processes that ask for the same features compute them
    once: the second waits.

    Args:
        backbone: the name of one, as in ``foretaste.network.find_backbone`` ("efficientnet-lite0", "hf:NAME",
            "package.module:function"); a ``Backbone``; or any torch module in eval mode, which receives the points
            stacked, bytes as numbers in [0, 1].
        data: the points: a tensor or array (N, ...), a dict of such (the module is then called with keywords), or
            anything with a length and positions, such as a list of pictures or strings or a torch Dataset. Items that
            are tuples are (x, y), and only x is read. Points are read one pass at a time and are never all in memory,
            unless the list itself keeps them: opened PIL pictures stay loaded, so give many as a Dataset or ft.open.
            Every point is read for the digest, unless the data has a string attribute ``digest`` that changes with
            its contents; with a method ``digest_of(i)`` (bytes) too, points that were in other data are found again.
        layer: the name of a submodule (``module.named_modules()``) whose output is taken instead of the module's.
        cache: the folder of the files. None (default): $FORETASTE_CACHE, else ~/.cache/foretaste/features. False: the
            features are not kept, and stand in memory.
        chunk_size: points between two writes to disk and two calls of ``progress``, rounded up to whole passes.
            None: 1024. It changes no bit of the result.
        device: where the module runs, such as "cuda". None (default): where it is. It is moved back afterwards.
        progress: called with (points done, all points), also for what an interrupted call left.

    Returns:
        (N, D) float32 on the CPU, memory-mapped if it is kept: writing to it does not change the file. Outputs
        (N, C, H, W) are averaged over H and W, outputs (N, T, D) over T.

    Raises:
        ValueError: the module is in train mode, returns NaN or infinite values, or something other than one row for
            each point; its features vary with the other points of a batch; a name is not known. The message says what
            to do.

    Example:
        >>> import tempfile, torch
        >>> from foretaste.network import features
        >>> module = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.ReLU()).eval()
        >>> pictures = torch.zeros(10, 3, 8, 8, dtype=torch.uint8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     features(module, pictures, cache=folder).shape
        torch.Size([10, 5])
    """
    found, source = as_backbone(backbone), PointSource(data)
    check_callable("progress", progress, "(points done, all points)")
    chunk = whole_number("chunk_size", CHUNK_ROWS if chunk_size is None else chunk_size, 1)
    with _FeatureRun(found, source, layer, device, chunk).prepared() as run:
        tell = (lambda done: None) if progress is None else (lambda done: progress(done, len(source)))
        folder = cache_folder(cache)
        if folder is None:
            return run.in_memory(tell)
        about = {"backbone": found.name, "preprocessing": found.preprocessing, "layer": layer}
        made_by = [CACHE_FORMAT, found.kind, found.preprocessing, layer, weights_digest(found.module)]
        file = FeatureFile(folder, digest_of([*made_by, source.digest()]), about, len(source), digest_of(made_by))
        if (kept := run.still_right(file.read())) is not None:
            tell(len(source))
            return kept
        with file.locked():
            if (kept := run.still_right(file.read())) is None:
                file.path.unlink(missing_ok=True)
                items = source.item_digests()
                known = None if items is None else file.known_rows(items)
                at = np.empty(0, np.int64) if known is None else known.known
                if known is not None and not run.still_gives(ends := at[[0, -1]], known.take(ends)):
                    known, at = None, at[:0]
                file.write(partial(run.chunks, known=known), lambda good: tell(good + int((at >= good).sum())), items)
                kept = file.read()
                if kept is not None and items is not None:
                    file.remove_superseded(items)
        if kept is None:
            raise OSError(f"{file.path} was written and cannot be read back; is the disk damaged, or shared?")
        return kept


def cache_folder(cache: "str | os.PathLike[str] | bool | None") -> Path | None:
    if cache is False:
        return None
    if cache is not None and cache is not True:
        folder = Path(cache).expanduser()
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"cache is {folder}, a file; expected a folder")
        return folder
    folder = feature_home()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"{folder} is not writable")
    except OSError as error:
        log.warning("features are not kept: %s; give cache=, or set %s to a folder", error, CACHE_VARIABLE)
        return None
    return folder


class PointSource:
    """The points of any kind of data, by position, without labels."""

    def __init__(self, data: Any) -> None:
        if isinstance(data, str | bytes | Path):
            raise TypeError(f"data is a {type(data).__name__}; expected points: an array, a list, a Dataset")
        self.data = data
        self.rows = dict(data) if isinstance(data, Mapping) else None
        for key, value in (self.rows or {}).items():
            if not isinstance(value, Tensor | np.ndarray):
                raise TypeError(f"data[{key!r}] is a {type(value).__name__}; expected a tensor or an array (N, ...)")
        if self.rows is None and not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise TypeError(
                f"data is a {type(data).__name__} without a length or positions; expected an array, a list, a "
                "map-style Dataset. Points of a stream: make a list of them first"
            )
        lengths = {len(data)} if self.rows is None else {len(v) for v in self.rows.values()}
        if len(lengths) != 1:
            raise ValueError(f"the arrays of data have lengths {sorted(lengths)}; expected one length")
        (self.length,) = lengths
        if not self.length:
            raise ValueError("data has no points")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Any:
        if self.rows is not None:
            return {key: value[i] for key, value in self.rows.items()}
        item = self.data[i]
        return item[0] if isinstance(item, tuple) and item else item

    @cached_property
    def own_digest(self) -> str | None:
        own = getattr(self.data, "digest", None)
        return own if isinstance(own, str) and own else None

    def item_digests(self) -> bytes | None:
        """A digest of each point, in a row; None if the data has a digest of its own, and none of each point."""
        one = getattr(self.data, "digest_of", None)
        if self.own_digest is not None and not callable(one):
            return None
        of = one if callable(one) else self.__getitem__
        return b"".join(bytes.fromhex(digest_of([of(i)])) for i in range(len(self)))

    def digest(self) -> str:
        """The data's own digest, or one of every point."""
        if self.own_digest is not None:
            return digest_of(["own", self.own_digest, len(self)])
        if isinstance(self.data, Tensor | np.ndarray):
            return digest_of([self.data])
        h = blake2b(digest_size=SUM_BYTES)
        for i in range(len(self)):
            try:
                absorb(h, self[i])
            except TypeError as error:
                raise TypeError(f"point {i} of data: {error}") from None
        return h.hexdigest()


@dataclass
class _FeatureRun:
    """One call: the module, made ready, and the points."""

    backbone: Backbone
    source: PointSource
    layer: str | None
    device: "torch.device | str | None"
    chunk: int

    @contextlib.contextmanager
    def prepared(self) -> Iterator["_FeatureRun"]:
        """The module on its device, checked; afterwards it is where it was, without hooks."""
        module = self.backbone.module
        if training := [name for name, m in module.named_modules() if m.training]:
            where = "the backbone" if "" in training else f"{training[0]!r} of the backbone"
            raise ValueError(
                f"{where} is in train mode, so its features depend on the batch (BatchNorm) or on chance (dropout); "
                "call .eval() on it first"
            )
        tensors = [*module.parameters(), *module.buffers()]
        places = {t.device for t in tensors} or {torch.device("cpu")}
        if len(places) > 1:
            raise ValueError(f"the backbone is on several devices, {sorted(map(str, places))}; move it to one")
        (home,) = places
        if home.type == "meta":
            raise ValueError("the backbone is on the meta device and has no weights; load them first")
        self.on = home if self.device is None else torch.device(self.device)
        self.size = PASS_ON_CPU if self.on.type == "cpu" else PASS_ON_GPU
        self.dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
        # How far rounding may move the features of a point, as a share of the largest.
        self.rounding = 1e-3 if self.dtype in (torch.float32, torch.float64) else 0.05
        self.caught: list[Any] = []
        with contextlib.ExitStack() as undo, torch.no_grad(), torch.autocast(self.on.type, enabled=False):
            if self.layer is not None:
                modules = dict(module.named_modules())
                check_known("layer", self.layer, [name for name in modules if name])
                layer = modules[self.layer]
                undo.enter_context(layer.register_forward_hook(lambda m, args, out: self.caught.append(out)))
            if self.on != home:
                undo.callback(module.to, home)
                module.to(self.on)
            with _true_float32():
                yield self

    def rows_of(self, items: Sequence[Any]) -> Tensor:
        """(n, D) float32 on the CPU: one pass, filled up to the size of a pass with the last item."""
        module, batch = self.backbone.module, self.backbone.prepare([*items, *[items[-1]] * (self.size - len(items))])
        self.caught.clear()
        if isinstance(batch, Mapping):
            out = module(**{key: self.moved(value) for key, value in batch.items()})
        else:
            out = module(self.moved(batch))
        if self.layer is not None:
            if len(self.caught) != 1:
                times = "not called" if not self.caught else f"called {len(self.caught)} times"
                raise ValueError(f"layer {self.layer!r} is {times} in one pass; name one that is called once")
            (out,) = self.caught
        return pooled_rows(out, self.size, self.layer).to("cpu", torch.float32)[: len(items)]

    def moved(self, part: Any) -> Any:
        if not isinstance(part, Tensor):
            return part
        return part.to(self.on, self.dtype) if part.is_floating_point() else part.to(self.on)

    def chunks(self, start: int, known: KnownRows | None = None) -> Iterator[Tensor]:
        """The rows from ``start`` on. Those that are known are copied, the others computed."""
        N, whole = len(self.source), self.size * -(-self.chunk // self.size)
        if start == 0 and known is None:
            self.check_independent()
        todo = np.arange(N) if known is None else np.flatnonzero(known.file_N < 0)
        fresh = self.computed(todo, int(np.searchsorted(todo, start)))
        for at in range(start, N, whole):
            new = todo[slice(*np.searchsorted(todo, [at, at + whole]))]
            rows = [next(fresh) for _ in new]
            if known is None:
                yield torch.stack(rows)
                continue
            here = np.setdiff1d(np.arange(at, min(at + whole, N)), new)
            rows_nD = torch.empty(len(here) + len(new), known.rows[0].shape[1])
            rows_nD[here - at] = known.take(here)
            if rows:
                rows_nD[new - at] = torch.stack(rows)
            yield rows_nD

    def computed(self, points: np.ndarray, start: int) -> Iterator[Tensor]:
        """The rows of some points, from place ``start`` on. Every pass begins at a multiple of its size."""
        for at in range(start - start % self.size, len(points), self.size):
            here = points[at : at + self.size]
            rows_nD = self.rows_of([self.source[int(i)] for i in here])
            _check_finite(rows_nD, here)
            yield from rows_nD[max(0, start - at) :]

    def in_memory(self, tell: Callable[[int], object]) -> Tensor:
        rows_ND: Tensor | None = None
        at = 0
        tell(at)
        for rows_nD in self.chunks(0):
            if rows_ND is None:
                rows_ND = torch.empty(len(self.source), rows_nD.shape[1])
            rows_ND[at : at + len(rows_nD)] = rows_nD
            at += len(rows_nD)
            tell(at)
        assert rows_ND is not None
        return rows_ND

    def check_independent(self) -> None:
        """Raise if the features of the first points move when the other points of their pass are replaced."""
        n = min(self.size, len(self.source))
        if n < 2:
            return
        items = [self.source[i] for i in range(n)]
        half = n // 2
        together = self.rows_of(items)[:half]
        _check_finite(together, range(half))
        moved = _moved_by(together, self.rows_of([*items[:half], *[items[0]] * (n - half)])[:half])
        if not moved <= self.rounding:
            raise ValueError(
                "the backbone's features of a point vary with the other points of the batch, or from call to call, by "
                f"{moved:.1%} of the largest; expected rounding alone. BatchNorm with "
                "track_running_stats=False, dropout called as a function, and text without an attention mask do so"
            )

    def still_right(self, kept: Tensor | None) -> Tensor | None:
        """The features from disk, if the backbone still gives those of the first and the last point."""
        return kept if kept is not None and self.still_gives([0, len(kept) - 1], kept[[0, -1]]) else None

    def still_gives(self, points: Sequence[int] | np.ndarray, before_nD: Tensor) -> bool:
        """Whether some points have the same features as before.

        The digest holds weights, and preprocessing in words. This sees a changed forward() or prepare().
        """
        fresh_nD = self.rows_of([self.source[int(i)] for i in points])
        if fresh_nD.shape == before_nD.shape and _moved_by(fresh_nD, before_nD) <= self.rounding:
            return True
        log.warning("the backbone has the same weights and other features than before; they are computed again")
        return False


def pooled_rows(out: Any, n: int, layer: str | None) -> Tensor:
    """(n, D) of an output: mean over H and W of (n, C, H, W), over T of (n, T, D). Of a tuple, the first."""
    what = "the backbone" if layer is None else f"layer {layer!r}"
    if isinstance(out, tuple | list) and out:
        out = out[0]
    if not isinstance(out, Tensor):
        raise ValueError(
            f"{what} returns a {type(out).__name__}; expected a tensor, one row for each point. Name a layer= that "
            "gives one, or wrap the module in one that picks it"
        )
    if out.dim() < 2 or len(out) != n or not out.is_floating_point():
        raise ValueError(
            f"{what} returns {tuple(out.shape)} of {out.dtype} for {n} points; expected floats ({n}, D), ({n}, T, D) "
            f"or ({n}, C, H, W)"
        )
    if out.dim() == 3:
        return out.mean(1)
    return out.flatten(2).mean(2) if out.dim() > 3 else out


def _check_finite(rows_nD: Tensor, points: Sequence[int] | np.ndarray) -> None:
    bad = (~torch.isfinite(rows_nD)).any(1).nonzero()
    if len(bad):
        raise ValueError(
            f"the features of point {points[int(bad[0])]} are NaN or infinite; look at that point and at the "
            "backbone's weights. A backbone in half precision may overflow: use .float()"
        )


def _moved_by(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / a.abs().max().clamp_min(torch.finfo(torch.float32).tiny))


def _true_float32() -> contextlib.AbstractContextManager[None]:
    """Products on a GPU in true float32, and the same kernels each time, whatever the user has set."""
    cudnn: Any = torch.backends.cudnn
    places = (torch.backends.cuda.matmul, cudnn.conv)
    return changed(
        (cudnn, "deterministic", True), (cudnn, "benchmark", False), *((p, "fp32_precision", "ieee") for p in places)
    )
