"""Record the webhooks of a real Label Studio, every kind that a project can send."""

import json
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from real_studio.server import RealStudio, choose

OUT = Path(__file__).parents[1] / "fixtures" / "label_studio_webhooks.json"
PROJECT_FIELDS = ("id", "title", "created_at", "model_version", "sampling", "parsed_label_config")  # no token


class Receiver(BaseHTTPRequestHandler):
    """Keeps the bodies, under the name of what is being done."""

    step = ""
    bodies: list[dict[str, Any]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "project" in body:
            body["project"] = {name: body["project"][name] for name in PROJECT_FIELDS}
        self.bodies.append({"step": Receiver.step, "body": body})
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


def record(studio: RealStudio, address: str) -> None:
    """Nine tasks, and everything that people do with them."""

    def step(name: str) -> None:
        Receiver.step = name

    project = studio.new_project([])
    hook = studio.add_webhook(project, f"{address}/webhook")
    step("tasks imported")
    studio.import_tasks(project, [{"text": f"text number {k}"} for k in range(8)])
    step("one task created")
    studio.api.call("POST", "/api/tasks", {"project": project, "data": {"text": "text number 8"}})
    t = sorted(studio.tasks(project))
    step("annotated")
    first = studio.annotate(t[0], "cat")
    step("updated")
    studio.update(first, "dog")
    step("annotated with a class of others")
    studio.annotate(t[1], "cow")
    step("skipped")
    skipped = studio.skip(t[2])
    step("annotated after a skip")
    studio.update(skipped, "cat", was_cancelled=False)
    step("skipped after an annotation")
    studio.update(skipped, "cat", was_cancelled=True)
    step("made a draft")  # no webhook comes
    studio.api.call("POST", f"/api/annotations/{skipped}/convert-to-draft", {})
    step("a draft")  # no webhook comes
    studio.api.call("POST", f"/api/tasks/{t[3]}/drafts", {"result": choose("cat")})
    step("deleted")
    studio.api.call("DELETE", f"/api/annotations/{first}")
    step("two annotated")
    studio.annotate(t[4], "cat")
    studio.annotate(t[5], "dog")
    step("two deleted in the data manager")
    studio.act(project, "delete_tasks_annotations", [t[4], t[5]])
    rows = [{"task": t[3], "result": choose("cat"), "score": 0.1, "model_version": "foretaste-1-1"}]
    studio.api.call("POST", f"/api/projects/{project}/import/predictions", rows)
    step("project updated")
    studio.api.call("PATCH", f"/api/projects/{project}", {"model_version": "foretaste-1-1"})
    step("predictions made annotations")
    studio.act(project, "predictions_to_annotations", [t[3]], model_version="foretaste-1-1")
    step("task changed")  # no webhook comes
    studio.api.call("PATCH", f"/api/tasks/{t[3]}", {"data": {"text": "text number 3", "note": "later"}})
    step("task deleted")
    studio.api.call("DELETE", f"/api/tasks/{t[6]}")
    step("annotated task deleted")
    studio.api.call("DELETE", f"/api/tasks/{t[3]}")
    step("tasks deleted in the data manager")
    studio.act(project, "delete_tasks", [t[7], t[8]])
    step("all tasks deleted")  # no webhook comes
    studio.api.call("DELETE", f"/api/projects/{project}/tasks")
    studio.api.call("PATCH", f"/api/webhooks/{hook}", {"send_payload": False, "url": f"{address}/webhook"})
    step("tasks imported, no payload")
    studio.import_tasks(project, [{"text": "text number 0"}], annotations=[{"result": choose("cat")}])
    (again,) = studio.tasks(project)
    step("annotated, no payload")
    studio.annotate(again, "dog")


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder, RealStudio(Path(folder)) as studio:
        record(studio, f"http://127.0.0.1:{server.server_port}")
    lines = ",\n".join(json.dumps(body) for body in Receiver.bodies)
    OUT.write_text(f"[\n{lines}\n]\n")
    print(f"{len(Receiver.bodies)} webhooks in {OUT.name}:")
    for body in Receiver.bodies:
        print(f"  {body['step']}: {body['body']['action']}")


if __name__ == "__main__":
    main()
