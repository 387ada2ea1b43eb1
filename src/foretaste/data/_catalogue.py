"""The data sets that can be fetched: where their publishers keep them, how large they are, what they ask for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """One file to fetch; an archive is unpacked to the folder it becomes and not kept."""

    name: str
    urls: tuple[str, ...]  # tried in this order
    size: int  # bytes
    md5: str  # the publisher's: it tells damage, and a page that says "moved" from the file
    becomes: str | None = None
    unpacked: int = 0  # bytes, at most


@dataclass(frozen=True)
class Source:
    """A data set and its files, in a folder of its name."""

    images: str  # in words: of the pool and of test
    classes: int
    shape: str
    licence: str
    cite: str
    files: tuple[File, ...]
    layouts: tuple[str, ...] = ("",)  # where copies of other programs lie, the first as ``get`` makes it
    first: tuple[str, ...] = ()  # spellings of a file that tells whether they do

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def _idx(bases: tuple[str, ...], sums: dict[str, tuple[int, str]]) -> tuple[File, ...]:
    return tuple(File(name, tuple(base + name for base in bases), *size_md5) for name, size_md5 in sums.items())


MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
)
TORONTO = "https://www.cs.toronto.edu/~kriz/"
STANFORD = "http://ufldl.stanford.edu/housenumbers/"

IMAGES = ("train-images-idx3-ubyte", "train-images.idx3-ubyte", "train-images-idx3-ubyte.gz")

CATALOGUE: dict[str, Source] = {
    "mnist": Source(
        images="60k + 10k",
        classes=10,
        shape="28×28×1",
        licence="CC BY-SA 3.0",
        cite="LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, 1998",
        files=_idx(
            MNIST,
            {
                "train-images-idx3-ubyte.gz": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                "train-labels-idx1-ubyte.gz": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
                "t10k-images-idx3-ubyte.gz": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
                "t10k-labels-idx1-ubyte.gz": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
            },
        ),
        layouts=("mnist", "mnist/raw", "mnist/MNIST/raw", "MNIST/raw"),
        first=IMAGES,
    ),
    "fashion-mnist": Source(
        images="60k + 10k",
        classes=10,
        shape="28×28×1",
        licence="MIT",
        cite="Xiao, Rasul and Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking, 2017 (Zalando SE)",
        files=_idx(
            FASHION,
            {
                "train-images-idx3-ubyte.gz": (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                "train-labels-idx1-ubyte.gz": (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
                "t10k-images-idx3-ubyte.gz": (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
                "t10k-labels-idx1-ubyte.gz": (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
            },
        ),
        layouts=("fashion-mnist", "fashion-mnist/raw", "fashion-mnist/FashionMNIST/raw", "FashionMNIST/raw"),
        first=IMAGES,
    ),
    "svhn": Source(
        images="73k + 26k",
        classes=10,
        shape="32×32×3",
        licence="non-commercial",
        cite="Netzer, Wang, Coates, Bissacco, Wu and Ng, Reading digits in natural images, 2011",
        files=(
            File(
                "train_32x32.mat",
                (f"{STANFORD}train_32x32.mat",),
                182_040_794,
                "e26dedcc434d2e4c54c9b2d4a06d8373",
            ),
            File("test_32x32.mat", (f"{STANFORD}test_32x32.mat",), 64_275_384, "eb5a983be6a315427106f1b164d9cef3"),
        ),
        layouts=("svhn", "SVHN", ""),
        first=("train_32x32.mat",),
    ),
    "cifar10": Source(
        images="50k + 10k",
        classes=10,
        shape="32×32×3",
        licence="cite the paper",
        cite="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
        files=(
            File(
                "cifar-10-python.tar.gz",
                (f"{TORONTO}cifar-10-python.tar.gz",),
                170_498_071,
                "c58f30108f718f92721af3b95e74349a",
                becomes="cifar-10-batches-py",
                unpacked=250_000_000,
            ),
        ),
        layouts=("cifar10/cifar-10-batches-py", "cifar10", "cifar-10-batches-py"),
        first=("data_batch_1",),
    ),
    "cifar100": Source(
        images="50k + 10k",
        classes=100,
        shape="32×32×3",
        licence="cite the paper",
        cite="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
        files=(
            File(
                "cifar-100-python.tar.gz",
                (f"{TORONTO}cifar-100-python.tar.gz",),
                169_001_437,
                "eb9058c3a382ffc7106e4002c42a8d85",
                becomes="cifar-100-python",
                unpacked=250_000_000,
            ),
        ),
        layouts=("cifar100/cifar-100-python", "cifar100", "cifar-100-python"),
        first=("train",),
    ),
}
