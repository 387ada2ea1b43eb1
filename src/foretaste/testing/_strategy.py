"""The contract of a strategy, whether it scores or picks by itself: what ``ft.query`` promises of its batches."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.acquire import find
from foretaste.network import MLPSpec
from foretaste.query import query
from foretaste.testing._found import changed, found

U, BATCH, BAD = 11, 4, 5
ORDER = (5, 2, 9, 0, 10, 7, 1, 4, 8, 3, 6)
MakeNet = Callable[[int], nn.Module]


@dataclass(frozen=True)
class Case:
    """A small network, six labels and a pool of eleven different points; ``ask`` is ``ft.query`` on it, checked."""

    strategy: Any
    options: Mapping[str, Any]
    make_net: MakeNet
    C: int
    dtype: torch.dtype = torch.float64
    loss: str = "l2"
    x_U: Tensor = field(default_factory=lambda: _normal(U, 4, seed=2), repr=False)

    def __str__(self) -> str:
        return f"C = {self.C}, {str(self.dtype).removeprefix('torch.')}, loss {self.loss!r}"

    def net(self) -> nn.Module:
        """The same weights each time; a frozen parameter and one with a gradient, to see that both stay so."""
        with torch.random.fork_rng(devices=[]):
            net = self.make_net(self.C).to(self.dtype).eval()
        parameters = list(net.parameters())
        with torch.no_grad():
            for i, p in enumerate(parameters):
                p.copy_(_normal(*p.shape, seed=10 + i) / 2)
        parameters[0].grad = torch.ones_like(parameters[0])
        parameters[1].requires_grad_(False)
        return net

    def ask(
        self, x_U: Tensor | None = None, net: nn.Module | None = None, *, batch_size: int = BATCH, seed: int = 0
    ) -> Any:
        net, x_L = net or self.net(), _normal(6, 4, seed=1).to(self.dtype)
        y_L = _normal(6, seed=3) if self.C == 1 else torch.arange(6) % self.C
        x_U = (self.x_U if x_U is None else x_U).to(self.dtype)
        before = found(net, x_L, y_L, x_U)
        try:
            return query(
                net, x_L, y_L, x_U, strategy=self.strategy, options=dict(self.options) or None, loss=self.loss,
                batch_size=batch_size, seed=seed, ridge=1e-3,
            )  # fmt: skip
        finally:
            if touched := changed(before, found(net, x_L, y_L, x_U)):
                raise AssertionError(f"untouched: a query changed {', '.join(touched[:4])} ({self})")

    def picks(self, what: str, x_U: Tensor | None = None, batch_size: int = BATCH, seed: int = 0) -> list[int]:
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
    """Raise an AssertionError that says which clause a strategy breaks, and where.

    By its name, or fn(state) -> (U,); ``options`` are its own settings. Every batch: int64, different positions. The
    same seed, the same batch, whatever the global random state. Copies in the pool, a pool of nothing else, and the
    whole pool, are fine; more than the pool, and a NaN output of the network, raise. Where the seed decides nothing,
    permuting the pool permutes the batch. Weights, ``.grad``, flags, hooks, inputs and random states are as found, also
    after an error. On networks of 2 and 100 classes (one output, where it takes that), float32 and float64, by each of
    ``losses``. ``make_net(C)`` makes another network than an MLP, of 4 inputs in one tensor; its weights are replaced.
    """
    needs = find(strategy).needs if isinstance(strategy, str) else ("classes",)
    if not isinstance(strategy, str) and options:
        strategy, options = partial(strategy, **options), {}
    make = make_net or (lambda C: MLPSpec(4, (16,), C).build())
    logger = logging.getLogger("foretaste")
    level = logger.level
    logger.setLevel(logging.ERROR)  # that these networks are untrained is no news
    try:
        losses = tuple(losses)
        for C in [1] if "regression" in needs else [2, 100] if "classes" in needs else [1, 2, 100]:
            for n, loss in enumerate(losses if C > 1 else ["l2"]):
                dtypes = torch.float64, torch.float32
                case = Case(strategy, options, make, C, dtypes[n % 2], loss)
                _seed(case)
                _copies(case)
                if n == 0:
                    _seed(Case(strategy, options, make, C, torch.float32, loss))
                    _permutation(case)
                    _limits(case)
                _nan(case)
    finally:
        logger.setLevel(level)


def _seed(case: Case) -> None:
    once = case.picks("a pool of different points")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12345)
        again = case.picks("asked again")
    if once != again:
        raise AssertionError(f"seed: the same seed gave {once} and then {again} ({case})")


def _copies(case: Case) -> None:
    case.picks("each point three times", case.x_U[:4].repeat(3, 1), batch_size=9)
    case.picks("a pool of one point five times", case.x_U[:1].repeat(5, 1), batch_size=3)


def _limits(case: Case) -> None:
    case.picks("the whole pool", batch_size=U)
    case.picks("a pool of one", case.x_U[:1], batch_size=1)
    try:
        case.ask(batch_size=U + 1)
    except ValueError:
        return
    raise AssertionError(f"too few: a batch of {U + 1} from a pool of {U} did not raise a ValueError ({case})")


def _permutation(case: Case) -> None:
    first, *others = (case.picks("another seed", seed=seed) for seed in range(5))
    if any(other != first for other in others):
        return  # by lot, or ties that the seed breaks
    moved = case.picks("the pool permuted", case.x_U[list(ORDER)])
    if (back := [ORDER[j] for j in moved]) != first:
        raise AssertionError(f"permutation: with the pool permuted it takes {back}, and {first} before ({case})")


def _nan(case: Case) -> None:
    """One candidate's outputs are NaN. A strategy that never calls the network cannot know, and is let off."""
    net, bad, calls = case.net(), case.x_U[BAD].to(case.dtype), [0]

    def spoil(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        calls[0] += 1
        return torch.where((args[0] == bad).all(-1, keepdim=True), torch.nan, out)

    net.register_forward_hook(spoil)
    try:
        picked = case.ask(net=net).indices.tolist()
    except ValueError:
        return
    except Exception as e:
        if isinstance(e, AssertionError):
            raise
        raise AssertionError(f"NaN: of the outputs of candidate {BAD} gave {type(e).__name__}: {e} ({case})") from e
    if calls[0]:
        raise AssertionError(f"NaN: of the outputs of candidate {BAD} did not raise; it took {picked} ({case})")


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
