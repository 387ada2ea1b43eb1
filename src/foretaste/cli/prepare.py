"""A network, its labelled points and a pool that fit together: what ``query`` and ``fidelity`` begin with.

Build or load the network, check that the points suit it, turn labels into class ids, train, save.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretaste.cli.app import name_options, progress_bar, say
from foretaste.cli.inputs import find_device, split_classes
from foretaste.errors import check_known, counted, shorten

if TYPE_CHECKING:
    from torch import Tensor, nn

    from foretaste.data import Points
    from foretaste.network import Fit

# Unless --network names one. Small, so that a minute on two cores is enough.
PICTURE_NETWORK: tuple[str, dict[str, Any]] = ("wrn1", {"widen": 1})
NETWORK_FOR: dict[str, tuple[str, dict[str, Any]]] = {
    "features": ("mlp", {}), "table": ("mlp", {}), "text": ("mlp", {"hidden": [512]}),
}  # fmt: skip
NAMED_CLASSES = 12  # in one message
FIRST_OUTPUTS = 2  # of a network for points without labels, whose classes nobody has told yet
ChannelScale = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel


@dataclass(frozen=True, eq=False)
class LabellingProblem:
    """A network and its points on one device. Labels are class ids, or numbers in regression."""

    net: "nn.Module"
    name: str
    options: dict[str, Any]
    points: "Points"
    ids: list[str]  # of the pool
    x_L: "Tensor"
    y_L: "Tensor"
    x_U: "Tensor"
    y_U: "Tensor | None"  # true classes, where the pool has labels and all are known
    classes: tuple[str, ...]  # empty in regression
    loss: str
    normalise: ChannelScale | None
    fitted: "Fit | None" = None
    notes: tuple[str, ...] = ()
    predicts: bool = True  # False where nothing is labelled and no weights were given: the network stays untrained
    outputs: int = FIRST_OUTPUTS  # C of the network

    def feed(self, x: "Tensor") -> "Tensor":
        """Points as the network takes them."""
        from foretaste.network import prepare

        return prepare(x, next(self.net.parameters()).dtype, self.normalise)

    @property
    def labelled(self) -> "tuple[Tensor | None, Tensor | None]":
        """x_L as the network takes it, and y_L; None for both where nothing is labelled."""
        return (self.feed(self.x_L), self.y_L) if len(self.x_L) else (None, None)


def make_problem(
    points: "Points", truth: "Sequence[str | None] | None" = None, *, network: str | None, options: dict[str, Any],
    weights: Path | None, classes: str | None = None, loss: str | None = None, normalise: str | None = None,
    device: str = "auto", seed: int = 0, tune: str | None = None,
) -> LabellingProblem:  # fmt: skip
    """Check that everything fits together; raise with what does not. Without weights the network is untrained.

    ``tune``: the points are token ids, and the network is their backbone with a head.

    ``truth`` are the labels of the pool, where they are known. Where nothing is labelled, a network is made all the
    same: its kernel covers the pool.
    """
    import torch

    from foretaste.connect import has_backbone
    from foretaste.data import class_ids, class_names
    from foretaste.network import SavedNetwork, load_network, prepare, saved_network

    about = saved_network(weights) if weights else SavedNetwork()
    where, regression = find_device(device), points.regression
    named = tuple(split_classes(classes) or ()) or about.classes or points.own_classes
    labels = points.known_labels
    expected = named or (() if regression else class_names(labels, points.where))
    x, L, U = points.x, torch.from_numpy(points.labelled), torch.from_numpy(points.pool)
    shape = tuple(x.shape[1:])
    predicts = bool(labels) or weights is not None
    outputs = 1 if regression else len(expected) if predicts else max(len(expected), FIRST_OUTPUTS)
    if tune is not None:
        name, net = _tuned_network(points, outputs, tune, seed)
    elif weights is None:
        name, net, options = _new_network(network, options, outputs, points, seed)
    else:
        net = load_network(network, weights, options=options, classes=None if named is None else outputs, shape=shape)
        name = network or about.network or ""
        options = {**about.options, **options} if name == about.network else options
    net = net.to(where).eval()
    if next(net.parameters(), None) is None:
        raise ValueError(f"network {name} has no parameters; its tangent kernel is zero")
    raw = points.kind == "features" or (has_backbone(points) and name != "head")  # a head scales by itself
    if normalise is None and weights is None and raw and x.dim() == 2:
        normalise = "measured"  # columns of a table have units of their own, and SGD does not learn from those
    scale = _channel_scale(normalise, about.normalise, x)
    C = _count_outputs(net, prepare(x[:2].to(where), next(net.parameters()).dtype, scale), name)
    notes, y_U = list(points.notes), None
    names: tuple[str, ...] = ()
    if regression:
        if C != 1:
            raise ValueError(f"--regression and the network has {C} outputs; expected one")
        y_L = points.y[L]
    else:
        names = named or (class_names(labels, points.where, C) if predicts else ())
        if names:
            _check_class_count(C, names, points.where, bool(labels))
        if weights and not named and not all(label.isdecimal() for label in labels):
            order = shorten(names, NAMED_CLASSES)
            notes.append(f"outputs are taken to be, in this order: {order}; give --classes if they are not")
        y_L = torch.from_numpy(class_ids(labels, names, points.where))
        true = [label for label in truth or () if label is not None]
        if true and len(true) == len(U):
            try:
                y_U = torch.from_numpy(class_ids(true, names, points.where)).to(where)
            except ValueError as error:
                notes.append(f"labels of the pool are not used: {error}")
    return LabellingProblem(
        net, name, options, points, [points.ids[i] for i in points.pool], x[L].to(where), y_L.to(where),
        x[U].to(where), y_U, names, loss or about.loss or ("ce" if tune else "l2"), scale, None, tuple(notes), predicts,
        C,
    )  # fmt: skip


def describe_network(problem: LabellingProblem) -> str:
    """The network's name, with the options that were given: wrn1 (widen=1)."""
    options = ", ".join(f"{key}={value}" for key, value in problem.options.items())
    return f"{problem.name} ({options})" if options else problem.name


