"""Colours of Okabe and Ito, told apart by the colour-blind too; a shape each, so that grey print does as well."""

from dataclasses import dataclass
from typing import Any

from foretaste.report._summary import Summary


@dataclass(frozen=True)
class Ink:
    """One arm's look, on light and on dark ground."""

    name: str  # of the page's CSS variable
    light: str
    dark: str
    marker: str
    dashes: tuple[float, ...] = ()

    @property
    def line(self) -> Any:
        """As matplotlib has it."""
        return (0, self.dashes) if self.dashes else "-"


COLOURS = {
    "vermillion": ("#d55e00", "#ff8a3d"),
    "blue": ("#0072b2", "#56b4e9"),
    "green": ("#007f5c", "#2fcf9f"),
    "purple": ("#b8578f", "#e39ac4"),
    "ochre": ("#9a6a00", "#f0c038"),
    "ink": ("#3a3f47", "#d6dbe1"),
}
GREY = ("#747b84", "#9aa3ad")
MARKERS = "os^DvPphX<>d*"
TURNS = ((), (5, 1.6), (1.4, 1.4), (6, 1.5, 1.4, 1.5))  # all colours once with each
BASES = ((3.7, 1.6), (1, 1.65), (6.4, 1.6, 1, 1.6), (8, 3), (1, 4), (6, 1, 1, 1, 1, 1), (2, 1, 2, 4), (12, 2))

# What is drawn besides arms, by the name of the page's CSS variable.
PAPER = {"text": ("#1d2126", "#e8eaed"), "quiet": ("#5c646e", "#a3abb5"), "line": ("#dfe2e6", "#353b43")}


def inks(s: Summary) -> dict[str, Ink]:
    """Baselines are grey and dashed; the others take colours in turn, and dashes once the colours are used up."""
    colours = list(COLOURS.items())
    bases = {name: Ink("grey", *GREY, "X.+x1234"[i % 8], BASES[i % len(BASES)]) for i, name in enumerate(s.bases)}
    others = [name for name in s.arms if name not in bases]
    out = dict(bases)
    for i, name in enumerate(others):
        colour, pair = colours[i % len(colours)]
        out[name] = Ink(colour, *pair, MARKERS[i % len(MARKERS)], TURNS[i // len(colours) % len(TURNS)])
    return out
