"""What the default costs beside `gain` at the same precision: MNIST, WRN1, one card; alone on it.

    python results/default_cost.py OUT.json

A query of 20 (L = 100, U = 4000), one of 1000 (U = 6000) by its stages, and milliseconds from a label to the next.
"""

import json
import statistics
import sys
import time
from functools import partial

import torch

import foretaste as ft
from benchmarks.picks import time_picks
from foretaste.data import draw, load
from foretaste.network import fit, make_network, prepare

ROUNDS = 3


def main(out: str, U: int = 4000, large: int = 6000, many: int = 1000, widen: int = 10, steps: int | None = None):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = load("mnist").to(device)
    split = draw(data.pool, data.test, 100, 10)
    torch.manual_seed(0)
    net = make_network("wrn1", options={"widen": widen, "blocks": 1}, classes=10, shape=(1, 28, 28)).to(device)
    trained = fit(
        net, data.x[split.L], data.y[split.L], start="cold", max_lr=0.5, steps=steps, seed=10, normalise=data.normalise
    )
    x_L, y_L = prepare(data.x[split.L], torch.float32, data.normalise), data.y[split.L]
    pools = {n: prepare(data.x[split.offer(n, 10).U], torch.float32, data.normalise) for n in (U, large)}
    rows: list[dict[str, object]] = [{"what": "residual", "value": trained.residual, "device": device_name(device)}]

    def timed(strategy: str, precision: str, n: int, batch_size: int) -> tuple[float, dict[str, float], dict]:
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        q = ft.query(net, x_L, y_L, pools[n], strategy=strategy, batch_size=batch_size, precision=precision)
        return time.perf_counter() - began, dict(q.seconds), dict(q.info)

    for n, batch_size, precisions in ((U, 20, ("half", "auto")), (large, many, ("half",))):
        for precision in precisions:
            for strategy in ("gain", "cover"):
                ask = partial(timed, strategy, precision, n, batch_size)
                runs = [ask() for _ in range(1 + ROUNDS)][1:]  # the first compiles
                seconds = [r[0] for r in runs]
                rows.append({"what": strategy, "precision": precision, "L": 100, "U": n, "batch": batch_size,
                             "seconds": statistics.median(seconds), "all": seconds, "stages": runs[-1][1],
                             "took": str(runs[-1][2].get("precision"))})  # fmt: skip
                save(rows, out)
    for row in time_picks(("gain", "cover"), (U,), ("greedy", "sequential"), device=device):
        rows.append({"what": row.strategy, "select": row.select, "U": U, "ms a pick": row.ms})
        save(rows, out)


def device_name(device: str) -> str:
    return f"{torch.cuda.get_device_name() if device == 'cuda' else 'cpu'}, torch {torch.__version__}"


def save(rows: list, out: str) -> None:
    print(rows[-1], flush=True)
    with open(out, "w") as file:
        json.dump(rows, file, indent=1)


if __name__ == "__main__":
    small = {"U": 60, "large": 80, "many": 10, "widen": 1, "steps": 20} if "--small" in sys.argv else {}
    main(sys.argv[1], **small)
