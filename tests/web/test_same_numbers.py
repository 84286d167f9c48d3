"""The page's API, the command line and Python answer the same question with the same numbers."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.support.cases import each_case

import astra
from astra.cli.main import run
from astra.web.routes import make_app

SMALL: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpus": "h100:8",
    "global_batch": 32,
    "seq_len": 4096,
    "set": ["tp=2", "recompute=none", "mb=1"],
}
RENT = {"objective": "money", "tokens": "10B"}
FEW: tuple[dict[str, Any], ...] = (
    {},
    {"gpus": "a100-80g:16", "global_batch": "1M-tokens", "set": ["tp=4"]},
    {"risk": "careful", "top": 3, "memory_margin": 0.1},
    {**RENT, "price": "h100=1.99", "mtbf": "20000"},
    {"gpus": "h100:8,a100-80g:8"},
    {"model": "llama-3-70b", "gpus": "a100-40g:1", "set": []},  # nothing fits
)
MORE: tuple[dict[str, Any], ...] = (
    {"model": "mixtral-8x7b", "gpus": "h200:16", "set": ["tp=1", "ep=8", "mb=1"]},
    {"model": "deepseek-v2-lite", "gpus": "h100:8", "set": ["tp=1", "pp=1"]},
    {"model": "qwen3-30b-a3b", "gpus": "b200:8", "set": ["tp=1", "ep=4,8"]},
    {"precision": "fp8"},
    {"precision": "mxfp8", "gpus": "b200:8"},
    {"precision": "fp16", "gpus": "v100-32g:16", "set": ["tp=8"]},
    {"runtime": "fsdp", "set": ["tp=1,2"]},
    {"runtime": "deepspeed", "set": ["tp=1"]},
    {"runtime": "flagscale"},
    {"stack": "bridge"},
    {"risk": "none", "all": True, "top": 20},
    {"use_all": True, "gpus": "h100:24"},
    {"max_gpus": 4},
    {"seq_len": "32k", "set": ["tp=2", "cp=1,2,4", "mb=1"]},
    {"objective": "gpus", "min_tokens_per_s": 20000},
    {"objective": "energy"},
    {"set": ["tp=2", "pp=2,4", "vpp=1,2", "mb=1"]},
    {"set": ["tp=3"]},  # no plan is left
    {"pipeline_model": "paper"},
    {**RENT, "budget": "1k"},
    {**RENT, "deadline": "2d", "gpus": "h100:16"},
    {**RENT, "failures": False},
    {**RENT, "spot": True, "cloud": "aws"},
    {**RENT, "gpus": "h100:8,h200:8", "mixed": False},
    {**RENT, "order": "knee", "gpus": "h100:16", "startup": "1h"},
    {"gpus": "h200:8,h100:8", "runtime": "megatron"},
    {"what_if": "network=x0.5"},
)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(make_app(workers=1), base_url="http://127.0.0.1:8400") as found:
        yield found


def same_numbers(words: dict[str, Any], client: TestClient, printed: Any) -> None:
    """All of the three answers but the seconds of the search; the last two are asked in the words
    that the first says they are asked in."""
    reply = client.post("/api/plan", json={**SMALL, **words})
    assert reply.status_code == 200, reply.text
    said = reply.json()
    command = shlex.split(said["request"]["command"])
    assert command[0] == "astra" and run([*command[1:], "--json"]) in (0, 3)
    by_command = json.loads(printed.readouterr().out)
    by_python = json.loads(json.dumps(eval(said["request"]["python"], {"astra": astra}).to_dict()))
    by_question = client.post("/api/plan", json=said["request"]["question"]).json()
    for other in (by_command, by_python, by_question):
        assert without_seconds(other) == without_seconds(said)
    assert said["plans"] or said["nothing_fits"]


def without_seconds(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "search": {**answer["search"], "seconds": 0.0}}


@pytest.mark.slow
@each_case("words", FEW)
def test_page_command_line_and_python_give_the_same_numbers(
    words: dict[str, Any], client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    same_numbers(words, client, capsys)


@pytest.mark.soak
@each_case("words", FEW + MORE)
def test_so_they_do_for_every_kind_of_question(
    words: dict[str, Any], client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    same_numbers(words, client, capsys)
