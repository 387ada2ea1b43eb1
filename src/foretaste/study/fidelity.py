"""Look-ahead compared with real retraining, on a few candidates of one network: whether to trust it.

Every candidate is labelled and the network really retrained from its weights. Training on changes outputs even without
a new label (under cross-entropy the logits keep growing). So the network is also retrained on L alone, with the same
seed, and the real change is the difference of the two. Its prediction is f_lin⁺ − f_lin (Eq. 12).
"""

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import AfterValidator
from torch import Tensor, nn

from foretaste.acquire import DEFAULT_STRATEGY, find_strategy
from foretaste.errors import format_bytes
from foretaste.given import ClassName, labels_as_numbers, read_sets, resolve_class_names
from foretaste.lookahead import State, from_kernels
from foretaste.losses import LOSSES
from foretaste.network import INTERPOLATES, fit, prepare
from foretaste.study.settings import Count, Number, SettingsError, Text, one_of, settings_table
from foretaste.tangent import DEFAULT_RIDGE, OUTPUTS, GramJob, freeze, gram, rank_correlation

# Those of the default query (``query_setting``) come first.
COMPARED_OUTPUTS = ("signs", "sum", "first", "full")
RIDGES = ("misfit", DEFAULT_RIDGE, 1e-2)  # numbers are shares of the mean diagonal of Θ_LL
SCALES = tuple(4.0**k for k in range(-3, 5))  # of Θ, under cross-entropy
DRAWN_POINTS = 1200  # of the scatter plot
LARGEST_FULL_KERNEL = 4e9  # bytes

FidelityRecord = dict[str, Any]


