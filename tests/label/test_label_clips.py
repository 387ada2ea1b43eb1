"""Clips on the labelling page: how they are read, served in parts, and played in a browser."""

import math
import os
import re
import struct
import sys
import wave
from pathlib import Path

import pytest
import torch

import foretaste as ft
from browser_cases import LateServer, count, focused, in_chromium, shown
from foretaste.data import ClipItems, read_points
from foretaste.label import close_desk, export_labels, label_rows, make_app
from foretaste.label import open_desk as open_real_desk
from foretaste.label.guard import Guard
from foretaste.network import Backbone
from label_cases import Client, open_desk
from label_cases import close_desk as close_plain


def write_tone(path, pitch=440, samples=4000):
    with wave.open(str(path), "wb") as clip:
        clip.setnchannels(1)
        clip.setsampwidth(2)
        clip.setframerate(8000)
        clip.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(pitch * t / 1273))) for t in range(samples)))


def lengths_backbone():
    """Named by tests: the length of a file, and its 60th byte."""
    rows = lambda paths: torch.tensor([[float(p.stat().st_size), float(p.read_bytes()[60])] for p in paths])  # noqa: E731
    return Backbone("lengths", torch.nn.Identity(), rows, "length and byte 60", kind="clips")


def text_backbone():
    return Backbone("texts", torch.nn.Identity(), lambda texts: torch.zeros(len(texts), 1), "none", kind="text")


@pytest.fixture
def tones(tmp_path):
    root = tmp_path / "tones"
    root.mkdir()
    for k in range(3):
        write_tone(root / f"{k}.wav", 300 + 200 * k, 4000 + k)
    return root


@pytest.fixture
def client(tmp_path, tones):
    (tones / "film.MP4").write_bytes(bytes(range(200)))
    desk = open_desk(tmp_path / "store", read_points(tones))
    yield Client(Guard(make_app(desk)))
    close_plain(desk)


# Reading


def test_a_folder_of_clips_is_read_as_one_of_pictures(tones):
    (tones / "low").mkdir()
    write_tone(tones / "low" / "a.wav", 100)
    (tones / "empty.mp3").touch()
    (tones / "notes.txt").write_text("none of them")
    points = read_points(tones)
    assert points.kind == "clips"
    assert dict(zip(points.ids, points.labels)) == {"0.wav": None, "1.wav": None, "2.wav": None, "low/a.wav": "low"}
    assert [Path(p).name for p in points.items[:2]] == ["0.wav", "1.wav"]
    assert any("empty.mp3 (it is empty, or no file): left out" in note for note in points.notes)
    table = tones / "labels.csv"
    table.write_text("file,label\n2.wav,high\n0.wav,\n")
    named = read_points(table)
    assert (named.kind, named.ids, named.labels) == ("clips", ["2.wav", "0.wav"], ["high", None])


def test_notes_call_clips_clips(tones):
    (tones / "read me.txt").write_text("tones")
    notes = " ".join(read_points(tones).notes)
    assert "1 file is not a clip and was left out: 1 .txt" in notes
    (tones / "labels.csv").write_text("file,label\n0.wav,low\n1.wav,high\n")
    assert "1 clip of the folder does not stand in labels.csv: no label" in " ".join(read_points(tones).notes)


def test_pictures_come_first_and_a_study_takes_no_clips(folder, tones):
    write_tone(folder / "sound.wav")
    assert read_points(folder).kind == "pictures"
    with pytest.raises(ValueError, match="none in a class folder"):
        read_points(tones, for_study=True)


def test_the_backbone_gets_paths_and_rows_stay_with_their_clips(tones, tmp_path):
    points = ft.open(tones, encoder=f"{__name__}:lengths_backbone", cache=tmp_path / "kept")
    assert points.x[:, 0].tolist() == [44 + 2 * (4000 + k) for k in range(3)]
    os.rename(tones / "0.wav", tones / "z.wav")  # by what they hold, whatever they are called
    again = ft.open(tones, encoder=f"{__name__}:lengths_backbone", cache=tmp_path / "kept")
    assert again.ids == ["1.wav", "2.wav", "z.wav"]
    assert torch.equal(again.x, points.x[[1, 2, 0]])


