"""Numbers and lists as they are written."""

import math
from collections.abc import Sequence

from foretaste.report._summary import Estimate


def number(e: Estimate, sign: bool = False) -> str:
    """91.3 ± 1.2, or 91.3 where one seed gives no interval."""
    mean = signed(e.mean) if sign else f"{e.mean:.1f}"
    return mean if e.half is None else f"{mean} ± {e.half:.1f}"


def signed(x: float) -> str:
    return f"{x:+.1f}".replace("-", "−")


def seconds(t: float) -> str:
    """Two digits that count: 12, 1.2, 0.12, 0.012."""
    return f"{t:.{max(0, 1 - math.floor(math.log10(t)))}f}" if t >= 0.001 else "<0.001"


def size(n: int) -> str:
    """Bytes as people say them: 1.4 GB; nothing where they could not be measured."""
    if n == 0:
        return ""
    unit, name = next(((u, name) for u, name in ((1e9, "GB"), (1e6, "MB")) if n >= u), (1e3, "kB"))
    return f"{n / unit:.{1 if n < 10 * unit else 0}f} {name}"


def together(parts: Sequence[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
