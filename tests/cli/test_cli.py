"""The command line, through typer's runner and as a process."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections import Counter

import pytest
import typer.rich_utils

import foretaste
from cli_runner import invoke
from foretaste.cli import app
from foretaste.cli.app import name_options


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_python_minus_m():
    got = subprocess.run([sys.executable, "-m", "foretaste", "--version"], capture_output=True, text=True, check=True)
    assert got.stdout.strip() == f"foretaste {foretaste.__version__}"


def test_version():
    got = invoke("--version")
    assert (got.exit_code, got.stdout.strip()) == (0, f"foretaste {foretaste.__version__}")


def test_help_lists_commands_and_options():
    got = invoke("--help")
    assert got.exit_code == 0
    assert all(name in got.stdout for name in ("demo", "query"))
    assert "bench" not in got.stdout
    text = plain(invoke("demo", "--help").stdout)
    assert all(name in text for name in ("--out", "--seeds", "--quick"))


HELP_OF = [
    [],
    ["demo"],
    ["query"],
    ["label"],
    ["status"],
    ["serve"],
    ["fidelity"],
    ["run"],
    ["report"],
    ["data"],
    ["data", "get"],
]


@pytest.mark.parametrize("words", HELP_OF, ids=" ".join)
@pytest.mark.parametrize("columns", [80, 120])
def test_help_reads_as_words(words, columns, monkeypatch):
    """Flags show no type, and options that may come twice no list of Python; nothing is wider than the window."""
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", columns)
    text = plain(invoke(*words, "--help").stdout)
    assert not re.findall(r"-.*(<bool>|list\[)", text)
    assert max(map(len, text.splitlines())) <= columns


@pytest.mark.parametrize("name", ["query", "label", "status", "serve", "fidelity", "run", "report"])
def test_help_has_examples_that_the_command_takes(name):
    command = typer.main.get_command(app).commands[name]
    text = plain(invoke(name, "--help").stdout)
    examples = [line.strip() for line in text.partition("Examples:")[2].splitlines() if line.strip()]
    assert len(examples) >= 1
    for line in examples:
        words = shlex.split(line.partition("#")[0])
        words = words[next(k for k, word in enumerate(words) if "=" not in word) :]
        assert words[:2] == ["foretaste", name]
        with contextlib.suppress(typer.Exit):  # of --list
            command.make_context(name, words[2:])  # raises on options and arguments that it does not take


def test_options_of_query_come_in_groups():
    command = typer.main.get_command(app).commands["query"]
    groups = Counter(getattr(p, "rich_help_panel", None) for p in command.params if p.opts[0].startswith("-"))
    assert len(groups) >= 4
    assert max(groups.values()) <= 10


def test_label_and_query_call_their_input_by_the_same_word():
    for name in ("query", "label", "status", "serve", "fidelity"):
        assert "DATA" in plain(invoke(name, "--help").stdout).split("Options")[0]


def test_errors_are_one_line_and_code_two(tmp_path):
    file = tmp_path / "taken"
    file.write_text("mine")
    got = invoke("demo", "--out", str(file))
    assert got.exit_code == 2
    assert got.stdout == ""
    assert got.stderr.count("\n") == 1
    assert got.stderr.startswith("error: --out")
    assert "is a file" in got.stderr
    assert file.read_text() == "mine"


def test_names_are_shown_as_they_are(tmp_path):
    """:x: became a red cross."""
    (tmp_path / "a:x:b").mkdir()
    assert "a:x:b" in invoke("report", tmp_path / "a:x:b").stderr.replace("\n", "")
    assert "a:x:b" in invoke("data", "list", "--folder", tmp_path / "a:x:b").stdout.replace("\n", "")


def test_a_run_of_nothing_says_where_the_names_are():
    got = invoke("run")
    assert got.exit_code == 2
    assert got.stderr == (
        "error: CONFIG not given; expected a .toml file, or one of the names of `foretaste run --list`\n"
    )
    assert "fig2a" in invoke("run", "--list").stdout


def test_debug_lets_the_error_through(tmp_path):
    (tmp_path / "taken").write_text("")
    got = invoke("--debug", "demo", "--out", str(tmp_path / "taken"))
    assert isinstance(got.exception, ValueError)
    assert got.exit_code == 1


@pytest.mark.parametrize("words", [("demo", "--seeds", "0"), ("dmeo",), ("demo", "--nosuch"), ("demo", "--seeds", "x")])
def test_wrong_usage_is_code_two(words):
    got = invoke(*words)
    assert got.exit_code == 2
    assert got.stderr


def test_an_unforeseen_error_names_its_kind(monkeypatch):
    def home():
        raise KeyError("lost\nand found")

    monkeypatch.setattr("foretaste.data.home", home)
    got = invoke("data", "list")
    assert got.exit_code == 2
    assert got.stderr == "error: KeyError: 'lost\\nand found'\n"


@pytest.fixture
def one_core():
    """This process may use one core, so that a command starts no others."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
