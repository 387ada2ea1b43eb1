"""The final tables of docs/pool-notes.md and docs/field.md: network alone, with the pool, trained on its soft labels.

    [ARMS="random cover cover~ ..."] python results/findings/pool/verdict.py OUT SEEDS CELL:LOSS ...

An arm is a strategy's name, with ~ if it asks with the pool; soft labels are left out where ARMS is given.

What asks and what predicts with the pool is the product's own code on this machine's device; so are the queries without
it (``ft.query``). Networks of all arms and seeds are trained together (weight_train.py), with the schedule of
``ft.fit``. Kernels and factors depend on the points alone and are made once for a seed. A run costs a minute or two.
"""

import json
import os
import sys
import time
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

sys.path.insert(0, str(Path(__file__).parents[1] / "weight"))
from verify import as_module
from weight_cells import DEVICE, Cell, problem
from weight_train import accuracy, first_weights, forward, one_cycle, train

import foretaste as ft
from foretaste.acquire import cover_greedily, find_strategy
from foretaste.acquire.cover import correlations
from foretaste.errors import errors_only
from foretaste.lookahead import Graph, KernelSettings, PoolEvidence, PoolKernel, PoolState, unbent
from foretaste.lookahead.dense import Posterior
from foretaste.lookahead.graph import weigh_pool
from foretaste.lookahead.problem import GivenKernels, Problem, ThetaBlocks
from foretaste.lookahead.targets import LabelRules
from foretaste.losses import sharpened
from foretaste.pick import Batch, pick

torch.set_grad_enabled(False)
POOL = 2000
WITH = ("cover~", "gain~", "herding~", "margin~")
ARMS = tuple(os.environ.get("ARMS", "").split()) or ("random", "cover", "gain", "uherding", "margin", *WITH)
SOFT = () if "ARMS" in os.environ else ("random", *WITH)  # arms of which a network is trained on soft labels

CELLS = {  # data, labels at first, labels a cycle, cycles, learning rate of the squared loss
    "c10-few": ("cifar10", 20, 20, 5, 0.0),
    "c10-many": ("cifar10", 200, 100, 3, 1.0),
    "c100-few": ("cifar100", 100, 100, 3, 5.0),
    "c100-many": ("cifar100", 600, 150, 2, 5.0),
    "bank-few": ("banking", 77, 77, 4, 5.0),
    "bank-many": ("banking", 500, 150, 2, 5.0),
    "banktfidf-few": ("bankingtfidf", 77, 77, 3, 5.0),
    "text-few": ("text", 30, 30, 4, 0.0),
    "text-many": ("text", 300, 100, 2, 1.0),
    "digits-few": ("digits", 20, 10, 5, 0.0),
    "digits-many": ("digits", 100, 50, 3, 0.0),
    "mnist-few": ("mnist", 40, 20, 4, 0.0),
    "mnist-many": ("mnist", 300, 100, 2, 0.0),
    "c10-tail-few": ("cifar10+lt", 20, 20, 5, 0.0),
    "c10-tail-many": ("cifar10+lt", 200, 100, 2, 1.0),
    "c10-noisy-few": ("cifar10+noisy", 20, 20, 5, 0.0),
    "c10-noisy-many": ("cifar10+noisy", 200, 100, 3, 1.0),
    "cancer-few": ("cancer", 10, 5, 5, 0.0),
    "wine-few": ("wine", 6, 3, 5, 0.0),
    "penguins-few": ("penguins", 6, 3, 5, 0.0),
    "pima-few": ("pima", 10, 10, 5, 0.0),
}


