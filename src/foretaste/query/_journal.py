"""What a long query has already found out, kept in a file so that a killed one goes on where it was.

JSON lines: first {"strategy", "fingerprint"}, then {"candidate", "label", "value"} for each retraining, appended as
chunks finish. Floats are written with all their digits, so nothing of a score is lost by going through the file.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretaste.tangent import Inputs

Done = dict[tuple[int, int], float]  # (candidate, label) -> value


@dataclass
class Journal:
    """``done`` is what the file held when it was opened and what was added since."""

    path: Path
    done: Done = field(default_factory=dict)

    def add(self, found: Done) -> None:
        lines = [json.dumps({"candidate": j, "label": c, "value": v}) + "\n" for (j, c), v in found.items()]
        with self.path.open("a", encoding="utf-8") as f:
            f.write("".join(lines))
            f.flush()
            os.fsync(f.fileno())
        self.done |= found


def open_journal(path: str | os.PathLike[str], strategy: str, fingerprint: str) -> Journal:
    """Read what is there; raise if it is of another query, or no journal at all."""
    path = Path(path)
    head = json.dumps({"strategy": strategy, "fingerprint": fingerprint}) + "\n"
    if not path.exists():
        path.write_text(head, encoding="utf-8")
        return Journal(path)
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]  # a kill may have cut the last line short
    if not whole and head.encode().startswith(text):
        path.write_text(head, encoding="utf-8")
        return Journal(path)
    try:
        first, *rest = [json.loads(line) for line in whole.splitlines()]
        was = first["strategy"], first["fingerprint"]
        done: Done = {(r["candidate"], r["label"]): float(r["value"]) for r in rest}
    except (ValueError, TypeError, KeyError) as e:
        raise ValueError(f"resume={str(path)!r} is not a journal of a query ({e}); name another file") from e
    if was != (strategy, fingerprint):
        raise ValueError(
            f"resume={str(path)!r} is of another query: strategy {was[0]!r}, fingerprint {str(was[1])[:12]}, and this "
            f"is {strategy!r}, {fingerprint[:12]}. Weights, data, seed or settings differ; name another file, or "
            "delete that one"
        )
    if len(whole) < len(text):
        with path.open("r+b") as f:
            f.truncate(len(whole))
    return Journal(path, done)


def fingerprint(settings: Mapping[str, Any], tensors: Iterable[tuple[str, Inputs | None]]) -> str:
    """Of everything that the values depend on."""
    h = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode())
    for name, x in tensors:
        parts = {"": x} if x is None or isinstance(x, Tensor) else dict(x)
        for key, t in parts.items():
            h.update(f"{name}.{key}:".encode())
            if t is not None:
                h.update(f"{t.dtype}{tuple(t.shape)}".encode())
                h.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()
