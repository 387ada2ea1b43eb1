"""``python -m benchmarks.annotators``: several people label at once for some minutes; is anything lost or served twice?

The pool and the server are those of benchmarks/labelling.py, the learner is at work. Each person answers through HTTP
as the page does, after a time to think. Afterwards the log is read: every acknowledged answer must be in it, no item
may have been on two screens at once, and none may have more answers than ``--copies`` asks for. The time is that from
an answer to the reply with the items after it; the page shows the next item before, so a person waits less. Memory is
the median of a tenth of the run, after half time and at the end.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from foretaste.label import LabelStore

from .labelling import LabelServer, make_pool, quantiles

WRONG = 0.03  # of the answers
MOST_MILLISECONDS, MOST_GROWTH = 150.0, 0.05


class Floor:
    """What all people have done so far."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.on_screen: dict[str, str] = {}
        self.twice: list[str] = []
        self.acknowledged: list[tuple[int, str]] = []
        self.milliseconds: list[float] = []
        self.faults: list[str] = []

    def shows(self, who: str, items: list[str]) -> None:
        """Items came to a person's screen; whoever has one of them has it alone."""
        with self.lock:
            for item in items:
                if self.on_screen.setdefault(item, who) != who:
                    self.twice.append(f"{item} is with {self.on_screen[item]} and {who}")

    def answers(self, item: str) -> None:
        """An answer is on its way: from now on others may get the item."""
        with self.lock:
            self.on_screen.pop(item, None)


def annotate(floor: Floor, port: int, truth: dict[str, str], person: int, pace: float, until: float) -> None:
    """One person, until the time is over or there is nothing left."""
    draw, who = random.Random(person), f"person {person}"
    tab, connection = {"tab": f"annotator-{person:04d}", "who": who}, HTTPConnection("127.0.0.1", port, timeout=60)

    def call(path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        found = json.loads(reply.read())
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {found}")
        return found

    try:
        items = [entry["item"] for entry in call("/api/next", tab)["items"]]
        floor.shows(who, items)
        while items and time.monotonic() < until:
            time.sleep(draw.uniform(0.5, 1.5) * pace)
            item, request = items[0], f"{draw.getrandbits(64):x}"
            label = draw.choice([*truth.values()]) if draw.random() < WRONG else truth[item]
            floor.answers(item)
            start = time.perf_counter()
            reply = call("/api/answer", {**tab, "item": item, "kind": "label", "label": label, "request": request})
            spent = 1000 * (time.perf_counter() - start)
            items = [entry["item"] for entry in reply["items"]]
            floor.shows(who, items)
            with floor.lock:
                floor.milliseconds.append(spent)
                floor.acknowledged.append((reply["seq"], request))
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
            log = {(event.seq, event.request) for event in store.events()}
            voices = [len(store.voices_of(item).voices) for item in store.current()]
    lost = [entry for entry in floor.acknowledged if entry not in log]
    too_many = sum(n > chosen.copies for n in voices)
    tail = sorted(floor.milliseconds)[int(0.99 * len(floor.milliseconds))]
    tenth, half = max(1, len(memory) // 10), len(memory) // 2
    early = statistics.median(memory[half : half + tenth])
    growth, peak = (m / early - 1 for m in (statistics.median(memory[-tenth:]), max(memory[half:])))
    print(f"{chosen.people} people, {chosen.minutes:g} minutes, load {load:.1f}: {len(floor.acknowledged)} answers")
    print(f"answers on {len(voices)} items, {sum(n > 1 for n in voices)} with more than one person")
    print(f"lost {len(lost)}, on two screens {len(floor.twice)}, with too many answers {too_many}")
    print(
        f"answer to the next items: {quantiles(floor.milliseconds)} (aim: 99th percentile {MOST_MILLISECONDS:.0f} ms)"
    )
    told = f"{growth:+.1%} at the end (aim: {MOST_GROWTH:.0%}); {peak:+.1%} at most, while a network is trained"
    print(f"memory: {early:.0f} MB at half time, {told}")
    for fault in [*floor.faults, *floor.twice][:5]:
        print(f"fault: {fault}")
    held = not (lost or floor.twice or too_many or floor.faults)
    sys.exit(not (held and tail <= MOST_MILLISECONDS and growth <= MOST_GROWTH))


if __name__ == "__main__":
    main()
