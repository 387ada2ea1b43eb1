"""How a study's records were made, in words."""

import torch

from foretaste.data import Images
from foretaste.network._checks import EPOCHS, STEPS
from foretaste.study._config import Network, Study
from foretaste.study._cost import versions


def about(study: Study, data: Images, *, command: str, processes: int, device: str = "cpu") -> dict[str, str]:
    """Command, data, network, training, seeds, versions: what someone needs to make them again."""
    labels, train = study.labels, study.train
    loss = {"l2": "squared loss", "ce": "cross-entropy"}[train.loss]
    length = (
        f"{train.steps} steps"
        if train.steps
        else f"{train.epochs} epochs"
        if train.epochs
        else f"{STEPS} steps or {EPOCHS} epochs, whichever is more,"
    )
    lr = "fit's own" if train.max_lr is None else f"{train.max_lr:g}"
    start = "from new weights each cycle" if train.start == "cold" else "each cycle from the weights of the last"
    offered = "the whole pool" if labels.subset is None else f"{labels.subset} points drawn anew"
    augment = f", images augmented by {train.augment}" if train.augment else ""
    told = {
        "command": command,
        "data": f"{data.name}: {len(data.pool)} points to query from, {len(data.test)} to measure on, "
        f"{len(data.classes)} classes; no point of the test set is ever trained on or queried",
        "network": network_words(study.network),
        "training": f"SGD on the {loss}, {length} of at most {train.batch} points, one-cycle up to a learning rate of "
        f"{lr}{augment}; {start}",
        "labels": f"{labels.init} at random, then {labels.per_cycle} a cycle of {offered}, {labels.cycles} cycles",
        "pairing": "a seed gives every arm the same first labels, and every cycle the same initial weights and batches",
        "seeds": ", ".join(map(str, study.seeds)),
    }
    if any(arm.strategy == "gain" for arm in study.arms) and train.loss == "l2":
        told["scale of gain"] = (
            "s² from the residuals of each batch's labels before they were learned; before the first, ten times "
            "leave-one-out"
        )
    where = versions(torch.device(device))
    told["versions"] = ", ".join(f"{name} {version}" for name, version in where.items() if name != "device")
    told["machine"] = f"{where['device']}, {processes} {'process' if processes == 1 else 'processes'} of one thread"
    return told


def network_words(network: Network) -> str:
    options = ", ".join(f"{key} {value}" for key, value in network.options.items())
    return f"{network.name}, {options}" if options else network.name
