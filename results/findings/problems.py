"""The data sets and cells of docs/findings.md. Pictures are read from $FORETASTE_DATA."""

import ast
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foretaste.data import load


@dataclass(frozen=True)
class Cell:
    """One problem: data, labels given, and how the network is trained. One-cycle SGD is that of ``ft.fit``."""

    name: str
    data: str
    init: int
    per: int
    cycles: int
    hidden: tuple[int, ...] = (128,)
    subset: int = 700
    loss: str = "l2"
    steps: int = 250
    batch: int = 32
    lr: float | None = None
    wd: float = 0.0
    opt: str = "sgd"

    def max_lr(self) -> float:
        return self.lr if self.lr else {"l2": 0.5, "ce": 0.1}[self.loss]


FEW = {"hidden": (128,), "steps": 250, "subset": 700}
MANY = {"hidden": (128,), "steps": 400, "batch": 64, "subset": 800}
SHORT = {"hidden": (32,), "steps": 100, "subset": 700}
ADAM = {"hidden": (64,), "steps": 120, "subset": 700, "opt": "adam", "lr": 1e-3, "wd": 1e-2}
SMALL = {"hidden": (64,), "steps": 250, "subset": 330}

CELLS = [
    Cell("c10-few-fit", "cifar10", 20, 20, 5, **FEW),
    Cell("digits-few-fit", "digits", 20, 10, 6, **FEW),
    Cell("text-many-fit", "text", 300, 100, 4, lr=1.0, **MANY),
    Cell("c10-few-ce", "cifar10", 20, 20, 5, loss="ce", **FEW),
    Cell("mnist-few-fit", "mnist", 40, 20, 5, **FEW),
    Cell("digits-many-fit", "digits", 100, 50, 4, **MANY),
    Cell("c10-few-short", "cifar10", 20, 20, 5, **SHORT),
    Cell("text-few-fit", "text", 30, 30, 5, **FEW),
    Cell("c10-few-adam", "cifar10", 20, 20, 5, **ADAM),
    Cell("mnist-many-fit", "mnist", 300, 100, 4, lr=1.0, **MANY),
    Cell("cancer-few-fit", "cancer", 10, 5, 6, **SMALL),
    Cell("c10-imbalanced-few-fit", "cifar10+imb", 20, 20, 5, **FEW),
    Cell("c10-noisy-few-fit", "cifar10+noisy", 20, 20, 5, **FEW),
    Cell("digits-few-ce", "digits", 20, 10, 6, loss="ce", **FEW),
    Cell("digits-few-short", "digits", 20, 10, 6, **SHORT),
    Cell("c10-many-fit", "cifar10", 300, 150, 3, lr=1.0, **MANY),
    Cell("c100-few-fit", "cifar100", 100, 100, 3, lr=5.0, **MANY),
    Cell("c10-noisy-many-fit", "cifar10+noisy", 300, 150, 3, lr=1.0, **MANY),
    Cell("text-many-ce", "text", 300, 100, 4, loss="ce", **MANY),
    Cell("digits-few-adam", "digits", 20, 10, 6, **ADAM),
    Cell("c10-imbalanced-many-fit", "cifar10+imb", 300, 150, 3, lr=1.0, **MANY),
    Cell("cancer-many-fit", "cancer", 60, 20, 3, **SMALL),
    Cell("c100-many-fit", "cifar100", 600, 150, 3, lr=5.0, **MANY),
]

Problem = tuple[Tensor, Tensor, Tensor, Tensor, int]  # pool, its labels, test points, their labels, classes


@cache
def problem(name: str) -> Problem:
    """A pool and a test set as float32 rows. "+imb": odd classes keep a tenth; "+noisy": a tenth of labels is wrong."""
    base, *changes = name.split("+")
    x, y, x_test, y_test = {"mnist": _mnist, "text": _text, "digits": _digits, "cancer": _cancer}.get(
        base, lambda: _features(base)
    )()
    y, C = y.astype(np.int64).copy(), int(y.max()) + 1
    for change in changes:
        g = np.random.default_rng(77)
        if change == "imb":
            keep = np.array([(c % 2 == 0) or g.random() < 0.1 for c in y])
            x, y = x[keep], y[keep]
        else:
            bad = g.random(len(y)) < 0.1
            y[bad] = (y[bad] + g.integers(1, C, bad.sum())) % C
    rows = (torch.from_numpy(np.ascontiguousarray(part, dtype=np.float32)) for part in (x, x_test))
    x_pool, x_held = rows
    return x_pool, torch.from_numpy(y), x_held, torch.from_numpy(y_test.astype(np.int64)), C


