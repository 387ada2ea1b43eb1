"""The real data sets, where FORETASTE_DATA names a folder with their publishers' files: contents, no loops."""

import hashlib
import os
import sys
from functools import cache

import numpy as np
import pytest
import torch

from foretaste.data import load, measured
from foretaste.network import MLP, fit

pytestmark = pytest.mark.skipif(
    not os.environ.get("FORETASTE_DATA"), reason="needs real images: set FORETASTE_DATA to a folder with their files"
)

MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
SVHN_HALF = [2484, 6873, 5273, 4241, 3653, 3439, 2885, 2784, 2492, 2364]
SVHN_TEST = [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]
# name, part: how many images, of each class, SHA-256 of the images (N, channels, H, W) and of the labels as int64.
# From a reader that shares nothing with ours and checks itself against the publishers' checksums; the training halves
# are fixed ones. A folder with another number of training images is not held to them.
TRUTH = {
    ("mnist", "pool"): (
        60_000, MNIST, "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "e474323ac02fc156161b0bbb1f8c9cfeb327a74bcd9f9680a8385269a24f566c"),
    ("mnist", "test"): (
        10_000, MNIST_TEST, "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "2fd8de6bdb8d11780b4b96dc57847bcfe6953f7c32aa48bfcd8237c3b7847243"),
    ("svhn", "pool"): (
        36_488, SVHN_HALF, "a086bb3b94e5e0bdd5ba630095a8c0a8d2e03fbcfbc638bffb00eb491b7fb0d0",
        "d303be7b365a66be6fcd3ea37e12fdd53f4d3aa20169dd8d65a3fc0c5981f7fd"),
    ("svhn", "test"): (
        26_032, SVHN_TEST, "4cdf251050d689f324c7b777c7ddacba2bd23d136a5a214193cbb22ada5c7789",
        "e48928b73c8aeda0597997f294279171368a478e28633e2c312a6dd9601d4048"),
    ("cifar10", "pool"): (
        25_000, [2500] * 10, "cc79baa07bbf831d57afb0492d95f682338658aa6b273750253223ae1f709c64",
        "8fe88e5cc48539dc44c8f75c9311e87a25913b5116e07a5440894bd0a1832228"),
    ("cifar10", "test"): (
        10_000, [1000] * 10, "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb"),
    ("cifar100", "pool"): (
        25_000, [250] * 100, "b94a039eec6d1186c35218890eb7758001f9edf24cf139325a1d368f015d4771",
        "39cb9a85ee868152f0fec7d024939e429c00fe4dc05e5e2598e8655e86217cff"),
    ("cifar100", "test"): (
        10_000, [100] * 100, "83c56492b2c11211ad1bb2dbd4f2eef4170a0441e41a41f3039c3144b1f5a511",
        "80031c23f8300724c6fbc588e4bccbe41c6392041782148727bb497b0132c4ad"),
    ("cifar100-coarse", "pool"): (
        25_000, [1250] * 20, "b94a039eec6d1186c35218890eb7758001f9edf24cf139325a1d368f015d4771",
        "d8f176d082548774ecbb9a8115a9273509653c627817546809d1d03d3e8abe69"),
    ("cifar100-coarse", "test"): (
        10_000, [500] * 20, "83c56492b2c11211ad1bb2dbd4f2eef4170a0441e41a41f3039c3144b1f5a511",
        "e2f01c218d5f70ed60e3d80cb12337f835005bcae62b64fefcaa2b647612af83"),
}  # fmt: skip
SIDES = {"mnist": (1, 28, 28)}


@cache
def real(name):
    try:
        return load(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))


def sha256(tensor):
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


@pytest.mark.parametrize(("name", "part"), TRUTH, ids=[" ".join(key) for key in TRUTH])
def test_contents_are_the_publishers(name, part):
    data, (count, counts, images, labels) = real(name), TRUTH[name, part]
    ids = getattr(data, part)
    if part == "pool" and len(ids) != count:
        pytest.skip(f"{len(ids)} training images lie here; the checksums known are of {count}")
    assert data.x.shape[1:] == SIDES.get(name, (3, 32, 32))
    assert np.bincount(data.y[ids].numpy()).tolist() == counts
    assert sha256(data.x[ids]) == images
    assert sha256(data.y[ids]) == labels


@pytest.mark.parametrize("name", ["svhn", "cifar10", "cifar100"])
def test_the_known_normalisation_is_the_measured_one(name):
    """Of the whole training set; half of it is within a few thousandths."""
    data = real(name)
    for known, seen in zip(data.normalise, measured(data)):
        np.testing.assert_allclose(known, seen, atol=0.003)


def calls(do):
    """How many Python functions ``do`` calls."""
    count = 0

    def counted(frame, event, arg):
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        do()
    finally:
        sys.setprofile(None)
    return count


def test_training_on_cifar10_has_no_python_for_each_image():
    data = real("cifar10")

    def train(n):
        ids = torch.from_numpy(data.pool[:n])
        net = MLP(3072, (8,))
        return calls(lambda: fit(net, data.x[ids], data.y[ids], steps=3, start="cold", normalise=data.normalise))

    train(100)  # what the first training imports
    small, large = train(500), train(20_000)
    assert small > 50  # it does count
    assert large - small < 19_500 / 10  # images more; the residual is measured chunk by chunk


@pytest.mark.parametrize("name", ["mnist", "svhn"])
def test_loading_has_no_python_for_each_image(name):
    data = real(name)
    assert calls(lambda: load(name)) < len(data.x) / 5


def test_loading_cifar_has_python_for_each_label_alone():
    """The pickled lists, here a fine and a coarse one, are one number after another: three calls for each."""
    data = real("cifar100")
    assert calls(lambda: load("cifar100")) < 4 * 2 * len(data.x)
