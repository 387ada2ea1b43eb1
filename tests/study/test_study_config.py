"""Configurations: from TOML, with changes, and all that is wrong with one told at once."""

import json
import re
from dataclasses import FrozenInstanceError, replace

import pytest

from foretaste.lookahead import METHODS
from foretaste.study import (
    Arm,
    Ask,
    Labels,
    Network,
    SettingsError,
    Study,
    Train,
    read,
    shipped,
    smoke,
    study,
    study_of,
)

FIGURES = ["fig1a", "fig1b", "fig2a", "fig2b", "fig2c", "fig3a", "fig3b"]
FIGURES += ["mnist-wrn1", "svhn-wrn2", "svhn-resnet18", "cifar10-resnet18", "ll4al", "l2-ce", "theorem", "block"]


def test_strategies_are_arms():
    a, b = study_of({"strategies": ["gain sequential", "random"]}).arms
    assert (a.name, a.strategy, a.select) == ("gain sequential", "gain", "sequential")
    assert (b.name, b.strategy, b.select) == ("random", "random", "auto")


def test_named_strategies_and_tables_of_arms_add_up(tmp_path):
    path = tmp_path / "both.toml"
    path.write_text(
        'strategies = ["margin", "random"]\n[[arms]]\nname = "wide"\nstrategy = "gain"\noptions = {scale = 1.0}\n'
    )
    both = read(path)
    assert both.names == ("margin", "random", "wide")
    assert both.arm("wide").options == {"scale": 1.0}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "there are no arms"),
        ({"strategies": ["gian"]}, "unknown strategy 'gian'; did you mean 'gain'"),
        ({"strategies": ["gain sideways"]}, "unknown select 'sideways'"),
        ({"strategies": ["badge sequential"]}, "'badge' picks a batch by itself"),
        ({"strategies": ["gain", "gain"]}, "two arms are called 'gain'"),
        ({"strategies": "gain"}, "expected a list of names"),
        ({"strategies": ["gain"], "arms": [{"strategy": "gain"}]}, "two arms are called 'gain'"),
        ({"strategies": ["gain"], "arms": {"strategy": "gain"}}, "arms={'strategy': 'gain'}; expected a list"),
        ({"arms": [{"name": "x"}]}, "arm 'x': has no strategy"),
        ({"arms": [{"strategy": "gain", "stratgy": 1}]}, "unknown key 'stratgy'; did you mean 'strategy'"),
        ({"arms": [{"strategy": "gain", "against": "rnd"}]}, "unknown against 'rnd'"),
        ({"arms": [{"strategy": "gain", "options": {"scal": 1}}]}, "unknown option 'scal'.*did you mean 'scale'"),
        ({"arms": [{"strategy": "gain", "train": {"max_rl": 1}}]}, "unknown key 'max_rl'; did you mean 'max_lr'"),
        ({"arms": [{"strategy": "gain", "train": {"max_lr": -1}}]}, "arm 'gain': train: max_lr=-1"),
        ({"arms": [{"strategy": "ll4al", "options": {"reduktion": "sum"}}]}, "did you mean 'reduction'"),
        ({"strategies": ["gain"], "seeds": [1, 1]}, "none twice"),
        ({"strategies": ["gain"], "seeds": 3}, "seeds=3; expected a list"),
        ({"strategies": ["gain"], "trian": {}}, "unknown key 'trian'; did you mean 'train'"),
        ({"strategies": ["gain"], "train": {"steps": 5, "epochs": 5}}, "steps=5 and epochs=5 contradict"),
        ({"strategies": ["gain"], "train": {"steps": "many"}}, "steps='many'; expected a whole number"),
        ({"strategies": ["gain"], "train": 3}, "train=3; expected a table"),
        ({"strategies": ["gain"], "train": {"loss": "l1"}}, "unknown loss 'l1'"),
        ({"strategies": ["gain"], "labels": {"per_cycle": 9, "subset": 5}}, "subset=5 is less than per_cycle=9"),
        ({"strategies": ["gain"], "labels": {"init": True}}, "init=True"),
        ({"strategies": ["gain"], "network": {"name": "wrn1", "widden": 2}}, "did you mean 'widen'"),
        ({"strategies": ["gain"], "network": {"name": "wrn1", "widen": 0}}, "widen is 0"),
        ({"strategies": ["gain"], "network": {"name": "mlp", "classes": 3}}, "unknown option 'classes' of mlp"),
        ({"strategies": ["gain"], "network": {"name": "wrm1"}}, "did you mean 'wrn"),
        ({"strategies": ["gain"], "data": {"noise": 1.5}}, "data: noise=1.5; expected at most 1"),
        ({"strategies": ["gain"], "experiment": "block"}, "compares no strategies"),
        ({"strategies": ["gain"], "query": {"method": "watched"}}, "query: unknown method 'watched'"),
        ({"strategies": ["gain"], "query": {"precision": "flaot32"}}, "did you mean 'float32'"),
        ({"strategies": ["gain"], "query": {"output": "smu"}}, "unknown output 'smu'; did you mean 'sum'"),
        ({"strategies": ["gain"], "query": {"output": 1.5}}, "output=1.5; expected a text or a whole number"),
        ({"strategies": ["gain"], "train": {"max_lr": "high"}}, "train: max_lr='high'; expected a number$"),
        ({"strategies": ["gain"], "seeds": [0, "1"]}, r"seeds\[1\]='1'; expected a whole number"),
        ({"arms": [{"strategy": "gain", "options": 3}, 5]}, r"arm 'gain': options=3; .*arms\[1\]=5; expected a table"),
        ({"strategies": ["gain"], "network": 3, "data": {"skip_broken": 1}}, "skip_broken=1; expected true or false"),
        ({"arms": [{"strategy": "gain", "query": {"method": "columns"}}]}, "arm 'gain': query: unknown method"),
    ],
)
def test_what_is_wrong_is_said(table, says):
    with pytest.raises(ValueError, match=says):
        study_of(table)


