"""The grid: a wall of one predicted class, accepted at a press, each item an answer of its own, taken back together."""

import numpy as np
import pytest

from browser_cases import count, in_chromium, in_memory, on_both, shown, until_true
from foretaste.label import make_app
from foretaste.label.grid import accept_grid, grid_items, undone_wall
from foretaste.label.guard import Guard
from foretaste.label.log import LabelLog
from foretaste.label.review import ReviewFilter
from foretaste.label.store import StoreFull
from label_cases import Client, MemoryItems, close_desk, open_desk, pictures

TAB = "tab-one-1"


@pytest.fixture
def desk(tmp_path):
    """Two labels; the plain learner then calls everything dog."""
    made = open_desk(tmp_path, pictures(20))
    for item, label in (("p000.png", "cat"), ("p001.png", "dog")):
        made.answer(TAB, "Ada", item, "label", label, patience=20)
    yield made
    close_desk(made)


def names(found):
    return sorted(row["item"] for row in found["items"])


def test_the_wall_has_open_items_of_the_class_that_nobody_has_on_the_screen(desk):
    [held, *_] = desk.next("tab-two-2", "Bob", count=1)
    found = grid_items(desk, "dog", count=50)
    assert names(found) == sorted({*desk.data.ids} - {"p000.png", "p001.png", held})
    assert (found["left"], found["items"][0]["likely"], found["items"][0]["follow"]) == (17, "dog", 4)
    assert grid_items(desk, "cat")["items"] == []
    away = desk.number[found["items"][3]["item"]]
    assert len(grid_items(desk, "dog", without=[away, 0])["items"]) == 16
    assert len(grid_items(desk, "dog")["items"]) == 17
    assert names(grid_items(desk, like="p000.png")) == names(found)
    with pytest.raises(ValueError, match="unknown class 'hen'"):
        grid_items(desk, "hen")


def test_without_a_model_the_wall_says_so_and_words_are_found_all_the_same(tmp_path):
    texts = ["A red house", "the RED car", "a blue car", "no colour", "red, red car"]
    desk = open_desk(tmp_path, MemoryItems("text", [f"t{k}" for k in range(5)], texts))
    assert grid_items(desk, "cat") == {"items": [], "left": 0, "ready": False, "looked": None}
    found = grid_items(desk, find="car red")
    assert (names(found), found["left"], found["ready"]) == (["t1", "t4"], 2, False)
    assert names(grid_items(desk, find="T3")) == ["t3"]  # its name
    accept_grid(desk, TAB, "Ada", ["t1"], "dog", "request-1")
    assert names(grid_items(desk, find="red car")) == ["t4"]  # open ones
    assert [r["item"] for r in desk.review.rows(ReviewFilter(find="RED"))["items"]] == ["t1"]
    assert desk.review.rows(ReviewFilter(find="blue"))["items"] == []
    rows = open_desk(
        tmp_path / "rows", MemoryItems("table", ["a", "b"], [{"x": 1, "y": "Oslo"}, {"x": 2, "y": "Rome"}])
    )
    assert rows.with_words(["a", "b"], "oslo 1") == ["a"]
    close_desk(rows)
    close_desk(desk)


def test_a_wall_is_kept_together_and_taken_back_together(desk):
    before, items = len(desk.store.events()), ["p002.png", "p003.png", "p004.png"]
    accept_grid(desk, TAB, "Ada", items, "dog", "request-1")
    assert [e.item for e in desk.store.events()[before:]] == items
    accept_grid(desk, TAB, "Ada", items, "dog", "request-1")  # sent again
    assert len(desk.store.events()) == before + 3
    desk.worker.wait_for(desk.worker.tell("p002.png"), 20)
    assert {i: desk.learner.labels.get(i) for i in items} == dict.fromkeys(items, "dog")
    first = desk.undo(TAB, "Ada", "undo-1")
    assert desk.undo(TAB, "Ada", "undo-1") == first  # sent again
    assert desk.store.labels() == {"p000.png": "cat", "p001.png": "dog"}
    assert desk.store.held(TAB) == []  # the wall shows them again
    assert [e.kind for e in desk.store.events()[before + 3 :]] == ["undo"] * 3
    desk.worker.wait_for(desk.worker.tell("p002.png"), 20)
    assert not {*items} & {*desk.learner.labels}
    desk.undo(TAB, "Ada")  # and then one answer
    assert desk.store.labels() == {"p000.png": "cat"}


