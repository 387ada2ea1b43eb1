"""Queries of pools that are files: seconds and peak memory from 10⁴ to 10⁶ candidates, each in a process of its own.

    python -m benchmarks.scale              features: 10⁴, 10⁵ and 10⁶ rows of 384 numbers, a head of 256 units
    python -m benchmarks.scale images       200,000 images of 28×28 through a WideResNet of one layer
    python -m benchmarks.scale card         10⁶ rows of 1280 numbers on a GPU, and what a streamed batch is worth

Memory is what the process allocates (RssAnon) above what it had before the query. The file is mapped, and its
pages do not count: the system can drop them.
"""

import argparse
import copy
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import foretaste as ft
from benchmarks.growth import fit_power
from foretaste.acquire import covered_errors
from foretaste.network import WideResNet

LABELLED, BATCH, CLASSES = 500, 100, 20
WIDTH, UNITS, DIRECTIONS = 384, 256, 12  # of the features; in how many directions a class varies
IMAGES = 200_000
WRITE_ROWS = 50_000
CHECKED = 20_000  # points of which a batch is compared with dense
KEPT = ("method", "watched", "shortlist", "sample", "batch_value", "rows_read", "space", "precision")


def write_features(path: Path, rows: int, dtype: str = "float16", seed: int = 0) -> np.ndarray:
    """A .npy of unit vectors around CLASSES means, as sentence embeddings are; returns the classes."""
    g = np.random.default_rng(seed)
    means, spread = g.normal(size=(CLASSES, WIDTH)), g.normal(size=(CLASSES, DIRECTIONS, WIDTH)) / 2
    out = np.lib.format.open_memmap(path, "w+", dtype, (rows, WIDTH))
    y = g.integers(CLASSES, size=rows)
    for start in range(0, rows, WRITE_ROWS):
        at = y[start : start + WRITE_ROWS]
        x = means[at] + 0.3 * g.normal(size=(len(at), WIDTH))
        for c in range(CLASSES):
            x[at == c] += g.normal(size=((at == c).sum(), DIRECTIONS)) @ spread[c]
        out[start : start + len(at)] = x / np.linalg.norm(x, axis=1, keepdims=True)
    out.flush()
    return y


def write_images(path: Path, rows: int, seed: int = 0) -> np.ndarray:
    """A .npy of bytes (rows, 1, 28, 28): a smooth pattern for each class, shifted, with noise; returns the classes."""
    g = np.random.default_rng(seed)
    patterns = np.kron(g.random((10, 7, 7)), np.ones((4, 4)))
    out = np.lib.format.open_memmap(path, "w+", "uint8", (rows, 1, 28, 28))
    y = g.integers(10, size=rows)
    for start in range(0, rows, WRITE_ROWS):
        at = y[start : start + WRITE_ROWS]
        x = patterns[at] + 0.5 * g.normal(size=(len(at), 28, 28))
        out[start : start + len(at), 0] = (255 * np.roll(x, int(g.integers(-2, 3)), 2).clip(0, 1)).astype(np.uint8)
    out.flush()
    return y


def anonymous_bytes() -> int:
    """What this process has allocated and touched, without pages of files."""
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


class PeakAllocated(threading.Thread):
    """Reads RssAnon fifty times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.peak = anonymous_bytes()
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.02):
            self.peak = max(self.peak, anonymous_bytes())


def measure_query(path: Path, rows: int, images: bool, space: str) -> dict[str, Any]:
    """Train on the first points of a file, query the others with no setting, and measure the query."""
    x = np.load(path, mmap_mode="r")[: LABELLED + rows]
    y = np.load(path.with_suffix(".y.npy"))
    torch.manual_seed(0)
    if images:
        net: nn.Module = WideResNet(widen=1, classes=10)
    else:
        net = nn.Sequential(nn.Linear(WIDTH, UNITS), nn.ReLU(), nn.Linear(UNITS, CLASSES))
    x_L, y_L = np.array(x[:LABELLED]), torch.from_numpy(y[:LABELLED])
    ft.fit(net, x_L, y_L, steps=100 if images else None, seed=0)
    net.eval()
    memory = PeakAllocated()
    memory.start()
    start, cpu = time.perf_counter(), time.process_time()
    q = ft.query(net, x_L, y_L, x[LABELLED:], batch_size=BATCH, options={"space": space})
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    memory.done.set()
    return {
        "U": rows,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),  # of all threads; on a machine that others use, less of the truth is in the first
        "gigabytes": round((memory.peak - memory.before) / 1e9, 3),
        "parts": {k: round(v, 2) for k, v in q.seconds.items()},
        **{k: q.info[k] for k in KEPT if k in q.info},
    }


def cluster_points(y: torch.Tensor, width: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Unit vectors around a mean for each class, on the device of the classes y."""
    g = torch.Generator(y.device).manual_seed(seed)
    draw = partial(torch.randn, generator=g, device=y.device)
    means, spread = draw(CLASSES, width), draw(CLASSES * DIRECTIONS, width) / 2
    out = torch.empty(len(y), width, dtype=dtype, device=y.device)
    for at, to in zip(y.split(WRITE_ROWS), out.split(WRITE_ROWS)):
        own = torch.zeros(len(at), CLASSES, DIRECTIONS, device=y.device)
        own[torch.arange(len(at), device=y.device), at] = draw(len(at), DIRECTIONS)
        x = means[at] + 0.3 * draw(len(at), width) + own.flatten(1) @ spread
        to.copy_(x / x.norm(dim=1, keepdim=True))
    return out


