"""Any study made small enough for a minute: the same arms through the same code, never a result."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from foretaste.study._config import Arm, Network, Study


def smoke(study: Study) -> Study:
    """Two seeds, two cycles, few and small pictures, narrow networks, short trainings."""
    labels = study.labels
    per_cycle = min(labels.per_cycle, 4)
    subset = min(labels.subset or 16, 16)
    return replace(
        study,
        seeds=study.seeds[:2],
        widths=tuple(sorted({min(width, 64 * 4**k) for k, width in enumerate(study.widths)})),
        data=replace(
            study.data,
            pool_points=_least(study.data.pool_points, 400),
            test_points=_least(study.data.test_points, 40),
            pixels=_least(study.data.pixels, 8),
        ),
        labels=replace(
            labels,
            init=min(labels.init, 16),
            per_cycle=per_cycle,
            subset=max(subset, per_cycle),
            cycles=min(labels.cycles, 2),
        ),
        network=Network(study.network.name, narrow(study.network.name, study.network.options)),
        train=replace(
            study.train,
            steps=min(study.train.steps or 12, 12),
            epochs=None,
            batch=min(study.train.batch, 8),
            max_lr=min(study.train.max_lr or 0.1, 0.1),
        ),
        arms=tuple(_small(arm, study.network.name) for arm in study.arms),
    )


def narrow(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    small = {
        "widen": lambda n: 1,
        "width": lambda n: min(n, 8),
        "hidden": lambda h: [min(n, 64) for n in h],
    }
    defaults: dict[str, dict[str, Any]] = {"wrn": {"widen": 10}, "resnet": {"width": 64}, "mlp": {"hidden": (256, 256)}}
    known = next((own for kind, own in defaults.items() if name.startswith(kind) and ":" not in name), {})
    return {key: small[key](value) if key in small else value for key, value in ({**known, **options}).items()}


def _small(arm: Arm, name: str) -> Arm:
    kind = arm.network.get("name", name)
    own = {key: value for key, value in arm.network.items() if key != "name"}
    narrowed = {key: value for key, value in narrow(kind, own).items() if key in own}
    train = {key: value for key, value in arm.train.items() if key not in ("steps", "epochs", "batch")}
    options = dict(arm.options)
    if arm.strategy in ("naive", "eer_retrain"):
        options["epochs"] = 1
    return replace(arm, network=dict(arm.network) | narrowed, train=train, options=options)


def _least(value: int | None, most: int) -> int:
    return most if value is None else min(value, most)
