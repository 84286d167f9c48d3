"""Answers of every kind as their JSON documents, asked once."""

import json
from functools import cache
from typing import Any

import msgspec

import astra
from astra.report.priced_plan import priced_json


@cache
def priced(**settings: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"tp": 2, "pp": 4, "global_batch": 64, "seq_len": 4096} | settings
    return priced_json(astra.predict("llama-3-70b", gpus={"h100": 32}, **said))


@cache
def sixty_four() -> dict[str, Any]:
    said = {"tp": 1, "pp": 64, "global_batch": 128, "seq_len": 4096}
    return priced_json(astra.predict("qwen2.5-32b", gpus={"h100": 64}, **said))  # type: ignore[arg-type]


@cache
def nothing_fits() -> dict[str, Any]:
    answer = astra.plan("llama-3-8b", gpus={"h100": 1}, global_batch=8, seq_len=131072)
    return json.loads(msgspec.json.encode(answer))


@cache
def searched() -> dict[str, Any]:
    answer = astra.plan("llama-3-8b", gpus={"h100": 16}, global_batch=64, seq_len=4096)
    return json.loads(msgspec.json.encode(answer))


@cache
def rented() -> dict[str, Any]:
    """Hours against dollars, with a deadline and a budget."""
    said: dict[str, Any] = {"gpus": {"h100": 32}, "global_batch": 64, "seq_len": 4096, "cp": 1}
    money: dict[str, Any] = {"tokens": "1B", "price": {"h100": 2}, "deadline": 2}
    answer = astra.plan("llama-3-8b", objective="money", tp=[1, 2], **said, **money)
    return json.loads(msgspec.json.encode(answer))


@cache
def mixed() -> dict[str, Any]:
    gpus = {"h100": 8, "a100-80g": 8}
    said: dict[str, Any] = {"global_batch": 32, "seq_len": 4096, "tp": [2, 4], "cp": 1}
    answer = astra.plan("llama-3-8b", gpus=gpus, **said)
    return json.loads(msgspec.json.encode(answer))


@cache
def explained() -> dict[str, Any]:
    said: dict[str, Any] = {"global_batch": 32, "seq_len": 4096, "tp": [1, 2], "cp": 1}
    answer = astra.plan("llama-3-8b", gpus={"h100": 8}, **said)
    return json.loads(msgspec.json.encode(answer.explain()))
