"""Which kernel, which graph, which evidence: kernel regression from 1/C with the pool in the kernel, on random labels.

    python results/findings/pool/pool_lab.py OUT SEEDS DATA:N[:LOSS] ...

For each data set, number of labels and seed: test accuracy and three measures of evidence (leave-one-out squared error
and 0/1 error, marginal likelihood), for all kernels, graphs, γ and λ; and the network's own accuracy.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import one_hot

sys.path.insert(0, str(Path(__file__).parents[1] / "weight"))
from weight_asked import contrast
from weight_cells import DEVICE, Cell, problem
from weight_train import first_weights, forward, train

F64 = torch.float64
GAMMAS = (0.0, 1.0, 10.0, 100.0, 1000.0, 10000.0)
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)


def squared_distances(x: Tensor, z: Tensor) -> Tensor:
    return (x.square().sum(1)[:, None] + z.square().sum(1) - 2 * x @ z.T).clamp_min_(0)


def gaussian(x: Tensor, z: Tensor, d2_pool: Tensor, width: float) -> Tensor:
    return torch.exp(
        -squared_distances(x, z) / (width * d2_pool.flatten()[:: max(1, d2_pool.numel() // 10**6)].median())
    )


def tangents(net: list[Tensor], x: Tensor, z: Tensor, C: int, kernel: str) -> tuple[Tensor, Tensor, Tensor]:
    """Θ(x, z) and the two diagonals."""

    def parts(x: Tensor) -> tuple[Tensor, Tensor]:
        h = forward([p[None] for p in net], x[None].float())[0][0].double()
        V = net[2].double()
        scale = V.square().mean(1).sqrt() if kernel == "trace" else V @ contrast(C, 0)
        return h, (h > 0).double() * scale

    (hx, gx), (hz, gz) = parts(x), parts(z)
    theta = hx @ hz.T + 1 + (gx @ gz.T) * (x @ z.T + 1)
    own = [
        h.square().sum(1) + 1 + g.square().sum(1) * (a.square().sum(1) + 1) for h, g, a in ((hx, gx, x), (hz, gz, z))
    ]
    return theta, own[0], own[1]


def correlate(theta_GG: Tensor, theta_TG: Tensor, own_T: Tensor) -> tuple[Tensor, Tensor]:
    """Centred over G, unit diagonal."""
    m_G, m = theta_GG.mean(1), theta_GG.mean()
    m_T = theta_TG.mean(1)
    v_G = (theta_GG.diagonal() - 2 * m_G + m).clamp_min(1e-12 * float(theta_GG.diagonal().mean())).rsqrt()
    v_T = (own_T - 2 * m_T + m).clamp_min(1e-12 * float(own_T.mean())).rsqrt()
    GG = (theta_GG - m_G[:, None] - m_G + m) * v_G[:, None] * v_G
    TG = (theta_TG - m_T[:, None] - m_G + m) * v_T[:, None] * v_G
    return GG, TG


def laplacian(d2: Tensor, k: int) -> Tensor:
    """I − D^(−1/2) W D^(−1/2) of the k nearest neighbours, weights exp(−d²/d_k²), symmetric; dense here."""
    d2 = d2.clone()
    d2.fill_diagonal_(torch.inf)
    near, at = d2.topk(k, 1, largest=False)
    w = torch.exp(-near / near[:, -1:].clamp_min(1e-12))
    W = torch.zeros_like(d2).scatter_(1, at, w)
    W = torch.maximum(W, W.T)
    D = W.sum(1).rsqrt()
    out = -W * D[:, None] * D
    out.diagonal().add_(1)
    return out


def bend(GG: Tensor, TG: Tensor, n: int, lap: Tensor, gammas: tuple[float, ...]):
    """Θ̃_LL and Θ̃_TL for each γ; L are the first n of G."""
    K = lap @ (GG @ lap)
    K = (K + K.T) / 2
    Z, B = lap @ GG[:, :n], TG @ lap
    for gamma in gammas:
        if gamma == 0:
            yield gamma, GG[:n, :n], TG[:, :n]
            continue
        A = gamma * K
        A.diagonal().add_(1)
        X = gamma * torch.cholesky_solve(Z, torch.linalg.cholesky(A))
        LL = GG[:n, :n] - Z.T @ X
        yield gamma, (LL + LL.T) / 2, TG[:, :n] - B @ X


def evidence(LL: Tensor, TL: Tensor, y_LC: Tensor, y_T: Tensor, ridge: float) -> dict[str, float]:
    n, C = y_LC.shape
    A = LL.clone()
    A.diagonal().add_(ridge * float(LL.diagonal().mean()))
    chol = torch.linalg.cholesky(A)
    inverse = torch.cholesky_inverse(chol)
    e = y_LC - 1 / C
    alpha = inverse @ e
    left = alpha / inverse.diagonal()[:, None]
    guess = y_LC - left  # predicted without it
    mean = TL @ alpha + 1 / C
    logdet = 2 * float(chol.diagonal().log().sum())
    quad = float((e * alpha).sum())
    # class masses brought to the labels'
    prior = (y_LC.sum(0) + 1) / (n + C)
    p = mean.clamp_min(0)
    p = p / p.sum(1, keepdim=True).clamp_min(1e-9)
    massed = p * (prior / p.mean(0).clamp_min(1e-9))
    return {
        "acc": 100 * float((mean.argmax(1) == y_T).double().mean()),
        "mass": 100 * float((massed.argmax(1) == y_T).double().mean()),
        "sq": float(left.square().sum(1).mean()),
        "hit": float((guess.argmax(1) == y_LC.argmax(1)).double().mean()),
        "ml": -0.5 * (n * C * torch.tensor(quad / (n * C)).log().item() + C * logdet) / n,
        "s2": quad / (n * C),
    }


def run(data: str, n: int, loss: str, seeds: list[int]) -> list[dict]:
    X, Y, XT, YT, C, _ = problem(data)
    rates = {"cifar100": 5.0, "banking": 5.0, "bankingtfidf": 5.0}
    lr = rates.get(data.split("+")[0], 0.0) if loss == "l2" else 0.0
    cell = Cell("", data, n, 1, 1, loss=loss, lr=lr, batch=64 if n > 250 else 32)
    orders = [torch.randperm(len(X), generator=torch.Generator().manual_seed(s + 5000)) for s in seeds]
    L = torch.stack([o[:n] for o in orders]).to(DEVICE)
    with torch.no_grad():
        nets, learned = train(cell, L[:, None], seeds, 0)
        fresh = first_weights(seeds, 0, [X.shape[1], cell.hidden, C])
    out = []
    for s, seed in enumerate(seeds):
        begin = time.time()
        at = orders[s].to(DEVICE)
        x, xt, y = X[at].double(), XT.double(), Y[at[:n]]
        y_LC = one_hot(y, C).double()
        net = [p[s] for p in nets]
        f = forward([p[None] for p in net], XT[None])[-1][0]
        record = {
            "data": data,
            "n": n,
            "loss": loss,
            "seed": seed,
            "net": 100 * float((f.argmax(1) == YT).double().mean()),
            "learned": float(learned.flatten()[s]),
            "found": {},
        }
        d2 = squared_distances(x, x)
        bases, graphs = {}, {"inputs10": laplacian(d2, 10)}
        for width in (1.0, 0.25):
            bases[f"gauss{width:g}"] = gaussian(x, x, d2, width), gaussian(xt, x, d2, width)
        for name, w, kernel in (
            ("signs", net, "signs"),
            ("trace", net, "trace"),
            ("init", [p[s] for p in fresh], "trace"),
        ):
            GG, TG = tangents(w, x, x, C, kernel)[0], None
            TG, own_T, _ = tangents(w, xt, x, C, kernel)
            bases[name] = correlate(GG, TG, own_T)
            graphs[name + "10"] = laplacian(2 - 2 * bases[name][0], 10)
        for k in (5, 20):
            graphs[f"inputs{k}"] = laplacian(d2, k)
            graphs[f"signs{k}"] = laplacian(2 - 2 * bases["signs"][0], k)
        for base, (GG, TG) in bases.items():
            for graph, lap in graphs.items():
                own = graph.startswith("inputs") or graph[: len(base)] == base
                if not own or (graph.startswith("inputs") and graph != "inputs10" and base not in ("gauss1", "signs")):
                    continue
                for gamma, LL, TL in bend(GG, TG, n, lap, GAMMAS):
                    for ridge in RIDGES:
                        record["found"][f"{base}|{graph}|{gamma:g}|{ridge:g}"] = evidence(LL, TL, y_LC, YT, ridge)
        record["seconds"] = time.time() - begin
        out.append(record)
        print(data, n, loss, seed, round(record["net"], 1), round(record["seconds"], 1), flush=True)
    return out


if __name__ == "__main__":
    target, seeds = Path(sys.argv[1]), [int(s) for s in sys.argv[2].split(",")]
    for job in sys.argv[3:]:
        data, n, loss = [*job.split(":"), "l2"][:3]
        with torch.no_grad():
            found = run(data, int(n), loss, seeds)
        (target / f"{data}-{n}-{loss}.json").write_text(json.dumps(found))
