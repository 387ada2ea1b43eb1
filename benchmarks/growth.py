"""How the time of a query grows with L, U, P, W and C. Each is varied alone, fitted by a power law, and drawn."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.measure import Progress, no_progress, take_turns
from foretaste.errors import errors_only
from foretaste.network import WideResNet
from foretaste.pick import query

BASE = {"L": 200, "U": 2000, "widen": 4, "C": 10, "W": 0}  # W = 0: the pool is watched
SERIES = {
    "L": (100, 400, 1600, 3200),
    "U": (1000, 2000, 4000, 8000),
    "widen": (2, 4, 6, 8),
    "W": (125, 500, 2000),
    "C": (2, 10, 100),
}
CPU_SHRINK = 8  # on a CPU, L, U and W are divided by this, and images have half the side


@dataclass(frozen=True)
class GrowthCurve:
    """Seconds of a query at several sizes of one axis."""

    axis: str
    at: tuple[float, ...]
    seconds: tuple[float, ...]
    power: float  # b in seconds ≈ a · at^b, by least squares on logarithms


def time_growth(device: torch.device, quick: bool = False, progress: Progress = no_progress) -> list[GrowthCurve]:
    """Time queries by ``variance`` on untrained WRN1s and random images. f and Θ cost the same with any weights."""
    g = torch.Generator().manual_seed(0)
    cpu = device.type == "cpu"
    edge = 8 if quick else 14 if cpu else 28
    curves = []
    for axis, values in SERIES.items():
        at, seconds = [], []
        for value in values[:2] if quick else values:
            s = BASE | {axis: value}
            if quick or cpu:
                s |= {k: max(1, s[k] // (40 if quick else CPU_SHRINK)) for k in ("L", "U", "W") if s[k]}
            if quick:
                s |= {"widen": 1, "C": min(s["C"], 10)}
            progress(f"growth with {axis} = {s[axis]}")
            net = WideResNet(widen=s["widen"], classes=s["C"]).to(device).eval()
            x = torch.rand(s["L"] + s["U"], 1, edge, edge, generator=g).to(device)
            y = torch.randint(0, s["C"], (s["L"],), generator=g).to(device)
            watch = s["W"] or None

            def ask(net=net, x=x, y=y, L=s["L"], watch=watch) -> object:  # type: ignore[no-untyped-def]
                options = {"precision": "auto" if cpu else "half", "ridge": 1.0, "watch": watch}
                return query(net, x[:L], y, x[L:], strategy="variance", select="top", batch_size=1, **options)

            with errors_only():  # no warning that an untrained network has not learned its labels
                m = take_turns({"query": ask}, device, rounds=1 if quick else 2)["query"]
            if not m.failed:
                at.append(float(sum(p.numel() for p in net.parameters()) if axis == "widen" else s[axis]))
                seconds.append(m.seconds)
        curves.append(GrowthCurve("P" if axis == "widen" else axis, tuple(at), tuple(seconds), fit_power(at, seconds)))
    return curves


def fit_power(at: list[float], seconds: list[float]) -> float:
    """The slope of log(seconds) against log(at)."""
    if len(at) < 2:
        return math.nan
    a = torch.tensor(at, dtype=torch.float64).log()
    b = torch.tensor(seconds, dtype=torch.float64).log()
    return float(((a - a.mean()) * (b - b.mean())).sum() / (a - a.mean()).square().sum())


def draw_growth(curves: list[GrowthCurve], path: Path) -> None:
    """One panel for each axis, all with the same scale of seconds. The dashed line is the fitted power law."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(2.4 * len(curves), 2.6), layout="constrained")
    panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for axes, c in zip(panels, curves):
        axes.loglog(c.at, c.seconds, "o", color="#31688e", markersize=5)
        middle = [math.exp(sum(map(math.log, v)) / len(v)) for v in (c.at, c.seconds)]
        axes.loglog(c.at, [middle[1] * (a / middle[0]) ** c.power for a in c.at], "--", color="#8a8f98", linewidth=1.2)
        axes.set_title(f"as {c.axis} to the power {c.power:.2f}", fontsize=9)
        axes.set_xticks(c.at, [_short_number(a) for a in c.at], fontsize=8)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(c.axis)
    every_s = [s for c in curves for s in c.seconds]
    ticks = [
        t for k in range(-4, 4) for t in (10.0**k, 2 * 10.0**k, 5 * 10.0**k) if min(every_s) / 2 < t < 2 * max(every_s)
    ]
    panels[0].set_yticks(ticks, [f"{t:g}" for t in ticks], fontsize=8)
    panels[0].yaxis.set_minor_locator(NullLocator())
    panels[0].set_ylabel("seconds of a query")
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "growth"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def _short_number(n: float) -> str:
    """1000 → 1k, 923402 → 0.92M."""
    for size, letter in ((1e5, "M"), (1e3, "k")):
        if n >= size:
            return f"{n / (1e6 if letter == 'M' else size):.2g}{letter}"
    return f"{n:g}"
