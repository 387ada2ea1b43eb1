"""Who predicts and who asks with the pool in the kernel: the loop, all arms and seeds of a cell together.

python results/findings/pool/pool_loop.py OUT SEEDS ARMS CELL ...
"""

import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

sys.path.insert(0, str(Path(__file__).parents[1] / "weight"))
from pool_lab import correlate, laplacian, squared_distances, tangents
from verdict import train_soft
from weight_asked import Asked, ask, gap, probabilities
from weight_cells import DEVICE, Cell, problem
from weight_train import accuracy, first_weights, forward, train

torch.set_grad_enabled(False)
F64 = torch.float64
GAMMAS = (0.0, 1.0, 10.0, 1e2, 1e3, 1e4, 1e5, 1e6)
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
POOL = 3000

CELLS = {  # data, first, per, cycles, lr of l2
    "c10": ("cifar10", 20, 20, 5, 0.0),
    "c10-many": ("cifar10", 200, 100, 3, 1.0),
    "digits": ("digits", 20, 10, 5, 0.0),
    "mnist": ("mnist", 40, 20, 4, 0.0),
    "bank": ("banking", 77, 77, 4, 5.0),
    "banktf": ("bankingtfidf", 77, 77, 3, 5.0),
    "c100": ("cifar100", 100, 100, 3, 5.0),
    "c10-lt": ("cifar10+lt", 20, 20, 5, 0.0),
    "c10-noisy": ("cifar10+noisy", 20, 20, 5, 0.0),
    "cancer": ("cancer", 10, 5, 5, 0.0),
    "wine": ("wine", 6, 3, 5, 0.0),
    "text": ("text", 30, 30, 4, 0.0),
    "linear": ("linear", 30, 30, 3, 0.0),
    "digits-many": ("digits", 100, 50, 3, 0.0),
    "mnist-many": ("mnist", 300, 100, 3, 0.0),
}


def unit(x: Tensor, mean: Tensor) -> Tensor:
    x = x - mean
    return x / x.norm(dim=1, keepdim=True).clamp_min(1e-9)


def arc_ntk(x: Tensor, z: Tensor, depth: int = 2) -> tuple[Tensor, Tensor]:
    """ReLU NTK of infinite width with biases, x as it is; Θ(x, z) and Θ(x, x)."""

    def go(k, a, b):
        theta = k.clone()
        for _ in range(depth - 1):
            norm = (a * b).clamp_min(1e-12).sqrt()
            c = (k / norm).clamp(-1, 1)
            t = torch.arccos(c)
            dot = (math.pi - t) / math.pi
            k = norm * (c * dot + (1 - c * c).clamp_min(0).sqrt() / math.pi)
            theta = theta * dot + k + 0.1
            k = k + 0.1
            a, b = a + 0.1, b + 0.1
        return theta

    bias = 0.1
    own_x, own_z = x.square().sum(1) + bias, z.square().sum(1) + bias
    theta = go(x @ z.T + bias, own_x[:, None], own_z[None])
    return theta, go(own_x, own_x, own_x)


def bases_of(x: Tensor, xt: Tensor, seed: int, C: int, names) -> dict:
    """Kernels that have seen no label: (GG, TG), centred, unit diagonal."""
    mean = x.mean(0)
    u, ut = unit(x, mean), unit(xt, mean)
    out = {}
    if "init" in names:
        net = [p[0] for p in first_weights([seed], 99, [x.shape[1], 512, C])]
        TG, own_T, _ = tangents(net, xt, x, C, "trace")
        out["init"] = correlate(tangents(net, x, x, C, "trace")[0], TG, own_T)
    if "arc" in names:
        TG, own_T = arc_ntk(xt, x)
        out["arc"] = correlate(arc_ntk(x, x)[0], TG, own_T)
    if "arcu" in names:
        TG, own_T = arc_ntk(ut, u)
        out["arcu"] = correlate(arc_ntk(u, u)[0], TG, own_T)
    if "gaussu" in names:
        out["gaussu"] = torch.exp(-squared_distances(u, u)), torch.exp(-squared_distances(ut, u))
    return out


