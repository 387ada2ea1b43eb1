"""Progress of a query: the caller's ``progress(done, total)``, over one phase or several."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class ProgressCounter:
    """The caller's ``progress(done, total)``, and whether it was ever called."""

    report: Callable[[int, int], object] | None = None
    called: bool = False

    def __call__(self, done: int, total: int) -> None:
        self.called = True
        if self.report is not None:
            self.report(done, total)

    def count_all(self, total: int) -> None:
        """Report every pick at once."""
        for done in range(1, total + 1):
            self(done, total)

    def begin(self, share: float) -> None:
        """The next phase begins. Here there is one."""

    def restart(self) -> None:
        """Another way begins: what is left is shared out anew."""

    def finish(self) -> None:
        """The query is over."""


@dataclass
class PhasedProgress(ProgressCounter):
    """Several phases on one scale, by the work that is expected of each.

    What is reported never falls, and is ``total`` once, at the end of the last phase. In a phase it is called with what
    is done of that phase.
    """

    total: int = 1
    done: int = 0
    start: float = 0.0  # of the phase, as a share of all
    stop: float = 0.0

    def begin(self, share: float) -> None:
        """The next phase begins, with this share of what is left. The last one has all of it."""
        self.start, self.stop = self.stop, 1.0 if share >= 1 else self.stop + share * (1 - self.stop)

    def restart(self) -> None:
        """Another way begins: what is left is shared out anew."""
        self.start = self.stop = self.done / self.total

    def __call__(self, done: int, total: int) -> None:
        at = int(self.total * (self.start + (self.stop - self.start) * min(done, total) / max(total, 1)))
        self._reach(self.total if self.stop == 1 and done >= total else min(at, self.total - 1))

    def finish(self) -> None:
        """The query is over, and nothing was left to be done."""
        self._reach(self.total)

    def _reach(self, at: int) -> None:
        if self.done < self.total:
            self.done = max(self.done, at)
            super().__call__(self.done, self.total)
