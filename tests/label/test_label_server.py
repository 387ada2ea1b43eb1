"""The routes of the labelling page, and what strangers may not do there (docs/security.md)."""

import io
import json
import logging
import re
import shutil
import socket
import struct
import threading
import time
import zlib
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import foretaste
from foretaste.data.pictures import readable_picture
from foretaste.label import LabelStore
from foretaste.label.guard import LARGEST_BODY, Guard, is_loopback
from foretaste.label.server import (
    OPEN_CONNECTIONS,
    OPEN_PER_ADDRESS,
    PAGE_FILES,
    encode_picture,
    make_app,
    make_server,
    open_port,
    picture_cache,
)
from label_cases import Client, MemoryItems, close_desk, open_desk, pictures

TAB = {"tab": "tab-00000001", "who": "Ada"}
TOKEN = "a-token-of-some-length-0123456789"
ROUTES = ("/api/next", "/api/answer", "/api/undo", "/api/alive", "/api/leave", "/api/retrain")


@pytest.fixture
def desk(tmp_path):
    desk = open_desk(tmp_path / "store", pictures(), twins={"p019.png": "p018.png"})
    yield desk
    close_desk(desk)


@pytest.fixture
def client(desk):
    return Client(Guard(make_app(desk)))


def answer(client, item, label="cat", **rest):
    return client.post("/api/answer", {**TAB, "item": item, "kind": "label", "label": label, **rest})


# The routes


def test_lists_have_the_first_words_of_a_text(tmp_path):
    long = " ".join(f"word{k}" for k in range(200))
    desk = open_desk(tmp_path, MemoryItems("text", ["a", "b"], [long, "short"]))
    client = Client(Guard(make_app(desk)))
    texts = {row["item"]: row["text"] for row in client.get("/api/grid?find=o").json["items"]}
    assert texts == {"a": long[:400] + " […]", "b": "short"}
    close_desk(desk)


def test_label_undo_and_go_on(client, desk):
    items = client.post("/api/next", TAB).json["items"]
    assert [set(i) >= {"item", "number", "picture", "likely", "check"} for i in items] == [True, True]
    got = answer(client, items[0]["item"])
    assert got.status == 200
    assert got.json["seq"] == 1
    assert next(i["item"] for i in got.json["items"]) == items[1]["item"]  # the prefetched one, then a new one
    assert len(got.json["items"]) == 2
    assert got.json["state"]["labelled"] == 1
    back = client.post("/api/undo", TAB)
    assert back.json["item"]["item"] == items[0]["item"]
    assert back.json["state"]["labelled"] == 0
    assert client.post("/api/undo", TAB).status == 409


def test_a_repeated_request_is_kept_once(client, desk):
    item = client.post("/api/next", TAB).json["items"][0]["item"]
    first = answer(client, item, request="r1")
    assert answer(client, item, request="r1").json["seq"] == first.json["seq"]
    assert len(desk.store.events()) == 1


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        ({"item": "nothing.png"}, 404, "unknown item"),
        ({"label": "cow"}, 422, "unknown class 'cow'"),
        ({"kind": "undo"}, 422, "kind"),
        ({"kind": "skip"}, 422, "a skip has no label"),
        ({"tab": "x"}, 422, "tab"),
        ({"tab": "../../etc/passwd"}, 422, "tab"),
        ({"who": "  "}, 422, "who"),
        ({"more": 1}, 422, "more"),
        ({"item": 7}, 422, "item"),
        ({"item": "\ud800"}, 400, "not JSON"),
    ],
)
def test_bad_bodies_are_refused_in_a_sentence(client, desk, change, status, error):
    got = client.post("/api/answer", {**TAB, "item": "p000.png", "kind": "label", "label": "cat", **change})
    assert (got.status, error in got.json["error"]) == (status, True), got.json
    assert desk.store.events() == []


