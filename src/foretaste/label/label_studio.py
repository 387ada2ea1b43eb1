"""Label Studio: the routes of its ML backend, and a queue that follows every annotation.

The community edition's "Uncertainty sampling" serves the task with the lowest score among the predictions of the
project's model version. After each annotation the best tasks get predictions under a new version, with their rank as
the score, and the project is set to that version: the queue has changed. A webhook is answered at once; the rest
happens on a thread.

Tasks are matched to local items by name. No address that a task names is ever opened, and Label Studio's own is the
only one that is spoken to.
"""

import json
import logging
import re
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from foretaste.errors import printable, whole_number
from foretaste.label.desk import LabelDesk
from foretaste.label.exchange import LABEL_STUDIO_FROM, LABEL_STUDIO_TO, ItemNames, last_choice
from foretaste.label.store import StoreConflict, StoreError

log = logging.getLogger(__name__)

RANKED_TASKS = 10  # tasks that get a score after each annotation
WEBHOOK_BODIES = {"/predict": 16_000_000, "/webhook": 4_000_000, "/setup": 1_000_000, "/train": 1_000_000}
WAITING_HOOKS = 10_000
API_SECONDS = 20.0
LOOK_SECONDS = 0.05  # between looks at the learner's ranking
LARGEST_REPLY = 200_000_000
TASKS_A_PAGE = 500
SCORE_FIELD = "foretaste_score"
HOOK_ACTIONS = ("ANNOTATION_CREATED", "ANNOTATIONS_CREATED", "ANNOTATION_UPDATED", "ANNOTATIONS_DELETED")


class LabelStudio:
    """The HTTP interface of a Label Studio, and of nothing else: redirects are not followed.

    Args:
        url: Where it is, such as http://127.0.0.1:8080.
        key: An access token of a user, legacy or personal. It is sent to this address alone and never printed.
    """

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ValueError(f"the address of Label Studio is {url!r}; expected such as http://127.0.0.1:8080")
        if not key or not re.fullmatch(r"[\x21-\x7e]+", key):
            raise ValueError("the token of Label Studio is empty or no token; copy it from Account & Settings")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._key, self._access, self._until = key, "", 0.0
        self._opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request; the reply as JSON.

        Raises:
            ConnectionError: Label Studio is not there, or refuses.
        """
        headers = {"authorization": self._authorization(), "accept": "application/json"}
        return self._send(method, path, body, headers)

    def _authorization(self) -> str:
        if self._key.count(".") != 2:
            return f"Token {self._key}"
        if time.monotonic() > self._until:  # a personal token is traded for one that lasts minutes
            found = self._send("POST", "/api/token/refresh", {"refresh": self._key}, {"accept": "application/json"})
            self._access, self._until = str(found["access"]), time.monotonic() + 120
        return f"Bearer {self._access}"

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["content-type"] = "application/json"
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=API_SECONDS) as reply:
                text = reply.read(LARGEST_REPLY)
            return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                why = printable(error.read(300).decode(errors="replace"))
            raise ConnectionError(f"Label Studio answered {error.code} to {method} {path}: {why}") from None
        except (OSError, ValueError) as error:
            raise ConnectionError(f"Label Studio at {self.url} does not answer: {error}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A reply that points elsewhere is an error: the token is for one address."""

    def redirect_request(self, *args: Any, **rest: Any) -> None:
        return None


class TaskNames:
    """Which task is which item: by its name, or by its text."""

    def __init__(self, desk: LabelDesk) -> None:
        self.names = ItemNames(desk.data.ids)
        texts = desk.data.items if desk.data.kind == "text" else ()
        self.texts = dict(zip(texts, desk.data.ids))

    def find(self, data: Mapping[str, Any]) -> str | None:
        """The item of a task's data; None if no field names one."""
        values = [str(v) for v in (data.get("foretaste_id", ""), *data.values()) if isinstance(v, str | int)]
        known = (self.texts.get(value) or self.names.find(value) for value in values if value)
        return next((item for item in known if item is not None), None)


