"""The desk: who gets which item, what the learner hears of it, and what the page is told."""

import threading
import time
from types import SimpleNamespace

import pytest

from foretaste.label import LabelStore, StoreConflict
from foretaste.label.desk import class_keys
from foretaste.label.store import CopyGroups
from foretaste.label.voices import wilson
from foretaste.label.worker import (
    LearnerWorker,
    describe_advice,
    describe_change,
    describe_reason,
    return_free_memory,
)
from label_cases import MemoryItems, close_desk, open_desk, pictures


@pytest.fixture
def desk(tmp_path):
    desk = open_desk(tmp_path / "store")
    yield desk
    close_desk(desk)


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def label(desk, item, name="cat", tab="tab1", who="Ada", kind="label"):
    return desk.answer(tab, who, item, kind, name, patience=20)


def test_the_learner_hears_every_kind_of_answer(desk):
    learner = desk.learner
    label(desk, "p000.png", "cat")
    label(desk, "p001.png", "dog")
    assert learner.labels == {"p000.png": "cat", "p001.png": "dog"}
    label(desk, "p000.png", "dog")
    assert learner.labels["p000.png"] == "dog"
    label(desk, "p002.png", None, kind="ignore")
    label(desk, "p003.png", None, kind="unsure")
    assert learner.ignored == {"p002.png", "p003.png"}
    label(desk, "p004.png", None, kind="skip")
    assert "p004.png" not in learner.ignored | set(learner.labels)
    for _ in range(3):
        desk.undo("tab1", "Ada", patience=20)
    assert learner.ignored == set()
    desk.undo("tab1", "Ada", patience=20)
    assert learner.labels["p000.png"] == "cat"
    desk.undo("tab1", "Ada", patience=20)
    desk.undo("tab1", "Ada", patience=20)
    assert learner.labels == {}


def test_the_next_item_is_the_learners_and_knows_of_the_answer(desk):
    until(lambda: desk.worker.view.ready)
    first, second = desk.next("tab1", "Ada")
    assert (first, second) == ("p000.png", "p001.png")  # the learner's order, not the random one
    desk.answer("tab1", "Ada", first, "label", "cat", patience=20)
    assert first in desk.learner.labels
    assert desk.next("tab1", "Ada") == ["p001.png", "p002.png"]
    assert desk.next("tab1", "Ada") == ["p001.png", "p002.png"]  # a reload shows the same


def test_tabs_get_different_items_and_a_closed_one_gives_back(desk):
    got = [item for tab in ("tab1", "tab2", "tab3") for item in desk.next(tab, "Ada")]
    assert len(set(got)) == 6
    desk.leave("tab1")
    assert not desk.store.held("tab1")
    with pytest.raises(StoreConflict, match="on the screen"):
        desk.answer("tab2", "Bob", desk.store.held("tab3")[0], "label", "cat")


def test_many_at_once_never_get_the_same_item(tmp_path):
    desk = open_desk(tmp_path / "store", pictures(200), check_every=6)
    answered, faults = [], []

    def annotate(tab):
        try:
            while items := desk.next(tab, tab):
                event = desk.answer(tab, tab, items[0], "label", "cat")
                answered.append(event.item)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=annotate, args=(f"person{k}",)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    close_desk(desk)
    assert not faults
    assert sorted(answered) == desk.data.ids  # each once, none left


def test_skipped_items_come_last_and_set_aside_ones_never(tmp_path):
    desk = open_desk(tmp_path / "store", pictures(4))
    order = []
    kinds = iter(["skip", "ignore", "unsure", "label", "label"])
    while items := desk.next("tab1", "Ada", count=1):
        kind = next(kinds)
        order.append(items[0])
        desk.answer("tab1", "Ada", items[0], kind, "cat" if kind == "label" else None)
    assert len(order) == 5
    assert order[4] == order[0]
    state = desk.state("Ada")
    close_desk(desk)
    assert (state["labelled"], state["unsure"], state["ignored"], state["left"]) == (2, 1, 1, 0)


