"""Stopping rules: what a look at a state sees, against the posterior typed out, and how rules combine."""

import math

import pytest
import torch

import foretaste as ft
from acquire_oracles import Case, gap
from foretaste.acquire import chance_among_classes, chance_of_error
from foretaste.pick import (
    Budget,
    ErrorLeft,
    Round,
    SmallChange,
    StablePredictions,
    StopRule,
    StopVerdict,
    look,
)


def tail(g, variance):
    return 0.5 * math.erfc(g / math.sqrt(2 * variance))


def wrong(mean_C, variance):
    """1 − ∫ φ(z) Π_{c≠t} Φ(z + (mean_t − mean_c)/σ) dz on a fine grid."""
    z = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    gaps = (mean_C.max() - mean_C.sort(descending=True).values[1:]) / math.sqrt(variance)
    right = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * torch.special.ndtr(z[:, None] + gaps).prod(1)
    return 1 - float(torch.trapezoid(right, z))


@pytest.mark.parametrize("case", [Case("l2"), Case("l2-watched", W=7), Case("ce", loss="ce")], ids=str)
def test_a_look_is_the_posterior(case):
    state = case.state()
    seen = look(state, [2, 5, 9], scale=0.3)
    e = [wrong(state.mean[i], 0.3 * float(state.watched_variance[i])) for i in range(state.W)]
    if case.loss == "ce":
        e = [math.sqrt(e[i] * (1 - float(torch.softmax(state.mean[i], 0).max()))) for i in range(state.W)]
    assert seen.error_left == pytest.approx(sum(e) / state.W, rel=1e-4)
    after = state.condition(2).condition(5).condition(9).watched_variance
    c = [tail(gap(state, i)[0], 0.6 * float(state.watched_variance[i] - after[i])) for i in range(state.W)]
    assert seen.change == pytest.approx(sum(c) / state.W)
    assert seen.labelled == case.L
    assert torch.equal(seen.predictions, state.mean.argmax(1))
    assert look(state).change is None
    assert look(state).error_left == pytest.approx(look(state, scale=state.scale).error_left)


def test_the_chance_of_a_change_is_that_of_drawn_labels():
    """Labels drawn from the posterior move the two largest outputs apart or past each other."""
    state = Case("l2").state()
    batch, g = [1, 4], torch.Generator().manual_seed(0)
    S = torch.cat([s for _, s in state.blocks()], 1)
    K = S[batch][:, batch] + state.ridge * torch.eye(2, dtype=torch.float64)
    gain = S[:, batch] @ torch.linalg.inv(K)
    draws = torch.randn(20_000, 2, state.C, generator=g, dtype=torch.float64)
    moves = torch.einsum("wb,nbc->nwc", gain, torch.einsum("ab,nbc->nac", torch.linalg.cholesky(K), draws))
    two = state.mean.topk(2, 1).indices
    f_two = (state.mean + moves).gather(2, two.expand(len(moves), -1, -1))
    swapped = f_two[:, :, 0] < f_two[:, :, 1]
    assert look(state, batch, scale=1.0).change == pytest.approx(float(swapped.double().mean()), abs=0.01)


@pytest.mark.parametrize("C", [2, 3, 10, 77])
def test_the_chance_of_an_error_counts_every_class(C):
    """Outputs drawn around their means: how often another class is the largest. Two classes gave at most 1/2."""
    g = torch.Generator().manual_seed(C)
    mean_NC, var_N = (
        torch.randn(40, C, generator=g, dtype=torch.float64),
        torch.logspace(-4, 2, 40, dtype=torch.float64),
    )
    mean_NC[:2] = 0.5
    got = chance_among_classes(mean_NC, var_N)
    assert got[:2].tolist() == pytest.approx([1 - 1 / C] * 2, abs=1e-3)
    want = [wrong(m, float(v)) for m, v in zip(mean_NC, var_N)]
    assert got.tolist() == pytest.approx(want, rel=0.02, abs=1e-4)
    if C == 2:
        gap_N = (mean_NC[:, 0] - mean_NC[:, 1]).abs()
        assert torch.allclose(got, chance_of_error(gap_N, 2 * var_N), rtol=1e-6)
    # What is known exactly is right, or a tie.
    assert chance_among_classes(torch.eye(3, dtype=torch.float64)[:1], torch.zeros(1)).item() == 0


