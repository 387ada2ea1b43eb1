"""Review: filters, the most doubtful label first, relabelled in place and taken back; in the desk and in a browser."""

import time

import pytest

from browser_cases import PATIENCE, count, in_chromium, in_memory, on_both, shown, until_true
from foretaste.label import make_app
from foretaste.label.guard import Guard, person_token
from foretaste.label.review import LISTS_KEPT, ReviewFilter
from label_cases import Client, close_desk, open_desk, pictures


@pytest.fixture
def desk(tmp_path):
    """Ten answers by two people, on two days; the plain learner doubts later items more."""
    made = open_desk(tmp_path, pictures(20))
    for k in range(10):
        made.store._clock = lambda now=1_700_000_000.0 + 100_000 * (k > 5): now
        label = ("cat", "dog")[k % 2]
        made.store.record(f"p{k:03d}.png", "label", label, who="Ada" if k < 6 else "Bob", purpose="teach")
        made.worker.tell(f"p{k:03d}.png")
    made.answer("tab-one-1", "Bob", "p012.png", "unsure")
    made.worker.wait_for(made.worker.tell("p009.png"), 20)
    yield made
    close_desk(made)


def listed(desk, **wanted):
    return [row["item"] for row in desk.review.rows(ReviewFilter(**wanted))["items"]]


def test_the_list_has_the_most_doubtful_first_and_keeps_to_its_filters(desk):
    all_of_them = [f"p{k:03d}.png" for k in reversed(range(10))]
    assert listed(desk) == all_of_them
    assert listed(desk, label="cat") == all_of_them[1::2]
    assert listed(desk, who="Ada") == all_of_them[4:]
    later = next(e.at for e in desk.store.events() if e.item == "p006.png")
    assert listed(desk, since=later) == all_of_them[:4]
    assert listed(desk, until=later) == all_of_them[4:]
    assert listed(desk, only="disagrees") == all_of_them[::2]  # others say cat
    assert listed(desk, only="unsure") == ["p012.png"]
    assert listed(desk, only="measured") == []
    found = desk.review.rows(ReviewFilter())
    assert (found["total"], found["first"], found["people"]) == (10, 10, ["Ada", "Bob"])
    assert found["expected"] == pytest.approx(sum(range(10)) / 20)
    with pytest.raises(ValueError, match="did you mean 'measured'"):
        ReviewFilter(only="mesured")


def test_a_relabelled_row_has_no_doubt_until_the_model_has_seen_it(desk):
    desk.answer("tab-one-1", "Ada", "p009.png", "relabel", "cat")
    assert desk.review.rows(ReviewFilter())["items"][0]["doubt"]["wrong"] == 9 / 20
    desk.store.record("p008.png", "relabel", "dog", who="Ada")  # the worker is not told
    last = desk.review.rows(ReviewFilter())["items"][-1]
    assert (last["item"], last["label"], last["doubt"]) == ("p008.png", "dog", None)


def test_a_further_page_is_of_the_same_list_and_an_answer_makes_another(desk, monkeypatch):
    made, make_list = [], desk.review._list
    monkeypatch.setattr(desk.review, "_list", lambda *given: made.append(given[1]) or make_list(*given))
    first = desk.review.rows(ReviewFilter())
    assert desk.review.rows(ReviewFilter(), 2)["items"] == first["items"][2:]
    assert len(made) == 1
    assert listed(desk, label="cat") == [row["item"] for row in first["items"] if row["label"] == "cat"]
    assert desk.review.rows(ReviewFilter(), 0, "Ada")["total"] == 6
    assert len(made) == 3
    desk.answer("tab-one-1", "Bob", "p013.png", "label", "dog", patience=20)
    assert desk.review.rows(ReviewFilter())["total"] == 11
    desk.change_class("rename", who="Ada", name="dog", to="hound")
    assert {row["label"] for row in desk.review.rows(ReviewFilter())["items"]} == {"cat", "hound"}