def test_an_item_that_is_skipped_again_rests_until_it_is_asked_for(tmp_path):
    desk = open_desk(tmp_path / "store", pictures(4))

    def skip_all():
        order = []
        while items := desk.next("tab1", "Ada", count=1):
            order.append(items[0])
            desk.answer("tab1", "Ada", order[-1], "skip")
            assert len(order) < 20, "it never ends"
        return order

    first = skip_all()
    assert len(set(first)) == 4
    assert first[4:] == first[:4]  # each comes back once, in the same order
    assert (desk.state()["parked"], desk.state()["left"]) == (4, 4)
    desk.undo("tab1", "Ada")
    assert desk.next("tab1", "Ada") == [first[-1]]
    desk.answer("tab1", "Ada", first[-1], "skip")
    assert desk.next("tab1", "Ada") == []
    assert desk.next("tab1", "Ada", count=1, again=True) == [first[0]]
    assert desk.state()["parked"] == 0
    assert skip_all() == first[:4]
    close_desk(desk)
    desk = open_desk(tmp_path / "store", pictures(4))
    assert skip_all() == first[:4]  # a new session asks once more
    close_desk(desk)


def test_skipped_items_leave_the_others_in_the_learners_order(desk):
    until(lambda: desk.worker.view.ready)
    asked = []
    for _ in range(6):
        asked.append(desk.next("tab1", "Ada", count=1)[0])
        label(desk, asked[-1], None, kind="skip")
        until(lambda: desk.worker.view.ready and asked[-1] not in desk.worker.view.ready)
    assert asked == [f"p{k:03d}.png" for k in range(6)]
    desk.undo("tab1", "Ada", patience=20)
    label(desk, "p000.png", "cat")
    until(lambda: desk.learner.labels == {"p000.png": "cat"})


def test_the_name_of_a_request_holds_for_one_answer(desk):
    def answer(item, kind="label", name=None):
        return desk.answer("tab1", "Ada", item, kind, name, request="r1")

    first = answer("p000.png", name="cat")
    assert answer("p000.png", name="cat") == first
    for item, kind, name in (
        ("p001.png", "label", "cat"),
        ("p000.png", "label", "dog"),
        ("p000.png", "skip", None),
    ):
        with pytest.raises(ValueError, match=r"'r1' was a label of p000\.png before; nothing was kept"):
            answer(item, kind, name)
    with pytest.raises(ValueError, match="a name of its own"):
        desk.undo("tab1", "Ada", request="r1")
    assert desk.store.labels() == {"p000.png": "cat"}
    again = desk.answer("tab1", "Ada", "p000.png", "label", "dog", request="r2")  # kept as a relabel
    assert desk.answer("tab1", "Ada", "p000.png", "label", "dog", request="r2") == again


def test_copies_are_not_asked_for(tmp_path):
    desk = open_desk(tmp_path / "store", pictures(5), twins={"p001.png": "p000.png"})
    seen = []
    while items := desk.next("tab1", "Ada", count=1):
        seen.append(items[0])
        desk.answer("tab1", "Ada", items[0], "label", "cat")
    state = desk.state()
    close_desk(desk)
    assert sorted(seen) == ["p000.png", "p002.png", "p003.png", "p004.png"]
    assert (state["total"], state["copies"], state["left"]) == (4, 1, 0)


def test_a_label_of_any_copy_counts_for_all_of_them(tmp_path):
    """It was kept from the learner where another copy was the first, and the item was asked again."""
    desk = open_desk(tmp_path / "store", pictures(4), twins={"p001.png": "p000.png", "p002.png": "p000.png"})
    label(desk, "p002.png", "dog")
    label(desk, "p003.png", "cat")
    until(lambda: desk.learner.labels == {"p000.png": "dog", "p003.png": "cat"})
    assert desk.next("tab1", "Ada") == []
    assert desk.show("p000.png")["answer"]["label"] == "dog"
    state = desk.state("Ada")
    assert (state["total"], state["labelled"], state["left"], state["mine"]) == (2, 2, 0, 2)
    desk.undo("tab1", "Ada", patience=20)
    desk.undo("tab1", "Ada", patience=20)
    until(lambda: desk.learner.labels == {})
    assert desk.next("tab1", "Ada") == ["p003.png", "p002.png"]  # what was undone is shown again
    assert desk.next("tab2", "Bob") == []  # nor its copies to others
    close_desk(desk)


def test_the_last_answer_of_a_person_counts_where_copies_have_different_labels(tmp_path):
    desk = open_desk(tmp_path / "store", pictures(4), twins={"p001.png": "p000.png"})
    desk.store.record("p000.png", "label", "dog", who="given", purpose="teach")
    label(desk, "p001.png", "cat")
    until(lambda: desk.learner.labels == {"p000.png": "cat"})
    (told,) = desk.contradictions()
    assert told == "p000.png (dog, in the data) and p001.png (cat, by Ada) are copies: cat counts; relabel one of them"
    assert sorted(desk.next("tab1", "Ada", count=4)) == ["p002.png", "p003.png"]
    desk.leave("tab1")
    label(desk, "p000.png", "cat", kind="relabel")
    assert desk.contradictions() == []
    close_desk(desk)