def test_what_others_took_meanwhile_is_left_out_and_the_undo_takes_back_the_rest(desk):
    """One of them refused the whole wall, and its marks were gone."""
    desk.answer("tab-two-2", "Bob", "p004.png", "label", "cat", patience=20)
    desk.store.lease(["p006.png"], tab="tab-two-2", who="Bob")
    before, wall = len(desk.store.events()), ["p002.png", "p004.png", "p005.png", "p006.png"]
    kept = accept_grid(desk, TAB, "Ada", wall, "dog", "request-1", {"p007.png": "cat"})
    assert [e.item for e in kept.events] == ["p002.png", "p005.png", "p007.png"]
    assert kept.taken == {"p004.png": "answered", "p006.png": "held"}
    assert accept_grid(desk, TAB, "Ada", wall, "dog", "request-1", {"p007.png": "cat"}) == kept  # sent again
    assert len(desk.store.events()) == before + 3
    undone = desk.undo(TAB, "Ada", "undo-1")
    assert sorted(e.item for e in undone) == ["p002.png", "p005.png", "p007.png"]
    assert undone_wall(desk, undone) == {"dog": 2, "cat": 1}
    assert desk.undo(TAB, "Ada", "undo-1") == undone  # sent again
    assert desk.store.labels() == {"p000.png": "cat", "p001.png": "dog", "p004.png": "cat"}
    assert undone_wall(desk, desk.undo(TAB, "Ada")) is None  # one answer
    with pytest.raises(KeyError, match=r"unknown item 'p999\.png'"):
        accept_grid(desk, TAB, "Ada", ["p008.png", "p999.png"], "dog", "request-2")


def test_a_wall_of_which_others_took_everything_keeps_nothing(desk):
    before = desk.store.events()
    desk.store.lease(["p006.png"], tab="tab-two-2", who="Bob")
    assert accept_grid(desk, TAB, "Ada", ["p006.png"], "dog", "request-1") == ([], {"p006.png": "held"})
    assert desk.store.events() == before


def test_if_the_disk_refuses_nothing_of_a_wall_is_kept(desk, monkeypatch):
    add_event, before = LabelLog.add_event, desk.store.events()

    def refuse(log, event):
        if event.item == "p005.png":
            raise StoreFull("the disk is full; nothing was kept")
        add_event(log, event)

    monkeypatch.setattr(LabelLog, "add_event", refuse)
    client = Client(Guard(make_app(desk)))
    body = {"items": ["p002.png", "p005.png"], "label": "dog", "request": "request-1", "tab": TAB, "who": "Ada"}
    assert client.post("/api/grid", body).status == 507
    monkeypatch.undo()
    assert desk.store.events() == before
    assert len(client.post("/api/grid", body).json["seqs"]) == 2


def test_the_routes_of_the_grid(desk):
    client, me = Client(Guard(make_app(desk))), {"tab": TAB, "who": "Ada"}
    found = client.get("/api/grid?label=dog").json
    assert found["items"][0]["picture"].endswith("/small")
    body = me | {"items": ["p002.png"], "label": "dog", "others": {"p003.png": "cat"}, "request": "request-1"}
    reply = client.post("/api/grid", body)
    assert (reply.status, len(reply.json["seqs"]), reply.json["taken"]) == (200, 2, {})
    assert desk.store.labels()["p003.png"] == "cat"
    other = client.post("/api/grid", body | {"tab": "tab-two-2", "who": "Bob", "request": "request-2"})
    assert (other.status, other.json["seqs"]) == (200, [])
    assert other.json["taken"] == {"p002.png": "answered", "p003.png": "answered"}
    assert client.post("/api/undo", me).json["wall"] == {"dog": 1, "cat": 1}
    assert client.post("/api/undo", me).json["wall"] is None
    assert client.post("/api/grid", me | {"items": [], "label": "dog", "request": "request-1"}).status == 422