def test_what_another_holds_or_has_answered_is_a_conflict(client):
    other = {"tab": "tab-00000002", "who": "Bob"}
    item = client.post("/api/next", other).json["items"][0]["item"]
    assert "Bob has" in answer(client, item).json["error"]
    client.post("/api/answer", {**other, "item": item, "kind": "label", "label": "dog"})
    late = answer(client, item)
    assert (late.status, "Bob has answered" in late.json["error"]) == (409, True)
    assert answer(client, item, kind="relabel").status == 200


def test_a_full_disk_is_507_and_acknowledges_nothing(client, desk):
    db = desk.store._log.db
    db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
    got = None
    for k in range(19):
        got = answer(client, f"p{k:03d}.png", request="r" * 150 + str(k))
        if got.status != 200:
            break
    assert got is not None
    assert (got.status, "the disk is full" in got.json["error"]) == (507, True)
    assert len(desk.store.events()) == k


def test_a_folder_that_is_deleted_under_the_page_is_written_again_or_told(client, desk):
    answer(client, "p000.png")
    shutil.rmtree(desk.store.folder)
    assert answer(client, "p001.png").status == 200
    with LabelStore(desk.store.folder, read_only=True) as kept:
        assert list(kept.labels()) == ["p000.png", "p001.png"]
    desk.store._log._parent = (0, 0)  # as if the pictures' own folder were another
    shutil.rmtree(desk.store.folder)
    got = answer(client, "p002.png")
    assert (got.status, "the answer was not kept" in got.json["error"]) == (503, True)
    assert len(desk.store.events()) == 2


def test_items_can_be_looked_at_again(client):
    answer(client, "p003.png", "dog")
    recent = client.get("/api/recent").json["items"]
    assert [(r["item"], r["label"]) for r in recent] == [("p003.png", "dog")]
    item = client.get(f"/api/item/{recent[0]['number']}").json
    assert item["answer"] == {"kind": "label", "label": "dog", "who": "Ada"}
    assert client.get("/api/item/999").status == 404


def test_exports_are_downloads_and_copies_have_the_label_of_their_first(client):
    answer(client, "p018.png", "dog")
    csv = client.get("/api/export/csv")
    assert csv.headers["content-disposition"] == 'attachment; filename="labels.csv"'
    assert "p019.png,dog,label,Ada" in csv.body.decode()
    assert json.loads(client.get("/api/export/jsonl").body.splitlines()[0])["item"] == "p018.png"
    assert client.get("/api/export/json").json[0]["annotations"][0]["result"][0]["value"] == {"choices": ["dog"]}
    assert client.get("/api/export/exe").status == 422


def test_predictions_are_a_download_once_there_are_any(tmp_path):
    desk = open_desk(tmp_path)
    try:
        client = Client(Guard(make_app(desk), host="127.0.0.1"))
        end = time.monotonic() + 60
        while desk.worker.describe()["phase"] != "first labels":
            assert time.monotonic() < end
            time.sleep(0.01)
        none = client.get("/api/export/predictions")
        assert none.status == 422
        assert "no predictions yet" in none.json["error"]
        for item, label in (("p003.png", "cat"), ("p004.png", "dog")):
            desk.answer("tab-00000001", "Ada", item, "label", label, patience=60)
        csv = client.get("/api/export/predictions")
        assert csv.headers["content-disposition"] == 'attachment; filename="predictions.csv"'
        lines = csv.body.decode().splitlines()
        assert lines[0] == "file,label,predicted,probability"
        assert lines[4:7] == ["p003.png,cat,dog,0.9000", "p004.png,dog,dog,0.9000", "p005.png,,dog,0.9000"]
        assert len(lines) == 21
    finally:
        close_desk(desk)


