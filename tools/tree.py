"""Count what makes a tree easy or hard to find one's way in: ``python tools/tree.py [PACKAGE FOLDER]``.

Modules and their median length, modules with a leading underscore, imports that reach into another folder's files,
top-level names that are defined in several files, cycles between files. Then how many of our files a default
``ft.query`` on forty points runs code in, with how many calls and forward passes; and an answer on the labelling page.
"""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

QUERY = """
import sys, threading
from pathlib import Path
import torch
import foretaste as ft
from foretaste.network import MLP
root = str(Path(ft.__file__).parent)
net = MLP(4, (8,), 3).eval()
x, y = torch.randn(40, 4), torch.arange(10) % 3
seen, deepest, depth, calls, passes = set(), 0, 0, 0, []
def watch(frame, event, arg):
    global depth, deepest, calls
    ours = frame.f_code.co_filename.startswith(root)
    if event == "call" and ours:
        seen.add(frame.f_code.co_filename)
        calls += 1
        depth += 1
        deepest = max(deepest, depth)
    elif event == "return" and ours:
        depth -= 1
import logging; logging.disable()
ft.query
net.register_forward_hook(lambda *_: passes.append(1))
sys.setprofile(watch)
ft.query(net, x[:10], y, x[10:], batch_size=3)
sys.setprofile(None)
print(len(seen), deepest, calls, len(passes))
"""

# From the request with a label until it is acknowledged and the model has the next question, in all threads.
ANSWER = """
import asyncio, json, logging, sys, tempfile, threading, time
from pathlib import Path
import numpy as np
from PIL import Image
import foretaste
root, seen, armed = str(Path(foretaste.__file__).parent), set(), []
def watch(frame, event, arg):
    if armed and event == "call" and frame.f_code.co_filename.startswith(root):
        asked = threading.current_thread() is desk.worker and desk.worker.view.absorbed > armed[0]
        if not asked:
            seen.add(frame.f_code.co_filename)
threading.setprofile(watch)
logging.disable()
from foretaste.label import Guard, close_desk, make_app, open_desk
folder, rng = Path(tempfile.mkdtemp()), np.random.default_rng(0)
for k in range(40):
    Image.fromarray((rng.random((8, 8)) * 60 + 190 * (k % 2)).astype(np.uint8)).save(folder / f"{k:02}.png")
desk = open_desk(folder, classes=["dark", "light"], backbone="none", trains_itself=False, check_every=0)
app = Guard(make_app(desk))
def call(path, **body):
    sent, said = [], json.dumps({"tab": "tab-00000001", "who": "Ada", **body}).encode()
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers, "scheme": "http"}
    async def receive():
        return {"type": "http.request", "body": said, "more_body": False}
    async def send(message):
        sent.append(message)
    asyncio.run(app(scope | {"http_version": "1.1", "raw_path": path.encode()}, receive, send))
    return json.loads(b"".join(m.get("body", b"") for m in sent))
def answer(item):
    label = "light" if item["number"] % 2 else "dark"
    return call("/api/answer", item=item["item"], kind="label", label=label)["items"]
def settle(labels):
    while (found := desk.worker.describe())["phase"] != "ready" or found["labels"] < labels:
        time.sleep(0.01)
    before = None
    while before is not desk.worker.view:  # reasons and measures follow
        before = desk.worker.view
        time.sleep(1)
while desk.worker.describe()["phase"] in ("waiting", "features"):
    time.sleep(0.01)
items = call("/api/next")["items"]
for _ in range(8):
    items = answer(items[0])
settle(8)
armed.append(desk.worker.view.absorbed)
sys.setprofile(watch)
answer(items[0])
sys.setprofile(None)
settle(9)
armed.clear()
close_desk(desk)
print(len(seen), *sorted(str(Path(f).relative_to(root)) for f in seen))
"""


@dataclass(frozen=True)
class Tree:
    """The counts."""

    modules: int
    lines: int
    median_lines: float
    underscored: int
    reaching_inside: list[str]
    repeated: dict[str, list[str]]
    files_of_one_name: dict[str, list[str]]
    cycles: list[list[str]]


def read(root: Path) -> Tree:
    """Count in the package at ``root``, whose name is the folder's."""
    files = {_module(root, p): p for p in sorted(root.rglob("*.py"))}
    lines = [len(p.read_text().splitlines()) for p in files.values()]
    inside, places, names = [], defaultdict(list), defaultdict(list)
    for module, path in files.items():
        tree = ast.parse(path.read_text())
        inside += [f"{module}: {found}" for found in _reaches(tree, module)]
        if path.name != "__init__.py":
            names[path.name].append(module)
            for name in _defined(tree):
                places[name].append(module)
    return Tree(
        len(files),
        sum(lines),
        median(lines),
        sum(p.name.startswith("_") and not p.name.startswith("__") for p in files.values()),
        inside,
        {name: where for name, where in sorted(places.items()) if len(where) > 1},
        {name: where for name, where in sorted(names.items()) if len(where) > 1},
        _cycles(files),
    )


