"""What the tests of results/ share."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def script() -> Iterator[Callable[[str], ModuleType]]:
    """Import a file of results/. The test over, that and what it imports there are forgotten: their names recur."""
    path, gradients = list(sys.path), torch.is_grad_enabled()

    def load(name: str) -> ModuleType:
        file = RESULTS / name
        sys.path.insert(0, str(file.parent))
        return importlib.import_module(file.name)

    yield load
    sys.path[:] = path
    torch.set_grad_enabled(gradients)  # the labs turn them off
    for name, module in list(sys.modules.items()):
        if RESULTS in Path(getattr(module, "__file__", None) or "").parents:
            del sys.modules[name]