def test_what_is_answered_while_somebody_reads_on_makes_no_row_come_twice_or_never(tmp_path, monkeypatch):
    """Relabelled rows sank to the end of a list that was made anew for each page: five others were never shown."""
    monkeypatch.setattr("foretaste.label.review.REVIEW_PAGE", 10)
    desk = open_desk(tmp_path, pictures(40))
    for k in range(30):
        desk.answer("tab-one-1", "Ada", f"p{k:03d}.png", "label", ("cat", "dog")[k % 2], patience=20)
    client = Client(Guard(make_app(desk)))

    def page(start, name="", **wanted):
        query = "&".join(f"{k}={v}" for k, v in ({"start": start, "list": name} | wanted).items())
        return client.get(f"/api/review?{query}").json

    first = page(0)
    seen = [row["item"] for row in first["items"]]
    for item in seen[:5]:  # their doubt is gone until the model has seen them
        desk.store.record(item, "relabel", "dog" if desk.label_of(item) == "cat" else "cat", who="Ada")
    desk.answer("tab-two-2", "Bob", "p030.png", "label", "cat", patience=20)  # the most doubtful of all
    other = page(0)
    assert other["items"][0]["item"] == "p030.png"
    assert (other["list"] != first["list"], other["total"]) == (True, 31)
    desk.answer("tab-two-2", "Bob", "p014.png", "relabel", "dog", patience=20)
    for start in (10, 20):
        further = page(start, first["list"])
        assert (further["list"], further["total"]) == (first["list"], 30)
        seen += [row["item"] for row in further["items"]]
        labels = {row["item"]: row["label"] for row in further["items"]}
        assert labels == {item: desk.label_of(item) for item in labels}  # as they are now
    assert seen == [f"p{k:03d}.png" for k in reversed(range(30))]
    again = page(0)
    assert again["total"] == 31
    assert page(0)["list"] == again["list"]  # nothing has changed
    assert page(10, first["list"], label="cat")["error"] == "this list is no longer kept; press Look again"
    for k in range(LISTS_KEPT):
        page(0, find=f"p{k:03d}")
    assert page(10, first["list"])["error"] == "this list is no longer kept; press Look again"
    close_desk(desk)


def test_skipped_items_and_those_set_aside_are_listed_and_go_back_to_work(desk):
    desk.answer("tab-one-1", "Bob", "p013.png", "ignore", patience=20)
    for _ in range(2):
        desk.answer("tab-one-1", "Bob", "p014.png", "skip", patience=20)
    assert (listed(desk, only="aside"), listed(desk, only="skipped")) == (["p013.png"], ["p014.png"])
    assert listed(desk, only="aside", who="Ada") == []
    assert "p013.png" in desk.learner.ignored
    desk.answer("tab-two-2", "Ada", "p013.png", "relabel", "dog", patience=20)
    assert (desk.learner.labels["p013.png"], "p013.png" in desk.learner.ignored) == ("dog", False)
    assert listed(desk, only="aside") == []
    client, me = Client(Guard(make_app(desk))), {"tab": "tab-two-2", "who": "Ada"}
    for item in ("p013.png", "p014.png"):
        for _ in range(2):  # sent again
            assert client.post("/api/reopen", me | {"item": item}).status == 200
        assert desk.store.state_of(item) is None
        assert not desk.store.voices_of(item).voices
    assert listed(desk, only="skipped") == []
    desk.worker.wait_for(desk.worker.tell("p014.png"), 20)
    assert "p013.png" not in desk.learner.labels
    assert desk.state()["parked"] == 0
    assert {"p013.png", "p014.png"} <= {*desk.next("tab-six-6", "Eve", count=20)}
    assert client.post("/api/reopen", me | {"item": "p999.png"}).status == 404