def test_texts_and_rows(tmp_path):
    data = MemoryItems("text", ["a", "b"], ["<script>alert(1)</script>", "x" * 50_000])
    desk = open_desk(tmp_path / "text", data)
    items = {i["item"]: i for i in Client(Guard(make_app(desk))).post("/api/next", TAB).json["items"]}
    assert items["a"]["text"] == "<script>alert(1)</script>"  # the page sets it as text
    assert len(items["b"]["text"]) < 21_000
    assert Client(Guard(make_app(desk))).get("/api/picture/0/large").status == 404
    close_desk(desk)
    desk = open_desk(tmp_path / "rows", MemoryItems("table", ["a"], [{"age": 3, "city": "Bonn"}]))
    items = Client(Guard(make_app(desk))).post("/api/next", TAB).json["items"]
    assert items[0]["cells"] == [["age", "3"], ["city", "Bonn"]]
    close_desk(desk)


def test_retraining_is_asked_for(client, desk):
    assert client.post("/api/retrain", TAB).status == 200
    desk.worker.wait_for(desk.worker.tell("p000.png"), 20)
    desk.worker.wait_for(desk.worker.tell("p000.png"), 20)
    assert desk.learner.trainings == 1


# The page itself


def test_the_page_fetches_nothing_from_elsewhere(client):
    for path in PAGE_FILES:
        got = client.get(path)
        assert got.status == 200
        text = got.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|@import|url\(", text), path
        assert not re.search(r"\bon[a-z]+=|javascript:|<style|style=|<script>", text), path  # the policy forbids them
    script = client.get("/page.js").body.decode()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)
    assert client.get("/docs").status == client.get("/openapi.json").status == 404
    assert client.get("/docs").json == {"error": "Not Found"}


def test_the_page_is_part_of_the_package():
    folder = Path(foretaste.__file__).parent / "label" / "page"
    assert {name for name, _ in PAGE_FILES.values()} == {p.name for p in folder.iterdir()}


# Strangers


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "127.0.0.1.evil.example",
        "",
        "192.168.0.5:8765",
        "[::1]evil.example",
        "[::1]:8765@evil.example",
        "[::1].evil.example:8765",
        "127.0.0.1:8765.evil.example",
        "localhost:evil.example",
        "localhost:8765:evil.example",
        "evil.example@localhost:8765",
        "localhost:",
        "localhost/",
        "[localhost]",
        " localhost",
        "::1",
    ],
)
def test_foreign_host_headers_are_refused(client, host):
    for got in (
        client.get("/api/state", host=host),
        client.get("/", host=host),
        client.post("/api/next", TAB, host=host),
    ):
        assert got.status == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "LOCALHOST", "[::1]:8765"])
def test_names_of_this_machine_are_answered(client, host):
    assert client.get("/api/state", host=host).status == 200


def test_more_names_can_be_allowed_and_addresses_in_figures_beyond_this_machine(desk):
    app = make_app(desk)
    wide = Client(Guard(app, host="0.0.0.0", token=TOKEN, names=["Lab.example"]))
    assert wide.get("/health", host="lab.example:80").status == 200
    assert wide.get("/health", host="10.0.0.7:8765").status == 200
    assert wide.get("/health", host="[fe80::7]:8765").status == 200
    for host in ("other.example", "10.0.0.7.other.example", "[fe80::7]other.example", "10.0.0.7:other.example"):
        assert wide.get("/health", host=host).status == 421


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://evil.example://127.0.0.1:8765"},
        {"origin": "http://evil.example/://127.0.0.1:8765"},
        {"origin": "evil://127.0.0.1:8765"},
        {"origin": "http://evil.example@127.0.0.1:8765"},
        {"origin": "127.0.0.1:8765"},
        {"origin": "http://127.0.0.1:8765/"},
        {"origin": ""},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
    ],
)
def test_other_sites_cannot_change_anything(client, desk, path, headers):
    assert client.post(path, TAB, **headers).status == 403
    assert desk.store.held() == []


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None]
)
def test_forms_of_other_sites_cannot_post(client, kind):
    assert client.post("/api/next", TAB, content_type=kind).status == 415


