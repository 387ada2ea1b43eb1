"""``foretaste bench --device cuda``: queries beside their rivals, picks, trainings, growth; all in one run."""

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

import foretaste
from foretaste.bench import _picks, _training
from foretaste.bench._growth import draw, growth
from foretaste.bench._measure import synchronize
from foretaste.bench._pools import WORKS, pool_of, real
from foretaste.bench._queries import QueryRow, cells, cost

NAMES = (*(w.name for w in WORKS), "picks", "training", "growth")
IMAGES = 6000  # of MNIST, to train on and to test


def device_of(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("this machine has no CUDA device that torch can see; without --device the CPU is measured")
    return device


def run_queries(
    device: torch.device, *, only: Sequence[str] = (), quick: bool = False, out: Path | str | None = None
) -> dict[str, Any]:
    """Measure the workloads named (all of NAMES unless told), print a table of each; ``out`` is written after each.

    A workload that the card has no memory for says so, and the next is taken.
    """
    if unknown := [name for name in only if name not in NAMES]:
        raise ValueError(f"no workload is called {unknown[0]!r}; expected some of {', '.join(NAMES)}")
    console = Console()
    about: dict[str, Any] = {
        "foretaste": foretaste.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "quick": quick,
        "ceiling": {k: round(v, 1) for k, v in ceilings(device, quick).items()},  # TFLOP/s
    }
    console.print(f"{about['device']}; ceilings in TFLOP/s: {about['ceiling']}")
    found: dict[str, Any] = {"about": about, "queries": [], "picks": [], "training": [], "growth": [], "failed": {}}
    for work in (w.small() if quick else w for w in WORKS if not only or w.name in only):
        try:
            with console.status(work.title) as status:
                pool = pool_of(work, device)
                rows = cost(
                    pool, precisions=work.precisions, budgets=work.budgets, rivals=work.rivals,
                    reference=work.reference, rounds=1 if quick else 3,
                    said=lambda name, w=work: status.update(f"{w.title}: {name}"),  # type: ignore[misc]
                )  # fmt: skip
        except (torch.OutOfMemoryError, ValueError) as e:
            found["failed"][work.name] = str(e).splitlines()[0][:200]
            console.print(f"{work.title}: {found['failed'][work.name]}")
            rows = []
        if rows:
            console.print(table(rows, about["ceiling"].get("half", float("nan"))))
        found["queries"] += [asdict(r) for r in rows]
        written(found, out)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if not only or "picks" in only:
        with console.status("picks"):
            picked = _picks.standard(str(device), quick)
        console.print(_picks.as_markdown(picked), soft_wrap=True)
        found["picks"] = [{k: v for k, v in asdict(r).items() if k != "picked"} for r in picked]
        written(found, out)
    if not only or "training" in only:
        with console.status("training") as status:
            try:
                x, y = real("mnist", IMAGES, device)
            except (FileNotFoundError, ValueError):
                x, y = _training.images(None, device)
            trainings = _training.standard(x, y, quick, status.update)
        console.print(_training.markdown(trainings), soft_wrap=True)
        found["training"] = [asdict(r) for r in trainings]
        written(found, out)
    if not only or "growth" in only:
        with console.status("growth") as status:
            curves = growth(device, quick, status.update)
        console.print("time of a query grows as " + ", ".join(f"{c.axis}^{c.power:.2f}" for c in curves))
        found["growth"] = [asdict(c) for c in curves]
        if out:
            draw(curves, Path(out).with_suffix(".svg"))
        written(found, out)
    return found


def written(found: dict[str, Any], out: Path | str | None) -> None:
    if out:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(found, indent=1))


def ceilings(device: torch.device, quick: bool) -> dict[str, float]:
    """TFLOP/s of plain products, for a second each: a card slows down when it is hot."""
    n, k = (64, 256) if quick or device.type != "cuda" else (6000, 1 << 16)
    found = {}
    for name, dtype in (("half", torch.float16), ("float32", torch.float32), ("float64", torch.float64)):
        if device.type != "cuda" and dtype == torch.float16:
            continue
        scale = 1 if dtype == torch.float16 else 16
        a = torch.randn(n, k // scale, device=device).to(dtype)
        found[name] = rate(a, 0.05 if quick else 1.0)
        del a
    return found


def rate(a: torch.Tensor, seconds: float) -> float:
    a[:1000] @ a.T
    synchronize(a.device)
    start, times = time.perf_counter(), 0
    while (took := time.perf_counter() - start) < seconds:
        a[:1000] @ a.T
        synchronize(a.device)
        times += 1
    return 2 * min(1000, len(a)) * len(a) * a.shape[1] * times / took / 1e12


def table(rows: list[QueryRow], ceiling: float) -> Table:
    made = Table(title=rows[0].workload, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("", "seconds", "forwards", "peak", "to float64", f"TFLOP/s of {ceiling:.0f}", ""):
        made.add_column(name, justify="left" if not name else "right")
    for r in rows:
        made.add_row(*cells(r))
    return made
