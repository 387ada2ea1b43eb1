"""Classes that change while people label: what was said stays, what it counts as follows, and nothing is lost."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
from importlib.resources import files

import pytest
import torch

import foretaste as ft
from browser_cases import count, in_chromium, in_memory, on_both, shown, until_true
from foretaste.label import LabelStore, StoreError, make_app
from foretaste.label.classes import KEYS_OF_THE_PAGE, ClassChange, ClassGuide, replay_changes
from foretaste.label.guard import Guard
from foretaste.label.log import JOURNAL_FILE, STORE_FILE
from foretaste.label.start import _settle_classes
from foretaste.losses import sharpened
from label_cases import Client, close_desk, open_desk, pictures


@pytest.fixture
def store(tmp_path):
    with LabelStore(tmp_path) as made:
        made.set_classes(["cat", "dog", "cow"])
        for k, label in enumerate(["cat", "dog", "cow", "cat"]):
            made.record(f"p{k}", "label", label, who="Ada", request=f"r{k}")
        yield made


def change(store, kind, **about):
    return store.change_class(kind, who="Bob", **about)


# What a label counts as


def test_old_names_stay_in_the_log_and_count_as_the_new_ones(store):
    change(store, "rename", name="cat", to="kitty")
    change(store, "rename", name="kitty", to="feline")
    assert store.classes == ("feline", "dog", "cow")
    assert store.labels() == {"p0": "feline", "p1": "dog", "p2": "cow", "p3": "feline"}
    assert [e.label for e in store.events()] == ["cat", "dog", "cow", "cat"]
    store.record("p4", "label", "feline", who="Ada")
    assert store.record("p0", "relabel", "feline", who="Bob").seq == 1  # the same answer
    store.record("p5", "label", "kitty", who="Ada")  # from a page that has not heard of it
    assert (store.events()[-1].label, store.labels()["p5"]) == ("kitty", "feline")
    change(store, "rename", name="feline", to="cat")  # back to the first name
    assert set(store.labels().values()) == {"cat", "dog", "cow"}
    assert store.record("p0", "label", "cat", who="Ada", request="r0").seq == 1


def test_a_merge_can_be_taken_back_without_a_trace(store):
    change(store, "merge", name="cat", to="dog")
    assert (store.classes, store.labels()["p0"]) == (("dog", "cow"), "dog")
    store.record("p6", "label", "dog", who="Ada")
    change(store, "split", name="cat")
    assert store.classes == ("dog", "cow", "cat")
    assert store.labels() == {"p0": "cat", "p1": "dog", "p2": "cow", "p3": "cat", "p6": "dog"}


def test_undo_gives_back_what_was_said_as_it_counts_now(store):
    store.record("p0", "relabel", "cow", who="Ada")
    change(store, "rename", name="cat", to="kitty")
    assert store.undo(who="Ada").label == "cat"
    assert store.labels()["p0"] == "kitty"


@pytest.mark.parametrize(
    ("kind", "about", "words"),
    [
        ("add", {"name": "dog"}, "there is a class dog already"),
        ("add", {"name": "old"}, "old was said before and counts as new now"),
        ("add", {"name": " hen"}, "without spaces around it"),
        ("rename", {"name": "cow", "to": "old"}, "old was said before and counts as new now"),
        ("rename", {"name": "hen", "to": "x"}, "unknown class 'hen'"),
        ("merge", {"name": "dog", "to": "dog"}, "into itself"),
        ("split", {"name": "dog"}, "unknown merged class 'dog'"),
        ("order", {"names": ("dog", "cow")}, "expected each of"),
        ("describe", {"name": "dog", "key": "?"}, "expected one character that the page does not use"),
        ("describe", {"name": "dog", "key": ">"}, "expected one character that the page does not use"),
        ("describe", {"name": "dog", "key": "n"}, "key n is that of new"),
        ("describe", {"name": "dog", "colour": "red"}, "expected one as #0d9488"),
        ("paint", {}, "unknown kind 'paint'"),
    ],
)
def test_what_would_change_the_meaning_of_an_answer_is_refused(store, kind, about, words):
    change(store, "add", name="old")
    change(store, "rename", name="old", to="new")
    change(store, "describe", name="new", key="N")
    before = store.classes, len(store.class_changes())
    with pytest.raises(ValueError, match=words):
        change(store, kind, **about)
    assert (store.classes, len(store.class_changes())) == before


def test_the_page_and_the_server_have_the_same_list_of_keys():
    """The page played a clip with a key that a class could take."""
    page = (files("foretaste.label") / "page" / "page.js").read_text(encoding="utf-8")
    [said] = re.findall(r"^const KEYS = \{(.+)\};$", page, re.MULTILINE)
    keys = re.findall(r': "([^"]+)"', said)
    assert len(keys) == said.count(":") > 10
    assert {key for key in keys if len(key) == 1} == {*KEYS_OF_THE_PAGE}


def test_a_class_that_had_a_key_of_the_page_already_gets_another(tmp_path, store, monkeypatch):
    monkeypatch.setattr("foretaste.label.classes.KEYS_OF_THE_PAGE", " ?")
    change(store, "describe", name="dog", key=">", guidance="barks")
    assert store.guide.keys == {"dog": ">"}
    store.close()
    monkeypatch.undo()
    with LabelStore(tmp_path) as again:
        assert (again.guide.keys, again.guide.guidance) == ({}, {"dog": "barks"})


def test_two_classes_are_left_at_least(tmp_path):
    with LabelStore(tmp_path) as store:
        store.set_classes(["a", "b"])
        with pytest.raises(ValueError, match="would leave one class"):
            change(store, "merge", name="a", to="b")


def test_the_same_request_changes_once(store):
    first = change(store, "add", name="hen", request="q1")
    assert change(store, "add", name="hen", request="q1") == first
    assert store.classes[-1] == "hen"


# On the disk


def everything(store):
    return store.classes, store.guide, store.labels(), store.class_changes(), store.events()


def changed(store):
    change(store, "rename", name="cat", to="kitty")
    change(store, "add", name="hen")
    store.record("p9", "label", "hen", who="Ada")
    change(store, "merge", name="cow", to="dog")
    change(store, "describe", name="hen", colour="#112233", key="h", guidance="has feathers")
    change(store, "order", names=("hen", "dog", "kitty"))
    change(store, "guidelines", guidance="# Birds\n\n*All* of them")
    return everything(store)


@pytest.mark.parametrize("lost", ["nothing", STORE_FILE, JOURNAL_FILE, "row", "line"])
def test_changes_survive_the_loss_of_either_file(tmp_path, store, lost, caplog):
    kept = changed(store)
    store.close()
    if lost in (STORE_FILE, JOURNAL_FILE):
        os.unlink(tmp_path / lost)
    elif lost == "row":
        with sqlite3.connect(tmp_path / STORE_FILE) as db:
            db.execute("UPDATE settings SET value = '[]' WHERE name = 'class_changes'")
        db.close()
    elif lost == "line":
        path = tmp_path / JOURNAL_FILE
        path.write_bytes(path.read_bytes().replace(b"feathers", b"fingers!"))
    for _ in range(2):  # read and mended, then as it was mended
        with LabelStore(tmp_path) as again:
            assert everything(again) == kept
            assert again.guide.keys == {"hen": "h"}
    with LabelStore(tmp_path, read_only=True) as reader:
        assert everything(reader) == kept


def test_a_change_that_neither_file_has_is_not_passed_over(tmp_path, store):
    changed(store)
    store.close()
    path = tmp_path / JOURNAL_FILE
    lines = [line for line in path.read_bytes().split(b"\n") if b'"merge"' not in line]
    path.write_bytes(b"\n".join(lines))
    with sqlite3.connect(tmp_path / STORE_FILE) as db:
        db.execute("UPDATE settings SET value = '[]' WHERE name = 'class_changes'")
    db.close()
    with pytest.raises(StoreError, match="1 of 6 changes of classes cannot be read"):
        LabelStore(tmp_path)


def test_a_store_without_changes_is_as_before(tmp_path, store):
    store.close()
    assert b"change" not in (tmp_path / JOURNAL_FILE).read_bytes()
    with LabelStore(tmp_path) as again:
        assert again.guide == ClassGuide(("cat", "dog", "cow"))


def test_names_on_the_command_line_and_in_the_data_are_known_after_a_change(store, tmp_path):
    change(store, "rename", name="cat", to="kitty")
    store.set_classes(["cat", "dog", "cow"])  # the same command as at first
    assert store.classes == ("kitty", "dog", "cow")
    data = type("Data", (), {"classes": ("cat", "dog"), "labels": ["cat"]})
    _settle_classes(store, None, data, tmp_path)
    assert store.classes == ("kitty", "dog", "cow")
    store.set_classes(["kitty", "dog", "cow", "hen"])
    assert store.classes == ("kitty", "dog", "cow", "hen")


KILLED = """
import sys
from foretaste.label import LabelStore
store = LabelStore(sys.argv[1])
store.set_classes(["a", "b"])
print("ready", flush=True)
for k in range(10_000):
    store.change_class("rename", who="Ada", name=store.classes[0], to=f"a{k}")
    print("change", k, flush=True)
    store.record(f"i{k}", "label", f"a{k}", who="Ada")
    print("label", k, flush=True)