def train_problem(problem: LabellingProblem, **settings: Any) -> LabellingProblem:
    """The same problem, its network trained on the labelled points from its initial weights, behind a bar."""
    from foretaste import fit
    from foretaste.network import TunedText, fit_tuned

    p = problem
    if isinstance(p.net, TunedText):
        say(f"Training {p.name} and a head on the {counted(len(p.x_L), 'labelled point')}.")
        with progress_bar("training") as progress:
            return replace(p, fitted=fit_tuned(p.net, p.x_L, p.y_L, loss=p.loss, progress=progress, **settings))
    also = " and, where that helps, on the others" if "pool" in settings else ""
    say(f"No weights were given: training {describe_network(p)} on the {counted(len(p.x_L), 'labelled point')}{also}.")
    try:
        with progress_bar("training") as progress:
            fitted = fit(p.net, p.x_L, p.y_L, loss=p.loss, normalise=p.normalise, progress=progress, **settings)
    except ValueError as error:
        error.args = (name_options(str(error), {"batch_size": "--batch"}),)  # elsewhere in a query it is -n
        raise
    return replace(p, fitted=fitted)


def split_problem(problem: LabellingProblem) -> LabellingProblem:
    """The same problem for a query: of an encoder that is tuned, the frozen blocks are computed once."""
    import torch

    from foretaste.network import TunedText, split_tuned

    p = problem
    if not isinstance(p.net, TunedText):
        return p
    tail, x = split_tuned(p.net, torch.cat([p.x_L, p.x_U]))
    return replace(p, net=tail, x_L=x[: len(p.x_L)], x_U=x[len(p.x_L) :])


def save_problem(problem: LabellingProblem, path: Path) -> Path:
    """Save the network with everything that ``--weights`` needs to load it."""
    from foretaste.network import save_network

    p = problem
    own = (p.name, p.options) if ":" in p.name else (None, None)  # networks of foretaste describe themselves
    return save_network(
        p.net, path, network=own[0], options=own[1], classes=p.classes or None, normalise=p.normalise, loss=p.loss,
        shape=tuple(p.x_L.shape[1:]),
    )  # fmt: skip


