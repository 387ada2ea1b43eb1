"""``foretaste query``: files in, a ranked CSV out; files that do not fit are told, not guessed at."""

import html
import logging
import re
import shlex
from importlib.metadata import version

import numpy as np
import pytest
import torch
from PIL import Image

import foretaste as ft
from cli_runner import invoke, table, told
from foretaste.cli.inputs import parse_settings
from foretaste.data import digits, read_points
from foretaste.network import MLP, build_network, fit, save_network, saved_network


@pytest.fixture(scope="module")
def data():
    d = digits()
    return d.x[:, 0].numpy(), d.y.numpy(), d.pool[:30], d.pool[30:90]


@pytest.fixture
def files(tmp_path, data):
    x, y, L, U = data
    np.savez(tmp_path / "L.npz", x=x[L], y=y[L])
    np.savez(tmp_path / "U.npz", x=x[U], ids=np.array([f"img{i}" for i in U]))
    return tmp_path


@pytest.fixture(scope="module")
def net(data):
    x, y, L, _ = data
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net = MLP(64, (32,), 10)
    fit(net, torch.as_tensor(x[L])[:, None], torch.as_tensor(y[L]), steps=400)
    return net


@pytest.mark.parametrize(
    ("strategy", "select"), [("gain", "auto"), ("mlmoc", "top"), ("margin", "auto"), ("badge", "auto")]
)
def test_the_csv_is_what_ft_query_says(files, data, net, strategy, select):
    x, y, L, U = data
    names = [f"class {c}" for c in range(10)]
    save_network(net, files / "net.safetensors", classes=names)
    out = files / "sub" / "ranked.csv"
    words = ["--labelled", files / "L.npz", "--pool", files / "U.npz", "--strategy", strategy, "--select", select]
    got = invoke("query", "--weights", files / "net.safetensors", *words, "-n", 7, "--out", out)
    assert got.exit_code == 0, got.output
    rows = table(out)
    x_L, x_U = (torch.as_tensor(x[ids])[:, None].float() / 255 for ids in (L, U))
    q = ft.query(net, x_L, torch.as_tensor(y[L]), x_U, strategy=strategy, select=select, batch_size=7)
    assert [row["id"] for row in rows[:7]] == [f"img{U[j]}" for j in q.indices]
    assert [row["picked"] for row in rows] == ["1"] * 7 + ["0"] * 53
    assert [int(row["rank"]) for row in rows] == list(range(1, 61))
    assert {row["id"] for row in rows} == {f"img{i}" for i in U}
    at = {f"img{i}": j for j, i in enumerate(U)}
    if q.scores is None:
        assert {row["score"] for row in rows} == {""}
    else:
        rest = [float(row["score"]) for row in rows[7:]]
        assert rest == sorted(rest, reverse=True)
        for row in rows:
            assert float(row["score"]) == pytest.approx(float(q.scores[at[row["id"]]]), rel=1e-6, abs=1e-9)
    p_UC = ft.acquire.probabilities(net(x_U).detach().double(), "l2")
    for row in rows:
        p_C = p_UC[at[row["id"]]].sort(descending=True).values
        assert row["predicted"] == names[int(net(x_U[at[row["id"]]][None]).argmax())]
        assert float(row["probability"]) == pytest.approx(float(p_C[0]), abs=1e-5)
        assert float(row["margin"]) == pytest.approx(float(p_C[0] - p_C[1]), abs=1e-5)
    assert rows[0]["id"] in got.stdout
    assert "7 of 60 points chosen" in got.stdout


def test_without_weights_it_trains_says_so_and_keeps_them_on_request(files):
    words = ["--labelled", files / "L.npz", "--pool", files / "U.npz", "-n", 3, "--steps", 300]
    got = invoke(
        "query", "--network", "mlp", "--set", "hidden=[16]", *words, "--out", files / "a.csv", "--save", "--loss", "ce"
    )
    assert got.exit_code == 0, got.output
    assert "No weights were given: training mlp (hidden=[16]) on the 30 labelled points." in got.stdout
    about = saved_network(files / "a.safetensors")
    assert (about.network, about.loss, about.shape) == ("mlp", "ce", (1, 8, 8))
    assert about.options["hidden"] == [16]
    again = invoke("query", "--weights", files / "a.safetensors", *words, "--out", files / "b.csv")
    assert again.exit_code == 0, again.output
    assert "with the weights given" in again.stdout
    assert (files / "a.csv").read_bytes() == (files / "b.csv").read_bytes()


