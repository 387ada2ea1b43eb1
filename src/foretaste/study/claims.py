"""Two claims of the paper that need no loop: Theorem 3.1 (warm start equals cold start) and Eq. 12 (the block solve).

Both are experiments of a study, with the same data, networks, seeds and folders as the loop.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from foretaste.data import Images, draw
from foretaste.lookahead import linearize
from foretaste.network import fit
from foretaste.study.config import Network, Study, Trial
from foretaste.study.records import software_versions
from foretaste.study.trial_network import Model, derive_seed
from foretaste.tangent import ntk

Experiment = Callable[..., Iterator[dict[str, Any]]]
TEST_POINTS = 200  # on which two networks are compared


def check_theorem(study: Study, trial: Trial, data: Images, seed: int, skip: int = 0) -> Iterator[dict[str, Any]]:
    """How far warm start is from cold start (Theorem 3.1).

    First in kernel regression, with Θ of the network at its initial weights. Then in training networks of growing
    width, from the same initial weights.
    """
    split = draw(data.pool, data.test, trial.labels.init, seed)
    more = split.label(split.offer(trial.labels.per_cycle, derive_seed(seed, 0, "offer")).U)
    for k, width in enumerate([None, *study.widths][skip:], skip):
        if width is None:
            gap = {"warm_cold_kernel": in_kernel_regression(trial, data, split.L, more.L, seed)}
        else:
            gap = in_training(widened(trial, width), data, split.L, more.L, seed)
        yield (
            {"kind": "theorem", "width": width, "L": len(split.L), "more": len(more.L) - len(split.L)}
            | gap
            | _common_fields(trial, data, seed, k)
        )


def in_kernel_regression(trial: Trial, data: Images, L: Any, both: Any, seed: int) -> float:
    """The largest |f_warm − f_cold| on test points, over the largest |f_cold|.

    With f_0 and Θ fixed, f_L(x) = f_0(x) + Θ_xL Θ_LL⁻¹ (y_L − f_0(X_L)). Warm start applies it a second time, to all
    labels, with f_L in the place of f_0.
    """
    model = initial_model(trial, data, seed)
    net = model.net.double()
    x, x_L = model.inputs(data.test[:TEST_POINTS]).double(), model.inputs(both).double()
    y_LC = torch.nn.functional.one_hot(data.y[both], len(data.classes)).to(x)
    with torch.no_grad():
        f_0, f_0L = net(x), net(x_L)
    theta_LL, theta_xL = ntk(net, x_L), ntk(net, x, x_L)
    n = len(L)

    def regressed(f: Tensor, f_L: Tensor, m: int) -> tuple[Tensor, Tensor]:
        a = torch.linalg.solve(theta_LL[:m, :m], y_LC[:m] - f_L[:m])
        return f + theta_xL[:, :m] @ a, f_L + theta_LL[:, :m] @ a

    cold, _ = regressed(f_0, f_0L, len(both))
    warm, _ = regressed(*regressed(f_0, f_0L, n), len(both))
    return float((warm - cold).abs().max() / cold.abs().max())


def in_training(trial: Trial, data: Images, L: Any, both: Any, seed: int) -> dict[str, Any]:
    """‖f_warm − f_cold‖ / ‖f_cold − f_0‖ on test points, of two networks with the same initial weights."""
    start = initial_model(trial, data, seed)
    x = start.inputs(data.test[:TEST_POINTS])
    outputs, residuals = [], []
    with torch.no_grad():
        f_0 = start.net(x)
    for stages in ([L, both], [both]):
        model = Model(trial, data, start.net.state_dict())
        for ids in stages:
            how = trial.train
            done = fit(
                model.net, data.x[ids], data.y[ids], loss=how.loss, steps=how.steps, epochs=how.epochs,
                batch_size=how.batch, max_lr=how.max_lr, start="warm", normalise=data.normalise,
                seed=derive_seed(seed, 0, "train"),
            )  # fmt: skip
        residuals.append(done.residual)
        with torch.no_grad():
            outputs.append(model.net(x))
    warm, cold = outputs
    return {"warm_cold_network": float((warm - cold).norm() / (cold - f_0).norm()), "residuals": residuals}


def widened(trial: Trial, width: int) -> Trial:
    """The trial with an MLP whose hidden layers have that width. Θ grows with the width, so the learning rate falls."""
    hidden = tuple(trial.network.options.get("hidden", (256, 256)))
    lr = (trial.train.max_lr or 0.5) * min(1.0, hidden[0] / width)
    return replace(
        trial,
        network=Network("mlp", dict(trial.network.options) | {"hidden": (width,) * len(hidden)}),
        train=replace(trial.train, max_lr=lr),
    )


def initial_model(trial: Trial, data: Images, seed: int) -> Model:
    """The network at the initial weights of this seed."""
    model = Model(trial, data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, 0, "initial"))
        model.net.load_state_dict(Model(trial, data.to("cpu")).net.state_dict())
    return model


def check_block(study: Study, trial: Trial, data: Images, seed: int, skip: int = 0) -> Iterator[dict[str, Any]]:
    """Eq. 12 compared with Eq. 11, which is solved anew for every candidate, on a trained network in float64."""
    split = draw(data.pool, data.test, trial.labels.init, seed).offer(
        trial.labels.subset, derive_seed(seed, 0, "offer")
    )
    model = Model(trial, data)
    trained = model.train(split.L, seed, 0)
    net = model.net.double()
    x_L, x_U, y_L = model.inputs(split.L).double(), model.inputs(split.U).double(), data.y[split.L]
    lookaheads, seconds = {}, {}
    for method in ("dense", "direct"):
        settings = model.settings | {"method": method, "watch": None, "precision": "float32"}
        state = linearize(net, x_L, y_L, x_U, **settings)
        classes = state.pool_net.argmax(1)
        _ = state.lookahead(0, int(classes[0]))  # computes the kernel, which is the same for both and is not timed
        began = time.perf_counter()
        lookaheads[method] = torch.stack([state.lookahead(j, int(c)) for j, c in enumerate(classes)])
        seconds[method] = time.perf_counter() - began
        net_W = state.net
    gap = float((lookaheads["dense"] - lookaheads["direct"]).abs().max())
    scores = {m: (lookaheads[m] - net_W).norm(dim=2).sum(1) for m in lookaheads}
    top = trial.labels.per_cycle
    same = len({*scores["dense"].topk(top).indices.tolist()} & {*scores["direct"].topk(top).indices.tolist()})
    yield {
        "kind": "block", "L": len(split.L), "U": len(split.U), "largest_difference": gap,
        "relative_difference": gap / float(lookaheads["direct"].abs().max()), "same_top": same / top,
        "residual": trained.residual, "seconds_block": seconds["dense"], "seconds_direct": seconds["direct"],
    } | _common_fields(trial, data, seed, 0)  # fmt: skip


def _common_fields(trial: Trial, data: Images, seed: int, cycle: int) -> dict[str, Any]:
    return {
        "arm": trial.arm, "seed": seed, "cycle": cycle, "config": trial.plain(),
        "versions": software_versions(data.x.device),
    }  # fmt: skip


CHECKS: dict[str, Experiment] = {"theorem": check_theorem, "block": check_block}
