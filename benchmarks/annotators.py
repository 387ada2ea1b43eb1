"""``python -m benchmarks.annotators``: several people label at once for some minutes; is anything lost or served twice?

The pool and the server are those of benchmarks/labelling.py, the learner is at work. Each person answers through HTTP
as the page does, after a time to think. One in six also accepts a wall now and then, another one looks through Review
and relabels what is surely wrong. Afterwards the log is read: every acknowledged answer must be in it, no item
may have been on two screens at once, none may have more answers than ``--copies`` asks for, and a wall is there whole
or not at all. The time is that from
an answer to the reply with the items after it; the page shows the next item before, so a person waits less. Memory is
the median of a tenth of the run, after half time and at the end.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from foretaste.label import LabelStore

from .labelling import CLASSES, LabelServer, make_pool, quantiles

WRONG = 0.03  # of the answers
MOST_MILLISECONDS, MOST_GROWTH = 150.0, 0.05
ROLES, WALL_EVERY, REVIEW_EVERY = 6, 8, 15  # of so many people one does walls and one Review, after so many answers


class Floor:
    """What all people have done so far."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.on_screen: dict[str, str] = {}
        self.twice: list[str] = []
        self.acknowledged: list[tuple[int, str | None]] = []
        self.milliseconds: dict[str, list[float]] = {"answer": [], "wall": [], "review": []}
        self.walls: dict[str, int] = {}  # request → how many items of it were kept
        self.refused = 0
        self.faults: list[str] = []

    def shows(self, who: str, items: list[str]) -> None:
        """Items came to a person's screen; whoever has one of them has it alone."""
        with self.lock:
            for item in items:
                if self.on_screen.setdefault(item, who) != who:
                    self.twice.append(f"{item} is with {self.on_screen[item]} and {who}")

    def keeps(self, what: str, since: float, events: Sequence[tuple[int, str | None]] = ()) -> None:
        """The server has acknowledged some events of a request that was sent then."""
        with self.lock:
            self.milliseconds[what].append(1000 * (time.perf_counter() - since))
            self.acknowledged += events

    def answers(self, item: str) -> None:
        """An answer is on its way: from now on others may get the item."""
        with self.lock:
            self.on_screen.pop(item, None)


def annotate(floor: Floor, port: int, truth: dict[str, str], person: int, pace: float, until: float) -> None:
    """One person, until the time is over or there is nothing left."""
    draw, who = random.Random(person), f"person {person}"
    tab, connection = {"tab": f"annotator-{person:04d}", "who": who}, HTTPConnection("127.0.0.1", port, timeout=60)

    def call(path: str, body: dict[str, Any] | None = None, may: tuple[int, ...] = ()) -> dict[str, Any]:
        raw = None if body is None else json.dumps({**tab, **body})
        connection.request("GET" if body is None else "POST", path, raw, {"content-type": "application/json"})
        reply = connection.getresponse()
        found = json.loads(reply.read())
        if reply.status not in (200, *may):
            raise RuntimeError(f"{path}: {reply.status} {found}")
        return found

    def new_request() -> str:
        return f"{draw.getrandbits(64):016x}"

    def accept_wall() -> None:
        label, request = draw.choice(CLASSES), new_request()
        start = time.perf_counter()
        wall = [entry["item"] for entry in call(f"/api/grid?label={label}")["items"]]
        floor.keeps("wall", start)
        right = [item for item in wall if truth[item] == label]
        if right:
            start = time.perf_counter()
            reply = call("/api/grid", {"items": right, "label": label, "request": request}, may=(409,))
            seqs, taken = reply.get("seqs", []), reply.get("taken", right)  # taken: somebody has got it meanwhile
            there = [k for k, item in enumerate(right) if item not in taken]
            floor.keeps("wall", start, [(seq, f"grid:{request}/{k}") for k, seq in zip(there, seqs, strict=True)])
            floor.walls[request] = len(seqs)
            floor.refused += not seqs

    def look_through() -> None:
        start = time.perf_counter()
        rows = call("/api/review")["items"]
        floor.keeps("review", start)
        for row in [r for r in rows[:3] if r["label"] != truth[r["item"]]]:
            start = time.perf_counter()
            reply = call("/api/answer", {"item": row["item"], "kind": "relabel", "label": truth[row["item"]]})
            floor.keeps("review", start, [(reply["seq"], None)])  # another may have said the same meanwhile

    try:
        items = [entry["item"] for entry in call("/api/next", {})["items"]]
        floor.shows(who, items)
        for turn in itertools.count(1):
            if not items or time.monotonic() >= until:
                break
            time.sleep(draw.uniform(0.5, 1.5) * pace)
            item, request = items[0], new_request()
            label = draw.choice(CLASSES) if draw.random() < WRONG else truth[item]
            floor.answers(item)
            start = time.perf_counter()
            reply = call("/api/answer", {"item": item, "kind": "label", "label": label, "request": request})
            floor.keeps("answer", start, [(reply["seq"], request)])
            items = [entry["item"] for entry in reply["items"]]
            floor.shows(who, items)
            if person % ROLES == 1 and turn % WALL_EVERY == 0:
                accept_wall()
            if person % ROLES == 2 and turn % REVIEW_EVERY == 0:
                look_through()
    except Exception as error:
        floor.faults.append(f"{who}: {error}")