def test_the_page_says_how_it_was_made(files):
    """Whoever has the page can repeat it: the command with its quotes, the seed, the versions and the date."""
    out = files / "two words.csv"
    words = ["--labelled", files / "L.npz", "--pool", files / "U.npz", "--seed", 3, "-n", 1, "--steps", 2, "--out", out]
    got = invoke("query", "--network", "mlp", *words)
    assert got.exit_code == 0, got.output
    text = out.with_suffix(".html").read_text()
    made = dict(re.findall(r"<dt>([a-z]+)</dt><dd>([^<]*)</dd>", text))
    assert shlex.split(html.unescape(made["command"])) == ["foretaste", "query", "--network", "mlp", *map(str, words)]
    assert made["seed"] == "3"
    assert f"foretaste {version('foretaste')}" in made["versions"]
    assert f"torch {torch.__version__.partition('+')[0]}" in made["versions"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d \S+", made["date"])
    assert "Label this one next" in text


def test_a_network_that_has_not_learned_is_warned_of(files, caplog):
    words = ["--labelled", files / "L.npz", "--pool", files / "U.npz", "-n", 3, "--steps", 2, "--out", files / "a.csv"]
    with caplog.at_level(logging.ERROR, "foretaste"):
        got = invoke("query", "--network", "mlp", *words, "--strategy", "margin")
    assert got.exit_code == 0, got.output
    assert "WARNING: The network has not learned its labels" in " ".join(got.stdout.split())


def test_warnings_of_the_library_are_printed_once(files):
    words = ["--labelled", files / "L.npz", "--pool", files / "U.npz", "-n", 3, "--steps", 2, "--out", files / "a.csv"]
    got = invoke("query", "--network", "mlp", *words, "--strategy", "gain")
    assert got.exit_code == 0, got.output
    assert got.stdout.count("WARNING: ") == 1
    assert "residual" in got.stdout.split("WARNING: ")[1]
    assert got.stderr == ""


def test_folders_of_pictures(tmp_path, data):
    x, y, L, U = data
    for i in L:
        (tmp_path / "L" / f"digit {y[i]}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[i]).save(tmp_path / "L" / f"digit {y[i]}" / f"{i}.png")
    (tmp_path / "U").mkdir()
    for i in U[:20]:
        Image.fromarray(x[i]).save(tmp_path / "U" / f"{i}.png")
    words = ["--labelled", tmp_path / "L", "--pool", tmp_path / "U", "--network", "mlp", "--steps", 50, "-n", 2]
    got = invoke("query", *words, "--strategy", "entropy", "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    rows = table(tmp_path / "r.csv")
    assert {row["id"] for row in rows} == {f"{i}.png" for i in U[:20]}
    assert {row["predicted"] for row in rows} <= {f"digit {c}" for c in range(10)}
    labelled = read_points(tmp_path / "L")
    assert sorted(zip(labelled.ids, labelled.labels)) == sorted((f"digit {y[i]}/{i}.png", f"digit {y[i]}") for i in L)
    where = {name: k for k, name in enumerate(labelled.ids)}
    assert all(np.array_equal(labelled.x[where[f"digit {y[i]}/{i}.png"], 0].numpy(), x[i]) for i in L)


def test_the_test_side_is_left_out(tmp_path, data):
    x, y = data[0][:60].reshape(60, -1).astype(np.float32), data[1][:60] % 3
    y[30:40] = -1
    np.savez(tmp_path / "d.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    out = tmp_path / "q.csv"
    got = invoke("query", tmp_path / "d.npz", "--out", out, "--page", "none", "-n", 50, "--steps", 20)
    assert got.exit_code == 0, got.output
    said = " ".join(got.output.split())
    assert "20 points of the test or validation split are left out" in said
    assert "on the 30 labelled points" in said
    assert {int(row["id"]) for row in table(out)} == {*range(30, 40)}


def test_tables_of_features_and_regression(tmp_path):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(40, 3)), np.array([1.0, -2.0, 0.5])
    lines = [f"p{k},{x[k] @ w},{','.join(map(str, x[k]))}" for k in range(40)]
    (tmp_path / "L.csv").write_text("name,target,a,b,c\n" + "\n".join(lines[:20]) + "\n", encoding="utf-8-sig")
    (tmp_path / "U.csv").write_text("name,target,a,b,c\n" + "\n".join(lines[20:]) + "\n")
    words = ["--labelled", tmp_path / "L.csv", "--pool", tmp_path / "U.csv", "--network", "mlp", "--set", "hidden=[8]"]
    got = invoke(
        "query",
        *words,
        "--regression",
        "--strategy",
        "variance",
        "-n",
        4,
        "--steps",
        300,
        "--max-lr",
        0.05,
        "--out",
        tmp_path / "r.csv",
    )
    assert got.exit_code == 0, got.output
    rows = table(tmp_path / "r.csv")
    assert {row["id"] for row in rows} == {f"p{k}" for k in range(20, 40)}
    said = np.array([float(row["predicted"]) for row in rows])
    true = np.array([x[int(row["id"][1:])] @ w for row in rows])
    assert np.corrcoef(said, true)[0, 1] > 0.8
    assert {row["margin"] for row in rows} == {""}
    five = ("--regression", "--steps", 5, "--batch", 1, "-n", 4, "--out", tmp_path / "r.csv")
    assert "chosen by variance" in invoke("query", *words, *five).output
    assert "gain" in told("query", *words, *five, "--strategy", "gain")


def test_pairs():
    assert parse_settings(["widen=4", "hidden=[3, 2]", "activation=erf", 's="a=b"'], "--set") == {
        "widen": 4, "hidden": [3, 2], "activation": "erf", "s": "a=b",
    }  # fmt: skip
    with pytest.raises(ValueError, match="--set widen, =3; expected key=value"):
        parse_settings(["widen", "=3", "a=1"], "--set")


def spoil(where, **changes):
    held = dict(np.load(where)) | changes
    np.savez(where, **{k: v for k, v in held.items() if v is not None})


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("U", {"x": np.zeros((0, 8, 8), np.uint8), "ids": np.array([], "U3")}, "expected at least one point"),
        ("U", {"ids": np.array(["a"] * 60)}, r"U\.npz: 1 id \(a\) stands more than once"),
        ("U", {"x": np.zeros((60, 9, 9), np.uint8)}, r"are \(1, 8, 8\) of uint8, those of .* are \(1, 9, 9\) of uint8"),
        ("U", {"x": np.full((60, 64), np.nan, np.float32)}, "3840 numbers are not finite"),
        ("U", {"x": None}, r"has ids; expected x, and y and ids"),
        ("L", {"y": None}, r"L\.npz has no labels"),
        ("L", {"y": np.zeros(29, int)}, r"y is int64 \(29,\); expected one for each of 30 points"),
        ("L", {"y": np.array(["cat"] * 15 + ["dog"] * 15)}, "2 labels are no class of the network: 'cat', 'dog'; its"),
        ("L", {"y": np.arange(30)}, "are no class of the network: '10'"),
        ("L", {"y": -np.arange(30)}, "are no class of the network"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit(files, net, name, changes, says):
    spoil(files / f"{name}.npz", **changes)
    save_network(net, files / "net.safetensors", classes=[str(c) for c in range(10)])
    words = ["--labelled", files / "L.npz", "--pool", files / "U.npz", "--weights", files / "net.safetensors"]
    assert re.search(says, told("query", *words, "-n", 3, "--out", files / "r.csv"))
    assert not (files / "r.csv").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--network", "mlp", "--strategy", "gian"], "unknown strategy 'gian'; did you mean 'gain'"),
        (["--network", "mlp", "--options", "scal=3"], "unknown option 'scal' of strategy 'cover'"),
        (["--network", "wnr1"], "unknown network 'wnr1'; did you mean 'wrn1'"),
        (["--network", "mlp", "--device", "gpu"], "--device gpu; expected cpu, cuda"),
        (["--network", "mlp", "--device", "cuda:99"], "CUDA devices; use cpu or auto"),
        (["--network", "mlp", "--loss", "l1"], "unknown loss 'l1'"),
        (["--network", "mlp", "--select", "sequential"], "--select sequential asks for a label after each pick"),
        (["--network", "mlp", "--select", "best"], "unknown select 'best'"),
        (["--network", "mlp", "--strategy", "badge", "--select", "top"], "'badge' picks by itself"),
        (["--network", "mlp", "--use-pool", "yes"], "--use-pool yes; expected auto or off"),
        (
            ["--network", "mlp", "--strategy", "badge", "--use-pool", "auto"],
            "--use-pool auto is for scores, and",
        ),
        (["--network", "mlp", "--output", "10"], "--output 10 and the network has 10 outputs; expected 0 to 9"),
        (["--network", "mlp", "--strategy", "change"], "'change'"),
        (["--network", "mlp", "--strategy", "bald"], "no nn.Dropout with p > 0; --options rate=0.5 drops half"),
        (["--network", "mlp", "--strategy", "lcmd", "--options", "space=lasst"], "space='lasst'; did you mean 'last'"),
        (["--network", "mlp", "--strategy", "badge", "--options", "layer=tail"], "unknown layer 'tail' in --options"),
        (["--network", "mlp", "--strategy", "ll4al"], "or --options layers=[...], which trains one"),
        (["--network", "mlp", "--normalise", "0.5"], "--normalise '0.5'; expected"),
        (["--network", "mlp", "--normalise", "0.5/0"], "--normalise '0.5/0'; expected"),
        (["--weights", "none.safetensors"], "none.safetensors does not exist"),
        (["--network", "mlp", "--set", "inputs=5"], "does not take points of shape (1, 8, 8)"),
        (["--network", "mlp", "--classes", "a,b,c"], "30 labels"),
    ],
)
def test_settings_that_do_not_fit(files, words, says):
    came = invoke("query", "--labelled", files / "L.npz", "--pool", files / "U.npz", *words, "--out", files / "r.csv")
    assert came.exit_code == 2, came.output
    assert "training" not in came.stdout  # told before
    got = " ".join(came.stderr.split())
    if says != "30 labels":
        assert says in got
    else:
        assert "labels are no class of the network" in got
    assert not (files / "r.csv").exists()


@pytest.mark.parametrize("steps", [[], ["--steps", "150"]])
def test_the_pool_is_learned_from_where_it_helps(tmp_path, steps):
    """Ranking and predictions are those of ft.fit and ft.query with the pool, and a sentence says what it is worth."""
    d = digits()
    L, U = d.pool[:30], d.pool[30:430]
    x, y = d.x.flatten(1).float().numpy() / 255, d.y.numpy().astype(str)
    np.savez(tmp_path / "all.npz", x=x[[*L, *U]], y=np.array([*y[L], *[""] * len(U)]), ids=[*L, *U])
    out = tmp_path / "r.csv"
    words = ["--network", "mlp", "--set", "hidden=[32]", "--normalise", "none", *steps]
    got = invoke("query", tmp_path / "all.npz", *words, "--use-pool", "auto", "-n", 5, "--out", out)
    assert got.exit_code == 0, got.output
    net = build_network("mlp", inputs=64, hidden=[32], classes=10)
    x_L, x_U, y_L = torch.as_tensor(x[L]), torch.as_tensor(x[U]), d.y[L]
    how = {"steps": int(steps[1])} if steps else {}
    made = ft.fit(net, x_L, y_L, pool=x_U, start="cold", **how)
    q = ft.query(net, x_L, y_L, x_U, pool="auto", batch_size=5)
    rows = table(out)
    assert [int(row["id"]) for row in rows[:5]] == [int(U[j]) for j in q.indices]
    assert made.pool["used"]
    right, without = made.pool["hits"], made.pool["hits_without"]
    said = " ".join(got.stdout.split())
    assert "on the 30 labelled points and, where that helps, on the others" in said
    assert (
        f"help, by leave-one-out: {right:.0%} of the labels are predicted right with them, {without:.0%} without"
        in said
    )
    assert "has not learned its labels" not in said
    assert "leave-one-out" in (tmp_path / "r.html").read_text(encoding="utf-8")
    true = {int(i): str(y[i]) for i in U}
    plain = tmp_path / "plain.csv"
    assert invoke("query", tmp_path / "all.npz", *words, "-n", 5, "--out", plain).exit_code == 0
    hits = [sum(row["predicted"] == true[int(row["id"])] for row in table(file)) for file in (out, plain)]
    assert hits[0] > hits[1] + 20  # of 400
    assert "leave-one-out" not in (tmp_path / "plain.html").read_text(encoding="utf-8")


def test_a_pool_that_does_not_help_and_one_without_labels(tmp_path):
    g = np.random.default_rng(0)
    x = g.normal(size=(150, 30)).astype("float32")
    y = (x @ g.normal(size=(30, 2))).argmax(1).astype(str)
    y[80:] = ""
    np.savez(tmp_path / "all.npz", x=x, y=y)
    words = ["--network", "mlp", "--set", "hidden=[16]", "--use-pool", "auto", "-n", 3, "--page", "none"]
    got = " ".join(invoke("query", tmp_path / "all.npz", *words, "--out", tmp_path / "r.csv").stdout.split())
    assert "The points without a label do not help here" in got
    rows = table(tmp_path / "r.csv")
    invoke("query", tmp_path / "all.npz", *words, "--use-pool", "off", "--out", tmp_path / "off.csv")
    assert table(tmp_path / "off.csv") == rows
    np.savez(tmp_path / "all.npz", x=x)
    got = " ".join(invoke("query", tmp_path / "all.npz", *words, "--out", tmp_path / "r.csv").stdout.split())
    assert "what that is worth only labels can tell" in got


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--channels", "5"], "--channels is 5; expected 1 (grey)"),
        (["--budget", "8XB"], "--budget is '8XB'; expected bytes"),
        (["--batch", "1"], "--batch 1 and net has BatchNorm"),
        (["--steps", "9", "--max-lr", "1e9"], "with --max-lr 1e+09, and 3 times more, down to --max-lr 1.2"),
    ],
)
def test_errors_of_the_library_name_options(tmp_path, data, words, says):
    _, y, L, U = data
    save_photos(tmp_path / "photos", data, L[:6], lambda i: f"digit {y[i]}", [9] * 6)
    save_photos(tmp_path / "photos", data, U[:6], lambda i: "unlabelled", [9] * 6)
    got = told("query", tmp_path / "photos", "--backbone", "none", *words, "--out", tmp_path / "r.csv")
    assert says in got
    assert not re.search(r"\w_\w|\w=", got.replace(str(tmp_path), ""))


