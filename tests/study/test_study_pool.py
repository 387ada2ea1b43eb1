"""Arms that learn from the pool: kernel regression with the pool in its kernel, and networks on its soft labels."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import foretaste as ft
from foretaste.data import Images
from foretaste.lookahead import graph
from foretaste.network import fit
from foretaste.study import Arm, Ask, Labels, Network, SettingsError, Train, cycles, estimate, run, smoke, study
from foretaste.study.folder import setting_changes
from foretaste.study.records import record_fault
from foretaste.study.trial_network import Model, derive_seed

OF = study(
    ("random",),
    seeds=(0,),
    labels=Labels(init=8, per_cycle=4, cycles=2),
    network=Network("mlp", {"hidden": (16,)}),
    train=Train(steps=60, batch=8, max_lr=0.2),
)


def clouds(n=120, near=0.4):
    """Three clouds in four dimensions, and the points that are in neither pool nor test last."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = 2 * torch.eye(4)[y] + near * torch.randn(n, 4, generator=g)
    ids = np.random.default_rng(0).permutation(n - 6)
    return Images("clouds", x.float(), y, pool=ids[:80], test=ids[80:], classes=("a", "b", "c"))


def records_of(arm, data, of=OF, seed=0):
    return [r for r, _ in cycles(replace(of, arms=(arm,)).trial(arm.name), data, seed)]


def without(records, *keys):
    return [{k: v for k, v in r.items() if k not in ("cost", "config", *keys)} for r in records]


def rest(data, r):
    return np.setdiff1d(data.pool, r["labelled_ids"])


@pytest.mark.parametrize("strategy", ["cover", "gain", "margin", "random", "uherding"])
def test_the_posterior_predicts_the_test_points_which_are_not_in_its_graph(strategy):
    data = clouds()
    records = records_of(Arm("pool", strategy, model="pool"), data)
    net = Model(OF.trial("random"), data).net
    for r in records:
        L, U = r["labelled_ids"], rest(data, r)
        state = ft.linearize(net, data.x[L], data.y[L], data.x[U], watch=data.x[data.test], pool="auto")
        assert r["accuracy"] == pytest.approx(float((state.mean.argmax(1) == data.y[data.test]).double().mean()))
        assert r["pool"] == pytest.approx(state.pool.as_dict(), rel=1e-9)
        assert r["pool"]["used"]
        assert r["pool"]["points"] == len(data.pool)
        at = {int(i): k for k, i in enumerate(U)}
        said = state.pool_mean.argmax(1)
        assert r["predicted"] == [int(said[at[i]]) for i in r["queried"]]
        assert record_fault(json.loads(json.dumps(r))) is None


@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_the_network_is_trained_on_soft_labels_of_the_whole_pool(loss):
    data, of = clouds(), replace(OF, train=replace(OF.train, loss=loss))
    arm = Arm("soft", "random", model="soft")
    records = records_of(arm, data, of)
    for r in records:
        L, U = r["labelled_ids"], rest(data, r)
        net = Model(of.trial("random"), data).net
        made = fit(
            net, data.x[L], data.y[L], pool=data.x[U], loss=loss, steps=60, batch_size=8, max_lr=0.2, start="cold",
            seed=derive_seed(0, r["cycle"], "train"),
        )  # fmt: skip
        with torch.no_grad():
            right = (net(data.x[data.test]).argmax(1) == data.y[data.test]).double()
        assert r["accuracy"] == float(right.mean())
        assert r["residual"] == made.residual
        assert r["pool"] == made.pool


def test_where_the_pool_does_not_help_every_arm_is_that_of_the_network(monkeypatch):
    monkeypatch.setattr(graph, "GAMMAS", (0.0,))
    data = clouds()
    for strategy in ("cover", "margin", "random"):
        plain, *others = (records_of(Arm("arm", strategy, model=model), data) for model in ("network", "pool", "soft"))
        for records in others:
            assert not any(r["pool"]["used"] for r in records)
            assert without(records, "pool", "scale") == without(plain, "pool", "scale")


