"""A labelled data set in memory (``Images``), its ids in three sets (``Split``); sets made harder or smaller."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from foretaste.errors import format_bytes

MeanAndStd = tuple[tuple[float, ...], tuple[float, ...]]

LARGEST_DATASET = 16 * 10**9  # bytes of one data set in memory; more is refused before it is read
MEASURED_AT_ONCE = 1 << 22  # numbers in float64
SHRUNK_AT_ONCE = 4096  # pictures


@dataclass(frozen=True, eq=False)
class Images:
    """``x[i]`` is a point, ``y[i]`` its class; ``pool`` may be queried, ``test`` only measures.

    Pixels stay bytes in one tensor. A network receives ``x / 255``, then normalised. Pool and test have the same
    transform; random flips and crops happen in training only (``foretaste.network.fit``).

    Example:
        >>> from foretaste.data import digits
        >>> data = digits()
        >>> data.x.shape, len(data.pool), len(data.test)
        (torch.Size([1797, 1, 8, 8]), 1197, 600)
    """

    name: str
    x: Tensor  # (N, channels, H, W) uint8; float32 of any shape for points that are not pictures of bytes
    y: Tensor  # (N,) int64, the true classes
    pool: np.ndarray  # (pool,) int64 ids into x
    test: np.ndarray  # (test,) int64 ids into x, none of them in the pool
    classes: tuple[str, ...]
    normalise: MeanAndStd | None = None  # mean and std of each channel, for pixels in [0, 1]
    files: tuple[str, ...] | None = None  # the file of each point, if each has its own
    notes: tuple[str, ...] = ()  # what a reader of results must know: files left out, labels changed
    shown: Tensor | None = None  # (N, channels, H, W) what to look at, where x holds features of it
    read: str | None = None  # a digest of what was read, where x was computed from it

    def picture(self, i: int) -> np.ndarray:
        """The pixels of point ``i`` in [0, 1], to look at: (H, W) or (H, W, 3). A vector becomes one row."""
        x = (self.x if self.shown is None else self.shown)[int(i)].cpu()
        pixels = x.numpy() / 255 if x.dtype == torch.uint8 else x.numpy()
        if pixels.ndim != 3:
            return pixels.reshape(1, -1)
        return pixels[0] if len(pixels) != 3 else pixels.transpose(1, 2, 0)

    def to(self, device: torch.device | str) -> "Images":
        """The same data set with points and labels on ``device``."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))


def check_memory(says: str, need: int, most: int) -> None:
    """Raise if a data set would take more than ``most`` bytes; ``says`` is what its file declares."""
    if need > most:
        raise ValueError(
            f"{says}, above the limit of {format_bytes(most)}; raise the limit (most= in Python) if that is right"
        )


