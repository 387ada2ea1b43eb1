"""The loop of Alg. 1: paired, seeded, and blind to the test points."""

import ast
import copy
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from foretaste import report
from foretaste.acquire import OwnTraining, StudyHints, register, strategies
from foretaste.data import Images, draw
from foretaste.executors import ENVIRONMENT
from foretaste.lookahead import linearize
from foretaste.network import MLP, Diverged, fit
from foretaste.network.sgd import diverged_error
from foretaste.pick import gp_predict
from foretaste.study import (
    Arm,
    Ask,
    Labels,
    Network,
    Train,
    about,
    cycles,
    loop,
    run,
    smoke,
    study,
    study_of,
    trial_network,
)
from foretaste.study.config import MODELS

SMALL = study(
    ("gain", "gain sequential", "mlmoc", "margin", "random"),
    seeds=(0, 1),
    labels=Labels(init=6, per_cycle=3, cycles=2),
    network=Network("mlp", {"hidden": (16,)}),
    train=Train(steps=60, batch=8, max_lr=0.5),
)


def points(n=60):
    """Three clouds in the plane; a third coordinate is each point's own id, so that inputs can be told apart."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    x = np.stack([np.cos(2.1 * y), np.sin(2.1 * y)], 1) + 0.3 * rng.normal(size=(n, 2))
    x = np.concatenate([x, np.arange(n)[:, None] / n], 1)
    ids = rng.permutation(n)
    return Images(
        name="clouds",
        x=torch.as_tensor(x, dtype=torch.float32),
        y=torch.as_tensor(y),
        pool=ids[:40],
        test=ids[40:],
        classes=("a", "b", "c"),
    )


def timeless(records):
    return [{k: v for k, v in r.items() if k != "cost"} for r in records]


def records_of(arm, seed, data=None, of=SMALL):
    return [record for record, _ in cycles(of.trial(arm), data or points(), seed)]


@pytest.mark.parametrize("strategy", ["gain", "gain sequential", "mlmoc", "margin", "random"])
def test_records_of_a_run(strategy):
    data = points()
    records = records_of(strategy, 1, data)
    assert [r["cycle"] for r in records] == [0, 1, 2]
    assert [r["labelled"] for r in records] == [6, 9, 12]
    assert [len(r["queried"]) for r in records] == [3, 3, 0]
    assert [r["candidates"] for r in records] == [34, 31, 0]
    for before, after in itertools.pairwise(records):
        assert after["labelled_ids"] == before["labelled_ids"] + before["queried"]
    for r in records:
        assert r["labels"] == data.y[r["queried"]].tolist()
        assert len(r["predicted"]) == len(r["queried"])
        assert 0 <= r["accuracy"] <= 1
        assert (r["cost"]["query"] is None) == (r["cycle"] == 2)
        assert r["cost"]["peak_memory"] > 1e6
        assert (r["scale"] is not None) == (strategy in ("gain", "gain sequential", "mlmoc") and r["cycle"] < 2)
        assert r["config"]["train"]["steps"] == r["steps"] == 60
        assert r["max_lr"] == 0.5
        assert r["versions"]["torch"] == torch.__version__
        json.dumps(r, allow_nan=False)


@pytest.mark.parametrize("strategy", ["gain", "gain sequential", "mlmoc", "margin", "random"])
def test_no_point_is_asked_twice_and_the_test_set_never_leaks(strategy, monkeypatch):
    data, seen = points(), {"fit": [], "query": [], "linearize": [], "oracle": []}

    def ids(x):
        return (x[:, 2] * len(data.x)).round().long().tolist()

    def fit(net, x, y, **rest):
        seen["fit"].append(ids(x))
        assert y.tolist() == data.y[ids(x)].tolist()
        return loop_fit(net, x, y, **rest)

    def query(net, x_L, y_L, x_U, **rest):
        assert ids(x_U) == rest["ids"]
        assert not set(ids(x_L)) & set(ids(x_U))
        seen["query"] += [ids(x_L) + ids(x_U)]
        if rest["oracle"] is not None:
            answer = rest["oracle"]
            rest["oracle"] = lambda i: (seen["oracle"].append(i), answer(i))[1]
        return loop_query(net, x_L, y_L, x_U, **rest)

    def linear(net, x_L, y_L, x_U, **rest):
        seen["linearize"] += [ids(x_L) + ids(x_U)]
        return linearize(net, x_L, y_L, x_U, **rest)

    loop_fit, loop_query = trial_network.fit, loop.query
    monkeypatch.setattr(trial_network, "fit", fit)
    monkeypatch.setattr(loop, "query", query)
    monkeypatch.setattr(loop, "linearize", linear)
    records = records_of(strategy, 0, data)
    first = draw(data.pool, data.test, SMALL.labels.init, 0).L.tolist()
    asked = [i for r in records for i in r["queried"]]
    assert seen["fit"] == [first, first + asked[:3], first + asked]
    assert len(set(first + asked)) == len(first + asked)
    assert seen["oracle"] == (asked if strategy == "gain sequential" else [])
    touched = {i for kind in ("fit", "query", "linearize") for group in seen[kind] for i in group}
    assert touched <= set(data.pool.tolist())


def test_strategies_are_paired_by_seed():
    """Before the first query two strategies are one network; two seeds are not."""
    data = points()
    gain, random, other = (records_of(*of, data)[0] for of in (("gain", 0), ("random", 0), ("random", 1)))
    for key in ("accuracy", "residual", "labelled"):
        assert gain[key] == random[key]
    assert gain["residual"] != other["residual"]


def test_initial_weights_depend_on_seed_and_cycle_alone(monkeypatch):
    """With no step of training, what is left is the initialisation."""
    drawn = {}
    real = trial_network.fit

    def fit(net, x, y, **rest):
        out = real(net, x, y, **rest | {"steps": 1, "max_lr": 1e-30})
        drawn[key][len(x)] = torch.cat([p.detach().flatten() for p in net.parameters()])
        return out

    monkeypatch.setattr(trial_network, "fit", fit)
    for key in (("margin", 0), ("random", 0), ("random", 1)):
        drawn[key] = {}
        records_of(*key)
    for n in (6, 9, 12):
        torch.testing.assert_close(drawn["margin", 0][n], drawn["random", 0][n], rtol=0, atol=0)
        assert not torch.equal(drawn["random", 0][n], drawn["random", 1][n])
    assert not torch.equal(drawn["random", 0][6], drawn["random", 0][9])


def test_same_seed_same_records():
    data = points()
    a, b = (timeless(records_of("gain", 0, data)) for _ in range(2))
    assert a == b


def test_scale_is_carried_from_batch_to_batch(monkeypatch):
    """s² of a cycle is its leave-one-out value times what the last batch's residuals said, typed out here."""
    data, kept = points(), []
    real = loop.query

    def query(net, x_L, y_L, x_U, **rest):
        q = real(net, x_L, y_L, x_U, **rest)
        state = linearize(net, x_L, y_L, x_U)
        honest = [
            float(((data.y[i] == torch.arange(3)).double() - state.pool_mean[j]).square().sum() / (3 * state.u[j]))
            for i, j in zip(q.ids, q.indices)
        ]
        kept.append((rest["options"]["scale"], state.scale / 10, np.mean(honest)))
        return q

    monkeypatch.setattr(loop, "query", query)
    records = records_of("gain", 0, data)
    (s0, loo0, honest0), (s1, loo1, _) = kept
    assert s0 == pytest.approx(10 * loo0)
    assert s1 == pytest.approx(loo1 * honest0 / loo0)
    assert [r["scale"] for r in records[:2]] == [s0, s1]