def test_the_query_has_the_pool_unless_it_is_told_otherwise():
    data = clouds()
    asked = {}
    for model in ("network", "pool", "soft"):
        for pool in (None, "auto", "off"):
            arm = Arm("arm", "cover", model=model, query={} if pool is None else {"pool": pool})
            asked[model, pool] = records_of(arm, data)[0]
    for model in ("network", "pool", "soft"):
        on, off = asked[model, "auto"]["queried"], asked[model, "off"]["queried"]
        assert on != off
        assert asked[model, None]["queried"] == (off if model == "network" else on)
    assert asked["network", "auto"]["pool"]["used"]
    assert asked["network", "off"]["pool"] is None
    # With the pool in the kernel the network says nothing, so it does not matter how it was trained.
    assert asked["network", "auto"]["queried"] == asked["pool", "auto"]["queried"] == asked["soft", "auto"]["queried"]


def test_a_scale_is_calibrated_only_without_the_pool():
    data = clouds()
    on, off = (records_of(Arm("arm", "gain", model="pool", query={"pool": pool}), data) for pool in ("auto", "off"))
    assert [r["ratio"] for r in on] == [10.0] * 3
    assert off[0]["ratio"] != 10
    L, U = on[0]["labelled_ids"], rest(data, on[0])
    state = ft.linearize(Model(OF.trial("random"), data).net, data.x[L], data.y[L], data.x[U], pool="auto")
    assert on[0]["scale"] == pytest.approx(state.scale)


def test_a_graph_has_so_many_points_and_no_more():
    data = clouds()
    for model in ("pool", "soft"):
        records = records_of(Arm("arm", "cover", model=model, query={"graph_points": 30}), data)
        assert [r["pool"]["points"] for r in records] == [30, 30, 30]
        assert records[0]["config"]["query"]["graph_points"] == 30


def test_arms_of_one_model_share_the_first_network(tmp_path):
    data = clouds()
    arms = [Arm(f"{s} {m}", s, model=m) for m in ("network", "pool", "soft") for s in ("cover", "random")]
    of = replace(OF, arms=tuple(arms))
    found = run(of, tmp_path, data=data)
    alone = [r for arm in arms for r in records_of(arm, data)]
    assert without(found) == without(alone)
    assert len(list((tmp_path / "first").glob("*.safetensors"))) == 2  # of the network, and of the soft one
    assert without(run(of, tmp_path, data=data)) == without(found)


def test_records_without_the_new_keys_are_records_and_their_runs_resume():
    data, of = clouds(), replace(OF, labels=replace(OF.labels, cycles=1))
    trial = of.trial("random")
    (first, net), *_ = ((r, {k: v.clone() for k, v in n.state_dict().items()}) for r, n in cycles(trial, data, 0))
    _, second = records_of(of.arms[0], data, of)
    old = {k: v for k, v in first.items() if k != "pool"}
    query = {k: v for k, v in trial.plain()["query"].items() if k not in ("pool", "graph_points")}
    old["config"] = trial.plain() | {"query": query}
    assert record_fault(old) is None
    assert setting_changes(old["config"], trial.plain()) == []
    ((again, _),) = cycles(trial, data, 0, done=[old], weights=net)
    assert without([again]) == without([second])


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        (Arm("arm", "uherding", query={"pool": "auto"}), "arm 'arm': uherding picks by itself, and takes no pool"),
        (Arm("arm", "ll4al", model="soft"), "arm 'arm': ll4al trains the network itself"),
        (Arm("arm", "cover", query={"pool": "on"}), "unknown pool 'on'"),
        (Arm("arm", "cover", query={"graph_points": 3}), "graph_points=3; expected at least 12"),
    ],
)
def test_settings_that_do_not_go_together_are_told(arm, said):
    with pytest.raises(SettingsError, match=said):
        replace(OF, arms=(arm,))


def test_the_pool_of_all_arms_is_refused_for_those_that_pick_by_themselves():
    with pytest.raises(SettingsError, match="uherding picks by itself"):
        study(["cover", "uherding"], query=Ask(pool="auto"))


def test_estimates_and_smoke_runs():
    data = clouds()
    of = replace(OF, arms=tuple(Arm(m, "cover", model=m) for m in ("network", "pool", "soft")))
    found = estimate(of, data)
    alone = estimate(replace(of, arms=of.arms[:1]), data)
    assert found.trainings == 9
    assert found.train > alone.train
    assert len(run(smoke(of), data=data)) == 9
