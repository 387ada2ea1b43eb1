"""The command line, one file for each command.

Heavy imports (torch, matplotlib, most of foretaste) stand inside the commands, so that ``foretaste --help`` is quick.
"""

import foretaste.cli.data
import foretaste.cli.fidelity
import foretaste.cli.label
import foretaste.cli.query
import foretaste.cli.report
import foretaste.cli.run
import foretaste.cli.serve  # noqa: F401
from foretaste.cli.app import app as app


def main() -> None:
    """Run the command line."""
    app()
