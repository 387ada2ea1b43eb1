"""Strategies that measure distances, typed as their papers define them: loops over vectors. Nothing of foretaste.

``x`` holds the labelled points first, then the candidates, as vectors: inputs, features, or gradients, for the distance
of two tangents is that of the gradients. Picks are positions among the candidates.
"""

import math
from itertools import product

import numpy
import torch
from torch import Tensor


def distance(a: Tensor, b: Tensor) -> float:
    return math.sqrt(float(((a - b) ** 2).sum()))


def all_distances(x: Tensor) -> list[list[float]]:
    return [[distance(a, b) for b in x] for a in x]


# Coverage: F(B) = Σ_i w_i max over j in L∪B of k_ij.


def coverage(k: list[list[float]], weights: list[float], chosen: list[int]) -> float:
    return sum(w * max((row[j] for j in chosen), default=0.0) for w, row in zip(weights, k))


def greedy(k: Tensor, weights: list[float], covered: list[float], order: list[int], n: int) -> list[int]:
    """Every gain anew for every pick; k is (candidates, points). Equal gains: the first in ``order``. None left: it."""
    picks: list[int] = []
    while len(picks) < n:
        gains = {
            j: math.fsum(w * max(float(v) - c, 0.0) for w, v, c in zip(weights, k[j], covered))
            for j in order
            if j not in picks
        }
        best = max(gains, key=lambda j: gains[j])  # the first of those with the highest
        picks.append(best)
        covered = [max(c, float(v)) for c, v in zip(covered, k[best])]
    return picks


def balls(x: Tensor, radius: float) -> list[list[float]]:
    return [[float(d < radius) for d in row] for row in all_distances(x)]


def purity(x: Tensor, labels: list[int], radius: float) -> float:
    """The share of points whose open ball holds points of one label only."""
    d, N = all_distances(x), len(x)
    pure = [all(labels[i] == labels[j] for j in range(N) if d[i][j] < radius) for i in range(N)]
    return sum(pure) / N


def gaussian(x: Tensor, sigma: float) -> list[list[float]]:
    return [[math.exp(-((d / sigma) ** 2)) for d in row] for row in all_distances(x)]


def correlation(x: Tensor) -> list[list[float]]:
    """Of vectors around their mean, cut at 0."""
    c = x - x.mean(0)
    return [[max(0.0, float(a @ b) / float(a.norm() * b.norm())) for b in c] for a in c]


def unit_rows(x: Tensor) -> Tensor:
    return torch.stack([row / row.norm() for row in x])


def spread(x: Tensor) -> float:
    """√ of half the mean squared distance between two points."""
    d = all_distances(x)
    return math.sqrt(sum(v**2 for row in d for v in row) / len(x) ** 2 / 2)


def uncertainty_herding(x: Tensor, p: Tensor, L: int, n: int) -> list[int]:
    """As published: rows of unit length, exp(−(d/σ)²), σ the least distance of two labelled points, weight 1 − gap.

    ``x`` has the labelled points first, ``p`` the probabilities of all. Labelled points have no weight. The loop over
    candidates is a line of numpy, so that it serves real data too.
    """
    u = unit_rows(x.double()).numpy()
    d = numpy.stack([numpy.sqrt(((u - row) ** 2).sum(1)) for row in u])
    sigma = min(d[i, j] for i in range(L) for j in range(i) if d[i, j] > 0)
    k = numpy.exp(-((d / sigma) ** 2))
    top = p.double().sort(1, descending=True).values.numpy()
    weight = 1 - (top[:, 0] - top[:, 1])
    weight[:L] = 0
    covered, chosen = k[:L].max(0), list(range(L))
    while len(chosen) < L + n:
        gains = (weight * numpy.maximum(k - covered, 0)).mean(1)
        gains[chosen] = -math.inf
        best = int(gains.argmax())
        chosen.append(best)
        covered = numpy.maximum(covered, k[best])
    return [j - L for j in chosen[L:]]