def file_table(root: Path) -> str:
    """Every file of the package with the first sentence of its docstring: the last section of docs/map.md."""
    rows = ["| file | what |", "|---|---|"]
    for path in sorted(root.rglob("*.py"), key=lambda p: (len(p.relative_to(root).parts), p)):
        if not path.name.startswith("__"):
            said = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
            rows.append(f"| `{path.relative_to(root)}` | {said.replace('``', '`').replace('|', '/')} |")
    return "\n".join(rows) + "\n"


def _module(root: Path, path: Path) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, package: str, modules: set[str] | None = None) -> Iterator[str]:
    """Modules of ``package`` that are imported anywhere in a file; a name that is a module counts as that module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if modules and full in modules else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == package)


def _reaches(tree: ast.AST, module: str) -> Iterator[str]:
    """Imports from inside another folder, past its ``__init__``. A folder in a folder has a public face too."""
    package, *rest = module.split(".")
    for target in imports(tree, package):
        parts = target.split(".")
        public = len(parts) <= 2 or parts[1:] == ["tangent", "infinite"]
        if not public and (not rest or parts[1] != rest[0]):
            yield target


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name) and n.id != "log")


def _cycles(files: dict[str, Path]) -> list[list[str]]:
    """Groups of files that import one another, at module level (imports inside functions are allowed to)."""
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        if path.name == "__init__.py":
            continue  # a folder's face imports its files; what matters is files among themselves
        tree = ast.parse(path.read_text())
        tree.body = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
        graph[module] = {t for t in imports(tree, module.split(".")[0], set(files)) if t in files and t != module}
    found, state = [], {}

    def visit(module: str, path: list[str]) -> None:
        state[module] = "open"
        for target in sorted(graph.get(module, ())):
            if state.get(target) == "open":
                found.append([*path[path.index(target) :], target] if target in path else [module, target])
            elif target not in state:
                visit(target, [*path, target])
        state[module] = "done"

    for module in graph:
        if module not in state:
            visit(module, [module])
    return found


def walked(root: Path) -> list[int]:
    """Of a query: files of the package that it runs code in, how deep their calls go, calls, and forward passes."""
    out = subprocess.run(
        [sys.executable, "-c", QUERY], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(root.parent)}
    ).stdout
    return [int(n) for n in out.split()]


def answered(root: Path) -> list[str]:
    """Files of the package that an answer on the page runs code in."""
    env = {"PYTHONPATH": str(root.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", ANSWER], capture_output=True, text=True, check=True, env=env)
    return done.stdout.split()[1:]


def main() -> None:
    named = [a for a in sys.argv[1:] if not a.startswith("-")]
    root = Path(named[0]) if named else Path(__file__).parents[1] / "src" / "foretaste"
    if "--files" in sys.argv:
        print(file_table(root), end="")
        return
    if "--write" in sys.argv:
        page = root.parents[1] / "docs" / "map.md"
        kept = page.read_text(encoding="utf-8").partition("| file | what |\n")[0]
        page.write_text(kept + file_table(root), encoding="utf-8")
        return
    tree, (files, depth, calls, passes) = read(root), walked(root)
    print(f"modules                                   {tree.modules}")
    print(f"lines                                     {tree.lines}")
    print(f"lines of a module, median                 {tree.median_lines:g}")
    print(f"modules with a leading underscore         {tree.underscored}")
    print(f"imports from inside another folder        {len(tree.reaching_inside)}")
    print(f"names defined in several files            {len(tree.repeated)}")
    print(f"file names that occur several times       {len(tree.files_of_one_name)}")
    print(f"import cycles between files               {len(tree.cycles)}")
    print(f"files that a query runs, depth of calls   {files}, {depth}")
    print(f"calls and forward passes of a query       {calls}, {passes}")
    on_page = answered(root)
    print(f"files that an answer on the page runs     {len(on_page)}")
    if "-v" in sys.argv:
        print(
            *tree.reaching_inside,
            *(f"{k}: {', '.join(v)}" for k, v in (tree.repeated | tree.files_of_one_name).items()),
            *tree.cycles,
            f"an answer: {', '.join(on_page)}",
            sep="\n",
        )


if __name__ == "__main__":
    main()
