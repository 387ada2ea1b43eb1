"""How many candidates are retrained at once: as many as a memory budget holds, by measurement."""

import logging
from dataclasses import replace

import torch
from torch import Tensor

from foretaste.query._retraining import PIECE, Measure, Retraining
from foretaste.tangent import Inputs, take
from foretaste.tangent._memory import PeakMemory, human, resolve

log = logging.getLogger("foretaste")

LEAST, PARTS = 32, 20  # no more at once than 32 or a twentieth of all: progress is seen, and a kill costs little
SLACK = 0.9  # of the budget: steps differ a little in what they hold


def at_once(
    how: Retraining,
    x_U: Inputs,
    y_C: Tensor,
    x_W: Inputs,
    measure: Measure,
    jobs: int,
    budget: int | str | None,
    chunk_size: int | None,
) -> tuple[Retraining, int]:
    """The retraining as this network allows it, and the candidates at a time.

    One step and one piece of the watched points, for one candidate and for two, tell what a candidate takes. A network
    that vmap cannot do is retrained one candidate at a time, and so is every network if ``chunk_size`` is 1.
    """
    limit = resolve(budget, how.subj.device)
    if chunk_size != 1:
        try:
            one, two = (peak(how, x_U, y_C, x_W, measure, u) for u in (1, 2))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as e:  # if it is not vmap's, what follows raises it again
            log.warning("torch.func.vmap cannot retrain this network (%s); one candidate at a time", first_line(e))
        else:
            return how, fitting(one, max(two - one, 1), limit, jobs, chunk_size)
    how = replace(how, stacked=False)
    if (need := peak(how, x_U, y_C, x_W, measure, 1)) > limit:
        raise too_small(limit, need)
    return how, 1


def fitting(one: int, each: int, limit: int, jobs: int, chunk_size: int | None) -> int:
    """Candidates at a time, where one takes ``one`` bytes and every further one ``each``."""
    if one > limit:
        raise too_small(limit, one)
    fits = max(1, int((SLACK * limit - (one - each)) // each))
    if chunk_size is not None and chunk_size > fits:
        raise ValueError(
            f"chunk_size={chunk_size} takes about {human(one + (chunk_size - 1) * each)} and the budget of "
            f"{human(limit)} holds {fits}; leave chunk_size out, or raise the budget"
        )
    chunk = chunk_size or min(fits, max(LEAST, -(-jobs // PARTS)))
    log.debug("retraining %d candidates at once: %s each, of a budget of %s", chunk, human(each), human(limit))
    return chunk


def peak(how: Retraining, x_U: Inputs, y_C: Tensor, x_W: Inputs, measure: Measure, u: int) -> int:
    """Bytes that u candidates take at the most."""
    fullest = max(how.steps, key=lambda step: step.times)  # with the candidate in it, no tensor is shared
    with PeakMemory() as memory:
        x_u = take(x_U, torch.zeros(u, dtype=torch.int64, device=y_C.device))
        replace(how, steps=(fullest,)).values(x_u, y_C.expand(u, -1), take(x_W, slice(PIECE)), measure)
    return memory.peak


def too_small(limit: int, need: int) -> ValueError:
    return ValueError(
        f"a budget of {human(limit)} does not hold the retraining of one candidate; give at least {human(1.2 * need)}"
    )


def first_line(e: Exception) -> str:
    return f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else 'no message'}"[:200]
