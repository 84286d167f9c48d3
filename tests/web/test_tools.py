"""The questions as tools, asked by the protocol's own client."""

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

import astra
from astra.web.tools import make_server

pytestmark = pytest.mark.slow  # processes are started

JOB: dict[str, Any] = {"model": "llama-3-8b", "gpus": "h100:8", "global_batch": 32, "seq_len": 4096}


def with_client(
    ask: Callable[[Client], Awaitable[None]], server: StdioServerParameters | None = None
) -> None:
    async def run() -> None:
        async with Client(server or make_server(workers=1)) as client:
            await ask(client)

    anyio.run(run)


async def answer(client: Client, tool: str, words: dict[str, Any]) -> tuple[bool, str]:
    found = await client.call_tool(tool, words)
    (content,) = found.content
    assert content.type == "text"
    return not found.is_error, content.text


def test_tools_have_typed_arguments() -> None:
    async def ask(client: Client) -> None:
        tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        assert set(tools) == {"plan", "predict", "explain", "export", "import"}
        assert tools["plan"]["required"] == ["model", "global_batch", "seq_len"]
        assert tools["plan"]["properties"]["top"] == {"type": "integer", "default": 10}
        assert all(schema["additionalProperties"] is False for schema in tools.values())

    with_client(ask)


def test_answers_are_those_of_python() -> None:
    async def ask(client: Client) -> None:
        done, text = await answer(client, "plan", {**JOB, "set": {"tp": [1]}})
        found = astra.plan("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096, tp=[1])
        assert done and found.best is not None
        planned = json.loads(text)
        assert planned["plans"][0]["step_s"] == found.best.step_s
        done, text = await answer(client, "predict", {**JOB, "tp": 2})
        priced = astra.predict("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096, tp=2)
        assert done and json.loads(text)["step_s"] == priced.step_s
        done, text = await answer(client, "explain", {"plan": planned, "quick": True})
        assert done and json.loads(text)["binding"]["sentence"]
        done, text = await answer(client, "export", {"plan": planned, "to": "megatron"})
        texts = {file["name"]: file["text"] for file in json.loads(text)["files"]}
        assert done and texts == astra.export(found, "megatron", None).texts
        words = {"name": "args.txt", "text": texts["args.txt"], "gpus": "h100:8"}
        done, text = await answer(client, "import", words)
        assert done and json.loads(text)["framework"] == "Megatron-LM"

    with_client(ask)


def test_errors_are_those_of_the_command_line() -> None:
    async def ask(client: Client) -> None:
        done, text = await answer(client, "plan", {**JOB, "model": "llama-3-8"})
        with pytest.raises(astra.InputError) as refused:
            astra.find_model("llama-3-8")
        assert not done and text == str(refused.value)
        done, text = await answer(client, "plan", {**JOB, "seqlen": 4096})
        assert not done and text.endswith("Did you mean seq_len?")
        done, text = await answer(client, "plan", {**JOB, "gpus": "/etc/gpu.toml:8"})
        assert not done and "no file is read here" in text
        done, text = await answer(client, "plam", JOB)
        assert not done and "Did you mean plan?" in text

    with_client(ask)


def test_the_command_speaks_the_protocol() -> None:
    async def ask(client: Client) -> None:
        done, text = await answer(client, "predict", JOB)
        assert done and json.loads(text)["summary"] == "tp 1 pp 1 dp 8 mb 1"

    command = StdioServerParameters(
        command=sys.executable, args=["-m", "astra", "mcp"], env={**os.environ}
    )
    with_client(ask, command)
