"""The processes that answer questions: so many at a time, ended where nobody waits any longer."""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

import msgspec

from astra.report.refusals import ErrorDocument, ErrorFacts

EVENT_STREAM = "text/event-stream"
ENDINGS = ("done", "refused", "failed")
GRACE_S = 5.0  # for an answer to be written once the time is up
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # questions share the cores


class BusyError(Exception):
    """As many questions as may wait are waiting."""


class TooLongError(Exception):
    """The time that a question may take is over, and there is no best so far."""


class Worker:
    """One process (`worker.py`)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls) -> Self:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "astra.web.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the server's to hear
            env={**os.environ, **ONE_THREAD},
        )
        return cls(process)

    async def event(self) -> tuple[str, bytes]:
        """The next thing it says."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise ConnectionError("the process that answers has ended")
        name, length = line.split()
        return name.decode(), await self.process.stdout.readexactly(int(length))

    def tell(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()


class Search:
    """A question that is being answered."""

    def __init__(self, worker: Worker, seconds: float) -> None:
        self.id = secrets.token_urlsafe(12)
        self.worker = worker
        self.seconds = seconds
        self.is_over = False

    async def events(self) -> AsyncIterator[tuple[str, bytes]]:
        """What it says until the answer, which is the last."""
        try:
            async with asyncio.timeout(self.seconds + GRACE_S):
                while not self.is_over:
                    name, payload = await self.worker.event()
                    self.is_over = name in ENDINGS
                    yield name, payload
        except TimeoutError:
            raise TooLongError from None
        except (ConnectionError, asyncio.IncompleteReadError):  # out of memory, or ended by hand
            said = ErrorFacts(message="the process that looked for the answer has ended.")
            yield "failed", msgspec.json.encode(ErrorDocument(error=said))


class Workers:
    """As many processes as questions are answered at a time; others wait, up to a number."""

    def __init__(self, count: int, time_limit_s: float, most_waiting: int = 16) -> None:
        self.count = count
        self.time_limit_s = time_limit_s
        self.most_waiting = most_waiting
        self._idle: list[asyncio.Task[Worker]] = []
        self._slots = asyncio.Semaphore(count)
        self._waiting = 0
        self._searches: dict[str, Search] = {}
        self._is_open = True
        self._processes: set[Worker] = set()  # that may still run

    async def __aenter__(self) -> Self:
        self._idle = [asyncio.create_task(self._start()) for _ in range(self.count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()
        await asyncio.gather(*self._idle, return_exceptions=True)
        self.end()  # what was about to start
        await asyncio.gather(*(worker.process.wait() for worker in self._processes))

    def end(self) -> None:
        """Ends every search, and starts no other."""
        self._is_open = False
        for worker in self._processes:
            worker.kill()

    async def _start(self) -> Worker:
        worker = await Worker.start()
        self._processes = {each for each in self._processes if each.process.returncode is None}
        self._processes.add(worker)
        await worker.event()  # it is ready
        return worker

    def stop(self, search_id: str) -> bool:
        """Asks a search for the best so far; whether there is such a search."""
        search = self._searches.get(search_id)
        if search is not None:
            search.worker.tell(b"stop\n")
        return search is not None

    @asynccontextmanager
    async def search(self, name: str, body: bytes) -> AsyncIterator[Search]:
        """A question under way; one that is left before its answer is ended with its process."""
        if not self._is_open or (self._slots.locked() and self._waiting >= self.most_waiting):
            raise BusyError
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        start = self._idle.pop()
        search = None
        try:
            worker = await asyncio.shield(start)
            search = Search(worker, self.time_limit_s)
            self._searches[search.id] = search
            worker.tell(b"%s %g %d\n%s" % (name.encode(), self.time_limit_s, len(body), body))
            yield search
        finally:
            is_useless = start.done() and start.exception() is not None  # it did not start
            if search is not None:
                del self._searches[search.id]
                if not search.is_over:
                    search.worker.kill()
                    is_useless = True
            if is_useless and self._is_open:
                start = asyncio.create_task(self._start())
            self._idle.append(start)
            self._slots.release()


def too_long(seconds: float) -> str:
    return (
        f"it took longer than the {seconds:g} s that this server gives a question. Ask for less "
        "(quick, fewer GPU types), or start it with a longer --time-limit."
    )
