"""Strategies that pick by themselves, held to what every batch is held to."""

import time
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import Strategy
from foretaste.query._pick import Picked, Progress
from foretaste.query._request import Request


def pick_itself(how: Strategy, request: Request, settings: dict[str, Any], progress: Progress) -> Picked:
    start = time.perf_counter()
    answer = how.fn(request, **settings)
    indices, scores_U = answer if isinstance(answer, tuple) else (answer, None)
    got = Picked([int(j) for j in indices], scores_U=None if scores_U is None else _scores(scores_U, request.U, how))
    got.seconds["select"] = time.perf_counter() - start
    wrong = [j for j in got.indices if not 0 <= j < request.U]
    if wrong or len(set(got.indices)) != len(got.indices) or len(got.indices) != request.batch_size:
        raise ValueError(
            f"strategy {how.name!r} picked {len(got.indices)} points, {len(set(got.indices))} of them different and "
            f"{len(wrong)} outside the pool; expected {request.batch_size} different positions below {request.U}"
        )
    if not progress.told:
        progress.all(request.batch_size)
    return got


def _scores(scores_U: Tensor, U: int, how: Strategy) -> Tensor:
    scores_U = torch.as_tensor(scores_U, dtype=torch.float64)
    if scores_U.shape != (U,) or scores_U.isnan().any():
        raise ValueError(f"strategy {how.name!r} gave scores {tuple(scores_U.shape)} or NaN; expected ({U},)")
    return scores_U
