"""The cells, the arms and the data of the lab on the weight of ``cover``. Data are read from $FORETASTE_DATA/weight."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Cell:
    """One problem: data, labels given, and how the network is trained."""

    name: str
    data: str
    init: int
    per: int
    cycles: int
    subset: int = 2000
    loss: str = "ce"
    hidden: int = 512
    steps: int = 1200
    batch: int = 32
    lr: float = 0.0  # 0: 0.5 for l2, 0.1 for ce
    opt: str = "sgd"

    def max_lr(self) -> float:
        """The highest learning rate of the schedule."""
        return self.lr or {"l2": 0.5, "ce": 0.1}[self.loss]


MANY = {"batch": 64, "steps": 800}
ADAM = {"opt": "adam", "steps": 200, "lr": 1e-3}
ADAM64 = {"opt": "adam", "steps": 120, "lr": 1e-3, "hidden": 64}  # as in results/findings

CELLS = {  # data, labels at first, labels a cycle, cycles, learning rate under the squared loss, the rest
    "c10-tiny": ("cifar10", 10, 10, 6, None, {}),
    "c10-few": ("cifar10", 20, 20, 6, None, {}),
    "c10u-few": ("cifar10+unit", 20, 20, 6, None, {}),
    "c10-whole": ("cifar10", 20, 20, 6, None, {"subset": 5000}),
    "c10-imb-few": ("cifar10+imb", 20, 20, 6, None, {}),
    "c10-lt-few": ("cifar10+lt", 20, 20, 6, None, {}),
    "c10-lt-many": ("cifar10+lt", 200, 100, 3, 1.0, MANY),
    "c10-many": ("cifar10", 200, 200, 3, 1.0, MANY),
    "c100-few": ("cifar100", 100, 100, 4, 5.0, {}),
    "c100-few-slow": ("cifar100", 100, 100, 4, None, {}),  # ft.fit's own rate, which does not fit 100 classes
    "c100-lt-few": ("cifar100+lt", 100, 100, 4, 5.0, {}),
    "c100-many": ("cifar100", 600, 150, 3, 5.0, MANY),
    "bank-few": ("banking", 77, 50, 5, 5.0, {}),
    "bank-lt-few": ("banking+lt", 77, 50, 5, 5.0, {}),
    "bank-many": ("banking", 500, 150, 3, 5.0, MANY),
    "banktfidf-few": ("bankingtfidf", 77, 50, 5, 5.0, {}),
    "digits-tiny": ("digits", 10, 5, 6, None, {}),
    "digits-few": ("digits", 20, 10, 6, None, {}),
    "digits-lt-few": ("digits+lt", 20, 10, 6, None, {}),
    "digits-many": ("digits", 100, 50, 4, None, {}),
    "mnist-few": ("mnist", 40, 20, 5, None, {}),
    "mnist-many": ("mnist", 300, 100, 4, None, MANY),
    "text-few": ("text", 30, 30, 5, None, {}),
    "text-many": ("text", 300, 100, 4, 1.0, MANY),
    "cancer-few": ("cancer", 10, 5, 6, None, {}),
    "c10-few-adam": ("cifar10", 20, 20, 5, None, ADAM),
    "c10-adam64": ("cifar10", 20, 20, 5, None, ADAM64),
    "digits-adam64": ("digits", 20, 10, 6, None, ADAM64),
    "bank-few-adam": ("banking", 77, 50, 4, None, ADAM),
}


def make_cell(name: str) -> Cell:
    """The cell of a name and a loss: "c10-few:ce"."""
    base, loss = name.split(":")
    data, init, per, cycles, lr, rest = CELLS[base]
    rate = {"lr": lr} if loss == "l2" and lr and "lr" not in rest else {}
    return Cell(name, data, init, per, cycles, loss=loss, **rate, **rest)


def arms_of(kernel: str, *weights: str) -> list[str]:
    """Arms of one kernel and several weights."""
    return [f"{kernel}:{weight}" for weight in weights]


WEIGHTS = ("cov", "p", "gap", "ent", "uni", "phi", "cgap")
ARMS = {  # README.md says what kernels and weights are
    "all": [
        *(arm for kernel in ("signs0", "trace", "gauss") for arm in arms_of(kernel, *WEIGHTS)),
        *("signs0:rgap", "signs3:cov", "mean1-4:cov", "mean1-4:gap", "gauss1:uni", "inputs:gap", "margin", "random"),
    ],
    "l2": [
        *arms_of("signs0", *WEIGHTS, "rgap", "covg", "covk", "pg"),
        *("tang0:cov", "trace:cov", "trace:gap", "trace:cgap"),
        *arms_of("gauss", "cov", "p", "gap", "uni", "cgap"),
        *("signs3:cov", "mean1-4:cov", "inputs:gap", "margin", "random"),
    ],
    "plain": [
        *arms_of("signs0", "cov", "p", "gap", "cgap", "rgap", "phi"),
        *("trace:cov", "trace:cgap", "gauss:cov", "gauss:gap", "gauss:cgap", "mean1-4:cov"),
    ],
    "collapsed": [
        *arms_of("signs0", "cov", "gap", "covg", "uni", "rgap", "covk", "cgapk", "pg"),
        *("tang0:cov", "tang0:gap", "tang0:cgap", "trace:cov", "trace:covg", "gauss:cov", "gauss:gap", "mean1-4:cov"),
    ],
    "kept": arms_of("signs0", "cov", "covk", "cgapk", "covg"),
    "adam": [*arms_of("signs0", "cov", "covk", "cgapk", "covg"), "tang0:cov", "gauss:gap"],
    "l2-more": [
        *arms_of("signs0", "cov", "p", "gap", "cgap"),
        *("trace:cov", "mean1-4:cov", "gauss:cov", "gauss:gap"),
    ],
    "whole": [*arms_of("signs0", "cov", "p", "gap", "cgap"), "trace:cov", "gauss:cov", "gauss:gap", "random"],
    "deep": [
        *("signs0:cov", "signs3:cov", "mean1-4:cov", "unit0:cov", "unit1:cov", "umean3-6:cov", "twin:cov"),
        *("trace:cov", "gauss:gap", "random"),
    ],
}


class Problem(NamedTuple):
    """A pool and a test set as float32 rows, and the pool's inner products in float64."""

    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor
    C: int
    products: Tensor