def test_other_sites_cannot_read_but_may_link_to_the_page(client):
    for path in ("/api/state", "/api/picture/0/large", "/api/export/csv", "/page.js"):
        assert client.get(path, sec_fetch_site="cross-site").status == 403
    assert client.get("/", sec_fetch_site="cross-site").status == 200
    own = {"sec_fetch_site": "same-origin", "origin": "http://127.0.0.1:8765"}
    assert client.post("/api/next", TAB, **own).status == 200


def test_there_is_no_answer_to_a_preflight(client):
    got = client.call("OPTIONS", "/api/next", b"", {"origin": "https://evil.example"})
    assert got.status >= 400
    assert not [h for h in got.headers if h.startswith("access-control")]


@contextmanager
def served(app):
    """A real server on a port of its own."""
    server, opened = make_server(app), open_port("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        until(lambda: server.started)
        yield server, opened.getsockname()
    finally:
        server.should_exit = True
        thread.join(60)


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def sent(address, raw):
    connection = socket.create_connection(address, timeout=60)
    connection.sendall(raw)
    return connection


def answered(address, raw):
    """Whether there is an answer, and a good one."""
    with suppress(ConnectionError), sent(address, raw) as connection, connection.makefile("rb") as lines:
        return lines.readline().startswith(b"HTTP/1.1 200 ")


HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
UNFINISHED = {
    "nothing": b"",
    "headers": b"GET /health HTTP/1.1\r\nhost: loc",
    "a body": b"POST /api/login HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: 100\r\n\r\n{",
    "a body in chunks": b"POST /api/answer HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
    "a body that is refused": b"POST /api/next HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
    "a second request": b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /hea",
}


@pytest.mark.parametrize("raw", UNFINISHED.values(), ids=UNFINISHED)
def test_requests_that_never_end_lock_nobody_out(desk, raw):
    """255 of them did."""
    with served(Guard(make_app(desk))) as (server, address), ExitStack() as opened:
        for _ in range(OPEN_CONNECTIONS - 1):
            opened.enter_context(sent(address, raw))
        until(lambda: answered(address, HEALTH))
        assert len(server.server_state.connections) <= OPEN_PER_ADDRESS + 1


@pytest.mark.parametrize("raw", UNFINISHED.values(), ids=UNFINISHED)
def test_requests_that_never_end_are_ended(desk, raw, monkeypatch):
    monkeypatch.setattr("foretaste.label.server.SLOW_SECONDS", 0.2)
    with served(Guard(make_app(desk))) as (server, address), sent(address, raw) as connection:
        with suppress(ConnectionResetError):
            while connection.recv(10_000):
                pass
        until(lambda: not server.server_state.connections)
    assert desk.store.events() == []


def test_headers_may_come_in_parts_and_not_without_end(desk):
    start = HEALTH.removesuffix(b"\r\n") + b"x: "
    with served(Guard(make_app(desk))) as (server, address):
        for size, rest, status in ((1000, b"\r\n\r\n", b"200"), (32 * 1024 + 1, b"", b"400")):
            with sent(address, start) as connection:
                until(lambda: [c for c in server.server_state.connections if not c.quiet])
                connection.sendall(b"x" * (size - len(start)))
                connection.sendall(rest)
                assert connection.recv(10_000).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("last", [b"", b"connection: close\r\n"])
@pytest.mark.parametrize("parts", [1, 100])
def test_answers_that_nobody_takes_are_ended(monkeypatch, parts, last):
    monkeypatch.setattr("foretaste.label.server.SLOW_SECONDS", 0.2)

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for k in range(parts):
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": k + 1 < parts})

    with served(app) as (server, address), socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address)
        connection.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n" + last + b"\r\n")
        until(lambda: server.server_state.total_requests or server.server_state.connections)
        until(lambda: not server.server_state.connections)


