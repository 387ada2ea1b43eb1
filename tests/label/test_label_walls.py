"""Walls in a browser: what others took meanwhile, walls that are refused and come back, undo, and one tile in large."""

import pytest

from browser_cases import IN_CHROMIUM, PATIENCE, LateServer, count, in_memory, shown, until_true
from foretaste.label.log import LabelLog
from foretaste.label.store import StoreFull
from label_cases import MemoryItems, open_desk

pytestmark = IN_CHROMIUM
KEPT = "sessionStorage['foretaste-outbox'] === '[]'"


def open_wall(page, server, key="2"):
    """Label a cat and a dog, and open the wall of what the model calls dog: its items."""
    page.goto(server.address)
    for n in range(1, 3):
        shown(page)
        page.keyboard.press(str(n))
        count(page, n)
    page.wait_for_function("() => state.model.phase === 'ready'")
    page.keyboard.press("F4")
    page.wait_for_function("() => wall.label === 'cat'")
    page.keyboard.press(key)
    page.wait_for_selector("#grid-wall button")
    return page.evaluate("wall.items.map((r) => r.item)")


def words(page, text):
    page.wait_for_function("t => $('grid-words').textContent.includes(t)", arg=text)


def test_two_people_at_one_wall_keep_all_but_what_the_other_took(tmp_path, page):
    """One item that somebody had answered refused all, after the page had said that they were accepted."""
    with in_memory(tmp_path, 20) as server:
        desk, store = server.desk, server.desk.store
        items = open_wall(page, server)
        desk.answer("tab-two-2", "Bob", items[3], "label", "cow", patience=20)
        desk.answer("tab-two-2", "Bob", items[4], "label", "cow", patience=20)
        store.lease([items[5]], tab="tab-two-2", who="Bob")
        page.click("#grid-wall button:nth-child(1)")
        page.hover("#grid-wall button:nth-child(2)")
        page.keyboard.press("4")  # a hen
        server.hold("/api/grid")
        page.keyboard.press("Enter")
        words(page, f"Keeping {len(items) - 1} answers…")
        page.keyboard.press("Enter")  # nothing more is accepted meanwhile, and no other wall takes its place
        page.keyboard.press("1")
        server.let_go()
        kept = items[2:3] + items[6:]
        others = "2 were answered by others meanwhile; 1 is on another screen."
        words(page, f"{len(kept)} accepted as dog, 1 as other classes; {others}")
        assert {i for i, label in store.labels().items() if label == "dog"} >= {*kept}
        assert store.labels()[items[1]] == "hen"
        assert store.labels()[items[3]] == "cow"
        assert len(store.events()) == 2 + 2 + len(kept) + 1
        page.keyboard.press("Backspace")
        words(page, f"A wall was taken back: {len(kept)} as dog, 1 as hen.")
        assert {*store.labels()} == {*items[3:5]} | {e.item for e in store.events()[:2]}
        page.keyboard.press("Backspace")  # what was before the wall
        words(page, f"Taken back: what was said of {store.events()[1].item}.")


def test_an_undo_for_a_wall_of_which_nothing_was_kept_takes_back_nothing_else(tmp_path, page):
    with in_memory(tmp_path, 16) as server:
        store = server.desk.store
        items = open_wall(page, server)
        store.lease(items, tab="tab-two-2", who="Bob")
        server.hold("/api/grid")
        page.keyboard.press("Enter")
        page.keyboard.press("Backspace")
        server.let_go()
        words(page, f"Nothing was accepted; {len(items)} are on another screen.")
        until_true(page, KEPT)
        assert len(store.events()) == 2


def test_a_wall_that_the_disk_refuses_comes_back_with_its_marks(tmp_path, page, monkeypatch):
    add_event = LabelLog.add_event

    def refuse(log, event):
        if (event.request or "").endswith("/3"):
            raise StoreFull("the disk is full; nothing was kept")
        add_event(log, event)

    with in_memory(tmp_path, 16) as server:
        store = server.desk.store
        items = open_wall(page, server)
        page.click("#grid-wall button:nth-child(1)")
        page.hover("#grid-wall button:nth-child(2)")
        page.keyboard.press("3")
        page.mouse.move(1, 1)
        said = page.text_content("#grid-accept")
        monkeypatch.setattr(LabelLog, "add_event", refuse)
        server.hold("/api/grid")
        page.keyboard.press("Enter")
        page.keyboard.press("Backspace")  # for this wall: it must not take back another answer
        page.keyboard.press("Escape")
        page.wait_for_selector("#stage")
        page.keyboard.press("F4")  # still on its way
        words(page, "Keeping")
        server.let_go()
        words(page, "The disk is full; nothing was kept. The wall is as it was.")
        until_true(page, KEPT)
        assert len(store.events()) == 2
        assert page.evaluate("wall.items.map((r) => r.item)") == items
        assert page.get_attribute("#grid-wall button:nth-child(1)", "aria-pressed") == "true"
        assert page.get_attribute("#grid-wall button:nth-child(2)", "data-named") == "cow"
        assert page.text_content("#grid-accept") == said
        page.screenshot(path=tmp_path / "refused.png")
        monkeypatch.undo()
        page.keyboard.press("Enter")
        words(page, f"{len(items) - 2} accepted as dog, 1 as other classes.")
        assert len(store.events()) == 2 + len(items) - 1