@pytest.mark.parametrize(("weak", "strong"), [("skip", "unsure"), ("skip", "ignore"), ("ignore", "label")])
def test_the_answer_that_says_more_counts_for_all_copies_and_not_the_last(tmp_path, weak, strong):
    with LabelStore(tmp_path) as store:
        store.set_classes(["cat"])
        store.record("copy.png", strong, "cat" if strong == "label" else None, who="Ada")
        store.record("first.png", weak, who="Ada")
        groups = CopyGroups({"copy.png": "first.png"})
        assert groups.in_force(store.current())["first.png"].kind == strong


def test_a_copy_of_an_item_that_measures_is_not_taught(tmp_path):
    desk = open_desk(tmp_path / "store", pictures(100), check_every=5)
    check = next(iter(desk.check_ids))
    label(desk, check, "cat")
    close_desk(desk)
    first = "p000.png" if check != "p000.png" else "p001.png"  # a copy that sorts before it
    again = open_desk(tmp_path / "store", pictures(100), twins={check: first}, check_every=5)
    assert first in again.check_ids
    assert check not in again.check_ids
    label(again, "p050.png" if check != "p050.png" else "p051.png", "dog")
    until(lambda: set(again.learner.labels.values()) == {"dog"})
    until(lambda: again.worker.describe()["phase"] == "first labels")
    assert set(again.learner.labels.values()) == {"dog"}
    close_desk(again)


def test_items_that_measure_are_random_and_never_taught(tmp_path):
    desk = open_desk(tmp_path / "store", pictures(100), check_every=5)
    asked = []
    for k in range(30):
        item = desk.next("tab1", "Ada", count=1)[0]
        asked.append(item in desk.check_ids)
        desk.answer("tab1", "Ada", item, "label", "cat" if k % 3 else "dog", patience=20)
    assert asked == [k % 5 == 4 for k in range(30)]
    assert not set(desk.learner.labels) & set(desk.check_ids)
    assert len(desk.learner.labels) == 24
    until(lambda: desk.worker.view.checked and desk.worker.view.checked[-1][2] == 6)
    curve = desk.state()["curve"]
    checks = desk.check_ids
    close_desk(desk)
    assert curve["checked"] == 6
    low, high = curve["check"][-1][2:]
    assert 0 <= low < high <= 1
    again = open_desk(tmp_path / "store", pictures(100), check_every=5)
    assert list(again.check_ids) == list(checks)  # the same ones after a restart
    assert len(again.state()["curve"]["running"]) > 10
    until(lambda: len(again.learner.labels) == 24)
    close_desk(again)


def test_nothing_that_the_model_says_of_an_item_that_measures_goes_to_the_page(tmp_path):
    """Who sees the guess agrees with it too often: the accuracy that is measured so is too high."""
    desk = open_desk(tmp_path / "store", pictures(100), check_every=3)
    for k in range(4):
        item = desk.next("tab1", "Ada", count=1)[0]
        label(desk, item, "cat" if k % 2 else "dog")
    item, other = sorted(desk.next("tab1", "Ada"), key=desk.measures, reverse=True)
    assert (desk.measures(item), desk.measures(other)) == (True, False)
    label(desk, other, "dog")
    [further] = {*desk.next("tab1", "Ada")} - {item}
    until(lambda: {item, further} <= {*desk.worker.view.guesses})
    assert desk.show(further, "Ada")["likely"]
    assert desk.show(item, "Ada") == {"likely": [], "guess": None, "reason": None, "answer": None}
    assert label(desk, item, "cat").guess is not None  # the log keeps it
    close_desk(desk)


def test_answers_count_before_there_is_a_learner(tmp_path):
    desk = open_desk(tmp_path / "store", start=False)
    items = desk.next("tab1", "Ada")
    assert len(items) == 2
    desk.answer("tab1", "Ada", items[0], "label", "cat", patience=20)  # does not wait: nobody is there
    assert desk.state()["model"]["phase"] == "waiting"
    desk.worker.start()
    until(lambda: desk.learner.labels == {items[0]: "cat"})
    close_desk(desk)


