"""Label Studio: the routes of its ML backend, and a queue that follows every annotation.

The community edition's "Uncertainty sampling" serves the task with the lowest score among the predictions of the
project's model version. After each annotation the best tasks get predictions under a new version, with their rank as
the score, and the project is set to that version: the queue has changed.

A webhook is answered when the store has what it says. Label Studio sends each once, waits a second, and sends none for
some changes (all tasks deleted, an annotation made a draft). So the project is also read as a whole, at the start and
every minute, and the store is brought in step with it. New orders and scores are written by a thread.

Tasks are matched to local items by name. No address that a task names is ever opened, and Label Studio's own is the
only one that is spoken to.
"""

import json
import logging
import re
import secrets
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from foretaste.errors import printable, whole_number
from foretaste.label.desk import LabelDesk
from foretaste.label.studio_tasks import (
    HOOK_ACTIONS,
    SCORE_FIELD,
    ChoiceControl,
    StudioTask,
    StudioTasks,
    find_choices,
    has_data,
)

log = logging.getLogger(__name__)

RANKED_TASKS = 10  # tasks that get a score after each annotation
WEBHOOK_BODIES = {"/predict": 16_000_000, "/webhook": 4_000_000, "/setup": 1_000_000, "/train": 1_000_000}
API_SECONDS = 20.0
LOOK_SECONDS = 0.05  # between looks at the learner's ranking
READ_SECONDS = 60.0  # between two readings of the whole project,
READ_SHARE = 0.05  # which take at most this share of the time
SOON_SECONDS = 0.5  # after a webhook that says too little: its change may not be committed yet
RETRY_SECONDS = 0.5  # after a failure; twice as long after each further one
LONGEST_RETRY = 15.0
HEAR_SECONDS = 10.0  # a webhook that has not come so long after our own change of the project is blocked
LARGEST_REPLY = 200_000_000
TASKS_A_PAGE = 500
TASK_FIELDS = ("id", "data", "annotations", "result", "was_cancelled", "completed_by", "updated_at")  # of both
SAMPLING = "Uncertainty sampling"
VERSIONS = re.compile(r"foretaste-\d+-[0-9a-f]+")  # model versions of ours, also of earlier sessions


