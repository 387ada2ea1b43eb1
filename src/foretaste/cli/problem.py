"""A network, its labelled points and a pool that fit together: what ``query`` and ``fidelity`` begin with.

Build or load the network, check that the points suit it, turn labels into class ids, train, save.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretaste.cli.app import name_options
from foretaste.errors import did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from foretaste.data import Points
    from foretaste.network import Fit

# Unless --network names one. Small, so that a minute on two cores is enough.
PICTURE_NETWORK: tuple[str, dict[str, Any]] = ("wrn1", {"widen": 1})
FEATURE_NETWORK: tuple[str, dict[str, Any]] = ("mlp", {})
MOST_CLASSES = 100_000  # where labels are numbers: each number up to the largest is a class
ChannelScale = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel


@dataclass(frozen=True, eq=False)
class LabellingProblem:
    """A network and its points on one device. Labels are class ids, or numbers in regression."""

    net: "nn.Module"
    name: str
    options: dict[str, Any]
    labelled: "Points"
    pool: "Points"
    x_L: "Tensor"
    y_L: "Tensor"
    x_U: "Tensor"
    y_U: "Tensor | None"  # true classes, where the pool has labels and all are known
    classes: tuple[str, ...]  # empty in regression
    loss: str
    normalise: ChannelScale | None
    fitted: "Fit | None" = None
    notes: tuple[str, ...] = ()

    def feed(self, x: "Tensor") -> "Tensor":
        """Points as the network takes them."""
        from foretaste.network import prepare

        return prepare(x, next(self.net.parameters()).dtype, self.normalise)


def make_problem(
    labelled: "Points",
    pool: "Points",
    *,
    network: str | None,
    options: dict[str, Any],
    weights: Path | None,
    classes: str | None = None,
    loss: str | None = None,
    normalise: str | None = None,
    regression: bool = False,
    device: str = "auto",
    seed: int = 0,
) -> LabellingProblem:
    """Check that everything fits together; raise with what does not. Without weights the network is untrained."""
    from foretaste.network import SavedNetwork, prepare, saved_network

    about = saved_network(weights) if weights else SavedNetwork()
    where = _find_device(device)
    named = tuple(c.strip() for c in classes.split(",")) if classes else about.classes or labelled.classes
    expected = named or (() if regression else class_names(labelled, None))
    shape = tuple(labelled.x.shape[1:])
    outputs = 1 if regression else len(expected)
    if weights is None:
        name, net, options = _new_network(network, options, outputs, shape, seed)
    else:
        from foretaste.network import load_network

        net = load_network(network, weights, options=options, classes=None if named is None else outputs, shape=shape)
        name = network or about.network or ""
        options = {**about.options, **options} if name == about.network else options
    net = net.to(where).eval()
    if normalise is None and weights is None and labelled.x.dim() == 2:
        normalise = "measured"  # columns of a table have units of their own, and SGD does not learn from those
    scale = _channel_scale(normalise, about.normalise, labelled, pool)
    C = _count_outputs(net, prepare(labelled.x[:2].to(where), next(net.parameters()).dtype, scale), shape, name)
    notes = list(dict.fromkeys(f"{points.where}: {note}" for points in (labelled, pool) for note in points.notes))
    names: tuple[str, ...] = ()
    if regression:
        if C != 1:
            raise ValueError(f"--regression and the network has {C} outputs; expected one")
        y_L, y_U = label_numbers(labelled), None
    else:
        names = named or class_names(labelled, C)
        _check_class_count(C, names, labelled)
        if weights and not named and not _all_digits(labelled.known_labels):
            notes.append(f"outputs are taken to be, in this order: {shorten(names)}; give --classes if they are not")
        y_L = class_ids(labelled, names)
        y_U, note = pool_truth(pool, names)
        notes += [note] if note else []
    return LabellingProblem(
        net, name, options, labelled, pool, labelled.x.to(where), y_L.to(where), pool.x.to(where),
        None if y_U is None else y_U.to(where), names, loss or about.loss or "l2", scale, None, tuple(notes),
    )  # fmt: skip


def describe_network(problem: LabellingProblem) -> str:
    """The network's name, with the options that were given: wrn1 (widen=1)."""
    options = ", ".join(f"{key}={value}" for key, value in problem.options.items())
    return f"{problem.name} ({options})" if options else problem.name


def train_problem(
    problem: LabellingProblem, progress: Callable[[int, int], object] | None = None, **settings: Any
) -> LabellingProblem:
    """The same problem, its network trained on the labelled points from its initial weights."""
    from foretaste.network import fit

    p = problem
    try:
        fitted = fit(p.net, p.x_L, p.y_L, loss=p.loss, normalise=p.normalise, progress=progress, **settings)
    except ValueError as error:
        error.args = (name_options(str(error), {"batch_size": "--batch"}),)
        raise
    return replace(p, fitted=fitted)


def save_problem(problem: LabellingProblem, path: Path) -> Path:
    """Save the network with everything that ``--weights`` needs to load it."""
    from foretaste.network import save_network

    p = problem
    own = (p.name, p.options) if ":" in p.name else (None, None)  # networks of foretaste describe themselves
    return save_network(
        p.net, path, network=own[0], options=own[1], classes=p.classes or None, normalise=p.normalise, loss=p.loss,
        shape=tuple(p.x_L.shape[1:]),
    )  # fmt: skip


def _find_device(name: str) -> "torch.device":
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device {name}; expected cpu, cuda, cuda:1, or auto") from None
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {name} and there are {torch.cuda.device_count()} CUDA devices; use cpu or auto")
    return where


