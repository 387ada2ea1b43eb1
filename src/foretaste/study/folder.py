"""The folder of a run: its lock, study.json, records, checkpoints and pictures. An interrupted run resumes from it.

study.json               the configuration, the data and its digest, and how the records were made
records/ARM/SEED.jsonl   one line a cycle, on disk before the next cycle begins
weights/ARM/SEED-CYCLE.safetensors
first/SEED-DIGEST.safetensors   the networks of cycle 0, which arms share (``train_first``)
pictures.npz             the points that were queried
"""

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import Tensor, nn

from foretaste.acquire import find_strategy
from foretaste.data import Images
from foretaste.errors import check_regular, counted
from foretaste.files import explain_failed_write, whole_file, write_whole
from foretaste.losses import LOSSES
from foretaste.network import DEFAULT_EPOCHS, DEFAULT_STEPS, OPTIMISERS, read_tensors, save_network
from foretaste.study.config import Labels, Network, Study, Trial
from foretaste.study.records import (
    Record,
    damaged_record,
    read_json_lines,
    read_study_json,
    record_fault,
    record_line,
    software_versions,
)
from foretaste.study.study_data import check_digest

LOCK_PATIENCE = 60  # seconds that a worker waits for the worker of a killed run to end
KEPT_PICTURES = 2000
PICTURES_EVERY = 10  # seconds between two updates of pictures.npz
MAY_DIFFER = ("seeds", "arms", "title", "notes", "plugins")  # between two runs in one folder


# Records and checkpoints


@dataclass(frozen=True)
class Task:
    """One arm with one seed, and the folder that its records and weights are kept in."""

    folder: Path
    arm: str
    seed: int

    @property
    def path(self) -> Path:
        return self.folder / "records" / slug(self.arm) / f"{self.seed}.jsonl"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time works on a task."""
        lock = self.folder / "locks" / f"{slug(self.arm)}-{self.seed}"
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(lock, timeout=LOCK_PATIENCE):
                yield
        except Timeout:
            raise RuntimeError(
                f"arm {self.arm!r}, seed {self.seed} of {self.folder} is run by another process"
            ) from None

    def records(self, trial: Trial, experiment: str = "loop") -> list[Any]:
        """The records on disk. Removes a last line that is incomplete; raises if they are of other settings."""
        if not os.path.lexists(self.path):
            return []
        found = read_json_lines(self.path)
        text = self.path.read_bytes()
        if not text.endswith(b"\n"):  # the process was killed, or the disk was full, while the line was written
            with self.path.open("r+b") as file:
                file.truncate(text.rfind(b"\n") + 1)
        before: list[int] = []  # the labelled points that the next record must have
        for k, record in enumerate(found):
            if record.get("cycle") != k:
                raise damaged_record(self.path, k + 1, f"its cycle is {record.get('cycle')!r}; expected {k}")
            if fault := record_fault(record, experiment) or (None if "config" in record else "it has no config"):
                raise damaged_record(self.path, k + 1, fault)
            if (record.get("arm", self.arm), record["seed"]) != (self.arm, self.seed):
                raise damaged_record(self.path, k + 1, f"it is of arm {record['arm']!r} and seed {record['seed']}")
            if experiment == "loop" and k and record["labelled_ids"] != before:
                fault = "its labelled_ids are not those that the line before has and queried"
                raise damaged_record(self.path, k + 1, fault)
            before = record["labelled_ids"] + record["queried"] if experiment == "loop" else []
        if found and (differ := setting_changes(found[-1]["config"], trial.plain())):
            raise other_settings(self.folder, differ, f" of arm {self.arm!r}")
        if experiment == "loop" and len(found) > (each := trial.labels.cycles + 1):
            raise damaged_record(self.path, each + 1, f"its cycle is {each}; expected at most {each - 1}")
        return found

    def append(self, record: Record | dict[str, Any]) -> None:
        """Write one record. It is on disk when this returns; after an error the file is as it was."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        left = memoryview(record_line(record).encode())
        with self.path.open("ab", buffering=0) as file:  # a buffer would be flushed once more on closing
            before = file.tell()
            try:
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError as error:
                os.truncate(self.path, before)
                advice = "free some space and run the same command again: it resumes"
                raise explain_failed_write(error, self.path, advice) from None

    def replace_last(self, record: Record) -> None:
        """Write one record in the place of the last, or leave the file as it was."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        write_whole(self.path, b"".join([*lines[:-1], record_line(record).encode()]))

    def save_weights(self, cycle: int, net: nn.Module, **description: Any) -> None:
        """Checkpoint the network after a cycle, in a file that ``foretaste query --weights`` reads.

        The checkpoint of the cycle before stays until the next record is written.
        """
        save_network(net, self._weights_path(cycle), **description)

    def remove_weights(self, before: int) -> None:
        """Remove the checkpoints of earlier cycles."""
        for old in self._weights_path(0).parent.glob(f"{self.seed}-*.safetensors"):
            if int(old.stem.split("-")[-1]) < before:
                old.unlink()

    def has_weights(self, cycle: int) -> bool:
        return self._weights_path(cycle).exists()

    def weights(self, cycle: int) -> dict[str, Tensor]:
        """The checkpoint of a cycle."""
        path = self._weights_path(cycle)
        if not self.has_weights(cycle):
            raise FileNotFoundError(f"{path} is gone, and a warm start needs it; remove {self.path} to run it anew")
        try:
            check_regular(path)
            return read_tensors(path)[0]
        except (SafetensorError, ValueError, OSError) as error:
            raise ValueError(
                f"{path} is damaged ({error}), and a warm start needs it; remove {self.path} to run it anew"
            ) from None

    def _weights_path(self, cycle: int) -> Path:
        return self.folder / "weights" / slug(self.arm) / f"{self.seed}-{cycle}.safetensors"


def slug(name: str) -> str:
    """A file name for an arm: readable, and different for different arms."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "arm"
    return plain if plain == name else f"{plain}-{sha256(name.encode()).hexdigest()[:6]}"


