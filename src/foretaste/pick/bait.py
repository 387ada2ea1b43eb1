"""BAIT: the batch whose Fisher information serves the whole pool (Ash et al. 2021).

The last layer's log likelihood has at point x the Fisher information I(x) = V_xᵀV_x, V_x = S_x ⊗ h(x)ᵀ with h the
input of the layer. With F the mean of I(x) over L ∪ U and M = λI + (Σ_L I(x) + b Σ_B I(x)) / (L + b), a batch makes
tr(M⁻¹F) small: greedily 2b picks, then the b of them are dropped that are missed least. That a pick weighs b times as
much as a labelled point is as in the paper (the mean over L and the sum over B) and in the authors' code.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from foretaste.acquire import StudyHints, register
from foretaste.errors import did_you_mean, format_bytes, real_number
from foretaste.losses import probabilities
from foretaste.pick.badge import find_last_layer, last_layer_inputs
from foretaste.pick.request import Request
from foretaste.pick.select import highest_scores
from foretaste.tangent import resolve_budget

FISHERS = ("auto", "full", "binary")
FULL_SIZE = 6144  # C·D up to which "auto" is "full"
FISHER_CHUNK = 1024  # points at a time


@dataclass(frozen=True)
class BaitOptions:
    """The options of ``bait``.

    prior: λ as a share of the mean diagonal of F, so that the scale of features does not matter. (The authors have
        λ = 1, and 0.01 for CIFAR10.)
    fisher: "full", of all classes, a matrix of (C·D)² numbers; or "binary", of the likeliest class against the rest,
        D² numbers (Huseljic et al. 2024). "auto": full where C·D is at most 6144 and the budget allows it.
    layer: the module whose input is h, if the network does not end in an nn.Linear.
    """

    prior: float = 1.0
    fisher: str = "auto"
    layer: str | None = None

    def __post_init__(self) -> None:
        real_number("prior of strategy 'bait'", self.prior, 0, above=True)
        if self.fisher not in FISHERS:
            raise ValueError(f"fisher={self.fisher!r} of strategy 'bait'{did_you_mean(self.fisher, FISHERS, 'Known')}")
        if not isinstance(self.layer, str | None):
            raise ValueError(f"layer={self.layer!r} of strategy 'bait'; expected the name of a module, or None")


@register("bait", select="own", options=BaitOptions, study=StudyHints(small={"fisher": "binary"}))
def bait(request: Request, prior: float = 1.0, fisher: str = "auto", layer: str | None = None) -> tuple[Tensor, Tensor]:
    """BAIT (Ash et al. 2021): the batch that makes tr(M⁻¹F) smallest, forward to 2b points and back to b.

    For classes and for regression. Scores are by how much a point alone would lower the trace. Cost, with P = C·D:
    P³ + NP² and for each of 3b picks P²C + UPC. The authors compute UP²C for each pick; the picks are the same.
    """
    frozen, parts_f, parts_h = request.frozen, [], []
    name = find_last_layer(frozen, request.x_U, layer)
    for x in (request.x_L, request.x_U):
        if x is not None and (x is request.x_U or request.L):
            f_nC, h_nD = last_layer_inputs(frozen, x, name, last=layer is None)
            parts_f.append(f_nC)
            parts_h.append(h_nD)
    f_NC, h_ND = torch.cat(parts_f), torch.cat(parts_h)
    if request.C == 1:
        S_NRC = torch.ones_like(h_ND[:, :1, None])
    else:
        fisher = _resolve_fisher(fisher, request, h_ND.shape[1])
        request.info["fisher"] = fisher
        S_NRC = fisher_factors(probabilities(f_NC, request.loss), fisher)
    trace = FisherTrace(S_NRC, h_ND, request.L, request.batch_size, prior)
    scores_U, picks, total = trace.gains(), list[int](), min(request.U, 2 * request.batch_size)
    while len(picks) < total:
        gain_U = trace.gains()
        gain_U[picks] = -torch.inf
        picks.append(int(highest_scores(gain_U, 1, request.generator)))
        trace.change(picks[-1], 1.0)
        request.progress(len(picks), 2 * total - request.batch_size)
    while len(picks) > request.batch_size:
        missed = trace.losses(torch.tensor(picks, device=h_ND.device))
        trace.change(picks.pop(int(missed.argmin())), -1.0)
        request.progress(2 * total - len(picks), 2 * total - request.batch_size)
    return torch.tensor(picks), scores_U


def _resolve_fisher(fisher: str, request: Request, D: int) -> str:
    size, room = request.C * D, resolve_budget(request.budget, request.frozen.device)
    need = 40 * size**2  # M⁻¹, M⁻¹FM⁻¹ and three to work with
    if fisher == "full" and need > room:
        raise ValueError(
            f"the Fisher information of {request.C} classes and {D} features takes {format_bytes(need)} and the budget "
            f'is {format_bytes(room)}; raise budget, or use options={{"fisher": "binary"}}'
        )
    return ("full" if size <= FULL_SIZE and need <= room else "binary") if fisher == "auto" else fisher


def fisher_factors(p_NC: Tensor, fisher: str) -> Tensor:
    """(N, R, C), S_x of V_x = S_x ⊗ hᵀ: rows √p_y (e_y − p), so that V_xᵀV_x = (diag p − p pᵀ) ⊗ h hᵀ."""
    if fisher == "binary":
        top_N = p_NC.amax(1)
        return (top_N * (1 - top_N)).clamp_min_(0).sqrt()[:, None, None]
    eye_CC = torch.eye(p_NC.shape[1], dtype=p_NC.dtype, device=p_NC.device)
    return p_NC.sqrt()[:, :, None] * (eye_CC - p_NC[:, None, :])


class FisherTrace:
    """tr(M⁻¹F) as points come and go. Kept for each candidate: A = V M⁻¹ Vᵀ and T = V M⁻¹ F M⁻¹ Vᵀ, both (R, R).

    With v the rows of a point that comes (s = 1) or goes (s = −1), K = v M⁻¹, Q = v M⁻¹FM⁻¹ and E = (sI + v Kᵀ)⁻¹,
    Woodbury's identity gives M⁻¹ − KᵀEK, and from it, with w = V Kᵀ and z = V Qᵀ,

        A − w E wᵀ   and   T − w E zᵀ − z E wᵀ + w E T_j E wᵀ

    so a point that comes lowers the trace by tr(T (I + A)⁻¹), and one that goes raises it by tr(T (I − A)⁻¹).
    """

    def __init__(self, S_NRC: Tensor, h_ND: Tensor, L: int, batch_size: int, prior: float) -> None:
        N, (self.R, self.C), self.D = len(h_ND), S_NRC.shape[1:], h_ND.shape[1]
        F_PP = self._information(S_NRC, h_ND) / N
        M_PP = self._information(S_NRC[:L], h_ND[:L]) / (L + batch_size)
        scale = float(F_PP.diagonal().mean())
        M_PP.diagonal().add_(prior * scale if scale > 0 else prior)
        self.inverse_PP = torch.cholesky_inverse(torch.linalg.cholesky(M_PP))
        self.spread_PP = self.inverse_PP @ F_PP @ self.inverse_PP
        self.S_URC, self.h_UD = S_NRC[L:] * (batch_size / (L + batch_size)) ** 0.5, h_ND[L:]
        self.A_URR, self.T_URR = self._blocks(self.inverse_PP), self._blocks(self.spread_PP)
        self.eye_RR = torch.eye(self.R, dtype=h_ND.dtype, device=h_ND.device)

    def gains(self) -> Tensor:
        """(U,): by how much each candidate would lower the trace."""
        return torch.linalg.solve(self.eye_RR + self.A_URR, self.T_URR).diagonal(dim1=1, dim2=2).sum(1)

    def losses(self, at: Tensor) -> Tensor:
        """(n,): by how much the trace would rise without each of these."""
        return torch.linalg.solve(self.eye_RR - self.A_URR[at], self.T_URR[at]).diagonal(dim1=1, dim2=2).sum(1)

    def change(self, j: int, sign: float) -> None:
        """Candidate j comes (1) or goes (−1)."""
        v_RP = (self.S_URC[j][:, :, None] * self.h_UD[j]).flatten(1)
        K_RP, Q_RP = v_RP @ self.inverse_PP, v_RP @ self.spread_PP
        E_RR, T_RR = torch.linalg.inv(sign * self.eye_RR + self.A_URR[j]), self.T_URR[j].clone()
        EK_RP = E_RR @ K_RP
        self.inverse_PP -= K_RP.T @ EK_RP
        cross_PP = EK_RP.T @ (Q_RP - 0.5 * T_RR @ EK_RP)
        self.spread_PP -= cross_PP + cross_PP.T
        w_URR, z_URR = self._along(K_RP), self._along(Q_RP)
        wE_URR = w_URR @ E_RR
        self.A_URR -= wE_URR @ w_URR.mT
        cross_URR = wE_URR @ (z_URR.mT - 0.5 * T_RR @ wE_URR.mT)
        self.T_URR -= cross_URR + cross_URR.mT

    def _along(self, K_RP: Tensor) -> Tensor:
        """(U, R, R): V Kᵀ."""
        return self.S_URC @ torch.einsum("ud,rcd->ucr", self.h_UD, K_RP.view(-1, self.C, self.D))

    def _information(self, S_nRC: Tensor, h_nD: Tensor) -> Tensor:
        """(P, P): Σ VᵀV."""
        I_CDP = h_nD.new_zeros(self.C, self.D, self.C * self.D)
        for S_mRC, h_mD in zip(S_nRC.split(FISHER_CHUNK), h_nD.split(FISHER_CHUNK)):
            G_mCC = S_mRC.mT @ S_mRC
            for c in range(self.C):
                I_CDP[c] += h_mD.T @ (G_mCC[:, c, :, None] * h_mD[:, None]).flatten(1)
        return I_CDP.flatten(0, 1)

    def _blocks(self, X_PP: Tensor) -> Tensor:
        """(U, R, R): V X Vᵀ of each candidate."""
        found = []
        for S_uRC, h_uD in zip(self.S_URC.split(FISHER_CHUNK), self.h_UD.split(FISHER_CHUNK)):
            rows = [(h_uD @ X_DP).view(-1, self.C, self.D) @ h_uD[:, :, None] for X_DP in X_PP.split(self.D)]
            found.append(S_uRC @ torch.cat(rows, 2).mT @ S_uRC.mT)
        return torch.cat(found)
