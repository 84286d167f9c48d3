"""`astra serve` as a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(*options: str) -> Iterator[tuple[str, int]]:
    """Its address and its process, on a free port; it ends with the block."""
    command = (sys.executable, "-m", "astra", "serve", "--port", "0", "--json", *options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield (
                json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")["address"],
                server.pid,
            )
        finally:
            server.terminate()