class SeedPool(PoolKernel):
    """The product's kernel of one seed's pool; its factors, and Θ̃ of G and of the test points, are kept for each γ."""

    def __init__(self, x_GD: Tensor, x_TD: Tensor) -> None:
        super().__init__(x_GD)
        self.kept: dict[float, tuple[Tensor, Tensor, Tensor]] = {}
        self.T = self.place(x_TD)
        self.theta_GT = self.theta(self.G, self.T)

    @cached_property
    def factors(self) -> dict[float, Tensor]:
        return {}

    def factor(self, gamma: float) -> Tensor:
        if gamma not in self.factors:
            self.factors[gamma] = super().factor(gamma)
        return self.factors[gamma]

    def bent(self, gamma: float) -> tuple[Tensor, Tensor]:
        """Θ̃_GG and Θ̃_TG."""
        if gamma not in self.kept:
            half_GG = self.half(self.factor(gamma), gamma, self.theta_GG)
            half_GT = self.half(self.factor(gamma), gamma, self.theta_GT)
            self.kept[gamma] = self.theta_GG - half_GG.T @ half_GG, self.theta_GT.T - half_GT.T @ half_GG
        return self.kept[gamma]

    def weigh(self, at_L: Tensor, y_LC: Tensor) -> PoolEvidence:
        C = y_LC.shape[1]
        return weigh_pool(self, at_L, y_LC - 1 / C, y_LC.argmax(1), Graph())[0]

    def means(self, at_L: Tensor, y_LC: Tensor, evidence: PoolEvidence) -> tuple[Tensor, Tensor]:
        """The posterior's mean on G and on the test points."""
        C, (GG, TG) = y_LC.shape[1], self.bent(evidence.gamma)
        A = GG[at_L][:, at_L]
        A.diagonal().add_(evidence.ridge)
        alpha = torch.linalg.solve(A, y_LC - 1 / C)
        return 1 / C + GG[:, at_L] @ alpha, 1 / C + TG[:, at_L] @ alpha

    def state(self, at_L: Tensor, y_LC: Tensor, at_U: Tensor, evidence: PoolEvidence) -> PoolState:
        """The product's state of these labels."""
        GG, C = self.bent(evidence.gamma)[0], y_LC.shape[1]
        UU, UL = GG[at_U][:, at_U], GG[at_U][:, at_L]
        own = UU.diagonal().clone()[:, None, None]
        blocks = ThetaBlocks(GG[at_L][:, at_L], UL, UL, UU, own, own)
        prior = y_LC.new_full((C,), 1 / C)
        f_UC = prior.expand(len(at_U), -1)
        rules = LabelRules(C, False, "l2", y_LC.device, y_LC.device)
        settings = KernelSettings(ridge=evidence.ridge)
        kernels = GivenKernels(blocks)
        kernels.plain = partial(unbent, self, {"L": self.G.take(at_L), "U": self.G.take(at_U)})
        p = Problem(
            rules, prior.expand(len(y_LC), -1), f_UC, f_UC, y_LC, kernels, 1, True, {}, settings, True, evidence
        )
        return PoolState(p, (), Posterior(p))


def ask_pool(arm: str, state: PoolState, n: int, seed: int) -> list[int]:
    g = torch.Generator().manual_seed(seed)
    if arm == "herding~":
        kappa2_UW, covered_W, _ = correlations(state, "tangent")
        return cover_greedily(lambda at: kappa2_UW[at], covered_W, state.U, n, g)[0].tolist()
    return pick(find_strategy(arm[:-1]), state, Batch(n, g)).indices


def ask_alone(
    arm: str, net: list[Tensor], x_L: Tensor, y_L: Tensor, x_U: Tensor, n: int, loss: str, seed: int
) -> list[int]:
    options = {"options": {"space": "inputs"}} if arm == "uherding" else {}
    with errors_only():
        q = ft.query(
            as_module(net),
            x_L,
            y_L,
            x_U,
            strategy=arm,
            batch_size=n,
            loss=loss,
            seed=seed,
            precision="float32",
            **options,
        )
    return q.indices.tolist()


def train_soft(
    x: Tensor, targets: Tensor, seeds: list[int], cycle: int, loss: str, lr: float, hidden: int, steps: int = 1200
) -> list[Tensor]:
    """R networks on soft labels: x (R, N, D), targets (R, N, C); the schedule of ``ft.fit``, batches of 64."""
    (R, N, D), C = x.shape, targets.shape[2]
    P, size = first_weights(seeds, cycle, [D, hidden, C]), 64
    V = [torch.zeros_like(p) for p in P]
    rows = torch.arange(R, device=DEVICE)[:, None]
    g = torch.Generator(DEVICE).manual_seed(sum(seeds) + cycle)
    for step in range(steps):
        at = torch.randint(N, (R, size), device=DEVICE, generator=g)
        xb, t = x[rows, at], targets[rows, at]
        h = torch.baddbmm(P[1], xb, P[0]).relu_()
        f = torch.baddbmm(P[3], h, P[2])
        slope = (f - t).mul_(2 / (size * C)) if loss == "l2" else (f.softmax(-1) - t).div_(size)
        dh = torch.bmm(slope, P[2].mT).mul_(h > 0)
        grads = [torch.bmm(xb.mT, dh), dh.sum(1, keepdim=True), torch.bmm(h.mT, slope), slope.sum(1, keepdim=True)]
        rate, momentum = one_cycle(step, steps, lr)
        for p, v, grad in zip(P, V, grads):
            v.mul_(momentum).add_(grad)
            p.add_(v, alpha=-rate)
    return P


made: dict = {}  # kernels of a data set and seed
asked: dict = {}  # batches with the pool depend on labels and seed alone, not on the network or its loss