def ids_of(points: Iterable[int]) -> np.ndarray:
    """Ids as a new int64 array."""
    return np.array(points if isinstance(points, np.ndarray) else list(points), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """Three sets of ids without a point in common: L labelled, U candidates, test.

    Example:
        >>> from foretaste.data import Split
        >>> split = Split(L=[4], U=[7, 1, 9], test=[0]).label([9])
        >>> split.L.tolist(), split.U.tolist()
        ([4, 9], [7, 1])
    """

    L: np.ndarray
    U: np.ndarray
    test: np.ndarray

    def __post_init__(self) -> None:
        for name in ("L", "U", "test"):
            object.__setattr__(self, name, ids_of(getattr(self, name)))
        everyone = np.concatenate([self.L, self.U, self.test])
        seen, count = np.unique(everyone, return_counts=True)
        if (count > 1).any():
            twice = ", ".join(map(str, seen[count > 1][:5]))
            raise ValueError(f"ids {twice} stand twice in L, U and test; each point belongs to one set, once")

    def label(self, ids: Iterable[int]) -> "Split":
        """L ∪ ids and U \\ ids (the last lines of Alg. 1); ``ids`` are points of U. The order of U stays."""
        new = ids_of(ids)
        if len(np.unique(new)) != len(new):
            raise ValueError(f"the same point is labelled twice: {new.tolist()}")
        if unknown := np.setdiff1d(new, self.U).tolist():
            raise ValueError(f"ids {unknown[:5]} are not in U, so they cannot be labelled now; pick from split.U")
        return Split(np.concatenate([self.L, new]), self.U[~np.isin(self.U, new)], self.test)

    def offer(self, n: int | None, seed: int) -> "Split":
        """The same L and test with ``n`` candidates drawn anew for U; the others wait in the pool (§4).

        The seed gives one order of all ids; U keeps its first ``n`` in that order. Two pools that share most of their
        points are therefore offered mostly the same ones.
        """
        if n is None or n >= len(self.U):
            return self
        order = np.random.default_rng(seed).random(int(self.U.max()) + 1)
        return Split(self.L, np.sort(self.U[np.argsort(order[self.U], kind="stable")[:n]]), self.test)


def draw(pool: np.ndarray, test: np.ndarray, n: int, seed: int) -> Split:
    """Label ``n`` random points of the pool, 1 to one less than all: the start of a study.

    Example:
        >>> import numpy as np
        >>> from foretaste.data import draw
        >>> split = draw(pool=np.arange(10), test=np.arange(10, 12), n=3, seed=0)
        >>> len(split.L), len(split.U), split.test.tolist()
        (3, 7, [10, 11])
    """
    if not 0 < n < len(pool):
        raise ValueError(f"cannot start with {n} labels of a pool of {len(pool)}; expected 1 to {len(pool) - 1}")
    first = np.random.default_rng(seed).choice(pool, size=n, replace=False)
    return Split(L=ids_of([]), U=pool, test=test).label(first)


def stratified(y: np.ndarray, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ids of pool and test: test takes ``share`` of each class, rounded. No class is in test only.

    The points are the same in every call. Each class draws with a generator of its own, so adding or removing a class
    does not move the points of the others.
    """
    if not 0 <= share < 1:
        raise ValueError(f"test is {share}; expected a share of the points from 0 to below 1")
    chosen = np.zeros(len(y), dtype=bool)
    for c in np.unique(y):
        members = np.flatnonzero(y == c)
        n = min(int(np.floor(share * len(members) + 0.5)), len(members) - 1)
        chosen[np.random.default_rng((seed, int(c))).permutation(members)[:n]] = True
    return np.flatnonzero(~chosen).astype(np.int64), np.flatnonzero(chosen).astype(np.int64)


def measured(data: Images) -> MeanAndStd:
    """Mean and standard deviation of each channel, over the pool: of pixels in [0, 1], or of features as they are.

    Test points do not count. Computed in float64 and two passes, chunk by chunk. A channel that never varies gets
    deviation 1.

    Example:
        >>> from foretaste.data import digits, measured
        >>> (mean,), (std,) = measured(digits())
        >>> round(mean, 2), round(std, 2)
        (0.29, 0.35)
    """
    scale = 255.0 if data.x.dtype == torch.uint8 else 1.0
    x_NCm = data.x.reshape(*data.x.shape[:2], -1)
    chunks = torch.from_numpy(data.pool).to(x_NCm.device).split(max(1, MEASURED_AT_ONCE // max(1, x_NCm[0].numel())))

    def mean_of(power: int, centre_C: torch.Tensor) -> torch.Tensor:
        total_C = torch.zeros_like(centre_C)
        for ids in chunks:
            total_C += (x_NCm[ids].to(torch.float64) / scale - centre_C[:, None]).pow(power).sum((0, 2))
        return total_C / (len(data.pool) * x_NCm.shape[2])

    mean_C = mean_of(1, torch.zeros(x_NCm.shape[1], dtype=torch.float64, device=x_NCm.device))
    std_C = mean_of(2, mean_C).sqrt()
    # A channel of one value leaves rounding, which must not be scaled up.
    std_C[std_C <= 1e-6 * mean_C.abs()] = 1
    return tuple(mean_C.tolist()), tuple(std_C.tolist())


def imbalanced(data: Images, ratio: float, seed: int = 0) -> Images:
    """Thin the pool so that class sizes fall geometrically.

    No class can grow, so the sizes are as large as the smallest classes allow. Ids keep their meaning.

    Args:
        data: the data set.
        ratio: size of the rarest class over size of the most common one, above 0 and up to 1.
        seed: decides which class is rare and which points stay.

    Returns:
        The data set with a smaller pool and a note that says so.

    Example:
        >>> from foretaste.data import digits, imbalanced
        >>> imbalanced(digits(), 0.1).notes
        ("pool imbalanced: from 120 of '4' to 12 of '1' (ratio 0.1, seed 0)",)
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio is {ratio}; expected the rarest class's share of the commonest, above 0 and up to 1")
    generator, y_pool = np.random.default_rng([seed, 0]), labels_at(data, data.pool)
    counts_C = np.bincount(y_pool, minlength=len(data.classes))
    order = generator.permutation(np.flatnonzero(counts_C))  # the first stays common
    if len(order) < 2:
        raise ValueError(f"the pool has {len(order)} class; imbalance needs two or more")
    fall = ratio ** np.linspace(0, 1, len(order))
    sizes = np.rint((counts_C[order] / fall).min() * fall).astype(np.int64)
    if sizes[-1] == 0:
        rare = data.classes[order[-1]]
        raise ValueError(
            f"ratio {ratio} of {sizes[0]} points leaves none of {rare!r}; expected at least {1 / sizes[0]:.2g}"
        )
    take_C = np.zeros_like(counts_C)
    take_C[order] = sizes
    common, rare = data.classes[order[0]], data.classes[order[-1]]
    note = f"pool imbalanced: from {sizes[0]} of {common!r} to {sizes[-1]} of {rare!r} (ratio {ratio}, seed {seed})"
    return replace(data, pool=data.pool[sample_classes(y_pool, take_C, generator)], notes=(*data.notes, note))


def noisy(data: Images, share: float, seed: int = 0) -> Images:
    """Replace a share of the pool's labels by another class, each other class as likely. Test labels stay.

    Args:
        data: the data set.
        share: from 0 to 1; the number of labels is rounded to a whole one.
        seed: decides which labels change, and to what.

    Returns:
        The data set with changed labels and a note that says so.

    Example:
        >>> from foretaste.data import digits, noisy
        >>> data = digits()
        >>> int((noisy(data, 0.1).y != data.y).sum())
        120
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; expected the share of the pool's labels to change, from 0 to 1")
    classes, generator = len(data.classes), np.random.default_rng([seed, 1])
    if classes < 2:
        raise ValueError("a label of another class needs two classes or more; there is one")
    ids = generator.choice(data.pool, size=round(share * len(data.pool)), replace=False)
    wrong = (labels_at(data, ids) + generator.integers(1, classes, size=len(ids))) % classes
    y_N = data.y.clone()
    y_N[torch.from_numpy(ids).to(y_N.device)] = torch.from_numpy(wrong).to(y_N.device)
    note = f"labels changed: {len(ids)} of the pool's {len(data.pool)} have another class (share {share}, seed {seed})"
    return replace(data, y=y_N, notes=(*data.notes, note))


def fewer(data: Images, pool: int | None = None, test: int | None = None, seed: int = 0) -> Images:
    """Keep only some points of the pool and of test, classes in proportion.

    Args:
        data: the data set.
        pool: how many points of the pool to keep; None keeps all.
        test: how many points of test to keep; None keeps all.
        seed: decides which points stay.

    Returns:
        The data set with fewer ids and a note for each cut.

    Example:
        >>> from foretaste.data import digits, fewer
        >>> small = fewer(digits(), pool=100, test=50)
        >>> len(small.pool), len(small.test)
        (100, 50)
    """
    generator = np.random.default_rng([seed, 2])
    kept, notes = dict[str, Any](), list[str]()
    for name, n, ids in (("pool", pool, data.pool), ("test", test, data.test)):
        if n is None:
            continue
        if not 1 <= n <= len(ids):
            raise ValueError(f"{name} is {n}; expected 1 to {len(ids)}, which is what there is")
        y_n = labels_at(data, ids)
        kept[name] = ids[sample_classes(y_n, class_shares(np.bincount(y_n), n), generator)]
        notes.append(f"{name} cut to {n} of {len(ids)} points, classes in proportion (seed {seed})")
    return replace(data, notes=(*data.notes, *notes), **kept)


def smaller(data: Images, pixels: int) -> Images:
    """Average every picture down to ``pixels`` a side at most, for a quick try. Other points stay as they are.

    Example:
        >>> from foretaste.data import digits, smaller
        >>> smaller(digits(), 4).x.shape
        torch.Size([1797, 1, 4, 4])
    """
    if data.x.dtype != torch.uint8 or data.x.dim() != 4 or max(data.x.shape[2:]) <= pixels:
        return data
    size = [min(side, pixels) for side in data.x.shape[2:]]
    parts = data.x.split(SHRUNK_AT_ONCE)
    x = torch.cat([F.interpolate(part.float(), size, mode="area").round().to(torch.uint8) for part in parts])
    was = "×".join(map(str, data.x.shape[2:]))
    return replace(data, x=x, notes=(*data.notes, f"pictures averaged from {was} down to {'×'.join(map(str, size))}"))


def labels_at(data: Images, ids: np.ndarray) -> np.ndarray:
    """Class ids of those points, as an array."""
    return data.y.cpu().numpy()[ids]


def class_shares(counts_C: np.ndarray, n: int) -> np.ndarray:
    """How many of each class make up ``n``: whole quotas, then one more for the largest remainders.

    In integers: a quota of 3 must not become 2.9999.
    """
    take_C, rest_C = np.divmod(n * counts_C, counts_C.sum())
    take_C[np.argsort(-rest_C, kind="stable")[: n - take_C.sum()]] += 1
    return take_C


def sample_classes(y_N: np.ndarray, take_C: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(N,) bool: ``take_C[c]`` random points of each class c."""
    order = generator.permutation(len(y_N))
    order = order[np.argsort(y_N[order], kind="stable")]  # class by class, at random within each
    y_sorted = y_N[order]
    rank = np.arange(len(y_N)) - np.searchsorted(y_sorted, y_sorted)
    chosen = np.zeros(len(y_N), bool)
    chosen[order[rank < take_C[y_sorted]]] = True
    return chosen
