"""Every acquisition function typed as its definition reads: loops over candidates, labels and watched points."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from foretaste.lookahead import State, from_kernels


@dataclass(frozen=True)
class Case:
    """A state on the kernel of random features: B = 1 or C, W = U or not, an empty L or not, labels kept or not."""

    name: str
    loss: str = "l2"
    C: int = 4
    L: int = 6
    U: int = 13
    W: int | None = None
    full: bool = False
    kept: tuple[tuple[int, int | None], ...] = ()
    ridge: float = 1e-3
    seed: int = 0

    def __str__(self) -> str:
        return self.name

    def state(self, method: str = "auto") -> State:
        g = torch.Generator().manual_seed(self.seed)
        B, P = (self.C if self.full else 1), 40

        def features(n: int) -> Tensor:
            return torch.randn(n * B, P, generator=g, dtype=torch.float64) / math.sqrt(P / 2)

        def outputs(n: int) -> Tensor:
            scale = 1.0 if self.loss == "ce" else 0.4
            return scale * torch.randn(n, self.C, generator=g, dtype=torch.float64)

        J_L, J_U, f_L, f_U = features(self.L), features(self.U), outputs(self.L), outputs(self.U)
        J_W, f_W = (None, None) if self.W is None else (features(self.W), outputs(self.W))
        y_L = torch.randint(self.C, (self.L,), generator=g)
        theta_UU = J_U @ J_U.T
        diag_U = (J_U.view(self.U, B, P) @ J_U.view(self.U, B, P).mT).squeeze()
        state = from_kernels(
            J_L @ J_L.T,
            None if J_W is None else J_W @ J_L.T,
            J_U @ J_L.T,
            theta_UU if J_W is None else J_W @ J_U.T,
            diag_U,
            f_L,
            f_W,
            f_U,
            y_L.double() if self.C == 1 else y_L,
            theta_UU=theta_UU,
            diag_W=None if J_W is None else (J_W.view(self.W, B, P) @ J_W.view(self.W, B, P).mT).squeeze(),
            ridge=self.ridge,
            method=method,
            loss=self.loss,
        )
        for j, y in self.kept:
            state = state.condition(j, y if self.C > 1 or y is None else float(y))
        return state


CASES = [
    Case("l2"),
    Case("l2-two-classes", C=2),
    Case("l2-empty-L", L=0),
    Case("l2-watched", W=7),
    Case("l2-kept", kept=((3, 1), (5, 0))),
    Case("l2-pending", kept=((3, None), (8, None))),
    Case("l2-watched-kept", W=7, kept=((2, 3), (4, None))),
    Case("l2-full", full=True, C=3, L=4, U=8),
    Case("l2-full-watched-kept", full=True, C=3, L=4, U=8, W=5, kept=((1, 2),)),
    Case("ce", loss="ce"),
    Case("ce-watched", loss="ce", W=7),
    Case("ce-kept", loss="ce", kept=((3, 1), (5, 0))),
    Case("ce-full", loss="ce", full=True, C=3, L=4, U=8),
]


def after(state: State, j: int, c: int) -> Tensor:
    """(W, C) if candidate j had class c.

    ``state.lookahead``, a label on its way standing at its mean: then S has shrunk and the mean stays. Not so for
    cross-entropy with labels kept: there it solves all labels anew, while scores add one to the mean that is
    (docs/mathematics.md, Cross-entropy), α = y − softmax(mean_j + S_jj α), here by plain damped iteration.
    """
    if state.loss == "l2" or not state.kept:
        for k in [k for k, y in state.kept if y is None]:
            state = state.condition(k, state.pool_mean[k])
        return state.lookahead(j, c)
    assert state.B == 1
    m, s, a = state.pool_mean[j].tolist(), float(state.variance_blocks[j, 0, 0]), [0.0] * state.C
    for _ in range(4000):
        e = [math.exp(m[k] + s * a[k]) for k in range(state.C)]
        a = [a[k] + ((k == c) - e[k] / sum(e) - a[k]) / (1 + s) for k in range(state.C)]
    return state.mean + S(state)[:, j, None] * torch.tensor(a, dtype=torch.float64)


def S(state: State) -> Tensor:
    """(W·B, U·B), whole."""
    return torch.cat([S_Wu for _, S_Wu in state.blocks()], 1)


def labelled(state: State) -> bool:
    return any(y is not None for _, y in state.kept)


def pool(state: State) -> Tensor:
    return state.pool_mean if labelled(state) else state.pool_net


def reference_of(state: State, reference: str | None) -> Tensor:
    if reference is None:
        reference = "current" if state.kept else "net"
    return {"net": state.net, "current": state.mean}[reference]


def project(f: Tensor) -> Tensor:
    """The nearest point of the simplex, by bisection on the shift t with Σ max(f − t, 0) = 1."""
    values = f.tolist()
    low, high = min(values) - 1, max(values)
    for _ in range(200):
        t = (low + high) / 2
        low, high = (t, high) if sum(max(v - t, 0.0) for v in values) > 1 else (low, t)
    return (f - (low + high) / 2).clamp_min(0)


def probability(f: Tensor, loss: str) -> Tensor:
    return torch.exp(f) / torch.exp(f).sum() if loss == "ce" else project(f)


def H(p: Tensor) -> float:
    return -sum(float(x) * math.log(float(x)) for x in p if x > 0)


def moved(state: State, f_WC: Tensor, from_WC: Tensor) -> float:
    if state.loss == "ce":
        f_WC, from_WC = torch.softmax(f_WC, 1), torch.softmax(from_WC, 1)
    return sum(float((f_WC[i] - from_WC[i]).square().sum()) ** 0.5 for i in range(state.W))


def _loop(state: State, score) -> Tensor:
    return torch.tensor(
        [-math.inf if state.taken[j] else score(j) for j in range(state.U)], dtype=torch.float64
    )  # fmt: skip


def mlmoc(state: State, reference: str | None = None) -> Tensor:
    ref = reference_of(state, reference)
    return _loop(state, lambda j: moved(state, after(state, j, int(pool(state)[j].argmax())), ref))


def emoc(state: State, reference: str | None = None) -> Tensor:
    ref = reference_of(state, reference)

    def score(j: int) -> float:
        p = probability(pool(state)[j], state.loss)
        return sum(float(p[c]) * moved(state, after(state, j, c), ref) for c in range(state.C))

    return _loop(state, score)


def eer(state: State) -> Tensor:
    def score(j: int) -> float:
        p = probability(pool(state)[j], state.loss)
        left = [sum(H(probability(f, state.loss)) for f in after(state, j, c)) for c in range(state.C)]
        return -sum(float(p[c]) * left[c] for c in range(state.C))

    return _loop(state, score)


def flips(state: State, reference: str | None = None) -> Tensor:
    ref = reference_of(state, reference).argmax(1)

    def score(j: int) -> float:
        f = after(state, j, int(pool(state)[j].argmax()))
        return float(sum(int(f[i].argmax()) != int(ref[i]) for i in range(state.W)))

    return _loop(state, score)


def block(state: State, i: int, j: int) -> Tensor:
    """S_ij, (B, B)."""
    B = state.B
    return S(state)[i * B : (i + 1) * B, j * B : (j + 1) * B]


def u(state: State, j: int) -> Tensor:
    return state.u[j].reshape(state.B, state.B)


def variance(state: State) -> Tensor:
    def score(j: int) -> float:
        inverse = torch.linalg.inv(u(state, j))
        return sum(float((block(state, i, j) @ inverse @ block(state, i, j).T).trace()) for i in range(state.W))

    return _loop(state, score)


def epig(state: State) -> Tensor:
    """Mutual information of y_j and f_i, two Gaussians: ½ log of det of f_i's variance before and after y_j."""

    def variance_at(i: int) -> Tensor:
        return state.watched_variance[i].reshape(state.B, state.B)

    def score(j: int) -> float:
        total = 0.0
        for i in range(state.W):
            if float(variance_at(i).trace()) <= 1e-6 * max(float(variance_at(k).trace()) for k in range(state.W)):
                continue
            after_j = variance_at(i) - block(state, i, j) @ torch.linalg.inv(u(state, j)) @ block(state, i, j).T
            total += 0.5 * math.log(float(torch.linalg.det(variance_at(i)) / torch.linalg.det(after_j)))
        return total

    return _loop(state, score)


