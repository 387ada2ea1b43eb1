"""A share of every class set apart to measure on."""

import numpy as np


def stratified(y: np.ndarray, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ids of pool and test: ``share`` of each class, rounded, always the same; a class is never in test alone.

    Each class draws by a generator of its own, so that a class more or less leaves the others' points where they are.
    """
    if not 0 <= share < 1:
        raise ValueError(f"test={share}; expected a share of the points from 0 to below 1")
    chosen = np.zeros(len(y), dtype=bool)
    for c in np.unique(y):
        members = np.flatnonzero(y == c)
        n = min(int(np.floor(share * len(members) + 0.5)), len(members) - 1)
        chosen[np.random.default_rng((seed, int(c))).permutation(members)[:n]] = True
    return np.flatnonzero(~chosen).astype(np.int64), np.flatnonzero(chosen).astype(np.int64)
