"""What the network says of all items of a pool larger than the window: one pass a training, in a thread of its own.

Nobody need wait for a pass. While one is under way, items that it has not come to have what the network before it said.
"""

import logging
import threading
from collections.abc import Callable

from torch import Tensor

from foretaste.label.pool import Pool
from foretaste.label.training import TrainingStopped, stop_at_exit
from foretaste.tangent import FrozenNetwork, outputs

log = logging.getLogger("foretaste")


class RoughProbabilities:
    """(N, C) of the network whose pass was begun last; NaN where no network has looked yet."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._lock = threading.Lock()
        self._going = threading.Lock()  # one pass at a time
        self._of: FrozenNetwork | None = None
        self._p_NC: Tensor | None = None
        self._done = 0
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._stopped = False

    @property
    def progress(self) -> tuple[int, int] | None:
        """(done, of how many) of a pass that is under way in the background."""
        return (self._done, len(self.pool)) if self._thread is not None else None

    def read(self, frozen: FrozenNetwork, squash: Callable[[Tensor], Tensor], like_C: Tensor, wait: bool) -> Tensor:
        """A copy of what is known. A network that has not looked yet begins a pass; ``wait``: until it has ended.

        ``squash`` makes probabilities of outputs; ``like_C`` has their number, type and device.
        """
        with self._lock:
            if self._p_NC is None:
                self._p_NC = like_C.new_full((len(self.pool), len(like_C)), float("nan"))
        if wait:
            with self._going:
                if not self._is_whole(frozen):
                    self._go(frozen, squash)
        elif not self._is_whole(frozen) and self._going.acquire(blocking=False):
            try:
                self._thread = threading.Thread(target=self._work, args=(frozen, squash), name="foretaste-pass")
                self._thread.start()  # no daemon: it would be cut off within torch at exit
            except BaseException:
                self._thread = None
                self._going.release()
                raise
        with self._lock:
            return self._p_NC.clone()

    def _is_whole(self, frozen: FrozenNetwork) -> bool:
        """Whether this network has looked at all items. Raises what it raised, if it could not."""
        if self._of is frozen and self._error is not None:
            raise self._error
        return self._of is frozen and self._done == len(self.pool)

    def stop(self) -> None:
        """Ask a pass in the background to stop, and wait for the items that it is at."""
        self._stopped = True
        if (thread := self._thread) is not None:
            thread.join()
        self._stopped = False

    def _go(self, frozen: FrozenNetwork, squash: Callable[[Tensor], Tensor]) -> None:
        assert self._p_NC is not None
        self._of, self._done, self._error = frozen, 0, None
        for some in self.pool.chunks(range(len(self.pool))):
            stop_at_exit(self._done, len(self.pool))
            if self._stopped:
                raise TrainingStopped("the pass was stopped")
            p_nC = squash(outputs(frozen, self.pool.take(some, frozen.device, frozen.dtype)))
            with self._lock:
                self._p_NC[some[0] : some[-1] + 1] = p_nC
                self._done = some[-1] + 1

    def _work(self, frozen: FrozenNetwork, squash: Callable[[Tensor], Tensor]) -> None:
        try:
            self._go(frozen, squash)
        except TrainingStopped:
            log.info("the pass over the pool was stopped; the next who asks begins another")
        except Exception as error:
            log.warning("the network could not look at the pool: %s", error)
            self._error = error
        finally:
            self._thread = None
            self._going.release()
