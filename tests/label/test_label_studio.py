"""Label Studio: the routes of its ML backend, webhooks that a real one sent, and a queue that follows our ranking."""

import json
import logging
import socket
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import uvicorn
from typer.testing import CliRunner

from foretaste.cli.app import app as command
from foretaste.label import label_studio
from foretaste.label.guard import Guard
from foretaste.label.label_studio import WEBHOOK_BODIES, LabelStudio, LabelStudioLink, add_ml_backend
from foretaste.label.server import make_app, open_port
from foretaste.label.store import StoreFull
from foretaste.label.studio_tasks import ChoiceControl, TaskNames, find_choices
from label_cases import Client, MemoryItems, close_desk, open_desk
from real_studio.server import executable

TEXTS = MemoryItems("text", [f"r{k}" for k in range(6)], [f"text number {k}" for k in range(6)])
RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "label_studio_webhooks.json").read_text())
PARSED = {"label": {"type": "Choices", "to_name": ["item"], "labels": ["cat", "dog"]}}


def choose(*labels):
    return [{"from_name": "label", "to_name": "item", "type": "choices", "value": {"choices": list(labels)}}]


class PlainStudio:
    """A Label Studio in memory, with the ways of a real 1.23.2 that matter here."""

    def __init__(self, texts, first=100, **project):
        self.tasks = {first + k: {"id": first + k, "data": {"text": text}} for k, text in enumerate(texts)}
        self.annotations, self.predictions, self.calls, self.down = {}, {}, [], False
        self.hooks = [{"url": "http://127.0.0.1:9090/webhook", "is_active": True, "send_for_all_actions": True,
                       "send_payload": True, "actions": []}]  # fmt: skip
        self.project = {"id": 1, "created_at": "2026-01-01T00:00:00.000000Z", "parsed_label_config": PARSED,
                        "sampling": "Uncertainty sampling", "model_version": ""} | project  # fmt: skip

    def call(self, method, path, body=None):
        self.calls.append((method, path, body))
        if self.down:
            raise ConnectionError("Label Studio does not answer")
        path, _, query = path.partition("?")
        words = dict(pair.split("=") for pair in query.split("&") if pair)
        way, last = path.rpartition("/")[::2]
        if path == "/api/tasks":
            return self.page(int(words["page"]), int(words["page_size"]), words["include"].split(","))
        if way == "/api/tasks":
            task = self.find(int(last))
            if method == "PATCH":
                task["data"] = json.loads(json.dumps(body["data"]))  # the whole of it is replaced
            return json.loads(json.dumps(task))
        if path == "/api/webhooks/":
            return self.hooks
        if path.endswith("/import/predictions"):
            rows = [row for row in body if self.find(row["task"]) and self.accepts(row["result"])]
            for row in rows:
                self.predictions.setdefault(row["model_version"], {})[row["task"]] = row["score"]
            return {"created": len(rows)}
        if path.endswith("/model-versions"):
            if method == "DELETE":
                self.predictions.pop(body["model_version"], None)
            return {name: len(rows) for name, rows in self.predictions.items()}
        if method == "PATCH":
            if body["model_version"] not in self.predictions:
                raise ConnectionError("Label Studio answered 400: Model version doesn't exist")
            self.project |= body
        return dict(self.project)

    def page(self, page, size, fields):
        tasks = list(self.tasks.values())[(page - 1) * size : page * size]
        if not tasks and page > 1:
            raise ConnectionError("Label Studio answered 404: Invalid page.")
        rows = [task | {"annotations": self.annotations_of(task["id"], fields)} for task in tasks]
        return {"tasks": json.loads(json.dumps(rows)), "total": len(self.tasks)}

    def find(self, task):
        if task not in self.tasks:
            raise ConnectionError(f"Label Studio answered 400: task ID {task} not found in project")
        return self.tasks[task]

    def accepts(self, result):
        """Predictions with labels that are not in the configuration are dropped without an error."""
        return all(r["value"]["choices"][0] in PARSED[r["from_name"]]["labels"] for r in result)

    def annotations_of(self, task, fields):
        """The fields that are asked for are those of annotations too."""
        found = [a for a in self.annotations.values() if a["task"] == task]
        return [{name: value for name, value in a.items() if name in fields} for a in found]

    def annotate(self, task, *labels, who=7, skip=False, at=None):
        """A person annotates or skips a task. Returns the webhook."""
        number = at or 1 + max(self.annotations, default=20)
        annotation = {"id": number, "task": task, "result": choose(*labels) if labels else [], "completed_by": who,
                      "was_cancelled": skip, "updated_at": datetime.now(UTC).isoformat()}  # fmt: skip
        self.annotations[number] = annotation
        action = "ANNOTATION_UPDATED" if at else "ANNOTATION_CREATED"
        return {"action": action, "annotation": annotation, "task": self.tasks[task], "project": dict(self.project)}

    def remove(self, *numbers):
        """Annotations are deleted. Returns the webhook."""
        for number in numbers:
            del self.annotations[number]
        gone = [{"id": number} for number in numbers]
        return {"action": "ANNOTATIONS_DELETED", "annotations": gone, "project": dict(self.project)}

    def order(self):
        """Tasks as "Uncertainty sampling" serves them: open, lowest score of the project's version first."""
        rows = self.predictions.get(self.project["model_version"], {})
        taken = {a["task"] for a in self.annotations.values()}
        return [task for task, _ in sorted(rows.items(), key=lambda row: row[1]) if task not in taken]

    def scores(self):
        """The scores in the tasks' own data."""
        return {
            t: task["data"]["foretaste_score"] for t, task in self.tasks.items() if "foretaste_score" in task["data"]
        }


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


