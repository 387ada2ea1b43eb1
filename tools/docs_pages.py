"""Pages of the site that no file in docs/ holds: the README and its kin, notebooks, the reference. A hook of mkdocs.

The reference has one page for each folder. The page lists what the folder's ``__init__`` exports, by the file that
defines it. A new export appears without a change here. Names of the top level are described once, on their own page.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

from tutorials import ROOT, TUTORIALS, notebook_text

PACKAGE = ROOT / "src" / "foretaste"
FROM_ROOT = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
REFERENCE_HERE = ("the reference: `make docs`, then open `site/index.html`", "[the reference](reference/index.md)")
RESULT = re.compile(r"\]\(\.\./(results/[^)#\s]+)")  # a link to a file of results/
FOLDER = re.compile(r"\[([^\]]*)\]\(\.\./(results[^)#\s]*)\)")
FORMULA = re.compile(r"^```math\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
TOP = """# foretaste

```python
import foretaste as ft
```

These names are all that most users need. Other pages of this reference have what each folder exports.
"""
FILES_PAGE = """# foretaste.losses and foretaste.errors

Two files that every folder may import.
"""
INDEX = """# Reference

Made from the docstrings. One page for each folder of `src/foretaste/`, by the folder's `__init__`: what is not exported
there is private. On a page, names stand under the file that defines them.

