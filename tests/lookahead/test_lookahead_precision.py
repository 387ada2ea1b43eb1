"""precision="auto": the fastest arithmetic that ranks a sample as float64 does, and float32 where none does."""

import math
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import spearmanr

import foretaste as ft
from foretaste.acquire import mlmoc, variance
from foretaste.lookahead import from_kernels, linearize
from foretaste.network import MLP, fit
from foretaste.pick import query
from foretaste.tangent import GramJob, freeze, gram, kernel, outputs, precision, rule_checks
from foretaste.tangent.precision import (
    ExactSample,
    PrecisionChoice,
    choose_precision,
    draw_sample,
    kernel_holds,
    rank_correlation,
    score_sample,
)

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def trained() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (90,), generator=g)
    x = torch.randn(3, 6, generator=g)[y] + 0.7 * torch.randn(90, 6, generator=g)
    net = MLP(6, (24,), 3)
    fit(net, x[:20], y[:20], steps=300, start="cold", seed=0)
    return net, x[:20], y[:20], x[20:]


def test_the_sample_is_ranked_by_the_scores_themselves(trained) -> None:
    net, x_L, y_L, x_U = trained
    y_LC = torch.nn.functional.one_hot(y_L, 3).double()
    sample = gram(GramJob(freeze(net), {"U": x_U, "L": x_L}, [("U", "U"), ("L", "L"), ("U", "L")]))
    got, theta = score_sample(sample, y_LC, None), sample.blocks
    assert got is not None
    state = from_kernels(
        theta["L", "L"], None, theta["U", "L"], theta["U", "U"], None, outputs(net, x_L), None, outputs(net, x_U), y_L
    )
    assert torch.allclose(got[0], variance(state), rtol=1e-6)
    assert torch.allclose(got[1], mlmoc(state), rtol=1e-6)


def test_half_rows_are_measured_against_float64(trained) -> None:
    net, x_L, y_L, x_U = trained
    y_LC = torch.nn.functional.one_hot(y_L, 3).double()
    found = draw_sample(GramJob(freeze(net), {"L": x_L, "U": x_U}, classes=3), y_LC, None).measure(["half"])
    assert set(found) == {"half"}
    assert 0.99 < found["half"] <= 1
    assert next(net.parameters()).dtype == torch.float32


