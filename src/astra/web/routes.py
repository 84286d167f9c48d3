"""The addresses: questions by POST, what is known by GET."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from astra.errors import InputError, did_you_mean
from astra.report.refusals import refusal
from astra.web.guard import Guard, JSONAnswer, error_answer, read_body
from astra.web.listings import LISTINGS
from astra.web.openapi import openapi
from astra.web.page import page_routes
from astra.web.questions import QUESTIONS
from astra.web.stream import EventStream, while_connected
from astra.web.workers import (
    EVENT_STREAM,
    BusyError,
    Search,
    TooLongError,
    Workers,
    too_long,
)

STATUS = {"done": 200, "refused": 422, "failed": 500}
RETRY = {"retry-after": "1"}


def make_app(
    host: str = "127.0.0.1", workers: int = 2, time_limit_s: float = 60.0, most_waiting: int = 16
) -> Starlette:
    """The server; its processes start and end with it."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with Workers(workers, time_limit_s, most_waiting) as started:
            app.state.workers = started
            yield

    return Starlette(
        routes=[
            *(
                Route(f"/api/{name}", partial(ask, name), methods=["POST"], name=name)
                for name in QUESTIONS
            ),
            *(
                Route(f"/api/{name}", partial(show, name), methods=["GET"], name=name)
                for name in LISTINGS
            ),
            Route("/api/stop", stop, methods=["POST"]),
            Route("/api/openapi.json", describe, methods=["GET"]),
            *page_routes(),
        ],
        middleware=[Middleware(Guard, host=host), Middleware(GZipMiddleware, compresslevel=6)],
        exception_handlers={HTTPException: refuse, Exception: fault},
        lifespan=lifespan,
    )


class Answered:
    """A question's answer as a response that ends the search where its client goes."""

    def __init__(self, name: str, body: bytes, workers: Workers, streams: bool) -> None:
        self.name, self.body, self.workers, self.streams = name, body, workers, streams

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with while_connected(receive):
            try:
                async with self.workers.search(self.name, self.body) as search:
                    response = await self._response(search)
                    await response(scope, receive, send)
            except BusyError:
                busy = error_answer(429, "other questions are being answered. Try again.", RETRY)
                await busy(scope, receive, send)

    async def _response(self, search: Search) -> Response:
        """A stream once it is known that the question can be answered, where one is wanted."""
        events = search.events()
        try:
            async for name, payload in events:
                if name in STATUS:
                    return JSONAnswer(payload, STATUS[name])
                if self.streams:
                    return EventStream(search, (name, payload), events)
        except TooLongError:
            return error_answer(422, too_long(search.seconds))
        raise AssertionError("a worker ends with an answer")


async def ask(name: str, request: Request) -> Any:
    """A question; `accept: text/event-stream` asks for events."""
    streams = EVENT_STREAM in request.headers.get("accept", "")
    return Answered(name, await read_body(request), request.app.state.workers, streams)


async def stop(request: Request) -> Response:
    """Asks a search, by the name that its stream began with, for the best so far."""
    body = await read_body(request)
    try:
        said = msgspec.json.decode(body, type=StopQuestion)
    except (msgspec.MsgspecError, RecursionError) as error:
        return error_answer(422, f'{error}: {{"search": "..."}} is needed.')
    if not request.app.state.workers.stop(said.search):
        return error_answer(404, "there is no such search; it may be over.")
    return JSONAnswer(b"{}")


class StopQuestion(msgspec.Struct, forbid_unknown_fields=True):
    """Which search is to end with the best so far."""

    search: str


def show(name: str, request: Request) -> Response:
    """A listing; quick, and kept."""
    words = tuple(request.query_params.multi_items())
    try:
        return JSONAnswer(_listed(name, words))
    except InputError as error:
        return JSONAnswer(msgspec.json.encode({"error": refusal(error, LISTINGS[name].words)}), 422)


@lru_cache(maxsize=256)
def _listed(name: str, words: tuple[tuple[str, str], ...]) -> bytes:
    listing = LISTINGS[name]
    for word, _ in words:
        if word not in listing.words:
            hint = did_you_mean(word, listing.words, f"There are {', '.join(listing.words)}.")
            raise InputError(f"question: {word}: there is no such field. {hint}")
    if len(dict(words)) < len(words):
        raise InputError("question: a word is given twice.")
    return msgspec.json.encode(listing.answer(dict(words)))


def describe(request: Request) -> Response:  # noqa: ARG001
    return JSONAnswer(openapi())


async def refuse(request: Request, error: Exception) -> Response:
    """Errors of addresses, methods and bodies, as JSON."""
    assert isinstance(error, HTTPException)
    said = error.detail
    if error.status_code == 404:
        known = [f"/api/{name}" for name in (*QUESTIONS, *LISTINGS, "stop", "openapi.json")]
        said = f"there is no {request.url.path[:60]}. {did_you_mean(request.url.path, known)}"
    return error_answer(error.status_code, said.strip(), dict(error.headers or {}))


async def fault(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """What should not have been; the log has the place."""
    return error_answer(500, f"a fault of Astra's: {type(error).__name__}.")
