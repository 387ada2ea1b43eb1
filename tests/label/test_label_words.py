"""Long texts and rows of a table: all of it can be read and searched, hit by hit."""

from browser_cases import LateServer, count, in_chromium, on_both, shown, until_true
from foretaste.label import make_app
from foretaste.label.guard import Guard
from label_cases import Client, MemoryItems, close_desk, open_desk

PLACES = [30, 2000, 2020, 5000, 9000, 15_000, 19_990, 20_005, 30_000, 45_000, 59_000, 59_990]


def with_needles():
    """60,000 characters with "Needle" at PLACES, one of them across the 20,000th; İ is two letters in lower case."""
    text = list(("İstanbul, and words that fill the page. " * 1600)[:60_000])
    for at in PLACES:
        text[at : at + 6] = "Needle"
    return "".join(text)


LONG = with_needles()
ROW = {"name": "Ada", "story": "A long cell. " * 100 + "The Needle.", "more": LONG, "note": "no more"}


def items(kind="text"):
    made = [LONG, "short", "short too"] if kind == "text" else [ROW, {"name": "Bob"}, {"name": "Cyd"}]
    return MemoryItems(kind, [f"i{k}" for k in range(3)], made)


def opened(tmp_path, kind="text"):
    return LateServer(open_desk(tmp_path / "store", items(kind), ("cat", "dog"), start=False, lease=3600.0))


def test_all_of_a_text_or_a_row_can_be_asked_for(tmp_path):
    for kind in ("text", "table"):
        desk = open_desk(tmp_path / kind, items(kind), start=False)
        client = Client(Guard(make_app(desk)))
        part, whole = client.get("/api/item/0").json, client.get("/api/whole/0").json
        if kind == "text":
            assert (part["text"], part["length"]) == (LONG[:20_000], 60_000)
            assert whole == {"text": LONG}
            assert "length" not in client.get("/api/item/1").json
        else:
            cells = [["name", "Ada"], ["story", ROW["story"]], ["more", LONG[:20_000], 60_000], ["note", "no more"]]
            assert part["cells"] == cells
            assert whole == {"cells": [list(cell) for cell in ROW.items()]}
        assert client.get("/api/whole/3").status == 404
        found = client.get("/api/grid?find=needle").json["items"]  # a list has the beginning
        assert [r["text"][:20] for r in found] == [LONG[:20] if kind == "text" else "name Ada, story A lo"]
        close_desk(desk)


@in_chromium
@on_both
def test_a_long_text_is_searched_to_its_end_hit_by_hit(tmp_path, page):
    with opened(tmp_path) as server:
        page.goto(server.address)
        shown(page, "i0")
        server.hold("/api/whole")
        page.keyboard.press("/")
        page.keyboard.type("NEEDLE")
        page.wait_for_function("() => $('find-count').textContent.startsWith('Loading')")
        server.let_go()
        said = lambda: page.text_content("#find-count")  # noqa: E731
        here = lambda: page.evaluate(  # noqa: E731
            "() => { const r = document.createRange(); r.setStart($('text'), 0);"
            " r.setEndBefore(document.querySelector('mark.here')); return r.toString().length; }"
        )
        page.wait_for_function("() => $('find-count').textContent === '1 of 12'")
        assert (here(), page.locator("#text mark").count()) == (PLACES[0], 12)
        for n in (2, 3):
            page.keyboard.press("Enter")
            assert (said(), here()) == (f"{n} of 12", PLACES[n - 1])
        box, place = page.locator("#text").bounding_box(), page.locator("mark.here").bounding_box()
        assert box["y"] <= place["y"] <= box["y"] + box["height"]  # it is on the screen
        for n in (2, 1, 12):
            page.keyboard.press("Shift+Enter")
            assert (said(), here()) == (f"{n} of 12", PLACES[n - 1])
        page.screenshot(path=tmp_path / "search.png")
        page.click("#find-next")
        assert said() == "1 of 12"
        page.click("#find-back")
        assert said() == "12 of 12"
        page.fill("#find-words", "istanbul, and words that fill the page. ista")  # İ, in lower case
        assert int(said().split(" of ")[1].replace(",", "")) > 500
        page.fill("#find-words", "nowhere")
        assert said() == "0 found"
        page.fill("#find-words", "e")
        several = LONG.lower().count("e")
        assert said() == f"1 of {several:,}"
        assert page.locator("#text mark").count() == 201  # as many as one sees, and as do not stick
        page.fill("#find-words", "")
        assert len(page.text_content("#text")) < 2000
        page.click(".unfold")
        page.wait_for_function("n => $('text').textContent.length === n", arg=len(LONG))
        assert page.text_content("#text") == LONG
        assert server.desk.store.events() == []  # no key was an answer