def fidelity(
    net: nn.Module,
    x_L: Any,
    y_L: Any,
    x_U: Any,
    *,
    y_U: Any = None,
    ids: Sequence[Any] | None = None,
    loss: str = "l2",
    candidates: int = 8,
    repeats: int = 2,
    watch: int = 200,
    outputs: Sequence[str] = COMPARED_OUTPUTS,
    ridges: Sequence[float | str] = RIDGES,
    precisions: Sequence[str] | None = None,
    scales: Sequence[float] = SCALES,
    budget: int | str | None = None,
    normalise: Any = None,
    train: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
    classes: Sequence[ClassName] | None = None,
) -> list[FidelityRecord]:
    """Measure how well look-ahead predicts what retraining does to a network. The network is left as it is.

    Each of ``candidates`` points gets two labels: its likeliest one, and its true one (the runner-up where that is
    unknown or the same). The network is retrained on each, ``repeats`` times, and compared with the prediction on
    ``watch`` other points. All settings (outputs × ridges × precisions) share the same retrainings. The record of the
    one that a query uses by default has "own".

    Args:
        net: a trained classifier.
        x_L, y_L: its labelled points, of any kind that ``ft.query`` takes, and their labels, class ids or names.
        x_U: the pool, as x_L. Candidates and watched points are drawn from it by ``seed``.
        y_U: true labels of the pool, if known, as y_L.
        ids: names of the points of x_U, for the records; default their own, as in ``ft.query``, or positions.
        loss: "l2" or "ce", which the network is trained with.
        candidates: how many points to label.
        repeats: how often each retraining is done, with another seed. Two or more show its noise.
        watch: how many points outputs are compared on.
        outputs: kernels to compare, of "signs", "sum", "first", "trace" and "full". See ``ft.ntk``.
        ridges: values of λ to compare: shares of the mean diagonal of Θ_LL, or "misfit", as in ``ft.linearize`` (1e-6
            under cross-entropy).
        precisions: of the kernel; None is "float32", and on CUDA also "tf32" and "half".
        scales: under cross-entropy, factors of Θ to choose from.
        budget: memory of the kernel, in bytes or as "8GB".
        normalise: (mean, std) of the inputs, as ``foretaste.network.fit`` takes it.
        train: other arguments of ``foretaste.network.fit`` for the retrainings.
        seed: of the draws and the retrainings.
        progress: called with (retrainings done, all retrainings).
        classes: the names of the classes, as in ``ft.query``.

    Returns:
        Records of kind "about", "retraining", "setting", "skipped", "calibration" and "points".

    Raises:
        SettingsError: with all wrong settings.
        ValueError: if the network is no classifier.

    Example:
        >>> import torch
        >>> from foretaste.network import MLP, fit
        >>> from foretaste.study import fidelity
        >>> torch.manual_seed(0) and None
        >>> x, y = torch.randn(40, 3), torch.arange(40) % 2
        >>> net = MLP(3, (8,), 2)
        >>> done = fit(net, x[:10], y[:10], steps=50)
        >>> records = fidelity(net, x[:10], y[:10], x[10:], candidates=2, repeats=1, train={"steps": 20})
        >>> records[0]["kind"], len([r for r in records if r["kind"] == "retraining"])
        ('about', 5)
    """
    began = time.perf_counter()
    given, like = read_sets(net, x_L, y_L, x_U, None, classes), next(net.parameters())
    x_L, y_L, x_U, classes = given.x_L, given.y_L, given.x_U, given.classes
    ids = given.candidates.ids if ids is None else list(ids)
    check_fidelity(len(x_U), loss, candidates, repeats, watch, outputs, ridges)
    order_U = torch.randperm(len(x_U), generator=torch.Generator().manual_seed(seed)).to(x_U.device)
    at_c = order_U[:candidates]
    at_W = order_U[candidates : candidates + watch]
    at_W = at_W if len(at_W) else at_c  # the pool has candidates only
    feed = {"L": x_L, "U": x_U[at_c], "W": x_U[at_W]}
    feed = {name: prepare(x, like.dtype, normalise) for name, x in feed.items()}
    f_cC = evaluate(net, feed["U"])
    if f_cC.shape[1] < 2:
        raise ValueError("the network has one output; fidelity is for classifiers")
    classes = resolve_class_names(y_L, classes, f_cC.shape[1])
    y_L = labels_as_numbers(y_L, classes, False, "y_L").to(like.device)
    if y_L.is_floating_point():
        raise ValueError("y_L holds numbers; fidelity is for classifiers and needs class ids, or names of classes")
    y_U = None if y_U is None else labels_as_numbers(y_U, classes, False, "y_U").to(x_U.device)
    jobs = choose_jobs(f_cC, None if y_U is None else y_U[at_c])
    names = [int(j) if ids is None else ids[int(j)] for j in at_c]
    if precisions is None:
        precisions = ("float32", "tf32", "half") if like.is_cuda and like.dtype == torch.float32 else ("float32",)
    ridges = tuple(dict.fromkeys(plain_ridge(ridge, loss) for ridge in ridges))
    pairs = [(output, precision) for output in dict.fromkeys(outputs) for precision in precisions]
    kernels = [TangentKernel(net, feed, y_L, loss, *pair, budget) for pair in pairs]
    if kernels and all(kernel.fault for kernel in kernels):  # before the retrainings, which take long
        raise ValueError(kernels[0].fault)
    how = {"loss": loss, **(train or {}), "normalise": normalise}
    real, retrainings = retrain(net, x_L, y_L, x_U[at_c], feed["W"], jobs, names, how, repeats, seed, progress)
    own_output, own_ridge = query_setting(loss)
    settings = []
    for kernel in kernels:
        asked = (kernel.output, kernel.precision) == (own_output, precisions[0])
        settings += compare_ridges(kernel, real, ridges, own_ridge if asked else None)
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
        "query": {"output": own_output, "ridge": own_ridge},
    }  # fmt: skip
    records = [about, *retrainings, *settings]
    if loss == "ce" and scales:
        records += [_calibration(k, real, scales) for k in kernels if k.precision == precisions[0] and not k.fault]
    records += _drawn_points(kernels, settings, real, seed)
    about["seconds"] = time.perf_counter() - began
    return records


