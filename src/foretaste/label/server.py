"""The routes of the labelling page, over a ``LabelDesk``. FastAPI; no build step, nothing fetched from elsewhere.

Pictures are asked for by number, never by path, and are decoded and encoded anew: what the page shows is a PNG or a
JPEG of our own making, whatever the file was. Only "original" gives a file as it is, if its content is a picture that
browsers show. Clips, by number too, go out as they are, in parts if a player asks so.
"""

import asyncio
import io
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import h11
import uvicorn
from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from PIL import Image, ImageOps
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from foretaste.errors import check_known, printable
from foretaste.label.classes import LONGEST_GUIDELINES
from foretaste.label.desk import LabelDesk
from foretaste.label.exchange import ITEM_FIELDS, export_text, label_rows, prediction_text
from foretaste.label.grid import MOST_TILES, accept_grid, grid_items, undone_wall
from foretaste.label.guard import PAGE_SCRIPTS, AsgiApp, Guard
from foretaste.label.overview import describe_project
from foretaste.label.review import ReviewFilter
from foretaste.label.store import StoreConflict, StoreError, StoreFull

log = logging.getLogger(__name__)

PICTURE_SIDES = {"full": 8192, "large": 1280, "small": 160}
PICTURES_KEPT = 200  # encoded, in memory: large and small ones
PICTURE_THREADS = 4  # that make them
CLIP_CHUNK = 1 << 18  # bytes of a clip that are read at a time
BYTE_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
PNG_SIDE = 512  # smaller pictures stay sharp as PNG; larger ones are JPEG
LONGEST_SHOWN = 20_000  # characters of a text or a cell that come with an item
LONGEST_BRIEF = 400  # in a list
CHANGES_SHOWN = 200
TAKEN_PORTS = 20  # ports to try beyond the one asked for
OPEN_CONNECTIONS = 256
OPEN_PER_ADDRESS = 128
SLOW_SECONDS = 30.0  # for a whole request to come, for a part of an answer to be taken, and between two requests
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in PAGE_SCRIPTS},
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

ShortText = Annotated[str, StringConstraints(max_length=200)]
ItemName = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
ClassFilter = Annotated[str, StringConstraints(max_length=4096)]
Moment = Annotated[str, StringConstraints(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{3}Z)?$")]  # of a log
Numbers = Annotated[str, StringConstraints(max_length=20_000, pattern=r"^[0-9]*(,[0-9]+)*$")]
Start = Annotated[int, Field(ge=0)]
Person = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=80)]
TabName = Annotated[str, StringConstraints(min_length=8, max_length=80, pattern=r"^[A-Za-z0-9_-]+$")]


class TabBody(BaseModel):
    """Which tab of which person."""

    model_config = ConfigDict(extra="forbid")
    tab: TabName
    who: Person


class NextBody(TabBody):
    """Ask for items; with ``again`` also for those that were skipped twice."""

    again: bool = False


class AnswerBody(TabBody):
    """An answer to one item."""

    item: ItemName
    kind: Literal["label", "relabel", "skip", "unsure", "ignore"]
    label: ItemName | None = None
    request: ShortText | None = None


class ItemBody(TabBody):
    """An item, by its name."""

    item: ItemName


class UndoBody(TabBody):
    """Take back the last answer."""

    request: ShortText | None = None


class GridBody(TabBody):
    """Several items of one class, and others of the same wall with theirs."""

    items: list[ItemName] = Field(max_length=MOST_TILES)
    label: ItemName
    others: dict[ItemName, ItemName] = Field(default_factory=dict, max_length=MOST_TILES)
    request: Annotated[str, StringConstraints(min_length=8, max_length=100)]


class ClassBody(TabBody):
    """A change of the classes, as ``ClassChange`` has it."""

    kind: Literal["add", "rename", "merge", "split", "order", "describe", "guidelines"]
    name: ClassFilter = ""
    to: ClassFilter = ""
    names: list[ItemName] = Field(default_factory=list, max_length=10_000)
    colour: ShortText = ""
    key: ShortText = ""
    guidance: Annotated[str, StringConstraints(max_length=LONGEST_GUIDELINES)] = ""
    request: ShortText | None = None