class LabelStudioLink(threading.Thread):
    """Keeps a project's queue in the order of the learner.

    Args:
        desk: Items, store and learner.
        studio: The Label Studio; None serves the routes alone, and posts nothing.
        project: The number of the project.
        ranked: Tasks that get a score each time.
    """

    def __init__(
        self, desk: LabelDesk, studio: LabelStudio | None = None, project: int = 1, *, ranked: int = RANKED_TASKS
    ) -> None:
        super().__init__(name="foretaste-label-studio", daemon=True)
        self.desk, self.studio = desk, studio
        self.project, self.ranked = whole_number("project", project, 1), whole_number("ranked", ranked, 1)
        self.names = TaskNames(desk)
        self.tasks: dict[str, int] = {}  # item → task
        self.task_data: dict[int, dict[str, Any]] = {}
        self.version, self.pushed, self.error = "", 0, ""
        self.order: tuple[str, ...] = ()  # the items of the current version, best first
        self._names: tuple[str, str] = (LABEL_STUDIO_FROM, LABEL_STUDIO_TO)
        self._turn = threading.Condition()
        self._hooks: deque[Mapping[str, Any]] = deque(maxlen=WAITING_HOOKS)
        self._closing, self._count = False, 0
        self._waiting: list[dict[str, Any]] = []  # scores for the tasks' own data
        self._old: list[str] = []  # versions that nobody needs any more

    # The routes

    def hook(self, body: Mapping[str, Any]) -> bool:
        """Take a webhook; it is worked on later. Whether it is one that matters."""
        if body.get("action") not in HOOK_ACTIONS:
            return False
        with self._turn:
            self._hooks.append(body)
            self._turn.notify_all()
        return True

    def predict(self, tasks: Sequence[Any]) -> list[dict[str, Any]]:
        """Predictions of tasks, in Label Studio's form; an empty one for a task that is no item here."""
        return [self.prediction(self.names.find(t["data"]) if _has_data(t) else None) for t in tasks]

    def prediction(self, item: str | None, rank: int | None = None) -> dict[str, Any]:
        """The class of an item, and as its score its place in the queue: low is soon."""
        likely = self.desk.worker.view.likely.get(item or "", ())
        ready = self.desk.worker.view.ready
        place = rank if rank is not None else ready.index(item) if item in ready else None
        result = []
        if likely:
            value = {"choices": [likely[0][0]]}
            result = [{"from_name": self._names[0], "to_name": self._names[1], "type": "choices", "value": value}]
        score = 1.0 if place is None else place / (1 + max(len(ready), place + 1))
        return {"result": result, "score": round(score, 6), "model_version": self.version or "foretaste"}

    # The thread

    def run(self) -> None:
        self._try(self._read_project)
        last, more = tuple[str, ...](), False
        while True:
            with self._turn:
                if not more:
                    self._turn.wait_for(lambda: bool(self._hooks) or self._closing, LOOK_SECONDS)
                if self._closing:
                    return
                hooks, self._hooks = list(self._hooks), deque(maxlen=WAITING_HOOKS)
            for body in hooks:
                self._try(lambda body=body: self._take(body))
            view, more = self.desk.worker.view, False
            ready = view.ready[: self.ranked]
            if self.studio is None:
                continue
            # A new best item at once; the rest of the ranking once, when it is whole.
            if ready and (ready[:1] != last[:1] or (view.whole and ready != last)):
                if self._try(lambda ready=ready: self._push(ready)):
                    last = ready
            elif self._waiting or self._old:
                self._try(self._tidy)
                more = bool(self._waiting or self._old)

    def close(self) -> None:
        """Stop the thread."""
        with self._turn:
            self._closing = True
            self._turn.notify_all()
        if self.is_alive():
            self.join(5)

    def _try(self, work: Any) -> bool:
        try:
            work()
        except (ConnectionError, StoreError, ValueError, KeyError, TypeError, AttributeError) as error:
            if str(error) != self.error:  # once, not ten times a second
                log.warning("Label Studio: %s", printable(str(error)))
            self.error = str(error)
            time.sleep(0.5)
            return False
        self.error = ""
        return True

    def _read_project(self) -> None:
        """Which tasks there are, what they are called, and what is annotated already."""
        if self.studio is None:
            return
        config = str(self.studio.call("GET", f"/api/projects/{self.project}").get("label_config", ""))
        self._names = choice_names(config)
        page = 1
        while True:
            path = f"/api/tasks?project={self.project}&page={page}&page_size={TASKS_A_PAGE}&fields=all"
            found = self.studio.call("GET", path)
            tasks = found.get("tasks", found) if isinstance(found, dict) else found
            for task in tasks:
                self._know(task)
                self._keep(task, last_choice(task))
            if len(tasks) < TASKS_A_PAGE:
                break
            page += 1
        if not self.tasks:
            log.warning("Label Studio: no task of project %d names an item of %s", self.project, self.desk.title)
        self.desk.worker.rank_ahead(self.ranked)

    def _know(self, task: Mapping[str, Any]) -> str | None:
        item = self.names.find(task["data"]) if _has_data(task) else None
        if item is not None:
            self.tasks[item] = int(task["id"])
            self.task_data[int(task["id"])] = dict(task["data"])
        return item

    def _take(self, body: Mapping[str, Any]) -> None:
        """One webhook: an annotation came, changed or went."""
        tasks = body.get("task") or body.get("tasks") or []
        annotations = body.get("annotation") or body.get("annotations") or []
        tasks = [tasks] if isinstance(tasks, Mapping) else list(tasks)
        annotations = [annotations] if isinstance(annotations, Mapping) else list(annotations)
        deleted = body["action"] == "ANNOTATIONS_DELETED"
        if deleted:
            return self._forget(annotations)
        known = {int(t["id"]): t for t in tasks if isinstance(t, Mapping) and "id" in t}
        for annotation in annotations:
            at = annotation.get("task")
            task = known.get(int(at)) if at is not None else (tasks[0] if tasks else None)
            if task is not None and self._know(task) is not None:
                self._keep(task, last_choice({"annotations": [annotation]}), annotation)
        return None

    def _keep(self, task: Mapping[str, Any], label: str | None, annotation: Mapping[str, Any] | None = None) -> None:
        item = self.names.find(task["data"]) if _has_data(task) else None
        if item is None or label is None or label not in self.desk.store.classes:
            return
        now = self.desk.store.state_of(item)
        if now is not None and now.label == label:
            return
        who = f"label-studio:{(annotation or {}).get('completed_by') or 'annotator'}"
        kind = "relabel" if now is not None else "label"
        try:
            self.desk.answer("", printable(str(who))[:80], item, kind, label, patience=0)
        except StoreConflict as error:  # somebody has it on our own page
            log.warning("Label Studio: %s", error)

    def _forget(self, annotations: Sequence[Any]) -> None:
        """Annotations were deleted: their items are open again."""
        items = {task: item for item, task in self.tasks.items()}
        for annotation in annotations:
            task = annotation.get("task") if isinstance(annotation, Mapping) else None
            item = items.get(int(task)) if task is not None else None
            now = None if item is None else self.desk.store.state_of(item)
            if item is not None and now is not None:
                self.desk.answer("", now.who, item, "skip", patience=0)  # open again

    def _push(self, ready: Sequence[str]) -> None:
        """Post the ranking under a new version and switch the project to it; then tidy up."""
        studio = self.studio
        assert studio is not None
        ranked = [item for item in ready if item in self.tasks]
        if not ranked:
            return
        self._count += 1
        old, version = self.version, f"foretaste-{int(time.time())}-{self._count}"
        rows = []
        for rank, item in enumerate(ranked):
            rows.append({"task": self.tasks[item]} | self.prediction(item, rank) | {"model_version": version})
        studio.call("POST", f"/api/projects/{self.project}/import/predictions", rows)
        studio.call("PATCH", f"/api/projects/{self.project}", {"model_version": version})
        self.version, self.pushed, self.order = version, self.pushed + 1, tuple(ranked)
        if old:
            self._old.append(old)
        self._waiting = rows

    def _tidy(self) -> None:
        """One piece of work that can wait: an old version, or the score in a task's own data."""
        studio = self.studio
        assert studio is not None
        if self._waiting:
            row = self._waiting.pop(0)
            data = self.task_data[row["task"]]
            if data.get(SCORE_FIELD) != row["score"]:
                data[SCORE_FIELD] = row["score"]
                studio.call("PATCH", f"/api/tasks/{row['task']}", {"data": data})
        elif self._old:
            version = self._old.pop(0)
            studio.call("DELETE", f"/api/projects/{self.project}/model-versions", {"model_version": version})


