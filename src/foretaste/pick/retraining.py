"""Real retraining: SGD from the trained weights on L and one more candidate, for many candidates at once.

For a chunk of u candidates every parameter is stacked to (u, ...). One step of all u networks is one call of
``torch.func.functional_call`` under vmap:

    m ← μ m + ∇ℓ(θ; B)      θ ← θ − η m      B a minibatch of L ∪ {(x_j, y_j)}

as in torch.optim.SGD. All networks take the same minibatches in the same order; only the candidate differs. They run in
eval mode: BatchNorm keeps its statistics, as the linearisation assumes and the paper does, and dropout is off. The
user's network is only read. The parts, in order: the training, how many candidates at once, and the journal of a query
that can be resumed.
"""

import hashlib
import json
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from foretaste.errors import format_bytes, is_out_of_memory
from foretaste.losses import LOSSES
from foretaste.network import batch_indices
from foretaste.tangent import (
    FrozenNetwork,
    Inputs,
    PeakMemory,
    count_points,
    isolated,
    join_points,
    resolve_budget,
    take_points,
    to_float64,
)

log = logging.getLogger("foretaste")

CHUNK_PIECE = 256  # watched points evaluated at a time

WeightDict = dict[str, Tensor]  # stacked, (u, ...) each
MeasureOutputs = Callable[[Tensor, slice], Tensor]  # (outputs of u networks (u, w, C), which watched points) -> (u,)


@dataclass(frozen=True, eq=False)
class SGDSteps:
    """A minibatch: positions in L, and how often the candidate is in it."""

    at_L: Tensor
    times: int


def epoch_batches(
    L: int, epochs: int, minibatch: int, generator: torch.Generator, device: torch.device
) -> tuple[SGDSteps, ...]:
    """``epochs`` passes over the L + 1 points in minibatches of one size; a batch may continue in the next epoch."""
    n = min(minibatch, L + 1)
    order = batch_indices(L + 1, n, math.ceil(epochs * (L + 1) / n), generator)
    return tuple(SGDSteps(at[at < L].to(device), int((at == L).sum())) for at in order)


@dataclass(frozen=True, eq=False)
class Retraining:
    """One SGD, the same for every candidate."""

    frozen: FrozenNetwork
    x_L: Inputs | None
    y_LC: Tensor
    steps: tuple[SGDSteps, ...]
    loss: str
    lr: float
    momentum: float
    stacked: bool = True  # under vmap; else one candidate at a time by plain autograd

    def values(self, x_u: Inputs, y_uC: Tensor, x_W: Inputs, measure: MeasureOutputs) -> Tensor:
        """Retrain on each candidate with its target; Σ of ``measure`` over the watched points, (u,) float64."""
        with isolated(self.frozen.device), quiet_vmap():
            if self.stacked:
                return self._values(x_u, y_uC, x_W, measure)
            ones = [slice(i, i + 1) for i in range(len(y_uC))]
            return torch.cat([self._values(take_points(x_u, at), y_uC[at], x_W, measure) for at in ones])

    def _values(self, x_u: Inputs, y_uC: Tensor, x_W: Inputs, measure: MeasureOutputs) -> Tensor:
        theta = self.train(x_u, y_uC)
        pieces = [measure(to_float64(f_uwC), at) for at, f_uwC in self.outputs(theta, x_W)]
        return torch.stack(pieces).sum(0)

    def train(self, x_u: Inputs, y_uC: Tensor) -> WeightDict:
        """The u networks after all steps."""
        theta = {k: p.expand(len(y_uC), *p.shape).clone() for k, p in self.frozen.params.items()}
        moving = {k: torch.zeros_like(p) for k, p in theta.items()} if self.momentum else {}
        for step in self.steps:
            slopes = self.slopes(theta, x_u, y_uC, step)
            for k, p in theta.items():
                slope = slopes.pop(k)  # freed before the next is made
                if self.momentum:
                    slope = moving[k].mul_(self.momentum).add_(slope)
                p.add_(slope, alpha=-self.lr)
        return theta

    def slopes(self, theta: WeightDict, x_u: Inputs, y_uC: Tensor, step: SGDSteps) -> WeightDict:
        """∇ℓ of each network on its own minibatch."""

        def loss(theta: WeightDict, x_1: Inputs, y_C: Tensor) -> Tensor:
            x_B, y_BC = self.minibatch(step, x_1, y_C)
            return LOSSES[self.loss].soft_value(self.frozen.call(x_B, theta), y_BC)

        if self.stacked:
            return vmap(grad(loss))(theta, x_u, y_uC)
        leaves = {k: p[0].detach().requires_grad_() for k, p in theta.items()}
        value = loss(leaves, take_points(x_u, 0), y_uC[0])
        found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return {k: g[None] for k, g in zip(leaves, found)}

    def minibatch(self, step: SGDSteps, x_1: Inputs, y_C: Tensor) -> tuple[Inputs, Tensor]:
        """A minibatch without the candidate is one tensor for all networks, which saves work in the first layer."""
        at, n = step.at_L, step.times
        x_n, y_nC = repeat_inputs(x_1, n), y_C.expand(n, -1)
        if len(at) == 0 or self.x_L is None:
            return x_n, y_nC
        x_L, y_LC = take_points(self.x_L, at), self.y_LC[at]
        return (join_points(x_L, x_n), torch.cat([y_LC, y_nC])) if n else (x_L, y_LC)

    @torch.no_grad()
    def outputs(self, theta: WeightDict, x_W: Inputs) -> Iterator[tuple[slice, Tensor]]:
        """f⁺ on the watched points, (u, w, C) a piece."""
        for start in range(0, count_points(x_W), CHUNK_PIECE):
            at = slice(start, min(start + CHUNK_PIECE, count_points(x_W)))
            x_w = take_points(x_W, at)
            if self.stacked:
                yield at, vmap(self.frozen.call, in_dims=(None, 0))(x_w, theta)
            else:
                yield at, self.frozen.call(x_w, {k: p[0] for k, p in theta.items()})[None]