"""


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acknowledged_survives_a_kill(tmp_path, seed):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    said = []
    for line in process.stdout:
        said.append(line.split())
        if len(said) == 8 + 5 * seed:
            os.kill(process.pid, signal.SIGKILL)
            break
    said += [line.split() for line in process.communicate()[0].splitlines()]
    changes = [int(k) for what, *rest in said if what == "change" for k in rest]
    labels = [int(k) for what, *rest in said if what == "label" for k in rest]
    with LabelStore(tmp_path) as store:
        made = store.class_changes()
        assert len(changes) <= len(made) <= len(changes) + 1
        assert [c.to for c in made] == [f"a{k}" for k in range(len(made))]
        assert store.labels().keys() >= {f"i{k}" for k in labels}
        assert set(store.labels().values()) == {store.classes[0]}


def test_strange_changes_are_no_changes():
    for said in (None, 3, [], {"seq": 1}, {"seq": "1", "at": "", "who": "", "kind": "add"}, {"seq": 1, "zzz": 2}):
        assert ClassChange.from_json(said) is None
    whole = ClassChange(2, "now", "Ada", "order", names=("a", "b"), request="r")
    assert ClassChange.from_json(json.loads(json.dumps(whole.as_json()))) == whole
    assert replay_changes(["a", "b"], []).names == ("a", "b")


# The model follows

N, C = 48, 3


def items():
    centres = 3 * torch.randn(C, 5, generator=torch.Generator().manual_seed(7))
    return torch.randn(N, 5, generator=torch.Generator().manual_seed(0)) + centres[torch.arange(N) % C]


def learner(classes, labels, graph):
    return ft.Learner(pool=items(), classes=classes, labels=labels, graph=graph, fit_options={"steps": 30})


@pytest.mark.parametrize("graph", ["auto", None])
def test_a_learner_follows_added_renamed_and_merged_classes(graph):
    labels = {i: "abc"[i % C] for i in range(24)}
    made = learner(["a", "b", "c"], labels, graph)
    before = made.net(items()).detach()
    made.change_classes(["c", "x", "b", "new"], {"a": "x"})
    assert made.labels == {i: {"a": "x"}.get(y, y) for i, y in labels.items()}
    after = made.net(items()).detach()  # outputs moved with their classes, and one more says 0
    torch.testing.assert_close(after, torch.stack([before[:, 2], before[:, 0], before[:, 1], 0 * before[:, 0]], 1))
    assert made.predict().tolist() == [{"a": "x"}.get(y, y) for y in learner(list("abc"), labels, graph).predict()]
    made.teach(40, "new")
    made.change_classes(["x", "b", "new"], {"c": "b"})
    assert {made.labels[i] for i in range(24)} == {"x", "b"}
    if graph:  # the pool's model depends on the labels alone: it is that of a learner taught so from the start
        state = made._now.pool_model.follow(made._now.book)
        fresh = learner(["x", "b", "new"], {i: {"a": "x", "c": "b"}.get(y, y) for i, y in labels.items()}, graph)
        fresh.teach(40, "new")
        other = fresh._now.pool_model.follow(fresh._now.book)
        torch.testing.assert_close(sharpened(state.pool_mean), sharpened(other.pool_mean), atol=1e-8, rtol=1e-6)
    made.retrain(wait=True)
    assert made.net(items()).shape == (N, 3)
    assert made.query(2)


def test_a_learner_refuses_what_it_cannot_follow():
    made = learner(["a", "b", "c"], {0: "a", 1: "b"}, None)
    with pytest.raises(ValueError, match="class 'c' is not among the new ones"):
        made.change_classes(["a", "b"])
    with pytest.raises(ValueError, match="expected at least two"):
        made.change_classes(["a"], {"b": "a", "c": "a"})
    given = ft.Learner(torch.nn.Linear(5, 3).eval(), items(), classes=["a", "b", "c"])
    given.change_classes(["x", "b", "c"], {"a": "x"})  # only a name
    assert given.classes == ["x", "b", "c"]
    with pytest.raises(ValueError, match="the network was given"):
        given.change_classes(["x", "b", "c", "d"])


def test_the_desk_teaches_under_the_new_names(tmp_path):
    desk = open_desk(tmp_path, pictures(12), ("cat", "dog", "cow"))
    for k, label in enumerate(["cat", "dog", "cow"]):
        desk.answer("tab-one-1", "Ada", f"p{k:03d}.png", "label", label, patience=20)
    desk.change_class("rename", who="Ada", name="cat", to="kitty")
    desk.change_class("merge", who="Ada", name="cow", to="dog")
    desk.change_class("add", who="Ada", name="hen")
    desk.answer("tab-one-1", "Ada", "p003.png", "label", "hen", patience=20)
    wanted = {"p000.png": "kitty", "p001.png": "dog", "p002.png": "dog", "p003.png": "hen"}
    desk.worker.wait_for(desk.worker.tell("p000.png"), 20)
    assert desk.learner.labels == wanted
    desk.change_class("split", who="Ada", name="cow")
    desk.worker.wait_for(desk.worker.tell("p000.png"), 20)
    assert desk.learner.labels == wanted | {"p002.png": "cow"}
    assert [c["name"] for c in desk.state()["classes"]] == ["kitty", "dog", "hen", "cow"]
    close_desk(desk)


def test_the_route_keeps_changes_and_says_why_not(tmp_path):
    desk = open_desk(tmp_path, pictures(12), ("cat", "dog"))
    client, me = Client(Guard(make_app(desk))), {"tab": "tab-one-1", "who": "Ada"}
    reply = client.post("/api/classes", me | {"kind": "describe", "name": "cat", "key": "x", "guidance": "purrs"}).json
    assert reply["state"]["classes"][0] == {
        "name": "cat", "count": 0, "keys": ["x"], "own_key": "x", "colour": "", "guidance": "purrs",
    }  # fmt: skip
    assert client.get("/api/classes").json["changes"][0]["guidance"] == "purrs"
    refused = client.post("/api/classes", me | {"kind": "add", "name": "dog"})
    assert (refused.status, "there is a class dog already" in refused.json["error"]) == (422, True)
    assert client.post("/api/classes", me | {"kind": "drop", "name": "dog"}).status == 422
    close_desk(desk)


# In a browser


@in_chromium
@on_both
def test_a_person_adds_renames_merges_and_describes_classes(tmp_path, page):
    page.on("dialog", lambda dialog: dialog.accept())
    with in_memory(tmp_path, 20) as server:
        store = server.desk.store
        page.goto(server.address)
        first = shown(page)
        page.keyboard.press("1")  # cat
        count(page, 1)
        page.keyboard.press("F8")
        page.fill("#class-new", "goat")
        page.keyboard.press("Enter")
        page.wait_for_function("() => state.classes.length === 5")
        page.fill("#class-list li:nth-child(1) [aria-label^='Name']", "kitty")
        page.keyboard.press("Enter")
        page.wait_for_function("() => state.classes[0].name === 'kitty'")
        page.fill("#class-list li:nth-child(5) [aria-label^='Guidance']", "eats <b>everything</b>")
        page.keyboard.press("Enter")
        page.wait_for_function("() => state.classes[4].guidance !== ''")
        page.fill("#class-list li:nth-child(5) [aria-label^='Key']", "z")
        page.keyboard.press("Enter")
        page.wait_for_function("() => state.classes[4].keys[0] === 'z'")
        page.click("[aria-label='Move goat up']")
        page.wait_for_function("() => state.classes[3].name === 'goat'")
        page.select_option("[aria-label='Merge of hen']", "dog")
        page.wait_for_function("() => state.classes.length === 4")
        page.fill(
            "#guidelines-text",
            "# Animals\n\n- **all** <img src=x onerror=f()> [wiki](https://example.org)\n- [no](javascript:f())",
        )
        page.keyboard.press("Escape")
        page.wait_for_function("() => state.guidelines !== ''")
        page.keyboard.press("Escape")  # back to labelling
        assert page.eval_on_selector_all("#guidelines-body *", "all => all.map((e) => e.localName)") == [
            "h3", "ul", "li", "strong", "a", "li",
        ]  # fmt: skip
        assert "<img src=x" in page.text_content("#guidelines-body")
        words = page.eval_on_selector_all("#classes .word", "all => all.map((e) => e.textContent)")
        assert words == ["kitty", "dog", "cow", "goat"]
        second = shown(page)
        page.keyboard.press("z")
        count(page, 2)
        until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")
        assert [e.label for e in store.events()] == ["cat", "goat"]
        assert store.labels() == {first: "kitty", second: "goat"}
        assert server.desk.learner.classes == ["kitty", "dog", "cow", "goat"]
        page.keyboard.press("F8")
        page.click("text=Take back the merge of hen")
        page.wait_for_function("() => state.classes.length === 5")
        page.fill("#class-new", "cat")  # the old name of kitty
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.getElementById('banner').textContent.includes('was said before')")
        assert store.classes == ("kitty", "dog", "cow", "goat", "hen")


@in_chromium
def test_what_is_typed_stays_while_replies_come(tmp_path, page):
    """Each reply made all fields anew: what was typed into the next one was gone."""
    with in_memory(tmp_path, 12) as server:
        store = server.desk.store
        page.goto(server.address)
        shown(page)
        page.keyboard.press("F8")
        page.wait_for_selector("#class-list li:nth-child(4)")
        name, key, guidance = (f"#class-list li:nth-child({n}) [aria-label^={{}}]".format for n in (1, 1, 3))
        server.hold("/api/classes")
        page.fill(name("Name"), "kitty")
        page.keyboard.press("Tab")  # the rename is on its way
        page.fill(key("Key"), "k")
        page.focus(guidance("Guidance"))  # and so is the key, of a class that has another name by then
        page.keyboard.type("purrs loud")
        for _ in range(4):
            page.keyboard.press("ArrowLeft")
        page.keyboard.press("Shift+ArrowLeft")
        page.evaluate("window.field = document.activeElement")
        while store.classes[0] != "kitty":
            page.wait_for_timeout(10)
        store.change_class("order", who="Bob", names=("hen", "kitty", "dog", "cow"))  # of another page
        server.let_go()
        page.wait_for_function("() => state.classes[1].name === 'kitty' && state.classes[1].keys[0] === 'k'")
        page.wait_for_function("() => document.activeElement.closest('li').dataset.name === 'cow'")
        assert page.evaluate("document.activeElement === field && field === $('class-list').children[3].children[3]")
        assert page.input_value("[aria-label='Guidance of cow']") == "purrs loud"
        assert page.evaluate("[field.selectionStart, field.selectionEnd]") == [5, 6]
        assert page.input_value("[aria-label='Name of kitty']") == "kitty"
        page.keyboard.type("-")
        page.keyboard.press("Enter")
        page.wait_for_function("() => state.classes[3].guidance === 'purrs-loud'")
        assert store.guide.keys == {"kitty": "k"}
        server.hold("/api/classes")  # a key and a line of the same class, one right after the other
        page.fill("[aria-label='Key of dog']", "g")
        page.keyboard.press("Tab")
        page.fill("[aria-label='Guidance of dog']", "barks")
        page.keyboard.press("Enter")
        page.fill("#class-new", "owl")
        page.keyboard.press("Enter")
        page.fill("#class-new", "go")  # the next one
        server.let_go()
        page.wait_for_function("() => state.classes.length === 5")
        page.keyboard.type("at")
        assert page.input_value("#class-new") == "goat"
        assert (store.guide.keys["dog"], store.guide.guidance["dog"]) == ("g", "barks")
        page.click("[aria-label='Move kitty down']")
        page.wait_for_function("() => state.classes[2].name === 'kitty'")
        assert store.classes == ("hen", "dog", "kitty", "cow", "owl")
