"""Labels under cross-entropy: α = y − softmax(m + S α), by damped Newton.

z = m + Sα minimises the convex  Σ CE(z, y) + ½ (z − m)ᵀ S⁻¹ (z − m).  Gradient descent from the trained network tends
to it if the weights stay near their values; it is the mode of a Gaussian process (Laplace). It replaces Eq. 12.
With p = softmax(z), Q = diag p − ppᵀ and r = α − (y − p), a Newton step is  α ← α − (I + QS)⁻¹ r.  A full step
explodes on improbable labels (4130 logits where the answer is 11.5), so it is halved until the objective falls.

Shapes are (n, k, C): n problems at once, each of k labels that are solved together.
"""

from collections.abc import Callable

import torch
from torch import Tensor

NEWTON_TOLERANCE = 1e-11
NEWTON_STEPS, NEWTON_HALVINGS = 200, 60

ApplyKernel = Callable[[Tensor, Tensor], Tensor]  # (α, rows) -> S α of those problems
NewtonStep = Callable[[Tensor, Tensor, Tensor], Tensor]  # (p, r, rows) -> (I + QS)⁻¹ r


def one_label(m_uC: Tensor, S_uBB: Tensor, y_uC: Tensor) -> Tensor:
    """α (u, C) of each candidate by itself; a step costs O(C) for B = 1."""

    def apply(a: Tensor, at: Tensor) -> Tensor:
        return S_uBB[at] * a if S_uBB.shape[1] == 1 else (S_uBB[at] @ a.mT).mT

    def step(p: Tensor, r: Tensor, at: Tensor) -> Tensor:
        if S_uBB.shape[1] == 1:
            return _sherman_morrison(S_uBB[at].clamp_min(0), p, r)
        return torch.linalg.solve(_identity(p) + curvature(p[:, 0]) @ S_uBB[at], r.mT).mT

    return damped_newton(m_uC[:, None], y_uC[:, None], apply, step)[:, 0]


def many_labels(m_KC: Tensor, S_KK: Tensor, y_KC: Tensor) -> Tensor:
    """α (k, C) of k labels, solved together, so that their order does not matter. S_KK is (k·B, k·B)."""
    k, C = m_KC.shape
    full = S_KK.shape[0] > k

    def apply(a: Tensor, at: Tensor) -> Tensor:
        return (S_KK @ a.reshape(1, k * C, 1)).reshape(1, k, C) if full else S_KK @ a

    def step(p: Tensor, r: Tensor, at: Tensor) -> Tensor:
        if not full:
            return _by_class(S_KK, p[0], r[0])[None]
        Q_KK = torch.block_diag(*curvature(p[0]))
        return torch.linalg.solve(_identity(S_KK) + Q_KK @ S_KK, r.reshape(-1)).reshape(1, k, C)

    return damped_newton(m_KC[None], y_KC[None], apply, step)[0]


def curvature(p_nC: Tensor) -> Tensor:
    """Q = diag p − ppᵀ, (n, C, C)."""
    return torch.diag_embed(p_nC) - p_nC[:, :, None] * p_nC[:, None]


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def _sherman_morrison(s: Tensor, p: Tensor, r: Tensor) -> Tensor:
    """(I + s(diag p − ppᵀ))⁻¹ r; 1 − s Σ p²/(1 + sp) is written as Σ p/(1 + sp), which cannot cancel."""
    d = 1 + s * p
    q = p / d
    return r / d + s * q * ((q * r).sum(-1, keepdim=True) / q.sum(-1, keepdim=True))


def _by_class(S_KK: Tensor, p_KC: Tensor, r_KC: Tensor) -> Tensor:
    """(I + QS)⁻¹ r with S the same for each class: C systems of size k, not one of size kC.

    (I + QS)⁻¹ = I − (S + Q⁻¹)⁻¹ S. With D_c = diag p_·c and E_c = (S + D_c⁻¹)⁻¹, Woodbury on Q = D − ΠΠᵀ gives
    [(S + Q⁻¹)⁻¹ b]_c = E_c (b_c − (Σ E_c)⁻¹ Σ E_c b_c)  (Rasmussen and Williams, Alg. 3.3).
    """
    root = p_KC.T.sqrt()[:, :, None]  # (C, k, 1)
    chol = torch.linalg.cholesky(_identity(S_KK) + root * S_KK * root.mT)
    E = root * torch.cholesky_solve(torch.diag_embed(root[..., 0]), chol)
    b = (S_KK @ r_KC).T[:, :, None]
    Eb = E @ b
    shared = torch.linalg.solve(E.sum(0), Eb.sum(0))
    return r_KC - (Eb - E @ shared)[..., 0].T


def _objective(m: Tensor, y: Tensor, alpha: Tensor, S_alpha: Tensor) -> Tensor:
    z = m + S_alpha
    return (torch.logsumexp(z, -1) - (y * z).sum(-1) + 0.5 * (alpha * S_alpha).sum(-1)).sum(-1)


def damped_newton(m: Tensor, y: Tensor, apply: ApplyKernel, step: NewtonStep) -> Tensor:
    """α (n, k, C). Problems that are solved are not computed further."""
    alpha = torch.zeros_like(m)
    at = torch.arange(len(m), device=m.device)
    for _ in range(NEWTON_STEPS):
        a, m_at, y_at = alpha[at], m[at], y[at]
        Sa = apply(a, at)
        p = torch.softmax(m_at + Sa, -1)
        r = a - (y_at - p)
        # Rounding leaves an r of about the size of Sα times ε.
        going = r.abs().amax((1, 2)) > NEWTON_TOLERANCE * (1 + Sa.abs().amax((1, 2)))
        if not going.any():
            return alpha
        at, a, m_at, y_at, Sa, p, r = (t[going] for t in (at, a, m_at, y_at, Sa, p, r))
        d = -step(p, r, at)
        Sd = apply(d, at)
        now, slope = _objective(m_at, y_at, a, Sa), (r * Sd).sum((1, 2))
        t = torch.ones_like(now)[:, None, None]
        for _ in range(NEWTON_HALVINGS):
            then = _objective(m_at, y_at, a + t * d, Sa + t * Sd)
            high = then > now + 1e-4 * t[:, 0, 0] * slope + 1e-13 * (1 + now.abs())
            if not high.any():
                break
            t[high] /= 2
        alpha[at] = a + t * d
    raise RuntimeError(
        f"the cross-entropy solve left {len(at)} of {len(m)} problems unsolved after {NEWTON_STEPS} steps; "
        "the kernel may be very large: try a smaller theta_scale"
    )
