"""Data sets from files, as their publishers wrote them; and files that are broken, or worse."""

import contextlib
import gzip
import io
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import zlib
from functools import partial

import numpy as np
import pytest
import torch

from data_files import (
    PICKLES,
    assert_holds,
    cifar10_files,
    cifar100_files,
    cifar_entries,
    idx_bytes,
    idx_files,
    pictures,
    python2,
    spoil,
    svhn_files,
)
from foretaste.data import NAMES, Images, load, measured
from foretaste.data.cifar import unpickle
from foretaste.data.named import read_idx
from foretaste.network import column_moments

mnist, fashion_mnist, svhn, cifar10 = (partial(load, name) for name in ("mnist", "fashion-mnist", "svhn", "cifar10"))

# idx


@pytest.mark.parametrize("packed", [True, False], ids=["gz", "plain"])
@pytest.mark.parametrize("layout", ["", "mnist", "MNIST/raw", "mnist/MNIST/raw"])
def test_mnist_from_idx_in_every_layout(tmp_path, packed, layout):
    held = idx_files(tmp_path / layout, packed, dash="-" if packed else ".")
    data = mnist(tmp_path)
    assert_holds(
        data,
        np.concatenate([held["train"][0], held["test"][0]])[:, None],
        np.concatenate([held["train"][1], held["test"][1]]),
        12,
    )
    assert data.normalise is None  # the paper feeds [0, 1]
    assert data.classes == tuple("0123456789")


def test_fashion_mnist_is_normalised_and_named(tmp_path):
    idx_files(tmp_path / "fashion-mnist")
    data = fashion_mnist(tmp_path)
    assert data.classes[9] == "Ankle boot"
    assert data.normalise == ((0.2860,), (0.3530,))


@pytest.mark.parametrize(
    ("asked", "other", "first"),
    [
        (fashion_mnist, "mnist", [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]),
        (mnist, "fashion-mnist", [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]),
    ],
)
def test_one_set_is_not_taken_for_the_other_of_the_same_file_names(tmp_path, asked, other, first):
    idx_files(tmp_path, packed=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.array([*first, 1, 2])))
    with pytest.raises(ValueError, match=f"labels of {other}"):
        asked(tmp_path)


LABELS, IMAGES = "train-labels-idx1-ubyte.gz", "train-images-idx3-ubyte.gz"
GZ = [
    (IMAGES, lambda raw: raw[:-100], "truncated or corrupted gzip"),
    (IMAGES, lambda raw: raw[:5000] + bytes(200) + raw[5200:], "corrupted gzip"),
    (IMAGES, lambda raw: b"", "begins with nothing"),
    (IMAGES, lambda raw: gzip.compress(gzip.decompress(raw)[:-1]), "9408 bytes and 9407 are there: truncated"),
    (IMAGES, lambda raw: gzip.compress(gzip.decompress(raw) + b"\0"), "9408 bytes and there are more"),
    (IMAGES, lambda raw: gzip.compress(gzip.decompress(raw)[:9]), "truncated in its header, 9 bytes"),
    (IMAGES, lambda raw: gzip.decompress(raw)[:-1], "cannot hold them: truncated|are there: truncated"),
    (IMAGES, lambda raw: gzip.compress(idx_bytes(np.arange(12))), r"00 00 08 01 \(labels\); expected 00 00 08 03 \(im"),
    (IMAGES, lambda raw: b"<html>no such file</html>", "3c 68 74 6d .no idx of bytes."),
    (IMAGES, lambda raw: idx_bytes(np.zeros((0, 28, 28))), "expected at least one image"),
    (IMAGES, lambda raw: idx_bytes(np.zeros((12, 27, 28))), r"\(1, 28, 28\).*\(1, 27, 28\)"),
    (LABELS, lambda raw: idx_bytes(np.arange(9)), "9 labels for 12 images"),
    (LABELS, lambda raw: idx_bytes(np.array([3, 10] * 6)), "6 labels out of range, the first 10 at 1; expected 0 to 9"),
]


