"""What users give: points from arrays, frames, lists or datasets and labels, as tensors.

A tensor is used as it is. Everything else is moved to the network's device and converted to its dtype. A pool that need
not be in memory is a ``SlicedPoints``, which reads some points at a time.

    floats                    the network's dtype; a pool that is a tensor of 16 bits too, chunk by chunk
    bytes (uint8, pictures)   scaled to [0, 1], as in ``ft.fit``
    integers, booleans        the network's dtype; token ids (int64) if the network has an embedding
"""

import errno
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from foretaste.errors import counted, did_you_mean
from foretaste.files import is_disk_full
from foretaste.losses import LOSSES

SURE_IDS = ("id", "ids")  # columns that hold ids; other names do only where no value repeats
NO_INPUTS = ("label", "labels", "target", "y")  # keys of a dataset's items that are never inputs
ARROW_ENDINGS = (".parquet", ".arrow", ".feather")
ARROW_ROWS = 16384  # of a Parquet file at a time
COLUMNS_SHOWN = 8  # in one message
POINTS_WANTED = (
    "a tensor, an array, a data frame, a list, a dataset with __len__ and __getitem__, a DataLoader, what ft.open "
    "returns, or a dict of tensors"
)
HOW_TO_ENCODE = "ft.open encodes text and categories: give it what you have, and its .x here"

TensorInputs = Tensor | Mapping[str, Tensor]  # foretaste.tangent.Inputs
ClassName = str | int


@dataclass(frozen=True, eq=False)
class GivenPoints:
    """Points as tensors, with the ids and columns of their source."""

    x: Any  # tensors; None if there are none
    ids: list[Any] | None = None  # the index of a frame, the ids of ft.open, or the column id of a file
    columns: tuple[str, ...] = ()  # of a frame
    at: list[int] | None = None  # their positions in the source, if only some are taken


@dataclass(frozen=True, eq=False)
class GivenSets:
    """L, U and W of a query, as tensors."""

    x_L: Any
    y_L: Any
    x_U: Any
    watch: Any
    classes: Sequence[ClassName] | None
    candidates: GivenPoints  # x_U and its ids


def read_sets(
    net: Any,
    x_L: Any,
    y_L: Any,
    x_U: Any,
    watch: Any,
    classes: Any = None,
    *,
    pool_only: bool = False,
    unread: bool = False,
) -> GivenSets:
    """The points of a query for a network. Raises with all faults at once.

    From what ``ft.open`` returns, x_L takes the labelled points, with their labels if y_L is None. x_U takes all
    points, or with ``pool_only`` the unlabelled ones. unread: x_U may be a ``SlicedPoints``, whose points are not read.
    """
    watch = int(watch) if isinstance(watch, np.integer) else watch
    watched = None if isinstance(watch, int) else watch
    read = given_tensors(
        net,
        {"x_U": x_U, "x_L": x_L, "watch": watched},
        {"x_L": "labelled", "x_U": "pool" if pool_only else "all"},
        unread=("x_U",) if unread else (),
    )
    known_L = read["x_L"].x
    check_order(read["x_L"], y_L, "x_L", "y_L")
    if known_L is None and x_L is not None and y_L is not None and count_labels(y_L) == 0:  # [] and []
        y_L = None
    elif known_L is not None:
        y_L, classes = _own_labels(x_L, y_L, classes)
    x_W = watch if watched is None else read["watch"].x
    return GivenSets(known_L, y_L, read["x_U"].x, x_W, classes, read["x_U"])


def read_labelled(net: Any, x: Any, y: Any, classes: Any = None) -> tuple[Any, Any, Any]:
    """Points, labels and class names to train a network on, as in ``read_sets``."""
    read = given_tensors(net, {"x": x}, {"x": "labelled"})["x"]
    if read.x is None and x is not None:
        raise ValueError("x has no labelled points; expected at least one")
    check_order(read, y, "x", "y")
    return read.x, *_own_labels(x, y, classes)


def check_order(points: GivenPoints, y: Any, name: str, label_name: str) -> None:
    """Raise if the labels have the index of the points, but in another order: labels are matched by position."""
    if points.ids is None or not hasattr(y, "iloc"):
        return
    index = y.index.tolist()
    if index != points.ids and sorted(map(repr, index)) == sorted(map(repr, points.ids)):
        raise ValueError(
            f"{label_name} has the index of {name} in another order, and labels are taken by position; give "
            f"{label_name}.loc[{name}.index]"
        )


def _own_labels(x: Any, y: Any, classes: Any) -> tuple[Any, Any]:
    """Labels and classes as given, else those of what ``ft.open`` returns: names, or numbers in regression."""
    if y is not None or not is_opened(x):
        return y, classes
    if x.regression:
        return x.y[torch.as_tensor(x.labelled)], classes
    return list(x.known_labels), x.classes if classes is None else classes


