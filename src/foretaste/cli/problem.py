"""A network, its labelled points and a pool that fit together: what ``query`` and ``fidelity`` begin with.

First the options that both commands share, then the steps: build the network, drop points of the pool that have a
label already, turn labels into class ids, train.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretaste.cli.app import progress_bar
from foretaste.errors import did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from foretaste.data import Points
    from foretaste.network import Fit

POINTS = (
    "a folder of pictures, a CSV (id, label, features, or file, label), an .npz (x, y, ids), or a Hugging Face dataset"
)

DATA_PANEL, NETWORK_PANEL = "Data", "Network and training"  # of --help

DataArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="DATA", help=f"Points of which some have a label: {POINTS}. The points without a label are the pool."
    ),
]

NetworkOption = Annotated[
    str | None,
    typer.Option(
        help="mlp, wrn1, wrn2, wrn3, resnet18, or package.module:function of your own. "
        "Default: a small wrn1 for pictures, mlp for features.",
        rich_help_panel=NETWORK_PANEL,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Options of the network, such as widen=4.", rich_help_panel=NETWORK_PANEL),
]
WeightsOption = Annotated[
    Path | None,
    typer.Option(
        help="State dict, .safetensors. Without it the network is trained on the labelled points first.",
        rich_help_panel=NETWORK_PANEL,
    ),
]
LabelledOption = Annotated[
    Path | None,
    typer.Option(help="Labelled points, if they are not in DATA: any of its formats.", rich_help_panel=DATA_PANEL),
]
PoolOption = Annotated[
    Path | None,
    typer.Option(
        help="Points to choose from, with --labelled: any format. Labels are not needed.", rich_help_panel=DATA_PANEL
    ),
]
ClassesOption = Annotated[
    str | None,
    typer.Option(
        help="Names of the classes in the order of the network's outputs, separated by commas.",
        rich_help_panel=DATA_PANEL,
    ),
]
LossOption = Annotated[
    str | None,
    typer.Option(
        help="l2 or ce: the loss of the network's training. Default: what --weights says, or l2.",
        rich_help_panel=NETWORK_PANEL,
    ),
]
NormaliseOption = Annotated[
    str | None,
    typer.Option(
        help='"none", "measured" (on all points), or mean/std: "0.5/0.25", or one number a channel.',
        rich_help_panel=DATA_PANEL,
    ),
]
SizeOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Pixels a side. Pictures are scaled and cut. Default: chosen where sizes differ.",
        rich_help_panel=DATA_PANEL,
    ),
]
ChannelsOption = Annotated[
    int | None,
    typer.Option(help="1 (grey) or 3 (colour). Default: what the pictures have.", rich_help_panel=DATA_PANEL),
]
SkipBrokenOption = Annotated[
    bool, typer.Option("--skip-broken", help="Leave out pictures that cannot be read.", rich_help_panel=DATA_PANEL)
]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, or auto.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of initial weights, batches and every random draw.")]
StepsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Steps of SGD. Default: 1200, or 320 epochs if that is more.", rich_help_panel=NETWORK_PANEL
    ),
]
MaxLrOption = Annotated[
    float | None,
    typer.Option(help="Largest learning rate. Default: 0.5 for l2, 0.1 for ce.", rich_help_panel=NETWORK_PANEL),
]
BatchOption = Annotated[int, typer.Option(min=1, help="Points in a step of SGD.", rich_help_panel=NETWORK_PANEL)]

# Unless --network names one. Small, so that a minute on two cores is enough.
PICTURE_NETWORK: tuple[str, dict[str, Any]] = ("wrn1", {"widen": 1})
FEATURE_NETWORK: tuple[str, dict[str, Any]] = ("mlp", {})
PICTURE_SIDE = 32  # pixels

ChannelScale = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel


@dataclass(frozen=True, eq=False)
class Problem:
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


def check_inputs_exist(data: Path | None, labelled: Path | None, pool: Path | None) -> list[Path]:
    """The files to read: DATA, or --labelled and --pool. Raises if they do not go together or are missing."""
    if data is not None and (labelled or pool):
        raise ValueError(
            "DATA and --labelled or --pool were given; DATA holds labelled points and the pool, so give it alone"
        )
    if data is None and (labelled is None or pool is None):
        missing = " and ".join(name for name, path in (("--labelled", labelled), ("--pool", pool)) if path is None)
        raise ValueError(
            f"{missing} not given; expected DATA, one file or folder in which some points have labels, or else "
            "--labelled and --pool"
        )
    paths = [path for path in (data, labelled, pool) if path is not None]
    for path in paths:
        if not path.expanduser().exists():
            raise FileNotFoundError(f"{path} does not exist; expected {POINTS}")
    return paths


def read_inputs(
    data: Path | None,
    labelled: Path | None,
    pool: Path | None,
    *,
    network: str | None,
    weights: Path | None,
    regression: bool = False,
    size: int | None = None,
    channels: int | None = None,
    skip_broken: bool = False,
) -> "tuple[Points, Points]":
    """Labelled points and a pool; points of the pool that are labelled already are left out."""
    from foretaste.data import read_points

    paths = check_inputs_exist(data, labelled, pool)
    shape, note = (size, None) if size else choose_picture_size(paths, network, weights)
    with progress_bar("reading") as progress:
        parts = [
            read_points(
                path, regression=regression, size=shape, channels=channels, skip_broken=skip_broken, progress=progress
            )
            for path in paths
        ]
    known, candidates = (parts[0].labelled, parts[0].unlabelled) if data else (parts[0].labelled, parts[1])
    if not len(known):
        raise ValueError(
            f"{known.where} has no labels, and a network needs some to learn from; label a few points of each class "
            "first: class folders, a column label, or y in an .npz"
        )
    notes = [note] if note else []
    if not data and (without := len(parts[0]) - len(known)):
        notes.append(f"{without} points have no label: left out. Without --pool they are the pool: give DATA alone")
    _check_same_kind(known, candidates)
    return replace(known, notes=(*known.notes, *notes)), without_labelled(candidates, known)


def choose_picture_size(
    paths: Sequence[Path], network: str | None, weights: Path | None
) -> tuple[tuple[int, int] | None, str | None]:
    """(height, width) to scale pictures to, and a note; None to leave them as they are.

    Weights that know their size decide. Otherwise pictures of several sizes become small squares, and so do large
    ones unless the user named a network. For a network of the user's own only the user can choose.
    """
    from foretaste.data import picture_sizes
    from foretaste.network import saved_network

    sizes = sum((picture_sizes(path) for path in paths), Counter[tuple[int, int]]())
    shape = saved_network(weights).shape if weights else None
    largest = max((max(size) for size in sizes), default=0)
    if shape is not None and len(shape) == 3:
        chosen, why = (shape[1], shape[2]), "the size that the weights were trained on"
    elif weights is None and (network is None or (":" not in network and len(sizes) > 1)):
        if len(sizes) <= 1 and largest <= PICTURE_SIDE:
            return None, None
        chosen, why = (PICTURE_SIDE, PICTURE_SIDE), "--size chooses another"
    else:
        return None, None
    if set(sizes) <= {chosen}:
        return None, None
    kinds = f"{len(sizes)} sizes" if len(sizes) > 1 else "one size, {1}×{0},".format(*next(iter(sizes)))
    return chosen, f"pictures of {kinds} are scaled and cut to {chosen[1]}×{chosen[0]} pixels ({why})"


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
) -> Problem:
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
    return Problem(
        net, name, options, labelled, pool, labelled.x.to(where), y_L.to(where), pool.x.to(where),
        None if y_U is None else y_U.to(where), names, loss or about.loss or "l2", scale, None, tuple(notes),
    )  # fmt: skip


def describe_network(problem: Problem) -> str:
    """The network's name, with the options that were given: wrn1 (widen=1)."""
    options = ", ".join(f"{key}={value}" for key, value in problem.options.items())
    return f"{problem.name} ({options})" if options else problem.name


