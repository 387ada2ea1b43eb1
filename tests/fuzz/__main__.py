"""Throw generated calls, networks, files, damage, webhooks, interrupts and threads at the package: ``make fuzz``.

    python -m fuzz                     # with tests/ on the path: the long run
    python -m fuzz --calls 1000 --networks 0 --files 0 --logs 0 --webhooks 0 --interrupts 0 --threads 0

Prints a line for each part with counts by outcome, and examples of whatever is neither right nor a clear error. The
exit code is 1 if anything came that must not: a wrong answer, a hang, something executed or left behind, or more than
one raw error in a thousand.
"""

import argparse
import logging
import time
import warnings
from collections.abc import Callable

import torch

from . import calls, faults, files, logs, networks, webhooks
from .outcomes import Tally, limit_memory

PARTS: dict[str, tuple[Callable[[int, int], Tally], int]] = {
    "calls": (calls.run, 50_000),
    "networks": (networks.run, 2000),
    "files": (files.run, 5000),
    "logs": (logs.run, 600),
    "webhooks": (webhooks.run, 20_000),
    "interrupts": (faults.interrupts, 2000),
    "threads": (faults.threads, 200),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description="Generated calls, networks, files, webhooks, threads.")
    parser.add_argument("--seed", type=int, default=0)
    for name, (_, count) in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=count, help=f"how many, default {count}")
    chosen = vars(parser.parse_args())
    logging.disable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    limit_memory()
    bad = False
    for name, (run, _) in PARTS.items():
        if chosen[name]:
            began = time.perf_counter()
            tally = run(chosen[name], chosen["seed"])
            print(f"{name}, {chosen[name]} in {time.perf_counter() - began:.0f} s: {tally}", flush=True)
            for outcome, examples in tally.examples.items():
                print(*(f"  {outcome}: {' '.join(e.split())[:400]}" for e in examples[:20]), sep="\n", flush=True)
            bad |= tally.bad()
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