def test_the_longest_wall_is_accepted_whole_and_a_longer_one_refused(tmp_path):
    """It was refused above 200 items, and above 64 KB: the answers of a wall that had grown were lost."""
    desk = open_desk(tmp_path, MemoryItems("text", [f"{'long/' * 20}t{k}" for k in range(1100)], ["text"] * 1100))
    client, me = Client(Guard(make_app(desk))), {"tab": TAB, "who": "Ada"}
    body = me | {"items": desk.data.ids[:1000], "label": "dog", "request": "request-1"}
    assert client.post("/api/grid", body | {"items": desk.data.ids[:1001]}).status == 422
    reply = client.post("/api/grid", body)
    assert (reply.status, len(reply.json["seqs"]), len(desk.store.labels())) == (200, 1000, 1000)
    close_desk(desk)


@in_chromium
@on_both
def test_a_person_accepts_a_wall_but_for_the_wrong_ones(tmp_path, page):
    with in_memory(tmp_path, 14) as server:
        page.goto(server.address)
        for n in range(1, 3):
            shown(page)
            page.keyboard.press(str(n))
            count(page, n)
        page.wait_for_function("() => state.model.phase === 'ready'")
        on_screen = shown(page)
        page.keyboard.press("F4")
        page.wait_for_function("() => wall.label === 'cat'")
        page.keyboard.press("2")  # what the model calls dog
        page.wait_for_selector("#grid-wall button")
        items = page.evaluate("wall.items.map((r) => r.item)")
        assert on_screen not in items
        page.click("#grid-wall button:nth-child(1)")
        page.mouse.move(1, 1)
        page.keyboard.press("ArrowRight")
        page.keyboard.press(" ")
        assert page.text_content("#grid-accept") == f"Accept {len(items) - 2} as dog"
        page.hover("#grid-wall button:nth-child(3)")
        page.keyboard.press("3")  # the one under the mouse is a cow
        page.hover("#grid-wall button:nth-child(4)")
        page.keyboard.press("1")
        page.click("#grid-wall button:nth-child(4)")  # or not
        assert page.text_content("#grid-accept") == f"Accept {len(items) - 3} as dog, 1 as you named it"
        page.screenshot(path=tmp_path / "wall.png")
        page.keyboard.press("Enter")
        until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")
        labels = server.desk.store.labels()
        assert {i for i in items if labels.get(i) == "dog"} == {*items[3:]}
        assert labels[items[2]] == "cow"
        page.wait_for_function("n => document.querySelectorAll('#grid-wall button').length === n", arg=0)
        page.keyboard.press("Backspace")
        until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")
        assert len(server.desk.store.labels()) == 2
        page.wait_for_function("n => wall.items.length === n", arg=len(items) - 2)  # what was wrong does not come back
        page.keyboard.press("Escape")
        assert shown(page, on_screen) == on_screen


@in_chromium
def test_a_wall_says_how_far_a_new_network_has_looked_and_comes_when_it_is_through(tmp_path, page, monkeypatch):
    with in_memory(tmp_path, 14) as server:
        learner = server.desk.learner
        page.goto(server.address)
        for n in range(1, 3):
            shown(page)
            page.keyboard.press(str(n))
            count(page, n)
        page.wait_for_function("() => state.model.phase === 'ready'")
        monkeypatch.setattr(learner, "rough_proba", lambda wait: np.full((14, 4), np.nan))
        learner.rough_progress = (5, 14)
        assert grid_items(server.desk, find="p01")["items"][0]["likely"] == ""
        page.keyboard.press("F4")
        page.wait_for_function("() => wall.label === 'cat'")
        page.keyboard.press("2")
        until_true(page, "$('grid-words').textContent === 'The new network has looked at 5 of 14 items so far.'")
        learner.rough_progress = (9, 14)
        until_true(page, "$('grid-words').textContent.includes('looked at 9 of 14')")
        monkeypatch.setattr(learner, "rough_proba", lambda wait: learner.predict_proba())
        learner.rough_progress = None
        page.wait_for_selector("#grid-wall button")
        assert "looked" not in page.text_content("#grid-words")