def test_only_the_owner_asks_again_what_others_have_answered(desk):
    owner = "the-token-of-the-owner"
    client = Client(Guard(make_app(desk), token=owner, people=["Ada", "Bob"]))
    ada = {"authorization": f"Bearer {person_token(owner, 'Ada')}"}
    body = {"tab": "tab-two-2", "who": "Ada", "item": "p012.png"}  # of which Bob was not sure
    assert client.post("/api/reopen", body, **ada).status == 409
    assert client.post("/api/reopen", body | {"item": "p002.png"}, **ada).status == 200
    assert client.post("/api/reopen", body, authorization=f"Bearer {owner}").status == 200
    assert {"p002.png", "p012.png"} & {*desk.store.current()} == set()


def test_items_that_measure_are_judged_though_the_model_never_learns_them(tmp_path):
    desk = open_desk(tmp_path, pictures(80), check_every=2)
    measures = next(iter(desk.check_ids))
    for k, item in enumerate([*desk.shuffled[:4], measures]):
        desk.answer("tab-one-1", "Ada", item, "label", ("cat", "dog")[k % 2], patience=20)
    [row] = desk.review.rows(ReviewFilter(only="measured"))["items"]
    assert (row["item"], row["measured"], row["doubt"] is None) == (measures, True, False)
    assert measures not in desk.learner.labels
    close_desk(desk)


def test_the_route_checks_what_it_is_asked(desk):
    client = Client(Guard(make_app(desk)))
    reply = client.get("/api/review?label=cat&start=2").json
    assert (reply["total"], len(reply["items"])) == (5, 3)
    assert reply["items"][0]["picture"] == "/api/picture/4/small"
    assert client.get("/api/review?since=2023-11-15T00:00:00.000Z").json["total"] == 4
    for wrong in ("since=yesterday", "since=2023-11-15", "only=everything", "start=-1", "start=x"):
        assert client.get(f"/api/review?{wrong}").status == 422
    assert client.get("/review.js").status == 200


@in_chromium
@on_both
def test_a_person_finds_mistakes_relabels_them_and_takes_one_back(tmp_path, page):
    with in_memory(tmp_path, 12) as server:
        page.goto(server.address)
        given = {}
        for n in range(1, 7):
            item = shown(page)
            given[item] = ("cat", "dog")[n % 2]
            page.keyboard.press(str(2 if n % 2 else 1))
            count(page, n)
        on_screen = shown(page)
        page.keyboard.press("F2")
        page.wait_for_selector("#review-list li")
        assert page.is_hidden("#stage")
        page.wait_for_function("() => document.getElementById('review-words').textContent.includes('expected')")
        wrong = round(sum(server.desk.data.ids.index(i) / 12 for i in given))
        assert f"Of the first 6, about {wrong} {'is' if wrong == 1 else 'are'} exp" in page.text_content(
            "#review-words"
        )
        rows = page.eval_on_selector_all("#review-list li", "all => all.map((e) => e.dataset.item)")
        assert rows == sorted(given, reverse=True)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("3")  # the second row is a cow
        until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")
        assert server.desk.store.labels()[rows[1]] == "cow"
        page.focus("#review-list li:nth-child(4) select")
        page.select_option("#review-list li:nth-child(4) select", "hen")
        until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")
        assert server.desk.store.labels()[rows[3]] == "hen"
        page.keyboard.press("Backspace")  # the focus is at the list again
        page.wait_for_function(
            "was => document.querySelector('#review-list li:nth-child(4) select').value === was", arg=given[rows[3]]
        )
        until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")
        assert server.desk.store.labels() == given | {rows[1]: "cow"}
        page.focus("#review-filter select[name=only]")
        page.select_option("#review-filter select[name=only]", "disagrees")
        against = sum(label != "cat" for label in server.desk.store.labels().values())
        page.wait_for_function("n => document.querySelectorAll('#review-list li').length === n", arg=against)
        page.keyboard.press("Escape")  # out of the box; the list stays
        page.keyboard.press("Enter")  # what the others say of the first row: cat
        until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")
        assert [e.label for e in server.desk.store.events()][-1] == "cat"
        page.keyboard.press("Escape")
        assert shown(page, on_screen) == on_screen  # held all the while
        page.keyboard.press("1")
        count(page, 7)


