"""Colours of Okabe and Ito, told apart by the colour-blind too; a shape each, so that grey print does as well."""

from dataclasses import dataclass

from foretaste.report._summary import BASELINE


@dataclass(frozen=True)
class Ink:
    """One strategy's look, on light and on dark ground."""

    name: str
    light: str
    dark: str
    marker: str
    dashes: str = "-"


INKS = (
    Ink("vermillion", "#d55e00", "#ff8a3d", "o"),
    Ink("blue", "#0072b2", "#56b4e9", "s"),
    Ink("green", "#007f5c", "#2fcf9f", "^"),
    Ink("purple", "#b8578f", "#e39ac4", "D"),
    Ink("ochre", "#9a6a00", "#f0c038", "v"),
    Ink("ink", "#3a3f47", "#d6dbe1", "P"),
)
GREY = Ink("grey", "#747b84", "#9aa3ad", "X", "--")

# What is drawn besides strategies, by the name of the page's CSS variable.
PAPER = {"text": ("#1d2126", "#e8eaed"), "quiet": ("#5c646e", "#a3abb5"), "line": ("#dfe2e6", "#353b43")}


def inks(strategies: tuple[str, ...]) -> dict[str, Ink]:
    """The baseline is grey and dashed; the others take colours in turn."""
    others = [name for name in strategies if name != BASELINE]
    return {name: GREY for name in strategies if name == BASELINE} | {
        name: INKS[i % len(INKS)] for i, name in enumerate(others)
    }
