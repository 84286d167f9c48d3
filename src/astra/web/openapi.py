"""The description of the addresses for programs: OpenAPI 3.1, made from the words themselves."""

from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec

from astra.api import export, predict
from astra.report.refusals import ErrorDocument
from astra.web.listings import LISTINGS
from astra.web.questions import QUESTIONS
from astra.web.workers import EVENT_STREAM

TEMPLATE = "#/components/schemas/{name}"
ERRORS = {
    403: "the page of another site asks",
    413: "a body that is too large",
    415: "a body that is no JSON",
    421: "a Host that is not this server's",
    422: "a question that cannot be answered as it is: which word, why, and what may be meant",
    429: "as many questions as there may be; ask again after Retry-After",
}


def any_schema(kind: type) -> dict[str, Any]:
    """Of values that may be anything."""
    if kind is object:
        return {"description": "any value"}
    raise NotImplementedError(f"no schema of {kind}")


@cache
def openapi() -> bytes:
    kinds = [kind for pair in QUESTIONS.values() for kind in pair]
    schemas, components = msgspec.json.schema_components(
        [*kinds, ErrorDocument], schema_hook=any_schema, ref_template=TEMPLATE
    )
    of = dict(zip([*kinds, ErrorDocument], schemas, strict=True))
    error = {"application/json": {"schema": of[ErrorDocument]}}
    paths: dict[str, Any] = {}
    examples = _examples()
    for name, (question, answer) in QUESTIONS.items():
        found = {"application/json": {"schema": of[answer]}, EVENT_STREAM: {"schema": {}}}
        paths[f"/api/{name}"] = {
            "post": {
                "operationId": name,
                "summary": question.__doc__,
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": of[question], "example": examples[name]}
                    },
                },
                "responses": {
                    "200": {"description": "the answer", "content": found},
                    **_errors(error, *ERRORS),
                },
            }
        }
    for name, listing in LISTINGS.items():
        paths[f"/api/{name}"] = {"get": _listing(name, listing.words, error)}
    paths["/api/stop"] = {"post": _stop(error)}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Astra", "version": version("astra-planner")},
        "paths": paths,
        "components": {"schemas": components},
    }
    return msgspec.json.encode(document)


def _examples() -> dict[str, Any]:
    """A question of each kind that is answered."""
    job = {"model": "llama-3-8b", "gpus": "h100:16", "global_batch": 64, "seq_len": 4096}
    priced = predict(**job, tp=2)  # type: ignore[arg-type]
    plan = priced.plan
    files = export(plan, "megatron", None).texts
    return {
        "plan": {**job, "set": {"tp": [1, 2]}, "top": 3},
        "predict": {**job, "tp": 2},
        "explain": {"plan": plan, "quick": True},
        "export": {"plan": plan, "to": "megatron"},
        "charts": {"plan": msgspec.to_builtins(priced), "charts": {"parts": 480}},
        "trace": {"plan": plan},
        "import": {"name": "args.txt", "text": files["args.txt"], "gpus": "h100:16"},
    }


def _errors(error: dict[str, Any], *codes: int) -> dict[str, Any]:
    return {str(code): {"description": ERRORS[code], "content": error} for code in codes}


def _listing(name: str, words: Any, error: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": f"What is known: {name}.",
        "parameters": [
            {"name": word, "in": "query", "description": what, "schema": {"type": "string"}}
            for word, what in words.items()
        ],
        "responses": {
            "200": {
                "description": "the listing, or one of it",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            **_errors(error, 403, 421, 422, 429),
        },
    }


def _stop(error: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"search": {"type": "string"}},
        "required": ["search"],
        "additionalProperties": False,
    }
    return {
        "operationId": "stop",
        "summary": "Ends a search with the best so far; its stream began with its name.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "200": {
                "description": "it is asked to",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            "404": {"description": "there is no such search", "content": error},
            **_errors(error, *ERRORS),
        },
    }