class Pool:
    """One seed's G: Θ̃_GG and Θ̃_TG for each γ."""

    def __init__(self, GG: Tensor, TG: Tensor, k: int = 10) -> None:
        lap = laplacian((2 - 2 * GG).clamp_min(0), k)
        K = lap @ (GG @ lap)
        K = (K + K.T) / 2
        Z = lap @ GG
        B = TG @ lap
        self.GG, self.TG = [GG], [TG]
        for gamma in GAMMAS[1:]:
            A = gamma * K
            A.diagonal().add_(1)
            X = gamma * torch.cholesky_solve(Z, torch.linalg.cholesky(A))
            new = GG - Z.T @ X
            self.GG.append((new + new.T) / 2)
            self.TG.append(TG - B @ X)

    def fit(self, L: Tensor, y_LC: Tensor) -> dict:
        """The best γ and λ by leave-one-out, and what follows."""
        n, C = y_LC.shape
        LL = torch.stack([t[L][:, L] for t in self.GG])
        size = LL.diagonal(dim1=1, dim2=2).mean(1)
        ridge = (size[:, None] * torch.tensor(RIDGES, device=DEVICE, dtype=F64)).flatten()
        A = LL.repeat_interleave(len(RIDGES), 0)
        A = A + torch.diag_embed(ridge[:, None].expand(-1, n))
        chol = torch.linalg.cholesky(A)
        inverse = torch.cholesky_inverse(chol)
        e = y_LC - 1 / C
        alpha = inverse @ e
        d = inverse.diagonal(dim1=1, dim2=2)[:, :, None]
        left = alpha / d
        sq = left.square().sum(2).mean(1)
        best = int(sq.argmin())
        taus = torch.tensor([1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100], device=DEVICE, dtype=F64)
        y_L = y_LC.argmax(1)
        nll = (
            -((y_LC - left[best])[None] * taus[:, None, None])
            .log_softmax(2)[:, torch.arange(n, device=DEVICE), y_L]
            .mean(1)
        )
        g = best // len(RIDGES)
        return {
            "tau": float(taus[nll.argmin()]),
            "g": g,
            "gamma": GAMMAS[g],
            "rel": RIDGES[best % len(RIDGES)],
            "ridge": float(ridge[best]),
            "alpha": alpha[best],
            "chol": chol[best],
            "sq": float(sq[best]),
            "sq0": float(sq[: len(RIDGES)].min()),
            "s2": float((alpha[best].square() / d[best]).mean()),
            "loo": y_LC - left[best],
            "mean_G": self.GG[g][:, L] @ alpha[best] + 1 / C,
            "mean_T": self.TG[g][:, L] @ alpha[best] + 1 / C,
        }


def greedy_cover(k2: Tensor, L: Tensor, U: Tensor, weight: Tensor, batch: int) -> Tensor:
    """Positions in G; k2 (G, G); weights of U."""
    k = k2[U][:, U]
    covered = k2[U][:, L].amax(1)
    picks = []
    for _ in range(batch):
        gains = weight @ (k - covered[:, None]).clamp_min_(0)
        if picks:
            gains[torch.tensor(picks, device=DEVICE)] = -1
        j = int(gains.argmax())
        picks.append(j)
        covered = torch.maximum(covered, k[:, j])
    return U[torch.tensor(picks, device=DEVICE)]


def phi(z: Tensor) -> Tensor:
    return 0.5 * torch.erfc(z / math.sqrt(2))  # Φ(−z)


def greedy_gain(S: Tensor, mean: Tensor, ridge: float, s2: float, batch: int, contest: bool = True) -> list[int]:
    S = S.clone()
    g = gap(mean)
    picks = []
    for _ in range(batch):
        u = (S.diagonal() + ridge).clamp_min(1e-12)
        if contest:
            tau = (S.abs() / u.sqrt()).mul_(math.sqrt(2 * s2)).clamp_min_(1e-12)
            z = g[:, None] / tau
            score = (tau * (torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi) - z * phi(z))).sum(0)
        else:
            score = S.square().sum(0) / u
        if picks:
            score[torch.tensor(picks, device=DEVICE)] = -1
        j = int(score.argmax())
        picks.append(j)
        S -= torch.outer(S[:, j], S[:, j]) / u[j]
    return picks


def kappa2(T: Tensor) -> Tensor:
    d = T.diagonal().clamp_min(1e-12).rsqrt()
    return (T * d * d[:, None]).clamp_(0, 1).square_()


