"""Review: filters, the most doubtful label first, relabelled in place and taken back; in the desk and in a browser."""

import pytest

from browser_cases import count, in_chromium, in_memory, on_both, shown, until_true
from foretaste.label import make_app
from foretaste.label.guard import Guard
from foretaste.label.review import ReviewFilter
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
    assert listed(desk, since="2023-11-15") == all_of_them[:4]
    assert listed(desk, until="2023-11-14") == all_of_them[4:]
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
    for wrong in ("since=yesterday", "only=everything", "start=-1", "start=x"):
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
