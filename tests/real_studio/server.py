"""Label Studio as a process of its own: SQLite, on 127.0.0.1, in a folder that is given."""

import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from foretaste.label.label_studio import LabelStudio
from foretaste.label.server import open_port

TOKEN = "0123456789abcdef0123456789abcdef01234567"
CONFIG = """<View><Text name="item" value="$text"/><Choices name="label" toName="item" choice="single">
<Choice value="cat"/><Choice value="dog"/><Choice value="cow"/></Choices></View>"""
START_SECONDS = 600.0


def executable() -> str | None:
    """The label-studio that $LABEL_STUDIO names, or the one on the path."""
    return os.environ.get("LABEL_STUDIO") or shutil.which("label-studio")


def choose(label: str) -> list[dict[str, Any]]:
    """The result of an annotation."""
    return [{"from_name": "label", "to_name": "item", "type": "choices", "value": {"choices": [label]}}]


class RealStudio:
    """A Label Studio with one person. ``start`` and ``stop`` may alternate: the folder keeps everything."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder, self.env = folder, env
        self.process: subprocess.Popen[bytes] | None = None
        with open_port("127.0.0.1", 0) as free:
            self.port = free.getsockname()[1]
        self.api = LabelStudio(f"http://127.0.0.1:{self.port}", TOKEN)

    def start(self, **env: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "LABEL_STUDIO_BASE_DATA_DIR": str(self.folder), "DJANGO_DB": "sqlite", "COLLECT_ANALYTICS": "false",
            "LATEST_VERSION_CHECK": "false", "SENTRY_DSN": "", "FRONTEND_SENTRY_DSN": "",
            "LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN": "true", "SSRF_PROTECTION_ENABLED": "false",
            "ML_BLOCK_LOCAL_IP": "false",
        }  # fmt: skip
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        words = ["start", "--no-browser", "--port", str(self.port), "--internal-host", "127.0.0.1"]
        words += ["--user-token", TOKEN, "--username", "a@example.org", "--password", "long-enough-1"]
        found = executable()
        assert found is not None, "no label-studio: see tests/real_studio/__init__.py"
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["nice", found, *words], env=inherited | settings | self.env | env, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + START_SECONDS
        while True:
            assert self.process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
            assert time.monotonic() < end, "Label Studio does not start"
            with suppress(ConnectionError):
                self.api.call("GET", "/api/projects")
                return
            time.sleep(0.5)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
            self.process = None

    def __enter__(self) -> "RealStudio":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # What people do

    def new_project(self, texts: list[dict[str, Any]], **settings: Any) -> int:
        wanted = {"title": "test", "label_config": CONFIG, "sampling": "Uncertainty sampling"} | settings
        project = int(self.api.call("POST", "/api/projects", wanted)["id"])
        if texts:
            self.import_tasks(project, texts)
        return project

    def import_tasks(self, project: int, texts: list[dict[str, Any]], **more: Any) -> None:
        self.api.call("POST", f"/api/projects/{project}/import", [{"data": data} | more for data in texts])

    def tasks(self, project: int) -> dict[int, dict[str, Any]]:
        fields = "id,data,annotations,result,was_cancelled,completed_by,updated_at,predictions,model_version,score"
        path = f"/api/tasks?project={project}&page_size=1000&fields=all&resolve_uri=false&include={fields}"
        return {task["id"]: task for task in self.api.call("GET", path)["tasks"]}

    def annotate(self, task: int, label: str) -> int:
        return int(self.api.call("POST", f"/api/tasks/{task}/annotations", {"result": choose(label)})["id"])

    def skip(self, task: int) -> int:
        body = {"result": [], "was_cancelled": True}
        return int(self.api.call("POST", f"/api/tasks/{task}/annotations", body)["id"])

    def update(self, annotation: int, label: str, **more: Any) -> None:
        self.api.call("PATCH", f"/api/annotations/{annotation}", {"result": choose(label)} | more)

    def act(self, project: int, action: str, tasks: list[int], **more: Any) -> None:
        """An action of the data manager on chosen tasks."""
        body = {"selectedItems": {"all": False, "included": tasks}} | more
        self.api.call("POST", f"/api/dm/actions?id={action}&project={project}", body)

    def add_webhook(self, project: int, url: str, **settings: Any) -> int:
        return int(self.api.call("POST", "/api/webhooks", {"project": project, "url": url} | settings)["id"])
