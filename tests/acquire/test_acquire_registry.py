"""Names: of one's own, of other packages, and of none."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints

import pytest
import torch

import foretaste.pick  # noqa: F401  registers random
from foretaste.acquire import StudyHints, find_strategy, register, registry, strategies

pytestmark = pytest.mark.usefixtures("_names")


def test_every_builtin_has_its_name():
    names = [
        "change",
        "cover",
        "eer",
        "emoc",
        "entropy",
        "flips",
        "gain",
        "least_confidence",
        "margin",
        "mlmoc",
        "random",
        "variance",
    ]
    assert set(names) <= set(strategies())
    assert strategies() == sorted(strategies())
    assert {n for n in names if find_strategy(n).select == "greedy"} == {"cover", "gain", "variance"}
    assert {n for n in names if find_strategy(n).picks} == {"random"}


def test_unknown_names_give_the_nearest():
    listed = ", ".join(strategies())
    with pytest.raises(ValueError, match=rf"^unknown strategy 'mlmok'; did you mean 'mlmoc'\? Registered: {listed}$"):
        find_strategy("mlmok")
    register("aardvark")(lambda state: state)
    with pytest.raises(ValueError, match=r"did you mean 'aardvark'\? Registered: aardvark, "):
        find_strategy("aardvrk")
    with pytest.raises(ValueError, match=r"unknown strategy 'xyzzy'; registered: "):
        find_strategy("xyzzy")


def test_duplicates_raise():
    with pytest.raises(ValueError, match="'gain' is already registered"):
        register("gain")(lambda state: state)


def test_options_are_checked_against_the_dataclass():
    assert find_strategy("gain").settings({"scale": 4.0}) == {"scale": 4.0}
    assert find_strategy("gain").settings(None) == {"scale": None}
    with pytest.raises(
        ValueError, match=r"unknown option 'scal' of strategy 'gain'; did you mean 'scale'\? It takes: scale"
    ):
        find_strategy("gain").settings({"scal": 1})
    with pytest.raises(ValueError, match="unknown option 'a' of strategy 'entropy'; it takes: none"):
        find_strategy("entropy").settings({"a": 1})
    with pytest.raises(ValueError, match="scale=-1; expected a positive"):
        find_strategy("gain").settings({"scale": -1})
    with pytest.raises(ValueError, match="reference='nett'"):
        find_strategy("mlmoc").settings({"reference": "nett"})


def test_options_default_to_the_keywords():
    @register("mine")
    def mine(state, power=2.0):
        return torch.zeros(state.U)

    assert find_strategy("mine").settings({"power": 3}) == {"power": 3}
    assert find_strategy("mine").settings({}) == {"power": 2.0}
    assert mine.__name__ == "mine"


def test_bad_registrations():
    with pytest.raises(ValueError, match="select='best' of strategy 'mine'; expected 'top', 'greedy', 'own'"):
        register("mine", select="best")
    with pytest.raises(ValueError, match="needs='class' of strategy 'mine'; did you mean 'classes'"):
        register("mine", needs="class")
    with pytest.raises(TypeError, match="expected a dataclass"):
        register("mine", options=dict)
    with pytest.raises(TypeError, match="'extra' has no default"):
        register("mine")(lambda state, extra: state)
    assert "mine" not in strategies()


def test_a_dataclass_of_ones_own():
    @dataclass(frozen=True)
    class Power:
        power: float = 2.0

    register("mine", options=Power)(lambda state, power: torch.zeros(state.U))
    assert find_strategy("mine").settings({"power": 3}) == {"power": 3}


def test_options_are_handed_on_as_they_are():
    """Not copied: a network or a bound method is the caller's own, and a dataclass inside stays one."""

    @dataclass(frozen=True)
    class Inner:
        width: int = 3

    @dataclass(frozen=True)
    class Options:
        net: object = None
        inner: Inner = Inner()

    register("mine", options=Options)(lambda state, net, inner: torch.zeros(state.U))
    net, inner = torch.nn.Linear(2, 2), Inner(5)
    settings = find_strategy("mine").settings({"net": net, "inner": inner})
    assert settings["net"] is net
    assert settings["inner"] is inner


class _Module:
    """Stands for a module of another package; registers under one name, offers a bare function under another."""

    @staticmethod
    def bare(state):
        return torch.zeros(state.U)


def test_entry_points_are_loaded_when_asked_for(monkeypatch):
    loaded = []

    class Entry(EntryPoint):
        def load(self):
            loaded.append(self.name)
            if self.name == "registers":
                register("registers", select="greedy")(_Module.bare)
            return _Module.bare

    entries = EntryPoints(Entry(n, f"other:{n}", "foretaste.acquire") for n in ("bare", "registers"))
    monkeypatch.setattr(registry, "entry_points", lambda **select: entries.select(**select))
    assert {"bare", "registers"} <= set(strategies())
    assert loaded == []
    assert find_strategy("bare").select == "top"
    assert find_strategy("registers").select == "greedy"
    find_strategy("bare")
    assert loaded == ["bare", "registers"]


def test_two_packages_of_one_name(monkeypatch):
    entries = EntryPoints(EntryPoint("both", f"{p}:fn", "foretaste.acquire") for p in "ab")
    monkeypatch.setattr(registry, "entry_points", lambda **select: entries.select(**select))
    with pytest.raises(ValueError, match="'both' is offered by a:fn, b:fn"):
        find_strategy("both")


def test_what_a_study_needs_to_know_is_declared_beside_the_name():
    assert find_strategy("gain").study.calibrates == "scale"
    assert find_strategy("naive").study.small == find_strategy("eer_retrain").study.small == {"epochs": 1}
    assert {name for name in strategies() if find_strategy(name).study.trains} == {"ll4al"}
    assert {name for name in strategies() if find_strategy(name).study.instant} == {"random"}
    with pytest.raises(ValueError, match=r"strategy 'mine' names 'scal'.*did you mean 'scale'"):
        register("mine", study=StudyHints(calibrates="scal"))(lambda state, scale=None: state)
    with pytest.raises(ValueError, match=r"strategy 'mine' names 'epochs'.*it takes: scale"):
        register("mine", study=StudyHints(small={"epochs": 1}))(lambda state, scale=None: state)
    assert "mine" not in strategies()
