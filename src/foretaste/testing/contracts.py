"""The contracts of acquisition functions, strategies, networks and rules, as tests that anybody can run."""

import copy
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.acquire import find_strategy
from foretaste.errors import errors_only, whole_number
from foretaste.lookahead import State, linearize
from foretaste.network import MLPSpec
from foretaste.pick import query
from foretaste.tangent import (
    REGISTERED,
    FrozenNetwork,
    Inputs,
    Output,
    count_points,
    double_inputs,
    freeze,
    isolated,
    ntk,
    take_points,
    without_modes,
)

Acquisition = Callable[[State], Tensor]
VECTORS = 4
# How far rᵀΘr may be from the true one: of itself, and of the mean diagonal times ‖r‖².
KERNEL_ROUNDING = {torch.float32: (1e-3, 1e-5), torch.float64: (1e-6, 1e-10)}
POOL_ORDER = (5, 2, 9, 0, 10, 7, 1, 4, 8, 3, 6)  # a permutation of the pool


@dataclass(frozen=True)
class ContractSetting:
    """A small network with its labels and a pool, in which candidate 7 is a copy of candidate 3."""

    C: int = 2
    dtype: torch.dtype = torch.float64
    loss: str = "l2"
    watch: bool = False
    order: tuple[int, ...] = tuple(range(11))

    def __str__(self) -> str:
        watched = "a watched set of its own" if self.watch else "the pool watched"
        return f"C = {self.C}, {str(self.dtype).removeprefix('torch.')}, loss {self.loss!r}, {watched}"

    def state(self) -> State:
        g = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64).to(self.dtype)

        net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, self.C)).to(self.dtype)
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(normal(*p.shape) / 2)
        x_L, x_U, x_W = normal(6, 4), normal(11, 4), normal(5, 4)
        x_U[7] = x_U[3]
        y_L = normal(6).double() if self.C == 1 else torch.arange(6) % self.C
        return linearize(
            net.eval(), x_L, y_L, x_U[list(self.order)], watch=x_W if self.watch else None, loss=self.loss, ridge=1e-3
        )


def check_acquisition(fn: Acquisition, *, regression: bool = False) -> None:
    """Hold an acquisition function to the contract that ``ft.query`` relies on.

    Scores have the right shape and are finite, except for candidates already taken. Two calls give the same scores and
    leave the state unchanged. Permuting the pool permutes the scores, and copies of a point score alike. All this is
    tried in float32 and float64, with both losses, with watched points that are not the pool, and after labels.

    Args:
        fn: ``fn(state) -> (U,)``, higher = label sooner.
        regression: use networks with one output instead of 2 and 10 classes.

    Raises:
        AssertionError: says which clause is broken, and in which setting.

    Example:
        >>> from foretaste.acquire import variance
        >>> check_acquisition(variance)
    """
    classes, numbers = ContractSetting(C=2), ContractSetting(C=1)
    settings = [classes, ContractSetting(C=10, dtype=torch.float32), ContractSetting(C=10, watch=True)]
    settings += [replace(classes, dtype=torch.float32, watch=True), ContractSetting(C=10, loss="ce")]
    with errors_only():  # these networks are untrained on purpose
        for setting in [numbers, replace(numbers, dtype=torch.float32, watch=True)] if regression else settings:
            _check_setting(fn, setting)


