"""The command line, one file for each command or for a few that belong together.

Heavy imports (torch, matplotlib, most of foretaste) stand inside the commands, so that ``foretaste --help`` is quick.
"""

import foretaste.cli.data_command
import foretaste.cli.doctor_command
import foretaste.cli.fidelity_command
import foretaste.cli.label_command
import foretaste.cli.query_command
import foretaste.cli.run_command  # noqa: F401
from foretaste.cli.app import app as app


def main() -> None:
    """Run the command line."""
    app()
