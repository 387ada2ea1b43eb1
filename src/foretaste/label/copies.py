"""Copies: the same picture or text under several names. One is asked for; what is said of any counts for all."""

from collections.abc import Callable, Mapping, Sequence

from foretaste.errors import printable
from foretaste.label.store import LabelEvent

GIVEN = "given"  # who gave the labels that were in the data already


class CopyGroups:
    """Which items are the same, and the answer that counts for each group of them.

    The first of a group is only the one that is asked for: it may change when files are added, and labels stay where
    they were given.
    """

    def __init__(self, first_of: Mapping[str, str]) -> None:
        self.first_of = dict(first_of)
        self._members: dict[str, list[str]] = {}
        for copy, first in first_of.items():
            self._members.setdefault(first, [first]).append(copy)

    def first(self, item: str) -> str:
        """The one of its group that is asked for: the item itself if it has no copies."""
        return self.first_of.get(item, item)

    def members(self, item: str) -> Sequence[str]:
        """The item and its copies."""
        first = self.first(item)
        return self._members.get(first, [first])

    def in_force(self, current: Mapping[str, LabelEvent]) -> dict[str, LabelEvent]:
        """First of each group → the answer that counts for the group, of the event in force of each item.

        A label counts before "not sure" or "set aside", those before a skip; people before the data; then the last.
        """
        found: dict[str, LabelEvent] = {}
        for item, event in current.items():
            first = self.first(item)
            if first not in found or _weight(event) > _weight(found[first]):
                found[first] = event
        return found

    def answer(self, item: str, state_of: Callable[[str], LabelEvent | None]) -> LabelEvent | None:
        """The answer that counts for one item; ``state_of`` has the event in force of each."""
        said = {name: event for name in self.members(item) if (event := state_of(name)) is not None}
        return self.in_force(said).get(self.first(item))

    def contradictions(self, current: Mapping[str, LabelEvent]) -> list[str]:
        """A sentence for each group whose copies have different labels."""
        told = []
        for first, copies in self._members.items():
            said = [event for item in copies if (event := current.get(item)) is not None and event.label is not None]
            if len({event.label for event in said}) > 1:
                named = [f"{event.item} ({event.label}, {_by(event)})" for event in said]
                counts = self.in_force({event.item: event for event in said})[first].label
                words = f"{', '.join(named[:-1])} and {named[-1]} are copies: {counts} counts; relabel one of them"
                told.append(printable(words))
        return told


def _weight(event: LabelEvent) -> tuple[bool, bool, bool, int]:
    return event.label is not None, event.kind != "skip", event.who != GIVEN, event.seq


def _by(event: LabelEvent) -> str:
    return "in the data" if event.who == GIVEN else f"by {event.who}"
