"""Which kernel predicts what retraining does? The empirical one of the trained network, or the infinite-width one.

    python results/predictors.py results/predictors/records.jsonl

A network is trained on L. For each of some candidates training goes on with L and the candidate's true label, and, by
the same seed, with L alone; the difference of the two on watched points is the real change. The prediction is Eq. 12
with a ridge of 1e-6 of the mean diagonal: the same code for every kernel. A record has the correlation of predicted and
real changes, and Spearman's of Σ_i ‖f⁺_i − f_i‖ over the candidates (Eq. 13's ranking).
"""

import copy
import json
import sys
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from foretaste.data import draw, load, smaller
from foretaste.network import fit, make_network, prepare
from foretaste.tangent import infinite_ntk, ntk

CASES = {
    "digits, MLP": {"seeds": range(20, 28), "L": 50, "candidates": 16, "watched": 200, "steps": 1200},
    "MNIST at 14×14, WRN1 of widen 1": {
        "seeds": range(20, 23),
        "L": 50,
        "candidates": 10,
        "watched": 100,
        "steps": 1000,
    },
}


def predicted(theta_NN: Tensor, f_NC: Tensor, y_NC: Tensor, L: int, n: int) -> Tensor:
    """(n, W, C): change of the watched points by the label of each candidate. Points come as L, candidates, watched."""
    theta_NN, f_NC, y_NC = theta_NN.double(), f_NC.double(), y_NC.double()
    ridge = 1e-6 * theta_NN.diagonal()[:L].mean()
    a = torch.linalg.solve(theta_NN[:L, :L] + ridge * torch.eye(L), theta_NN[:L])  # (L, N)
    s = theta_NN - theta_NN[:, :L] @ a
    mean_NC = f_NC + a.T @ (y_NC[:L] - f_NC[:L])
    j = torch.arange(L, L + n)
    step_nC = (y_NC[j] - mean_NC[j]) / (s[j, j] + ridge)[:, None]
    return s[j, L + n :, None] * step_nC[:, None, :]


def one(case: str, seed: int) -> list[dict]:
    how = CASES[case]
    L, n, W = how["L"], how["candidates"], how["watched"]
    mlp = "MLP" in case
    data = load("digits") if mlp else smaller(load("mnist"), 14)
    split = draw(data.pool, data.test, L, seed).offer(n + W, seed)
    ids = np.concatenate([split.L, split.U])
    x, y = data.x[ids], data.y[ids]
    name, options = ("mlp", {"hidden": [256, 256]}) if mlp else ("wrn1", {"widen": 1, "blocks": 1})
    net = make_network(name, options=options, classes=len(data.classes), shape=tuple(x[0].shape))
    first = {"batch_size": 32, "max_lr": 0.5, "normalise": data.normalise, "seed": seed, "steps": how["steps"]}
    done = fit(net, x[:L], y[:L], start="cold", **first)
    fed = prepare(x, torch.float32, data.normalise)
    with torch.no_grad():
        f_NC = net(fed)

    def retrained(at: list[int]) -> Tensor:
        again = copy.deepcopy(net)
        fit(again, x[at], y[at], start="warm", **{**first, "max_lr": 0.1, "steps": how["steps"] // 2})
        with torch.no_grad():
            return again(fed[L + n :])

    alone = retrained([*range(L)])
    real = torch.stack([retrained([*range(L), j]) for j in range(L, L + n)]) - alone
    y_NC = torch.nn.functional.one_hot(y, f_NC.shape[1])
    kernels = {
        "empirical, first logit": lambda: ntk(net, fed, output="first"),
        "empirical, sum of logits": lambda: ntk(net, fed, output="sum"),
        "empirical, trace": lambda: ntk(net, fed, output="trace"),
        "infinite": lambda: infinite_ntk(net, fed),
    }
    rows = []
    for kernel, theta in kernels.items():
        change = predicted(theta(), f_NC, y_NC, L, n)
        sizes = [c.norm(dim=2).sum(1).numpy() for c in (change, real.double())]
        r = float(np.corrcoef(change.flatten().numpy(), real.flatten().numpy())[0, 1])
        rank = float(spearmanr(*sizes).statistic)
        rows.append({"case": case, "seed": seed, "kernel": kernel, "correlation": r, "rank": rank,
                     "residual": done.residual, "torch": torch.__version__, **how, "seeds": None})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def main(out: str, only: str = "") -> None:
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        for seed in CASES[case]["seeds"] if only in case else ():
            rows = one(case, seed)
            with open(out, "a", encoding="utf-8") as file:
                file.writelines(json.dumps({k: v for k, v in r.items() if k != "seeds"}) + "\n" for r in rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