def test_tables_made_in_python_are_validated_at_once():
    """The values are those that the engine knows: a method that fails later is refused now."""
    with pytest.raises(SettingsError, match="unknown method 'watched'"):
        Ask(method="watched")
    assert {Ask(method=method).method for method in METHODS} == {*METHODS}
    with pytest.raises(SettingsError, match=r"2 things are wrong: init=0; expected at least 1; unknown key 'subste'"):
        Labels(0, subste=3)
    with pytest.raises(SettingsError, match="batch='8'; expected a whole number"):
        replace(Train(), batch="8")
    with pytest.raises(FrozenInstanceError):
        Train().steps = 3
    assert json.dumps(Train(max_lr=1).max_lr) == "1"  # as it was written


def test_all_that_is_wrong_is_said_at_once():
    table = {
        "strategies": ["gian", "random"], "sedes": [1], "train": {"step": 5, "batch": 0}, "labels": {"cycles": -1},
        "network": {"name": "mpl"},
    }  # fmt: skip
    with pytest.raises(ValueError, match="6 things are wrong") as caught:
        study_of(table)
    for part in ("'gain'", "'seeds'", "'steps'", "batch=0", "cycles=-1", "'mlp'"):
        assert part in str(caught.value)


def test_faults_of_several_tables_are_said_with_the_others():
    table = {
        "arms": [
            {"name": "a", "strategy": "gain", "against": "rnd", "train": {"batch": 0}, "query": {"ridge": -1}},
            {"name": "a", "strategy": "random", "network": {"hiden": [3]}},
        ],
        "labels": {"init": 0, "per_cycle": 3, "subset": 2},
        "train": {"steps": 3, "epochs": 3},
        "seeds": [1, 1],
    }  # fmt: skip
    with pytest.raises(ValueError, match="6 things are wrong") as caught:
        study_of(table)
    for part in ("two arms are called 'a'", "arm 'a': unknown against 'rnd'", "init=0", "subset=2", "steps=3", "twice"):
        assert part in str(caught.value)
    table["arms"][1]["name"] = table["arms"][0]["against"] = "b"  # with good names, the keys that they replace
    with pytest.raises(ValueError, match="6 things are wrong") as caught:
        study_of(table)
    for part in ("arm 'a': query: ridge=-1; expected at least 0", "arm 'b': network: unknown option 'hiden' of mlp"):
        assert part in str(caught.value)


