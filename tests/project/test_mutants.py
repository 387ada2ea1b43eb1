"""The tool that plants faults: the faults that it names fit the code, and nothing counts as noticed that is not."""

import ast
from subprocess import CompletedProcess

import pytest

import mutants

SOURCE = mutants.ROOT / "src" / "foretaste"


def test_named_faults_fit_the_code():
    """If this fails, write the fault of ``NAMED`` in tools/mutants.py as its text is now."""
    for fault, _ in mutants.named_faults(SOURCE, mutants.NAMED):
        assert ast.dump(ast.parse(fault.code)) != ast.dump(ast.parse((SOURCE / fault.file).read_text())), fault


def test_files_and_tests_that_are_named_are_there():
    for name, (_, tests) in mutants.PLACES.items():
        assert (SOURCE / name).is_file(), name
        assert [test for test in tests if not mutants.is_test(test)] == []


@pytest.mark.parametrize(
    ("text", "test", "message"),
    [
        ("x = 2\n", "test_mutants.py", r"a\.py has 0 times, expected once: 'x = 1' \(x is 3\)"),
        ("x = 1\nx = 1\n", "test_mutants.py", r"a\.py has 2 times, expected once"),
        (None, "test_mutants.py", r"a\.py has 0 times"),
        (
            "x = 1\n",
            "test_mutants.py::test_gone",
            r"::test_gone is not there, and should notice: x is 3",
        ),
        ("x = 1\n", "test_gone.py", r"test_gone\.py is not there"),
    ],
)
def test_a_named_fault_that_is_gone_is_an_error(tmp_path, text, test, message):
    if text is not None:
        (tmp_path / "a.py").write_text(text)
    with pytest.raises(SystemExit, match=message):
        mutants.named_faults(tmp_path, [("a.py", "x is 3", "x = 1", "x = 3", [test])])


def test_a_named_fault_is_planted(tmp_path):
    (tmp_path / "a.py").write_text("y = 0\nx = 1\n")
    test = "test_mutants.py::test_a_named_fault_is_planted"
    [(fault, tests)] = mutants.named_faults(tmp_path, [("a.py", "x is 3", "x = 1", "x = 3", [test])])
    assert (str(fault), fault.code, tests) == ("a.py:2: x is 3: x = 1", "y = 0\nx = 3\n", [test])


@pytest.mark.parametrize(
    ("code", "said", "by"),
    [
        (0, "1 passed", None),
        (5, "1 deselected", None),  # no test was left to run
        (1, "FAILED tests/test_x.py::test_y - assert 0", "tests/test_x.py::test_y"),
        (2, "ERROR tests/test_x.py - SyntaxError", "tests/test_x.py"),
        (3, "", "pytest exits with 3"),
    ],
)
def test_a_fault_is_noticed_by_a_test_that_ran(tmp_path, monkeypatch, code, said, by):
    monkeypatch.setattr(mutants, "run_pytest", lambda *args: CompletedProcess([], code, said, ""))
    assert mutants.run_tests(tmp_path, ["test_x.py"], 1) == by