@pytest.mark.parametrize(("name", "change", "says"), GZ, ids=[f"{n[6:12]}-{s[:25]}" for n, _, s in GZ])
def test_broken_idx_is_refused_by_name(tmp_path, name, change, says):
    idx_files(tmp_path)
    spoil(tmp_path / name, change)
    with pytest.raises(ValueError, match=says) as told:
        mnist(tmp_path)
    assert name in str(told.value) or "28, 28" in says


def test_a_gzip_bomb_is_not_inflated(tmp_path, monkeypatch):
    path, inflated = tmp_path / "bomb.gz", []
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 4, 4)
    path.write_bytes(gzip.compress(head + bytes(50_000_000)))
    read = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, n: inflated.append(n) or read(self, n))
    with pytest.raises(ValueError, match="32 bytes and there are more"):
        read_idx(path, 3)
    assert sum(inflated) == 4 + 12 + 32 + 1


def test_a_header_that_lies_takes_no_memory(tmp_path):
    path = tmp_path / "lie.gz"
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", 10**6, 100, 100)
    path.write_bytes(gzip.compress(head + bytes(1000)))
    with pytest.raises(ValueError, match="10000000000 bytes and so small a file"):
        read_idx(path, 3)
    with pytest.raises(ValueError, match=r"above the limit of 1 GB; raise the limit"):
        read_idx(path, 3, most=10**9)


# CIFAR


@pytest.mark.parametrize("dump", PICKLES.values(), ids=PICKLES)
def test_cifar10_whatever_wrote_the_pickles(tmp_path, dump):
    held = cifar10_files(tmp_path / "cifar-10-batches-py", dump, meta=dump is python2)
    data = cifar10(tmp_path)
    x = np.concatenate([h[b"data"] for h in held]).reshape(-1, 3, 32, 32)
    assert_holds(data, x, np.concatenate([h[b"labels"] for h in held]), 20)
    assert data.classes[:2] == (("kind 0", "kind 1") if dump is python2 else ("airplane", "automobile"))
    assert data.normalise[0] == (0.4914, 0.4822, 0.4465)


def test_pickled_arrays_read_as_pickle_reads_them(tmp_path):
    arrays = {
        "columns": np.asfortranarray(np.arange(12, dtype="<i4").reshape(3, 4)),
        "big": np.arange(5, dtype=">u2"),
        "float": np.linspace(0, 1, 7),
        "cube": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    }
    for protocol in (0, 2, 4, 5):
        (tmp_path / "a").write_bytes(pickle.dumps(arrays, protocol=protocol))
        read = unpickle(tmp_path / "a", "arrays")
        assert read.keys() == arrays.keys()
        for name, array in read.items():
            np.testing.assert_array_equal(array, arrays[name])
            assert array.dtype == arrays[name].dtype


@pytest.mark.parametrize("labels", ["fine", "coarse"])
@pytest.mark.parametrize("meta", [True, False])
def test_cifar100_fine_and_coarse(tmp_path, labels, meta):
    held = cifar100_files(tmp_path / "cifar100" / "cifar-100-python", meta=meta)
    data = load({"fine": "cifar100", "coarse": "cifar100-coarse"}[labels], tmp_path)
    x = np.concatenate([held[p][b"data"] for p in ("train", "test")]).reshape(-1, 3, 32, 32)
    assert_holds(data, x, np.concatenate([held[p][f"{labels}_labels".encode()] for p in ("train", "test")]), 6)
    assert len(data.classes) == {"fine": 100, "coarse": 20}[labels]
    assert data.classes[7] == (labels[0] if meta else "") + "7"
    assert any("in test and never in the pool" in note for note in data.notes)


