"""The strategies of docs/findings.md on ``lab.Asked``: each gives positions in U.

    python results/findings/rivals.py 50,51,52,53,54,55 [cell ...]

runs the cells that have no record yet, and writes records/CELL.json.
"""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from lab import Asked, Pick, run
from problems import CELLS
from torch import Tensor
from torch.nn.functional import one_hot

from foretaste.losses import probabilities
from foretaste.pick.badge import kmeanspp, loss_residuals

RECORDS = Path(__file__).parent / "records"


def gap(f: Tensor) -> Tensor:
    top = f.topk(2, 1).values
    return top[:, 0] - top[:, 1]


def random(q: Asked) -> list[int]:
    return torch.randperm(len(q.U), generator=q.generator)[: q.cell.per].tolist()


def margin(q: Asked) -> list[int]:
    order = torch.randperm(len(q.U), generator=q.generator)
    gaps = gap(probabilities(q.f_U, "ce") if q.cell.loss == "ce" else q.f_U)
    return order[(-gaps)[order].argsort(descending=True, stable=True)[: q.cell.per]].tolist()


def badge(q: Asked) -> list[int]:
    return kmeanspp(loss_residuals(q.f_U, q.cell.loss), q.h[-2][q.n :].double(), q.cell.per, q.generator).tolist()


# --- coverage ---


def cover_greedily(k_UN: Tensor, n: int, weight: Tensor, batch: int) -> list[int]:
    """Σ_i w_i max_{j ∈ L∪B} k_ij, columns L first; lazily."""
    k, covered = k_UN[:, n:], k_UN[:, :n].amax(1)
    bound, picks = (weight[:, None] * (k - covered[:, None]).clamp_min_(0)).sum(0), list[int]()
    taken = torch.zeros(len(k), dtype=torch.bool)
    for _ in range(batch):
        while True:
            open_bound = bound.masked_fill(taken, -1)
            j = int(open_bound.argmax())
            bound[j] = float(weight @ (k[:, j] - covered).clamp_min(0))
            open_bound[j] = -1
            if float(bound[j]) >= float(open_bound.max()) - 1e-15:
                break
        picks.append(j)
        taken[j], covered = True, torch.maximum(covered, k[:, j])
    return picks


def unit_distances(q: Asked) -> Tensor:
    """Squared distances of inputs of unit length."""
    d = q.products.diagonal().clamp_min(1e-12).rsqrt()
    return (2 - 2 * q.products * d * d[:, None]).clamp_min(0)


def uherding(q: Asked) -> list[int]:
    """Uncertainty herding: σ is the least distance between two labelled points, w_i = 1 − gap of probabilities."""
    d = unit_distances(q)
    own = d[: q.n, : q.n] + torch.eye(q.n) * 9
    least = own.min()
    radius = float(least) if least > 1e-8 else float(own[own > 1e-8].min())
    return cover_greedily(torch.exp(-d[q.n :] / radius), q.n, 1 - gap(probabilities(q.f_U, q.cell.loss)), q.cell.per)


def maxherding(q: Asked) -> list[int]:
    return cover_greedily(torch.exp(-unit_distances(q)[q.n :]), q.n, torch.ones(len(q.U)).double(), q.cell.per)


