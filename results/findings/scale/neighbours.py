"""Is a shortlist of neighbours enough? A streamed `cover` that looks at 1 % of the pool, against all of it.

    python results/findings/scale/neighbours.py [--rows 100000 1000000] [--share 0.01] [--seeds 0 1]
    FORETASTE_DATA=... python results/findings/scale/neighbours.py --data banking77 cifar10 --share 0.1

The candidates are the nearest neighbours, in the features, of contested points (drawn by the network's own chance of
error) and of labelled ones, or of contested ones alone, found by faiss; or as many points at random, which needs no
index. All else is the streamed query: the watched points, the lazy picks, the second sample. One line of JSON
for each query, into neighbours.jsonl beside this file: what the batch is worth on points held out, and processor
seconds of one thread. Needs `pip install faiss-cpu`.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import faiss
import numpy as np
import torch
from torch import nn

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]

import loop  # noqa: E402
from shards import LABELLED, trained  # noqa: E402

import foretaste as ft  # noqa: E402
from benchmarks.scale import BATCH, write_features  # noqa: E402
from foretaste.acquire import StreamedCover  # noqa: E402
from foretaste.network import MLP  # noqa: E402

RECORDS = Path(__file__).with_suffix(".jsonl")
EACH = 10  # neighbours of a contested point, about: so many fewer such points are drawn
PROBES = 8  # cells of the index that a search looks at
WAYS = ["all", "neighbours", "neighbours of contested", "random"]
ADDED = 50_000  # rows that go into the index at a time

Choose = Callable[[np.ndarray, int, int], np.ndarray]  # chances of error, how many, a seed -> positions


def processor(work: Callable[[], object]) -> tuple[object, float]:
    start = time.process_time()
    got = work()
    return got, round(time.process_time() - start, 2)


def build_index(x_U: np.ndarray) -> faiss.Index:
    """Cells around centres, rows in half precision: 0.8 GB for a million rows of 384."""
    cells = max(64, 2 ** int(np.log2(len(x_U)) / 2))
    coarse = faiss.IndexFlatL2(x_U.shape[1])
    index = faiss.IndexIVFScalarQuantizer(coarse, x_U.shape[1], cells, faiss.ScalarQuantizer.QT_fp16)
    some = np.sort(np.random.default_rng(0).permutation(len(x_U))[: 40 * cells])
    index.train(x_U[some].astype(np.float32))
    for start in range(0, len(x_U), ADDED):
        index.add(x_U[start : start + ADDED].astype(np.float32))
    index.nprobe = PROBES
    return index


def drawn(error_U: np.ndarray, n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(len(error_U), n, replace=False, p=error_U / error_U.sum())


def neighbours(index: faiss.Index, x_L: np.ndarray | None, x_U: np.ndarray) -> Choose:
    """Neighbours of contested points, and of labelled ones, half and half; None: of contested ones alone."""

    def nearest(asked: np.ndarray, n: int) -> np.ndarray:
        """Of each in turn the next nearest, until there are n."""
        found, k = np.empty(0, dtype=np.int64), max(2, n // len(asked))
        while len(found) < n and k <= 2048:
            near = index.search(asked.astype(np.float32), k)[1].T.ravel()  # all nearest, all second nearest, ...
            near = near[near >= 0]
            found, k = near[np.sort(np.unique(near, return_index=True)[1])], 2 * k
        return found[:n]

    def choose(error_U: np.ndarray, n: int, seed: int) -> np.ndarray:
        half = n if x_L is None else n // 2
        found = nearest(x_U[np.sort(drawn(error_U, max(1, half // EACH), seed))], half)
        return found if x_L is None else np.union1d(found, nearest(x_L, n - half))

    return choose


def at_random(error_U: np.ndarray, n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(len(error_U))[:n]


def query_among(ask: Callable[[], ft.Query], choose: Choose | None, n: int, seed: int) -> tuple[ft.Query, float]:
    """A streamed query whose candidates are n of the pool, and processor seconds of choosing them. None: all."""
    if choose is None:
        return ask(), 0.0
    coverage, seconds = StreamedCover.coverage, list[float]()

    def gains_of_some(cover: StreamedCover) -> torch.Tensor:
        net, pool = cover.frozen.net, cover.pool
        with torch.no_grad():
            f = torch.cat([net(x) for _, x in pool.chunks(4096)])
        error_U = (1 - f.softmax(1).amax(1)).double().numpy() + 1e-12
        at, cpu = processor(lambda: np.sort(choose(error_U, n, seed)))
        seconds.append(cpu)
        gains_U = torch.full((len(pool),), -torch.inf)
        for start in range(0, len(at), cover.chunk_size):
            some = at[start : start + cover.chunk_size]
            gains_U[torch.from_numpy(some)] = cover.gains(pool.take(some), some)
        return gains_U

    with patch.object(StreamedCover, "coverage", lambda self, seen, by: coverage(self, seen, gains_of_some)):
        q = ask()
    return q, seconds[0]


@dataclass(frozen=True)
class Pool:
    name: str
    net: nn.Module
    x_L: np.ndarray
    y_L: torch.Tensor
    x_U: np.ndarray
    batch: int
    watch: int | None = None


def features(file: Path, rows: int) -> Pool:
    """Rows of 384 numbers in a mapped file, a head of 256 units and 500 labels."""
    np.save(file.with_suffix(".y.npy"), write_features(file, LABELLED + rows))
    return Pool(f"{rows} rows", *trained(file), np.load(file, mmap_mode="r")[LABELLED:], BATCH)


def real(name: str, seed: int) -> Pool:
    """The data and the network of loop.py, with all of the training points as pool."""
    first, per, _, max_lr = loop.DATA[name]
    x, y, _, _ = loop.read(name)
    order = np.random.default_rng(seed).permutation(len(x))
    labelled, pool = order[:first], order[first:]
    torch.manual_seed(100 * seed)
    net = MLP(x.shape[1], (loop.HIDDEN,), int(y.max()) + 1)
    ft.fit(
        net, x[labelled], y[labelled], steps=loop.STEPS, batch_size=loop.BATCH, max_lr=max_lr, seed=seed
    )  # fmt: skip
    return Pool(name, net.eval(), x[labelled].numpy(), y[labelled], x[pool].numpy(), per, 2048)


def compare(of: Pool, share: float, seed: int, wanted: list[str]) -> None:
    index, index_seconds = processor(lambda: build_index(of.x_U))
    ways: dict[str, Choose | None] = {
        "all": None,
        "neighbours": neighbours(index, of.x_L, of.x_U),
        "neighbours of contested": neighbours(index, None, of.x_U),
        "random": at_random,
    }  # fmt: skip
    n, full, value = max(2 * of.batch, int(share * len(of.x_U))), set[int](), 0.0

    def ask() -> ft.Query:
        return ft.query(
            of.net, of.x_L, of.y_L, of.x_U, batch_size=of.batch, method="streamed", watch=of.watch, seed=seed
        )

    for way, choose in ((way, ways[way]) for way in wanted):
        (q, choosing), cpu = processor(lambda: query_among(ask, choose, n, seed))  # noqa: B023
        worth = q.info["batch_value"]
        if way == "all":
            full, value = {*q.indices.tolist()}, worth["held_out"]
        line = {
            "pool": of.name, "seed": seed, "candidates": way, "of": len(of.x_U) if choose is None else n,
            "cpu": cpu, "choosing": choosing, "index": index_seconds if way.startswith("neighbours") else 0.0,
            "seconds": {k: round(v, 2) for k, v in q.seconds.items() if v}, "value": worth,
            "to_all": round(worth["held_out"] / value, 3) if full else None,
            "picks_of_all": len(full & {*q.indices.tolist()}) / of.batch,
            "rows_read": q.info["rows_read"],
        }  # fmt: skip
        print(json.dumps(line), flush=True)
        with RECORDS.open("a") as records:
            records.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000])
    parser.add_argument("--data", nargs="+", default=[], choices=list(loop.DATA), help="real pools, instead of rows")
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    for seed in args.seeds:
        for name in args.data:
            compare(real(name, seed), args.share, seed, args.ways)
        for rows in args.rows if not args.data else ():
            with tempfile.TemporaryDirectory() as folder:
                compare(features(Path(folder) / "pool.npy", rows), args.share, seed, args.ways)


if __name__ == "__main__":
    main()