class Linked:
    """A desk, its link and a client of its routes; ``again`` stops them and starts them anew, on the same store."""

    def __init__(self, folder, studio, data=TEXTS, twins=None, **rest):
        self.folder, self.studio, self.data, self.twins, self.rest = folder, studio, data, twins, rest
        self.start()

    def start(self):
        self.desk = open_desk(self.folder, self.data, twins=self.twins)
        self.link = LabelStudioLink(self.desk, self.studio, 1, **self.rest)
        self.link.start()
        app = make_app(self.desk)
        add_ml_backend(app, self.link)
        self.client = Client(Guard(app, routes=WEBHOOK_BODIES))
        if self.studio is not None and not self.studio.down:
            until(lambda: self.link.reads)

    def stop(self):
        self.link.close()
        close_desk(self.desk)

    def again(self):
        self.stop()
        self.start()

    def hook(self, body):
        return self.client.post("/webhook", body)

    def settled(self, order):
        """The queue is this, and nothing of older ones is left."""
        until(lambda: self.studio.order() == order)
        until(lambda: [*self.studio.scores()] == order and [*self.studio.predictions] == [self.link.version])
        places = {task: place for place, task in enumerate(order)}
        assert sorted(self.studio.scores(), key=self.studio.scores().get) == sorted(order, key=places.get)


@pytest.fixture
def opened(tmp_path):
    """Makes what is linked, and closes it."""
    made = []

    def make(studio=None, data=TEXTS, **rest):
        made.append(Linked(tmp_path / "store", studio, data, **rest))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def linked(opened):
    found = opened(PlainStudio(TEXTS.items))
    until(lambda: found.studio.order() == [100, 101, 102, 103, 104, 105])
    return found


def test_the_queue_follows_the_learner(linked):
    desk, studio = linked.desk, linked.studio
    linked.settled([100, 101, 102, 103, 104, 105])
    assert linked.hook(studio.annotate(100, "cat")).json == {"status": "kept"}
    event = desk.store.events()[-1]
    assert (event.item, event.label, event.who) == ("r0", "cat", "label-studio:7")
    linked.settled([101, 102, 103, 104, 105])
    posts = [path for method, path, _ in studio.calls if path.endswith("/import/predictions")]
    assert len(posts) <= 6  # the best at once and the rest of a ranking once; not once for each of its items
    (number,) = studio.annotations
    assert linked.hook(studio.annotate(100, "dog", at=number)).status == 200
    assert desk.store.labels() == {"r0": "dog"}
    assert linked.hook(studio.remove(number)).json == {"status": "kept"}
    assert desk.store.labels() == {}
    linked.settled([100, 101, 102, 103, 104, 105])


def test_recorded_webhooks_mean_what_people_did(opened):
    """What a real Label Studio sent, in its order, and the labels after each."""
    items = MemoryItems("text", [f"r{k}" for k in range(9)], [f"text number {k}" for k in range(9)])
    linked, after, said = opened(data=items), [], []
    for row in RECORDED:
        reply = linked.hook(row["body"])
        said.append((row["step"], reply.json.get("status", reply.status)))
        after.append((row["step"], linked.desk.store.labels()))
    steps = dict(after)
    assert steps["annotated"] == {"r0": "cat"}
    assert steps["updated"] == steps["annotated with a class of others"] == steps["skipped"] == {"r0": "dog"}
    assert steps["annotated after a skip"] == {"r0": "dog", "r2": "cat"}
    assert steps["skipped after an annotation"] == {"r0": "dog"}
    assert steps["deleted"] == {}
    assert steps["two annotated"] == {"r4": "cat", "r5": "dog"}
    assert steps["two deleted in the data manager"] == {}
    assert steps["predictions made annotations"] == {"r3": "cat"}
    assert after[-1][1] == {"r3": "cat"}  # a deleted task takes back nothing
    others = {step: status for step, status in said if status != "kept"}
    assert others == {
        "tasks imported": "ignored",
        "one task created": "ignored",
        "project updated": "ignored",
        "task deleted": "ignored",  # nobody had said anything of them
        "tasks deleted in the data manager": "ignored",
        "tasks imported, no payload": "ignored",
        "annotated, no payload": 422,  # it cannot be kept, so it is not acknowledged
    }
    assert linked.desk.store.state_of("r2").kind == "skip"


