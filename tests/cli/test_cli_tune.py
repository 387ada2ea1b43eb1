"""``foretaste query --tune``: a text encoder from a folder of weights, of which a part is trained."""

import csv
import html
import re
from pathlib import Path

import pytest
import torch

import foretaste as ft
from cli_runner import invoke, table, told
from foretaste.network import TunedTail, TunedText, find_backbone, fit_tuned, text_ids, tune_text
from tuned_cases import save_encoder

TEXTS = ["good film", "very bad film", "the plot was good", "the plot was bad", "not good", "not bad", "very good plot"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two blocks with random weights, and a WordPiece tokenizer of a few words."""
    return save_encoder(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    rows = [(TEXTS[i % 7] + " film" * (i // 7), ("good" if i % 2 else "bad") if i < 8 else "") for i in range(28)]
    with (tmp_path / "reviews.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("body", "topic"), *rows])
    return tmp_path / "reviews.csv"


def asked(reviews: Path, *words: object) -> list[object]:
    out = reviews.parent / "ranked.csv"
    return ["query", reviews, "--text", "body", "--label", "topic", "-n", 3, "--out", out, *words]


@pytest.mark.parametrize("tune", ["last-block", "lora", "head"])
def test_a_folder_of_weights_is_tuned_and_asked(folder: Path, reviews: Path, tune: str) -> None:
    got = invoke(*asked(reviews, "--backbone", f"hf:{folder}", "--tune", tune, "--steps", 5, "--batch", 4))
    assert got.exit_code == 0, got.output
    rows = table(reviews.parent / "ranked.csv")
    with reviews.open(newline="") as stream:
        texts = [row["body"] for row in csv.DictReader(stream)]
    backbone = find_backbone(f"hf:{folder}", kind="text")
    ids = text_ids(texts, backbone=backbone)
    net = tune_text(backbone, ids, 2, tune=tune, seed=0)
    fit_tuned(net, ids[:8], torch.tensor([0, 1] * 4), steps=5, batch_size=4, seed=0)
    q = ft.query(net, ids[:8], torch.tensor([0, 1] * 4), ids[8:], batch_size=3, loss="ce")
    assert [int(row["id"]) for row in rows[:3]] == [int(j) + 8 for j in q.indices]


def test_the_page_shows_what_was_chosen_and_what_labels_would_change(folder: Path, reviews: Path) -> None:
    words = ["--backbone", f"hf:{folder}", "--tune", "last-block", "--steps", 5, "--batch", 4, "--seed", 2]
    got = invoke(*asked(reviews, *words))
    assert got.exit_code == 0, got.output
    page = (reviews.parent / "ranked.html").read_text(encoding="utf-8")
    rows = table(reviews.parent / "ranked.csv")
    with reviews.open(newline="") as stream:
        texts = [row["body"] for row in csv.DictReader(stream)]
    assert "Label these 3 next" in page
    about = dict(re.findall(r"<dt>([a-z]+)</dt><dd>([^<]*)</dd>", page))
    assert about["network"] == f"hf:{folder}, last-block tuned"
    assert about["labelled"] == "8 points, 2 classes"
    assert about["pool"] == "20 points"
    assert about["strategy"] == "cover (greedy)"
    assert "--tune last-block" in html.unescape(about["command"])
    picks = [row for row in rows if row["picked"] == "1"]
    assert len(picks) == 3
    for row in picks:
        assert texts[int(row["id"])] in page
        assert row["predicted"] in ("good", "bad")
    changes = re.findall(r"If (good|bad), \d+ predictions? changes?; if (good|bad), \d+ predictions? changes?\.", page)
    assert len(changes) == 3
    assert all({*pair} == {"good", "bad"} for pair in changes)
    assert "how many of 20 predictions on the pool a label would change" in page


@pytest.mark.parametrize(("tune", "kind"), [("last-block", TunedTail), ("head", TunedTail), ("lora", TunedText)])
def test_a_query_computes_what_is_frozen_once(
    folder: Path, reviews: Path, tune: str, kind: type[TunedText], monkeypatch: pytest.MonkeyPatch
) -> None:
    nets: list[object] = []
    query = ft.query
    monkeypatch.setattr(ft, "query", lambda net, *args, **how: nets.append(net) or query(net, *args, **how))
    got = invoke(*asked(reviews, "--backbone", f"hf:{folder}", "--tune", tune, "--steps", 2, "--batch", 4))
    assert got.exit_code == 0, got.output
    assert [type(net) for net in nets] == [kind]


def test_what_is_trained_and_what_stays(folder: Path) -> None:
    backbone = find_backbone(f"hf:{folder}", kind="text")
    ids = text_ids(TEXTS, backbone=backbone)
    assert int((ids == -1).sum()) > 0
    net = tune_text(backbone, ids, 3, tune="last-block")
    whole = backbone.module(**backbone.prepare(TEXTS))
    torch.testing.assert_close(net.features(ids), whole, rtol=1e-5, atol=1e-6)  # padding plays no part
    trained = {name for name, p in net.named_parameters() if p.requires_grad}
    assert {name for name in trained if not name.startswith("head.")} == {
        name for name, _ in net.named_parameters() if "layer.1." in name
    }
    before = {name: value.clone() for name, value in net.state_dict().items()}
    fit_tuned(net, ids, torch.arange(7) % 3, steps=3, batch_size=4)
    changed = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert trained - {name for name in trained if name.endswith("key.bias")} <= changed <= trained  # it moves nothing
    assert not any(p.requires_grad for p in backbone.module.parameters())
    adapted = tune_text(backbone, ids, 3, tune="lora")
    torch.testing.assert_close(adapted.features(ids), whole, rtol=1e-5, atol=1e-6)  # B is 0
    assert sum("lora_A" in name for name, p in adapted.named_parameters() if p.requires_grad) == 4


def test_a_column_that_hardly_varies_is_not_scaled_up(folder: Path) -> None:
    """all-MiniLM-L6-v2 has such: scaled up, Θ of its last block overflows and training loses the network."""
    backbone = find_backbone(f"hf:{folder}", kind="text")
    norm = backbone.module.model.encoder.layer[-1].output.LayerNorm
    with torch.no_grad():
        norm.weight[3], norm.bias[3] = 1e-9, 1e-8
    ids = text_ids(TEXTS, backbone=backbone)
    net = tune_text(backbone, ids, 2)
    theta = ft.ntk(net, ids)
    assert float(net.head[0].scale_D.max()) < 1e3
    assert bool(torch.isfinite(theta).all())
    assert float(torch.linalg.eigvalsh(theta)[0]) > -1e-5 * float(theta.diagonal().mean())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--backbone", "tfidf", "--tune", "last-block"], "the backbone is tfidf; give --backbone hf:FOLDER"),
        (["--backbone", "hf:{}", "--tune", "last-blok"], "unknown tune 'last-blok'; did you mean 'last-block'"),
        (["--backbone", "hf:{}", "--tune", "lora", "--save"], "--save do not go with it"),
        (["--backbone", "hf:{}/nowhere", "--tune", "lora"], "cannot be read from this disk"),
    ],
)
def test_what_cannot_be_tuned(folder: Path, reviews: Path, words: list[str], says: str) -> None:
    assert says in told(*asked(reviews, *(word.format(folder) for word in words)))
