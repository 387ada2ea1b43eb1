"""A data set by its name, or by the path of one's own."""

import difflib
import os
from collections.abc import Callable
from pathlib import Path

from foretaste.data._cifar import cifar10, cifar100
from foretaste.data._digits import digits
from foretaste.data._features import features
from foretaste.data._find import MOST, home
from foretaste.data._idx import fashion_mnist, mnist
from foretaste.data._images import Images
from foretaste.data._normalise import check_how, normalised
from foretaste.data._npz import npz
from foretaste.data._svhn import svhn
from foretaste.data._table import columns

READERS: dict[str, Callable[[Path, int], Images]] = {
    "digits": lambda folder, most: digits(),
    "mnist": lambda folder, most: mnist(folder, most=most),
    "fashion-mnist": lambda folder, most: fashion_mnist(folder, most=most),
    "svhn": lambda folder, most: svhn(folder, most=most),
    "cifar10": lambda folder, most: cifar10(folder, most=most),
    "cifar100": lambda folder, most: cifar100(folder, most=most),
    "cifar100-coarse": lambda folder, most: cifar100(folder, "coarse", most=most),
}
NAMES = tuple(READERS)
HUGGING_FACE = ("dataset_dict.json", "dataset_info.json", "state.json")


def load(
    name: str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    *,
    normalise: str = "auto",
    test: float = 0.2,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    skip_broken: bool = False,
    most: int = MOST,
) -> Images:
    """One of ``NAMES``, found in ``folder`` ($FORETASTE_DATA, else ~/.cache/foretaste); or a path.

    A path is an .npz file, a folder of class folders or with a CSV, a CSV of features, or a Hugging Face dataset saved
    to disk; ``test``, the share that measures, is for those without a split of their own, ``size``, ``channels`` and
    ``skip_broken`` for files of images. ``normalise``: "auto" (the data set's own mean and deviation; measured on the
    pool where none are known), "none" or "measured". ``most``: bytes in memory, above which it is refused before it is
    read.
    """
    check_how(normalise)
    where = home() if folder is None else Path(folder).expanduser()
    if isinstance(name, str) and name in READERS:
        only_images({"size": size, "channels": channels, "skip_broken": skip_broken or None}, f"{name} has its own")
        return normalised(READERS[name](where, most), normalise, known=True)
    path = located(name, where)
    if path.suffix.lower() == ".npz":
        only_images(
            {"size": size, "channels": channels, "skip_broken": skip_broken or None}, "an .npz is read as it is"
        )
        return normalised(npz(path, test=test, most=most), normalise, known=False)
    if path.suffix.lower() in (".csv", ".tsv") and path.is_file() and columns(path) is None:
        only_images({"size": size, "channels": channels, "skip_broken": skip_broken or None}, "this CSV names no files")
        return normalised(features(path, test=test), normalise, known=False)
    if path.is_dir() and any((path / file).is_file() for file in HUGGING_FACE):
        from foretaste.data._huggingface import hugging_face

        data = hugging_face(path, size=size, channels=channels, test=test, skip_broken=skip_broken, most=most)
    elif path.is_dir() or path.suffix.lower() in (".csv", ".tsv"):
        from foretaste.data._folder import folder as image_folder

        data = image_folder(path, size=size, channels=channels, test=test, skip_broken=skip_broken, most=most)
    else:
        raise ValueError(
            f"{path} is no data set that can be read; expected an .npz, a CSV, a folder of class folders or with a "
            "CSV, or a Hugging Face dataset saved to disk. Unpack archives first"
        )
    return normalised(data, normalise, known=data.normalise is not None)


def located(name: str | os.PathLike[str], where: Path) -> Path:
    """The path ``name`` as it stands, else below the folder of data sets."""
    path = Path(name).expanduser()
    for candidate in (path, where / path):
        if candidate.exists():
            return candidate
    if not isinstance(name, str) or len(path.parts) > 1 or path.suffix:
        raise FileNotFoundError(f"{path} is not there, nor {where / path}")
    near = difflib.get_close_matches(name.lower().replace("_", "-"), NAMES, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ";"
    raise ValueError(
        f"unknown data set {name!r}{meant} Known: {', '.join(NAMES)}. Or a path: an .npz, a folder of class folders"
    )


def only_images(given: dict[str, object], why: str) -> None:
    if wrong := [f"{key}={value!r}" for key, value in given.items() if value is not None]:
        raise ValueError(f"{', '.join(wrong)}: only for folders of images and Hugging Face datasets; {why}")
