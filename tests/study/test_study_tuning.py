"""A study that tunes a transformer: what is trained and asked about, and interrupted runs that resume to the bit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from foretaste.network import fit, tuned_names
from foretaste.study import Data, Labels, Network, Study, Train, prepared, run, study
from foretaste.study.records import Record
from foretaste.study.settings import SettingsError
from foretaste.study.trial_network import Model, derive_seed

transformers = pytest.importorskip("transformers")
WORDS, TOKENS = 20, 6


class Classifier(nn.Module):
    """A BERT of two blocks from a configuration; token ids come as numbers of a table."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
        sizes = {"vocab_size": WORDS, "max_position_embeddings": 8, "num_labels": classes, **small}
        with torch.random.fork_rng([]):
            torch.manual_seed(0)  # "pretrained": every cycle begins with the same weights
            self.inner = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.inner(input_ids=ids.long()).logits
        return logits


def tuned_study(folder: Path, tune: str, **train: Any) -> Study:
    """Three cycles on token ids of two classes that use different words."""
    draw = np.random.default_rng(0)
    y = np.arange(60) % 2
    ids = draw.integers(2, WORDS // 2, (60, TOKENS)) + (y * (WORDS // 2 - 1))[:, None] * (
        draw.random((60, TOKENS)) < 0.5
    )
    np.savez(folder / "ids.npz", x=ids.astype(np.float32), y=y)
    how: dict[str, Any] = {"loss": "ce", "steps": 8, "batch": 8, "max_lr": 1e-3, "start": "warm", "optimiser": "adamw"}
    return study(
        ["variance"], seeds=(0,), data=Data(name=str(folder / "ids.npz"), normalise="none"),
        labels=Labels(init=8, per_cycle=4, cycles=3), network=Network("test_study_tuning:Classifier"),
        train=Train(**how | {"tune": tune, "warm_up": 0.2, "clip": 0.05} | train),
    )  # fmt: skip


def timeless(records: list[Record]) -> list[Record]:
    return [{key: value for key, value in r.items() if key not in ("cost", "versions")} for r in records]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.mark.parametrize(("tune", "start"), [("last-block", "warm"), ("lora", "warm"), ("head", "cold")])
def test_an_interrupted_run_that_tunes_resumes_to_the_same_bits(tmp_path: Path, tune: str, start: str) -> None:
    asked = tuned_study(tmp_path, tune, start=start)
    whole = run(asked, tmp_path / "whole")
    came: list[Record] = []

    def interrupt(record: Record) -> None:
        came.append(record)
        if len(came) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(asked, tmp_path / "run", seen=interrupt)
    assert timeless(came) == timeless(whole[:2])
    assert timeless(run(asked, tmp_path / "run")) == timeless(whole)
    assert len({r["residual"] for r in whole}) == 4  # each cycle trains
    assert whole[0]["config"]["train"]["tune"] == tune


@pytest.mark.parametrize("tune", ["last-block", "lora", "head", "re:layer.0.*query"])
def test_only_what_is_tuned_moves_and_is_asked_about(tmp_path: Path, tune: str) -> None:
    asked = tuned_study(tmp_path, tune)
    data = prepared(asked.data, "cpu")
    model = Model(asked.trial("variance"), data)
    model.train(data.pool[:8], 0, 0)
    model.train(data.pool[:8], 0, 1)
    names = tuned_names(model.net, tune)
    assert model.settings["params"] == names
    again = Model(asked.trial("variance"), data)
    again.train(data.pool[:8], 0, 0)
    moved = {n for n, p in model.net.named_parameters() if not torch.equal(p, again.net.get_parameter(n))}
    still = {n for n in names if n.endswith("key.bias")}  # it moves nothing
    assert {*names} - still <= moved <= {*names}
    assert all(("lora_" in n or "classifier" in n) == (n in names) for n in moved) or tune != "lora"


def test_a_cycle_is_one_training_by_hand(tmp_path: Path) -> None:
    asked = tuned_study(tmp_path, "last-block")
    data = prepared(asked.data, "cpu")
    model, net, L = Model(asked.trial("variance"), data), Classifier(2), data.pool[:8]
    for cycle in (0, 1):
        model.train(L, 0, cycle)
        fit(
            net, data.x[L], data.y[L], loss="ce", steps=8, batch_size=8, max_lr=1e-3, params="last-block",
            optimiser="adamw", warm_up=0.2, clip=0.05, seed=derive_seed(0, cycle, "train"),
        )  # fmt: skip
        assert all(torch.equal(p, net.get_parameter(name)) for name, p in model.net.named_parameters())


def test_a_study_without_tuning_has_the_settings_that_it_had(tmp_path: Path) -> None:
    plain = study(["random"], seeds=(0,)).plain()["train"]
    assert not {"tune", "optimiser", "schedule", "warm_up", "clip"} & {*plain}
    with pytest.raises(SettingsError, match="unknown tune 'last-blok'; did you mean 'last-block'"):
        Train(tune="last-blok")
    with pytest.raises(SettingsError, match="ll4al trains by itself, and takes no optimiser"):
        study(["ll4al"], train=Train(optimiser="adamw"))
    words = json.dumps(tuned_study(tmp_path, "lora").plain()["train"])
    assert '"tune": "lora"' in words
    assert '"warm_up": 0.2' in words