def test_samples_are_trials_and_the_kernel_after_them_is_checked(trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample has the sizes of the kernel that follows it: it must not stand for its check."""
    net, x_L, y_L, x_U = trained
    checked = []
    compare = rule_checks.compare_rows
    monkeypatch.setattr(rule_checks, "compare_rows", lambda *args: checked.append(1) or compare(*args))
    frozen, y_LC = freeze(net), torch.nn.functional.one_hot(y_L, 3).double()
    draw_sample(GramJob(frozen, {"L": x_L, "U": x_U[:128]}, classes=3), y_LC, None).measure(["half"])
    assert not checked
    gram(GramJob(frozen, {"U": x_U[:128], "L": x_L}, [("U", "L")]))
    assert checked


def test_a_cpu_measures_nothing(trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "draw_sample", None)
    net, x_L, y_L, x_U = trained
    q = query(net, x_L, y_L, x_U, strategy="mlmoc", batch_size=2)
    assert q.info["precision"] == "float32"
    assert q.info["precision_measured"]["spearman"] == {}
    q = query(net, x_L, y_L, x_U, strategy="entropy", batch_size=2)
    assert q.info["precision"] == "auto"  # no Θ was computed
    q = query(net, x_L, y_L, x_U, strategy="mlmoc", batch_size=2, precision="float32")
    assert q.info["precision"] == "float32"
    assert "precision_measured" not in q.info


@pytest.mark.parametrize("asked", ["auto", "float32", "tf32", "half"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_what_was_used_is_said_and_can_be_passed_on(trained, asked: str, dtype: torch.dtype) -> None:
    """On a CPU "half" and "tf32" were reported though Θ was in float32, and "float32" for a float64 network."""
    net, x_L, y_L, x_U = trained
    given = deepcopy(net).to(dtype), x_L.to(dtype), y_L, x_U.to(dtype)
    own = str(dtype).removeprefix("torch.")
    want = query(*given, strategy="mlmoc", batch_size=2, precision="float32")
    q = query(*given, strategy="mlmoc", batch_size=2, precision=asked)
    assert q.info["precision"] == linearize(*given, precision=asked, eager=True).precision_info["precision"] == own
    assert torch.equal(q.scores, want.scores)
    if asked == own:
        assert "precision_measured" not in q.info
    else:
        assert q.info["precision_measured"]["asked"] == asked
        assert ("net is float64" if own == "float64" else "net is on cpu") in q.info["precision_measured"]["why"]
    again = query(*given, strategy="mlmoc", batch_size=2, precision=q.info["precision"])
    assert again.info["precision"] == own
    assert "precision_measured" not in again.info
    space = query(*given, strategy="coreset", options={"space": "tangent"}, batch_size=2, precision=asked)
    assert len(space) == 2


def test_convolutions_are_not_rounded_to_float16_on_a_cpu() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3))
    x = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    half, single = (linearize(net.eval(), x[:4], [0, 1, 2, 0], x[4:], precision=p) for p in ("half", "float32"))
    assert torch.equal(half.u, single.u)


def test_float64_is_of_float64_networks(trained) -> None:
    net, x_L, y_L, x_U = trained
    with pytest.raises(ValueError, match=r"for float64 networks, and net is float32; .* net\.double"):
        linearize(net, x_L, y_L, x_U, precision="float64")
    with pytest.raises(ValueError, match=r"batch_size is 0.*for float64 networks"):
        query(net, x_L, y_L, x_U, precision="float64", batch_size=0)


def test_gradients_too_large_for_half_are_reported_as_tf32(trained, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x_L, y_L, x_U = trained
    half = PrecisionChoice("half", ways=("half",))
    monkeypatch.setattr("foretaste.lookahead.problem.choose_precision", lambda *args: (half, None))
    compute = kernel.compute_gram

    def overflows(*args):
        if args[0].precision == "half":
            raise kernel.HalfRangeError(1.0)
        return compute(*args)

    monkeypatch.setattr(kernel, "compute_gram", overflows)
    said = linearize(net, x_L, y_L, x_U, precision="half", eager=True).precision_info
    assert said["precision"] == "tf32"
    assert said["precision_measured"]["asked"] == "half"
    assert "too large for float16" in said["precision_measured"]["why"]


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, frozen, spearmans: dict[str, float]) -> None:
    """``candidates`` asks the device's name only: give it a GPU's, and what a measurement would find."""
    object.__setattr__(frozen, "device", torch.device("cuda"))
    sample = SimpleNamespace(measure=lambda tried: spearmans, why="")
    monkeypatch.setattr(precision, "draw_sample", lambda *args: sample)


@pytest.mark.parametrize(
    ("found", "want"),
    [
        ({"half": 0.9997}, ("half", "float32")),
        ({"half": 0.994, "tf32": 0.9995}, ("tf32", "float32")),
        ({"half": 0.994, "tf32": 0.993}, ("float32",)),
        ({"half": math.nan, "tf32": math.nan}, ("float32",)),
    ],
)
def test_the_fastest_that_ranks_alike(trained, monkeypatch, found, want) -> None:
    frozen = freeze(deepcopy(trained[0]))
    as_on_a_gpu(monkeypatch, frozen, found)
    few = GramJob(frozen, {"L": trained[1], "U": trained[3][:70]}, classes=3)
    many = replace(few, sets={"L": trained[1], "U": torch.zeros(4980, *trained[3].shape[1:])})
    choice, _ = choose_precision("auto", many, torch.zeros(20, 3), None)
    assert choice.ways == want
    assert choice.spearman == pytest.approx(found, nan_ok=True)
    assert choose_precision("auto", few, torch.zeros(20, 3), None)[0].ways == ("float32",)
    assert choose_precision("tf32", many, torch.zeros(20, 3), None)[0].ways == ("tf32",)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every kernel that is computed, as its precision and number of points, where "auto" measures on a CPU too."""
    done: list[tuple[str, int]] = []

    def count(job: GramJob):
        done.append(
            (str(job.frozen.dtype) if job.frozen.dtype == torch.float64 else job.precision, sum(job.sizes.values()))
        )
        return gram(job)

    monkeypatch.setattr(precision, "served_precision", lambda asked, frozen: (asked, ""))
    monkeypatch.setattr(precision, "WORTH_MEASURING", 10)
    monkeypatch.setattr(precision, "SAMPLE_POINTS", 15)
    monkeypatch.setattr(precision, "gram", count)
    monkeypatch.setattr("foretaste.lookahead.problem.gram", count)
    return done


def test_the_sample_is_read_from_the_kernel_and_the_choice_remembered(trained, counted) -> None:
    """One kernel of the whole, and the sample in float64 once: no sample in half, and nothing for the next query."""
    net, x_L, y_L, x_U = deepcopy(trained[0]), *trained[1:]
    first = linearize(net, x_L, y_L, x_U, eager=True).precision_info
    assert counted == [("torch.float64", 30), ("half", 90)]
    assert first["precision"] == "half"
    assert first["precision_measured"]["spearman"]["half"] > 0.999
    again = linearize(net, x_L, y_L, x_U, eager=True).precision_info
    assert counted[2:] == [("half", 90)]
    assert again["precision"] == "half"
    assert "measured before, at L = 20" in again["precision_measured"]["why"]
    linearize(net, x_U[:41], [0, 1] * 20 + [2], x_U[41:], eager=True)  # more than twice as many labels
    assert counted[3:] == [("torch.float64", 30), ("half", 70)]
    linearize(net, x_L, y_L, x_U, loss="ce", eager=True)  # another λ and ranking
    assert counted[5:] == [("torch.float64", 30), ("half", 90)]
    linearize(deepcopy(net), x_L, y_L, x_U, eager=True)  # another network
    assert counted[7:] == [("torch.float64", 30), ("half", 90)]
    with torch.no_grad():
        next(net.parameters()).mul_(1.01)  # as a training would
    linearize(net, x_L, y_L, x_U, eager=True)
    assert counted[9:] == [("torch.float64", 30), ("half", 90)]


def test_what_is_read_from_the_kernel_is_what_a_sample_of_its_own_gives(trained) -> None:
    net, x_L, y_L, x_U = trained
    y_LC = torch.nn.functional.one_hot(y_L, 3).double()
    job = GramJob(freeze(net), {"L": x_L, "U": x_U}, [("U", "U"), ("L", "L"), ("U", "L")], classes=3)
    sample = draw_sample(job, y_LC, None)
    # In float32 both are near 1; in a kernel with noise the part is as bad as the whole.
    assert sample.judge(gram(job)) == pytest.approx(sample.measure(["float32"])["float32"], abs=1e-4)
    spoilt = gram(job)
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(70, 70, generator=g, dtype=torch.float64)
    spoilt.blocks["U", "U"].add_(noise @ noise.T, alpha=float(spoilt.blocks["U", "U"].mean()))
    assert sample.judge(spoilt) < 0.9


def test_half_that_ranks_otherwise_is_given_up_and_that_is_remembered(trained, counted, monkeypatch) -> None:
    net, x_L, y_L, x_U = deepcopy(trained[0]), *trained[1:]
    monkeypatch.setattr(ExactSample, "judge", lambda self, whole: 0.99)
    monkeypatch.setattr(ExactSample, "measure", lambda self, tried: dict.fromkeys(tried, 0.98))
    said = linearize(net, x_L, y_L, x_U, eager=True).precision_info
    assert counted == [("torch.float64", 30), ("half", 90), ("float32", 90)]
    assert said["precision"] == "float32"
    assert said["precision_measured"]["spearman"] == {"half": 0.99, "tf32": 0.98}
    said = linearize(net, x_L, y_L, x_U, eager=True).precision_info
    assert counted[3:] == [("float32", 90)]
    assert said["precision_measured"]["spearman"] == {"half": 0.99, "tf32": 0.98}


def test_with_watched_points_the_sample_is_a_kernel_of_its_own(trained, counted) -> None:
    net, x_L, y_L, x_U = deepcopy(trained[0]), *trained[1:]
    for _ in range(2):
        linearize(net, x_L, y_L, x_U, watch=x_U[:9], eager=True)
    assert counted == [("torch.float64", 30), ("half", 30), ("half", 99), ("half", 99)]


def test_one_that_cannot_be_measured_is_float32(trained, monkeypatch, caplog) -> None:
    frozen = freeze(trained[0])
    as_on_a_gpu(monkeypatch, frozen, {})

    def fails(*args):
        raise RuntimeError("expected scalar type Float but found Double")

    monkeypatch.setattr(precision, "draw_sample", fails)
    many = GramJob(frozen, {"U": torch.zeros(5000, *trained[3].shape[1:])}, classes=3)
    choice, _ = choose_precision("auto", many, None, None)
    assert choice.ways == ("float32",)
    assert "found Double" in choice.why
    assert "takes float32" in caplog.text


def test_a_kernel_without_a_factor_is_computed_anew_in_float32(trained, monkeypatch) -> None:
    net, x_L, y_L, x_U = trained
    two = PrecisionChoice("auto", ways=("half", "float32"))
    monkeypatch.setattr("foretaste.lookahead.problem.choose_precision", lambda *args: (two, None))
    monkeypatch.setattr("foretaste.lookahead.problem.kernel_holds", lambda *args: False)
    state = linearize(net, x_L, y_L, x_U)
    want = linearize(net, x_L, y_L, x_U, precision="float32")
    assert torch.equal(mlmoc(state), mlmoc(want))
    choice = state._problem.kernels.precision
    assert choice.used == "float32"
    assert math.isnan(choice.spearman["half"])


def test_holds_is_what_the_state_would_refuse() -> None:
    eye = torch.eye(3, dtype=torch.float64)
    diag = torch.ones(2, 1, 1, dtype=torch.float64)
    UL = torch.full((2, 3), 0.5, dtype=torch.float64)
    assert kernel_holds(eye, UL, diag, None)
    assert not kernel_holds(eye - 1.5, UL, diag, None)  # no factor
    assert not kernel_holds(eye, 2 * UL, diag, None)  # S_jj = 1 − 3
    assert kernel_holds(eye - 1.5, UL, diag, 10.0)
    assert kernel_holds(eye[:0, :0], UL[:, :0], diag, None)


def test_spearman_of_opposites() -> None:
    a = torch.tensor([3.0, 1.0, 2.0])
    assert rank_correlation(a, a.exp()) == pytest.approx(1)
    assert rank_correlation(a, -a) == pytest.approx(-1)
    assert rank_correlation(a[:1], a[:1]) == 1


def test_spearman_with_ties() -> None:
    a, b = torch.tensor([1.0, 1.0, 1.0, 2.0, 3.0, 3.0]), torch.tensor([3.0, 2.0, 1.0, 4.0, 6.0, 5.0])
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)