KEPT = "sessionStorage['foretaste-outbox'] === '[]'"


def labelled(server, n, who="Ada"):
    """Labels of the first n items, cat and dog by turns, that the learner knows."""
    for k, item in enumerate(server.desk.data.ids[:n]):
        server.desk.answer("tab-two-2", who, item, "label", ("cat", "dog")[k % 2], patience=20)


def rows_of(page):
    return page.eval_on_selector_all("#review-list li", "all => all.map((li) => li.dataset.item)")


@in_chromium
def test_who_reads_on_sees_every_row_once_while_others_answer(tmp_path, page, monkeypatch):
    monkeypatch.setattr("foretaste.label.review.REVIEW_PAGE", 10)
    with in_memory(tmp_path, 60) as server:
        labelled(server, 40)
        page.goto(server.address)
        page.wait_for_function("() => state?.model.answers")
        server.hold("/api/review")  # no further page before the first has been worked on
        page.keyboard.press("F2")
        page.wait_for_selector("#review")
        server.let_go()
        page.wait_for_function("() => reviewed.length >= 10")
        for _ in range(5):
            page.keyboard.press("3")
        until_true(page, KEPT)
        server.desk.answer("tab-two-2", "Ada", "p050.png", "label", "cat", patience=20)  # it is doubted most
        while page.evaluate("reviewed.length") < 40:
            before = page.evaluate("reviewed.length")
            page.evaluate("$('review-more').scrollIntoView()")
            page.wait_for_function("n => reviewed.length > n", arg=before)
        assert rows_of(page) == [f"p{k:03d}.png" for k in reversed(range(40))]
        page.click("#review-again")
        page.wait_for_function("() => reviewed[0]?.item === 'p050.png'")


@in_chromium
def test_a_relabel_that_is_refused_puts_its_row_back(tmp_path, page):
    owner = "the-token-of-the-owner"
    with in_memory(tmp_path, 12, token=owner, people=["Ada"]) as server:
        labelled(server, 6)
        page.goto(f"{server.address}#token={person_token(owner, 'Ada')}")
        shown(page)
        page.keyboard.press("F2")
        page.wait_for_selector("#review-list li")
        rows = rows_of(page)
        server.desk.answer("tab-two-2", "Eve", rows[0], "relabel", "hen", patience=20)  # Ada's word no longer counts
        page.keyboard.press("ArrowUp")
        server.hold("/api/answer")
        first = page.evaluate("reviewed[0].label")
        for key in ("3", "ArrowUp", "4"):  # two answers, both refused: the row is as before the first of them
            page.keyboard.press(key)
        page.wait_for_function("() => reviewed[0].label === 'hen'")
        server.let_go()
        page.wait_for_function("() => $('banner').textContent.includes('only the owner decides about it')")
        until_true(page, KEPT)
        assert page.evaluate("reviewed[0].label") == first
        assert page.input_value("#review-list li:nth-child(1) select") == first
        assert page.locator("#review-list .changed-now").count() == 0
        said = len(server.desk.store.events())
        page.keyboard.press("Backspace")  # nothing of it is to be taken back
        page.wait_for_function("() => $('banner').textContent.includes('Nothing was relabelled here')")
        page.keyboard.press("3")
        until_true(page, KEPT)
        assert [(e.item, e.label) for e in server.desk.store.events()[said:]] == [(rows[1], "cow")]