def choice_names(config: str) -> tuple[str, str]:
    """(name, toName) of the first Choices in a labelling configuration."""
    tag = re.search(r"<Choices\b[^>]*>", config)
    found = dict(re.findall(r"(\w+)\s*=\s*[\"']([^\"']*)[\"']", tag[0])) if tag else {}
    return found.get("name", LABEL_STUDIO_FROM), found.get("toName", LABEL_STUDIO_TO)


def add_ml_backend(app: FastAPI, link: LabelStudioLink) -> None:
    """The routes that Label Studio calls."""

    @app.post("/setup")
    def setup(body: dict[str, Any]) -> dict[str, Any]:
        return {"model_version": link.version or "foretaste"}

    @app.post("/predict")
    def predict(body: dict[str, Any]) -> Any:
        tasks = body.get("tasks")
        if not isinstance(tasks, list):
            return JSONResponse({"error": "expected an object with tasks, a list"}, 422)
        return {"results": link.predict(tasks), "model_version": link.version or "foretaste"}

    @app.post("/webhook")
    def webhook(body: dict[str, Any]) -> dict[str, Any]:
        return {"status": "queued" if link.hook(body) else "ignored"}

    @app.post("/train")
    def train(body: dict[str, Any]) -> dict[str, Any]:
        return {"status": "ok"}  # every annotation is learned when it comes


def _has_data(task: Any) -> bool:
    return isinstance(task, Mapping) and isinstance(task.get("data"), Mapping)
