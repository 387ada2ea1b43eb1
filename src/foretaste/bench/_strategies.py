"""Seconds and bytes of every strategy, for the same query: the column of docs/strategies.md.

python -m foretaste.bench._strategies
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.acquire import find_strategy, strategies
from foretaste.bench._measure import Measured, turns
from foretaste.data import digits
from foretaste.network import MLP, fit, fit_ll4al, prepare
from foretaste.query import query


@dataclass(frozen=True)
class Row:
    """One strategy: the best of its turns, the peak of the tensors it made, and what was picked."""

    name: str
    seconds: float
    nbytes: int
    picked: list[int]
    failed: str = ""


@dataclass(frozen=True)
class Problem:
    """A trained network, L, and a pool; numbers instead of classes for what is of regression."""

    net: nn.Module
    x_L: Tensor
    y_L: Tensor
    x_U: Tensor
    options: dict[str, Any] | None = None


def strategy_seconds(
    names: Sequence[str] | None = None,
    *,
    L: int = 50,
    U: int = 300,
    batch_size: int = 10,
    hidden: tuple[int, ...] = (256, 256),
    steps: int = 1200,
    rounds: int = 7,
    seed: int = 0,
    device: str = "cpu",
    said: Callable[[str], None] = lambda name: None,
) -> list[Row]:
    """One query by each strategy, in turns, on scikit-learn's digits; all of ours unless ``names`` says which.

    Training is not counted, ll4al's module included; that of naive, eer_retrain and onestep is their query. ``change``
    is of regression and has a network of one output, trained on the digit as a number.
    """
    names = list(names or (n for n in strategies() if find_strategy(n).fn.__module__.startswith("foretaste.")))
    problems = _problems(L, U, hidden, steps, seed, device)

    def asking(name: str) -> Callable[[], Any]:
        p = problems("regression" if "regression" in find_strategy(name).needs else name)
        return lambda: query(
            p.net, p.x_L, p.y_L, p.x_U, strategy=name, batch_size=batch_size, seed=seed, options=p.options
        )

    measured = turns({name: asking(name) for name in names}, torch.device(device), rounds=rounds, said=said)
    return [_row(name, m) for name, m in measured.items()]


def _row(name: str, m: Measured) -> Row:
    return Row(name, m.seconds, m.nbytes, [] if m.result is None else m.result.indices.tolist(), m.failed)


def _problems(L: int, U: int, hidden: tuple[int, ...], steps: int, seed: int, device: str) -> Callable[[str], Problem]:
    data = digits()
    if len(data.x) < L + U:
        raise ValueError(f"L={L} and U={U} of {len(data.x)} digits; expected at most as many in all")
    order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(seed))
    x = prepare(data.x[order], normalise=data.normalise).flatten(1).to(device)
    y = data.y[order].to(device)
    x_L, y_L, x_U = x[:L], y[:L], x[L : L + U]
    D, C = x.shape[1], len(data.classes)

    def network(outputs: int) -> nn.Module:
        with torch.random.fork_rng([]):
            return MLP(D, hidden, outputs).to(device)

    made: dict[str, Problem] = {}

    def problem(kind: str) -> Problem:
        kind = kind if kind in ("ll4al", "regression") else "classes"
        if kind not in made:
            net = network(1 if kind == "regression" else C)
            options, z_L = None, (y_L / (C - 1)).to(x.dtype) if kind == "regression" else y_L
            if kind == "ll4al":
                layers = [f"layers.{2 * i + 1}" for i in range(len(hidden))]
                _, module = fit_ll4al(net, x_L, z_L, layers=layers, steps=steps, start="cold", seed=seed)
                options = {"module": module}
            else:
                fit(net, x_L, z_L, steps=steps, start="cold", seed=seed)
            made[kind] = Problem(net, x_L, z_L, x_U, options)
        return made[kind]

    return problem


def as_markdown(rows: Sequence[Row]) -> str:
    """A table, quickest first."""
    lines = ["| strategy | seconds | memory |", "|---|---|---|"]
    for row in sorted(rows, key=lambda r: (r.failed, r.seconds)):
        took = row.failed or (f"{row.seconds:.2g}" if row.seconds < 10 else f"{row.seconds:.0f}")
        lines.append(f"| `{row.name}` | {took} | {row.nbytes / 1e6:.3g} MB |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(as_markdown(strategy_seconds(said=lambda name: print(name, flush=True))))
