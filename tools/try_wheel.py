"""Build wheel and sdist, install each in an empty environment, and ask a first query. `make try` does it.

``lowest`` installs the lowest versions that pyproject.toml allows, ``newest`` the newest, ``sdist`` the newest from the
sdist. Seconds of each part are printed: from ``pip install`` to a first query should take two minutes at most.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LONGEST = 120.0  # seconds from `pip install` to a first query, on a free machine
FIRST_QUERY = """
import foretaste as ft
from foretaste.data import digits
from foretaste.network import MLP, prepare

data = digits()
x, y = prepare(data.x, normalise=data.normalise), data.y
L, U = data.pool[:40], data.pool[40:]
net = MLP(64, (256, 256), 10)
ft.fit(net, x[L], y[L])
assert len(set(ft.query(net, x[L], y[L], x[U], batch_size=10).indices)) == 10
"""


def lowest_versions() -> list[str]:
    """The lower bound of each dependency, as constraints of pip."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [re.fullmatch(r"([\w-]+)>=([\d.]+)", need) for need in project["dependencies"]]
    return [f"{need[1]}=={need[2]}" for need in found if need]


def attempt(kind: str, torch: str | None, keep: Path) -> float:
    """Install one kind in a new environment and use it; seconds from the installation to the first query."""
    venv, spent = keep / kind, 0.0
    constraints = lowest_versions() if kind == "lowest" else []
    if torch:
        constraints = [c for c in constraints if not c.startswith("torch==")] + [f"torch=={torch}"]
    (keep / f"{kind}.txt").write_text("\n".join(constraints) + "\n")
    [built] = keep.glob("dist/*.tar.gz" if kind == "sdist" else "dist/*.whl")
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    steps: dict[str, list[str | Path]] = {
        "pip install": [venv / "bin/pip", "install", "--quiet", "--constraint", keep / f"{kind}.txt", built],
        "first query": [venv / "bin/python", "-c", FIRST_QUERY],
        "a command": [venv / "bin/foretaste", "--version"],
        "python -m foretaste": [venv / "bin/python", "-m", "foretaste", "query", "--help"],
        "completion": ["env", "_FORETASTE_COMPLETE=source_bash", venv / "bin/foretaste"],
        "doctor": [venv / "bin/foretaste", "doctor"],
    }
    for name, words in steps.items():
        start = time.perf_counter()
        done = subprocess.run(words, capture_output=True, text=True, cwd=keep, check=False)
        took = time.perf_counter() - start
        print(f"{kind}: {name} {took:.1f} s", flush=True)
        if done.returncode:
            sys.exit(f"{kind}: {name} ended with code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        spent += took if name in ("pip install", "first query") else 0
    return spent


def main() -> None:
    """Build and try."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("kinds", nargs="*", default=["lowest", "newest", "sdist"])
    parser.add_argument("--torch", help="this version of torch in all of them, such as 2.13.0+cpu")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "build", "--outdir", f"{folder}/dist", str(ROOT)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        for kind in given.kinds:
            took = attempt(kind, given.torch, Path(folder))
            late = f"; expected {LONGEST:.0f} s at most" if took > LONGEST else ""
            print(f"{kind}: from pip install to a first query {took:.0f} s{late}")


if __name__ == "__main__":
    main()
