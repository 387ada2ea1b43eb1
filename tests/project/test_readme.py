"""What the pages show is true: their Python runs; links, files, names and commands exist."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import foretaste
from tuned_cases import save_encoder
from tutorials import PICTURE, TUTORIALS, blocks, commands, execute, notebook, run, started_kernel

pytestmark = pytest.mark.usefixtures("_names")  # strategies that a page registers are forgotten again
ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
FILE = re.compile(r"(?<![\w/.:~-])((?:[a-z_.]+/)+[\w-]+\.(?:py|md|toml))(?![\w/])")
NAME = re.compile(r"`(?:from )?(foretaste(?:\.\w+)+|ft(?:\.\w+)+)")
PLACEHOLDER = re.compile(r"^\.|NAME")  # a folder outside the clone, a name to fill in
COMMAND = re.compile(r"^foretaste ([a-z]+)", re.MULTILINE)
SHELL = re.compile(r"^```sh\n(.*?)^```$|`(foretaste [^`]*)`", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_readme_runs() -> None:
    assert len(run(ROOT / "README.md")["q"].ids) == 10


def test_readme_comes_to_the_point() -> None:
    """What, commands, Python and the verdict on little more than a screen; the rest is links."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, _, rest = text.partition("## What it needs")
    assert rest
    assert len(first.splitlines()) < 80
    assert text.index("make test") < text.index("## Which strategy") < text.index("## Read on")


@pytest.mark.slow
def test_tour_runs(capsys: pytest.CaptureFixture[str]) -> None:
    space = run(ROOT / "docs" / "tour.md")
    assert space["after"].shape == (len(space["U"]), 10)
    assert "predictions would change" in capsys.readouterr().out
    assert len(space["learner"].labels) == 20


def test_page_of_inputs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("a fine film, warm and witty", "a dull film, slow and long")
    texts = [f"{k};{words[k % 2]} {k};{('good', 'bad')[k % 2] if k < 8 else ''}" for k in range(20)]
    (tmp_path / "reviews.csv").write_text("\n".join(["id;review;label", *texts]))
    rows = [f"{k},{k % 7 or ''},{('Rome', 'Oslo')[k % 2]},{('x', 'y')[k % 2] if k < 8 else ''}" for k in range(20)]
    (tmp_path / "people.csv").write_text("\n".join(["id,age,city,label", *rows]))
    monkeypatch.chdir(tmp_path)
    space = run(ROOT / "docs" / "inputs.md")
    assert (space["reviews"].kind, space["people"].kind) == ("text", "table")


def test_guide_runs() -> None:
    space = run(ROOT / "docs" / "guide.md")
    assert len(set(space["labelled"])) == 50
    assert space["fitted"].interpolates


def test_page_of_numbers_runs() -> None:
    space = run(ROOT / "docs" / "numbers.md")
    assert space["theta_UU"].shape == (300, 300)
    assert space["firmer"].ridge == pytest.approx(10 * space["state"].ridge)


