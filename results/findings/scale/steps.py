"""Steps of conjugate gradients by L, by λ and by preconditioner: does the paper's O(L√L P) hold?

``python results/findings/scale/steps.py [--labels 1000 2000] [--device cuda]`` appends to steps.jsonl beside it, skips
what is there, and prints the table. The problem is that of labels.py. A step is one product with Θ_LL, L·P
multiplications for each output, so √L steps would be O(L√L P). Here Θ_LL is formed, in float64, for it gives the same
steps in less time.

λ in units of the mean of Θ_ii: "misfit", which ``cover`` takes; "√L", as Falkon has it (λ = 1/√L of a mean loss); 1e-2,
1e-4, and 1e-6, the default of other scores. The preconditioner has no pivots, √L or 1,024 of them.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from labels import CLASSES, make
from torch import Tensor

from foretaste.lookahead import LANDMARKS, LargeLabels, linearize
from foretaste.lookahead.large_labels import LowRankSystem, conjugate_gradients, pivoted_cholesky
from foretaste.tangent import freeze

RECORD = Path(__file__).with_suffix(".jsonl")
MOST = 20_000  # steps
RIDGES = ("misfit", "√L", "1e-2", "1e-4", "1e-6")
PIVOTS = ("none", "√L", str(LANDMARKS))


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORD.read_text().splitlines()] if RECORD.exists() else []


def measure(L: int, device: str, done: set[tuple[str, str]]) -> None:
    net, x_L, y_L, x = make(L)
    net, x_L, y_L, x = net.to(device), x_L.to(device), y_L.to(device), x.to(device)
    few = linearize(net, x_L, y_L, x[:1], output="signs", ridge="misfit")
    labels = LargeLabels(freeze(net, output="signs"), x_L, CLASSES, few)
    theta_LL, diag_L = labels.factors.kernel(labels.factors), labels.factors.diagonal()
    mean = float(diag_L.mean())
    b_LC = torch.nn.functional.one_hot(y_L, CLASSES).double() - net(x_L).detach().double()
    values = {"misfit": labels.ridge, "√L": mean * math.sqrt(L)} | {r: mean * float(r) for r in RIDGES[2:]}
    root = pivoted_cholesky(lambda at: theta_LL[:, at].clone(), diag_L, math.isqrt(L))
    found = {"√L": root, PIVOTS[2]: labels.landmarks}

    def multiply(v_LR: Tensor, ridge: float) -> Tensor:
        return torch.addmm(v_LR, theta_LL, v_LR, beta=ridge)

    for name, ridge in values.items():
        for pivots in PIVOTS:
            if (name, pivots) in done:
                continue
            by = torch.clone
            if pivots in found:
                by = LowRankSystem(found[pivots].F_Lk, found[pivots].left_L + ridge).solve
            got = conjugate_gradients(lambda v, ridge=ridge: multiply(v, ridge), b_LC, by, most=MOST)
            row = {
                "L": L, "ridge": name, "pivots": pivots, "steps": got.steps, "residual": got.residual,
                "relative_ridge": ridge / mean, "device": device,
            }  # fmt: skip
            print(row, flush=True)
            with RECORD.open("a") as file:
                file.write(json.dumps(row) + "\n")


def table(rows: list[dict[str, Any]]) -> str:
    """Steps, and the power of L with which they grow from 2,000 labels on."""
    sizes = sorted({r["L"] for r in rows})
    steps = {(r["ridge"], r["pivots"], r["L"]): r["steps"] for r in rows}
    out = [
        "| λ | pivots | " + " | ".join(f"{L:,}" for L in sizes) + " | power |",
        "|---|---|" + "---|" * (len(sizes) + 1),
    ]
    for ridge in RIDGES:
        for pivots in PIVOTS:
            have = [(L, steps[ridge, pivots, L]) for L in sizes if L >= 2000 and (ridge, pivots, L) in steps]
            power = np.polyfit(*np.log(np.array(have, float)).T, 1)[0] if len(have) > 1 else math.nan
            cells = " | ".join(str(steps.get((ridge, pivots, L), "")) for L in sizes)
            out.append(f"| {ridge} | {pivots} | {cells} | {power:.2f} |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labels", type=int, nargs="+", default=[1000, 2000, 5000, 10_000, 20_000])
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    for L in asked.labels:
        done = {(r["ridge"], r["pivots"]) for r in read() if r["L"] == L}
        if len(done) < len(RIDGES) * len(PIVOTS):
            measure(L, asked.device, done)
    print(table(read()))


if __name__ == "__main__":
    main()
