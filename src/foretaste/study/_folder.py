"""The folder of a run: who holds it, its records, its checkpoints. Whatever is killed when, what is on disk can go on.

study.json               the configuration, data and classes; written once
records/ARM/SEED.jsonl   a line a cycle, appended and flushed to disk
weights/ARM/SEED-CYCLE.safetensors
pictures.npz             the points asked for
"""

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors.torch import load_file
from torch import Tensor, nn

from foretaste.network import save
from foretaste.study._config import Trial
from foretaste.study.records import Record, line

PATIENCE = 60  # seconds that a worker waits for one of a killed run to notice and end


@dataclass(frozen=True)
class Task:
    """One arm with one seed, and the folder its run is kept in."""

    folder: Path
    arm: str
    seed: int

    @property
    def path(self) -> Path:
        return self.folder / "records" / slug(self.arm) / f"{self.seed}.jsonl"

    @contextmanager
    def held(self) -> Iterator[None]:
        """By one process at a time."""
        lock = self.folder / "locks" / f"{slug(self.arm)}-{self.seed}"
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(lock, timeout=PATIENCE):
                yield
        except Timeout:
            raise RuntimeError(
                f"arm {self.arm!r}, seed {self.seed} of {self.folder} is run by another process"
            ) from None

    def records(self, trial: Trial) -> list[Record]:
        """What is there already. A last line that was cut off is removed; records of other settings are refused."""
        if not self.path.exists():
            return []
        text = self.path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:  # killed, or the disk was full, while it was written
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        found = []
        for k, one in enumerate(whole.splitlines()):
            try:
                record = json.loads(one)
            except ValueError:
                raise ValueError(
                    f"{self.path}, line {k + 1}, is no record; take the file away to run it anew"
                ) from None
            if record.get("cycle") != k:
                raise ValueError(f"{self.path}, line {k + 1}, is of cycle {record.get('cycle')}, expected {k}")
            found.append(record)
        if found and (differ := differences(found[-1]["config"], trial.plain())):
            raise other(self.folder, differ, f" of arm {self.arm!r}")
        return found

    def append(self, record: Record | dict[str, Any]) -> None:
        """On disk when this returns; if it cannot be, the file is as it was."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        left = memoryview(line(record).encode())
        with self.path.open("ab", buffering=0) as file:  # a buffer would be written once more on closing, after the cut
            before = file.tell()
            try:
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError as error:
                os.truncate(self.path, before)
                raise explained(error, self.path) from None

    def keep(self, cycle: int, net: nn.Module, **said: Any) -> None:
        """The network after a cycle, as ``foretaste query --weights`` takes it. That of the cycle before stays until
        the next record is written."""
        target = self._weights(cycle)
        try:
            save(net, target, **said)
            with target.open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise explained(error, target) from None

    def forget(self, before: int) -> None:
        for old in self._weights(0).parent.glob(f"{self.seed}-*.safetensors"):
            if int(old.stem.split("-")[-1]) < before:
                old.unlink()

    def weights(self, cycle: int) -> dict[str, Tensor]:
        path = self._weights(cycle)
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is gone, and a warm start goes on from it; take {self.path} away to run anew"
            )
        return load_file(path)

    def _weights(self, cycle: int) -> Path:
        return self.folder / "weights" / slug(self.arm) / f"{self.seed}-{cycle}.safetensors"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a run's folder, or say that another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "locks").mkdir(exist_ok=True)
    try:
        with FileLock(folder / "locks" / "run", timeout=0):
            yield
    except Timeout:
        raise RuntimeError(f"another process is running in {folder}; wait for it, or choose another folder") from None


def other(folder: Path, differ: list[str], of: str = "") -> ValueError:
    says = f"{folder} holds a run{of} with other settings: {'; '.join(differ)}"
    return ValueError(f"{says}. Choose another folder, or take this one away")


def write(path: Path, text: str) -> None:
    """All of it or none."""
    part = path.with_suffix(".part")
    try:
        part.write_text(text, encoding="utf-8")
    except OSError as error:
        part.unlink(missing_ok=True)
        raise explained(error, path) from None
    part.replace(path)


def explained(error: OSError, path: Path) -> OSError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    says = f"the disk is full, {path} could not be written; free some space and run the same command again: it goes on"
    return OSError(error.errno, says)


def differences(there: Any, here: Any, at: str = "") -> list[str]:
    """Where two plain configurations differ, in words."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = dict.fromkeys([*there, *here])
        return [d for k in keys for d in differences(there.get(k), here.get(k), f"{at}.{k}" if at else k)]
    return [] if there == here else [f"{at} is {there!r} there and {here!r} here"]


def slug(name: str) -> str:
    """A file name for an arm: readable, and never the same for two."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "arm"
    return plain if plain == name else f"{plain}-{sha256(name.encode()).hexdigest()[:6]}"
