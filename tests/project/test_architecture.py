"""The map of folders: imports point one way and through a folder's face, no cycles, one meaning for a name."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import foretaste
import tree

ROOT = Path(foretaste.__file__).parent
BASE = {
    "errors",
    "files",
    "losses",
    "given",
    "batches",
    "parameters",
    "executors",
}  # files that every folder may import
MAY = {name: {name, *BASE} for name in ("data", "network", "tangent")}
MAY["lookahead"] = {"lookahead", *MAY["tangent"]}
MAY["acquire"] = {"acquire", *MAY["lookahead"]}
MAY["pick"] = {"pick", "network", *MAY["acquire"]}
MAY["study"] = {"study", "data", *MAY["pick"]}
MAY["report"] = {"report", "study", "errors", "files"}
MAY["files"] = set()
MAY["errors"], MAY["losses"], MAY["given"] = set(), {"errors"}, {"errors", "losses", "files"}
MAY["batches"] = {"losses"}
MAY["parameters"], MAY["executors"] = {"errors"}, {"errors", "given"}
FREE = {"label", "connect", "cli", "testing", "__init__", "__main__"}  # may import everything
# Names that two folders may both have, because they are always read with the folder's: data.folder, report.folder.
SHARED = {"folder"}

FILES = sorted(ROOT.rglob("*.py"))
TREE = tree.read(ROOT)


def rooms(path: Path) -> set[str]:
    """The parts of foretaste that a file imports, wherever in the file."""
    code = ast.parse(path.read_text())
    relative = [n for n in ast.walk(code) if isinstance(n, ast.ImportFrom) and n.level]
    assert not relative, f"{path} has a relative import: name the module in full"
    modules = {f"foretaste.{p.name.removesuffix('.py')}" for p in ROOT.iterdir()}
    return {m.split(".")[1] for m in tree.imports(code, "foretaste", modules) if "." in m}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert room in MAY or room in FREE, f"{room} is not on the map"
    if room in MAY:
        assert rooms(path) <= MAY[room]


def test_the_direction_test_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from foretaste.study import run\n    import foretaste.pick\n")
    assert rooms(bad) == {"study", "pick"}
    assert not rooms(bad) <= MAY["tangent"]


def test_folders_are_imported_through_their_face() -> None:
    assert TREE.reaching_inside == []


def test_benchmarks_stand_outside_the_package_and_import_its_folders_through_their_face() -> None:
    assert not [p for p in ROOT.rglob("*") if p.stem.lstrip("_").startswith("bench")]
    files = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))
    assert files
    for path in files:
        inside = [m for m in tree.imports(ast.parse(path.read_text()), "foretaste") if m.count(".") > 1]
        assert not inside, f"{path.name} imports {inside}"


def test_no_module_has_a_leading_underscore() -> None:
    assert TREE.underscored == 0


def test_no_files_import_one_another() -> None:
    assert TREE.cycles == []


def test_a_name_means_one_thing() -> None:
    assert TREE.repeated.keys() <= SHARED, {k: v for k, v in TREE.repeated.items() if k not in SHARED}
    assert len(SHARED) < 10


def test_a_file_name_means_one_thing() -> None:
    assert TREE.files_of_one_name == {}


def test_the_map_lists_every_file() -> None:
    page = (Path(__file__).parents[2] / "docs" / "map.md").read_text(encoding="utf-8")
    assert page.endswith(tree.file_table(ROOT)), "`python tools/tree.py --write` puts it right"


def test_the_counts_can_be_wrong(tmp_path: Path) -> None:
    """A package with one fault of each kind."""
    package = tmp_path / "pack"
    for name, code in {
        "__init__": "",
        "a/__init__": "",
        "a/one": "from pack.a.two import y\nfrom pack.b.three import z\nx = 1\n",
        "a/two": "from pack.a.one import x\ny = 1\n",
        "b/__init__": "",
        "b/_three": "z = 1\nx = 2\n",
        "b/two": "",
    }.items():
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    found = tree.read(package)
    assert (found.modules, found.lines, found.underscored) == (7, 7, 1)
    assert found.reaching_inside == ["pack.a.one: pack.b.three"]
    assert found.repeated == {"x": ["pack.a.one", "pack.b._three"]}
    assert found.files_of_one_name == {"two.py": ["pack.a.two", "pack.b.two"]}
    assert found.cycles == [["pack.a.one", "pack.a.two", "pack.a.one"]]


LIGHT = """
import sys

def check(when, *names):
    found = sorted(set(names) & sys.modules.keys())
    assert not found, f"{when} loads {found}"

import foretaste
check("foretaste", "torch", "pydantic")
import foretaste.pick.badge
foretaste.query.__doc__, foretaste.strategies()
check("foretaste.query", "typer", "rich", "matplotlib", "pydantic")
import foretaste.report
check("foretaste.report", "matplotlib", "typer")
import foretaste.study
assert "pydantic" in sys.modules
"""


def test_importing_the_library_loads_no_more_than_it_needs() -> None:
    """Neither the command line, nor figures, nor what reads configurations: in one process, as torch takes seconds."""
    subprocess.run([sys.executable, "-c", LIGHT], check=True)