def test_a_connection_that_is_used_stays_open(desk, monkeypatch):
    """The time of a request counts from its first byte, and none runs while we work."""
    monkeypatch.setattr("foretaste.label.server.SLOW_SECONDS", 100.0)

    async def work(scope, receive, send):
        [here] = server.server_state.connections
        timers.append(here.timer)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    timers, begun = [], []
    with served(work) as (server, address), sent(address, b"") as connection:
        for _ in range(3):
            until(lambda: server.server_state.connections)
            [here] = server.server_state.connections
            until(lambda here=here: here.timer is not None)
            begun.append(here.timer.when())
            connection.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            reply = b""
            while b"\r\n\r\n" not in reply:
                reply += connection.recv(10_000)
            assert reply.startswith(b"HTTP/1.1 200")
    assert timers == [None] * 3
    assert begun == sorted(set(begun))


def test_pictures_that_wait_for_room_hold_up_no_answer(tmp_path):
    go, data = threading.Event(), pictures()
    data.items = [SlowItem(go) for _ in data.ids]
    desk = open_desk(tmp_path / "store", data)
    try:
        with served(Guard(make_app(desk))) as (_, address), ExitStack() as opened:
            for k in range(60):
                raw = f"GET /api/picture/{k % 20}/large HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
                opened.enter_context(sent(address, raw.encode()))
            assert answered(address, HEALTH)
            go.set()
    finally:
        go.set()
        close_desk(desk)


class SlowItem:
    """A picture that waits."""

    def __init__(self, go):
        self.go = go

    def __len__(self):
        self.go.wait(60)
        raise ValueError("no picture")


def test_every_answer_carries_the_headers(client):
    for path in ("/", "/api/state", "/nothing", "/api/picture/0/large"):
        got = client.get(path).headers
        assert "default-src 'none'" in got["content-security-policy"]
        assert "frame-ancestors 'none'" in got["content-security-policy"]
        assert "unsafe" not in got["content-security-policy"]
        assert (got["x-content-type-options"], got["referrer-policy"]) == ("nosniff", "no-referrer")
        assert got["cross-origin-resource-policy"] == "same-origin"
    assert "unexpected" not in client.get("/", host="evil").headers
    assert client.get("/", host="evil").headers["x-content-type-options"] == "nosniff"
    assert client.get("/api/state").headers["cache-control"] == "no-store"


def test_long_bodies_are_refused(client):
    long = json.dumps({**TAB, "who": "x" * LARGEST_BODY}).encode()
    assert client.post("/api/next", long).status == 413
    assert client.post("/api/next", b"{}", content_length=str(10**9)).status == 413
    assert client.post("/api/next", b"{}", content_length="-1").status == 413
    assert client.post("/api/next", b"{}", content_length="9" * 5000).status == 413


NO_JSON = {
    "deep lists": b"[" * 60_000,
    "deep objects": b'{"a":' * 12_000,
    "half a pair of surrogates": b'{"token": "\\ud800"}',
    "half a pair as a name": b'{"\\udfff": 1}',
    "half a pair in bytes": b'{"token": "\xed\xa0\x80"}',
    "not UTF-8": b'{"token": "\xff"}',
    "UTF-16": '{"token": "x"}'.encode("utf-16"),
    "a number of too many figures": b'{"token": ' + b"9" * 5000 + b"}",
    "nothing": b"",
    "words": b"token",
}


@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
def test_a_body_that_is_no_json_is_refused_on_every_route(desk, body):
    open_guard = Guard(make_app(desk))
    locked = Guard(make_app(desk), host="0.0.0.0", token=TOKEN)
    for guard in (open_guard, locked):
        for path in ("/api/login", *ROUTES):
            got = Client(guard).post(path, body, authorization=f"Bearer {TOKEN}")
            assert (got.status, "not JSON" in got.json["error"]) == (400, True), (path, got)
    assert Client(locked).post("/api/login", body).status == 400  # from a stranger
    assert not locked.sessions
    assert desk.store.events() == []