def test_demo_quick_end_to_end(tmp_path):
    from foretaste.study import load

    got = invoke("demo", "--quick", "--seeds", "1", "--out", str(tmp_path / "demo"))
    assert got.exit_code == 0, got.output
    files = {p.name for p in (tmp_path / "demo").iterdir()}
    assert files >= {"index.html", "curves.svg", "curves.png", "study.json", "records", "pictures.npz"}
    records = load(tmp_path / "demo")
    assert len(records) == 5 * 1 * 3
    assert max(r["residual"] for r in records) <= 1e-3  # it interpolates
    assert str(tmp_path / "demo" / "index.html") in got.stdout
    page = (tmp_path / "demo" / "index.html").read_text(encoding="utf-8")
    for name in ("cover", "gain", "mlmoc", "margin", "random"):
        assert name in got.stdout
        assert name in page
    assert "foretaste demo --seeds 1 --quick" in page


def test_ctrl_c_is_one_line_and_code_130(tmp_path):
    (tmp_path / "plugin.py").write_text("raise KeyboardInterrupt")
    got = invoke("run", "demo", "--plugin", tmp_path / "plugin.py")
    assert (got.exit_code, got.stderr) == (130, "interrupted; the same command resumes\n")


@pytest.mark.slow
def test_run_prints_what_its_intervals_decide(tmp_path, no_figures):
    from foretaste import report

    changes = ["strategies=['random','margin']", "seeds=[0]", "labels.cycles=1", "train.steps=5"]
    words = [word for change in changes for word in ("--set", change)]
    got = invoke("run", "demo", *words, "--processes", "1", "--out", str(tmp_path / "run"))
    assert got.exit_code == 0, got.output
    summary = report.read_run(tmp_path / "run").summary()
    assert f"{report.headline(summary)}. {report.details(summary)}" in got.stdout
    assert str(tmp_path / "run" / "report" / "index.html") in got.stdout


HEAVY = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "PIL", "safetensors", "datasets"}


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["query", "--help"], ["fidelity", "--help"], ["run", "-h"]]
)
def test_help_needs_nothing_heavy(words):
    """Help and version load no library but those of the command line itself: that is why they are quick."""
    code = f"""
import sys
from foretaste.cli import app
try:
    app({words})
finally:
    print("heavy:", sorted({HEAVY} & set(sys.modules)))
"""
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert got.stdout.rstrip().endswith("heavy: []")


def test_no_module_of_the_command_line_is_heavy():
    code = f"""
import importlib, pkgutil, sys
import foretaste.cli
for module in pkgutil.iter_modules(foretaste.cli.__path__, "foretaste.cli."):
    importlib.import_module(module.name)
ours = sorted(name for name in sys.modules if name.startswith("foretaste.") and ".cli" not in name)
print(sorted({HEAVY} & set(sys.modules)), ours)
"""
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert got.stdout.strip() == "[] ['foretaste.errors', 'foretaste.files']"


def test_importing_foretaste_loads_no_command_line():
    code = "import sys, foretaste; print(sorted({'typer', 'rich', 'matplotlib'} & set(sys.modules)))"
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert got.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("give size= (pixels a side) to bring them to one", "give --size (pixels a side) to bring them to one"),
        ("or give skip_broken=True to go without", "or give --skip-broken to go without"),
        ("such as size=64 (--size 64 on the command line), to bring", "such as --size 64, to bring"),
        ('use loss="ce".', 'use --loss "ce".'),
        ("budget='86.2 GB' would do; or batch_size=3", "--budget '86.2 GB' would do; or -n 3"),
        ("batch_size is 61, x_U has 60 points", "-n is 61, the pool has 60 points"),
        ("train.size=3 of my_size=4", "train.size=3 of my_size=4"),
        ("/data/x_U.npz and x_U.npz", "/data/x_U.npz and x_U.npz"),
        ("the size is wrong", "the size is wrong"),
        ("size is 0; expected pixels a side", "--size is 0; expected pixels a side"),
        ('options={"rate": 0.5}; options={"space": "last"}, or', "--options rate=0.5; --options space=last, or"),
    ],
)  # fmt: skip
def test_errors_name_options_of_the_command_line(text, says):
    flags = {"size": "--size", "skip_broken": "--skip-broken", "loss": "--loss", "budget": "--budget"}
    flags |= {"batch_size": "-n", "options": "--options"}
    assert name_options(text, flags) == says
