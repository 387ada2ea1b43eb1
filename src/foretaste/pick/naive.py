"""Look-ahead by real training, a network for each candidate: ``naive`` (Fig. 1a), ``eer_retrain`` and ``onestep``.

retraining.py has the training itself. It is the slow truth that the linearised look-ahead is compared with. ``egl`` is
the length of the first step, which needs no training.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import StudyHints, pseudo_labels, register
from foretaste.losses import LOSSES, probabilities
from foretaste.pick.request import Request
from foretaste.pick.retraining import (
    Journal,
    MeasureOutputs,
    Retraining,
    SGDSteps,
    choose_chunk_size,
    epoch_batches,
    fingerprint,
    open_journal,
)
from foretaste.pick.select import highest_scores
from foretaste.tangent import GramJob, check_inputs, freeze, gram, take_points

GRADIENT_BLOCK = 2**22  # numbers of the C × C blocks of Θ at a time, for ``egl``: 32 MB

# --- options ---


@dataclass(frozen=True)
class RetrainingRun:
    """Options of how retraining runs. None of them changes a score.

    chunk_size: candidates retrained at once. None (default): as many as the query's ``budget`` holds. 1: without vmap.
    resume: a file for the results so far. An interrupted query that is asked again with it resumes there.
    """

    chunk_size: int | None = None
    resume: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_whole(chunk_size=1 if self.chunk_size is None else self.chunk_size)
        if self.resume is not None and (not Path(self.resume).parent.is_dir() or Path(self.resume).is_dir()):
            raise ValueError(f"resume={str(self.resume)!r}; expected a file in a folder that exists")


def check_whole(**numbers: Any) -> None:
    for name, n in numbers.items():
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"{name}={n!r}; expected a whole number, 1 or more")


def check_rates(lr: Any, momentum: Any = 0.0) -> None:
    if isinstance(lr, bool) or not isinstance(lr, (int, float)) or not 0 < lr < math.inf:
        raise ValueError(f"lr={lr!r}; expected a number above 0")
    if isinstance(momentum, bool) or not isinstance(momentum, (int, float)) or not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum!r}; expected a number from 0 up to, but not, 1")


@dataclass(frozen=True)
class RetrainOptions(RetrainingRun):
    """Options of SGD from the trained weights. The paper says "15 epochs" and no more; the rest is our choice.

    epochs: passes over L and the candidate. minibatch: points in a step. lr: the learning rate, constant. momentum: of
    SGD. The loss is that of ``ft.fit``: L2 averaged over points and classes, or CE.
    """

    epochs: int = 15
    minibatch: int = 32
    lr: float = 0.1
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(epochs=self.epochs, minibatch=self.minibatch)
        check_rates(self.lr, self.momentum)

    def steps(self, request: Request) -> tuple[SGDSteps, ...]:
        device = next(request.net.parameters()).device
        return epoch_batches(request.state.L, self.epochs, self.minibatch, request.generator, device)


# --- retraining to the end: Fig. 1a's "Naive", and EER as it was first meant ---


@register("naive", needs="classes", select="own", options=RetrainOptions, study=StudyHints(small={"epochs": 1}))
def naive(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """Σ_i ‖f(x_i) − f⁺(x_i)‖ with the likeliest label y′ = argmax f(x′) (Eq. 13), f⁺ trained by SGD on L ∪ {(x′, y′)}.

    Mohamadi, Bae and Sutherland, NeurIPS 2022 (arXiv 2206.12569), Fig. 1a; ``RetrainOptions`` has what they do not say.
    Under cross-entropy the change is of softmax outputs, as in ``mlmoc``. BatchNorm keeps its running statistics and
    dropout is off. Every parameter that requires grad is trained, or the query's ``params``. Cost: U (epochs · L + W)
    passes.
    """
    how = RetrainOptions(**options)
    return score_most_moved(request, "naive", how.steps(request), how.lr, how.momentum, how)


@register("eer_retrain", needs="classes", select="own", options=RetrainOptions, study=StudyHints(small={"epochs": 1}))
def eer_retrain(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """−Σ_y p(y | x′) Σ_i H(p⁺_i): minus the entropy expected to be left (Eq. 2), f⁺ trained by SGD on L ∪ {(x′, y)}.

    Roy and McCallum, ICML 2001, as in Eq. 2 of arXiv 2206.12569. Every hypothetical label starts from the trained
    weights; the released code continues from those of the label before. Labels of zero probability are skipped.
    Options, returns and errors are those of ``naive``; the cost is up to C times as high.
    """
    how = RetrainOptions(**options)
    p_UC = probabilities(request.state.pool_net, request.loss)
    jobs_n2 = p_UC.nonzero()
    steps = how.steps(request)

    def left(f_uwC: Tensor, at: slice) -> Tensor:
        return torch.special.entr(probabilities(f_uwC, request.loss)).sum((1, 2))

    left_n = scores_by_retraining(request, "eer_retrain", jobs_n2, steps, how.lr, how.momentum, left, how)
    expected_U = torch.zeros_like(p_UC[:, 0]).index_add_(0, jobs_n2[:, 0], p_UC[jobs_n2[:, 0], jobs_n2[:, 1]] * left_n)
    return highest_scores(-expected_U, request.batch_size, request.generator), -expected_U


# --- one step of SGD on the candidate alone: Fig. 1b's "NN 1-step" ---
#
# To first order, with the full kernel Θ_ij (C, C) and −∂ℓ/∂f_j = 2(y′ − f_j)/C for L2, y′ − softmax f_j for CE,
#
#     f⁺_i − f_i = η Θ_ij (−∂ℓ/∂f_j) + O(η²)
#
# so L does not matter. Where the linearised look-ahead has S_ij / u_j, what L leaves unexplained, this has Θ_ij. To
# that order η scales all scores alike. The score here is of the real f⁺, after the real step.


@dataclass(frozen=True)
class OneStepOptions(RetrainingRun):
    """lr: η, the size of the step. The default is the learning rate of ``naive``."""

    lr: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rates(self.lr)


@register("onestep", needs="classes", select="own", options=OneStepOptions)
def onestep(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """Σ_i ‖f(x_i; θ) − f(x_i; θ − η ∇ℓ(x′, y′))‖ with the likeliest label y′ = argmax f(x′) (Eq. 13).

    Käding, Rodner, Freytag and Denzler, Active and Continuous Exploration with Deep Neural Networks and Expected Model
    Output Changes, 2016; they take the expectation over labels (Eq. 3), the paper's Fig. 1b the likeliest one. Options:
    fields of ``OneStepOptions`` (lr, chunk_size, resume). Cost: U backward and U·W forward passes.
    """
    how = OneStepOptions(**options)
    alone = SGDSteps(torch.empty(0, dtype=torch.int64, device=request.state.net.device), 1)
    return score_most_moved(request, "onestep", (alone,), how.lr, 0.0, how)


# --- the length of that step, in expectation over labels ---


@register("egl", needs="classes", select="own")
def egl(request: Request) -> tuple[Tensor, Tensor]:
    """Expected gradient length: Σ_y p_j(y) ‖∂ℓ(f_j, y)/∂θ‖, exact; the highest are picked.

    ∂ℓ/∂θ = Σ_c q_c ∇f_c with q = f − y (½ squared loss) or p − y (cross-entropy). So its squared length is qᵀ Θ_jj q,
    Θ_jj the C × C block that the rules of the tangent engine give: the gradients themselves are never formed, and no
    label needs a pass of its own. Cost: UPC.
    """
    frozen = freeze(request.frozen, output="full", params=request.params)
    check_inputs(request.x_U, "x_U", frozen.device)
    step, parts = max(1, GRADIENT_BLOCK // request.C**2), []
    for start in range(0, request.U, step):
        x_u = take_points(request.x_U, slice(start, start + step))
        own = gram(GramJob(frozen, {"U": x_u}, diagonals=["U"], budget=request.budget, classes=request.C))
        parts.append(expected_lengths(own.diagonals["U"], own.outputs["U"], request.loss))
        request.progress(min(start + step, request.U), request.U)
    scores_U = torch.cat(parts)
    return highest_scores(scores_U, request.batch_size, request.generator), scores_U


def expected_lengths(theta_uCC: Tensor, f_uC: Tensor, loss: str) -> Tensor:
    """(u,): Σ_y p(y) √(q_yᵀ Θ q_y). With q_y = g − e_y it is gᵀΘg − 2 (Θg)_y + Θ_yy: one product for all labels."""
    p_uC = probabilities(f_uC, loss)
    g_uC = f_uC if LOSSES[loss].quadratic else p_uC
    step_uC = torch.einsum("ucd,ud->uc", theta_uCC, g_uC)
    whole_u1 = (step_uC * g_uC).sum(1, keepdim=True)
    square_uC = whole_u1 - 2 * step_uC + theta_uCC.diagonal(dim1=1, dim2=2)
    return (p_uC * square_uC.clamp_min(0).sqrt()).sum(1)


# --- from a request to scores ---


def score_most_moved(
    request: Request, name: str, steps: tuple[SGDSteps, ...], lr: float, momentum: float, run: RetrainingRun
) -> tuple[Tensor, Tensor]:
    """The batch of largest Σ_i ‖f⁺_i − f_i‖, every candidate retrained with its likeliest label."""
    f_WC, label_U = request.state.net, pseudo_labels(request.state).argmax(1)
    jobs_U2 = torch.stack([torch.arange(request.U, device=label_U.device), label_U], 1)
    scores_U = scores_by_retraining(
        request, name, jobs_U2, steps, lr, momentum, distance_moved(f_WC, request.loss), run
    )
    return highest_scores(scores_U, request.batch_size, request.generator), scores_U


def distance_moved(f_WC: Tensor, loss: str) -> MeasureOutputs:
    """Σ_i ‖f⁺_i − f_i‖, of softmax outputs under cross-entropy."""

    def seen(f: Tensor) -> Tensor:
        return LOSSES[loss].responses(f)

    q_WC = seen(f_WC)
    return lambda f_uwC, at: (seen(f_uwC) - q_WC[at]).norm(dim=2).sum(1)


def scores_by_retraining(
    request: Request,
    name: str,
    jobs_n2: Tensor,
    steps: tuple[SGDSteps, ...],
    lr: float,
    momentum: float,
    measure: MeasureOutputs,
    run: RetrainingRun,
) -> Tensor:
    """Retrain on every job (candidate, class); Σ of ``measure`` over the watched points, (n,) float64.

    The query's ``params`` are trained. ``progress`` is called with (retrainings done, all of them).
    """
    state, frozen, x_W = request.state, freeze(request.frozen, params=request.params), request.x_W
    x_L = request.x_L if state.L else None
    eye_CC = torch.eye(state.C, dtype=frozen.dtype, device=frozen.device)
    y_LC = state.targets(request.y_L).to(eye_CC) if x_L is not None else eye_CC[:0]
    how = Retraining(frozen, x_L, y_LC, steps, request.loss, lr, momentum)
    journal: Journal | None = None
    if run.resume is not None:
        settings = {
            "strategy": name,
            "loss": request.loss,
            "lr": lr,
            "momentum": momentum,
            "params": sorted(frozen.params),
        }
        order = [(f"step {s.times}", s.at_L) for s in steps]
        weights = [*frozen.net.named_parameters(), *frozen.net.named_buffers()]
        given = [("x_L", x_L), ("y_L", y_LC), ("x_U", request.x_U), ("watch", x_W), ("jobs", jobs_n2)]
        journal = open_journal(run.resume, name, fingerprint(settings, [*weights, *given, *order]))
    jobs = [(j, c) for j, c in jobs_n2.tolist()]
    found = dict(journal.done) if journal else {}
    left = [job for job in jobs if job not in found]
    if left:
        how, chunk = choose_chunk_size(
            how, request.x_U, eye_CC[0], x_W, measure, len(jobs), request.budget, run.chunk_size
        )
        for start in range(0, len(left), chunk):
            part = left[start : start + chunk]
            at, classes = torch.tensor(part, device=frozen.device).T
            values = how.values(take_points(request.x_U, at), eye_CC[classes], x_W, measure).tolist()
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
