"""The code on a page: run in order, or written as a notebook. `make tutorials` does both for docs/tutorials/.

Blocks of Python share one space. Lines `foretaste …` of a block of shell run in this process; those that wait for a
person (a page in the browser) and all others (pip) are left to the reader.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
TUTORIALS = [page for page in TUTORIALS if page.stem != "index"]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"!\[[^\]]*\]\((\w+\.(?:png|svg|jpg))\)")


def blocks(page: Path, kinds: tuple[str, ...] = ("python",)) -> list[tuple[int, str, str]]:
    """(line it starts on, kind, code) of each block of a page."""
    text = page.read_text(encoding="utf-8")
    return [(text[: m.start(2)].count("\n"), m[1], m[2]) for m in BLOCK.finditer(text) if m[1] in kinds]


def run(page: Path, *, shell: bool = False) -> dict[str, Any]:
    """Run the code of a page in the present folder; the names that it leaves."""
    space: dict[str, Any] = {"__name__": page.stem}
    for line, kind, code in blocks(page, ("python", "sh") if shell else ("python",)):
        if kind == "python":
            exec(compile("\n" * line + code, str(page), "exec"), space)  # tracebacks show the page's own lines
        else:
            for words in commands(code):
                run_command(words)
    return space


def commands(code: str) -> Iterator[list[str]]:
    """The words of each line of shell that can be run without a person."""
    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        waits = words[1:2] in (["label"], ["serve"]) and not {"--import", "--export"} & set(words)
        if words[:1] == ["foretaste"] and not waits:
            yield words[1:]


def run_command(words: list[str]) -> None:
    """Run a command of foretaste in this process. Raises if it fails."""
    from typer.testing import CliRunner

    from foretaste.cli import app

    got = CliRunner().invoke(app, words)
    if got.exit_code:
        raise RuntimeError(f"foretaste {shlex.join(words)} ended with code {got.exit_code}:\n{got.output}")


def notebook(page: Path) -> dict[str, Any]:
    """A page as a notebook (nbformat 4): code to run, and what stands between. Pictures are drawn by the code."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, text: str) -> None:
        text = text.strip("\n")
        if text:
            more: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
            source = text.splitlines(keepends=True)
            cells.append({"cell_type": kind, "id": f"cell{len(cells)}", "metadata": {}, "source": source, **more})

    text, end = page.read_text(encoding="utf-8"), 0
    for found in BLOCK.finditer(text):
        add("markdown", PICTURE.sub("", text[end : found.start()]))
        if found[1] == "python":
            add("code", found[2])
        elif list(commands(found[2])):
            add("code", re.sub(r"^(?=foretaste|pip)", "!", found[2], flags=re.MULTILINE))
        else:
            add("markdown", found[0])
        end = found.end()
    add("markdown", PICTURE.sub("", text[end:]))
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": python}, "nbformat": 4, "nbformat_minor": 5}


def main() -> None:
    """Run tutorials and keep their pictures beside them; write all as notebooks."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", help="tutorials to run, by name; all if none is named")
    parser.add_argument("--out", type=Path, help="write notebooks into this folder, and run nothing")
    given = parser.parse_args()
    pages = [page for page in TUTORIALS if not given.names or page.stem in given.names]
    for page in pages:
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            written = json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n"
            (given.out / f"{page.stem}.ipynb").write_text(written, encoding="utf-8")
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            run(page, shell=True)
            for name in PICTURE.findall(page.read_text(encoding="utf-8")):
                shutil.copy(name, page.parent / name)
            os.chdir(ROOT)
        print(page.stem)


if __name__ == "__main__":
    main()