def make_app(desk: LabelDesk) -> FastAPI:
    """The application behind the guard."""
    app = FastAPI(title="foretaste", docs_url=None, redoc_url=None, openapi_url=None)
    for path, (name, media) in PAGE_FILES.items():
        content = (files("foretaste.label") / "page" / name).read_bytes()
        page = Response(content, media_type=media, headers={"cache-control": "no-cache"})
        app.add_route(path, lambda request, page=page: page)  # type: ignore[misc]
    _add_errors(app)
    _add_answer_routes(app, desk)
    _add_reading(app, desk)
    return app


def _add_errors(app: FastAPI) -> None:
    """Every error is one JSON object with a sentence."""

    def told(status: int) -> Callable[[Request, Exception], JSONResponse]:
        def answer(request: Request, error: Exception) -> JSONResponse:
            text = printable(_sentence(error))[:1000]
            return JSONResponse({"error": text}, getattr(error, "status_code", status))

        return answer

    statuses = {KeyError: 404, ValueError: 422, StoreConflict: 409, StoreFull: 507, StoreError: 503}
    for kind, status in (statuses | {RequestValidationError: 422, HTTPException: 400}).items():
        app.add_exception_handler(kind, told(status))


def _sentence(error: Exception) -> str:
    if isinstance(error, RequestValidationError):
        return "; ".join(f"{'.'.join(str(p) for p in e['loc'][1:])}: {e['msg']}" for e in error.errors()[:5])
    if isinstance(error, HTTPException):
        return str(error.detail)
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)


def _add_answer_routes(app: FastAPI, desk: LabelDesk) -> None:
    """What changes something. Plain functions: FastAPI runs each in a thread."""

    @app.post("/api/next")
    def ask_next(body: NextBody) -> dict[str, Any]:
        return {
            "items": [shown(desk, item, body.who) for item in desk.next(body.tab, body.who, again=body.again)],
            "state": desk.state(body.who),
        }

    @app.post("/api/answer")
    def answer(body: AnswerBody, request: Request) -> dict[str, Any]:
        person = request.scope.get("person")
        if person is not None and body.kind == "relabel" and person not in desk.store.voices_of(body.item).voices:
            raise StoreConflict("others have answered this item; only the owner decides about it")
        event = desk.answer(body.tab, body.who, body.item, body.kind, body.label, body.request)
        items = [shown(desk, item, body.who) for item in desk.next(body.tab, body.who)]
        return {"seq": event.seq, "items": items, "state": desk.state(body.who)}

    @app.post("/api/undo")
    def undo(body: UndoBody) -> dict[str, Any]:
        events = desk.undo(body.tab, body.who, body.request)
        return {
            "seq": events[0].seq,
            "item": shown(desk, events[0].item, body.who),
            "wall": undone_wall(desk, events),
            "state": desk.state(body.who),
        }

    @app.post("/api/reopen")
    def reopen(body: ItemBody, request: Request) -> dict[str, Any]:
        person = request.scope.get("person")
        heard = [desk.store.voices_of(copy) for copy in desk.copies.members(body.item)]
        said_by = {e.who for one in heard for e in (*one.voices.values(), one.decision) if e is not None}
        if person is not None and said_by - {person}:
            raise StoreConflict("others have answered this item; only the owner asks it again")
        desk.reopen(body.item, body.who)
        return {"state": desk.state(body.who)}

    @app.post("/api/alive")
    def alive(body: TabBody) -> dict[str, Any]:
        return {"held": desk.alive(body.tab, body.who), "state": desk.state(body.who)}

    @app.post("/api/leave")
    def leave(body: TabBody) -> dict[str, Any]:
        desk.leave(body.tab)
        return {"ok": True}

    @app.post("/api/grid")
    def accept(body: GridBody) -> dict[str, Any]:
        kept = accept_grid(desk, body.tab, body.who, body.items, body.label, body.request, body.others)
        return {
            "seqs": [event.seq for event in kept.events],
            "taken": kept.taken,
            "state": desk.state(body.who),
        }

    @app.post("/api/classes")
    def change_class(body: ClassBody) -> dict[str, Any]:
        about = body.model_dump(exclude={"tab", "who", "kind", "names"})
        change = desk.change_class(body.kind, who=body.who, names=tuple(body.names), **about)
        return {"seq": change.seq, "state": desk.state(body.who), **class_history(desk)}

    @app.post("/api/retrain")
    def retrain(body: TabBody) -> dict[str, Any]:
        desk.worker.ask_retrain()
        return {"ok": True, "state": desk.state(body.who)}


