"""The pool of a learner: the user's ids, and the items, read when they are needed.

An item is known inside by its position. Labels inside a dataset's items are not read: a pool for a simulation has them
all, and a pool for labelling has none. What is labelled already comes as ``labels=``.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretaste.connect import open as open_points
from foretaste.data import read_points
from foretaste.errors import counted, nearest_name, printable
from foretaste.given import (
    check_index,
    has_plain_columns,
    is_frame,
    mapped_file,
    read_given,
    sliced_points,
    stack_items,
    text_labels,
)
from foretaste.network import prepare
from foretaste.tangent import Inputs, take_points

log = logging.getLogger("foretaste")

POOL_CHUNK = 1024  # items of a dataset that are read at a time
NEAR_IDS = 5000  # ids that are searched for the nearest name
DIGEST_ITEMS = 64  # items whose numbers enter the digest of a pool


@dataclass(frozen=True, eq=False)
class Pool:
    """Items by position, and their ids. ``read`` gives some of them as tensors, as they are stored."""

    ids: tuple[Hashable, ...]
    read: Callable[[Sequence[int]], Inputs]
    whole: Inputs | None  # all items, if they are in memory

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: Sequence[int], device: torch.device, dtype: torch.dtype) -> Inputs:
        """Some items as a network takes them: bytes as numbers in [0, 1], floats in the network's dtype.

        A dataset is read a chunk at a time.
        """
        if self.whole is None and len(positions) > POOL_CHUNK:
            parts = [self.take(some, device, dtype) for some in self.chunks(positions)]
            if isinstance(parts[0], Tensor):
                return torch.cat(parts)  # type: ignore[arg-type]
            return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}  # type: ignore[index]
        x = self.read(positions)
        if isinstance(x, Tensor):
            return as_network_input(x, device, dtype)
        return {key: as_network_input(t, device, dtype) for key, t in x.items()}

    def chunks(self, positions: Sequence[int]) -> Iterator[Sequence[int]]:
        """The positions, some at a time."""
        for start in range(0, len(positions), POOL_CHUNK):
            yield positions[start : start + POOL_CHUNK]

    def digest(self) -> str:
        """A fingerprint of the ids and of a few items: whether a saved learner is given the pool it was made with."""
        found = sha256(repr(self.ids).encode())
        step = max(1, len(self) // DIGEST_ITEMS)
        x = self.read(range(0, len(self), step))
        for key, t in sorted({"": x}.items() if isinstance(x, Tensor) else x.items()):
            found.update(f"{key} {t.dtype} {tuple(t.shape)}".encode())
            found.update(t.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())  # numpy has no bfloat16
        return found.hexdigest()


def as_network_input(t: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """One tensor on the device; bytes become numbers in [0, 1]; whole numbers (token ids) stay."""
    t = prepare(t.to(device), dtype)
    return t.to(dtype) if t.is_floating_point() else t


def make_pool(source: Any, ids: Sequence[Hashable] | None = None) -> Pool:
    """A pool of points of any kind that ``ft.query`` takes, of texts, or of an object with ``x`` and ``ids``.

    A map-style dataset, or an array mapped from a file, is read when its items are needed; all else is in memory.
    """
    source = open_pool(source, ids)
    if hasattr(source, "x") and hasattr(source, "ids"):
        return make_pool(source.x, source.ids if ids is None else ids)
    if is_lazy(source):
        known = check_ids(range(len(source)) if ids is None else ids, len(source))
        return Pool(known, lambda at: stack_items([source[int(i)] for i in at]), None)
    if isinstance(source, np.ndarray) and source.ndim > 1 and mapped_file(source) is not None:
        stored = sliced_points(source, "pool", None)
        if stored is not None:
            known = check_ids(range(len(stored)) if ids is None else ids, len(stored))
            return Pool(known, lambda at: stored.take(list(at)), None)
    given = read_given(source, "pool")
    whole: Inputs = (
        as_column(given.x) if isinstance(given.x, Tensor) else {key: as_column(t) for key, t in given.x.items()}
    )
    lengths = {key: len(t) for key, t in ({"": whole} if isinstance(whole, Tensor) else whole).items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"the tensors of pool have different lengths, {lengths}; expected one row for each item")
    n = next(iter(lengths.values()))
    if n == 0:
        raise ValueError("pool is empty; expected at least one item")
    known = check_ids(given.ids or range(n) if ids is None else ids, n)
    return Pool(known, lambda at: take_points(whole, torch.as_tensor(list(at), dtype=torch.int64)), whole)


def open_pool(source: Any, ids: Sequence[Hashable] | None = None) -> Any:
    """Texts and tables as ``ft.open`` reads them, with positions or the index as ids; all else as it is."""
    if is_frame(source):
        points, own = open_points(source), source.index.tolist()
        if points.own_ids and points.ids != list(map(str, own)):
            own = points.ids  # a column of ids
        elif ids is None:
            check_index(own, "pool")
    elif has_plain_columns(source):
        points = read_points(source, ask=False)
        own = points.ids if points.own_ids else list(range(len(source)))
    elif (isinstance(source, list | tuple) or hasattr(source, "__array__")) and text_labels(source) is not None:
        points, own = open_points(list(map(str, source))), list(range(len(source)))
    else:
        return source
    for note in points.notes:
        log.warning("pool: %s", note)
    return replace(points, ids=own)


def is_lazy(source: Any) -> bool:
    """Whether this is a map-style dataset, whose items are read when they are needed."""
    if isinstance(source, Tensor | Mapping | list | tuple | str | bytes) or hasattr(source, "__array__"):
        return False
    return hasattr(source, "__len__") and hasattr(source, "__getitem__") and len(source) > 0


def as_column(t: Tensor) -> Tensor:
    """Numbers in one dimension are items of one number each."""
    t = t.detach()
    if t.dim() == 0:
        raise ValueError("pool is a single number; expected one row for each item")
    return t[:, None] if t.dim() == 1 and t.is_floating_point() else t


def check_ids(ids: Iterable[Hashable], n: int) -> tuple[Hashable, ...]:
    """The ids, as text or whole numbers, all different."""
    if isinstance(ids, range) and len(ids) == n:  # positions: a million need no look at each
        return tuple(ids)
    known = tuple(plain_id(i) for i in ids)
    if len(known) != n:
        raise ValueError(
            f"ids has {counted(len(known), 'entry', 'entries')} and pool {counted(n, 'item')}; expected "
            "one id for each item"
        )
    seen: set[Hashable] = set()
    twice = [i for i in known if i in seen or seen.add(i)]  # type: ignore[func-returns-value]
    if twice:
        raise ValueError(
            f"ids has {len(twice)} repeated entries, first {shown_id(twice[0])}; expected all of them different"
        )
    return known


def plain_id(i: Any) -> Hashable:
    """An id as Python's own text or whole number, which JSON keeps."""
    if isinstance(i, str):
        return str(i)
    if isinstance(i, bool | np.bool_) or not isinstance(i, int | np.integer):
        if isinstance(i, Tensor) and i.dim() == 0 and not i.is_floating_point():
            return int(i)
        raise TypeError(f"the id {i!r:.60} is a {type(i).__name__}; expected text or a whole number")
    return int(i)


def shown_id(i: object) -> str:
    """An id in a message."""
    return printable(repr(i)[:80])


class UnknownItemError(KeyError):
    """An id that is not in the pool. It is a KeyError whose message is not quoted."""

    def __str__(self) -> str:
        return str(self.args[0])


def unknown_item(i: object, known: Sequence[Hashable]) -> UnknownItemError:
    """The error about an id that is not in the pool, with the nearest that is."""
    kinds = sorted({type(k).__name__ for k in known[:100]})
    if type(i).__name__ not in kinds:
        return UnknownItemError(
            f"unknown id {shown_id(i)}, of type {type(i).__name__}; the ids of this pool are of type {', '.join(kinds)}"
        )
    names = {str(k): k for k in known[:NEAR_IDS]}
    near = nearest_name(str(i), names)
    first = f"; the first of {counted(len(known), 'id')} is {shown_id(known[0])}"
    hint = first if near is None else f"; did you mean {shown_id(names[near])}?"
    return UnknownItemError(f"unknown id {shown_id(i)}{hint}")
