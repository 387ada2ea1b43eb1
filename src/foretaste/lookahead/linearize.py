"""From a trained network, its labelled points and a pool to a ``State``: ``linearize``, and ``from_kernels``."""

import logging
import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.errors import counted
from foretaste.given import ClassName, count_labels, read_sets
from foretaste.lookahead.dense import DenseState, Posterior
from foretaste.lookahead.direct import DirectState, LoadedTheta
from foretaste.lookahead.kernel_settings import KernelSettings
from foretaste.lookahead.pool_state import linearise_along
from foretaste.lookahead.problem import GivenKernels, NetworkKernels, Problem, ThetaBlocks, diagonal_blocks, to_sites
from foretaste.lookahead.solve import misfit_ridge
from foretaste.lookahead.state import State
from foretaste.lookahead.targets import label_rules, settle_binary
from foretaste.losses import BinaryOutputs
from foretaste.tangent import (
    FrozenNetwork,
    Inputs,
    KernelProgress,
    Output,
    Params,
    check_inputs,
    check_output,
    check_precision,
    count_points,
    freeze,
    outputs,
    probe_outputs,
    take_points,
    to_float64,
    unmeasured_precision,
    without_modes,
)

log = logging.getLogger("foretaste")


@without_modes()
def linearize(
    net: nn.Module | FrozenNetwork,
    x_L: Any,
    y_L: Any,
    x_U: Any,
    *,
    watch: Any = None,
    output: Output = "sum",
    ridge: float | str | None = None,
    method: str = "auto",
    loss: str = "l2",
    time: float = math.inf,
    params: Params = None,
    budget: int | str | None = None,
    precision: str = "auto",
    theta_scale: float = 1.0,
    seed: int = 0,
    eager: bool = False,
    classes: Sequence[ClassName] | None = None,
    watch_by: str = "random",
    pool: Any = None,
) -> State:
    """Linearise a trained network: what it becomes with one more label, without training (Eq. 11, 12).

    The mathematics is in docs/mathematics.md, Look-ahead.

    Args:
        net: a trained network in eval mode, float32 or float64. It is only read.
        x_L: the labelled points, of any kind that ``ft.query`` takes. None: nothing is labelled, and y_L is None too.
        y_L: their labels. Integers (L,) are class ids, text (L,) class names, floats (L, C) targets. Floats (L,)
            with a network of one output are numbers to predict (regression). One output with labels 0 and 1 (or
            booleans, or two names) is binary classification: the state then has two outputs, (0, f) with loss="ce" and
            (1 − f, f) with "l2".
        x_U: the candidates (the pool), as x_L; of what ``ft.open`` returns, all points.
        watch: the watched points, over which scores sum. None (default): the candidates. Inputs: those instead. A
            number: that many of the candidates, chosen by ``watch_by``; all of them if there are fewer.
        output: the output whose gradient makes Θ: "sum" (default), "signs", "first", a number, "trace", or "full" for
            small problems. See ``ft.ntk``.
        ridge: λ, in units of Θ. None (default): 1e-6 of the mean diagonal of Θ_LL. "misfit": the λ with which kernel
            regression leaves the residual on L that the network left, at least that; under cross-entropy the same as
            None, because the noise of each label does it.
        method: "dense" is the block update of Eq. 12; "direct" solves Eq. 11 for each candidate, slowly. "auto"
            (default): dense, or direct if ``time`` is finite.
        loss: what the network was trained with, "l2" (default) or "ce", cross-entropy.
        time: t of Eq. 5, learning rate × steps on ½Σ‖f − y‖². Default: inf, training to convergence.
        params: the parameters to differentiate: "head", the last layer; "last-block", the last block and what follows;
            "lora"; "re:PATTERN"; names, or a function of a name. None (default): all that require grad.
        budget: memory for the tangent engine, in bytes or as "8GB". None (default): half of the free memory on a CPU,
            nine tenths on a GPU.
        precision: of Θ on a CUDA device: "float32", "tf32", "half", or "auto" (default), the fastest that ranks a
            sample as float64 does. On a CPU Θ is computed in float32, and of a float64 network in "float64".
        theta_scale: multiplies Θ; default 1. It matters under cross-entropy, or if a ridge is given.
        seed: chooses the watched points where ``watch`` is a number and ``watch_by`` is "random"; default 0.
        eager: compute Θ now, in the same pass as the outputs. Default: when S is first needed.
        classes: the names of the classes, text or whole numbers, in the order of the outputs. Labels are names then.
            Default: if the labels are text, the sorted labels, provided that there are as many as outputs.
        watch_by: what a number in ``watch`` takes: "random" points (default), or "contested", those whose two largest
            outputs are nearest to each other. ``gain`` and ``flips`` depend almost only on these.
        pool: whether the unlabelled points enter the kernel: None (default), they do not; "auto", along a graph of
            nearest neighbours of the inputs, if leave-one-out says that it helps; or an ``ft.Graph``. The state is then
            kernel regression from the class prior on L and the pool, and ``net`` its mean after L: docs/pool.md.

    Returns:
        A ``State``. It is lazy: outputs are computed now, Θ when S is first needed.

    Raises:
        ValueError: settings, labels or inputs do not fit. The message says what was expected.
        TypeError: an argument is of the wrong type.

    Example:
        >>> import torch, foretaste as ft
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).eval()
        >>> x = torch.randn(10, 2)
        >>> ft.linearize(net, x[:3], ["cat", "dog", "eel"], x[3:], ridge=1e-3)
        DenseState(L=3, U=7, W=7, C=3, loss='l2', ridge=0.001, kept=0)
    """
    given = read_sets(net.net if isinstance(net, FrozenNetwork) else net, x_L, y_L, x_U, watch, classes)
    settings = KernelSettings(
        output=output, params=params, ridge=ridge, precision=precision, budget=budget, method=method,
        watch=given.watch, watch_by=watch_by, loss=loss, time=time, theta_scale=theta_scale, seed=seed, pool=pool,
    )  # fmt: skip
    frozen = freeze(net, output=output, params=params)
    check_precision(precision, frozen.dtype)
    check_points(given.x_L, given.x_U, settings.watched_points, frozen.device)
    C = probe_outputs(frozen, given.x_U, "x_U")
    own, C, settings = settle_binary(frozen.net, C, given.y_L, settings, given.classes)
    if own is not frozen.net:
        frozen = freeze(own, output=settings.output, params=settings.params)
    return linearise(frozen, C, given.x_L, given.y_L, given.x_U, settings, given.classes, eager)