def test_webhooks_that_say_too_little_make_the_project_be_read(opened):
    """No payload, new tasks, an annotation that is not known: each is in the store soon."""
    studio = PlainStudio(TEXTS.items[:4])
    linked = opened(studio)
    linked.settled([100, 101, 102, 103])
    studio.annotate(101, "cat")
    assert linked.hook({"action": "ANNOTATION_CREATED"}).json == {"status": "queued"}
    until(lambda: linked.desk.store.labels() == {"r1": "cat"})
    studio.tasks |= {104: {"id": 104, "data": {"text": TEXTS.items[4]}}, 105: {"id": 105, "data": {"text": "other"}}}
    tasks = [dict(studio.tasks[104]), dict(studio.tasks[105])]
    assert linked.hook({"action": "TASKS_CREATED", "tasks": tasks, "project": studio.project}).status == 200
    linked.settled([100, 102, 103, 104])
    studio.annotate(102, "dog")
    assert linked.hook({"action": "ANNOTATIONS_DELETED", "annotations": [{"id": 99}]}).json == {"status": "queued"}
    until(lambda: linked.desk.store.labels() == {"r1": "cat", "r2": "dog"})


def test_the_project_is_read_every_so_often(opened, monkeypatch):
    """Changes that no webhook tells: annotations, deleted ones, new and deleted tasks, another model version."""
    monkeypatch.setattr(label_studio, "READ_SECONDS", 0.05)
    monkeypatch.setattr(label_studio, "READ_SHARE", 1.0)
    studio = PlainStudio(TEXTS.items[:5])
    linked = opened(studio)
    studio.annotate(100, "cat")
    studio.annotate(101, "dog")
    until(lambda: linked.desk.store.labels() == {"r0": "cat", "r1": "dog"})
    linked.settled([102, 103, 104])
    studio.remove(21)
    until(lambda: linked.desk.store.labels() == {"r1": "dog"})
    studio.tasks[105] = {"id": 105, "data": {"text": TEXTS.items[5]}}
    del studio.tasks[103]
    linked.settled([100, 102, 104, 105])
    studio.project["model_version"] = "another model"
    linked.settled([100, 102, 104, 105])
    studio.predictions[linked.link.version].clear()  # somebody deleted the predictions
    linked.settled([100, 102, 104, 105])


def test_a_webhook_that_comes_during_a_reading_counts_more(linked, monkeypatch):
    """What was read before it came is older; and a task that comes then is found by another reading."""
    studio, calls, seen = linked.studio, linked.studio.call, []

    def call(method, path, body=None):
        reply = calls(method, path, body)
        if path.startswith("/api/tasks?") and not seen:
            seen.append(path)
            assert linked.link.hook(studio.annotate(100, "cat")) == "kept"
            assert linked.link.hook(studio.annotate(101, "dog")) == "kept"
            assert linked.link.hook(studio.remove(22)) == "kept"
            del studio.tasks[102]
            gone = {"action": "TASKS_DELETED", "tasks": [{"id": 102}], "project": dict(studio.project)}
            assert linked.link.hook(gone) == "kept"
            studio.tasks[106] = {"id": 106, "data": {"text": TEXTS.items[2]}}
            assert linked.link.hook({"action": "TASKS_CREATED"}) == "queued"
        return reply

    linked.settled([100, 101, 102, 103, 104, 105])
    monkeypatch.setattr(studio, "call", call)
    reads = linked.link.reads
    linked.hook({"action": "TASKS_CREATED"})
    until(lambda: linked.link.reads > reads)
    assert linked.desk.store.labels() == {"r0": "cat"}
    until(lambda: linked.link.reads > reads + 1)
    until(lambda: {*studio.order()} == {101, 103, 104, 105, 106} == {*studio.scores()})
    assert linked.desk.store.labels() == {"r0": "cat"}


def test_what_happened_while_we_were_not_there(linked):
    """Annotated, changed, deleted, skipped and imported between two runs: the second begins with it."""
    studio = linked.studio
    for task, label in ((100, "cat"), (101, "dog"), (102, "cat")):
        linked.hook(studio.annotate(task, label))
    linked.stop()
    studio.remove(21)
    studio.annotate(101, "cat", at=22)
    studio.annotate(103, "dog")
    studio.annotate(104, skip=True)
    linked.start()
    assert linked.desk.store.labels() == {"r1": "cat", "r2": "cat", "r3": "dog"}
    linked.settled([100, 105])