def test_odd_numbers_and_names_in_an_address_are_no_error_of_ours(client):
    for path in (f"/api/item/{'9' * 5000}", "/api/item/NaN", f"/api/picture/{'9' * 5000}/large", "/api/export/\x00"):
        assert client.get(path).status in (404, 422), path
    for query in ("who=%ED%A0%80", "who=%FF", "who=" + "x" * 201, "who=" + "[" * 200):
        assert client.get(f"/api/state?{query}").status in (200, 422), query


def test_cookies_that_are_kept_are_bounded(desk, monkeypatch):
    monkeypatch.setattr("foretaste.label.guard.SESSIONS_KEPT", 3)
    guard = Guard(make_app(desk), host="0.0.0.0", token=TOKEN)
    client = Client(guard)
    cookies = [client.post("/api/login", {"token": TOKEN}).headers["set-cookie"].split(";")[0] for _ in range(5)]
    assert len(guard.sessions) == 3
    assert [client.get("/api/state", cookie=c).status for c in cookies] == [401, 401, 200, 200, 200]


# Beyond this machine


def test_a_token_is_required_beyond_this_machine(desk):
    app = make_app(desk)
    for host in ("0.0.0.0", "192.168.1.2", "lab.example", "::"):
        assert not is_loopback(host)
        with pytest.raises(ValueError, match="a token is required"):
            Guard(app, host=host)
    with pytest.raises(ValueError, match="at least 16"):
        Guard(app, host="0.0.0.0", token="short")
    assert all(is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"))


def test_the_token_opens_the_door_by_a_cookie_that_scripts_cannot_read(desk):
    client = Client(Guard(make_app(desk), host="0.0.0.0", token=TOKEN))
    assert client.get("/").status == 200  # the page can ask for it
    for path in ("/api/state", "/api/picture/0/large", "/api/export/csv", "/nothing"):
        assert client.get(path).status == 401
    for path in ROUTES:
        assert client.post(path, TAB).status == 401
    for wrong in ({"token": "wrong"}, {"token": None}, {"token": [TOKEN]}, [], {}):
        assert client.post("/api/login", wrong).status == 401
    got = client.post("/api/login", {"token": TOKEN})
    cookie = got.headers["set-cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=Strict", "Path=/"))
    assert TOKEN not in cookie
    pair = cookie.split(";")[0]
    assert client.get("/api/state", cookie=pair).status == 200
    assert client.get("/api/state", cookie=pair[:-1] + ("A" if pair[-1] != "A" else "B")).status == 401
    assert client.get("/api/state", cookie="foretaste=").status == 401
    assert client.get("/api/state", authorization=f"Bearer {TOKEN}").status == 200
    assert client.get("/api/state", authorization=f"Bearer {TOKEN}x").status == 401
    assert client.get(f"/api/state?token={TOKEN}").status == 401  # an address is logged: no token is taken from one


def test_tokens_reach_no_log(desk, caplog):
    caplog.set_level(logging.DEBUG)
    client = Client(Guard(make_app(desk), host="0.0.0.0", token=TOKEN))
    client.post("/api/login", {"token": TOKEN})
    client.post("/api/login", {"token": TOKEN + "x"})
    client.get("/api/state", authorization=f"Bearer {TOKEN}")
    client.post("/api/next", {**TAB, "token": TOKEN}, authorization=f"Bearer {TOKEN}")
    assert TOKEN not in caplog.text


# Pictures


def test_pictures_are_made_anew(client):
    got = client.get("/api/picture/3/large")
    assert (got.status, got.headers["content-type"]) == (200, "image/png")
    assert Image.open(io.BytesIO(got.body)).size == (8, 8)


@pytest.mark.parametrize("path", ["/api/picture/-1/large", "/api/picture/99999/large", "/api/picture/1/huge"])
def test_pictures_that_are_not_there(client, path):
    assert client.get(path).status in (404, 422)


