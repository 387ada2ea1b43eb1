"""Packs BANKING77 and the sentence encoder all-MiniLM-L6-v2 into one file that travels to another machine.

    python results/findings/tuning/pack.py FOLDER OUT

FOLDER has banking77_train.csv.gz and banking77_test.csv.gz (text, category). Words that no text uses are left out of
the encoder's vocabulary, so that all weights fit into 46 MB in float32; outputs stay as they are.
"""

import csv
import gzip
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from foretaste.network import find_backbone

TOKENS = 40  # 97 % of the texts are no longer


def read(path: Path) -> tuple[list[str], list[str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [row["text"] for row in rows], [row["category"] for row in rows]


def main(folder: str, out: str) -> None:
    encoder = find_backbone("all-minilm-l6-v2", kind="text")
    (train, of_train), (test, of_test) = (read(Path(folder) / f"banking77_{side}.csv.gz") for side in ("train", "test"))
    classes = sorted(set(of_train))
    batch = encoder.prepare(train + test)
    ids_NT = (batch["input_ids"] * batch["attention_mask"])[:, :TOKENS]  # 0 is padding
    used, at = ids_NT.unique(return_inverse=True)
    assert int(used[0]) == 0
    weights = {
        k: v.clone() for k, v in encoder.module.state_dict().items() if "pooler" not in k and v.is_floating_point()
    }
    words = next(k for k in weights if k.endswith("word_embeddings.weight"))
    weights[words] = weights[words][used]
    given = {
        "ids": at.view_as(ids_NT).to(torch.int16),
        "y": torch.tensor([classes.index(name) for name in of_train + of_test]),
        "train": torch.tensor(len(train)),
    }
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    save_file({k.split("model.")[-1]: v.contiguous() for k, v in weights.items()} | given, out)
    print(f"{len(train)} + {len(test)} texts, {len(used)} tokens, {Path(out).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
