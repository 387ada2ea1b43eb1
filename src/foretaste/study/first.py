"""The network of the first cycle, trained once for all arms that share it.

In cycle 0 arms with the same network and training have the same labels, initial weights and batches, so they would all
train the same network. The first of them keeps it in the folder of the run; the others wait for it and read it.
"""

import json
from contextlib import suppress
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path

import numpy as np
from filelock import FileLock
from safetensors import SafetensorError

from foretaste.errors import check_regular
from foretaste.network import Fit, read_tensors, write_tensors
from foretaste.study.trial_network import Model

FIRST_FOLDER = "first"
FIT_KEY = "fit"  # of the file's metadata


def train_first(folder: Path, model: Model, L: np.ndarray, seed: int) -> Fit:
    """Train the network of cycle 0, or read the one that another arm has trained. Both give the same network."""
    trial = model.trial
    if trial.model != "network" or model.own_training is not None or not trial.network.built_in:
        return model.train(L, seed, 0)
    path = folder / FIRST_FOLDER / f"{seed}-{first_digest(model, L)}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "locks" / f"first-{path.stem}"):
        return read_first(path, model) or keep_first(path, model, model.train(L, seed, 0))


def first_digest(model: Model, L: np.ndarray) -> str:
    """Of all that decides the network of cycle 0 besides the seed, the points themselves included."""
    data, trial = model.data, model.trial
    settings = [trial.network.name, dict(trial.network.options), asdict(trial.train), data.normalise, len(data.classes)]
    digest = blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=12)
    for points in (data.x[L], data.y[L]):
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
