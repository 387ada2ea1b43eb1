"""Determinantal point process: the batch that is most diverse and uncertain, by its determinant."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import register
from foretaste.errors import check_known, real_number
from foretaste.losses import probabilities, shannon_entropy
from foretaste.pick.request import Request
from foretaste.pick.space import Similarity, Space, SpaceOptions, find_similarity, find_space, pool_outputs

QUALITIES = ("margin", "entropy", "uniform")


@dataclass(frozen=True)
class DPPOptions(SpaceOptions):
    """The options of ``dpp``: those of a space (default: tangents), and

    quality: q_i. "margin" is 1 − (p₁ − p₂), "entropy" that of p, "uniform" 1. None: margin for classes, else uniform.
    radius: σ of k = exp(−d²/σ²). None: √(Σ of the variances); in the tangent space, k is then the correlation.
    noise: added to the diagonal of k, so that copies of a point are nearly but not quite useless.
    """

    space: str = "tangent"
    quality: str | None = None
    radius: float | None = None
    noise: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quality is not None:
            check_known("quality of strategy 'dpp'", self.quality, QUALITIES)
        if self.radius is not None:
            real_number("radius of strategy 'dpp'", self.radius, 0, above=True)
        real_number("noise of strategy 'dpp'", self.noise, 0, above=True)


@register("dpp", select="own", options=DPPOptions)
def dpp(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """A determinantal point process (Bıyık et al. 2019): greedy MAP of det K_B with K_ij = q_i k_ij q_j, given L.

    L is in the set already: each pick has the largest q_j² d_j², d_j² the variance of k at j that L and the picks
    leave. Rows of the Cholesky factor are added one by one (Chen et al. 2018). Scores are q_j² d_j² before the first
    pick. Cost: the space, and (L + b)²U.
    """
    o = DPPOptions(**options)
    quality = o.quality
    if quality is None:
        quality = "margin" if request.C > 1 else "uniform"
    elif quality != "uniform" and request.C == 1:
        raise ValueError(
            f'quality={quality!r} of strategy \'dpp\' needs classes and this network has one output; use '
            'options={"quality": "uniform"}'
        )  # fmt: skip
    request.info["quality"] = quality
    points = find_space(request, o.space, o.layer, rows=request.L + request.batch_size)
    kernel = find_similarity(points, o.radius, request)
    log_q_U = _log_quality(request, quality)
    return _grow_determinant(points, kernel, log_q_U, o.noise, request)


def _log_quality(request: Request, quality: str) -> Tensor:
    f_UC = pool_outputs(request)
    if quality == "uniform":
        return torch.zeros_like(f_UC[:, 0])
    p_UC = probabilities(f_UC, request.loss)
    if quality == "entropy":
        return shannon_entropy(p_UC).clamp_min(1e-12).log()
    top_U2 = p_UC.topk(2, 1).values
    return (1 - (top_U2[:, 0] - top_U2[:, 1])).clamp_min(1e-12).log()


def _grow_determinant(
    points: Space, kernel: Similarity, log_q_U: Tensor, noise: float, request: Request
) -> tuple[Tensor, Tensor]:
    """Greedy MAP. With chosen points A and k_AA + noise = R Rᵀ, the rows of F = R⁻¹ k_AU give d² = k_jj − Σ F²."""
    L, U, n = points.L, points.U, request.batch_size
    own, at_L = slice(L, None), torch.arange(L, device=points.device)
    F = log_q_U.new_zeros(L + n, U)
    if L:
        k_LL = kernel(at_L, at_L) + noise * torch.eye(L, dtype=F.dtype, device=F.device)
        F[:L] = torch.linalg.solve_triangular(torch.linalg.cholesky(k_LL), kernel(at_L, own), upper=False)
    left_U = 1 + noise - F[:L].square().sum(0)
    scores_U = (2 * log_q_U).exp() * left_U.clamp_min(0)
    order_U = torch.randperm(U, generator=request.generator).to(F.device)
    open_U, picks = torch.ones(U, dtype=torch.bool, device=F.device), list[int]()
    for m in range(L, L + n):
        value_U = (2 * log_q_U + left_U.clamp_min(1e-3 * noise).log()).masked_fill(~open_U, -torch.inf)[order_U]
        j = int(order_U[(value_U == value_U.max()).nonzero()[0]])
        picks.append(j)
        open_U[j] = False
        row_U = kernel(torch.tensor([L + j], device=F.device), own)[0] - F[:m].T @ F[:m, j]
        row_U[j] += noise
        F[m] = row_U / left_U[j].clamp_min(1e-3 * noise).sqrt()
        left_U = left_U - F[m].square()
        request.progress(len(picks), n)
    return torch.tensor(picks), scores_U