@in_chromium
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_is_doubted_is_opened_and_one_comes_back_to_its_row(tmp_path, browser, theme):
    with in_memory(tmp_path, 30) as server:
        labelled(server, 24)
        context = browser.new_context(viewport={"width": 390, "height": 800}, has_touch=True, color_scheme=theme)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(server.address)
        on_screen = shown(page)
        page.keyboard.press("F2")
        page.wait_for_selector("#review-list li:nth-child(20)")
        rows = rows_of(page)
        page.tap("#review-list li:nth-child(20) .title")
        assert shown(page, rows[19]) == rows[19]
        box = page.locator("#picture").bounding_box()
        assert 0 <= box["y"] < box["y"] + box["height"] <= 800
        page.keyboard.press("+")
        assert page.evaluate("zoom.scale") == 1.5
        page.screenshot(path=tmp_path / f"opened-{theme}.png")
        page.tap("#leave")
        page.wait_for_selector("#review-list li:nth-child(20).chosen")
        assert page.evaluate("chosen") == 19
        place = page.locator("#review-list li:nth-child(20)").bounding_box()
        assert 0 < place["y"] < 800 - place["height"]
        page.screenshot(path=tmp_path / f"back-{theme}.png")
        page.tap("#review-list li:nth-child(20) .thumb")
        assert shown(page, rows[19]) == rows[19]
        page.keyboard.press("Escape")
        page.wait_for_selector("#review-list li:nth-child(20)")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("+")
        assert shown(page, rows[20]) == rows[20]
        assert page.text_content("#leave") == "Back to Review"
        page.keyboard.press("3")  # a cow
        page.wait_for_function("() => view === 'review' && reviewed[20].label === 'cow'")
        until_true(page, KEPT)
        assert server.desk.store.labels()[rows[20]] == "cow"
        assert page.evaluate("reviewRows[20].matches('.chosen.changed-now')")
        page.keyboard.press("Backspace")
        page.wait_for_function("() => reviewed[20].label !== 'cow'")
        assert rows_of(page) == rows  # the list is the same
        page.keyboard.press("Escape")
        assert shown(page, on_screen) == on_screen
        assert page.is_hidden("#leave")
        context.close()


@in_chromium
def test_what_was_set_aside_goes_back_to_work_and_days_are_those_of_the_person(tmp_path, browser):
    with in_memory(tmp_path, 30) as server:
        desk = server.desk
        # 2023-11-14 22:13 in UTC, which is the 15th in Auckland; and a day and a half later
        for k, at in enumerate([1_700_000_000.0] * 3 + [1_700_130_000.0] * 2):
            desk.store._clock = lambda now=at: now
            desk.store.record(f"p{k:03d}.png", "label", "cat", who="Ada", purpose="teach")
        desk.store._clock = time.time
        for item in ("p010.png", "p011.png"):
            desk.answer("tab-two-2", "Ada", item, "ignore")
        desk.answer("tab-two-2", "Ada", "p012.png", "skip")
        desk.leave("tab-two-2")
        context = browser.new_context(viewport={"width": 1200, "height": 800}, timezone_id="Pacific/Auckland")
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(server.address)
        shown(page)

        def choose(name, value):
            place = page.locator(f"#review-filter [name={name}]")
            place.fill(value) if name in ("since", "until") else place.select_option(value)

        def listed(*items):
            page.wait_for_function("n => $('review-words').textContent.startsWith(n)", arg=f"{len(items)} answer")
            assert sorted(rows_of(page)) == [f"p0{k}.png" for k in items]

        page.keyboard.press("F2")
        listed("00", "01", "02", "03", "04")
        choose("since", "2023-11-15")
        choose("until", "2023-11-15")
        listed("00", "01", "02")
        assert "2023-11-15" in page.text_content("#review-list li .about")
        choose("since", "2023-11-16")
        choose("until", "")
        listed("03", "04")
        choose("since", "")
        choose("only", "skipped")
        listed("12")
        choose("only", "aside")
        listed("10", "11")
        page.keyboard.press("Escape")  # out of the box
        page.keyboard.press("3")  # a cow
        until_true(page, KEPT)
        [row, other] = rows_of(page)
        assert desk.store.labels()[row] == "cow"
        page.click("#review-list li:nth-child(2) >> text=Ask again")
        until_true(page, KEPT)
        assert desk.store.state_of(other) is None
        assert page.locator("#review-list li:nth-child(2) select option").first.text_content() == "asked again"
        page.screenshot(path=tmp_path / "aside.png")
        page.click("#review-again")
        page.wait_for_function("() => $('review-words').textContent.startsWith('Nothing fits')")
        context.close()