def _check_setting(fn: Acquisition, setting: ContractSetting) -> None:
    state = setting.state()
    y: Any = 0.5 if setting.C == 1 else 1
    scores_U = _contract_scores(fn, state, setting, "before any label")
    _contract_scores(fn, state.condition(2, y), setting, "after a label")
    _contract_scores(fn, state.condition(2, None), setting, "with a pending label")
    tolerance = 1e-6 if setting.dtype == torch.float64 else 1e-2  # S subtracts nearly equal numbers
    slack = tolerance * max(float(scores_U.abs().max()), 1e-12)
    if float((scores_U[3] - scores_U[7]).abs()) > slack:
        raise AssertionError(
            f"duplicates: candidates 3 and 7 are the same point and score {float(scores_U[3]):.6g} and "
            f"{float(scores_U[7]):.6g} ({setting})"
        )
    permuted_U = _contract_scores(fn, replace(setting, order=POOL_ORDER).state(), setting, "with the pool permuted")
    before_U = scores_U[list(POOL_ORDER)]
    if float((off := (permuted_U - before_U).abs()).max()) > slack:
        j = int(off.argmax())
        raise AssertionError(
            f"permutation: with the pool permuted candidate {POOL_ORDER[j]} scores {float(permuted_U[j]):.6g}, and "
            f"{float(before_U[j]):.6g} before ({setting})"
        )


def _contract_scores(fn: Acquisition, state: State, setting: ContractSetting, when: str) -> Tensor:
    where = f"({setting}; {when})"
    seen = [t.clone() for t in _public(state)]
    try:
        scores_U, again_U = fn(state), fn(state)
    except Exception as e:
        raise AssertionError(f"runs: {type(e).__name__}: {e} {where}") from e
    if not isinstance(scores_U, Tensor) or scores_U.shape != (state.U,):
        came = tuple(scores_U.shape) if isinstance(scores_U, Tensor) else type(scores_U).__name__
        raise AssertionError(f"shape: returned {came}; expected a tensor ({state.U},) {where}")
    free_U = ~state.taken
    if not torch.isfinite(scores_U[free_U]).all():
        j = int((~torch.isfinite(scores_U) & free_U).nonzero()[0])
        raise AssertionError(f"finite: candidate {j} scores {float(scores_U[j])} and is not taken {where}")
    if not torch.equal(scores_U[free_U], again_U[free_U]):
        raise AssertionError(f"deterministic: a second call on the same state gives other scores {where}")
    if any(not torch.equal(a, b) for a, b in zip(seen, _public(state))):
        raise AssertionError(f"pure: the state's tensors were written to {where}")
    return scores_U.double()


def _public(state: State) -> list[Tensor]:
    S_WU = torch.cat([S_Wu for _, S_Wu in state.blocks()], 1)
    return [state.net, state.mean, state.pool_net, state.pool_mean, state.u, S_WU]


# What a query must not change: recorded before it, compared after it.


def snapshot_network(net: nn.Module, *inputs: Tensor) -> dict[str, Any]:
    """Weights, gradients, flags, hooks and attributes of ``net``, the inputs, and the state every process shares."""
    seen: dict[str, Any] = {}
    for name, p in net.named_parameters():
        seen[f"parameter {name}"] = p.detach().clone()
        seen[f".grad of {name}"] = None if p.grad is None else p.grad.clone()
        seen[f"requires_grad of {name}"] = p.requires_grad
    for name, b in net.named_buffers():
        seen[f"buffer {name}"] = b.clone()
    for name, m in net.named_modules():
        where = f"module {name or 'net'}"
        seen[f"the training flag of {where}"] = m.training
        seen[f"the attributes of {where}"] = sorted(vars(m))
        for hooks in [v for v in vars(m) if v.endswith(("_hooks", "_hooks_with_kwargs"))]:
            seen[f"{hooks} of {where}"] = [id(h) for h in vars(m)[hooks].values()]
    seen |= {f"input {i}": x.clone() for i, x in enumerate(inputs)}
    return seen | {
        "torch's random state": torch.get_rng_state(),
        "numpy's random state": [str(part) for part in np.random.get_state()],  # noqa: NPY002  that is what is watched
        "python's random state": random.getstate(),
        "whether gradients are on": torch.is_grad_enabled(),
        "the default dtype": torch.get_default_dtype(),
    }


