"""The labelling page in a real browser: keyboard and mouse, undo, reload, late replies, a killed server, a restart."""

import random
from collections import Counter

import pytest
from sklearn.datasets import load_digits

from browser_cases import IN_CHROMIUM, OPEN, Server, count, focused, in_memory, log_of, on_both, shown, until_true
from foretaste.label import LabelStore

pytestmark = IN_CHROMIUM


def test_digits_by_keyboard(folder, page):
    truth = {f"{k:03d}.png": str(y) for k, y in enumerate(load_digits().target[:150])}
    given = {}

    def press():
        item = shown(page)
        page.keyboard.press(truth[item])
        given[item] = truth[item]
        page.wait_for_function("i => document.getElementById('name').textContent !== i", arg=item)

    server = Server(folder, "--classes", "0,1,2,3,4,5,6,7,8,9", "--port", "0")
    try:
        page.goto(server.address)
        for _ in range(15):
            press()
        count(page, 15)
        last = list(given)[-1]
        page.keyboard.press("Backspace")
        count(page, 14)
        assert shown(page, last) == last
        press()
        count(page, 15)
        before = shown(page)
        page.reload()
        count(page, 15)
        assert shown(page) == before  # the tab still holds it
    finally:
        server.kill()
    press()  # nobody is there: the prefetched item is shown, and the answer waits in the page
    page.wait_for_function("() => document.getElementById('banner').textContent.includes('1 answer waits')")
    server = Server(folder, "--port", server.port)
    try:
        assert any("15 labelled" in line for line in server.lines)
        count(page, 16)  # sent by itself
        assert page.is_hidden("#banner")
        with LabelStore(folder / ".foretaste", read_only=True) as store:
            assert store.labels() == given
            assert [e.kind for e in store.events()].count("undo") == 1
    finally:
        server.kill()


# Mouse and keys


def answer_at_random(page, server, seed):
    """Answer all items as a person with a mouse and a keyboard would. Returns what was meant: (item, kind, label)."""
    rng, meant, seen = random.Random(seed), [], set()
    classes = [c["name"] for c in server.desk.state()["classes"]]
    keys = {c["name"]: c["keys"] for c in server.desk.state()["classes"]}
    controls = {"skip": " ", "unsure": "?", "ignore": "Delete"}

    def fidget():
        """What changes no answer, and leaves the focus anywhere. Whether the focus is on a button, visibly."""
        what = rng.choice(["theme", "hide", "name", "tab", "stage"])
        if what == "name":
            page.click("#who")
            for key in ("End", "1", "Backspace", "Enter"):
                page.keyboard.press(key)
        elif what == "tab":
            for _ in range(rng.randint(1, 4)):
                page.keyboard.press(rng.choice(["Tab", "Shift+Tab"]))
            if focused(page) == "who":
                page.keyboard.press("Escape")
        else:
            for _ in range(2):
                page.click(f"#{what}")
        return what == "tab"

    def answer(item, on_button=False):
        kind = rng.choices(["label", *controls], [8, 2, 1, 1])[0]
        kind = "label" if kind == "skip" and item in seen else kind  # so that it ends
        seen.add(item)
        mouse, label = rng.random() < 0.5, rng.choice(classes) if kind == "label" else None
        if kind == "label":
            guess = page.evaluate(  # as it stays: no reply that may change it is on its way
                "sessionStorage['foretaste-outbox'] === '[]' && !document.querySelector('#accept.fresh')"
                " && document.querySelector('#guess .what')?.textContent"
            )
            if mouse:
                page.click(f"#classes button[data-name={label}]")
            elif guess and not on_button and rng.random() < 0.5:
                page.keyboard.press("Enter")
                label = guess
            else:
                page.keyboard.press(rng.choice(keys[label]))
        elif mouse or (on_button and kind == "skip"):
            page.click(f"#{kind}")
        else:
            page.keyboard.press(controls[kind])
        meant.append((item, kind, label))

    def wait():
        page.wait_for_function(f"() => {OPEN} || document.getElementById('note').textContent.startsWith('All done')")
        return page.text_content("#name")

    while item := wait():
        answer(item, rng.random() < 0.3 and fidget())
        chance = rng.random()
        if chance < 0.15:
            page.keyboard.press("Backspace") if rng.random() < 0.5 else page.click("#undo")
            assert shown(page, item) == item
            meant.append((item, "undo", None))
        elif chance < 0.3:  # quicker than the server: what is pressed while nothing is there is no answer
            server.hold()
            while page.text_content("#name") and (item := shown(page)):
                answer(item)
            for key in rng.sample([" ", "Enter", "?", "Delete", *keys[classes[0]]], 4):
                page.keyboard.press(key)
            box = page.locator("#classes button").first.bounding_box()
            page.mouse.click(box["x"] + 5, box["y"] + 5)
            server.let_go()
    page.wait_for_function("() => sessionStorage['foretaste-outbox'] === '[]'")
    return meant