def measure_card(points: int, device: str, width: int, units: int, watch: int, labelled: int = 200) -> None:
    """A query of points that are on the device already; before it, a check on 20,000 of them."""
    cuda = device == "cuda"
    y = torch.randint(CLASSES, (labelled + points,), generator=torch.Generator().manual_seed(0)).to(device)
    x = cluster_points(y, width, torch.float16)
    x_L, y_L, x_U = x[:labelled].float(), y[:labelled], x[labelled:]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(width, units), nn.ReLU(), nn.Linear(units, CLASSES)).to(device)
    ft.fit(net, x_L, y_L, seed=0)
    net.eval()
    few = x_U[:CHECKED].float()
    F = covered_errors(ft.linearize(net, x_L, y_L, few, output="signs", ridge="misfit"))
    found, picks = {}, {}
    for method in ("dense", "streamed"):
        start = time.perf_counter()
        q = ft.query(net, x_L, y_L, few, batch_size=BATCH, method=method, watch=None if method == "dense" else watch)
        best_W = F.rows(torch.as_tensor(q.indices, device=F.covered_W.device)).amax(0)
        found[method] = float(((best_W - F.covered_W).clamp_min(0) * F.weight_W).sum())
        picks[method] = q
        print(f"{len(few)} points, {method}: {time.perf_counter() - start:.2f} s, value {found[method]:.3f}", q.info)
    print(f"value of the streamed batch / dense: {found['streamed'] / found['dense']:.4f}")
    same = ft.query(
        copy.deepcopy(net).double(), x_L.double(), y_L, few.double(), batch_size=BATCH, method="streamed", watch=watch
    )
    ours, exact = picks["streamed"].scores, same.scores
    assert ours is not None
    assert exact is not None
    both = {*ours.topk(1000).indices.tolist()} & {*exact.topk(1000).indices.tolist()}
    print(f"scores against float64: {len(both) / 10:.1f} % of the top 1000, largest error", end=" ")
    print(
        f"{float((ours - exact).abs().max() / exact.max()):.1e}; picks in common {len({*q.indices} & {*same.indices})}"
    )
    del F, picks, few, same
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    for turn in range(2):
        start = time.perf_counter()
        q = ft.query(net, x_L, y_L, x_U, batch_size=BATCH, method="streamed", watch=watch)
        seconds = time.perf_counter() - start
        row = {"U": points, "turn": turn, "seconds": round(seconds, 2)}
        if cuda:
            peak = torch.cuda.max_memory_allocated()
            row |= {"gigabytes": round((peak - before) / 1e9, 2), "with_the_data": round(peak / 1e9, 2)}
        row |= {"parts": {k: round(v, 2) for k, v in q.seconds.items()}} | {k: q.info[k] for k in KEPT if k in q.info}
        print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", default="features", choices=("features", "images", "card"))
    parser.add_argument("--rows", type=int, nargs="+", help="sizes of the pool")
    parser.add_argument("--dtype", default="float16", choices=("float16", "float32"))
    parser.add_argument("--space", default="auto", choices=("auto", "tangent", "inputs"), help="of cover")
    parser.add_argument("--file", type=Path, help="measure this file in this process")
    card = parser.add_argument_group("card")
    card.add_argument("--points", type=int, default=10**6)
    card.add_argument("--device", default="cuda")
    card.add_argument("--width", type=int, default=1280)
    card.add_argument("--units", type=int, default=512)
    card.add_argument("--watch", type=int, default=4096)
    args = parser.parse_args()
    if args.what == "card":
        measure_card(args.points, args.device, args.width, args.units, args.watch)
        return
    images = args.what == "images"
    if args.file:
        print(json.dumps(measure_query(args.file, args.rows[0], images, args.space)))
        return
    sizes = args.rows or ([IMAGES] if images else [10**4, 10**5, 10**6])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool.npy"
        total = LABELLED + max(sizes)
        y = write_images(path, total) if images else write_features(path, total, args.dtype)
        np.save(path.with_suffix(".y.npy"), y)
        found = []
        for rows in sizes:
            command = [sys.executable, "-m", "benchmarks.scale", args.what, "--file", str(path), "--rows", str(rows)]
            command += ["--space", args.space]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found.append(json.loads(said.splitlines()[-1]))
            print(json.dumps(found[-1]), flush=True)
    if len(found) > 1:
        for kind in ("seconds", "cpu_seconds"):
            power = fit_power([float(r["U"]) for r in found], [r[kind] for r in found])
            print(f"{kind} grow as U to the power {power:.3f}")


if __name__ == "__main__":
    main()