def _split(x: np.ndarray, y: np.ndarray, test: int) -> tuple[np.ndarray, ...]:
    order = np.random.default_rng(12345).permutation(len(y))
    x, y = x[order], y[order]
    return x[test:], y[test:], x[:test], y[:test]


def _features(name: str) -> tuple[np.ndarray, ...]:
    """EfficientNet-Lite0 features of 5,000 + 2,500 images, standardised; rows of about unit length."""
    folder = Path(os.environ["FORETASTE_DATA"]) / "features"
    pool, test = (np.load(folder / f"{name}_{part}.npz") for part in ("f16", "ft16"))
    have = {**pool, **test}
    return have["f"].astype("f4") / 36, have["y"], have["ft"].astype("f4") / 36, have["yt"]


def _digits() -> tuple[np.ndarray, ...]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return _split((found.data / 16).astype("f4"), found.target, 500)


def _cancer() -> tuple[np.ndarray, ...]:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    z = (found.data - found.data.mean(0)) / found.data.std(0) / np.sqrt(found.data.shape[1])
    return _split(z.astype("f4"), found.target, 219)


def _mnist() -> tuple[np.ndarray, ...]:
    """6,000 + 2,500 images, averaged down to 14×14."""
    data = load("mnist")
    at = [
        np.random.default_rng(s).permutation(len(ids))[:n] for s, ids, n in ((1, data.pool, 6000), (2, data.test, 2500))
    ]
    out: list[np.ndarray] = []
    for ids, part in zip((data.pool, data.test), at):
        x = data.x[ids[part]].numpy().reshape(-1, 14, 2, 14, 2)
        out += [x.mean((2, 4)).reshape(len(part), -1).astype("f4") / 255, data.y[ids[part]].numpy()]
    return out[0], out[1], out[2], out[3]


PACKAGES = ["numpy", "scipy", "sklearn", "matplotlib", "torch", "pydantic", "fsspec", "rich", "fastapi", "starlette"]
PACKAGES += ["networkx", "sympy", "mpmath", "transformers", "PIL"]


def _text() -> tuple[np.ndarray, ...]:
    """First sentences of docstrings of installed packages, as 100 components of TF-IDF. Which package is it from?

    Packages with fewer than 400 such sentences are left out; numpy, scipy, sklearn, matplotlib, torch, pydantic,
    networkx, sympy and transformers remained. Other versions of them give other sentences, so other numbers.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    site, docs, of = Path(np.__file__).parents[1], list[str](), list[int]()
    for name in PACKAGES:
        found = _sentences(site / name, site) if (site / name).exists() else []
        if len(found) < 400:
            continue
        k = of[-1] + 1 if of else 0
        docs += [found[i] for i in np.random.default_rng(k).permutation(len(found))[:700]]
        of += [k] * min(700, len(found))
    counts = TfidfVectorizer(min_df=3, sublinear_tf=True, stop_words="english").fit_transform(docs)
    z = TruncatedSVD(100, random_state=0).fit_transform(counts)
    z = z - z.mean(0)
    z /= np.sqrt((z**2).sum(1).mean())
    return _split(z.astype("f4"), np.array(of), 1500)


def _sentences(folder: Path, site: Path) -> list[str]:
    found: list[str] = []
    for file in sorted(folder.rglob("*.py")):
        if "test" in str(file.relative_to(site)):
            continue
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and (doc := ast.get_docstring(node)):
                words = doc.strip().split("\n\n")[0].replace("\n", " ")
                words = re.sub(r"\b({})\w*".format("|".join(PACKAGES)), " ", words, flags=re.IGNORECASE)
                if 40 < len(words) < 400:
                    found.append(words)
        if len(found) > 6000:
            break
    return sorted(set(found))