@pytest.mark.parametrize("seed", range(3))
def test_items_by_mouse_and_keys_get_the_labels_that_were_meant(tmp_path, page, seed):
    with in_memory(tmp_path, 16, delays=(0.0, 0.0, 0.0, 0.02, 0.05, 0.15), seed=seed) as server:
        page.goto(server.address)
        meant = answer_at_random(page, server, seed)
        log = [(i, "label" if k == "relabel" else k, None if k == "undo" else y) for i, k, y in log_of(server)]
        assert log == meant
        assert len(server.desk.store.current()) == 16


def test_after_any_click_the_keys_are_the_items(tmp_path, page):
    with in_memory(tmp_path, 30) as server:
        page.goto(server.address)
        meant = []

        def expect(kind, label=None):
            meant.append((item, kind, label))
            page.wait_for_function("() => sessionStorage['foretaste-outbox'] === '[]'")
            assert log_of(server) == meant

        for control in ("#classes button >> nth=1", "#skip", "#theme", "#hide", "#hide", "#export summary", "#undo"):
            if control == "#undo":
                item = meant[-1][0]
                page.click(control)
                shown(page, item)
                expect("undo")
            else:
                item = shown(page)
                page.click(control)
                if control.startswith("#classes"):
                    expect("label", "dog")
                elif control == "#skip":
                    expect("skip")
            assert focused(page) == "stage"
            item = shown(page)
            page.keyboard.press(" ")
            expect("skip")
        page.hover("#classes button")
        page.mouse.down()  # and dragged away: no click
        page.mouse.move(5, 400)
        page.mouse.up()
        item = shown(page)
        page.keyboard.press(" ")
        expect("skip")
        page.click("#who")
        page.keyboard.type("Bob 1?")
        page.keyboard.press("Enter")
        assert (focused(page), page.input_value("#who")) == ("stage", "meBob 1?")
        item = shown(page)
        page.keyboard.press("1")
        expect("label", "cat")
        assert server.desk.store.events()[-1].who == "meBob 1?"
        shown(page)  # until the next item is there the buttons are disabled and take no focus
        page.focus("#unsure")  # as with Tab: seen, and then Enter presses it, once
        page.keyboard.press("Shift+Tab")
        assert focused(page) == "skip"
        item = shown(page)
        page.keyboard.press("Enter")
        expect("skip")
        assert focused(page) == "stage"
        item = shown(page)
        for control in ("zoom-out", "zoom-off", "zoom-in", "brightness", "original"):
            page.keyboard.press("Tab")
            assert focused(page) == control
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.dataset.name") == "cat"
        page.keyboard.press("2")  # a key of the page, wherever the focus is
        expect("label", "dog")


