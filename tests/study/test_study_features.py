"""Studies on features of a backbone, and the sets that come without a download."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from foretaste import study
from foretaste.data import breast_cancer, docstrings, load, wine
from foretaste.network import find_backbone, make_head
from foretaste.study import Data, Features, Labels, Train, prepared, run
from foretaste.study.study_data import code_digest, data_digest

OWN = """
import torch
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 20), torch.nn.Tanh())
"""


@pytest.fixture(autouse=True)
def backbone(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETASTE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backbone_of_a_study.py").write_text(OWN)
    yield "backbone_of_a_study:net"
    sys.modules.pop("backbone_of_a_study", None)


def small(name, **changes):
    settings = {
        "seeds": (0,),
        "data": Data(pool_points=60, test_points=30),
        "features": Features(name),
        "labels": Labels(init=10, per_cycle=5, cycles=1),
        "train": Train(steps=20),
    }
    return study.study(["margin", "random"], **settings | changes)


def test_points_become_scaled_features_and_keep_ids_labels_and_pictures(backbone):
    plain = prepared(Data(pool_points=60, test_points=30), "cpu")
    told = []
    data = prepared(
        Data(pool_points=60, test_points=30), "cpu", features=Features(backbone), progress=lambda *at: told.append(at)
    )
    assert told[-1] == (90, 90)
    assert (data.pool == plain.pool).all()
    assert torch.equal(data.y, plain.y)
    with torch.no_grad():
        rows = find_backbone(backbone).module(plain.x[plain.pool] / 255)
    wanted = make_head(rows, 10)[0](rows)
    torch.testing.assert_close(data.x[data.pool], wanted, rtol=1e-4, atol=1e-5)
    assert data.x[data.pool].square().sum(1).mean() == pytest.approx(1, rel=1e-4)
    others = np.setdiff1d(np.arange(len(plain.x)), [*plain.pool, *plain.test])
    assert (data.x[others] == 0).all()
    assert (data.picture(3) == plain.picture(3)).all()
    assert data.normalise is None
    assert "points are 20 features of backbone_of_a_study:net, standardised over the pool" in data.notes
    assert data_digest(data) == data_digest(plain)


def test_a_study_on_features_runs_resumes_and_remembers_the_backbone(backbone, tmp_path):
    first = run(small(backbone), tmp_path / "run")
    assert first[0]["config"]["features"] == {"backbone": backbone, "layer": None, "cache": None}
    again = run(small(backbone), tmp_path / "run")
    assert [r["queried"] for r in again] == [r["queried"] for r in first]
    about = json.loads((tmp_path / "run" / "study.json").read_text())["about"]
    assert about["network"] == "mlp, a head on features of backbone_of_a_study:net"
    stored = json.loads((tmp_path / "run" / "study.json").read_text())
    assert "backbone_of_a_study" in stored["digest"]["code"]
    shown = np.load(tmp_path / "run" / "pictures.npz")
    assert any(shown[name].shape[-2:] == (8, 8) for name in shown.files)
    with pytest.raises(ValueError, match=r"features\.layer is None there and '0' here"):
        run(small(backbone, features=Features(backbone, layer="0")), tmp_path / "run")


def test_code_of_a_backbone_counts_and_libraries_do_not(backbone):
    find_backbone(backbone)  # a run has imported it by then
    assert list(code_digest(small(backbone))) == ["backbone_of_a_study"]
    assert code_digest(small("torchvision:resnet18")) == {}
    assert code_digest(small("efficientnet-lite0")) == {}


def test_the_table_features_in_toml(tmp_path, backbone):
    (tmp_path / "a.toml").write_text(f'strategies = ["random"]\n[features]\nbackbone = "{backbone}"\nlayer = "1"\n')
    assert study.read(tmp_path / "a.toml").features == Features(backbone, layer="1")
    (tmp_path / "a.toml").write_text('strategies = ["random"]\n[features]\nbakbone = "x"\n')
    with pytest.raises(
        ValueError, match=r"features: has no backbone; features: unknown key 'bakbone'; did you mean 'ba"
    ):
        study.read(tmp_path / "a.toml")
    assert study.read("demo").features is None
    assert study.read("cifar10-features").features == Features("efficientnet-lite0")


def test_features_of_points_that_are_no_pictures_are_refused(backbone):
    with pytest.raises(ValueError, match=r"takes pictures, and a point of wine is torch.float32 \(13,\)"):
        prepared(Data(name="wine"), "cpu", features=Features(backbone))


@pytest.mark.parametrize(
    ("read", "name", "shape", "classes"),
    [(breast_cancer, "breast-cancer", (569, 30), 2), (wine, "wine", (178, 13), 3)],
)
def test_tables_of_scikit_learn(read, name, shape, classes):
    data = read()
    assert data.x.shape == shape
    assert len(data.classes) == classes
    assert torch.equal(load(name).x, data.x)
    assert load(name).normalise == data.normalise
    mean, scale = (torch.tensor(v) for v in data.normalise)
    rows = (data.x[data.pool] - mean) / scale
    assert rows.square().sum(1).mean() == pytest.approx(1, rel=1e-3)
    assert not set(data.pool) & set(data.test)


def test_docstrings_of_python():
    data = docstrings()
    assert 0.6 < len(data.pool) / len(data.y) < 0.8
    assert data.classes[0] == "asyncio"
    assert np.bincount(data.y).min() > 50
    lengths = data.x.square().sum(1)
    assert ((lengths - 1).abs() < 1e-5).float().mean() > 0.99  # a test text may have no word of the pool
    assert "of this Python's standard library" in data.notes[0]


def test_a_python_without_sources_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(FileNotFoundError, match="has no source files of asyncio, decimal"):
        docstrings()


ENCODE = """
import hashlib
import numpy as np
from foretaste.data import TEXT_ENCODERS, encode_text
rng = np.random.default_rng(0)
texts = [" ".join(f"w{int(k)}" for k in np.minimum(rng.zipf(1.3, 30), 2999)) for _ in range(600)]
for how in TEXT_ENCODERS:
    print(hashlib.sha256(encode_text(texts, how).numpy().tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_text_is_encoded_alike_by_any_number_of_threads():
    """Workers of a study have one thread each, and the process that starts them has all: bits of the SVD differed."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, "2")
    by_two = subprocess.run([sys.executable, "-c", ENCODE], env=environment, capture_output=True, text=True, check=True)
    with threadpool_limits(1), redirect_stdout(io.StringIO()) as by_one:
        exec(ENCODE, {})
    assert by_one.getvalue() == by_two.stdout


def text_table(path, word="red"):
    lines = [f"one {word if k % 2 else 'blue'} thing {k},{'ab'[k % 2]}" for k in range(20)]
    path.write_text("\n".join(["text,label", *lines, "a text without a label,"]))
    return path


def test_the_digest_of_text_is_of_what_was_read(tmp_path):
    data = load(text_table(tmp_path / "t.csv"))
    nearly = replace(data, x=torch.nextafter(data.x, torch.tensor(torch.inf)))
    assert data_digest(nearly) == data_digest(data)
    other = data_digest(load(text_table(tmp_path / "t.csv", "green")))
    assert {part for part, digest in data_digest(data).items() if other[part] != digest} == {"items"}
    unlabelled = tmp_path / "t.csv"
    text_table(unlabelled).write_text(unlabelled.read_text().replace("without a label", "with other words"))
    assert data_digest(load(unlabelled))["items"] != data_digest(data)["items"]  # the encoder is fitted on it too


def test_a_run_of_texts_resumes_unless_the_texts_change(tmp_path):
    text_table(tmp_path / "t.csv")
    asked = study.study(
        ["random"], seeds=(0,), data=Data(name="t.csv"), labels=Labels(init=4, per_cycle=2, cycles=1),
        train=Train(steps=20),
    )  # fmt: skip
    first = run(asked, tmp_path / "run")
    about = json.loads((tmp_path / "run" / "study.json").read_text())
    assert "x" not in about["digest"]["data"]
    about["digest"]["data"] = {"x": "of an earlier version: the digest of numbers"}
    (tmp_path / "run" / "study.json").write_text(json.dumps(about))
    assert run(asked, tmp_path / "run") == first
    text_table(tmp_path / "t.csv", "green")
    with pytest.raises(ValueError, match="the data 't' has changed: the texts or rows"):
        run(asked, tmp_path / "run")