def test_pages_for_users_are_short() -> None:
    """At most 2,000 words; how we found out stands in Research notes (the nav of mkdocs.yml)."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("  - Research notes:")[0]
    pages = re.findall(r"([\w/-]+\.md)$", nav, re.MULTILINE)
    assert len(pages) > 25
    long = {page: words for page in pages if (words := len((ROOT / "docs" / page).read_text().split())) > 2000}
    assert not long, f"{long}: move what was measured to a research note"


def test_first_page_runs() -> None:
    assert len(set(run(ROOT / "docs" / "index.md")["q"].ids)) == 10


def test_features_page_runs() -> None:
    space = run(ROOT / "docs" / "features.md")
    assert space["f"].shape == (1797, 32)
    assert len(space["q"].indices) == 5
    assert space["f_text"].tolist() == [[12, 2], [7, 0]]


def test_fine_tuning_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_encoder(tmp_path / "FOLDER")
    monkeypatch.chdir(tmp_path)
    space = run(ROOT / "docs" / "fine-tuning.md")
    assert len(space["q"].indices) == 5
    assert sorted(space["learner"].labels) == sorted(space["asked"])
    assert space["learner"].status()["training"] == {"running": False, "count": 1, "failure": None}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:skactiveml")
def test_tools_page_runs() -> None:
    space = run(ROOT / "docs" / "tools.md")
    assert space["learner"].score(space["X"], space["y"]) > 0.9
    assert space["utilities"].shape == (5, 150)
    assert len(set(space["q"].indices)) == 3
    assert "their-typiclust" in space["ft"].strategies()


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    with started_kernel() as kernel:
        yield kernel


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda p: p.stem)
def test_tutorials_run_as_notebooks_and_end_with_a_picture(page: Path, tmp_path: Path, kernel: Any) -> None:
    execute(page, tmp_path, kernel)
    drawn = PICTURE.findall(page.read_text(encoding="utf-8"))
    assert drawn
    for name in drawn:
        assert (page.parent / name).exists(), f"{name} is not kept beside the page; `make tutorials` draws it"
        if name.endswith(".png"):
            with Image.open(tmp_path / name) as new, Image.open(page.parent / name) as kept:
                assert new.size == kept.size
        else:
            assert "<svg" in (tmp_path / name).read_text()


def test_a_cell_that_fails_is_told(tmp_path: Path, kernel: Any) -> None:
    page = tmp_path / "page.md"
    page.write_text("# a page\n\n```python\na = 1\n```\n\n```sh\nforetaste data gone\n```\n")
    with pytest.raises(Exception, match="foretaste data gone ended with code"):
        execute(page, tmp_path, kernel)
    page.write_text("```python\na\n```\n")
    with pytest.raises(Exception, match="name 'a' is not defined"):  # of another page
        execute(page, tmp_path, kernel)


def test_a_notebook_has_the_code_and_the_words_of_its_page() -> None:
    page = ROOT / "docs" / "tutorials" / "texts.md"
    cells = notebook(page)["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert [c for c in code if not c.startswith("!")] == [c.strip("\n") for _, _, c in blocks(page)]
    assert [c for c in code if c.startswith("!")] == ["!foretaste query texts.csv -n 10 --encoder tfidf"]
    words = " ".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert "foretaste label texts.csv" in words  # waits for a person: not a cell to run
    assert "texts.svg" not in words
    assert len({cell["id"] for cell in cells}) == len(cells)


def test_commands_that_wait_for_a_person_are_not_run() -> None:
    code = "pip install x\nforetaste label a/\nforetaste label a/ --export b.csv  # why\nforetaste query a -n 3\n"
    assert list(commands(code)) == [["label", "a/", "--export", "b.csv"], ["query", "a", "-n", "3"]]


def test_acquisition_of_the_tutorial_is_short() -> None:
    code = next(code for _, _, code in blocks(ROOT / "docs/tutorials/acquisition.md") if "@ft.register" in code)
    assert len(code.splitlines()) < 15


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


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_named_on_a_page_exist(page: Path) -> None:
    """Paths are from the clone, from docs/, or from the package."""
    named = {path for path in FILE.findall(page.read_text(encoding="utf-8")) if not PLACEHOLDER.search(path)}
    homes = (ROOT, ROOT / "docs", ROOT / "src" / "foretaste")
    assert not [path for path in sorted(named) if not any((home / path).exists() for home in homes)]


def resolve(name: str) -> object:
    """What a dotted name stands for; raises if there is no such thing."""
    first, *rest = name.split(".")
    found: object = import_module({"ft": "foretaste"}.get(first, first))
    for k, part in enumerate(rest):
        try:
            found = getattr(found, part)
        except AttributeError:
            found = import_module(".".join(["foretaste", *rest[: k + 1]]))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_names_used_on_a_page_exist(page: Path) -> None:
    for name in set(NAME.findall(page.read_text(encoding="utf-8"))):
        resolve(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_shown_on_a_page_exist(page: Path) -> None:
    from foretaste.cli import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {group.name for group in app.registered_groups if group.name}
    shown = [block or span for block, span in SHELL.findall(page.read_text(encoding="utf-8"))]
    assert {name for code in shown for name in COMMAND.findall(code)} <= known


def test_the_checks_of_a_page_can_fail(tmp_path: Path) -> None:
    assert FILE.findall("see `acquire/gone.py` and https://a.b/c.md") == ["acquire/gone.py"]
    assert SHELL.findall("`foretaste gone -n 3`") == [("", "foretaste gone -n 3")]
    assert SHELL.findall("```sh\nmake x\nforetaste gone\n```") == [("make x\nforetaste gone\n", "")]
    assert NAME.findall("`ft.nothing(3)` and `foretaste.pick.gone`") == ["ft.nothing", "foretaste.pick.gone"]
    for name in ("ft.nothing", "foretaste.pick.gone"):
        with pytest.raises((AttributeError, ModuleNotFoundError)):
            resolve(name)


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {foretaste.__version__}\n" in text
