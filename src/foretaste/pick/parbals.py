"""ParBaLS: batches by EPIG, the labels of the picks so far sampled (Hu and Mussmann 2025).

The model is a Bayesian logistic regression on features, as the authors have it: f = Φ w, w ~ N(0, σ²). A draw of the
posterior is a point of a Gaussian around the best w, with the curvature of each class by itself (Laplace); the authors
draw by NUTS, which takes minutes a fit. The batch is grown one by one. In each of K universes the picks so far have the
labels that one draw of the posterior gives them, and the model is fitted anew with these.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from foretaste.acquire import StudyHints, register
from foretaste.errors import real_number, whole_number
from foretaste.pick.request import Request
from foretaste.pick.select import highest_scores
from foretaste.pick.space import SpaceOptions, VectorSpace, find_space

FIT_ROUNDS = 1000
FIT_TOLERANCE = 1e-6  # the largest step of a weight, as a share of the largest weight
JOINT_NUMBERS = 2**22  # of joint probabilities at a time: 32 MB


@dataclass(frozen=True)
class ParBaLSOptions(SpaceOptions):
    """The options of ``parbals``, beside those of a space ("tangent" is not one of them).

    universes: K, in how many ways labels of the picks are sampled; the authors have 10.
    draws: T, of the posterior in each universe.
    targets: random points of the pool, about whose labels a label is to tell.
    candidates: random points of the pool that may be picked, at least as many as picks.
    prior: σ; features are centred and have a mean squared length of 1.
    """

    universes: int = 10
    draws: int = 50
    targets: int = 100
    candidates: int = 500
    prior: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("universes", 1), ("draws", 2), ("targets", 1), ("candidates", 1)):
            whole_number(f"{name} of strategy 'parbals'", getattr(self, name), least)
        real_number("prior of strategy 'parbals'", self.prior, 0, above=True)
        if self.space == "tangent":
            raise ValueError('space="tangent" of strategy \'parbals\' has no features; use "inputs" or "last"')
        if self.universes > self.draws:
            raise ValueError(f"universes={self.universes} of strategy 'parbals' is more than draws={self.draws}")


SMALL = {"universes": 2, "draws": 10, "targets": 20, "candidates": 100}


@register("parbals", needs=("classes", "labels"), select="own", options=ParBaLSOptions, study=StudyHints(small=SMALL))
def parbals(request: Request, **options: object) -> Tensor:
    """ParBaLS-EPIG (Hu and Mussmann 2025): the highest EPIG summed over K universes, again for each pick.

    EPIG of a candidate is the mean information that its label has about the label of a target, of the joint
    probabilities over T draws. Cost, with u candidates and t targets: bK fits of (L + b)CD and CD³, and bK·u·t·C²T.
    """
    o = ParBaLSOptions(**options)  # type: ignore[arg-type]
    space = find_space(request, o.space, o.layer)
    assert isinstance(space, VectorSpace)
    x_ND = space.x_ND / max(space.spread, 1e-30) ** 0.5
    x_ND = torch.cat([x_ND, torch.ones_like(x_ND[:, :1])], 1)
    g, L, U = request.generator, space.L, space.U
    some = torch.randperm(U, generator=g)[: max(o.candidates, request.batch_size)].to(x_ND.device)
    x_u, x_t = x_ND[L + some], x_ND[L + torch.randperm(U, generator=g)[: o.targets].to(x_ND.device)]
    y_L = request.classes_L.to(x_ND.device)
    posterior = fit_logistic(x_ND[:L], y_L[None], request.C, o.prior)
    scores_u, p_TuC = posterior.information(o.draws, g, x_u, x_t)
    label_Ku = p_TuC[torch.randperm(o.draws, generator=g)[: o.universes].to(x_ND.device)].argmax(2)
    picks: list[int] = []
    while True:
        scores_u[picks] = -torch.inf
        picks.append(int(highest_scores(scores_u, 1, g)))
        request.progress(len(picks), request.batch_size)
        if len(picks) == request.batch_size:
            return some.cpu()[picks]
        y_Kn = torch.cat([y_L.expand(o.universes, L), label_Ku[:, picks]], 1)
        start_KCD = posterior.w_KCD.expand(o.universes, -1, -1)
        posterior = fit_logistic(torch.cat([x_ND[:L], x_u[picks]]), y_Kn, request.C, o.prior, start_KCD)
        scores_u, _ = posterior.information(o.draws, g, x_u, x_t)


@dataclass(frozen=True, eq=False)
class LogisticPosterior:
    """Of K sets of labels: the best weights, and a factor R of each class's curvature around them, R Rᵀ, triangular."""

    w_KCD: Tensor
    root_KCDD: Tensor

    def information(
        self, T: int, generator: torch.Generator, x_u: Tensor, x_t: Tensor
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """(u,): EPIG of each candidate, summed over the K. And (T, u, C): what the draws of the last one say."""
        total_u = x_u.new_zeros(len(x_u))
        for w_CD, root_CDD in zip(self.w_KCD, self.root_KCDD):
            eps_TCD = torch.randn((T, *w_CD.shape), generator=generator, dtype=torch.float64).to(w_CD)
            off_CDT = torch.linalg.solve_triangular(root_CDD.mT, eps_TCD.permute(1, 2, 0), upper=True)
            w_TDC = (w_CD + off_CDT.permute(2, 0, 1)).mT
            p_TuC = (x_u @ w_TDC).softmax(2)
            total_u += mean_information(p_TuC, (x_t @ w_TDC).softmax(2))
        return total_u, p_TuC


def fit_logistic(
    x_nD: Tensor, y_Kn: Tensor, C: int, prior: float, start_KCD: Tensor | None = None
) -> LogisticPosterior:  # fmt: skip
    """The weights of the highest posterior, and its curvature there, for K sets of labels of the same points.

    A step is Newton's with half of ΦᵀΦ in the place of the curvature, which is never less (Böhning 1992), so a matrix
    is factored once for all; the steps are accelerated as Nesterov does, anew where they turn back.
    """
    D = x_nD.shape[1]
    flat_DD = torch.eye(D, dtype=x_nD.dtype, device=x_nD.device) / prior**2
    step_DD = torch.cholesky_inverse(torch.linalg.cholesky(0.5 * x_nD.T @ x_nD + flat_DD))
    w = x_nD.new_zeros(len(y_Kn), C, D) if start_KCD is None else start_KCD
    y_KCn = torch.nn.functional.one_hot(y_Kn, C).mT.to(x_nD)
    before, momentum = w, 1.0
    for _ in range(FIT_ROUNDS):
        after = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        at = w + (momentum - 1) / after * (w - before)
        step = ((y_KCn - (at @ x_nD.T).softmax(1)) @ x_nD - at / prior**2) @ step_DD
        turned = float((step * (w - before)).sum()) < 0
        before, w, momentum = w, at + step, 1.0 if turned else after
        if float(step.abs().max()) < FIT_TOLERANCE * float(w.abs().max()):
            break
    p_KCn = (w @ x_nD.T).softmax(1)
    weight_KCn1 = (p_KCn * (1 - p_KCn))[..., None]
    return LogisticPosterior(w, torch.linalg.cholesky(x_nD.T @ (weight_KCn1 * x_nD) + flat_DD))


def mean_information(p_TuC: Tensor, p_TtC: Tensor) -> Tensor:
    """(u,): the mean over targets of the mutual information of two labels, in nats, T draws being equally likely."""
    T, t, C = p_TtC.shape
    own_u, own_t = (torch.special.entr(p.mean(0)).sum(1) for p in (p_TuC, p_TtC))
    joint = []
    right_TM = p_TtC.flatten(1)
    for part in p_TuC.split(max(1, JOINT_NUMBERS // (C * C * t)), 1):
        joint.append(torch.special.entr(part.flatten(1).T @ right_TM / T).view(part.shape[1], -1).sum(1))
    return own_u + own_t.mean() - torch.cat(joint) / t