def run(name: str, loss: str, seeds: list[int]) -> dict:
    data, init, per, cycles, lr = CELLS[name]
    X, Y, XT, YT, C, _ = problem(data)
    lr = lr if loss == "l2" else 0.0
    cell = Cell(name, data, init, per, cycles, loss=loss, lr=lr, batch=64 if init > 150 else 32)
    soft_lr = lr or {"l2": 0.5, "ce": 0.5}[loss]
    N, S, A = min(POOL, len(X)), len(seeds), len(ARMS)
    G = [torch.randperm(len(X), generator=torch.Generator().manual_seed(s + 5000))[:N].to(DEVICE) for s in seeds]
    for seed, at in zip(seeds, G):
        if (data, seed) not in made:
            made[data, seed] = SeedPool(X[at].double(), XT.double())
    pools = [made[data, seed] for seed in seeds]
    L = [[list(range(init)) for _ in ARMS] for _ in seeds]
    out = {k: np.full((A, S, cycles + 1), np.nan) for k in ("net", "pool", "soft", "gamma", "hits", "hits_without")}
    for cycle in range(cycles + 1):
        used = [0] if cycle == 0 else list(range(A))
        at = torch.stack([torch.stack([G[s][torch.tensor(L[s][a], device=DEVICE)] for a in used]) for s in range(S)])
        nets, _ = train(cell, at, seeds, cycle)
        alone = accuracy(cell, nets).view(S, len(used)).cpu().numpy()
        softs = []
        for s in range(S):
            for i, a in enumerate(used):
                here = list(range(A)) if cycle == 0 else [a]
                rows = torch.tensor(L[s][a], device=DEVICE)
                y_L = Y[G[s][rows]]
                y_LC = one_hot(y_L, C).double()
                evidence = pools[s].weigh(rows, y_LC)
                on = evidence.gamma > 0
                out["net"][here, s, cycle] = alone[s, i]
                out["pool"][here, s, cycle] = alone[s, i]  # where the pool is off
                out["soft"][[b for b in here if ARMS[b] in SOFT], s, cycle] = alone[s, i]
                for key in ("gamma", "hits", "hits_without"):
                    out[key][here, s, cycle] = getattr(evidence, key)
                if on:
                    mean_G, mean_T = pools[s].means(rows, y_LC, evidence)
                    out["pool"][here, s, cycle] = 100 * float((mean_T.argmax(1) == YT).double().mean())
                    if ARMS[a] in SOFT:
                        softs.append((s, here, sharpened(mean_G).index_copy(0, rows, y_LC).float()))
                if cycle == cycles:
                    continue
                free = torch.ones(N, dtype=torch.bool, device=DEVICE)
                free[rows] = False
                order = torch.randperm(N, generator=torch.Generator().manual_seed(seeds[s] * 100 + cycle + 7)).to(
                    DEVICE
                )
                U = order[free[order]]
                net = [p[s * len(used) + i] for p in nets]
                for b in here:
                    arm, seed = ARMS[b], seeds[s] * 1000 + cycle
                    if arm == "random":
                        picked = list(range(per))
                    elif arm in WITH and on:
                        key = (name, arm, seed, *L[s][b])
                        if key not in asked:
                            asked[key] = ask_pool(arm, pools[s].state(rows, y_LC, U, evidence), per, seed)
                        picked = asked[key]
                    else:
                        own = {"cover~": "cover", "gain~": "gain", "herding~": "uherding", "margin~": "margin"}.get(
                            arm, arm
                        )
                        picked = ask_alone(own, net, X[G[s][rows]], y_L, X[G[s][U]], per, loss, seed)
                    L[s][b] = [*L[s][b], *U[torch.tensor(picked, device=DEVICE)].tolist()]
        for k in range(0, len(softs), 16):
            some = softs[k : k + 16]
            x = torch.stack([X[G[s]] for s, *_ in some])
            P = train_soft(
                x, torch.stack([t for *_, t in some]), [seeds[s] for s, *_ in some], cycle, loss, soft_lr, cell.hidden
            )
            f = forward(P, XT.expand(len(some), -1, -1))[-1]
            for (s, here, _), hit in zip(some, (100 * (f.argmax(2) == YT).double().mean(1)).tolist()):
                out["soft"][[b for b in here if ARMS[b] in SOFT], s, cycle] = hit
    sizes = [init + per * c for c in range(cycles + 1)]
    return {"cell": name, "loss": loss, "arms": ARMS, "seeds": seeds, "labels": sizes} | {
        k: np.round(v, 3).tolist() for k, v in out.items()
    }


if __name__ == "__main__":
    target, seeds = Path(sys.argv[1]), [int(s) for s in sys.argv[2].split(",")]
    for job in sys.argv[3:]:
        name, loss = job.split(":")
        begin = time.time()
        found = run(name, loss, seeds)
        found["seconds"] = round(time.time() - begin, 1)
        (target / f"{name}-{loss}.json").write_text(json.dumps(found))
        last = {
            k: {
                arm: round(float(np.mean(np.array(values)[:, 1:])), 1)
                for arm, values in zip(ARMS, found[k])
                if k != "soft" or arm in SOFT
            }
            for k in ("net", "pool", "soft")
        }
        print(name, loss, found["seconds"], json.dumps(last), flush=True)
