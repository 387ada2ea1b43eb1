"""Several people on one item: voices, majority, decisions, agreement; who is asked what; a token a person."""

import random
from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from browser_cases import count, in_chromium, in_memory, shown, until_true
from foretaste.label import LabelStore, StoreConflict, make_app, person_token
from foretaste.label import open_desk as open_source
from foretaste.label.exchange import export_text, label_rows
from foretaste.label.guard import Guard
from foretaste.label.log import LabelEvent
from foretaste.label.overview import describe_project
from foretaste.label.review import ReviewFilter
from foretaste.label.voices import (
    SECOND,
    cohen_kappa,
    hear_voices,
    krippendorff_alpha,
    measure_agreement,
    measure_reliability,
    step_reliability,
    weigh_voices,
)
from label_cases import Client, close_desk, open_desk, pictures

# Krippendorff, Computing Krippendorff's Alpha-Reliability (2011): the published data and results.
TWO_BINARY = ("0100000010", "1110010000")  # α = 0.095
FOUR_OBSERVERS = ("123321412...", "1233224125.3", ".3332342251.", "12332441251.")  # α = 0.743


def slow_kappa(pairs):
    """Cohen 1960, with a table and loops."""
    classes = sorted({c for pair in pairs for c in pair})
    table = [[sum(pair == (a, b) for pair in pairs) for b in classes] for a in classes]
    n = sum(map(sum, table))
    p_o = sum(table[k][k] for k in range(len(classes))) / n
    p_e = sum((sum(table[k]) / n) * (sum(row[k] for row in table) / n) for k in range(len(classes)))
    return (p_o - p_e) / (1 - p_e)


def slow_alpha(units):
    """The coincidence matrix, pair by pair: α = 1 − (n − 1) Σ_{c≠k} o_ck / Σ_{c≠k} n_c n_k."""
    o = Counter()
    for unit in units:
        for i, j in permutations(range(len(unit)), 2):
            o[unit[i], unit[j]] += 1 / (len(unit) - 1)
    n_c = Counter()
    for (c, _), many in o.items():
        n_c[c] += many
    n = sum(n_c.values())
    seen = sum(many for (c, k), many in o.items() if c != k)
    return 1 - (n - 1) * seen / sum(n_c[c] * n_c[k] for c in n_c for k in n_c if c != k)


def columns(rows):
    return [[c for c in unit if c != "."] for unit in zip(*rows)]


def test_agreement_has_the_numbers_that_were_published():
    # Two people on 50 proposals: 20 both yes, 5 and 10 differ, 15 both no. κ = (0.7 − 0.5) / (1 − 0.5).
    table = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    assert cohen_kappa(table) == (pytest.approx(0.4), pytest.approx(0.5))
    assert krippendorff_alpha(columns(TWO_BINARY))[0] == pytest.approx(0.095, abs=5e-4)
    four = [unit for unit in columns(FOUR_OBSERVERS) if len(unit) > 1]
    assert krippendorff_alpha(four)[0] == pytest.approx(0.743, abs=5e-4)


@pytest.mark.parametrize("seed", range(5))
def test_agreement_is_that_of_literal_loops(seed):
    draw = random.Random(seed)
    pairs = [(draw.choice("aabc"), draw.choice("abcd")) for _ in range(30)]
    assert cohen_kappa(pairs)[0] == pytest.approx(slow_kappa(pairs))
    units = [[draw.choice("aabc") for _ in range(draw.randrange(2, 5))] for _ in range(30)]
    assert krippendorff_alpha(units)[0] == pytest.approx(slow_alpha(units))


