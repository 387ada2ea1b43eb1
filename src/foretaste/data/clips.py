"""Clips of sound or film: files that a backbone of the user's own turns into numbers. Nothing here decodes them."""

from collections.abc import Callable, Sequence
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any, NoReturn

from foretaste.data.items import StoredItems
from foretaste.data.pictures import describe_broken, raise_broken, run_on_each
from foretaste.data.points import Points, ReadOptions
from foretaste.errors import printable

CLIP_MEDIA = {  # ending → what a browser is told it is
    ".wav": "audio/wav", ".mp3": "audio/mpeg", ".ogg": "audio/ogg", ".flac": "audio/flac", ".m4a": "audio/mp4",
    ".mp4": "video/mp4", ".webm": "video/webm", ".mov": "video/quicktime",
}  # fmt: skip
CLIPS_NEED = (
    "clips need a backbone of your own, which turns their files into numbers: give --backbone module:function "
    "(encoder= in Python), a function that returns foretaste.network.Backbone(..., kind='clips'), whose prepare takes "
    "paths. docs/tasks.md has one of ten lines for .wav files"
)


class ClipItems(StoredItems):
    """Clips; ``items[i]`` is the path of one."""

    def __init__(self, path_of: Callable[[int], Path], names: Sequence[str], lengths: Sequence[int]) -> None:
        self.path_of, self.names, self.lengths = path_of, list(names), list(lengths)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        return self.path_of(range(len(self))[i])

    def media(self, i: int) -> str:
        """What a browser is told that clip i is."""
        return clip_media(self.names[i]) or "application/octet-stream"

    def content_digest(self, i: int) -> bytes:
        with open(self[i], "rb") as file:
            return file_digest(file, lambda: blake2b(digest_size=16)).digest()

    def take(self, rows: Sequence[int]) -> "ClipItems":
        rows = list(rows)
        lengths = [self.lengths[i] for i in rows]
        return ClipItems(lambda i: self.path_of(rows[i]), [self.names[i] for i in rows], lengths)


def clip_media(name: str) -> str | None:
    """The media type of a clip by its ending; None if it is none."""
    return CLIP_MEDIA.get(Path(name).suffix.lower())


def clip_points(
    where: str, names: Sequence[str], labels: Sequence[str | None], how: ReadOptions, side: Sequence[str],
    path_of: Callable[[int], Path],
) -> Points:  # fmt: skip
    """Clips as points; files that are empty, or gone, are left out."""
    lengths = [0] * len(names)

    def look(i: int) -> None:
        file = path_of(i)
        if not file.is_file() or not (size := file.stat().st_size):
            raise ValueError("it is empty, or no file")
        lengths[i] = size

    broken, _ = run_on_each(look, list(range(len(names))), None, how.progress)
    raise_broken(broken, names, how.skip_broken, f"{printable(where)}: ", "clips")
    kept = [i for i in range(len(names)) if i not in broken]
    notes = (f"{describe_broken(broken, names, 'clips', 100)}: left out",) if broken else ()
    items = ClipItems(path_of, names, lengths).take(kept)
    return Points(
        where, "clips", items, items.names, [labels[i] for i in kept], True, notes=notes, encode=need_backbone,
        side=tuple(side[i] for i in kept) if side else (),
    )  # fmt: skip


def need_backbone(items: Sequence[Any]) -> NoReturn:
    """What encodes clips until there is a backbone: nothing."""
    raise ValueError(f"there are {len(items)} clips and no backbone; {CLIPS_NEED}")
