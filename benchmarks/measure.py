"""Seconds and bytes of contenders that take turns. Machines are noisy; ratios measured in one run hold."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from foretaste.tangent import PeakMemory

Contender = Callable[[], Any]
Progress = Callable[[str], None]


def no_progress(name: str) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Measured:
    """What one contender took."""

    seconds: float  # the best of its turns
    nbytes: int  # peak of the tensors it made
    result: Any
    failed: str = ""


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def take_turns(
    contenders: Mapping[str, Contender],
    device: torch.device,
    *,
    rounds: int = 3,
    patience: float = 20.0,
    progress: Progress = no_progress,
) -> dict[str, Measured]:
    """Run each contender once to measure its memory (and to warm up), then in turns to measure its time.

    A contender that has taken ``patience`` seconds in total is not run again. If one runs out of memory, its row says
    so and the others continue.
    """
    best: dict[str, float] = {}
    spent: dict[str, float] = {}
    peaks: dict[str, int] = {}
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            if name in failed or (name in best and spent[name] > patience):
                continue
            progress(name)
            try:
                if turn == 0:
                    peaks[name], results[name] = peak_bytes(run, device)
                    continue
                synchronize(device)
                start = time.perf_counter()
                run()
                synchronize(device)
            except (torch.OutOfMemoryError, MemoryError) as e:
                failed[name] = f"out of memory ({type(e).__name__})"
                continue
            took = time.perf_counter() - start
            best[name] = min(took, best.get(name, took))
            spent[name] = spent.get(name, 0.0) + took
    nan = float("nan")
    return {
        name: Measured(best.get(name, nan), peaks.get(name, 0), results.get(name), failed.get(name, ""))
        for name in contenders
    }


def peak_bytes(run: Contender, device: torch.device) -> tuple[int, Any]:
    """The most memory that a run's tensors took at one time, and the run's result."""
    if device.type != "cuda":
        with PeakMemory() as memory:
            result = run()
        return memory.peak, result
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before, result
