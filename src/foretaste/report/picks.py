"""The page of one query: the points to label next, as pictures, texts or rows, with what the network thinks of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from foretaste.errors import counted
from foretaste.report.drawing import picture_address
from foretaste.report.pages import render_page

if TYPE_CHECKING:
    from PIL import Image

PICK_SIDE = 240  # pixels of the longer side of a picture
SMALL_PICTURE = 64  # pixels; smaller ones are enlarged without smoothing
MOST_CHARACTERS = 900  # characters of a text on the page
MOST_CELLS = 16  # of a row
MOST_PICKS = 100  # on one page


@dataclass(frozen=True)
class Pick:
    """One point to label: what it is, what the network predicts, and why it was chosen."""

    rank: int
    id: str
    predicted: str  # "" where nothing is: an untrained network
    probability: float | None = None  # None in regression
    second: str | None = None
    second_probability: float | None = None
    why: Sequence[str] = ()
    picture: "Image.Image | None" = None
    text: str | None = None
    row: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def src(self) -> str | None:
        """The picture as the data address of a small JPEG; of a tiny picture, as a PNG with its own pixels."""
        if self.picture is None:
            return None
        copy = self.picture.convert("RGB")
        copy.thumbnail((PICK_SIDE, PICK_SIDE))
        return picture_address(copy, "png" if self.small else "jpeg")

    @property
    def small(self) -> bool:
        """Whether the page enlarges the picture without smoothing."""
        return self.picture is not None and max(self.picture.size) < SMALL_PICTURE


def picks_page(
    picks: Sequence[Pick],
    out: Path,
    *,
    title: str,
    headline: str,
    sentences: Sequence[str] = (),
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
    about: Mapping[str, str] | None = None,
) -> Path:
    """Write the page of a query, one file without scripts; pictures are inside it. Everything is escaped.

    At most 100 points are shown; a sentence says how many there are.
    """
    shown = picks[:MOST_PICKS]
    if left := len(picks) - len(shown):
        more = f"The first {len(shown)} are shown; {counted(left, 'more is', 'more are')} in the CSV."
        sentences = [*sentences, more]
    return render_page(
        "picks.html", out, title=title, headline=headline, sentences=list(sentences), notes=notes, warnings=warnings,
        picks=shown, wide=any(pick.picture is None for pick in shown), most_cells=MOST_CELLS,
        most_characters=MOST_CHARACTERS, about=dict(about or {}),
    )  # fmt: skip