def given_tensors(
    net: Any, sources: Mapping[str, Any], parts: Mapping[str, str] | None = None, unread: Sequence[str] = ()
) -> dict[str, GivenPoints]:
    """Several sets of points, by argument name. Data frames must have the same columns in the same order.

    unread: names of sets that become a ``SlicedPoints`` where they can.
    """
    form, read, faults = point_format(net), dict[str, GivenPoints](), list[Exception]()
    for name, source in sources.items():
        try:
            if name in unread and (points := sliced_points(source, name, form)) is not None:
                read[name] = GivenPoints(points, points.ids)
                continue
            read[name] = read_given(source, name, form, (parts or {}).get(name, "all"))
        except (TypeError, ValueError) as error:
            faults.append(error)
    framed = {name: points.columns for name, points in read.items() if points.columns}
    for name, columns in framed.items():
        first = next(iter(framed))
        if columns != framed[first]:
            faults.append(
                ValueError(
                    f"{name} has the columns {shown_names(columns)} and {first} {shown_names(framed[first])}; expected "
                    f"the same in the same order: {name}[{first}.columns]"
                )
            )
    if faults:
        raise type(faults[0])("; ".join(map(str, faults))) from faults[0]
    return read


@dataclass(frozen=True)
class PointFormat:
    """What points must be for a network."""

    device: torch.device
    dtype: torch.dtype
    embeds: bool  # whole numbers are token ids

    def convert(self, t: Tensor, name: str, rows: Sequence[int] | None = None) -> Tensor:
        """Points as this network takes them. Raises if numbers are not finite, or overflow its dtype.

        rows: the positions of these points in their source, for the error; None: they are all of it.
        """
        if t.dtype == torch.uint8:
            return t.to(self.device, self.dtype) / 255
        if not t.is_floating_point():
            return t.to(self.device, torch.int64 if self.embeds else self.dtype)
        check_finite(t, name, rows)
        made = t.to(self.device, self.dtype)
        if not torch.isfinite(made).all():
            raise ValueError(f"{name} has numbers that are too large for {self.dtype}; scale them, or use net.double()")
        return made


def check_finite(t: Tensor, name: str, rows: Sequence[int] | None = None) -> None:
    """Raise with the first point that has a NaN or an infinity. rows: the positions of these points in their source."""
    if t.is_floating_point() and (bad := int((~torch.isfinite(t)).sum())):
        first = int((~torch.isfinite(t)).flatten(1).any(1).nonzero()[0])
        raise ValueError(
            f"{name} has {bad} NaN or infinite values{'' if rows is None else ' among the points read so far'}, first "
            f"in point {first if rows is None else rows[first]}; fill them in, or leave those points out"
        )


def point_format(net: Any) -> PointFormat:
    """The format of a network or a ``FrozenNetwork``. Anything else is refused elsewhere."""
    module = net if isinstance(net, nn.Module) else getattr(net, "net", None)
    module = module if isinstance(module, nn.Module) else nn.Identity()
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0, device="cpu"))
    embeds = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in module.modules())
    return PointFormat(like.device, like.dtype, embeds)


# --- points ---


def read_given(source: Any, name: str, form: PointFormat | None = None, part: str = "all") -> GivenPoints:
    """One set of points; without ``form`` as they are stored. part: "all", "labelled" or "pool", for ``ft.open``."""
    if source is None or isinstance(source, Tensor):
        return GivenPoints(source)
    if is_opened(source):
        return _read_opened(source, name, form, part)
    if isinstance(source, Mapping):
        return GivenPoints({str(k): _read_entry(v, f"{name}[{k!r}]", form) for k, v in source.items()})
    if has_plain_columns(source):
        source = source.to_pandas().drop(columns=[key for key in NO_INPUTS if key in source.features])
    if is_frame(source):
        x = _format_points(frame_tensor(source, name), name, form)
        return GivenPoints(x, source.index.tolist(), tuple(map(str, source.columns)))
    if isinstance(source, DataLoader):
        return GivenPoints(_format_points(read_loader(source, name), name, form))
    if isinstance(source, str | bytes) or hasattr(source, "getbands"):
        what = "one picture" if hasattr(source, "getbands") else f"a {type(source).__name__}"
        raise TypeError(f"{name} is {what}; expected {POINTS_WANTED}. ft.open reads files and folders")
    if hasattr(source, "toarray"):
        raise TypeError(f"{name} is a sparse {type(source).__name__}; expected {POINTS_WANTED}: give {name}.toarray()")
    if hasattr(source, "__len__") and len(source) == 0 and not hasattr(source, "__array__"):
        if part == "labelled":
            return GivenPoints(None)
        raise ValueError(f"{name} is empty; expected at least one point")
    ids = source.index.tolist() if hasattr(source, "iloc") else None  # a Series
    if hasattr(source, "__array__") or (isinstance(source, list | tuple) and not _holds_objects(source)):
        return GivenPoints(_format_points(array_tensor(source, name), name, form), ids)
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise TypeError(f"{name} is a {type(source).__name__}; expected {POINTS_WANTED}")
    items = stack_items(_read_items(source, slice(0, len(source)), name), name)
    return GivenPoints(_format_points(items, name, form))