def test_scale_by_the_full_kernel():
    """There u_j is a matrix: s² = mean_j e_jᵀ u_j⁻¹ e_j / C."""
    data, net = points(), MLP(3, (8,), 3).eval()
    L, u = data.pool[:6], data.pool[6:10]
    state = linearize(net, data.x[L], data.y[L], data.x[u], output="full")
    honest = []
    for j, i in enumerate(u):
        e_C = (data.y[i] == torch.arange(3)).double() - state.pool_mean[j]
        honest.append(float(e_C @ torch.linalg.inv(state.u[j]) @ e_C) / 3)
    got = loop.new_label_scale(net, data.x[L], data.y[L], data.x[u], data.y[u], {"output": "full", "loss": "l2"})
    assert got == pytest.approx(np.mean(honest))
    records = records_of("gain", 0, data, of=replace(SMALL, query=Ask(output="full")))
    assert records[1]["ratio"] != records[0]["ratio"] > 0


def test_a_pool_too_small_is_refused():
    of = study(("random",), labels=Labels(init=10, per_cycle=11, cycles=3))
    with pytest.raises(ValueError, match="43 labels"):
        records_of("random", 0, of=of)


def test_a_logit_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"query.output=3 and clouds has 3 classes; expected .* 0 to 2"):
        records_of("gain", 0, of=replace(SMALL, query=Ask(output=3)))