# study.json


def check_folder(folder: Path, study: Study) -> None:
    """Raise unless the folder is new or holds a run of this study. Its arms and seeds may be others, its cycles fewer.

    The output of the kernel is compared arm by arm: "auto", or what it stands for, is the same run.
    """
    if before := stored_json(folder).get("study"):
        both = before, study.plain()
        there, here = ({key: value for key, value in one.items() if key not in MAY_DIFFER} for one in both)
        for one in (there, here):
            if isinstance(ask := one.get("query"), dict):  # a damaged study.json may hold anything
                one["query"] = {key: value for key, value in ask.items() if key != "output"}
        if differ := setting_changes(there, here):
            raise other_settings(folder, differ)
    for name in study.names:
        for seed in study.seeds:
            Task(folder, name, seed).records(study.trial(name), study.experiment)


def check_data(folder: Path, study: Study, data: Images) -> dict[str, Any]:
    """Raise if the folder's records were made with other data or code; returns the digests that study.json keeps."""
    begun = any((folder / "records").glob("*/*.jsonl"))
    return check_digest(folder, stored_json(folder).get("digest"), data, study, begun)


def stored_json(folder: Path) -> dict[str, Any]:
    """study.json; empty if it is missing or damaged: it is written anew then, and records hold their settings too."""
    path = folder / "study.json"
    if path.exists():
        check_regular(path)  # raises for a pipe, which is no damaged file
    try:
        return read_study_json(path)
    except (FileNotFoundError, ValueError):
        return {}