@in_chromium
def test_a_text_that_comes_late_is_not_shown_for_the_next_and_a_failure_is_told(tmp_path, page):
    with opened(tmp_path) as server:
        page.goto(server.address)
        shown(page, "i0")
        assert "Show all 60,000 characters" in page.text_content("#text")
        page.route("**/api/whole/0", lambda route: route.abort())
        page.fill("#find-words", "needle")
        page.wait_for_function("() => $('find-count').textContent.includes('cannot be loaded')")
        page.unroute("**/api/whole/0")
        server.hold("/api/whole")
        with page.expect_response("**/api/whole/0") as late:
            page.click(".unfold")
            page.keyboard.press("Escape")
            page.keyboard.press("1")
            page.wait_for_function("() => $('name').textContent === 'i1'")
            server.let_go()
        assert late.value.finished() is None
        count(page, 1)
        assert (page.text_content("#text"), page.input_value("#find-words")) == ("short", "")


@in_chromium
def test_cells_fold_and_are_searched(tmp_path, page):
    with opened(tmp_path, "table") as server:
        page.goto(server.address)
        shown(page, "i0")
        cells = page.locator("#cells dd")
        assert [len(cells.nth(k).text_content()) < 600 for k in range(4)] == [True] * 4
        assert page.locator("#cells .unfold").count() == 2
        page.click("#cells dd:nth-of-type(2) .unfold")
        until_true(page, "$('cells').querySelectorAll('.unfold').length === 1")
        assert cells.nth(1).text_content() == ROW["story"]
        page.keyboard.press("/")
        page.keyboard.type("needle")
        page.wait_for_function("() => $('find-count').textContent === '1 of 13'")
        assert page.evaluate(
            "document.querySelector('mark.here').parentNode === document.querySelectorAll('#cells dd')[1]"
        )
        page.keyboard.press("Enter")
        assert page.evaluate(
            "document.querySelector('mark.here').parentNode === document.querySelectorAll('#cells dd')[2]"
        )
        assert cells.nth(2).text_content() == LONG
        assert cells.nth(3).text_content() == "no more"
        page.keyboard.press("Escape")
        page.keyboard.press("2")
        count(page, 1)
        assert shown(page, "i1")
        assert page.is_hidden("#find")


@in_chromium
def test_lower_case_never_moves_a_place(page, tmp_path):
    with opened(tmp_path) as server:
        page.goto(server.address)
        shown(page)
        wrong = page.evaluate(
            "() => { const found = []; for (let c = 0; c < 0x110000; c += 1) { const s = String.fromCodePoint(c);"
            " if (folded(s).length !== s.length) found.push(c); } return found; }"
        )
        assert wrong == []
        assert page.evaluate("folded('ΣΊΣΥΦΟΣ') === folded('σίσυφος')")
        assert page.evaluate("folded('İZMİR')") == "izmir"
        assert page.evaluate("shortened('x'.repeat(9) + '\\u{1f600}'.repeat(9), 10)") == "xxxxxxxxx …"  # no half of one
