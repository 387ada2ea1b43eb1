"""All that is wrong with a configuration, told at once."""

from collections.abc import Iterable
from typing import Any

from foretaste.acquire import nearest


class Wrong(ValueError):
    """What is wrong with a configuration, all of it."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__(faults[0] if len(faults) == 1 else f"{len(faults)} things are wrong: " + "; ".join(faults))


class Faults:
    """Collects what is wrong; ``inside("train")`` names the table it is in."""

    def __init__(self, where: str = "", found: list[str] | None = None) -> None:
        self.where, self._all = where, [] if found is None else found
        self._before = len(self._all)

    @property
    def found(self) -> list[str]:
        """Since this part began."""
        return self._all[self._before :]

    def inside(self, where: str) -> "Faults":
        return Faults(f"{self.where}{where}: ", self._all)

    def add(self, says: str) -> None:
        self._all.append(self.where + says)

    def report(self) -> None:
        """Raise if anything was found."""
        if self._all:
            raise Wrong(self._all)

    def one_of(self, name: str, value: object, names: Iterable[str]) -> bool:
        names = list(names)
        if value not in names:
            self.add(f"unknown {name} {value!r}{nearest(value, names, 'Known')}")
        return value in names

    def whole(self, name: str, value: Any, least: int, *, optional: bool = False) -> bool:
        good = value is None if value is None or isinstance(value, bool) else isinstance(value, int) and value >= least
        good = good and (optional or value is not None)
        if not good:
            self.add(f"{name}={value!r} is not a whole number of at least {least}")
        return good

    def within(
        self, name: str, value: Any, low: float, high: float, *, low_open: bool = False, optional: bool = False
    ) -> None:
        if value is None and optional:
            return
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high or (low_open and value == low):
            least = f"above {low:g}" if low_open else f"at least {low:g}"
            self.add(
                f"{name}={value!r}; expected a number {least}" + ("" if high == float("inf") else f", at most {high:g}")
            )
