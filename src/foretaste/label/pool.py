"""The pool of a learner: the user's ids, and the items, read when they are needed.

An item is known inside by its position. Labels inside a dataset's items are not read: a pool for a simulation has them
all, and a pool for labelling has none. What is labelled already comes as ``labels=``.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretaste.errors import printable
from foretaste.network import prepare
from foretaste.tangent import Inputs, take_points

POOL_CHUNK = 1024  # items of a dataset that are read at a time
NO_INPUTS = ("label", "labels", "target", "y")  # of a dataset's items: never inputs
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
        """Some items as a network takes them: bytes as numbers in [0, 1], floats in the network's dtype."""
        x = self.read(positions)
        if isinstance(x, Tensor):
            return as_network_input(x, device, dtype)
        return {key: as_network_input(t, device, dtype) for key, t in x.items()}

    def chunks(self, positions: Sequence[int], size: int = POOL_CHUNK) -> Iterator[Sequence[int]]:
        """The positions, some at a time."""
        for start in range(0, len(positions), size):
            yield positions[start : start + size]

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
    """A pool of an array, a tensor, a dict of tensors, a map-style dataset, or an object with ``x`` and ``ids``."""
    if isinstance(source, Pool):
        return source
    if hasattr(source, "x") and hasattr(source, "ids"):
        return make_pool(source.x, source.ids if ids is None else ids)
    if isinstance(source, Mapping):
        whole: Inputs | None = {str(key): stored_tensor(t, f"pool[{key!r}]") for key, t in source.items()}
        lengths = {key: len(t) for key, t in whole.items()}  # type: ignore[union-attr]
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the tensors of pool have different lengths, {lengths}; expected one row for each item")
        n = next(iter(lengths.values()))
    elif isinstance(source, Tensor | np.ndarray):
        whole = stored_tensor(source, "pool")
        n = len(whole)
    elif hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, str | bytes):
        whole, n = None, len(source)
    else:
        raise TypeError(
            f"pool is a {type(source).__name__}; expected an array, a tensor, a dict of tensors, a dataset with "
            "__len__ and __getitem__, or what ft.open returns"
        )
    if n == 0:
        raise ValueError("pool is empty; expected at least one item")
    known = check_ids(range(n) if ids is None else ids, n)
    if whole is None:
        return Pool(known, lambda at: stack_items([source[int(i)] for i in at]), None)
    kept = whole
    return Pool(known, lambda at: take_points(kept, torch.as_tensor(list(at), dtype=torch.int64)), whole)


def stored_tensor(t: Any, name: str) -> Tensor:
    """An array as a tensor that shares its memory."""
    try:
        t = t.detach() if isinstance(t, Tensor) else torch.as_tensor(np.asarray(t))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} cannot be made a tensor: {error}") from None
    if t.dim() == 0:
        raise ValueError(f"{name} is a single number; expected one row for each item")
    return t[:, None] if t.dim() == 1 and t.is_floating_point() else t


def check_ids(ids: Iterable[Hashable], n: int) -> tuple[Hashable, ...]:
    """The ids, as text or whole numbers, all different."""
    known = tuple(plain_id(i) for i in ids)
    if len(known) != n:
        raise ValueError(f"ids has {len(known)} entries and pool {n} items; expected one id for each item")
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
    near = [names[name] for name in get_close_matches(str(i), names, 1)]
    hint = (
        f"; did you mean {shown_id(near[0])}?" if near else f"; the first of {len(known)} ids is {shown_id(known[0])}"
    )
    return UnknownItemError(f"unknown id {shown_id(i)}{hint}")


# --- items of a dataset ---


def stack_items(items: Sequence[Any]) -> Inputs:
    """Items of a dataset as one tensor, or as a dict of tensors. The label of an (x, y) pair is left out."""
    first = items[0]
    if isinstance(first, Mapping):
        keys = [k for k in first if k not in NO_INPUTS]
        if not keys:
            raise ValueError(f"items of the pool have only {', '.join(map(str, first))}; expected a column of inputs")
        parts = {str(k): torch.stack([item_tensor(item[k]) for item in items]) for k in keys}
        return parts[str(keys[0])] if len(keys) == 1 else parts
    if isinstance(first, tuple | list) and not all(isinstance(v, int | float) for v in first):
        items = [item[0] for item in items]
    return torch.stack([item_tensor(item) for item in items])


def item_tensor(item: Any) -> Tensor:
    """One item: a tensor, an array, numbers, or a picture, whose bytes become (channels, height, width)."""
    if isinstance(item, Tensor):
        return item
    if hasattr(item, "getbands"):  # a PIL image
        if item.mode.startswith("I"):  # 16 bits a pixel, which convert() cuts off at 255
            deep = np.asarray(item).astype(np.int64).clip(0, 65535)
            return torch.from_numpy(((deep + 128) // 257).astype(np.uint8))[None]
        array = np.asarray(item.convert("L" if item.mode in ("1", "L") else "RGB"))
        return torch.from_numpy(array.copy()[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())
    t = torch.as_tensor(np.asarray(item))
    return t.float() if t.dtype == torch.float64 else t