def is_opened(source: Any) -> bool:
    """Whether this is what ``ft.open`` returns."""
    return all(hasattr(source, key) for key in ("ids", "known_labels", "labelled"))  # asking for x would encode it


def is_frame(source: Any) -> bool:
    """Whether this is a pandas data frame. Does not import pandas."""
    return hasattr(source, "iloc") and hasattr(source, "columns")


def has_plain_columns(source: Any) -> bool:
    """Whether this is a Hugging Face dataset whose inputs are columns of single values: a table.

    Datasets with lists of numbers (tokens) or pictures are read item by item.
    """
    if type(source).__module__.split(".")[0] != "datasets" or not hasattr(source, "features"):
        return False
    inputs = {name: kind for name, kind in source.features.items() if name not in NO_INPUTS}
    return len(inputs) > 1 and all(type(kind).__name__ in ("Value", "ClassLabel") for kind in inputs.values())


def _read_entry(value: Any, name: str, form: PointFormat | None) -> Tensor:
    """One tensor of a dict. Unlike points without a name, numbers stay one-dimensional."""
    if isinstance(value, Tensor):
        return value
    t = array_tensor(value, name)
    return t if form is None else form.convert(t, name)


def count_labels(y: Any) -> int:
    return y.numel() if isinstance(y, Tensor) else int(np.size(y))


def _read_opened(source: Any, name: str, form: PointFormat | None, part: str) -> GivenPoints:
    if part == "all":
        return GivenPoints(_format_points(source.x, name, form), list(source.ids))
    at = (source.labelled if part == "labelled" else source.pool).tolist()
    if not at and part == "labelled":
        return GivenPoints(None)
    if not at:
        raise ValueError(
            f"all {len(source.labelled)} points of {name} have a label, so there is nothing to ask for; to choose "
            f"among them all the same, give {name}.x"
        )
    x = source.x[torch.as_tensor(at, dtype=torch.int64)]
    return GivenPoints(_format_points(x, name, form), [source.ids[i] for i in at], at=at)


def _format_points(
    x: TensorInputs, name: str, form: PointFormat | None, rows: Sequence[int] | None = None
) -> TensorInputs:
    """Points as a network takes them. One number for each point is a column, unless it may be a token."""
    if isinstance(x, Tensor):
        if x.dim() == 1 and (x.is_floating_point() or (form is not None and not form.embeds)):
            x = x[:, None]
        return x if form is None else form.convert(x, name, rows)
    return x if form is None else {key: form.convert(t, f"{name}[{key!r}]", rows) for key, t in x.items()}


# --- points that are read when they are asked for ---


