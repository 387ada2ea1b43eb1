"""Wrong questions are refused before any work, all faults at once; and what costs no kernel computes none."""

import math

import numpy as np
import pytest
import torch

from foretaste import acquire
from foretaste.lookahead import linearize
from foretaste.pick import query
from networks import forbid_gradients
from query_cases import NET, X_L, X_U, Y_L, ask, network, points


@pytest.fixture
def _no_gradients():
    handle = forbid_gradients(NET)
    yield
    handle.remove()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; expected a whole number of at least 1"),
        ({"batch_size": 2.0}, "batch_size is 2.0; expected a whole number"),
        ({"strategy": "gian"}, r"unknown strategy 'gian'; did you mean 'gain'\? Registered: "),
        ({"strategy": 3}, "strategy is a int; expected a name or a function"),
        ({"select": "sequental"}, "unknown select 'sequental'; did you mean 'sequential'"),
        ({"select": "sequential"}, 'select="sequential" asks for a label after each pick; give oracle='),
        ({"select": "top", "oracle": int}, "an oracle is only asked with select=\"sequential\", and select is 'top'"),
        ({"oracle": int}, "an oracle is only asked with select=\"sequential\", and select is 'greedy'"),
        ({"select": "sequential", "oracle": 3}, "oracle is a int; expected a function"),
        ({"ids": ["a", "b"]}, "ids has 2 entries and the pool 25 points"),
        ({"ids": [0, *range(24)]}, "ids repeats 0, at 0 and 1"),
        ({"ids": 5}, "ids is a int"),
        ({"ids": [[i] for i in range(25)]}, "expected a sequence of hashable ids"),
        ({"options": {"scal": 2.0}}, "unknown option 'scal' of strategy 'cover'; did you mean 'scale'"),
        ({"options": {"scale": -2.0}}, "scale=-2.0; expected a positive"),
        ({"options": 3}, "options is a int; expected a dict"),
        ({"strategy": acquire.gain, "options": {"scale": 2.0}}, "options are for named strategies"),
        ({"strategy": "random", "select": "greedy"}, "'random' picks by itself; select must be \"auto\""),
        ({"strategy": "random", "oracle": int}, "an oracle is only asked with"),
        ({"strategy": "change"}, "'change' is for regression and this network has 3 outputs"),
        ({"loss": "mse"}, "unknown loss 'mse'"),
        ({"method": "dens"}, "unknown method 'dens'"),
        ({"method": np.arange(3)}, "unknown method a ndarray; known: auto, dense, direct"),
        ({"loss": 7}, "unknown loss a int"),
        ({"precision": np.array(["a", "b"])}, "unknown precision"),
        ({"ridge": torch.zeros(2)}, "ridge is a Tensor; expected a number of at least 0"),
        ({"budget": math.inf}, "budget, in bytes, is inf; expected a number"),
        ({"budget": 0.5}, "budget, in bytes, is 0.5; expected a number of at least 1"),
        ({"budget": "1.2.3GB"}, "budget is '1.2.3GB'; expected bytes or a size"),
    ],
)
@pytest.mark.usefixtures("_no_gradients")
def test_each_fault_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        ask(**settings)


def test_all_faults_at_once():
    with pytest.raises(ValueError, match=r"unknown strategy.*unknown select.*batch_size.*ids has 1") as e:
        ask(strategy="gian", select="tp", batch_size=-1, ids=[1])
    assert str(e.value).count("; ") >= 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"output": "sun"}, "unknown output 'sun'; did you mean 'sum'"),
        ({"output": 1.5}, "output is 1.5; expected a whole number"),
        ({"output": math.nan}, "output is nan; expected a whole number.*or one of sum"),
        ({"output": np.arange(3)}, "output is a ndarray; expected a whole number"),
        ({"watch": 0}, "watch is 0; expected a whole number of at least 1, or None"),
        ({"watch": True}, "watch is a bool"),
        ({"watch": "all"}, "watch is a str; expected a tensor"),
        ({"watch": X_U[:0]}, "watch has no points"),
        ({"watch": X_U[:, :1]}, "watch has points of shape"),
        ({"seed": "none"}, "seed is 'none'; expected a whole number"),
        ({"seed": torch.zeros(2)}, "seed is a Tensor; expected a whole number"),
        ({"seed": 2**64}, "seed is .*; expected a whole number of at most"),
    ],
)
@pytest.mark.usefixtures("_no_gradients")
def test_output_watch_and_seed_are_named_with_the_others(settings, message):
    """They were raised alone, before the others or after them."""
    with pytest.raises(ValueError, match=message) as e:
        ask(strategy="gian", batch_size=0, **settings)
    assert "unknown strategy 'gian'" in str(e.value)
    assert "batch_size is 0" in str(e.value)
    with pytest.raises((ValueError, TypeError), match=message):
        ask(**settings)


def test_a_bad_pool_is_named_before_what_is_watched():
    with pytest.raises(ValueError, match=r"^x_U has 25 NaN"):
        query(NET, X_L, Y_L, X_U.index_fill(1, torch.tensor(0), torch.nan), watch=X_U[:2])


