"""The code on a page: run in order, or as a notebook. `make tutorials` runs the notebooks of docs/tutorials/.

Blocks of Python share one space. Lines `foretaste …` of a block of shell are cells of a notebook too; those that wait
for a person (a page in the browser) and all others (pip) are left to the reader.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
TUTORIALS = [page for page in TUTORIALS if page.stem != "index"]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"!\[[^\]]*\]\((\w+\.(?:png|svg|jpg))\)")
LINK = re.compile(r"!?\[([^\]]*)\]\((?!\w+://)[^)]*\)")  # to another page: it does not travel with a notebook
# Before the cells of a page: nothing of another page is left, warnings are errors, and commands run in the kernel,
# which has imported torch already.
FRESH = """
%cd -q {folder}
%reset -f
import os, sys, warnings
import rich.console
rich.console._is_jupyter = lambda: False  # as in a process of its own
sys.path.insert(0, {tools!r})
from tutorials import commands, run_command
os.environ["FORETASTE_CACHE"] = os.path.join({folder!r}, ".cache")
warnings.simplefilter("error")
get_ipython().system = lambda line: [run_command(words) for words in commands(line)]
__spec__ = None  # as it was; processes that are started look for it
del os, rich, sys, warnings
"""


def blocks(page: Path, kinds: tuple[str, ...] = ("python",)) -> list[tuple[int, str, str]]:
    """(line it starts on, kind, code) of each block of a page."""
    text = page.read_text(encoding="utf-8")
    return [(text[: m.start(2)].count("\n"), m[1], m[2]) for m in BLOCK.finditer(text) if m[1] in kinds]


def run(page: Path) -> dict[str, Any]:
    """Run the Python of a page in the present folder; the names that it leaves."""
    space: dict[str, Any] = {"__name__": page.stem}
    for line, _, code in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), space)  # tracebacks show the page's own lines
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
        add("markdown", without_links(text[end : found.start()]))
        if found[1] == "python":
            add("code", found[2])
        elif list(commands(found[2])):
            add("code", re.sub(r"^(?=foretaste|pip)", "!", found[2], flags=re.MULTILINE))
        else:
            add("markdown", found[0])
        end = found.end()
    add("markdown", without_links(text[end:]))
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": python}, "nbformat": 4, "nbformat_minor": 5}


def without_links(text: str) -> str:
    """Words of a page without its pictures, and with the names of other pages only."""
    return LINK.sub(r"\1", PICTURE.sub("", text))


@contextmanager
def started_kernel() -> Iterator[Any]:
    """A Jupyter kernel, for any number of notebooks."""
    from jupyter_client.manager import KernelManager

    with tempfile.TemporaryDirectory() as folder:  # sockets are files: no port is opened
        kernel = KernelManager(kernel_name="python3", transport="ipc", connection_file=f"{folder}/kernel.json")
        # One thread: several tests run at once. Threads that spin while they wait are slow on shared cores.
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        kernel.start_kernel(extra_arguments=["--HistoryManager.enabled=False"], env=env)
        try:
            yield kernel
        finally:
            kernel.shutdown_kernel(now=True)


def execute(page: Path, folder: Path, kernel: Any) -> Any:
    """Run a page as a notebook in a folder; the notebook, with what its cells printed. Raises if a cell fails."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.reads(notebook_text(page), as_version=4)
    nbformat.validate(book)
    fresh = nbformat.v4.new_code_cell(FRESH.format(tools=str(ROOT / "tools"), folder=str(folder)))
    book.cells.insert(0, fresh)
    client = NotebookClient(book, km=kernel, timeout=300)
    try:
        client.execute()
    finally:
        if client.kc is not None:
            client.kc.stop_channels()
    del book.cells[0]
    return book


def main() -> None:
    """Run tutorials and keep their pictures beside them; or write all as notebooks."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", help="tutorials to run, by name; all if none is named")
    parser.add_argument("--out", type=Path, help="write notebooks into this folder, and run nothing")
    given = parser.parse_args()
    pages = [page for page in TUTORIALS if not given.names or page.stem in given.names]
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        for page in pages:
            (given.out / f"{page.stem}.ipynb").write_text(notebook_text(page), encoding="utf-8")
        return
    with started_kernel() as kernel:
        for page in pages:
            with tempfile.TemporaryDirectory() as folder:
                execute(page, Path(folder), kernel)
                for name in PICTURE.findall(page.read_text(encoding="utf-8")):
                    shutil.copy(Path(folder, name), page.parent / name)
            print(page.stem)


def notebook_text(page: Path) -> str:
    """A page as a file .ipynb."""
    return json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