def chance_of_error(q: Asked, output: str, f: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """√(Φ(−g/σ) (1 − p)), p the largest probability of outputs f; 1 − p if the tangents have collapsed."""
    own = 1 - probabilities(f, q.cell.loss).amax(1)
    if q.collapsed(output):
        return own
    return (own * 0.5 * torch.erfc(gap(mean) / (2 * var.clamp_min(1e-30)).sqrt() / math.sqrt(2))).sqrt()


def cover(output: str) -> Pick:
    def pick(q: Asked) -> list[int]:
        mean, S, s2, _ = q.posterior(output, misfit=True)
        weight = chance_of_error(q, output, q.f_U, mean, s2 * S.diagonal())
        return cover_greedily(q.kappa(output) ** 2, q.n, weight, q.cell.per)

    return pick


def first_cover(q: Asked) -> list[int]:
    """``cover`` as it was in the first table: κ in place of κ², and the posterior's chance of error alone."""
    mean, S, s2, _ = q.posterior("signs", misfit=True)
    chance = 0.5 * torch.erfc(gap(mean) / (2 * s2 * S.diagonal().clamp_min(1e-30)).sqrt() / math.sqrt(2))
    return cover_greedily(q.kappa("signs"), q.n, chance, q.cell.per)


def cover_sequentially(q: Asked) -> list[int]:
    """Each label is known, and absorbed by the linearised network, before the next point is picked. Squared loss."""
    mean, S, s2, noise = q.posterior("signs", misfit=True)
    mean, S, k, y = mean.clone(), S.clone(), q.kappa("signs") ** 2, one_hot(q.y_U, q.C).double()
    covered, k, picks = k[:, : q.n].amax(1), k[:, q.n :], list[int]()
    for _ in range(q.cell.per):
        weight = chance_of_error(q, "signs", mean if picks else q.f_U, mean, s2 * S.diagonal())
        scores = (k - covered[:, None]).clamp_min_(0).T @ weight
        scores[picks] = -1
        j = int(scores.argmax())
        picks.append(j)
        column, u = S[:, j].clone(), S[j, j] + noise[j]
        mean += torch.outer(column, (y[j] - mean[j]) / u)
        S -= torch.outer(column, column) / u
        covered = torch.maximum(covered, k[:, j])
    return picks


def typiclust(q: Asked) -> list[int]:
    """The most typical point of the largest clusters without a label, with L + b clusters (at most 500)."""
    k = min(q.n + q.cell.per, 500)
    of = kmeans(q.X[q.at], k, q.generator)
    norms = q.products.diagonal()
    distance = (norms + norms[:, None] - 2 * q.products).clamp_min(0).sqrt()
    size, labels = torch.bincount(of, minlength=k), torch.bincount(of[: q.n], minlength=k)
    taken, picks = torch.zeros(len(q.at), dtype=torch.bool), list[int]()
    taken[: q.n] = True
    while len(picks) < q.cell.per:
        left = [c for c in range(k) if ((of == c) & ~taken).any()]
        c = min(left, key=lambda c: (int(labels[c]), -int(size[c]), c))
        members, everyone = ((of == c) & ~taken).nonzero()[:, 0], (of == c).nonzero()[:, 0]
        near = min(min(20, max(1, len(everyone) - 1)) + 1, len(everyone))
        d = distance[members][:, everyone].topk(near, largest=False).values[:, 1:]
        j = int(members[(d.mean(1) if d.shape[1] else torch.zeros(len(members))).argmin()])
        picks.append(j - q.n)
        taken[j] = True
        labels[c] += 1
    return picks


def kmeans(x: Tensor, k: int, g: torch.Generator, rounds: int = 12) -> Tensor:
    """The cluster of each point: Lloyd's algorithm from k-means++."""
    norms, at = x.square().sum(1), [int(torch.randint(len(x), (1,), generator=g))]
    near = (norms + norms[at[0]] - 2 * x @ x[at[0]]).clamp_min(0)
    for _ in range(k - 1):
        j = int(torch.multinomial(near.double().clamp_min(1e-12), 1, generator=g))
        at.append(j)
        near = torch.minimum(near, (norms + norms[j] - 2 * x @ x[j]).clamp_min(0))
    means = x[at].clone()
    for _ in range(rounds):
        of = (means.square().sum(1) - 2 * x @ means.T).argmin(1)
        size = torch.bincount(of, minlength=k)
        new = torch.zeros_like(means).index_add_(0, of, x) / size.clamp_min(1)[:, None]
        new[size == 0] = means[size == 0]
        if torch.equal(new, means):
            break
        means = new
    return of


def gain(q: Asked) -> list[int]:
    """Expected gain in accuracy, greedily, on the kernel of the sum of logits; s² is ten times leave-one-out."""
    mean, S, s2, noise = q.posterior("sum", misfit=False)
    S, picks = S.clone(), list[int]()
    g = gap(mean).float()[:, None].clamp_min(1e-20)
    for _ in range(q.cell.per):
        u = S.diagonal() + noise
        tau = (S.float().abs() * (math.sqrt(2 * s2) / u.clamp_min(1e-30).sqrt()).float()).clamp_min(1e-20)
        z = (g / tau).clamp_max(8)
        rise = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi) - z * 0.5 * torch.erfc(z / math.sqrt(2))
        scores = (tau * rise).clamp_min(0).sum(0)
        scores[picks] = -1
        j = int(scores.argmax())
        picks.append(j)
        S -= torch.outer(S[:, j], S[j]) / u[j]
    return picks


STRATEGIES: dict[str, Callable[[Asked], list[int]]] = {
    "random": random,
    "margin": margin,
    "badge": badge,
    "typiclust": typiclust,
    "maxherding": maxherding,
    "uherding": uherding,
    "gain": gain,
    "cover": cover("signs"),
    "cover trace": cover("trace"),
    "cover before": first_cover,
}
SEQUENTIAL = ("digits-few-fit", "c10-few-fit", "mnist-few-fit")  # cells with one arm more


def arms(cell: str) -> dict[str, Pick]:
    """The strategies of a cell."""
    return STRATEGIES | ({"cover sequential": cover_sequentially} if cell in SEQUENTIAL else {})


def main() -> None:
    torch.set_num_threads(1)
    seeds, only = [int(s) for s in sys.argv[1].split(",")], sys.argv[2:]
    for cell in CELLS:
        file = RECORDS / f"{cell.name}.json"
        if (only and cell.name not in only) or file.exists():
            continue
        accuracy = run(cell, arms(cell.name), seeds).round(3).tolist()
        found = {"cell": asdict(cell), "seeds": seeds, "arms": list(arms(cell.name)), "accuracy": accuracy}
        file.write_text(json.dumps(found) + "\n", encoding="utf-8")
        print(cell.name, "done", flush=True)


if __name__ == "__main__":
    main()
