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
from foretaste.study._agreement import ceiling
from foretaste.study._faults import Faults
from foretaste.study._predictions import Kernel, Record, agreement, moves, settings_of
from foretaste.study._retrainings import Progress, Real, choose, outputs_of, retrain

OUTPUTS = ("sum", "first", "full")
RIDGES = (1e-8, 1e-6, 1e-4, 1e-2)  # of the mean diagonal of Θ_LL
SCALES = tuple(4.0**k for k in range(-3, 5))  # of Θ, under cross-entropy
INTERPOLATES = 0.01  # of the labels' variance, as foretaste.network.fit has it
POINTS = 1200  # of the scatter


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
    check_fidelity(len(x_U), loss, candidates, repeats, watch, outputs, ridges)
    if y_L.is_floating_point():
        raise ValueError("y_L holds numbers; fidelity is of classifiers and wants class ids")
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
    if precisions is None:
        precisions = ("float32", "tf32", "half") if like.is_cuda and like.dtype == torch.float32 else ("float32",)
    # Before the retrainings: what is wrong with a network shows here, and they take long.
    made = [Kernel(net, feed, y_L, loss, output, precision, budget) for output in outputs for precision in precisions]
    how = {"loss": loss, **(train or {}), "normalise": normalise}
    real, records = retrain(net, x_L, y_L, x_U[at_c], feed["W"], jobs, names, how, repeats, seed, progress)
    settings = [record for one in made for record in settings_of(one, real, ridges)]
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


def check_fidelity(
    U: int, loss: str, candidates: int, repeats: int, watch: int, outputs: Sequence[str], ridges: Sequence[float]
) -> None:
    """Raise with all that is wrong with the settings."""
    at = Faults()
    at.one_of("loss", loss, ("l2", "ce"))
    for name in outputs:
        at.one_of("output", name, OUTPUTS)
    at.whole("repeats", repeats, 1)
    at.whole("watch", watch, 1)
    for ridge in ridges:
        at.within("ridge", ridge, 0, 1)
    if at.whole("candidates", candidates, 1) and candidates > U:
        at.add(f"candidates={candidates} of a pool of {U}; expected at most {U}")
    at.report()


def _calibration(one: Kernel, real: Real, scales: Sequence[float]) -> Record:
    """The scale of Θ whose predicted logit changes lie nearest to the real ones, in least squares over the grid."""
    grid = []
    for scale in scales:
        state = one.state(theta_scale=scale)
        got = agreement(one.predicted(state, real.jobs), state.mean, real, one.loss)
        grid.append({"theta_scale": scale} | {k: got[k] for k in ("error", "correlation", "probabilities", "rank")})
    best = min(grid, key=lambda g: float("inf") if g["error"] is None else g["error"])
    return {"kind": "calibration", "output": one.output, "best": best["theta_scale"], "grid": grid}


def _points(made: Sequence[Kernel], settings: Sequence[Record], real: Real, seed: int) -> list[Record]:
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
