"""Label Studio: the routes of its ML backend, and a real one whose queue follows our ranking."""

import os
import shutil
import socket
import subprocess
import threading
import time

import pytest
import uvicorn

from foretaste.label import close_desk as close_opened
from foretaste.label import open_desk as open_source
from foretaste.label.guard import Guard
from foretaste.label.label_studio import (
    WEBHOOK_BODIES,
    LabelStudio,
    LabelStudioLink,
    add_ml_backend,
    choice_names,
)
from foretaste.label.server import make_app, open_port
from label_cases import Client, MemoryItems, close_desk, open_desk

TEXTS = MemoryItems("text", [f"r{k}" for k in range(6)], [f"text number {k}" for k in range(6)])
CONFIG = """<View><Text name="item" value="$text"/><Choices name="label" toName="item">
<Choice value="cat"/><Choice value="dog"/></Choices></View>"""


class PlainStudio:
    """A Label Studio that keeps what it is sent."""

    def __init__(self, tasks):
        self.tasks, self.calls, self.version, self.predictions = tasks, [], "", {}

    def call(self, method, path, body=None):
        self.calls.append((method, path, body))
        if path.startswith("/api/tasks?"):
            return {"tasks": self.tasks}
        if path.endswith("/import/predictions"):
            for row in body:
                self.predictions.setdefault(row["model_version"], []).append((row["task"], row["score"]))
        elif method == "PATCH" and path == "/api/projects/1":
            self.version = body["model_version"]
        return {"label_config": CONFIG}

    def order(self):
        """Tasks as "Uncertainty sampling" serves them: lowest score of the project's version first."""
        return [task for task, _ in sorted(self.predictions.get(self.version, []), key=lambda row: row[1])]


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def linked(tmp_path):
    desk = open_desk(tmp_path / "store", TEXTS)
    tasks = [{"id": 100 + k, "data": {"text": text}, "annotations": []} for k, text in enumerate(TEXTS.items)]
    link = LabelStudioLink(desk, PlainStudio(tasks), 1)
    link.start()
    app = make_app(desk)
    add_ml_backend(app, link)
    yield desk, link, Client(Guard(app, routes=WEBHOOK_BODIES))
    link.close()
    close_desk(desk)


def hook(task, choice, action="ANNOTATION_CREATED", **rest):
    result = [{"type": "choices", "value": {"choices": [choice]}}]
    return {
        "action": action,
        "task": {"id": task, "data": {"text": f"text number {task - 100}"}},
        "annotation": {"id": 1, "task": task, "result": result, "completed_by": 7, **rest},
    }


def test_the_queue_follows_the_learner(linked):
    desk, link, client = linked
    studio = link.studio
    until(lambda: studio.order() == [100, 101, 102, 103, 104, 105])
    assert client.post("/webhook", hook(100, "cat")).json == {"status": "queued"}
    until(lambda: studio.order() == [101, 102, 103, 104, 105])
    posts = [path for method, path, _ in studio.calls if path.endswith("/import/predictions")]
    assert len(posts) <= 6  # the best at once and the rest of a ranking once; not once for each of its items
    event = desk.store.events()[-1]
    assert (event.item, event.label, event.who) == ("r0", "cat", "label-studio:7")
    client.post("/webhook", hook(100, "dog", "ANNOTATION_UPDATED"))
    until(lambda: desk.store.labels() == {"r0": "dog"})
    deleted = {"action": "ANNOTATIONS_DELETED", "annotations": [{"id": 1, "task": 100}]}
    client.post("/webhook", deleted)
    until(lambda: desk.store.labels() == {})
    until(lambda: studio.order()[:1] == [100])
    old = {path for method, path, _ in studio.calls if method == "DELETE"}
    assert old == {"/api/projects/1/model-versions"}  # versions do not pile up
    scores = [body["data"]["foretaste_score"] for method, path, body in studio.calls if path == "/api/tasks/101"]
    assert scores  # the task's own data has it too
    assert all(0 <= score <= 1 for score in scores)


