"""Small learners of every kind: two losses, one logit or several, regression."""

import torch
from torch import nn

import foretaste as ft
from foretaste.network import MLP, seeded

KINDS = ("l2", "ce", "binary-l2", "binary-ce", "regression")
N = 40


def points(seed: int = 0, n: int = N) -> torch.Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(outputs: int, seed: int = 0) -> nn.Module:
    with seeded(seed, torch.device("cpu")):
        return MLP(4, (16,), outputs).double().eval()


def truth(kind: str, i: int) -> float | int:
    x = points()[i]
    if kind == "regression":
        return float(x[0] - x[1])
    return int(x[0] > 0) if kind.startswith("binary") else int(x[:3].argmax())


def make(kind: str, **more: object) -> ft.Learner:
    outputs = {"l2": 3, "ce": 3}.get(kind, 1)
    how: dict[str, object] = {"loss": "ce" if kind.endswith("ce") else "l2"}
    if kind.startswith("binary"):
        how["classes"] = ["low", "high"]
    trained = {i: truth(kind, i) for i in range(6)}
    return ft.Learner(network(outputs), points(), **({"labels": trained, "ridge": 0.01} | how | more))
