"""A Hugging Face dataset saved to disk, its pictures read as those of a folder are."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from PIL import Image

from foretaste.data._decode import MOST, Progress, decode
from foretaste.data._folder import assemble
from foretaste.data._images import Images
from foretaste.data._listing import told
from foretaste.data._pixels import Side, open_picture
from foretaste.data._table import LABEL, SIDES


def hugging_face(
    path: str | PathLike[str],
    *,
    image: str | None = None,
    label: str | None = None,
    pool: str | None = None,
    test: float | str = 0.2,
    size: Side = None,
    channels: int | None = None,
    skip_broken: bool = False,
    most: int = MOST,
    progress: Progress | None = None,
) -> Images:
    """Read what ``save_to_disk`` wrote, a dataset or several splits of one; the rest is as in ``folder``.

    ``image`` and ``label`` name the columns; None is the only picture and the only ClassLabel there are. ``pool`` and
    ``test`` name splits; without them train and test (or validation), and where there is no such split, or only
    ``pool`` is named, ``test`` is the share of each class to measure on.
    """
    parts = _parts(Path(path), pool, test)
    features = next(iter(parts.values()))[1].features
    image = _picture_column(features, image)
    label = _label_column(features, label)
    read, labels, sides, names = list[tuple[Any, int]](), list[str](), list[str | None](), list[str]()
    for name, (side, part) in parts.items():
        labels += _labels(part, name, label)
        sides += [side] * len(part)
        names += [f"{name}[{i}]" for i in range(len(part))]
        raw = _undecoded(part, image)
        read += [(raw, i) for i in range(len(part))]

    def opened(i: int) -> Image.Image:
        raw, row = read[i]
        cell = raw[row][image]
        if cell is None or not (cell.get("bytes") or cell.get("path")):
            raise ValueError("no picture in this row")
        if not cell.get("bytes"):
            raise ValueError(f"only the path {cell['path']} is stored; save the dataset with its pictures in it")
        return open_picture(cell["bytes"])

    decoded = decode(opened, names, size=size, channels=channels, most=most, skip_broken=skip_broken, progress=progress)
    kept = [int(i) for i in decoded.kept]
    classes = getattr(features[label], "names", None)
    share = test if isinstance(test, float | int) else 0.0
    data = assemble(
        Path(path).resolve().name, decoded, [labels[i] for i in kept], [sides[i] for i in kept], share, classes
    )
    if unused := set(data.classes) - {labels[i] for i in kept}:
        return replace(data, notes=(*data.notes, f"{told(unused, 'class {} has', 'classes {} have')} no picture"))
    return data


def _parts(path: Path, pool: str | None, test: float | str) -> dict[str, tuple[str | None, Any]]:
    """The splits to read, each with its side; the side is None where a share is to be drawn."""
    try:
        import datasets
    except ImportError:
        raise ImportError("reading a Hugging Face dataset needs the package datasets: pip install datasets") from None
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a folder; expected what a dataset's save_to_disk wrote")
    try:
        loaded: Any = datasets.load_from_disk(str(path))
    except Exception as error:  # json, arrow and the package itself each have their own
        raise ValueError(f"{path} cannot be read as a dataset saved to disk: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, dict):
        if pool is not None or isinstance(test, str):
            raise ValueError(f"{path} is one dataset without splits; expected no pool= and a share for test=")
        return {"row": (None, loaded)}
    have = ", ".join(loaded)
    for name in (pool, test):
        if isinstance(name, str) and name not in loaded:
            raise ValueError(f"{path} has no split {name!r}; it has {have}")
    side_of = {name: SIDES.get(name.lower()) for name in loaded}
    learn = pool or next((name for name in loaded if side_of[name] == "pool"), None)
    if learn is None:
        if len(loaded) > 1:
            raise ValueError(f"{path} has the splits {have}, none called train; give pool= (and test=)")
        learn = have
    if isinstance(test, str):
        measure: str | None = test
    elif pool is not None:
        measure = None
    else:
        measure = next((name for side in ("test", "val") for name in loaded if side_of[name] == side), None)
    if measure == learn:
        raise ValueError(f"pool and test are both {learn!r}; expected two splits of {have}")
    if measure is None:
        return {learn: (None, loaded[learn])}
    return {learn: ("pool", loaded[learn]), measure: ("test", loaded[measure])}


def _picture_column(features: Any, given: str | None) -> str:
    return _column("image", given, features, [name for name, kind in features.items() if _kind(kind) == "Image"])


def _label_column(features: Any, given: str | None) -> str:
    found = [name for name, kind in features.items() if _kind(kind) == "ClassLabel"]
    plain = [name for name, kind in features.items() if _kind(kind) == "Value" and name.lower() in LABEL]
    return _column("label", given, features, found or plain)


def _column(what: str, given: str | None, features: Any, found: Sequence[str]) -> str:
    have = ", ".join(f"{name} ({_kind(kind)})" for name, kind in features.items())
    if given is not None:
        fits = ("Image",) if what == "image" else ("ClassLabel", "Value")
        if given not in features or _kind(features[given]) not in fits:
            raise ValueError(f"{what}={given!r} is no column of kind {' or '.join(fits)}; the columns are {have}")
        return given
    if len(found) != 1:
        say = f"{len(found)} columns may be the {what}" if found else f"no column is the {what}"
        raise ValueError(f"{say}; give {what}= one of the columns: {have}")
    return found[0]


def _kind(feature: Any) -> str:
    return type(feature).__name__


def _labels(part: Any, name: str, label: str) -> list[str]:
    """Labels in words; a row without one (null, or −1 for a ClassLabel) is an error."""
    raw = part.select_columns([label]).with_format("arrow")[:].column(0).to_pylist()
    words = getattr(part.features[label], "names", None)
    if missing := sum(v is None or (words is not None and not 0 <= v < len(words)) for v in raw):
        raise ValueError(
            f"{missing} of {len(raw)} rows of {name!r} have no label in {label!r}; leave them out of the dataset, or "
            "give pool= alone to measure on a share of it"
        )
    return [words[v] for v in raw] if words is not None else [str(v) for v in raw]


def _undecoded(part: Any, image: str) -> Any:
    """Rows whose picture is as it was stored: decoding is for our threads, within our limits."""
    import datasets

    return part.select_columns([image]).with_format(None).cast_column(image, datasets.Image(decode=False))
