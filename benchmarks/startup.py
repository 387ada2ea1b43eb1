"""Seconds that ``foretaste --help`` takes: ``python -m benchmarks.startup [RUNS]``. Half a second is the aim."""

import os
import subprocess
import sys
import time
from statistics import median

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import foretaste": ["-c", "import foretaste"],
    "foretaste --help": ["-m", "foretaste", "--help"],
    "import torch": ["-c", "import torch"],
}


def time_startup(runs: int = 5) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each command in a new process, by the clock and of processors, sorted.

    Commands take turns. A first turn warms up the disk cache and does not count.
    """
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for turn in range(runs + 1):
        for name, words in COMMANDS.items():
            start = time.perf_counter(), _children_seconds()
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
            if turn:
                took[name].append((time.perf_counter() - start[0], _children_seconds() - start[1]))
    return {name: sorted(seconds) for name, seconds in took.items()}


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    for name, seconds in time_startup(int(sys.argv[1]) if len(sys.argv) > 1 else 5).items():
        clock, processors = zip(*seconds)
        print(
            f"{name:20} median {median(clock):.2f} s, {clock[0]:.2f} to {clock[-1]:.2f}; "
            f"of processors {median(processors):.2f} s"
        )
