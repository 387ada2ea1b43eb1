"""What ``query`` and ``fidelity`` are both told: a network, its weights or how to train it, labelled points, a pool."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

POINTS = ".npz (x, y, ids), folder of pictures, or CSV (id, label, features)"

NetworkName = Annotated[
    str | None, typer.Option(help="mlp, wrn1, wrn2, wrn3, resnet18, or package.module:function of your own.")
]
Set = Annotated[list[str] | None, typer.Option("--set", help="Options of the network, such as widen=4.")]
Weights = Annotated[
    Path | None, typer.Option(help="State dict, .safetensors. Without it the network is trained on --labelled first.")
]
LabelledFile = Annotated[Path | None, typer.Option(help=f"Labelled points: {POINTS}, pictures in class folders.")]
PoolFile = Annotated[Path | None, typer.Option(help=f"Points to choose from: {POINTS}; labels are not needed.")]
Classes = Annotated[
    str | None, typer.Option(help="Names of the classes in the order of the network's outputs, by commas.")
]
Loss = Annotated[str | None, typer.Option(help="l2 or ce, what the network is trained with; l2 unless it says itself.")]
Normalise = Annotated[
    str | None,
    typer.Option(help='"none", "measured" (on both files), or mean/std: "0.5/0.25", a number a channel by commas.'),
]
Size = Annotated[int | None, typer.Option(min=1, help="Pixels a side, for pictures of several sizes.")]
Channels = Annotated[int | None, typer.Option(help="1 (grey) or 3 (colour); what the pictures have unless told.")]
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave out pictures that cannot be read.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, or auto.")]
Seed = Annotated[int, typer.Option(min=0, help="Governs initial weights, order and every draw.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Of SGD; 1200 or 320 epochs unless told.")]
MaxLr = Annotated[float | None, typer.Option(help="Largest learning rate; 0.5 for l2 and 0.1 for ce unless told.")]
Batch = Annotated[int, typer.Option(min=1, help="Points in a step of SGD.")]


def pairs(words: Iterable[str], option: str) -> dict[str, Any]:
    """key=value, the value as TOML has it, or else as the word it is; all that are wrong at once."""
    from foretaste.study._toml import value_of

    words, found = list(words), dict[str, Any]()
    if bad := [word for word in words if "=" not in word or not word.partition("=")[0].strip()]:
        raise ValueError(f"{option} {', '.join(bad)}; expected key=value, such as {option} widen=4")
    for word in words:
        key, _, value = word.partition("=")
        found[key.strip()] = value_of(value)
    return found
