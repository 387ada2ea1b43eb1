"""Near-copies of a point with a large gradient: S_jj + λ may round below zero, and a batch goes on all the same."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import foretaste as ft
from foretaste.acquire import gain, variance
from foretaste.lookahead import State, from_kernels

assert_close = partial(torch.testing.assert_close, rtol=0, atol=0)
BIG, POOL, LABELLED, COPIES = 300.0, 24, 8, 5


def noisy_state(B: int = 1, noise: float = 1e-7, method: str = "auto", shift: int = 0) -> tuple[State, State]:
    """A linearised classifier whose candidates 0 to 5 are near-copies of a large point, and the same without noise."""
    g = torch.Generator().manual_seed(0)
    C = 3
    phi = torch.randn((LABELLED + POOL) * B, 40, generator=g, dtype=torch.float64)
    big = BIG * phi[LABELLED * B : (LABELLED + 1) * B]
    for k in range(COPIES + 1):
        here = slice((LABELLED + k) * B, (LABELLED + k + 1) * B)
        phi[here] = big * (1 + 1e-9 * torch.randn(B, 40, generator=g, dtype=torch.float64))
    exact = phi @ phi.T
    size = exact.diagonal().sqrt()
    E = torch.randn(exact.shape, generator=g, dtype=torch.float64)
    rounded = exact + noise * (E + E.T) * size[:, None] * size
    f = torch.randn(LABELLED + POOL, C, generator=g, dtype=torch.float64)
    f[LABELLED : LABELLED + COPIES + 1] = f[LABELLED]
    y = torch.randint(0, C, (LABELLED + 1,), generator=g)

    def state(theta: Tensor) -> State:
        L = LABELLED + shift  # so many of the large points are labelled
        n = L * B
        return from_kernels(
            theta[:n, :n], None, theta[n:, :n], theta[n:, n:], None, f[:L], None, f[L:], y[:L],
            ridge=1e-4, method=method,
        )  # fmt: skip

    return state(rounded), state(exact)


@pytest.mark.parametrize("method", ["dense", "direct"])
@pytest.mark.parametrize("B", [1, 3])
def test_scores_after_a_pick_are_those_of_an_exact_kernel(method: str, B: int) -> None:
    rounded, exact = (state.condition(2) for state in noisy_state(B, method=method))
    left = rounded.variance_blocks.diagonal(dim1=1, dim2=2).amin(1)[: COPIES + 1]
    assert left.min() < -1e-3, "nothing is below zero: this test shows nothing"
    for score in (variance, gain):
        got, want = score(rounded), score(exact)
        assert_close(got[COPIES + 1 :], want[COPIES + 1 :], rtol=1e-4)
        copies = torch.tensor([0, 1, 3, 4, 5])
        assert bool((got[copies] < 1e-6 * got[COPIES + 1 :].max()).all())


@pytest.mark.parametrize("method", ["dense", "direct"])
@pytest.mark.parametrize("B", [1, 3])
def test_near_copies_of_a_labelled_point_have_no_score(method: str, B: int) -> None:
    """Before any label is kept. The labelled point is the large one, and five candidates are near-copies of it."""
    rounded, exact = noisy_state(B, method=method, shift=1)
    left = rounded.variance_blocks.diagonal(dim1=1, dim2=2).amin(1)
    assert left[:COPIES].min() < -1e-3
    for score in (variance, gain):
        got, want = score(rounded), score(exact)
        assert_close(got[COPIES:], want[COPIES:], rtol=1e-4)
        assert bool((got[:COPIES] < 1e-6 * got[COPIES:].max()).all())


@pytest.mark.parametrize(("method", "B"), [("dense", 1), ("dense", 3), ("direct", 1)])
def test_a_label_at_a_near_copy_changes_nothing_more(method: str, B: int) -> None:
    """To 1e-2 of outputs near 1: noise of 1e-7 in Θ of the large point is 0.4, against Θ of about 40 elsewhere."""
    state = noisy_state(B, method=method)[0].condition(2, 1)
    for j in (0, 1, 3, 4, 5):
        assert_close(state.lookahead(j, 1), state.mean, atol=1e-2)
    after = state
    for j in (0, 1, 3, 4, 5):
        after = after.condition(j, 1)
    assert_close(after.mean, state.mean, atol=1e-2)
    assert_close(variance(after)[COPIES + 1 :], variance(state)[COPIES + 1 :], rtol=1e-3)


@pytest.mark.parametrize("method", ["dense", "direct"])
def test_near_copies_with_different_labels_get_their_mean(method: str) -> None:
    """Where S cannot tell two copies apart. Solved without regard to rounding, outputs would be arbitrary."""
    one = noisy_state(method=method)[0].condition(2, 1)
    j = int(one.variance_blocks.flatten()[: COPIES + 1].argmin())
    assert one.variance_blocks[j] + one.ridge < 0
    both, half = one.condition(j, 0), torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    assert_close(both.mean[2], half, atol=1e-3)
    assert_close(both.mean[j], half, atol=1e-3)


def test_a_kernel_that_is_wrong_is_still_refused() -> None:
    theta = torch.eye(6).double()
    theta[4, 4] = -0.5
    f, none = torch.zeros(6, 3).double(), theta[:0]
    state = from_kernels(none[:, :0], None, none.T, theta, None, f[:0], None, f, [], ridge=0.1)
    for use in (gain, variance):
        with pytest.raises(ValueError, match=r"S_jj \+ λ is -4.0e-01 at candidate 4 \(1 are not positive\).*ridge > 1"):
            use(state)
    with pytest.raises(ValueError, match=r"least eigenvalue is -4.0e-01 with λ=1.0e-01.* try ridge > 1.0e\+00"):
        state.condition(4)


@pytest.mark.parametrize("select", ["greedy", "sequential"])
@pytest.mark.parametrize(("output", "method"), [("sum", "dense"), ("sum", "direct"), ("full", "dense")])
def test_a_batch_of_the_whole_pool_ends(select: str, output: str, method: str) -> None:
    """Convolutions form float32 rows, whose products round; this query ended in the middle of its batch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.Flatten(), nn.Linear(64, 3))
    g = torch.Generator().manual_seed(1)
    x = torch.randn(40, 1, 8, 8, generator=g)
    x[20:26] = BIG * x[20] * (1 + 1e-6 * torch.randn(6, 1, 8, 8, generator=g))
    y = torch.randint(0, 3, (20,), generator=g)
    oracle = (lambda j: j % 3) if select == "sequential" else None
    q = ft.query(
        net.eval(), x[:20], y, x[20:], select=select, batch_size=20, oracle=oracle, output=output, method=method
    )
    assert sorted(q.indices.tolist()) == list(range(20))
    assert len(set(q.indices[:15].tolist()) & set(range(6))) == 1, "one of the copies, and the others last"