def change(state: State) -> Tensor:
    def score(j: int) -> float:
        return (
            math.sqrt(2 / math.pi) * sum(abs(float(S(state)[i, j])) for i in range(state.W)) / float(state.u[j]) ** 0.5
        )

    return _loop(state, score)


def gap(state: State, i: int) -> tuple[float, int, int]:
    order = sorted(range(state.C), key=lambda c: -float(state.mean[i, c]))
    return float(state.mean[i, order[0]] - state.mean[i, order[1]]), order[0], order[1]


def tau(state: State, i: int, j: int, scale: float) -> float:
    """The deviation by which a label at j moves the gap of i."""
    _, one, two = gap(state, i)
    if state.B == 1:
        return math.sqrt(2 * scale) * abs(float(block(state, i, j))) / float(u(state, j)) ** 0.5
    d = torch.zeros(state.C, dtype=torch.float64)
    d[one], d[two] = 1.0, -1.0
    v = d @ block(state, i, j)
    return math.sqrt(scale * float(v @ torch.linalg.inv(u(state, j)) @ v))


def gain(state: State, scale: float | None = None) -> Tensor:
    scale = state.scale if scale is None else scale

    def score(j: int) -> float:
        total = 0.0
        for i in range(state.W):
            g, t = gap(state, i)[0], tau(state, i, j, scale)
            z = g / t
            total += t * (math.exp(-z * z / 2) / math.sqrt(2 * math.pi) - z * math.erfc(z / math.sqrt(2)) / 2)
        return total

    return _loop(state, score)


