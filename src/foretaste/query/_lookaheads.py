"""From a request to scores by real retraining: what naive, eer_retrain and onestep share."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretaste.query._atonce import at_once
from foretaste.query._journal import Journal, fingerprint, open_journal
from foretaste.query._request import Request
from foretaste.query._retraining import Measure, Retraining, Step
from foretaste.tangent import subject, take


@dataclass(frozen=True)
class Running:
    """How it is run; none of it changes a score.

    chunk_size: candidates at once; None is what the query's ``budget`` holds, 1 does without vmap. resume: a file to
    which what is found is appended; a query killed and asked again with it goes on from there.
    """

    chunk_size: int | None = None
    resume: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        whole(chunk_size=1 if self.chunk_size is None else self.chunk_size)
        if self.resume is not None and (not Path(self.resume).parent.is_dir() or Path(self.resume).is_dir()):
            raise ValueError(f"resume={str(self.resume)!r}; expected a file in a folder that exists")


def whole(**numbers: Any) -> None:
    for name, n in numbers.items():
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"{name}={n!r}; expected a whole number, 1 or more")


def rates(lr: Any, momentum: Any = 0.0) -> None:
    if isinstance(lr, bool) or not isinstance(lr, (int, float)) or not 0 < lr < math.inf:
        raise ValueError(f"lr={lr!r}; expected a number above 0")
    if isinstance(momentum, bool) or not isinstance(momentum, (int, float)) or not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum!r}; expected a number from 0 up to, but not, 1")


def retrained(
    request: Request,
    name: str,
    jobs_n2: Tensor,
    steps: tuple[Step, ...],
    lr: float,
    momentum: float,
    measure: Measure,
    run: Running,
) -> Tensor:
    """Retrain on every job (candidate, class); Σ of ``measure`` over the watched points, (n,) float64.

    What is trained are the query's ``params``. progress is called with (retrainings done, of how many).
    """
    state, subj, x_W = request.state, subject(request.net, params=request.params), request.x_W
    x_L = request.x_L if state.L else None
    eye_CC = torch.eye(state.C, dtype=subj.dtype, device=subj.device)
    y_LC = state.targets(request.y_L).to(eye_CC) if x_L is not None else eye_CC[:0]
    how = Retraining(subj, x_L, y_LC, steps, request.loss, lr, momentum)
    journal: Journal | None = None
    if run.resume is not None:
        settings = {
            "strategy": name,
            "loss": request.loss,
            "lr": lr,
            "momentum": momentum,
            "params": sorted(subj.params),
        }
        order = [(f"step {s.times}", s.at_L) for s in steps]
        weights = [*subj.net.named_parameters(), *subj.net.named_buffers()]
        given = [("x_L", x_L), ("y_L", y_LC), ("x_U", request.x_U), ("watch", x_W), ("jobs", jobs_n2)]
        journal = open_journal(run.resume, name, fingerprint(settings, [*weights, *given, *order]))
    jobs = [(j, c) for j, c in jobs_n2.tolist()]
    found = dict(journal.done) if journal else {}
    left = [job for job in jobs if job not in found]
    if left:
        how, chunk = at_once(how, request.x_U, eye_CC[0], x_W, measure, len(jobs), request.budget, run.chunk_size)
        for start in range(0, len(left), chunk):
            part = left[start : start + chunk]
            at, classes = torch.tensor(part, device=subj.device).T
            values = how.values(take(request.x_U, at), eye_CC[classes], x_W, measure).tolist()
            new = dict(zip(part, values))
            for (j, c), value in new.items():
                if not math.isfinite(value):
                    raise ValueError(
                        f"{name} gives {value} for candidate {j} with label {c}: SGD diverged from the trained weights "
                        f"with lr={lr:g}; lower it, options={{'lr': {lr / 5:g}}} say"
                    )
            found |= new
            if journal:
                journal.add(new)
            request.progress(len(found), len(jobs))
    return torch.tensor([found[job] for job in jobs], dtype=torch.float64, device=state.net.device)