class LabelStudio:
    """The HTTP interface of a Label Studio, and of nothing else: redirects are not followed.

    ``key`` is an access token of a user, legacy or personal. It is sent to this address alone and never printed.
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
        """One request; the reply as JSON. Raises ConnectionError if Label Studio is not there, or refuses."""
        return self._send(method, path, body, {"authorization": self._authorization()})

    def _authorization(self) -> str:
        if self._key.count(".") != 2:
            return f"Token {self._key}"
        if time.monotonic() > self._until:  # a personal token is traded for one that lasts minutes
            found = self._send("POST", "/api/token/refresh", {"refresh": self._key}, {})
            self._access, self._until = str(found["access"]), time.monotonic() + 120
        return f"Bearer {self._access}"

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers |= {"accept": "application/json"} | ({} if data is None else {"content-type": "application/json"})
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


class LabelStudioLink(threading.Thread):
    """Keeps a project's queue in the order of the learner, and the store in step with its annotations.

    Without ``studio`` the routes are served and nothing is posted. ``ranked`` tasks get a score each time. ``address``
    is that of our own server; "" if webhooks are not to be checked.
    """

    def __init__(
        self,
        desk: LabelDesk,
        studio: LabelStudio | None = None,
        project: int = 1,
        *,
        ranked: int = RANKED_TASKS,
        address: str = "",
    ) -> None:
        super().__init__(name="foretaste-label-studio", daemon=True)
        self.desk, self.studio, self.address = desk, studio, address
        self.project, self.ranked = whole_number("project", project, 1), whole_number("ranked", ranked, 1)
        self._place = f"/api/projects/{self.project}"
        self.said = StudioTasks(desk, whole=studio is not None)
        self.version, self.pushed, self.error = "", 0, ""
        self.order: tuple[str, ...] = ()  # the items of the current version, best first
        self.reads = 0  # how often the whole project was read
        self._closing = threading.Event()
        self._due = 0.0  # when the project is read again
        self._resend = False  # whether the current order must be posted again
        self._told: set[str] = set()  # faults that were told
        self._scores: dict[int, float] = {}  # task → score of the current order
        self._todo: list[int] = []  # tasks whose data has another one
        self._old: list[str] = []  # versions that nobody needs any more
        self._failures: dict[str, tuple[int, float]] = {}  # work → how often it failed in a row, when to try again
        self._hooked = self._heard = False
        self._listens_since = float("inf")
        if studio is None:
            self.said.speak_as("label-studio")

    # The routes

    def hook(self, body: Mapping[str, Any]) -> str:
        """Take a webhook: "kept" when the store has it, "queued" if the project is read for it, or "ignored".

        A ValueError or a StoreError says that it was not kept. The project is then read again soon.
        """
        self._heard = True
        project = body.get("project")
        foreign = self.studio is not None and isinstance(project, Mapping) and project.get("id") != self.project
        if body.get("action") not in HOOK_ACTIONS or foreign:
            return "ignored"
        try:
            done = self.said.take_hook(body)
        except BaseException:
            self._read_soon(SOON_SECONDS)
            raise
        if done == "unknown":
            self._read_soon(SOON_SECONDS)
            return "queued"
        return done

    def predict(self, tasks: Sequence[Any]) -> list[dict[str, Any]]:
        """Predictions of tasks, in Label Studio's form; an empty one for a task that is no item here."""
        return [self.prediction(self.said.names.find(t["data"]) if has_data(t) else None) for t in tasks]

    def prediction(self, item: str | None, rank: int | None = None) -> dict[str, Any]:
        """The class of an item, and as its score its place in the queue: low is soon."""
        likely = () if item and self.desk.measures(item) else self.desk.worker.view.likely.get(item or "", ())
        ready, choices = self.desk.worker.view.ready, self.said.choices or ChoiceControl()
        place = rank if rank is not None else ready.index(item) if item in ready else None
        result = []
        if likely and likely[0][0] in (choices.labels or self.desk.store.classes):  # others are dropped without a word
            value = {"choices": [likely[0][0]]}
            result = [{"from_name": choices.name, "to_name": choices.to_name, "type": "choices", "value": value}]
        score = 1.0 if place is None else place / (1 + max(len(ready), place + 1))
        return {"result": result, "score": round(score, 6), "model_version": self.version or "foretaste"}

    # The thread

    def run(self) -> None:
        last, more = tuple[str, ...](), False
        self.desk.worker.rank_ahead(self.ranked)
        while self.studio is not None:
            if self._closing.wait(0 if more else LOOK_SECONDS):
                return
            if time.monotonic() >= self._due:
                self._try(self._read_project)
            view, more = self.desk.worker.view, False
            ready = view.ready[: self.ranked]
            # A new best item at once; the rest of the ranking once, when it is whole.
            new = ready[:1] != last[:1] if ready else view.whole and last
            if new or self._resend or self.said.moved or (view.whole and ready != last):
                self._resend = not self._try(self._push, ready)
                last = last if self._resend else ready
            elif self.version:
                more = self._try(self._tidy)
            if self._hooked and not self._heard and time.monotonic() > self._listens_since + HEAR_SECONDS:
                self._heard = True  # told once
                log.warning(
                    "no webhook of project %d of Label Studio arrives, though it has one: it is blocked. Start Label "
                    "Studio with SSRF_PROTECTION_ENABLED=false; until then the project is read every %.0f s",
                    self.project,
                    READ_SECONDS,
                )

    def close(self) -> None:
        """Stop the thread."""
        self._closing.set()
        if self.is_alive():
            self.join(5)

    def _try(self, work: Callable[..., Any], *given: Any) -> bool:
        """Do some work. A failure is told once, whatever it is, and the work is done again after a while."""
        name = work.__name__
        count, again = self._failures.get(name, (0, 0.0))
        if time.monotonic() < again:
            return False
        try:
            done = work(*given)
        except Exception as error:
            self.error = str(error) or type(error).__name__
            if not count:
                log.warning("Label Studio: %s", printable(self.error))
            wait = min(RETRY_SECONDS * 2**count, LONGEST_RETRY)
            self._failures[name] = (min(count + 1, 30), time.monotonic() + wait)
            if work != self._read_project:
                self._read_soon()  # something there is not as we think
            return False
        self._failures.pop(name, None)
        self.error = "" if not self._failures else self.error
        return done is not False

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        assert self.studio is not None
        return self.studio.call(method, path, body)

    def _read_soon(self, seconds: float = 0.0) -> None:
        with self.said.lock:
            self._due = min(self._due, time.monotonic() + seconds)

    # Reading

    def check(self) -> list[str]:
        """Read the project's settings. Returns what is wrong with them, in sentences, each once until it is mended."""
        project = self._call("GET", self._place)
        classes = self.desk.store.classes
        self.said.choices = choices = find_choices(project.get("parsed_label_config"), classes)
        self.said.speak_as(f"label-studio:{self.project}:{project.get('created_at', '')}")
        self._resend |= bool(self.version) and project.get("model_version") != self.version
        where, faults = f"project {self.project} of Label Studio", list[str]()
        if choices is None:
            faults.append(f"{where} has no Choices in its labelling interface; annotations there have no class")
        elif choices.labels:
            if lacking := [name for name in classes if name not in choices.labels]:
                faults.append(f"{where} cannot choose {', '.join(lacking)}; add to its labelling interface")
            if strange := [name for name in choices.labels if name not in classes]:
                faults.append(f"{where} has {', '.join(strange)}, no class here; such annotations are not learned")
        if project.get("sampling") != SAMPLING:
            faults.append(
                f"{where} has the sampling mode {project.get('sampling')!r}, so its queue does not follow the learner; "
                f"choose {SAMPLING} in its settings"
            )
        faults += self._check_hooks(where) if self.address else []
        new = [printable(fault) for fault in faults if fault not in self._told]
        self._told = set(faults)
        return new

    def _check_hooks(self, where: str) -> list[str]:
        mine = f"{self.address}/webhook"
        try:
            hooks = self._call("GET", f"/api/webhooks/?project={self.project}")
        except ConnectionError:  # not everybody may see them
            return []
        found = [h for h in hooks if h.get("is_active") and _same_door(str(h.get("url")), mine)]
        whole = [h for h in found if h.get("send_for_all_actions") or {*HOOK_ACTIONS} <= {*h.get("actions", ())}]
        self._hooked = any(h.get("send_for_all_actions") for h in found)
        often = f"until then the project is read every {READ_SECONDS:.0f} s"
        if not found:
            return [
                f"{where} has no webhook to {mine}; add one. Label Studio refuses addresses of its own machine unless "
                f"it is started with SSRF_PROTECTION_ENABLED=false; {often}"
            ]
        if not any(h.get("send_payload") for h in whole):
            return [f"the webhook of {where} lacks its payload or some actions; turn both on; {often}"]
        return []

    def _read_project(self) -> None:
        """Read all tasks and annotations, and bring store and learner in step with them."""
        start, pause = time.monotonic(), 0.0
        with self.said.lock:
            self._due = float("inf")  # unless a webhook asks for another reading meanwhile
        try:
            for fault in self.check():
                log.warning("%s", fault)
            found = self._read_tasks()
            if not found and not self.reads:
                log.warning("no task of project %d of Label Studio names an item of %s", self.project, self.desk.title)
            self._look_at_versions(found)
            self.said.take_all(found, start)
            self._plan_scores()
            self.reads += 1
            pause = max(READ_SECONDS, (time.monotonic() - start) / READ_SHARE)
        finally:
            self._read_soon(pause)

    def _read_tasks(self) -> dict[int, StudioTask]:
        found, page, read, total = dict[int, StudioTask](), 1, 0, 1
        while read < total:  # a page beyond the last is an error there
            path = f"/api/tasks?project={self.project}&page={page}&page_size={TASKS_A_PAGE}&fields=all"
            reply = self._call("GET", f"{path}&resolve_uri=false&include={','.join(TASK_FIELDS)}")
            tasks, total = reply["tasks"], int(reply["total"])
            found |= dict(known for known in map(self.said.read_task, tasks) if known is not None)
            if not tasks:
                break
            page, read = page + 1, read + len(tasks)
        return found

    def _look_at_versions(self, found: Mapping[int, StudioTask]) -> None:
        """Find old versions, also of earlier sessions, and see whether the current one is whole."""
        versions = self._call("GET", f"{self._place}/model-versions") or {}
        self._old = [name for name in versions if VERSIONS.fullmatch(name) and name != self.version]
        there = sum(task in found for task in self._scores)
        self._resend |= bool(self.version) and versions.get(self.version, 0) < there

    # Writing

    def _push(self, ready: Sequence[str]) -> None:
        """Post the ranking under a new version and switch the project to it. Tasks of older ones lose their scores."""
        with self.said.lock:
            ranked = [(item, self.said.open[item]) for item in ready if item in self.said.open]
            self.said.moved = False
        old, version = self.version, f"foretaste-{int(time.time())}-{secrets.token_hex(4)}"  # never one of before
        rows = [
            {"task": task} | self.prediction(item, rank) | {"model_version": version}
            for rank, (item, task) in enumerate(ranked)
        ]
        if rows:
            reply = self._call("POST", f"{self._place}/import/predictions", rows)
            if reply.get("created") != len(rows):
                self._old.append(version)
                raise ConnectionError(f"Label Studio took {reply.get('created')} of {len(rows)} predictions")
            self._call("PATCH", self._place, {"model_version": version})
            self.version, self.pushed = version, self.pushed + 1
            self._old += [old] if old else []
            self._listens_since = min(self._listens_since, time.monotonic())
        self._scores = {row["task"]: row["score"] for row in rows}
        self.order = tuple(item for item, _ in ranked)
        self._plan_scores()

    def _plan_scores(self) -> None:
        """Which tasks have another score in their data than in the current order."""
        with self.said.lock:
            known = {number: task.score for number, task in self.said.tasks.items()}
        self._todo = [number for number, score in known.items() if score != self._scores.get(number)]

    def _tidy(self) -> bool:
        """One piece of work that can wait: the score in a task's own data, or an old version. Whether there was any."""
        if self._todo:
            self._write_score(self._todo[-1], self._scores.get(self._todo[-1]))
            self._todo.pop()
        elif self._old:
            self._call("DELETE", f"{self._place}/model-versions", {"model_version": self._old[-1]})
            self._old.pop()
        else:
            return False
        return True

    def _write_score(self, number: int, score: float | None) -> None:
        """Set our own field of a task, or remove it. The rest of its data is what it is there now."""
        data = self._call("GET", f"/api/tasks/{number}?resolve_uri=false")["data"]
        if data.get(SCORE_FIELD) != score:
            rest = {name: value for name, value in data.items() if name != SCORE_FIELD}
            own = {} if score is None else {SCORE_FIELD: score}
            self._call("PATCH", f"/api/tasks/{number}", {"data": rest | own})
        with self.said.lock:
            if number in self.said.tasks:
                self.said.tasks[number] = replace(self.said.tasks[number], score=score)


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
        return {"status": link.hook(body)}  # an error is another status: nothing is acknowledged that is not kept

    @app.post("/train")
    def train(body: dict[str, Any]) -> dict[str, Any]:
        return {"status": "ok"}  # every annotation is learned when it comes


def _same_door(url: str, mine: str) -> bool:
    """Whether two addresses have the same port and path: a machine has many names."""
    try:
        one, other = urlsplit(url), urlsplit(mine)
        return (one.port, one.path.rstrip("/")) == (other.port, other.path)
    except ValueError:
        return False