def linearise(
    frozen: FrozenNetwork,
    C: int,
    x_L: Inputs | None,
    y_L: Any,
    x_U: Inputs,
    settings: KernelSettings,
    classes: Sequence[ClassName] | None = None,
    eager: bool = False,
    progress: KernelProgress | None = None,
) -> State:
    """``linearize`` of a network of C outputs and of points that are checked already (``check_points``).

    progress: of Θ, called with (points done, points to do).
    """
    if settings.method == "streamed":
        raise ValueError('method="streamed" is a way to pick, of ft.query; a state is "dense" or "direct"')
    check_output(frozen, C)
    if (x_L is None) != (y_L is None):
        raise ValueError("one of x_L and y_L is None; give both, or None for both if nothing is labelled")
    if x_L is not None and count_points(x_L) == 0 and count_labels(y_L) == 0:
        x_L = y_L = None
    device, binary = to_float64(torch.empty(0, device=frozen.device)).device, isinstance(frozen.net, BinaryOutputs)
    labels = label_rules(y_L, C, settings.loss, frozen.device, device, classes, binary)
    y_LC = torch.empty(0, C, dtype=torch.float64, device=device)
    if x_L is not None:
        y_LC = labels.targets(y_L, count_points(x_L), "y_L")

    evidence = None
    if settings.pool is not None:
        x_W, at_W = watched_points(replace(settings, watch_by="random"), x_U)
        evidence, bent = linearise_along(settings.pool, labels, x_L, y_LC, x_U, x_W, at_W, settings)
        if bent is not None:
            return bent
    f: dict[str, Tensor] = {}
    run = partial(outputs, frozen, precision=unmeasured_precision(settings.precision, frozen))
    if settings.watch_by == "contested" and isinstance(settings.watch, int):
        f["U"] = run(x_U, name="x_U")
    x_W, at_W = watched_points(settings, x_U, f.get("U"))
    kernels = NetworkKernels(frozen, C, x_L, x_U, x_W, y_LC, settings, progress)
    if eager:
        kernels.held = kernels.load()
        f |= kernels.held.outputs
    f_UC = f["U"] if "U" in f else run(x_U, name="x_U")
    f_LC, f_WC = y_LC, f_UC
    if x_L is not None:
        f_LC = f["L"] if "L" in f else run(x_L, name="x_L")
    if x_W is not None:
        f_WC = f_UC[list(at_W)] if at_W else f["W"] if "W" in f else run(x_W, name="watch")
    B = C if frozen.output == "full" else 1
    p = Problem(labels, f_LC, f_WC, f_UC, y_LC, kernels, B, x_W is None, at_W, settings, pool=evidence)
    return make_state(p)