def write_study(folder: Path, study: Study, description: Mapping[str, Any]) -> None:
    """Write study.json. Arms and seeds of earlier runs stay in it if the folder has records of them."""
    now, rest = study.plain(), {key: value for key, value in description.items() if key != "study"}
    if before := stored_json(folder).get("study"):
        names = [*study.names]
        kept = [arm for arm in before["arms"] if arm["name"] not in names and _has_records(folder, arm["name"])]
        now["arms"] += kept
        names += [arm["name"] for arm in kept]
        now["seeds"] += [
            s for s in before["seeds"] if s not in now["seeds"] and any(_has_records(folder, n, s) for n in names)
        ]
        if "about" in rest:
            rest["about"] = rest["about"] | {"seeds": ", ".join(map(str, now["seeds"]))}
            if before.get("labels") != now["labels"]:  # more cycles than there
                rest["about"]["labels"] = _labelling_words(study.labels)
    write_whole(folder / "study.json", json.dumps({"study": now} | rest, indent=1, ensure_ascii=False) + "\n")


def _has_records(folder: Path, arm: str, seed: int | str = "*") -> bool:
    return any((folder / "records" / slug(arm)).glob(f"{seed}.jsonl"))


def describe(
    study: Study,
    data: Images,
    *,
    command: str = "foretaste.study.run, in Python",
    processes: int = 1,
    device: str = "cpu",
    warning: str | None = None,
) -> dict[str, Any]:
    """What study.json holds besides the configuration: the data, and how the records were made.

    warning: why the numbers are no result; the page shows it first. Notes of stand-in data are added to it.
    """
    standin = [note for note in data.notes if "not a result" in note]
    return {
        "classes": list(data.classes),
        "about": about(study, data, command=command, processes=processes, device=device),
        "data": data.name,
        "data_notes": [note for note in data.notes if note not in standin],
        "standin": ". ".join([*standin, *([warning] if warning else [])]) or None,
    }


def about(study: Study, data: Images, *, command: str, processes: int, device: str = "cpu") -> dict[str, str]:
    """How records are made, in words, so that they can be made again.

    >>> from foretaste.study import about, prepared, study
    >>> of = study(["margin"], seeds=(0, 1))
    >>> about(of, prepared(of.data, "cpu"), command="foretaste run x", processes=1)["labels"]
    '20 at random, then 10 a cycle of the whole pool, 7 cycles'
    """
    train = study.train
    loss = LOSSES[train.loss].title
    length = (
        counted(train.steps, "step")
        if train.steps
        else counted(train.epochs, "epoch")
        if train.epochs
        else f"{DEFAULT_STEPS} steps or {DEFAULT_EPOCHS} epochs, whichever is more,"
    )
    lr = "fit's own" if train.max_lr is None else f"{train.max_lr:g}"
    new = "new weights" if study.network.built_in else "the weights that its function builds"
    start = f"from {new} each cycle" if train.start == "cold" else "each cycle from the weights of the last"
    augment = f", images augmented by {train.augment}" if train.augment else ""
    optimiser = train.optimiser or "sgd"
    how, rises = {"sgd": "SGD", "adamw": "AdamW"}[optimiser], train.schedule or OPTIMISERS[optimiser]
    tuned = f", of the parameters {train.tune!r} alone" if train.tune else ""
    words = {
        "command": command,
        "data": f"{data.name}: {len(data.pool)} points to query from, {len(data.test)} to measure on, "
        f"{len(data.classes)} classes; no point of the test set is ever trained on or queried",
        "network": _network_words(study.network)
        + (f", a head on features of {study.features.backbone}" if study.features else ""),
        "training": f"{how} on the {loss}, {length} of at most {counted(train.batch, 'point')}, {rises} up to a "
        f"learning rate of {lr}{augment}{tuned}; {start}",
        "labels": _labelling_words(study.labels),
        "pairing": "a seed gives every arm the same first labels, and every cycle the same initial weights and batches",
        "seeds": ", ".join(map(str, study.seeds)),
    }
    calibrated = {arm.strategy for arm in study.arms if find_strategy(arm.strategy).study.calibrates is not None}
    for name in sorted(calibrated) if LOSSES[train.loss].quadratic else ():
        words[f"scale of {name}"] = (
            "s² from the residuals of each batch's labels before they were learned; before the first, ten times "
            "leave-one-out"
        )
    where = software_versions(torch.device(device))
    words["versions"] = ", ".join(f"{name} {version}" for name, version in where.items() if name != "device")
    words["machine"] = f"{where['device']}, {counted(processes, 'process', 'processes')} of one thread"
    return words


