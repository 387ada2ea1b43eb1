"""Phrases that errors and reports share."""

import numpy as np
import pytest
import torch

from foretaste import errors


def test_an_unknown_name_names_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"unknown method 'dens'; did you mean 'dense'\? Known: dense, direct"):
        errors.check_known("method", "dens", ["direct", "dense"])
    assert errors.did_you_mean("q", [], "Registered") == "; registered: none"
    assert errors.did_you_mean("zzz", [f"n{i}" for i in range(50)]).endswith("n39 and 10 more")


COLUMNS = ["id", "age", "income", "region", "plan", "text", "label", "x"]


@pytest.mark.parametrize("name", ["target", "message", "comment", "name", "outcome", "tag", "y", "q", "", "sentiment"])
def test_a_name_that_is_nothing_like_it_is_not_suggested(name: str) -> None:
    assert errors.did_you_mean(name, COLUMNS, "Its columns").startswith("; its columns: id, age, ")
    assert errors.did_you_mean(name, COLUMNS, None) == ""


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("ID", "id"), ("Label", "label"), ("labels", "label"), ("lable", "label"), ("labe", "label"),
        ("text_clean", "text"), ("regoin", "region"), ("incom", "income"), ("ages", "age"),
        ("net_income", "income"), ("reg", "region"),
    ],
)  # fmt: skip
def test_a_name_that_is_near_is_suggested(name: str, near: str) -> None:
    assert errors.did_you_mean(name, COLUMNS, None) == f"; did you mean {near!r}?"


def test_out_of_memory_is_known_by_its_class_or_its_words() -> None:
    torch_gpu, on_a_cpu = torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("x: can't allocate memory: 8 GB")
    assert all(map(errors.is_out_of_memory, (torch_gpu, on_a_cpu, MemoryError(), RuntimeError("_STATUS_ALLOC_FAILED"))))
    below = RuntimeError("the batch is wrong\ncan't allocate memory")
    assert not any(map(errors.is_out_of_memory, (below, ValueError("can't allocate memory"), RuntimeError())))


def test_counts_agree_with_their_nouns() -> None:
    assert [errors.counted(n, "label") for n in (0, 1, 2)] == ["0 labels", "1 label", "2 labels"]
    assert errors.counted(1, "class is", "classes are") == "1 class is"
    assert errors.counted(3, "class is", "classes are") == "3 classes are"


@pytest.mark.parametrize("n", [0, -1, 1.0, True, "3", None])
def test_counts_are_whole_and_positive(n: object) -> None:
    with pytest.raises(ValueError, match=r"width is .*; expected a whole number of at least 1"):
        errors.check_counts(depth=2, width=n)


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (999, "999 B"), (999_999, "1 MB"), (1_440_000, "1.44 MB"), (86.2e9, "86.2 GB"), (5e15, "5e+03 TB")],
)
def test_bytes(n: float, text: str) -> None:
    assert errors.format_bytes(n) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "under 1 ms"), (0.0123, "0.012 s"), (1.25, "1.2 s"), (9.96, "10 s"), (89, "89 s"), (110, "1.8 min"),
        (5400, "1.5 h"), (86_400 * 3, "3.0 days"),
    ],
)  # fmt: skip
def test_durations_are_never_in_powers_of_ten(seconds: float, text: str) -> None:
    assert errors.format_seconds(seconds) == text


def test_words() -> None:
    assert errors.join_words(["a"]) == "a"
    assert errors.join_words(["a", "b", "c"]) == "a, b and c"


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_whole_numbers_of_any_library(value: object) -> None:
    n = errors.whole_number("seed", value)
    assert (n, type(n)) == (3, int)


@pytest.mark.parametrize("value", [True, 2.0, "3", None, [3], np.zeros(2), torch.tensor([1, 2]), -1, 2**64, object()])
def test_what_is_no_whole_number_is_named(value: object) -> None:
    with pytest.raises(ValueError, match=r"^seed is .*; expected a whole number of at (least 0|most \d+)$"):
        errors.whole_number("seed", value)


def test_real_numbers() -> None:
    assert errors.real_number("ridge", np.float32(0.5), 0) == 0.5
    assert errors.real_number("time", float("inf"), 0, above=True, finite=False) == float("inf")
    for value in (-1, float("nan"), float("inf"), 1j, "1", None, torch.zeros(2), True):
        with pytest.raises(ValueError, match=r"ridge is .*; expected a number of at least 0"):
            errors.real_number("ridge", value, 0)
    with pytest.raises(ValueError, match="lr is 0; expected a number above 0"):
        errors.real_number("lr", 0, 0, above=True)


def test_functions() -> None:
    errors.check_callable("progress", None, "(done, total)")
    errors.check_callable("progress", print, "(done, total)")
    with pytest.raises(ValueError, match=r"progress is a list; expected a function of \(done, total\)"):
        errors.check_callable("progress", [], "(done, total)")