def make_state(p: Problem) -> State:
    """A lazy state of the kind that the settings ask for."""
    if p.settings.method == "direct" or not math.isinf(p.settings.time):
        return DirectState(p, (), LoadedTheta(p))
    return DenseState(p, (), Posterior(p))


def carry_misfit(state: State) -> State:
    """The state with the λ of the misfit, if it was made with the default λ and its network does not fit L.

    Θ is not computed again. Cross-entropy has the noise of each label, which carries the misfit already.
    """
    p = state._problem
    if p.settings.ridge is not None or p.free or not math.isinf(p.settings.time):
        return state
    theta = state.prior()
    ridge = misfit_ridge(theta.LL, to_sites(p.centred_LC, p.B), p.residual_L, state.ridge)
    if ridge == state.ridge:
        return state
    WU = theta.columns(slice(0, state.U))
    kernels = copy(p.kernels)  # the same rows, and blocks that are known and must not be overwritten
    kernels.held, kernels.ours = ThetaBlocks(theta.LL, theta.WL, theta.UL, WU, theta.diag_U, theta.diag_W), False
    settings = replace(p.settings, ridge=ridge)
    return make_state(replace(p, settings=settings, kernels=kernels, told=True))._with(state.kept)


def check_points(x_L: Inputs | None, x_U: Inputs, watch: Inputs | None, device: torch.device) -> None:
    """Raise unless L, U and W are points of one kind on the network's device, and U and W have any."""
    check_inputs(x_U, "x_U", device)
    if count_points(x_U) == 0:
        raise ValueError("x_U is empty; expected at least one candidate")
    if x_L is not None:
        check_inputs(x_L, "x_L", device, like=x_U)
    if watch is not None:
        check_inputs(watch, "watch", device, like=x_U)
        if count_points(watch) == 0:
            raise ValueError("watch has no points; give at least one, or None to watch the pool")


def watched_points(
    settings: KernelSettings, x_U: Inputs, f_UC: Tensor | None = None
) -> tuple[Inputs | None, dict[int, int]]:
    """The watched inputs (None: the pool itself), and the positions of candidates among them where they are known.

    A number takes random candidates or, with their outputs f_UC, the most contested ones.
    """
    watch = settings.watch
    if not isinstance(watch, int):
        return watch, {}
    n = count_points(x_U)
    if watch > n:
        log.warning("watch is %d and the pool has %s; all of it is watched", watch, counted(n, "point"))
        return None, {}
    picked = watched_rows(watch, n, settings.seed, f_UC).tolist()
    return take_points(x_U, picked), {j: i for i, j in enumerate(picked)}


def watched_rows(watch: int, n: int, seed: int, f_NC: Tensor | None = None) -> Tensor:
    """Which of n points to watch, in order: random ones or, with their outputs, the most contested ones."""
    if f_NC is None:
        order_N = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    elif f_NC.shape[1] < 2:
        raise ValueError('watch_by="contested" needs classes and this network has one output; use "random"')
    else:
        top_N2 = f_NC.topk(2, 1).values
        order_N = (top_N2[:, 0] - top_N2[:, 1]).argsort(stable=True)
    return order_N[:watch].sort().values


# --- a state on given kernels: an infinite-width kernel, a Gaussian process ---


