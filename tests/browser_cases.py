"""The labelling page in a real browser, for tests: a server in a process or in a thread, and what is on the screen."""

import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import uvicorn
from PIL import Image
from sklearn.datasets import load_digits

from foretaste.label import make_app, open_port
from foretaste.label.guard import Guard
from label_cases import close_desk, open_desk, pictures

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
IN_CHROMIUM = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install chromium with the system's package manager"),
]


def in_chromium(test):
    """A test of a file of which not all tests need a browser."""
    for mark in IN_CHROMIUM:
        test = mark(test)
    return test


PATIENCE = 60_000  # milliseconds; only a failure waits so long


class Server:
    """``foretaste label`` in a process of its own."""

    def __init__(self, folder, *options):
        command = [sys.executable, "-m", "foretaste", "label", str(folder), "--no-browser", "--backbone", "none"]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, env=env)
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(r"open (http://127\.0\.0\.1:(\d+)/)", line):
                self.address, self.port = found[1], found[2]
                return
        raise AssertionError("".join(self.lines))

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def folder(tmp_path):
    digits = load_digits()
    root = tmp_path / "digits"
    root.mkdir()
    for k, pixels in enumerate(digits.images[:150]):
        Image.fromarray((pixels * 15).astype("uint8")).save(root / f"{k:03d}.png")
    return root


class LateServer:
    """The page over a desk in memory, in a thread. Replies come late by a random time, or wait until they may go.

    Args:
        desk: Of ``label_cases``; closed with the server.
        delays: Seconds, drawn from for each request and again for its reply.
        seed: Of the draws.
        guard: Settings of the ``Guard``: token, people.
    """

    def __init__(self, desk, delays=(0.0,), seed=0, **guard):
        self.desk, self.delays, self.rng = desk, delays, random.Random(seed)
        self.held = ()  # paths that begin so wait
        self.app = make_app(desk)
        self.opened = open_port("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self.opened.getsockname()[1]}/"
        config = uvicorn.Config(Guard(self, **guard), log_level="warning", lifespan="off", ws="none")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.opened]})

    async def __call__(self, scope, receive, send):
        path = scope["path"]

        async def late(message):
            if message["type"] == "http.response.start" and path.startswith("/api/"):
                await asyncio.sleep(self.rng.choice(self.delays))
                while path.startswith(self.held) and not self.server.should_exit:
                    await asyncio.sleep(0.002)
            await send(message)

        if path.startswith("/api/"):
            await asyncio.sleep(self.rng.choice(self.delays))
        await self.app(scope, receive, late)

    def hold(self, *paths):
        self.held = paths or ("/api/answer", "/api/undo", "/api/next", "/api/item")

    def let_go(self):
        self.held = ()

    def __enter__(self):
        self.thread.start()
        self.desk.worker.start()
        return self

    def __exit__(self, *exc):
        self.server.should_exit = True
        self.thread.join()
        self.opened.close()
        close_desk(self.desk)


def in_memory(folder, n=12, classes=("cat", "dog", "cow", "hen"), desk=None, **rest):
    """A desk of n small pictures whose leases outlast any test; ``desk`` are more settings of it."""
    made = open_desk(folder / "store", pictures(n), classes, start=False, lease=3600.0, **(desk or {}))
    return LateServer(made, **rest)


@pytest.fixture(scope="module")
def browser():
    sync = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


WIDE, PHONE = (1400, "light"), (390, "dark")
on_both = pytest.mark.parametrize("page", [WIDE, PHONE], indirect=True, ids=["wide", "phone"])


@pytest.fixture
def page(browser, request):
    """A page on a wide screen, light; with ``on_both`` also on a phone, dark, with touch."""
    width, theme = getattr(request, "param", WIDE)
    view = {"width": width, "height": 844 if width < 500 else 900}
    context = browser.new_context(viewport=view, color_scheme=theme, has_touch=width < 500)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    yield page
    context.close()
    assert page.faults == []


OPEN = "document.getElementById('name').textContent !== '' && !document.querySelector('#classes button').disabled"


def shown(page, item=None):
    """The item on the screen, once one may be answered; a certain one if it is named."""
    page.wait_for_function(f"i => {OPEN} && [null, document.getElementById('name').textContent].includes(i)", arg=item)
    return page.text_content("#name")


def count(page, n):
    page.wait_for_function("n => document.getElementById('labelled').textContent === String(n)", arg=n)


def focused(page):
    return page.evaluate("document.activeElement.id")


def log_of(server):
    """What was kept, in order: (item, kind, label)."""
    return [(e.item, e.kind, e.label) for e in server.desk.store.events()]


def until_true(page, condition):
    """Wait without the page's clock."""
    end = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        time.sleep(0.01)
