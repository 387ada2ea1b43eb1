"""Are the types of the public names complete, as pyright sees them? `make types` asks; `-v` lists what is missing.

pyright's ``--verifytypes`` looks at every module. Counted here are the names that folders export, and their members.
Those of ``foretaste`` itself must be complete. The others may not get worse: ``INCOMPLETE`` is how many there were.
"""

import json
import os
import subprocess
import sys
import sysconfig
from typing import Any

import docs_pages
from tutorials import ROOT

INCOMPLETE = (
    205  # of the other folders' names, mostly attributes that a method sets without a type; lower it when it falls
)


def look() -> list[dict[str, Any]]:
    """Every symbol of the package, with what pyright knows of it."""
    paths = [str(ROOT / "src"), sysconfig.get_paths()["purelib"]]  # else what the package imports is unknown
    words = ["--pythonpath", sys.executable, "--verifytypes", "foretaste", "--ignoreexternal", "--outputjson"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "basedpyright", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=ROOT / "tools", check=False)
    try:
        symbols: list[dict[str, Any]] = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    except (ValueError, KeyError):
        sys.exit(f"pyright could not look at the package:\n{done.stdout}{done.stderr}")
    if len(symbols) < 1000:
        sys.exit(f"pyright sees {len(symbols)} symbols; expected thousands. Is foretaste importable?")
    return symbols


def belongs(name: str, homes: set[str]) -> bool:
    """Whether a symbol is one of ``homes``, or a public member of one."""
    found = max((home for home in homes if name == home or name.startswith(home + ".")), key=len, default=None)
    if found is None:
        return False
    return all(part.startswith("__") or not part.startswith("_") for part in name[len(found) :].split("."))


def incomplete(symbols: list[dict[str, Any]], homes: set[str]) -> list[str]:
    """Symbols whose type is unknown, or that type checkers might infer differently."""
    wrong = [s for s in symbols if not s["isTypeKnown"] or s["isTypeAmbiguous"]]
    return sorted({s["name"] for s in wrong if belongs(s["name"], homes)})


def main() -> None:
    """Print the counts. Ends with 1 if a name of the top level is incomplete, or more of the others than before."""
    symbols = look()
    top = {f"{module}.{real}" for module, real in docs_pages.top_level().values()}
    folders = {f"{m}.{real}" for folder in docs_pages.FOLDERS for _, m, real in docs_pages.exports(folder)} - top
    first, rest = incomplete(symbols, top), incomplete(symbols, folders)
    of = [sum(belongs(s["name"], homes) for s in symbols) for homes in (top, folders)]
    print(f"foretaste itself: {len(first)} of {of[0]} symbols incomplete; what folders export: {len(rest)} of {of[1]}")
    for name in first + (rest if "-v" in sys.argv or len(rest) > INCOMPLETE else []):
        print(f"  {name}")
    if first or len(rest) > INCOMPLETE:
        sys.exit(f"expected 0 and at most {INCOMPLETE}: give them a type")


if __name__ == "__main__":
    main()
