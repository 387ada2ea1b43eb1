"""``foretaste doctor``: what is installed, by the metadata of the installation; faults are told and end with code 1."""

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from cli_runner import invoke
from foretaste.cli import app, doctor_command


def test_it_shows_versions_devices_folders_and_extras():
    got = invoke("doctor")
    assert got.exit_code == 0, got.output
    for part in (f"foretaste {version('foretaste')}", f"torch {version('torch')}", "devices: cpu", "features: "):
        assert part in got.output
    assert all(name in got.output for name in doctor_command.EXTRAS)


def test_every_extra_for_users_is_named():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    assert set(doctor_command.EXTRAS) == {*extras} - {"dev", "docs"}


def test_what_is_missing_or_too_old_is_a_fault(monkeypatch: pytest.MonkeyPatch):
    asked = [Requirement(line) for line in ("numpy>=1", "numpy>=999", "no-such-package")]
    monkeypatch.setattr(doctor_command, "requirements", lambda: (asked, {"label": [Requirement("no-such-page")]}))
    got = invoke("doctor")
    assert got.exit_code == 1
    assert f"FAULT: numpy {version('numpy')} is installed; expected >=999" in got.output
    assert "FAULT: no-such-package is not installed" in got.output
    assert "pip install 'foretaste[label]'" in got.output
    assert "pip install 'foretaste[text]'" not in got.output  # nothing of it is missing


def test_requirements_are_those_of_the_installation():
    needed, extras = doctor_command.requirements()
    assert {"torch", "numpy", "scikit-learn"} <= {r.name for r in needed}
    assert [r.name for r in extras["label"]] == ["fastapi", "uvicorn"]


def test_python_m_foretaste_is_the_command_line():
    done = subprocess.run([sys.executable, "-m", "foretaste", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"foretaste {version('foretaste')}\n"


def test_a_shell_can_complete_commands():
    typed = {"_FORETASTE_COMPLETE": "complete_bash", "COMP_WORDS": "foretaste doc", "COMP_CWORD": "1"}
    assert CliRunner().invoke(app, [], env=typed, prog_name="foretaste").output.split() == ["doctor"]
