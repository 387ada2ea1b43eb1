"""``python -m benchmarks.labelling``: from a key to the next picture in a real browser, and eight annotators at once.

The pool is of pictures made from scikit-learn's digits with noise. The page is that of ``foretaste label``, with the
learner at work. Times are taken in the browser: from the key's event to the frame that shows the next picture, as
``performance.now`` has them. With a pool of 50,000 or more (``--pool 100000``) it measures a large one: the start, a
wall and Review scrolled, the slowest answer and the memory.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from foretaste.label import LabelStore

CLASSES = [str(k) for k in range(10)]
LARGE_POOL, LARGE_ANSWERS, LARGE_TILES, LARGE_ROWS = 50_000, 60, 300, 1000
OPEN = """n => !["", n].includes(document.getElementById("name").textContent)
  && !document.querySelector("#classes button").disabled"""  # an item that came late is closed for a moment
WATCH = """() => {
  window.times = [];
  let pressed = 0;
  document.addEventListener("keydown", () => { pressed = performance.now(); }, true);
  document.addEventListener("item-painted", () => {
    if (pressed) { window.times.push(performance.now() - pressed); pressed = 0; }
  });
}"""


SCROLL = """async ([what, wanted]) => {
  const long = [];
  const seen = new PerformanceObserver((list) => long.push(...list.getEntries().map((e) => e.duration)));
  seen.observe({ type: "longtask" });
  const view = document.querySelector("main.view:not([hidden])");
  const there = () => document.querySelectorAll(what).length;
  for (let n = 0; n < 1200 && there() < wanted; n++) {
    view.scrollBy(0, 900);
    await new Promise((next) => setTimeout(next, 50));
  }
  await new Promise((next) => setTimeout(next, 500));
  seen.disconnect();
  return [there(), Math.max(0, ...long)];
}"""  # how many came, and the longest task in milliseconds; the browser counts those of 50 and more


def make_pool(root: Path, count: int, seed: int = 0) -> dict[str, str]:
    """Write ``count`` pictures of 64×64; returns the class of each."""
    digits, rng, truth = load_digits(), np.random.default_rng(seed), {}
    root.mkdir(parents=True, exist_ok=True)
    for k in range(count):
        at = k % len(digits.images)
        noisy = np.clip(digits.images[at] * 14 + rng.normal(0, 12, (8, 8)), 0, 255).astype(np.uint8)
        name = f"{k:06d}.png"
        Image.fromarray(noisy).resize((64, 64), Image.Resampling.BILINEAR).save(root / name)
        truth[name] = str(digits.target[at])
    return truth


class LabelServer:
    """``foretaste label`` in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "foretaste", "label", str(folder), "--classes", ",".join(CLASSES)]
        command += ["--no-browser", "--backbone", "none", "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(r"open (http://127\.0\.0\.1:(\d+)/)", line):
                self.address, self.port = found[1], int(found[2])
                return
        raise RuntimeError("foretaste label did not start")

    def state(self) -> dict[str, Any]:
        """What the page knows."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/api/state")
        return json.loads(connection.getresponse().read())

    @property
    def memory(self) -> float:
        """Megabytes."""
        return resident(self.process.pid)

    def wait_ready(self) -> None:
        """Until the model answers and no training is under way."""
        while self.state()["model"]["phase"] not in ("ready", "first labels"):
            time.sleep(0.2)

    def stop(self) -> None:
        """End the process."""
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=300)  # a training ends the step that it is in


def time_browser(server: LabelServer, truth: dict[str, str], answers: int, pace: float) -> list[float]:
    """Milliseconds from each key to the next picture, one key every ``pace`` seconds (0: as fast as it goes)."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.goto(server.address)
        page.wait_for_function(OPEN, arg="")
        page.evaluate(WATCH)
        for _ in range(answers):
            name = str(page.text_content("#name"))
            page.keyboard.press(truth[name])
            page.wait_for_function(OPEN, arg=name, polling=5)
            page.wait_for_timeout(1000 * pace)
        page.wait_for_timeout(500)
        times = page.evaluate("() => window.times")
        browser.close()
    return [float(t) for t in times]


def time_annotators(
    server: LabelServer, truth: dict[str, str], people: int, answers: int, pace: float
) -> dict[str, Any]:
    """Seconds of each answer's reply, of several people at once, and how often an item was given to two of them."""
    seconds, served, faults = list[float](), list[str](), list[str]()

    def annotate(person: int) -> None:
        who = {"tab": f"annotator-{person:04d}", "who": f"person {person}"}
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)

        def call(path: str, body: dict[str, Any]) -> dict[str, Any]:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            reply = connection.getresponse()
            found = json.loads(reply.read())
            if reply.status != 200:
                raise RuntimeError(str(found))
            return found

        try:
            items = call("/api/next", who)["items"]
            for _ in range(answers):
                item = items[0]["item"]
                served.append(item)
                start = time.perf_counter()
                reply = call("/api/answer", {**who, "item": item, "kind": "label", "label": truth[item]})
                seconds.append(time.perf_counter() - start)
                items = reply["items"]
                time.sleep(pace)
        except Exception as error:
            faults.append(str(error))

    threads = [threading.Thread(target=annotate, args=(k,)) for k in range(people)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"seconds": seconds, "twice": len(served) - len(set(served)), "answers": len(served), "faults": faults}


def resident(pid: int) -> float:
    """Megabytes of memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure_large(root: Path, truth: dict[str, str]) -> None:
    """Start, answers, a wall and Review of a large pool, of which a tenth was answered with "not sure" before."""
    from playwright.sync_api import sync_playwright

    unsure = list(truth)[::10]
    with LabelStore(root / ".foretaste") as store:
        store.set_classes(CLASSES)
        with store.together():
            for name in unsure:
                store.record(name, "unsure", who="Ada")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(600_000)
        begin = time.perf_counter()
        server = LabelServer(root)
        try:
            page.goto(server.address)
            page.wait_for_function(OPEN, arg="")
            spent = time.perf_counter() - begin
            print(
                f"load {os.getloadavg()[0]:.1f}; first question after {spent:.1f} s, {server.memory:.0f} MB", flush=True
            )
            page.evaluate(WATCH)
            most = server.memory
            for _ in range(LARGE_ANSWERS):
                name = str(page.text_content("#name"))
                page.keyboard.press(truth[name])
                page.wait_for_function(OPEN, arg=name, polling=5)
                page.wait_for_timeout(400)
                most = max(most, server.memory)
            print(f"{LARGE_ANSWERS} answers: {quantiles(page.evaluate('() => window.times'))}", flush=True)
            while server.state()["model"]["phase"] != "ready":
                most = max(most, server.memory)
                page.wait_for_timeout(200)
            page.click("[data-view=grid]")
            page.wait_for_function("() => document.querySelectorAll('#grid-wall > *').length > 0")
            tiles, longest = page.evaluate(SCROLL, ["#grid-wall > *", LARGE_TILES])
            print(f"a wall scrolled to {tiles} tiles: longest task {longest:.0f} ms", flush=True)
            page.click("[data-view=review]")
            page.select_option("#review-filter [name=only]", "unsure")
            page.wait_for_function("() => document.querySelectorAll('#review-list li').length > 50")
            rows, longest = page.evaluate(SCROLL, ["#review-list li", LARGE_ROWS])
            print(f"review of {len(unsure)} answers scrolled to {rows} rows: longest task {longest:.0f} ms", flush=True)
            print(f"memory: {max(most, server.memory):.0f} MB at most, {server.memory:.0f} MB at the end", flush=True)
        finally:
            server.stop()
            browser.close()


def quantiles(values: list[float]) -> str:
    """Median, 99th percentile and the largest."""
    ordered = sorted(values)
    at = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"median {statistics.median(ordered):.0f} ms, 99th percentile {at:.0f} ms, most {ordered[-1]:.0f} ms"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Key to next picture, and several annotators at once.")
    parser.add_argument("--pool", type=int, default=5000)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--people", type=int, default=8)
    parser.add_argument("--pace", type=float, default=0.4, help="seconds between two keys of a person")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "pool"
        truth = make_pool(root, chosen.pool)
        if chosen.pool >= LARGE_POOL:
            measure_large(root, truth)
            return
        server = LabelServer(root)
        try:
            server.wait_ready()
            warm = time_browser(server, truth, 30, chosen.pace)
            server.wait_ready()
            print(f"load {os.getloadavg()[0]:.1f}; {len(warm)} answers to warm up: {quantiles(warm)}", flush=True)
            times = time_browser(server, truth, chosen.answers, chosen.pace)
            print(f"one person, a key every {chosen.pace} s, {len(times)} answers: {quantiles(times)}", flush=True)
            fast = time_browser(server, truth, chosen.answers // 4, 0)
            print(f"one person, as fast as it goes, {len(fast)} answers: {quantiles(fast)}", flush=True)
            got = time_annotators(server, truth, chosen.people, chosen.answers // 4, chosen.pace)
            spent = quantiles([1000 * s for s in got["seconds"]])
            print(f"{chosen.people} people, {got['answers']} answers: {spent}; {got['twice']} items served twice")
            if got["faults"]:
                print(f"faults: {got['faults'][:3]}")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
