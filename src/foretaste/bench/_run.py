"""``foretaste bench``: everything in one run, one table."""

import json
import platform
from dataclasses import asdict
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

import foretaste
from foretaste.bench import _neural_tangents
from foretaste.bench._kernels import Row, compare, workloads
from foretaste.bench._ranking import Agreement, agreement
from foretaste.errors import format_bytes


def run(
    *,
    quick: bool = False,
    out: Path | str | None = None,
    threads: int | None = None,
    neural_tangents: Path | str | None = None,
) -> dict[str, list]:
    """Measure on this machine, print the tables, and write them to ``out`` (JSON) if given.

    neural_tangents: the python of an environment that has it; its kernels are then timed beside ours.
    """
    if threads:
        torch.set_num_threads(threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    console = Console()
    about = {
        "foretaste": foretaste.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{torch.get_num_threads()} CPU threads",
        "quick": quick,
    }
    rows: list[Row] = []
    with console.status("") as status:
        for work in workloads(device, quick):
            rows += compare(work, quick=quick, said=lambda name, w=work: status.update(f"{w.name}: {name}"))  # type: ignore[misc]
        status.update("ranking in float32 and float64")
        ranks = agreement(device, quick)
    console.print(kernels_table(rows, str(about["device"])))
    console.print(ranking_table(ranks))
    found = {"about": [about], "kernels": [asdict(r) for r in rows], "ranking": [asdict(a) for a in ranks]}
    if neural_tangents:
        with console.status("neural-tangents") as status:
            beside = _neural_tangents.standard(str(neural_tangents), torch.get_num_threads(), quick, status.update)
        console.print(_neural_tangents.as_markdown(beside), soft_wrap=True)
        found["neural-tangents"] = [asdict(r) for r in beside]
    if out:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(found, indent=1))
        console.print(f"written to {out}")
    return found


def kernels_table(rows: list[Row], device: str) -> Table:
    table = Table(
        title=f"One tangent kernel, on {device}",
        caption="forwards: in forward passes; × func, of func's: speed and peak memory beside torch.func, all at once",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in ("", "seconds", "forwards", "× func", "peak", "of func's", "error"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    last = None
    for r in rows:
        if r.workload != last:
            table.add_section()
            table.add_row(f"[bold]{r.workload}")
            last = r.workload
        if r.failed:
            table.add_row(r.name, r.failed)
            continue
        table.add_row(
            r.name, f"{r.seconds:.3f}", f"{r.forwards:.1f}", f"{r.speedup:.1f}×", format_bytes(r.nbytes),
            f"{r.memory:.3f}",
            "" if r.error != r.error else f"{r.error:.0e}",
        )  # fmt: skip
    return table


def ranking_table(ranks: list[Agreement]) -> Table:
    table = Table(
        title="Ranking from float32 against float64, trained on digits (Spearman)",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for name in ("", "labelled MSE", "mlmoc", "gain", "top 20 shared"):
        table.add_column(name, justify="left" if not name else "right")
    for a in ranks:
        table.add_row(a.network, f"{a.residual:.1e}", f"{a.mlmoc:.5f}", f"{a.gain:.5f}", str(a.shared))
    return table