def test_the_interval_covers_what_would_be_measured_on_very_many_items():
    """People who are right 85 % of the time, three classes of unequal size, 40 items: 95 % within a few points."""
    rng = np.random.default_rng(0)

    def draw(n, people):
        truth = rng.choice(3, n, p=[0.5, 0.3, 0.2])
        said = np.where(rng.random((people, n)) < 0.85, truth, rng.integers(0, 3, (people, n)))
        return [{f"p{w}": str(said[w, k]) for w in range(people)} for k in range(n)]

    for people, name in ((2, "Cohen's kappa"), (4, "Krippendorff's alpha")):
        long_run = measure_agreement(draw(40_000, people)).value
        found = [measure_agreement(draw(40, people)) for _ in range(300)]
        assert found[0].name == name
        inside = np.mean([a.low <= long_run <= a.high for a in found])
        assert 0.92 <= inside <= 1.0, (name, inside)


def test_agreement_needs_items_and_has_a_width_where_all_agree():
    same = [{"Ada": "cat", "Bob": "cat"}, {"Ada": "dog", "Bob": "dog"}] * 3
    assert measure_agreement(same[:4]) is None
    assert measure_agreement([{"Ada": "cat"}] * 20) is None
    found = measure_agreement(same)
    assert (found.value, found.high, found.items, found.same) == (1.0, pytest.approx(1.0), 6, 1.0)
    assert found.low < 0.4
    assert measure_agreement([{"Ada": "cat", "Bob": "cat"}] * 6).value == 1.0  # one class alone


# The store


@pytest.fixture
def store(tmp_path):
    with LabelStore(tmp_path) as store:
        store.set_classes(["cat", "dog", "cow"])
        yield store


def say(store, who, label, purpose=SECOND):
    return store.record("a", "label" if label else "unsure", label or None, who=who, purpose=purpose)


def test_most_voices_count_and_of_a_tie_the_first(store):
    say(store, "Ada", "cat", "teach")
    assert say(store, "Bob", "dog").kind == "label"
    heard = store.voices_of("a")
    assert (store.labels(), heard.disagree, heard.tied) == ({"a": "cat"}, True, True)
    say(store, "Cid", "dog")
    heard = store.voices_of("a")
    assert (store.labels(), heard.disagree, heard.tied) == ({"a": "dog"}, True, False)
    assert heard.labels == {"Ada": "cat", "Bob": "dog", "Cid": "dog"}
    assert say(store, "Cid", "dog").seq == 3  # the same again is no event


def test_somebody_who_is_not_sure_outvotes_nobody(store):
    say(store, "Ada", "", "teach")
    say(store, "Bob", "cow")
    say(store, "Cid", "")
    assert (store.labels(), store.voices_of("a").disagree) == ({"a": "cow"}, False)


def test_a_decision_counts_and_can_be_taken_back(store):
    say(store, "Ada", "cat", "teach")
    say(store, "Bob", "dog")
    store.record("a", "relabel", "dog", who="Bob")  # what he said already
    assert len(store.events()) == 2
    store.record("a", "relabel", "cow", who="Bob")  # nobody has spoken since: his voice
    assert store.voices_of("a").labels == {"Ada": "cat", "Bob": "cow"}
    store.record("a", "relabel", "cat", who="Eve")  # counts already by the tie, and is a decision all the same
    heard = store.voices_of("a")
    assert (heard.decision.who, heard.disagree, store.labels()) == ("Eve", False, {"a": "cat"})
    say(store, "Cid", "cow")  # late: the decision stands
    assert store.labels() == {"a": "cat"}
    with pytest.raises(StoreConflict, match="somebody else since"):
        store.undo(who="Ada")  # decided
    store.undo(who="Eve")
    assert store.labels() == {"a": "cow"}


def test_a_voice_is_taken_back_though_another_has_spoken(store, tmp_path):
    say(store, "Ada", "cat", "teach")
    say(store, "Bob", "dog")
    undone = store.undo(who="Ada")
    assert (undone.label, store.labels(), store.voices_of("a").labels) == ("dog", {"a": "dog"}, {"Bob": "dog"})
    say(store, "Ada", "dog")
    before = store.voices_of("a")
    store.change_class("rename", who="Eve", name="dog", to="hound")
    assert store.voices_of("a").labels == {"Bob": "hound", "Ada": "hound"}
    store.close()
    with LabelStore(tmp_path) as again:
        assert [e.seq for e in again.voices_of("a").voices.values()] == [e.seq for e in before.voices.values()]


