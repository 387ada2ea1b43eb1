"""Webhooks of a real Label Studio with values replaced by odd ones, and a Label Studio whose replies are damaged alike.

Each webhook is kept, ignored or refused by name. What is refused changes nothing, what is said to be kept is on the
disk, and neither ends the thread that writes the queue: after each of them an ordinary annotation is kept.
"""

import copy
import json
import random
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foretaste.label.guard import Guard
from foretaste.label.label_studio import WEBHOOK_BODIES, LabelStudioLink, add_ml_backend
from foretaste.label.server import make_app
from foretaste.label.store import LabelStore
from label_cases import Client, MemoryItems, close_desk, open_desk

from .outcomes import Tally

RECORDED = Path(__file__).parents[1] / "fixtures" / "label_studio_webhooks.json"
TEXTS = 9
ODD = [
    "1e400", "-1e400", "NaN", "1e-400", "1.5", "-0.0", "-1", "0", "9" * 40, "9" * 5000, "true", "null", "{}", "[]",
    "[[]]", '""', '"1"', '"\\ud800"', '"\\u0000"', '{"id": 1e400}', '[{"id": 1e400}]', "[" * 500 + "]" * 500, '"x"',
    '"http://[x"', '"cat"', '["cat", 1e400]', '"ANNOTATIONS_DELETED"', '"TASKS_DELETED"', '"ANNOTATION_UPDATED"',
]  # fmt: skip
STATUSES = (200, 400, 422)


class OddStudio:
    """Answers as a Label Studio does whose project has one task for each text; every third reply is damaged.

    What a task says is left alone: another label there would be another label.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.annotations = draw, dict[int, Any]()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        replies = {
            "/api/tasks": {"tasks": [self.task(k) for k in range(TEXTS)], "total": TEXTS},
            "/api/projects/1": {"id": 1, "created_at": "now", "parsed_label_config": {"label": {"type": "Choices"}}},
            "/api/projects/1/import/predictions": {"created": len(body or [])},
        }
        reply = replies.get(path.partition("?")[0], {"data": {}} if path.startswith("/api/tasks/") else {})
        if self.draw.random() < 1 / 3:
            odd = [text for text in ODD if len(text) < 100]
            if path.startswith("/api/tasks?"):
                return reply | {self.draw.choice(["tasks", "total"]): json.loads(self.draw.choice(odd))}
            return json.loads(damaged(reply, self.draw, odd))
        return reply

    def task(self, k: int) -> dict[str, Any]:
        annotations = [self.annotations[k]] if k in self.annotations else []
        return {"id": k + 1, "data": {"text": f"text number {k}"}, "annotations": annotations}


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *places(value[key]))]


def damaged(body: Any, draw: random.Random, odd: list[str]) -> str:
    """The JSON of a body with one to three values replaced: as text, so that numbers may be what no float holds."""
    body, texts = copy.deepcopy(body), dict[str, str]()
    for k in range(draw.choice([1, 1, 1, 2, 3])):
        found = places(body)
        if found:
            container, key = draw.choice(found)
            container[key] = f"@odd{k}@"
            texts[f"@odd{k}@"] = draw.choice(odd)
    text = json.dumps(body)
    for mark, value in texts.items():
        text = text.replace(f'"{mark}"', value)
    return text


def run(count: int, seed: int = 0) -> Tally:
    """Send ``count`` damaged webhooks, to a link with a Label Studio and to one without, in turn."""
    tally, draw = Tally(), random.Random(seed)
    recorded = [row["body"] for row in json.loads(RECORDED.read_text())]
    items = MemoryItems("text", [f"r{k}" for k in range(TEXTS)], [f"text number {k}" for k in range(TEXTS)])
    with tempfile.TemporaryDirectory() as folder:
        for part, studio in enumerate([None, OddStudio(random.Random(seed))]):
            store = Path(folder) / str(part)
            desk = open_desk(store, items, start=False)
            link = LabelStudioLink(desk, studio, 1)  # type: ignore[arg-type]
            app = make_app(desk)
            add_ml_backend(app, link)
            client = Client(Guard(app, routes=WEBHOOK_BODIES))
            if studio is not None:
                link.said.speak_as("label-studio:1:now")
                link.start()
            for k in range(count // 2 + (count % 2 if studio else 0)):
                body = damaged(draw.choice(recorded), draw, ODD)
                outcome, words = _send(client, desk.store, body, k, None if studio is None else studio.annotations)
                if studio is not None and not link.is_alive():
                    outcome, words = "left behind", "the thread has ended"
                tally.add(outcome, f"{words}: {body[:300]}")
            link.close()
            close_desk(desk)
    return tally


def _send(client: Client, store: LabelStore, body: str, k: int, theirs: dict[int, Any] | None) -> tuple[str, str]:
    before = len(store.events()) if theirs is None else None  # with a project, its reading may write at any time
    try:
        reply = client.post("/webhook", body.encode())
    except Exception as error:
        return "raw error", f"{type(error).__name__}: {error}"
    if reply.status not in STATUSES:
        return "raw error", f"status {reply.status}"
    if reply.status != 200 and before not in (None, len(store.events())):
        return "wrong", f"refused with {reply.status}, and the log has grown"
    # An ordinary annotation, by a person who changes her mind each time.
    task, label = k % TEXTS, ("cat", "dog")[k // TEXTS % 2]
    result = [{"from_name": "label", "to_name": "item", "type": "choices", "value": {"choices": [label]}}]
    stamp = datetime.fromtimestamp(4e9 + k, UTC).isoformat()  # after all that was recorded
    annotation = {"id": 10**9 + task, "task": task + 1, "result": result, "completed_by": 1, "updated_at": stamp}
    if theirs is not None:
        theirs[task] = annotation
    about = {"id": task + 1, "data": {"text": f"text number {task}"}}
    plain = {"action": "ANNOTATION_CREATED", "annotation": annotation, "task": about, "project": {"id": 1}}
    said = client.post("/webhook", plain)
    if said.status != 200 or said.json != {"status": "kept"}:
        return "wrong", f"an ordinary annotation is answered {said.status} {said.body[:100]!r}"
    if store.labels().get(f"r{task}") != label:
        return "wrong", f"an ordinary annotation is acknowledged and not kept: {store.labels()}"
    return ("right" if reply.status == 200 else "clear error"), ""
