"""What users give to ``query`` and ``fidelity``: the options that both share, and labelled points with a pool.

Labelled points and the pool come from one file or folder (DATA), or from two (--labelled and --pool). Points of the
pool that are labelled already are left out.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretaste.cli.app import progress_bar

if TYPE_CHECKING:
    from foretaste.data import Points

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

PICTURE_SIDE = 32  # pixels that large pictures, or pictures of several sizes, are scaled to


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
