"""What a study compares, and on what."""

from collections.abc import Callable
from dataclasses import dataclass

import foretaste.query  # noqa: F401  registers "random"
from foretaste.acquire import SELECTS, find
from foretaste.data import Images, digits

DATA: dict[str, Callable[[], Images]] = {"digits": digits}


@dataclass(frozen=True)
class Study:
    """Every strategy with every seed: ``init`` random labels, then ``per_cycle`` more, ``cycles`` times.

    A strategy is a name of ``ft.strategies()``, and after a space how points are selected if not its own way:
    "gain", "gain sequential".
    """

    strategies: tuple[str, ...] = ("gain sequential", "gain", "margin", "mlmoc", "random")
    seeds: tuple[int, ...] = (0, 1, 2)
    data: str = "digits"
    init: int = 20
    per_cycle: int = 10
    cycles: int = 7
    hidden: tuple[int, ...] = (256, 256)
    steps: int = 400
    batch: int = 32
    max_lr: float = 0.5

    def __post_init__(self) -> None:
        faults = [
            f"{name}={value} is not a whole number of at least {least}"
            for name, least in {"init": 1, "per_cycle": 1, "cycles": 0, "steps": 1, "batch": 1}.items()
            if not isinstance(value := getattr(self, name), int) or value < least
        ]
        for name in ("strategies", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                faults.append(f"{name}={values!r} must name at least one, and none twice")
        if self.data not in DATA:
            faults.append(f"unknown data {self.data!r}; known: {', '.join(DATA)}")
        for spec in self.strategies:
            words = spec.split()
            if len(words) not in (1, 2) or not set(words[1:]) <= set(SELECTS):
                faults.append(f"strategy {spec!r} is not a name, nor a name and one of {', '.join(SELECTS)}")
                continue
            try:
                find(words[0])
            except ValueError as error:
                faults.append(str(error))
        if faults:
            raise ValueError("; ".join(faults))

    @property
    def trainings(self) -> int:
        """How many records it will have."""
        return len(self.strategies) * len(self.seeds) * (self.cycles + 1)


def parse(spec: str) -> tuple[str, str]:
    """ "gain sequential" → ("gain", "sequential"); a name alone selects its own way, "auto"."""
    name, *select = spec.split()
    return name, select[0] if select else "auto"