class SlicedPoints:
    """Points that are read some at a time: a mapped array, a dataset, a DataLoader, or tensors. ``len`` counts them.

    read: positions, a slice or an array of integers -> those points as they are stored.
    form: what they become; None: they stay as they are, and are only checked.
    in_memory: whether all points are, so that another process needs a copy of them.
    file: that they are mapped from, if it is known.
    ids: of the points, if their source has some.
    """

    def __init__(
        self,
        count: int,
        read: Callable[[slice | np.ndarray], TensorInputs],
        name: str,
        form: PointFormat | None,
        *,
        in_memory: bool = False,
        file: str | None = None,
        ids: list[Any] | None = None,
    ) -> None:
        self.count, self.read, self.name, self.form = count, read, name, form
        self.in_memory, self.file, self.ids = in_memory, file, ids

    def __len__(self) -> int:
        return self.count

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which reads points and names none."""
        return {**vars(self), "ids": None}

    def take(self, at: slice | Sequence[int] | np.ndarray) -> Any:
        """Some points as tensors, as the network takes them. Raises with the position of one that is not finite."""
        rows: Any = range(self.count)[at] if isinstance(at, slice) else np.asarray(at, dtype=np.int64)
        named = None if len(rows) == self.count else rows
        x = self.read(slice(rows.start, rows.stop) if isinstance(rows, range) else rows)
        if self.form is not None:
            return _format_points(x, self.name, self.form, named)
        for key, t in x.items() if isinstance(x, Mapping) else [("", x)]:
            check_finite(t, f"{self.name}[{key!r}]" if key else self.name, rows)
        return x

    def all(self) -> Any:
        """All points as tensors."""
        return self.take(slice(0, self.count))

    def chunks(self, step: int, within: slice | None = None) -> Iterator[tuple[slice, Any]]:
        """All points, or those of a range, ``step`` at a time. While a chunk is in use, a thread reads the next."""
        start, stop, _ = (within or slice(None)).indices(self.count)
        cuts = [slice(at, min(at + step, stop)) for at in range(start, stop, step)]
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(self.take, cuts[0])
            for k, cut in enumerate(cuts):
                x = ahead.result()
                if k + 1 < len(cuts):
                    ahead = reader.submit(self.take, cuts[k + 1])
                yield cut, x

    @cached_property
    def point_bytes(self) -> int:
        """Of one point as a tensor; the first is read."""
        x = self.take(slice(0, 1))
        return sum(t.nbytes for t in (x.values() if isinstance(x, Mapping) else [x]))


def sliced_points(source: Any, name: str, form: PointFormat | None) -> SlicedPoints | None:
    """A source that need not be read whole; None if it is in memory as tensors already, or must be."""
    if isinstance(source, str | Path) and Path(source).suffix.lower() in ARROW_ENDINGS:
        rows = ArrowRows(Path(source).absolute(), name)
        return SlicedPoints(len(rows.array), rows, name, form, file=str(rows.path), ids=rows.ids)
    if isinstance(source, Tensor) and form is not None and source.dim() and _is_coarse(source, form):
        return SlicedPoints(len(source), sliced_tensors(source, name).read, name, form)
    if isinstance(source, Tensor | Mapping | str | bytes | list | tuple) or is_opened(source) or is_frame(source):
        return None
    if isinstance(source, DataLoader):
        dataset, collate = source.dataset, source.collate_fn
        if isinstance(dataset, IterableDataset) or source.batch_sampler is None or not hasattr(dataset, "__len__"):
            return None
        check_loader(source, name)
        return SlicedPoints(
            len(dataset), lambda at: _batch_inputs(collate(_read_items(dataset, at, name)), name), name, form
        )
    if isinstance(source, np.ndarray):
        if source.ndim == 0 or source.dtype.kind not in "biuf" or len(source) == 0 or np.ma.isMaskedArray(source):
            return None
        file, read = mapped_file(source), lambda at: array_tensor(np.array(source[at]), name)
        return SlicedPoints(
            len(source), read, name, form, in_memory=file is None, file=None if file is None else file[0]
        )
    if any(hasattr(source, key) for key in ("__array__", "toarray", "getbands")) or has_plain_columns(source):
        return None
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__") or len(source) == 0:
        return None
    if (batches := _list_batches(source, name)) is not None:
        return SlicedPoints(len(source), batches, name, form)
    return SlicedPoints(len(source), lambda at: stack_items(_read_items(source, at, name), name), name, form)


def _list_batches(source: Any, name: str) -> Callable[[slice | np.ndarray], TensorInputs] | None:
    """How to read many rows of a Hugging Face dataset at once, if its inputs are lists of numbers and no transform."""
    if type(source).__module__.split(".")[0] != "datasets" or source.format["type"] is not None:
        return None
    keys = [key for key in source.features if key not in NO_INPUTS]
    if not keys or not all(type(source.features[key]).__name__ in ("List", "LargeList", "Sequence") for key in keys):
        return None
    numbers = source.select_columns(keys).with_format("numpy")

    def read(at: slice | np.ndarray) -> TensorInputs:
        rows = numbers[at]
        parts = {key: array_tensor(np.asarray(rows[key]), f"{name}[{key!r}]") for key in keys}
        return parts[keys[0]] if len(keys) == 1 else parts

    return read


class ArrowRows:
    """Some rows of a Parquet or Arrow file, from a copy. Another process gets its name, and makes a copy of its own."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.array, self.ids = arrow_array(path, name)

    def __call__(self, at: slice | np.ndarray) -> TensorInputs:
        return array_tensor(np.array(self.array[at]), self.name)

    def __reduce__(self) -> tuple[type, tuple[Path, str]]:
        return ArrowRows, (self.path, self.name)


