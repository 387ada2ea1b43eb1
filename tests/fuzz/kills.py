"""Kill a labelling server at random, and count what was acknowledged and is not there afterwards.

    PYTHONPATH=src:tests python -m fuzz.kills --kills 200 --damages 200

Each round starts a server on one folder, labels through HTTP as fast as it answers, kills it with -9 at a random moment
after the first acknowledgement, from another thread and so also in the middle of a request, and reads the log. Three
people label, skip, set aside, are not sure, accept walls, relabel in review and undo; two of them are asked about each
item. A wall, and an undo of one, must be there whole or not at all. Then one file of a log is damaged at a time
(logs.py). The learner is the plain one of ``label_cases``, so that a round takes a second: what is tested is the way
from a request to the disk.
"""

import argparse
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from foretaste.label import LabelStore

from .logs import Warnings
from .logs import run as damage_logs

ITEMS, CLASSES = 8000, ["cat", "dog", "cow"]
SERVER = f"""
import sys
sys.path[:0] = sys.argv[2:]
from label_cases import MemoryItems, open_desk
import foretaste.label.desk
foretaste.label.desk.FRESH_SECONDS = 0.0
from foretaste.label.server import make_app, open_port, serve_app
ids = [f"item{{k}}" for k in range({ITEMS})]
desk = open_desk(sys.argv[1], MemoryItems("text", ids, ids), {CLASSES}, voices_each=2)
port = open_port("127.0.0.1", 0)
print("open", port.getsockname()[1], flush=True)
serve_app(make_app(desk), port, host="127.0.0.1")
"""
TABS = [{"tab": f"tab-0000000{k}", "who": who} for k, who in enumerate(("Ada", "Bob", "Cid"))]
KINDS = ["label"] * 8 + ["unsure", "skip", "ignore"]
WALL = "grid:"  # requests of a wall begin so


@dataclass
class Kept:
    """What servers have said that they kept: (sequence number, request) → what it was; and the walls that were sent.

    walls: request → (how many items, how many of them must be there; None: the server was killed before it answered).
    """

    answers: dict[tuple[int, str], str] = field(default_factory=dict)
    walls: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    events: int = 0  # in the log, as the last reply had it
    sent: dict[str, None] = field(default_factory=dict)  # items of all answers that were sent
    shown: set[str] = field(default_factory=set)  # items that were on a screen, or next to come

    def faults(self, events: list[Any]) -> list[str]:
        """What is not in the log as it was acknowledged, in words."""
        log = {(event.seq, event.request): event for event in events}
        undone = {event.undoes for event in events}
        found = [f"{what} {entry} is lost" for entry, what in self.answers.items() if entry not in log]
        there, back = Counter[str](), Counter[str]()
        for event in events:
            if (event.request or "").startswith(WALL):
                name = str(event.request).removeprefix(WALL).split("/")[0]
                there[name] += 1
                back[name] += event.seq in undone
        for name, (count, wanted) in self.walls.items():
            if there[name] not in ((0, count) if wanted is None else (wanted,)) or back[name] not in (0, there[name]):
                found.append(f"of wall {name} there are {there[name]} of {count} items, {back[name]} of them undone")
        return found


def one_request(
    connection: HTTPConnection, kept: Kept, k: int, items: list[str], given: list[int], draw: random.Random
) -> None:
    """One of the people does something, and what the server acknowledges is kept."""
    request, tab, chance = f"{draw.getrandbits(64):x}", TABS[k], draw.random()
    if given[k] and chance < 0.15:
        # The last one answers at once what the others did: some of theirs cannot be taken back any more.
        reply = call(connection, "/api/undo", {**tab, "request": request}, may=(409,))
        given[k] = 0
        if "seq" in reply:
            items[k] = reply["item"]["item"]
            kept.answers[reply["seq"], request] = "undo"
    elif chance < 0.3:
        # None that has an answer: the same answer of the same person is no new event. Nor any that was on a screen:
        # what another person holds is left out.
        free = [f"item{n}" for n in range(ITEMS) if f"item{n}" not in kept.sent and f"item{n}" not in kept.shown]
        wall = draw.sample(free, draw.randint(2, 12))
        kept.sent |= dict.fromkeys(wall)
        kept.walls[request] = len(wall), None
        others = {item: "cow" for item in wall[1:] if draw.random() < 0.1}
        body = {"items": [i for i in wall if i not in others], "label": "cat", "others": others, "request": request}
        reply = call(connection, "/api/grid", {**tab, **body})
        assert not reply["taken"], reply["taken"]
        kept.walls[request] = len(wall), len(reply["seqs"])
        kept.answers |= {(seq, f"{WALL}{request}/{n}"): "wall" for n, seq in enumerate(reply["seqs"])}
        given[k] += 1
    elif kept.answers and chance < 0.4:
        body = {"item": draw.choice([*kept.sent]), "kind": "relabel", "label": draw.choice(CLASSES)}
        reply = call(connection, "/api/answer", {**tab, **body, "request": request})
        if reply["seq"] > kept.events:  # else it had that label already
            kept.answers[reply["seq"], request] = "relabel"
            given[k] += 1
    else:
        kind = draw.choice(KINDS)
        said = {"label": draw.choice(CLASSES)} if kind == "label" else {}
        body = {**tab, "item": items[k], "kind": kind, "request": request, **said}
        kept.sent[items[k]] = None
        reply = call(connection, "/api/answer", body)
        kept.answers[reply["seq"], request] = kind
        items[k] = reply["items"][0]["item"]
        given[k] += 1
    kept.events = reply.get("state", {}).get("events", kept.events)
    kept.shown |= {entry["item"] for entry in reply.get("items", ())}