def test_a_model_that_cannot_be_made_is_told_and_labelling_goes_on(tmp_path, caplog):
    desk = open_desk(tmp_path / "store", start=False)

    def fail(progress):
        progress(1, 20)
        raise ValueError("no such backbone")

    desk.worker._build = fail
    desk.worker.start()
    until(lambda: desk.state()["model"]["phase"] == "failed")
    assert desk.state()["model"]["error"] == "no such backbone"
    item = desk.next("tab1", "Ada")[0]
    assert desk.answer("tab1", "Ada", item, "label", "cat", patience=20).seq == 1
    close_desk(desk)
    assert "no such backbone" in caplog.text


def test_a_learner_that_fails_once_is_told_and_follows_again(desk, caplog):
    teach = desk.learner.teach

    def fail(ids, labels, doubts):
        desk.learner.teach = teach
        raise RuntimeError("a bad moment")

    desk.learner.teach = fail
    label(desk, "p000.png")
    until(lambda: "bad moment" in desk.state()["model"]["error"])
    assert not desk.worker.wait_for(1, 60)  # it does not know that answer
    label(desk, "p001.png", "dog")
    until(lambda: desk.learner.labels == {"p000.png": "cat", "p001.png": "dog"})
    until(lambda: desk.state()["model"]["error"] == "")
    assert desk.store.labels() == {"p000.png": "cat", "p001.png": "dog"}
    caplog.clear()


def test_unknown_items_and_classes_are_refused_by_name(desk):
    with pytest.raises(KeyError, match=r"unknown item .*p00.png.*; did you mean .*p0"):
        label(desk, "p00.png")
    with pytest.raises(ValueError, match="unknown class 'cta'; did you mean 'cat'"):
        label(desk, "p000.png", "cta")


def test_the_prediction_before_the_answer_is_kept(desk):
    label(desk, "p000.png", "cat")
    label(desk, "p001.png", "dog")
    item = desk.next("tab1", "Ada")[0]
    until(lambda: item in desk.worker.view.likely)
    event = label(desk, item, "cat")
    assert (event.guess, event.confidence) == ("dog", pytest.approx(0.9))
    until(lambda: desk.worker.view.changed and desk.worker.view.changed["item"] == item)
    assert desk.worker.view.changed["moved"] == 20
    assert desk.worker.view.changed["most"] == [{"from": "dog", "to": "cat", "count": 20}]
    assert desk.state()["curve"]["running"] == [[3, 0.0, 1]]


def test_the_chart_ends_at_the_count_beside_it(tmp_path):
    """Items that measure count too, and answers that were taken back do not."""
    desk = open_desk(tmp_path / "store", pictures(100), check_every=5)
    for k in range(32):
        item = desk.next("tab1", "Ada", count=1)[0]
        desk.answer("tab1", "Ada", item, "label", "cat" if k % 3 else "dog", patience=20)
        if k == 30:
            until(lambda: {desk.next("tab1", "Ada", count=1)[0]} <= desk.worker.view.likely.keys())
    until(lambda: desk.worker.view.checked and desk.worker.view.checked[-1][::2] == (26, 6))

    def ends():
        state = desk.state()
        curve = state["curve"]
        assert [p[0] for p in curve["running"]] == sorted({p[0] for p in curve["running"]})
        assert [p[0] for p in curve["check"]] == sorted({p[0] for p in curve["check"]})
        return state["labelled"], curve["labelled"], curve["running"][-1][0], curve["check"][-1][0]

    assert ends() == (32, 32, 32, 32)
    for _ in range(3):
        desk.undo("tab1", "Ada", patience=20)
    until(lambda: desk.worker.view.checked[-1][0] < 26)
    labelled, curve, running, check = ends()
    assert labelled == curve == 29
    assert running <= 29
    assert check <= 29
    close_desk(desk)


def test_keys_of_classes():
    assert class_keys(["cat", "dog"]) == [["1", "c"], ["2", "d"]]
    assert class_keys(["a", "B"]) == [["a"], ["b"]]
    for n in (30, 36):
        many = class_keys([f"class {k}" for k in range(n)])
        used = [key for keys in many for key in keys]
        assert all(many)
        assert len(used) == len(set(used)) == n
    assert many[9] == ["0"]
    assert class_keys([f"{k}th" for k in range(12)])[9:] == [["0", "i"], ["j"], ["k"]]
    assert not any(class_keys([f"class {k}" for k in range(40)])[36:])
    assert class_keys(["ab", "a", "b"]) == [["1", "a"], ["2", "b"], ["3", "c"]]


def test_the_interval_of_a_share():
    """Wilson's own example by hand: 8 of 10."""
    low, high = wilson(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)
    assert wilson(0, 5)[0] == 0
    assert wilson(5, 5)[1] == 1