def calibration_error(p: Tensor, y: list[int], bins: int) -> float:
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        inside = [i for i in range(len(y)) if low < float(p[i].max()) <= high]
        if inside:
            right = sum(int(p[i].argmax()) == y[i] for i in inside) / len(inside)
            sure = sum(float(p[i].max()) for i in inside) / len(inside)
            total += len(inside) / len(y) * abs(right - sure)
    return total


# Clusters.


def lloyd(x: Tensor, seeds: list[int], fixed: int = 0, rounds: int = 30) -> list[int]:
    """The cluster of each point. Fixed centres are the first points; an empty cluster gets the farthest point."""
    centres = [x[s] for s in seeds]
    of: list[int] = []
    for turn in range(rounds + 1):
        d = [[distance(p, c) for c in centres] for p in x]
        new = [min(range(len(seeds)), key=lambda k: row[k]) for row in d]
        if turn:
            far = sorted(range(len(x)), key=lambda i: -min(d[i]))
            for k in range(fixed, len(seeds)):
                if k not in new:
                    new[far.pop(0)] = k
        if new == of:
            break
        of = new
        for k in range(fixed, len(seeds)):
            if own := [x[i] for i in range(len(x)) if of[i] == k]:
                centres[k] = torch.stack(own).mean(0)
    return of


def kmeans(x: Tensor, L: int, n: int, seeds: list[int]) -> list[int]:
    """Of each cluster that is not a labelled point's, the candidate nearest to the mean; large clusters first."""
    of, picks = lloyd(x, seeds, fixed=L), []
    candidates = {k: [i for i in range(L, len(x)) if of[i] == k] for k in range(L, L + n)}
    for k in sorted(candidates, key=lambda k: -len(candidates[k])):
        mean = x[[i for i in range(len(x)) if of[i] == k]].mean(0)
        picks.append(min(candidates[k], key=lambda i: (round(distance(x[i], mean), 9), i)) - L)
    return picks


