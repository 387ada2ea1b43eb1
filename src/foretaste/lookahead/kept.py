"""What kept labels take from S, and a running S from which most of it is already taken.

After k labels S is the base less F_WᵀF_U, with B rows of F a label. Taken anew at every pick that is W·U·k a pick, more
than all else. So one matrix, shared by every state, follows the newest: the base less the first n factors of some order
of labels. A state whose order starts alike needs the rest only, one to ``WAIT`` + 1 factors; any other starts from the
base. Factors depend on the order of candidates alone, not on their labels, so that order says whose they are.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

log = logging.getLogger("foretaste")

WAITING_FACTORS = (
    8  # factors not yet taken: at 4000² on two cores 10 ms for one and 12 ms for eight, 8 ms to take them for good
)

_running_lock = threading.Lock()

UseParts = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(eq=False)
class FactorRows:
    """Rows that grow at the end, with room to spare; what is written stays, so that states share their beginnings."""

    f_U: Tensor  # (room, U·B)
    f_W: Tensor  # the same tensor if W = U
    filled: int = 0

    @staticmethod
    def like(f_U: Tensor, f_W: Tensor, room: int) -> "FactorRows":
        with torch.inference_mode(False):  # else they could not be written to outside of it
            rows_U = f_U.new_empty(room, f_U.shape[1])
            return FactorRows(rows_U, rows_U if f_W is f_U else f_W.new_empty(room, f_W.shape[1]))

    def claim(self, start: int, n: int) -> bool:
        """Whether ``n`` rows from ``start`` on are free; they are the caller's then."""
        with _running_lock:
            free = self.filled == start and start + n <= len(self.f_U)
            if free:
                self.filled += n
            return free


@dataclass(frozen=True, eq=False)
class Factors:
    """The factors of candidates ``js``, in that order: F_U (k·B, U·B) and F_W (k·B, W·B), one tensor if W = U."""

    js: tuple[int, ...] = ()
    B: int = 1
    _rows: FactorRows | None = None
    var_U: Tensor | None = None  # (U, B, B): the candidates' variance less that of F_UᵀF_U, None if not at hand
    taken_U: Tensor | None = None  # (U,) bool: js, likewise

    def U(self, start: int = 0) -> Tensor:
        """Those from the ``start``-th on."""
        assert self._rows is not None
        return self._rows.f_U[start * self.B : len(self.js) * self.B]

    def W(self, start: int = 0) -> Tensor:
        assert self._rows is not None
        return self._rows.f_W[start * self.B : len(self.js) * self.B]

    def first(self, n: int) -> "Factors":
        return self if n == len(self.js) else Factors(self.js[:n], self.B, self._rows)

    @torch.no_grad()
    def append(self, j: int, f_U: Tensor, f_W: Tensor, var_U: Tensor | None) -> "Factors":
        """One more, (B, U·B) and (B, W·B): in place behind the others, unless another order went on from here.

        ``var_U`` is the variance it leaves: carried along, not summed over all at every label.
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
        return Factors((*self.js, j), B, rows, var_U, taken_U)


@dataclass(frozen=True, eq=False)
class TakenPosterior:
    """A matrix, and the candidates whose factors are taken from it."""

    S_WU: Tensor
    js: tuple[int, ...]

    def starts(self, factors: Factors) -> bool:
        return factors.js[: len(self.js)] == self.js


@dataclass(eq=False)
class RunningPosterior:
    """The running S. Never handed out: a block of it is a copy, less the factors that wait, and stays what it is."""

    taken: TakenPosterior | None = None  # None also while it is written to, or if that was interrupted
    room: bool = True

    @torch.no_grad()
    def follow(self, base_WU: Tensor, factors: Factors) -> None:
        """Take all factors but the last, if more than ``WAIT`` wait. Rebuilt from the base for another order."""
        if not self.room or self._waiting(factors) <= WAITING_FACTORS or not _running_lock.acquire(blocking=False):
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
        except torch.OutOfMemoryError:
            self.room = False
            log.warning("no memory for a second S of %d × %d: each pick of a long batch takes longer", *base_WU.shape)
        finally:
            _running_lock.release()

    def _waiting(self, factors: Factors) -> int:
        taken = self.taken
        return len(factors.js) - (len(taken.js) if taken and taken.starts(factors) else 0)

    def read(self, base_WU: Tensor, factors: Factors, use: UseParts) -> Tensor:
        """``use(S_WU, F_W, F_U)``, where S_WU − F_WᵀF_U is the S of ``factors``. It is not to keep or change S_WU."""
        while True:
            taken = self.taken
            S_WU, n = base_WU, 0
            if taken and taken.starts(factors):
                S_WU, n = taken.S_WU, len(taken.js)
            found = use(S_WU, factors.W(n), factors.U(n))
            if S_WU is base_WU or self.taken is taken:  # else another thread wrote to it meanwhile
                return found

    def block(self, base_WU: Tensor, factors: Factors, at: slice, same: bool) -> Tensor:
        """S_Wu of columns ``at``. W = U: S is symmetric, and its rows lie together in memory as columns do not."""
        if same:
            return self.read(base_WU, factors, lambda S, F_W, F_U: torch.addmm(S[at], F_U[:, at].T, F_W, alpha=-1)).T
        return self.read(base_WU, factors, lambda S, F_W, F_U: torch.addmm(S[:, at], F_W.T, F_U[:, at], alpha=-1))