def from_kernels(
    theta_LL: Tensor,
    theta_WL: Tensor | None,
    theta_UL: Tensor,
    theta_WU: Tensor,
    diag_U: Tensor | None,
    f_L: Tensor,
    f_W: Tensor | None,
    f_U: Tensor,
    y_L: Any,
    *,
    theta_UU: Tensor | None = None,
    diag_W: Tensor | None = None,
    at_L: list[int] | None = None,
    ridge: float | str | None = None,
    method: str = "auto",
    loss: str = "l2",
    time: float = math.inf,
    theta_scale: float = 1.0,
) -> State:
    """A ``State`` on a kernel and outputs of your own, with no network.

    Kernels are in site layout: rows (n, b) with b < B, where B is 1 (one kernel for all classes) or C (full kernel).

    Args:
        theta_LL: (L·B, L·B), Θ of the labelled points.
        theta_WL: (W·B, L·B). None if the candidates are watched.
        theta_UL: (U·B, L·B).
        theta_WU: (W·B, U·B); Θ_UU if the candidates are watched.
        diag_U: (U,) or (U, B, B), the diagonal of Θ_UU. None only if the candidates are watched.
        f_L, f_W, f_U: (L, C), (W, C), (U, C), outputs of the model. f_W is None if the candidates are watched.
        y_L: labels, as in ``ft.linearize``. None if L is empty.
        theta_UU: (U·B, U·B). Needed once a label is kept, if the candidates are not watched.
        diag_W: (W,) or (W, B, B). Needed for ``watched_variance`` only.
        at_L: with theta_UU, the positions of the labelled points if they are among the candidates. Default None. Saves
            time.
        ridge, method, loss, time, theta_scale: as in ``ft.linearize``.

    Returns:
        A ``State``.

    Raises:
        ValueError: shapes do not fit together; all of them are named.

    Example:
        >>> import torch
        >>> from foretaste.lookahead import from_kernels
        >>> x = torch.linspace(0, 1, 6)
        >>> theta = torch.exp(-(x[:, None] - x).square())
        >>> f = torch.zeros(6, 1)
        >>> state = from_kernels(
        ...     theta[:2, :2], None, theta[2:, :2], theta[2:, 2:], None, f[:2], None, f[2:], torch.tensor([0.0, 1.0])
        ... )
        >>> state.lookahead(3, 0.5).shape
        torch.Size([4, 1])
    """
    settings = KernelSettings(ridge=ridge, method=method, loss=loss, time=time, theta_scale=theta_scale)
    same = f_W is None
    if same != (theta_WL is None):
        raise ValueError("one of f_W and theta_WL is None; both are for W = U, and neither otherwise")
    if diag_U is None and not same:
        raise ValueError("diag_U is None and the watched points are not the pool; give the diagonal of Θ_UU")
    f_LC, f_UC = f_L.double(), f_U.double()
    f_WC = f_UC if f_W is None else f_W.double()
    U, C = f_UC.shape
    B, W, L = theta_UL.shape[0] // U, f_WC.shape[0], f_LC.shape[0]
    WL = theta_UL if theta_WL is None else theta_WL
    faults = [
        f"{name} is {tuple(t.shape)}, expected {want}"
        for name, t, want in (
            ("theta_LL", theta_LL, (L * B, L * B)),
            ("theta_WL", WL, (W * B, L * B)),
            ("theta_UL", theta_UL, (U * B, L * B)),
            ("theta_WU", theta_WU, (W * B, U * B)),
            ("theta_UU", theta_UU, (U * B, U * B)),
        )
        if t is not None and tuple(t.shape) != want
    ]
    for name, diag, n in (("diag_U", diag_U, U), ("diag_W", diag_W, W)):
        if diag is not None and diag.numel() != n * B * B:
            faults.append(f"{name} is {tuple(diag.shape)}, expected {(n, B, B)}")
    if B not in (1, C):
        faults.append(f"theta_UL has {theta_UL.shape[0]} rows for {U} candidates, expected {U} or {U * C}")
    if faults:
        raise ValueError(f"kernels do not fit together: {'; '.join(faults)}")
    labels = label_rules(y_L, C, loss, f_UC.device, f_UC.device)
    UL, WU = theta_UL.double(), theta_WU.double()
    WL = UL if theta_WL is None else theta_WL.double()
    d_U = diagonal_blocks(WU, B) if diag_U is None else diag_U.double().reshape(U, B, B)
    d_W = d_U if same else None if diag_W is None else diag_W.double().reshape(W, B, B)
    blocks = ThetaBlocks(theta_LL.double(), WL, UL, WU, d_U, d_W)
    kernels = GivenKernels(blocks, theta_UU, B, float(theta_scale or 1.0), at_L)
    y_LC = labels.targets(y_L, L, "y_L") if L else f_UC[:0]
    return make_state(Problem(labels, f_LC, f_WC, f_UC, y_LC, kernels, B, same, {}, settings))