def _labelling_words(labels: Labels) -> str:
    offered = "the whole pool" if labels.subset is None else f"{counted(labels.subset, 'point')} drawn anew"
    return f"{labels.init} at random, then {labels.per_cycle} a cycle of {offered}, {counted(labels.cycles, 'cycle')}"


def _network_words(network: Network) -> str:
    options = ", ".join(f"{key} {value}" for key, value in network.options.items())
    return f"{network.name}, {options}" if options else network.name


def differences(there: Any, here: Any, at: str = "") -> list[str]:
    """Where two configurations differ, in words."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = dict.fromkeys([*there, *here])
        return [d for k in keys for d in differences(there.get(k), here.get(k), f"{at}.{k}" if at else k)]
    return [] if there == here else [f"{at} is {there!r} there and {here!r} here"]


def setting_changes(there: Any, here: Any) -> list[str]:
    """The ``differences`` that keep a run from resuming in a folder: all but a larger number of cycles."""
    labels = [one.get("labels") if isinstance(one, dict) else None for one in (there, here)]
    before, now = (one.get("cycles") if isinstance(one, dict) else None for one in labels)
    if isinstance(before, int) and isinstance(now, int) and before < now:
        there = there | {"labels": labels[0] | {"cycles": now}}  # type: ignore[operator]
    return differences(there, here)


def other_settings(folder: Path, differ: list[str], of: str = "") -> ValueError:
    settings = f"{folder} holds a run{of} with other settings: {'; '.join(differ)}"
    return ValueError(f"{settings}. Choose another folder, or remove this one")


# Pictures


@dataclass
class PictureFile:
    """pictures.npz of a run: the points queried so far, so that the page shows them without the data.

    It is written while the run goes on, so that the page of an unfinished run has pictures too.
    """

    folder: Path
    data: Images
    records: list[Any] = field(default_factory=list)
    written: float = float("-inf")  # when, by time.monotonic
    stale: bool = False

    def add(self, record: Any) -> None:
        """Add the points of a record. Writes the file if the last time was some seconds ago."""
        self.records.append(record)
        self.stale = self.stale or bool(record.get("queried"))
        if self.stale and time.monotonic() - self.written >= PICTURES_EVERY:
            self.write()

    def write(self) -> None:
        """Write the file, if points were added since the last time."""
        if self.stale:
            save_pictures(self.folder, self.data, self.records)
            self.written, self.stale = time.monotonic(), False


def save_pictures(folder: Path, data: Images, records: Iterable[Any]) -> None:
    """Write pictures.npz: ids and uint8 pixels of the points queried. Early seeds and cycles come first if too many."""
    shown = data.x if data.shown is None else data.shown
    if shown.dtype != torch.uint8 or shown.dim() != 4:
        return
    ordered = sorted(records, key=lambda r: (r["seed"], r["cycle"]))
    queried = dict.fromkeys(i for r in ordered for i in r.get("queried", ()))
    ids = np.array(list(queried)[:KEPT_PICTURES], dtype=np.int64)
    if not len(ids):
        return
    x = shown[ids].cpu()
    pixels = x[:, 0] if x.shape[1] != 3 else x.permute(0, 2, 3, 1)
    with whole_file(folder / "pictures.npz") as part, part.open("wb") as file:
        np.savez_compressed(file, ids=ids, pixels=pixels.numpy())
