"""The labelling page in a real browser: fifty digits by keyboard, undo, reload, a killed server, a restart."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from PIL import Image
from sklearn.datasets import load_digits

from foretaste.label import LabelStore

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install chromium with the system's package manager"),
]
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


@pytest.fixture
def page():
    sync = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.set_default_timeout(PATIENCE)
        page.faults = []
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        yield page
        browser.close()


def shown(page):
    """The item on the screen, once there is one."""
    page.wait_for_function("() => document.getElementById('name').textContent !== ''")
    return page.text_content("#name")


def count(page, n):
    page.wait_for_function("n => document.getElementById('labelled').textContent === String(n)", arg=n)


def test_fifty_digits_by_keyboard(folder, page):
    truth = {f"{k:03d}.png": str(y) for k, y in enumerate(load_digits().target[:150])}
    given = {}

    def press():
        item = shown(page)
        page.keyboard.press(truth[item])
        given[item] = truth[item]
        page.wait_for_function("i => document.getElementById('name').textContent !== i", arg=item)

    server = Server(folder, "--classes", "0,1,2,3,4,5,6,7,8,9", "--port", "0")
    try:
        page.goto(server.address)
        for _ in range(50):
            press()
        count(page, 50)
        last = list(given)[-1]
        page.keyboard.press("Backspace")
        count(page, 49)
        page.wait_for_function("i => document.getElementById('name').textContent === i", arg=last)
        press()
        count(page, 50)
        before = shown(page)
        page.reload()
        count(page, 50)
        assert shown(page) == before  # the tab still holds it
    finally:
        server.kill()
    press()  # nobody is there: the prefetched item is shown, and the answer waits in the page
    page.wait_for_function("() => document.getElementById('banner').textContent.includes('1 answer waits')")
    server = Server(folder, "--port", server.port)
    try:
        assert any("50 labelled" in line for line in server.lines)
        count(page, 51)  # sent by itself
        assert page.is_hidden("#banner")
        with LabelStore(folder / ".foretaste", read_only=True) as store:
            assert store.labels() == given
            assert [e.kind for e in store.events()].count("undo") == 1
        assert page.faults == []
    finally:
        server.kill()
