"""The paper typed literally: slow loops, plain solves, kernels by per-sample autograd. Imports nothing of foretaste.

Site layout as in foretaste.lookahead: a kernel of B heads has rows (point, head); B is 1 (Θ ⊗ I_C) or C (full kernel).
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

X = Tensor | Mapping[str, Tensor]


def at(x: X, index: slice | Tensor | list[int]) -> X:
    return {k: v[index] for k, v in x.items()} if isinstance(x, Mapping) else x[index]


def count(x: X) -> int:
    return len(next(iter(x.values()))) if isinstance(x, Mapping) else len(x)


def join(*xs: X) -> X:
    if isinstance(xs[0], Mapping):
        return {k: torch.cat([x[k] for x in xs if isinstance(x, Mapping)]) for k in xs[0]}
    return torch.cat([x for x in xs if isinstance(x, Tensor)])


def f(net: nn.Module, x: X) -> Tensor:
    with torch.no_grad():
        return net(**x) if isinstance(x, Mapping) else net(x)


def gradients(net: nn.Module, x: X, output: str | int) -> Tensor:
    """∇θ of each head at each point, (N·B, P), one backward pass at a time."""
    theta = [p for p in net.parameters() if p.requires_grad]
    rows = []
    for n in range(count(x)):
        one = at(x, slice(n, n + 1))
        f_C = (net(**one) if isinstance(one, Mapping) else net(one))[0]
        if output == "sum":
            heads = [f_C.sum() / math.sqrt(len(f_C))]
        elif output == "full":
            heads = list(f_C)
        else:
            heads = [f_C[0 if output == "first" else int(output)]]
        for head in heads:
            grads = torch.autograd.grad(head, theta, retain_graph=True, allow_unused=True)
            rows.append(
                torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for g, p in zip(grads, theta)])
            )
    return torch.stack(rows).detach()


def ntk(net: nn.Module, x: X, x2: X, output: str | int = "sum") -> Tensor:
    """Θ(x, x2) = ∇θ f(x) ∇θ f(x2)ᵀ, (N·B, N2·B)."""
    return gradients(net, x, output) @ gradients(net, x2, output).T


def kernel_regression(
    theta_xX: Tensor, theta_XX: Tensor, f_x: Tensor, f_X: Tensor, y_X: Tensor, ridge: float
) -> Tensor:
    """Eq. 8, 10, 11: f(x) + Θ(x, X) (Θ(X, X) + λI)⁻¹ (Y − f(X)), for every class or with the full kernel."""
    B = len(theta_XX) // len(f_X)
    A = theta_XX + ridge * torch.eye(len(theta_XX), dtype=theta_XX.dtype)
    w = torch.linalg.inv(A) @ (y_X - f_X).reshape(len(A), -1)
    return f_x + (theta_xX @ w).reshape(len(theta_xX) // B, -1)


def finite_time(
    theta_xX: Tensor, theta_XX: Tensor, f_x: Tensor, f_X: Tensor, y_X: Tensor, ridge: float, t: float
) -> Tensor:
    """Eq. 5: f(x) + Θ(x, X) Θ⁻¹ (I − e^{−tΘ}) (Y − f(X)), with Θ(X, X) + λI for Θ."""
    B = len(theta_XX) // len(f_X)
    eye = torch.eye(len(theta_XX), dtype=theta_XX.dtype)
    A = theta_XX + ridge * eye
    w = torch.linalg.inv(A) @ (eye - torch.linalg.matrix_exp(-t * A)) @ (y_X - f_X).reshape(len(A), -1)
    return f_x + (theta_xX @ w).reshape(len(theta_xX) // B, -1)


def eq12(
    theta_xX: Tensor,  # (N, L)
    theta_XX: Tensor,
    theta_xj: Tensor,  # (N,)
    theta_jX: Tensor,  # (L,)
    theta_jj: float,
    f_x: Tensor,
    f_X: Tensor,
    f_j: Tensor,
    y_X: Tensor,
    y_j: Tensor,
    ridge: float,
) -> Tensor:
    """Eq. 12 with v = Θ⁻¹Θ(X, x′), the printed v lacking the inverse; λ on the diagonal, and so in u."""
    inverse = torch.linalg.inv(theta_XX + ridge * torch.eye(len(theta_XX), dtype=theta_XX.dtype))
    v = inverse @ theta_jX
    u = theta_jj + ridge - theta_jX @ inverse @ theta_jX
    out = torch.empty_like(f_x)
    for i in range(len(f_x)):
        f_lin = f_x[i] + theta_xX[i] @ inverse @ (y_X - f_X)
        out[i] = f_lin + (theta_xX[i] @ v - theta_xj[i]) * (v @ (y_X - f_X) - (y_j - f_j)) / u
    return out


def cross_entropy_root(m_nC: Tensor, s: float, y_nC: Tensor, halvings: int = 64) -> Tensor:
    """α = y − softmax(m + sα) of each row by two nested bisections, no derivative used.

    With λ = logsumexp(m + sα) every p_c is the root of log p + s p = m_c + s y_c − λ, and Σ p falls in λ.
    """

    def p_of(lam_n: Tensor) -> Tensor:
        low, high = torch.full_like(m_nC, -800.0), torch.full_like(m_nC, 800.0)  # of log p
        for _ in range(halvings):
            mid = (low + high) / 2
            above = mid + s * mid.exp() > m_nC + s * y_nC - lam_n
            low, high = torch.where(above, low, mid), torch.where(above, mid, high)
        return ((low + high) / 2).exp()

    low, high = m_nC.amin(1, True) - s - 50, m_nC.amax(1, True) + s + 50
    for _ in range(halvings):
        mid = (low + high) / 2
        more = p_of(mid).sum(1, True) > 1
        low, high = torch.where(more, mid, low), torch.where(more, high, mid)
    return y_nC - p_of((low + high) / 2)


def cross_entropy_mode(m_KC: Tensor, S_KK: Tensor, y_KC: Tensor, steps: int = 60) -> Tensor:
    """argmin over z of Σ CE(z_k, y_k) + ½ (z − m)ᵀ S⁻¹ (z − m), by LBFGS in float64; S is (kC, kC)."""
    root = torch.linalg.cholesky(S_KK)
    w = torch.zeros(m_KC.numel(), dtype=torch.float64, requires_grad=True)  # z = m + root w
    opt = torch.optim.LBFGS([w], max_iter=200, tolerance_grad=1e-13, tolerance_change=0, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        opt.zero_grad()
        z = m_KC + (root @ w).reshape(m_KC.shape)
        value = (torch.logsumexp(z, 1) - (y_KC * z).sum(1)).sum() + 0.5 * w @ w
        value.backward()
        return value

    for _ in range(steps):
        opt.step(loss)
    return (m_KC + (root @ w).reshape(m_KC.shape)).detach()


def one_hot(ids: Sequence[int] | Tensor, C: int) -> Tensor:
    out = torch.zeros(len(ids), C, dtype=torch.float64)
    for n, c in enumerate(ids):
        out[n, int(c)] = 1
    return out


# Features of a backbone


def plain_features(module, batches_of, n, size):
    """The plain loop of ft.features: passes of ``size`` points, the last filled up with its last point.

    ``batches_of(ids)`` is the batch of these points.
    """
    rows = []
    for at in range(0, n, size):
        ids = list(range(at, min(at + size, n)))
        filled = ids + [ids[-1]] * (size - len(ids))
        with torch.no_grad():
            rows.append(module(batches_of(filled))[: len(ids)])
    return torch.cat(rows)


def descend(net: nn.Module, x: Tensor, y: Tensor, loss: str, stop: float, lr: float) -> nn.Module:
    """Full-batch gradient descent with momentum until the loss is below ``stop``."""
    y_1 = torch.nn.functional.one_hot(y, 10).to(x.dtype)
    optimiser = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    for _ in range(5000):
        f = net(x)
        value = torch.nn.functional.cross_entropy(f, y) if loss == "ce" else (f - y_1).square().mean()
        if value.item() < stop:
            return net.eval()
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    raise AssertionError(f"no convergence: {loss} {value.item():.2e} after 5000 steps, not below {stop}")


def correlation(a: Tensor, b: Tensor) -> float:
    a, b = a.flatten() - a.mean(), b.flatten() - b.mean()
    return float(a @ b / (a.norm() * b.norm()))