def test_an_annotation_is_taken_back_to_what_was_before(linked):
    """A label that was there before Label Studio's stands again; one of another project is left alone."""
    desk, studio = linked.desk, linked.studio
    desk.store.record("r0", "label", "cat", who="given")
    linked.hook(studio.annotate(100, "dog"))
    linked.hook(studio.annotate(100, "cat", at=21))
    linked.hook(studio.annotate(100, "dog", at=21))
    linked.hook(studio.annotate(101, "dog"))
    assert desk.store.labels() == {"r0": "dog", "r1": "dog"}
    linked.hook(studio.remove(21))
    assert desk.store.labels() == {"r0": "cat", "r1": "dog"}
    studio.project["created_at"] = "2026-02-02T00:00:00.000000Z"  # another project of the same number
    studio.annotations.clear()
    linked.again()
    assert linked.desk.store.labels() == {"r0": "cat", "r1": "dog"}


def test_what_people_say_on_our_own_page_stays(linked):
    """Label Studio's annotation counts when it comes or changes, not each time that it is read."""
    studio = linked.studio
    linked.hook(studio.annotate(100, "cat"))
    linked.desk.answer("tab-0000", "Ada", "r0", "relabel", "dog")
    linked.desk.answer("tab-0000", "Ada", "r1", "label", "dog")
    linked.again()
    assert linked.desk.store.labels() == {"r0": "dog", "r1": "dog"}
    (held,) = linked.desk.next("tab-0001", "Bob", 1)
    assert held == "r2"  # on Bob's screen; what comes last counts
    linked.hook(studio.annotate(102, "cat"))
    assert linked.desk.store.labels() == {"r0": "dog", "r1": "dog", "r2": "cat"}
    linked.desk.answer("tab-0001", "Bob", "r2", "relabel", "dog")
    linked.again()
    assert linked.desk.store.labels() == {"r0": "dog", "r1": "dog", "r2": "dog"}
    said = studio.annotate(102, "cat", at=22)  # the same once more: she means it
    linked.hook(said)
    assert linked.desk.store.labels()["r2"] == "cat"
    linked.desk.answer("tab-0001", "Bob", "r2", "relabel", "dog")
    linked.hook(said)  # the same webhook twice
    assert linked.desk.store.labels()["r2"] == "dog"
    studio.annotate(102, "cat", at=22)  # once more, and no webhook tells
    linked.hook({"action": "TASKS_CREATED"})
    until(lambda: linked.desk.store.labels()["r2"] == "cat")


def test_of_several_annotations_the_last_counts(linked):
    desk, studio = linked.desk, linked.studio
    linked.hook(studio.annotate(100, "cat", who=1))
    late = studio.annotate(100, "dog", who=2)
    linked.hook(late)
    linked.hook(studio.annotate(100, who=3, skip=True))
    assert desk.store.labels() == {"r0": "dog"}
    assert desk.store.events()[-1].who == "label-studio:2"
    linked.hook(studio.annotate(100, "cat", who=2, at=22))
    linked.hook(late)  # once more, too late
    assert desk.store.labels() == {"r0": "cat"}
    linked.hook(studio.remove(22))
    assert desk.store.labels() == {"r0": "cat"}  # of the first person
    linked.hook(studio.remove(21))
    assert desk.store.labels() == {}


def test_skipped_and_strange_tasks_lose_their_places(linked, caplog):
    """A skip, a label that is no class here, no choice and two choices: none is learned, and none is asked again."""
    studio = linked.studio
    linked.hook(studio.annotate(100, skip=True))
    linked.settled([101, 102, 103, 104, 105])
    linked.hook(studio.annotate(101, "cow"))
    linked.settled([102, 103, 104, 105])
    linked.hook(studio.annotate(102))
    linked.hook(studio.annotate(103, "cat", "dog"))
    linked.settled([104, 105])
    assert linked.desk.store.labels() == {}
    told = [r.getMessage() for r in caplog.records]
    assert [t for t in told if "'cow'" in t] == [
        "Label Studio: an annotation has the label 'cow', no class here; such annotations are not learned"
    ]
    linked.hook(studio.annotate(104, "cat"))
    linked.hook(studio.annotate(104, "cow", at=25))
    assert linked.desk.store.labels() == {}
    linked.hook(studio.remove(21))
    linked.settled([100, 105])
    for number in [*studio.annotations]:
        linked.hook(studio.remove(number))
    linked.settled([100, 101, 102, 103, 104, 105])


def test_deleted_tasks_break_no_order(linked, caplog):
    """One that a webhook tells of, and one that nobody does: the import of predictions refuses it at first."""
    studio = linked.studio
    linked.hook(studio.annotate(102, "cat"))
    linked.settled([100, 101, 103, 104, 105])
    del studio.tasks[101]
    linked.hook({"action": "TASKS_DELETED", "tasks": [{"id": 101}], "project": dict(studio.project)})
    linked.settled([100, 103, 104, 105])
    del studio.tasks[100], studio.tasks[102]
    linked.hook(studio.annotate(103, "dog"))
    linked.settled([104, 105])
    assert linked.desk.store.labels() == {"r2": "cat", "r3": "dog"}  # the label of a deleted task stays
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) <= 2


