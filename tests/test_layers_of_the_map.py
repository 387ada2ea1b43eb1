"""Imports point one way: data, network, tangent → retrain → acquire → query → study → report; bench and cli see all."""

import ast
from pathlib import Path

import pytest

import foretaste

ROOT = Path(foretaste.__file__).parent
LOWER = {"data", "network", "tangent"}  # errors and losses are below all folders
MAY = {name: {name, "errors", "losses"} for name in LOWER}
MAY["retrain"] = {"retrain", *MAY["tangent"]}
MAY["acquire"] = {"acquire", *MAY["retrain"]}
MAY["query"] = {"query", "network", *MAY["acquire"]}
MAY["study"] = {"study", "data", *MAY["query"]}
MAY["report"] = {"report", "study", "errors"}
FREE = {"bench", "label", "connect", "cli", "testing", "__init__", "__main__", "errors", "losses"}


def ours(path: Path) -> set[str]:
    """The parts of foretaste that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import: say where from"
            names = [node.module or ""] if node.module != "foretaste" else [f"foretaste.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        else:
            continue
        found |= {n.split(".")[1] for n in names if n.startswith("foretaste.")}
    return found - {"__version__"}


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert room in MAY or room in FREE, f"{room} is not on the map"
    if room in MAY:
        assert ours(path) <= MAY[room]


def test_the_test_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from foretaste.study import run\n    import foretaste.query\n")
    assert ours(bad) == {"study", "query"}
    assert not ours(bad) <= MAY["tangent"]