@pytest.mark.parametrize("method", ["dense", "direct"])
@pytest.mark.parametrize("watch", [None, 7])
def test_a_look_carries_the_misfit_of_the_network(method, watch):
    """With the tiny ridge it was the posterior of a network that fits: the expected error rose with labels."""
    x, y, net = clouds(40)
    how = {"method": method, "watch": None if watch is None else x[-watch:]}
    plain, carried = (ft.linearize(net, x[:12], y[:12], x[12:], ridge=r, **how) for r in (None, "misfit"))
    assert carried.ridge > 100 * plain.ridge
    for a, b in ((plain, carried), (plain.condition(3, 1).condition(5), carried.condition(3, 1).condition(5))):
        assert look(a, [0, 2]).error_left == pytest.approx(look(b, [0, 2]).error_left, rel=1e-5)
        assert look(a, [0, 2]).change == pytest.approx(look(b, [0, 2]).change, rel=1e-5)
        assert torch.equal(look(a).predictions, b.mean.argmax(1))
    given = ft.linearize(net, x[:12], y[:12], x[12:], ridge=plain.ridge, **how)
    assert look(given).error_left != pytest.approx(look(plain).error_left, rel=1e-2)


def clouds(n, steps=10):
    """Three clouds that overlap, and a network that was trained briefly on the first twelve points."""
    g = torch.Generator().manual_seed(1)
    y = torch.arange(n) % 3
    x = torch.randn(n, 6, generator=g, dtype=torch.float64) + 1.5 * torch.eye(6, dtype=torch.float64)[y]
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)).double()
    ft.fit(net, x[:12], y[:12], steps=steps, seed=0)
    return x, y, net.eval()


def test_the_expected_error_of_a_network_that_does_not_fit_falls_with_labels():
    x, y, _ = clouds(400)
    left = []
    for L in (9, 30, 100, 300):
        _, _, net = clouds(400)
        ft.fit(net, x[:L], y[:L], steps=40, max_lr=0.05, seed=0)
        left.append(look(ft.linearize(net, x[:L], y[:L], x[300:], watch=x[300:])).error_left)
    assert left == sorted(left, reverse=True)
    assert left[-1] < left[0] / 2


def test_labels_that_are_kept_count():
    state = Case("l2").state()
    assert look(state.condition(3, 1).condition(4, None)).labelled == state.L + 1
    assert look(Case("r", C=1).state()) is not None
    assert look(Case("r", C=1).state()).error_left is None
    with pytest.raises(ValueError, match="use another output"):
        look(Case("full", full=True, C=3, L=4, U=8).state())
    with pytest.raises(ValueError, match="scale is 0; expected a number above 0"):
        look(state, scale=0)


def rounds(*errors, change=0.02, labelled=10):
    return [Round(labelled * (n + 1), e, change, torch.arange(8) + n) for n, e in enumerate(errors)]


def test_rules():
    assert ErrorLeft(0.05)(rounds(0.2, 0.04)) == StopVerdict(True, "the expected error is 4.00%, at most 5.00%")
    assert ErrorLeft(0.05)(rounds(0.2)) == StopVerdict(False, "the expected error is 20.00%, above 5.00%")
    assert Budget(20)(rounds(0.2, 0.1)) == StopVerdict(True, "20 of 20 labels are given")
    assert not Budget(21)(rounds(0.2, 0.1))
    said = SmallChange(0.03)(rounds(0.2))
    assert said.stop
    assert said.reason == "the share of predictions that the next batch changes is 2.00%, at most 3.00%"
    assert not SmallChange(0.01)(rounds(0.2))
    assert not SmallChange(0.03, rounds=2)(rounds(0.2))
    assert SmallChange(0.03, rounds=2)(rounds(0.2, 0.2))
    assert not ErrorLeft()([])
    assert ErrorLeft()([]).reason == "nothing is labelled yet"


