"""Answers that are no single class: sets of classes and numbers. In the log, in files, in the learner, on the page."""

import csv
import json
import re
import time

import pytest

from browser_cases import PATIENCE, Server, count, in_chromium
from foretaste.label import LabelStore, StoreError, export_labels, import_labels, label_rows, open_desk, read_labels
from foretaste.label.grid import grid_items
from foretaste.label.start import close_desk, find_answers
from foretaste.label.task import LabelTask, read_task

SHAPES = ("red", "round", "small")


def table(path, n=40, **columns):
    """Rows of which some answers follow: width > 0 is red, depth > 0 is round; the number is width + 5."""
    rows = [{"id": f"r{k:02d}", "width": (k * 7 % 11) - 5, "depth": (k * 5 % 13) - 6} for k in range(n)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], *columns])
        writer.writeheader()
        writer.writerows({**row, **{name: fill(row) for name, fill in columns.items()}} for row in rows)
    return path, {row["id"]: row for row in rows}


def test_what_a_label_may_be():
    several, number = LabelTask("several"), LabelTask("number", 0, 5, 0.5)
    assert several.check("small|red|red", SHAPES, SHAPES) == several.check("|red|small", SHAPES, SHAPES) == "|red|small"
    assert several.check("|", SHAPES, SHAPES) == "|"
    assert (several.words("|"), several.words("|red|small")) == ("none of them", "red, small")
    assert (number.check("2.50", (), ()), number.check("5", (), ())) == ("2.5", "5")
    assert (number.near("2", "2.5"), number.near("2", "2.6")) == (True, False)
    for task, label, words in (
        (several, "|rad", "unknown class 'rad'"), (several, None, "expected text"), (number, "6", "from 0 to 5"),
        (number, "nan", "from 0 to 5"), (number, "many", "from 0 to 5"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            task.check(label, SHAPES, SHAPES)
    assert read_task(None, "-1:1:0.1", None) == LabelTask("number", -1, 1, 0.1)
    assert read_task(None, None, number.as_json()) == number
    for given in (
        ("one", "0:5", None),
        ("number", "5:0", None),
        ("number", "a:b", None),
        ("severl", None, number.as_json()),
    ):
        with pytest.raises(ValueError, match=r"scale|task"):
            read_task(*given)


@pytest.mark.parametrize("lost", ["labels.sqlite", "labels.journal", None])
@pytest.mark.parametrize("task", [LabelTask("several"), LabelTask("number", -2, 2, 0.5)], ids=["several", "number"])
def test_each_file_of_the_log_alone_has_the_answers_and_the_task(tmp_path, task, lost):
    """As with single labels: what one file lacks, the other has."""
    said = ["|red|small", "|", "|round"] if task.kind == "several" else ["1.5", "-2", "0"]
    with LabelStore(tmp_path) as store:
        store.set_task(task)
        if task.kind == "several":
            store.set_classes(SHAPES)
        for k, label in enumerate(said):
            store.record(f"i{k}", "label", label, who="Ada")
        store.record("i0", "label", said[2], who="Ada")
        store.undo(who="Ada")
    if lost:
        for path in tmp_path.glob(f"{lost}*"):
            path.unlink()
    with LabelStore(tmp_path) as store:
        assert (store.task, list(store.labels().values())) == (task, said)
        with pytest.raises(ValueError, match="for the task"):
            store.set_task(LabelTask())


def test_an_answer_of_another_task_is_damage(tmp_path):
    with LabelStore(tmp_path) as store:
        store.set_task(LabelTask("several"))
        store.set_classes(SHAPES)
        store.record("a", "label", "|red", who="Ada")
    journal = tmp_path / "labels.journal"
    journal.unlink()
    with LabelStore(tmp_path) as store:
        assert store.labels() == {"a": "|red"}
        store._log.put_setting("task", json.dumps({"kind": "number", "low": 0, "high": 1, "step": 1}))
    with pytest.raises(StoreError, match=r"answer 1 is '\|red'"):
        LabelStore(tmp_path)


def test_classes_of_a_set_are_renamed_and_merged(tmp_path):
    with LabelStore(tmp_path) as store:
        store.set_task(LabelTask("several"))
        store.set_classes(SHAPES)
        store.record("a", "label", "|red|round", who="Ada")
        store.record("b", "label", "|round|small", who="Ada")
        store.change_class("rename", who="Ada", name="red", to="crimson")
        store.change_class("merge", who="Ada", name="small", to="round")
        assert store.labels() == {"a": "|crimson|round", "b": "|round"}
        store.record("c", "label", "|red", who="Ada")  # by its old name
        assert store.labels()["c"] == "|crimson"
        with pytest.raises(ValueError, match="stands between classes"):
            store.change_class("add", who="Ada", name="a|b")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "json", "coco.json"])
