"""On the same network the lab picks what ``ft.query`` picks, in the same order.

python results/findings/weight/verify.py [digits-few:ce ...]
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
import weight_lab  # noqa: F401, turns gradients off
from torch import nn
from weight_asked import Asked, DeepAsked, ask
from weight_cells import make_cell, problem
from weight_lab import permutation
from weight_train import train, train_deep

import foretaste as ft

ONE_LAYER = {  # labels, batch, steps
    "c10-few:ce": (40, 15, 150),
    "c10-few:l2": (40, 15, 150),
    "bank-few:ce": (120, 20, 100),
    "bank-few:l2": (120, 20, 60),
    "digits-few:l2": (30, 10, 300),
    "digits-few:ce": (30, 10, 300),
}
TWO_LAYERS = {"digits-few:ce": (60, 10, 120), "digits-few:l2": (60, 10, 120), "bank-few:l2": (60, 10, 120)}
COVER = {"signs0:cov": ("cover", {}), "trace:cov": ("cover", {"output": "trace"})}
HERDING = {
    "gauss:gap": ("uherding", {"options": {"space": "inputs"}}),
    "gauss1:uni": ("maxherding", {"options": {"space": "inputs"}}),
}


def same(name: str, labels: int, batch: int, steps: int, deep: bool = False) -> Iterator[tuple[str, bool]]:
    """Each seed and arm of a cell, and whether the two batches are equal."""
    seeds = [0] if deep else [0, 1]
    cell = replace(make_cell(name), per=batch, steps=steps, hidden=128 if deep else 512)
    data = problem(cell.data)
    order = torch.stack([permutation(len(data.X), seed) for seed in seeds]).to(data.X.device)
    L, U = order[:, :labels], order[:, labels : labels + (300 if deep else 500)]
    net, _ = (train_deep if deep else train)(cell, L[:, None], seeds, 0)
    asked = (DeepAsked if deep else Asked)(cell, net, L, U, dtype=torch.float64)
    for seed in seeds:
        model = as_module([part[seed] for part in net])
        for arm, (strategy, options) in (COVER if deep else COVER | HERDING).items():
            if seed and arm == "trace:cov" and data.C > 10:
                continue  # slow
            mine = ask(asked, arm, U)[seed].tolist()
            known, pool = L[seed], U[seed]
            query = {"strategy": strategy, "batch_size": batch, "loss": cell.loss} | options
            theirs = ft.query(model, data.X[known], data.y[known], data.X[pool], **query)
            yield f"{name}{' deep' if deep else ''} seed {seed} {arm}", mine == [int(i) for i in theirs.indices]


def as_module(net: list[torch.Tensor]) -> nn.Sequential:
    """The network of one seed."""
    layers: list[nn.Module] = []
    for weight in net[::2]:
        layers += [nn.Linear(*weight.shape, device=weight.device), nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).eval()
    for parameter, value in zip(model.parameters(), net):
        parameter.data.copy_(value.T if parameter.dim() == 2 else value[0])
    return model


def main() -> None:
    """Print every comparison, and fail if one differs."""
    wanted = sys.argv[1:]
    differ = 0
    for table, deep in ((ONE_LAYER, False), (TWO_LAYERS, True)):
        for name, sizes in table.items():
            if wanted and name not in wanted:
                continue
            for what, equal in same(name, *sizes, deep=deep):
                print(what, "same order" if equal else "DIFFERENT", flush=True)
                differ += not equal
    sys.exit(f"{differ} batches differ" if differ else 0)


if __name__ == "__main__":
    main()