class Runs:
    """Pickles as a call."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def marker(tmp_path):
    return str(tmp_path / "it ran")


EVIL = {
    "os.system": lambda p: pickle.dumps({b"data": Runs(os.system, f"touch '{marker(p)}'")}, protocol=2),
    "subprocess.Popen": lambda p: pickle.dumps({b"data": Runs(subprocess.Popen, ["touch", marker(p)])}, protocol=4),
    "builtins.eval": lambda p: pickle.dumps(Runs(eval, f"open({marker(p)!r}, 'w')"), protocol=4),
    "__builtin__.eval": lambda p: pickle.dumps(Runs(eval, f"open({marker(p)!r}, 'w')"), protocol=0),
    "os.mkdir": lambda p: b"cos\nmkdir\n(S" + repr(marker(p)).encode() + b"\ntR.",
    "io.open": lambda p: b"(S" + repr(marker(p)).encode() + b"\nS'w'\niio\nopen\n.",  # INST
    "numpy.f2py.diagnose.os.system": lambda p: (
        pickle.PROTO + b"\x04\x8c\x13numpy.f2py.diagnose\x8c\x09os.system\x93\x8c\x01x\x85R."
    ),
    "numpy.core.multiarray.scalar": lambda p: b"cnumpy.core.multiarray\nscalar\n)R.",
    "the extension of code 7": lambda p: pickle.PROTO + b"\x02\x82\x07.",
    "a persistent id": lambda p: b"Pthing\n.",
    "a kind of array of its own": lambda p: b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(I0\ntS'b'\ntR.",
    "numpy.ndarray": lambda p: b"cnumpy\nndarray\n((I1000000000000\nttR.",
}


@pytest.mark.parametrize("name", EVIL)
def test_a_pickle_that_is_more_than_arrays_is_refused_by_name_and_not_run(tmp_path, name):
    cifar10_files(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(EVIL[name](tmp_path))
    module = {"os.system": "posix.system", "os.mkdir": "os.mkdir"}.get(name, name) if os.name == "posix" else name
    with pytest.raises(ValueError, match=rf"data_batch_1 wants to run {re.escape(module)}; it is not a CIFAR batch"):
        cifar10(tmp_path)
    assert not os.path.exists(marker(tmp_path))


def test_os_system_would_have_run(tmp_path):
    """The files above are dangerous: read by pickle itself, they run."""
    subprocess.run([sys.executable, "-c", "import pickle, sys; pickle.load(sys.stdin.buffer)"],
                   input=EVIL["os.system"](tmp_path), check=True)  # fmt: skip
    assert os.path.exists(marker(tmp_path))


# What numpy would build or trust, and what takes memory.
CRAFTED = {
    "objects": pickle.dumps({b"data": np.array([{}, []], object)}, protocol=2),
    "structured": pickle.dumps({b"data": np.zeros(3, "u1,u2")}, protocol=2),
    "a memo index of four billion": b"\x80\x02}r\xff\xff\xff\xff.",
    "state for a function": b"cnumpy\nndarray\n}b.",
    "attributes for a function": b"cnumpy\ndtype\n(N}S'function'\nNstb.",
    "a codec of one's choice": b"c_codecs\nencode\n(V00\nS'hex'\ntR.",
    "the same bytes again and again": b"(" + b"c_codecs\nencode\np0\n(V" + b"x" * 500 + b"\np1\nS'latin1'\np2\ntR"
    + b"g0\n(g1\ng2\ntR" * 100 + b"t.",
    "an array without its numbers": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR.",
    "a shape its bytes do not have": python2({b"data": pictures(2, 3, 32).reshape(2, -1)}).replace(
        b"J" + struct.pack("<i", 3072), b"J" + struct.pack("<i", 3073)
    ),
    "not closed": python2(cifar_entries(2, labels=[1, 2]))[:-1],
    "cut": python2(cifar_entries(2, labels=[1, 2]))[:3000],
    "empty": b"",
    "no pickle": b"\x89PNG\r\n\x1a\n" + bytes(100),
}  # fmt: skip


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_or_corrupted_pickle_is_refused_by_name(tmp_path, name):
    cifar10_files(tmp_path)
    (tmp_path / "test_batch").write_bytes(CRAFTED[name])
    with pytest.raises(ValueError, match=r"test_batch.*not a CIFAR batch"):
        cifar10(tmp_path)


def test_a_pickle_cannot_change_the_reader_for_the_next_one(tmp_path):
    for k, raw in enumerate(CRAFTED.values()):
        (tmp_path / str(k)).write_bytes(raw)
        with contextlib.suppress(ValueError):
            unpickle(tmp_path / str(k), "arrays")
    held = cifar10_files(tmp_path / "good")
    np.testing.assert_array_equal(cifar10(tmp_path / "good").y[:4].numpy(), held[0][b"labels"])


ENTRIES = [
    ({b"data": pictures(2, 3, 32).reshape(2, -1)}, "lacks labels and has data"),
    ({b"labels": [1]}, "lacks data and has labels"),
    ([1, 2], "holds a list"),
    ({b"data": [1, 2], b"labels": [1, 2]}, "its images are list; expected uint8"),
    ({b"data": pictures(2, 1, 32).reshape(2, -1), b"labels": [1, 2]}, r"uint8 \(2, 1024\); expected uint8 \(n, 3072\)"),
    (cifar_entries(2, labels=[1, 2, 3]), "3 labels for 2 images"),
    (cifar_entries(2, labels=[1, 10]), "1 label out of range, the first 10 at 1"),
    (cifar_entries(2, labels=[-1, 1]), "1 label out of range, the first -1 at 0"),
    (cifar_entries(2, labels=[[1], 2]), "expected one integer for each image"),
    (cifar_entries(2, labels=[b"1", b"2"]), "expected one integer for each image"),
    (cifar_entries(0, labels=[]), "n at least one"),
]


@pytest.mark.parametrize(("entries", "says"), ENTRIES, ids=[says[:30] for _, says in ENTRIES])
def test_a_batch_that_is_none_is_refused_by_name(tmp_path, entries, says):
    cifar10_files(tmp_path)
    (tmp_path / "data_batch_3").write_bytes(python2(entries))
    with pytest.raises(ValueError, match=f"data_batch_3.*({says})"):
        cifar10(tmp_path)


def test_missing_batches_are_named_at_once(tmp_path):
    cifar10_files(tmp_path / "cifar10")
    for k in (2, 5):
        (tmp_path / "cifar10" / f"data_batch_{k}").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"missing data_batch_2, data_batch_5; there are data_batch_1, .*data get"
    ):
        cifar10(tmp_path)


def test_a_sixth_batch_is_an_error(tmp_path):
    cifar10_files(tmp_path)
    shutil.copy(tmp_path / "data_batch_5", tmp_path / "data_batch_6")
    with pytest.raises(ValueError, match="has data_batch_6 beside"):
        cifar10(tmp_path)


def test_names_of_classes_that_are_not_are_refused(tmp_path):
    cifar10_files(tmp_path, meta=True)
    (tmp_path / "batches.meta").write_bytes(python2({b"label_names": [b"cat"]}))
    with pytest.raises(ValueError, match=r"batches.meta: label_names is not a list of 10"):
        cifar10(tmp_path)


# SVHN


@pytest.mark.parametrize("layout", ["", "svhn"])
def test_svhn_label_ten_is_the_digit_zero(tmp_path, layout):
    held = svhn_files(tmp_path / layout)
    data = svhn(tmp_path)
    x, y = (np.concatenate([held[p][k] for p in ("train", "test")]) for k in (0, 1))
    assert_holds(data, x, y, 11)
    assert data.y[0] == 0
    assert data.classes[0] == "0"


def mat_bytes(**entries):
    from scipy.io import savemat

    file = io.BytesIO()
    savemat(file, entries, do_compression=True)
    return file.getvalue()


X = np.zeros((32, 32, 3, 4), np.uint8)
MATS = [
    (lambda raw: raw[:-20], "truncated or corrupted"),
    (lambda raw: raw[:-500], "lacks y and has X; .*cut short"),
    (lambda raw: raw[:200] + bytes(64) + raw[264:], "truncated or corrupted"),
    (lambda raw: b"", "truncated or corrupted"),
    (lambda raw: b"\x89HDF\r\n\x1a\n" + bytes(600), "truncated or corrupted, or not MATLAB's format 5"),
    (lambda raw: mat_bytes(X=X), "lacks y and has X"),
    (lambda raw: mat_bytes(X=X[..., 0], y=np.ones(4)), r"X is uint8 \(32, 32, 3\); expected uint8 \(32, 32, 3, N\)"),
    (lambda raw: mat_bytes(X=X.astype(float), y=np.ones(4)), r"X is double"),
    (lambda raw: mat_bytes(X=X, y=np.ones(5)), r"y is double \(1, 5\) for 4 images"),
    (lambda raw: mat_bytes(X=X, y=np.array(["a", "b", "c", "d"], object)), "y is cell"),
    (
        lambda raw: mat_bytes(X=X, y=np.array([1, 2, 0, 11])),
        r"2 labels are not whole numbers from 1 to 10, the first 0 at 2",
    ),
    (
        lambda raw: mat_bytes(X=X, y=np.array([1, 2, 2.5, 3])),
        "1 label is not a whole number from 1 to 10, the first 2.5",
    ),
    (lambda raw: mat_bytes(X=X, y=np.array([1, 2, np.nan, 1e300])), "2 labels are not whole numbers"),
    (lambda raw: mat_bytes(X=np.zeros((32, 32, 3, 20_000), np.uint8), y=np.ones(20_000)), "above the limit of 50 MB"),
]


@pytest.mark.parametrize(("change", "says"), MATS, ids=[f"{k} {says[:25]}" for k, (_, says) in enumerate(MATS)])
def test_broken_mat_is_refused_by_name(tmp_path, change, says):
    svhn_files(tmp_path)
    spoil(tmp_path / "test_32x32.mat", change)
    with pytest.raises(ValueError, match=f"test_32x32.mat.*{says}"):
        svhn(tmp_path, most=50_000_000)


def test_labels_as_double_are_read(tmp_path):
    svhn_files(tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(mat_bytes(X=X, y=np.array([10.0, 1, 9, 3])))
    assert svhn(tmp_path).y[:4].tolist() == [0, 1, 9, 3]


# load


def test_load_knows_every_name(tmp_path, monkeypatch):
    idx_files(tmp_path / "mnist")
    idx_files(tmp_path / "FashionMNIST" / "raw")
    svhn_files(tmp_path / "svhn")
    cifar10_files(tmp_path / "cifar10" / "cifar-10-batches-py")
    cifar100_files(tmp_path / "cifar100")
    monkeypatch.setenv("FORETASTE_DATA", str(tmp_path))
    pictures = ("digits", "mnist", "fashion-mnist", "svhn", "cifar10", "cifar100", "cifar100-coarse")
    assert (*pictures, "breast-cancer", "wine", "docstrings") == NAMES
    for name in pictures:
        data = load(name)
        assert data.name == name
        assert data.x.dtype == torch.uint8
        assert len(data.x) == len(data.y) == len(data.pool) + len(data.test)
        assert len(data.classes) == {"cifar100": 100, "cifar100-coarse": 20}.get(name, 10)
        assert (data.normalise is None) == (name == "mnist")
        assert load(name, normalise="none").normalise is None


def test_measured_is_of_the_pool_alone(tmp_path, monkeypatch):
    held = svhn_files(tmp_path)
    monkeypatch.setattr("foretaste.data.dataset.MEASURED_AT_ONCE", 7000)  # three images at once
    mean, std = load("svhn", tmp_path, normalise="measured").normalise
    x = held["train"][0] / 255
    np.testing.assert_allclose(mean, x.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, x.std((0, 2, 3)), rtol=1e-12)


def test_own_data_is_measured_unless_told_and_constants_are_left_alone(tmp_path):
    x = np.random.default_rng(0).normal(3, 2, (50, 4))
    x[:, 2] = 7
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(50) % 2)
    data = load(tmp_path / "own.npz")
    mean, std = data.normalise
    pool = x.astype(np.float32).astype(float)[data.pool]
    np.testing.assert_allclose(mean, pool.mean(0), rtol=1e-12)
    np.testing.assert_allclose(std, np.where(pool.std(0) > 0, pool.std(0), 1), rtol=1e-12)
    assert std[2] == 1
    assert load("own.npz", tmp_path, normalise="none", test=0.5).normalise is None


@pytest.mark.parametrize("shade", [3, 50, 255])
def test_a_channel_that_never_varies_is_not_scaled_up(shade):
    """The mean of n equal bytes / 255 is off by a rounding; the deviation was 3e-18, and pixels 1e8."""
    x = torch.full((7, 2, 6, 6), shade, dtype=torch.uint8)
    x[0, 1, 0, 0] = shade - 1
    mean, std = measured(Images("t", x, torch.zeros(7), np.arange(7), np.arange(0), ()))
    assert mean[0] == pytest.approx(shade / 255)
    assert std[0] == 1
    assert std[1] == pytest.approx(float((x[:, 1] / 255.0).double().std(correction=0)), rel=1e-5)


@pytest.mark.parametrize("mean", [-1e-3, 0.1, 7, 1e6])
def test_a_column_that_varies_by_rounding_alone_is_not_scaled_up(mean):
    still = torch.full((50,), float(mean))
    still[::2] = torch.nextafter(still[0], torch.tensor(torch.inf))
    moving = mean * (1 + 1e-5 * torch.arange(50.0))
    x = torch.stack([still, moving], 1)
    assert still.std() > 0
    got = measured(Images("t", x, torch.zeros(50), np.arange(50), np.arange(0), ()))
    for mean_D, deviation_D in (got, column_moments(x)):
        assert float(deviation_D[0]) == 1
        assert float(mean_D[0]) == pytest.approx(mean, rel=1e-6)
        assert float(deviation_D[1]) == pytest.approx(float(x[:, 1].double().std(correction=0)), rel=1e-5)


def test_load_names_the_files_it_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETASTE_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError) as told:
        load("cifar10")
    for word in (
        "data_batch_1",
        "test_batch",
        f"{tmp_path}/cifar10/cifar-10-batches-py",
        "`foretaste data get cifar10`",
    ):
        assert word in str(told.value)
    with pytest.raises(FileNotFoundError, match=r"nowhere is not a folder; looked for train_32x32.mat.*data get svhn"):
        load("svhn", tmp_path / "nowhere")
    monkeypatch.delenv("FORETASTE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"\.cache/foretaste"):
        load("mnist")


@pytest.mark.parametrize(
    ("name", "options", "error", "says"),
    [
        ("cifra10", {}, ValueError, "unknown data set 'cifra10'; did you mean 'cifar10'.*Known: digits"),
        ("Fashion_MNIST", {}, ValueError, "did you mean 'fashion-mnist'"),
        ("xyzzy", {}, ValueError, "unknown data set 'xyzzy'; known: digits"),
        ("some/where", {}, FileNotFoundError, "some/where is not there"),
        ("gone.npz", {}, FileNotFoundError, "gone.npz is not there"),
        ("digits", {"normalise": "standard"}, ValueError, "'standard'; expected one of auto, none, measured"),
        (
            "digits",
            {"size": 32, "channels": 1},
            ValueError,
            r"size \(32\), channels \(1\): only for folders of pictures",
        ),
        ("file.zip", {}, ValueError, "file.zip: unknown ending '.zip'.*Unpack"),
        ("a.npz", {"size": 3}, ValueError, r"size \(3\): only for folders"),
        ("a.npz", {"test": 1.5}, ValueError, "test.*1.5"),
        ("a.npz", {"test": 0.01}, ValueError, "6 points leave none for a test share of 0.01"),
    ],
)
def test_load_says_what_is_wrong(tmp_path, monkeypatch, name, options, error, says):
    monkeypatch.setenv("FORETASTE_DATA", str(tmp_path))
    (tmp_path / "file.zip").write_bytes(b"PK")
    np.savez(tmp_path / "a.npz", x=pictures(6, 1, 5)[:, 0], y=np.arange(6) % 2)
    with pytest.raises(error, match=says):
        load(name, **options)


def test_zlib_does_not_grow_by_more_than_is_assumed():
    packed = zlib.compress(bytes(10_000_000), 9)
    assert len(packed) * 1032 >= 10_000_000 > len(packed) * 900


def test_load_takes_a_folder_of_pictures_and_a_hugging_face_dataset(tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.setenv("FORETASTE_DATA", str(tmp_path))
    x = pictures(20, 3, 6)
    for i in range(20):
        (tmp_path / "pets" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[i].transpose(1, 2, 0)).save(tmp_path / "pets" / "ab"[i % 2] / f"{i:02}.png")
    data = load("pets", test=0.2)
    assert data.classes == ("a", "b")
    np.testing.assert_array_equal(data.x.numpy(), np.concatenate([x[0::2], x[1::2]]))
    np.testing.assert_allclose(data.normalise, measured(data))
    assert load(tmp_path / "pets", size=3, channels=1, normalise="none").x.shape == (20, 1, 3, 3)

    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    rows = {"image": [Image.fromarray(p.transpose(1, 2, 0)) for p in x], "label": [i % 2 for i in range(20)]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "hf")
    data = load("hf")
    np.testing.assert_array_equal(data.x.numpy(), x)
    assert data.y.tolist() == [0, 1] * 10


def own_npz(folder):
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "a.npz", x=pictures(8, 1, 9)[:, 0], y=np.arange(8) % 2)


@pytest.mark.parametrize(
    ("write", "read", "file"),
    [
        (lambda f: idx_files(f, packed=False), mnist, "train-images-idx3-ubyte"),
        (idx_files, mnist, "train-labels-idx1-ubyte.gz"),
        (lambda f: cifar10_files(f, each=1), cifar10, "data_batch_2"),
        (lambda f: cifar10_files(f, PICKLES["protocol 0"], each=1), cifar10, "data_batch_2"),
        (lambda f: cifar10_files(f, PICKLES["protocol 4"], each=1), cifar10, "data_batch_2"),
        (lambda f: svhn_files(f, n=2), svhn, "test_32x32.mat"),
        (own_npz, lambda f, most: load(f / "a.npz", most=most), "a.npz"),
    ],
    ids=["idx", "idx.gz", "python 2", "protocol 0", "protocol 4", "mat", "npz"],
)
def test_bytes_changed_at_random_are_read_or_refused_by_name(tmp_path, write, read, file):
    write(tmp_path)
    good, generator = (tmp_path / file).read_bytes(), np.random.default_rng(0)
    messages = []
    for _ in range(150):
        raw = bytearray(good)
        # Headers lie at either end; the pixels between them are any bytes.
        ends = [int(generator.integers(200)), len(raw) - 1 - int(generator.integers(200))]
        for at in generator.choice([*ends, int(generator.integers(len(raw)))], size=2, replace=False):
            raw[at % len(raw)] = generator.integers(256)
        (tmp_path / file).write_bytes(raw[: int(generator.integers(len(raw)))] if generator.random() < 0.2 else raw)
        try:
            data = read(tmp_path, most=10**8)
        except ValueError as error:
            messages.append(str(error))
        else:
            assert len(data.x) == len(data.y) == len(data.pool) + len(data.test)
    assert len(messages) > 20
    assert [message for message in messages if file not in message] == []
