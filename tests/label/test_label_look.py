"""Looking closely, in a browser: zoom, pan, brightness, long texts, keys of one's own; and what axe says."""

import pytest

from browser_cases import IN_CHROMIUM, LateServer, count, in_memory, on_both, shown, until_true
from label_cases import MemoryItems, open_desk

pytestmark = IN_CHROMIUM


def scale(page):
    return page.evaluate("zoom.scale")


@on_both
def test_a_picture_is_zoomed_moved_and_brightened(tmp_path, page):
    with in_memory(tmp_path, 8) as server:
        page.goto(server.address)
        item = shown(page)
        page.keyboard.press("+")
        assert scale(page) == 1.5
        assert "scale(1.5)" in page.get_attribute("#picture", "style")
        page.keyboard.press("-")
        assert scale(page) == 1
        box = page.locator("#figure").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x + 40, y)
        page.mouse.wheel(0, -400)
        page.wait_for_function("() => zoom.scale > 2.5")
        left = page.evaluate("zoom.x")
        assert left < 0  # the point under the mouse stays where it is
        page.mouse.down()
        page.mouse.move(x + 100, y + 30, steps=3)
        page.mouse.up()
        assert page.evaluate("zoom.x") == pytest.approx(left + 60, abs=1)
        page.mouse.dblclick(x, y)
        assert scale(page) == 1
        page.click("#zoom-in")
        page.keyboard.press("]")
        assert page.evaluate("brightness") == 1.2
        assert "brightness(1.2)" in page.get_attribute("#picture", "style")
        number = server.desk.number[item]
        assert page.get_attribute("#original", "href") == f"/api/picture/{number}/original"
        assert page.evaluate("fetch(document.getElementById('original').href).then((r) => r.status)") == 200
        page.keyboard.press("1")  # keys still answer, and the next item is whole again
        count(page, 1)
        assert (scale(page), page.evaluate("brightness")) == (1, 1.2)


def test_two_fingers_zoom(tmp_path, page):
    with in_memory(tmp_path, 8) as server:
        page.goto(server.address)
        shown(page)
        page.evaluate("Element.prototype.setPointerCapture = () => {}")  # these fingers are not real
        for kind, finger, dx in (
            ("down", 1, -20), ("down", 2, 20), ("move", 1, -60), ("move", 2, 60), ("up", 1, -60), ("up", 2, 60),
        ):  # fmt: skip
            page.evaluate(
                "([type, pointerId, dx]) => { const f = document.getElementById('figure');"
                " const b = f.getBoundingClientRect(), pointerType = 'touch', bubbles = true;"
                " const at = { clientX: b.x + b.width / 2 + dx, clientY: b.y + b.height / 2 };"
                " f.dispatchEvent(new PointerEvent(type, { pointerId, pointerType, bubbles, ...at })); }",
                [f"pointer{kind}", finger, dx],
            )
        assert scale(page) == pytest.approx(3)


LONG = "A first sentence. " + "Some words that fill the page. " * 200 + "The needle is here."


def texts():
    return MemoryItems("text", [f"t{k}" for k in range(6)], [LONG, "שלום עולם", *(f"text {k}" for k in range(4))])


def test_long_texts_fold_and_are_searched_and_others_run_from_right_to_left(tmp_path, page):
    server = LateServer(open_desk(tmp_path / "store", texts(), ("cat", "dog"), start=False, lease=3600.0))
    with server:
        page.goto(server.address)
        seen = set()
        for n in range(1, 7):
            item = shown(page)
            seen.add(item)
            if item == "t0":
                assert len(page.text_content("#text")) < 1700
                page.keyboard.press("/")
                page.keyboard.type("needle")
                assert page.text_content("#text mark") == "needle"
                assert page.text_content("#find-count") == "1 of 1"
                page.keyboard.press("Escape")
                page.fill("#find-words", "")
                page.click(".unfold")
                assert page.text_content("#text") == LONG
            elif item == "t1":
                assert page.evaluate("getComputedStyle(document.getElementById('text')).direction") == "rtl"
            page.keyboard.press("1")
            count(page, n)
        assert len(seen) == 6


@on_both
def test_keys_can_be_set_and_are_kept(tmp_path, page):
    with in_memory(tmp_path, 8) as server:
        page.goto(server.address)
        item = shown(page)
        page.keyboard.press("F1")
        page.wait_for_selector("#keys[open]")
        page.click("[data-action=skip]")
        page.keyboard.press("1")
        assert "1 is the key of cat" in page.text_content("#keys-words")
        page.click("[data-action=skip]")
        page.keyboard.press("x")
        assert "is x now" in page.text_content("#keys-words")
        page.keyboard.press("Escape")
        assert page.is_hidden("#keys")
        assert page.text_content("#skip kbd") == "x"
        page.keyboard.press(" ")  # means nothing now
        page.reload()
        assert shown(page) == item
        page.keyboard.press("x")
        until_true(page, "state.skipped === 1 && sessionStorage['foretaste-outbox'] === '[]'")
        assert [(e.item, e.kind) for e in server.desk.store.events()] == [(item, "skip")]
        page.click("#keys-open")
        page.click("#keys-reset")
        page.click("#keys-close")
        assert page.text_content("#skip kbd") == "space"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_axe_has_nothing_to_say(tmp_path, browser, width, theme):
    sync = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page = context.new_page()
    with in_memory(tmp_path, 12, desk={"voices_each": 2}) as server:
        server.desk.change_class("guidelines", who="Ada", guidance="# What\\n\\n- a [link](https://example.org)")
        page.goto(server.address)
        for n in range(1, 4):
            shown(page)
            page.keyboard.press(str(n))
            count(page, n)
        page.wait_for_function("() => document.querySelectorAll('#recent button').length === 3")
        answered = server.desk.store.events()[0]
        server.desk.answer("tab-two-2", "Bob", answered.item, "label", "hen")
        places = [
            (None, "#guess .row"),
            ("F2", ".voices button"),
            ("F9", ".plain-table"),
            ("F4", "#grid-class option:nth-child(2)"),
        ]
        for key, ready in (*places, ("3", "#grid-wall button"), ("F8", "#class-list li"), ("F1", "#keys[open]")):
            if key:
                page.keyboard.press(key)
            page.wait_for_selector(ready, state="attached")
            page.wait_for_selector("#accept.fresh", state="detached")  # dim for a moment, while Enter does not count
            found = sync.Axe().run(page).response["violations"]
            said = [(v["id"], [node["html"][:120] for node in v["nodes"]][:4]) for v in found]
            assert said == [], (key, said)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()
