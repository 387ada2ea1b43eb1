"""The one-cycle schedule: the learning rate up and down once, the momentum down and up."""

import math

WARM_UP = 0.3  # of all steps
LOW_MOMENTUM, HIGH_MOMENTUM = 0.85, 0.95
FIRST, LAST = 1 / 25, 1 / 250_000  # of the largest learning rate


def one_cycle(step: int, steps: int, max_lr: float) -> tuple[float, float]:
    """(learning rate, momentum) of a step; what torch's OneCycleLR gives, without its 20 µs a step.

    Both go along half cosines: over the first 30 % of the steps the learning rate rises from max_lr / 25 and the
    momentum falls from 0.95; then the learning rate falls to nearly nothing and the momentum returns.
    """
    top, end = WARM_UP * steps - 1, steps - 1
    if step <= top:
        part = step / top
        return _cosine(FIRST, 1.0, part) * max_lr, _cosine(HIGH_MOMENTUM, LOW_MOMENTUM, part)
    part = (step - top) / (end - top)
    return _cosine(1.0, LAST, part) * max_lr, _cosine(LOW_MOMENTUM, HIGH_MOMENTUM, part)


def _cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * part))