@in_chromium
def test_a_first_set_is_chosen_by_hand_from_words(tmp_path, page):
    with in_memory(tmp_path, 30) as server:
        page.goto(server.address)
        on_screen = shown(page)
        page.keyboard.press("F4")
        page.wait_for_function("() => document.getElementById('grid-words').textContent.startsWith('No predictions')")
        page.click("#grid-find")
        page.keyboard.type("p02")
        page.keyboard.press("Enter")
        page.wait_for_selector("#grid-wall button")
        items = page.evaluate("wall.items.map((r) => r.item)")
        assert sorted([*items, *({on_screen} & {f"p02{k}.png" for k in range(10)})])[0] == "p020.png"
        page.click("#grid-wall button:nth-child(2)")
        page.keyboard.press("3")  # it alone is a cow
        assert page.text_content("#grid-accept") == "Accept 1 as cow"
        page.keyboard.press("Enter")
        until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")
        assert server.desk.store.labels() == {items[1]: "cow"}
        page.wait_for_function("n => wall.items.length === n", arg=len(items) - 1)
        assert page.input_value("#grid-find") == "p02"


@in_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_a_long_wall_and_a_long_list_grow_as_one_scrolls(tmp_path, browser, width, scheme):
    """What came later counts once it was on the screen; rows are added, and none is drawn again."""
    with in_memory(tmp_path, 400) as server:
        desk, ids = server.desk, server.desk.data.ids
        for item, label in zip(ids, ["cat", "dog"] * 125):
            desk.store.record(item, "label", label, who="Ada", purpose="teach")
        for item in ids[:250]:
            desk.tell(item)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.goto(server.address)
        page.wait_for_function("() => state?.model.answers")
        page.keyboard.press("F4")
        page.wait_for_function("() => wall.label === 'cat'")
        page.keyboard.press("2")  # all are dogs to the plain learner
        page.wait_for_selector("#grid-wall button")
        most = page.evaluate("wall.left")
        assert most > 60
        page.evaluate("$('grid-wall').lastElementChild.scrollIntoView()")
        page.wait_for_function("() => wall.items.length > 24")
        page.evaluate("$('grid-wall').children[2].scrollIntoView()")
        page.click("#grid-wall button:nth-child(3)")
        while (n := page.evaluate("wall.items.length")) < most:
            page.evaluate("$('grid-wall').lastElementChild.scrollIntoView()")
            page.wait_for_function("n => wall.items.length > n", arg=n)
        items = page.evaluate("wall.items.map((r) => r.item)")
        assert len({*items}) == most
        page.evaluate("$('grid-wall').lastElementChild.scrollIntoView()")
        page.wait_for_function("() => ![...unseen].includes(wall.items.length - 1)")
        seen = most - page.evaluate("unseen.size")
        assert page.text_content("#grid-accept") == f"Accept {seen - 1} as dog"
        before = len(desk.store.labels())
        page.keyboard.press("Enter")
        until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")
        assert len(desk.store.labels()) == before + seen - 1
        page.keyboard.press("F2")
        page.wait_for_selector("#review-list li")
        page.evaluate("window.first = $('review-list').firstElementChild")
        # Somebody who is at the end again before the next frame: it was watched for a change, and there was none.
        page.evaluate(
            "new MutationObserver(() => $('review-more').scrollIntoView()).observe($('review-list'), {childList: true})"
        )
        page.evaluate("$('review-more').scrollIntoView()")
        page.wait_for_function("n => reviewed.length === n", arg=before + seen - 1)
        assert page.evaluate("$('review-list').children.length") > 2  # parts, each laid out when it is near
        rows = page.evaluate("[...document.querySelectorAll('#review-list li')].map((li) => li.dataset.item)")
        assert sorted(rows) == sorted(desk.store.labels())
        assert page.evaluate("window.first === $('review-list').firstElementChild")
        last = "#review-list ol:last-child li:last-child select"
        assert page.locator(f"{last} option").count() == 1
        page.focus(last)
        assert page.locator(f"{last} option").count() == 4
        page.screenshot(path=tmp_path / f"review-{width}.png")
        context.close()
