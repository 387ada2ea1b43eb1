"""Keys of the page, classes by typing, and what a screen reader is told."""

from browser_cases import IN_CHROMIUM, LateServer, count, focused, in_memory, on_both, shown, until_true
from foretaste.label import LabelStore
from foretaste.label.task import LabelTask
from label_cases import MemoryItems, open_desk

pytestmark = IN_CHROMIUM

MANY = tuple(
    f"card_{what}_{k}" for k, what in enumerate(["arrival", "lost", "fee", "limit", "pin", "swap", "İptal"] * 11)
)


def kbds(page, place):
    """The keys that a hint names."""
    return page.eval_on_selector_all(f"{place} kbd[data-key]", "all => all.map((k) => k.textContent)")


def said(page, region="live"):
    return page.text_content(f"#{region}")


def sent(page):
    until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")


def with_answers(page, server, n=2):
    """Labels of the first classes by key, until there is a model."""
    page.goto(server.address)
    for k in range(1, n + 1):
        shown(page)
        page.keyboard.press(str(k))
        count(page, k)
    page.wait_for_function("() => state.model.phase === 'ready'")


def open_grid(page, label="dog"):
    """The wall of what the plain learner says last: all of them."""
    page.click("#views [data-view=grid]")
    page.wait_for_function("() => $('grid-class').options.length > 1")
    page.select_option("#grid-class", label)
    page.wait_for_selector("#grid-wall button")
    page.mouse.move(1, 1)


@on_both
def test_of_77_classes_one_is_found_by_typing(tmp_path, page):
    with in_memory(tmp_path, 12, classes=MANY) as server:
        page.goto(server.address)
        item = shown(page)
        page.keyboard.press(".")
        assert focused(page) == "class-find"
        page.keyboard.type("LOST card")
        assert page.text_content("#class-count") == "11 of 77, first card_lost_1"
        assert page.locator("#classes button:visible").count() == 11
        page.screenshot(path=tmp_path / "finder.png")
        page.keyboard.type(" _71")
        page.keyboard.press("Enter")
        count(page, 1)
        assert server.desk.store.labels() == {item: "card_lost_71"}
        assert (focused(page), page.input_value("#class-find")) == ("stage", "")
        assert page.locator("#classes button:visible").count() == 77
        second = shown(page)
        page.click("#class-find")
        page.keyboard.type("nothing like it")
        assert page.text_content("#class-count") == "no class has that"
        page.keyboard.press("Enter")  # gives nothing, and one goes on typing
        assert focused(page) == "class-find"
        page.keyboard.press("Escape")
        assert (focused(page), page.locator("#classes button:visible").count()) == ("stage", 77)
        page.fill("#class-find", "iptal_6")
        page.click("#classes button:visible")  # what is left can be pressed
        count(page, 2)
        assert server.desk.store.labels()[second] == "card_İptal_6"
        shown(page)
        assert page.locator("#classes button:visible").count() == 77
        page.keyboard.press(".")
        page.keyboard.press("Enter")  # no words, no class
        assert focused(page) == "stage"
        assert len(server.desk.store.events()) == 2


def test_on_a_wall_a_class_without_a_key_is_given_by_typing(tmp_path, page):
    with in_memory(tmp_path, 14, classes=MANY) as server:
        with_answers(page, server)
        open_grid(page, MANY[1])
        items = page.evaluate("wall.items.map((r) => r.item)")
        page.keyboard.press("ArrowRight")
        page.keyboard.press(".")  # nothing is marked yet
        assert focused(page) != "grid-name-find"
        page.keyboard.press(" ")
        page.keyboard.press(".")
        assert focused(page) == "grid-name-find"
        page.keyboard.type("pin 74")
        page.keyboard.press("Enter")
        assert said(page) == f"{items[1]}: {MANY[74]}."
        page.keyboard.press("Enter")
        sent(page)
        assert server.desk.store.labels()[items[1]] == MANY[74]


def test_a_few_classes_need_no_box_and_of_several_each_is_found(tmp_path, page):
    with in_memory(tmp_path, 8, classes=MANY[:36]) as server:
        page.goto(server.address)
        shown(page)
        assert page.is_hidden("#class-finder")
        page.keyboard.press(".")
        assert focused(page) != "class-find"
    with LabelStore(tmp_path / "several" / "store") as store:
        store.set_task(LabelTask("several"))
    with in_memory(tmp_path / "several", 8, classes=MANY[:40]) as server:
        page.goto(server.address)
        item = shown(page)
        for words in ("fee_2", "pin_39"):
            page.keyboard.press(".")
            page.keyboard.type(words)
            page.keyboard.press("Enter")
        page.keyboard.press("Enter")
        count(page, 1)
        assert server.desk.store.labels() == {item: f"|{MANY[2]}|{MANY[39]}"}


def set_key(page, action, key):
    page.click("#keys-open")
    page.click(f"[data-action={action}]")
    page.keyboard.press(key)
    told = page.text_content("#keys-words")
    page.click("#keys-close")
    return told