def test_the_routes_of_the_backend(linked):
    _, link, client = linked
    until(lambda: link.pushed)
    assert client.get("/health").json["status"] == "UP"
    assert client.post("/setup", {"project": "1.0", "schema": CONFIG}).json == {"model_version": link.version}
    client.post("/webhook", hook(100, "cat"))
    client.post("/webhook", hook(101, "dog"))
    until(lambda: link.desk.worker.view.likely.get("r2"))
    body = {"tasks": [{"id": 102, "data": {"text": "text number 2"}}, {"id": 9, "data": {"text": "another"}}]}
    got = client.post("/predict", body).json
    first, second = got["results"]
    assert first["result"][0]["value"]["choices"][0] in ("cat", "dog")
    assert (first["result"][0]["from_name"], first["result"][0]["to_name"]) == ("label", "item")
    assert first["score"] < second["score"] == 1.0
    assert second["result"] == []
    assert client.post("/train", {}).status == 200


def test_a_webhook_is_answered_before_anything_is_done(linked):
    _, link, client = linked
    link.close()  # nobody works on it
    assert client.post("/webhook", hook(100, "cat")).json == {"status": "queued"}
    assert client.post("/webhook", {"action": "PROJECT_UPDATED"}).json == {"status": "ignored"}


@pytest.mark.parametrize(
    "body",
    [
        {"action": "ANNOTATION_CREATED"},
        {"action": "ANNOTATION_CREATED", "task": 7, "annotation": []},
        {"action": "ANNOTATION_CREATED", "task": {"id": "x"}, "annotation": {"task": {}}},
        {"action": "ANNOTATIONS_DELETED", "annotations": [1, None, {"task": "x"}]},
        {"action": ["ANNOTATION_CREATED"]},
        hook(100, "cow"),
        hook(100, None),
        hook(999, "cat"),
    ],
)
def test_odd_webhooks_change_nothing_and_stop_nothing(linked, body, caplog):
    desk, link, client = linked
    assert client.post("/webhook", body).status in (200, 422, 500)
    client.post("/webhook", hook(105, "cat"))
    until(lambda: desk.store.labels() == {"r5": "cat"})
    assert link.is_alive()
    caplog.clear()


def test_task_addresses_are_never_opened(linked, monkeypatch):
    def refuse(*args, **rest):
        raise AssertionError(f"a connection to {args[0]}")

    monkeypatch.setattr(socket, "create_connection", refuse)
    _, _, client = linked
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
    _, _, client = linked
    tasks = [{"id": k, "data": {"text": "x" * 1000}} for k in range(200)]
    assert client.post("/predict", {"tasks": tasks}).status == 200
    assert client.post("/webhook", b"x" * 5_000_000).status == 413
    assert client.post("/predict", {"tasks": 7}).status == 422


def test_names_of_the_choices():
    assert choice_names(CONFIG) == ("label", "item")
    assert choice_names('<View><Choices toName="img" name="kind"></Choices></View>') == ("kind", "img")
    assert choice_names("") == ("label", "item")


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

EXECUTABLE = os.environ.get("LABEL_STUDIO") or shutil.which("label-studio")
RUNNING = os.environ.get("LABEL_STUDIO_URL")
KEY = os.environ.get("LABEL_STUDIO_API_KEY", "0123456789abcdef0123456789abcdef01234567")