def train_problem(problem: Problem, progress: Callable[[int, int], object] | None = None, **settings: Any) -> Problem:
    """The same problem, its network trained on the labelled points from its initial weights."""
    from foretaste.network import fit

    p = problem
    fitted = fit(p.net, p.x_L, p.y_L, loss=p.loss, normalise=p.normalise, progress=progress, **settings)
    return replace(p, fitted=fitted)


def save_problem(problem: Problem, path: Path) -> Path:
    """Save the network with everything that ``--weights`` needs to load it."""
    from foretaste.network import save_network

    p = problem
    own = (p.name, p.options) if ":" in p.name else (None, None)  # networks of foretaste describe themselves
    return save_network(
        p.net, path, network=own[0], options=own[1], classes=p.classes or None, normalise=p.normalise, loss=p.loss,
        shape=tuple(p.x_L.shape[1:]),
    )  # fmt: skip


def parse_settings(words: Iterable[str], option: str) -> dict[str, Any]:
    """key=value pairs; a value is read as TOML, or else taken as text. Raises with all that are wrong."""
    from foretaste.study import parse_value

    words, found = list(words), dict[str, Any]()
    if bad := [word for word in words if "=" not in word or not word.partition("=")[0].strip()]:
        raise ValueError(f"{option} {', '.join(bad)}; expected key=value, such as {option} widen=4")
    for word in words:
        key, _, value = word.partition("=")
        found[key.strip()] = parse_value(value)
    return found


