"""Classes that change while people label: added, renamed, merged, reordered, described. Labels keep what was said.

A label in the log is the name that was said, for ever. What it counts as now follows from the changes: an old name
counts as the new one, a merged class as the one it was merged into. A name never comes to mean another class: one that
was used before is refused, unless all that was said under it is of the same class.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from foretaste.errors import check_known

CHANGE_KINDS = ("add", "rename", "merge", "split", "order", "describe", "guidelines")
KEYS_OF_THE_PAGE = " ?+-=[]/>."  # single characters of KEYS in page/page.js
LONGEST_GUIDANCE, LONGEST_GUIDELINES = 500, 20_000


@dataclass(frozen=True)
class ClassChange:
    """One change, as the log holds it. ``seq`` counts from 1.

    add: ``name``. rename: ``name`` is ``to`` from now on. merge: what was said as ``name`` counts as ``to``. split: a
    merge is taken back. order: ``names``, all of them. describe: ``colour``, ``key`` and ``guidance`` of ``name``.
    guidelines: ``guidance``, in Markdown.
    """

    seq: int
    at: str
    who: str
    kind: str
    name: str = ""
    to: str = ""
    names: tuple[str, ...] = ()
    colour: str = ""
    key: str = ""
    guidance: str = ""
    request: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Without what is empty."""
        return {k: list(v) if k == "names" else v for k, v in vars(self).items() if v not in ("", (), None)}

    @staticmethod
    def from_json(said: Any) -> "ClassChange | None":
        """None if it is no change: a stranger may have written it."""
        try:
            made = ClassChange(**{**said, "names": tuple(said.get("names", ()))})
        except (TypeError, AttributeError):
            return None
        texts = (made.at, made.who, made.name, made.to, made.colour, made.key, made.guidance, *made.names)
        right = type(made.seq) is int and made.seq > 0 and made.kind in CHANGE_KINDS
        return made if right and all(isinstance(text, str) for text in (*texts, made.request or "")) else None


@dataclass(frozen=True)
class ClassGuide:
    """The classes now: ``names`` in their order, what older names count as, and what is said about each."""

    names: tuple[str, ...] = ()
    older: Mapping[str, str] = field(default_factory=dict)  # a name that is no class now → the next one
    merged: tuple[str, ...] = ()  # those of them that a split brings back
    colours: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    guidance: Mapping[str, str] = field(default_factory=dict)
    guidelines: str = ""

    def counts_as(self, name: str) -> str:
        """The class that a name stands for now."""
        while name in self.older:
            name = self.older[name]
        return name

    def after(self, change: ClassChange) -> "ClassGuide":
        """The classes after a change; raises ValueError if it cannot be made."""
        check_known("kind", change.kind, CHANGE_KINDS)
        if change.kind in ("rename", "merge", "describe"):
            check_known("class", change.name, self.names)
        return getattr(self, f"_{change.kind}")(change)

    def _add(self, change: ClassChange) -> "ClassGuide":
        self._check_new(change.name, None)
        return replace(self, names=(*self.names, change.name))

    def _rename(self, change: ClassChange) -> "ClassGuide":
        old, new = change.name, change.to
        self._check_new(new, old)
        older = {k: v for k, v in self.older.items() if k != new} | {old: new}
        swapped = tuple(new if name == old else name for name in self.names)
        about: dict[str, Any] = {
            kind: {new if k == old else k: v for k, v in getattr(self, kind).items()}
            for kind in ("colours", "keys", "guidance")
        }
        return replace(self, names=swapped, older=older, merged=tuple(m for m in self.merged if m != new), **about)

    def _merge(self, change: ClassChange) -> "ClassGuide":
        check_known("class", change.to, self.names)
        if change.name == change.to:
            raise ValueError(f"{change.name} cannot be merged into itself; name another class")
        if len(self.names) < 3:
            raise ValueError("a merge would leave one class; expected at least two")
        left = tuple(name for name in self.names if name != change.name)
        keys = {k: v for k, v in self.keys.items() if k != change.name}
        older = {**self.older, change.name: change.to}
        return replace(self, names=left, older=older, keys=keys, merged=(*self.merged, change.name))

    def _split(self, change: ClassChange) -> "ClassGuide":
        check_known("merged class", change.name, self.merged)
        older = {k: v for k, v in self.older.items() if k != change.name}
        left = tuple(m for m in self.merged if m != change.name)
        return replace(self, names=(*self.names, change.name), older=older, merged=left)

    def _order(self, change: ClassChange) -> "ClassGuide":
        if sorted(change.names) != sorted(self.names):
            raise ValueError(f"the order is {', '.join(change.names)}; expected each of {', '.join(self.names)} once")
        return replace(self, names=change.names)

    def _describe(self, change: ClassChange) -> "ClassGuide":
        colour, key, name = change.colour, change.key.lower(), change.name
        if colour and (len(colour) != 7 or colour[0] != "#" or set(colour[1:].lower()) - set("0123456789abcdef")):
            raise ValueError(f"colour is {colour!r:.20}; expected one as #0d9488")
        if key and (len(key) != 1 or key in KEYS_OF_THE_PAGE or not key.isprintable()):
            raise ValueError(f"key is {key!r:.20}; expected one character that the page does not use")
        if taken := [other for other, k in self.keys.items() if k == key and key and other != name]:
            raise ValueError(f"key {key} is that of {taken[0]}; choose another")
        if len(change.guidance) > LONGEST_GUIDANCE:
            raise ValueError(f"the line has {len(change.guidance)} characters; expected at most {LONGEST_GUIDANCE}")
        about = {"colours": colour, "keys": key, "guidance": change.guidance}
        changed: dict[str, Any] = {
            kind: {k: v for k, v in getattr(self, kind).items() if k != name} | ({name: value} if value else {})
            for kind, value in about.items()
        }
        return replace(self, **changed)

    def _guidelines(self, change: ClassChange) -> "ClassGuide":
        if len(change.guidance) > LONGEST_GUIDELINES:
            raise ValueError(
                f"guidelines have {len(change.guidance)} characters; at most {LONGEST_GUIDELINES} are kept"
            )
        return replace(self, guidelines=change.guidance)

    def _check_new(self, name: str, of: str | None) -> None:
        """Raise if a name cannot become that of a class: of ``of``, or of a new one."""
        if not name.strip() or name != name.strip():
            raise ValueError(f"the name is {name!r:.60}; expected text without spaces around it")
        if name in self.names:
            raise ValueError(f"there is a class {name} already; choose another name, or merge them")
        if name in self.older and self.counts_as(name) != of:
            raise ValueError(
                f"{name} was said before and counts as {self.counts_as(name)} now, so it cannot name another class; "
                "choose another name"
            )


def replay_changes(known: Sequence[str], changes: Iterable[ClassChange]) -> ClassGuide:
    """The classes after all changes. ``known`` are all names that ever were, those that changes brought among them."""
    made = list(changes)
    brought = {c.name if c.kind == "add" else c.to for c in made if c.kind in ("add", "rename")}
    guide = ClassGuide(tuple(name for name in known if name not in brought or _came_first(name, made)))
    for change in made:  # a key that the page has come to use since is no longer that of a class
        guide = guide.after(replace(change, key="") if change.key in KEYS_OF_THE_PAGE else change)
    return guide


def _came_first(name: str, changes: Sequence[ClassChange]) -> bool:
    """Whether a name was there before the change that brings it (back)."""
    first = next((c for c in changes if name in (c.name, c.to)), None)
    return first is not None and not (first.kind == "add" or (first.kind == "rename" and first.to == name))
