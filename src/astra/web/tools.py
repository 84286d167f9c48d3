"""The questions as tools of the Model Context Protocol, over standard input and output."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import msgspec
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from astra.errors import did_you_mean
from astra.report.refusals import ErrorDocument
from astra.web.openapi import any_schema
from astra.web.questions import QUESTIONS
from astra.web.workers import BusyError, TooLongError, Workers, too_long

TOOLS = ("plan", "predict", "explain", "export", "import")  # pictures are for pages

ABOUT = (
    "Plans the training of large language models: which parallel strategy on which GPUs, its "
    "seconds, memory and dollars, and launch files for it. Ask plan first; explain and export take "
    "its answer, or one of its plans, as `plan`."
)


def make_server(workers: int = 2, time_limit_s: float = 600.0) -> "Server[Workers]":
    """A server whose processes start and end with it."""

    @asynccontextmanager
    async def lifespan(_: "Server[Workers]") -> AsyncIterator[Workers]:
        async with Workers(workers, time_limit_s) as started:
            yield started

    return Server(
        "astra",
        version=version("astra-planner"),
        instructions=ABOUT,
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def list_tools(_context: object, _asked: object) -> types.ListToolsResult:
    return types.ListToolsResult(
        tools=[
            types.Tool(
                name=name, description=QUESTIONS[name][0].__doc__, input_schema=tool_schema(name)
            )
            for name in TOOLS
        ]
    )


def tool_schema(name: str) -> dict[str, Any]:
    """The words of a question, as an object at the root."""
    schema = msgspec.json.schema(QUESTIONS[name][0], schema_hook=any_schema)
    parts: dict[str, Any] = schema.pop("$defs")
    root: dict[str, Any] = parts.pop(schema["$ref"].rpartition("/")[2])
    return {**root, "$defs": parts}


async def call_tool(
    context: ServerRequestContext[Workers], asked: types.CallToolRequestParams
) -> types.CallToolResult:
    """The answer's JSON; or what is wrong with the question, which the caller may mend."""
    if asked.name not in TOOLS:
        return _said(f"there is no tool {asked.name!r}. {did_you_mean(asked.name, TOOLS)}")
    body = msgspec.json.encode(asked.arguments or {})
    try:
        async with context.lifespan_context.search(asked.name, body) as search:
            async for event, payload in search.events():
                if event == "done":
                    return _said(payload.decode(), is_error=False)
                if search.is_over:
                    return _said(msgspec.json.decode(payload, type=ErrorDocument).error.message)
    except TooLongError:
        return _said(too_long(context.lifespan_context.time_limit_s))
    except BusyError:
        return _said("other questions are being answered. Try again.")
    raise AssertionError("a worker ends with an answer")


def _said(text: str, *, is_error: bool = True) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=is_error)


def run_tools(workers: int, time_limit_s: float) -> None:
    """Until standard input ends."""
    server = make_server(workers, time_limit_s)

    async def run() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    asyncio.run(run())