def query_setting(loss: str) -> tuple[str | int, float | str]:
    """Output and ridge of the kernel that a query uses by default."""
    how = find_strategy(DEFAULT_STRATEGY).kernel
    return how.output, DEFAULT_RIDGE if how.ridge is None else plain_ridge(how.ridge, loss)


def plain_ridge(ridge: float | str, loss: str) -> float | str:
    """Under cross-entropy the noise of each label carries the misfit, and "misfit" is 1e-6 (``ft.linearize``)."""
    return DEFAULT_RIDGE if ridge == "misfit" and not LOSSES[loss].quadratic else ridge


def check_ridge(ridge: float | str) -> float | str:
    if ridge != "misfit" and (isinstance(ridge, str) or not 0 <= ridge <= 1):
        raise ValueError(f"ridge={ridge!r}; expected a share of the mean diagonal, 0 to 1, or 'misfit'")
    return ridge


@settings_table
class FidelitySettings:
    """What ``fidelity`` accepts."""

    loss: Annotated[Text, one_of("loss", LOSSES)]
    candidates: Count
    repeats: Count
    watch: Count
    outputs: tuple[Annotated[Text, one_of("output", OUTPUTS)], ...]
    ridges: tuple[Annotated[Number | Text, AfterValidator(check_ridge)], ...]


def check_fidelity(
    U: int, loss: str, candidates: int, repeats: int, watch: int, outputs: Sequence[str], ridges: Sequence[float | str],
) -> None:  # fmt: skip
    """Raise with all that is wrong with the settings, for a pool of U points."""
    faults = []
    if candidates > U:
        faults.append(f"candidates={candidates} of a pool of {U}; expected at most {U}")
    for name, given, such in (("outputs", outputs, "signs"), ("ridges", ridges, "misfit")):
        if isinstance(given, str) or not len(given):  # without any, networks would be retrained for nothing
            faults.append(f"{name}={given!r}; expected a list of one or more, such as [{such!r}]")
    outputs, ridges = () if isinstance(outputs, str) else outputs, () if isinstance(ridges, str) else ridges
    try:
        FidelitySettings(loss, candidates, repeats, watch, tuple(outputs), tuple(ridges))
    except SettingsError as error:
        faults += error.faults
    if faults:
        raise SettingsError(faults)


def _calibration(kernel: "TangentKernel", real: "Retrainings", scales: Sequence[float]) -> FidelityRecord:
    """The scale of Θ whose predicted changes of logits lie nearest to the real ones, in least squares."""
    grid = []
    for scale in scales:
        state = kernel.state(theta_scale=scale)
        got = agreement(kernel.predictions(state, real.jobs), state.mean, real, kernel.loss)
        grid.append({"theta_scale": scale} | {k: got[k] for k in ("error", "correlation", "probabilities", "rank")})
    best = min(grid, key=lambda g: float("inf") if g["error"] is None else g["error"])
    return {"kind": "calibration", "output": kernel.output, "best": best["theta_scale"], "grid": grid}


def _drawn_points(
    kernels: Sequence["TangentKernel"], settings: Sequence[FidelityRecord], real: "Retrainings", seed: int
) -> list[FidelityRecord]:
    """Predicted and real changes at one of the settings: a random sample, for the scatter plot."""
    done = [s for s in settings if s["kind"] == "setting"]
    if not done:
        return []
    shown = next((s for s in done if s["own"]), done[0])
    kernel = next(k for k in kernels if (k.output, k.precision) == (shown["output"], shown["precision"]))
    state = kernel.state("misfit" if shown["misfit"] else shown["ridge_share"])
    f_JWC = kernel.predictions(state, real.jobs)
    predicted, change = (f_JWC - state.mean).flatten(), real.change_SJWC.mean(0).flatten()
    pick = torch.randperm(len(change), generator=torch.Generator().manual_seed(seed))[:DRAWN_POINTS].to(change.device)
    drawn = {"predicted": predicted[pick].tolist(), "real": change[pick].tolist()}
    scores = [one_c.tolist() for one_c in total_moves(f_JWC, state.mean, real, kernel.loss)]
    setting = {k: shown[k] for k in ("output", "ridge_share", "misfit", "precision")}
    return [{"kind": "points", "of": len(change), **setting, **drawn, "scores": scores}]


