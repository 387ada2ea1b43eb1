"""Queries of pools that are files: seconds and peak memory from 10⁴ to 10⁶ candidates, each in a process of its own.

    python -m benchmarks.scale              features: 10⁴, 10⁵ and 10⁶ rows of 384 numbers, a head of 256 units
    python -m benchmarks.scale --batch 10000 --rows 100000 1000000      large batches
    python -m benchmarks.scale images       200,000 images of 28×28 through a WideResNet of one layer
    python -m benchmarks.scale card         10⁶ rows of 1280 numbers on a GPU, and what a streamed batch is worth
    python -m benchmarks.scale card --batch 100000 --width 384 --units 256      a large batch of 10⁶
    python -m benchmarks.scale pictures     10⁶ pictures of 32×32 through ResNet18 on a GPU, by sketches
    python -m benchmarks.scale learner      ft.Learner on 10⁶ rows: from a label to the next question

Memory is what the process allocates (RssAnon) above what it had before the query. The file is mapped, and its
pages do not count: the system can drop them.
"""

import argparse
import copy
import json
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import foretaste as ft
from benchmarks.growth import fit_power
from foretaste.acquire import StreamedCover, covered_errors, sample_watched
from foretaste.given import sliced_tensors
from foretaste.network import WideResNet, resnet18
from foretaste.pick import SKETCH_SIDE
from foretaste.tangent import freeze, rank_correlation

LABELLED, BATCH, CLASSES = 500, 100, 20
WIDTH, UNITS, DIRECTIONS = 384, 256, 12  # of the features; in how many directions a class varies
IMAGES = 200_000
WRITE_ROWS = 50_000
CHECKED = 20_000  # points of which a batch is compared with dense
BUDGET = "36GB"  # of the query of pictures
LEARNER_STEPS = 300
KEPT = (
    "method", "parts", "sketch", "landmarks", "sketch_recall", "watched", "shortlist", "sample", "batch_value",
    "rows_read", "space", "precision", "precision_measured",
)  # fmt: skip


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


def measure_query(path: Path, rows: int, images: bool, space: str, batch: int = BATCH) -> dict[str, Any]:
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
    q = ft.query(net, x_L, y_L, x[LABELLED:], batch_size=batch, options={"space": space})
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    memory.done.set()
    return {
        "U": rows,
        "batch": batch,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),  # of all threads; on a machine that others use, less of the truth is in the first
        "gigabytes": round((memory.peak - memory.before) / 1e9, 3),
        "seconds_of": {k: round(v, 2) for k, v in q.seconds.items()},
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


def measure_card(
    points: int, device: str, width: int, units: int, watch: int, checked: int, profile: bool, batch: int = BATCH,
    labelled: int = 200,
) -> None:  # fmt: skip
    """A query of points that are on the device already; before it, a check on some of them."""
    cuda = device == "cuda"
    y = torch.randint(CLASSES, (labelled + points,), generator=torch.Generator().manual_seed(0)).to(device)
    x = cluster_points(y, width, torch.float16)
    x_L, y_L, x_U = x[:labelled].float(), y[:labelled], x[labelled:]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(width, units), nn.ReLU(), nn.Linear(units, CLASSES)).to(device)
    ft.fit(net, x_L, y_L, seed=0)
    net.eval()
    few = x_U[:checked].float()
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
    for turn in range(2 if batch == BATCH else 1):
        start = time.perf_counter()
        q = ft.query(net, x_L, y_L, x_U, batch_size=batch, method="streamed", watch=watch)
        seconds = time.perf_counter() - start
        row = {"U": points, "batch": batch, "turn": turn, "seconds": round(seconds, 2)}
        if cuda:
            peak = torch.cuda.max_memory_allocated()
            row |= {"gigabytes": round((peak - before) / 1e9, 2), "with_the_data": round(peak / 1e9, 2)}
        row |= {"seconds_of": {k: round(v, 2) for k, v in q.seconds.items()}} | {
            k: q.info[k] for k in KEPT if k in q.info
        }
        print(json.dumps(row), flush=True)
    if profile:
        profiled(lambda: ft.query(net, x_L, y_L, x_U, batch_size=BATCH, method="streamed", watch=watch), device)


