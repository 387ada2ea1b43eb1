"""Very many labels: seconds and steps of conjugate gradients for L up to 50,000, and the error to the dense solve.

``python results/findings/scale/labels.py [--most 50000]`` appends to labels.jsonl beside it. A head of 256 units on
rows of 128 numbers, 20 classes, 5 % of the labels wrong, so that the network does not fit them all. "misfit" is the λ
that a query of ``cover`` takes; "small" is 1e-6 of the mean diagonal of Θ_LL, the default of other scores.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from foretaste.acquire import chance_of_error
from foretaste.lookahead import LANDMARKS, LargeLabels, linearize
from foretaste.network import fit
from foretaste.tangent import freeze

RECORD = Path(__file__).with_suffix(".jsonl")
CLASSES, NUMBERS, UNITS, POINTS = 20, 128, 256, 500
DENSE = 5000  # labels up to which the dense solve is made too


def make(L: int) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A trained head, its labelled points, and others."""
    g, n = torch.Generator().manual_seed(0), L + POINTS
    y = torch.randint(0, CLASSES, (n,), generator=g)
    x = (0.3 * torch.randn(CLASSES, NUMBERS, generator=g)[y] + torch.randn(n, NUMBERS, generator=g)) / math.sqrt(
        NUMBERS
    )
    y = torch.where(torch.rand(n, generator=g) < 0.05, torch.randint(0, CLASSES, (n,), generator=g), y)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(NUMBERS, UNITS), nn.ReLU(), nn.Linear(UNITS, CLASSES))
    fit(net, x[:L], y[:L], steps=1500, batch_size=256, seed=0)
    return net, x[:L], y[:L], x[L:]


def chance(mean_NC: Tensor, var_N: Tensor, scale: float) -> Tensor:
    top = mean_NC.topk(2, 1).values
    return chance_of_error(top[:, 0] - top[:, 1], 2 * scale * var_N)


def measure(L: int, name: str) -> dict[str, float | int | str]:
    net, x_L, y_L, x = make(L)
    ridge = "misfit" if name == "misfit" else None
    start, cpu = time.perf_counter(), time.process_time()
    few = linearize(net, x_L, y_L, x[:1], output="signs", ridge=ridge)
    labels = LargeLabels(freeze(net, output="signs"), x_L, CLASSES, few)
    f_NC, mean_NC, var_N = labels.at(x)
    took = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    assert labels.solution is not None
    begin = time.process_time()
    labels.multiply(labels.solution.x_LR)
    row: dict[str, float | int | str] = {
        "L": L, "ridge": name, "landmarks": len(labels.landmarks.pivots), "steps": labels.solution.steps,
        "residual": labels.solution.residual, "step_cpu_seconds": time.process_time() - begin, **took,
        "lambda": labels.ridge, "left": float(labels.landmarks.left_L.sum() / labels.factors.diagonal().sum()),
    }  # fmt: skip
    if L <= DENSE:
        start, cpu = time.perf_counter(), time.process_time()
        state = linearize(net, x_L, y_L, x, output="signs", ridge=ridge)
        want_NC, want_N = state.mean, state.watched_variance
        row |= {"dense_seconds": time.perf_counter() - start, "dense_cpu_seconds": time.process_time() - cpu}
        ratio_N, e_N = var_N / want_N, chance(mean_NC, var_N, labels.scale)
        own = linearize(net, x_L, y_L, x, output="signs", ridge=labels.ridge).mean
        row |= {
            "lambda_ratio": labels.ridge / state.ridge, "scale_ratio": labels.scale / state.scale,
            "mean_error": float((mean_NC - own).abs().max() / (own - f_NC).abs().max()),
            "variance_ratio": float(ratio_N.median()), "variance_ratio_most": float(ratio_N.max()),
            "chance_correlation": float(torch.corrcoef(torch.stack([e_N, chance(want_NC, want_N, state.scale)]))[0, 1]),
        }  # fmt: skip
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=f"landmarks (at most {LANDMARKS}) and conjugate gradients by L")
    parser.add_argument("--most", type=int, default=50_000)
    most = parser.parse_args().most
    done = [json.loads(line) for line in RECORD.read_text().splitlines()] if RECORD.exists() else []
    for name in ("misfit", "small"):
        for L in [n for n in (1000, 2000, 5000, 10_000, 20_000, 50_000) if n <= most]:
            if any((row["L"], row["ridge"]) == (L, name) for row in done):
                continue
            row = measure(L, name)
            print(row, flush=True)
            with RECORD.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
