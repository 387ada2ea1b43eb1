"""Seconds that ``foretaste --help`` takes: ``python -m benchmarks.startup [RUNS]``. Half a second is the aim."""

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


def time_startup(runs: int = 5) -> dict[str, list[float]]:
    """Seconds of each command in a new process, sorted. Commands take turns; a first turn warms up the disk cache."""
    took: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(runs + 1):
        for name, words in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
            if turn:
                took[name].append(time.perf_counter() - start)
    return {name: sorted(seconds) for name, seconds in took.items()}


if __name__ == "__main__":
    for name, seconds in time_startup(int(sys.argv[1]) if len(sys.argv) > 1 else 5).items():
        print(f"{name:20} {median(seconds):.2f} s  ({seconds[0]:.2f} to {seconds[-1]:.2f})")
