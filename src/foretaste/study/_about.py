"""How a study's records were made, in words."""

import platform
from importlib.metadata import version

from foretaste.data import Images
from foretaste.study._config import Study

PACKAGES = ("foretaste", "torch", "numpy", "scikit-learn")


def about(study: Study, data: Images, *, command: str, seconds: float, processes: int) -> dict[str, str]:
    """Command, data, network, training, seeds, versions and time: what someone needs to make them again."""
    hidden = " and ".join(map(str, study.hidden))
    return {
        "command": command,
        "data": f"{data.name}: {len(data.pool)} points to query from, {len(data.test)} to measure on, "
        f"{len(data.classes)} classes; no point of the test set is ever trained on or queried",
        "network": f"MLP with hidden layers of {hidden}",
        "training": f"SGD on the squared loss, {study.steps} steps of at most {study.batch} points, one-cycle up to a "
        f"learning rate of {study.max_lr:g}; from new weights each cycle",
        "labels": f"{study.init} at random, then {study.per_cycle} a cycle, {study.cycles} cycles",
        "pairing": "a seed gives every strategy the same first labels, and every cycle the same initial weights",
        "seeds": ", ".join(map(str, study.seeds)),
        "scale of gain": "s² from the residuals of each batch's labels before they were learned; before the first, "
        "ten times leave-one-out",
        "versions": ", ".join(
            [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in PACKAGES)]
        ),
        "time": f"{seconds:.0f} s on {processes} {'process' if processes == 1 else 'processes'} of one thread, "
        f"{platform.machine()}",
    }
