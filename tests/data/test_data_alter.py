"""Sets made harder on purpose: what changed is exact, what did not is as it was."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from foretaste.data import Images, fewer, imbalanced, noisy
from foretaste.data.dataset import class_shares, sample_classes


def data(counts=(40, 40, 40, 40), test=20, seed=0):
    """Pool ids are neither sorted nor the first, so that positions and ids cannot be mixed up."""
    generator = np.random.default_rng(seed)
    y = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    y_N = np.concatenate([np.arange(test) % len(counts), y])
    return Images(
        name="made",
        x=torch.arange(len(y_N), dtype=torch.uint8)[:, None, None, None],
        y=torch.from_numpy(y_N),
        pool=test + generator.permutation(len(y)),
        test=np.arange(test),
        classes=tuple("abcdefgh"[: len(counts)]),
        notes=("first",),
    )


def sizes(of, ids):
    return np.bincount(of.y.numpy()[ids], minlength=len(of.classes))


def assert_same_but(a, b, *changed):
    for name in {"x", "y", "pool", "test"} - set(changed):
        assert_close(torch.as_tensor(getattr(a, name)), torch.as_tensor(getattr(b, name)), rtol=0, atol=0)
    assert (a.name, a.classes, a.normalise) == (b.name, b.classes, b.normalise)
    assert b.notes[0] == "first"
    assert len(b.notes) > 1


@pytest.mark.parametrize("ratio", [1, 0.5, 0.1, 0.026])
def test_imbalanced_falls_geometrically(ratio):
    a = data()
    b = imbalanced(a, ratio, seed=3)
    assert_same_but(a, b, "pool")
    seen = np.sort(sizes(b, b.pool))[::-1]
    np.testing.assert_array_equal(seen, [round(40 * ratio ** (k / 3)) for k in range(4)])
    kept = np.isin(a.pool, b.pool)
    np.testing.assert_array_equal(a.pool[kept], b.pool)  # a subset, in the same order


def test_imbalanced_as_large_as_the_classes_allow():
    a = data((50, 8, 30, 40))
    for seed in range(6):
        b = imbalanced(a, 0.25, seed)
        seen, had = sizes(b, b.pool), sizes(a, a.pool)
        order = np.argsort(-seen)
        fall = 0.25 ** np.linspace(0, 1, 4)
        assert (seen <= had).all()
        assert (seen == had).any()  # one class is whole: more of any would break the fall
        assert abs(seen[order] - (seen[order] / fall).mean() * fall).max() < 1


def test_which_class_is_rare_is_the_seeds_choice():
    rare = [np.argmin(sizes(b, b.pool)) for b in (imbalanced(data(), 0.1, seed) for seed in range(20))]
    assert set(rare) == {0, 1, 2, 3}
    a, b, c = (imbalanced(data(), 0.1, seed).pool for seed in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert set(a) != set(c)
    assert "(ratio 0.1, seed 5)" in imbalanced(data(), 0.1, 5).notes[1]


@pytest.mark.parametrize("share", [0, 0.1, 0.333, 1])
def test_noisy_changes_exactly_so_many_labels_of_the_pool(share):
    a = data()
    b = noisy(a, share, seed=1)
    assert_same_but(a, b, "y")
    changed = np.flatnonzero((a.y != b.y).numpy())
    assert len(changed) == round(share * 160)
    assert set(changed) <= set(a.pool)
    assert f"{len(changed)} of the pool's 160" in b.notes[1]
    assert (b.y >= 0).all()
    assert (b.y < 4).all()


def test_noise_is_uniform_over_the_other_classes():
    a = data((3000, 3000, 3000, 3000))
    b = noisy(a, 1.0)
    table = np.zeros((4, 4))
    np.add.at(table, (a.y.numpy()[a.pool], b.y.numpy()[a.pool]), 1)
    assert (np.diag(table) == 0).all()
    off = table[~np.eye(4, dtype=bool)]
    assert abs(off - 1000).max() < 5 * np.sqrt(3000 * (1 / 3) * (2 / 3))
    assert not torch.equal(b.y, noisy(a, 1.0, seed=1).y)
    assert torch.equal(b.y, noisy(a, 1.0).y)


def test_fewer_keeps_classes_in_proportion():
    a = data((60, 30, 20, 10), test=40)
    b = fewer(a, pool=13, test=8, seed=2)
    assert_same_but(a, b, "pool", "test")
    assert sizes(b, b.pool).tolist() == [7, 3, 2, 1]  # 6.5, 3.25, 2.17, 1.08
    assert sizes(b, b.test).tolist() == [2] * 4
    np.testing.assert_array_equal(a.pool[np.isin(a.pool, b.pool)], b.pool)
    assert b.notes[1:] == (
        "pool cut to 13 of 120 points, classes in proportion (seed 2)",
        "test cut to 8 of 40 points, classes in proportion (seed 2)",
    )
    np.testing.assert_array_equal(fewer(a, pool=13, seed=2).test, a.test)
    np.testing.assert_array_equal(fewer(a, pool=13, seed=2).pool, b.pool)
    assert set(fewer(a, pool=13, seed=3).pool) != set(b.pool)
    np.testing.assert_array_equal(fewer(a, pool=120).pool, a.pool)


def test_shares_are_the_largest_remainders():
    generator = np.random.default_rng(0)
    for _ in range(200):
        counts = generator.integers(0, 30, 6)
        counts[0] += 1
        n = int(generator.integers(0, counts.sum() + 1))
        take = class_shares(counts, n)
        quota = n * counts / counts.sum()
        assert take.sum() == n
        assert (take <= counts).all()
        assert (abs(take - quota) < 1).all()


def test_sample_takes_so_many_of_each_class():
    y = np.random.default_rng(0).integers(0, 5, 200)
    take = np.array([3, 0, 1, 10, 100])
    chosen = sample_classes(y, take, np.random.default_rng(1))
    np.testing.assert_array_equal(np.bincount(y[chosen], minlength=5), np.minimum(take, np.bincount(y)))


def test_each_point_is_as_likely_to_stay():
    a = data((20, 20, 20, 20))
    times = np.zeros(len(a.y))
    for seed in range(400):
        times[fewer(a, pool=20, seed=seed).pool] += 1
    assert abs(times[a.pool] / 400 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 400)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a: imbalanced(a, 0), "ratio is 0; expected"),
        (lambda a: imbalanced(a, 1.5), "ratio is 1.5; expected"),
        (lambda a: imbalanced(a, 0.001), "leaves none of '[abcd]'; expected at least 0.025"),
        (lambda a: imbalanced(data((9,)), 0.5), "the pool has 1 class"),
        (lambda a: noisy(a, -0.1), "share is -0.1; expected"),
        (lambda a: noisy(a, 1.01), "share is 1.01; expected"),
        (lambda a: noisy(data((9,)), 0.5), "needs two classes"),
        (lambda a: fewer(a, pool=161), "pool is 161; expected 1 to 160"),
        (lambda a: fewer(a, pool=0), "pool is 0; expected 1 to 160"),
        (lambda a: fewer(a, test=21), "test is 21; expected 1 to 20"),
    ],
)
def test_what_cannot_be_is_said(change, says):
    with pytest.raises(ValueError, match=says):
        change(data())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_as_on_the_processor():
    a = data()
    for change in (lambda d: imbalanced(d, 0.1), lambda d: noisy(d, 0.3), lambda d: fewer(d, pool=20)):
        here, there = change(a), change(a.to("cuda"))
        assert there.y.is_cuda
        assert torch.equal(here.y, there.y.cpu())
        np.testing.assert_array_equal(here.pool, there.pool)
