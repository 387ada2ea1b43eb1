"""Short runs of the fuzzers (``make fuzz`` is the long one): what comes is taken or refused by name, never run."""

import os
import sys

import pytest

from fuzz import calls, files, webhooks


def test_generated_calls_of_the_public_functions() -> None:
    tally = calls.run(150, seed=11)
    assert not tally.bad(), (str(tally), tally.examples)


def test_damaged_files_are_read_or_refused_by_name() -> None:
    tally = files.run(300, seed=0)
    assert sum(tally.counts.values()) == 300
    assert not tally.bad(allowed_raw=0), tally.examples
    assert min(tally.counts["right"], tally.counts["clear error"]) > 50


def test_damaged_webhooks_are_kept_or_refused_by_name() -> None:
    tally = webhooks.run(400, seed=0)
    assert sum(tally.counts.values()) == 400
    assert not tally.bad(allowed_raw=0), tally.examples
    assert min(tally.counts["right"], tally.counts["clear error"]) > 30


@pytest.mark.parametrize(
    ("reader", "outcome"),
    [
        (lambda root: os.system("true"), "executed"),
        (lambda root: __import__(files.CANARY), "executed"),
        (lambda root: (root.parent / "outside" / "new").write_text("x"), "left behind"),
        (lambda root: (root / "new").write_text("x"), "left behind"),
        (lambda root: [][0], "raw error"),
        (lambda root: (root / "a.npz").read_bytes().decode("ascii"), "raw error"),
        (lambda root: "else", "wrong"),
    ],
)
def test_the_fuzzer_notices(monkeypatch, reader, outcome) -> None:
    """A reader that behaves while it shows what is right, and then does not."""
    calls = []

    def later(root):
        calls.append(root)
        return "right" if len(calls) == 1 else reader(root)

    monkeypatch.setattr(files, "KINDS", {"npz": files.Kind(files.make_npz, (later,), checked=True)})
    monkeypatch.setattr(files, "DAMAGES", [lambda root, draw: "none"])
    monkeypatch.setattr(files, "change_bytes", files.DAMAGES[0])
    tally = files.run(3, seed=0)
    assert tally.counts[outcome] == 3 if outcome != "left behind" else tally.counts[outcome] >= 1, tally
    assert files.CANARY not in sys.modules