def typiclust(
    x: Tensor, L: int, n: int, seeds: list[int], neighbours: int = 20, least_size: int = 5
) -> list[int]:  # fmt: skip
    of = lloyd(x, seeds)
    order = sorted(set(of), key=lambda k: (sum(of[i] == k for i in range(L)), -of.count(k)))
    large, small = ([k for k in order if (of.count(k) > least_size) == wanted] for wanted in (True, False))
    visits = large * len(x) + order * len(x)  # round after round, the small ones when nothing else is left
    assert small or len(large) == len(order)
    picks: list[int] = []
    for cluster in visits:
        own = [i for i in range(L, len(x)) if of[i] == cluster and i - L not in picks]
        if not own or len(picks) == n:
            continue
        k = min(neighbours, len(own) // 2)

        def typical(i: int, own: list[int] = own, k: int = k) -> float:
            near = sorted(distance(x[i], x[j]) for j in own if j != i)[:k]
            return 1 / (sum(near) / k) if k else 1.0

        picks.append(max(own, key=lambda i: (round(typical(i), 9), -i)) - L)
    return picks


# Distances.


def coreset(x: Tensor, L: int, n: int) -> list[int]:
    d, chosen = all_distances(x), list(range(L))
    while len(chosen) < L + n:
        open_ = [j for j in range(L, len(x)) if j not in chosen]
        if chosen:
            chosen.append(max(open_, key=lambda j: min(d[j][c] for c in chosen)))
        else:
            chosen.append(min(open_, key=lambda j: distance(x[j], x.mean(0))))
    return [j - L for j in chosen[L:]]


def lcmd(x: Tensor, L: int, n: int) -> list[int]:
    d, centres = all_distances(x), list(range(L))
    while len(centres) < L + n:
        open_ = [j for j in range(L, len(x)) if j not in centres]
        if not centres:
            centres.append(max(open_, key=lambda j: float(x[j].norm())))
            continue
        nearest = {j: min(centres, key=lambda c: d[j][c]) for j in range(L, len(x))}
        size = {c: sum(d[j][c] ** 2 for j in nearest if nearest[j] == c) for c in centres}
        largest = max(centres, key=lambda c: size[c])
        centres.append(max((j for j in open_ if nearest[j] == largest), key=lambda j: d[j][largest]))
    return [j - L for j in centres[L:]]


# Determinants and gradients.


def dpp(k: Tensor, q: list[float], L: int, n: int, noise: float) -> list[int]:
    """Greedy: the largest determinant of q_i (k_ij + noise) q_j over L and the picks, each anew. q of L is 1."""
    q_N = torch.tensor([1.0] * L + q, dtype=torch.float64)
    K = q_N[:, None] * (k + noise * torch.eye(len(k), dtype=torch.float64)) * q_N
    chosen = list(range(L))
    while len(chosen) < L + n:
        open_ = [j for j in range(L, len(k)) if j not in chosen]
        chosen.append(max(open_, key=lambda j: float(torch.logdet(K[[*chosen, j]][:, [*chosen, j]]))))
    return [j - L for j in chosen[L:]]


def gradient_length(net: torch.nn.Module, x: Tensor, p: Tensor, loss: str) -> float:
    """Σ_y p(y) ‖∇θ ℓ(f(x), y)‖ of one point, a backward pass for each label."""
    total = 0.0
    for c in range(len(p)):
        f_C = net(x[None])[0]
        y_C = torch.eye(len(p), dtype=f_C.dtype)[c]
        value = 0.5 * (f_C - y_C).square().sum() if loss == "l2" else -f_C.log_softmax(0)[c]
        grads = torch.autograd.grad(value, [w for w in net.parameters() if w.requires_grad])
        total += float(p[c]) * math.sqrt(sum(float(g.square().sum()) for g in grads))
    return total


# Information between labels and the networks that dropout draws; p is (K, U, C).


def entropy(p: list[float]) -> float:
    return -sum(q * math.log(q) for q in p if q > 0)


def batch_information(p: Tensor, batch: list[int]) -> float:
    """H(y_B) − mean over networks of H(y_B | network), all labels of the batch enumerated."""
    K, _, C = p.shape
    joint = []
    for labels in product(range(C), repeat=len(batch)):
        joint.append(sum(math.prod(float(p[k, j, y]) for j, y in zip(batch, labels)) for k in range(K)) / K)
    return entropy(joint) - sum(entropy(p[k, j].tolist()) for k in range(K) for j in batch) / K


def batchbald(p: Tensor, n: int) -> list[int]:
    batch: list[int] = []
    while len(batch) < n:
        open_ = [j for j in range(p.shape[1]) if j not in batch]
        batch.append(max(open_, key=lambda j: batch_information(p, [*batch, j])))
    return batch


# Contested points, spread out.


def gap(p: Tensor) -> float:
    first, second = sorted(p.tolist(), reverse=True)[:2]
    return first - second


def dropquery_contested(
    head, h: Tensor, masks: list[Tensor], rate: float, n: int, candidates: int
) -> list[int]:  # fmt: skip
    """Points whose prediction changes in more than half of the masks, or in fewer while there are too few points."""
    changed = []
    for i, row in enumerate(h):
        guess = int(head(row).argmax())
        changed.append(sum(int(head(row * m[i] / (1 - rate)).argmax()) != guess for m in masks))
    enough = len(masks) // 2
    while enough > 0 and sum(c > enough for c in changed) < candidates * n:
        enough -= 1
    return [i for i, c in enumerate(changed) if c > enough]


def alfamix_contested(
    z_U: Tensor, z_L: Tensor, y_L: list[int], weight: Tensor, bias: Tensor, loss: str, n: int, step: float
) -> list[int]:
    """α = ε ‖z* − z‖ ∇ℓ / ‖∇ℓ‖ ⊘ (z* − z), features α z* + (1 − α) z; ε grows until more than n predictions change."""
    C, D, contested, cap = len(weight), z_U.shape[1], set(), 0.0
    while cap < 1 - 1e-9:
        cap += step
        for i, z in enumerate(z_U):
            at = z.clone().requires_grad_()
            f = weight @ at + bias
            guess = int(f.argmax())
            target = torch.eye(C, dtype=f.dtype)[guess]
            value = 0.5 * (f - target).square().sum() if loss == "l2" else -f.log_softmax(0)[guess]
            (g,) = torch.autograd.grad(value, at)
            for c in range(C):
                own = [z_L[k] for k in range(len(y_L)) if y_L[k] == c] or list(z_L)
                anchor = torch.stack(own).mean(0)
                alpha = cap / math.sqrt(D) * (anchor - z).norm() / g.norm() * g / (anchor - z)
                alpha = torch.where(anchor == z, 0.0, alpha)
                if int((weight @ (alpha * anchor + (1 - alpha) * z) + bias).argmax()) != guess:
                    contested.add(i)
        if len(contested) > n:
            break
    return sorted(contested)


def average_linkage(x: Tensor, K: int) -> list[set[int]]:
    clusters, d = [{i} for i in range(len(x))], all_distances(x)
    while len(clusters) > K:
        pairs = [(a, b) for a in range(len(clusters)) for b in range(a)]

        def mean_distance(pair: tuple[int, int]) -> float:
            own, other = clusters[pair[0]], clusters[pair[1]]
            return sum(d[i][j] for i in own for j in other) / (len(own) * len(other))

        a, b = min(pairs, key=mean_distance)
        clusters[b] |= clusters.pop(a)
    return clusters


def clustermargin(near: list[int], clusters: list[set[int]], n: int, choose) -> list[int]:
    """``near``: the candidates of the smallest margins, in the order in which ``choose(size)`` counts them."""
    members = [[j for j in near if j in c] for c in clusters]
    first = {id(m): near.index(m[0]) for m in members if m}
    turns = sorted((m for m in members if m), key=lambda m: (len(m), first[id(m)]))
    picks: list[int] = []
    while len(picks) < n:
        for own in turns:
            if own and len(picks) < n:
                picks.append(own.pop(choose(len(own))))
    return picks


def falcun(p: Tensor, n: int, gamma: float, draw) -> list[int]:
    """``draw``: a dict of weights -> one of its keys."""
    u = [1 - gap(row) for row in p]
    d, picks = list(u), []
    while len(picks) < n:
        left = [i for i in range(len(p)) if i not in picks]
        low, high = min(d[i] for i in left), max(d[i] for i in left)
        if sum(d[i] for i in left) > 0:
            weights = {i: ((d[i] - low) / ((high - low) or 1.0) + u[i]) ** gamma for i in left}
        else:
            weights = dict.fromkeys(left, 1.0)
        picks.append(draw(weights))
        d = [min(d[i], sum(abs(float(a - b)) for a, b in zip(p[i], p[picks[-1]]))) for i in range(len(p))]
    return picks


# Fisher information of the last layer; a batch by its trace.


def fisher(p: Tensor, h: Tensor) -> Tensor:
    """E over labels y of ∇ log p(y) ∇ log p(y)ᵀ, with ∇ = (e_y − p) ⊗ h: (C·D, C·D)."""
    total = torch.zeros(len(p) * len(h), len(p) * len(h), dtype=h.dtype)
    for y in range(len(p)):
        g = torch.cat([(float(c == y) - p[c]) * h for c in range(len(p))])
        total += p[y] * torch.outer(g, g)
    return total


def bait(info: list[Tensor], L: int, n: int, prior: float) -> list[int]:
    """tr(M⁻¹F) of each set anew: the candidate that makes it least, until 2n; then without the one missed least."""
    F = sum(info) / len(info)
    flat = prior * F.diagonal().mean() * torch.eye(len(F), dtype=F.dtype)
    start = flat + sum(info[:L], torch.zeros_like(F)) / (L + n)

    def value(batch: list[int]) -> float:
        return float(torch.trace(torch.linalg.inv(start + n * sum(info[L + j] for j in batch) / (L + n)) @ F))

    batch: list[int] = []
    open_ = list(range(len(info) - L))
    while len(batch) < min(2 * n, len(info) - L):
        batch.append(min((j for j in open_ if j not in batch), key=lambda j: value([*batch, j])))
    while len(batch) > n:
        batch.remove(min(batch, key=lambda j: value([i for i in batch if i != j])))
    return batch


# Coverage and margin, mixed by competence.


def dcom(
    x: Tensor, p: Tensor, y: list[int], n: int, first: float, known: list[float], *, largest: float = 1.1,
    resolution: float = 0.05, a: float = 0.8, k: float = 50.0,
) -> tuple[list[int], list[float], list[list[int]]]:  # fmt: skip
    """The picks, the radii of the labelled points, and for each pick all candidates of the highest score."""
    L, N, d = len(y), len(x), all_distances(x)
    guess = [int(row.argmax()) for row in p]

    def covered(radii: list[float]) -> set[int]:
        return {j for i, r in enumerate(radii) for j in range(N) if d[i][j] < r}

    mean = sum(known) / len(known) if known else first
    threshold = 0.4 + 0.2 * len(covered(known + [mean] * (L - len(known)))) / N
    radii = list(known)
    for i in range(len(known), L):
        low, high = 0.0, largest
        while high - low > resolution:
            middle = (low + high) / 2
            ball = [j for j in range(N) if d[i][j] < middle]
            if ball and sum(guess[j] == y[i] for j in ball) / len(ball) >= threshold:
                low = middle
            else:
                high = middle
        radii.append(round((low + high) / 2, 2))
    seen, reach = covered(radii), sum(radii) / L if L else first
    s = (1 + math.exp(-k * (1 - a))) / (1 + math.exp(-k * (len(seen) / N - a)))

    def scaled(values: list[float]) -> list[float]:
        low, high = min(values), max(values)
        return [(v - low) / ((high - low) or 1.0) for v in values]

    margin = scaled([-gap(row) for row in p])
    margin[:L] = [0.0] * L
    picks, ties = [], []
    while len(picks) < n:
        density = [0.0] * L + [float(sum(d[i][j] < reach and j not in seen for j in range(N))) for i in range(L, N)]
        score = [s * e + (1 - s) * r for e, r in zip(scaled(margin), scaled(density))]
        open_ = [i for i in range(L, N) if i - L not in picks]
        best = max(score[i] for i in open_)
        ties.append([i - L for i in open_ if score[i] > best - 1e-12])
        pick = ties[-1][0]
        picks.append(pick)
        seen |= {j for j in range(N) if d[L + pick][j] < reach}
        margin[L + pick] = 0.0
    return picks, radii, ties


# EPIG with the labels of the picks so far sampled, of a Bayesian logistic regression.


def best_weights(x: Tensor, y: list[int], C: int, prior: float) -> Tensor:
    """(C, D): the highest posterior, by Newton's method on all weights at once, halved where it goes too far."""
    D = x.shape[1]
    w = torch.zeros(C, D, dtype=x.dtype)

    def loss(v: Tensor) -> float:
        fit = sum(float((v @ x[i]).log_softmax(0)[y[i]]) for i in range(len(y)))
        return float(v.square().sum()) / (2 * prior**2) - fit

    for _ in range(12):
        slope = w / prior**2
        curvature = torch.eye(C * D, dtype=x.dtype) / prior**2
        for i in range(len(y)):
            p = (w @ x[i]).softmax(0)
            off = p.clone()
            off[y[i]] -= 1
            slope = slope + torch.outer(off, x[i])
            curvature = curvature + torch.kron(torch.diag(p) - torch.outer(p, p), torch.outer(x[i], x[i]))
        step = torch.linalg.solve(curvature, slope.flatten()).view(C, D)
        size = 1.0
        while size > 1e-9 and loss(w - size * step) > loss(w):
            size /= 2
        w = w - size * step
    return w


def epig(p_u: list[list[list[float]]], p_t: list[list[list[float]]]) -> float:
    """Mean over targets of I(y; y_target), of draws (T, C) of a candidate and (T, t, C) of the targets."""
    T, C, total = len(p_u), len(p_u[0]), 0.0
    for k in range(len(p_t[0])):
        joint = [[sum(p_u[s][a] * p_t[s][k][b] for s in range(T)) / T for b in range(C)] for a in range(C)]
        rows, columns = [sum(row) for row in joint], [sum(row[b] for row in joint) for b in range(C)]
        total += sum(
            joint[a][b] * math.log(joint[a][b] / (rows[a] * columns[b])) for a in range(C) for b in range(C)
        )  # fmt: skip
    return total / len(p_t[0])


def parbals(
    x_L: Tensor, y_L: list[int], x_u: Tensor, x_t: Tensor, C: int, n: int, universes: int, draws: int, prior: float,
    generator: torch.Generator,
) -> list[int]:  # fmt: skip
    """Features end in a 1. The generator is used as: ε of each fit, which draws are universes, a tie-breaking order."""

    def probabilities(x: Tensor, y: list[int]) -> tuple[Tensor, Tensor]:
        w = best_weights(x, y, C, prior)
        eps = torch.randn(draws, C, x.shape[1], generator=generator, dtype=torch.float64)
        drawn = torch.empty(draws, C, x.shape[1], dtype=torch.float64)
        for c in range(C):
            curvature = torch.eye(x.shape[1], dtype=x.dtype) / prior**2
            for row in x:
                p = float((w @ row).softmax(0)[c])
                curvature = curvature + p * (1 - p) * torch.outer(row, row)
            root = torch.linalg.cholesky(curvature)
            for s in range(draws):
                drawn[s, c] = w[c] + torch.linalg.solve(root.T, eps[s, c])
        return tuple(torch.stack([(drawn[s] @ points.T).T.softmax(1) for s in range(draws)]) for points in (x_u, x_t))

    p_u, p_t = probabilities(x_L, y_L)
    scores = [epig(p_u[:, j].tolist(), p_t.tolist()) for j in range(len(x_u))]
    chosen = torch.randperm(draws, generator=generator)[:universes].tolist()
    label = [[int(p_u[s, j].argmax()) for j in range(len(x_u))] for s in chosen]
    picks: list[int] = []
    while True:
        torch.randperm(len(x_u), generator=generator)
        picks.append(max((j for j in range(len(x_u)) if j not in picks), key=lambda j: scores[j]))
        if len(picks) == n:
            return picks
        scores = [0.0] * len(x_u)
        for k in range(universes):
            p_u, p_t = probabilities(torch.cat([x_L, x_u[picks]]), y_L + [label[k][j] for j in picks])
            scores = [scores[j] + epig(p_u[:, j].tolist(), p_t.tolist()) for j in range(len(x_u))]


def greedy_in_parts(
    k: list[list[float]], covered: list[float], weights: list[float], parts: list[list[int]], shut: list[int], n: int
) -> list[int]:
    """Plain greedy in every part, whose points are to be covered; of all picks the n of highest gain, best first."""
    found = []
    for part in parts:
        best, left = {i: covered[i] for i in part}, [j for j in part if j not in shut]
        for _ in range(min(n, len(left))):
            gains = {j: sum(weights[i] * max(k[j][i] - best[i], 0.0) for i in part) for j in left}
            pick = max(gains, key=lambda j: gains[j])
            if gains[pick] <= 0:
                break
            left.remove(pick)
            best = {i: max(best[i], k[pick][i]) for i in part}
            found.append((gains[pick], pick))
    return [j for _, j in sorted(found, reverse=True)[:n]]