def _residual(net: nn.Module, feed_L: Tensor, y_L: Tensor, loss: str) -> float:
    """Mean squared residual of f on L; under cross-entropy of its softmax."""
    f_LC = evaluate(net, feed_L)
    f_LC = torch.softmax(f_LC, 1) if loss == "ce" else f_LC
    return float((f_LC - torch.nn.functional.one_hot(y_L.long(), f_LC.shape[1])).square().mean())


# Real retraining: on L with one more label, and on L alone, from the same weights and with the same seeds


class RetrainingJob(NamedTuple):
    candidate: int
    label: int
    whose: str  # "likeliest", "true" or "runner-up"


@dataclass(frozen=True, eq=False)
class Retrainings:
    """Outputs on the watched points after each job and after training on L alone, and how far the latter moved them."""

    jobs: list[RetrainingJob]
    f_SJWC: Tensor
    f_S1WC: Tensor
    drift_SWC: Tensor

    @property
    def change_SJWC(self) -> Tensor:
        return self.f_SJWC - self.f_S1WC


def choose_jobs(f_cC: Tensor, y_c: Tensor | None) -> list[RetrainingJob]:
    """Each candidate with its likeliest label, and with its true one where that is another, else the runner-up."""
    jobs = []
    for j, order_C in enumerate(f_cC.argsort(1, descending=True).tolist()):
        jobs.append(RetrainingJob(j, order_C[0], "likeliest"))
        if y_c is None or int(y_c[j]) == order_C[0]:
            jobs.append(RetrainingJob(j, order_C[1], "runner-up"))
        else:
            jobs.append(RetrainingJob(j, int(y_c[j]), "true"))
    return jobs


def retrain(
    net: nn.Module, x_L: Tensor, y_L: Tensor, x_c: Tensor, feed_W: Tensor, jobs: list[RetrainingJob],
    names: list[Any], how: Mapping[str, Any], repeats: int, seed: int, progress: Callable[[int, int], object] | None,
) -> tuple[Retrainings, list[FidelityRecord]]:  # fmt: skip
    """Retrain from the trained weights: on L alone and on L with one more label, each ``repeats`` times."""
    total, records, before_WC = repeats * (len(jobs) + 1), list[FidelityRecord](), evaluate(net, feed_W)
    after: list[list[Tensor]] = []
    for repeat in range(repeats):
        after.append([])
        for job in (None, *jobs):
            x, y = x_L, y_L
            if job is not None:
                x = torch.cat([x_L, x_c[job.candidate : job.candidate + 1]])
                y = torch.cat([y_L, y_L.new_tensor([job.label])])
            trained = copy.deepcopy(net)
            got = fit(trained, x, y, **{"start": "warm", **how}, seed=seed + 1 + repeat)
            f_WC = evaluate(trained, feed_W)
            after[-1].append(f_WC)
            records.append({
                "kind": "retraining", "repeat": repeat, "candidate": None if job is None else names[job.candidate],
                "label": None if job is None else job.label, "whose": None if job is None else job.whose,
                "residual": got.residual, "interpolates": got.interpolates, "seconds": got.seconds,
                "moved": float((f_WC - before_WC).norm()),
            })  # fmt: skip
            if progress is not None:
                progress(len(records), total)
    f_SJWC = torch.stack([torch.stack(one) for one in after])
    return Retrainings(jobs, f_SJWC[:, 1:], f_SJWC[:, :1], f_SJWC[:, 0] - before_WC), records


@torch.no_grad()
def evaluate(net: nn.Module, x: Tensor) -> Tensor:
    """(N, C) outputs in float64, in eval mode. The network's mode is restored."""
    was = [(m, m.training) for m in net.modules()]
    net.eval()
    try:
        return torch.cat([net(part) for part in x.split(512)]).double()
    finally:
        for m, training in was:
            m.training = training


