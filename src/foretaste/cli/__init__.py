"""The command line, a file a command. Heavy imports stand inside the commands, so that help is quick."""

import foretaste.cli._bench
import foretaste.cli._data
import foretaste.cli._demo
import foretaste.cli._fidelity
import foretaste.cli._query
import foretaste.cli._report
import foretaste.cli._run  # noqa: F401
from foretaste.cli._app import app as app


def main() -> None:
    app()
