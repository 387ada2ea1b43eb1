"""What a release is made of: lower bounds that can be tried, changes that towncrier takes, types that are counted."""

import re
import tomllib
from pathlib import Path

import pytest

import public_types
import try_wheel

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_dependency_has_a_lower_bound_that_can_be_tried() -> None:
    assert len(try_wheel.lowest_versions()) == len(PROJECT["project"]["dependencies"])


def test_changes_have_names_that_towncrier_takes() -> None:
    kinds = [kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"]]
    names = [path.name for path in (ROOT / "changes").iterdir()]
    assert not [name for name in names if not re.fullmatch(rf"\+[\w-]+\.({'|'.join(kinds)})\.md|\.gitkeep", name)]
    assert "<!-- towncrier: releases begin here -->" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("a.b.State", True),
        ("a.b.State.mean", True),
        ("a.b.State.__init__", True),
        ("a.b.State._own", False),
        ("a.b.St", False),
    ],
)
def test_members_of_a_public_class_are_counted(name: str, public: bool) -> None:
    assert public_types.belongs(name, {"a.b.State"}) is public


def test_unknown_and_ambiguous_types_are_incomplete() -> None:
    symbols = [
        {"name": f"a.f{known}{vague}", "isTypeKnown": known, "isTypeAmbiguous": vague}
        for known in (True, False)
        for vague in (True, False)
    ]
    homes = {symbol["name"] for symbol in symbols}
    assert public_types.incomplete(symbols, homes) == ["a.fFalseFalse", "a.fFalseTrue", "a.fTrueTrue"]