def without_labelled(pool: "Points", labelled: "Points") -> "Points":
    """The pool without points that are labelled already, with a note that says how many there were.

    Two points are the same if they are the same file, if the user gave them the same id, or if their values are equal.
    """
    known_keys, known_values = set(_identities(labelled)), set(_value_hashes(labelled))
    same_key = [key is not None and key in known_keys for key in _identities(pool)]
    same_values = [value in known_values for value in _value_hashes(pool)]
    kept = [j for j in range(len(pool)) if not (same_key[j] or same_values[j])]
    if len(kept) == len(pool):
        return pool
    first = next(i for i, a, b in zip(pool.ids, same_key, same_values) if a or b)
    note = f"{len(pool) - len(kept)} points are labelled already, such as {first}: left out of the pool"
    if differ := sum(a and not b for a, b in zip(same_key, same_values)):
        note += f" ({differ} of them by their id alone: their values differ)"
    return replace(pool.take(kept), notes=(*pool.notes, note))


def _identities(points: "Points") -> list[str | None]:
    """What names each point beyond its file: the path of a picture, or the user's id. None for positions."""
    if not points.own_ids:
        return [None] * len(points)
    where = Path(points.where)
    root = where if where.is_dir() else where.parent
    return [str(path.resolve()) if (path := root / name).is_file() else name for name in points.ids]


def _value_hashes(points: "Points") -> list[bytes]:
    return [blake2b(values.tobytes(), digest_size=16).digest() for values in points.x.contiguous().numpy()]


def _check_same_kind(labelled: "Points", pool: "Points") -> None:
    a, b = labelled, pool
    if a.features and b.features and a.features != b.features:
        missing, over = [f for f in a.features if f not in b.features], [f for f in b.features if f not in a.features]
        faults = [
            f"{what}: {', '.join(names[:10])}" for what, names in (("lacks", missing), ("has besides", over)) if names
        ]
        raise ValueError(
            f"columns of {b.where} are not those of {a.where}; it {'; '.join(faults) or 'has another order'}"
        )
    if a.x.shape[1:] != b.x.shape[1:] or a.x.dtype != b.x.dtype:
        kinds = [f"{p.where} are {tuple(p.x.shape[1:])} of {str(p.x.dtype).removeprefix('torch.')}" for p in (a, b)]
        raise ValueError(
            f"points of {kinds[0]}, those of {kinds[1]}; expected both alike (--size, --channels for pictures)"
        )


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

    try:
        with torch.no_grad():
            f = net(x)
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
        return tuple(map(str, range(max(outputs or 0, 1 + max(map(int, labels))))))
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
