"""Runs the server until it is stopped; that ends every search."""

import socket

import uvicorn

from astra.web.routes import make_app

CLOSING_S = 2  # for answers that are being written


class EndingServer(uvicorn.Server):
    """Ends all searches first when it is told to stop; their clients hear so."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.state.workers.end()  # type: ignore[union-attr]
        await super().shutdown(sockets)


def run_server(host: str, port: int, workers: int, time_limit_s: float) -> None:
    config = uvicorn.Config(
        make_app(host, workers, time_limit_s),
        host=host,
        port=port,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=CLOSING_S,
    )
    EndingServer(config).run()