@pytest.mark.parametrize(
    ("strategy", "loss", "rate"), [("margin", "l2", 0.5), ("margin", "ce", 0.1), ("ll4al", "l2", 0.05)]
)
def test_records_tell_the_learning_rate_that_was_not_given(strategy, loss, rate):
    of = study((strategy,), labels=Labels(init=6, per_cycle=1, cycles=0), train=Train(loss=loss, steps=2))
    (record,) = records_of(strategy, 0, of=of)
    assert record["config"]["train"]["max_lr"] is None
    assert record["max_lr"] == rate


def test_a_subset_is_drawn_anew_each_cycle_and_mostly_the_same_for_two_arms(monkeypatch):
    offered, real = {}, loop.query

    def query(net, x_L, y_L, x_U, **rest):
        offered[arm].append(rest["ids"])
        return real(net, x_L, y_L, x_U, **rest)

    monkeypatch.setattr(loop, "query", query)
    of = replace(SMALL, labels=replace(SMALL.labels, subset=12))
    for arm in ("margin", "random"):
        offered[arm] = []
        records = records_of(arm, 0, of=of)
        assert [r["candidates"] for r in records] == [12, 12, 0]
        first, second = offered[arm]
        assert set(records[0]["queried"]) <= set(first)
        assert len(set(first)) == 12
        assert set(first) != set(second)
        assert not set(second) & set(records[1]["labelled_ids"])
    assert offered["margin"][0] == offered["random"][0]
    assert len(set(offered["margin"][1]) & set(offered["random"][1])) >= 9


def test_each_cycle_offers_by_a_seed_of_its_own(monkeypatch):
    """U of a cycle is what is left of the pool, drawn by the seed of that cycle and not of the first."""
    offered, real = [], loop.query

    def query(net, x_L, y_L, x_U, **rest):
        offered.append(rest["ids"])
        return real(net, x_L, y_L, x_U, **rest)

    monkeypatch.setattr(loop, "query", query)
    data, of = points(), replace(SMALL, labels=replace(SMALL.labels, subset=12))
    split = draw(data.pool, data.test, of.labels.init, 3)
    for cycle, record in enumerate(records_of("margin", 3, data, of)[:-1]):
        assert offered[cycle] == split.offer(12, trial_network.derive_seed(3, cycle, "offer")).U.tolist()
        split = split.label(record["queried"])
    left = set(offered[0]) - {*split.L.tolist()}
    assert not left <= set(offered[1])  # in one order for all cycles, those left would come first again