def _new_network(
    network: str | None, options: dict[str, Any], outputs: int, points: "Points", seed: int
) -> tuple[str, "nn.Module", dict[str, Any]]:
    """An untrained network: its name, the network and its options."""
    import torch

    from foretaste.connect import has_backbone
    from foretaste.network import make_head, make_network, seeded

    shape = tuple(points.x.shape[1:])
    with seeded(seed, torch.device("cpu")):
        if network is None and has_backbone(points):
            for key in options:
                check_known("option of a head", key, ["hidden"])
            return "head", make_head(points.x, outputs, **options), options
        if network is None:
            network, small = PICTURE_NETWORK if len(shape) == 3 else NETWORK_FOR[points.kind]
            options = {**small, **options}
        return network, make_network(network, options=options, classes=outputs, shape=shape), options


def _tuned_network(points: "Points", outputs: int, tune: str, seed: int) -> tuple[str, "nn.Module"]:
    from foretaste.network import tune_text

    backbone = getattr(points.encode, "keywords", {})["backbone"]  # of ``token_encoder``
    say(f"Reading {counted(len(points), 'text')} with the backbone, to scale the head.")
    return f"{backbone.name}, {tune} tuned", tune_text(backbone, points.x, outputs, tune=tune, seed=seed)


def _channel_scale(how: str | None, saved_scale: Any, x: "Tensor") -> ChannelScale | None:
    """The mean and deviation that --normalise asks for, or that the weights were saved with."""
    if how is None:
        return saved_scale and tuple(tuple(v) if isinstance(v, list | tuple) else (v,) for v in saved_scale)
    if how == "none":
        return None
    if how == "measured":
        import torch

        from foretaste.data import Images, measured

        return measured(Images("", x, torch.zeros(len(x)), torch.arange(len(x)).numpy(), torch.arange(0).numpy(), ()))
    try:
        mean, std = (tuple(float(v) for v in part.split(",")) for part in how.split("/"))
    except ValueError:
        raise ValueError(f'--normalise {how!r}; expected "none", "measured" or mean/std such as "0.5/0.25"') from None
    n = x.shape[1]
    if {len(mean), len(std)} - {1, n} or not all(math.isfinite(v) for v in (*mean, *std)) or min(std) <= 0:
        raise ValueError(f"--normalise {how!r}; expected mean/std > 0, one number each or one for each of {n} channels")
    return mean, std


def _count_outputs(net: "nn.Module", x: "Tensor", name: str) -> int:
    """C, from a forward pass of a few points."""
    import torch

    from foretaste.tangent import freeze

    try:
        with torch.no_grad():
            f = freeze(net, params=lambda name: True).call(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape, why = tuple(x.shape[1:]), str(error).strip().splitlines()[0]
        raise ValueError(
            f"network {name} does not take points of shape {shape} ({why}); give another file or network"
        ) from None
    if not isinstance(f, torch.Tensor) or f.dim() != 2 or len(f) != len(x):
        got = tuple(f.shape) if isinstance(f, torch.Tensor) else f"a {type(f).__name__}"
        raise ValueError(f"network {name} returns {got} for {len(x)} points; expected ({len(x)}, classes)")
    return int(f.shape[1])


def _check_class_count(C: int, names: Sequence[str], where: str, labelled: bool) -> None:
    if C < 2:
        there = f"{where} labels of {shorten(names, NAMED_CLASSES)} alone" if labelled else f"{where} no labels"
        raise ValueError(
            f"the network has {C} output and {there}; expected two classes or more (--classes names those without "
            "points yet), or numbers and --regression"
        )
    if len(names) != C:
        are = "is 1 class" if len(names) == 1 else f"are {len(names)} classes"
        raise ValueError(
            f"the network has {C} outputs and there {are} ({shorten(names, NAMED_CLASSES)}); give --classes, "
            "all of them in the order of the outputs, or another network"
        )
