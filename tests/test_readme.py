"""What README.md and docs/guide.md show runs: every ```python block, in order, one namespace a file."""

import re
from pathlib import Path
from typing import Any

import pytest

from foretaste.acquire import registry

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[tuple[int, str]]:
    """The Python of a page, each block with the line it starts on."""
    text = page.read_text(encoding="utf-8")
    return [(text[: found.start(1)].count("\n"), found[1]) for found in BLOCK.finditer(text)]


def run(page: Path) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": page.stem}
    for line, code in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), space)  # tracebacks show the page's own lines
    return space


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strategies that a page registers are forgotten again."""
    monkeypatch.setattr(registry, "_strategies", dict(registry._strategies))


@pytest.mark.slow
def test_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    space = run(ROOT / "README.md")
    assert len(space["q"].indices) == 10
    assert space["after"].shape == (len(space["U"]), 10)
    assert "predictions would change" in capsys.readouterr().out
    from foretaste.testing import check_acquisition

    check_acquisition(space["reach"])


def test_guide_runs() -> None:
    space = run(ROOT / "docs" / "guide.md")
    assert len(set(space["labelled"])) == 50
    assert space["fitted"].interpolates


def test_acquisition_of_the_readme_is_short() -> None:
    code = next(code for _, code in blocks(ROOT / "README.md") if "@ft.register" in code)
    function = code.split("\n\n\n")[0]
    assert len(function.splitlines()) < 15


def test_an_error_is_told_by_the_line_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# a page\n\n```python\na = 1\n```\n\nand\n\n```python\nb = a + 1\nb / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run(page)
    assert caught.traceback[-1].lineno == 10  # counted from 0: the eleventh line


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in LINK.findall(text):
        if "://" in target:
            continue
        there = page.parent / target
        assert there.exists(), f"{page.name} links to {target}, which is not there"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor[1:] in {title.lower().replace(" ", "-") for title in titles}, f"{target} has no {anchor}"
