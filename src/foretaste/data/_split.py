"""Which points are labelled, which may be asked for, and which only measure."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


def ids_of(points: Iterable[int]) -> np.ndarray:
    """Ids as an int64 array of their own."""
    return np.array(points if isinstance(points, np.ndarray) else list(points), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """Three sets of ids without a point in common: L labelled, U candidates, test."""

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
        """L ∪ ids and U \\ ids (the last lines of Alg. 1). The order of U stays."""
        asked = ids_of(ids)
        if len(np.unique(asked)) != len(asked):
            raise ValueError(f"the same point is labelled twice: {asked.tolist()}")
        if strangers := np.setdiff1d(asked, self.U).tolist():
            raise ValueError(f"ids {strangers[:5]} are not in U, so they cannot be labelled now; pick from split.U")
        return Split(np.concatenate([self.L, asked]), self.U[~np.isin(self.U, asked)], self.test)

    def offer(self, n: int | None, seed: int) -> "Split":
        """The same L and test with a U of ``n`` candidates drawn anew; the others go back to the pool (§4).

        One order of all ids by the seed, and the first n of it that are in U: two pools that share most of their points
        are offered mostly the same ones.
        """
        if n is None or n >= len(self.U):
            return self
        order = np.random.default_rng(seed).random(int(self.U.max()) + 1)
        return Split(self.L, np.sort(self.U[np.argsort(order[self.U], kind="stable")[:n]]), self.test)


def draw(pool: np.ndarray, test: np.ndarray, n: int, seed: int) -> Split:
    """Label ``n`` points of the pool, drawn at random by ``seed``: where a study starts."""
    if not 0 < n < len(pool):
        raise ValueError(f"cannot start with {n} labels of a pool of {len(pool)}; expected 1 to {len(pool) - 1}")
    first = np.random.default_rng(seed).choice(pool, size=n, replace=False)
    return Split(L=ids_of([]), U=pool, test=test).label(first)