def one_round(folder: Path, draw: random.Random, kept: Kept) -> None:
    """Start a server, label, and kill it."""
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", SERVER, str(folder), tests]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.match(r"open (\d+)", process.stdout.readline())
        assert found, "the server did not start"
        timer: threading.Timer | None = None
        before = len(kept.answers)
        try:
            connection = HTTPConnection("127.0.0.1", int(found[1]), timeout=10)
            first = [call(connection, "/api/next", tab) for tab in TABS]
            items, kept.events = [reply["items"][0]["item"] for reply in first], first[-1]["state"]["events"]
            kept.shown |= {entry["item"] for reply in first for entry in reply["items"]}
            given = [0 for _ in TABS]  # by each of them, and not taken back
            while True:
                one_request(connection, kept, draw.randrange(len(TABS)), items, given, draw)
                if timer is None and len(kept.answers) > before:
                    timer = threading.Timer(draw.random() * 0.3, os.kill, (process.pid, signal.SIGKILL))
                    timer.start()
        except (OSError, HTTPException):
            pass  # killed in the middle of a request: what was not acknowledged may be lost
        finally:
            if timer is not None:
                timer.join()
            process.kill()
    assert len(kept.answers) > before, "nothing was acknowledged before the kill: the round says nothing"


def call(connection: HTTPConnection, path: str, body: dict, may: tuple[int, ...] = ()) -> dict:
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    if reply.status not in (200, *may):
        raise RuntimeError(f"{reply.status}: {text[:200]!r}")
    return json.loads(text)


def run(kills: int, seed: int = 0) -> tuple[Kept, list[str], int]:
    """(what was acknowledged, faults, answers of a second person) over so many kills on one folder; a fault ends it."""
    draw, kept, seconds, heard = random.Random(seed), Kept(), 0, Warnings()
    logging.getLogger("foretaste").addHandler(heard)
    with tempfile.TemporaryDirectory() as folder:
        for k in range(kills):
            one_round(Path(folder), draw, kept)
            with LabelStore(folder) as store:
                events = store.events()
            seconds = sum(event.purpose == "second" for event in events)
            # The journal is written first: a kill may leave it ahead of the database, and never behind.
            if faults := kept.faults(events) + [words for words in heard.said if "lacked" not in words]:
                print(f"faults after {k + 1} kills")
                return kept, faults, seconds
            if k % 20 == 19:
                print(f"{k + 1} kills, {len(kept.answers)} answers acknowledged, 0 lost so far", flush=True)
    return kept, [], seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kill a labelling server at random and count what was lost.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--damages", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    begin = time.monotonic()
    kept, faults, seconds = run(chosen.kills, chosen.seed)
    kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(kept.answers.values()).most_common())
    cut = sum(wanted is None for _, wanted in kept.walls.values())
    print(f"{chosen.kills} kills, {len(kept.answers)} answers acknowledged ({kinds}; {seconds} of a second person)")
    print(f"{len(kept.walls)} walls sent, {cut} of them cut off by a kill; {len(faults)} faults", *faults[:5], sep="\n")
    print(f"{time.monotonic() - begin:.0f} s", flush=True)
    tally = damage_logs(chosen.damages, chosen.seed)
    wrong = sum(tally.counts.values()) - tally.counts["right"]
    print(f"{chosen.damages} damages of a file, {wrong} with an answer gone, changed or doubled, or without a word")
    sys.exit(bool(faults or wrong))
