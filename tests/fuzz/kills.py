"""Kill a labelling server at random, and count what was acknowledged and is not there afterwards.

    PYTHONPATH=src:tests python -m fuzz.kills --kills 200

Each round starts a server on one folder, labels through HTTP as fast as it answers (labels, relabels, undos, "not
sure"), kills it with -9 at a random moment after the first acknowledgement, from another thread and so also in the
middle of a request, and reads the log. The learner is the plain one of ``label_cases``, so
that a round takes a second: what is tested is the way from a request to the disk.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from foretaste.label import LabelStore

SERVER = """
import sys
sys.path[:0] = sys.argv[2:]
from label_cases import MemoryItems, open_desk
from foretaste.label.server import make_app, open_port, serve_app
ids = [f"item{k}" for k in range(4000)]
desk = open_desk(sys.argv[1], MemoryItems("text", ids, ids))
port = open_port("127.0.0.1", 0)
print("open", port.getsockname()[1], flush=True)
serve_app(make_app(desk), port, host="127.0.0.1")
"""
TAB = {"tab": "tab-00000001", "who": "Ada"}


def one_round(folder: Path, rng: random.Random) -> list[tuple[int, str]]:
    """(sequence number, request) of what one server acknowledged before it was killed."""
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", SERVER, str(folder), tests]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.match(r"open (\d+)", process.stdout.readline())
        assert found, "the server did not start"
        done = list[tuple[int, str]]()
        timer: threading.Timer | None = None
        try:
            connection = HTTPConnection("127.0.0.1", int(found[1]), timeout=10)
            item = call(connection, "/api/next", TAB)["items"][0]["item"]
            while True:
                request = f"{rng.getrandbits(64):x}"
                if done and rng.random() < 0.15:
                    reply = call(connection, "/api/undo", {**TAB, "request": request})
                    item = reply["item"]["item"]
                else:
                    kind = rng.choice(["label", "label", "label", "unsure"])
                    said = {"label": rng.choice(["cat", "dog"])} if kind == "label" else {}
                    reply = call(
                        connection, "/api/answer", {**TAB, "item": item, "kind": kind, "request": request, **said}
                    )
                    item = reply["items"][0]["item"]
                done.append((reply["seq"], request))
                if timer is None:
                    timer = threading.Timer(rng.random() * 0.3, os.kill, (process.pid, signal.SIGKILL))
                    timer.start()
        except (OSError, HTTPException, ValueError):
            pass  # killed in the middle of a request: what was not acknowledged may be lost
        finally:
            if timer is not None:
                timer.join()
            process.kill()
    return done


def call(connection: HTTPConnection, path: str, body: dict) -> dict:
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    if reply.status != 200:
        raise ValueError(f"{reply.status}: {text[:200]!r}")
    return json.loads(text)


def run(kills: int, seed: int = 0) -> tuple[int, int]:
    """(acknowledged answers, of them lost) over so many kills on one folder."""
    rng, acknowledged = random.Random(seed), list[tuple[int, str]]()
    with tempfile.TemporaryDirectory() as folder:
        for k in range(kills):
            done = one_round(Path(folder), rng)
            assert done, "nothing was acknowledged before the kill: the round says nothing"
            acknowledged += done
            if k % 20 == 19:
                print(f"{k + 1} kills, {len(acknowledged)} answers acknowledged, 0 lost so far", flush=True)
            with LabelStore(folder) as store:
                log = {(event.seq, event.request) for event in store.events()}
            lost = [entry for entry in acknowledged if entry not in log]
            if lost:
                return len(acknowledged), len(lost)
    return len(acknowledged), 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kill a labelling server at random and count what was lost.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    begin = time.monotonic()
    count, lost = run(chosen.kills, chosen.seed)
    print(f"{chosen.kills} kills, {count} answers acknowledged, {lost} lost, {time.monotonic() - begin:.0f} s")
    sys.exit(bool(lost))
