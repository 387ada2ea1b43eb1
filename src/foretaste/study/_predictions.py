"""What look-ahead predicts of the retrainings, by kernel output, ridge and precision, and how well it agrees."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.retrain import State, from_kernels
from foretaste.study._agreement import correlation, relative_error, slope, spearman
from foretaste.study._retrainings import Job, Real, outputs_of
from foretaste.tangent import gram

OWN = ("sum", 1e-6, "float32")  # what ft.query takes unless told
FULL = 4e9  # bytes that the full kernel may take

Record = dict[str, Any]


class Kernel:
    """Θ of one output and precision, computed once; ``state`` of it for each ridge and scale."""

    def __init__(
        self, net: nn.Module, feed: Mapping[str, Tensor], y_L: Tensor, loss: str, output: str, precision: str,
        budget: int | str | None,
    ) -> None:  # fmt: skip
        self.y_L, self.loss, self.output, self.precision = y_L, loss, output, precision
        began = time.perf_counter()
        C = outputs_of(net, feed["U"][:1]).shape[1]
        B = C if output == "full" else 1
        L, W, n = (len(feed[name]) * B for name in "LWU")
        need = 8 * (3 * L * L + 2 * L * (W + n) + 2 * W * n)  # Θ_LL with its factor, and the rest twice
        self.why = (
            f"needs {need / 1e9:.1f} GB, and at most {FULL / 1e9:.0f} GB are used" if B > 1 and need > FULL else ""
        )
        if not self.why:
            self.f: dict[str, Tensor] = {}
            self.theta, self.diag = gram(
                net, feed, [("W", "U"), ("L", "L"), ("U", "L"), ("W", "L")], ["U"], output=output, budget=budget,
                precision=precision, f=self.f,
            )  # fmt: skip
            self.mean_diagonal = float(self.theta["L", "L"].diagonal().mean())
        self.seconds = time.perf_counter() - began

    @property
    def fits(self) -> bool:
        return not self.why

    def state(self, share: float = OWN[1], theta_scale: float = 1.0) -> State:
        """λ is a share of the mean diagonal of Θ_LL, which ``theta_scale`` multiplies too."""
        t, f = self.theta, self.f
        return from_kernels(
            t["L", "L"], t["W", "L"], t["U", "L"], t["W", "U"], self.diag["U"], f["L"], f["W"], f["U"],
            self.y_L.to(f["L"].device), ridge=share * theta_scale * self.mean_diagonal, loss=self.loss,
            theta_scale=theta_scale,
        )  # fmt: skip

    def predicted(self, state: State, jobs: Sequence[Job]) -> Tensor:
        """f_lin⁺ on the watched points, (J, W, C)."""
        return torch.stack([state.lookahead(j, label) for j, label, _ in jobs])


def settings_of(one: Kernel, real: Real, shares: Sequence[float]) -> list[Record]:
    records: list[Record] = []
    for share in shares:
        said = {"output": one.output, "ridge_share": share, "precision": one.precision}
        try:
            if one.why:
                raise ValueError(one.why)
            state = one.state(share)
            f_JWC = one.predicted(state, real.jobs)
        except ValueError as error:  # a factorisation that fails says by how much, and what ridge would hold
            records.append({"kind": "skipped", **said, "why": str(error)})
            continue
        own = (one.output, share, one.precision) == OWN
        records.append(
            {"kind": "setting", **said, "ridge": state.ridge, "own": own, "seconds": one.seconds}
            | agreement(f_JWC, state.mean, real, one.loss)
        )
    return records


def agreement(f_JWC: Tensor, mean_WC: Tensor, real: Real, loss: str) -> Record:
    """Predicted outputs after each job against what came of it, by the mean over repeats.

    rank: Spearman, over candidates with their likeliest label, of Σ_i ‖f⁺_i − f_i‖ (Eq. 13, of softmax outputs under
    cross-entropy, each measured from where it would be without the label).
    """
    predicted_JWC, real_JWC = f_JWC - mean_WC, real.change_SJWC.mean(0)
    shown = changes(f_JWC, mean_WC, real, loss)
    return {
        "correlation": correlation(predicted_JWC, real_JWC),
        "with_drift": correlation(predicted_JWC, (real.change_SJWC + real.drift_SWC[:, None]).mean(0)),
        "probabilities": correlation(*shown) if loss == "ce" else None,
        "error": relative_error(predicted_JWC, real_JWC),
        "slope": slope(predicted_JWC, real_JWC),
        "rank": spearman(*moves(f_JWC, mean_WC, real, loss)),
    }


def changes(f_JWC: Tensor, mean_WC: Tensor, real: Real, loss: str) -> tuple[Tensor, Tensor]:
    """Predicted and real, (J, W, C), of outputs; of softmax outputs under cross-entropy, as scores see them."""

    def seen(f: Tensor) -> Tensor:
        return torch.softmax(f, -1) if loss == "ce" else f

    return seen(f_JWC) - seen(mean_WC), (seen(real.f_SJWC) - seen(real.f_S1WC)).mean(0)


def moves(f_JWC: Tensor, mean_WC: Tensor, real: Real, loss: str) -> list[Tensor]:
    """Σ_i ‖f⁺_i − f_i‖ of each candidate with its likeliest label, predicted and real."""
    likeliest = [k for k, (_, _, whose) in enumerate(real.jobs) if whose == "likeliest"]
    return [change[likeliest].norm(dim=2).sum(1) for change in changes(f_JWC, mean_WC, real, loss)]
