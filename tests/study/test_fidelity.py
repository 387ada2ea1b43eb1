"""Look-ahead against real retraining: the numbers and the command."""

import copy
import inspect
import json
import sys

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from typer.testing import CliRunner

import foretaste as ft
from foretaste.acquire import find_strategy
from foretaste.cli import app
from foretaste.cli.fidelity_command import fidelity_command
from foretaste.data import digits
from foretaste.lookahead import linearize
from foretaste.network import MLP, fit, prepare
from foretaste.report import verdict
from foretaste.study import check_fidelity, fidelity, load, save
from foretaste.study.fidelity import (
    COMPARED_OUTPUTS,
    RIDGES,
    ceiling,
    correlation,
    fitted_factor,
    query_setting,
    rank_agreement,
    relative_error,
)
from foretaste.tangent import OUTPUTS

TRAIN = {"steps": 60, "batch_size": 8, "max_lr": 0.2}


@pytest.fixture(scope="module")
def small():
    """A network on four classes of digits: bytes, normalised."""
    d = digits()
    of = torch.as_tensor(d.pool)[d.y[d.pool] < 4]
    x, y, normalise = d.x[of], d.y[of], ((0.3,), (0.4,))
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        net = MLP(64, (24,), 4)
    fit(net, x[:12], y[:12], steps=300, normalise=normalise)
    return net, x, y, normalise


def numbers(record):
    return {k: v for k, v in record.items() if k not in ("seconds",)}