def test_one_class_alone_is_told(files):
    spoil(files / "L.npz", y=np.array(["cat"] * 30))
    got = told("query", "--network", "mlp", "--labelled", files / "L.npz", "--pool", files / "U.npz")
    assert "labels of cat alone; expected two classes or more" in got


def test_columns_of_a_table_are_brought_to_one_scale_before_training(tmp_path):
    """A length in µm beside one in km: untouched, SGD learns nothing."""
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = np.stack([1e4 + 1e3 * rng.normal(size=40), 1e-3 * (y + 0.1 * rng.normal(size=40))], 1)
    rows = [f"{i},{'ab'[c]},{u:.9g},{v:.9g}" for i, (c, (u, v)) in enumerate(zip(y, x))]
    for name, some in (("L", rows[:20]), ("U", rows[20:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,label,u,v", *some]))
    words = ["query", "--network", "mlp", "--labelled", tmp_path / "L.csv", "--pool", tmp_path / "U.csv", "-n", 2]
    got = invoke(*words, "--steps", 300, "--save", "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    rows = table(tmp_path / "r.csv")
    assert sum(row["predicted"] == "ab"[y[int(row["id"])]] for row in rows) >= 19
    mean, std = saved_network(tmp_path / "r.safetensors").normalise
    assert mean == pytest.approx(x.mean(0), rel=1e-5)
    assert std == pytest.approx(x.std(0), rel=1e-3)


def test_outputs_without_a_class_each(files):
    net = build_network("mlp", inputs=64, classes=12)
    save_network(net, files / "w.safetensors")
    spoil(files / "L.npz", y=np.array(["cat", "dog"] * 15))
    words = ["--labelled", files / "L.npz", "--pool", files / "U.npz", "--weights", files / "w.safetensors"]
    got = told("query", *words, "--out", files / "r.csv")
    assert "the network has 12 outputs and there are 2 classes (cat, dog); give --classes" in got


def test_what_is_written_over(files):
    words = ["query", "--network", "mlp", "--labelled", files / "L.npz", "--pool", files / "U.npz"]
    assert "one of the inputs" in told(*words, "--out", files / "U.npz")
    assert "is a folder" in told(*words, "--out", files)
    assert "--labelled and --pool not given" in told("query")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("1,2,3\n4,5,6\n", "its first line is numbers"),
        ("id,label\na,b\n", "no features"),
        (
            "id,a,b\nx,1,2\ny,1\nz,nan,2\nw,oops,inf\n,1,2,3\n",
            "line 3: 2 cells where 3 columns are named; line 6: 4 cells",
        ),
        ("id,a\nx,1\n,2\n", "line 3: no id"),
        ("id,a\nx,1\ny,inf\nz,1e99\n", "line 3: a is 'inf', not a finite number; line 4: a is '1e99'"),
        ("id,a\n" + "".join(f"{k},{k}\n" for k in range(20)) + "z,oops\n", "line 22: a is 'oops', not a finite number"),
        ("id,a\nx,1\nx,2\n", r"1 id \(x\) stands more than once"),
        ("id,a\n", "has no points"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_read(tmp_path, text, says):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=says):
        read_points(tmp_path / "t.csv")


def test_columns_must_be_the_same(tmp_path):
    (tmp_path / "L.csv").write_text("label,a,b\nx,1,2\ny,3,4\n")
    (tmp_path / "U.csv").write_text("a,c\n1,2\n")
    got = told("query", "--network", "mlp", "--labelled", tmp_path / "L.csv", "--pool", tmp_path / "U.csv")
    assert "lacks: b; has besides: c" in got


def test_broken_pictures_are_named(tmp_path, data):
    x, *_ = data
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(x[0]).save(tmp_path / name / "good.png")
    (tmp_path / "a" / "bad.png").write_bytes((tmp_path / "a" / "good.png").read_bytes()[:40])
    with pytest.raises(ValueError, match=r"a/bad\.png"):
        read_points(tmp_path, skip_broken=False)
    got = read_points(tmp_path)
    assert got.ids == ["a/good.png", "b/good.png"]
    assert got.labels == ["a", "b"]
    assert any("bad.png" in note for note in got.notes)


def test_a_pool_that_has_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"does not exist; expected an \.npz, a CSV, or a folder"):
        read_points(tmp_path / "none.npz")
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(ValueError, match=r"unknown ending '\.txt'"):
        read_points(tmp_path / "x.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no pictures"):
        read_points(tmp_path / "empty")


def save_digits(path, data, rows, **more):
    x, y, *_ = data
    np.savez(path, x=x[rows], y=y[rows], **more)


@pytest.mark.parametrize("strategy", ["random", "badge", "margin", "gain"])
@pytest.mark.parametrize("named", [False, True], ids=["by values", "by id"])
def test_a_labelled_point_is_never_chosen_again(tmp_path, data, strategy, named):
    """The pool holds the labelled points too, as the same pictures, or under the same ids with other noise."""
    x, _, L, U = data
    both = np.concatenate([L, U[:15]])
    noise = np.zeros_like(x[both])
    noise[:, 0, 0] = 1 if named else 0
    save_digits(tmp_path / "L.npz", data, L, **({"ids": L.astype(str)} if named else {}))
    np.savez(tmp_path / "U.npz", x=x[both] + noise, ids=both.astype(str))
    words = ["--labelled", tmp_path / "L.npz", "--pool", tmp_path / "U.npz", "--network", "mlp", "--steps", 20]
    got = invoke("query", *words, "--strategy", strategy, "-n", 15, "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    assert {row["id"] for row in table(tmp_path / "r.csv")} == set(U[:15].astype(str))
    assert "30 points are labelled already" in got.stdout


def test_positions_are_no_ids(tmp_path, data):
    """Files without ids call their points 0, 1, 2, ...: equal positions are not equal points."""
    _, _, L, U = data
    save_digits(tmp_path / "L.npz", data, L)
    save_digits(tmp_path / "U.npz", data, U)
    words = ["--labelled", tmp_path / "L.npz", "--pool", tmp_path / "U.npz", "--network", "mlp", "--steps", 20]
    got = invoke("query", *words, "--strategy", "random", "-n", 2, "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    assert len(table(tmp_path / "r.csv")) == 60


@pytest.mark.parametrize("strategy", ["random", "gain", "badge", "margin"])
def test_more_than_the_pool_has_takes_what_is_left(files, strategy):
    words = ["--labelled", files / "L.npz", "--pool", files / "U.npz", "--network", "mlp", "--steps", 20]
    got = invoke("query", *words, "--strategy", strategy, "-n", 61, "--watch", 1000, "--out", files / "r.csv")
    assert got.exit_code == 0, got.output
    assert "-n 61: the pool has 60 points left, and all of it is chosen" in got.stdout
    assert "--watch 1000: the pool has 60 points left" in got.stdout
    assert [row["picked"] for row in table(files / "r.csv")] == ["1"] * 60


def test_an_empty_pool_ends_a_loop_without_an_error(files):
    """Every point is labelled: an empty ranking, so that a script does not read the one of the round before."""
    (files / "r.csv").write_text("rank,picked,id\n1,1,old\n")
    words = ["--labelled", files / "L.npz", "--pool", files / "L.npz", "--network", "mlp"]
    got = invoke("query", *words, "-n", 3, "--out", files / "r.csv")
    assert got.exit_code == 0, got.output
    assert "Nothing is left to choose" in got.stdout
    assert "training" not in got.stdout
    assert table(files / "r.csv") == []
    assert (files / "r.csv").read_text().startswith("rank,picked,id,score")


def test_durations_are_plain():
    """110 s were 1.1e+02 s."""
    from types import SimpleNamespace

    from foretaste.cli.query_command import summarise_query

    problem = SimpleNamespace(x_L=[0] * 3, x_U=[0] * 9, classes=("a", "b"), name="mlp", options={}, fitted=None)
    problem.predicts = True
    info = {"strategy": "gain", "select": "greedy", "residual_L": 1e-6}
    seconds = {"kernel": 110.0, "score": 0.2, "select": 0.001, "total": 8000.0}
    q = type("Q", (), {"info": info, "seconds": seconds, "__len__": lambda self: 2})()
    text = summarise_query(problem, q)
    assert "Choosing took 2.2 h (kernel 1.8 min, score 0.2 s)." in text


def write_flowers(path, labels, n=40):
    """Two blobs of two columns; the labels given, the others empty."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    x = rng.normal(size=(n, 2)) + 4 * y[:, None]
    rows = [f"p{i},{labels.get(i, '')},{x[i, 0]:.6f},{x[i, 1]:.6f}" for i in range(n)]
    path.write_text("\n".join(["id,label,width,height", *rows]))
    return y


def test_one_table_with_some_labels_filled_in(tmp_path):
    """Labelled rows train, the others are the pool; the network is an MLP."""
    y = write_flowers(tmp_path / "t.csv", {i: "ab"[i % 2] for i in range(10)})
    got = invoke("query", tmp_path / "t.csv", "-n", 4, "--steps", 200, "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    assert "training mlp on the 10 labelled points" in got.stdout
    rows = table(tmp_path / "r.csv")
    assert {row["id"] for row in rows} == {f"p{i}" for i in range(10, 40)}
    assert sum(row["predicted"] == "ab"[y[int(row["id"][1:])]] for row in rows) >= 28


def test_rounds_on_one_table_end_without_an_error(tmp_path):
    """A script that labels what was picked until nothing is left."""
    labels = {i: "ab"[i % 2] for i in range(30)}
    for left in (10, 3, 0):
        write_flowers(tmp_path / "t.csv", labels)
        words = ["--strategy", "random", "--steps", 5, "-n", 7, "--out", tmp_path / "r.csv"]
        got = invoke("query", tmp_path / "t.csv", *words)
        assert got.exit_code == 0, got.output
        rows = table(tmp_path / "r.csv")
        assert len(rows) == left
        labels |= {int(row["id"][1:]): "a" for row in rows if row["picked"] == "1"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["D.csv", "--pool", "D.csv"], "DATA and --labelled or --pool were given"),
        (["--labelled", "D.csv"], "--pool not given; expected DATA, one file or folder"),
        (["missing.csv"], "missing.csv does not exist; expected a folder of pictures"),
        (["--pool", "D.csv"], "a pool without any labels is DATA, too"),
        (["--labelled", "unlabelled.csv", "--pool", "D.csv"], "unlabelled.csv has no labels, and a network needs some"),
        (["--labelled", "unlabelled.csv", "--pool", "D.csv"], "or start with `foretaste label`, which needs none"),
        (["unlabelled.csv", "--strategy", "margin"], "strategy 'margin' asks what a trained network predicts"),
        (["unlabelled.csv", "--strategy", "gain", "--select", "top"], "leave --strategy out (the default covers"),
        (["unlabelled.csv", "--save"], "--save keeps weights that are trained here, and "),
        (["unlabelled.csv", "--classes", "a"], "--classes names 1 class, a; expected at least two"),
        (["D.csv", "--classes", "a,b,b"], "--classes is 'a,b,b'; expected different names"),
        (["unlabelled.csv", "--classes", "a,b,"], "--classes is 'a,b,'; expected different names"),
    ],
)
def test_data_or_labelled_and_pool(tmp_path, words, says):
    write_flowers(tmp_path / "D.csv", {0: "a", 1: "b"})
    write_flowers(tmp_path / "unlabelled.csv", {})
    words = [tmp_path / word if word.endswith(".csv") else word for word in words]
    assert says in told("query", *words)


def test_a_first_batch_of_a_table_without_labels(tmp_path):
    """It was refused. Two points of two blobs are one of each; labelled, they are where the second batch begins."""
    y = write_flowers(tmp_path / "t.csv", {})
    words = ["query", tmp_path / "t.csv", "-n", 2, "--steps", 200, "--out", tmp_path / "r.csv"]
    got = invoke(*words)
    assert got.exit_code == 0, got.output
    said = " ".join(got.stdout.split())
    assert "t.csv has no labels (if it has, --label names their column)." in said
    assert "This is a first batch: points that cover the pool by the kernel of a network (mlp, untrained)." in said
    assert "predicted" not in said
    rows = table(tmp_path / "r.csv")
    first = [int(row["id"][1:]) for row in rows if row["picked"] == "1"]
    assert len(rows) == 40
    assert {y[i] for i in first} == {0, 1}
    assert {row[name] for row in rows for name in ("predicted", "probability", "margin")} == {""}
    page = (tmp_path / "r.html").read_text()
    assert "Label these 2 first" in page
    assert "pick-value" not in page.partition("</style>")[2]
    write_flowers(tmp_path / "t.csv", {i: "ab"[y[i]] for i in first})
    got = invoke(*words)
    assert got.exit_code == 0, got.output
    rows = table(tmp_path / "r.csv")
    assert len(rows) == 38
    assert sum(row["predicted"] == "ab"[y[int(row["id"][1:])]] for row in rows) >= 35


@pytest.mark.parametrize(
    "words", [["--regression"], ["--strategy", "typiclust"], ["--classes", "a,b,c"], ["--watch", 9]]
)
def test_a_first_batch_in_other_ways(tmp_path, words):
    write_flowers(tmp_path / "t.csv", {})
    got = invoke("query", tmp_path / "t.csv", "-n", 3, *words, "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    rows = table(tmp_path / "r.csv")
    assert [row["picked"] for row in rows[:4]] == ["1", "1", "1", "0"]
    assert {row["predicted"] for row in rows} == {""}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["three", "--output", "3"], "--output 3 and the network has 3 outputs; expected 0 to 2"),
        (["three", "--classes", "a,b"], "the network has 3 outputs and there are 2 classes (a, b)"),
        (["one"], "strategy 'cover' needs classes and this network has one output"),
        (["none"], "network ft_first:none has no parameters; its tangent kernel is zero"),
    ],
)
def test_a_first_batch_by_a_network_of_ones_own(tmp_path, monkeypatch, words, says):
    """Its number of outputs was taken to be 2, and one without parameters ended in StopIteration."""
    (tmp_path / "ft_first.py").write_text(
        "from torch import nn\n"
        "def three(shape): return nn.Linear(shape[0], 3)\n"
        "def one(shape): return nn.Linear(shape[0], 1)\n"
        "def none(shape): return nn.Flatten()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    write_flowers(tmp_path / "t.csv", {})
    got = invoke("query", tmp_path / "t.csv", "--network", "ft_first:three", "--output", 2, "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    got = invoke("query", tmp_path / "t.csv", "--network", f"ft_first:{words[0]}", *words[1:])
    assert got.exit_code == 2
    assert says in " ".join(got.stderr.split())
    assert "first batch" not in got.output


def test_weights_of_one_output_without_labels_want_regression(tmp_path, monkeypatch):
    """It was told of labels of 0 alone, and there are none."""
    (tmp_path / "ft_single.py").write_text("from torch import nn\ndef one(): return nn.Linear(2, 1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(6, 2)).astype("f4"))
    save_network(torch.nn.Linear(2, 1), tmp_path / "w.safetensors")
    words = ["--network", "ft_single:one", "--weights", tmp_path / "w.safetensors"]
    assert "the network has 1 output and x.npz no labels" in told("query", tmp_path / "x.npz", *words).replace(
        f"{tmp_path}/", ""
    )


def test_label_names_an_array_of_an_npz(tmp_path):
    """It was ignored: labelled data had no labels, and the words to that were to give --label."""
    r = np.random.default_rng(0)
    y = np.array([0, 1, 0, 1, -1, -1, -1, -1])
    np.savez(tmp_path / "x.npz", x=r.normal(size=(8, 3)).astype("f4"), kind=y)
    words = ["query", tmp_path / "x.npz", "-n", 2, "--steps", 20, "--out", tmp_path / "r.csv"]
    got = invoke(*words, "--label", "kind")
    assert got.exit_code == 0, got.output
    assert "4 labelled points" in " ".join(got.output.split())
    assert "has no array 'kin' for the label; did you mean 'kind'?" in told(*words, "--label", "kin")


def test_labels_that_are_all_minus_one_are_none(tmp_path):
    """As in scikit-learn. They were refused as −1 and 1 alone."""
    x = np.random.default_rng(0).normal(size=(6, 3)).astype("f4")
    np.savez(tmp_path / "x.npz", x=x, y=np.full(6, -1))
    got = invoke("query", tmp_path / "x.npz", "-n", 2, "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    assert "This is a first batch" in " ".join(got.output.split())
    np.savez(tmp_path / "x.npz", x=x, y=np.array([-1, -1, -1, np.nan, np.nan, np.nan]))
    assert "are −1 alone; −1 is no label here" in told("query", tmp_path / "x.npz", "--out", tmp_path / "r.csv")


def test_weights_predict_a_pool_without_labels(tmp_path):
    write_flowers(tmp_path / "some.csv", {i: "ab"[i % 2] for i in range(10)})
    y = write_flowers(tmp_path / "t.csv", {})
    out = ["--out", tmp_path / "r.csv"]
    assert invoke("query", tmp_path / "some.csv", "--steps", 200, "--save", *out).exit_code == 0
    for strategy in ("cover", "margin"):
        words = ["--weights", tmp_path / "r.safetensors", "--strategy", strategy, "-n", 3]
        got = invoke("query", tmp_path / "t.csv", *words, *out)
        assert got.exit_code == 0, got.output
        rows = table(tmp_path / "r.csv")
        assert sum(row["predicted"] == "ab"[y[int(row["id"][1:])]] for row in rows) >= 37


def test_labels_that_are_fractions_want_regression(tmp_path):
    """They were a class each."""
    write_flowers(tmp_path / "t.csv", {i: f"{0.37 * i:.2f}" for i in range(20)})
    assert "--regression" in told("query", tmp_path / "t.csv", "--out", tmp_path / "r.csv")
    words = ["--regression", "--strategy", "variance", "--max-lr", 0.05, "--steps", 50]
    got = invoke("query", tmp_path / "t.csv", *words, "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output


def test_class_ids_that_a_spreadsheet_wrote_as_floats(tmp_path):
    """A column of integers with gaps is 0.0, 1.0 in pandas."""
    write_flowers(tmp_path / "t.csv", {i: f"{i % 2}.0" for i in range(10)})
    got = invoke("query", tmp_path / "t.csv", "--steps", 50, "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    assert {row["predicted"] for row in table(tmp_path / "r.csv")} == {"0", "1"}


def save_photos(root, data, rows, folder, sides):
    x, *_ = data
    for i, side in zip(rows, sides):
        path = root / folder(i) / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[i]).convert("RGB").resize((side, side + 7)).save(path, quality=95)


def test_photos_of_mixed_sizes_need_no_option(tmp_path, data):
    """Class folders and a folder without labels. Without a backbone, a small WideResNet at 32 pixels; both are said."""
    _, y, L, U = data
    save_photos(tmp_path / "photos", data, L[:6], lambda i: f"digit {y[i]}", range(40, 46))
    save_photos(tmp_path / "photos", data, U[:6], lambda i: "unlabelled", range(20, 50, 5))
    words = ["-n", 2, "--strategy", "margin", "--steps", 3, "--save", "--out", tmp_path / "r.csv"]
    got = invoke("query", tmp_path / "photos", "--backbone", "none", *words)
    assert got.exit_code == 0, got.output
    assert "pictures of 10 sizes are scaled and cut to 32×32 pixels (--size chooses another)" in got.stdout
    assert "training wrn1 (widen=1) on the 6 labelled points" in got.stdout
    assert {row["id"] for row in table(tmp_path / "r.csv")} == {f"unlabelled/{i}.jpg" for i in U[:6]}
    assert saved_network(tmp_path / "r.safetensors").shape == (3, 32, 32)


def test_pictures_take_the_size_of_the_weights(tmp_path, data):
    _, y, L, U = data
    save_photos(tmp_path / "photos", data, L[:6], lambda i: f"digit {y[i]}", range(40, 46))
    save_photos(tmp_path / "photos", data, U[:6], lambda i: "unlabelled", range(20, 50, 5))
    words = [tmp_path / "photos", "-n", 2, "--strategy", "margin", "--out", tmp_path / "r.csv"]
    assert invoke("query", *words, "--size", 12, "--steps", 2, "--save").exit_code == 0
    got = invoke("query", *words, "--weights", tmp_path / "r.safetensors")
    assert got.exit_code == 0, got.output
    assert "cut to 12×12 pixels (the size that the weights were trained on)" in got.stdout


def test_sizes_for_a_network_of_ones_own_are_the_users_to_choose(tmp_path, data):
    _, y, L, U = data
    save_photos(tmp_path / "photos", data, L[:6], lambda i: f"digit {y[i]}", range(40, 46))
    save_photos(tmp_path / "photos", data, U[:6], lambda i: "unlabelled", range(20, 50, 5))
    got = told("query", tmp_path / "photos", "--network", "torch.nn:Flatten")
    assert "pictures of 10 sizes" in got
    assert "such as --size 64, to bring them to one" in got
    assert "size=" not in got


def test_small_pictures_of_one_size_stay_as_they_are(tmp_path, data):
    x, y, L, U = data
    for i in [*L[:6], *U[:6]]:
        path = tmp_path / "photos" / (f"digit {y[i]}" if i in L else "unsorted") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[i]).save(path)
    words = ["-n", 2, "--strategy", "margin", "--steps", 3, "--save", "--out", tmp_path / "r.csv"]
    got = invoke("query", tmp_path / "photos", "--backbone", "none", *words)
    assert got.exit_code == 0, got.output
    assert "scaled" not in got.stdout
    assert saved_network(tmp_path / "r.safetensors").shape == (1, 8, 8)


def test_the_same_file_in_both_folders_is_not_chosen(tmp_path, data):
    """By links; equal names in two folders are not equal pictures."""
    _, y, L, U = data
    save_photos(tmp_path / "L", data, L[:6], lambda i: f"digit {y[i]}", [20] * 6)
    save_photos(tmp_path / "U", data, U[:6], lambda i: "all", [20] * 6)
    taken = tmp_path / "U" / "all" / "seen.jpg"
    taken.write_bytes((tmp_path / "L" / f"digit {y[L[0]]}" / f"{L[0]}.jpg").read_bytes())
    (tmp_path / "U" / "all" / f"{U[0]}.jpg").rename(tmp_path / "U" / "all" / f"{L[1]}.jpg")
    words = ["--labelled", tmp_path / "L", "--pool", tmp_path / "U", "--network", "mlp", "--steps", 3, "-n", 6]
    got = invoke("query", *words, "--strategy", "random", "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    names = {f"all/{i}.jpg" for i in [L[1], *U[1:6]]}
    assert {row["id"] for row in table(tmp_path / "r.csv")} == names


def test_a_saved_hugging_face_dataset(tmp_path, data):
    datasets = pytest.importorskip("datasets")
    x, y, L, U = data
    rows = [*L, *U[:10]]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=[f"digit {c}" for c in range(10)])}
    )
    labels = [int(y[i]) if i in L else -1 for i in rows]
    pictures = [Image.fromarray(x[i]) for i in rows]
    datasets.Dataset.from_dict({"image": pictures, "label": labels}, features).save_to_disk(tmp_path / "hf")
    words = ["--network", "mlp", "--steps", 20, "-n", 3, "--out", tmp_path / "r.csv"]
    got = invoke("query", tmp_path / "hf", *words)
    assert got.exit_code == 0, got.output
    rows = table(tmp_path / "r.csv")
    assert {row["id"] for row in rows} == {str(i) for i in range(30, 40)}
    assert {row["predicted"] for row in rows} <= {f"digit {c}" for c in range(10)}


def test_a_network_of_ones_own_that_returns_logits(files, monkeypatch):
    """As those of Hugging Face do."""
    code = """
import types
from torch import nn

class Wrapped(nn.Module):
    def __init__(self, inputs, classes=10):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))

    def forward(self, x):
        return types.SimpleNamespace(logits=self.body(x))
"""
    (files / "own_logits.py").write_text(code)
    monkeypatch.chdir(files)
    import safetensors.torch

    weights = {"body.1.weight": torch.randn(10, 64), "body.1.bias": torch.zeros(10)}
    safetensors.torch.save_file(weights, files / "w.safetensors")
    words = ["--labelled", files / "L.npz", "--pool", files / "U.npz", "--network", "own_logits:Wrapped"]
    got = invoke("query", *words, "--weights", files / "w.safetensors", "-n", 3, "--out", files / "r.csv")
    assert got.exit_code == 0, got.output
    assert len(table(files / "r.csv")) == 60


def test_a_pool_too_small_for_a_graph_is_said_to_be(tmp_path):
    (tmp_path / "tiny.csv").write_text("id,a,b,label\n1,3,4,x\n2,5,6,y\n3,9,1,\n4,2,2,\n5,1,7,\n")
    got = invoke("query", tmp_path / "tiny.csv", "--use-pool", "auto", "-n", 2, "--out", tmp_path / "out.csv")
    assert "left out: with 12 points in all they could" in " ".join(got.output.split())
