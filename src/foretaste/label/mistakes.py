"""Which labels are likely to be mistakes: each against what all others say of its item.

Kernel regression from equal probabilities, 1/C, without label n predicts f_n = y_n − α_n/d_n, with A = Θ_LL + λI, α =
A⁻¹(Y − 1/C) and d = diag A⁻¹ (``leave_one_out``): one solve for all labels. Probabilities are f_n on the simplex, with
a floor, to a power k. Labels are wrong at a rate ε. A wrong one is any other class with equal chance. So a label y has

    wrong_n = ε(1 − p_n(y))/(C − 1) / [ε(1 − p_n(y))/(C − 1) + (1 − ε) p_n(y)]

k and ε are those under which the labels are likeliest. The floor is fixed: where it is fitted too it takes the place of
ε, and half of the mistakes are not expected. Labels with mistakes want a larger λ than prediction does, and how large
differs, as does how much the pool should bend Θ: the log-odds of three are averaged. A wrong label also misleads about
its neighbours. So all is done twice, the second time with λ_n = λ / (1 − wrong_n), as if label n were worth as much as
it is likely (results/findings/mistakes).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from foretaste.lookahead import leave_one_out, ridge_factor
from foretaste.losses import simplex

BENT_RIDGES, PLAIN_RIDGES = (0.1, 10.0), (1.0,)  # of the mean diagonal, with the pool in the kernel and without it
LEAST_WORTH = 1e-3
FLOOR = 0.1  # over all classes, before the power
POWERS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
RATE_STEPS = 60
PRIOR_JUDGED, PRIOR_WRONG = 20.0, 1.0  # labels that count before any, and how many of them are wrong
FEWEST_LABELS = 10
MOST_TOGETHER = 2048  # labels judged by one another: a kernel of more is not formed
LEAST_CHANCE = 1e-12


def judged_together(at_L: Sequence[int], N: int, seed: int) -> list[list[int]]:
    """Positions of labels in blocks of equal size, of ``MOST_TOGETHER`` at most.

    Each label is judged by the others of its block. Blocks are runs of a random order of the N items, so that few
    labels change theirs when another one comes.
    """
    count = -(-len(at_L) // MOST_TOGETHER)
    if count < 2:
        return [list(at_L)]
    rank_N = torch.randperm(N, generator=torch.Generator().manual_seed(seed)).tolist()
    order = sorted(at_L, key=rank_N.__getitem__)
    return [sorted(order[len(order) * k // count : len(order) * (k + 1) // count]) for k in range(count)]


def doubt_labels(theta_LL: Tensor, plain_LL: Tensor, y_L: Tensor, C: int) -> tuple[Tensor, Tensor]:
    """(L,): the chance that each label is wrong; (L, C): the probabilities of its classes by all other labels.

    ``plain_LL``: Θ without the pool; Θ itself where there is no pool.
    """
    e_LC = torch.nn.functional.one_hot(y_L, C).to(theta_LL) - 1 / C
    kernels = [*((theta_LL, share) for share in BENT_RIDGES), *((plain_LL, share) for share in PLAIN_RIDGES)]
    wrong_L, p_LC = torch.zeros_like(e_LC[:, 0]), e_LC
    for _ in range(2):
        worth_L, odds_L, p_LC = (1 - wrong_L).clamp_min(LEAST_WORTH), torch.zeros_like(wrong_L), torch.zeros_like(e_LC)
        for kernel_LL, share in kernels:
            ridge_L = share * kernel_LL.diagonal().mean() / worth_L
            alpha_LC, d_L1 = leave_one_out(ridge_factor(kernel_LL, ridge_L), e_LC)
            own_LC, own_L = likeliest_mistakes(1 / C + e_LC - alpha_LC / d_L1, y_L)
            odds_L += (own_L.log() - (1 - own_L).log()) / len(kernels)
            p_LC += own_LC / len(kernels)
        wrong_L = torch.sigmoid(odds_L)
    return wrong_L, p_LC


def doubt_sets(theta_LL: Tensor, plain_LL: Tensor, y_LC: Tensor) -> tuple[Tensor, Tensor]:
    """The same where a label is a set of classes: each class is a question of its own, and one wrong answer is enough.

    (L,): the chance that a label is wrong somewhere; (L, C): the chance that each class is in it.
    """
    right_L, yes = torch.ones_like(y_LC[:, 0]), list[Tensor]()
    for y_L in y_LC.T:
        wrong_L, p_L2 = doubt_labels(theta_LL, plain_LL, y_L.long(), 2)
        right_L = right_L * (1 - wrong_L)
        yes.append(p_L2[:, 1])
    return 1 - right_L, torch.stack(yes, 1)


def likeliest_mistakes(f_LC: Tensor, y_L: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities of the classes, and the chance of each label to be wrong, with the k and ε of most likelihood."""
    C = f_LC.shape[1]
    q_LC = simplex(f_LC) + FLOOR / C
    best: tuple[float, Tensor, Tensor] | None = None
    for k in POWERS:
        p_LC = q_LC**k
        p_LC = p_LC / p_LC.sum(1, keepdim=True)
        right_L = p_LC.gather(1, y_L[:, None])[:, 0]
        other_L = (1 - right_L) / (C - 1)
        rate = PRIOR_WRONG / PRIOR_JUDGED
        for _ in range(RATE_STEPS):  # EM
            wrong_L = rate * other_L / (rate * other_L + (1 - rate) * right_L)
            rate = float(wrong_L.sum() + PRIOR_WRONG) / (len(y_L) + PRIOR_JUDGED)
        fit = float((rate * other_L + (1 - rate) * right_L).log().sum())
        if best is None or fit > best[0]:
            best = fit, p_LC, wrong_L.clamp(LEAST_CHANCE, 1 - LEAST_CHANCE)
    assert best is not None
    return best[1:]
