"""``python -m benchmarks``: kernels beside torch.func on this machine. ``--device cuda``: whole queries on a GPU."""

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import foretaste
from benchmarks.growth import draw_growth, time_growth
from benchmarks.kernels import (
    KernelRow,
    compare_kernels,
    compare_rankings,
    kernel_table,
    kernel_workloads,
    ranking_table,
)
from benchmarks.measure import synchronize
from benchmarks.neural_tangents import compare_all_cases, neural_tangents_markdown
from benchmarks.picks import picks_markdown, time_standard_picks
from benchmarks.queries import QUERY_WORKLOADS, QueryRow, compare_queries, queries_table, real_images, train_on
from benchmarks.training import time_trainings, training_images, training_markdown
from foretaste.errors import did_you_mean

NAMES = (*(w.name for w in QUERY_WORKLOADS), "picks", "training", "growth")
TRAINING_POINTS = 6000  # images of MNIST, to train on and to test on


def run_kernels(
    *,
    quick: bool = False,
    out: Path | str | None = None,
    threads: int | None = None,
    neural_tangents: Path | str | None = None,
) -> dict[str, list[Any]]:
    """Measure kernels on this machine, print the tables, and write them to ``out`` (JSON) if given.

    neural_tangents: the Python of an environment that has it. Its kernels are then timed beside ours.
    """
    if threads:
        torch.set_num_threads(threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    console = Console()
    about = about_machine(device, quick)
    rows: list[KernelRow] = []
    with console.status("") as status:
        for work in kernel_workloads(device, quick):
            title = work.name
            rows += compare_kernels(
                work,
                quick=quick,
                progress=lambda name, title=title: status.update(f"{title}: {name}"),  # type: ignore[misc]
            )
        status.update("ranking in float32 and float64")
        rankings = compare_rankings(device, quick)
    console.print(kernel_table(rows, about["device"]))
    console.print(ranking_table(rankings))
    found = {"about": [about], "kernels": [asdict(r) for r in rows], "ranking": [asdict(r) for r in rankings]}
    if neural_tangents:
        with console.status("neural-tangents") as status:
            libraries = compare_all_cases(str(neural_tangents), torch.get_num_threads(), quick, status.update)
        console.print(neural_tangents_markdown(libraries), soft_wrap=True)
        found["neural-tangents"] = [asdict(r) for r in libraries]
    write_results(found, out)
    return found


def run_queries(
    device: torch.device, *, only: Sequence[str] = (), quick: bool = False, out: Path | str | None = None
) -> dict[str, Any]:
    """Measure whole queries, picks, trainings and growth, and print a table of each.

    only: some of NAMES; all of them if empty. ``out`` is written after each part. If the device has too little memory
    for a workload, the table says so, and the next one runs.
    """
    if unknown := [name for name in only if name not in NAMES]:
        raise ValueError(f"unknown benchmark {unknown[0]!r}{did_you_mean(unknown[0], NAMES)}")
    console = Console()
    about: dict[str, Any] = about_machine(device, quick)
    about["ceiling"] = {k: round(v, 1) for k, v in product_rates(device, quick).items()}  # TFLOP/s
    console.print(f"{about['device']}; plain products reach, in TFLOP/s: {about['ceiling']}")
    found: dict[str, Any] = {"about": about, "queries": [], "picks": [], "training": [], "growth": [], "failed": {}}

    def wanted(name: str) -> bool:
        return not only or name in only

    for name in (w.name for w in QUERY_WORKLOADS if wanted(w.name)):
        rows, failed = _measure_workload(name, device, quick, console)
        if failed:
            found["failed"][name] = failed
        if rows:
            console.print(queries_table(rows, about["ceiling"].get("half", float("nan"))))
        found["queries"] += [asdict(r) for r in rows]
        write_results(found, out)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if wanted("picks"):
        with console.status("picks"):
            picks = time_standard_picks(str(device), quick)
        console.print(picks_markdown(picks), soft_wrap=True)
        found["picks"] = [{k: v for k, v in asdict(r).items() if k != "picked"} for r in picks]
        write_results(found, out)
    if wanted("training"):
        with console.status("training") as status:
            try:
                x, y = real_images("mnist", TRAINING_POINTS, device)
            except (FileNotFoundError, ValueError):
                x, y = training_images(None, device)
            trainings = time_trainings(x, y, quick, status.update)
        console.print(training_markdown(trainings), soft_wrap=True)
        found["training"] = [asdict(r) for r in trainings]
        write_results(found, out)
    if wanted("growth"):
        with console.status("growth") as status:
            curves = time_growth(device, quick, status.update)
        console.print("time of a query grows as " + ", ".join(f"{c.axis}^{c.power:.2f}" for c in curves))
        found["growth"] = [asdict(c) for c in curves]
        if out:
            draw_growth(curves, Path(out).with_suffix(".svg"))
        write_results(found, out)
    return found


def _measure_workload(name: str, device: torch.device, quick: bool, console: Console) -> tuple[list[QueryRow], str]:
    """Rows of one workload, or none and the reason."""
    work = next(w for w in QUERY_WORKLOADS if w.name == name)
    work = work.small() if quick else work
    try:
        with console.status(work.title) as status:
            rows = compare_queries(
                train_on(work, device),
                precisions=work.precisions,
                budgets=work.budgets,
                rivals=work.rivals,
                reference=work.reference,
                rounds=1 if quick else 3,
                progress=lambda contender: status.update(f"{work.title}: {contender}"),
            )
    except (torch.OutOfMemoryError, ValueError) as e:
        reason = str(e).splitlines()[0][:200]
        console.print(f"{work.title}: {reason}")
        return [], reason
    return rows, ""


def about_machine(device: torch.device, quick: bool) -> dict[str, Any]:
    """Versions and the device."""
    cpu = f"{torch.get_num_threads()} CPU threads"
    return {
        "foretaste": foretaste.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "quick": quick,
    }


def write_results(found: dict[str, Any], out: Path | str | None) -> None:
    """Write JSON if ``out`` is given."""
    if out:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(found, indent=1))


