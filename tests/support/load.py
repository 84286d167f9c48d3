"""Many clients at once: what they are answered, and what the server takes for it."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.serving import serving

JOB = {"model": "llama-3-8b", "gpus": "h100:8", "global_batch": 32, "seq_len": 4096}
QUESTIONS: tuple[tuple[str, dict[str, Any] | None], ...] = (
    ("/api/plan", {**JOB, "set": {"tp": [1, 2]}}),
    ("/api/predict", {**JOB, "tp": 2}),
    ("/api/models", None),
    ("/api/gpus?name=h100", None),
    ("/api/prices?gpu=h100", None),
    ("/api/plan", {**JOB, "gpus": "h100:64"}),
)


@dataclass
class Load:
    """What happened."""

    statuses: Counter[int] = field(default_factory=Counter)
    most_bytes: int = 0  # resident, of the server and all its processes


def load(clients: int, seconds: float) -> Load:
    """So many clients that ask without a pause, of `astra serve` with its defaults."""
    with serving() as (address, process):
        return asyncio.run(_asked(int(address.rpartition(":")[2]), process, clients, seconds))


async def _asked(port: int, server: int, clients: int, seconds: float) -> Load:
    found, until = Load(), time.monotonic() + seconds

    async def client(number: int) -> None:
        while time.monotonic() < until:
            path, body = QUESTIONS[number % len(QUESTIONS)]
            number += 1
            status = await _status(port, path, body)
            found.statuses[status] += 1
            await asyncio.sleep(0.1 if status == 429 else 0)

    async def watch() -> None:
        while time.monotonic() < until:
            found.most_bytes = max(found.most_bytes, _resident_bytes(server))
            await asyncio.sleep(0.5)

    await asyncio.gather(watch(), *(client(number) for number in range(clients)))
    return found


async def _status(port: int, path: str, body: dict[str, Any] | None) -> int:
    """Of one request on a connection of its own, read to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = b"" if body is None else json.dumps(body).encode()
    writer.write(
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(text)}\r\n"
        "connection: close\r\n\r\n".encode()
        + text
    )
    answer = await asyncio.wait_for(reader.read(), 120)
    writer.close()
    await writer.wait_closed()
    return int(answer.split(b" ", 2)[1])


def _resident_bytes(process: int) -> int:
    """Of a process and those it started."""
    folder = Path(f"/proc/{process}")
    children = (folder / f"task/{process}/children").read_text().split()
    pages = [Path(f"/proc/{each}/statm").read_text().split()[1] for each in (process, *children)]
    return sum(map(int, pages)) * 4096