def test_unknown_precision_is_named() -> None:
    net, x = MLP(2, (4,), 2).eval(), torch.zeros(3, 2)
    with pytest.raises(ValueError, match="unknown precision 'aut'; did you mean 'auto'"):
        linearize(net, None, None, x, precision="aut")
    with pytest.raises(ValueError, match="unknown precision 'auto'"):
        ft.ntk(net, x, precision="auto")


@pytest.mark.gpu
@gpu
def test_on_a_gpu_a_large_pool_is_measured() -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (1200,), generator=g)
    x = (torch.randn(3, 20, generator=g)[y] + 0.7 * torch.randn(1200, 20, generator=g)).cuda()
    net = MLP(20, (64, 64), 3).cuda()
    fit(net, x[:40], y[:40].cuda(), steps=400, start="cold", seed=0)
    q = query(net, x[:40], y[:40].cuda(), x[40:], strategy="mlmoc", batch_size=5)
    measured = q.info["precision_measured"]["spearman"]
    assert q.info["precision"] == next((p for p in ("half", "tf32") if measured.get(p, 0) >= 0.999), "float32")
    want = query(net, x[:40], y[:40].cuda(), x[40:], strategy="mlmoc", batch_size=5, precision="float32")
    assert rank_correlation(q.scores, want.scores) >= 0.998
