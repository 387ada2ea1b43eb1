"""One's own data in an .npz: how its axes are read, and files that are wrong, broken or bombs."""

import io
import struct
import zipfile
from functools import partial

import numpy as np
import pytest
import torch

from data_files import assert_holds, pictures, spoil
from foretaste.data import load

npz = partial(load, normalise="none")


def test_npz_with_its_own_split(tmp_path):
    x, y = pictures(9, 3, 6), np.arange(9) % 3
    np.savez_compressed(
        tmp_path / "a.npz", train_images=x[:6].transpose(0, 2, 3, 1), train_labels=y[:6],
        test_images=x[6:].transpose(0, 2, 3, 1), test_labels=y[6:, None],
    )  # fmt: skip
    data = npz(tmp_path / "a.npz")
    assert_holds(data, x, y, 6)
    assert (data.name, data.classes) == ("a", ("0", "1", "2"))
    assert data.notes == ("pictures (N, H, W, C): axis 3 is the channels, for it has 3",)


@pytest.mark.parametrize(
    ("shape", "layout", "laid", "says"),
    [
        ((40, 5, 6), None, lambda x: x[:, None], "one channel"),
        ((40, 5, 6, 3), None, lambda x: x.transpose(0, 3, 1, 2), "axis 3 is the channels, for it has 3"),
        ((40, 5, 6, 1), None, lambda x: x.transpose(0, 3, 1, 2), "axis 3 is the channels, for it has 1"),
        ((40, 3, 5, 6), None, lambda x: x, "axis 1 is the channels, for it has 3"),
        ((40, 3, 5, 3), "NCHW", lambda x: x, "axis 1 is the channels"),
        ((40, 3, 5, 3), "NHWC", lambda x: x.transpose(0, 3, 1, 2), "axis 3 is the channels"),
        ((40, 5, 6, 4), "NHWC", lambda x: x.transpose(0, 3, 1, 2), "axis 3 is the channels"),
    ],
)
def test_npz_says_how_it_read_the_axes(tmp_path, shape, layout, laid, says):
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=np.asfortranarray(x), y=np.arange(40) % 4)
    data = npz(tmp_path / "a.npz", layout=layout)
    np.testing.assert_array_equal(data.x.numpy(), laid(x))
    assert says in data.notes[0]
    assert sorted([*data.pool, *data.test]) == list(range(40))
    assert np.bincount(data.y[data.test].numpy()).tolist() == [2] * 4
    np.testing.assert_array_equal(data.test, npz(tmp_path / "a.npz", layout=layout).test)


def test_npz_of_features_and_named_labels(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 7))
    np.savez(tmp_path / "a.npz", x=x, y=np.array(["no", "yes"] * 10))
    data = npz(tmp_path / "a.npz", test=0.5)
    assert data.x.dtype == torch.float32
    np.testing.assert_array_equal(data.x.numpy(), x.astype(np.float32))
    assert data.classes == ("no", "yes")
    assert data.y.tolist() == [0, 1] * 10
    assert len(data.test) == 10
    np.savez(tmp_path / "b.npz", x=x, y=np.array([5, -3] * 10))
    assert npz(tmp_path / "b.npz").classes == ("-3", "5")
    np.savez(tmp_path / "c.npz", x=x, y=np.array([2, 0] * 10), classes=np.array(["a", "b", "c"]))
    c = npz(tmp_path / "c.npz")
    assert (c.classes, c.y.tolist()) == (("a", "b", "c"), [2, 0] * 10)


