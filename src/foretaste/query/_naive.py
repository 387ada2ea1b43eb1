"""Look-ahead by retraining for real, a network for each candidate: Fig. 1a's "Naive", and EER as it was first meant."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import probabilities, pseudo_labels, register
from foretaste.query._lookaheads import Running, rates, retrained, whole
from foretaste.query._pick import highest
from foretaste.query._request import Request
from foretaste.query._retraining import Measure, Step, epochs_of


@dataclass(frozen=True)
class Retrain(Running):
    """SGD from the trained weights: ``epochs`` over L and the candidate at a constant learning rate ``lr``.

    minibatch: points in a step. The loss is that of ``ft.fit``: L2 averaged over points and classes, or CE. The paper
    says 15 epochs and no more; the rest is ours.
    """

    epochs: int = 15
    minibatch: int = 32
    lr: float = 0.1
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(epochs=self.epochs, minibatch=self.minibatch)
        rates(self.lr, self.momentum)

    def steps(self, request: Request) -> tuple[Step, ...]:
        device = next(request.net.parameters()).device
        return epochs_of(request.state.L, self.epochs, self.minibatch, request.generator, device)


@register("naive", needs="classes", picks=True, options=Retrain)
def naive(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """Σ_i ‖f(x_i) − f⁺(x_i)‖ with the likeliest label y′ = argmax f(x′) (Eq. 13), f⁺ trained by SGD on L ∪ {(x′, y′)}.

    Mohamadi, Bae and Sutherland, NeurIPS 2022 (arXiv 2206.12569), Fig. 1a. Differs from them where they are silent: see
    ``Retrain``. Under cross-entropy the change is of softmax outputs, as in mlmoc. BatchNorm keeps its running
    statistics and dropout is off. Every parameter that requires grad is trained, or the query's ``params``. Costs
    U (E L + W) passes.
    """
    how = Retrain(**options)
    return most_moved(request, "naive", how.steps(request), how.lr, how.momentum, how)


@register("eer_retrain", needs="classes", picks=True, options=Retrain)
def eer_retrain(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """−Σ_y p(y | x′) Σ_i H(p⁺_i): minus the entropy expected to be left (Eq. 2), f⁺ trained by SGD on L ∪ {(x′, y)}.

    Roy and McCallum, ICML 2001, as in Eq. 2 of arXiv 2206.12569. Every hypothetical label starts from the trained
    weights; the released code goes on from those of the label before. Labels of no probability are not trained for.
    Retraining as in naive, up to C times its cost.
    """
    how = Retrain(**options)
    p_UC = probabilities(request.state.pool_net, request.loss)
    jobs_n2 = p_UC.nonzero()
    steps = how.steps(request)

    def left(f_uwC: Tensor, at: slice) -> Tensor:
        return torch.special.entr(probabilities(f_uwC, request.loss)).sum((1, 2))

    left_n = retrained(request, "eer_retrain", jobs_n2, steps, how.lr, how.momentum, left, how)
    expected_U = torch.zeros_like(p_UC[:, 0]).index_add_(0, jobs_n2[:, 0], p_UC[jobs_n2[:, 0], jobs_n2[:, 1]] * left_n)
    return highest(-expected_U, request.batch_size, request.generator), -expected_U


def most_moved(
    request: Request, name: str, steps: tuple[Step, ...], lr: float, momentum: float, run: Running
) -> tuple[Tensor, Tensor]:
    """The largest Σ_i ‖f⁺_i − f_i‖, every candidate retrained on with its likeliest label."""
    f_WC, label_U = request.state.net, pseudo_labels(request.state).argmax(1)
    jobs_U2 = torch.stack([torch.arange(request.U, device=label_U.device), label_U], 1)
    scores_U = retrained(request, name, jobs_U2, steps, lr, momentum, moved(f_WC, request.loss), run)
    return highest(scores_U, request.batch_size, request.generator), scores_U


def moved(f_WC: Tensor, loss: str) -> Measure:
    """Σ_i ‖f⁺_i − f_i‖, of softmax outputs under cross-entropy."""

    def seen(f: Tensor) -> Tensor:
        return torch.softmax(f, -1) if loss == "ce" else f

    q_WC = seen(f_WC)
    return lambda f_uwC, at: (seen(f_uwC) - q_WC[at]).norm(dim=2).sum(1)
