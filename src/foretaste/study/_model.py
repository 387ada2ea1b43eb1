"""f in a study: the network of a trial on its data, trained cycle by cycle; or a Gaussian process in its place."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.data import Images
from foretaste.network import Diverged, Fit, feature_layers, fit, fit_ll4al, make, prepare, reset
from foretaste.network._fit import INTERPOLATES, MAX_LR
from foretaste.network._ll4al import TOP_LR
from foretaste.network._reset import seeded
from foretaste.query import gp_predict
from foretaste.study._config import Network, Trial
from foretaste.study._seeds import number

CHUNK = 512


class Model:
    """The network, and what a study asks of it."""

    def __init__(self, trial: Trial, data: Images, weights: Mapping[str, Tensor] | None = None) -> None:
        self.trial, self.data = trial, data
        self.net = network(trial.network, data).to(data.x.device)
        if weights is not None:
            self.net.load_state_dict(weights)
        self.net.eval()
        self.options: Mapping[str, Any] = trial.options if trial.strategy != "ll4al" else {}

    @property
    def settings(self) -> dict[str, Any]:
        """What ``ft.query`` is told besides the strategy."""
        return asdict(self.trial.query) | {"loss": self.trial.train.loss}

    @property
    def max_lr(self) -> float | None:
        """The study's, or what training takes unless told."""
        own = (TOP_LR if self.trial.strategy == "ll4al" else MAX_LR)[self.trial.train.loss]
        return own if self.trial.train.max_lr is None else self.trial.train.max_lr

    def inputs(self, ids: np.ndarray) -> Tensor:
        """What the network is fed for these points: the pool's transform, never an augmented one."""
        return prepare(self.data.x[ids], torch.float32, self.data.normalise)

    def train(self, L: np.ndarray, seed: int, cycle: int) -> Fit:
        """SGD on L; every network starts cold in the first cycle."""
        how = asdict(self.trial.train)
        how["batch_size"] = how.pop("batch")
        how["start"] = "cold" if cycle == 0 else how["start"]
        how |= {"seed": number(seed, cycle, "train"), "normalise": self.data.normalise}
        x_L, y_L = self.data.x[L], self.data.y[L]
        try:
            if self.trial.strategy != "ll4al":
                return fit(self.net, x_L, y_L, **how)
            own: dict[str, Any] = {} if "layers" in self.trial.options else {"layers": feature_layers(self.net)}
            trained, module = fit_ll4al(self.net, x_L, y_L, **own, **self.trial.options, **how)
            self.options = {"module": module}
            return trained
        except Diverged:
            return self._initial(L, how["seed"])

    def _initial(self, L: np.ndarray, seed: int) -> Fit:
        """What a training that blew up leaves: the network at new weights, which has learned nothing."""
        with seeded(seed, self.data.x.device):
            reset(self.net)
        self.net.eval()
        if self.trial.strategy == "ll4al":  # a module is needed to choose by, however little it knows
            self.options = {"layers": self.trial.options.get("layers") or feature_layers(self.net), "steps": 1}
        with torch.no_grad():
            f_LC = self.net(self.inputs(L))
        f_LC = f_LC.softmax(1) if self.trial.train.loss == "ce" else f_LC
        y_LC = torch.nn.functional.one_hot(self.data.y[L], f_LC.shape[1]).to(f_LC)
        return Fit(float((f_LC - y_LC).square().mean()), math.nan, None, 0.0, 0, interpolates=False)

    @torch.no_grad()
    def classes(self, ids: np.ndarray) -> Tensor:
        """(n,) the class of each point."""
        parts = np.array_split(ids, max(1, math.ceil(len(ids) / CHUNK)))
        return torch.cat([self.net(self.inputs(part)).argmax(1) for part in parts])


class Process(Model):
    """A Gaussian process with the infinite-width kernel of the network (Fig. 1b): nothing is trained."""

    L: np.ndarray
    max_lr = None

    def train(self, L: np.ndarray, seed: int, cycle: int) -> Fit:
        began, self.L = time.perf_counter(), L
        f_LC = self._predict(L)
        y_LC = torch.nn.functional.one_hot(self.data.y[L], f_LC.shape[1]).to(f_LC)
        residual, accuracy = (
            float((f_LC - y_LC).square().mean()),
            float((f_LC.argmax(1) == self.data.y[L]).double().mean()),
        )
        interpolates = residual <= INTERPOLATES * float(y_LC.var(correction=0))
        return Fit(residual, residual, accuracy, time.perf_counter() - began, 0, interpolates)

    def classes(self, ids: np.ndarray) -> Tensor:
        return self._predict(ids).argmax(1)

    def _predict(self, ids: np.ndarray) -> Tensor:
        x_L, y_L = self.inputs(self.L), self.data.y[self.L]
        how = self.trial.query
        return gp_predict(
            self.net, x_L, y_L, self.inputs(ids), classes=len(self.data.classes), ridge=how.ridge, budget=how.budget
        )


def model_of(trial: Trial, data: Images, weights: Mapping[str, Tensor] | None = None) -> Model:
    return (Process if trial.model == "gp" else Model)(trial, data, weights)


def network(spec: Network, data: Images) -> nn.Module:
    """A new network for these data; its weights are of no account, for training starts cold."""
    return make(spec.name, options=spec.options, classes=len(data.classes), shape=tuple(data.x[0].shape))
