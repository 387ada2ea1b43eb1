"""``foretaste doctor``: versions, devices and folders; which extras are installed, and what each would add."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING

import typer

from foretaste.cli.app import app, error_line, say, with_examples
from foretaste.errors import format_bytes

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# What users gain by each extra of pyproject.toml. Those for work on foretaste itself (dev, docs) are not named.
EXTRAS = {
    "label": "the labelling page: foretaste label, foretaste serve",
    "pretrained": "a pretrained network for photos, with its weights: far more from few labels",
    "text": "a sentence encoder for text, with its weights; Hugging Face models",
    "parquet": "tables in Parquet",
    "datasets": "Hugging Face datasets",
    "activeml": "strategies of scikit-activeml, and ours as theirs",
    "ray": "queries and studies on a Ray cluster",
    "slurm": "queries and studies as jobs of Slurm",
}


@app.command("doctor", **with_examples("foretaste doctor"))
def doctor_command() -> None:
    """Show versions, devices and folders, and what each extra would add. Code 1 if something is missing or too old."""
    needed, extras = requirements()
    faults = [fault for requirement in needed if (fault := find_fault(requirement))]
    say(
        f"foretaste {version('foretaste')}, Python {platform.python_version()}, {platform.platform()}",
        "packages: " + ", ".join(f"{r.name} {version(r.name)}" for r in needed if not find_fault(r)),
        *(f"devices: {device}" for device in devices()),
        *folders(),
        "",
    )
    for name, adds in EXTRAS.items():
        there = not any(find_fault(requirement) for requirement in extras.get(name, []))
        say(f"{'installed' if there else 'missing':<10} {name:<11} {adds}")
        if not there:
            say(f"{'':<22} pip install 'foretaste[{name}]'")
    if faults:
        say("", *(f"FAULT: {fault}" for fault in faults), "pip install --upgrade foretaste puts it right")
        raise typer.Exit(1)


def requirements() -> tuple[list["Requirement"], dict[str, list["Requirement"]]]:
    """What foretaste itself needs, and what each extra needs, by the metadata of the installation."""
    from packaging.requirements import Requirement

    given = [Requirement(line) for line in requires("foretaste") or []]
    here = [r for r in given if r.marker is None or r.marker.evaluate({"extra": ""})]
    extras = {name: [r for r in given if r.marker and r.marker.evaluate({"extra": name})] for name in EXTRAS}
    return here, {name: [r for r in found if r not in here] for name, found in extras.items()}


def find_fault(requirement: "Requirement") -> str | None:
    """Why a requirement is not met; None if it is."""
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if not requirement.specifier.contains(found, prereleases=True):
        return f"{requirement.name} {found} is installed; expected {requirement.specifier}"
    return None


def devices() -> list[str]:
    """What networks can run on, in words. A torch that cannot be imported is told as such."""
    try:
        import torch
    except Exception as error:
        return [f"torch cannot be imported: {error_line(error)}"]
    from foretaste.tangent import free_memory

    found = [f"cpu, {os.cpu_count()} cores, torch uses {torch.get_num_threads()}, {format_bytes(free_memory())} free"]
    for k in range(torch.cuda.device_count()):
        free = free_memory(torch.device("cuda", k))
        found.append(f"cuda:{k}, {torch.cuda.get_device_name(k)}, {format_bytes(free)} free")
    return found


def folders() -> list[str]:
    """Where data sets and features are kept, and whether they can be written."""
    try:
        from foretaste.data import home
        from foretaste.network import feature_home
    except Exception:  # a package cannot be imported; the lines before say which
        return []
    lines = []
    for what, folder in (("data sets", home()), ("features", feature_home())):
        place = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        lines.append(f"{what}: {folder}" + ("" if os.access(place, os.W_OK) else ", which may not be written"))
    return [*lines, f"Python: {sys.executable}"]