def arrow_array(path: Path, name: str) -> tuple[np.ndarray, list[Any] | None]:
    """(N, D): the numbers of a Parquet or Arrow file, mapped from a temporary copy in which every row can be read.

    Inputs are the one column of lists, or else all columns but ids and labels. Some rows at a time are in memory. Its
    column id comes with them, where it names each row.
    """
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise ImportError(
            f"{name} is {path.name}, and reading it needs the package pyarrow: pip install 'foretaste[parquet]', or "
            "save the points as a .npy"
        ) from None
    try:
        if path.suffix.lower() == ".parquet":
            file = ParquetFile(path)
            schema, parts = file.schema_arrow, file.iter_batches(ARROW_ROWS)
        else:
            file = pa.ipc.open_file(pa.memory_map(str(path)))
            schema, parts = file.schema, (file.get_batch(k) for k in range(file.num_record_batches))
        lists = [f.name for f in schema if _is_number_type(getattr(f.type, "value_type", pa.null()))]
        plain = [f.name for f in schema if f.name not in (*NO_INPUTS, *SURE_IDS)]
        called = next((f.name for f in schema if f.name in SURE_IDS), None)
        if len(lists) > 1:
            raise ValueError(f"{name}: {path.name} has several columns of lists, {shown_names(lists)}; keep one")
        other = [f"{f.name} ({f.type})" for f in schema if f.name in plain and not _is_number_type(f.type)]
        if other and not lists:
            raise ValueError(f"{name}: {path.name} has columns that are not numbers: {shown_names(other)}")
        with tempfile.TemporaryFile() as copy:
            shape, dtype, ids = [0, 0], np.dtype(np.float32), list[Any]()
            for part in parts:
                ids += [] if called is None else part.column(called).to_pylist()
                rows = _arrow_rows(part, lists, plain, f"{name}: {path.name}")
                if shape[0] and rows.shape[1] != shape[1]:
                    raise ValueError(f"{name}: lists in {path.name} have {shape[1]} and {rows.shape[1]} numbers")
                dtype = rows.dtype if not shape[0] else dtype
                shape = [shape[0] + len(rows), rows.shape[1]]
                copy.write(np.ascontiguousarray(rows, dtype).tobytes())
            copy.flush()
            if not all(shape):
                raise ValueError(f"{name}: {path.name} has no points; expected at least one")
            named = bool(ids) and len({*ids} - {None}) == len(ids)
            return np.memmap(copy, dtype, "r", shape=tuple(shape)), ids if named else None
    except (pa.ArrowException, OSError) as error:
        if is_disk_full(error):
            raise OSError(
                errno.ENOSPC,
                f"the disk is full, and {name}, {path.name}, could not be copied to {tempfile.gettempdir()}, to read "
                "single rows; free some space there, or name a folder on a larger disk in the environment variable "
                "TMPDIR",
            ) from None
        if not isinstance(error, pa.ArrowException | FileNotFoundError):
            raise
        raise ValueError(f"{name}: {path} cannot be read: {' '.join(str(error).split())[:300]}") from None


def _is_number_type(kind: Any) -> bool:
    from pyarrow import types

    return types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)


def _arrow_rows(part: Any, lists: list[str], plain: list[str], where: str) -> np.ndarray:
    """(n, D) of a batch of rows."""
    if not lists:
        return np.stack([part.column(key).to_numpy(zero_copy_only=False) for key in plain], 1)
    column = part.column(lists[0])
    if column.null_count:
        raise ValueError(f"{where} has rows without a list in column {lists[0]!r}; leave them out")
    lengths = np.unique(
        column.value_lengths().to_numpy(zero_copy_only=False) if hasattr(column, "value_lengths") else [0]
    )
    if len(lengths) > 1:
        raise ValueError(f"{where} has lists of {lengths[0]} to {lengths[-1]} numbers; expected one length")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)


def _is_coarse(t: Tensor, form: PointFormat) -> bool:
    """Whether a tensor on the network's device has floats of 16 bits, which its network does not take."""
    return t.dtype in (torch.float16, torch.bfloat16) and t.dtype != form.dtype and t.device == form.device


def sliced_tensors(x: TensorInputs, name: str) -> SlicedPoints:
    """Points that are tensors already."""
    parts = {"": x} if isinstance(x, Tensor) else dict(x)

    def read(at: slice | np.ndarray) -> TensorInputs:
        at_n = at if isinstance(at, slice) else torch.from_numpy(at).to(next(iter(parts.values())).device)
        return x[at_n] if isinstance(x, Tensor) else {key: t[at_n] for key, t in x.items()}

    return SlicedPoints(len(next(iter(parts.values()))), read, name, None, in_memory=True)


def mapped_file(array: np.ndarray) -> tuple[str, int] | None:
    """The file that an array, or what it is a part of, is mapped from, and the position of its first byte there."""
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None or root.mode == "c":  # "c": it may differ from the file
        return None
    first, here = (a.__array_interface__["data"][0] for a in (root, array))
    return str(root.filename), root.offset + here - first


def _read_items(dataset: Any, at: slice | np.ndarray, name: str) -> list[Any]:
    rows, items = range(at.start, at.stop) if isinstance(at, slice) else at.tolist(), list[Any]()
    with torch.random.fork_rng([]):  # a dataset may draw
        try:
            for i in rows:
                items.append(dataset[i])
        except Exception as error:
            error.add_note(f"while item {rows[len(items)]} of {name} was read")
            raise
    return items


