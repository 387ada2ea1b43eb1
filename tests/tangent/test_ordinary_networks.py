"""Networks that people have: each gets autograd's kernel, or is refused by name with the remedy."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import foretaste as ft
from fuzz.calls import brute_force


def points(n: int, *shape: int) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def tokens(n: int, t: int = 4) -> Tensor:
    return torch.randint(11, (n, t), generator=torch.Generator().manual_seed(n))


class Forward(nn.Module):
    """Layers by name, and a forward that is given as a function of them."""

    def __init__(self, forward: Callable[["Forward", Tensor], Tensor], **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.how = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def experts(net: Forward, x: Tensor) -> Tensor:
    """Each point goes through one of two layers, which may see no point at all."""
    first = x[:, 0] > 0
    h = x.new_zeros(len(x), 4)
    h = h.index_put((first.nonzero()[:, 0],), net.a(x[first]))
    return net.b(h.index_put(((~first).nonzero()[:, 0],), net.c(x[~first])).tanh())


def bags(net: Forward, x: Tensor) -> Tensor:
    """conv(x[mask]): rows of all bags end to end, as many for a point as it has frames."""
    there = x[:, :, 0] > -0.5
    rows = net.a(x[there][:, :, None])[:, :, 0].tanh()
    return net.b(x.new_zeros(len(x), 4).index_add(0, there.nonzero()[:, 0], rows))


def sorts(net: Forward, x: Tensor) -> Tensor:
    order = x[:, 0].argsort()
    return net.b(net.a(x[order]).tanh()[order.argsort()])


def sorts_large(net: Forward, x: Tensor) -> Tensor:
    """In order for a few points, not for many: no look at a few points can see it."""
    return sorts(net, x) if len(x) > 8 else net.b(net.a(x).tanh())


def point_net(net: Forward, x: Tensor) -> Tensor:
    n, t, d = x.shape
    return net.b(net.a(x.reshape(n * t, d)).tanh().view(n, t, -1).amax(1))


def detached(net: Forward, x: Tensor) -> Tensor:
    with torch.no_grad():
        features = net.a(x).tanh()
    return net.b(features)


PLAIN = {"a": lambda: nn.Linear(3, 4), "b": lambda: nn.Linear(4, 3)}
NETWORKS: dict[str, Callable[[], tuple[nn.Module, Callable[[int], Tensor]]]] = {
    "PointNet": lambda: (Forward(point_net, **made(PLAIN)), lambda n: points(n, 5, 3)),
    "bags": lambda: (Forward(bags, a=nn.Conv1d(3, 4, 1), b=nn.Linear(4, 3)), lambda n: points(n, 5, 3)),
    "sorts": lambda: (Forward(sorts, **made(PLAIN)), lambda n: points(n, 3)),
    "sorts large batches": lambda: (Forward(sorts_large, **made(PLAIN)), lambda n: points(n, 3)),
    "experts": lambda: (Forward(experts, **made(PLAIN), c=nn.Linear(3, 4)), lambda n: points(n, 3)),
    "detached features": lambda: (Forward(detached, **made(PLAIN)), lambda n: points(n, 3)),
    "sparse embedding": lambda: (
        nn.Sequential(nn.Embedding(11, 4, sparse=True), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)),
        tokens,
    ),
    "sparse bag": lambda: (nn.Sequential(nn.EmbeddingBag(11, 4, sparse=True), nn.Linear(4, 3)), tokens),
    "an empty parameter": lambda: (
        Forward(lambda net, x: net.a(torch.cat([x, F.linear(x, net.none)], 1)), a=nn.Linear(3, 3), none=empty()),
        lambda n: points(n, 3),
    ),
    "an empty layer": lambda: (nn.Sequential(nn.Linear(3, 0), nn.Linear(0, 3)), lambda n: points(n, 3)),
    "split": lambda: (
        Forward(lambda net, x: net.b(torch.cat([net.a(p).tanh() for p in x.split(4)])), **made(PLAIN)),
        lambda n: points(n, 3),
    ),
}


def made(layers: dict[str, Callable[[], nn.Module]]) -> dict[str, nn.Module]:
    return {name: layer() for name, layer in layers.items()}


def empty() -> nn.Parameter:
    return nn.Parameter(torch.zeros(0, 3))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("n", [1, 2, 9, 30])
@pytest.mark.parametrize("name", NETWORKS)
def test_ordinary_networks_have_the_kernel_of_autograd(name: str, n: int) -> None:
    torch.manual_seed(0)
    net, draw = NETWORKS[name]()
    net = net.double().eval()
    assert_close(ft.ntk(net, draw(n)), brute_force(net, draw(n)), rtol=1e-9, atol=1e-11)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", NETWORKS)
def test_ordinary_networks_are_queried(name: str) -> None:
    torch.manual_seed(0)
    net, draw = NETWORKS[name]()
    x = draw(20)
    q = ft.query(net.double().eval(), x[:5], torch.arange(5) % 3, x[5:], batch_size=4, ridge=1e-3)
    assert len(set(q.indices.tolist())) == 4


def frames_last(net: Forward, x: Tensor) -> Tensor:
    """The first frames of all points, then the second ones: rows are not the points, one after the other."""
    n, t, d = x.shape
    return net.b(net.a(x.transpose(0, 1).reshape(n * t, d)).tanh().view(t, n, -1).mean(0))


def test_no_rule_passes_by_chance() -> None:
    """Norms of two different rows agreed to three digits, once in a few hundred layers, and Θ was wrong."""
    for seed in (266, *range(20)):
        torch.manual_seed(seed)
        net, x = Forward(frames_last, **made(PLAIN)).eval(), torch.randn(14, 5, 3)
        gap = ft.ntk(net, x) - brute_force(copy.deepcopy(net).double(), x.double())
        assert float(gap.abs().max()) <= 1e-4, seed


def test_autocast_inside_is_refused_by_name() -> None:
    def forward(net: Forward, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return net.a(x).float()

    torch.manual_seed(0)
    net = Forward(forward, a=nn.Linear(3, 4)).eval()
    with pytest.raises(ValueError, match=r"a Linear of net computes in torch.bfloat16.*enabled=self.training"):
        ft.ntk(net, points(5, 3).float())


def test_inference_mode_around_it_and_around_the_networks_birth() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double().eval(), points(9, 3)
    want = ft.ntk(net, x)
    with torch.inference_mode():
        assert torch.equal(ft.ntk(net, x), want)
        born = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double().eval()
        born.load_state_dict(net.state_dict())
        q = ft.query(net, x[:3], [0, 1, 2], x[3:], batch_size=2)
    assert torch.equal(ft.ntk(born, x), want)
    assert q.indices.tolist() == ft.query(net, x[:3], [0, 1, 2], x[3:], batch_size=2).indices.tolist()
    assert born[0].weight.is_inference()