def test_a_key_or_a_click_on_an_item_that_has_just_come_does_not_count(tmp_path, page):
    page.clock.install()
    with in_memory(tmp_path) as server:
        page.goto(server.address)
        shown(page)
        page.wait_for_function("() => queue.length === 2")
        server.hold()
        page.keyboard.press("1")
        page.keyboard.press("2")  # prefetched, so it counts at once
        assert page.text_content("#name") == ""
        page.keyboard.press("3")
        page.clock.pause_at(page.evaluate("Date.now()") + 60_000)  # from here time goes by when we say so
        server.let_go()
        until_true(page, "document.getElementById('name').textContent !== ''")
        item, button = page.text_content("#name"), page.locator("#classes button").first
        for key in ("1", " ", "Enter", "?", "Delete"):
            page.keyboard.press(key)
        button.hover(force=True)
        page.mouse.down()
        assert page.text_content("#name") == item
        assert "does not count" in page.text_content("#early")
        page.clock.run_for(399)
        assert button.is_disabled()
        page.clock.run_for(1)
        assert button.is_enabled()
        page.mouse.up()  # pressed before the item could be seen
        assert page.text_content("#name") == item
        page.keyboard.press("4")
        assert page.text_content("#name") != item
        until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")
        assert [label for _, _, label in log_of(server)] == ["cat", "dog", "hen"]
        assert log_of(server)[-1][0] == item


def test_a_picture_that_is_late_is_not_answered_for_the_one_before(tmp_path, page):
    with in_memory(tmp_path) as server:
        server.hold("/api/picture/1/")
        page.goto(server.address)
        first = shown(page)
        assert first == "p000.png"
        page.keyboard.press("1")
        page.wait_for_function("() => document.getElementById('name').textContent === 'p001.png'")
        assert page.is_hidden("#picture")  # the old one would be taken for it
        page.keyboard.press("2")
        server.let_go()
        assert shown(page, "p001.png")
        page.keyboard.press("3")
        count(page, 2)
        assert server.desk.store.labels() == {"p000.png": "cat", "p001.png": "cow"}


@on_both
def test_keys_after_undo_are_for_the_item_that_comes_back(tmp_path, page):
    with in_memory(tmp_path) as server:
        page.goto(server.address)
        first = shown(page)
        page.keyboard.press("1")
        count(page, 1)
        server.hold()
        page.keyboard.press("Backspace")
        second = page.text_content("#name")
        page.keyboard.press("2")  # too early, and not for the item that is still on the screen
        assert page.text_content("#name") == second != first
        server.let_go()
        shown(page, first)
        page.keyboard.press("3")
        count(page, 1)
        server.hold()
        page.click("#recent button")
        page.keyboard.press("4")  # the same for an item of the past that is on its way
        server.let_go()
        shown(page, first)
        assert page.text_content("#ribbon") == "Was: cow. Choose again, or press Escape"
        page.keyboard.press("Delete")
        count(page, 0)
        page.wait_for_function("() => document.querySelector('#recent span')?.textContent === 'set aside'")
        page.click("#recent button")
        shown(page, first)
        assert page.text_content("#ribbon") == "Was: set aside. Choose again, or press Escape"
        page.keyboard.press("Escape")
        shown(page, second)
        kept = [("label", "cat"), ("undo", None), ("label", "cow"), ("ignore", None)]
        assert log_of(server) == [(first, *said) for said in kept]


def test_enter_is_for_the_guess_that_was_seen(tmp_path, page):
    page.clock.install()
    with in_memory(tmp_path) as server:
        page.goto(server.address)
        for key in "12":
            shown(page)
            page.keyboard.press(key)
        count(page, 2)
        page.wait_for_selector("#guess .what:text-is('dog')")
        page.clock.pause_at(page.evaluate("Date.now()") + 60_000)
        item = page.text_content("#name")
        page.evaluate("queue[0].likely = [{ name: 'cat', p: 0.9 }]; show()")
        page.keyboard.press("Enter")
        assert page.text_content("#name") == item
        assert "only just" in page.text_content("#early")
        page.clock.run_for(400)
        page.keyboard.press("Enter")
        until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")
        assert log_of(server)[-1] == (item, "label", "cat")


