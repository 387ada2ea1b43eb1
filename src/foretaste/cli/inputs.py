"""What users give: options that several commands share; labelled points with a pool, and the size of pictures.

Labelled points and the pool come from one file or folder (DATA), or from two (--labelled and --pool). Points of the
pool that are labelled already are left out.
"""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretaste.cli.app import progress_bar, say
from foretaste.errors import counted

if TYPE_CHECKING:
    import torch

    from foretaste.data import Points

POINTS = (
    "a folder of pictures, a CSV or Parquet file (of features, a mixed table, text, or file, label), an .npz (x, y, "
    "ids), or a Hugging Face dataset"
)

# Options by their group in --help.
data_option = partial(typer.Option, rich_help_panel="Data")
picture_option = partial(typer.Option, rich_help_panel="Pictures")
network_option = partial(typer.Option, rich_help_panel="Network and training")
kernel_option = partial(typer.Option, rich_help_panel="Kernel and selection")

DataArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="DATA", help=f"Points of which some have a label: {POINTS}. The points without a label are the pool."
    ),
]
LabelledOption = Annotated[
    Path | None, data_option(help="Labelled points, if they are not in DATA: any of its formats.")
]
PoolOption = Annotated[
    Path | None, data_option(help="Points to choose from, with --labelled: any format. Labels are not needed.")
]
LabelColumnOption = Annotated[
    str | None,
    data_option(
        "--label",
        help="The column of labels, or their array; none if nothing is labelled. Default: label, class, category, ...",
    ),
]
TextColumnOption = Annotated[
    str | None,
    data_option(
        "--text",
        help="The column of text; none reads the other columns as a table. Default: the column that holds text.",
    ),
]
IdColumnOption = Annotated[
    str | None, data_option("--id", help="The column of ids. Default: id, name, customer_id, ...")
]
ClassesOption = Annotated[
    str | None, data_option(help="Names of the classes in the order of the network's outputs, separated by commas.")
]
NormaliseOption = Annotated[
    str | None,
    data_option(help='"none", "measured" (on all points), or mean/std: "0.5/0.25", or one number a channel.'),
]
KeptLabelsOption = Annotated[
    str | None,
    data_option(
        "--store",
        help="Folder of the labels that `foretaste label` has collected: they count too. Default: where it keeps them. "
        "none: leave them out.",
    ),
]
SizeOption = Annotated[
    int | None,
    picture_option(min=1, help="Pixels a side. Pictures are scaled and cut. Default: chosen where sizes differ."),
]
ChannelsOption = Annotated[int | None, picture_option(help="1 (grey) or 3 (colour). Default: what the pictures have.")]
SkipBrokenOption = Annotated[
    bool,
    picture_option(
        "--skip-broken/--no-skip-broken", help="Leave out pictures that cannot be read, and name them; or stop."
    ),
]
NetworkOption = Annotated[
    str | None,
    network_option(
        help="mlp, wrn1, wrn2, wrn3, resnet18, or package.module:function of your own. Default: a head for features "
        "of a backbone and for text, mlp for tables, a small wrn1 for pixels."
    ),
]
EncoderOption = Annotated[
    str | None,
    network_option(
        "--backbone",
        "--encoder",
        help="What turns pictures or text into features: efficientnet-lite0 (pictures, the default where it is "
        "installed), all-minilm-l6-v2 (text, likewise), tfidf (text), hashing, hf:NAME, st:NAME, timm:NAME, "
        "torchvision:NAME, or package.module:function. none: a network on the pixels, trained here.",
    ),
]
TuneOption = Annotated[
    str | None,
    network_option(
        metavar="PRESET",
        help="Train a part of the text backbone too, and look ahead with it: last-block, lora, head, or re:PATTERN of "
        "names. Default: the backbone stays as it is, and a head is trained on its features.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    network_option("--set", metavar="KEY=VALUE", help="Options of the network, such as widen=4."),
]
WeightsOption = Annotated[
    Path | None,
    network_option(help="State dict, .safetensors. Without it the network is trained on the labelled points first."),
]
LossOption = Annotated[
    str | None,
    network_option(help="l2 or ce: the loss of the network's training. Default: what --weights says, or l2."),
]
StepsOption = Annotated[
    int | None, network_option(min=1, help="Steps of SGD. Default: 1200, or 320 epochs if that is more.")
]
MaxLrOption = Annotated[float | None, network_option(help="Largest learning rate. Default: 0.5 for l2, 0.1 for ce.")]
BatchOption = Annotated[int, network_option(min=1, help="Points in a step of SGD.")]
BudgetOption = Annotated[str | None, kernel_option(help='Memory for the kernel, such as "8GB".')]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, or auto.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of initial weights, batches and every random draw.")]

PICTURE_SIDE = 32  # pixels that large pictures, or pictures of several sizes, are scaled to


def parse_settings(words: list[str] | None, option: str) -> dict[str, Any]:
    """key=value pairs; a value is read as TOML, or else taken as text. Raises with all that are wrong."""
    from foretaste.study import parse_value

    pairs = [word.partition("=") for word in words or []]
    if bad := ["".join(pair) for pair in pairs if not (pair[0].strip() and pair[1])]:
        raise ValueError(f"{option} {', '.join(bad)}; expected key=value, such as {option} widen=4")
    return {key.strip(): parse_value(value) for key, _, value in pairs}


def check_inputs_exist(data: Path | None, labelled: Path | None, pool: Path | None) -> list[Path]:
    """The files to read: DATA, or --labelled and --pool. Raises if they do not go together or are missing."""
    if data is not None and (labelled or pool):
        raise ValueError(
            "DATA and --labelled or --pool were given; DATA holds labelled points and the pool, so give it alone"
        )
    if data is None and (labelled is None or pool is None):
        missing = " and ".join(name for name, path in (("--labelled", labelled), ("--pool", pool)) if path is None)
        alone = "; a pool without any labels is DATA, too" if pool else ""
        raise ValueError(
            f"{missing} not given; expected DATA, one file or folder in which some points have labels, or else "
            f"--labelled and --pool{alone}"
        )
    paths = [path for path in (data, labelled, pool) if path is not None]
    for path in paths:
        if not path.expanduser().exists():
            raise FileNotFoundError(f"{path} does not exist; expected {POINTS}")
    return paths


def read_inputs(
    data: Path | None, labelled: Path | None, pool: Path | None, *, network: str | None, weights: Path | None,
    encoder: str | None = None, label: str | None = None, text: str | None = None, id: str | None = None,
    regression: bool = False, size: int | None = None, channels: int | None = None, skip_broken: bool = True,
    store: str | None = None, device: str = "auto", needs_labels: bool = True, tuned: bool = False,
) -> "tuple[Points, list[str | None] | None]":  # fmt: skip
    """Points of which some are labelled, encoded when ``x`` is asked for; and the labels of --pool, in its order.

    ``tuned``: x are the token ids of texts, for a backbone that is trained.

    Points of the pool that are labelled already are left out. Unless ``needs_labels``, DATA may have none.
    """
    from foretaste.connect import add_answers, encode_with, warn_of_contradiction
    from foretaste.data import TEXT_ENCODERS, join_sources, read_points, without_repeats

    paths, where = check_inputs_exist(data, labelled, pool), find_device(device)
    with progress_bar("reading") as progress:
        read = partial(
            read_points, id=id, text=column_or_none(text), regression=regression, skip_broken=skip_broken,
            encoder=encoder if encoder in TEXT_ENCODERS else "auto", progress=progress,
        )  # fmt: skip
        first = read(paths[0], label=column_or_none(label))
        second = read(pool, ask=False) if pool else None
    first = add_answers(first, paths[0], False if store == "none" else store)
    first, second = first.without_test(), None if second is None else second.without_test()
    known = first.take(first.labelled)
    if not len(known) and (needs_labels or second is not None):
        raise ValueError(
            f"{known.where} has no labels, and a network needs some to learn from; label a few points of each class "
            "first: class folders, a column label, or y in an .npz; or start with `foretaste label`, which needs none"
        )
    if second is None:
        rest = first.take(first.pool)
        left, truth = without_repeats(rest, known), None
        gone = {*rest.ids} - {*left.ids}
        points = first.take([i for i, name in enumerate(first.ids) if name not in gone])
        points = replace(points, notes=tuple(f"{first.where}: {note}" for note in left.notes))
    else:
        left = without_repeats(second, known)
        points, truth = join_sources(known, left), left.labels
        if without := len(first) - len(known):
            note = "no label: left out. To choose among points without one, give DATA alone"
            points = replace(points, notes=(*points.notes, f"{counted(without, 'point has', 'points have')} {note}"))
    warn_of_contradiction(points)
    chosen, shape, notes = choose_encoder(points, encoder, network, weights, size, channels)
    points = replace(points, notes=(*points.notes, *notes))
    if tuned:
        return encode_with(points, token_encoder(points, chosen)), truth
    bar = BarOfFeatures(chosen)
    return encode_with(points, chosen, size=shape, channels=channels, device=where, progress=bar), truth


def token_encoder(points: "Points", backbone: str) -> Any:
    """What makes token ids of texts, by the tokenizer of a backbone."""
    from foretaste.data import TEXT_ENCODERS
    from foretaste.network import find_backbone, text_ids

    if points.kind != "text":
        raise ValueError(
            f"--tune is for text, and {points.where} holds {points.kind}; leave it out, or name the --text column"
        )
    if backbone in (*TEXT_ENCODERS, "auto", "none"):
        raise ValueError(
            f"--tune trains a part of a network, and the backbone is {backbone}; give --backbone hf:FOLDER"
        )
    return partial(text_ids, backbone=find_backbone(backbone, kind="text"))


def split_classes(text: str | None) -> list[str] | None:
    """Names of classes, separated by commas."""
    if text is None:
        return None
    names = split_names("--classes", text)
    if len(names) < 2:
        raise ValueError(f"--classes names 1 class, {names[0]}; expected at least two")
    return names


def split_names(option: str, text: str | None) -> list[str]:
    """Names of an option, separated by commas; none if it is not given."""
    names = [] if text is None else [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"{option} is {text!r}; expected different names, separated by commas")
    return names


def find_device(name: str) -> "torch.device":
    """The device that --device names."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device {name}; expected cpu, cuda, cuda:1, or auto") from None
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"--device {name} and torch sees {counted(torch.cuda.device_count(), 'CUDA device')}; use cpu or auto"
        )
    return where


class BarOfFeatures:
    """A bar for ``encode_with``, and words if a backbone computes features: not if they were kept, nor for pixels.

    A backbone calls first with 0, before it looks for what was kept, which takes a while for large pictures. Another
    call before the end means that features are computed.
    """

    def __init__(self, encoder: str) -> None:
        self.encoder, self.bars, self.calls = encoder, ExitStack(), 0
        self.show: Any = None

    def __call__(self, done: int, total: int) -> None:
        if done >= total:
            self.bars.close()
            self.calls = 0
            return
        self.calls += 1
        if self.calls == 1:
            what = "reading pixels" if self.encoder == "pixels" else f"looking for features by {self.encoder}"
            self.show = self.bars.enter_context(progress_bar(what))
        elif self.calls == 2 and self.encoder != "pixels":
            self.bars.close()
            say(f"Features of {counted(total - done, 'point')} by {self.encoder}: computed once, then kept.")
            self.show = self.bars.enter_context(progress_bar(f"features by {self.encoder}"))
        self.show(done, total)


def column_or_none(name: str | None) -> str | bool | None:
    """The column of --text or --label; False for none (or false), which says that there is no such column."""
    return False if name is not None and name.lower() in ("none", "false") else name


def choose_encoder(
    points: "Points", encoder: str | None, network: str | None, weights: Path | None, size: int | None,
    channels: int | None,
) -> tuple[str, Any, list[str]]:  # fmt: skip
    """The encoder, the size of pixels, and notes.

    A network or weights that the user names take pixels, and so does a size; otherwise pictures go to a backbone. So do
    texts, unless there are weights: those were trained on TF-IDF, or the backbone is named.
    """
    from foretaste.connect import HOW_TO_INSTALL, default_backbone

    if points.kind == "text" and encoder in (None, "auto"):
        return "tfidf" if weights or size or channels else default_backbone("text") or "auto", size, []
    if points.kind != "pictures":
        return encoder or "auto", size, []
    hint = []
    if encoder is None or encoder == "auto":
        for_pixels = network or weights or size or channels
        encoder = "pixels" if for_pixels else default_backbone("pictures") or "pixels"
        hint = [] if for_pixels else [HOW_TO_INSTALL]
    if encoder not in ("pixels", "none"):
        return encoder, size, []
    shape, notes = (size, []) if size else choose_picture_size(points, network, weights)
    return "pixels", shape, notes + hint


def choose_picture_size(
    points: "Points", network: str | None, weights: Path | None
) -> tuple[tuple[int, int] | None, list[str]]:
    """(height, width) to scale pictures to, with a note; None to leave them as they are.

    Weights that know their size decide. Otherwise pictures of several sizes become small squares, and so do large
    ones unless the user named a network. For a network of the user's own only the user can choose.
    """
    from foretaste.network import saved_network

    sizes, several = points.sizes, len(points.sizes) > 1
    largest = max((max(size) for size in sizes), default=0)
    shape = saved_network(weights).shape if weights else None
    chosen, why = (PICTURE_SIDE, PICTURE_SIDE), "--size chooses another"
    if shape is not None and len(shape) == 3:
        chosen, why = (shape[1], shape[2]), "the size that the weights were trained on"
    elif weights or (network and ":" in network) or (not several and (network or largest <= PICTURE_SIDE)):
        return None, []
    if set(sizes) <= {chosen} or points.encode is None:  # arrays have one size, and keep it
        return None, []
    kinds = f"{len(sizes)} sizes" if several else "one size, {1}×{0},".format(*next(iter(sizes)))
    return chosen, [f"pictures of {kinds} are scaled and cut to {chosen[1]}×{chosen[0]} pixels ({why})"]
