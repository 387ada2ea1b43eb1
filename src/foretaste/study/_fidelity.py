"""Look-ahead against real retraining, on a handful of candidates of one's own network: whether to trust it.

Every candidate is labelled and the network really retrained from its weights. Going on training moves outputs without
any new label (under cross-entropy the logits keep growing), so it is also retrained on L alone, by the same seed, and
the real change is the difference of the two. The prediction of it is f_lin⁺ − f_lin (Eq. 12).
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.network import prepare
from foretaste.retrain import State, from_kernels
from foretaste.study._agreement import ceiling, correlation, relative_error, slope, spearman
from foretaste.study._faults import Faults
from foretaste.study._retrainings import Job, Progress, Real, choose, outputs_of, retrain
from foretaste.tangent import gram

OUTPUTS = ("sum", "first", "full")
RIDGES = (1e-8, 1e-6, 1e-4, 1e-2)  # of the mean diagonal of Θ_LL
SCALES = tuple(4.0**k for k in range(-3, 5))  # of Θ, under cross-entropy
OWN = ("sum", 1e-6, "float32")  # what ft.query takes unless told
INTERPOLATES = 0.01  # of the labels' variance, as foretaste.network.fit has it
FULL = 4e9  # bytes that the full kernel may take
POINTS = 1200  # of the scatter

Record = dict[str, Any]


def fidelity(
    net: nn.Module,
    x_L: Tensor,
    y_L: Tensor,
    x_U: Tensor,
    *,
    y_U: Tensor | None = None,
    ids: Sequence[Any] | None = None,
    loss: str = "l2",
    candidates: int = 8,
    repeats: int = 2,
    watch: int = 200,
    outputs: Sequence[str] = OUTPUTS,
    ridges: Sequence[float] = RIDGES,
    precisions: Sequence[str] | None = None,
    scales: Sequence[float] = SCALES,
    budget: int | str | None = None,
    normalise: Any = None,
    train: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Record]:
    """Records of how well look-ahead predicts what retraining does to ``net``, which is left as it is.

    Each of ``candidates`` points of x_U, drawn by ``seed``, gets its likeliest label, and its true one by y_U or else
    the runner-up; the network is retrained by ``foretaste.network.fit`` with the keywords in ``train``, ``repeats``
    times, and seen on ``watch`` other points of x_U. Real retrainings are shared by all settings: outputs × ridges (of
    the mean diagonal) × precisions (None: "float32", on CUDA also "tf32" and "half"). Cross-entropy: ``scales`` of Θ
    too. Records are of kind "about", "retraining", "setting", "skipped", "calibration" and "points".
    """
    began = time.perf_counter()
    at = Faults()
    at.one_of("loss", loss, ("l2", "ce"))
    for name in outputs:
        at.one_of("output", name, OUTPUTS)
    at.whole("candidates", candidates, 1)
    at.whole("repeats", repeats, 1)
    at.whole("watch", watch, 1)
    for ridge in ridges:
        at.within("ridge", ridge, 0, 1)
    if not at.found and candidates > len(x_U):
        at.add(f"candidates={candidates} of a pool of {len(x_U)}; expected at most {len(x_U)}")
    if y_L.is_floating_point():
        at.add("y_L holds numbers; fidelity is of classifiers and wants class ids")
    at.report()
    like = next(net.parameters())
    order_U = torch.randperm(len(x_U), generator=torch.Generator().manual_seed(seed)).to(x_U.device)
    at_c = order_U[:candidates]
    at_W = order_U[candidates : candidates + watch]
    at_W = at_W if len(at_W) else at_c  # a pool of candidates only
    feed = {"L": x_L, "U": x_U[at_c], "W": x_U[at_W]}
    feed = {name: prepare(x, like.dtype, normalise) for name, x in feed.items()}
    f_cC = outputs_of(net, feed["U"])
    if f_cC.shape[1] < 2:
        raise ValueError("the network has one output; fidelity is of classifiers")
    jobs = choose(f_cC, None if y_U is None else y_U[at_c])
    names = [int(j) if ids is None else ids[int(j)] for j in at_c]
    how = {"loss": loss, **(train or {}), "normalise": normalise}
    real, records = retrain(net, x_L, y_L, x_U[at_c], feed["W"], jobs, names, how, repeats, seed, progress)
    if precisions is None:
        precisions = ("float32", "tf32", "half") if like.is_cuda and like.dtype == torch.float32 else ("float32",)
    made = [_State(net, feed, y_L, loss, output, precision, budget) for output in outputs for precision in precisions]
    settings = [record for one in made for record in _settings(one, real, ridges)]
    residual = _residual(net, feed["L"], y_L, loss)
    limits = ceiling(real.change_SJWC)
    C = f_cC.shape[1]
    about = {
        "kind": "about", "loss": loss, "L": len(x_L), "U": len(x_U), "W": len(at_W), "C": C,
        "parameters": sum(p.numel() for p in net.parameters()), "device": str(like.device), "seed": seed,
        "candidates": names, "repeats": repeats, "residual": residual,
        "interpolates": residual <= INTERPOLATES * (1 - 1 / C) / C,
        "agreement": limits and limits[0], "ceiling": limits and limits[1],
        "drift": float(real.drift_SWC.norm() / len(real.drift_SWC) ** 0.5),
        "change": float(real.change_SJWC.norm() / (repeats * len(jobs)) ** 0.5),
        "train": {k: v for k, v in how.items() if v is not None and k != "normalise"},
    }  # fmt: skip
    records = [about, *records, *settings]
    if loss == "ce" and scales:
        records += [_calibration(one, real, scales) for one in made if one.precision == precisions[0] and one.fits]
    records += _points(made, settings, real, seed)
    about["seconds"] = time.perf_counter() - began
    return records


class _State:
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
        self.why = f"needs {need / 1e9:.1f} GB, and at most {FULL / 1e9:.0f} GB are used" if need > FULL else ""
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


def _settings(one: _State, real: Real, shares: Sequence[float]) -> list[Record]:
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


def _calibration(one: _State, real: Real, scales: Sequence[float]) -> Record:
    """The scale of Θ whose predicted logit changes lie nearest to the real ones, in least squares over the grid."""
    grid = []
    for scale in scales:
        state = one.state(theta_scale=scale)
        got = agreement(one.predicted(state, real.jobs), state.mean, real, one.loss)
        grid.append({"theta_scale": scale} | {k: got[k] for k in ("error", "correlation", "probabilities", "rank")})
    best = min(grid, key=lambda g: float("inf") if g["error"] is None else g["error"])
    return {"kind": "calibration", "output": one.output, "best": best["theta_scale"], "grid": grid}


def _points(made: Sequence[_State], settings: Sequence[Record], real: Real, seed: int) -> list[Record]:
    """Predicted and real changes at one of the settings, a sample of them, to be drawn."""
    done = [s for s in settings if s["kind"] == "setting"]
    if not done:
        return []
    shown = next((s for s in done if s["own"]), done[0])
    one = next(m for m in made if (m.output, m.precision) == (shown["output"], shown["precision"]))
    state = one.state(shown["ridge_share"])
    f_JWC = one.predicted(state, real.jobs)
    predicted, change = (f_JWC - state.mean).flatten(), real.change_SJWC.mean(0).flatten()
    pick = torch.randperm(len(change), generator=torch.Generator().manual_seed(seed))[:POINTS].to(change.device)
    drawn = {"predicted": predicted[pick].tolist(), "real": change[pick].tolist()}
    scores = [one_c.tolist() for one_c in moves(f_JWC, state.mean, real, one.loss)]
    said = {k: shown[k] for k in ("output", "ridge_share", "precision")}
    return [{"kind": "points", "of": len(change), **said, **drawn, "scores": scores}]


def _residual(net: nn.Module, feed_L: Tensor, y_L: Tensor, loss: str) -> float:
    """Mean squared residual of f on L, of its softmax under cross-entropy."""
    f_LC = outputs_of(net, feed_L)
    f_LC = torch.softmax(f_LC, 1) if loss == "ce" else f_LC
    return float((f_LC - torch.nn.functional.one_hot(y_L.long(), f_LC.shape[1])).square().mean())
