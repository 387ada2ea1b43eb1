"""Who may ask the server what: hosts, origins, tokens, sizes. It stands in front of every route.

- **Host.** A page of another site can point a name of its own at 127.0.0.1 and then read our answers (DNS rebinding).
  Only names that we expect are answered; an address in figures cannot be rebound.
- **Origin.** A page of another site can send us requests from the user's browser. Those that change something must come
  from our own page; so must those that read data, where the browser says where they come from.
- **Token.** Beyond this machine, everything but the page itself needs one. The page has it from the part of its address
  behind ``#``, which browsers do not send and servers do not log, and trades it for a cookie that scripts cannot read.
- **People.** Each may have a token of their own, made from the owner's by HMAC: nothing is kept of it. Who comes with
  one can answer in that name alone, sees no answers of others, and cannot export, change classes or train.
- **Body.** A body is refused when it is longer than it may be, before it is read as anything, and when it is no JSON.
"""

import hmac
import ipaddress
import json
import re
import secrets
import socket
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

from foretaste.errors import printable

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGEST_BODY = 64 * 1024
LARGEST_BODIES = {"/api/grid": 4 << 20}  # a wall of 1,000 names
COOKIE = "foretaste"
SESSIONS_KEPT = 1000  # cookies that are known at a time; the oldest go
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?")
SAFE_METHODS = ("GET", "HEAD")
PAGE_SCRIPTS = ("page", "task", "review", "classes", "look", "keys", "grid", "overview")
OPEN_PATHS = (  # the page asks for the token
    "/", "/page.css", "/icon.svg", "/api/login", "/health", *(f"/{name}.js" for name in PAGE_SCRIPTS),
)  # fmt: skip
OWNER_PATHS = ("/api/overview", "/api/export/")  # and what begins so
OWNER_CHANGES = ("/api/classes", "/api/retrain")  # which a person may read, and not change
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "content-security-policy": "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'self'; "
    "script-src 'self'; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """An ASGI application that lets only allowed requests through to another.

    ``host`` is the address that the server is bound to, ``names`` more names by which it may be called. ``token`` may
    be None on a loopback address only. ``people`` are the names of those who have a token of their own
    (``person_token``). ``routes``: path → bytes of a body, where that is not ``LARGEST_BODY``.

    The application finds the person in ``scope["person"]``: a name, or None for the owner.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        host: str = "127.0.0.1",
        token: str | None = None,
        people: Iterable[str] = (),
        names: Iterable[str] = (),
        routes: MutableMapping[str, int] | None = None,
    ) -> None:
        if token is None and people:
            raise ValueError("people have tokens of their own; a token of the owner is required")
        if token is None and not is_loopback(host):
            raise ValueError(f"host {host} can be reached from other machines; a token is required")
        if token is not None and len(token) < 16:
            raise ValueError(f"the token has {len(token)} characters; expected at least 16")
        self.app, self.token, self.routes = app, token, LARGEST_BODIES | dict(routes or {})
        self.tokens: dict[str, str | None] = {} if token is None else {token: None}  # token → person, None: the owner
        self.tokens |= {person_token(str(token), who): who for who in people}
        self.names = {host.lower(), *LOOPBACK_NAMES, *(name.lower() for name in names)}
        self.any_address = not is_loopback(host)
        if self.any_address:
            self.names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self.sessions: dict[str, str | None] = {}  # cookie → person, oldest first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # websockets: we have none
            return await send({"type": "websocket.close", "code": 1008})
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        refusal = self.refusal(scope["method"], scope["path"], headers)
        if refusal is not None:
            return await _answer(send, *refusal)
        person = scope["person"] = (self._known(headers) or (None,))[0]
        if person is not None and (
            scope["path"].startswith(OWNER_PATHS)
            or (scope["path"] in OWNER_CHANGES and scope["method"] not in SAFE_METHODS)
        ):
            return await _answer(send, 403, "only the owner of this project may do that")
        body = await self._read(scope, headers, receive)
        if body is None:
            limit = self._limit(scope["path"])
            return await _answer(send, 413, f"the body is too long; expected at most {limit} bytes")
        if scope["method"] not in SAFE_METHODS:
            try:
                said = read_json(body)
            except ValueError as error:
                return await _answer(send, 400, f"the body is not JSON: {printable(str(error))[:200]}")
            if scope["path"] == "/api/login" and scope["method"] == "POST":
                return await self._log_in(said, headers, send)
            if person is not None and isinstance(said, dict) and said.get("who", person) != person:
                return await _answer(send, 403, f"this address is {printable(person)}'s; answers are kept in that name")
        await self.app(scope, _replay(body, receive), _with_headers(send))
        return None

    def refusal(self, method: str, path: str, headers: MutableMapping[str, str]) -> tuple[int, str] | None:
        """(status, reason) if a request must not go further, from its headers alone."""
        host = headers.get("host", "").lower()
        name = _host_name(host)
        if name is None or not self._expected(name):
            return 421, f"this server does not answer to the name {(name or host)[:100]!r}; allow it with --allow-host"
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site not in (None, "same-origin", "none") and not (path == "/" and method in SAFE_METHODS):
            return 403, "requests of other sites are refused"
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            return 403, "requests of other sites are refused"
        if method not in SAFE_METHODS:
            if site == "none":  # typed into the address bar: never a change
                return 403, "requests of other sites are refused"
            # A form of another site cannot have this type without asking first, and nobody answers that question.
            if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
                return 415, "expected a body of the type application/json"
        if self.token is not None and path not in OPEN_PATHS and self._known(headers) is None:
            return 401, "a token is required: open the address that the server printed, with its part behind #"
        return None

    def _expected(self, name: str) -> bool:
        if name in self.names:
            return True
        if not self.any_address:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _known(self, headers: MutableMapping[str, str]) -> tuple[str | None] | None:
        """Whose token or cookie a request has: (person,), or (None,) for the owner; None if it has none of ours."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() in ("bearer", "token") and (found := self._bearer(given.strip())) is not None:
            return found
        if kind.lower() == "basic":  # how Label Studio authorises itself: any name, the token as the password
            try:
                return self._bearer(b64decode(given, validate=True).decode().partition(":")[2])
            except ValueError:
                return None
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return None
        return (self.sessions[cookie.value],) if cookie is not None and cookie.value in self.sessions else None

    def _bearer(self, given: str) -> tuple[str | None] | None:
        """(person,) of a token, in a time that says nothing of it; None if it is none."""
        same = [who for token, who in self.tokens.items() if secrets.compare_digest(given.encode(), token.encode())]
        return (same[0],) if same else None

    async def _log_in(self, said: Any, headers: MutableMapping[str, str], send: Send) -> None:
        """Trade the token for a cookie."""
        given = said.get("token") if isinstance(said, dict) else None
        found = self._bearer(given) if isinstance(given, str) else None
        if found is None and (found := self._known(headers)) is None and self.token is None:
            found = (None,)
        if found is not None:
            session = secrets.token_urlsafe(32)
            self.sessions[session] = found[0]
            while len(self.sessions) > SESSIONS_KEPT:
                del self.sessions[next(iter(self.sessions))]
            cookie = f"{COOKIE}={session}; HttpOnly; SameSite=Strict; Path=/"
            return await _answer(send, 200, None, [(b"set-cookie", cookie.encode())])
        await _answer(send, 401, "this is not the token of this server")
        return None

    def _limit(self, path: str) -> int:
        return self.routes.get(path, LARGEST_BODY)

    async def _read(self, scope: Scope, headers: MutableMapping[str, str], receive: Receive) -> bytes | None:
        """The whole body; None if it is too long."""
        limit = self._limit(scope["path"])
        claimed = headers.get("content-length", "0")
        if not claimed.isdecimal() or len(claimed) > len(str(limit)) or int(claimed) > limit:
            return None
        parts, size = list[bytes](), 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b""
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                return None
            if not message.get("more_body"):
                return b"".join(parts)


def person_token(token: str, who: str) -> str:
    """The token of a person, from the owner's."""
    return hmac.new(token.encode(), f"person {who}".encode(), "sha256").hexdigest()[:40]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(host: str) -> str | None:
    """The name in a Host header in lower case, without its port and brackets; None if it is no such header."""
    found = HOST.fullmatch(host)
    return None if found is None else found[1] or found[2]


def read_json(body: bytes) -> Any:
    """A body as JSON. Raises ValueError if it is none, goes too deep, or holds half of a pair of surrogates."""
    try:
        found = json.loads(body.decode())
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once more; afterwards what the server has to say."""
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _with_headers(send: Send) -> Send:
    async def add(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message.get("headers", [])}
            new = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in given]
            if b"cache-control" not in given:
                new.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*message.get("headers", []), *new]}
        await send(message)

    return add


async def _answer(send: Send, status: int, error: str | None, more: Iterable[tuple[bytes, bytes]] = ()) -> None:
    body = json.dumps({"error": error} if error else {"ok": True}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    send = _with_headers(send)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
