"""The page itself: built files (`make web`) and the colours that its charts are drawn in."""

import re
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from astra.report.svg.colours import variables

BUILT = Path(__file__).parent / "static"
HASHED = re.compile(r"-[0-9A-Z]{8}\.\w+$")
FOR_GOOD = "public, max-age=31536000, immutable"  # another build has another name


class BuiltFiles(StaticFiles):
    """Files whose names say what is in them are kept by the browser."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if HASHED.search(path):
            response.headers["cache-control"] = FOR_GOOD
        return response


def page_routes() -> list[BaseRoute]:
    return [
        Route("/", show_page, methods=["GET"]),
        Route("/static/colours.css", show_colours, methods=["GET"]),
        Mount("/static", BuiltFiles(directory=BUILT), name="static"),
    ]


def show_page(request: Request) -> Response:  # noqa: ARG001
    return FileResponse(BUILT / "index.html")


def show_colours(request: Request) -> Response:  # noqa: ARG001
    return Response(colours_css(), media_type="text/css")


@cache
def colours_css() -> str:
    """Every colour as a variable: by what the system is set to, unless the page says otherwise."""
    light, dark = variables("light"), variables("dark")
    return (
        f":root {{{light}}}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{{dark}}} }}\n"
        f":root[data-theme=dark] {{{dark}}}\n"
    )