# Predictions, by output, ridge and precision of the kernel


class TangentKernel:
    """Θ of one output and precision, computed once. ``state`` makes a look-ahead of it for each ridge and scale."""

    def __init__(
        self, net: nn.Module, feed: Mapping[str, Tensor], y_L: Tensor, loss: str, output: str, precision: str,
        budget: int | str | None,
    ) -> None:  # fmt: skip
        self.y_L, self.loss, self.output, self.precision = y_L, loss, output, precision
        began = time.perf_counter()
        C = evaluate(net, feed["U"][:1]).shape[1]
        B = C if output == "full" else 1
        L, W, n = (len(feed[name]) * B for name in "LWU")
        need = 8 * (3 * L * L + 2 * L * (W + n) + 2 * W * n)  # Θ_LL with its factor, and the rest twice
        self.fault = ""  # or the reason why there is no kernel
        try:
            if B > 1 and need > LARGEST_FULL_KERNEL:
                most = format_bytes(LARGEST_FULL_KERNEL)
                raise ValueError(f"the full kernel needs {format_bytes(need)}, and at most {most} are used")
            blocks = [("W", "U"), ("L", "L"), ("U", "L"), ("W", "L")]
            self.gram = gram(GramJob(freeze(net, output=output), feed, blocks, ["U"], budget, precision))
            self.mean_diagonal = float(self.gram.blocks["L", "L"].diagonal().mean())
        except ValueError as error:  # such as a softmax, whose outputs have a constant sum
            self.fault = str(error)
        self.seconds = time.perf_counter() - began

    def state(self, ridge: float | str = DEFAULT_RIDGE, theta_scale: float = 1.0) -> State:
        """A number is λ as a share of the mean diagonal of Θ_LL, which ``theta_scale`` multiplies too."""
        t, f = self.gram.blocks, self.gram.outputs
        ridge = ridge if isinstance(ridge, str) else ridge * theta_scale * self.mean_diagonal
        return from_kernels(
            t["L", "L"], t["W", "L"], t["U", "L"], t["W", "U"], self.gram.diagonals["U"], f["L"], f["W"], f["U"],
            self.y_L.to(f["L"].device), ridge=ridge, loss=self.loss, theta_scale=theta_scale,
        )  # fmt: skip

    def predictions(self, state: State, jobs: Sequence[RetrainingJob]) -> Tensor:
        """f_lin⁺ on the watched points, (J, W, C)."""
        return torch.stack([state.lookahead(job.candidate, job.label) for job in jobs])


def compare_ridges(
    kernel: TangentKernel, real: Retrainings, ridges: Sequence[float | str], own_ridge: float | str | None
) -> list[FidelityRecord]:
    """A record for each ridge: how well the predictions agree with the retrainings, or why it was skipped.

    own_ridge: that of the default query, if this is its kernel.
    """
    records: list[FidelityRecord] = []
    for ridge in ridges:
        misfit, own = ridge == "misfit", ridge == own_ridge
        setting = {"output": kernel.output, "ridge_share": None if misfit else ridge, "misfit": misfit}
        setting |= {"precision": kernel.precision, "own": own, "plain": ridge == DEFAULT_RIDGE}
        try:
            if kernel.fault:
                raise ValueError(kernel.fault)
            state = kernel.state(ridge)
            f_JWC = kernel.predictions(state, real.jobs)
        except ValueError as error:  # such as a factorisation that fails, with the ridge that would hold
            records.append({"kind": "skipped", **setting, "why": str(error)})
            continue
        if misfit:
            setting["ridge_share"] = state.ridge / kernel.mean_diagonal
        records.append(
            {"kind": "setting", **setting, "ridge": state.ridge, "seconds": kernel.seconds}
            | agreement(f_JWC, state.mean, real, kernel.loss)
        )
    return records


# Agreement of predicted and real changes


