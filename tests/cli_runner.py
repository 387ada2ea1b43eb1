"""The command line in the same process, for tests."""

import csv

from typer.testing import CliRunner

from foretaste.cli import app


def invoke(*words):
    return CliRunner().invoke(app, [str(w) for w in words])


def told(*words):
    """The one line of an error."""
    got = invoke(*words)
    assert got.exit_code == 2, got.output
    return " ".join(got.stderr.split())


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
