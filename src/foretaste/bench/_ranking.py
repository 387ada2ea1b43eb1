"""Whether single precision keeps the ranking. A kernel's norm does not tell: S subtracts nearly equal numbers."""

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foretaste.acquire import gain, mlmoc
from foretaste.data import digits
from foretaste.lookahead import linearize
from foretaste.network import MLP, WideResNet, fit, prepare
from foretaste.tangent import rank_correlation


@dataclass(frozen=True)
class Agreement:
    network: str
    residual: float  # mean squared, on the labelled points
    mlmoc: float  # Spearman of the scores from float32 passes to those from float64 ones
    gain: float
    shared: int  # of the twenty points that MLMOC ranks first, how many are the same


def agreement(device: torch.device, quick: bool = False) -> list[Agreement]:
    """Trained on scikit-learn's digits (real data that comes with it): L = 100, U = 400."""
    data = digits()
    x = prepare(data.x.to(device), torch.float32, data.normalise)
    y = torch.as_tensor(data.y, device=device)
    at = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    L, U = at[:100], at[100 : 200 if quick else 500]
    image = x.reshape(len(x), 1, 8, 8)
    nets: dict[str, tuple[nn.Module, Tensor]] = {
        "MLP 64-256-256-10": (MLP(64, (256, 256), 10), x.reshape(len(x), -1)),
        "WRN1 widen 1": (WideResNet(layers=1, widen=1), image),
    }
    found = []
    for name, (net, points) in nets.items():
        net = net.to(device)
        trained = fit(net, points[L], y[L], steps=400 if quick else 1200, start="cold", seed=0)
        scores = []
        for copy, dtype in ((net, torch.float32), (deepcopy(net).double(), torch.float64)):
            state = linearize(copy, points[L].to(dtype), y[L], points[U].to(dtype))
            scores.append((mlmoc(state), gain(state)))
        (m32, g32), (m64, g64) = scores
        top = [set(s.argsort(descending=True)[:20].tolist()) for s in (m32, m64)]
        found.append(
            Agreement(
                name, trained.residual, rank_correlation(m32, m64), rank_correlation(g32, g64), len(top[0] & top[1])
            )
        )
    return found
