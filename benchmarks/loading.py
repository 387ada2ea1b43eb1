"""Seconds to load data sets from disk: ``python -m benchmarks.loading [NAME ...]``.

Without names: digits, and those that $FORETASTE_DATA or the cache has. CIFAR-10 should take under five seconds.
"""

import sys
import time
from collections.abc import Sequence

from foretaste.data import CATALOGUE, find_named, home, load


def time_loading(names: Sequence[str]) -> dict[str, tuple[int, float, float]]:
    """For each name: images, seconds by the clock, seconds of processors. The second of two runs counts."""
    took = {}
    for name in names:
        load(name)  # the disk cache is warm afterwards
        start = time.perf_counter(), time.process_time()
        data = load(name)
        took[name] = len(data.x), time.perf_counter() - start[0], time.process_time() - start[1]
    return took


def names_on_disk() -> list[str]:
    """digits, and the data sets that are complete on disk."""
    found = {name: find_named(name, home()) for name in CATALOGUE}
    return ["digits", *(name for name, place in found.items() if place is not None and not place.missing)]


if __name__ == "__main__":
    for name, (images, clock, processors) in time_loading(sys.argv[1:] or names_on_disk()).items():
        print(f"{name:16} {images:7,} images  {clock:5.2f} s  ({processors:.2f} s of processors)")