def _add_reading(app: FastAPI, desk: LabelDesk) -> None:
    """What reads."""

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "UP"}

    @app.get("/api/me")
    def me(request: Request) -> dict[str, Any]:
        return {"person": request.scope.get("person")}

    @app.get("/api/state")
    def state(who: ShortText = "") -> dict[str, Any]:
        return desk.state(who)

    @app.get("/api/item/{number}")
    def item(request: Request, number: int, who: ShortText = "") -> dict[str, Any]:
        return shown(desk, _item_name(desk, number), request.scope.get("person") or who)

    @app.get("/api/whole/{number}")
    def whole(number: int) -> dict[str, Any]:
        """All of a text or a row, however long."""
        _item_name(desk, number)
        return content(desk, number, None)

    @app.get("/api/recent")
    def recent(request: Request, who: ShortText = "") -> dict[str, Any]:
        who = request.scope.get("person") or who
        return {"items": [entry | brief(desk, entry["number"]) for entry in desk.recent(who)]}

    @app.get("/api/classes")
    def classes() -> dict[str, Any]:
        return class_history(desk)

    @app.get("/api/grid")
    def grid(
        label: ClassFilter = "", like: ClassFilter = "", find: ShortText = "", without: Numbers = ""
    ) -> dict[str, Any]:
        found = grid_items(desk, label, like, without=map(int, filter(None, without.split(","))), find=find)
        return found | {"items": [entry | brief(desk, entry["number"]) for entry in found["items"]]}

    @app.get("/api/review")
    def review(
        request: Request,
        label: ShortText = "",
        who: ShortText = "",
        since: Moment = "",
        until: Moment = "",
        only: ShortText = "",
        find: ShortText = "",
        start: Start = 0,
        name: Annotated[ShortText, Query(alias="list")] = "",
    ) -> dict[str, Any]:
        person = request.scope.get("person")
        found = desk.review.rows(ReviewFilter(label, who, since, until, only, find), start, person, name)
        return found | {"items": [entry | brief(desk, entry["number"]) for entry in found["items"]]}

    @app.get("/api/overview")
    def overview() -> dict[str, Any]:
        return describe_project(desk) | {"state": desk.state()}

    encoded = picture_cache(desk)
    threads = CapacityLimiter(PICTURE_THREADS)  # of their own: those who wait for room to decode hold up no answer

    @app.get("/api/picture/{number}/{size}")
    async def picture(number: int, size: str) -> Response:
        check_known("size", size, (*PICTURE_SIDES, "original"))
        _item_name(desk, number)
        if desk.data.kind != "pictures":
            raise KeyError("these items are no pictures")
        try:
            body, media = await to_thread.run_sync(encoded, number, size, limiter=threads)
        except MemoryError:
            raise ValueError("the picture claims more memory than there is") from None
        except Exception as error:  # a decoder may raise anything on rubbish
            raise ValueError(f"this picture cannot be read: {error}") from None
        return Response(body, media_type=media, headers={"cache-control": "private, max-age=600"})

    @app.get("/api/clip/{number}")
    def clip(request: Request, number: int) -> Response:
        _item_name(desk, number)
        if desk.data.kind != "clips":
            raise KeyError("these items are no clips")
        return clip_response(desk.data.items[number], _media(desk, number), request.headers.get("range", ""))

    @app.get("/api/export/{kind}")
    def export(kind: str) -> Response:
        media = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}
        media |= dict.fromkeys(("json", "coco"), "application/json")
        check_known("format", kind, (*media, "predictions"))
        rows = label_rows(desk.store, desk.twins, desk.rows)
        field = ITEM_FIELDS.get(desk.data.kind, "text")
        name, classes = "labels.coco.json" if kind == "coco" else f"labels.{kind}", desk.store.classes
        task = desk.store.task
        text = export_text(rows, kind, field=field, classes=classes, task=task) if kind in media else None
        if text is None:
            name, kind, text = "predictions.csv", "csv", prediction_text(desk.worker.predictions(), rows, field=field)
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return StreamingResponse(text, media_type=media[kind], headers=headers)


def class_history(desk: LabelDesk) -> dict[str, Any]:
    """What was changed, newest first, and which merges can be taken back."""
    changes = [change.as_json() for change in reversed(desk.store.class_changes())]
    return {"changes": changes[:CHANGES_SHOWN], "merged": list(desk.store.guide.merged)}


