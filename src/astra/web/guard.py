"""Who may ask, how much at once, and what a page may do: checked before anything is read."""

import asyncio
import ipaddress
import socket

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astra.report.refusals import ErrorDocument, ErrorFacts

MOST_BODY_BYTES = 4 << 20  # an answer about money with all its plans has a tenth of it
MOST_REQUESTS = 512  # at a time
BODY_S = 10.0  # for a body to arrive
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class JSONAnswer(Response):
    """Bytes that are JSON already."""

    media_type = "application/json"


def error_answer(
    status: int, said: ErrorFacts | str, headers: dict[str, str] | None = None
) -> Response:
    what = ErrorFacts(message=said) if isinstance(said, str) else said
    return JSONAnswer(msgspec.json.encode(ErrorDocument(error=what)), status, headers)


class Guard:
    """Host and Origin checked, requests counted, and the headers of every answer."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app = app
        self.host = host
        self.requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(
                    {**HEADERS, "cache-control": headers.get("cache-control", "no-store")}
                )
            await send(message)

        refused = self._refused(Headers(scope=scope))
        if refused is not None:
            await refused(scope, receive, send_guarded)
            return
        self.requests += 1
        try:
            await self.app(scope, receive, send_guarded)
        finally:
            self.requests -= 1

    def _refused(self, headers: Headers) -> Response | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not is_own_name(host, self.host):
            return error_answer(421, "this server answers to its own address alone.")
        if origin is not None and origin.removeprefix("http://") != host:
            return error_answer(403, "pages of other sites may not ask this server.")
        if self.requests >= MOST_REQUESTS:
            return error_answer(429, "too many requests at once. Try again.", {"retry-after": "1"})
        return None


def is_own_name(said: str, host: str) -> bool:
    """Whether a Host header names this server, so that no other site's name leads here.

    >>> is_own_name("localhost:8400", "127.0.0.1"), is_own_name("evil.example", "127.0.0.1")
    (True, False)
    """
    name = said.rpartition(":")[0] if said.rpartition(":")[2].isdecimal() else said
    name = name.lower().removeprefix("[").removesuffix("]")
    if name in (host, "localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return host not in ("127.0.0.1", "::1", "localhost") and name == socket.gethostname()
    return address.is_loopback or host in ("0.0.0.0", "::")


async def read_body(request: Request) -> bytes:
    """The JSON of a question; refused where it is something else, too large or too slow."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "send JSON: content-type: application/json.")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BODY_BYTES:
                    most = MOST_BODY_BYTES >> 20
                    raise HTTPException(413, f"a question has at most {most} MiB.")
    except TimeoutError:
        raise HTTPException(408, f"the question did not arrive within {BODY_S:g} s.") from None
    return bytes(body)
