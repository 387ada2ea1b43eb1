"""f_lin against real training: it tracks wide networks at the paper's rate, and predicts what retraining does."""

import copy
import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from foretaste.lookahead import linearize
from oracles import correlation, descend


class Wide(nn.Module):
    """One hidden layer in the NTK parametrisation: f = φ(xW₁/√d) W₂/√n, all weights N(0, 1)."""

    def __init__(self, d: int, n: int, C: int, seed: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.w1 = nn.Parameter(torch.randn(d, n, generator=g).double())
        self.w2 = nn.Parameter(torch.randn(n, C, generator=g).double())

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(x @ self.w1 / math.sqrt(self.w1.shape[0]))
        return h @ self.w2 / math.sqrt(self.w2.shape[0])


def gradient_flow(net: nn.Module, x: Tensor, y: Tensor, at: Tensor, step: float, ends: list[int]) -> list[Tensor]:
    """f_t(at) after each of ``ends`` steps of ∂θ = −∇ ½Σ‖f − y‖², by Runge-Kutta: a GD step's own error would not
    shrink with width."""
    theta = list(net.parameters())

    def slope(base: list[Tensor], towards: list[Tensor] | None, h: float) -> list[Tensor]:
        with torch.no_grad():
            for i, p in enumerate(theta):
                p.copy_(base[i] if towards is None else base[i] - h * towards[i])
        return list(torch.autograd.grad(0.5 * (net(x) - y).square().sum(), theta))

    found = []
    for n in range(1, ends[-1] + 1):
        base = [p.detach().clone() for p in theta]
        a = slope(base, None, 0.0)
        b = slope(base, a, step / 2)
        c = slope(base, b, step / 2)
        d = slope(base, c, step)
        slope(base, [(p + 2 * q + 2 * r + s) / 6 for p, q, r, s in zip(a, b, c, d)], step)
        if n in ends:
            found.append(net(at).detach())
    return found


@pytest.mark.slow
def test_the_distance_to_f_lin_shrinks_with_width() -> None:
    """sup_t ‖f_t − f_lin‖ = O(1/√width): the log-log slope over widths 32 to 2048.

    The single-logit kernel that the paper uses is off by O(1/√width) and shows just that; with the full kernel the
    bound is kept with room to spare, the distance falling like 1/width. Seen: first −0.56, sum −0.48, full −0.95.
    """
    widths, seeds, step, ends = (32, 128, 512, 2048), range(4), 0.1, [2, 8, 25, 60]
    distance: dict[str, list[list[float]]] = {"full": [], "first": [], "sum": []}
    for width in widths:
        found: dict[str, list[float]] = {output: [] for output in distance}
        for seed in seeds:
            g = torch.Generator().manual_seed(seed)
            x, at = torch.randn(6, 8, generator=g).double(), torch.randn(20, 8, generator=g).double()
            y = torch.eye(2).double()[torch.arange(6) % 2]
            net = Wide(8, width, 2, seed=1000 * width + seed).eval()
            f_t = gradient_flow(copy.deepcopy(net), x, y, at, step, ends)
            for output, sup in found.items():
                f_lin = [linearize(net, x, y, at, output=output, ridge=0.0, time=step * n).mean for n in ends]
                sup.append(max(float((a - b).norm(dim=1).mean()) for a, b in zip(f_t, f_lin)))
        for output, sup in found.items():
            distance[output].append(sup)
    slopes = {}
    for output, by_width in distance.items():
        log_w = torch.tensor(widths).double().log()
        log_d = torch.tensor(by_width).double().log().mean(1)
        slopes[output] = float(
            ((log_w - log_w.mean()) * (log_d - log_d.mean())).sum() / (log_w - log_w.mean()).square().sum()
        )
    assert -0.75 < slopes["first"] < -0.3
    assert -0.75 < slopes["sum"] < -0.3
    assert -1.2 < slopes["full"] < -0.75


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "stop", "lr", "least"), [("l2", 1e-4, 0.5, 0.95), ("ce", 0.01, 0.02, 0.7)])
def test_lookahead_predicts_what_retraining_does(loss: str, stop: float, lr: float, least: float) -> None:
    """The signed change of every output at every pool point, over candidates with their true and with wrong labels.

    Retraining goes on from the trained weights with one label more, to the same loss. Seen: 0.98 for L2, 0.78 to 0.82
    for cross-entropy.
    """
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    x, y = x - x.mean(0), torch.tensor(digits.target)
    found = {}
    for seed in range(2):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        L, U = order[:40], order[40:120]
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
        descend(net, x[L], y[L], loss, stop, lr)
        states = {k: linearize(net, x[L], y[L], x[U], loss=loss, output=k) for k in ("sum", "full")}
        predicted: dict[str, list[Tensor]] = {k: [] for k in states}
        real = []
        for j in range(0, 80, 10):
            true = int(y[U[j]])
            for label in (true, (true + 3) % 10):
                grown = torch.cat([L, U[j : j + 1]])
                labels = torch.cat([y[L], torch.tensor([label])])
                after = descend(copy.deepcopy(net), x[grown], labels, loss, stop, lr)
                real.append(after(x[U]).detach().double() - states["sum"].net)
                for k, state in states.items():
                    predicted[k].append(state.lookahead(j, label) - state.mean)
        for k in states:
            found[seed, k] = correlation(torch.stack(predicted[k]), torch.stack(real))
    assert min(found.values()) > least, found