def profiled(ask: Callable[[], Any], device: str) -> None:
    """Where the time of a query goes."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=kinds) as seen:
        ask()
    for by in ("self_cpu_time_total", *(["self_device_time_total"] if device == "cuda" else [])):
        print(seen.key_averages().table(sort_by=by, row_limit=12, max_name_column_width=40))


# --- pictures ---


def make_pictures(n: int, given: Path | None, device: str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """n pictures, (n, 3, 32, 32) float16, and their classes: each of two of those in a file, or of smooth patterns.

    Mixed, mirrored, shifted, and with noise: so no two are alike.
    """
    g = torch.Generator(device).manual_seed(seed)
    if given is not None and given.exists():
        stored = pickle.loads(given.read_bytes(), encoding="latin1")
        base = (torch.from_numpy(stored["data"].copy()).to(device).float().view(-1, 3, 32, 32) - 120) / 64
        of = torch.tensor(stored["labels"], device=device)
    else:
        print("pictures are smooth patterns", "" if given is None else f"for there is no {given}")
        of = torch.arange(2000, device=device) % 10
        small = torch.randn(10, 3, 8, 8, generator=g, device=device)[of]
        small = small + 1.5 * torch.randn(2000, 3, 8, 8, generator=g, device=device)
        base = nn.functional.interpolate(small, size=32, mode="bilinear")
    at, other = torch.randint(len(base), (2, n), generator=g, device=device)
    out = torch.empty(n, 3, 32, 32, dtype=torch.float16, device=device)
    for k, (i, j, to) in enumerate(zip(at.split(WRITE_ROWS), other.split(WRITE_ROWS), out.split(WRITE_ROWS))):
        x = 0.8 * base[i] + 0.2 * base[j]
        x[::2] = x[::2].flip(3)
        x = torch.roll(x, (k % 5 - 2, k % 3 - 1), (2, 3))
        to.copy_(x + 0.1 * torch.randn(x.shape, generator=g, device=device))
    return out, of[at]


def measure_pictures(points: int, device: str, given: Path | None, width: int, labelled: int, checked: int) -> None:
    """Recall of the sketches on a part of the pool, one forward pass of the pool, and a query of it."""
    cuda = device == "cuda"
    x, y = make_pictures(labelled + points, given, device)
    x_L, y_L, x_U = x[:labelled].float(), y[:labelled], x[labelled:]
    torch.manual_seed(0)
    net = resnet18(width=width).to(device)
    start = time.perf_counter()
    ft.fit(net, x_L, y_L, steps=400 if cuda else 20, seed=0)
    net.eval()
    with torch.no_grad():
        right = float((net(x_U[:2000].float()).argmax(1) == y[labelled : labelled + 2000]).double().mean())
    print(f"trained in {time.perf_counter() - start:.1f} s, {100 * right:.1f} % right", flush=True)
    check_sketches(net, x_L, y_L, x_U[:checked].float(), BUDGET)
    if cuda:
        torch.cuda.synchronize()
    for part in (x_U[: points // 50], x_U):  # the first warms up
        start = time.perf_counter()
        with torch.no_grad():
            for some in part.split(4096):
                torch.softmax(net(some.float()), 1)
        if cuda:
            torch.cuda.synchronize()
        forward = time.perf_counter() - start
    print(f"one forward pass of the pool: {forward:.2f} s", flush=True)
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    start = time.perf_counter()
    q = ft.query(net, x_L, y_L, x_U, batch_size=BATCH, budget=BUDGET, method="streamed", options={"space": "tangent"})
    seconds = time.perf_counter() - start
    row = {"U": points, "L": labelled, "seconds": round(seconds, 2), "forward_passes": round(seconds / forward, 2)}
    if cuda:
        peak = torch.cuda.max_memory_allocated()
        row |= {"gigabytes": round((peak - before) / 1e9, 2), "with_the_data": round(peak / 1e9, 2)}
    row |= {"seconds_of": {k: round(v, 2) for k, v in q.seconds.items()}} | {k: q.info[k] for k in KEPT if k in q.info}
    print(json.dumps(row), flush=True)


def check_sketches(net: nn.Module, x_L: torch.Tensor, y_L: torch.Tensor, x_U: torch.Tensor, budget: str) -> None:
    """What each candidate alone adds to F, by sketches and exactly, with the same watched points and weights."""
    start, W = time.perf_counter(), min(1024, len(x_U) // 4)
    sample = sample_watched(np.zeros(len(x_U)), W, 0, 0)
    x_W = x_U[sample.at_W]

    def linearise(x: Any, candidates: int, eager: bool) -> ft.State:
        return ft.linearize(
            net, x_L, y_L, x[:candidates], watch=x, output="signs", ridge="misfit", budget=budget, precision="float32"
        )

    def made(side: int) -> StreamedCover:
        pool, how = sliced_tensors(x_U, "x_U"), freeze(net, output="signs")
        return StreamedCover(linearise, how, x_L, x_W, pool, sample, space="tangent", sketch=side, budget=int(4e10))

    first = made(SKETCH_SIDE)
    coarse = "tf32" if x_U.is_cuda else "float32"
    kappa_UW, _ = first.exact_kappa(x_U, x_W, coarse)
    _, covered_W = first.exact_kappa(x_W, x_W[:1], coarse)
    few_nW = kappa_UW[:1000].clone()
    first.without_own(kappa_UW, np.arange(len(x_U)))
    exact_U = (kappa_UW.double().square() - covered_W).clamp_min(0) @ first.weight_W
    print(f"exact scores of {len(x_U)} against {W}: {time.perf_counter() - start:.1f} s", flush=True)
    if x_U.is_cuda:
        some = [first.exact_kappa(x_U[:400], x_W[:400], p)[0] for p in ("float32", "half", "tf32")]
        apart = [(k - some[0]).double() for k in some[1:]]
        print("κ in half and tf32, error:", *(f"{float(k.square().mean().sqrt()):.1e}" for k in apart), end=" ")
        print("largest:", *(f"{float(k.abs().max()):.1e}" for k in apart))
    top = max(1, len(x_U) // 20)
    best = {*exact_U.topk(top).indices.tolist()}
    for side in (32, SKETCH_SIDE):
        start, cover = time.perf_counter(), made(side)
        vars(cover)["state"] = first.state
        scores_U = cover.coverage().first_U
        assert scores_U is not None
        found = {k: len(best & {*scores_U.topk(int(k * top)).indices.tolist()}) / top for k in (1, 1.5, 2, 4)}
        off = float((cover.centred.hold(x_W).rows(x_U[:1000]) - few_nW).square().mean().sqrt())
        print(
            f"sketches of {side}²: {time.perf_counter() - start:.1f} s, error of κ {off:.4f}, "
            f"Spearman {rank_correlation(scores_U, exact_U):.4f}, recall of the top {top} among so many times as many: "
            f"{found}", flush=True,
        )  # fmt: skip


# --- the learner ---


def measure_learner(points: int, device: str, folder: Path | None) -> None:
    """Seconds to the first question, and from each label to the next question."""
    if device == "cuda":
        y = torch.randint(CLASSES, (points,), generator=torch.Generator().manual_seed(0)).to(device)
        pool: Any = cluster_points(y, WIDTH, torch.float16)
    else:
        assert folder is not None
        path = folder / "pool.npy"
        y = torch.from_numpy(write_features(path, points))
        pool = np.load(path, mmap_mode="r")
    labels: dict[Any, int] = {i: int(y[i]) for i in range(LABELLED)}
    x_L = torch.as_tensor(np.array(pool[:LABELLED])).float() if device == "cpu" else pool[:LABELLED].float()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, UNITS), nn.ReLU(), nn.Linear(UNITS, CLASSES)).to(device)
    ft.fit(net, x_L, y[:LABELLED], seed=0)
    memory = PeakAllocated()
    memory.start()
    start = time.perf_counter()
    learner = ft.Learner(net.eval(), pool, classes=CLASSES, labels=labels)
    item: Any = learner.query(1)[0]
    begin, times, cpu = time.perf_counter() - start, list[float](), list[float]()
    for _ in range(LEARNER_STEPS):
        start, own = time.perf_counter(), time.process_time()
        learner.teach(item, int(y[item]))
        item = learner.query(1)[0]
        times.append(time.perf_counter() - start)
        cpu.append(time.process_time() - own)
    memory.done.set()
    row: dict[str, Any] = {"items": points, "start": round(begin, 2), "steps": len(times)}
    for name, of in (("milliseconds", times), ("processor", cpu)):
        row |= {name: {str(q): round(1e3 * float(np.quantile(of, q)), 1) for q in (0.5, 0.9, 1.0)}}
    print(json.dumps(row | {"gigabytes": round((memory.peak - memory.before) / 1e9, 2)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "what", nargs="?", default="features", choices=("features", "images", "card", "pictures", "learner")
    )
    parser.add_argument("--rows", type=int, nargs="+", help="sizes of the pool")
    parser.add_argument("--dtype", default="float16", choices=("float16", "float32"))
    parser.add_argument("--batch", type=int, default=BATCH, help="points to query")
    parser.add_argument("--space", default="auto", choices=("auto", "tangent", "inputs"), help="of cover")
    parser.add_argument("--file", type=Path, help="measure this file in this process")
    card = parser.add_argument_group("card")
    card.add_argument("--points", type=int, default=10**6)
    card.add_argument("--device", default="cuda")
    card.add_argument("--width", type=int, default=1280)
    card.add_argument("--units", type=int, default=512)
    card.add_argument("--watch", type=int, default=4096)
    card.add_argument("--profile", action="store_true", help="tell where the time goes, in one query more")
    card.add_argument("--pictures", type=Path, help="a batch of CIFAR10 to make pictures of")
    card.add_argument("--checked", type=int, default=CHECKED, help="points that are compared with the exact answer")
    card.add_argument("--labelled", type=int, default=1000, help="pictures with a label")
    args = parser.parse_args()
    if args.what == "card":
        how = args.points, args.device, args.width, args.units, args.watch
        measure_card(*how, args.checked, args.profile, args.batch)
        return
    if args.what == "pictures":
        width = 64 if args.device == "cuda" else 8
        measure_pictures(args.points, args.device, args.pictures, width, args.labelled, args.checked)
        return
    if args.what == "learner":
        with tempfile.TemporaryDirectory() as folder:
            measure_learner(args.points, args.device, Path(folder))
        return
    images = args.what == "images"
    if args.file:
        print(json.dumps(measure_query(args.file, args.rows[0], images, args.space, args.batch)))
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
            command += ["--space", args.space, "--batch", str(args.batch)]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found.append(json.loads(said.splitlines()[-1]))
            print(json.dumps(found[-1]), flush=True)
    if len(found) > 1:
        for kind in ("seconds", "cpu_seconds"):
            power = fit_power([float(r["U"]) for r in found], [r[kind] for r in found])
            print(f"{kind} grow as U to the power {power:.3f}")


if __name__ == "__main__":
    main()