@pytest.fixture
def studio(tmp_path):
    """A Label Studio of its own, with SQLite, on loopback; or one that runs already (LABEL_STUDIO_URL)."""
    if RUNNING:
        yield LabelStudio(RUNNING, KEY)
        return
    with open_port("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    env = os.environ | {
        "LABEL_STUDIO_BASE_DATA_DIR": str(tmp_path / "studio"), "DJANGO_DB": "sqlite", "COLLECT_ANALYTICS": "false",
        "LATEST_VERSION_CHECK": "false", "SENTRY_DSN": "", "FRONTEND_SENTRY_DSN": "",
        "LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN": "true", "SSRF_PROTECTION_ENABLED": "false",
    }  # fmt: skip
    env.pop("PYTHONPATH", None)
    words = ["start", "--no-browser", "--port", str(port), "--internal-host", "127.0.0.1", "--user-token", KEY]
    words += ["--username", "a@example.org", "--password", "long-enough-1"]
    log = (tmp_path / "studio.log").open("w")
    process = subprocess.Popen([EXECUTABLE, *words], env=env, stdout=log, stderr=log, start_new_session=True)
    found = LabelStudio(f"http://127.0.0.1:{port}", KEY)

    def answers():
        assert process.poll() is None, (tmp_path / "studio.log").read_text()[-2000:]
        try:
            found.call("GET", "/api/projects")
        except ConnectionError:
            time.sleep(0.5)
            return False
        return True

    try:
        until(answers, 600)
        yield found
    finally:
        process.terminate()
        process.wait(30)
        log.close()


@pytest.mark.slow
@pytest.mark.skipif(not (EXECUTABLE or RUNNING), reason="needs Label Studio: pip install label-studio in a venv, LABEL_STUDIO=its label-studio")  # fmt: skip # noqa: E501
def test_a_real_label_studio_serves_our_order_and_follows_an_annotation(studio, tmp_path):
    lines = [f"r{k},the {'cat purrs' if k % 2 else 'dog barks'} on the {k}th evening of the month" for k in range(40)]
    (tmp_path / "texts.csv").write_text("id,text\n" + "\n".join(lines) + "\n")
    texts = dict(line.split(",", 1) for line in lines)
    project = studio.call(
        "POST", "/api/projects", {"title": "test", "label_config": CONFIG, "sampling": "Uncertainty sampling"}
    )["id"]
    tasks = [{"data": {"text": text, "foretaste_id": item}} for item, text in texts.items()]
    studio.call("POST", f"/api/projects/{project}/import", tasks)
    desk = open_source(tmp_path / "texts.csv", classes=["cat", "dog"], text="text", check_every=0)
    link = LabelStudioLink(desk, studio, project)
    app = make_app(desk)
    add_ml_backend(app, link)

    def served():
        return studio.call("GET", f"/api/projects/{project}/next")

    def settled():
        """No training and no ranking is under way."""
        return desk.worker.describe()["phase"] in ("ready", "first labels") and len(link.order) == link.ranked

    def answer(task):
        choice = {"choices": ["cat" if "cat" in task["data"]["text"] else "dog"]}
        result = [{"from_name": "label", "to_name": "item", "type": "choices", "value": choice}]
        studio.call("POST", f"/api/tasks/{task['id']}/annotations", {"result": result})

    with serving(Guard(app, routes=WEBHOOK_BODIES)) as address:
        try:
            studio.call(
                "POST", "/api/webhooks", {"project": project, "url": f"{address}/webhook", "send_payload": True}
            )
            link.start()
            seconds = []
            for _ in range(6):
                # Label Studio keeps a task for the person whom it was shown to: it is asked once, when all is posted.
                until(lambda: link.order and link.order == desk.worker.view.ready[: len(link.order)] and settled(), 120)
                task, version = served(), link.version
                assert task["data"]["foretaste_id"] == link.order[0]
                start = time.monotonic()
                answer(task)
                until(lambda version=version: link.version != version, 60)
                seconds.append(time.monotonic() - start)
                assert task["data"]["foretaste_id"] in desk.store.labels()
            print("seconds from an annotation to the new queue:", [round(s, 2) for s in seconds])
            assert len(desk.store.labels()) == 6
        finally:
            link.close()
            close_opened(desk)
            studio.call("DELETE", f"/api/projects/{project}")
