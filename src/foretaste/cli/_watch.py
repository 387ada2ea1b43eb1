"""A study behind a progress bar."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretaste.cli._bars import counting

if TYPE_CHECKING:
    from foretaste.study import Study


def watched(
    study: "Study",
    processes: int,
    *,
    folder: Path | None = None,
    devices: tuple[str, ...] = ("cpu",),
    standin: bool = False,
) -> list[Any]:
    """Its records."""
    from foretaste.study import run

    with counting() as progress:
        bar = progress.add_task("starting", total=study.size)

        def seen(record: Any) -> None:
            text = record["arm"]
            if "accuracy" in record:
                text += f", {record['labelled']} labels: {record['accuracy']:.1%}"
            progress.update(bar, advance=1, description=f"{text:<36}")

        return run(study, folder, processes=processes, devices=devices, standin=standin, seen=seen)