def test_an_output_that_the_network_does_not_have():
    with pytest.raises(ValueError, match="output=7 but net has 3 outputs"):
        ask(output=7)


@pytest.mark.parametrize("x_U", ["8GB", 0.5, None, [], [1j], ["1.0"], object(), {"a": 1}])
def test_a_pool_that_is_no_points(x_U):
    with pytest.raises((TypeError, ValueError), match="x_U"):
        query(NET, X_L, Y_L, x_U, batch_size=2, strategy="random")


@pytest.mark.parametrize("y_L", [{"a": 1}, object(), type, iter([1])])
def test_labels_that_are_no_labels(y_L):
    with pytest.raises(ValueError, match=r"y_L is a .* that is no tensor of labels"):
        query(NET, X_L, y_L, X_U, batch_size=2)


def test_empty_pool():
    with pytest.raises(ValueError, match="x_U is empty"):
        query(NET, X_L, Y_L, X_U[:0])


@pytest.mark.parametrize("strategy", ["gain", "mlmoc", "emoc", "eer", "flips", "entropy", "margin", "least_confidence"])
def test_classes_are_needed(strategy):
    net = network(C=1)
    forbid_gradients(net)
    with pytest.raises(ValueError, match=f"{strategy!r} needs classes") as e:
        query(net, X_L, points(6, 3)[:, 0], X_U, strategy=strategy)
    named = str(e.value).split("for regression use one of: ")[1].split(", ")
    assert named == [name for name in acquire.strategies() if "classes" not in acquire.find_strategy(name).needs]
    assert {"change", "random", "variance"} <= set(named)


PICKING = [name for name in acquire.strategies() if acquire.find_strategy(name).picks]


@pytest.mark.parametrize("strategy", [name for name in PICKING if "classes" in acquire.find_strategy(name).needs])
def test_classes_are_needed_to_pick(strategy):
    """Told by a few points: the pool is not run, and a strategy need not ask."""
    net, sizes = network(C=1), []
    net.register_forward_hook(lambda module, args, out: sizes.append(len(args[0])))
    with pytest.raises(ValueError, match=f"{strategy!r} needs classes and this network has one output"):
        query(net, X_L, points(6, 3)[:, 0], X_U, strategy=strategy)
    assert max(sizes) <= 3


@pytest.mark.parametrize("strategy", PICKING)
def test_picking_strategies_refuse_what_the_others_do(strategy, monkeypatch):
    monkeypatch.setattr(type(NET), "forward", lambda *a: pytest.fail("the network was run"))
    wrong = {"loss": "mse", "method": "dens", "ridge": -1.0, "budget": "lots", "progress": 3, "batch_size": 0}
    with pytest.raises(ValueError, match="batch_size is 0") as e:
        ask(strategy=strategy, **wrong)
    for message in (
        "ridge is -1.0; expected a number",
        "unknown method 'dens'",
        "unknown loss 'mse'",
        "budget is 'lots'; expected bytes",
        "progress is a int; expected a function of (done, total)",
    ):
        assert message in str(e.value)


def test_nan_scores_raise():
    def broken(state):
        return torch.where(torch.arange(state.U) % 10 == 9, torch.nan, 1.0)

    for select in ("top", "greedy"):
        with pytest.raises(ValueError, match="broken gives NaN for 2 candidates, first at 9"):
            ask(strategy=broken, select=select)


def test_a_score_that_does_not_know_blocks():
    def blind(state):
        return state.u.sqrt()[:, 0, 0] if state.B == 1 else state.u + torch.zeros(2)

    with pytest.raises(ValueError, match=r"strategy 'blind' fails with output=\"full\".*state.B > 1"):
        ask(strategy=blind, output="full")


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("strategy", ["entropy", "margin", "least_confidence", "random"])
@pytest.mark.usefixtures("_no_gradients")
def test_no_kernel_is_computed(strategy, loss):
    q = query(NET, X_L, Y_L, X_U, strategy=strategy, batch_size=5, loss=loss)
    assert len(q) == 5
    assert q.seconds["kernel"] == 0
    assert q.info["ridge"] is None
    if strategy != "random":
        assert torch.equal(getattr(acquire, strategy)(linearize(NET, X_L, Y_L, X_U, loss=loss)), q.scores)
        assert len(query(NET, X_L, Y_L, X_U, strategy=strategy, select="greedy", batch_size=1, loss=loss)) == 1
    with pytest.raises(AssertionError, match="a kernel was computed"):
        query(NET, X_L, Y_L, X_U, strategy="gain", batch_size=5, loss=loss)


def test_precision_is_named() -> None:
    net = torch.nn.Linear(3, 2).eval()
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="unknown precision 'tf23'; did you mean 'tf32'"):
        query(net, x[:2], torch.tensor([0, 1]), x, precision="tf23", batch_size=2)
    q = query(net, x[:2], torch.tensor([0, 1]), x, strategy="mlmoc", precision="half", batch_size=2)
    assert q.info["precision"] == "float32"  # on a CPU
