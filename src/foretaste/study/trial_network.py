"""f in a study: the network of a trial on its data, trained cycle by cycle; or what predicts in its place."""

import copy
import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from filelock import FileLock
from safetensors import SafetensorError
from torch import Tensor, nn

from foretaste.acquire import find_strategy
from foretaste.data import Images, Split
from foretaste.errors import check_regular
from foretaste.lookahead import Graph, PoolState, linearize
from foretaste.losses import LOSSES
from foretaste.network import (
    INTERPOLATES,
    Fit,
    add_adapters,
    fit,
    make_network,
    prepare,
    read_tensors,
    seeded,
    tuned_names,
    write_tensors,
)
from foretaste.pick import gp_predict
from foretaste.study.config import Network, Trial

PREDICTED_AT_ONCE = 512
GRAPH_POINTS = 5000  # L and a sample of the unlabelled points
FIRST_FOLDER = "first"
FIT_KEY = "fit"  # of the file's metadata


def derive_seed(seed: int, cycle: int, use: str) -> int:
    """A seed for one use in one cycle. The hash keeps two uses from sharing random numbers."""
    return int(np.random.SeedSequence([seed, cycle, crc32(use.encode())]).generate_state(1)[0])


def trial_network(spec: Network, data: Images, tune: str | None = None) -> nn.Module:
    """A new network for these data, on their device; with adapters, if these are tuned and it has none."""
    net = make_network(spec.name, options=spec.options, classes=len(data.classes), shape=tuple(data.x[0].shape))
    if not spec.built_in:
        net = copy.deepcopy(net)  # the user's function may return the same network each time, and this one is trained
    if tune == "lora" and not any("lora_" in name for name, _ in net.named_parameters()):
        add_adapters(net)
    return net.to(data.x.device)


class Model:
    """The network of a trial: trained on L, and asked for classes and inputs."""

    def __init__(self, trial: Trial, data: Images, weights: Mapping[str, Tensor] | None = None) -> None:
        self.trial, self.data = trial, data
        self.net = trial_network(trial.network, data, trial.train.tune)
        if weights is not None:
            self.net.load_state_dict(weights)
        self.net.eval()
        self.own_training = find_strategy(trial.strategy).study.trains
        self.options: Mapping[str, Any] = {} if self.own_training else trial.options  # of the query

    pool: dict[str, Any] | None = None  # what the pool is worth to what predicts, where it is asked

    @property
    def tuned(self) -> list[str] | None:
        """The names of the parameters that are trained and counted in Θ; None: all."""
        tune = self.trial.train.tune
        return None if tune is None else tuned_names(self.net, tune)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of ``ft.query`` besides the strategy."""
        settings = asdict(self.trial.query) | {"loss": self.trial.train.loss, "params": self.tuned}
        del settings["graph_points"]
        return settings | {"pool": self.graph if self.trial.asks_with_pool else None}

    @property
    def graph(self) -> Graph:
        """How a graph of the pool is made."""
        return Graph(most=self.trial.query.graph_points or GRAPH_POINTS)

    def unlabelled(self, L: np.ndarray, seed: int) -> np.ndarray:
        """The unlabelled points of the pool, at most as many as a graph has beside L."""
        rest = Split(L, np.setdiff1d(self.data.pool, L), self.data.test)
        return rest.offer(max(1, self.graph.most - len(L)), derive_seed(seed, 0, "pool")).U

    @property
    def max_lr(self) -> float | None:
        """The learning rate that a training begins with: the study's, or else the default of the training."""
        loss, given = self.trial.train.loss, self.trial.train.max_lr
        if given is not None:
            return given
        return self.own_training.max_lr[loss] if self.own_training else LOSSES[loss].max_lr

    def inputs(self, ids: np.ndarray) -> Tensor:
        """The inputs of these points. They are never augmented."""
        return prepare(self.data.x[ids], torch.float32, self.data.normalise)

    def train(self, L: np.ndarray, seed: int, cycle: int) -> Fit:
        """SGD on L. The first cycle always starts cold. Raises ``Diverged`` if lower learning rates did not help."""
        how = self.trial.train.plain
        how.pop("tune", None)
        how["batch_size"] = how.pop("batch")
        how |= {"seed": derive_seed(seed, cycle, "train"), "normalise": self.data.normalise}
        if cycle == 0 or how["start"] == "cold":
            how["start"] = self._cold_start(how["seed"])
        x_L, y_L = self.data.x[L], self.data.y[L]
        if self.own_training is None:
            return fit(self.net, x_L, y_L, params=self.tuned, **how, **self.soft_pool(L, seed))
        trained, self.options = self.own_training.fit(self.net, x_L, y_L, **self.trial.options, **how)
        return trained

    def soft_pool(self, L: np.ndarray, seed: int) -> dict[str, Any]:
        """The arguments of ``fit`` by which the network is trained on the pool too."""
        return {}

    def settle(self, L: np.ndarray, seed: int, cycle: int) -> None:
        """Make what predicts beside the network, once that is trained on L."""

    def _cold_start(self, seed: int) -> str:
        """How ``fit`` starts: our networks draw new weights there. Others are built anew here, by the user's function.

        Weights that the function loads stay as they are; weights that it draws depend on the seed.
        """
        if self.trial.network.built_in:
            return "cold"
        with seeded(seed, self.data.x.device):
            self.net = trial_network(self.trial.network, self.data, self.trial.train.tune)
        return "warm"

    def classes(self, ids: np.ndarray) -> Tensor:
        """(n,) the class that f predicts for each point."""
        return self._outputs(ids).argmax(1)

    @torch.no_grad()
    def _outputs(self, ids: np.ndarray) -> Tensor:
        """(n, C), a part of the points at a time."""
        parts = np.array_split(ids, max(1, math.ceil(len(ids) / PREDICTED_AT_ONCE)))
        return torch.cat([self.net(self.inputs(part)) for part in parts])