def test_the_oracle_answers_with_the_true_class(monkeypatch):
    """Not with the class that the network predicts: labels here are wrong for most points."""
    answered, real = {}, loop.query

    def query(net, x_L, y_L, x_U, **rest):
        answer = rest["oracle"]
        rest["oracle"] = lambda i: answered.setdefault(i, answer(i))
        return real(net, x_L, y_L, x_U, **rest)

    monkeypatch.setattr(loop, "query", query)
    data = points()
    data = replace(data, y=(data.y + 1 + torch.arange(len(data.y)) // 3) % 3)  # nothing that could be predicted
    records = records_of("gain sequential", 0, data)
    asked = [i for r in records for i in r["queried"]]
    assert answered == {i: int(data.y[i]) for i in asked}
    assert [p for r in records for p in r["predicted"]] != [int(data.y[i]) for i in asked]


def test_queries_have_the_seed_of_their_cycle(monkeypatch):
    seeds, real = [], loop.query

    def query(net, x_L, y_L, x_U, **rest):
        seeds.append(rest["seed"])
        return real(net, x_L, y_L, x_U, **rest)

    monkeypatch.setattr(loop, "query", query)
    for seed in (0, 1):
        records_of("random", seed)
    assert seeds == [trial_network.derive_seed(seed, cycle, "query") for seed in (0, 1) for cycle in (0, 1)]
    assert len(set(seeds)) == 4


def test_seeds_differ_by_seed_cycle_and_use_and_never_change():
    every = [(s, c, use) for s in range(20) for c in range(20) for use in ("train", "query", "offer", "noise")]
    assert len({trial_network.derive_seed(*one) for one in every}) == len(every)
    assert trial_network.derive_seed(0, 0, "train") == 2660278801
    assert trial_network.derive_seed(7, 3, "offer") == 4245504854


def test_warm_start_goes_on_from_the_last_weights(monkeypatch):
    """With a learning rate of nothing every cycle has the weights of the first; cold start has new ones."""
    drawn = {"warm": [], "cold": []}
    for start in drawn:
        of = replace(SMALL, train=Train(steps=1, batch=8, max_lr=1e-30, start=start))
        drawn[start] = [net.layers[0].weight.clone() for _, net in cycles(of.trial("random"), points(), 0)]
    assert torch.equal(drawn["warm"][0], drawn["warm"][2])
    assert not torch.equal(drawn["cold"][0], drawn["cold"][2])
    assert torch.equal(drawn["warm"][0], drawn["cold"][0])


PRETRAINED = """
import torch
from torch import nn


def pretrained(inputs, classes):
    net = nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, classes))
    with torch.no_grad():
        net[0].weight.fill_(0.25)  # as if from a file; the head is new
    return net
"""


def test_a_function_that_returns_the_same_network_each_time(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "the_same_network.py").write_text(
        "from torch import nn\nNET = nn.Linear(3, 3)\ndef net():\n    return NET\n"
    )
    of = replace(SMALL, network=Network("the_same_network:net"))
    first, second = (timeless(records_of("random", 0, of=of)) for _ in range(2))
    assert first == second  # the first run has not trained it
    assert "from the weights that its function builds" in about(of, points(), command="", processes=1)["training"]


@pytest.mark.parametrize("strategy", ["random", "ll4al"])
@pytest.mark.parametrize("start", ["cold", "warm"])
def test_weights_of_ones_own_network_are_those_its_function_builds(start, strategy, tmp_path, monkeypatch):
    """Pretrained weights stay; weights that the function draws depend on seed and cycle alone, as for our networks."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pretrained_of_mine.py").write_text(PRETRAINED)
    of = replace(
        SMALL,
        arms=(
            Arm("random", "random"),
            Arm("other", strategy, options={"layers": ["1"]} if strategy == "ll4al" else {}),
        ),
        network=Network("pretrained_of_mine:pretrained"),
        train=Train(steps=1, batch=8, max_lr=1e-30, start=start),
    )

    def weights(arm, seed):
        found = []
        for _, net in cycles(of.trial(arm), points(), seed):
            found.append((net[0].weight.detach().clone(), net[2].weight.detach().clone()))
        return found

    first, twin, other = weights("random", 0), weights("other", 0), weights("random", 1)
    for body, _ in first + twin + other:
        assert torch.equal(body, torch.full_like(body, 0.25))
    for (_, a), (_, b), (_, c) in zip(first, twin, other):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    assert torch.equal(first[0][1], first[2][1]) == (start == "warm")


def diverge_above(monkeypatch, rate):
    """Trainings at a higher learning rate end in NaN, with more than six labels."""
    of_fit = sys.modules["foretaste.network.fit"]
    real = of_fit.train_fast

    def train(net, x, goal, how):
        final = real(net, x, goal, how)
        if how.max_lr > rate and len(x) > 6:
            for p in net.parameters():
                p.data.fill_(torch.nan)
            raise diverged_error("the loss is nan at step 1 of 2", how)
        return final

    monkeypatch.setattr(of_fit, "train_fast", train)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("start", ["warm", "cold"])
def test_a_training_that_diverges_is_repeated_and_recorded(start, own, tmp_path, monkeypatch, caplog):
    """The arm went on with a network at its initial weights. Interrupted runs resume and give identical records."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pretrained_and_diverged.py").write_text(PRETRAINED)
    network = Network("pretrained_and_diverged:pretrained") if own else SMALL.network
    of = replace(SMALL, seeds=(0,), arms=(Arm("random", "random"),), network=network)
    of = replace(of, train=replace(of.train, start=start))
    diverge_above(monkeypatch, 0.2)
    whole = run(of, tmp_path / "whole", data=points())
    assert [(r["retries"], r["max_lr"]) for r in whole] == [(0, 0.5), (2, 0.125), (2, 0.125)]
    assert "arm random, seed 0, cycle 1: training diverged and was repeated at max_lr=0.125" in caplog.text
    assert all(r["accuracy"] > 0.6 for r in whole)

    def stop(record):
        if record["cycle"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(of, tmp_path / "parts", data=points(), seen=stop)
    assert timeless(run(of, tmp_path / "parts", data=points())) == timeless(whole)
    page = report.summarize(whole)
    assert "repeated at a lower learning rate: 2 of random." in report.words.learned_labels(page)[1]


def test_a_training_that_diverges_at_lower_rates_too_ends_the_study(monkeypatch):
    diverge_above(monkeypatch, 0.05)
    told = (
        r"arm 'random', seed 0: training diverged: the loss is nan at step 1 of 2, with max_lr=0.5, and 3 times more, "
        r"down to max_lr=0.0625; lower it further, to max_lr=0.00625 say"
    )
    with pytest.raises(Diverged, match=told):
        run(replace(SMALL, arms=(Arm("random", "random"),)), data=points())


def test_study_names_no_strategy():
    """What a study needs to know of a strategy is declared where that is registered.

    "random" is the name of the baseline, "gp" also that of a model, and "change" of a field of fidelity's records.
    """
    named = {*strategies()} - {"random", "gp", "change"}
    for path in Path(loop.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert node.value not in named, f"{path.name}, line {node.lineno}"
            names = [a.name for a in node.names] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if "ll4al" in name.lower()]


@pytest.mark.usefixtures("_names")
def test_a_strategy_of_ones_own_declares_its_training_scale_and_small_options():
    """The loop trains by it, hands its options on to the query, and calibrates the option it names."""
    seen = {"fit": [], "query": [], "small": []}

    def train(net, x_L, y_L, *, strength=1, **settings):
        seen["fit"].append((len(x_L), strength, settings["max_lr"]))
        settings["max_lr"] = settings["max_lr"] or 0.3
        return fit(net, x_L, y_L, **settings), {"trained_on": len(x_L)}

    training = OwnTraining(train, ("strength",), {"l2": 0.3, "ce": 0.2})

    @register("own training", study=StudyHints(trains=training))
    def own_training(state, trained_on=None):
        seen["query"].append(trained_on)
        return state.pool_mean.amax(1)

    @register("own scale", needs="kernel", study=StudyHints(calibrates="width", small={"rounds": 1}))
    def own_scale(state, width=None, rounds=9):
        seen["small"].append((width, rounds))
        return state.pool_mean.amax(1)

    arms = (Arm("a", "own training", options={"strength": 5}), Arm("b", "own scale"))
    of = replace(SMALL, arms=arms, train=replace(SMALL.train, max_lr=None))
    records = records_of("a", 0, of=of)
    assert seen["fit"] == [(6, 5, None), (9, 5, None), (12, 5, None)]
    assert seen["query"] == [6, 9]
    assert records[0]["max_lr"] == 0.3
    records = records_of("b", 0, of=of)
    assert [width for width, _ in seen["small"]] == [r["scale"] for r in records[:2]]
    assert records[1]["ratio"] != records[0]["ratio"] != 10
    assert smoke(of).arm("b").options == {"rounds": 1}
    assert "scale of own scale" in about(of, points(), command="", processes=1)
    with pytest.raises(ValueError, match="unknown option of own training 'strenght'; did you mean 'strength'"):
        Arm("c", "own training", options={"strenght": 5})
    with pytest.raises(Diverged, match=r"training diverged: .*, with max_lr=1e"):
        records_of("a", 0, of=replace(of, train=Train(steps=40, max_lr=1e20)))


@pytest.mark.parametrize("strategy", ["ll4al", "badge", "naive", "emoc", "eer", "gp"])
def test_other_strategies_run_in_the_loop(strategy):
    arm = Arm(
        strategy,
        strategy,
        options={"epochs": 1} if strategy == "naive" else {},
        model="gp" if strategy == "gp" else "network",
    )
    records = records_of(strategy, 0, of=replace(SMALL, arms=(arm,)))
    assert [len(r["queried"]) for r in records] == [3, 3, 0]
    assert len({i for r in records for i in r["queried"]}) == 6


def test_a_gaussian_process_predicts_in_the_place_of_the_network():
    """Its accuracy is that of gp_predict on the labels so far, computed here by hand."""
    data = points()
    records = records_of("GP", 0, data, of=replace(SMALL, arms=(Arm("GP", "random", model="gp"),)))
    net = MLP(3, (16,), 3)
    for r in records:
        L = r["labelled_ids"]
        f = gp_predict(net, data.x[L], data.y[L], data.x[data.test], classes=3)
        assert r["accuracy"] == pytest.approx(float((f.argmax(1) == data.y[data.test]).double().mean()))


@pytest.mark.parametrize("model", ["network", "gp", "pool", "soft"])
@pytest.mark.parametrize("start", ["warm", "cold"])
@pytest.mark.parametrize("cut", [1, 2])
def test_going_on_from_records_and_weights_changes_nothing(cut, start, model):
    of = replace(
        SMALL,
        train=replace(SMALL.train, start=start),
        arms=(Arm("gain", "gp" if model == "gp" else "gain", model=model),),
    )
    trial, data = of.trial("gain"), points()
    whole = [(r, {k: v.clone() for k, v in net.state_dict().items()}) for r, net in cycles(trial, data, 0)]
    done = json.loads(json.dumps([r for r, _ in whole[:cut]]))
    rest = [r for r, _ in cycles(trial, data, 0, done=done, weights=whole[cut - 1][1])]
    assert timeless(rest) == timeless([r for r, _ in whole[cut:]])


@pytest.mark.parametrize(
    ("strategy", "start", "loaded"),
    [
        *((s, "warm", True) for s in ("gain", "pool", "soft")),
        *((s, "cold", loaded) for s in ("gain", "gp", "pool", "soft", "ll4al") for loaded in (True, False)),
    ],
)
def test_more_cycles_are_those_of_a_longer_study(strategy, start, loaded):
    """The last record of the shorter one comes again, with the query that it lacks."""
    model = strategy if strategy in MODELS else "network"
    arm = Arm("arm", "gain" if model in ("pool", "soft") else strategy, model=model)
    of = replace(SMALL, train=replace(SMALL.train, start=start), arms=(arm,))
    shorter = replace(of, labels=replace(of.labels, cycles=1))
    trial, data = of.trial("arm"), points()
    whole = list(cycles(trial, data, 0))
    done, nets = zip(*[(r, copy.deepcopy(net)) for r, net in cycles(shorter.trial("arm"), data, 0)])
    assert [bool(r["queried"]) for r in done] == [True, False]
    more = cycles(trial, data, 0, done=done, weights=nets[-1].state_dict() if loaded else None)
    assert timeless([r for r, _ in more]) == timeless([r for r, _ in whole[1:]])
    assert not done[-1]["queried"]


def test_what_a_strategy_trains_beside_the_network_is_not_there_for_more_cycles():
    of = replace(SMALL, train=replace(SMALL.train, start="warm"), arms=(Arm("arm", "ll4al"),))
    shorter = replace(of, labels=replace(of.labels, cycles=0))
    ((record, net),) = cycles(shorter.trial("arm"), points(), 0)
    with pytest.raises(ValueError, match="arm 'arm' cannot go on to more cycles: ll4al trains a part beside"):
        next(cycles(of.trial("arm"), points(), 0, done=[record], weights=net.state_dict()))


QUICK = study(
    ("margin", "random"),
    seeds=(3, 1),
    labels=Labels(init=20, per_cycle=10, cycles=1),
    network=Network("mlp", {"hidden": (16,)}),
    train=Train(steps=40),
)


def test_arms_share_the_network_of_the_first_cycle(tmp_path, monkeypatch):
    """It is trained once for each seed, network and training; records are those of arms that train it themselves."""
    wide = Arm("wide", "margin", network={"hidden": (8,)})
    slow = Arm("slow", "margin", train={"max_lr": 0.1})
    of = replace(SMALL, arms=(*SMALL.arms, wide, slow), train=replace(SMALL.train, start="warm"))
    data = points()
    alone = {(arm, seed): records_of(arm, seed, data, of) for arm in of.names for seed in of.seeds}
    sizes, train = [], trial_network.fit
    monkeypatch.setattr(trial_network, "fit", lambda net, x, y, **how: sizes.append(len(x)) or train(net, x, y, **how))
    found = run(of, tmp_path, data=data)
    assert timeless(found) == timeless(
        r | {"against": of.arm(arm).against} for (arm, _), records in alone.items() for r in records
    )
    assert sizes.count(6) == 3 * len(of.seeds)
    assert len(sizes) == 3 * len(of.seeds) + 2 * len(of.names) * len(of.seeds)
    kept = sorted((tmp_path / "first").glob("*.safetensors"))
    assert len(kept) == 3 * len(of.seeds)


@pytest.mark.parametrize("damage", ["bytes", "pipe", "other metadata"])
def test_a_damaged_first_network_is_trained_again(tmp_path, damage):
    data = points()
    of = replace(SMALL, arms=SMALL.arms[-2:-1], seeds=(0,))
    before = run(of, tmp_path, data=data)
    (kept,) = (tmp_path / "first").glob("*")
    tensors = load_file(kept)
    kept.unlink()
    match damage:
        case "bytes":
            kept.write_bytes(b"damaged")
        case "pipe":
            os.mkfifo(kept)
        case "other metadata":
            save_file({name: torch.zeros_like(t) for name, t in tensors.items()}, kept, {"fit": "[1, 2]"})
    after = run(replace(of, arms=SMALL.arms[-1:]), tmp_path, data=data)
    assert after[0]["residual"] == before[0]["residual"]
    assert kept.stat().st_size > 100


def test_a_full_disk_keeps_no_first_network_and_is_told_by_name(tmp_path, monkeypatch):
    def full(*args, **settings):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("foretaste.network.saved.save_file", full)
    with pytest.raises(OSError, match=r"the disk is full, .*weights.*could not be written; free some space"):
        run(replace(SMALL, arms=SMALL.arms[-1:], seeds=(0,)), tmp_path, data=points())
    assert not list((tmp_path / "first").iterdir())


OWN_STRATEGY = """
import torch
import foretaste as ft

@ft.register("remote")
def remote(state):
    return torch.cdist(state.pool_mean, state.pool_mean).mean(1)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("_names")
def test_processes_change_nothing_but_the_times(tmp_path):
    """Workers know the strategies of a plugin too."""
    (tmp_path / "remote.py").write_text(OWN_STRATEGY)
    table = {"strategies": ["remote", "random"], "seeds": [3, 1], "labels": vars(QUICK.labels), "train": {"steps": 40}}
    of = study_of(table | {"network": {"name": "mlp", "hidden": [16]}}, plugins=[str(tmp_path / "remote.py")])
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    here, seen = run(of), []
    there = run(of, processes=2, seen=seen.append)
    assert timeless(there) == timeless(here)
    assert [(r["arm"], r["seed"], r["cycle"]) for r in there] == [
        (name, seed, c) for name in ("remote", "random") for seed in (3, 1) for c in (0, 1)
    ]
    assert sorted(map(str, seen)) == sorted(map(str, there))
    assert {name: os.environ.get(name) for name in ENVIRONMENT} == before


@pytest.mark.slow
def test_an_error_in_a_worker_is_told():
    of = replace(QUICK, labels=Labels(init=1190, per_cycle=10, cycles=1))
    with pytest.raises(RuntimeError, match=r"arm '\w+', seed [13]: .*1200") as caught:
        run(of, processes=2)
    assert "Traceback" in caught.value.__notes__[0]


def alive(group):
    """Processes of a group that still run; one that has ended may wait a moment for its parent to take note."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended while we looked
            state, _, pgid, *_ = path.read_text().rpartition(") ")[2].split()
            found += [path] if pgid == str(group) and state != "Z" else []
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_interrupt_ends_cleanly(tmp_path):
    """Ctrl-C reaches every process of the terminal's group; ours end at once, without a traceback."""
    # A shell that starts the tests in the background has them ignore Ctrl-C, and so would the child.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{listen}; from foretaste.cli import main; main()"
    records = tmp_path / "demo"
    child = subprocess.Popen(
        [sys.executable, "-c", code, "demo", "--out", str(records)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not any(records.rglob("*.jsonl")):
            assert child.poll() is None, "the demo ended before its first record"
            time.sleep(0.05)
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=120)
        assert child.returncode == 130
        assert "Traceback" not in out + err
        assert "interrupted" in err
        deadline = time.monotonic() + 60  # multiprocessing's own tracker ends a moment after its parent
        while alive(child.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not alive(child.pid)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
