"""Damage to the log of labels: whatever happens to one of its files, every acknowledged answer is there, and once.

``run(count, seed)`` labels in a store, takes copies of its files as a crash or an orderly end leaves them, damages one
file of a copy, and opens it three times: to read, to write, and once more. An answer that is gone, doubled or changed
is "wrong", and so are an error, and a damage that is restored without a word or told twice.
"""

import logging
import random
import shutil
import tempfile
from pathlib import Path

from foretaste.label import LabelEvent, LabelStore

from .outcomes import Tally, WrongError, outcome_of

FILES = ("labels.sqlite", "labels.sqlite-wal", "labels.sqlite-shm", "labels.journal")
CLASSES = ["cat", "dog", "cow"]
Image = tuple[Path, list[LabelEvent]]  # of a folder, and what was acknowledged


class Warnings(logging.Handler):
    """Keeps what was said."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def make_images(top: Path, draw: random.Random, answers: int) -> list[Image]:
    """Folders as a crash leaves them after some answers, the last as an orderly end does."""
    images = list[Image]()
    with LabelStore(top / "live") as store:
        store.set_classes(CLASSES)
        for k in range(answers):
            item = f"item {k}"
            store.lease([item], tab="tab", who="Ada")
            if k % 20 == 19:
                with store.together():
                    for j in range(3):
                        store.record(f"{item}/{j}", "label", draw.choice(CLASSES), who="Böb", request=f"{k}/{j}")
            else:
                store.record(item, "label", draw.choice(CLASSES), who="Ada", tab="tab", confidence=draw.random())
            if k % 5 == 4 and f"item {k - 2}" in store.labels():
                store.record(f"item {k - 2}", "label", draw.choice(CLASSES), who="Cid", purpose="second")
            if k % 7 == 6:
                store.undo(who="Ada", tab="tab")
            if k % (answers // 3) == answers // 6 or k == answers - 1:
                images.append((shutil.copytree(top / "live", top / f"crash-{k}"), store.events()))
        last = store.events()
    return [*images, (top / "live", last)]


def damage_file(path: Path, draw: random.Random) -> str:
    """Change a file; says how."""
    raw = bytearray(path.read_bytes())
    how = draw.choice(["flip"] * 6 + ["truncate", "zero", "append", "remove"])
    at = draw.randrange(max(1, len(raw)))
    if how == "flip" and raw:
        raw[at] ^= 1 << draw.randrange(8)
    elif how == "truncate":
        del raw[at:]
    elif how == "zero":
        raw[at : at + 512] = bytes(len(raw[at : at + 512]))
    elif how == "append":
        raw += draw.randbytes(draw.choice([1, 100, 5000]))
    if how == "remove":
        path.unlink()
    else:
        path.write_bytes(raw)
    return f"{how} {path.name} at {at}"


def check_case(case: Path, wanted: list[LabelEvent], heard: Warnings) -> None:
    """Open a damaged store three times; raises what is wrong."""
    told = list[int]()
    for read_only in (True, False, False):
        heard.said.clear()
        try:
            with LabelStore(case, read_only=read_only) as store:
                events, classes = store.events(), store.classes
        except Exception as error:
            raise WrongError(f"{'reading' if read_only else 'opening'}: {type(error).__name__} {error}") from None
        if events != wanted or classes != tuple(CLASSES):
            raise WrongError(f"{len(events)} answers of {len(wanted)}, classes {classes}")
        told.append(len(heard.said))
    restored = list(case.glob("labels.damaged-*"))
    if told[2] or told[1] > 1 or (restored and not told[1]):
        raise WrongError(f"{told} warnings, {len(restored)} files put aside")


def run(count: int, seed: int = 0, answers: int = 60) -> Tally:
    """``count`` damages to one file of the log."""
    tally, draw, heard = Tally(), random.Random(seed), Warnings()
    log = logging.getLogger("foretaste")
    beside = "/dev/shm" if Path("/dev/shm").is_dir() else None  # flushing costs nothing there
    before = logging.root.manager.disable  # ``python -m fuzz`` wants no log
    logging.disable(logging.NOTSET)
    log.addHandler(heard)
    try:
        with tempfile.TemporaryDirectory(dir=beside) as top:
            images = make_images(Path(top), draw, answers)
            for k in range(count):
                image, wanted = draw.choice(images)
                case = shutil.copytree(image, Path(top) / f"case-{k}")
                path = draw.choice([case / name for name in FILES if (case / name).exists()])
                what = f"{image.name}, {damage_file(path, draw)}"
                outcome, words = outcome_of(lambda case=case, wanted=wanted: check_case(case, wanted, heard))
                tally.add(outcome, f"{what}: {words}")
                shutil.rmtree(case)
    finally:
        log.removeHandler(heard)
        logging.disable(before)
    return tally