def test_the_backbone_of_the_docs_hears_the_pitch(tones, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    [code] = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "def spectra" in block]
    (tmp_path / "spectrum.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "spectrum", raising=False)
    x = ft.open(tones, encoder="spectrum:spectrum", cache=False).x
    assert x.shape == (3, 513)
    assert x.argmax(1).tolist() == [round(pitch / 8000 * 1024) for pitch in (300, 500, 700)]


@pytest.mark.parametrize("backbone", ["auto", "none"])
def test_without_a_backbone_the_error_says_how(tones, backbone):
    with pytest.raises(ValueError, match=r"holds clips, .* --backbone module:function"):
        open_real_desk(tones, classes=["low", "high"], backbone=backbone)
    assert not (tones / ".foretaste").exists()
    with pytest.raises(ValueError, match="3 clips and no backbone"):
        read_points(tones).x  # noqa: B018


@pytest.mark.parametrize(
    ("backbone", "kind"), [("text_backbone", "text"), ("efficientnet-lite0", "pictures"), ("st:some", "text")]
)
def test_a_backbone_for_others_is_refused(tones, backbone, kind):
    name = f"{__name__}:{backbone}" if backbone.isidentifier() else backbone
    if kind == "pictures":
        pytest.importorskip("efficientnet_lite_pytorch", reason="needs foretaste[pretrained]")
    with pytest.raises(ValueError, match=f"is for {kind} and the points are clips"):
        open_real_desk(tones, classes=["low", "high"], backbone=name)


def test_copies_are_asked_once_and_labels_go_out_by_file(tones, tmp_path):
    (tones / "copy.wav").write_bytes((tones / "1.wav").read_bytes())
    desk = open_real_desk(tones, classes=["low", "high"], backbone=f"{__name__}:lengths_backbone", start=False)
    try:
        assert desk.twins == {"copy.wav": "1.wav"}
        desk.next("tab-00000001", "Ada", count=3)
        desk.answer("tab-00000001", "Ada", "1.wav", "label", "low", patience=0)
        rows = label_rows(desk.store, desk.twins)
        out = export_labels(rows, tmp_path / "classes", root=tones, field="clip")
        assert sorted(p.name for p in (out / "low").iterdir()) == ["1.wav", "copy.wav"]
        told = Client(Guard(make_app(desk))).get("/api/export/csv").body.decode()
        assert re.match(r"file,label,.*\n1\.wav,low,", told)
    finally:
        close_desk(desk)


# Serving


def test_a_clip_is_served_as_it_is_with_its_type(client, tones):
    got = client.get("/api/clip/0")
    assert (got.status, got.headers["content-type"]) == (200, "audio/wav")
    assert got.body == (tones / "0.wav").read_bytes()
    assert got.headers["accept-ranges"] == "bytes"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert "media-src 'self'" in got.headers["content-security-policy"]
    film = client.get("/api/clip/3")
    assert (film.headers["content-type"], film.body) == ("video/mp4", bytes(range(200)))
    assert client.get("/api/item/3").json["media"] == "video"
    assert client.get("/api/item/0").json["clip"] == "/api/clip/0"


@pytest.mark.parametrize(
    ("wanted", "first", "last"),
    [("bytes=0-9", 0, 9), ("bytes=50-", 50, 199), ("bytes=-7", 193, 199), ("bytes=190-900", 190, 199),
     ("bytes=199-199", 199, 199), ("bytes=-900", 0, 199)],
)  # fmt: skip
def test_a_part_of_a_clip_is_206(client, wanted, first, last):
    got = client.get("/api/clip/3", range=wanted)
    assert (got.status, got.body) == (206, bytes(range(first, last + 1)))
    assert got.headers["content-range"] == f"bytes {first}-{last}/200"
    assert got.headers["content-length"] == str(last + 1 - first)


@pytest.mark.parametrize("wanted", ["bytes=200-", "bytes=900-901", "bytes=-0", "bytes=9-3"])
def test_a_part_that_is_not_there_is_416(client, wanted):
    got = client.get("/api/clip/3", range=wanted)
    assert (got.status, got.headers["content-range"]) == (416, "bytes */200")


@pytest.mark.parametrize("wanted", ["bytes=-", "bytes=0-1,5-6", "lines=1-2", "bytes=a-b", "bytes=" + "9" * 4000 + "-"])
def test_other_ranges_get_the_whole_clip(client, wanted):
    assert len(client.get("/api/clip/3", range=wanted).body) == 200


def test_a_large_clip_comes_in_chunks_and_whole(client, tones, monkeypatch):
    monkeypatch.setattr("foretaste.label.server.CLIP_CHUNK", 7)
    assert client.get("/api/clip/3").body == bytes(range(200))
    assert client.get("/api/clip/3", range="bytes=3-23").body == bytes(range(3, 24))


def test_no_file_outside_the_folder_is_served(client, tones, tmp_path):
    secret = tmp_path / "secret.wav"
    secret.write_bytes(b"secret")
    for path in ("/api/clip/../secret.wav", "/api/clip/%2e%2e%2fsecret.wav", "/api/clip/4", "/api/clip/-1"):
        got = client.get(path)
        assert got.status in (404, 422)
        assert b"secret" not in got.body.replace(b"secret.wav", b"")
    (tones / "0.wav").unlink()
    (tones / "0.wav").symlink_to(secret)  # since the folder was read
    got = client.get("/api/clip/0")
    assert (got.status, got.json["error"]) == (422, "it has become a link out of the folder")
    (tones / "1.wav").unlink()
    assert client.get("/api/clip/1").status == 404
    os.mkfifo(tones / "1.wav")  # would never end
    assert client.get("/api/clip/1").status == 404
    assert client.get("/api/picture/2/large").status == 404


def test_clips_are_for_clips_and_for_our_own_page(tmp_path, client):
    assert client.get("/api/clip/0", sec_fetch_site="cross-site").status == 403
    desk = open_desk(tmp_path / "pictures")
    try:
        assert Client(Guard(make_app(desk))).get("/api/clip/0").status == 404
    finally:
        close_plain(desk)


def test_clips_are_taken_in_another_order(tones):
    items = read_points(tones).items
    assert isinstance(items, ClipItems)
    some, order = items.by_content()
    assert [some[k] for k in range(3)] == [items[i] for i in order]
    assert some.digest_of(0) == items.digest_of(order[0])


# In a browser


@in_chromium
@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (390, "dark")])
def test_a_film_fills_the_stage_and_is_played_sought_and_labelled(tmp_path, browser, width, theme):
    """fixtures/film.webm is ffmpeg's test picture, 64 × 48, three seconds."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page, faults, root, parts = context.new_page(), [], tmp_path / "films", []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    page.on("response", lambda reply: parts.append(reply.status) if "/api/clip/" in reply.url else None)
    root.mkdir()
    film = (Path(__file__).parent.parent / "fixtures" / "film.webm").read_bytes()
    for k in range(3):
        (root / f"{k}.webm").write_bytes(film + bytes(k))  # no copies
    desk = open_desk(tmp_path / "store", read_points(root), ("low", "high"), start=False, lease=3600.0)
    with LateServer(desk) as server:
        page.goto(server.address)
        first = shown(page)
        page.wait_for_function("() => !video.hidden && video.readyState > 1")
        assert page.evaluate("[video.videoWidth, video.videoHeight]") == [64, 48]
        assert page.evaluate("video.getBoundingClientRect().width / figure.getBoundingClientRect().width") > 0.8
        assert page.evaluate("video.duration") == pytest.approx(3, abs=0.3)
        page.keyboard.press(">")
        page.wait_for_function("() => video.currentTime > 0")
        page.keyboard.press(">")
        page.wait_for_function("() => video.paused")
        page.evaluate("video.currentTime = 2")
        page.wait_for_function("() => !video.seeking && video.currentTime === 2 && video.readyState > 1")
        page.screenshot(path=str(tmp_path / "film.png"))
        assert parts
        assert {*parts} == {206}
        page.focus("#video")
        page.keyboard.press("2")  # the page's, also from the player
        count(page, 1)
        page.keyboard.press("1")
        count(page, 2)
        assert [e.label for e in desk.store.events() if e.item == first] == ["high"]
        page.keyboard.press("F2")
        page.wait_for_function(  # the first frame is there without a press
            "() => [...document.querySelectorAll('#review-list video')].filter((v) => v.readyState > 1).length === 2"
        )
        page.screenshot(path=str(tmp_path / "films.png"))
        context.close()
        assert faults == []


@in_chromium
@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (390, "dark")])
def test_clips_are_played_and_labelled_by_key(tmp_path, tones, browser, width, theme):
    sync = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page, faults = context.new_page(), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    for k in range(3, 8):  # some that no tab holds, for the grid
        write_tone(tones / f"{k}.wav", 300 + 200 * k)
    desk = open_desk(tmp_path / "store", read_points(tones), ("low", "high"), start=False, lease=3600.0)
    ready = (
        "i => { const a = document.getElementById('audio'); return !a.hidden && a.src.endsWith(i) && a.readyState > 0 }"
    )

    def axe(place):
        found = sync.Axe().run(page).response["violations"]
        assert [(v["id"], v["nodes"][0]["html"][:120]) for v in found] == [], place
        assert page.evaluate("document.documentElement.scrollWidth") <= width

    with LateServer(desk) as server:
        page.goto(server.address)
        first = shown(page)
        page.wait_for_function(ready, arg=f"/api/clip/{desk.number[first]}")
        assert page.evaluate("audio.duration") == pytest.approx(0.5, abs=0.01)
        assert page.get_attribute("#audio", "aria-label") == f"Item {first}"
        assert page.is_hidden("#video")
        axe("label")
        page.screenshot(path=str(tmp_path / "clip.png"))
        page.focus("#audio")
        page.keyboard.press("Space")  # the player's, and no skip
        page.wait_for_function("() => !audio.paused || audio.ended")
        assert (focused(page), shown(page), desk.store.events()) == ("audio", first, [])
        page.evaluate("audio.addEventListener('seeked', () => { audio.dataset.moved = 1; })")
        page.click("#audio")  # on its slider
        page.wait_for_selector("#audio[data-moved]")
        for key in ("Space", "ArrowLeft", "Space"):
            page.keyboard.press(key)
        assert (focused(page), shown(page), desk.store.events()) == ("audio", first, [])
        page.keyboard.press("1")
        count(page, 1)
        second = shown(page)
        assert second != first
        page.wait_for_function(ready, arg=f"/api/clip/{desk.number[second]}")
        assert page.evaluate("audio.paused")
        page.keyboard.press(">")
        page.wait_for_function("() => !audio.paused || audio.ended")
        page.keyboard.press("2")
        count(page, 2)
        assert [(e.item, e.label) for e in desk.store.events()] == [(first, "low"), (second, "high")]
        page.keyboard.press("F2")
        page.wait_for_selector("#review-list li audio")
        assert page.locator("#review-list li .title").first.text_content().endswith(".wav")
        axe("review")
        page.screenshot(path=str(tmp_path / "review.png"))
        page.keyboard.press("F4")
        page.wait_for_selector("#grid-class option:nth-child(2)", state="attached")
        page.keyboard.press("2")  # what the model calls high
        page.wait_for_selector("#grid-wall button")
        assert page.text_content("#grid-wall button .words").endswith(".wav")
        axe("grid")
        page.screenshot(path=str(tmp_path / "grid.png"))
        page.keyboard.press("+")
        page.wait_for_function("() => document.querySelector('#closer[open] audio')?.duration > 0")
        axe("closer")
        page.keyboard.press("Escape")
        assert page.is_hidden("#closer")
        context.close()
        assert faults == []