def check_index(ids: Sequence[Any], name: str) -> None:
    """Raise unless the index of a data frame can name its rows."""
    if len(set(ids)) < len(ids):
        raise ValueError(
            f"the index of {name} repeats {Counter(ids).most_common(1)[0][0]!r}, so it cannot name the points; use "
            f"{name}.reset_index(drop=True), or give ids="
        )


def frame_tensor(frame: Any, name: str) -> Tensor:
    """(N, D) of a data frame of numbers. Raises with all columns that hold something else or miss values."""
    columns = [frame.iloc[:, k] for k in range(frame.shape[1])]
    other = [c.name for c in columns if getattr(c.dtype, "kind", "O") not in "biuf"]
    if other:
        raise TypeError(
            f"{name} has columns that are not numbers: {shown_names(other)}; leave them out, or make them numbers. "
            f"{HOW_TO_ENCODE}"
        )
    if not columns:
        raise ValueError(f"{name} is a data frame without columns; expected one for each input of the network")
    array = np.stack([c.to_numpy(dtype=np.float64, na_value=np.nan) for c in columns], 1)
    gaps = {c.name: n for c, n in zip(columns, (~np.isfinite(array)).sum(0).tolist()) if n}
    if gaps:
        listed = shown_names([f"{column} ({n})" for column, n in gaps.items()])
        raise ValueError(
            f"{name} has {sum(gaps.values())} missing or infinite values, in {listed}; fill them in, or leave those "
            "rows out"
        )
    t = torch.from_numpy(array)
    return t.long() if all(c.dtype.kind != "f" for c in columns) else t


def shown_names(names: Sequence[Any]) -> str:
    more = f" and {len(names) - COLUMNS_SHOWN} more" if len(names) > COLUMNS_SHOWN else ""
    return ", ".join(map(str, names[:COLUMNS_SHOWN])) + more


def array_tensor(source: Any, name: str) -> Tensor:
    """An array, or numbers in nested lists, as a tensor. Shares the array's memory if it can."""
    if np.ma.is_masked(source):
        raise ValueError(f"{name} is an array with {np.ma.count_masked(source)} masked values; fill them in")
    try:
        array = np.asarray(source)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"{name} is a {type(source).__name__} whose points have several lengths; expected one shape for all: pad "
            "them"
        ) from None
    kind = array.dtype.kind
    if kind in "USO" and array.size and all(isinstance(one, str | bytes) for one in array.flat):
        raise TypeError(f"{name} holds text, such as {str(array.flat[0])!r:.40}; expected numbers. {HOW_TO_ENCODE}")
    if kind not in "biuf":
        first = f", the first a {type(array.flat[0]).__name__}" if kind == "O" and array.size else ""
        raise TypeError(
            f"{name} holds values of type {array.dtype}{first}; expected numbers, all points of one shape: "
            f"{name}.astype(float) where they are"
        )
    if array.ndim == 0:
        raise ValueError(f"{name} is a single number; expected one row for each point")
    if kind == "u" and array.itemsize > 1:
        array = array.astype(np.float64 if array.itemsize == 8 else np.int64)
    if array.dtype.itemsize > 8 or not array.dtype.isnative:
        array = array.astype(np.float64 if kind == "f" else np.int64)
    if not array.flags.writeable or any(step < 0 for step in array.strides):
        array = array.copy()  # torch can share neither
    return torch.from_numpy(array)


# --- items of a dataset ---


def stack_items(items: Sequence[Any], name: str = "pool") -> TensorInputs:
    """Items of a dataset as one tensor, or as a dict of tensors. The label of an (x, y) pair is left out."""
    first = items[0]
    if isinstance(first, Mapping):
        keys = [k for k in first if k not in NO_INPUTS]
        if not keys:
            raise ValueError(f"items of {name} have only {', '.join(map(str, first))}; expected a column of inputs")
        parts = {str(k): _stack_tensors([item[k] for item in items], f"{name}[{k!r}]") for k in keys}
        return parts[str(keys[0])] if len(keys) == 1 else parts
    if _is_pair(first):
        return stack_items([item[0] for item in items], name)
    return _stack_tensors(items, name)


def _stack_tensors(items: Sequence[Any], name: str) -> Tensor:
    tensors = [item_tensor(item, name) for item in items]
    shapes = Counter(tuple(t.shape) for t in tensors)
    if len(shapes) > 1:
        listed = ", ".join(f"{shape} ({n})" for shape, n in shapes.most_common(3))
        raise ValueError(f"items of {name} have {len(shapes)} shapes: {listed}; expected one: resize or pad them")
    return torch.stack(tensors)