@pytest.mark.parametrize(
    ("changes", "stop"),
    [
        ([0.05, 0.02, 0.03], True),  # what came before the latest two does not count
        ([0.02, 0.05, 0.02], False),
        ([0.02, 0.02, 0.05], False),
        ([0.02], False),
    ],
)
def test_a_small_change_must_last_so_many_rounds(changes, stop):
    seen = [Round(10 * n, 0.1, change) for n, change in enumerate(changes, 1)]
    said = SmallChange(0.03, rounds=2)(seen)
    assert said.stop is stop
    assert f"is {max(changes[-2:]):.2%}" in said.reason


def test_stable_predictions():
    y = torch.arange(100)
    other = y.clone()
    other[:2] = -1
    rule = StablePredictions(0.98, rounds=2)
    seen = [Round(n, predictions=p) for n, p in enumerate([y + 1, y, other, other])]
    assert not rule(seen[:2])
    assert rule(seen[:2]).reason == "predictions of 2 rounds are known, 3 are compared"
    assert not rule(seen[:3])
    assert rule(seen).stop
    assert rule(seen).reason == "predictions agree on 98.0% at least, 98.0% is asked for"
    with pytest.raises(ValueError, match="predictions of 100, 100, 3 points; watch the same"):
        rule([*seen, Round(5, predictions=y[:3])])


def test_rules_combine():
    a, b, c = ErrorLeft(0.05), Budget(100), SmallChange(0.01)
    few, done = rounds(0.2), rounds(0.01, labelled=100)
    assert isinstance(a & b, StopRule)
    assert not (a & b)(few)
    assert (a & b)(done) == StopVerdict(
        True, "the expected error is 1.00%, at most 5.00% and 100 of 100 labels are given"
    )  # fmt: skip
    assert (a & c)(done).reason == "the share of predictions that the next batch changes is 2.00%, above 1.00%"
    assert (a | c)(done) == StopVerdict(True, "the expected error is 1.00%, at most 5.00%")
    assert not (b | c)(few)
    assert (a | b | c).rules == (a, b, c)
    assert (a & b & c).rules == (a, b, c)
    assert ((a | b) & c).rules == (a | b, c)
    assert (a | b) == (a | b)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Budget(0), "labels is 0; expected a whole number of at least 1"),
        (lambda: ErrorLeft(0), "below is 0; expected a share above 0"),
        (lambda: SmallChange(2), "below is 2; expected a share above 0 and at most 1"),
        (lambda: StablePredictions(0.9, rounds=0), "rounds is 0"),
        (lambda: ErrorLeft()([Round(5)]), "ErrorLeft needs what look"),
        (lambda: SmallChange()([Round(5, 0.1)]), r"SmallChange needs what look\(state, q.indices\) finds"),
        (lambda: StablePredictions()([Round(5)]), "make rounds by look"),
    ],
)
def test_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_loop_that_stops():
    """Labels of a simple rule come in until the expected error is small."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(80, 2, generator=g)
    y = (x[:, 0] > 0).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    rule, seen, labelled = ErrorLeft(0.1) | Budget(30), [], list(range(4))
    while True:
        pool = [i for i in range(60) if i not in labelled]
        ft.fit(net, x[labelled], y[labelled], steps=150, seed=0)
        q = ft.query(net.eval(), x[labelled], y[labelled], x[pool], batch_size=4)
        state = ft.linearize(net, x[labelled], y[labelled], x[pool], watch=x[60:])
        seen.append(look(state, q.indices))
        if verdict := rule(seen):
            break
        labelled += [pool[j] for j in q.indices]
    assert 4 <= len(labelled) <= 30
    assert verdict.reason
    assert seen[-1].error_left < seen[0].error_left or len(labelled) == 30
