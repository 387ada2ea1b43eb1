"""Would it pay to keep the Gram matrix of fixed features between cycles? A cycle with and without it.

    python results/findings/scale/kept_gram.py [--pool 5000] [--width 384 1280] [--repeats 3]

A head of one hidden layer on features that do not change is trained again in every cycle, so its tangents change: the
gradients G of its hidden units, and these units H themselves. Only the inputs A of the first layer stay, and so does
A Aᵀ over the pool and the labelled points. All else of Θ = (A Aᵀ + 1)∘(G Gᵀ) + (H Hᵀ + 1) ‖g‖² is computed anew. Here
the products A Aᵀ of a dense query are taken out of a matrix that was computed before, in turns with the query as it is.
Processor seconds of one thread, the median of the repeats; one line of JSON each, into kept_gram.jsonl
beside this file.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

sys.path[:0] = [str(Path(__file__).parents[3])]

import foretaste as ft  # noqa: E402
from benchmarks.scale import CLASSES, cluster_points  # noqa: E402
from foretaste.tangent.rules import ProductLayer  # noqa: E402

RECORDS = Path(__file__).with_suffix(".jsonl")
LABELLED, BATCH, UNITS = 200, 100, 256
FEW = 8  # points: rules are checked on some, whose products are cheap


class KeptGram:
    """A Aᵀ of all points. A point is known again by its first two numbers."""

    def __init__(self, x: Tensor) -> None:
        self.gram = x.double() @ x.double().T
        self.first, self.order = self.key(x.double()).sort()
        assert len(self.first.unique()) == len(x)
        self.used = 0

    def key(self, a: Tensor) -> Tensor:
        return a[:, 0] + np.pi * a[:, 1]

    def take(self, a: Tensor, b: Tensor) -> Tensor:
        i, j = (self.order[torch.searchsorted(self.first, self.key(of))] for of in (a, b))
        self.used += 1
        return self.gram[i[0] : i[-1] + 1, j[0] : j[-1] + 1].clone()  # points of a block follow one another here


def processor(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    return work(), time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pool", type=int, default=5000)
    parser.add_argument("--width", type=int, nargs="+", default=[384, 1280])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for width in args.width:
        y = torch.randint(CLASSES, (LABELLED + args.pool,), generator=torch.Generator().manual_seed(0))
        x = cluster_points(y, width, torch.float32)
        kept, making = processor(lambda: KeptGram(x))  # noqa: B023
        real = ProductLayer.input_kernel

        def looked_up(self: ProductLayer, a: Tensor, b: Tensor, kept: Any = kept, width: int = width) -> Tensor:
            if a.dim() != 2 or a.shape[1] != width or min(len(a), len(b)) <= FEW:
                return real(self, a, b)  # noqa: B023
            found = kept.take(a, b)
            return found.add_(1) if self.bias else found

        seconds: dict[str, list[float]] = {"train": [], "plain": [], "kept": []}
        for _ in range(args.repeats):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(width, UNITS), nn.ReLU(), nn.Linear(UNITS, CLASSES))
            sets = x[:LABELLED], y[:LABELLED], x[LABELLED:]
            seconds["train"].append(processor(lambda: ft.fit(net, *sets[:2], seed=0))[1])  # noqa: B023
            ask = lambda: ft.query(net.eval(), *sets, batch_size=BATCH, method="dense")  # noqa: B023, E731
            plain, cpu = processor(ask)
            seconds["plain"].append(cpu)
            with patch.object(ProductLayer, "input_kernel", looked_up):
                ours, cpu = processor(ask)
            seconds["kept"].append(cpu)
            assert kept.used
            assert ours.indices.tolist() == plain.indices.tolist()
        train, plain_s, kept_s = (float(np.median(seconds[way])) for way in ("train", "plain", "kept"))
        line = {
            "width": width, "pool": args.pool, "repeats": args.repeats, "train": round(train, 2),
            "query": round(plain_s, 2), "query_kept": round(kept_s, 2), "making_it": round(making, 2),
            "saved_of_the_query": round(1 - kept_s / plain_s, 3),
            "saved_of_the_cycle": round((plain_s - kept_s) / (train + plain_s), 3),
            "gigabytes": round(8e-9 * len(x) ** 2, 2),
        }  # fmt: skip
        print(json.dumps(line), flush=True)
        with RECORDS.open("a") as records:
            records.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
