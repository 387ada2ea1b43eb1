"""Kill a labelling server at random, and count what was acknowledged and is not there afterwards.

    PYTHONPATH=src:tests python -m fuzz.kills --kills 200 --damages 200

Each round starts a server on one folder, labels through HTTP as fast as it answers (labels, undos, "not sure", of three
people of whom two are asked about each item), kills it with -9 at a random moment after the first acknowledgement, from
another thread and so also in the middle of a request, and reads the log. Then one file of a log is damaged at a time
(logs.py). The learner is the plain one of ``label_cases``, so
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

from .logs import run as damage_logs

SERVER = """
import sys
sys.path[:0] = sys.argv[2:]
from label_cases import MemoryItems, open_desk
import foretaste.label.desk
foretaste.label.desk.FRESH_SECONDS = 0.0
from foretaste.label.server import make_app, open_port, serve_app
ids = [f"item{k}" for k in range(4000)]
desk = open_desk(sys.argv[1], MemoryItems("text", ids, ids), voices_each=2)
port = open_port("127.0.0.1", 0)
print("open", port.getsockname()[1], flush=True)
serve_app(make_app(desk), port, host="127.0.0.1")
"""
TABS = [{"tab": f"tab-0000000{k}", "who": who} for k, who in enumerate(("Ada", "Bob", "Cid"))]


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
            items = [call(connection, "/api/next", tab)["items"][0]["item"] for tab in TABS]
            given = [0 for _ in TABS]  # by each of them, and not taken back
            while True:
                request, k = f"{rng.getrandbits(64):x}", rng.randrange(len(TABS))
                if given[k] and rng.random() < 0.15:
                    # The last one answers at once what the others did: some of theirs cannot be taken back any more.
                    reply = call(connection, "/api/undo", {**TABS[k], "request": request}, may=(409,))
                    given[k] = 0
                    if "seq" not in reply:
                        continue
                    items[k] = reply["item"]["item"]
                else:
                    kind = rng.choice(["label", "label", "label", "unsure"])
                    said = {"label": rng.choice(["cat", "dog"])} if kind == "label" else {}
                    answer = {**TABS[k], "item": items[k], "kind": kind, "request": request, **said}
                    reply = call(connection, "/api/answer", answer)
                    items[k] = reply["items"][0]["item"]
                    given[k] += 1
                done.append((reply["seq"], request))
                if timer is None:
                    timer = threading.Timer(rng.random() * 0.3, os.kill, (process.pid, signal.SIGKILL))
                    timer.start()
        except (OSError, HTTPException):
            pass  # killed in the middle of a request: what was not acknowledged may be lost
        finally:
            if timer is not None:
                timer.join()
            process.kill()
    return done


def call(connection: HTTPConnection, path: str, body: dict, may: tuple[int, ...] = ()) -> dict:
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    if reply.status not in (200, *may):
        raise RuntimeError(f"{reply.status}: {text[:200]!r}")
    return json.loads(text)


def run(kills: int, seed: int = 0) -> tuple[int, int, int]:
    """(acknowledged answers, of them lost, answers of a second person) over so many kills on one folder."""
    rng, acknowledged = random.Random(seed), list[tuple[int, str]]()
    with tempfile.TemporaryDirectory() as folder:
        for k in range(kills):
            done = one_round(Path(folder), rng)
            assert done, "nothing was acknowledged before the kill: the round says nothing"
            acknowledged += done
            if k % 20 == 19:
                print(f"{k + 1} kills, {len(acknowledged)} answers acknowledged, 0 lost so far", flush=True)
            with LabelStore(folder) as store:
                log_of = [(event.seq, event.request, event.purpose) for event in store.events()]
                log = {entry[:2] for entry in log_of}
            lost = [entry for entry in acknowledged if entry not in log]
            if lost:
                return len(acknowledged), len(lost), 0
            seconds = sum(purpose == "second" for _, _, purpose in log_of)
    return len(acknowledged), 0, seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kill a labelling server at random and count what was lost.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--damages", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    begin = time.monotonic()
    count, lost, seconds = run(chosen.kills, chosen.seed)
    said = f"{count} answers acknowledged ({seconds} of a second person), {lost} lost"
    print(f"{chosen.kills} kills, {said}, {time.monotonic() - begin:.0f} s", flush=True)
    tally = damage_logs(chosen.damages, chosen.seed)
    wrong = sum(tally.counts.values()) - tally.counts["right"]
    print(f"{chosen.damages} damages of a file, {wrong} with an answer gone, changed or doubled, or without a word")
    sys.exit(bool(lost or wrong))