def trace_of(theta: Tensor, B: int) -> Tensor:
    """(n, m): the mean of the diagonal of every B × B block."""
    n, m = len(theta) // B, theta.shape[1] // B
    return torch.tensor(
        [[sum(float(theta[i * B + b, j * B + b]) for b in range(B)) / B for j in range(m)] for i in range(n)],
        dtype=torch.float64,
    ).reshape(n, m)


def correlation(state: State) -> Tensor:
    """(W, U + L): κ, the correlation of Θ centred over rows W∪L and columns U∪L, cut at 0."""
    theta, B, W, U, L = state.prior(), state.B, state.W, state.U, state.L
    UL, LL, WL, WU = (trace_of(t, B) for t in (theta.UL, theta.LL, theta.WL, theta.columns(slice(0, U))))
    whole = torch.cat([torch.cat([WU, WL], 1), torch.cat([UL.T, LL], 1)])  # (W + L, U + L)
    rows, columns, mean = whole.mean(1), whole.mean(0), whole.mean()
    own_W, own_U = (torch.stack([block.trace() / B for block in d]) for d in (theta.diag_W, theta.diag_U))
    own_Q = torch.cat([own_U, LL.diagonal()])
    kappa = torch.zeros(W, U + L, dtype=torch.float64)
    for i in range(W):
        for j in range(U + L):
            v_i, v_j = own_W[i] - 2 * rows[i] + mean, own_Q[j] - 2 * columns[j] + mean
            kappa[i, j] = (whole[i, j] - rows[i] - columns[j] + mean) / math.sqrt(v_i * v_j)
    return kappa.clamp(0, 1)


def error_chance(state: State, i: int, scale: float) -> float:
    """√(Φ(−g/σ) (1 − p)): σ² the variance of the gap g between the two largest outputs of i, p its largest probability.

    1/2 if nothing is labelled.
    """
    if state.L == 0 and not labelled(state):
        return 0.5
    g, one, two = gap(state, i)
    v = state.watched_variance[i]
    var = 2 * float(v) if state.B == 1 else float(v[one, one] + v[two, two] - 2 * v[one, two])
    p = probability((state.mean if labelled(state) else state.net)[i], state.loss)
    return math.sqrt(math.erfc(g / math.sqrt(scale * var) / math.sqrt(2)) / 2 * (1 - max(float(x) for x in p)))


def covered(state: State, batch: list[int], scale: float | None = None, kappa: Tensor | None = None) -> float:
    """F(B) = Σ_i e_i max κ_ij² over j in L, the kept candidates and B; 0 if there are none."""
    scale, kappa = state.scale if scale is None else scale, correlation(state) if kappa is None else kappa
    served = [j for j, _ in state.kept] + batch + list(range(state.U, state.U + state.L))
    return sum(
        error_chance(state, i, scale) * max((kappa_i[j] ** 2 for j in served), default=0.0)
        for i, kappa_i in enumerate(kappa.tolist())
    )


def cover(state: State, scale: float | None = None) -> Tensor:
    kappa = correlation(state)
    return _loop(state, lambda j: covered(state, [j], scale, kappa) - covered(state, [], scale, kappa))


def entropy(state: State) -> Tensor:
    return _loop(state, lambda j: H(probability(pool(state)[j], state.loss)))


def margin(state: State) -> Tensor:
    def score(j: int) -> float:
        p = sorted((float(x) for x in probability(pool(state)[j], state.loss)), reverse=True)
        return -(p[0] - p[1])

    return _loop(state, score)


def least_confidence(state: State) -> Tensor:
    return _loop(state, lambda j: 1 - max(float(x) for x in probability(pool(state)[j], state.loss)))
