"""A search as it goes on: an event for each better plan, and the answer at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from astra.report.refusals import ErrorDocument, ErrorFacts
from astra.web.workers import EVENT_STREAM, Search, TooLongError, too_long

STILL_THERE_S = 10.0  # between comments that keep a silent stream open
EVENT_NAMES = {"refused": "error", "failed": "error"}


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Leaves the block where the client is gone; its body must have been read."""
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(watch)
        yield
        group.cancel_scope.cancel()


class EventStream(Response):
    """Events `best`, `progress`, then `done` or `error`; `search` is what `/api/stop` asks for."""

    def __init__(
        self, search: Search, first: tuple[str, bytes], rest: AsyncIterator[tuple[str, bytes]]
    ) -> None:
        super().__init__(media_type=EVENT_STREAM)
        del self.headers["content-length"]
        self.search, self.first, self.rest = search, first, rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})

        async def say(text: bytes) -> None:
            await send({"type": "http.response.body", "body": text, "more_body": True})

        async def keep_open() -> None:
            while True:
                await anyio.sleep(STILL_THERE_S)
                await say(b":\n\n")

        async with anyio.create_task_group() as group:
            group.start_soon(keep_open)
            await say(event_text("started", msgspec.json.encode({"search": self.search.id})))
            await say(event_text(*self.first))
            try:
                async for name, payload in self.rest:
                    await say(event_text(name, payload))
            except TooLongError:
                said = ErrorDocument(error=ErrorFacts(message=too_long(self.search.seconds)))
                await say(event_text("error", msgspec.json.encode(said)))
            group.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event_text(name: str, payload: bytes) -> bytes:
    """One event; JSON of msgspec's has no line breaks."""
    return b"event: %s\ndata: %s\n\n" % (EVENT_NAMES.get(name, name).encode(), payload)
