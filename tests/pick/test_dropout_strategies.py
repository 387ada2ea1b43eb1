"""BALD and BatchBALD against enumeration of all labels; networks drawn by dropout."""

import math

import pytest
import torch
from torch import nn

import foretaste as ft
import strategy_oracles as slow
from foretaste.lookahead import KernelSettings
from foretaste.pick.dropout import JointLabels, draw_networks, mutual_information
from foretaste.pick.request import Request


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make_net(*layers):
    net = nn.Sequential(*layers).double().eval()
    g = seeded(3)
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=g, dtype=torch.float64)
    return net


X = torch.randn(14, 4, generator=seeded(1), dtype=torch.float64)


def request(net, **kwargs):
    return Request(net, X[:4], torch.tensor([0, 1, 2, 0]), X[4:], 3, seeded(), KernelSettings(**kwargs))


def ask(net, strategy, loss="ce", n=3, x_U=None, **options):
    how = {"strategy": strategy, "options": options, "loss": loss, "batch_size": n}
    return ft.query(net, X[:4], [0, 1, 2, 0], X[4:] if x_U is None else x_U, **how)


@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_batches_are_those_of_all_labels_enumerated(loss):
    net = make_net(nn.Linear(4, 9), nn.Tanh(), nn.Dropout(0.4), nn.Linear(9, 3))
    p = draw_networks(request(net, loss=loss), 8, None, None, "bald")
    assert p.shape == (8, 10, 3)
    q = ask(net, "batchbald", loss, samples=8)
    assert q.indices.tolist() == slow.batchbald(p, 3)
    assert q.info["informative"] == 3
    scores = [slow.batch_information(p, [j]) for j in range(10)]
    for name in ("bald", "batchbald"):
        assert torch.allclose(ask(net, name, loss, samples=8).scores, torch.tensor(scores, dtype=torch.float64))
    assert ask(net, "bald", loss, samples=8).indices.tolist() == sorted(range(10), key=lambda j: -scores[j])[:3]


def test_drawn_labels_estimate_the_enumerated_ones():
    p = torch.rand(10, 12, 2, generator=seeded(2), dtype=torch.float64) ** 4 + 1e-3
    p /= p.sum(2, keepdim=True)
    whole, drawn = JointLabels(p, 2**9, seeded()), JointLabels(p, 1, seeded())
    drawn.most = 20_000
    drawn.drawn_M = torch.arange(drawn.most) % 10
    drawn.share_M = torch.full((drawn.most,), 1 / drawn.most, dtype=torch.float64)
    drawn.log_MK = torch.zeros(drawn.most, 10, dtype=torch.float64)
    at = torch.arange(12)
    for j in range(6):
        whole.add(j)
        drawn.add(j)
        assert whole.drawn_M is None
        assert float(whole.share_M.sum()) == pytest.approx(1)
        exact = [slow.batch_information(p, [*range(j + 1), i]) for i in range(j + 1, 12)] if j == 3 else None
        if exact:
            before = slow.batch_information(p, list(range(j + 1)))
            assert torch.allclose(whole.gains(at)[j + 1 :], torch.tensor(exact, dtype=torch.float64) - before)
        assert torch.allclose(whole.gains(at), drawn.gains(at), atol=0.01)
    assert len(JointLabels(p, 15, seeded()).log_MK) == 1


def test_enumeration_gives_way_to_draws():
    p = torch.rand(5, 9, 3, generator=seeded(0), dtype=torch.float64)
    joint = JointLabels(p / p.sum(2, keepdim=True), 27, seeded())
    sizes = []
    for j in range(5):
        joint.add(j)
        sizes.append((len(joint.share_M), joint.drawn_M is None))
    assert sizes == [(3, True), (9, True), (27, True), (30, False), (30, False)]  # as many from each of five


def test_draws_that_follow_enumeration_know_the_picks_before():
    p = torch.rand(10, 6, 30, generator=seeded(4), dtype=torch.float64) ** 8 + 1e-4
    p /= p.sum(2, keepdim=True)
    whole, drawn = JointLabels(p, 30**3, seeded()), JointLabels(p, 20_000, seeded())
    for j in range(3):  # 30³ configurations are more than 20,000
        whole.add(j)
        drawn.add(j)
    assert (whole.drawn_M is None, drawn.drawn_M is None) == (True, False)
    at, alone = torch.arange(3, 6), JointLabels(p, 1, seeded())
    assert torch.allclose(whole.gains(at), drawn.gains(at), atol=0.02)
    assert (alone.gains(at) - whole.gains(at) > 0.2).all()  # what the picks have told already