def test_changed_keys_hold_in_every_view_and_every_hint_names_them(tmp_path, page):
    with in_memory(tmp_path, 14) as server:
        with_answers(page, server)
        assert (
            set_key(page, "accept", "v")
            == "“The likeliest class, or the answer as it stands” is v now, in this browser."
        )
        set_key(page, "undo", "b")
        set_key(page, "skip", "x")
        open_grid(page)
        assert kbds(page, "#grid .hint") == ["x", "+", "v", "b"]
        assert page.get_attribute("#grid-accept", "aria-keyshortcuts") == "v"
        page.keyboard.press("ArrowRight")
        page.keyboard.press("x")
        n = page.evaluate("wall.items.length")
        page.keyboard.press("Backspace")  # means nothing now
        page.keyboard.press("Enter")  # presses the tile that has the focus, and accepts nothing
        assert len(server.desk.store.events()) == 2
        page.keyboard.press("x")
        page.keyboard.press("v")
        sent(page)
        assert len(server.desk.store.labels()) == 2 + n - 1
        page.keyboard.press("b")
        sent(page)
        assert len(server.desk.store.labels()) == 2
        page.keyboard.press("F2")
        page.wait_for_selector("#review-list li:nth-child(2)")
        assert kbds(page, "#review .hint") == [
            "+",
            "v",
            "b",
        ]
        page.keyboard.press("Enter")
        page.keyboard.press("v")  # what the others say of the first row: cat
        sent(page)
        assert sorted(server.desk.store.labels().values()) == ["cat", "cat"]
        page.keyboard.press("Backspace")
        page.keyboard.press("b")
        sent(page)
        assert sorted(server.desk.store.labels().values()) == ["cat", "dog"]
        page.keyboard.press("3")
        sent(page)
        page.click("#review-undo")  # and by a button
        sent(page)
        assert "cow" not in server.desk.store.labels().values()


def test_views_have_keys_that_can_be_set_and_that_type_where_one_types(tmp_path, page):
    with in_memory(tmp_path, 8) as server:
        page.goto(server.address)
        shown(page)
        for key, taken in (("F5", "the browser"), ("ArrowUp", "the page"), ("F4", "Grid"), ("/", "Search in the text")):
            assert f"is the key of {taken}" in set_key(page, "review", key)
        assert set_key(page, "review", "v") == "“Review” is v now, in this browser."
        set_key(page, "overview", "F2")
        assert page.get_attribute("#views [data-view=review]", "aria-keyshortcuts") == "v"
        assert page.get_attribute("#views [data-view=overview]", "title") == "Overview (F2)"
        page.click("#who")
        page.keyboard.type("v")
        assert (page.evaluate("view"), page.input_value("#who")) == ("label", "mev")
        page.keyboard.press("F2")  # F-keys everywhere
        assert page.evaluate("view") == "overview"
        page.keyboard.press("v")
        assert page.evaluate("view") == "review"
        page.reload()
        shown(page)
        page.keyboard.press("v")
        assert page.evaluate("view") == "review"
        server.desk.change_class("describe", who="Ada", name="cat", key="v")
        page.keyboard.press("Escape")
        until_true(page, "state.classes[0].keys[0] === 'v'")
        item = shown(page)
        page.keyboard.press("v")  # the class's
        sent(page)
        assert server.desk.store.labels() == {item: "cat"}


# What a screen reader is told


def test_arrows_move_the_focus_on_a_wall_and_each_tile_is_told(tmp_path, page):
    with in_memory(tmp_path, 14) as server:
        with_answers(page, server)
        open_grid(page)
        tile = lambda: page.evaluate("Number(document.activeElement.dataset.tile)")  # noqa: E731
        items = page.evaluate("wall.items.map((r) => r.item)")
        page.keyboard.press("ArrowRight")
        assert tile() == 1
        assert said(page) == f"{items[1]}, dog 90 %: will be accepted."
        page.keyboard.press(" ")
        assert (tile(), said(page)) == (1, f"{items[1]}, dog 90 %: marked as wrong.")
        assert page.get_attribute("#grid-wall button:nth-child(2)", "aria-pressed") == "true"
        page.keyboard.press("3")
        assert said(page) == f"{items[1]}: cow."
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowRight")
        assert said(page) == f"{items[1]}, dog 90 %: named cow."
        page.keyboard.press("ArrowDown")
        assert tile() == 1 + page.evaluate("gridColumns()") if len(items) > 1 + page.evaluate("gridColumns()") else True
        assert page.locator("#grid-wall button[tabindex='0']").count() == 1
        page.keyboard.press("Enter")  # the wall's, though a button has the focus
        sent(page)
        assert server.desk.store.labels()[items[1]] == "cow"
        assert len(server.desk.store.labels()) == 2 + len(items)


def test_a_new_item_is_told_by_its_name_or_how_it_begins(tmp_path, page):
    with in_memory(tmp_path, 8) as server:
        page.goto(server.address)
        item = shown(page)
        assert said(page, "live-item") == f"Item {item}."
        page.keyboard.press("1")
        second = page.text_content("#name")
        assert (said(page), said(page, "live-item")) == ("cat. 0 labelled.", f"Item {second}.")
        page.keyboard.press("F2")
        page.evaluate("$('live-item').textContent = ''")
        page.keyboard.press("Escape")
        assert said(page, "live-item") == f"Item {second}."
    for kind, made, words in (
        ("text", ["It begins so. " * 40, "b"], "It begins so. " * 10 + "It begins …"),
        ("table", [{"place": "Oslo", "size": 3}, {"place": "Rome", "size": 4}], "place Oslo, size 3"),
    ):
        desk = open_desk(tmp_path / kind, MemoryItems(kind, ["x0", "x1"], made), start=False, lease=3600.0)
        with LateServer(desk) as server:
            page.goto(server.address)
            shown(page, "x0")
            assert said(page, "live-item") == words