def test_a_task_that_comes_back_under_another_number_takes_its_place(linked, monkeypatch):
    """The ranking is the same, the task is not; and the first two imports of predictions fail."""
    studio, calls, failing = linked.studio, linked.studio.call, [1, 2]

    def call(method, path, body=None):
        if path.endswith("/import/predictions") and failing:
            raise ConnectionError(f"fails {failing.pop()} more times")
        return calls(method, path, body)

    linked.settled([100, 101, 102, 103, 104, 105])
    monkeypatch.setattr(studio, "call", call)
    del studio.tasks[102]
    studio.tasks[106] = {"id": 106, "data": {"text": TEXTS.items[2]}}
    linked.hook({"action": "TASKS_CREATED"})
    until(lambda: studio.order() == [100, 101, 106, 103, 104, 105])
    assert not failing


def test_a_project_with_a_part_of_the_items_has_a_full_order(opened):
    """The best ten of those that are there, not those of the best ten that are there."""
    items = MemoryItems("text", [f"r{k}" for k in range(60)], [f"text number {k}" for k in range(60)])
    linked = opened(PlainStudio(items.items[45:], first=1), data=items)
    linked.settled([*range(1, 11)])
    assert linked.link.order == tuple(f"r{k}" for k in range(45, 55))


def test_fields_of_other_people_are_left_alone(linked):
    """Edited after the start, in tasks that then lose, get and change their scores."""
    studio = linked.studio
    linked.settled([100, 101, 102, 103, 104, 105])
    for k, task in enumerate(studio.tasks.values()):
        task["data"] = {k: v for k, v in task["data"].items() if k != "foretaste_score"} | {"note": f"of Ada {k}"}
    texts = {t: (task["data"]["text"], task["data"]["note"]) for t, task in studio.tasks.items()}
    for task, label in ((100, "cat"), (101, "dog"), (103, "cat")):
        linked.hook(studio.annotate(task, label))
    linked.settled([102, 104, 105])
    linked.hook(studio.remove(21))
    linked.settled([100, 102, 104, 105])
    assert {t: (task["data"]["text"], task["data"]["note"]) for t, task in studio.tasks.items()} == texts


def test_scores_of_earlier_sessions_are_cleared(opened):
    studio = PlainStudio(TEXTS.items)
    studio.tasks[105]["data"]["foretaste_score"] = 0.5
    studio.predictions = {"foretaste-1-7": {100: 0.1}, "theirs": {101: 0.3}}
    studio.annotate(105, "cat")
    opened(studio)
    until(lambda: studio.order() == [100, 101, 102, 103, 104] and [*studio.scores()] == studio.order())
    until(lambda: len(studio.predictions) == 2)
    assert "theirs" in studio.predictions
    for task in range(100, 104):
        studio.annotate(task, "cat")


def test_all_is_cleared_when_nothing_is_left(opened):
    linked = opened(PlainStudio(TEXTS.items[:2]))
    linked.settled([100, 101])
    linked.hook(linked.studio.annotate(100, "cat"))
    linked.hook(linked.studio.annotate(101, "dog"))
    until(lambda: linked.studio.scores() == {})
    assert linked.link.order == ()


def test_many_pages_of_tasks(opened, monkeypatch):
    """Full pages only: a real one answers 404 to the page after the last."""
    monkeypatch.setattr(label_studio, "TASKS_A_PAGE", 3)
    linked = opened(PlainStudio(TEXTS.items))
    linked.settled([100, 101, 102, 103, 104, 105])


def test_webhooks_of_other_projects_are_ignored(linked):
    body = linked.studio.annotate(100, "cat")
    body["project"]["id"] = 2
    assert linked.hook(body).json == {"status": "ignored"}
    assert linked.desk.store.labels() == {}


def test_copies_of_a_text_are_one_item(opened):
    """A task of a copy labels the first, and the order has one of them."""
    items = MemoryItems("text", ["r0", "r1", "r2"], ["a text", "another", "a text"])
    linked = opened(PlainStudio(items.items), data=items, twins={"r2": "r0"})
    linked.settled([100, 101])
    linked.hook(linked.studio.annotate(102, "cat"))
    assert linked.desk.store.labels() == {"r0": "cat"}
    linked.settled([101])


# What is wrong is told