def product_rates(device: torch.device, quick: bool) -> dict[str, float]:
    """TFLOP/s of plain products in each precision, for a second each: a GPU slows down when it is hot."""
    n, k = (64, 256) if quick or device.type != "cuda" else (6000, 1 << 16)
    rates = {}
    for name, dtype in (("half", torch.float16), ("float32", torch.float32), ("float64", torch.float64)):
        if device.type != "cuda" and dtype == torch.float16:
            continue
        scale = 1 if dtype == torch.float16 else 16
        a = torch.randn(n, k // scale, device=device).to(dtype)
        rates[name] = _product_rate(a, 0.05 if quick else 1.0)
        del a
    return rates


def _product_rate(a: torch.Tensor, seconds: float) -> float:
    a[:1000] @ a.T
    synchronize(a.device)
    start, times = time.perf_counter(), 0
    while not times or time.perf_counter() - start < seconds:
        a[:1000] @ a.T
        synchronize(a.device)
        times += 1
    took = time.perf_counter() - start
    return 2 * min(1000, len(a)) * len(a) * a.shape[1] * times / took / 1e12


def find_device(name: str) -> torch.device:
    """The device of that name, if this machine has it."""
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch finds no CUDA device on this machine; leave out --device to measure the CPU")
    return device


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__.replace("``", ""))
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the measurements to this file (JSON)")
    parser.add_argument("--threads", type=int, help="CPU threads; default: all cores")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--device", help="cuda: whole queries on a GPU; FORETASTE_DATA has the images")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help=f"with --device: {', '.join(NAMES)}; repeatable"
    )
    parser.add_argument(
        "--neural-tangents", type=Path, metavar="PYTHON", help="Python of an environment that has neural-tangents"
    )
    options = parser.parse_args(words)
    if options.threads is not None and options.threads < 1:
        parser.error(f"--threads is {options.threads}; expected at least 1")
    if options.device is None and options.only:
        parser.error("--only chooses among the benchmarks of --device; give both")
    return options


def main(words: Sequence[str]) -> None:
    """Run the benchmarks that the command line asks for."""
    o = read_arguments(words)
    if o.device is None:
        run_kernels(quick=o.quick, out=o.out, threads=o.threads, neural_tangents=o.neural_tangents)
    else:
        if o.threads:
            torch.set_num_threads(o.threads)
        run_queries(find_device(o.device), only=o.only, quick=o.quick, out=o.out)
    if o.out:
        print(f"written to {o.out}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as error:
        sys.exit(f"error: {error}")
