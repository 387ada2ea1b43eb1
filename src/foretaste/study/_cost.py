"""What a cycle costs in memory, and on what it ran."""

import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch

PACKAGES = ("foretaste", "torch", "numpy", "scikit-learn")


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """Bytes: on a GPU since ``reset_peak``, on a CPU the most this process has held until now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


@cache
def _packages() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from its sources
        return "not installed"


def versions(device: torch.device) -> dict[str, str]:
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} {platform.machine()}"
    return _packages() | {"device": where}