def repeat_inputs(x_1: Inputs, n: int) -> Inputs:
    """n copies of one point, given without a dimension of points."""
    return x_1.expand(n, *x_1.shape) if isinstance(x_1, Tensor) else {k: v.expand(n, *v.shape) for k, v in x_1.items()}


@contextmanager
def quiet_vmap() -> Iterator[None]:
    """Without vmap's warnings about speed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # vmap's, for an operation without a rule
        yield


# --- how many candidates are retrained at once: as many as a memory budget holds, by measurement ---

# At most 32 at once, or a twentieth of all: progress is visible, and an interruption costs little.
LEAST_CANDIDATES, PROBE_PARTS = 32, 20
BUDGET_SLACK = 0.9  # of the budget: steps differ a little in their memory


def choose_chunk_size(
    how: Retraining,
    x_U: Inputs,
    y_C: Tensor,
    x_W: Inputs,
    measure: MeasureOutputs,
    jobs: int,
    budget: int | str | None,
    chunk_size: int | None,
) -> tuple[Retraining, int]:
    """The retraining that works for this network, and the number of candidates at a time.

    The memory of a candidate is measured on one step and one piece of the watched points, for one candidate and for
    two. If vmap cannot run the network, or ``chunk_size`` is 1, candidates are retrained one at a time.
    """
    limit = resolve_budget(budget, how.frozen.device)
    if chunk_size != 1:
        try:
            one, two = (peak_bytes(how, x_U, y_C, x_W, measure, u) for u in (1, 2))
        except Exception as e:  # an error that is not vmap's is raised again below
            if is_out_of_memory(e):
                raise
            log.warning("torch.func.vmap cannot retrain this network (%s); one candidate at a time", first_line(e))
        else:
            return how, largest_fitting(one, max(two - one, 1), limit, jobs, chunk_size)
    how = replace(how, stacked=False)
    if (need := peak_bytes(how, x_U, y_C, x_W, measure, 1)) > limit:
        raise budget_too_small(limit, need)
    return how, 1


def largest_fitting(one: int, each: int, limit: int, jobs: int, chunk_size: int | None) -> int:
    """Candidates at a time, if the first takes ``one`` bytes and every further one ``each``."""
    if one > limit:
        raise budget_too_small(limit, one)
    fits = max(1, int((BUDGET_SLACK * limit - (one - each)) // each))
    if chunk_size is not None and chunk_size > fits:
        raise ValueError(
            f"chunk_size={chunk_size} takes about {format_bytes(one + (chunk_size - 1) * each)} and the budget of "
            f"{format_bytes(limit)} holds {fits}; leave chunk_size out, or raise the budget"
        )
    chunk = chunk_size or min(fits, max(LEAST_CANDIDATES, -(-jobs // PROBE_PARTS)))
    log.debug(
        "retraining %d candidates at once: %s each, of a budget of %s", chunk, format_bytes(each), format_bytes(limit)
    )
    return chunk


def peak_bytes(how: Retraining, x_U: Inputs, y_C: Tensor, x_W: Inputs, measure: MeasureOutputs, u: int) -> int:
    """The peak memory of u candidates, in bytes."""
    fullest = max(how.steps, key=lambda step: step.times)  # with the candidate in it, nothing is shared
    with PeakMemory() as memory:
        x_u = take_points(x_U, torch.zeros(u, dtype=torch.int64, device=y_C.device))
        replace(how, steps=(fullest,)).values(x_u, y_C.expand(u, -1), take_points(x_W, slice(CHUNK_PIECE)), measure)
    return memory.peak


def budget_too_small(limit: int, need: int) -> ValueError:
    return ValueError(
        f"a budget of {format_bytes(limit)} does not hold the retraining of one candidate; "
        f"give at least {format_bytes(1.2 * need)}"
    )


def first_line(e: Exception) -> str:
    return f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else 'no message'}"[:200]


# --- the journal: results so far, in a file, so that an interrupted query can be resumed ---
#
# JSON lines: first {"strategy", "fingerprint"}, then {"candidate", "label", "value"} for each retraining, appended as
# chunks finish. Floats are written with all digits, so that scores are the same after a resume.


FinishedScores = dict[tuple[int, int], float]  # (candidate, label) -> value


@dataclass
class Journal:
    """``done`` has the results of the file when it was opened, and those added since."""

    path: Path
    done: FinishedScores = field(default_factory=dict)

    def add(self, found: FinishedScores) -> None:
        """Append results, and make sure that they are on disk."""
        lines = [json.dumps({"candidate": j, "label": c, "value": v}) + "\n" for (j, c), v in found.items()]
        with self.path.open("a", encoding="utf-8") as f:
            f.write("".join(lines))
            f.flush()
            os.fsync(f.fileno())
        self.done |= found


def open_journal(path: str | os.PathLike[str], strategy: str, fingerprint: str) -> Journal:
    """Read the journal, or start one. Raises if it belongs to another query, or is no journal."""
    path = Path(path)
    head = json.dumps({"strategy": strategy, "fingerprint": fingerprint}) + "\n"
    if not path.exists():
        path.write_text(head, encoding="utf-8")
        return Journal(path)
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]  # an interruption may have cut the last line
    if not whole and head.encode().startswith(text):
        path.write_text(head, encoding="utf-8")
        return Journal(path)
    try:
        first, *rest = [json.loads(line) for line in whole.splitlines()]
        was = first["strategy"], first["fingerprint"]
        done: FinishedScores = {(r["candidate"], r["label"]): float(r["value"]) for r in rest}
    except (ValueError, TypeError, KeyError) as e:
        raise ValueError(f"resume={str(path)!r} is not a journal of a query ({e}); name another file") from e
    if was != (strategy, fingerprint):
        raise ValueError(
            f"resume={str(path)!r} belongs to another query: strategy {was[0]!r}, fingerprint {str(was[1])[:12]}, and "
            f"this is {strategy!r}, {fingerprint[:12]}. Weights, data, seed or settings differ; name another file, or "
            "delete that one"
        )
    if len(whole) < len(text):
        with path.open("r+b") as f:
            f.truncate(len(whole))
    return Journal(path, done)


def fingerprint(settings: Mapping[str, Any], tensors: Iterable[tuple[str, Inputs | None]]) -> str:
    """A hash of everything that the values depend on."""
    h = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode())
    for name, x in tensors:
        parts = {"": x} if x is None or isinstance(x, Tensor) else dict(x)
        for key, t in parts.items():
            h.update(f"{name}.{key}:".encode())
            if t is not None:
                h.update(f"{t.dtype}{tuple(t.shape)}".encode())
                h.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()
