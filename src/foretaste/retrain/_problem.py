"""What every state of one linearisation shares: f on L, W and U, the labels, λ, and where Θ comes from."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from foretaste.retrain._labels import Labels
from foretaste.retrain._theta import Kernels, Theta, sites


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    labels: Labels
    f_LC: Tensor
    f_WC: Tensor
    f_UC: Tensor
    y_LC: Tensor
    kernels: Kernels
    B: int
    same: bool  # W = U
    at_W: dict[int, int]  # candidate -> watched point, where that is known
    ridge: float | None
    loss: str
    time: float

    @property
    def L(self) -> int:
        return self.f_LC.shape[0]

    @property
    def free(self) -> bool:
        """Whether the mean before any kept label is f itself, which costs no kernel."""
        return self.loss == "ce" or self.L == 0

    @cached_property
    def label_noise_U(self) -> Tensor:
        """Cross-entropy: 1 / (p(1 − p)), p the largest probability of the candidate (Laplace).

        Of f before any label is kept: with the noise of a label fixed, S does not depend on the order of labels.
        """
        return label_noise(self.f_UC)

    @property
    def residual_L(self) -> float:
        """Mean squared residual of f on L (cross-entropy: of its softmax); NaN with an empty L."""
        f_LC = torch.softmax(self.f_LC, 1) if self.loss == "ce" else self.f_LC
        return float((f_LC - self.y_LC).square().mean())

    @property
    def centred_LC(self) -> Tensor:
        return self.y_LC - (self.y_LC.mean(0) if self.labels.regression else 1 / self.labels.C)

    def resolve_ridge(self, theta: Theta) -> float:
        """λ as given, or 1e-6 of the mean diagonal of Θ_LL (of the candidates', if L is empty)."""
        if self.ridge is not None:
            return self.ridge
        diag = theta.LL.diagonal() if self.L else theta.diag_U.diagonal(dim1=1, dim2=2)
        return 1e-6 * float(diag.mean())

    def system(self, theta: Theta, ridge: float) -> Tensor:
        """A = Θ_LL + λI. Cross-entropy: + diag 1/(p(1 − p)), the curvature that the fitted labels have left.

        A label fitted to p = 0.99 resists little: with λ alone L would be held as rigidly as under L2. Correlation of
        predicted with retrained logit changes (digits, L = 40, two seeds, losses 0.1 to 0.01 of MLPs of widths 512 to
        2048): 0.71 to 0.80 with the noise and output="sum"; 0.41 to 0.60 with λ alone, whichever the output. Real
        changes are 0.95 to 1.2 times those predicted, and 1.7 to 5 times with λ alone.
        """
        A = theta.LL.clone()
        A.diagonal().add_(ridge)
        if self.loss == "ce":
            A.diagonal().add_(label_noise(self.f_LC).repeat_interleave(self.B))
        return A

    def scale(self, chol: Tensor) -> float:
        """s²: ten times the labels' leave-one-out variance, mean α²/d (docs/mathematics.md, The scale); 1 if L = ∅.

        Cross-entropy: 1. There S is itself the prior's covariance of the logits, and ``theta_scale`` its calibration.
        """
        if self.free:
            return 1.0
        inverse = torch.cholesky_inverse(chol)
        alpha = inverse @ sites(self.centred_LC, self.B)
        return 10 * float((alpha.square() / inverse.diagonal()[:, None]).mean())


def label_noise(f_NC: Tensor) -> Tensor:
    """1 / (p(1 − p)), p the largest probability."""
    p_N = torch.softmax(f_NC, 1).amax(1)
    return 1 / (p_N * (1 - p_N)).clamp_min(1e-12)


def cholesky(A: Tensor, ridge: float, what: str = "L") -> Tensor:
    """Raises with the least eigenvalue, and a λ that would hold."""
    chol, info = torch.linalg.cholesky_ex(A)
    if not info.any():
        return chol
    if not torch.isfinite(A).all():
        raise ValueError(f"Θ_{what}{what} has NaN or infinite values; look at the network's outputs and gradients")
    eigenvalues = torch.linalg.eigvalsh(A)
    least, most = float(eigenvalues[0]), float(eigenvalues[-1])
    need = max(1.1 * (ridge - least), 1e-13 * len(A) * most)
    own = 1e-6 * float(A.diagonal().mean())
    hint = f"try ridge > {need:.1e}"
    # With λ = 0 it is mostly rounding that failed, and the least λ against that would hold nothing steady.
    if ridge == 0 and own > need:
        hint = f"some points repeat others; try ridge={own:.1e}, 1e-6 of the mean diagonal, or None for the default"
    elif ridge == 0 and own <= 0:
        hint = "nothing is left of it; try ridge=None, which is 1e-6 of the mean diagonal of Θ_LL"
    raise ValueError(
        f"Cholesky of Θ_{what}{what} + λI failed: {what}={len(A)}, λ={ridge:.1e}, least eigenvalue {least:.1e}; {hint}"
    )