def _item_name(desk: LabelDesk, number: int) -> str:
    if not 0 <= number < len(desk.data.ids):
        raise KeyError(f"item {number} does not exist; there are {len(desk.data.ids)}")
    return desk.data.ids[number]


def shown(desk: LabelDesk, item: str, who: str) -> dict[str, Any]:
    """An item as the page shows it to a person, with what stands beside it."""
    number = desk.number[item]
    found = {"number": number, "item": item, "check": desk.measures(item)}
    return found | content(desk, number) | desk.show(item, who)


def _media(desk: LabelDesk, number: int) -> str:
    clips: Any = desk.data.items
    return clips.media(number)


def content(desk: LabelDesk, number: int, most: int | None = LONGEST_SHOWN) -> dict[str, Any]:
    """What the page needs to show an item: where its picture is, its text, or its cells.

    Of a text and of each cell ``most`` characters. Where there are more, their number stands beside them.
    """
    if desk.data.kind == "pictures":
        return {"picture": f"/api/picture/{number}/large"}
    if desk.data.kind == "clips":
        return {"clip": f"/api/clip/{number}", "media": _media(desk, number).partition("/")[0]}
    item = desk.data.items[number]
    if isinstance(item, str):
        return {"text": item[:most]} | ({"length": len(item)} if len(item) > len(item[:most]) else {})
    cells = [(str(name), str(value)) for name, value in (item.items() if hasattr(item, "items") else enumerate(item))]
    return {"cells": [[k, v[:most], *([len(v)] if len(v) > len(v[:most]) else [])] for k, v in cells]}


def brief(desk: LabelDesk, number: int) -> dict[str, Any]:
    """The same for a list: a small picture, the name of a clip, or the first words."""
    if desk.data.kind == "pictures":
        return {"picture": f"/api/picture/{number}/small"}
    if desk.data.kind == "clips":
        return {"text": desk.data.ids[number][-80:]} | content(desk, number)
    found = content(desk, number)
    text = found.get("text") or ", ".join(f"{k} {v}" for k, v, *_ in found.get("cells", ()))
    return {"text": text[:LONGEST_BRIEF] + (" […]" if len(text) > LONGEST_BRIEF else "")}


def clip_response(path: Path, media: str, wanted: str) -> Response:
    """A file, or the one part of it that a player wants ("bytes=0-99"): 206, or 416 where there is no such part.

    Whatever else stands in ``wanted``, several parts too, gets the whole file, as HTTP allows.
    """
    try:
        if not path.is_file():  # a pipe would never end
            raise FileNotFoundError
        file = path.open("rb")
    except OSError:
        raise KeyError("the file of this clip is gone, or cannot be read") from None
    size = os.fstat(file.fileno()).st_size
    headers = {"accept-ranges": "bytes", "cache-control": "private, max-age=600"}
    first, stop, status = 0, size, 200
    found = BYTE_RANGE.fullmatch(wanted)
    if found and any(found.groups()):
        start, end = found.groups()
        first, stop = (int(start), min(int(end or size) + 1, size)) if start else (max(0, size - int(end)), size)
        if first >= stop:
            file.close()
            return JSONResponse({"error": f"the clip has {size} bytes"}, 416, {"content-range": f"bytes */{size}"})
        status, headers["content-range"] = 206, f"bytes {first}-{stop - 1}/{size}"

    def parts() -> Iterator[bytes]:
        with file:
            file.seek(first)
            left = stop - first
            while left and (part := file.read(min(left, CLIP_CHUNK))):
                left -= len(part)
                yield part

    headers["content-length"] = str(stop - first)
    return StreamingResponse(parts(), status, headers, media)


def picture_cache(desk: LabelDesk) -> Callable[[int, str], tuple[bytes, str]]:
    """A function of an item's number and a size that encodes its picture; the last ones stay in memory.

    Not so "full" and "original": 200 of those are gigabytes, and the browser keeps them.
    """

    def encoded(number: int, size: str) -> tuple[bytes, str]:
        items: Any = desk.data.items
        if size == "original" and hasattr(items, "original") and (found := items.original(number)) is not None:
            return found
        side = PICTURE_SIDES["full" if size == "original" else size]
        return encode_picture(items.shown(number, side) if hasattr(items, "shown") else items[number], side)

    kept = lru_cache(PICTURES_KEPT)(encoded)
    return lambda number, size: (kept if size in ("large", "small") else encoded)(number, size)


