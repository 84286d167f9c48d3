"""Runs the server until it is stopped; that ends every search."""

import socket

import uvicorn

from astra.errors import InputError
from astra.web.routes import make_app

BACKLOG = 1024  # connections that wait to be heard
CLOSING_S = 2  # for answers that are being written


class EndingServer(uvicorn.Server):
    """Ends all searches first when it is told to stop; their clients hear so."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.state.workers.end()  # type: ignore[union-attr]
        await super().shutdown(sockets)


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any that is free."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)
    except OSError as error:
        raise InputError(
            f"--port {port}: {host} cannot be listened at there: {error.strerror}. Try another."
        ) from None
    return found


def run_server(listening: socket.socket, host: str, workers: int, time_limit_s: float) -> None:
    config = uvicorn.Config(
        make_app(host, workers, time_limit_s),
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=CLOSING_S,
    )
    EndingServer(config).run([listening])
