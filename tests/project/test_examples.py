"""Every example in a docstring runs. Those of ``report`` need the records of a run, and one registers a rule.

They are run in tests/report and tests/testing.
"""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "foretaste"
FILES = [path.relative_to(PACKAGE.parent) for path in sorted(PACKAGE.rglob("*.py")) if ">>>" in path.read_text()]
NAMES = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in FILES]
NAMES = [n for n in NAMES if not n.startswith("foretaste.report.") and n != "foretaste.tangent.rules"]


@pytest.mark.usefixtures("_names")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:skactiveml")
@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(import_module(name))
    assert result.attempted
    assert not result.failed
