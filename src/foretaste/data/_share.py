"""Some of the points, classes in proportion."""

import numpy as np


def shares(counts_C: np.ndarray, n: int) -> np.ndarray:
    """How many of each class make up ``n``: whole quotas, then one more for the largest remainders.

    In integers: a quota of 3 must not become 2.9999.
    """
    take_C, rest_C = np.divmod(n * counts_C, counts_C.sum())
    take_C[np.argsort(-rest_C, kind="stable")[: n - take_C.sum()]] += 1
    return take_C


def sample(y_N: np.ndarray, take_C: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(N,) bool: ``take_C[c]`` random points of each class c."""
    order = generator.permutation(len(y_N))
    order = order[np.argsort(y_N[order], kind="stable")]  # class by class, at random within each
    y_sorted = y_N[order]
    rank = np.arange(len(y_N)) - np.searchsorted(y_sorted, y_sorted)
    chosen = np.zeros(len(y_N), bool)
    chosen[order[rank < take_C[y_sorted]]] = True
    return chosen
