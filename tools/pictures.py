"""docs/labelling/*.jpg and *.png: the labelling page in Chromium, on demo folders. `make pictures`.

Photos are those of CIFAR10 where $FORETASTE_DATA has them, else scikit-learn's digits. The learner is at work; the
people are simulated, and think for twelve seconds by the clock of the log. It needs Chromium, playwright and the extra
``pretrained``. `python tools/pictures.py page phone` draws these alone.
"""

import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from foretaste.data import digits, load
from foretaste.label import Guard, StoreConflict, close_desk, make_app, open_desk, open_port

OUT = Path(__file__).parent.parent / "docs" / "labelling"
QUALITIES, MOST_BYTES = (86, 82, 78, 74, 70), 150_000
THINKS = 12.0  # seconds of the log's clock, on average
PATIENCE = 300_000  # milliseconds
OPEN = "document.getElementById('name').textContent !== '' && !document.querySelector('#classes button').disabled"
REVIEWS = {
    "positive": ["It does what it should, and looks good.", "Came a day early. My son is happy with it."],
    "negative": ["Nobody answered my letters and the refund never came.", "The zip is stuck and the colour is wrong."],
    "neutral": ["As described. I have no opinion yet.", "It is a bag. It holds things."],
}


def photos(folder: Path, count: int, names: tuple[str, ...] = ("cat", "dog", "ship")) -> dict[str, str]:
    """Write pictures; returns the class of each. Of CIFAR10 those of some classes, else digits."""
    try:
        data = load("cifar10")
        of = {data.classes.index(name): name for name in names}
        at = [k for k, y in enumerate(data.y.tolist()) if y in of][:count]
    except (OSError, ValueError):
        print("no CIFAR10 in $FORETASTE_DATA: digits are drawn in its place")
        data = digits()
        of, at = {c: str(c) for c in range(len(names))}, [k for k, y in enumerate(data.y.tolist()) if y < len(names)]
    folder.mkdir()
    truth = {}
    for k, n in enumerate(at[:count]):
        pixels = data.x[n].permute(1, 2, 0).numpy()
        image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
        image.save(folder / (name := f"photo_{k:04d}.png"))
        truth[name] = of[int(data.y[n])]
    return truth


def reviews(path: Path, count: int = 120) -> dict[str, str]:
    """A CSV of texts; returns the class of each."""
    draw, truth = random.Random(0), {}
    lines = ["id,text"]
    for k in range(count):
        name = draw.choice([*REVIEWS])
        lines.append(f'r{k},"{" ".join(draw.sample(REVIEWS[name], 2))} Order {100 + k}."')
        truth[f"r{k}"] = name
    path.write_text("\n".join(lines) + "\n")
    return truth


def customers(path: Path, count: int = 150) -> dict[str, str]:
    """A CSV of rows; returns the class of each."""
    draw, truth = random.Random(0), {}
    lines = ["id,age,income,visits,last_visit,city"]
    for k in range(count):
        age, income, visits = draw.randint(18, 80), draw.randint(900, 6000), draw.randint(0, 12)
        city = draw.choice(["Aachen", "Bonn", "Essen"])
        lines.append(f"c{k},{age},{income},{visits},2024-{draw.randint(1, 12):02d}-{draw.randint(1, 28):02d},{city}")
        truth[f"c{k}"] = "stays" if visits > 4 else "leaves"
    path.write_text("\n".join(lines) + "\n")
    return truth