def _new_network(
    network: str | None, options: dict[str, Any], outputs: int, shape: tuple[int, ...], seed: int
) -> tuple[str, "nn.Module", dict[str, Any]]:
    """An untrained network: its name, the network and its options."""
    import torch

    from foretaste.network import make_network, seeded

    if network is None:
        network, small = PICTURE_NETWORK if len(shape) == 3 else FEATURE_NETWORK
        options = {**small, **options}
    with seeded(seed, torch.device("cpu")):
        return network, make_network(network, options=options, classes=outputs, shape=shape), options


def _channel_scale(how: str | None, saved_scale: Any, labelled: "Points", pool: "Points") -> ChannelScale | None:
    """The mean and deviation that --normalise asks for, or that the weights were saved with."""
    if how is None:
        return saved_scale and tuple(tuple(v) if isinstance(v, list | tuple) else (v,) for v in saved_scale)
    if how == "none":
        return None
    if how == "measured":
        import torch

        from foretaste.data import Images, measured

        x = torch.cat([labelled.x, pool.x])
        return measured(Images("", x, torch.zeros(len(x)), torch.arange(len(x)).numpy(), torch.arange(0).numpy(), ()))
    try:
        mean, std = (tuple(float(v) for v in part.split(",")) for part in how.split("/"))
    except ValueError:
        raise ValueError(f'--normalise {how!r}; expected "none", "measured" or mean/std such as "0.5/0.25"') from None
    n = labelled.x.shape[1]
    if {len(mean), len(std)} - {1, n} or not all(math.isfinite(v) for v in (*mean, *std)) or min(std) <= 0:
        raise ValueError(f"--normalise {how!r}; expected mean/std > 0, one number each or one for each of {n} channels")
    return mean, std


def _count_outputs(net: "nn.Module", x: "Tensor", shape: tuple[int, ...], name: str) -> int:
    """C, from a forward pass of a few points."""
    import torch

    from foretaste.tangent import freeze

    try:
        with torch.no_grad():
            f = freeze(net, params=lambda name: True).call(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"network {name} does not take points of shape {shape} ({first}); give another file or network"
        ) from None
    if not isinstance(f, torch.Tensor) or f.dim() != 2 or len(f) != len(x):
        got = tuple(f.shape) if isinstance(f, torch.Tensor) else f"a {type(f).__name__}"
        raise ValueError(f"network {name} returns {got} for {len(x)} points; expected ({len(x)}, classes)")
    return int(f.shape[1])


def _check_class_count(C: int, names: Sequence[str], labelled: "Points") -> None:
    if C < 2:
        raise ValueError(
            f"the network has {C} output and {labelled.where} labels of {shorten(names)} alone; expected two classes "
            "or more (--classes names those without points yet), or numbers and --regression"
        )
    if len(names) != C:
        raise ValueError(
            f"the network has {C} outputs and there are {len(names)} classes ({shorten(names)}); give --classes, "
            "all of them in the order of the outputs, or another network"
        )


def class_names(labelled: "Points", outputs: int | None) -> tuple[str, ...]:
    """The classes of the labels: integers are class ids from 0, words stand in natural order."""
    from foretaste.data import natural_key

    labels = labelled.known_labels
    if _all_digits(labels):
        largest = max((label.lstrip("0") for label in labels), key=lambda digits: (len(digits), digits))
        if len(largest) > len(str(MOST_CLASSES)) or int(largest or 0) >= MOST_CLASSES:
            raise ValueError(
                f"{labelled.where}: label {shorten([largest[:20]])} is a number, and numbers count classes from 0; "
                f"expected less than {MOST_CLASSES}. Write labels as words, or give --classes"
            )
        return tuple(map(str, range(max(outputs or 0, 1 + int(largest or 0)))))
    return tuple(sorted(set(labels), key=natural_key))


def _all_digits(labels: Sequence[str]) -> bool:
    return all(label.isdecimal() for label in labels)


def class_ids(points: "Points", classes: Sequence[str]) -> "Tensor":
    """(N,) positions of the labels among the classes. Raises with all unknown labels."""
    import torch

    from foretaste.data import natural_key

    labels = points.known_labels
    at = {name: c for c, name in enumerate(classes)}
    unknown = sorted({label for label in labels if label not in at}, key=natural_key)
    if unknown and _all_digits(labels) and max(map(int, labels)) < len(classes):
        return torch.tensor([int(label) for label in labels])  # ids of classes that have names
    if unknown:
        raise ValueError(
            f"{points.where}: {len(unknown)} labels are no class of the network: {shorten(list(map(repr, unknown)))}"
            f"{did_you_mean(unknown[0], classes, 'Its classes')}"
        )
    return torch.tensor([at[label] for label in labels])


def pool_truth(pool: "Points", classes: Sequence[str]) -> "tuple[Tensor | None, str | None]":
    """Class ids of the pool if all its points have labels; or None, and a note if the labels cannot be used."""
    if None in pool.labels:
        return None, None
    try:
        return class_ids(pool, classes), None
    except ValueError as error:
        return None, f"labels of the pool are not used: {error}"


def label_numbers(points: "Points") -> "Tensor":
    """(N,) labels as numbers, for regression."""
    import torch

    try:
        y = torch.tensor([float(label) for label in points.known_labels])
    except ValueError as error:
        raise ValueError(f"{points.where}: --regression wants numbers as labels ({error})") from None
    if not torch.isfinite(y).all():
        raise ValueError(f"{points.where}: {int((~torch.isfinite(y)).sum())} labels are not finite numbers")
    return y


def shorten(names: Sequence[str], most: int = 12) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