@pytest.mark.parametrize(
    "path",
    [
        "/api/picture/../../../etc/passwd",
        "/api/picture/..%2f..%2fetc%2fpasswd/large",
        "/../server.py",
        "/page/../server.py",
        "//etc/passwd",
        "/api/picture//etc/passwd/large",
    ],
)
def test_no_path_leads_to_a_file(client, path):
    got = client.get(path)
    assert got.status in (404, 422)
    assert b"root:" not in got.body


def test_what_is_hidden_in_a_picture_stays_behind():
    """EXIF, with its place, and bytes behind the picture do not reach the browser; the picture is turned upright."""
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    exif[0x010E] = "<script>alert(1)</script>"
    out = io.BytesIO()
    Image.new("RGB", (40, 20), "red").save(out, "JPEG", exif=exif)
    raw = out.getvalue() + b"<html><script>alert(2)</script>"
    body, media = encode_picture(Image.open(io.BytesIO(raw)), 1280)
    assert media == "image/png"
    assert b"script" not in body
    assert Image.open(io.BytesIO(body)).size == (20, 40)


@pytest.mark.parametrize("side", [40, 700])  # a PNG, a JPEG
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_no_metadata_of_a_picture_is_served(kind, side):
    """Where and when it was taken, by whom, with what: in EXIF, comments, colour profiles, XMP, text."""
    secret = b"52.5200N 13.4050E by Ada"
    exif, text = Image.Exif(), PngInfo()
    exif[0x010E] = secret.decode()
    exif.get_ifd(0x8825)[1] = "N"  # a place
    text.add_text("Comment", secret.decode())
    held = {"exif": exif, "icc_profile": secret, "xmp": secret, "dpi": (123, 123)}
    held |= {"comment": secret} if kind == "JPEG" else {"pnginfo": text} if kind == "PNG" else {}
    out = io.BytesIO()
    Image.new("RGB", (side, side), "red").save(out, kind, **held)
    assert out.getvalue().count(secret) > 1
    image = Image.open(out)
    for given in (image, readable_picture(Image.open(out)), readable_picture(Image.open(out), 1280)):
        body, media = encode_picture(given, 1280)
        assert media == ("image/png" if side == 40 else "image/jpeg")
        assert secret not in body
        served = Image.open(io.BytesIO(body))
        assert not served.getexif()
        assert set(served.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
        assert served.info.get("jfif_density", (1, 1)) == (1, 1)


def test_the_pictures_that_are_kept_are_bounded_and_the_last_ones_asked_for(desk, monkeypatch):
    monkeypatch.setattr("foretaste.label.server.PICTURES_KEPT", 3)
    made, encoded = [], picture_cache(desk)
    monkeypatch.setattr("foretaste.label.server.encode_picture", lambda image, side: made.append(image) or (b"x", "y"))
    for number in (0, 1, 2, 0, 3, 4):  # 0 is asked for again
        encoded(number, "small")
    assert len(made) == 5
    for number in (0, 3, 4):  # the last three
        encoded(number, "small")
    assert len(made) == 5
    encoded(0, "large")  # another picture
    encoded(0, "small")  # which took its place
    assert len(made) == 7


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_pictures_of_every_mode_can_be_shown(mode):
    body, media = encode_picture(Image.new(mode, (30, 20)), 160)
    assert Image.open(io.BytesIO(body)).size == (30, 20)
    assert media == "image/png"


def test_large_pictures_become_small_jpegs():
    body, media = encode_picture(Image.effect_noise((3000, 2000), 50).convert("RGB"), 1280)
    assert media == "image/jpeg"
    assert max(Image.open(io.BytesIO(body)).size) == 1280


def test_a_port_that_is_taken_leads_to_the_next():
    with open_port("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with open_port("127.0.0.1", port) as second:
            assert second.getsockname()[1] > port
    with pytest.raises(OSError, match="choose another port"):
        open_port("203.0.113.1", 8765)


def bomb(side: int) -> bytes:
    """A small PNG that claims side × side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )
