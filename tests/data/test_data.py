"""Index sets keep apart, and the digits are always the same ones."""

import numpy as np
import pytest
import torch

from foretaste.data import Split, digits, draw


def test_digits_are_scikit_learns_and_a_network_sees_the_unit_interval():
    from sklearn.datasets import load_digits

    data, bunch = digits(), load_digits()
    assert (data.x.dtype, data.x.shape) == (torch.uint8, (1797, 1, 8, 8))
    np.testing.assert_array_equal(data.x[:, 0].numpy() / 15, bunch.images)
    np.testing.assert_array_equal(data.y.numpy(), bunch.target)
    (mean,), (std,) = data.normalise
    seen = (data.x.double() / 255 - mean) / std
    np.testing.assert_allclose(seen[:, 0].numpy() * 16, bunch.images, atol=1e-12)
    np.testing.assert_allclose(data.picture(5) * 255 / 15, bunch.images[5], atol=1e-12)


def test_digits_split_is_fixed_stratified_and_apart():
    a, b = digits(), digits()
    np.testing.assert_array_equal(a.pool, b.pool)
    np.testing.assert_array_equal(a.test, b.test)
    assert sorted([*a.pool, *a.test]) == list(range(1797))
    share = np.bincount(a.y[a.test].numpy()) / np.bincount(a.y.numpy())
    assert abs(share - 600 / 1797).max() < 0.01


def test_label_moves_points_from_U_to_L():
    split = Split(L=[4], U=[7, 1, 9, 3], test=[0])
    new = split.label([9, 7])
    assert (new.L.tolist(), new.U.tolist(), new.test.tolist()) == ([4, 9, 7], [1, 3], [0])
    assert (split.L.tolist(), split.U.tolist()) == ([4], [7, 1, 9, 3])
    assert new.label([]).U.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("ids", "says"), [([4], "4.*not in U"), ([0], "0.*not in U"), ([8], "8.*not in U"), ([7, 7], "labelled twice")]
)
def test_label_refuses_what_is_not_a_candidate(ids, says):
    with pytest.raises(ValueError, match=says):
        Split(L=[4], U=[7, 1], test=[0]).label(ids)


@pytest.mark.parametrize("sets", [([1], [1], []), ([], [2, 2], []), ([], [2], [2])])
def test_split_refuses_a_point_in_two_sets(sets):
    with pytest.raises(ValueError, match="stand twice"):
        Split(*sets)


def test_draw_is_seeded_and_within_the_pool():
    pool, test = np.arange(10, 60), np.arange(10)
    a, b, c = draw(pool, test, 20, 1), draw(pool, test, 20, 1), draw(pool, test, 20, 2)
    np.testing.assert_array_equal(a.L, b.L)
    assert set(a.L) != set(c.L)
    assert sorted([*a.L, *a.U]) == pool.tolist()
    assert a.test.tolist() == test.tolist()
    for n in (0, 50, -1):
        with pytest.raises(ValueError, match=f"{n} labels of a pool of 50"):
            draw(pool, test, n, 0)


def test_offers_are_drawn_from_all_of_U_and_sorted():
    """Each point is as likely, wherever it stands in U; the seed alone decides."""
    split = Split(L=[3], U=[*range(10, 60)][::-1], test=[0])
    counts, draws = np.zeros(60), 800
    for seed in range(draws):
        offered = split.offer(10, seed)
        assert offered.U.tolist() == sorted(set(offered.U.tolist()) & set(split.U.tolist()))
        assert (len(offered.U), offered.L.tolist(), offered.test.tolist()) == (10, [3], [0])
        counts[offered.U] += 1
    share = counts[10:] / draws
    assert abs(share - 0.2).max() < 6 * (0.2 * 0.8 / draws) ** 0.5
    np.testing.assert_array_equal(split.offer(10, 7).U, split.offer(10, 7).U)
    assert split.offer(None, 0) is split.offer(50, 0) is split