def describe_changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what differs."""
    return [k for k in before | after if k not in before or k not in after or not _same_value(before[k], after[k])]


def _same_value(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    return bool(a == b) if type(a) is type(b) else False


# The contract of a strategy, whether it scores candidates or picks a batch by itself.


CONTRACT_POOL, CONTRACT_BATCH, BAD_CANDIDATE = 11, 4, 5
MakeNet = Callable[[int], nn.Module]


@dataclass(frozen=True)
class ContractCase:
    """A small network, six labels and a pool of eleven different points; ``ask`` is ``ft.query`` on it, checked."""

    strategy: Any
    options: Mapping[str, Any]
    make_net: MakeNet
    C: int
    dtype: torch.dtype = torch.float64
    loss: str = "l2"
    x_U: Tensor = field(default_factory=lambda: _normal_points(CONTRACT_POOL, 4, seed=2), repr=False)

    def __str__(self) -> str:
        return f"C = {self.C}, {str(self.dtype).removeprefix('torch.')}, loss {self.loss!r}"

    def net(self) -> nn.Module:
        """The same weights each time; a frozen parameter and one with a gradient, to see that both stay so."""
        with torch.random.fork_rng(devices=[]):
            net = self.make_net(self.C).to(self.dtype).eval()
        parameters = list(net.parameters())
        with torch.no_grad():
            for i, p in enumerate(parameters):
                p.copy_(_normal_points(*p.shape, seed=10 + i) / 2)
        parameters[0].grad = torch.ones_like(parameters[0])
        parameters[1].requires_grad_(False)
        return net

    def ask(
        self, x_U: Tensor | None = None, net: nn.Module | None = None, batch_size: int = CONTRACT_BATCH, seed: int = 0
    ) -> Any:
        net, x_L = net or self.net(), _normal_points(6, 4, seed=1).to(self.dtype)
        y_L = _normal_points(6, seed=3) if self.C == 1 else torch.arange(6) % self.C
        x_U = (self.x_U if x_U is None else x_U).to(self.dtype)
        before = snapshot_network(net, x_L, y_L, x_U)
        try:
            return query(
                net, x_L, y_L, x_U, strategy=self.strategy, options=dict(self.options) or None, loss=self.loss,
                batch_size=batch_size, seed=seed, ridge=1e-3,
            )  # fmt: skip
        finally:
            if touched := describe_changes(before, snapshot_network(net, x_L, y_L, x_U)):
                raise AssertionError(f"untouched: a query changed {', '.join(touched[:4])} ({self})")

    def picks(self, what: str, x_U: Tensor | None = None, batch_size: int = CONTRACT_BATCH, seed: int = 0) -> list[int]:
        """The batch as a list, after what holds of every batch has been checked."""
        x_U, where = self.x_U if x_U is None else x_U, f"({what}; {self})"
        try:
            q = self.ask(x_U, batch_size=batch_size, seed=seed)
        except AssertionError:
            raise
        except Exception as e:
            raise AssertionError(f"runs: {type(e).__name__}: {e} {where}") from e
        if not isinstance(q.indices, np.ndarray) or q.indices.shape != (batch_size,) or q.indices.dtype != np.int64:
            raise AssertionError(f"shape: indices are {q.indices!r}; expected an int64 array ({batch_size},) {where}")
        picked: list[int] = q.indices.tolist()
        if len(set(picked)) < batch_size or not set(picked) <= set(range(len(x_U))):
            raise AssertionError(f"repeats: {picked}; expected different positions below {len(x_U)} {where}")
        s = q.scores
        if s is not None and (s.shape != (len(x_U),) or s.dtype != torch.float64 or s.isnan().any()):
            raise AssertionError(f"scores: {s}; expected {len(x_U)} float64 numbers, or None {where}")
        return picked


def check_strategy(
    strategy: str | Callable[..., Any],
    /,
    *,
    make_net: MakeNet | None = None,
    losses: Iterable[str] = ("l2", "ce"),
    **options: Any,
) -> None:
    """Hold a strategy to what ``ft.query`` promises of its batches.

    A batch has different int64 positions. The same seed gives the same batch, whatever the global random state. Copies
    in the pool, a pool of copies only, and asking for the whole pool all work. A NaN output of the network raises. If
    the seed makes no difference, permuting the pool permutes the batch. Weights, ``.grad``, flags, hooks, inputs and
    random states are unchanged, also after an error. Networks have 2 and 100 classes (or one output, if the strategy
    is for regression), in float32 and float64.

    Args:
        strategy: a registered name, or ``fn(state) -> (U,)``.
        make_net: ``make_net(C)`` makes the network, of 4 inputs in one tensor; None is an MLP. Weights are replaced.
        losses: the losses to try.
        options: settings of the strategy.

    Raises:
        AssertionError: says which clause is broken, and in which case.

    Example:
        >>> check_strategy("margin", losses=["ce"])
    """
    needs = find_strategy(strategy).needs if isinstance(strategy, str) else ("classes",)
    if not isinstance(strategy, str) and options:
        strategy, options = partial(strategy, **options), {}
    make = make_net or (lambda C: MLPSpec(4, (16,), C).build())
    losses = tuple(losses)
    with errors_only():  # these networks are untrained on purpose
        for C in [1] if "regression" in needs else [2, 100] if "classes" in needs else [1, 2, 100]:
            for n, loss in enumerate(losses if C > 1 else ["l2"]):
                case = ContractCase(strategy, options, make, C, torch.float32 if n % 2 else torch.float64, loss)
                _check_seed(case)
                _check_copies(case)
                if n == 0:
                    _check_seed(replace(case, dtype=torch.float32))
                    _check_permutation(case)
                    _check_limits(case)
                _check_nan(case)


def _check_seed(case: ContractCase) -> None:
    once = case.picks("a pool of different points")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12345)
        again = case.picks("asked again")
    if once != again:
        raise AssertionError(f"seed: the same seed gave {once} and then {again} ({case})")


def _check_copies(case: ContractCase) -> None:
    case.picks("each point three times", case.x_U[:4].repeat(3, 1), batch_size=9)
    case.picks("a pool of one point five times", case.x_U[:1].repeat(5, 1), batch_size=3)


def _check_limits(case: ContractCase) -> None:
    case.picks("the whole pool", batch_size=CONTRACT_POOL)
    case.picks("a pool of one", case.x_U[:1], batch_size=1)
    picked = case.ask(batch_size=CONTRACT_POOL + 1).indices.tolist()
    if sorted(picked) != list(range(CONTRACT_POOL)):
        raise AssertionError(
            f"too few: {CONTRACT_POOL + 1} points from a pool of {CONTRACT_POOL} are {picked}; expected all ({case})"
        )


def _check_permutation(case: ContractCase) -> None:
    first, *others = (case.picks("another seed", seed=seed) for seed in range(5))
    if any(other != first for other in others):
        return  # the strategy draws at random, or the seed breaks ties
    moved = case.picks("the pool permuted", case.x_U[list(POOL_ORDER)])
    if (back := [POOL_ORDER[j] for j in moved]) != first:
        raise AssertionError(f"permutation: with the pool permuted it takes {back}, and {first} before ({case})")


def _check_nan(case: ContractCase) -> None:
    """One candidate's outputs are NaN. A strategy that never runs the network on it cannot know, and passes."""
    net, spoiled, calls = case.net(), case.x_U[BAD_CANDIDATE].to(case.dtype), [0]

    def spoil(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        spoil_N1 = (args[0] == spoiled).all(-1, keepdim=True)
        calls[0] += int(spoil_N1.any())
        return torch.where(spoil_N1, torch.nan, out)

    net.register_forward_hook(spoil)
    try:
        picked = case.ask(net=net).indices.tolist()
    except ValueError:
        return
    except AssertionError:
        raise
    except Exception as e:
        raise AssertionError(
            f"NaN: outputs of candidate {BAD_CANDIDATE} are NaN, and it raised {type(e).__name__}: {e} ({case})"
        ) from e
    if calls[0]:
        raise AssertionError(
            f"NaN: outputs of candidate {BAD_CANDIDATE} are NaN, and nothing was raised; picked {picked} ({case})"
        )


def _normal_points(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- networks: the kernel is that of plain autograd, on all points ---


@without_modes()
def check_network(net: nn.Module, x: Inputs, *, output: Output = "sum", batch: int = 32) -> None:
    """Compare the kernel of a network with plain autograd on all of the points.

    ``ft.ntk`` and ``ft.query`` check their rules for layers on a dozen points of each set. A forward that exchanges two
    rows of a batch of 600 passes that. This check sees it, at the cost of one forward and four backward passes over
    the points: rᵀΘr = ‖Jᵀr‖² for random vectors r, and Jᵀr is one gradient of the network. The mean of r is zero, so
    that what the gradients of all points have in common does not hide the rest. All of it is in float64, on a copy of
    the network, if the network can be copied and computes in float64. For "trace" it is Σ_c ‖J_cᵀr‖² / C, C times as
    many passes.

    Args:
        net: in eval mode.
        x: points as the network takes them: some hundred, as many as a batch of yours.
        output: of ``ft.ntk``: "sum" (default), "signs", "first", "trace", "full", or the number of an output.
        batch: points that go through the network at once for the gradient.

    Raises:
        AssertionError: the kernel is wrong.
        ValueError: foretaste refuses the network; the message says why.

    Example:
        >>> import torch
        >>> from foretaste.testing import check_network
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).eval()
        >>> check_network(net, torch.randn(200, 2))
    """
    batch = whole_number("batch", batch, 1)
    ntk(net, take_points(x, slice(2)), output=output)  # raises if foretaste refuses the network
    try:
        twin, wide = copy.deepcopy(net).double(), double_inputs(x)
        freeze(twin, output=output).call(take_points(wide, slice(2)), attached=True)
    except Exception:  # whatever a forward raises that has a dtype of its own
        twin, wide = net, x
    for got, want, rounding in _compare(twin, wide, output, batch):
        if not abs(got - want) <= rounding:
            raise AssertionError(
                f"Θ of {type(net).__name__} is wrong: rᵀΘr is {got:.6g} for a random r, and by plain autograd it is "
                f"{want:.6g}; let every row that its layers see be one point's, in the order of the batch, and every "
                "weight be used by its own module"
            )


def _compare(net: nn.Module, x: Inputs, output: Output, batch: int) -> list[tuple[float, float, float]]:
    """For each random r: rᵀΘr, ‖Jᵀr‖², and how far rounding may take them apart. Rows of Θ and J are (point, head)."""
    theta, n, frozen = ntk(net, x, output=output).double(), count_points(x), freeze(net, output=output)
    B = theta.shape[2] if output == "full" else 1
    theta_RR = theta.view(n, n, B, B).transpose(1, 2).reshape(n * B, n * B)
    r_KNB = torch.randn(VECTORS, n, B, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    r_KNB = (r_KNB - r_KNB.mean(1, keepdim=True) if n > 1 else r_KNB).to(theta.device)
    want_K = r_KNB.new_zeros(VECTORS)
    with isolated(frozen.device), torch.no_grad():
        heads = frozen.heads(frozen.call(take_points(x, slice(1)))).shape[1]
    for first in range(0, heads, B):  # "trace" is a sum over heads, each with a gradient of its own
        want_K += _squares(frozen, x, slice(first, first + B), r_KNB, batch)
    r_KR = r_KNB.flatten(1)
    got_K = ((r_KR @ theta_RR) * r_KR).sum(1)
    relative, absolute = KERNEL_ROUNDING[frozen.dtype]
    rounding_K = relative * want_K + absolute * theta_RR.diagonal().mean() * r_KR.square().sum(1)
    return list(zip(*(t.tolist() for t in (got_K, want_K, rounding_K))))


def _squares(frozen: FrozenNetwork, x: Inputs, heads: slice, r_KNB: Tensor, batch: int) -> Tensor:
    """(K,): ‖Jᵀr‖² of some heads for each r, by plain autograd."""
    params = [p for p in frozen.net.parameters() if p.requires_grad]
    sums = [torch.zeros(VECTORS, p.numel(), dtype=torch.float64, device=p.device) for p in params]
    for at in (slice(start, start + batch) for start in range(0, count_points(x), batch)):
        with isolated(frozen.device), torch.enable_grad():
            f_nB = frozen.heads(frozen.call(take_points(x, at), attached=True))[:, heads]
            for k, r_NB in enumerate(r_KNB):
                more, total = k < VECTORS - 1, (f_nB * r_NB[at].to(f_nB)).sum()
                grads = torch.autograd.grad(total, params, retain_graph=more, materialize_grads=True)
                for sum_KP, g in zip(sums, grads):
                    sum_KP[k] += (g.to_dense() if g.is_sparse else g).flatten().double()
    return sum((sum_KP.square().sum(1) for sum_KP in sums), r_KNB.new_zeros(VECTORS))


# --- rules: what they form is the gradient of plain autograd, point by point ---


@without_modes()
def check_rule(module: nn.Module, x: Tensor, *, seed: int = 0) -> None:
    """Hold a rule of ``ft.register_rule`` against plain autograd, one point at a time, in float64.

    For random gradients of the output, the rule must give every parameter's gradient at every point, whatever the other
    points are; and nothing may change on the module. Then Θ of a network with the module inside is compared.

    Args:
        module: a module of a registered class. Give parameters that are not all alike; a copy is put in eval mode.
        x: a few points as the module takes them, (n, ...); n is at least 2.
        seed: of the random gradients.

    Raises:
        AssertionError: names the parameter and by how much its gradient is off.
        ValueError: the module's class has no registered rule, or there are fewer than two points.

    Example:
        See ``ft.register_rule``.
    """
    rule = REGISTERED.get(type(module))
    if rule is None:
        raise ValueError(f"{type(module).__name__} has no registered rule; add one with @ft.register_rule")
    if len(x) < 2:
        raise ValueError(f"x has {len(x)} points; expected at least 2, so that points can be told apart")
    m = copy.deepcopy(module).double().eval().requires_grad_()
    x = x.double() if x.is_floating_point() else x
    draws = torch.Generator().manual_seed(seed)
    out = m(x)
    g = torch.randn(out.shape, generator=draws, dtype=torch.float64).to(out.device)
    before = {name: t.clone() for name, t in m.state_dict().items()}
    for name, p in m.named_parameters(recurse=False):
        with torch.no_grad():
            got = rule(m, name, x, g)
        if got.shape[0] != len(x) or got.numel() != len(x) * p.numel():
            raise AssertionError(
                f"the rule of {type(m).__name__} gives {tuple(got.shape)} for {name!r}; expected {(len(x), *p.shape)}"
            )
        for i in range(len(x)):
            total = (m(x[i : i + 1]) * g[i : i + 1]).sum()
            (want,) = torch.autograd.grad(total, p, materialize_grads=True)
            gap, size = float((got[i].reshape(p.shape) - want).norm()), float(want.norm())
            if not gap <= 1e-8 * size + 1e-12:
                raise AssertionError(
                    f"the rule of {type(m).__name__} is wrong for {name!r}: at point {i} it is {gap:.3g} away from "
                    f"autograd's gradient, whose length is {size:.3g}"
                )
    if changed := [name for name, t in m.state_dict().items() if not torch.equal(t, before[name])]:
        raise AssertionError(f"the rule of {type(m).__name__} changes {', '.join(changed)}")
    head = nn.Linear(out[0].numel(), 3, dtype=torch.float64, device=out.device)
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=draws, dtype=torch.float64))
    check_network(nn.Sequential(m, nn.Tanh(), nn.Flatten(), head).eval(), x)
