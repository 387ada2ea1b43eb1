"""Tiny data sets in their publishers' own formats, written with the standard library, for tests of the readers."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import torch

IDX = {"train": "train", "test": "t10k"}


def pictures(n, channels, side, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, channels, side, side), dtype=np.uint8)


def idx_bytes(array):
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def idx_files(folder: Path, packed: bool = True, n=12, dash="-"):
    """Images (n, 28, 28) and labels 0, 1, …, 9, 0, … for train, half as many for test."""
    folder.mkdir(parents=True, exist_ok=True)
    held = {}
    for part, count in (("train", n), ("test", n // 2)):
        x, y = pictures(count, 1, 28, seed=count)[:, 0], np.arange(count) % 10
        for kind, array in (("images", x), ("labels", y)):
            raw = idx_bytes(array)
            name = f"{IDX[part]}-{kind}{dash}idx{array.ndim}-ubyte"
            (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(raw) if packed else raw)
        held[part] = x, y
    return held


def python2(value) -> bytes:
    """A pickle as Python 2 wrote it by protocol 2: byte strings (U, T) and numpy by its old module."""
    out = bytearray(b"\x80\x02")

    def string(raw):
        out.extend(b"U" + bytes([len(raw)]) + raw if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)) + raw)

    def whole(number):
        out.extend(b"J" + struct.pack("<i", number))

    def save(value):
        if isinstance(value, bytes):
            string(value)
        elif isinstance(value, bool):
            out.extend(b"\x88" if value else b"\x89")
        elif isinstance(value, int):
            whole(value)
        elif isinstance(value, list):
            out.extend(b"](")
            for item in value:
                save(item)
            out.extend(b"e")
        elif isinstance(value, dict):
            out.extend(b"}(")
            for key, item in value.items():
                save(key)
                save(item)
            out.extend(b"u")
        elif isinstance(value, np.ndarray):
            out.extend(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01b\x87R(K\x01(")
            for side in value.shape:
                whole(side)
            out.extend(
                b"tcnumpy\ndtype\nU\x02u1K\0K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89"
            )
            string(value.tobytes())
            out.extend(b"tb")
        else:
            raise TypeError(type(value))

    save(value)
    return bytes(out + b".")


PICKLES = {
    "python 2": python2,
    **{f"protocol {p}": lambda value, p=p: pickle.dumps(value, protocol=p) for p in (0, 2, 4, 5)},
}


def cifar_entries(n, seed=0, **labels):
    return {b"data": pictures(n, 3, 32, seed).reshape(n, 3072), **{k.encode(): v for k, v in labels.items()}}


def cifar10_files(folder: Path, dump=python2, each=4, meta=False):
    folder.mkdir(parents=True, exist_ok=True)
    held = []
    for k, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        held.append(cifar_entries(each, seed=k, labels=[(k + i) % 10 for i in range(each)]))
        (folder / name).write_bytes(dump(held[-1]))
    if meta:
        (folder / "batches.meta").write_bytes(dump({b"label_names": [f"kind {c}".encode() for c in range(10)]}))
    return held


def cifar100_files(folder: Path, dump=python2, n=6, meta=False):
    folder.mkdir(parents=True, exist_ok=True)
    held = {}
    for k, name in enumerate(("train", "test")):
        fine = [(17 * i + k) % 100 for i in range(n)]
        held[name] = cifar_entries(n, seed=k, fine_labels=fine, coarse_labels=[f // 5 for f in fine])
        (folder / name).write_bytes(dump(held[name]))
    if meta:
        called = {
            b"fine_label_names": [b"f%d" % c for c in range(100)],
            b"coarse_label_names": [b"c%d" % c for c in range(20)],
        }
        (folder / "meta").write_bytes(dump(called))
    return held


def svhn_files(folder: Path, n=11):
    from scipy.io import savemat

    folder.mkdir(parents=True, exist_ok=True)
    held = {}
    for k, part in enumerate(("train", "test")):
        x, y = pictures(n, 3, 32, seed=k), np.arange(n) % 10
        file = {"X": x.transpose(2, 3, 1, 0), "y": np.where(y == 0, 10, y)[:, None].astype(np.uint8)}
        savemat(folder / f"{part}_32x32.mat", file, do_compression=True)
        held[part] = x, y
    return held


def assert_holds(data, x, y, pool):
    """x and y in the files' order, the first ``pool`` of them the pool, the others test."""
    assert data.x.dtype == torch.uint8
    assert data.x.is_contiguous()
    np.testing.assert_array_equal(data.x.numpy(), x)
    assert data.y.dtype == torch.int64
    np.testing.assert_array_equal(data.y.numpy(), y)
    np.testing.assert_array_equal(data.pool, np.arange(pool))
    np.testing.assert_array_equal(data.test, np.arange(pool, len(y)))
    assert data.pool.dtype == data.test.dtype == np.int64


def spoil(path, change):
    path.write_bytes(change(path.read_bytes()))
