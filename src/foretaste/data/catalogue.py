"""The data sets known by name: their files and publishers, where they lie on disk, and what reads them.

To add one, add it to ``CATALOGUE`` if it is downloaded, and to ``NAMED_READERS``.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretaste.data.cifar import read_cifar10, read_cifar100
from foretaste.data.dataset import Images, MeanAndStd
from foretaste.data.named import (
    DIGIT_NAMES,
    FIRST_LABELS,
    breast_cancer,
    digits,
    docstrings,
    read_idx,
    read_idx_set,
    read_svhn,
    set_with_labels,
    wine,
)

CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
FASHION_NORMALISE: MeanAndStd = ((0.2860,), (0.3530,))


@dataclass(frozen=True)
class RemoteFile:
    """One file to download. An archive is unpacked to the folder ``becomes`` and then deleted."""

    name: str
    urls: tuple[str, ...]  # tried in this order
    size: int  # bytes
    md5: str  # the publisher's; it detects damage, and a page that says "moved"
    becomes: str | None = None
    unpacked: int = 0  # bytes, at most


@dataclass(frozen=True)
class DataSource:
    """A data set: what it holds, where its publisher keeps it, and where its files may lie on disk."""

    images: str  # in words: pool and test
    classes: int
    shape: str
    licence: str
    cite: str
    files: tuple[RemoteFile, ...]
    layouts: tuple[str, ...] = ("",)  # where to look, in this order; "" is the folder of data sets itself
    wanted: Mapping[str, Sequence[str]] = field(default_factory=dict)  # role: the names its file may have

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)


def _downloads(bases: Sequence[str], sums: Mapping[str, tuple[int, str]], **archive: Any) -> tuple[RemoteFile, ...]:
    """Files by name, with their sizes and checksums, at each of the addresses."""
    return tuple(RemoteFile(name, tuple(b + name for b in bases), *found, **archive) for name, found in sums.items())


def _idx_layouts(folders: Sequence[str], inside: str) -> tuple[str, ...]:
    """torchvision's layouts and plain files, in folders of the set's name, then in the folder of data sets itself."""
    places = [f"{folder}{deep}" for folder in [f"{name}/" for name in folders] + [""] for deep in ("raw", inside, "")]
    return tuple(dict.fromkeys(place.rstrip("/") for place in places))


IDX_WANTED = {
    f"{part} {kind}": [f"{part}-{kind}{dot}idx{dims}-ubyte{gz}" for gz in ("", ".gz") for dot in ("-", ".")]
    for part in ("train", "t10k")
    for kind, dims in (("images", 3), ("labels", 1))
}
CIFAR10_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))

MNIST_URLS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
FASHION_URLS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
)
STANFORD_URL = ("http://ufldl.stanford.edu/housenumbers/",)
TORONTO_URL = ("https://www.cs.toronto.edu/~kriz/",)
CIFAR_UNPACKED = 250_000_000  # bytes, at most
CIFAR_PAPER = "Krizhevsky, Learning multiple layers of features from tiny images, 2009"

CATALOGUE: dict[str, DataSource] = {
    "mnist": DataSource(
        "60k + 10k", 10, "28×28×1", "CC BY-SA 3.0",
        "LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, 1998",
        _downloads(MNIST_URLS, {
            "train-images-idx3-ubyte.gz": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            "train-labels-idx1-ubyte.gz": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
            "t10k-images-idx3-ubyte.gz": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
            "t10k-labels-idx1-ubyte.gz": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
        }),
        _idx_layouts(("mnist", "MNIST"), "MNIST/raw"), IDX_WANTED,
    ),
    "fashion-mnist": DataSource(
        "60k + 10k", 10, "28×28×1", "MIT",
        "Xiao, Rasul and Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking, 2017 (Zalando SE)",
        _downloads(FASHION_URLS, {
            "train-images-idx3-ubyte.gz": (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            "train-labels-idx1-ubyte.gz": (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
            "t10k-images-idx3-ubyte.gz": (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
            "t10k-labels-idx1-ubyte.gz": (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
        }),
        _idx_layouts(("fashion-mnist", "fashion_mnist", "FashionMNIST"), "FashionMNIST/raw"), IDX_WANTED,
    ),
    "svhn": DataSource(
        "73k + 26k", 10, "32×32×3", "non-commercial",
        "Netzer, Wang, Coates, Bissacco, Wu and Ng, Reading digits in natural images, 2011",
        _downloads(STANFORD_URL, {
            "train_32x32.mat": (182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
            "test_32x32.mat": (64_275_384, "eb5a983be6a315427106f1b164d9cef3"),
        }),
        ("svhn", "SVHN", ""), {part: [f"{part}_32x32.mat"] for part in ("train", "test")},
    ),
    "cifar10": DataSource(
        "50k + 10k", 10, "32×32×3", "cite the paper", CIFAR_PAPER,
        _downloads(
            TORONTO_URL, {"cifar-10-python.tar.gz": (170_498_071, "c58f30108f718f92721af3b95e74349a")},
            becomes="cifar-10-batches-py", unpacked=CIFAR_UNPACKED,
        ),
        ("cifar10/cifar-10-batches-py", "cifar10", "cifar-10-batches-py", ""),
        {name: [name] for name in (*CIFAR10_BATCHES, "test_batch")},
    ),
    "cifar100": DataSource(
        "50k + 10k", 100, "32×32×3", "cite the paper", CIFAR_PAPER,
        _downloads(
            TORONTO_URL, {"cifar-100-python.tar.gz": (169_001_437, "eb9058c3a382ffc7106e4002c42a8d85")},
            becomes="cifar-100-python", unpacked=CIFAR_UNPACKED,
        ),
        ("cifar100/cifar-100-python", "cifar100", "cifar-100-python", ""), {"train": ["train"], "test": ["test"]},
    ),
}  # fmt: skip


def home() -> Path:
    """The folder of data sets: $FORETASTE_DATA where it is set, else ~/.cache/foretaste."""
    given = os.environ.get("FORETASTE_DATA")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "foretaste"


@dataclass(frozen=True)
class FoundFiles:
    """The files of a named set in one place; ``missing`` names those that are not there."""

    place: Path
    files: dict[str, Path]  # by role
    missing: tuple[str, ...]


def search_named(name: str, folder: str | os.PathLike[str] | None = None) -> FoundFiles | None:
    """Where the files of a named set lie: the first place with all of them, else the fullest; None without any.

    The only place that decides this: ``load`` reads from there, and ``foretaste data list`` shows it.
    """
    root = Path(folder if folder is not None else home()).expanduser()
    source, best = CATALOGUE[name], None
    for layout in source.layouts:
        place = root / layout
        files = {role: path for role, names in source.wanted.items() if (path := _first_file(place, names))}
        missing = tuple(names[0] for role, names in source.wanted.items() if role not in files)
        if files and (best is None or len(missing) < len(best.missing)):
            best = FoundFiles(place, files, missing)
    return best


def named_files(name: str, folder: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """All files of a named set by role, or an error that says which are missing and how to fetch them."""
    root = Path(folder if folder is not None else home()).expanduser()
    found, source = search_named(name, root), CATALOGUE[name]
    get = f"`foretaste data get {name}` fetches them"
    if found is not None and not found.missing:
        return found.files
    if found is not None:
        there = ", ".join(path.name for path in found.files.values())
        raise FileNotFoundError(
            f"{name} is not whole in {found.place}: missing {', '.join(found.missing)}; there are {there}; {get}"
        )
    files = ", ".join(names[0] for names in source.wanted.values())
    if not root.is_dir():
        raise FileNotFoundError(f"{name} is not there: {root} is not a folder; looked for {files}; {get}")
    looked = ", ".join(str(root / layout) for layout in source.layouts)
    raise FileNotFoundError(f"{name} is not in {root}: looked for {files} in {looked}; {get}")


def find_named(name: str, folder: str | os.PathLike[str] | None = None) -> FoundFiles | None:
    """Where a named set lies, complete or not: the place that ``load`` reads from.

    None if there are no files, or if they belong to a set with the same file names.

    >>> find_named("svhn", "an/empty/folder") is None
    True
    """
    found = search_named(name, folder)
    if found is not None and name in FIRST_LABELS and (labels := found.files.get("train labels")):
        try:
            first = read_idx(labels, 1)[:10].tolist()
        except ValueError:  # damaged: load says how
            return found
        if set_with_labels(first, name):
            return None
    return found


# How each set is read: from its folder, with at most so many bytes in memory.
NAMED_READERS: dict[str, Callable[[Path, int], Images]] = {
    "digits": lambda folder, most: digits(),
    "mnist": lambda folder, most: read_idx_set("mnist", named_files("mnist", folder), DIGIT_NAMES, None, most),
    "fashion-mnist": lambda folder, most: read_idx_set(
        "fashion-mnist", named_files("fashion-mnist", folder), CLOTHES, FASHION_NORMALISE, most
    ),
    "svhn": lambda folder, most: read_svhn(named_files("svhn", folder), most),
    "cifar10": lambda folder, most: read_cifar10(named_files("cifar10", folder), most),
    "cifar100": lambda folder, most: read_cifar100(named_files("cifar100", folder), most),
    "cifar100-coarse": lambda folder, most: read_cifar100(named_files("cifar100", folder), most, "coarse"),
    "breast-cancer": lambda folder, most: breast_cancer(),
    "wine": lambda folder, most: wine(),
    "docstrings": lambda folder, most: docstrings(),
}
NAMES = tuple(NAMED_READERS)


def _first_file(place: Path, names: Sequence[str]) -> Path | None:
    return next((place / name for name in names if (place / name).is_file()), None)
