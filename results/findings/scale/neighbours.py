"""Is a shortlist of neighbours enough? A streamed `cover` that looks at 1 % of the pool, against all of it.

    python results/findings/scale/neighbours.py [--rows 100000] [--share 0.01] [--seeds 0 1]

The candidates are the nearest neighbours, in the features, of the labelled points and of contested ones (drawn by the
network's own chance of error), found by faiss; or as many points at random, or drawn by their chance of error, which
need no index. All else is the streamed query: the watched points, the lazy picks, the second sample. One line of JSON
for each query, into neighbours.jsonl beside this file: what the batch is worth on points held out, and processor
seconds of one thread. Needs `pip install faiss-cpu`.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import faiss
import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]

from shards import LABELLED, trained  # noqa: E402

import foretaste as ft  # noqa: E402
from benchmarks.scale import BATCH, write_features  # noqa: E402
from foretaste.acquire import StreamedCover  # noqa: E402

RECORDS = Path(__file__).with_suffix(".jsonl")
CONTESTED = 2000  # points whose neighbours are looked for, besides those of L
PROBES = 8  # cells of the index that a search looks at
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


def neighbours(index: faiss.Index, x_L: np.ndarray, x_U: np.ndarray) -> Choose:
    def choose(error_U: np.ndarray, n: int, seed: int) -> np.ndarray:
        """Of each in turn the next nearest, until there are n."""
        asked = np.concatenate([x_L, x_U[np.sort(drawn(error_U, CONTESTED, seed))]]).astype(np.float32)
        found: np.ndarray = np.empty(0, dtype=np.int64)
        k = max(4, 2 * n // len(asked))
        while len(found) < n and k <= 1024:
            near = index.search(asked, k)[1].T.ravel()  # all nearest, all second nearest, ...
            near = near[near >= 0]
            found = near[np.sort(np.unique(near, return_index=True)[1])]
            k *= 2
        return found[:n]

    return choose


def at_random(error_U: np.ndarray, n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(len(error_U))[:n]


def query_among(ask: Callable[[], ft.Query], choose: Choose | None, n: int, seed: int) -> tuple[ft.Query, float]:
    """A streamed query whose candidates are n of the pool, and processor seconds of choosing them. None: all."""
    if choose is None:
        return ask(), 0.0
    real, seconds = StreamedCover.coverage, list[float]()

    def gains_of_some(cover: StreamedCover) -> torch.Tensor:
        net, pool = cover.frozen.net, cover.pool
        with torch.no_grad():
            f = torch.cat([net(x) for _, x in pool.chunks(4096)])
        error_U = (1 - f.softmax(1).amax(1)).double().numpy() + 1e-12
        at, cpu = processor(lambda: np.sort(choose(error_U, n, seed)))
        seconds.append(cpu)
        gains_U = torch.full((len(pool),), -torch.inf)
        for start in range(0, n, cover.chunk_size):
            some = at[start : start + cover.chunk_size]
            gains_U[torch.from_numpy(some)] = cover.gains(pool.take(some), some)
        return gains_U

    with patch.object(StreamedCover, "coverage", lambda self, seen, by: real(self, seen, gains_of_some)):
        q = ask()
    return q, seconds[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    args = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pool.npy"
        np.save(file.with_suffix(".y.npy"), write_features(file, LABELLED + args.rows))
        net, x_L, y_L = trained(file)
        x_U = np.load(file, mmap_mode="r")[LABELLED:]
        index, index_seconds = processor(lambda: build_index(x_U))
        ways: dict[str, Choose | None] = {
            "all": None, "neighbours": neighbours(index, x_L, x_U), "by error": drawn, "random": at_random
        }  # fmt: skip
        for seed in args.seeds:
            full: set[int] = set()
            for way, choose in ways.items():
                ask = lambda seed=seed: ft.query(  # noqa: E731
                    net, x_L, y_L, x_U, batch_size=BATCH, method="streamed", seed=seed
                )
                n = max(BATCH, int(args.share * args.rows))
                (q, choosing), cpu = processor(lambda: query_among(ask, choose, n, seed))  # noqa: B023
                full = full or {*q.indices.tolist()}
                line = {
                    "rows": args.rows, "seed": seed, "candidates": way, "of": args.rows if choose is None else n,
                    "cpu": cpu, "choosing": choosing, "index": index_seconds if way == "neighbours" else 0.0,
                    "seconds": {k: round(v, 2) for k, v in q.seconds.items() if v},
                    "value": q.info["batch_value"], "sample": q.info.get("sample"), "rows_read": q.info["rows_read"],
                    "picks_of_all": len(full & {*q.indices.tolist()}) / BATCH,
                }  # fmt: skip
                print(json.dumps(line), flush=True)
                with RECORDS.open("a") as records:
                    records.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