def encode_picture(image: Any, side: int) -> tuple[bytes, str]:
    """A picture as bytes for a browser, upright and at most ``side`` pixels long, and its media type."""
    if not isinstance(image, Image.Image):  # (C, H, W) bytes
        array = image.numpy() if hasattr(image, "numpy") else image
        image = Image.fromarray(array[0] if len(array) == 1 else array.transpose(1, 2, 0))
    image.draft(None, (side, side))
    image = ImageOps.exif_transpose(image)
    if image.mode not in ("L", "RGB"):
        image = image.convert("RGBA") if "A" in image.mode or "transparency" in image.info else image.convert("RGB")
    if image.mode == "RGBA":
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image).convert("RGB")
    image.thumbnail((side, side))
    out = io.BytesIO()
    clean = Image.new(image.mode, image.size)  # the pixels alone: no EXIF, no place where it was taken
    clean.paste(image)
    if max(clean.size) <= PNG_SIDE:
        clean.save(out, "PNG")
        return out.getvalue(), "image/png"
    clean.save(out, "JPEG", quality=88 if side <= PICTURE_SIDES["large"] else 95)  # one looks closely at the full size
    return out.getvalue(), "image/jpeg"


# The process


def open_port(host: str, port: int) -> socket.socket:
    """A socket bound to the port, or to the next free one; port 0 is any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last: OSError | None = None
    for at in [port] if port == 0 else range(port, min(port + TAKEN_PORTS, 65536)):
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, at))
            found.listen(128)
        except OSError as error:
            found.close()
            last = error
        else:
            return found
    raise OSError(f"cannot listen on {host}:{port} ({last}); choose another port") from None


def serve_app(
    app: AsgiApp,
    opened: socket.socket,
    *,
    host: str,
    token: str | None = None,
    people: Iterable[str] = (),
    names: Iterable[str] = (),
    routes: dict[str, int] | None = None,
) -> int | None:
    """Serve an application behind the guard until a signal asks to stop. No access log: nothing to leak.

    Returns the signal, SIGINT or SIGTERM; the caller then closes what is open.
    """
    server = make_server(Guard(app, host=host, token=token, people=people, names=names, routes=routes))
    server.run(sockets=[opened])
    return server.ended_by


def make_server(guard: AsgiApp) -> "SignalledServer":
    """A server that is not started yet."""
    config = uvicorn.Config(
        guard,
        http=BoundedConnection,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(SLOW_SECONDS),
        timeout_graceful_shutdown=3,
        limit_concurrency=OPEN_CONNECTIONS,
        h11_max_incomplete_event_size=32 * 1024,
        ws="none",
        lifespan="off",
    )
    return SignalledServer(config)


class BoundedConnection(H11Protocol):
    """A connection that is closed if they are slow, or if their address has too many.

    uvicorn has no limit on the time of a request: those that never end would fill all places, and lock everybody out.
    Where an address has more than ``OPEN_PER_ADDRESS``, the one that has waited longest for the rest of a request goes.
    So whoever asks in earnest gets in, also from an address that others fill.
    """

    waits_since = 0.0
    quiet = True  # whether nothing of the next request has come
    takes = True  # whether they take the answer
    ended = False
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        theirs = [c for c in self.connections if isinstance(c, BoundedConnection) and c.address == self.address]
        theirs = [c for c in theirs if not c.ended]
        if len(theirs) > OPEN_PER_ADDRESS:
            min((c for c in theirs if c.timer is not None), key=lambda c: c.waits_since)._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.quiet:  # the time of a request counts from its first byte
            self.quiet = False
            self._stop_watching()
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.quiet = True
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.takes = False
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.takes = True
        self._watch()

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    def _watch(self) -> None:
        """Let the clock run as long as it is their turn: to ask, or to take an answer, its last part too."""
        asks = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if self.takes and not asks and not self.transport.is_closing():
            self._stop_watching()
        elif self.timer is None and self in self.connections:
            self.waits_since = self.loop.time()
            self.timer = self.loop.call_later(SLOW_SECONDS, self._end)

    def _end(self) -> None:
        self.ended = True
        self.transport.abort()

    def _stop_watching(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class SignalledServer(uvicorn.Server):
    """A server that returns when a signal has ended it. uvicorn's own raises the signal again, and SIGTERM kills."""

    @property
    def ended_by(self) -> int | None:
        return self._captured_signals[0] if self._captured_signals else None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # only that one may listen to signals
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)