# How reliable people are


def slow_reliability(units, decided, C, steps=50):
    """The model of one coin (Dawid and Skene 1979) with loops over all classes. ``decided``: item → class or None."""
    people = sorted({who for unit in units for who in unit})
    a = dict.fromkeys(people, 0.8)
    for _ in range(steps):
        right, said = Counter(), Counter()
        for unit, sure in zip(units, decided):
            q = [1.0] * C
            for c in range(C):
                for who, label in unit.items():
                    q[c] *= a[who] if label == str(c) else (1 - a[who]) / (C - 1)
            q = [v / sum(q) for v in q] if sure is None else [float(str(c) == sure) for c in range(C)]
            for who, label in unit.items():
                right[who] += q[int(label)]
                said[who] += 1
        a = {who: min(max((4 + right[who]) / (5 + said[who]), 1 / C), 0.98) for who in people}
    return a


def slow_posterior(unit, a, C):
    q = [1.0] * C
    for c in range(C):
        for who, label in unit.items():
            q[c] *= a[who] if label == str(c) else (1 - a[who]) / (C - 1)
    return [v / sum(q) for v in q]


def simulate(seed, n, C, rates, k):
    """(truth, units): k people, drawn for each item, say the truth at their own rate, and else any other class."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, C, n)
    units = []
    for y in truth:
        who = rng.choice(len(rates), k, replace=False)
        wrong = (y + rng.integers(1, C, k)) % C
        said = np.where(rng.random(k) < np.array(rates)[who], y, wrong)
        units.append({f"p{w}": str(c) for w, c in zip(who, said)})
    return truth, units


def as_voices(units, decided):
    found = []
    for n, (unit, sure) in enumerate(zip(units, decided)):
        events = [
            LabelEvent(0, "", who, "", str(n), "label", label, purpose=SECOND if k else "teach")
            for k, (who, label) in enumerate(unit.items())
        ]
        sure = [LabelEvent(0, "", "owner", "", str(n), "relabel", sure)] if sure is not None else []
        found.append(hear_voices([*events, *sure]))
    return found


@pytest.mark.parametrize(("seed", "C"), [(0, 2), (1, 3), (2, 7)])
def test_reliability_is_that_of_literal_loops(seed, C):
    truth, units = simulate(seed, 40, C, (0.4, 0.6, 0.9, 0.95), 3)
    decided = [str(y) if n % 9 == 0 else None for n, y in enumerate(truth)]
    heard = as_voices(units, decided)
    want = slow_reliability(units, decided, C)
    found = measure_reliability(heard, C)
    assert {who: a for who, (a, _) in found.items()} == pytest.approx(want, rel=1e-9)
    assert {who: n for who, (_, n) in found.items()} == Counter(who for unit in units for who in unit)
    for unit, sure, one in zip(units, decided, heard):
        weighed = weigh_voices(one, want, C)
        if sure is not None:
            assert (weighed.counts.label, weighed.doubt) == (sure, 0.0)
            continue
        q = slow_posterior(unit, want, C)
        said = [int(label) for label in unit.values()]
        assert q[int(weighed.counts.label)] == pytest.approx(max(q[c] for c in said))
        assert weighed.doubt == pytest.approx(1 - max(q[c] for c in said), abs=2**-11)


def test_labels_by_reliability_are_better_than_those_of_most():
    """Five people from 0.6 to 0.95, three of them an item, ten classes: the rates are found, and so are more labels."""
    rates = (0.6, 0.7, 0.8, 0.9, 0.95)
    gains = []
    for seed in range(5):
        truth, units = simulate(seed, 400, 10, rates, 3)
        heard = as_voices(units, [None] * len(units))
        found = {who: a for who, (a, _) in measure_reliability(heard, 10).items()}
        assert [found[f"p{w}"] for w in range(5)] == pytest.approx(rates, abs=0.07)
        trust = {who: step_reliability(a, 10) for who, a in found.items()}
        right = [
            np.mean([one.counts.label == str(y) for one, y in zip(some, truth)])
            for some in (heard, [weigh_voices(one, trust, 10) for one in heard])
        ]
        expected = np.mean([1 - weigh_voices(one, trust, 10).doubt for one in heard])
        assert expected == pytest.approx(right[1], abs=0.04)  # it knows how many are wrong
        gains.append(right[1] - right[0])
    assert min(gains) > 0


def test_the_store_weighs_people_and_a_restart_finds_the_same(store, tmp_path):
    """One person is nearly always alone: their voice no longer wins a tie, nor does what they said alone go unasked."""
    truth = ["cat", "dog", "cow"]
    for n in range(12):
        y = truth[n % 3]
        for who, label in (("Bad", truth[(n + 1 + n % 2) % 3]), ("Ada", y), ("Bob", y)):
            store.record(f"i{n}", "label", label, who=who, purpose="teach" if who == "Bad" else SECOND)
    store.record("tie", "label", "cat", who="Bad", purpose="teach")
    store.record("tie", "label", "dog", who="Ada", purpose=SECOND)
    store.record("alone", "label", "cow", who="Bad", purpose="teach")
    assert (store.labels()["tie"], store.doubt_of("tie"), store.doubt_of("alone")) == ("cat", 0.0, 0.0)
    store.set_votes("reliability")
    trust = store.trust()
    assert trust == {"Ada": 0.95, "Bob": 0.95, "Bad": 0.35}  # (4 + a few) / (5 + 13), in steps
    assert store.labels()["tie"] == "dog"
    assert store.doubt_of("tie") == pytest.approx(0.05, abs=0.01)
    assert store.doubt_of("alone") == pytest.approx(0.65, abs=1e-3)
    assert store.labels()["alone"] == "cow"
    undone = store.undo(who="Ada")
    assert (undone.item, undone.label, store.labels()["tie"]) == ("tie", "cat", "cat")
    store.record("tie", "label", "dog", who="Ada", purpose=SECOND)
    rows = {row.item: row for row in label_rows(store)}
    assert (rows["tie"].label, rows["tie"].doubt) == ("dog", round(store.doubt_of("tie"), 3))
    assert "doubt" in next(iter(export_text(rows.values(), "csv"))).split(",")[-1]
    before = (store.labels(), store.reliability(), {i: store.doubt_of(i) for i in rows})
    store.close()
    with LabelStore(tmp_path) as again:
        assert (again.labels(), again.reliability(), {i: again.doubt_of(i) for i in rows}) == before
        again.set_votes("majority")
        assert (again.labels()["tie"], again.doubt_of("tie"), again.reliability()) == ("cat", 0.0, {})
        with pytest.raises(ValueError, match="majority"):
            again.set_votes("reliabilty")


def test_an_item_that_is_asked_again_is_as_if_nobody_had_been_asked(store, tmp_path):
    store.record("z", "label", "dog", who="Ada")
    store.record("z", "label", "cat", who="Bob", purpose=SECOND)
    store.record("z", "relabel", "dog", who="Eve")
    assert [e.undoes for e in store.reopen("z", who="Eve")] == [e.seq for e in store.events() if e.item == "z"][2::-1]
    assert store.reopen("z", who="Eve") == []
    assert (store.state_of("z"), dict(store.voices_of("z").voices)) == (None, {})
    store.close()
    with LabelStore(tmp_path) as again:
        assert again.state_of("z") is None
        assert again.record("z", "label", "cat", who="Bob").before_label is None


def test_what_votes_count_by_is_kept_for_the_next_time(tmp_path):
    source = tmp_path / "few.csv"
    source.write_text("text\n" + "".join(f"this is text number {k}\n" for k in range(9)))
    settings = {"classes": ["good", "bad"], "backbone": "none", "start": False}
    for votes, want in ((None, "majority"), ("reliability", "reliability"), (None, "reliability")):
        desk = open_source(source, votes=votes, **settings)
        assert desk.store.votes == want
        close_desk(desk)
    with pytest.raises(ValueError, match="for one class an item; the task here is several"):
        open_source(source, votes="reliability", task="several", store=tmp_path / "other", **settings)


# The desk


def test_the_model_learns_what_people_say_with_their_doubts(tmp_path):
    """What changes for one answer is told of all: the doubts of the learner are those of the store."""
    desk = open_desk(tmp_path, pictures(24), voices_each=3, check_every=0)
    desk.store.set_votes("reliability")
    for n, item in enumerate(desk.data.ids):
        y = ("cat", "dog")[n % 2]
        for who in ("Ada", "Bob", "Cid")[: 3 if n < 20 else 1]:
            said = y if who != "Ada" or n % 2 else "dog"
            answer(desk, who, item, said)
    desk.worker.wait_for(desk.worker.tell(desk.data.ids[0]), 20)
    doubts = {i: desk.store.doubt_of(i) for i in desk.data.ids}
    assert len(set(doubts.values())) >= 3
    assert desk.learner.labels == desk.store.labels()
    assert {i: desk.learner.doubts.get(i, 0.0) for i in doubts} == doubts
    row = next(r for r in desk.review.rows(ReviewFilter())["items"] if r["item"] == desk.data.ids[0])
    assert row["sure"] == 1 - doubts[desk.data.ids[0]] > 0.8
    told = {p["who"]: p["reliable"] for p in describe_project(desk)["people"]}
    assert told["Ada"][0] < told["Bob"][0]
    assert told["Ada"][1] == 20
    close_desk(desk)


def ask(desk, who):
    return desk.next(f"tab-of-{who}", who, count=1)[0]


def answer(desk, who, item, label):
    return desk.answer(f"tab-of-{who}", who, item, "label", label, patience=20)


@pytest.fixture
def now(monkeypatch):
    """A clock that a test moves on: what is older than half a minute is passed on."""
    clock = [1_700_000_000.0]
    monkeypatch.setattr("foretaste.label.desk.time.time", lambda: clock[0])
    return clock


@pytest.mark.parametrize("each", [2, 3])
def test_every_item_is_answered_by_so_many_people_once_each_and_by_no_more(tmp_path, now, each):
    desk = open_desk(tmp_path, pictures(30), lease=1e9, voices_each=each, check_every=3)
    desk.store._clock = lambda: now[0]
    people, done = ["Ada", "Bob", "Cid"], dict.fromkeys(["Ada", "Bob", "Cid"], 0)
    draw = random.Random(each)
    while items := {who: found for who in people if (found := desk.next(f"tab-of-{who}", who, count=1))}:
        who = draw.choice(sorted(items))
        shown = desk.show(items[who][0], who)
        assert shown["answer"] is None
        assert not (shown.get("second") and shown["likely"])
        answer(desk, who, items[who][0], draw.choice(["cat", "dog"]))
        done[who] += 1
        now[0] += 60
    assert sum(done.values()) == 30 * each
    for item in desk.data.ids:
        assert len(desk.store.voices_of(item).labels) == each
    assert desk.state("Ada")["mine"] == done["Ada"]
    assert desk.store.labels() == {i: desk.store.voices_of(i).counts.label for i in desk.data.ids}
    taught = {i: label for i, label in desk.store.labels().items() if i not in desk.check_ids}
    desk.worker.wait_for(desk.worker.tell(desk.data.ids[0]), 20)
    assert desk.learner.labels == taught
    close_desk(desk)


def test_a_share_is_drawn_by_name_and_one_person_alone_gets_new_items(tmp_path, now):
    desk = open_desk(tmp_path, pictures(200), voices_each=2, voices_share=0.3)
    desk.store._clock = lambda: now[0]
    share = [i for i in desk.data.ids if desk.in_share(i)]
    assert 40 <= len(share) <= 80
    for _ in range(20):
        answer(desk, "Ada", ask(desk, "Ada"), "cat")
        now[0] += 60
    assert len(desk.store.labels()) == 20
    both = [i for i in desk.store.labels() if i in share]
    assert both
    assert desk.state("Bob")["waiting"] == len(both)
    assert desk.state("Ada")["waiting"] == 0
    assert [row["who"] for row in desk.recent("Bob")] == []
    asked = []
    for _ in range(4 * len(both)):
        asked.append(ask(desk, "Bob"))
        answer(desk, "Bob", asked[-1], "dog")
        now[0] += 60
    assert {i for i in asked if i in both} == {*both}  # among new ones, the oldest first
    assert [i for i in asked if i in both] == both
    assert len(desk.review.rows(ReviewFilter(only="people"))["items"]) == len(both) == desk.state()["disagree"]
    other = next(i for i in desk.store.labels() if i not in share and i not in asked)
    with pytest.raises(StoreConflict, match="Ada has answered"):
        answer(desk, "Bob", other, "dog")
    close_desk(desk)


def test_what_a_person_may_still_take_back_is_not_passed_on(tmp_path, now):
    desk = open_desk(tmp_path, pictures(30), voices_each=2)
    desk.store._clock = lambda: now[0]
    first = [ask(desk, "Ada")]
    answer(desk, "Ada", first[0], "cat")
    assert desk.state("Bob")["waiting"] == 0
    for _ in range(3):
        first.append(ask(desk, "Ada"))
        answer(desk, "Ada", first[-1], "cat")
    assert desk._waiting("Bob") == first[:1]
    now[0] += 31
    assert desk._waiting("Bob") == first
    close_desk(desk)


# Tokens


def test_each_person_has_a_token_and_answers_in_that_name_alone(tmp_path):
    desk = open_desk(tmp_path, pictures(20), voices_each=2)
    owner = "the-token-of-the-owner"
    client = Client(Guard(make_app(desk), token=owner, people=["Ada", "Bob"]))
    ada, boss = {"authorization": f"Bearer {person_token(owner, 'Ada')}"}, {"authorization": f"Bearer {owner}"}
    assert person_token(owner, "Ada") != person_token(owner, "Bob")
    assert client.get("/api/me", authorization=f"Bearer {person_token(owner, 'Eve')}").status == 401
    assert (client.get("/api/me", **ada).json, client.get("/api/me", **boss).json) == (
        {"person": "Ada"},
        {"person": None},
    )
    tab = {"tab": "tab-one-1"}
    assert client.post("/api/next", tab | {"who": "Bob"}, **ada).status == 403
    item = client.post("/api/next", tab | {"who": "Ada"}, **ada).json["items"][0]["item"]
    said = tab | {"who": "Ada", "item": item, "kind": "label", "label": "cat"}
    assert client.post("/api/answer", said, **ada).status == 200
    desk.answer("tab-two-2", "Bob", "p015.png", "label", "dog")
    assert client.post("/api/answer", said | {"item": "p015.png", "kind": "relabel"}, **ada).status == 409
    assert [r["item"] for r in client.get("/api/review?who=Bob", **ada).json["items"]] == []
    assert [r["item"] for r in client.get("/api/review", **ada).json["items"]] == [item]
    assert len(client.get("/api/review", **boss).json["items"]) == 2
    for path in ("/api/overview", "/api/export/csv"):
        assert (client.get(path, **ada).status, client.get(path, **boss).status) == (403, 200)
    assert client.get("/api/classes", **ada).status == 200
    assert client.post("/api/classes", tab | {"who": "Ada", "kind": "add", "name": "hen"}, **ada).status == 403
    cookie = client.post("/api/login", {"token": person_token(owner, "Ada")}).headers["set-cookie"].split(";")[0]
    assert client.get("/api/me", cookie=cookie).json == {"person": "Ada"}
    with pytest.raises(ValueError, match="a token of the owner is required"):
        Guard(make_app(desk), people=["Ada"])
    close_desk(desk)


@in_chromium
def test_two_people_answer_the_same_items_and_the_owner_decides(tmp_path, browser, monkeypatch):
    monkeypatch.setattr("foretaste.label.desk.FRESH_SECONDS", 0.0)
    owner = "the-token-of-the-owner"
    with in_memory(tmp_path, 6, desk={"voices_each": 2}, token=owner, people=["Ada", "Bob"]) as server:
        said = {}
        for who, key in (("Ada", "1"), ("Bob", "2")):
            page = browser.new_context(viewport={"width": 390, "height": 800}).new_page()
            page.goto(f"{server.address}#token={person_token(owner, who)}")
            shown(page)
            assert page.input_value("#who") == who
            assert not page.is_editable("#who")
            assert page.is_hidden("#export")
            assert page.is_hidden("#views [data-view=overview]")
            page.keyboard.press("F9")
            assert page.is_visible("#stage")
            for n in range(1, 7):
                item = shown(page)
                if page.text_content("#ribbon") == "Others answer this one too" and page.is_visible("#ribbon"):
                    assert page.text_content("#guess") == ""
                said.setdefault(item, {})[who] = ("cat", "dog")[int(key) - 1]
                page.keyboard.press(key)
                page.wait_for_function("n => state.mine === n", arg=n)
            page.wait_for_selector("#note:not([hidden])")
            page.context.close()
        assert {i: server.desk.store.voices_of(i).labels for i in server.desk.data.ids} == said
        page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
        page.goto(f"{server.address}#token={owner}")
        count(page, 6)
        assert "6 on which people disagree" in page.text_content("#rest")
        page.fill("#who", "Eve")
        page.keyboard.press("Enter")
        page.keyboard.press("F2")
        page.focus("#review-filter select[name=only]")
        page.select_option("#review-filter select[name=only]", "people")
        page.wait_for_function("() => document.querySelectorAll('.voices button').length === 12")
        page.keyboard.press("Escape")
        page.keyboard.press("1")  # what counts already by the tie: decided all the same
        page.click("#review-list li:nth-child(2) .voices button:nth-child(2)")
        until_true(page, "sessionStorage['foretaste-outbox'] === '[]'")
        decided = [server.desk.store.voices_of(i).decision for i in sorted(said)]
        assert sorted(e.label for e in decided if e) == ["cat", "dog"]
        assert {e.who for e in decided if e} == {"Eve"}
        page.click("#review-again")
        page.wait_for_function("() => document.querySelectorAll('#review-list li').length === 4")
        page.keyboard.press("F9")
        page.wait_for_selector("#overview-people tbody tr:nth-child(3)")
        tiles = page.eval_on_selector_all(".tile", "all => all.map((e) => [...e.children].map((c) => c.textContent))")
        told = {title: much for title, much, *_ in tiles}
        assert (told["Labelled"], told["Agreement"], told["People disagree"]) == ("6 of 6", "0.00", "4")
        rows = page.eval_on_selector_all("#overview-people tbody tr", "all => all.map((e) => e.innerText.split('\\t'))")
        assert [(row[0], row[1], row[5]) for row in rows] == [
            ("Ada", "6", "1 of 2, 4 open"), ("Bob", "6", "1 of 2, 4 open"), ("Eve", "2", "–"),
        ]  # fmt: skip
        page.context.close()