| page | what |
|---|---|
| [foretaste](foretaste.md) | `ft.query`, `ft.linearize`, `ft.ntk`, `ft.fit` and the rest of the top level |
"""
FIRST = ("query", "Query", "linearize", "State", "ntk", "fit")  # of the top level; the others follow
FOLDERS = (
    "network", "data", "acquire", "pick", "lookahead", "tangent", "tangent.infinite", "study", "report", "label",
    "connect", "testing",
)  # fmt: skip
FILES = ("losses", "errors")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, and the files beside docs/ that its pages show."""
    from mkdocs.structure.files import File

    pages = {made: links_from_root((ROOT / name).read_text(encoding="utf-8")) for name, made in FROM_ROOT.items()}
    pages |= {f"reference/{name}.md": text for name, text in reference_pages().items()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for tutorial in TUTORIALS:
        name = f"tutorials/{tutorial.stem}.ipynb"
        files.append(File.generated(config, name, content=notebook_text(tutorial)))
    linked = [RESULT.findall(page.read_text(encoding="utf-8")) for page in sorted((ROOT / "docs").glob("*.md"))]
    for path in sorted({path for found in linked for path in found if (ROOT / path).is_file()}):
        files.append(File(path, str(ROOT), config.site_dir, use_directory_urls=False))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """In pages of docs/, ``../README.md`` and its kin are pages of the site; folders of results are not linked."""
    if any(page.file.src_uri == f"tutorials/{tutorial.stem}.md" for tutorial in TUTORIALS):
        title, rest = markdown.split("\n", 1)
        markdown = f"{title}\n\n[Download as a notebook]({Path(page.file.src_uri).stem}.ipynb){{ download }}\n{rest}"
    markdown = FORMULA.sub(lambda found: typeset(found[1]), markdown)
    up = "../" * page.file.src_uri.count("/")
    for name, made in FROM_ROOT.items():
        markdown = markdown.replace(f"]({up}../{name}", f"]({up}{made}")
    markdown = markdown.replace(*REFERENCE_HERE)
    markdown = FOLDER.sub(lambda link: link[1] if (ROOT / link[2]).is_dir() else link[0], markdown)
    return markdown.replace("](../results/", "](results/").replace("](../docs/", "](../")


def typeset(tex: str) -> str:
    """A formula as MathML, which browsers draw without a script. Rows of ``aligned`` become rows of a table."""
    from latex2mathml.converter import convert

    def inner(part: str) -> str:
        return re.sub(r"^<math[^>]*>|</math>$", "", convert(part)) if part.strip() else ""

    rows = [tex]
    if found := re.fullmatch(r"\\begin\{aligned\}(.*)\\end\{aligned\}\s*", tex, re.DOTALL):
        rows = found[1].split("\\\\\n")
    cells = [row.replace("\n", " ").split("&") for row in rows]
    table = "".join("<mtr>" + "".join(f"<mtd>{inner(cell)}</mtd>" for cell in row) + "</mtr>" for row in cells)
    kind = "rows" if len(rows) > 1 else "row"
    return f'<div class="math {kind}"><math display="block" displaystyle="true"><mtable>{table}</mtable></math></div>\n'


def links_from_root(text: str) -> str:
    """The text of a file beside docs/ as a page of docs/."""
    text = re.sub(r"\]\(docs/", "](", text)
    for name, made in FROM_ROOT.items():
        text = text.replace(f"]({name}", f"]({made}")
    return text


def exports(folder: str) -> list[tuple[str, str, str]]:
    """(name, module, name in that module) of all that a folder's ``__init__`` exports. The top level is ``""``."""
    found = []
    for node in ast.walk(parsed(f"foretaste.{folder}".rstrip("."))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("foretaste."):
            found += [(n.asname, node.module, n.name) for n in node.names if n.asname]
    return found


def top_level() -> dict[str, tuple[str, str]]:
    """Names of ``foretaste`` itself, each with the module that defines it and its name there."""
    found = {}
    for name, folder, real in exports(""):
        inside = ((m, r) for n, m, r in exports(folder.removeprefix("foretaste.")) if n == real)
        found[name] = next(inside, (folder, real))  # a folder's, or a file's own
    first = [name for name in FIRST if name in found]
    return {name: found[name] for name in (*first, *(name for name in found if name not in FIRST))}


def described(module: str, real: str, heading: str) -> str:
    """A function or a class, by mkdocstrings. Classes of fields show those, and not their signature (site.css)."""
    text = f'::: {module}.{real}\n    options: {{heading: "{heading}", toc_label: "{heading}"}}\n'
    node = definition(module, real)
    if isinstance(node, ast.ClassDef) and any(isinstance(field, ast.AnnAssign) for field in node.body):
        return f'<div class="fields" markdown>\n\n{text}\n</div>\n'
    return text


def definition(module: str, real: str) -> ast.stmt | None:
    """The statement of a module that defines a name."""
    for node in parsed(module).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = {n.id for t in targets if t is not None for n in ast.walk(t) if isinstance(n, ast.Name)}
        if real in names or getattr(node, "name", None) == real:
            return node
    return None


def source(module: str) -> str:
    """The code of a module, or of a folder's ``__init__``."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


@cache
def parsed(module: str) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(source(module))


def summary(module: str) -> str:
    """The first paragraph of a module's docstring."""
    text = ast.get_docstring(parsed(module)) or ""
    return text.split("\n\n")[0].replace("\n", " ")


def folder_page(folder: str) -> str:
    """What a folder exports, under the files that define it: functions and classes, then constants as they are set."""
    at, top = f"foretaste.{folder}", top_level()
    options = "members: false, show_root_heading: false, show_root_toc_entry: false"
    parts = [f"# {at}\n", f"::: {at}\n    options: {{{options}}}\n"]
    here: dict[str, list[tuple[str, str]]] = {}
    for name, module, real in exports(folder):
        if module.startswith(f"{at}.") and not (folder == "tangent" and ".infinite" in module):  # its own page
            here.setdefault(module, []).append((name, real))
    for module, names in here.items():
        parts.append(f"## {module.removeprefix('foretaste.').replace('.', '/')}.py\n\n{summary(module)}\n")
        constants: dict[str, None] = {}
        for name, real in names:
            node = definition(module, real)
            if top.get(name) == (module, real):
                parts.append(f"[ft.{name}](foretaste.md#{module}.{real})\n")
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                constants[ast.get_source_segment(source(module), node) or real] = None
            else:
                parts.append(described(module, real, name))
        if constants:
            parts.append("```python\n" + "\n".join(constants) + "\n```\n")
    return "\n".join(parts)


def reference_pages() -> dict[str, str]:
    """The text of each page of the reference, by name."""
    pages = {folder: folder_page(folder) for folder in FOLDERS}
    pages["foretaste"] = "\n".join([TOP, *(described(*where, f"ft.{name}") for name, where in top_level().items())])
    files = [f"::: foretaste.{name}\n    options: {{heading_level: 2}}\n" for name in FILES]
    pages["files"] = "\n".join([FILES_PAGE, *files])
    rows = [f"| [foretaste.{folder}]({folder}.md) | {summary('foretaste.' + folder)} |" for folder in FOLDERS]
    rows += [f"| [foretaste.{name}](files.md#foretaste.{name}) | {summary('foretaste.' + name)} |" for name in FILES]
    pages["index"] = INDEX + "\n".join(rows) + "\n"
    return pages
