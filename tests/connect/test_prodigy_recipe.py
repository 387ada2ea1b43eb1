"""The Prodigy recipe of docs/tools.md, with a stand-in for Prodigy's decorator: questions stream out, answers go in."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


@pytest.fixture
def recipe(monkeypatch):
    """The function of the page, and what it told the decorator."""
    told = {}

    def decorate(name, **arguments):
        told.update(name=name, arguments=arguments)
        return lambda function: function

    monkeypatch.setitem(sys.modules, "prodigy", SimpleNamespace(recipe=decorate))
    [code] = re.findall(r"```py\n(import prodigy\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    made = {}
    exec(compile(code, "recipe.py", "exec"), made)
    return made["classify"], told


def test_the_recipe_asks_what_the_learner_asks_and_learns_each_answer(recipe, tmp_path):
    classify, told = recipe
    assert told["name"] == "foretaste.classify"
    assert {*told["arguments"]} == {"dataset", "source", "label"}
    source = tmp_path / "texts.csv"
    words = ["red apple", "green pear", "fast car", "slow truck"]
    source.write_text("text\n" + "".join(f"{words[k % 4]} number {k}\n" for k in range(40)))
    found = classify("answers", str(source), "fruit,vehicle")
    assert (found["dataset"], found["view_id"]) == ("answers", "choice")
    stream, update = found["stream"], found["update"]
    learner = next(c.cell_contents for c in update.__closure__ if hasattr(c.cell_contents, "teach"))
    said = {}
    for n in range(12):
        task = next(stream)
        assert [option["id"] for option in task["options"]] == ["fruit", "vehicle"]
        assert task["item"] not in said
        if n == 3:
            update([task | {"answer": "ignore"}])
            assert task["item"] in learner.ignored
            continue
        said[task["item"]] = "fruit" if "apple" in task["text"] or "pear" in task["text"] else "vehicle"
        update([task | {"answer": "accept", "accept": [said[task["item"]]]}])
    assert learner.labels == said
    learner.wait()
    assert len([*stream]) == 40 - 12