def test_what_is_left_when_the_draws_are_known():
    """Two networks that disagree about every point: one label tells them apart."""
    p = torch.zeros(2, 6, 2, dtype=torch.float64)
    p[0, :, 0], p[1, :, 1] = 1, 1
    assert mutual_information(p).tolist() == pytest.approx([math.log(2)] * 6)
    joint = JointLabels(p, 100, seeded())
    joint.add(2)
    assert joint.gains(torch.arange(6)).tolist() == pytest.approx([0] * 6)
    net = make_net(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 3))
    net[2].weight.data *= 1000  # every draw is sure
    q = ask(net, "batchbald", n=10, samples=2)
    assert sorted(q.indices.tolist()) == list(range(10))
    assert q.info["informative"] == 1


def test_copies_are_not_picked_together():
    net = make_net(nn.Linear(4, 9), nn.Dropout(0.5), nn.Linear(9, 3))
    x = X[4:].repeat(2, 1)
    best = int(ask(net, "bald", n=1, samples=50).indices[0])
    assert {int(j) % 10 for j in ask(net, "bald", n=2, samples=50, x_U=x).indices} == {best}
    picked = ask(net, "batchbald", n=2, samples=50, x_U=x).indices
    assert len({int(j) % 10 for j in picked}) == 2


# --- networks drawn by dropout ---


def test_a_draw_drops_the_same_units_for_every_point():
    net = make_net(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3))
    p = draw_networks(request(net, loss="ce"), 7, None, None, "bald")
    hidden = net[0](X[4:]).detach()
    g = seeded()
    for k in range(7):
        mask = (torch.rand(1, 6, generator=g) >= 0.5).double() / 0.5
        assert torch.allclose(p[k], net[2](hidden * mask).softmax(1))


def test_a_rate_drops_inputs_of_the_last_layer():
    net = make_net(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    fast = draw_networks(request(net, loss="ce"), 5, 0.3, None, "bald")
    assert torch.allclose(fast, draw_networks(request(net, loss="ce"), 5, 0.3, "2", "bald"))
    named = draw_networks(request(net, loss="ce"), 5, 0.3, "0", "bald")
    mask = (torch.rand(1, 4, generator=seeded()) >= 0.3).double() / 0.7
    assert torch.allclose(named[0], net(X[4:] * mask).softmax(1))


def test_one_output_of_two_classes():
    net = make_net(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    for loss in ("l2", "ce"):
        how = {"loss": loss, "batch_size": 3, "options": {"rate": 0.4, "samples": 9}}
        q = ft.query(net, X[:4], [0, 1, 1, 0], X[4:], strategy="batchbald", **how)
        assert (q.scores >= 0).all()
        assert float(q.scores.max()) > 0


def test_channels_are_dropped_whole_and_modules_called_twice_have_two_masks():
    seen = []

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.head = nn.Dropout2d(0.5), nn.Linear(64, 2)

        def forward(self, x):
            seen.append([self.drop(torch.ones_like(x)), self.drop(torch.ones_like(x))])
            return self.head((seen[-1][0] + x).flatten(1))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Twice().eval()
    x = torch.randn(300, 16, 2, 2, generator=seeded())  # two chunks
    draw_networks(Request(net, None, None, x, 3, seeded(), KernelSettings(loss="ce")), 2, None, None, "bald")
    (a, b), (a2, b2), (c, _), _ = seen[-4:]  # two chunks of each of two draws
    for one in (a, b, c):
        assert set(one.unique().tolist()) == {0.0, 2.0}
        assert torch.equal(one, one[:1, :, :1, :1].expand_as(one))
    assert torch.equal(a[0], a2[0])
    assert torch.equal(b[0], b2[0])
    assert not torch.equal(a[0], b[0])
    assert not torch.equal(a[0], c[0])


@pytest.mark.parametrize("name", ["bald", "batchbald"])
def test_refused(name):
    net = make_net(nn.Linear(4, 6), nn.Dropout(0.0), nn.Linear(6, 3))
    with pytest.raises(ValueError, match=rf"'{name}' draws networks by dropout.*options={{\"rate\": 0.5}}"):
        ask(net, name)
    for options, message in [
        ({"rate": 1}, "rate=1; expected a share between 0 and 1"),
        ({"samples": 1}, "samples is 1; expected a whole number of at least 2"),
        ({"layer": "2"}, 'give options={"rate": 0.5} too'),
        ({"rate": 0.5, "layer": 2}, "expected the name of a module"),
    ]:
        with pytest.raises(ValueError, match=message):
            ask(net, name, **options)
    with pytest.raises(ValueError, match=f"'{name}' needs classes"):
        ft.query(nn.Linear(4, 1).double().eval(), X[:4], X[:4, 0], X[4:], strategy=name, options={"rate": 0.5})
    with pytest.raises(ValueError, match="configurations is 0"):
        ask(net, "batchbald", rate=0.5, configurations=0)