def pick_pool(arm: str, pool: Pool, fit: dict, L: Tensor, U: Tensor, batch: int, net_p: Tensor | None) -> Tensor:
    T = pool.GG[fit["g"]]
    mean = fit["mean_G"][U]
    if arm == "margin~":
        return U[gap(mean).argsort(stable=True)[:batch]]
    half = torch.linalg.solve_triangular(fit["chol"], T[L][:, U], upper=False)
    if arm in ("gain~", "var~"):
        S = T[U][:, U] - half.T @ half
        return U[torch.tensor(greedy_gain(S, mean, fit["ridge"], fit["s2"], batch, arm == "gain~"), device=DEVICE)]
    var = (T.diagonal()[U] - half.square().sum(0)).clamp_min(1e-12)
    chance = phi(gap(mean) / (2 * fit["s2"] * var).sqrt())
    p = probabilities(mean, "l2")
    own = 1 - p.amax(1)
    kernel, weight = arm.removeprefix("cov~").split(":")
    w = {
        "phi": lambda: chance,
        "p": lambda: own,
        "mix": lambda: (chance * own).sqrt(),
        "gap": lambda: 1 - gap(p),
        "uni": lambda: torch.ones_like(own),
        "var": lambda: var,
        "rphi": lambda: chance.sqrt(),
        "net": lambda: (chance * (1 - net_p.amax(1))).clamp_min(0).sqrt(),
        "rgap": lambda: (1 - gap(p)).clamp_min(0).sqrt(),
        "cg": lambda: ((1 - gap(p)).clamp_min(0) * chance).sqrt(),
        "ce": lambda: 1 - tempered(mean, fit["tau"]).amax(1),
        "cegap": lambda: 1 - gap(tempered(mean, fit["tau"])),
        "pq": lambda: 1 - sharpened(mean).amax(1),
    }[weight]()
    k2 = {
        "t": lambda: kappa2(T),
        "0": lambda: kappa2(pool.GG[0]),
        "t1": lambda: kappa2(T).sqrt(),
        "s": lambda: s_kernel(T, fit, L),
    }[kernel]()
    return greedy_cover(k2, L, U, w, batch)


def s_kernel(T, fit, L):
    """S²_ij / (S_ii u_j): the share of i's remaining variance that a label at j explains."""
    half = torch.linalg.solve_triangular(fit["chol"], T[L], upper=False)
    S = T - half.T @ half
    d = S.diagonal().clamp_min(1e-12)
    k = (S.clamp_min(0).square() / d[:, None] / (d + fit["ridge"])).clamp_(0, 1)
    k[:, L] = 0
    return k


def tempered(mean: Tensor, tau: float) -> Tensor:
    return (tau * mean).softmax(1)


def scores(p: Tensor, y: Tensor) -> tuple[float, float]:
    """Negative log-likelihood and expected calibration error."""
    nll = -p.gather(1, y[:, None]).clamp_min(1e-6).log().mean()
    top, at = p.max(1)
    hit = (at == y).double()
    bins = (top * 10).long().clamp(0, 9)
    ece = sum(abs(float((hit - top)[bins == b].sum())) for b in range(10)) / len(y)
    return float(nll), ece


def sharpened(mean: Tensor) -> Tensor:
    p = probabilities(mean, "l2").square()
    return p / p.sum(1, keepdim=True)


