"""Reading a plan back: from a search result, a priced plan or a bare plan."""

import json
from pathlib import Path
from typing import Any

from astra.errors import InputError, shorten
from astra.files import convert, read_json
from astra.hardware.pools import check_cluster
from astra.model.check import check_shape
from astra.strategy.plan import Plan, check_structure
from astra.values import file_path


def read_plan(path: str | Path, rank: int = 1) -> Plan:
    """The plan of this rank in a file that Astra wrote, or that a person wrote alike.

    >>> import astra, tempfile
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     astra.read_plan(priced.save(f"{folder}/plan.json")) == priced.plan
    True
    """
    return read_plans(file_path(path), rank)[0]


def read_plans(path: Path, rank: int | None = None) -> list[Plan]:
    """All plans of a file, best first, or the one of a rank (from 1)."""
    return plans_of_document(read_json(path), str(path), rank)


def plans_of_document(document: Any, where: str, rank: int | None = None) -> list[Plan]:
    """The same of what such a file holds."""
    found = _bare_plans(document, where)
    if rank is None:
        return [plan_from_json(raw, place) for raw, place in found]
    if not 1 <= rank <= len(found):
        count = "1 plan" if len(found) == 1 else f"{len(found)} plans"
        raise InputError(f"{where}: there is no rank {rank}; the file holds {count}.")
    return [plan_from_json(*found[rank - 1])]


def plan_from_json(raw: object, where: str) -> Plan:
    """A plan out of JSON values, checked for sense."""
    plan = convert(raw, Plan, where)
    try:
        json.dumps(raw, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: holds text that is not Unicode (a lone surrogate).") from None
    check_shape(plan.model, f"{where}: model")
    check_cluster(plan.cluster, f"{where}: cluster")
    return check_structure(plan, where)


def _bare_plans(document: Any, where: str) -> list[tuple[object, str]]:
    """The plans inside any of the three kinds of file, each with its place."""
    if isinstance(document, dict):
        if isinstance(document.get("plans"), list | tuple):
            listed = enumerate(document["plans"])
            return [(_inner(entry), f"{where}: plans[{row}].plan") for row, entry in listed]
        if "plan" in document:
            return [(document["plan"], f"{where}: plan")]
        if "pipelines" in document:
            return [(document, where)]
    missing = (
        "there is no field" if isinstance(document, dict) else f"{shorten(document)} has no field"
    )
    raise InputError(
        f"{where}: holds no plan: {missing} plans, plan or pipelines. "
        "Write one with `astra predict ... --json`."
    )


def _inner(entry: object) -> object:
    return entry.get("plan", entry) if isinstance(entry, dict) else entry
