"""Strategies beside scikit-activeml's, on the same inputs: seconds, memory, and whether the picks agree.

``python -m benchmarks.scikit_activeml``. Each contender runs in a process of its own, so that memory is its own.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foretaste.data import digits
from foretaste.lookahead import KernelSettings
from foretaste.network import MLP, fit, prepare
from foretaste.pick import Request, draw_networks, query

RADIUS, SAMPLES, RATE = 20.0, 50, 0.5  # a ball of digits (pixels 0 to 16), and draws by dropout
PEERS = {"coreset": (100,), "maxherding": (100,), "probcover": (100,), "typiclust": (100,), "batchbald": (4, 8)}


@dataclass(frozen=True)
class PeerRow:
    """One strategy in both libraries. ``same`` is how many picks of the two batches agree, in their order."""

    name: str
    batch_size: int
    ours: tuple[float, float]  # seconds, megabytes
    theirs: tuple[float, float]
    same: int
    value: str = ""  # of both batches, where ties or random starts make them differ


class PeerProblem:
    """Digits as vectors: L labelled points and U candidates; for BatchBALD a small network trained on L."""

    def __init__(self, L: int = 100, U: int = 1500, seed: int = 0) -> None:
        data = digits()
        order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(seed))[: L + U]
        x = prepare(data.x[order], normalise=data.normalise).flatten(1).double()
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
        self.x = 16 * (x - x.min()) / (x.max() - x.min()) + 0.01 * noise  # else many distances are equal
        self.y, self.L = data.y[order], L

    def network(self) -> torch.nn.Module:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            net = MLP(64, (64,), 10).double()
        fit(net, self.x[: self.L] / 16, self.y[: self.L], steps=300, start="cold", loss="ce")
        return net.eval()


def run_ours(problem: PeerProblem, name: str, batch_size: int) -> Callable[[], list[int]]:
    """A query by foretaste."""
    options: dict[str, Any] = {"space": "inputs"}
    if name in ("probcover", "maxherding"):
        options["radius"] = RADIUS
    if name == "maxherding":
        options["unit_length"] = False
    x = problem.x
    net: torch.nn.Module = torch.nn.Linear(64, 10).double().eval()
    if name == "batchbald":
        options, x, net = {"samples": SAMPLES, "rate": RATE}, x / 16, problem.network()
    L = problem.L
    how: dict[str, Any] = {"strategy": name, "options": options, "batch_size": batch_size, "loss": "ce"}
    return lambda: query(net, x[:L], problem.y[:L], x[L:], **how).indices.tolist()


def run_theirs(problem: PeerProblem, name: str, batch_size: int) -> Callable[[], list[int]]:
    """The same question to scikit-activeml. BatchBALD is given the probabilities of the same drawn networks."""
    from skactiveml import pool

    L = problem.L
    if name == "batchbald":
        net, x = problem.network(), problem.x / 16
        generator = torch.Generator().manual_seed(0)
        asked = Request(net, x[:L], problem.y[:L], x[L:], batch_size, generator, KernelSettings(loss="ce"))
        p_KUC = draw_networks(asked, SAMPLES, RATE, None, name).numpy()

        def batch() -> list[int]:
            utilities = pool.batch_bald(p_KUC.copy(), batch_size, n_MC_samples=2000, random_state=0)
            return [int(np.nanargmax(u)) for u in utilities]

        return batch
    points, y = problem.x.numpy(), problem.y.numpy().astype(float)
    y[L:] = np.nan
    made = {
        "coreset": lambda: pool.CoreSet(random_state=0),
        "typiclust": lambda: pool.TypiClust(random_state=0, k=20),
        "probcover": lambda: pool.ProbCover(random_state=0, n_classes=10, deltas=[RADIUS]),
        "maxherding": lambda: pool.MaxHerding(
            random_state=0, normalize_samples=False, metric_dict={"gamma": 1 / RADIUS**2}
        ),
    }[name]()
    return lambda: [int(j) - L for j in made.query(points, y, batch_size=batch_size)]


def batch_value(problem: PeerProblem, name: str, batch: Sequence[int]) -> str:
    """What the strategy maximises, or what can be compared: points within the radius, mean distance to the batch."""
    x, chosen = problem.x, [*range(problem.L), *(problem.L + j for j in batch)]
    d_NB = torch.cdist(x, x[chosen])
    if name == "probcover":
        return f"{int((d_NB.amin(1) < RADIUS).sum())} covered"
    if name == "typiclust":
        return f"{float(d_NB.amin(1).mean()):.2f} to the nearest"
    return ""


def measure(side: str, name: str, batch_size: int) -> dict[str, Any]:
    """One contender, in this process: seconds, megabytes above what was there before, and picks."""
    run = {"ours": run_ours, "theirs": run_theirs}[side](PeerProblem(), name, batch_size)
    before = _resident()
    start = time.perf_counter()
    picks = run()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "megabytes": max(0.0, peak - before) / 1e6, "picks": picks}


def _resident() -> int:
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS"))


def compare_peers(batches: Mapping[str, Sequence[int]] = PEERS) -> list[PeerRow]:
    """Strategies that both have, with batches of these sizes."""
    rows, problem = [], PeerProblem()
    for name, n in [(name, n) for name, sizes in batches.items() for n in sizes]:
        found = {}
        for side in ("ours", "theirs"):
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.scikit_activeml", side, name, str(n)]
            found[side] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        ours, theirs = found["ours"], found["theirs"]
        same = sum(a == b for a, b in zip(ours["picks"], theirs["picks"]))
        values = [batch_value(problem, name, side["picks"]) for side in (ours, theirs)]
        rows.append(
            PeerRow(
                name,
                n,
                (ours["seconds"], ours["megabytes"]),
                (theirs["seconds"], theirs["megabytes"]),
                same,
                " / ".join(values) if values[0] else "",
            )
        )
    return rows


def peers_markdown(rows: Sequence[PeerRow]) -> str:
    """A table, ours first."""
    lines = [
        "| strategy | batch | seconds, ours / theirs | memory, ours / theirs | same picks | value, ours / theirs |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| {r.name} | {r.batch_size} | {r.ours[0]:.2g} / {r.theirs[0]:.2g} | "
            f"{r.ours[1]:.0f} / {r.theirs[1]:.0f} MB | {r.same} of {r.batch_size} | {r.value or '–'} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
    else:
        print(peers_markdown(compare_peers()))