def item_tensor(item: Any, name: str = "pool") -> Tensor:
    """One item: a tensor, an array, numbers, or a picture, whose bytes become (channels, height, width)."""
    if isinstance(item, Tensor):
        return item.detach()
    if hasattr(item, "getbands"):  # a PIL image
        if item.mode.startswith("I"):  # 16 bits per pixel, which convert() would clip to 255
            deep = np.asarray(item).astype(np.int64).clip(0, 65535)
            return torch.from_numpy(((deep + 128) // 257).astype(np.uint8))[None]
        array = np.asarray(item.convert("L" if item.mode in ("1", "L") else "RGB"))
        return torch.from_numpy(array.copy()[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())
    single = not isinstance(item, list | tuple) and np.ndim(item) == 0
    t = array_tensor([item] if single else item, f"an item of {name}")
    t = t[0] if single else t
    return t.float() if t.dtype == torch.float64 else t


def _is_pair(item: Any) -> bool:
    """Whether an item is (x, y) rather than numbers in nested lists."""
    if not isinstance(item, tuple | list) or not item or all(isinstance(v, int | float) for v in item):
        return False
    if _is_object(item[0]):
        return True
    try:
        return np.asarray(item).dtype.kind not in "biuf"
    except ValueError:
        return True


def _is_object(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray | Mapping) or hasattr(value, "getbands")


def _holds_objects(source: Sequence[Any]) -> bool:
    """Whether a list holds tensors, arrays, pictures, dicts, or pairs with one of these; else it is numbers."""
    first = source[0] if source else None
    return _is_object(first) or (isinstance(first, tuple | list) and _is_pair(first))


def check_loader(loader: "DataLoader[Any]", name: str) -> None:
    """Raise if a DataLoader shuffles or drops points: then positions mean nothing."""
    known, batches = not isinstance(loader.dataset, IterableDataset), loader.batch_sampler
    order = loader.sampler if batches is None else getattr(batches, "sampler", None)
    if known and not (isinstance(order, SequentialSampler) and type(batches) in (BatchSampler, type(None))):
        raise ValueError(f"{name} is a DataLoader that shuffles, so positions in it mean nothing; use shuffle=False")
    if known and loader.drop_last and loader.batch_size and len(loader.dataset) % loader.batch_size:  # type: ignore[arg-type]
        raise ValueError(f"{name} is a DataLoader that drops its last points; use drop_last=False")


def read_loader(loader: "DataLoader[Any]", name: str) -> TensorInputs:
    """All points of a DataLoader."""
    check_loader(loader, name)
    batches = loader.batch_sampler
    with torch.random.fork_rng([]):  # a loader draws a seed for its workers
        read = list(loader)
    if not read:
        raise ValueError(f"{name} is a DataLoader without points; expected at least one")
    if batches is None:
        return stack_items(read, name)
    parts = [_batch_inputs(batch, name) for batch in read]
    try:
        if isinstance(parts[0], Tensor):
            return torch.cat(parts)
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    except (RuntimeError, TypeError, KeyError) as error:
        raise ValueError(
            f"{name} is a DataLoader whose batches do not fit together ({str(error).splitlines()[0]}); pad all points "
            "to one shape"
        ) from None


def _batch_inputs(batch: Any, name: str) -> Any:
    """The points of a batch: x of x or (x, y, ...), or the entries of a dict that are not labels."""
    batch = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if isinstance(batch, Mapping):
        parts = {str(k): torch.as_tensor(v) for k, v in batch.items() if k not in NO_INPUTS}
        return next(iter(parts.values())) if len(parts) == 1 else parts
    if not isinstance(batch, Tensor):
        raise TypeError(f"a batch of {name} is a {type(batch).__name__}; expected tensors: let collate_fn make them")
    return batch


# --- labels ---


def check_class_names(classes: Any) -> tuple[ClassName, ...]:
    """Class names without duplicates: all text, or all integers."""
    listed = classes.tolist() if hasattr(classes, "tolist") else classes
    names = tuple(listed) if isinstance(listed, Sequence) and not isinstance(listed, str | bytes) else ()
    names = tuple(int(n) if isinstance(n, np.integer) else n for n in names)
    text, whole = (all(isinstance(n, kind) and not isinstance(n, bool) for n in names) for kind in (str, int))
    if not names or not (text or whole):
        raise TypeError(f"classes is {classes!r:.80}; expected a list of names: all text, or all whole numbers")
    if len(set(names)) != len(names):
        twice = [n for n, count in Counter(names).items() if count > 1]
        raise ValueError(f"classes has repeated names: {shown_names(twice)}")
    return tuple(map(str, names)) if text else names


def resolve_class_names(y: Any, classes: Any, C: int, name: str = "y_L") -> tuple[ClassName, ...] | None:
    """The names of the C classes: ``classes``, or the sorted labels if they are text and C of them differ."""
    if classes is not None:
        names = check_class_names(classes)
        if len(names) != C:
            raise ValueError(
                f"classes has {counted(len(names), 'name')} and the network has {counted(C, 'output')}; expected {C} "
                "names in the order of the outputs"
            )
        return names
    if (text := text_labels(y)) is None:
        return None
    found = tuple(sorted({str(label) for label in text.flat}))
    if len(found) != C:
        raise ValueError(
            f"{name} has {counted(len(found), 'different label')} ({', '.join(found[:8])}{', ...' * (len(found) > 8)}) "
            f"and the network has {C} outputs; give classes=, all {C} names in the order of the outputs"
        )
    return found


def text_labels(y: Any) -> np.ndarray | None:
    """The labels of a sequence, numpy array or pandas Series as an array of text; None if they are not text."""
    if y is None or isinstance(y, Tensor | int | float):
        return None
    if isinstance(y, str):
        return np.asarray(y)
    if isinstance(y, list | tuple) and not (y and isinstance(y[0], str)):
        return None  # without copying a long list of numbers
    array = np.asarray(y)
    if array.dtype.kind == "U" or (array.dtype.kind == "O" and all(isinstance(label, str) for label in array.flat)):
        return array if array.size else None
    return None


def names_to_ids(y: Any, names: Sequence[ClassName] | None, name: str = "y_L") -> Tensor | None:
    """Class names as ids, on the CPU; None if the labels are not names: text, or integers if ``names`` are."""
    given = text_labels(y)
    if given is None and names is not None and not isinstance(names[0], str):
        t = label_tensor(y, name)
        given = None if t.is_floating_point() else t.cpu().numpy()
    if given is None:
        return None
    if names is None:
        raise ValueError(
            f"{name} holds text, such as {str(given.flat[0])!r}; give classes=, the names in the order of the "
            "network's outputs"
        )
    ids = {label: c for c, label in enumerate(names)}
    labels = given.flatten().tolist()
    for label in labels:
        if label not in ids:
            raise ValueError(f"{name} has the unknown class {label!r}{did_you_mean(label, map(str, names))}")
    return torch.tensor([ids[label] for label in labels], dtype=torch.int64).reshape(given.shape)


def zeros_and_ones(t: Tensor) -> bool:
    return bool(((t == 0) | (t == 1)).all())


def label_tensor(y: Any, name: str, allow_bool: bool = False) -> Tensor:
    """Labels that are numbers, as a tensor."""
    try:
        if not isinstance(y, Tensor) and hasattr(y, "__array__"):
            y = array_tensor(np.atleast_1d(np.asarray(y)), name).reshape(np.shape(y))
        t = y.detach() if isinstance(y, Tensor) else torch.as_tensor(y)
        if t.is_floating_point() and not hasattr(y, "dtype"):
            t = torch.as_tensor(y, dtype=torch.float64)  # as Python's floats: float32 would round them
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"{name} is a {type(y).__name__} that is no tensor of labels; expected numbers, or class names as text, "
            "none of them missing"
        ) from None
    if (t.dtype == torch.bool and not allow_bool) or t.is_complex():
        raise ValueError(f"{name} is of {t.dtype}; expected class ids as integers, or floats")
    return t


def labels_as_numbers(y: Any, names: Sequence[ClassName] | None, binary: bool, name: str) -> Tensor:
    """Class names as ids; with ``binary`` (two classes, one output) also booleans, 0.0 and 1.0. Others stay."""
    if (ids := names_to_ids(y, names, name)) is not None:
        return ids
    t = label_tensor(y, name, allow_bool=binary)
    if t.dtype == torch.bool or (binary and t.is_floating_point() and t.dim() < 2 and zeros_and_ones(t)):
        return t.long()
    return t


def holds_classes(y: Any, loss: str, classes: Any, name: str = "y_L") -> bool:
    """Whether labels for a network of one output are two classes: 0 and 1, False and True, or names.

    Floats mean regression, unless the loss is for classes only. Raises if they are neither.
    """
    if classes is not None or text_labels(y) is not None:
        return True
    t = torch.empty(0) if y is None else label_tensor(y, name, allow_bool=True)
    if t.numel() == 0 or t.is_floating_point():
        if LOSSES[loss].quadratic:
            return False
        if t.dim() > 1 or not zeros_and_ones(t):
            raise ValueError(
                f'loss="{loss}" with one output is binary classification, whose labels are 0 and 1; {name} has other '
                'values. Give 0 and 1, or loss="l2" for regression'
            )
        return True
    if not zeros_and_ones(t):
        raise ValueError(
            f"{name} holds integers from {int(t.min())} to {int(t.max())}, which are class ids, and one output tells "
            "two classes apart, 0 and 1; give the network an output for each class. If they are numbers, regression "
            f"wants floats: {name}.double()"
        )
    return True
