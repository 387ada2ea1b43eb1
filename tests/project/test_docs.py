"""The reference is made from docstrings: every public name has one, and functions for users explain their arguments."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import docs_pages

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PUBLIC = [(folder, name) for folder in docs_pages.FOLDERS for name, _, _ in docs_pages.exports(folder)]


def names_users_call() -> set[tuple[str, str]]:
    """The top level, and what the pages import from folders."""
    found = {(where.removeprefix("foretaste."), real) for _, where, real in docs_pages.exports("")}
    for page in PAGES:
        for code in BLOCK.findall(page.read_text(encoding="utf-8")):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("foretaste."):
                    found |= {(node.module.removeprefix("foretaste."), n.name) for n in node.names}
    return found


def faults(thing: object) -> list[str]:
    """Sections that the docstring of a function for users lacks."""
    text = inspect.getdoc(thing) or ""
    if not inspect.isfunction(thing):
        return [] if text else ["a docstring"]
    signature = inspect.signature(thing)
    wanted = ["Example:", *(["Args:"] if signature.parameters else [])]
    if signature.return_annotation not in (None, "None", inspect.Signature.empty):
        wanted.append("Returns:")
    missing = [section for section in wanted if section not in text]
    args = text.partition("Args:")[2].partition("\n\n")[0]
    explained = set(re.findall(r"\w+", " ".join(re.findall(r"^ +([\w, *]+):", args, re.MULTILINE))))
    return missing + ([name for name in signature.parameters if name not in explained] if args else [])


@pytest.mark.parametrize(("folder", "name"), PUBLIC, ids=map(".".join, PUBLIC))
def test_public_names_have_docstrings(folder: str, name: str) -> None:
    thing = getattr(import_module(f"foretaste.{folder}"), name)
    if inspect.isfunction(thing) or inspect.isclass(thing):
        assert thing.__doc__, f"foretaste.{folder}.{name} has no docstring"


USED = sorted(names_users_call())


@pytest.mark.parametrize(("folder", "name"), USED, ids=map(".".join, USED))
def test_functions_for_users_explain_their_arguments(folder: str, name: str) -> None:
    missing = faults(getattr(import_module(f"foretaste.{folder}"), name))
    assert not missing, f"the docstring of foretaste.{folder}.{name} lacks {', '.join(missing)}"


def test_a_poor_docstring_is_found() -> None:
    def poor(x: int, y: int) -> int:
        """Add.

        Args:
            x: a number.
        """
        return x + y

    assert faults(poor) == ["Example:", "Returns:", "y"]


def test_the_reference_has_every_export() -> None:
    pages = docs_pages.reference_pages()
    for folder, name in PUBLIC:
        home = next(module for found, module, _ in docs_pages.exports(folder) if found == name)
        if home.startswith(f"foretaste.{folder}.") and not home.startswith("foretaste.tangent.infinite."):
            assert re.search(rf"\b{name}\b", pages[folder]), f"{name} is not on the page of {folder}"


DIFFERENCE = re.compile(r"(\*\*)?([−+-]\d+(?:\.\d+)?) ± (\d+(?:\.\d+)?)(?(1)\*\*)")


@pytest.mark.parametrize("page", ["results/findings/field/README.md", "docs/findings.md", "docs/reproduction.md"])
def test_bold_differences_are_those_whose_interval_excludes_zero(page):
    """The rule that the pages state. 0.6 ± 0.6 may be either: the digits that are not shown decide."""
    seen, wrong = 0, []
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        for cell in line.split("|")[1:-1] if line.startswith("|") else ():
            parts = [DIFFERENCE.fullmatch(part.strip()) for part in cell.split(" / ")]
            for found in filter(None, parts):
                mean, half = abs(float(found[2].replace("−", "-"))), float(found[3])
                seen += 1
                if mean != half and (mean > half) != bool(found[1]):
                    wrong.append(found[0])
    assert seen >= 7
    assert wrong == []


def test_formulas_are_typeset() -> None:
    pytest.importorskip("latex2mathml", reason="latex2mathml is not installed: pip install foretaste[docs]")
    one = docs_pages.typeset("u_j = S_{jj}\n")
    assert one.count("<mtr>") == 1
    assert "<msub>" in one
    rows = docs_pages.typeset("\\begin{aligned} a &= b && \\text{why} \\\\\nc &= d \\end{aligned}\n")
    assert (rows.count("<mtr>"), rows.count("<mtd>")) == (2, 6)
    assert "aligned" not in rows
    text = (ROOT / "docs" / "mathematics.md").read_text(encoding="utf-8")
    formulas = docs_pages.FORMULA.findall(text)
    assert len(formulas) > 20
    for tex in formulas:
        words = re.sub(r"<[^>]+>", "", docs_pages.typeset(tex))
        assert "\\" not in words, f"latex2mathml leaves a command: {tex}"
        assert "&amp;" not in words
        assert "&#x00026;" not in words