def agreement(f_JWC: Tensor, mean_WC: Tensor, real: Retrainings, loss: str) -> FidelityRecord:
    """Predicted outputs after each job, compared with the mean of its retrainings.

    rank: Spearman's correlation of Σ_i ‖f⁺_i − f_i‖ (Eq. 13) over candidates with their likeliest label. Under
    cross-entropy of softmax outputs, each measured from where it would be without the label.
    """
    predicted_JWC, real_JWC = f_JWC - mean_WC, real.change_SJWC.mean(0)
    seen = visible_changes(f_JWC, mean_WC, real, loss)
    return {
        "correlation": correlation(predicted_JWC, real_JWC),
        "with_drift": correlation(predicted_JWC, (real.change_SJWC + real.drift_SWC[:, None]).mean(0)),
        "probabilities": correlation(*seen) if loss == "ce" else None,
        "error": relative_error(predicted_JWC, real_JWC),
        "slope": fitted_factor(predicted_JWC, real_JWC),
        "rank": rank_agreement(*total_moves(f_JWC, mean_WC, real, loss)),
    }


def visible_changes(f_JWC: Tensor, mean_WC: Tensor, real: Retrainings, loss: str) -> tuple[Tensor, Tensor]:
    """Predicted and real changes, (J, W, C), of outputs; under cross-entropy of softmax outputs, as scores see them."""

    def visible(f: Tensor) -> Tensor:
        return torch.softmax(f, -1) if loss == "ce" else f

    return visible(f_JWC) - visible(mean_WC), (visible(real.f_SJWC) - visible(real.f_S1WC)).mean(0)


def total_moves(f_JWC: Tensor, mean_WC: Tensor, real: Retrainings, loss: str) -> list[Tensor]:
    """Σ_i ‖f⁺_i − f_i‖ of each candidate with its likeliest label, predicted and real."""
    likeliest = [k for k, job in enumerate(real.jobs) if job.whose == "likeliest"]
    return [change[likeliest].norm(dim=2).sum(1) for change in visible_changes(f_JWC, mean_WC, real, loss)]


def correlation(a: Tensor, b: Tensor) -> float | None:
    """Pearson's, over all entries; None where one of the two does not vary."""
    a, b = a.double().flatten(), b.double().flatten()
    a, b = a - a.mean(), b - b.mean()
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size > 0 else None


def rank_agreement(a: Tensor, b: Tensor) -> float | None:
    """Spearman's; tied values share their rank. None below three points, or where one of the two does not vary."""
    if len(a) < 3 or bool((a == a[0]).all()) or bool((b == b[0]).all()):
        return None
    return rank_correlation(a, b)


def relative_error(predicted: Tensor, real: Tensor) -> float | None:
    """‖predicted − real‖ / ‖real‖: 0 is perfect, 1 is what predicting no change gives."""
    size = float(real.norm())
    return float((predicted - real).norm()) / size if size > 0 else None


def fitted_factor(predicted: Tensor, real: Tensor) -> float | None:
    """The factor that brings predicted changes nearest to the real ones, in least squares. There is no intercept."""
    size = float(predicted.square().sum())
    return float((predicted * real).sum()) / size if size > 0 else None


def ceiling(real_SJWC: Tensor) -> tuple[float, float] | None:
    """(r, most): how well two retrainings with other seeds agree, and the most that a prediction is expected to reach.

    A prediction does not know the seed. With reliability r of one retraining, the mean of S retrainings has reliability
    S r / (1 + (S − 1) r) (Spearman–Brown), and nothing correlates with it above the square root of that. An estimate,
    and with two seeds a rough one: all candidates share the noise of a seed. After 10 steps on digits it was 0.65, and
    a prediction reached 0.90.
    """
    pairs = [correlation(a, b) for a, b in combinations(real_SJWC, 2)]
    known = [r for r in pairs if r is not None]
    if not known:
        return None
    S, r = len(real_SJWC), max(sum(known) / len(known), 0.0)
    return r, math.sqrt(S * r / (1 + (S - 1) * r))
