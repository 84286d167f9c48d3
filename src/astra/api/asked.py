"""The question of an answer in the command line's own words: for a link, and as a command."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.api.inputs import GpuCounts, gpu_objects, gpus_text
from astra.errors import InputError
from astra.files import read_text, read_toml
from astra.hardware.catalogue import find_gpu, is_known, is_path
from astra.model.shape import Model
from astra.model.zoo import known_model
from astra.money.options import MoneyOptions
from astra.report.request import Request
from astra.values import whole_number

if TYPE_CHECKING:
    from astra.search.query import Query

# What need not be said: the defaults of `astra plan`, besides None, nothing and false.
DEFAULTS = {
    "precision": "bf16",
    "top": 10,
    "memory_margin": 0.05,
    "risk": "normal",
    "pipeline_model": "simulated",
}
NO_MONEY = MoneyOptions()
REPEATED = ("set", "what_if")  # options that are given once for each of several
PYTHON_NAMES = {"set": "settings", "memory_margin": "margin"}
TURNED_OFF = ("mixed", "failures")  # which are on unless they are said


def with_question(request: Request, question: Mapping[str, Any], query: "Query") -> Request:
    """The request with the question's words, its command line and its call of Python.

    `question`: the arguments of `plan` as they were given. A command cannot name what is in no
    file, and a link holds no GPU that is described in a file: there it is None.
    """
    words, files = _words(question, query), _of_files(question, query)
    command = {**{name: said for name, (said, _) in files.items()}, **words}
    flat = {**{name: said for name, (_, said) in files.items()}, **words}
    return msgspec.structs.replace(
        request,
        command=None if None in command.values() else command_line(command),
        question=None if None in flat.values() else flat,
        python=None if None in flat.values() else python_call(flat),
    )


def command_line(words: Mapping[str, Any]) -> str:
    """The words of a question as `astra plan` takes them.

    >>> command_line({"model": "gpt2", "gpus": "h100:8", "set": ["tp=1,2"], "mixed": False})
    'astra plan gpt2 --gpus h100:8 --set tp=1,2 --no-mixed'
    """
    parts = ["astra", "plan", words["model"]]
    for name, value in words.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            parts.append(f"--{option}" if value else f"--no-{option}")
        elif name in REPEATED:
            parts += [part for each in value for part in (f"--{option}", each)]
        elif name != "model":
            parts += [f"--{option}", _number_text(value)]
    return shlex.join(parts)


def python_call(words: Mapping[str, Any]) -> str:
    """The words of a question as `astra.plan` takes them.

    >>> python_call({"model": "gpt2", "gpus": "h100:8", "memory_margin": 0.1, "all": True})
    "astra.plan('gpt2', gpus='h100:8', margin=0.1, fold=False)"
    """
    said = {PYTHON_NAMES.get(name, name): value for name, value in words.items() if name != "model"}
    if said.pop("all", False):
        said["fold"] = False
    arguments = [repr(words["model"]), *(f"{name}={value!r}" for name, value in said.items())]
    return f"astra.plan({', '.join(arguments)})"


def _number_text(value: Any) -> str:
    """`1000`, not `1000.0`; words as they are."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _words(question: Mapping[str, Any], query: "Query") -> dict[str, Any]:
    """What is said in words, as the query has them: batch and length in numbers."""
    most, limit = question["max_gpus"], question["time_limit"]
    words = {
        "global_batch": query.global_batch,
        "seq_len": query.seq_len,
        "precision": question["precision"],
        "runtime": question["runtime"],
        "stack": question["stack"],
        "set": list(query.set_words),
        "max_gpus": None if most is None else whole_number(most, "--max-gpus"),
        "use_all": query.use_all,
        "objective": question["objective"],
        "min_tokens_per_s": query.min_tokens_per_s,
        "all": not query.fold,
        "exact": query.exact,
        "top": query.top,
        "memory_margin": query.margin,
        "risk": query.risk,
        "pipeline_model": query.pipeline_model,
        "time_limit": None if limit is None else float(limit),
        "what_if": question["what_if"],
        **_about_money(query),
    }
    return {
        name: value
        for name, value in words.items()
        if value != DEFAULTS.get(name) and (value or name in TURNED_OFF)
    }


def _about_money(query: "Query") -> dict[str, Any]:
    """Words about money that were said, each as the text or number of its option."""
    if query.money is None:
        return {}
    return {
        name: _text(value)
        for name, value in msgspec.structs.asdict(query.money).items()
        if name not in ("what_if", "offers") and value != getattr(NO_MONEY, name)
    }


def _text(value: Any) -> Any:
    """`h100=2,a100-80g=1` of a table, `aws,gcp` of a list."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={each}" for name, each in value.items())
    return ",".join(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _of_files(question: Mapping[str, Any], query: "Query") -> dict[str, tuple[Any, Any]]:
    """What a file may hold: as the command says it, and as a link does; None where they cannot."""
    found: dict[str, tuple[Any, Any]] = {"model": _model(question["model"], query.model)}
    if question["cluster"] is not None:
        found["cluster"] = _cluster(question["cluster"])
    elif question["gpus"] is not None:  # with money: else whatever is for rent
        found["gpus"] = _gpus(question["gpus"])
    if question["rules"] is not None:
        found["rules"] = _rules(question["rules"], query.rule_texts)
    offers = None if query.money is None else query.money.offers
    if offers is not None:
        found["prices"] = (question.get("prices"), None)
    return found


def _model(said: Any, shape: Model) -> tuple[str | None, Any]:
    """By its name where that means the same; else in full, for a link."""
    if _is_known(shape):
        return shape.name, shape.name
    typed = str(said).strip() if isinstance(said, str | Path) else None
    defaults = {each.name: each.default for each in msgspec.structs.fields(Model)}
    full = msgspec.to_builtins(shape)
    return typed, {name: value for name, value in full.items() if value != defaults[name]}


def _is_known(shape: Model) -> bool:
    """Whether the zoo has this model by its name."""
    try:
        return known_model(shape.name) == shape
    except InputError:
        return False


def _gpus(said: GpuCounts) -> tuple[str | None, str | None]:
    """Types with their counts; those that are described in a file or an object have no word."""
    text = gpus_text(said) or ""
    known = all(
        is_known(name) and find_gpu(name)[0] == gpu for name, gpu in gpu_objects(said).items()
    )
    in_files = any(is_path(part.rpartition(":")[0] or part) for part in text.split(","))
    return (text if known else None), (text if known and not in_files else None)


def _cluster(said: Any) -> tuple[str | None, Any]:
    """A file by its path and by its tables, where these name no other file."""
    if isinstance(said, str | Path):
        tables = {"name": Path(said).stem, **read_toml(Path(said))}
        return str(said), None if _names_files(tables) else tables
    return None, dict(said) if isinstance(said, Mapping) else None


def _names_files(tables: Mapping[str, Any]) -> bool:
    own = tables.get("gpus", {})
    return any(is_path(pool["gpu"]) for pool in tables["pools"] if pool["gpu"] not in own)


def _rules(said: Any, texts: tuple[str, ...]) -> tuple[str | None, list[str]]:
    if isinstance(said, str | Path):
        return str(said), read_text(Path(said)).splitlines()
    return None, list(texts)
