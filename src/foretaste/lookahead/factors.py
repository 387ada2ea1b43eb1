"""Kept labels: the factors F that they take from S, and a running S with most of them subtracted.

After k labels S is the base less F_WᵀF_U, with B rows of F for each label. To subtract all of them at every pick costs
W·U·k, more than all else. So one matrix, shared by every state, follows the newest state: the base less the first n
factors of some order of candidates. A state whose order begins with the same candidates subtracts only the rest, at
most ``WAITING_FACTORS`` + 1 factors; any other state starts from the base. Factors depend on the order of the
candidates and not on their labels, so the order identifies them.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from foretaste.errors import is_out_of_memory

log = logging.getLogger("foretaste")

# Factors that may wait to be subtracted for good. At 4000² on two cores: a block with one waiting factor takes 10 ms,
# with eight 12 ms, and subtracting them for good 8 ms.
WAITING_FACTORS = 8

_running_lock = threading.Lock()

UseParts = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(eq=False)
class FactorRows:
    """Rows of factors with spare room at the end. Written rows never change, so states can share them."""

    f_U: Tensor  # (room, U·B)
    f_W: Tensor  # the same tensor if W = U
    filled: int = 0  # rows that were written when it was made
    claims: dict[int, object] = field(default_factory=dict)  # first row -> who writes there

    @staticmethod
    def like(f_U: Tensor, f_W: Tensor, room: int) -> "FactorRows":
        with torch.inference_mode(False):  # inference tensors could not be written to later
            rows_U = f_U.new_empty(room, f_U.shape[1])
            return FactorRows(rows_U, rows_U if f_W is f_U else f_W.new_empty(room, f_W.shape[1]))

    def claim(self, start: int, n: int) -> bool:
        """Reserve ``n`` rows from ``start`` on for the caller; False if they are not free.

        One setdefault in place of a lock: a Ctrl-C could leave a lock shut, and every label after it would wait.
        """
        mine = object()
        return self.filled <= start <= len(self.f_U) - n and self.claims.setdefault(start, mine) is mine


@dataclass(frozen=True, eq=False)
class Factors:
    """The factors of candidates ``js``, in that order: F_U (k·B, U·B) and F_W (k·B, W·B), one tensor if W = U."""

    js: tuple[int, ...] = ()
    B: int = 1
    _rows: FactorRows | None = None
    var_U: Tensor | None = None  # (U, B, B): the candidates' variance after these labels; None if not computed
    taken_U: Tensor | None = None  # (U,) bool: the candidates js; None if not computed
    roots: tuple[Tensor, ...] = ()  # R⁻¹ of each label, (B, B): its factor is R⁻¹ s

    def U(self, start: int = 0) -> Tensor:
        """F_U, from the ``start``-th label on."""
        assert self._rows is not None
        return self._rows.f_U[start * self.B : len(self.js) * self.B]

    def W(self, start: int = 0) -> Tensor:
        """F_W, from the ``start``-th label on."""
        assert self._rows is not None
        return self._rows.f_W[start * self.B : len(self.js) * self.B]

    def first(self, n: int) -> "Factors":
        """The factors of the first n labels."""
        return self if n == len(self.js) else Factors(self.js[:n], self.B, self._rows, roots=self.roots[:n])

    @torch.no_grad()
    def append(self, j: int, root: Tensor, f_U: Tensor, f_W: Tensor, var_U: Tensor | None) -> "Factors":
        """Add the factor of one label, f_U = root s (B, U·B) and f_W (B, W·B), behind the others.

        If another order of labels already continues from here, all rows are copied. ``var_U`` is the variance that is
        left: carried along, so that it is not summed over all factors at every label.
        """
        rows, k, B = self._rows, len(self.js) * self.B, f_U.shape[0]
        if rows is None or not rows.claim(k, B):
            rows = FactorRows.like(f_U, f_W, 2 * k + 8 * B)
            rows.filled = k + B
            if k:
                rows.f_U[:k] = self.U()
                rows.f_W[:k] = self.W()
        rows.f_U[k : k + B] = f_U
        if f_W is not f_U:
            rows.f_W[k : k + B] = f_W
        taken_U = self.taken_U
        if not self.js:
            taken_U = torch.zeros(f_U.shape[1] // B, dtype=torch.bool, device=f_U.device)
        elif taken_U is not None:
            taken_U = taken_U.clone()
        if taken_U is not None:
            taken_U[j] = True
        return Factors((*self.js, j), B, rows, var_U, taken_U, (*self.roots, root))

    def exchange(self, at_n: Tensor, S_Kn: Tensor, var_n: Tensor) -> "Factors":
        """With other candidates at ``at_n``, none of js, by S_Kn and S_nn before any label. B = 1, W ≠ U."""
        if not self.js:
            return self
        k = len(self.js)
        # F_i = root_i (S_i − Σ_{j<i} F_j(x_i) F_j), for all i at once.
        lower_KK = (
            self.U()[:, list(self.js)].T.tril(-1) + torch.stack([root[0, 0] for root in self.roots]).reciprocal().diag()
        )
        F_Kn = torch.linalg.solve_triangular(lower_KK, S_Kn, upper=False)
        rows = FactorRows.like(self.U(), self.W(), 2 * k + 8)
        rows.filled = k
        rows.f_U[:k], rows.f_W[:k] = self.U(), self.W()
        rows.f_U[:k, at_n] = F_Kn
        var_U = self.var_U
        if var_U is not None:
            var_U = var_U.clone()
            var_U[at_n] = var_n - F_Kn.square().sum(0)[:, None, None]
        return replace(self, _rows=rows, var_U=var_U)


@dataclass(frozen=True, eq=False)
class TakenPosterior:
    """S with some factors subtracted, and the candidates whose factors they are."""

    S_WU: Tensor
    js: tuple[int, ...]

    def starts(self, factors: Factors) -> bool:
        """Whether the order of ``factors`` begins with these candidates."""
        return factors.js[: len(self.js)] == self.js


@dataclass(eq=False)
class RunningPosterior:
    """The running S. It is never handed out: a block is a copy, less the factors that still wait."""

    taken: TakenPosterior | None = None  # also None while it is written to, or if that was interrupted
    room: bool = True  # whether there was memory for it

    @torch.no_grad()
    def follow(self, base_WU: Tensor, factors: Factors, wait: int | None = None) -> None:
        """Subtract all factors but the last if more than ``wait`` of them wait. For another order, begin anew.

        wait: ``WAITING_FACTORS`` if it is None.
        """
        taken = self.taken
        waiting = len(factors.js) - (len(taken.js) if taken and taken.starts(factors) else 0)
        if (
            not self.room
            or waiting <= (WAITING_FACTORS if wait is None else wait)
            or not _running_lock.acquire(blocking=False)
        ):
            return
        try:
            taken, self.taken = self.taken, None
            n = len(taken.js) if taken and taken.starts(factors) else 0
            if taken is None:
                with torch.inference_mode(False):
                    S_WU = base_WU.clone()
            else:
                S_WU = taken.S_WU if n else taken.S_WU.copy_(base_WU)
            most = factors.first(len(factors.js) - 1)
            S_WU.addmm_(most.W(n).T, most.U(n), alpha=-1)
            self.taken = TakenPosterior(S_WU, most.js)
        except Exception as e:
            if not is_out_of_memory(e):
                raise
            self.room = False
            log.warning("no memory for a second S of %d × %d: each pick of a large batch takes longer", *base_WU.shape)
        finally:
            _running_lock.release()

    def read(self, base_WU: Tensor, factors: Factors, use: UseParts) -> Tensor:
        """``use(S_WU, F_W, F_U)``, where S_WU − F_WᵀF_U is the S of ``factors``. It must not keep or change S_WU."""
        while True:
            taken = self.taken
            S_WU, n = base_WU, 0
            if taken and taken.starts(factors):
                S_WU, n = taken.S_WU, len(taken.js)
            found = use(S_WU, factors.W(n), factors.U(n))
            if S_WU is base_WU or self.taken is taken:  # otherwise another thread has written to it
                return found

    def block(self, base_WU: Tensor, factors: Factors, at: slice, same: bool) -> Tensor:
        """S_Wu of columns ``at``. W = U: rows are read instead, for S is symmetric and its rows are contiguous."""
        if same:
            return self.read(base_WU, factors, lambda S, F_W, F_U: torch.addmm(S[at], F_U[:, at].T, F_W, alpha=-1)).T
        return self.read(base_WU, factors, lambda S, F_W, F_U: torch.addmm(S[:, at], F_W.T, F_U[:, at], alpha=-1))
