"""A day of people at a real Label Studio, with ``foretaste serve`` beside it. After each step two things must hold:

- the queue is ours: the project's model version is one of ours, its predictions are the learner's best open tasks, ten
  of them or all that are left, in its order, and only they have a score in their data;
- nothing of theirs is lost: every task has the data that people gave it, every annotation is as they left it,
  predictions of others are there, and the store has the labels that follow from the annotations.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foretaste.label import LabelStore, open_port, store_folder
from real_studio.server import TOKEN, RealStudio, choose

CLASSES = ("cat", "dog")
PATIENCE = 600.0  # on a busy machine; the project is read every minute
THEIRS = "theirs-1"  # a model version of somebody else


def truth(text: str) -> str:
    return "cat" if "cat" in text else "dog"


class Backend:
    """``foretaste serve`` in a process of its own."""

    def __init__(self, folder: Path, studio: RealStudio, project: int) -> None:
        self.source, self.studio, self.project, self.log = folder / "texts.csv", studio, project, folder / "serve.log"
        with open_port("127.0.0.1", 0) as free:
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["serve", str(self.source), "--classes", ",".join(CLASSES), "--text", "text", "--id", "id"]
        words += ["--url", self.studio.api.url, "--project", str(self.project), "--port", str(self.port)]
        env = os.environ | {"LABEL_STUDIO_API_KEY": TOKEN}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "foretaste", *words], env=env, stdout=log, stderr=log
            )

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
            self.process = None

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def predict(self, tasks: list[dict[str, Any]]) -> list[float]:
        """Scores that the ML backend gives: the learner's own order."""
        body = json.dumps({"tasks": tasks}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/predict", body, headers)
        with urllib.request.urlopen(request, timeout=20) as reply:
            return [row["score"] for row in json.loads(reply.read())["results"]]


class Day:
    """The project as people made it, which both sides are compared with."""

    def __init__(self, folder: Path) -> None:
        lines = [f"r{k},the {'cat purrs' if k % 3 else 'dog barks'} on the {k}th evening" for k in range(70)]
        (folder / "texts.csv").write_text("id,text\n" + "\n".join(lines) + "\n")
        self.texts = dict(line.split(",", 1) for line in lines)
        self.studio = RealStudio(folder / "studio")
        self.studio.start()
        self.project = self.studio.new_project([], sampling="Sequential sampling")
        self.backend = Backend(folder, self.studio, self.project)
        self.store = store_folder(self.backend.source)
        self.data: dict[int, dict[str, Any]] = {}  # task → what people see in it
        self.answers: dict[int, tuple[int, str | None]] = {}  # annotation → task, label; None for a skip
        self.gone: dict[str, str] = {}  # labels of deleted tasks
        self.begun = time.monotonic()

    # What people do

    def bring(self, first: int, last: int, **more: Any) -> None:
        """Import some of the texts."""
        self.studio.import_tasks(self.project, [{"text": self.texts[f"r{k}"]} for k in range(first, last)], **more)
        for number, task in self.studio.tasks(self.project).items():
            if number not in self.data:
                self.data[number] = {"text": task["data"]["text"]}
                self.answers |= {a["id"]: (number, label_of(a)) for a in task["annotations"]}

    def annotate(self, task: int, label: str | None = None) -> int:
        label = label or truth(self.data[task]["text"])
        number = self.studio.annotate(task, label)
        self.answers[number] = (task, label)
        return number

    def serve_next(self) -> int:
        """The task that Label Studio gives to the person; it must be the first of our order."""
        order = self.order()
        served = int(self.studio.api.call("GET", f"/api/projects/{self.project}/next")["id"])
        assert served == order[0], f"served {served}, our order is {order}"
        return served

    def delete_task(self, task: int) -> None:
        self.gone |= {self.item(task): label for at, label in self.answers.values() if at == task and label in CLASSES}
        self.answers = {n: answer for n, answer in self.answers.items() if answer[0] != task}
        del self.data[task]

    # What must hold

    def item(self, task: int) -> str:
        return next(item for item, text in self.texts.items() if text == self.data[task]["text"])

    def open_tasks(self) -> set[int]:
        return {*self.data} - {task for task, _ in self.answers.values()}

    def labels(self) -> dict[str, str]:
        given = {self.item(task): label for _, (task, label) in sorted(self.answers.items()) if label in CLASSES}
        return self.gone | {item: str(label) for item, label in given.items()}

    def order(self, tasks: dict[int, dict[str, Any]] | None = None) -> list[int]:
        version = self.studio.api.call("GET", f"/api/projects/{self.project}")["model_version"]
        rows = [
            (row["score"], number)
            for number, task in (tasks or self.studio.tasks(self.project)).items()
            for row in task["predictions"]
            if row["model_version"] == version
        ]
        return [number for _, number in sorted(rows)]

    def faults(self) -> list[str]:
        """What does not hold now."""
        tasks, found = self.studio.tasks(self.project), list[str]()

        def compare(what: str, got: Any, wanted: Any) -> None:
            if got != wanted:
                found.append(f"{what}: {str(got)[:300]}, expected {str(wanted)[:300]}")

        # Theirs.
        seen = {n: {k: v for k, v in task["data"].items() if k != "foretaste_score"} for n, task in tasks.items()}
        compare("data", seen, self.data)
        answers = {a["id"]: (n, label_of(a)) for n, task in tasks.items() for a in task["annotations"]}
        compare("annotations", answers, self.answers)
        versions = self.studio.api.call("GET", f"/api/projects/{self.project}/model-versions")
        theirs = sum(row["model_version"] == THEIRS for task in tasks.values() for row in task["predictions"])
        compare("predictions of others", versions.get(THEIRS, 0), theirs)
        with LabelStore(self.store, read_only=True) as store:
            compare("labels", store.labels(), self.labels())
        # Ours.
        order, left = self.order(tasks), self.open_tasks()
        compare("length of the order", len(order), min(10, len(left)))
        compare("tasks in the order that are not open", {*order} - left, set())
        scores = {n: task["data"]["foretaste_score"] for n, task in tasks.items() if "foretaste_score" in task["data"]}
        compare("order of the scores in the data", sorted(scores, key=lambda n: scores[n]), order)
        compare("versions", len(versions) - (THEIRS in versions), 1)
        rows = [{"id": n, "data": tasks[n]["data"]} for n in order]
        ranks = self.backend.predict(rows) if rows else []
        compare("the learner's order", [n for _, n in sorted(zip(ranks, order))], order)
        compare("tasks that the learner does not rank", [n for rank, n in zip(ranks, order) if rank == 1.0], [])
        return found

    def holds(self, step: str) -> None:
        """Wait until all of it holds, and say so."""
        start = time.monotonic()
        while True:
            try:
                faults = self.faults()
            except (OSError, LookupError) as error:  # a server is starting, or a task went while we looked
                faults = [f"{type(error).__name__}: {error}"]
            if not faults:
                break
            assert time.monotonic() < start + PATIENCE, f"{step}: {'; '.join(faults)}\n{self.backend.said()[-2000:]}"
            time.sleep(0.3)
        took, labels = time.monotonic() - start, len(self.labels())
        counts = (
            f"{len(self.data)} tasks, {len(self.open_tasks())} open, {len(self.answers)} annotations, {labels} labels"
        )
        print(f"{time.monotonic() - self.begun:6.1f} s  {step}: holds after {took:.1f} s ({counts})", flush=True)


def label_of(annotation: dict[str, Any]) -> str | None:
    return None if annotation["was_cancelled"] else annotation["result"][0]["value"]["choices"][0]


def waits_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def check(folder: Path) -> None:
    """Go through the day. Raises AssertionError at the first thing that does not hold."""
    day = Day(folder)
    try:
        go_through(day)
    finally:
        day.backend.stop()
        day.studio.stop()


def go_through(day: Day) -> None:
    studio, backend, api = day.studio, day.backend, day.studio.api
    settings = f"/api/projects/{day.project}"

    # 70 texts in the CSV, 40 of them in the project; the settings are wrong at first.
    day.bring(20, 60)
    rows = [{"task": n, "result": choose("dog"), "score": 0.5, "model_version": THEIRS} for n in sorted(day.data)[:3]]
    api.call("POST", f"{settings}/import/predictions", rows)
    backend.start()
    waits_for(lambda: "ML backend" in backend.said() and backend.said().count("note: ") >= 3, "nothing is said")
    for words in ("has cow, no class here", "sampling mode 'Sequential sampling'", "has no webhook to"):
        assert words in backend.said(), backend.said()
    print("what serve says of wrong settings:", *backend.said().strip().splitlines(), sep="\n    ", flush=True)
    api.call("PATCH", settings, {"sampling": "Uncertainty sampling"})
    studio.add_webhook(day.project, f"http://127.0.0.1:{backend.port}/webhook")
    day.holds("started on a project that holds a part of the CSV")

    for k in range(4):
        number = day.annotate(day.serve_next())
        day.holds(f"annotated the task that is served, {k + 1} of 4")
    task, label = day.answers[number]
    other = "dog" if label == "cat" else "cat"
    studio.update(number, other)
    day.answers[number] = (task, other)
    day.holds("annotation updated")
    api.call("DELETE", f"/api/annotations/{number}")
    del day.answers[number]
    day.holds("annotation deleted")
    skipped = day.order()[0]
    day.answers[studio.skip(skipped)] = (skipped, None)
    day.holds("first task of the order skipped")
    day.annotate(day.order()[0], "cow")
    day.holds("first task of the order gets a label that is no class here")
    done = [task for task, label in day.answers.values() if label in CLASSES][:1]
    studio.act(day.project, "delete_tasks_annotations", done)
    day.answers = {n: answer for n, answer in day.answers.items() if answer[0] not in done}
    day.holds("annotations deleted in the data manager")

    first, second = day.order()[:2]
    api.call("DELETE", f"/api/tasks/{first}")
    day.delete_task(first)
    day.holds("first task of the order deleted")
    studio.act(day.project, "delete_tasks", [second])
    day.delete_task(second)
    annotated = next(task for task, label in day.answers.values() if label in CLASSES)
    api.call("DELETE", f"/api/tasks/{annotated}")
    day.delete_task(annotated)
    day.annotate(day.order()[2])
    day.holds("two more deleted, one of them annotated, and one annotated at once")

    day.bring(0, 10)
    day.bring(10, 13, annotations=[{"result": choose("cat")}])
    day.holds("ten tasks imported later, and three with annotations")

    for n, data in day.data.items():
        data["note"] = f"of Ada, {n}"
        api.call("PATCH", f"/api/tasks/{n}", {"data": {**current(studio, n), "note": data["note"]}})
    day.annotate(day.order()[1])
    day.holds("a field added to every task by others, then an annotation")
    edit_while_annotating(day)
    day.holds("fields edited by others while four tasks are annotated")

    draft = max(n for n, (_, label) in day.answers.items() if label in CLASSES)
    api.call("POST", f"/api/annotations/{draft}/convert-to-draft", {})
    del day.answers[draft]
    day.holds("annotation made a draft, of which no webhook tells")

    studio.stop()
    studio.start()
    day.annotate(day.order()[0])
    day.holds("Label Studio restarted, then an annotation")
    backend.stop()
    day.annotate(day.order()[0])
    gone = max(n for n, (_, label) in day.answers.items() if label in CLASSES) - 1
    api.call("DELETE", f"/api/annotations/{gone}")
    del day.answers[gone]
    skipped = day.order()[3]
    day.answers[studio.skip(skipped)] = (skipped, None)
    lost = day.order()[4]
    api.call("DELETE", f"/api/tasks/{lost}")
    day.delete_task(lost)
    day.bring(60, 65)
    backend.start()
    day.holds("our server restarted; annotated, deleted, skipped, a task deleted and five imported meanwhile")
    backend.stop()
    studio.stop()
    studio.start()
    backend.start()
    day.holds("both servers restarted")
    day.annotate(day.serve_next())
    day.holds("and annotated")

    backend.stop()
    studio.stop()
    studio.start(SSRF_PROTECTION_ENABLED="true")
    backend.start()
    waits_for(lambda: "it is blocked" in backend.said(), "a webhook that is blocked is not told")
    print(
        "what serve says of a webhook that is blocked:", *backend.said().strip().splitlines(), sep="\n    ", flush=True
    )
    day.annotate(day.order()[0])
    day.holds("webhook blocked, then an annotation")


def current(studio: RealStudio, task: int) -> dict[str, Any]:
    """The data of a task, as a person has it on the screen."""
    return dict(studio.api.call("GET", f"/api/tasks/{task}?resolve_uri=false")["data"])


def edit_while_annotating(day: Day) -> None:
    """Others edit tasks one after the other while four are annotated.

    Label Studio takes the data of a task as a whole: two writers who read it in the same few milliseconds overwrite one
    another, whoever they are. So the tasks that are edited here are those whose scores stay: beyond the order.
    """
    failed = list[BaseException]()
    quiet = sorted(day.open_tasks() - {*day.order()})[-8:]

    def edit() -> None:
        try:
            for n in quiet * 3:
                day.data[n]["note"] = f"{day.data[n]['note']} again"
                day.studio.api.call("PATCH", f"/api/tasks/{n}", {"data": {**current(day.studio, n), **day.data[n]}})
        except BaseException as error:
            failed.append(error)

    editor = threading.Thread(target=edit)
    editor.start()
    for _ in range(4):
        day.annotate(next(n for n in day.order() if n in day.open_tasks() and n not in quiet))
    editor.join()
    assert not failed, failed


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        check(Path(place))
    print("all of it holds")
