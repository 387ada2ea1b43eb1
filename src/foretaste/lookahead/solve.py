"""Solving with A = Θ + λI in float64: Cholesky, the λ of the misfit, leave-one-out, and what is only rounding."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from foretaste.tangent import DEFAULT_RIDGE


def cholesky(A: Tensor, ridge: float, what: str = "L") -> Tensor:
    """The lower factor of A = Θ + λI; raises with the least eigenvalue, and a λ that would hold."""
    chol, info = torch.linalg.cholesky_ex(A)
    if not info.any():
        return chol
    if not torch.isfinite(A).all():
        raise ValueError(f"Θ_{what}{what} has NaN or infinite values; look at the network's outputs and gradients")
    eigenvalues = torch.linalg.eigvalsh(A)
    least, most = float(eigenvalues[0]), float(eigenvalues[-1])
    need = max(1.1 * (ridge - least), 1e-13 * len(A) * most)
    own = DEFAULT_RIDGE * float(A.diagonal().mean())
    hint = f"try ridge > {need:.1e}"
    # With λ = 0 mostly rounding has failed, and the least λ against that would hold nothing steady.
    if ridge == 0 and own > need:
        hint = f"some points repeat others; try ridge={own:.1e}, 1e-6 of the mean diagonal, or None for the default"
    elif ridge == 0 and own <= 0:
        hint = "nothing is left of it; try ridge=None, which is 1e-6 of the mean diagonal of Θ_LL"
    raise ValueError(
        f"Cholesky of Θ_{what}{what} + λI failed: {what}={len(A)}, λ={ridge:.1e}, least eigenvalue {least:.1e}; {hint}"
    )


def ridge_factor(theta_NN: Tensor, ridge: float | Tensor, what: str = "L") -> Tensor:
    """The lower factor of Θ + λI, as ``cholesky`` gives it; ``ridge`` may be one λ for each point. Θ is not changed."""
    A = theta_NN.clone()
    A.diagonal().add_(ridge)
    return cholesky(A, float(ridge.min()) if isinstance(ridge, Tensor) else ridge, what)


def leave_one_out(chol: Tensor, e_NC: Tensor) -> tuple[Tensor, Tensor]:
    """α = A⁻¹e, (N, C), and d = diag A⁻¹, (N, 1), where ``chol`` is the lower factor of A.

    Predicted from all others, label n has the residual α_n/d_n and the variance 1/d_n.
    """
    inverse = torch.cholesky_inverse(chol)
    return inverse @ e_NC, inverse.diagonal()[:, None]


# --- the λ of the misfit ---
#
# A network that does not fit its labels (trained briefly, or on noisy labels) will not fit the next ones either. With a
# tiny λ the linearised network would fit them all, and its mean and variance would be those of another model. Kernel
# regression from 1/C leaves a residual λ(Θ_LL + λI)⁻¹(Y − 1/C), whose mean square grows with λ from 0 to that of
# Y − 1/C. λ is chosen so that it leaves what the network left.

MISFIT_TOLERANCE = 1e-4  # of the mean squared residual
MISFIT_STEPS = 60
MOST_MISFIT = 0.98  # of the labels' own mean square: a network that has learned nothing would have an infinite λ


def misfit_ridge(theta_LL: Tensor, y_LC: Tensor, residual: float, least: float) -> float:
    """The λ ≥ ``least`` with which kernel regression towards ``y_LC`` leaves the mean squared ``residual`` on L.

    With a Cholesky factor at each step. Site layout, as ``to_sites`` gives it.
    """
    return misfit_by(lambda ridge: torch.cholesky_solve(y_LC, ridge_factor(theta_LL, ridge)), y_LC, residual, least)


def misfit_by(solve: Callable[[float], Tensor], y_LC: Tensor, residual: float, least: float) -> float:
    """The same, where ``solve`` gives (Θ_LL + λI)⁻¹ y for a λ.

    Regula falsi on log λ (Illinois: a bound that stays counts half), about ten steps.
    """
    own = float(y_LC.square().mean())
    target = min(residual, MOST_MISFIT * own)

    def excess(log_ridge: float) -> float:
        ridge = math.exp(log_ridge)
        left = ridge**2 * float(solve(ridge).square().mean())
        return math.log(left / target)

    if not target > 0 or not least > 0:
        return least
    low, high = math.log(least), math.log(least / DEFAULT_RIDGE)
    below, above = excess(low), excess(high)
    if below >= 0:
        return least
    while above < 0:
        low, below, high = high, above, high + math.log(100)
        above = excess(high)
    middle = high
    for _ in range(MISFIT_STEPS):
        middle = low - below * (high - low) / (above - below)
        if abs(here := excess(middle)) < MISFIT_TOLERANCE:
            break
        if here < 0:
            low, below, above = middle, here, above / 2
        else:
            high, above, below = middle, here, below / 2
    return math.exp(middle)


# --- directions in which only rounding is left ---
#
# Near-copies of a point with a large gradient: S_jj subtracts nearly equal numbers, and S_jj + λ may come out negative,
# though nothing is wrong. In truth such a direction is known already, and a label there changes nothing. With λ and
# exact copies that is the limit too. So the directions in which only rounding is left are left out.
#
# How far S_jj falls below zero somewhere, as a share of Θ_jj, shows how large rounding is everywhere. So where nothing
# is negative, nothing is left out.

ROUNDING_SHARE = 1e-4  # of Θ_jj: if S_jj falls further below zero before any label is kept, Θ itself is wrong
UNFELT = 1e4  # times a variance: noise that no score feels


def rounding_floor(var_UBB: Tensor, prior_UBB: Tensor) -> Tensor:
    """(U,): what S_jj has to exceed to be more than rounding. Zero, or less, if no S_jj is negative."""
    var_U, prior_U = (t.diagonal(dim1=1, dim2=2).amin(1) for t in (var_UBB, prior_UBB))
    share = (-var_U / prior_U.clamp_min(torch.finfo(prior_U.dtype).tiny)).max()
    return 2 * share * prior_U


def known_directions(A: Tensor, noise: float, floor: float, rounding: float) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues and eigenvectors of A = S + noise·I, and which of them hold nothing but rounding.

    floor: eigenvalues of S up to here are rounding. rounding: raises if one is further below zero than this.
    """
    e, V = torch.linalg.eigh(A)
    below = noise - float(e[0])
    if below > rounding:
        raise ValueError(
            f"S + λ is not positive: its least eigenvalue is {float(e[0]):.1e} with λ={noise:.1e}; what is labelled "
            f"leaves no variance at this precision; try ridge > {2 * below:.1e}"
        )
    return e, V, e <= noise + max(below, floor)


def inverse_root(A: Tensor, noise: float, floor: float, rounding: float) -> Tensor:
    """M with MᵀM = A⁻¹, where ``known_directions`` are left out."""
    e, V, known = known_directions(A, noise, floor, rounding)
    return torch.where(known, 0.0, e.clamp_min(torch.finfo(e.dtype).tiny).rsqrt())[:, None] * V.T


def without_rounding(A: Tensor, noise: float, floor: float, rounding: float) -> Tensor:
    """A, with so much noise in the ``known_directions`` that its inverse ignores them."""
    e, V, known = known_directions(A, noise, floor, rounding)
    return (V * torch.where(known, UNFELT * max(float(e[-1]), floor / ROUNDING_SHARE), e)) @ V.T
