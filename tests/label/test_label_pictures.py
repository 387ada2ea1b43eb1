"""Pictures in full: the file as it is, the full size under the zoom, and that neither is more than a picture."""

import io
import os
import struct
import zlib

import pytest
from PIL import Image

from browser_cases import LateServer, in_chromium, shown
from foretaste.data import read_points
from foretaste.label import make_app
from foretaste.label.guard import Guard
from label_cases import Client, close_desk, open_desk

KINDS = {"png": "png", "jpg": "jpeg", "webp": "webp", "gif": "gif", "bmp": "bmp"}


def photo(path, size=(40, 20), kind=None, **rest):
    path.parent.mkdir(exist_ok=True)
    Image.effect_noise(size, 60).save(path, kind, **rest)
    return path.read_bytes()


@pytest.fixture
def desk(tmp_path):
    """A desk of pictures of many kinds."""
    for k, ending in enumerate([*KINDS, "tiff", "ppm"]):
        photo(tmp_path / "photos" / f"{k}.{ending}")
    photo(tmp_path / "photos" / "7.png", kind="TIFF")  # whatever it is called
    photo(tmp_path / "photos" / "8.tif", kind="PNG")
    made = open_desk(tmp_path / "store", read_points(tmp_path / "photos"), start=False, lease=3600.0)
    yield made
    close_desk(made)


@pytest.fixture
def client(desk):
    return Client(Guard(make_app(desk)))


def test_the_original_is_the_file_itself_where_browsers_show_it(desk, client, tmp_path):
    for name in desk.data.ids:
        got = client.get(f"/api/picture/{desk.number[name]}/original")
        kind = "png" if name == "8.tif" else None if name == "7.png" else KINDS.get(name.split(".")[1])
        assert got.status == 200
        assert got.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in got.headers["content-security-policy"]
        if kind:
            assert (got.headers["content-type"], name) == (f"image/{kind}", name)
            assert got.body == (tmp_path / "photos" / name).read_bytes()
        else:  # a copy of our own making
            assert (got.headers["content-type"], name) == ("image/png", name)
            assert Image.open(io.BytesIO(got.body)).size == (40, 20)


def bomb(side):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("what", ["html", "svg", "pipe", "link", "bomb", "gone"])
def test_what_has_become_no_picture_is_not_handed_out(client, tmp_path, what):
    """Someone changes the folder while the page is open."""
    path, secret = tmp_path / "photos" / "0.png", tmp_path / "secret" / "0.png"
    content = {"html": b"<html><script>alert(1)</script>", "svg": b"<svg onload='alert(1)'/>", "bomb": bomb(60_000)}
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)  # would never end
    elif what == "link":
        photo(secret)
        path.symlink_to(secret)
    elif what in content:
        path.write_bytes(content[what])
    got = client.get("/api/picture/0/original")
    assert (got.status, got.headers["content-type"]) == (422, "application/json")


def test_a_file_that_is_too_large_to_hand_out_is_copied(client, desk, monkeypatch):
    was = client.get("/api/picture/0/original").body
    monkeypatch.setattr("foretaste.data.items.LARGEST_ORIGINAL", len(was) - 1)
    now = client.get("/api/picture/0/original")
    assert now.body != was
    assert Image.open(io.BytesIO(now.body)).size == (40, 20)


@pytest.mark.parametrize("ending", ["jpg", "png"])
@pytest.mark.parametrize("size", [(3000, 2000), (700, 2600)])
def test_the_full_size_is_full_and_large_is_as_large_as_it_says(tmp_path, ending, size):
    """A large JPEG was decoded at a half or less for the full size too."""
    photo(tmp_path / "photos" / f"0.{ending}", size)
    desk = open_desk(tmp_path / "store", read_points(tmp_path / "photos"), start=False)
    client = Client(Guard(make_app(desk)))
    for wanted, side in (("full", max(size)), ("large", 1280), ("small", 160), ("full", max(size))):
        got = client.get(f"/api/picture/0/{wanted}")
        assert (wanted, max(Image.open(io.BytesIO(got.body)).size)) == (wanted, side)
    close_desk(desk)


def test_full_pictures_are_not_kept_in_memory(client, desk, monkeypatch):
    made = []
    monkeypatch.setattr("foretaste.label.server.encode_picture", lambda image, side: made.append(side) or (b"x", "a/b"))
    for size in ("full", "full", "large", "large", "small", "small"):
        client.get(f"/api/picture/0/{size}")
    assert made == [8192, 8192, 1280, 160]


def large_photos(tmp_path, count=3):
    """Each of another colour, so that they are no copies."""
    root = tmp_path / "large"
    root.mkdir()
    for k in range(count):
        Image.new("RGB", (3000, 2000), (60 * k + 40, 90, 30)).save(root / f"{k}.jpg")
    return open_desk(tmp_path / "store", read_points(root), ("cat", "dog"), start=False, lease=3600.0)


@in_chromium
def test_zoom_shows_the_full_size_without_a_jump_and_the_original_is_the_file(tmp_path, page):
    width = "$('picture').naturalWidth"
    with LateServer(large_photos(tmp_path)) as server:
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(server.address)
        item = shown(page)
        assert page.evaluate(width) == 1280
        assert not [url for url in asked if url.endswith("full")]
        server.hold("/api/picture")
        page.keyboard.press("+")
        page.keyboard.press("+")
        before = page.locator("#picture").bounding_box()
        assert page.evaluate(width) == 1280  # what is there, until the other can be shown
        server.let_go()
        page.wait_for_function(f"() => {width} === 3000")
        assert page.locator("#picture").bounding_box() == before
        assert page.evaluate("zoom.scale") == 2.25
        assert len([url for url in asked if url.endswith("full")]) == 1
        href = page.get_attribute("#original", "href")
        told = page.evaluate(
            "fetch($('original').href).then(async (r) =>"
            " [r.headers.get('content-type'), (await r.arrayBuffer()).byteLength])"
        )
        assert href == f"/api/picture/{server.desk.number[item]}/original"
        assert told == ["image/jpeg", (tmp_path / "large" / item).stat().st_size]


@in_chromium
def test_a_full_size_that_comes_late_is_not_shown_for_the_next_item(tmp_path, page):
    with LateServer(large_photos(tmp_path)) as server:
        page.goto(server.address)
        item = shown(page)
        full = f"/api/picture/{server.desk.number[item]}/full"
        page.wait_for_function("() => [...loaded.values()].filter((e) => e.ok).length === 2")
        server.hold("/api/picture")
        page.keyboard.press("+")
        page.keyboard.press("-")
        page.keyboard.press("+")
        page.keyboard.press("1")
        page.wait_for_function("i => $('name').textContent !== i", arg=item)
        server.let_go()
        second = shown(page)
        for _ in range(2):  # what came has been decoded by then
            page.evaluate("(url) => { const i = new Image(); i.src = url; return i.decode(); }", full)
        assert page.get_attribute("#picture", "src").endswith(f"/api/picture/{server.desk.number[second]}/large")
        page.keyboard.press("Backspace")
        assert shown(page, item)
        assert page.evaluate("$('picture').naturalWidth") == 1280


@in_chromium
def test_arrows_move_a_zoomed_picture(tmp_path, page):
    with LateServer(large_photos(tmp_path)) as server:
        page.goto(server.address)
        shown(page)
        page.keyboard.press("ArrowRight")
        assert page.evaluate("[zoom.x, zoom.y]") == [0, 0]
        for _ in range(3):
            page.keyboard.press("+")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        x, y = page.evaluate("[zoom.x, zoom.y]")
        assert x < 0  # one sees what is farther right
        assert y < 0
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowUp")
        assert page.evaluate("[zoom.x, zoom.y]") == [0, 0]
        assert server.desk.store.events() == []
