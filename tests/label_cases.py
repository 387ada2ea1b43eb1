"""What tests of the labelling page share: items in memory, a learner without a network, a client of the server."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from foretaste.label.desk import LabelDesk
from foretaste.label.store import LabelStore
from foretaste.label.worker import BuiltLearner, LearnerWorker


@dataclass
class MemoryItems:
    """Items as ``ft.open`` gives them: pictures, texts or rows."""

    kind: str
    ids: list[str]
    items: list[Any]


def pictures(n: int = 20, side: int = 8) -> MemoryItems:
    made = [Image.fromarray(np.full((side, side), 10 * (k % 25), np.uint8)) for k in range(n)]
    return MemoryItems("pictures", [f"p{k:03d}.png" for k in range(n)], made)


@dataclass
class PlainLearner:
    """The verbs of a learner without a network: it asks in the order of the ids and predicts the label last taught."""

    ids: list[str]
    classes: list[str]
    labels: dict[str, str] = field(default_factory=dict)
    told_doubts: dict[str, float] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)
    pending: list[str] = field(default_factory=list)
    trainings: int = 0
    training: bool = False

    @property
    def ready(self):
        return len(set(self.labels.values())) > 1

    def query(self, n=1):
        closed = {*self.labels, *self.ignored, *self.pending}
        found = [i for i in self.ids if i not in closed][:n]
        self.pending += found
        return found

    @property
    def doubts(self):
        return {i: d for i, d in self.told_doubts.items() if d and i in self.labels}

    def teach(self, ids, labels, doubts=None):
        self.told_doubts.update(zip(ids, doubts or [0.0] * len(ids)))
        for i, label in zip(ids, labels):
            assert i not in self.ignored
            assert self.labels.get(i, label) == label
            assert label in self.classes
            self.labels[i] = label
            self.release([i])

    def relabel(self, ids, labels, doubts=None):
        self.told_doubts.update(zip(ids, doubts or [0.0] * len(ids)))
        self.labels.update(zip(ids, labels))

    def unlabel(self, ids):
        for i in ids:
            del self.labels[i]

    def ignore(self, ids):
        for i in ids:
            self.labels.pop(i, None)
        self.ignored |= set(ids)
        self.release(ids)

    def restore(self, ids):
        self.ignored -= set(ids)

    def release(self, ids=None):
        self.pending = [] if ids is None else [i for i in self.pending if i not in set(ids)]

    @property
    def window_ids(self):
        return list(self.ids)

    def predict(self, items=None):
        last = next(reversed(self.labels.values()))
        return np.array([last] * len(self.ids if items is None else items))

    def predict_proba(self, items=None):
        p = np.full((len(self.ids if items is None else items), len(self.classes)), 0.1)
        p[:, self.classes.index(next(reversed(self.labels.values())))] = 0.9
        return p

    def rough_proba(self, wait=True):
        return self.predict_proba()

    rough_progress = None

    def explain(self, item, most=10):
        nearest = [{"id": i, "alike": 0.5} for i in self.ids if i != item][:most]
        changed = [{"id": "p009.png", "from": "cat", "to": "dog", "by": 0.5}]
        return {"id": item, "label": "dog", "changes": 4, "changed": changed, "stands_for": 7, "nearest": nearest}

    def status(self, *, goal):
        drift = {"retrain": False, "reason": "the network still fits"}
        return {"stop": False, "reason": "3 of 20 open items are expected to be wrong", "drift": drift}

    def change_classes(self, classes, renamed=None):
        self.classes = list(classes)
        self.labels = {i: (renamed or {}).get(y, y) for i, y in self.labels.items()}

    def mistakes(self, also=None):
        """The later an item stands, the more doubtful its label; others say the first class."""
        given, n = {**(also or {}), **self.labels}, len(self.ids)
        found = [(self.ids.index(i) / n, i, y) for i, y in given.items()]
        rows = [{"id": i, "label": y, "wrong": w, "likely": self.classes[0], "probability": 0.8} for w, i, y in found]
        return sorted(rows, key=lambda row: -row["wrong"])

    def saved(self, drawn):
        """It saved 12 labels, whatever was drawn."""
        return {"random": 40, "asked": 28, "saved": 12, "low": -3, "high": 20, "accuracy": 0.8, "worth": 1.4}

    def track_record(self):
        return [{"id": i, "predicted": label, "error": 0.1} for i, label in self.labels.items()]

    def recall(self, record):
        self.recalled = list(record)

    def retrain(self, wait=False):
        self.trainings += 1

    def stop_training(self):
        pass

    def wait(self, timeout=None):
        return True


def open_desk(folder, data=None, classes=("cat", "dog"), *, start=True, lease=60.0, **rest) -> LabelDesk:
    """A desk on a store in a folder, with the plain learner."""
    data = data or pictures()
    store = LabelStore(folder, lease_seconds=lease)
    store.set_classes(classes)
    learner = PlainLearner(list(data.ids), list(classes))
    worker = LearnerWorker(lambda progress: BuiltLearner(learner, "a plain learner"), list(classes))
    desk = LabelDesk(data, store, worker, title="test", **{"check_every": 0} | rest)
    desk.learner = learner
    if start:
        worker.start()
    return desk


def close_desk(desk) -> None:
    desk.worker.close()
    desk.store.close()


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class Client:
    """Calls an ASGI application without a network."""

    app: Any
    headers: dict[str, str] = field(default_factory=lambda: {"host": "127.0.0.1:8765"})

    def get(self, path, **headers):
        return self.call("GET", path, None, headers)

    def post(self, path, body=None, **headers):
        raw = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return self.call("POST", path, raw, {"content_type": "application/json"} | headers)

    def call(self, method, path, body, headers):
        headers = self.headers | {k.replace("_", "-"): v for k, v in headers.items() if v is not None}
        path, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "scheme": "http",
            "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8765),
        }  # fmt: skip
        sent, parts = [], [body or b""]

        async def receive():
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": False}
            await asyncio.Event().wait()
            return None

        async def send(message):
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        start = next(m for m in sent if m["type"] == "http.response.start")
        content = b"".join(m.get("body", b"") for m in sent if m["type"] == "http.response.body")
        return Reply(start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, content)