def test_faults_of_the_project_are_told_at_the_start(opened, caplog):
    studio = PlainStudio(TEXTS.items, sampling="Sequential sampling")
    studio.project["parsed_label_config"] = {"label": PARSED["label"] | {"labels": ["cat", "cow"]}}
    studio.hooks = []
    linked = opened(studio, address="http://127.0.0.1:9090")
    told = "\n".join(r.getMessage() for r in caplog.records)
    assert "cannot choose dog" in told
    assert "has cow, no class here" in told
    assert "sampling mode 'Sequential sampling'" in told
    assert "no webhook to http://127.0.0.1:9090/webhook" in told
    assert "SSRF_PROTECTION_ENABLED=false" in told
    assert linked.link.check() == []  # once
    studio.project |= {"sampling": "Uncertainty sampling", "parsed_label_config": {}}
    (fault,) = linked.link.check()
    assert "no Choices" in fault
    studio.project["sampling"] = "Sequential sampling"
    assert "sampling mode" in linked.link.check()[0]  # it was mended, and came back


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"is_active": False}, "no webhook to"),
        ({"url": "http://127.0.0.1:9091/webhook"}, "no webhook to"),
        ({"url": "http://[:9090/webhook"}, "no webhook to"),
        ({"send_payload": False}, "lacks its payload"),
        ({"send_for_all_actions": False, "actions": ["ANNOTATION_CREATED"]}, "or some actions"),
        ({"url": "http://host.docker.internal:9090/webhook/"}, ""),
    ],
)
def test_faults_of_the_webhook_are_told(opened, change, words):
    studio = PlainStudio(TEXTS.items)
    studio.hooks = [studio.hooks[0] | change]
    link = LabelStudioLink(opened(studio).desk, studio, 1, address="http://127.0.0.1:9090")
    faults = link.check()
    assert len(faults) == bool(words)
    assert words in "".join(faults)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_webhook_that_is_blocked_is_told(opened, monkeypatch, caplog, arrives):
    """Our own change of the project makes Label Studio send one."""
    monkeypatch.setattr(label_studio, "HEAR_SECONDS", 0.0)
    studio = PlainStudio(TEXTS.items, project=1)
    calls, link = studio.call, []

    def call(method, path, body=None):
        found = calls(method, path, body)
        if arrives and method == "PATCH" and path == "/api/projects/1":
            link[0].hook({"action": "PROJECT_UPDATED", "project": dict(studio.project)})
        return found

    studio.call = call
    monkeypatch.setattr(LabelStudioLink, "start", lambda self: (link.append(self), threading.Thread.start(self)))
    linked = opened(studio, address="http://127.0.0.1:9090")
    linked.settled([100, 101, 102, 103, 104, 105])
    blocked = [r for r in caplog.records if "it is blocked" in r.getMessage()]
    assert len(blocked) == (not arrives)


def test_serve_says_what_is_wrong(tmp_path, monkeypatch):
    studio = PlainStudio(TEXTS.items, sampling="Sequential sampling")
    monkeypatch.setattr("foretaste.label.LabelStudio", lambda url, key: studio)
    monkeypatch.setattr("foretaste.label.open_desk", lambda *_, **__: open_desk(tmp_path / "store", TEXTS, start=False))
    monkeypatch.setattr("foretaste.label.close_desk", close_desk)
    monkeypatch.setattr("foretaste.label.serve_app", lambda *_, **__: None)
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", "secret")
    words = ["serve", "texts.csv", "--classes", "cat,dog", "--url", "http://x", "--port", "0"]
    got = CliRunner().invoke(command, words)
    assert got.exit_code == 0, got.output
    assert "note: project 1 of Label Studio has the sampling mode 'Sequential sampling'" in got.stdout
    assert "note: project 1 of Label Studio has no webhook to http://127.0.0.1:" in got.stdout
    assert "no class here" not in got.stdout


# Whatever comes, the link goes on


def test_an_answer_that_is_not_kept_is_not_acknowledged(linked, monkeypatch):
    """The disk is full: an error. When there is room again, it is kept without a second webhook."""
    desk = linked.desk

    def full(*args, **rest):
        raise StoreFull("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(desk.store, "record", full)
        assert linked.hook(linked.studio.annotate(100, "cat")).status == 507
        assert desk.store.labels() == {}
    until(lambda: desk.store.labels() == {"r0": "cat"})


@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"1.5", b"NaN", b"true", b'"7"', b"null", b"[]", b"9" * 30])
def test_numbers_that_overflow_end_nothing(linked, number):
    bodies = [
        b'{"action": "ANNOTATION_CREATED", "task": {"id": %s}, "annotation": {"id": 1, "task": 100, "result": []}}'
        % number,
        b'{"action": "ANNOTATION_CREATED", "task": {"id": 100}, "annotation": {"id": %s, "task": %s}}'
        % (number, number),
        b'{"action": "ANNOTATIONS_DELETED", "annotations": [{"id": %s}]}' % number,
        b'{"action": "TASKS_DELETED", "tasks": [{"id": %s}], "project": {"id": %s}}' % (number, number),
    ]
    for body in bodies:
        reply = linked.hook(body)
        assert reply.status in (200, 422)
        assert reply.status == 422 or reply.json["status"] in ("queued", "ignored")
    assert linked.hook(linked.studio.annotate(105, "cat")).json == {"status": "kept"}
    assert linked.desk.store.labels() == {"r5": "cat"}
    assert linked.link.is_alive()