def test_undo_on_the_label_page_says_what_it_took_back_of_a_wall(tmp_path, page):
    with in_memory(tmp_path, 16) as server:
        items = open_wall(page, server)
        page.keyboard.press("Enter")
        words(page, f"{len(items)} accepted as dog.")
        page.keyboard.press("Escape")
        on_screen = shown(page)
        page.keyboard.press("Backspace")
        page.wait_for_function("() => !$('banner').hidden")
        assert page.text_content("#banner") == f"A wall was taken back: {len(items)} as dog."
        count(page, 2)
        assert shown(page) == on_screen  # held all the while: it is not that of the wall
        assert server.desk.store.held() == page.evaluate("queue.map((i) => i.item)")
        page.keyboard.press("Backspace")  # and then one answer, which comes back to the screen
        count(page, 1)
        assert shown(page) == server.desk.store.events()[1].item


def test_the_wall_of_what_is_like_the_item_on_the_screen(tmp_path, page):
    with in_memory(tmp_path, 16) as server:
        open_wall(page, server)
        page.keyboard.press("Escape")
        on_screen = shown(page)
        page.wait_for_selector("#guess .what:text-is('dog')")
        page.keyboard.press("F4")
        page.wait_for_function("() => wall.items.length")
        page.click("#grid-like")
        words(page, f"items like {on_screen}")
        items = page.evaluate("wall.items.map((r) => r.item)")
        near = [row["id"] for row in server.desk.learner.explain(on_screen, 200)["nearest"]]
        away = {*server.desk.store.labels(), *server.desk.store.held()}
        assert items == [i for i in near if i not in away]
        assert page.input_value("#grid-class") == "dog"
        page.keyboard.press("Enter")
        words(page, f"{len(items)} accepted as dog.")
        assert {*items} <= {*server.desk.store.labels()}


def test_one_tile_is_opened_by_key_mouse_and_button(tmp_path, page):
    with in_memory(tmp_path, 16) as server:
        items = open_wall(page, server)
        numbers = [server.desk.number[i] for i in items]
        page.keyboard.press("+")
        page.wait_for_selector("#closer[open] img")
        assert page.get_attribute("#closer-item img", "src") == f"/api/picture/{numbers[0]}/large"
        assert page.text_content("#closer-name") == items[0]
        page.wait_for_function("() => document.querySelector('#closer-item img').naturalWidth")
        page.keyboard.press("ArrowRight")
        page.keyboard.press(" ")  # wrong
        page.keyboard.press("ArrowRight")
        page.keyboard.press("3")  # a cow
        assert page.text_content("#closer-words").endswith("named cow")
        page.wait_for_function("() => document.querySelector('#closer-item img').naturalWidth")
        page.screenshot(path=tmp_path / "closer.png")
        page.keyboard.press("Escape")
        assert page.is_hidden("#closer")
        assert page.evaluate("document.activeElement.id") == "grid"
        assert page.text_content("#grid-accept") == f"Accept {len(items) - 2} as dog, 1 as you named it"
        page.hover("#grid-wall button:nth-child(5)")
        page.click("#grid-wall button:nth-child(5) .closer")
        assert page.text_content("#closer-name") == items[4]
        page.click("#closer-close")
        assert page.evaluate("wrongOnes.has(4)") is False  # it was opened, not marked
        page.click("#grid-look")
        assert page.text_content("#closer-name") == items[4]
        page.click("#closer-mark")
        assert page.get_attribute("#closer-mark", "aria-pressed") == "true"
        page.click("#closer-next")
        assert page.text_content("#closer-name") == items[5]
        page.keyboard.press("+")
        assert page.is_hidden("#closer")
        assert page.text_content("#grid-accept") == f"Accept {len(items) - 3} as dog, 1 as you named it"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_long_press_opens_a_tile_and_a_long_text_is_whole_there(tmp_path, browser, theme):
    """A text ended after 80 characters."""
    texts = [f"Text {k}: " + " ".join(f"word{n}" for n in range(300)) + " The needle." for k in range(16)]
    desk = open_desk(
        tmp_path / "s", MemoryItems("text", [f"t{k}" for k in range(16)], texts), start=False, lease=3600.0
    )
    context = browser.new_context(viewport={"width": 390, "height": 800}, has_touch=True, color_scheme=theme)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    with LateServer(desk) as server:
        items = open_wall(page, server)
        tile = page.locator("#grid-wall button:nth-child(2)")
        assert texts[int(items[1][1:])][:400] in tile.text_content()
        tile.evaluate("tile => tile.scrollIntoView({ block: 'center' })")
        box = tile.bounding_box()
        touch = context.new_cdp_session(page)
        at = [{"x": box["x"] + box["width"] / 2, "y": box["y"] + 60}]
        touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": at})
        page.wait_for_selector("#closer[open]")
        touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        page.wait_for_function("t => $('closer-item').textContent === t", arg=texts[int(items[1][1:])])
        page.screenshot(path=tmp_path / f"closer-{theme}.png")
        axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
        found = axe.Axe().run(page).response["violations"]
        assert [(v["id"], [n["html"][:100] for n in v["nodes"]]) for v in found] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.tap("#closer-close")
        assert page.evaluate("wrongOnes.size") == 0
        page.tap("#grid-wall button:nth-child(3) .closer")
        page.wait_for_function("t => $('closer-name').textContent === t", arg=items[2])
        page.tap("#closer-close")
        page.tap("#grid-wall button:nth-child(3) .words")
        assert page.evaluate("[...wrongOnes]") == [2]
        page.screenshot(path=tmp_path / f"texts-{theme}.png")
    context.close()
