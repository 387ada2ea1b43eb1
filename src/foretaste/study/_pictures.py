"""The points that were asked for, kept beside the records so that a page can show them without the data."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foretaste.data import Images
from foretaste.study._folder import explained

MOST = 2000


def keep_pictures(folder: Path, data: Images, records: Iterable[Any]) -> None:
    """pictures.npz: ids and uint8 pixels of the points queried, of the first seeds and cycles if they are too many."""
    if data.x.dtype != torch.uint8 or data.x.dim() != 4:
        return
    ordered = sorted(records, key=lambda r: (r["seed"], r["cycle"]))
    ids = np.array(list(dict.fromkeys(i for r in ordered for i in r.get("queried", ())))[:MOST], dtype=np.int64)
    if not len(ids):
        return
    x = data.x[ids].cpu()
    pixels = x[:, 0] if x.shape[1] != 3 else x.permute(0, 2, 3, 1)
    part = folder / "pictures.part.npz"
    try:
        np.savez_compressed(part, ids=ids, pixels=pixels.numpy())
    except OSError as error:
        part.unlink(missing_ok=True)
        raise explained(error, folder / "pictures.npz") from None
    part.replace(folder / "pictures.npz")