def run(
    name: str, loss: str, arms: list[str], seeds: list[int], bases=("init",), soft=("random", "cover"), k=10
) -> dict:
    data, init, per, cycles, lr = CELLS[name]
    X, Y, XT, YT, C, _ = problem(data)
    cell = Cell(
        name,
        data,
        init,
        per,
        cycles,
        loss=loss,
        lr=lr if loss == "l2" else 0.0,
        subset=POOL,
        batch=64 if init > 150 else 32,
    )
    S, A, N = len(seeds), len(arms), min(POOL, len(X))
    orders = [torch.randperm(len(X), generator=torch.Generator().manual_seed(s + 5000))[:N].to(DEVICE) for s in seeds]
    pools = []
    for s, seed in enumerate(seeds):
        made = bases_of(X[orders[s]].double(), XT.double(), seed, C, bases)
        pools.append(
            {f"{b}{kk}": Pool(*K, k=kk) for b, K in made.items() for kk in ((k, 5, 20) if b == bases[0] else (k,))}
        )
    L = [[list(range(init)) for _ in arms] for _ in seeds]  # rows of G
    out = {"cell": name, "loss": loss, "arms": arms, "seeds": seeds, "acc": {}, "gamma": {}, "calib": {}}

    def note(what: str, cycle: int, a: int, s: int, value: float) -> None:
        table = out["acc"].setdefault(what, np.full((A, S, cycles + 1), np.nan).tolist())
        table[a][s][cycle] = value

    for cycle in range(cycles + 1):
        used = [0] if cycle == 0 else list(range(A))
        at = torch.stack(
            [torch.stack([orders[s][torch.tensor(L[s][a], device=DEVICE)] for a in used]) for s in range(S)]
        )
        nets, _ = train(cell, at, seeds, cycle)
        accs = accuracy(cell, nets).view(S, len(used)).cpu().numpy()
        softs = []
        for s in range(S):
            for i, a in enumerate(used):
                here = range(A) if cycle == 0 else [a]
                rows = torch.tensor(L[s][a], device=DEVICE)
                y_LC = one_hot(Y[orders[s][rows]], C).double()
                net = [p[s * len(used) + i][None] for p in nets]
                f_T = forward(net, XT[None])[-1][0].double()
                fits = {b: pool.fit(rows, y_LC) for b, pool in pools[s].items()}
                first = fits[f"{bases[0]}{k}"]
                p_T = probabilities(f_T, loss)
                results = {"net": accs[s, i]}
                for b, fit in fits.items():
                    results[f"pool:{b}"] = 100 * float((fit["mean_T"].argmax(1) == YT).double().mean())
                best = min(fits.values(), key=lambda f: f["sq"])
                results["pool:any"] = 100 * float((best["mean_T"].argmax(1) == YT).double().mean())
                results["both"] = 100 * float(
                    ((sharpened(first["mean_T"]) + 1e-3) * (p_T + 1e-3)).argmax(1).eq(YT).double().mean()
                )
                for way, p in (
                    ("tau", tempered(first["mean_T"], first["tau"])),
                    ("sq", sharpened(first["mean_T"])),
                    ("net", p_T),
                ):
                    results[f"nll:{way}"], results[f"ece:{way}"] = scores(p, YT)
                results["tau"] = first["tau"]
                for b in here:
                    for what, value in results.items():
                        note(what, cycle, b, s, float(value))
                    out["gamma"].setdefault(str(cycle), {}).setdefault(arms[b], []).append(
                        [first["gamma"], first["rel"], first["sq"], first["sq0"], first["s2"]]
                    )
                if arms[a] in soft or cycle == 0:
                    softs.append(
                        (
                            s,
                            a,
                            sharpened(first["mean_G"]).float(),
                            rows,
                            y_LC.float(),
                            tempered(first["mean_G"], first["tau"]).float(),
                        )
                    )
                if cycle == cycles:
                    continue
                for b in here:
                    arm = arms[b]
                    free = torch.ones(N, dtype=torch.bool, device=DEVICE)
                    free[rows] = False
                    U = free.nonzero()[:, 0]
                    g = torch.Generator().manual_seed(seeds[s] * 1000 + cycle)
                    U = U[torch.randperm(len(U), generator=g).to(DEVICE)]
                    if arm == "random":
                        picked = U[:per]
                    elif arm in ("cover", "margin", "uherding"):
                        q = Asked(cell, net, orders[s][rows][None], orders[s][U][None])
                        how = {"cover": "signs0:cov", "margin": "margin", "uherding": "gauss:gap"}[arm]
                        picked = U[ask(q, how, torch.zeros(1, 1))[0]]
                    else:
                        net_p = probabilities(forward(net, X[orders[s][U]][None])[-1][0].double(), loss)
                        picked = pick_pool(arm, pools[s][f"{bases[0]}{k}"], first, rows, U, per, net_p)
                    L[s][b] = [*L[s][b], *picked.tolist()]
        for part in range(0, len(softs), 16):
            some = softs[part : part + 16]
            x = torch.stack([X[orders[s]] for s, *_ in some])
            for way, loss_s, steps, lr_s in (
                ("soft", loss, 1200, cell.lr),
                ("softc", "ce", 1200, 0.1),
                ("softc2", "ce", 1200, 0.5),
                ("softcal", "ce", 1200, 0.5),
                ("softlong", "ce", 3000, 0.5),
            ):
                targets = torch.stack(
                    [(q if way == "softcal" else t).index_copy(0, rows, y) for _, _, t, rows, y, q in some]
                )
                P = train_soft(
                    x,
                    targets,
                    [seeds[s] for s, *_ in some],
                    7,
                    loss_s,
                    lr_s or {"l2": 0.5, "ce": 0.1}[loss_s],
                    512,
                    steps,
                )
                f = forward(P, XT.expand(len(some), -1, -1))[-1]
                hits = 100 * (f.argmax(2) == YT).double().mean(1)
                for (s, a, *_), hit in zip(some, hits.tolist()):
                    for b in range(A) if cycle == 0 else [a]:
                        note(way, cycle, b, s, hit)
    return out


if __name__ == "__main__":
    target, seeds = Path(sys.argv[1]), [int(s) for s in sys.argv[2].split(",")]
    arms = sys.argv[3].split(",")
    for job in sys.argv[4:]:
        name, loss, *rest = [*job.split("/"), "l2"][:2] if "/" not in job else job.split("/")
        bases = tuple(rest[0].split("+")) if rest else ("init", "arc", "arcu", "gaussu")
        k = int(rest[1]) if len(rest) > 1 else 10
        begin = time.time()
        found = run(name, loss, arms, seeds, bases, soft=("random", "cover", "cov~t:gap"), k=k)
        found["seconds"] = time.time() - begin
        (target / f"{name}-{loss}-{bases[0]}-{k}.json").write_text(json.dumps(found))
        print(
            name,
            loss,
            round(found["seconds"], 1),
            {w: round(float(np.nanmean(np.array(t)[0, :, 1:])), 1) for w, t in found["acc"].items()},
            flush=True,
        )