class Scene:
    """The page over a desk in this process, and people who answer by a clock of their own."""

    def __init__(self, source: Path, truth: dict[str, str], **options: Any) -> None:
        self.truth, self.draw = truth, random.Random(1)
        self.desk = open_desk(source, classes=list(dict.fromkeys(truth.values())), start=False, **options)
        self.now = time.time() - 3600
        self.desk.store._clock = lambda: self.now  # the people's time
        opened = open_port("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{opened.getsockname()[1]}/"
        app = Guard(make_app(self.desk), host="127.0.0.1")
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", ws="none"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [opened]})
        self.thread.start()
        self.desk.worker.start()

    def wait(self, phases: tuple[str, ...] = ("ready", "first labels")) -> None:
        """Until the learner has come so far."""
        while self.desk.worker.describe()["phase"] not in phases:
            assert self.desk.worker.describe()["phase"] != "failed", self.desk.worker.describe()["error"]
            time.sleep(0.1)

    def work(self, count: int, **how: Any) -> None:
        """So many answers. After some the network is trained, as it is while people think."""
        self.wait()
        for k, some in enumerate((8, 12, 20, 40, *[60] * 9)):
            self.answer(min(some, count), **how)
            count -= min(some, count)
            self.wait(("ready",) if k else ("ready", "first labels"))

    def answer(self, count: int, people: tuple[str, ...] = ("me",), wrong: float = 0.0, unsure: float = 0.0) -> None:
        """So many answers, by turns."""
        names = [*dict.fromkeys(self.truth.values())]
        for k in range(count):
            who = people[k % len(people)]
            items = self.desk.next(f"tab-{who}-0000", who, count=1)
            if not items:
                continue
            self.now += self.draw.uniform(0.5, 1.5) * THINKS / len(people)
            label = self.draw.choice(names) if self.draw.random() < wrong else self.truth[items[0]]
            kind = "unsure" if self.draw.random() < unsure else "label"
            try:
                self.desk.answer(f"tab-{who}-0000", who, items[0], kind, label if kind == "label" else None, patience=5)
            except StoreConflict:
                continue
        for who in people:
            self.desk.leave(f"tab-{who}-0000")

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        close_desk(self.desk)


@contextmanager
def scene(source: Path, truth: dict[str, str], **options: Any) -> Iterator[Scene]:
    made = Scene(source, truth, **options)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def looking(
    browser: Browser, address: str, size: tuple[int, int] = (1400, 939), scale: float = 1.0, **more: Any
) -> Iterator[Page]:
    """A page on which a person called "me" has an item."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, device_scale_factor=scale, reduced_motion="reduce", **more
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    page.fill("#who", "me")
    page.press("#who", "Tab")
    try:
        yield page
    finally:
        context.close()


def settle(page: Page) -> None:
    """Until the item is open and all is drawn."""
    page.wait_for_function(f"() => {OPEN}")
    calm(page)


def calm(page: Page) -> None:
    """Until all pictures are there, and what is drawn late is drawn; without a focus."""
    page.evaluate("document.activeElement?.blur()")
    page.mouse.move(0, 0)  # nothing is pointed at
    page.wait_for_function("() => [...document.images].every((i) => i.complete || i.loading === 'lazy' || !i.src)")
    page.wait_for_timeout(1500)


def keep(page: Page, name: str, size: tuple[int, int]) -> None:
    """The screen, in the size of the docs."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page.screenshot(path=(shot := Path(folder) / "shot.png"))
        image = Image.open(shot).convert("RGB").resize(size, Image.Resampling.LANCZOS)
    if name.endswith(".png"):
        image.quantize(128).save(OUT / name, optimize=True)
    else:
        for quality in QUALITIES:
            image.save(OUT / name, quality=quality, optimize=True)
            if (OUT / name).stat().st_size <= MOST_BYTES:
                break
    found = (OUT / name).stat().st_size
    print(f"{name}: {size[0]} × {size[1]}, {found / 1000:.0f} kB", flush=True)
    assert found <= MOST_BYTES, f"{name} has {found} bytes; expected {MOST_BYTES} at most"


def press(page: Page, label: str) -> None:
    """Answer what is on the screen by its button."""
    settle(page)
    before = page.text_content("#name")
    page.click(f"#classes button:has-text('{label}')")
    page.wait_for_function(f"n => {OPEN} && document.getElementById('name').textContent !== n", arg=before)


SMALL, WIDE = (760, 510), (1280, 859)
GUESSED = "document.querySelectorAll('#guess > *').length > 0"


def draw_photos(browser: Browser, folder: Path, wanted: Callable[[str], bool]) -> None:
    """The page, dark, on a phone, the grid and Review: one person, photos of three classes."""
    truth = photos(folder / "photos", 240)
    with scene(folder / "photos", truth) as made:
        made.work(90, wrong=0.03)
        with looking(browser, made.address) as page:
            settle(page)
            press(page, truth[str(page.text_content("#name"))])
            made.wait(("ready",))
            page.wait_for_function("() => document.getElementById('changed').textContent !== ''")
            page.wait_for_function(f"() => {GUESSED}")
            settle(page)
            if wanted("page.jpg"):
                keep(page, "page.jpg", (1200, 805))
            if wanted("grid.jpg"):
                page.click("[data-view=grid]")
                page.select_option("#grid-class", [*dict.fromkeys(truth.values())][-1])
                page.wait_for_function("() => document.querySelectorAll('#grid-wall img').length > 11")
                calm(page)
                keep(page, "grid.jpg", (1200, 805))
            if wanted("review.jpg"):
                page.click("[data-view=review]")
                page.wait_for_function("() => document.querySelectorAll('#review-list li').length > 11")
                calm(page)
                keep(page, "review.jpg", (1200, 805))
        for name, size, to, more in (
            ("dark.jpg", WIDE, SMALL, {"color_scheme": "dark"}),
            ("phone.jpg", (390, 844), (312, 675), {"scale": 2.0, "has_touch": True, "is_mobile": True}),
        ):
            if wanted(name):
                with looking(browser, made.address, size, **more) as page:
                    settle(page)
                    keep(page, name, to)


def draw_people(browser: Browser, folder: Path, wanted: Callable[[str], bool]) -> None:
    """The overview, and what people disagree about: three people, two of them for each photo."""
    truth = photos(folder / "shared", 600, ("airplane", "bird", "cat", "ship"))
    with scene(folder / "shared", truth, copies=2, copies_share=0.5) as made:
        made.work(330, people=("Ada", "Ben", "Chi"), wrong=0.06, unsure=0.02)
        with looking(browser, made.address) as page:
            if wanted("overview.jpg"):
                page.click("[data-view=overview]")
                page.wait_for_function("() => document.querySelectorAll('#overview-tiles > *').length > 3")
                calm(page)
                keep(page, "overview.jpg", (1200, 805))
            if wanted("people.jpg"):
                page.click("[data-view=review]")
                page.select_option("#review-filter [name=only]", "people")
                page.wait_for_function("() => document.querySelectorAll('#review-list .voices').length > 2")
                calm(page)
                keep(page, "people.jpg", (1200, 805))


def draw_start(browser: Browser, folder: Path, wanted: Callable[[str], bool]) -> None:
    """While features are computed; and all done."""
    if wanted("features.jpg"):
        truth = photos(folder / "fresh", 1800)
        with scene(folder / "fresh", truth) as made:
            made.answer(6)
            with looking(browser, made.address, WIDE) as page:
                page.wait_for_selector("#features:not([hidden])")
                settle(page)
                keep(page, "features.jpg", SMALL)
            made.wait()
    if wanted("done.png"):
        truth = photos(folder / "demo", 6)
        with scene(folder / "demo", truth, backbone="none") as made:
            made.wait()
            made.answer(6)
            with looking(browser, made.address, WIDE) as page:
                page.wait_for_function("() => document.getElementById('note').textContent.includes('All done')")
                calm(page)
                keep(page, "done.png", SMALL)


def draw_tables(browser: Browser, folder: Path, wanted: Callable[[str], bool]) -> None:
    """A text; rows of a table; and the server is gone."""
    if wanted("text.png"):
        truth = reviews(folder / "reviews.csv")
        with scene(folder / "reviews.csv", truth, backbone="none") as made:
            made.work(20)
            with looking(browser, made.address, WIDE) as page:
                page.wait_for_function(f"() => {GUESSED}")
                settle(page)
                keep(page, "text.png", SMALL)
    if wanted("table.png") or wanted("error.png"):
        truth = customers(folder / "customers.csv")
        with scene(folder / "customers.csv", truth, backbone="none") as made:
            made.work(18)
            with looking(browser, made.address, WIDE) as page:
                page.wait_for_function(f"() => {GUESSED}")
                settle(page)
                if wanted("table.png"):
                    keep(page, "table.png", SMALL)
                page.route("**/api/**", lambda route: route.abort())
                page.keyboard.press("1")
                page.wait_for_selector("#banner:not([hidden])")
                page.wait_for_timeout(700)
                if wanted("error.png"):
                    keep(page, "error.png", SMALL)


def main() -> None:
    names = sys.argv[1:]

    def wanted(name: str) -> bool:
        return not names or name.split(".")[0] in names

    scenes = {
        draw_photos: ("page", "grid", "review", "dark", "phone"),
        draw_people: ("overview", "people"),
        draw_start: ("features", "done"),
        draw_tables: ("text", "table", "error"),
    }
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        os.environ["FORETASTE_CACHE"] = folder  # features are computed anew: one picture is of that
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for draw, own in scenes.items():
            if any(map(wanted, own)):
                draw(browser, Path(folder), wanted)
        browser.close()


if __name__ == "__main__":
    main()