@pytest.mark.parametrize(
    "body",
    [
        {"action": "ANNOTATION_CREATED"},
        {"action": "ANNOTATION_CREATED", "task": 7, "annotation": []},
        {"action": "ANNOTATION_CREATED", "task": {"id": "x"}, "annotation": {"task": {}}},
        {"action": "ANNOTATIONS_DELETED", "annotations": [1, None, {"task": "x"}]},
        {"action": ["ANNOTATION_CREATED"]},
        {"action": "ANNOTATION_CREATED", "annotation": {"id": 1, "task": 999, "result": choose("cat")},
         "task": {"id": 999, "data": {"text": "http://[no address"}}},
        {"action": "ANNOTATION_CREATED", "annotation": {"id": 1, "task": 100, "completed_by": "\ud800",
         "result": choose("cat")}, "task": {"id": 100, "data": {"text": "another", "stars": 5}}},
    ],
)  # fmt: skip
def test_odd_webhooks_change_nothing_and_stop_nothing(linked, body):
    assert linked.hook(body).status in (200, 400, 422)
    assert linked.hook(linked.studio.annotate(105, "cat")).status == 200
    assert linked.desk.store.labels() == {"r5": "cat"}
    assert linked.link.is_alive()


@pytest.mark.parametrize("error", [OverflowError, RecursionError, MemoryError, AssertionError, StopIteration])
def test_no_exception_ends_the_thread(linked, monkeypatch, caplog, error):
    calls, failed = linked.studio.call, []

    def fail(*args):
        if len(failed) < 3:
            failed.append(args)
            raise error
        return calls(*args)

    monkeypatch.setattr(label_studio, "LONGEST_RETRY", 0.01)
    linked.settled([100, 101, 102, 103, 104, 105])
    monkeypatch.setattr(linked.studio, "call", fail)
    linked.hook(linked.studio.annotate(100, "cat"))
    linked.settled([101, 102, 103, 104, 105])
    assert len(failed) == 3
    assert error.__name__ in caplog.text


def test_label_studio_may_come_later_and_go(opened, monkeypatch, caplog):
    """Not there at the start: nothing is acknowledged. Gone for a while: told once, and all goes on."""
    monkeypatch.setattr(label_studio, "LONGEST_RETRY", 0.01)
    studio = PlainStudio(TEXTS.items)
    studio.down = True
    linked = opened(studio)
    assert linked.hook(studio.annotate(100, "cat")).status == 503
    studio.down = False
    linked.settled([101, 102, 103, 104, 105])
    assert linked.desk.store.labels() == {"r0": "cat"}
    studio.down = True
    count = len(studio.calls)
    linked.hook(studio.annotate(101, "dog"))
    until(lambda: len(studio.calls) > count + 5)
    studio.down = False
    linked.settled([102, 103, 104, 105])
    assert len([r for r in caplog.records if "does not answer" in r.getMessage()]) <= 4


def test_the_routes_of_the_backend(linked):
    link, client = linked.link, linked.client
    until(lambda: link.pushed)
    assert client.get("/health").json["status"] == "UP"
    assert client.post("/setup", {"project": "1.0"}).json == {"model_version": link.version}
    linked.hook(linked.studio.annotate(100, "cat"))
    linked.hook(linked.studio.annotate(101, "dog"))
    until(lambda: link.desk.worker.view.likely.get("r2"))
    body = {"tasks": [{"id": 102, "data": {"text": "text number 2"}}, {"id": 9, "data": {"text": "another"}}]}
    got = client.post("/predict", body).json
    first, second = got["results"]
    assert first["result"][0]["value"]["choices"][0] in ("cat", "dog")
    assert (first["result"][0]["from_name"], first["result"][0]["to_name"]) == ("label", "item")
    assert first["score"] < second["score"] == 1.0
    assert second["result"] == []
    assert client.post("/train", {}).status == 200


def test_predictions_of_a_class_that_the_project_lacks_are_posted_without_it(opened):
    """A real one drops the whole prediction otherwise, and then refuses the version."""
    studio = PlainStudio(TEXTS.items)
    studio.accepts = lambda result: all(r["value"]["choices"][0] == "cat" for r in result)
    studio.project["parsed_label_config"] = {"label": PARSED["label"] | {"labels": ["cat"]}}
    linked = opened(studio)
    linked.desk.answer("tab-0000", "Ada", "r0", "label", "cat")
    linked.desk.answer("tab-0000", "Ada", "r1", "label", "dog")  # what the plain learner then predicts
    until(lambda: linked.desk.worker.view.likely.get("r2"))
    linked.hook(studio.annotate(102, "cat"))
    linked.desk.answer("tab-0000", "Ada", "r2", "relabel", "dog")
    linked.settled([103, 104, 105])


