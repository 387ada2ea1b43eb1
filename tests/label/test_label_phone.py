"""The page on a phone with one thumb, what axe says where there is much of all, and that it asks no other host."""

from urllib.parse import urlsplit

import pytest

from browser_cases import IN_CHROMIUM, PATIENCE, LateServer, count, in_memory, on_both, shown, until_true
from label_cases import MemoryItems, open_desk

pytestmark = IN_CHROMIUM

LONG = "A first sentence. " + "Some words that fill the page. " * 200
MANY = tuple(f"card_{k}" for k in range(77))


@pytest.fixture
def phone(browser):
    """A phone without a keyboard or a mouse: a test only taps."""
    context = browser.new_context(
        viewport={"width": 390, "height": 844},
        color_scheme="dark",
        has_touch=True,
        is_mobile=True,
        device_scale_factor=2,
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    yield page
    context.close()
    assert faults == []


def sent(page):
    until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")


def test_one_thumb_labels_undoes_and_uses_the_grid_and_review(tmp_path, phone):
    page = phone
    with in_memory(tmp_path, 40) as server:
        labels = server.desk.store.labels
        page.goto(server.address)
        first = shown(page)
        page.tap("#classes button[data-name=cow]")
        count(page, 1)
        page.tap("#undo")
        count(page, 0)
        assert shown(page, first) == first
        page.tap("#classes button[data-name=cat]")
        count(page, 1)
        second = shown(page)
        page.tap("#classes button[data-name=dog]")
        count(page, 2)
        page.wait_for_function("() => state.model.phase === 'ready'")
        assert labels() == {first: "cat", second: "dog"}
        page.tap("#zoom-in")
        assert page.evaluate("zoom.scale") == 1.5
        page.tap("#views [data-view=grid]")
        page.wait_for_function("() => $('grid-class').options.length > 1")
        page.select_option("#grid-class", "dog")  # the phone's own list
        page.wait_for_selector("#grid-wall button")
        items = page.evaluate("wall.items.map((r) => r.item)")
        assert page.is_hidden("#grid-name")
        page.tap("#grid-wall button:nth-child(2)")  # it is wrong
        assert page.text_content("#grid-name-words") == f"{items[1]} is"
        assert page.eval_on_selector_all("#grid-name-classes button", "all => all.map((b) => b.textContent)") == [
            "cat", "cow", "hen",
        ]  # fmt: skip
        box = page.locator("#grid-name").bounding_box()  # where the thumb is, however long the wall
        assert page.evaluate("$('grid-wall').getBoundingClientRect().bottom") > 844 > box["y"] + box["height"]
        page.tap("#grid-name-classes [data-name=cow]")
        assert page.text_content("#grid-accept") == f"Accept {len(items) - 1} as dog, 1 as you named it"
        page.tap("#grid-wall button:nth-child(4)")  # only marked, and asked later
        page.screenshot(path=tmp_path / "grid.png")
        page.tap("#grid-accept")
        sent(page)
        assert labels() == {first: "cat", second: "dog", items[1]: "cow"} | dict.fromkeys(
            [items[0], items[2], *items[4:]], "dog"
        )
        page.wait_for_function("() => $('grid-words').textContent.includes('Nothing is left')")  # all are cows now
        assert page.is_hidden("#grid-name")
        page.tap("#grid-undo")
        sent(page)
        assert labels() == {first: "cat", second: "dog"}
        page.tap("#views [data-view=review]")
        page.wait_for_selector("#review-list li:nth-child(2)")
        page.tap(f"#review-list li[data-item='{second}'] select")
        page.select_option(f"#review-list li[data-item='{second}'] select", "hen")
        sent(page)
        assert labels() == {first: "cat", second: "hen"}
        page.screenshot(path=tmp_path / "review.png")
        page.tap("#review-undo")
        sent(page)
        assert labels() == {first: "cat", second: "dog"}
        page.tap("#views [data-view=label]")
        shown(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 390


@on_both
@pytest.mark.parametrize("what", ["row", "text", "classes"])
def test_axe_has_nothing_to_say_where_there_is_much(tmp_path, page, what):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")

    def check(place):
        found = axe.Axe().run(page).response["violations"]
        assert [(v["id"], [n["html"][:120] for n in v["nodes"]][:4]) for v in found] == [], place
        assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"], place

    row = {f"column {k}": k if k % 9 else LONG for k in range(60)}
    made = {"row": [row, *({"column": k} for k in range(9))], "text": [LONG * 4, *(f"text {k}" for k in range(9))]}
    kind = {"row": "table", "text": "text"}.get(what)
    data = kind and MemoryItems(kind, [f"i{k}" for k in range(10)], made[what])
    classes = MANY if what == "classes" else ("cat", "dog")
    with LateServer(open_desk(tmp_path / "store", data, classes, start=False, lease=3600.0)) as server:
        server.desk.change_class("guidelines", who="Ada", guidance="A line of guidelines.\n\n" * 60)
        page.goto(server.address)
        shown(page)
        check("label")
        page.screenshot(path=tmp_path / f"{what}.png")
        scrolls = "e => e.scrollHeight > e.clientHeight"
        assert page.eval_on_selector("#guidelines-body", scrolls)
        if what == "row":
            assert page.eval_on_selector("#cells", scrolls)
        if what == "classes":
            page.fill("#class-find", "card_7")
            check("a class by typing")
        else:
            page.fill("#find-words", "words")
            page.wait_for_selector("mark.here")
            check("search")
        page.keyboard.press("Escape")
        for n in (1, 2):
            shown(page)
            page.keyboard.press(str(n))
            count(page, n)
        page.wait_for_function("() => state.model.phase === 'ready'")
        page.keyboard.press("F4")
        page.wait_for_function("() => $('grid-class').options.length > 1")
        page.select_option("#grid-class", classes[1])
        page.wait_for_selector("#grid-wall button")
        page.click("#grid-wall button")
        page.wait_for_selector("#grid-name")
        check("grid")
        page.screenshot(path=tmp_path / f"{what}-grid.png")


def test_no_view_asks_another_host(tmp_path, page):
    """Whatever the page asks for, in any view, comes from its own server."""
    asked, refused = [], []
    page.context.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda said: refused.append(said.text) if said.type == "error" else None)
    page.add_init_script("addEventListener('securitypolicyviolation', (e) => console.error(e.blockedURI))")
    with in_memory(tmp_path, 14) as server:
        page.goto(server.address)
        for n in (1, 2):
            shown(page)
            page.keyboard.press(str(n))
            count(page, n)
        page.wait_for_function("() => state.model.phase === 'ready'")
        server.desk.change_class("guidelines", who="Ada", guidance="See [this](https://example.org/page).")
        page.wait_for_selector("#guidelines-body a", state="attached")
        page.keyboard.press("+")
        page.keyboard.press("F1")
        page.wait_for_selector("#keys[open]")
        page.click("#keys-close")
        page.keyboard.press("F4")
        page.wait_for_function("() => $('grid-class').options.length > 1")
        page.select_option("#grid-class", "dog")
        page.wait_for_selector("#grid-wall img")
        for key, ready in (("F2", "#review-list img"), ("F8", "#class-list li"), ("F9", ".plain-table")):
            page.keyboard.press(key)
            page.wait_for_selector(ready)
        with page.context.expect_page() as opened:
            page.keyboard.press("Escape")
            page.click("#original")
        opened.value.wait_for_load_state()
        page.wait_for_load_state("networkidle")
    hosts = {urlsplit(url).netloc for url in asked}
    assert (hosts, refused) == ({urlsplit(server.address).netloc}, [])
    paths = {urlsplit(url).path for url in asked}
    assert paths > {"/page.js", "/keys.js", "/api/grid", "/api/review", "/api/classes", "/api/overview", "/api/next"}
