"""DCoM equals literal loops: radii, competence, and every pick."""

import pytest
import torch

import foretaste as ft
import oracles
import strategy_oracles as slow
from foretaste.losses import probabilities
from query_cases import NET, X_L, X_U, Y_L

X, L = torch.cat([X_L, X_U]), len(X_L)


def ask(labelled=L, **settings):
    x_L, y_L = (X_L, Y_L) if labelled else (None, None)
    return ft.query(NET, x_L, y_L, X_U if labelled else X, strategy="dcom", **{"batch_size": 6} | settings)


def check(q, found):
    """The same radii, and each pick is one of the highest scores. Counts tie, so picks are compared one by one."""
    picks, radii, ties = found
    assert q.info["radii"] == radii
    if all(len(t) == 1 for t in ties):
        assert q.indices.tolist() == picks
    else:
        assert int(q.indices[0]) in ties[0]
    return all(len(t) == 1 for t in ties)


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("unit", [True, False])
def test_picks_are_those_of_a_literal_loop(loss, unit):
    x = slow.unit_rows(X) if unit else X
    p, largest = probabilities(oracles.f(NET, X), loss), 1.1 if unit else 4.0
    sure = []
    for first, known, a in ((0.6, [], 0.8), (1.0, [], 0.3), (0.6, [0.7, 0.4], 0.5), (0.3, [0.02] * (L - 1) + [4], 0.5)):
        settings = {"radius": first, "radii": known, "centre": a, "largest": largest, "unit_length": unit}
        found = slow.dcom(x, p, Y_L.tolist(), 15, first, known, largest=largest, a=a, k=3.0)
        q = ask(loss=loss, batch_size=15, options=settings | {"steepness": 3.0})
        sure.append(check(q, found))
        assert q.info["radius"] == pytest.approx(sum(found[1]) / L)
    assert loss == "l2" or sum(sure) >= 3  # without ties, so all picks were compared


def test_without_labels_the_densest_points_come():
    p = probabilities(oracles.f(NET, X), "ce")
    check(ask(labelled=0, loss="ce", options={"radius": 0.6}), slow.dcom(slow.unit_rows(X), p, [], 6, 0.6, []))
    q = ask(labelled=0, loss="ce")
    assert q.info["radius"] > 0
    assert q.info["competence"] < 1e-9


def test_radii_are_kept_from_query_to_query():
    radii = ask().info["radii"]
    assert ask(options={"radii": radii[:4]}).info["radii"][:4] == radii[:4]
    with pytest.raises(ValueError, match=r"the number of radii of strategy 'dcom' is 7; expected .* at most 6"):
        ask(options={"radii": [0.5] * 7})
    with pytest.raises(ValueError, match="resolution of strategy 'dcom' is 0"):
        ask(options={"resolution": 0})


def test_a_dense_labelled_point_does_not_scale_the_density_of_candidates():
    """The label at 0 is within reach of all ten points around it, each of them of its own five only."""
    sides = torch.tensor([1.2, 1.25, 1.3, 1.35, 1.4])
    x = torch.cat([torch.tensor([0.0, 100.0]), -sides, sides, torch.tensor([50.0])])[:, None].double()
    net = torch.nn.Linear(1, 2).double().eval()
    options = {"radii": [0.1, 3.9], "unit_length": False, "steepness": 1.0}
    q = ft.query(net, x[:2], torch.tensor([0, 1]), x[2:], strategy="dcom", loss="ce", batch_size=1, options=options)
    top = probabilities(net(x).detach(), "ce").topk(2, 1).values
    lack = top[:, 1] - top[:, 0]
    lack = (lack - lack.min()) / (lack.max() - lack.min())
    lack[:2] = 0
    density = torch.tensor([0.0, 0.0, *[5.0] * 10, 1.0]).double()
    s = q.info["competence"]
    scores = s * (lack - lack.min()) / (lack.max() - lack.min()) + (1 - s) * density / 5
    torch.testing.assert_close(q.scores.double(), scores[2:], rtol=0, atol=1e-6)