class SoftNetwork(Model):
    """The network, trained on L and on the pool's soft labels; on L alone where the pool does not help."""

    def soft_pool(self, L: np.ndarray, seed: int) -> dict[str, Any]:
        return {"pool": self.data.x[self.unlabelled(L, seed)], "graph": self.graph}


class PoolRegression(Model):
    """Kernel regression with the pool in its kernel, beside the network, which predicts where the pool does not help.

    The graph is of L and the unlabelled points; test points are never in it.
    """

    state: PoolState | None = None

    def settle(self, L: np.ndarray, seed: int, cycle: int) -> None:
        x_U = self.inputs(self.unlabelled(L, seed))
        state = linearize(self.net, self.inputs(L), self.data.y[L], x_U, params=self.tuned, pool=self.graph)
        assert state.pool is not None
        self.pool, self.state = state.pool.as_dict(), state if isinstance(state, PoolState) else None

    def _outputs(self, ids: np.ndarray) -> Tensor:
        return super()._outputs(ids) if self.state is None else self.state.mean_at(self.inputs(ids))


class GaussianProcess(Model):
    """A Gaussian process with the infinite-width kernel of the network (Fig. 1b). Nothing is trained."""

    L: np.ndarray
    max_lr = None

    def train(self, L: np.ndarray, seed: int, cycle: int) -> Fit:
        began, self.L = time.perf_counter(), L
        f_LC = self._predict(L)
        y_LC = torch.nn.functional.one_hot(self.data.y[L], f_LC.shape[1]).to(f_LC)
        residual = float((f_LC - y_LC).square().mean())
        accuracy = float((f_LC.argmax(1) == self.data.y[L]).double().mean())
        interpolates = residual <= INTERPOLATES * float(y_LC.var(correction=0))
        return Fit(residual, residual, accuracy, time.perf_counter() - began, 0, interpolates)

    def settle(self, L: np.ndarray, seed: int, cycle: int) -> None:
        self.L = L

    def classes(self, ids: np.ndarray) -> Tensor:
        return self._predict(ids).argmax(1)

    def _predict(self, ids: np.ndarray) -> Tensor:
        x_L, y_L = self.inputs(self.L), self.data.y[self.L]
        how = self.trial.query
        return gp_predict(
            self.net, x_L, y_L, self.inputs(ids), classes=len(self.data.classes), ridge=how.ridge, budget=how.budget
        )


def model_of(trial: Trial, data: Images, weights: Mapping[str, Tensor] | None = None) -> Model:
    """What predicts in this trial: its network, or what its ``model`` names."""
    kinds = {"gp": GaussianProcess, "pool": PoolRegression, "soft": SoftNetwork}
    return kinds.get(trial.model, Model)(trial, data, weights)


# The network of the first cycle
#
# In cycle 0 arms with the same network and training have the same labels, initial weights and batches, so they would
# all train the same network. The first of them keeps it in the folder of the run; the others wait for it and read it.


def train_first(folder: Path, model: Model, L: np.ndarray, seed: int) -> Fit:
    """Train the network of cycle 0, or read the one that another arm has trained. Both give the same network."""
    trial = model.trial
    if trial.model == "gp" or model.own_training is not None or not trial.network.built_in:
        return model.train(L, seed, 0)
    path = folder / FIRST_FOLDER / f"{seed}-{first_digest(model, L, seed)}.safetensors"
    with FileLock(folder / "locks" / f"first-{path.stem}"):
        return read_first(path, model) or keep_first(path, model, model.train(L, seed, 0))


def first_digest(model: Model, L: np.ndarray, seed: int) -> str:
    """Of all that decides the network of cycle 0 besides the seed, the points themselves included."""
    data, trial = model.data, model.trial
    settings = [trial.network.name, dict(trial.network.options), trial.train.plain, data.normalise, len(data.classes)]
    digest = blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=12)
    for points in (data.x[L], data.y[L], *(x for x in model.soft_pool(L, seed).values() if isinstance(x, Tensor))):
        digest.update(np.ascontiguousarray(points.cpu().numpy()).tobytes())
    return digest.hexdigest()


def read_first(path: Path, model: Model) -> Fit | None:
    """The result of the training that is kept there, its weights in the model; None if there is none to be read."""
    try:
        check_regular(path)  # a pipe would be read for ever
        weights, about = read_tensors(path)
        trained = Fit(**json.loads(about[FIT_KEY]))
        model.net.load_state_dict(weights)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError):  # missing, or damaged
        return None
    model.net.eval()
    return trained


def keep_first(path: Path, model: Model, trained: Fit) -> Fit:
    """Write network and result. The file appears whole or not at all."""
    weights = {name: value.detach().cpu().contiguous() for name, value in model.net.state_dict().items()}
    with suppress(OSError):  # a full disk: the other arms train it themselves
        write_tensors(path, weights, {FIT_KEY: json.dumps(asdict(trained))})
    return trained