@cache
def problem(name: str) -> Problem:
    """ "+imb": odd classes keep a tenth; "+lt": an exponential tail; "+noisy": a tenth wrong; "+unit": unit length."""
    base, *changes = name.split("+")
    stored = np.load(Path(os.environ["FORETASTE_DATA"]) / "weight" / f"{base}.npz")
    x, x_test = (stored[key].astype("f4") for key in ("x", "xt"))
    y, y_test = (stored[key].astype("i8") for key in ("y", "yt"))
    C = int(y.max()) + 1
    if base in ("cifar10", "cifar100"):
        x, x_test = x / 36, x_test / 36
    for change in changes:
        if change == "unit":
            x, x_test = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, x_test))
            continue
        if change == "noisy":  # as in results/findings
            g = np.random.default_rng(77)
            bad = g.random(len(y)) < 0.1
            y[bad] = (y[bad] + g.integers(1, C, bad.sum())) % C
            continue
        if change == "imb":  # as in results/findings
            g = np.random.default_rng(77)
            keep = np.array([(c % 2 == 0) or g.random() < 0.1 for c in y])
        else:  # the rarest class keeps a twentieth
            g = np.random.default_rng(78)
            share = 0.05 ** (g.permutation(C) / (C - 1))
            keep = g.random(len(y)) < share[y]
        x, y = x[keep], y[keep]
    X, X_test = (torch.from_numpy(np.ascontiguousarray(rows)).to(DEVICE) for rows in (x, x_test))
    Y, Y_test = (torch.from_numpy(labels).to(DEVICE) for labels in (y, y_test))
    return Problem(X, Y, X_test, Y_test, C, X.double() @ X.double().T)