@pytest.mark.parametrize(
    ("shape", "laid"),
    [
        ((40, 28, 28), lambda x: x[:, None]),
        ((40, 28, 28, 1), lambda x: x.transpose(0, 3, 1, 2)),
        ((40, 28, 20, 3), lambda x: x.transpose(0, 3, 1, 2)),
        ((40, 3, 28, 28), lambda x: x),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("top", [1, 255])
def test_floats_of_three_or_four_axes_are_pictures(tmp_path, shape, laid, dtype, top):
    """Bytes written as floats come back as the same bytes; other floats in that range are kept, in [0, 1]."""
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.savez(tmp_path / "bytes.npz", x=x.astype(dtype) / dtype(255 / top), y=np.arange(40) % 4)
    data = npz(tmp_path / "bytes.npz")
    assert data.x.dtype == torch.uint8
    np.testing.assert_array_equal(data.x.numpy(), laid(x))
    assert f"floats in [0, {top}]: kept as bytes" in data.notes[0]
    half = (x.astype(dtype) + dtype(0.4)) / dtype(256 / top)
    np.savez(tmp_path / "floats.npz", x=half, y=np.arange(40) % 4)
    data = npz(tmp_path / "floats.npz")
    assert data.x.dtype == torch.float32
    np.testing.assert_allclose(data.x.numpy(), laid(half) / top, rtol=1e-6)
    assert f"floats in [0, {top}]: kept as floats in [0, 1]" in data.notes[0]
    mean, _ = load(tmp_path / "floats.npz").normalise
    assert len(mean) == data.x.shape[1] in (1, 3)


def test_float_pictures_of_train_and_test_share_one_range(tmp_path):
    x = pictures(9, 1, 6)[:, 0].astype(float)
    x[6:] = x[6:] > 127  # all of test is 0 or 1, of 255
    y = np.arange(9) % 3
    np.savez(tmp_path / "a.npz", x_train=x[:6], y_train=y[:6], x_test=x[6:], y_test=y[6:])
    assert_holds(npz(tmp_path / "a.npz"), x[:, None], y, 6)


def test_whole_floats_are_classes(tmp_path):
    np.savez(tmp_path / "a.npz", x=PIC, y=LAB + 9.0)
    data = npz(tmp_path / "a.npz")
    assert data.classes == ("9", "10")
    assert data.y.tolist() == LAB.tolist()


def floats(bad=None, dtype=np.float64):
    x = np.ones((6, 2), dtype)
    x[3, 1] = bad
    return x


PIC, LAB = pictures(6, 1, 5)[:, 0], np.arange(6) % 2
NPZ = [
    ({"images": PIC}, "has images and lacks labels; expected train_images"),
    ({"train_images": PIC, "train_labels": LAB, "test_images": PIC}, "lacks test_labels"),
    ({"x": PIC, "y": LAB[:5]}, r"y is int64 \(5,\); expected one for each of 6 points"),
    ({"x": PIC, "y": LAB + 0.5}, "y: 6 of 6 labels are numbers that are not whole, such as 0.5.*use regression"),
    ({"x": PIC, "y": np.array([0, 1, np.nan] * 2)}, r"2 of 6 labels in y are missing \(NaN\)"),
    ({"x": PIC - 0.5 - PIC, "y": LAB}, r"float \(6, 5, 5\) with values from -0.5 to -0.5; .*lie in \[0, 1\] or"),
    ({"x": PIC * 300.0, "y": LAB}, r"values from .* Save them before they are normalised, or reshape features to"),
    ({"x": PIC, "y": np.zeros(6, int)}, "all 6 pictures are of one class, '0'"),
    ({"x": PIC.astype(np.int64), "y": LAB}, r"x is int64 \(6, 5, 5\); expected pictures as uint8"),
    ({"x": PIC.reshape(6, -1), "y": LAB}, r"x is uint8 \(6, 25\)"),
    ({"x": PIC[:0], "y": LAB[:0]}, "expected at least one point"),
    ({"x": np.zeros((6, 3, 4, 3), np.uint8), "y": LAB}, "both of axes 1 and 3.*give layout="),
    ({"x": np.zeros((6, 4, 4, 4), np.uint8), "y": LAB}, "neither of axes 1 and 3.*give layout="),
    ({"x": floats(np.nan), "y": LAB}, "1 number is not finite in float32, the first in row 3"),
    ({"x": floats(1e300), "y": LAB}, "1 number is not finite in float32, the first in row 3"),
    ({"x": PIC, "y": np.array([{}] * 6, object)}, "y is object.*least of all objects"),
    ({"x": np.zeros(6, "u1,u2"), "y": LAB}, "expected numbers or strings"),
    ({"x": PIC, "y": LAB, "classes": np.array(["a"])}, "3 labels are not among its 1 classes, counted from 0"),
    ({"x": PIC, "y": np.array(["a", "b"] * 3), "classes": np.array(["a", "c"])}, "1 label is no class"),
    ({"train_images": PIC, "train_labels": LAB, "test_images": PIC[:, :3], "test_labels": LAB}, "expected both alike"),
    ({"train_images": PIC, "train_labels": LAB, "test_images": PIC, "test_labels": LAB.astype(str)}, "numbers in one"),
]  # fmt: skip


@pytest.mark.parametrize(("entries", "says"), NPZ, ids=[f"{k} {says[:25]}" for k, (_, says) in enumerate(NPZ)])
def test_a_wrong_npz_is_refused_by_name(tmp_path, entries, says):
    np.savez(tmp_path / "a.npz", **entries)
    with pytest.raises(ValueError, match=f"a.npz.*{says}"):
        npz(tmp_path / "a.npz")


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zipped(path, how=zipfile.ZIP_DEFLATED, **members):
    with zipfile.ZipFile(path, "w", how) as file:
        for name, raw in members.items():
            file.writestr(f"{name}.npy", raw)
    return path


def declares(raw: bytes, size: int) -> bytes:
    """The same zip whose first member, in both its headers, says that it inflates to ``size`` bytes."""
    local, central = raw.index(b"PK\x03\x04"), raw.index(b"PK\x01\x02")
    raw = raw[: local + 22] + struct.pack("<I", size) + raw[local + 26 :]
    return raw[: central + 24] + struct.pack("<I", size) + raw[central + 28 :]


def test_npz_bombs_are_refused_before_they_are_inflated(tmp_path, monkeypatch):
    limit = 20_000_000
    path = zipped(tmp_path / "big.npz", x=npy(np.zeros((30_000, 32, 32), np.uint8)), y=npy(np.arange(30_000) % 2))
    inflated = []
    read = zipfile.ZipExtFile.read
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda self, n=-1: inflated.append(n) or read(self, n))
    with pytest.raises(ValueError, match=r"big.npz inflates to 31 MB, above the limit of 20 MB; raise the limit"):
        npz(path, most=limit)
    assert 0 < sum(inflated) < 1000
    assert min(inflated) >= 0
    # A small array whose zip member is long, or a header longer than its member.
    x = npy(pictures(4, 1, 8)[:, 0])
    zipped(path, x=x + bytes(40_000_000), y=npy(np.arange(4) % 2))
    with pytest.raises(ValueError, match=r"big.npz: x is uint8 \(4, 8, 8\), 256 bytes, and the zip declares 40000256"):
        npz(path, most=limit)
    zipped(path, x=x.replace(b"(4, 8, 8)", b"(9, 8, 8)"), y=npy(np.arange(4) % 2))
    with pytest.raises(ValueError, match=r"576 bytes, and the zip declares 256"):
        npz(path, most=limit)


def test_npz_that_lies_about_its_length(tmp_path):
    head = npy(np.zeros((4, 100, 100), np.uint8))
    start = len(head) - 40_000
    long = head[:start].replace(b"(4, 100, 100), }    ", b"(4, 100, 100000), } "[:20])
    assert len(long) == start
    path = tmp_path / "lie.npz"
    zipped(path, x=long + bytes(40_000), y=npy(np.arange(4) % 2))
    path.write_bytes(declares(path.read_bytes(), start + 40_000_000))
    with pytest.raises(ValueError, match=r"lie.npz: x declares 40 MB, more than its \d+ packed bytes can hold"):
        npz(path)
    # Packed bytes that go on after the declared length: cut there, and the CRC tells.
    zipped(path, x=head + bytes(1000), y=npy(np.arange(4) % 2))
    path.write_bytes(declares(path.read_bytes(), len(head)))
    with pytest.raises(ValueError, match=r"lie.npz: truncated or corrupted.*CRC"):
        npz(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda raw: raw[:-10], "truncated or corrupted"),
        (lambda raw: raw[: len(raw) // 2], "truncated or corrupted"),
        (lambda raw: raw[:200] + bytes(20) + raw[220:], "truncated or corrupted"),
        (lambda raw: b"", "truncated or corrupted"),
        (lambda raw: npy(PIC), "truncated or corrupted, or no .npz"),
    ],
)
def test_a_corrupted_npz_is_refused_by_name(tmp_path, change, says):
    np.savez_compressed(tmp_path / "a.npz", x=pictures(20, 1, 16)[:, 0], y=np.arange(20) % 2)
    spoil(tmp_path / "a.npz", change)
    with pytest.raises(ValueError, match=f"a.npz: {says}"):
        npz(tmp_path / "a.npz")


def test_npz_packed_otherwise_is_refused(tmp_path):
    path = zipped(tmp_path / "a.npz", zipfile.ZIP_LZMA, x=npy(PIC), y=npy(LAB))
    with pytest.raises(ValueError, match="x is packed by method 14"):
        npz(path)