def main() -> None:
    """Label, then look into the log."""
    parser = argparse.ArgumentParser(description="Several people at once: nothing lost, nothing served twice.")
    parser.add_argument("--people", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--pool", type=int, default=5000)
    parser.add_argument("--copies", type=int, default=2, help="people for each item")
    parser.add_argument("--pace", type=float, default=2.0, help="seconds that a person thinks")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "pool"
        truth = make_pool(root, chosen.pool)
        server, floor = LabelServer(root, "--copies", str(chosen.copies)), Floor()
        try:
            server.wait_ready()
            begin = time.monotonic()
            until = begin + 60 * chosen.minutes
            rest = (floor, server.port, truth)
            people = [
                threading.Thread(target=annotate, args=(*rest, k, chosen.pace, until)) for k in range(chosen.people)
            ]
            for one in people:
                one.start()
            memory = list[float]()
            while any(one.is_alive() for one in people):
                time.sleep(min(5.0, 6 * chosen.minutes))
                memory.append(server.memory)
            load = os.getloadavg()[0]
        finally:
            server.stop()
        with LabelStore(root / ".foretaste", read_only=True) as store:
            log = {event.seq: event.request for event in store.events()}
            voices = [len(store.voices_of(item).voices) for item in store.current()]
    lost = [(seq, said) for seq, said in floor.acknowledged if seq not in log or said not in (None, log[seq])]
    walls = Counter(said.split(":")[1].split("/")[0] for said in log.values() if said and said.startswith("grid:"))
    too_many = sum(n > chosen.copies for n in voices)
    torn = sum(walls[request] != count for request, count in floor.walls.items())
    tail = sorted(floor.milliseconds["answer"])[int(0.99 * len(floor.milliseconds["answer"]))]
    tenth, half = max(1, len(memory) // 10), len(memory) // 2
    early = statistics.median(memory[half : half + tenth])
    growth, peak = (m / early - 1 for m in (statistics.median(memory[-tenth:]), max(memory[half:])))
    print(f"{chosen.people} people, {chosen.minutes:g} minutes, load {load:.1f}: {len(floor.acknowledged)} answers")
    print(f"answers on {len(voices)} items, {sum(n > 1 for n in voices)} with more than one person")
    print(f"lost {len(lost)}, on two screens {len(floor.twice)}, with too many answers {too_many}, walls torn {torn}")
    print(
        f"{len(floor.walls)} walls, {floor.refused} of them refused as a whole; {walls.total()} items accepted on them"
    )
    spent = {what: quantiles(found) for what, found in floor.milliseconds.items() if found}
    print(f"answer to the next items: {spent.pop('answer')} (aim: 99th percentile {MOST_MILLISECONDS:.0f} ms)")
    print(*(f"{what}: {words}" for what, words in spent.items()), sep="\n")
    told = f"{growth:+.1%} at the end (aim: {MOST_GROWTH:.0%}); {peak:+.1%} at most, while a network is trained"
    print(f"memory: {early:.0f} MB at half time, {told}")
    for fault in [*floor.faults, *floor.twice][:5]:
        print(f"fault: {fault}")
    held = not (lost or torn or floor.twice or too_many or floor.faults)
    sys.exit(not (held and tail <= MOST_MILLISECONDS and growth <= MOST_GROWTH))


if __name__ == "__main__":
    main()
