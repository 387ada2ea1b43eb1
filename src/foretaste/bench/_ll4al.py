"""What the ranking loss of LL4AL does to a network, by learning rate and reduction: a table of docs/strategies.md.

python -m foretaste.bench._ll4al
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from foretaste.data import digits
from foretaste.network import MLP, fit, fit_ll4al, predict_losses, prepare
from foretaste.tangent import rank_correlation

LAYERS = ("layers.1", "layers.3")


@dataclass(frozen=True)
class Row:
    """method: "fit", "mean" or "sum". On held-out points: accuracy, and Spearman of predicted and true losses."""

    method: str
    max_lr: float
    seed: int
    residual: float
    accuracy: float
    ranking: float


def learning_rates(
    rates: Sequence[float] = (0.5, 0.1, 0.05, 0.02),
    seeds: Sequence[int] = (0, 1),
    *,
    L: int = 100,
    steps: int = 1200,
    methods: Sequence[str] = ("fit", "mean", "sum"),
) -> list[Row]:
    """Digits, an MLP of two hidden layers of 256, L labels; held out are the last 797 of each seed's order."""
    data, rows = digits(), []
    inputs = prepare(data.x, normalise=data.normalise).flatten(1)
    for seed in seeds:
        order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(seed))
        at_L, held = order[:L], order[1000:]
        x_L, y_L, x, y = inputs[at_L], data.y[at_L], inputs[held], data.y[held]
        for method in methods:
            for rate in rates:
                net, ranking = MLP(inputs.shape[1], (256, 256)), float("nan")
                how = {"steps": steps, "max_lr": rate, "seed": seed}
                if method == "fit":
                    done = fit(net, x_L, y_L, start="cold", **how)  # type: ignore[arg-type]
                else:
                    done, module = fit_ll4al(net, x_L, y_L, layers=LAYERS, reduction=method, start="cold", **how)  # type: ignore[arg-type]
                with torch.no_grad():
                    f_NC = net(x)
                if method != "fit":
                    true_N = (f_NC - F.one_hot(y, f_NC.shape[1])).square().mean(1)
                    ranking = rank_correlation(predict_losses(net, module, x), true_N.double())
                rows.append(
                    Row(method, rate, seed, done.residual, float((f_NC.argmax(1) == y).double().mean()), ranking)
                )
    return rows


def as_markdown(rows: Sequence[Row]) -> str:
    lines = ["| method | max_lr | residual on L | accuracy | Spearman |", "|---|---|---|---|---|"]
    for method, rate in dict.fromkeys((r.method, r.max_lr) for r in rows):
        same = [r for r in rows if (r.method, r.max_lr) == (method, rate)]
        cells = (
            ", ".join(f"{r.residual:.0e}" for r in same),
            ", ".join(f"{r.accuracy:.2f}" for r in same),
            ", ".join("–" if method == "fit" else f"{r.ranking:.2f}" for r in same),
        )
        lines.append(f"| {method} | {rate:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(as_markdown(learning_rates()))
