"""What came of a generated call: an answer that is right, a clear error, or something that must not happen."""

import resource
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import foretaste

PACKAGE = str(Path(foretaste.__file__).parent)
CLEAR = (ValueError, TypeError, IndexError, OSError)
GOOD = ("right", "clear error")
SECONDS = 60  # a call that takes longer hangs


def limit_memory(nbytes: int = 6 * 10**9) -> None:
    """A call that asks for more memory fails, instead of taking the machine's."""
    resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))


class WrongError(AssertionError):
    """An answer that a brute-force computation contradicts."""


class HangError(BaseException):
    """A call that does not end."""


@dataclass
class Tally:
    """Outcomes by name, and the first few examples of each that is not good."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, outcome: str, example: str) -> None:
        self.counts[outcome] += 1
        if outcome not in GOOD:
            kept = self.examples.setdefault(outcome, [])
            if len(kept) < 40:
                kept.append(example)

    def bad(self, allowed_raw: float = 0.001) -> bool:
        """Whether anything came that must not: at most one raw error in a thousand is allowed."""
        raw = self.counts["raw error"] / max(1, sum(self.counts.values()))
        return raw > allowed_raw or any(n for name, n in self.counts.items() if name not in (*GOOD, "raw error"))

    def __str__(self) -> str:
        return ", ".join(f"{name} {n}" for name, n in sorted(self.counts.items()))


def outcome_of(call: Callable[[], Any]) -> tuple[str, str]:
    """The outcome of a call that raises WrongError if its answer is wrong, and a word on it."""
    try:
        with _alarm():
            call()
    except WrongError as error:
        return "wrong", str(error)
    except HangError:
        return "hang", f"after {SECONDS} s"
    except CLEAR as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = place.filename.startswith(PACKAGE) and "raise" in (place.line or "")  # not an operation that failed
        said |= "<lambda>()" in str(error)  # a function of the caller's, called as it should be
        words = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:200]}"
        return ("clear error" if said and len(str(error)) > 15 else "raw error"), words
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return _kind(error), f"{type(error).__name__} at {where}: {str(error)[:200]}"
    return "right", ""


def _kind(error: Exception) -> str:
    """Errors of our own that are neither ValueError nor TypeError (a training that diverged) are clear too."""
    return "clear error" if type(error).__module__.startswith("foretaste") else "raw error"


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Executed:
    """An audit hook that notes what a reader must never do: start processes, compile or run code of the file's."""

    EVENTS = (
        "os.system",
        "subprocess.Popen",
        "os.exec",
        "os.posix_spawn",
        "pty.spawn",
        "ctypes.dlopen",
        "socket.connect",
    )

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.on = False
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if self.on and event in self.EVENTS:
            self.seen.append(f"{event} {args!r}"[:200])
