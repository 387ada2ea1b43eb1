"""Take the lists of points out of the records of a large study, into one file beside them.

    python results/compact.py results/fig2a ...

A cycle of 1000 labels among 10,000 fills 90 kB of a record with ids. ``ids.npz`` holds them as arrays: ``first/SEED``,
and for each arm and seed ``ARM/SEED/queried``, ``/predicted`` and ``/labels``, (cycles, 1000). All else stays.
"""

import sys
from pathlib import Path

import numpy as np

from foretaste import study

LISTS = ("queried", "predicted", "labels")


def compact(folder: Path) -> None:
    """Move the lists; records that have none left are as they were."""
    kept: dict[str, np.ndarray] = dict(np.load(folder / "ids.npz")) if (folder / "ids.npz").exists() else {}
    for file in sorted(folder.glob("records/*/*.jsonl")):
        records = study.load(file)
        key = f"{file.parent.name}/{file.stem}"
        if records[0]["labelled_ids"]:
            kept[f"first/{file.stem}"] = np.asarray(records[0]["labelled_ids"], np.int32)
        for name in LISTS:
            rows = [r[name] for r in records if r[name]]
            if rows:
                kept[f"{key}/{name}"] = np.asarray(rows, np.int32 if name == "queried" else np.uint8)
        for r in records:
            r.update({"labelled_ids": [], **{name: [] for name in LISTS}})
        study.save(records, file)
    np.savez_compressed(folder / "ids.npz", **kept)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        compact(Path(each))
