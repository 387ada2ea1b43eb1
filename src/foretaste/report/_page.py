"""One self-contained HTML page: no script, nothing fetched, light and dark."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from foretaste.report._asked import Pictures, asked
from foretaste.report._headline import headline
from foretaste.report._inline import style
from foretaste.report._sections import numbers, words
from foretaste.report._summary import Summary, summarize
from foretaste.study import Record


def page(
    records: Iterable[Record] | Summary,
    out: Path,
    *,
    pictures: Pictures | None = None,
    classes: Sequence[str] | None = None,
    about: Mapping[str, str] | None = None,
    title: str = "foretaste",
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Path:
    """Write the page of a study and return where it is.

    ``pictures`` shows the points asked for, by id, pixels in [0, 1] or uint8; ``about`` says how the records were made,
    ``notes`` what the reader should know of the study, ``warnings`` why it may be no result.
    """
    s = records if isinstance(records, Summary) else summarize(records)
    how = dict(about or {})
    if "versions" not in how:
        how |= versions(s.records.values())
    parts = [
        head(title, headline(s), words(s), notes, warnings),
        numbers(s, ""),
        asked(s, pictures or {}, classes),
        made(how),
    ]
    return write(out, title, parts)


def write(out: Path, title: str, parts: Sequence[str]) -> Path:
    """The parts as one document."""
    css = files("foretaste.report").joinpath("page.css").read_text(encoding="utf-8")
    html = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style()}
{css}</style>
</head>
<body>
<main>
{"".join(parts)}</main>
</body>
</html>
"""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(html, encoding="utf-8")
    return out


def head(title: str, said: str, text: str, notes: Sequence[str] = (), warnings: Sequence[str] = ()) -> str:
    """The title, why this may be no result, what came out, and what to know of the study."""
    banner = "".join(f"<p class=banner>{escape(line)}</p>\n" for line in warnings)
    known = "".join(f"<p class=notes>{escape(line.strip())}</p>\n" for line in notes if line.strip())
    return (
        f"<header>{banner}<p class=name>{escape(title)}</p>\n<h1>{escape(said)}</h1>\n{text}"
        f"{f'<div class=known>{known}</div>' if known else ''}</header>\n"
    )


def made(about: Mapping[str, str], title: str = "How it was made") -> str:
    if not about:
        return ""
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>\n" for k, v in about.items())
    return f"<section><h2>{escape(title)}</h2>\n<dl>\n{items}</dl></section>\n"


def versions(records: Iterable[Record]) -> dict[str, str]:
    """Of Python, packages and devices, each with all that records name: a study may be made on several machines."""
    seen: dict[str, dict[str, None]] = {}
    for r in records:
        for name, version in r.get("versions", {}).items():
            seen.setdefault(name, {})[str(version)] = None
    devices = {name: list(found) for name, found in seen.items() if name == "device"}
    packages = [f"{name} {' and '.join(found)}" for name, found in seen.items() if name != "device"]
    out = {"versions": ", ".join(packages)} if packages else {}
    return out | {name: " and ".join(found) for name, found in devices.items()}
