"""Kernels, queries, a small study, a learner and readers give the bits that were recorded.

``python tests/project/test_recorded.py`` records them anew in fixtures/recorded.json: only for a change that is meant
to change numbers. Bits depend on the processor and on torch's build, so they are compared where the recording was made;
on every other machine the sums must agree closely.
"""

import hashlib
import json
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import foretaste as ft
from foretaste.data import digits
from foretaste.network import MLP, WideResNet, prepare, resnet18
from foretaste.study import run, smoke, study

FILE = Path(__file__).parents[1] / "fixtures" / "recorded.json"
STRATEGIES = ["gain", "variance", "mlmoc", "emoc", "eer", "flips", "entropy", "margin", "badge", "infinite", "naive"]
STRATEGIES += ["cover", "epig", "least_confidence", "egl", "coreset", "kmeans", "lcmd", "typiclust", "probcover"]
STRATEGIES += ["maxherding", "uherding", "dpp", "onestep", "random"]


def machine() -> str:
    """What bits depend on."""
    cpu = next((s for s in _cpuinfo() if s.startswith("model name")), platform.processor())
    return f"{cpu}; {torch.__version__}; {torch.backends.cpu.get_cpu_capability()}"


def _cpuinfo() -> list[str]:
    file = Path("/proc/cpuinfo")
    return file.read_text().splitlines() if file.exists() else []


def told(t: Tensor) -> dict[str, Any]:
    t = t.detach().cpu().double().contiguous()
    finite = t[t.isfinite()]
    return {"sha256": hashlib.sha256(t.numpy().tobytes()).hexdigest(), "sum": float(finite.abs().sum())}


def kernels() -> Iterator[tuple[str, Tensor]]:
    data = digits()
    x = prepare(data.x, normalise=data.normalise)
    torch.manual_seed(0)
    nets = {"mlp": MLP(64, (32, 32), 10), "wrn1": WideResNet(1, widen=1, channels=1), "resnet18": resnet18(channels=1)}
    for name, net in nets.items():
        net.eval()
        n = 4 if name == "resnet18" else 12
        points = x[:n] if name == "mlp" else x[:n].view(-1, 1, 8, 8)
        for output in ("sum", "first", "trace", "full"):
            yield f"ntk {name} {output}", ft.ntk(net, points, output=output)
        yield f"ntk {name} of two sets", ft.ntk(net, points, points[: n // 2], budget="1GB")


def queries() -> Iterator[tuple[str, Tensor]]:
    data = digits()
    x, y = prepare(data.x, normalise=data.normalise), data.y
    L, U = data.pool[:30], data.pool[30:150]
    for loss in ("l2", "ce"):
        torch.manual_seed(1)
        net = MLP(64, (32,), 10)
        ft.fit(net, x[L], y[L], loss=loss, steps=150)
        yield f"outputs {loss}", net(x[U])
        for strategy in STRATEGIES:
            options = {"epochs": 1} if strategy == "naive" else None
            q = ft.query(net, x[L], y[L], x[U], strategy=strategy, loss=loss, batch_size=7, options=options)
            scores = torch.zeros(0) if q.scores is None else q.scores
            yield f"query {strategy} {loss}", torch.cat([torch.as_tensor(q.indices).double(), scores])
        q = ft.query(
            net, x[L], y[L], x[U], strategy="gain", loss=loss, select="sequential", batch_size=5, watch=40,
            oracle=lambda j: int(y[U[j]]),
        )  # fmt: skip
        yield f"query gain sequential {loss}", torch.cat([torch.as_tensor(q.indices).double(), q.scores])


def small_study() -> Iterator[tuple[str, Tensor]]:
    records = run(smoke(study(["gain", "margin", "random"], seeds=[0, 1])))
    for r in records:
        key = f"study {r['arm']} {r['seed']} {r['cycle']}"
        yield key, torch.tensor([r["accuracy"], *map(float, r["queried"])], dtype=torch.float64)


def learners() -> Iterator[tuple[str, Tensor]]:
    """What a learner asks and predicts, with labels given, changed and taken back."""
    data = digits()
    x, y = prepare(data.x, normalise=data.normalise)[data.pool[:200]], data.y[data.pool[:200]].tolist()
    for loss in ("l2", "ce"):
        torch.manual_seed(2)
        learner = ft.Learner(MLP(64, (32,), 10).eval(), x, classes=10, loss=loss, fit_options={"steps": 100})
        learner.teach(first := learner.query(12), [y[i] for i in first])
        yield f"learner {loss} first", torch.tensor(first).double()
        learner.teach(asked := learner.query(6), [y[i] for i in asked])
        learner.relabel(asked[0], (y[asked[0]] + 1) % 10)
        learner.unlabel(asked[1])
        yield f"learner {loss} asks", torch.tensor([*asked, *learner.query(5)]).double()
        yield f"learner {loss} predicts", torch.as_tensor(learner.predict_proba(x))


def sources(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Points that ``ft.open`` reads: what they are, their labels, their ids."""
    rng = np.random.default_rng(0)
    rows = ["id,size,colour,kind,split"]
    for i in range(40):
        colour, label = ["red", "green", "blue"][i % 3], ["a", "b", ""][i % 3]
        rows.append(f"r{i},{rng.normal():.4f},{colour},{label},{'test' if i % 5 == 0 else 'train'}")
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")
    rows = ["text,intent"] + [f"word{i % 7} and word{i % 5},{'xy'[i % 2]}" for i in range(30)]
    (folder / "texts.csv").write_text("\n".join(rows) + "\n")
    np.savez(folder / "points.npz", x=rng.random((20, 4)).astype(np.float32), y=np.arange(20) % 3)
    for i in range(12):
        path = folder / "photos" / ["cat", "dog"][i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (9, 7, 3), dtype=np.uint8)).save(path)
    for name, how in (
        ("rows.csv", {"label": "kind"}), ("texts.csv", {"label": "intent", "encoder": "tfidf"}), ("points.npz", {}),
        ("photos", {"size": 8}),
    ):  # fmt: skip
        points = ft.open(folder / name, **how)
        yield f"open {name}", torch.as_tensor(points.x)
        told_of = json.dumps([list(map(str, points.ids)), list(map(str, points.y))]).encode()
        yield f"open {name} ids and labels", torch.tensor(list(hashlib.sha256(told_of).digest())).double()


def everything() -> dict[str, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            all_made = kernels(), queries(), small_study(), learners(), sources(Path(folder))
            return {key: told(t) for made in all_made for key, t in made}
    finally:
        torch.set_num_threads(threads)


def test_results_are_those_recorded() -> None:
    recorded = json.loads(FILE.read_text())
    now = everything()
    assert now.keys() == recorded["results"].keys()
    for key, was in recorded["results"].items():
        assert now[key]["sum"] == pytest.approx(was["sum"], rel=1e-3), key
    if machine() == recorded["machine"]:
        assert now == recorded["results"]


if __name__ == "__main__":
    FILE.write_text(json.dumps({"machine": machine(), "results": everything()}, indent=1) + "\n")
