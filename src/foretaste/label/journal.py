"""A journal: a file that only grows, one entry of JSON a line, each line with its checksum.

    CHECKSUM LEFT JSON

LEFT is how many lines of the same transaction follow. A transaction counts if its last line is there: what a crash left
unfinished at the end is cut away. A damaged line in the middle is left out and counted.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretaste.errors import checksum
from foretaste.files import whole_file


@dataclass(frozen=True)
class JournalText:
    """What a journal says."""

    entries: list[dict[str, Any]]  # of whole transactions, oldest first
    last: int = 0  # how many of them are of the last transaction
    damaged: int = 0  # lines in the middle
    torn: bool = False  # an unfinished or damaged end
    end: int = 0  # bytes without that end


class JournalFile:
    """A journal open for writing. What ``append`` has taken is on the disk when it returns.

    Args:
        path: of the file, which is there.
        end: how many bytes of it count; ``read_journal`` says it.
    """

    def __init__(self, path: Path, end: int) -> None:
        self._file = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        self._end = self._before = end

    def append(self, entries: Sequence[dict[str, Any]]) -> None:
        """Write one transaction. After an error, ``cut``."""
        left = memoryview(journal_lines(entries))
        self._before = self._end
        os.ftruncate(self._file, self._end)  # what an earlier failure left
        os.lseek(self._file, self._end, os.SEEK_SET)
        size = len(left)
        while left:
            left = left[os.write(self._file, left) :]
        os.fsync(self._file)
        self._end += size

    def cut(self) -> None:
        """Take the last ``append`` away. If the disk refuses, the next ``append`` writes over it."""
        self._end = self._before
        os.ftruncate(self._file, self._end)
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def read_journal(path: Path) -> JournalText | None:
    """All whole transactions of a journal; None if there is no file."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    entries, lefts, damaged, end, whole, at = list[dict[str, Any]](), list[int](), 0, 0, 0, 0
    spoiled = 0  # damaged lines since the last whole transaction
    for line in raw.split(b"\n")[:-1]:
        at += len(line) + 1
        if (found := _entry(line)) is None:
            spoiled += 1
            continue
        left, entry = found
        entries.append(entry)
        lefts.append(left)
        if left == 0:
            whole, end, damaged, spoiled = len(entries), at, damaged + spoiled, 0
    last = 1 if whole else 0
    while 0 < last < whole and lefts[whole - 1 - last] == last:
        last += 1
    return JournalText(entries[:whole], last, damaged, torn=end < len(raw), end=end)


def write_journal(path: Path, transactions: Iterable[Sequence[dict[str, Any]]]) -> int:
    """Write a journal anew, whole or not at all; returns its length in bytes."""
    with whole_file(path) as part, part.open("wb") as file:
        for entries in transactions:
            file.write(journal_lines(entries))
        return file.tell()


def journal_lines(entries: Sequence[dict[str, Any]]) -> bytes:
    """The lines of one transaction."""
    bodies = [f"{left} {json.dumps(entry)}" for left, entry in zip(reversed(range(len(entries))), entries)]
    return "".join(f"{checksum(body)} {body}\n" for body in bodies).encode()


def _entry(line: bytes) -> tuple[int, dict[str, Any]] | None:
    """(left, entry) of a line; None if it is damaged."""
    try:
        said, _, body = line.decode("ascii").partition(" ")
        if checksum(body) != said:
            return None
        left, _, text = body.partition(" ")
        entry = json.loads(text)
        return (int(left), entry) if isinstance(entry, dict) else None
    except (ValueError, RecursionError):
        return None