@pytest.mark.parametrize("kind", ["several", "number"])
def test_what_goes_out_comes_in(tmp_path, ending, kind):
    task = LabelTask(kind)
    said = ["|red|small", "|", "|round"] if kind == "several" else ["1", "10", "7"]
    with LabelStore(tmp_path / "a") as store:
        store.set_task(task)
        if kind == "several":
            store.set_classes(SHAPES)
        for k, label in enumerate(said):
            store.record(f"i{k}.png", "label", label, who="Ada")
        labels, out = store.labels(), tmp_path / f"labels.{ending}"
        if (kind, ending) == ("number", "coco.json"):
            with pytest.raises(ValueError, match="these labels are numbers"):
                export_labels(label_rows(store), out, classes=store.classes, task=task)
            return
        export_labels(label_rows(store), out, classes=store.classes, task=task)
        with pytest.raises(ValueError, match="one class an item"):
            export_labels(label_rows(store), tmp_path / "labels.parquet", task=task)
    if (kind, ending) == ("several", "csv"):
        lines = csv.DictReader(out.read_text().splitlines())
        assert [row["label"] for row in lines] == ["red|small", "|", "round"]
    with LabelStore(tmp_path / "b") as store:
        store.set_task(task)
        if kind == "several":
            store.set_classes(SHAPES)
        assert import_labels(store, read_labels(out, list(labels), task)) == 3
        assert store.labels() == labels
        assert import_labels(store, read_labels(out, list(labels), task)) == 0


@pytest.mark.parametrize("kind", ["several", "number"])
def test_the_learner_follows_and_the_same_command_resumes(tmp_path, kind):
    several = kind == "several"
    path, rows = table(tmp_path / "rows.csv", label=lambda r: "" if r["id"] != "r39" else "red" if several else "4")
    truth = {
        i: "|" + "|".join(n for n, v in (("red", r["width"]), ("round", r["depth"])) if v > 0) for i, r in rows.items()
    }
    if not several:
        truth = {i: f"{r['width'] + 5:g}" for i, r in rows.items()}
    how = {"classes": SHAPES[:2] if several else None, "fit_options": {"steps": 80}, "check_every": 0}
    desk = open_desk(path, task=kind, **how)
    assert desk.store.labels() == {"r39": "|red" if several else "4"}
    for _ in range(24):
        [item] = desk.next("tab-00001", "Ada", 1)
        desk.answer("tab-00001", "Ada", item, "label", truth[item], patience=20)
    end = time.monotonic() + 60
    while (model := desk.worker.describe())["phase"] != "ready" or model["labels"] < 25:
        assert not model["error"]
        assert time.monotonic() < end
        time.sleep(0.02)
    left = [i for i in rows if i not in desk.store.labels()]
    found = {i: (said, sure) for i, said, sure in desk.worker.predictions()}
    assert sum(desk.store.task.near(found[i][0], truth[i]) for i in left) > 0.6 * len(left)
    state = desk.state("Ada")
    assert state["task"]["kind"] == kind
    if several:
        assert [c["count"] for c in state["classes"]] == [
            sum(c in y.split("|") for y in desk.store.labels().values()) for c in SHAPES[:2]
        ]
        assert {*desk.review.doubts()[1]} == {*desk.store.labels()}
    with pytest.raises(ValueError, match="one class an item"):
        grid_items(desk, label="red")
    labels = desk.store.labels()
    close_desk(desk)
    again = open_desk(path, check_every=0, start=False)
    assert (again.store.labels(), again.store.task.kind) == (labels, kind)
    close_desk(again)
    assert find_answers(path) is not None
    with pytest.raises(ValueError, match="for the task"):
        open_desk(path, task="one", classes=["a", "b"])
    if not several:
        with pytest.raises(ValueError, match="two numbers have no majority"):
            open_desk(path, copies=2)