def test_task_addresses_are_never_opened(linked, monkeypatch):
    def refuse(*args, **rest):
        raise AssertionError(f"a connection to {args[0]}")

    monkeypatch.setattr(socket, "create_connection", refuse)
    client = linked.client
    for address in ("http://169.254.169.254/latest", "file:///etc/passwd", "gopher://x/", "//evil.example/r1"):
        got = client.post("/predict", {"tasks": [{"id": 1, "data": {"image": address, "text": address}}]})
        assert got.json["results"][0]["result"] == []


def test_the_token_of_label_studio_goes_to_one_address(tmp_path):
    """A reply that points elsewhere is an error, and an address must be one."""
    hits = []

    async def elsewhere(scope, receive, send):
        hits.append((scope["path"], dict(scope["headers"]).get(b"authorization")))
        where = [(b"location", b"http://127.0.0.1:9/steal")]
        await send({"type": "http.response.start", "status": 302, "headers": where})
        await send({"type": "http.response.body", "body": b""})

    with serving(elsewhere) as address, pytest.raises(ConnectionError, match="answered 302"):
        LabelStudio(address, "secret-token").call("GET", "/api/projects/1")
    assert hits == [("/api/projects/1", b"Token secret-token")]
    for bad in ("ftp://x", "127.0.0.1:8080", "http://user:pass@x/", "http://"):
        with pytest.raises(ValueError, match="address of Label Studio"):
            LabelStudio(bad, "secret-token")
    with pytest.raises(ValueError, match="token of Label Studio"):
        LabelStudio("http://127.0.0.1:8080", "a\nb")


def test_long_bodies_of_label_studio_have_their_own_limit(linked):
    client = linked.client
    tasks = [{"id": k, "data": {"text": "x" * 1000}} for k in range(200)]
    assert client.post("/predict", {"tasks": tasks}).status == 200
    assert client.post("/webhook", b"x" * 5_000_000).status == 413
    assert client.post("/predict", {"tasks": 7}).status == 422


def test_the_choices_that_are_ours():
    other = {"type": "Choices", "to_name": ["img"], "labels": ["good", "bad"]}
    assert find_choices({"quality": other, "label": PARSED["label"]}, ["cat", "dog"]) == ChoiceControl(
        "label", "item", ("cat", "dog")
    )
    assert find_choices({"kind": other | {"labels": []}}, ["cat"]) == ChoiceControl("kind", "img", ())
    assert find_choices({"box": {"type": "RectangleLabels"}}, ["cat"]) is None
    assert find_choices(None, ["cat"]) is None


def test_other_choices_are_not_ours(opened):
    """Two Choices in the configuration: the label is what the one with our classes says."""
    studio = PlainStudio(TEXTS.items)
    quality = {"type": "Choices", "to_name": ["item"], "labels": ["good", "bad"]}
    studio.project["parsed_label_config"] = {"quality": quality} | PARSED
    linked = opened(studio)
    body = studio.annotate(100, "dog")
    body["annotation"]["result"].insert(0, choose("bad")[0] | {"from_name": "quality"})
    assert linked.hook(body).json == {"status": "kept"}
    assert linked.desk.store.labels() == {"r0": "dog"}


@pytest.mark.parametrize(
    ("kind", "data", "item"),
    [
        ("text", {"text": "the second"}, "2"),
        ("text", {"text": "the second", "stars": 3}, "2"),
        ("text", {"stars": 3, "text": "unknown"}, None),  # three stars are not row 3
        ("text", {"body": "the second"}, "2"),
        ("text", {"body": "the second", "title": "the third"}, None),
        ("text", {"foretaste_id": "3", "text": "the second"}, "3"),
        ("text", {"text": "http://[the second", "id": 3}, "3"),
        ("text", {"foretaste_score": "3"}, None),
        ("table", {"age": 40, "row": 3}, "3"),
        ("table", {"age": 2, "row": 3}, None),
        ("table", {"age": 2, "id": 3}, "3"),
        ("text", {"text": True, "id": None, "file": ""}, None),
    ],
)
def test_which_item_a_task_means(tmp_path, kind, data, item):
    rows = ["the first", "the second", "the third"]
    desk = open_desk(tmp_path, MemoryItems(kind, ["1", "2", "3"], rows), start=False)
    assert TaskNames(desk).find(data) == item
    desk.store.close()


class serving:
    """An application on a port of this machine, in a thread."""

    def __init__(self, app):
        self.socket = open_port("127.0.0.1", 0)
        config = uvicorn.Config(app, log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)

    def __enter__(self):
        self.thread.start()
        until(lambda: self.server.started)
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def __exit__(self, *exc):
        self.server.should_exit = True
        self.thread.join()
        self.socket.close()


# A real one


@pytest.mark.slow
@pytest.mark.skipif(
    not executable(),
    reason="needs Label Studio: see tests/real_studio/__init__.py, and set LABEL_STUDIO to its executable",
)
def test_a_real_label_studio_keeps_our_order_and_loses_nothing(tmp_path):
    from real_studio.check import check

    check(tmp_path)