def test_items_that_were_skipped_twice_are_asked_again_at_a_press(tmp_path, page):
    with in_memory(tmp_path, 3) as server:
        page.goto(server.address)
        for n in range(1, 7):
            shown(page)
            page.keyboard.press(" ")
            page.wait_for_function("n => state.events === n", arg=n)
        page.wait_for_selector("#again")
        assert "3 items were skipped twice" in page.text_content("#note")
        page.click("#again")
        for n in range(1, 4):
            shown(page)
            page.keyboard.press("1")
            count(page, n)
        page.wait_for_selector("#note h3:text-is('All done')")
        assert len(server.desk.store.labels()) == 3


# Many classes, and long names

LONG = [f"the customer asks about {what}" for what in ("a late delivery", "a late payment", "a refund", "the shop")]


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize(
    ("classes", "rows"),
    [(["cat", "dog", "cow", "hen"], {390: [2, 2], 1400: [4]}), (LONG, {}), ([f"{LONG[0]} {k}" for k in range(30)], {})],
    ids=["4", "long", "30"],
)
def test_class_buttons_show_whole_names_in_even_rows(tmp_path, page, width, classes, rows):
    page.set_viewport_size({"width": width, "height": 900})
    with in_memory(tmp_path, classes=classes) as server:
        page.goto(server.address)
        shown(page)
        page.keyboard.press("1")
        count(page, 1)
        page.wait_for_selector("#recent span")
        cut = "e => e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 2"
        names = "#classes .word, #classes button, #balance .what, #guess .what, #recent span"
        assert page.eval_on_selector_all(names, f"all => all.filter({cut}).map((e) => e.outerHTML)") == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        found = page.eval_on_selector_all("#classes button", "all => all.map((e) => e.getBoundingClientRect().top)")
        counts = list(Counter(found).values())
        assert counts == rows.get(width, counts)
        assert all(n == counts[0] for n in counts[:-1])
        assert counts[-1] > counts[0] - len(counts)  # no row could be spared, nor a column
        keys = page.eval_on_selector_all("#classes button", "all => all.map((e) => e.querySelectorAll('kbd').length)")
        assert min(keys) > 0


def test_names_of_classes_break_between_their_words(tmp_path, page):
    page.set_viewport_size({"width": 390, "height": 900})
    with in_memory(tmp_path, classes=("lost_or_stolen_card", "card/arrival-late")) as server:
        page.goto(server.address)
        shown(page)
        words = page.eval_on_selector_all("#classes .word", "all => all.map((e) => [e.textContent, e.innerHTML])")
    assert words == [
        ["lost_or_stolen_card", "lost_<wbr>or_<wbr>stolen_<wbr>card"],
        ["card/arrival-late", "card/<wbr>arrival-<wbr>late"],
    ]


def test_an_item_that_measures_has_no_hint(tmp_path, page):
    """The bars of the model stood beside it: who sees them agrees with them too often."""
    with in_memory(tmp_path, 80, desk={"check_every": 3}) as server:
        desk, hints = server.desk, set()
        page.goto(server.address)
        for n in range(1, 13):
            item = shown(page)
            if n > 4:  # what is shown, once a reply has brought what the model says
                until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")
                until_true(page, "queue[0].check || document.querySelector('#guess .row')")
                hints.add((desk.measures(item), page.locator("#guess .row").count() > 0))
            if n > 4 and desk.measures(item):
                assert page.text_content("#reason") == "No hint: this one measures accuracy."
                assert page.text_content("#ribbon") == "Drawn at random, to measure accuracy"
                assert page.locator("#classes button.likely").count() == 0
                assert page.is_hidden("#accept")
                page.keyboard.press("Enter")
                page.screenshot(path=tmp_path / "measures.png")
            page.keyboard.press("12"[n % 2])
            count(page, n)
        assert hints == {(True, False), (False, True)}
        measured = [e for e in desk.store.events() if e.purpose == "check"]
        assert len(measured) == 4
        assert any(e.guess for e in measured)  # the log keeps it