@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_the_numbers_are_those_of_retraining_by_hand(small, loss):
    """Every agreement, typed out: networks retrained one by one, ft.linearize on candidates and watched points."""
    net, x, y, normalise = small
    L, U = slice(0, 12), slice(12, 50)
    got = fidelity(
        net, x[L], y[L], x[U], y_U=y[U], loss=loss, candidates=4, repeats=2, watch=9, outputs=OUTPUTS,
        ridges=(1e-6, 1e-3, "misfit"), seed=3, normalise=normalise, train=TRAIN, scales=(0.5, 2.0),
    )  # fmt: skip
    about = got[0]
    at_c = torch.tensor(about["candidates"])
    assert len(set(at_c.tolist())) == 4
    order = torch.randperm(38, generator=torch.Generator().manual_seed(3))
    assert at_c.tolist() == order[:4].tolist()
    at_W = order[4:13]

    def feed(z):
        return prepare(z, torch.float32, normalise)

    x_c, x_W = feed(x[U][at_c]), feed(x[U][at_W])
    jobs = []
    for j in range(4):
        f_C = net(x_c[j : j + 1])[0]
        first, second = f_C.argsort(descending=True)[:2].tolist()
        true = int(y[U][at_c[j]])
        jobs += [(j, first, "likeliest"), (j, second, "runner-up") if true == first else (j, true, "true")]
    done = [r for r in got if r["kind"] == "retraining"]
    assert [(r["candidate"], r["label"], r["whose"]) for r in done if r["repeat"] == 0] == [
        (None, None, None),
        *((int(at_c[j]), label, whose) for j, label, whose in jobs),
    ]
    after = {}
    for repeat in range(2):
        for job in (None, *jobs):
            again = copy.deepcopy(net)
            more = [] if job is None else [at_c[job[0]]]
            x_more = torch.cat([x[L], *(x[U][j][None] for j in more)])
            y_more = torch.tensor([*y[L].tolist(), *([] if job is None else [job[1]])])
            fit(again, x_more, y_more, loss=loss, normalise=normalise, seed=4 + repeat, **TRAIN)
            after[repeat, job] = again(x_W).detach().double().numpy()

    def q(f):
        if loss == "l2":
            return f
        e = np.exp(f - f.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    before = net(x_W).detach().double().numpy()
    misfit = loss == "l2"  # cross-entropy: the same as 1e-6, and not tried twice
    for output in OUTPUTS:
        for share in (1e-6, 1e-3, "misfit") if misfit else (1e-6, 1e-3):
            base = linearize(net, feed(x[L]), y[L], x_c, watch=x_W, output=output, loss=loss)
            ridge = share if share == "misfit" else base.ridge * share / 1e-6
            state = linearize(net, feed(x[L]), y[L], x_c, watch=x_W, output=output, loss=loss, ridge=ridge)
            mean = state.mean.numpy()
            plus = [state.lookahead(j, label).numpy() for j, label, _ in jobs]
            real = [np.mean([after[s, job] - after[s, None] for s in range(2)], 0) for job in jobs]
            raw = [np.mean([after[s, job] - before for s in range(2)], 0) for job in jobs]
            seen = [np.mean([q(after[s, job]) - q(after[s, None]) for s in range(2)], 0) for job in jobs]
            p, r = np.stack([f - mean for f in plus]).ravel(), np.stack(real).ravel()
            (record,) = (
                s
                for s in got
                if s["kind"] == "setting"
                and (s["output"], "misfit" if s["misfit"] else s["ridge_share"]) == (output, share)
            )
            assert record["own"] == (output == "signs" and share == ("misfit" if misfit else 1e-6))
            assert record["ridge"] == pytest.approx(state.ridge)
            assert record["ridge_share"] == pytest.approx(state.ridge / base.ridge * 1e-6)
            near = {"rel": 1e-6, "abs": 1e-8}
            assert record["correlation"] == pytest.approx(np.corrcoef(p, r)[0, 1], **near)
            assert record["with_drift"] == pytest.approx(np.corrcoef(p, np.stack(raw).ravel())[0, 1], **near)
            assert record["error"] == pytest.approx(np.linalg.norm(p - r) / np.linalg.norm(r), **near)
            assert record["slope"] == pytest.approx(p @ r / (p @ p), **near)
            moved = [np.linalg.norm(q(f) - q(mean), axis=1).sum() for f in plus[::2]]
            really = [np.linalg.norm(s, axis=1).sum() for s in seen[::2]]
            assert record["rank"] == pytest.approx(spearmanr(moved, really).statistic, **near)
            if loss == "ce":
                shown = np.stack([q(f) - q(mean) for f in plus]).ravel()
                assert record["probabilities"] == pytest.approx(
                    np.corrcoef(shown, np.stack(seen).ravel())[0, 1], **near
                )
    one, two = (np.stack([after[s, job] - after[s, None] for job in jobs]).ravel() for s in range(2))
    agree = np.corrcoef(one, two)[0, 1]
    assert about["agreement"] == pytest.approx(agree, rel=1e-6)
    assert about["ceiling"] == pytest.approx(np.sqrt(2 * agree / (1 + agree)), rel=1e-6)
    assert [r["output"] for r in got if r["kind"] == "calibration"] == (list(OUTPUTS) if loss == "ce" else [])


def test_the_scale_is_the_best_of_the_grid(small):
    net, x, y, normalise = small
    got = fidelity(
        net, x[:12], y[:12], x[12:40], loss="ce", candidates=2, repeats=1, watch=5, outputs=("sum",), ridges=(1e-6,),
        normalise=normalise, train=TRAIN, scales=(0.25, 1.0, 4.0),
    )  # fmt: skip
    (found,) = (r for r in got if r["kind"] == "calibration")
    errors = {g["theta_scale"]: g["error"] for g in found["grid"]}
    assert errors[found["best"]] == min(errors.values())
    own = next(r for r in got if r["kind"] == "setting")
    assert errors[1.0] == pytest.approx(own["error"], rel=1e-9)
    assert len(set(errors.values())) == 3
    assert got[0]["agreement"] is None  # one retraining says nothing of its noise


def test_seeds_govern_all_and_the_network_is_left_alone(small):
    net, x, y, normalise = small
    before = {k: v.clone() for k, v in net.state_dict().items()}
    how = {"candidates": 2, "repeats": 1, "watch": 6, "outputs": ("sum",), "ridges": (1e-6,), "normalise": normalise}
    runs = [fidelity(net, x[:12], y[:12], x[12:40], train=TRAIN, seed=seed, **how) for seed in (0, 0, 1)]
    assert [numbers(r) for r in runs[0]] == [numbers(r) for r in runs[1]]
    assert runs[0][0]["candidates"] != runs[2][0]["candidates"]
    assert not net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    json.dumps(runs[0], allow_nan=False)


def test_progress_and_the_ids_of_the_caller(small):
    net, x, y, normalise = small
    seen = []
    got = fidelity(
        net, x[:12], y[:12], x[12:16], ids=list("abcd"), candidates=4, repeats=1, outputs=("sum",), normalise=normalise,
        train=TRAIN, progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert sorted(got[0]["candidates"]) == list("abcd")
    assert got[0]["W"] == 4  # nothing else is there to watch
    assert seen == [(k, 9) for k in range(1, 10)]


def test_wrong_settings_are_told_at_once(small):
    net, x, y, _ = small
    with pytest.raises(ValueError, match="5 things are wrong") as error:
        fidelity(net, x[:12], y[:12], x[12:16], loss="l3", outputs=("smu",), candidates=0, repeats=0, ridges=(-1.0,))
    assert "did you mean 'sum'" in str(error.value)
    assert "ridge=-1.0; expected a share of the mean diagonal, 0 to 1, or 'misfit'" in str(error.value)
    with pytest.raises(ValueError, match="ridge='msifit'; expected a share"):
        fidelity(net, x[:12], y[:12], x[12:16], candidates=2, ridges=("msifit",))
    with pytest.raises(ValueError, match="candidates=9 of a pool of 4"):
        fidelity(net, x[:12], y[:12], x[12:16], candidates=9)
    with pytest.raises(ValueError, match="needs class ids"):
        fidelity(net, x[:12], y[:12].float(), x[12:16], candidates=2)


def test_no_kernel_at_all_is_refused_and_a_text_is_no_list():
    """Without any, networks were retrained and compared with nothing; of a text every letter was told."""
    with pytest.raises(ValueError, match="3 things are wrong") as error:
        check_fidelity(50, "l2", 60, 2, 10, "trace", ())
    assert "outputs='trace'; expected a list of one or more, such as ['signs']" in str(error.value)
    assert "ridges=(); expected a list of one or more, such as ['misfit']" in str(error.value)
    assert "candidates=60 of a pool of 50" in str(error.value)
    assert "unknown output" not in str(error.value)


def test_a_kernel_too_large_is_said_not_tried(small, monkeypatch):
    net, x, y, normalise = small
    monkeypatch.setattr(sys.modules["foretaste.study.fidelity"], "LARGEST_FULL_KERNEL", 50_000.0)
    got = fidelity(
        net,
        x[:12],
        y[:12],
        x[12:40],
        candidates=2,
        repeats=1,
        watch=10,
        ridges=(1e-6,),
        normalise=normalise,
        train=TRAIN,
    )
    assert [r["output"] for r in got if r["kind"] == "setting"] == ["signs", "sum", "first"]
    (skipped,) = (r for r in got if r["kind"] == "skipped")
    assert skipped["output"] == "full"
    assert "are used" in skipped["why"]
    with pytest.raises(ValueError, match=r"the full kernel needs .*are used"):
        fidelity(net, x[:12], y[:12], x[12:40], candidates=2, watch=10, outputs=("full",), normalise=normalise)


def test_the_default_kernel_of_a_query_is_tried_first():
    """The verdict rests on it; the command and the library try the same."""
    how = find_strategy(inspect.signature(ft.query).parameters["strategy"].default).kernel
    assert (how.output, how.ridge) == query_setting("l2") == (COMPARED_OUTPUTS[0], RIDGES[0])
    assert query_setting("ce") == ("signs", 1e-6)
    asked = inspect.signature(fidelity_command).parameters
    assert tuple(asked["output"].default.split(",")) == COMPARED_OUTPUTS
    assert [word if word == "misfit" else float(word) for word in asked["ridge"].default.split(",")] == list(RIDGES)


def test_the_ridge_of_the_misfit_is_that_of_linearize(small):
    """On a network that has not learned its labels: λ, and with it the drawn predictions of the default kernel."""
    _, x, y, normalise = small
    with torch.random.fork_rng([]):
        torch.manual_seed(2)
        net = MLP(64, (24,), 4)
    fit(net, x[:12], y[:12], steps=12, normalise=normalise)
    got = fidelity(
        net, x[:12], y[:12], x[12:40], candidates=2, repeats=1, watch=5, outputs=("sum", "signs"),
        ridges=(1e-6, "misfit", "misfit"), normalise=normalise, train={"steps": 2},
    )  # fmt: skip
    order = torch.randperm(28, generator=torch.Generator().manual_seed(0))
    x_L, x_c, x_W = (prepare(z, torch.float32, normalise) for z in (x[:12], x[12:40][order[:2]], x[12:40][order[2:7]]))
    state = linearize(net, x_L, y[:12], x_c, watch=x_W, output="signs", ridge="misfit")
    settings = [r for r in got if r["kind"] == "setting"]
    assert [(s["output"], s["misfit"], s["own"]) for s in settings] == [
        ("sum", False, False), ("sum", True, False), ("signs", False, False), ("signs", True, True),
    ]  # fmt: skip
    assert settings[-1]["ridge"] == pytest.approx(state.ridge, rel=1e-9)
    assert settings[-1]["ridge_share"] > 0.1
    (points,) = (r for r in got if r["kind"] == "points")
    assert (points["output"], points["misfit"]) == ("signs", True)
    jobs = [(j, c) for j in range(2) for c in net(x_c[j : j + 1])[0].argsort(descending=True)[:2].tolist()]
    changes = torch.stack([state.lookahead(j, c) - state.mean for j, c in jobs])
    assert sorted(points["predicted"]) == pytest.approx(sorted(changes.flatten().tolist()), rel=1e-9, abs=1e-12)


def test_a_network_that_ends_in_a_softmax_is_compared_as_a_query_takes_it(small):
    """The kernel of its sum is zero, which is said; that of signs is not."""
    net, x, y, normalise = small
    soft = torch.nn.Sequential(net, torch.nn.Softmax(1)).eval()
    how = {"candidates": 2, "repeats": 1, "watch": 5, "ridges": (1e-6,), "normalise": normalise, "train": {"steps": 2}}
    got = fidelity(soft, x[:12], y[:12], x[12:40], outputs=("signs", "sum"), **how)
    assert [(r["kind"], r["output"]) for r in got if "why" in r or "slope" in r] == [
        ("setting", "signs"),
        ("skipped", "sum"),
    ]
    with pytest.raises(ValueError, match="have a constant sum"):
        fidelity(soft, x[:12], y[:12], x[12:40], outputs=("sum",), **how)


def test_agreement_by_other_means():
    rng = np.random.default_rng(0)
    a, b = torch.as_tensor(rng.integers(0, 5, 30)).double(), torch.as_tensor(rng.normal(size=30))
    assert correlation(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert correlation(a, -a) == pytest.approx(-1)
    assert correlation(a, torch.ones(30)) is None
    assert rank_agreement(a, b) == pytest.approx(spearmanr(a, b).statistic)
    tied = torch.tensor([3.0, 1.0, 3.0, 2.0])
    assert rank_agreement(tied, torch.arange(4.0)) == pytest.approx(-1 / 22.5**0.5)
    assert rank_agreement(a, torch.ones(30)) is None
    assert rank_agreement(a[:2], b[:2]) is None
    assert relative_error(torch.zeros(3), torch.ones(3)) == 1
    assert relative_error(torch.ones(3), torch.zeros(3)) is None
    assert fitted_factor(b, 3 * b) == pytest.approx(3)
    assert ceiling(b.reshape(1, 5, 3, 2)) is None


def test_the_ceiling_is_what_a_perfect_prediction_reaches():
    """Signal plus independent noise: the correlation of the signal with the mean of S noisy retrainings."""
    rng = np.random.default_rng(1)
    signal = torch.as_tensor(rng.normal(size=(50, 40, 10)))
    noisy = signal + 0.8 * torch.as_tensor(rng.normal(size=(3, 50, 40, 10)))
    r, most = ceiling(noisy)
    assert r == pytest.approx(1 / 1.64, abs=0.02)
    assert correlation(signal, noisy.mean(0)) == pytest.approx(most, abs=0.01)


def test_the_command_on_digits(tmp_path):
    words = [
        "fidelity",
        "--demo",
        "--set",
        "hidden=[16]",
        "--candidates",
        "3",
        "--repeats",
        "1",
        "--retrain-steps",
        "40",
    ]
    got = CliRunner().invoke(app, [*words, "--steps", "200", "--out", str(tmp_path / "f"), "--output", "sum"])
    assert got.exit_code == 0, got.output
    text = " ".join(got.stdout.split())
    assert "7 retrainings of about" in text
    records = load(tmp_path / "f" / "records.jsonl")
    assert verdict(records).headline in text
    assert [r["misfit"] for r in records if r["kind"] == "setting"] == [True, False, False]
    assert "The default of foretaste query is output signs with ridge misfit" in text
    assert records[0]["network"] == "mlp"
    page = (tmp_path / "f" / "index.html").read_text(encoding="utf-8")
    assert "scikit-learn" in page
    for word in ("command", "seed", "versions", "date"):  # as on the page of a query
        assert f"<dt>{word}</dt>" in page
    assert "foretaste fidelity --demo --set &#39;hidden=[16]&#39; --candidates 3" in page
    assert {"changes.svg", "changes.pdf", "scores.svg", "scores.pdf"} <= {f.name for f in (tmp_path / "f").iterdir()}
    save(records, tmp_path / "again.jsonl")
    assert load(tmp_path / "again.jsonl") == records


def test_the_command_on_files_and_wrong_usage(tmp_path, small):
    net, x, y, normalise = small
    from foretaste.network import save_network

    save_network(net, tmp_path / "n.safetensors", classes=list("wxyz"), normalise=normalise, loss="l2")
    np.savez(tmp_path / "L.npz", x=x[:12].numpy(), y=y[:12].numpy())
    np.savez(tmp_path / "U.npz", x=x[12:30].numpy(), y=y[12:30].numpy())
    words = [
        "fidelity",
        "--labelled",
        str(tmp_path / "L.npz"),
        "--pool",
        str(tmp_path / "U.npz"),
        "--out",
        str(tmp_path / "f"),
    ]
    few = ["--candidates", "2", "--repeats", "1", "--retrain-steps", "30", "--ridge", "1e-6, misfit"]
    got = CliRunner().invoke(app, [*words, *few, "--weights", str(tmp_path / "n.safetensors")])
    assert got.exit_code == 0, got.output
    settings = [r for r in load(tmp_path / "f" / "records.jsonl") if r["kind"] == "setting"]
    assert [(r["output"], r["misfit"]) for r in settings] == [
        (output, misfit) for output in ("signs", "sum", "first", "full") for misfit in (False, True)
    ]
    assert [r["own"] for r in settings] == [False, True, *[False] * 6]
    assert "With the default kernel of foretaste query (output=" in " ".join(got.stdout.split())
    for more, says in (
        (["--ridge", "a"], "--ridge a; expected numbers or misfit"),
        (["--ridge=-1"], "--ridge -1.0; expected a share"),
        (["--output", "smu"], "did you mean 'sum'"),
        (["--candidates", "99"], "--candidates 99 of a pool of 18"),
        (["--demo"], "--demo brings its own data"),
    ):
        got = CliRunner().invoke(app, [*words, "--weights", str(tmp_path / "n.safetensors"), *more])
        assert got.exit_code == 2, got.output
        assert says in got.stderr
    got = CliRunner().invoke(app, ["fidelity", "--network", "mlp"])
    assert "--labelled and --pool not given" in got.stderr