def test_what_an_answer_changed():
    import numpy as np

    got = describe_change("a", np.array(["x", "x", "y"]), np.array(["y", "y", "y"]))
    assert got == {"item": "a", "moved": 2, "of": 3, "most": [{"from": "x", "to": "y", "count": 2}]}
    # The item itself (NaN), one that had the class before and one that goes elsewhere do not follow from the answer.
    before, after = np.array(["x", "x", "y", "x", "x"]), np.array(["y", "y", "y", "z", "y"])
    sure = np.array([np.nan, 0.9, 0.8, 0.7, 0.7])
    assert describe_change("a", before, after, "y", sure)["followed"] == {
        "label": "y", "count": 2, "sure": pytest.approx(0.8),
    }  # fmt: skip
    assert "followed" not in describe_change("a", before, after, "x", sure)
    assert "followed" not in describe_change("a", before, after, None, sure)


def test_what_the_pool_is_worth_is_among_the_advice():
    pool = {"text": "The pool is used: well.", "warning": None}
    assert describe_advice({"pool": pool})["pool"] == {"now": False, "text": "The pool is used: well."}
    warned = describe_advice({"pool": pool | {"warning": "8 of 20 were wrong"}})["pool"]
    assert warned == {"now": True, "text": "The pool is used: well. 8 of 20 were wrong."}
    assert "pool" not in describe_advice({"pool": None})


def test_what_a_label_would_change_is_told_in_words():
    def said(n, label="food"):
        changed = [{"from": "cat", "to": "dog"}] * min(n, 2)
        return describe_reason({"label": label, "changes": n, "changed": changed, "stands_for": n})["text"]

    assert said(0) == "If it is food, no other prediction changes."
    assert said(1) == "If it is food, 1 other prediction changes, from cat to dog. It stands for 1 item like it."
    assert (
        said(8) == "If it is food, 8 other predictions change, mostly from cat to dog. It stands for 8 items like it."
    )


def test_advice_to_stop_is_told_in_words():
    came = {"reason": "about 1.0 % are expected to be wrong; the goal is 2.0 %"}
    assert describe_advice(came | {"stop": True})["stop"]["text"] == f"You may stop: {came['reason']}."
    assert describe_advice(came | {"stop": False})["stop"]["text"] == f"A{came['reason'][1:]}."


def test_texts_and_rows_are_items_too(tmp_path):
    desk = open_desk(tmp_path / "store", MemoryItems("text", ["1", "2"], ["good", "bad"]))
    assert {*desk.next("tab1", "Ada")} == {"1", "2"}
    close_desk(desk)


def test_a_desk_that_is_closed_while_features_are_computed_says_nothing(tmp_path, caplog):
    desk = open_desk(tmp_path / "store", start=False)
    begun = threading.Event()

    def build(progress):
        while True:
            progress(1, 20)
            begun.set()

    desk.worker._build = build
    desk.worker.start()
    assert begun.wait(60)
    close_desk(desk)
    desk.worker.join(60)
    assert not desk.worker.is_alive()
    assert caplog.text == ""


def test_a_worker_that_never_started_closes():
    worker = LearnerWorker(lambda progress: None, ["cat"])
    worker.close()
    assert not worker.is_alive()


def test_tabs_without_a_sign_of_life_are_forgotten(desk, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("foretaste.label.desk.time", SimpleNamespace(monotonic=lambda: clock[0]))
    for k in range(50):
        clock[0] += 10
        desk.next(f"tab-{k}", "Ada", count=0)
        desk.alive("tab-0", "Bob")
        assert len(desk._seen) <= 7
    assert {"tab-0", "tab-49", "tab-44"} <= set(desk._seen)
    assert "tab-40" not in desk._seen
    assert desk.state()["active"] == len(desk._seen)
    clock[0] += 100
    assert desk.state()["active"] == 0
    label(desk, "p000.png")
    assert list(desk._seen) == ["tab1"]


def test_free_memory_goes_back_to_the_system_now_and_then(desk, monkeypatch):
    calls = []
    monkeypatch.setattr("foretaste.label.worker.TRIMMED_EVERY", 4)
    monkeypatch.setattr("foretaste.label.worker.return_free_memory", lambda: calls.append(desk.worker._labels))
    for k in range(10):
        label(desk, f"p{k:03d}.png", ["cat", "dog"][k % 2])
    desk.worker.close()
    assert calls
    assert all(now - last >= 4 for last, now in zip([0, *calls], calls))
    return_free_memory()  # on any machine