def test_changes_go_into_tables_and_arms(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[[arms]]\nname = "a b"\nstrategy = "gain"\n[[arms]]\nstrategy = "random"\n[train]\nepochs = 3\n')
    changed = read(
        path, ["train.max_lr=0.1", "seeds=[4, 5]", "data.name=mnist", "arms.a b.train.loss=ce", "train.steps=7"]
    )
    assert (changed.train, changed.seeds, changed.data.name) == (Train(max_lr=0.1, steps=7), (4, 5), "mnist")
    assert changed.trial("a b").train.loss == "ce"
    assert changed.trial("random").train.loss == "l2"
    assert [arm.name for arm in read(path, ['strategies=["margin"]']).arms] == ["margin"]
    with pytest.raises(ValueError, match=r"2 things are wrong.*expected key=value.*no arm of that name"):
        read(path, ["seeds", "arms.nobody.select=top"])
    with pytest.raises(ValueError, match="nope"):
        read(path, ["train.nope=1"])


def test_files_that_are_not(tmp_path):
    (tmp_path / "bad.toml").write_text("seeds = [1,")
    with pytest.raises(ValueError, match=r"bad.toml is not TOML"):
        read(tmp_path / "bad.toml")
    with pytest.raises(ValueError, match="unknown study 'fig2aa'; did you mean 'fig2a'"):
        read("fig2aa")
    with pytest.raises(FileNotFoundError, match=r"none.toml does not exist.*expected a study in TOML"):
        read(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes('title = "Bär"'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin.toml is not UTF-8"):
        read(tmp_path / "latin.toml")


@pytest.mark.parametrize(("code", "says"), [("def f(:", "SyntaxError"), ("raise KeyError('x')", "KeyError: 'x'")])
def test_a_plugin_that_fails_is_named(tmp_path, code, says):
    (tmp_path / "p.py").write_text(code)
    with pytest.raises(ValueError, match=rf"plugin .*p\.py fails: {says}"):
        read("demo", plugins=[str(tmp_path / "p.py")])
    with pytest.raises(FileNotFoundError, match="expected a Python file that calls"):
        read("demo", plugins=[str(tmp_path / "q.py")])


def test_an_arm_has_its_own_settings_and_no_one_elses():
    of = Study(
        arms=(
            Arm("wide", "mlmoc", network={"widen": 8}, train={"epochs": 2}, query={"output": "first"}),
            Arm("other", "random", network={"name": "mlp"}),
        ),
        network=Network("wrn1", {"widen": 2, "blocks": 2}),
        train=Train(steps=9, max_lr=0.3),
    )
    wide, other = of.trial("wide"), of.trial("other")
    assert wide.network == Network("wrn1", {"widen": 8, "blocks": 2})
    assert (wide.train.steps, wide.train.epochs, wide.train.max_lr, wide.query.output) == (None, 2, 0.3, "first")
    assert other.network == Network("mlp", {})
    assert other.train == of.train


def test_an_arm_takes_the_kernel_of_its_strategy_unless_one_is_named():
    own = study(["cover", "gain", "mlmoc"])
    assert [own.trial(name).query.output for name in own.names] == ["signs", "sum", "sum"]
    named = study(["cover", "gain"], query=Ask(output="first"))
    assert [named.trial(name).query.output for name in named.names] == ["first", "first"]
    back = Study(arms=(Arm("cover", "cover", query={"output": "auto"}),), query=Ask(output="first"))
    assert back.trial("cover").query.output == "signs"


def test_all_fifteen_experiments_come_along():
    assert set(FIGURES) <= set(shipped())
    for name in shipped():
        of = read(name)
        assert of.title
        assert name == "demo" or name == "mnist-short" or of.notes


@pytest.mark.parametrize(
    ("name", "init", "per_cycle", "subset", "network", "seeds"),
    [
        ("fig1a", 100, 20, 4000, "wrn1", 6),
        ("fig2a", 1000, 1000, 6000, "wrn1", 6),
        ("fig2b", 1000, 1000, 6000, "wrn2", 6),
        ("fig2c", 10000, 1000, 6000, "resnet18", 6),
        ("cifar10-resnet18", 1000, 1000, 6000, "resnet18", 6),
        ("ll4al", 10000, 1000, 6000, "resnet18", 3),
    ],
)
def test_sizes_are_the_papers(name, init, per_cycle, subset, network, seeds):
    of = read(name)
    assert (of.labels.init, of.labels.per_cycle, of.labels.subset) == (init, per_cycle, subset)
    assert (of.network.name, len(of.seeds), of.train.start) == (network, seeds, "warm")


def test_every_choice_in_a_configuration_says_whose_it_is():
    """A line that sets a number of the training or the labels carries a comment, or its table does."""
    from foretaste.study.toml import CONFIGS

    for name in FIGURES:
        table = ""
        for text in CONFIGS.joinpath(f"{name}.toml").read_text().splitlines():
            if text.startswith("["):
                table = text
            elif re.match(
                r"(epochs|max_lr|cycles|widen|init|per_cycle|subset|output|start|weight_decay|steps) =", text
            ):
                assert "#" in text + table, f"{name}: {text}"


def test_smoke_keeps_the_arms_and_shrinks_the_rest():
    of = smoke(read("fig3b"))
    assert [arm.name for arm in of.arms] == [arm.name for arm in read("fig3b").arms]
    assert of.labels == Labels(init=16, per_cycle=4, cycles=2, subset=16)
    assert of.train.steps == 12
    assert {of.trial(name).network.options["widen"] for name in of.names} == {1}
    assert len(of.seeds) == 2
    small = study(("random",), seeds=(1,), labels=Labels(init=3, per_cycle=2, cycles=1), train=Train(steps=2))
    assert smoke(small).labels == replace(small.labels, subset=16)
    assert smoke(small).train.steps == 2


def test_smoke_leaves_the_options_of_ones_own_network():
    """They may have to fit weights that its function loads."""
    of = study(("random",), network=Network("mine:net", {"width": 512, "hidden": 32}))
    assert smoke(of).network == of.network
