"""The report of one run's folder."""

from pathlib import Path

from foretaste.report._checks import checked
from foretaste.report._files import figures, numbers
from foretaste.report._page import page
from foretaste.report._runs import read


def folder(run: Path, out: Path | None = None) -> Path:
    """Write the page, figures and numbers of a run into RUN/report, or ``out``, and return where the page is."""
    there = read(run)
    out = out or run / "report"
    if there.experiment != "loop":
        return checked(there, out)
    s = there.summary()
    figures(s, out)
    numbers(s, out / "summary.csv")
    return page(
        s,
        out / "index.html",
        pictures=there.pictures,
        classes=there.told.get("classes"),
        about=there.told.get("about"),
        title=there.title,
        notes=there.notes,
        warnings=there.warnings,
    )