def test_a_start_that_failed_leaves_no_task_behind(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("text\ngood film\nbad film\ndull film\n")
    with pytest.raises(ValueError, match="stands between classes"):
        open_desk(path, task="several", classes=["a|b", "c"], start=False)
    with pytest.raises(ValueError, match="unknown task 'severl'; did you mean 'several'"):
        open_desk(path, task="severl", classes=["a", "b"], start=False)
    for task in ("one", "several"):  # while nothing is answered it may change
        desk = open_desk(path, task=task, classes=["a", "b"], start=False)
        assert desk.store.task.kind == task
        close_desk(desk)


WATCHED = """() => document.getElementById('name').textContent !== '' && !document.getElementById('keep').disabled"""


def answered(page, item):
    page.wait_for_function(f"i => ({WATCHED})() && document.getElementById('name').textContent !== i", arg=item)


@in_chromium
@pytest.mark.parametrize("kind", ["several", "number"])
def test_a_person_answers_by_keys_and_mouse(tmp_path, browser, kind):
    """A set by keys and by clicks, a number by arrows and typing; kept over a kill −9; axe has nothing to say."""
    path, _ = table(tmp_path / "rows.csv", 60)
    given = ("--classes", ",".join(SHAPES), "--task", "several") if kind == "several" else ("--scale", "0:10:0.5")
    server, meant = Server(path, *given, "--port", "0", "--check-every", "0"), {}
    context = browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))

    def answer(*acts):
        page.wait_for_function(WATCHED)
        item = page.text_content("#name")
        for act in acts:
            act()
        meant[item] = "|" + "|".join(page.eval_on_selector_all(
            "#classes button[aria-pressed=true]", "all => all.map((b) => b.dataset.name)"
        )) if kind == "several" else page.input_value("#number-value")  # fmt: skip
        return item

    def press(*keys):
        return lambda: [page.keyboard.press(key) for key in keys]

    try:
        page.goto(server.address)
        if kind == "several":
            first = answer(press("1", "3"))
            assert meant[first] == "|red|small"
            assert page.text_content("#keep-words") == "Keep: red, small"
            page.keyboard.press("Enter")
            answered(page, first)
            second = answer(lambda: page.click("#classes button >> nth=1"))
            page.click("#keep")
            answered(page, second)
        else:
            first = answer(press("7", ".", "5"))
            assert meant[first] == "7.5"
            page.keyboard.press("Enter")
            answered(page, first)
            assert page.evaluate("document.activeElement.id") == "stage"
            page.keyboard.press("Enter")  # nothing is chosen yet: nothing is kept
            assert "Choose a number" in page.text_content("#early")
            second = answer(press("ArrowRight", "ArrowRight", "PageUp", "End", "ArrowLeft"))
            assert meant[second] == "9.5"
            page.click("#keep")
            answered(page, second)
        count(page, 2)
        keys = [("2",), ("1", "2"), (), ("3",), ("1", "2", "3")] if kind == "several" else [("3",), ("Home",), ("8",)]
        for some in (keys * 2)[:5]:
            item = answer(press(*some))
            page.keyboard.press("Enter")
            answered(page, item)
        page.keyboard.press("Backspace")
        page.wait_for_function(f"i => ({WATCHED})() && document.getElementById('name').textContent === i", arg=item)
        del meant[item]
        says = ".ahead:not(:empty)" if kind == "several" else "#reason"
        words = r"\d+ % · yes: \d+ follow · no: \d+" if kind == "several" else r"The model says .+ give or take"
        for _ in range(300):
            if (seen := page.query_selector(says)) and re.search(words, seen.text_content() or ""):
                break
            page.wait_for_timeout(100)
        else:
            raise AssertionError("no look-ahead on the page")
        assert not page.is_visible("#views [data-view=grid]")
        axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
        for width, theme in ((1400, "light"), (390, "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=theme)
            page.wait_for_function(WATCHED)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.screenshot(path=tmp_path / f"{kind}-{width}.png")
            found = axe.Axe().run(page).response["violations"]
            assert [(v["id"], [n["html"][:100] for n in v["nodes"]]) for v in found] == []
        page.keyboard.press("F2")
        page.wait_for_selector("#review-list li")
        page.keyboard.press("Enter")  # answer the first of the list again
        page.wait_for_function("() => !document.getElementById('ribbon').hidden")
        assert page.text_content("#ribbon").startswith("Was: ")
        page.keyboard.press("Escape")
    finally:
        server.kill()
        context.close()
    assert faults == []
    with LabelStore(path.with_name("rows.csv.foretaste"), read_only=True) as store:
        assert store.labels() == meant
