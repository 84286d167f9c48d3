"""The priced plan that an answer's JSON document speaks of."""

from collections.abc import Mapping
from typing import Any

from astra.errors import InputError

Document = Mapping[str, Any]  # an answer as `--json` writes it


def priced_plans(document: Document) -> list[Document]:
    """All of a search; the plan nearest to fitting where none does; or the one priced plan."""
    if "step_parts_s" in document:
        return [document]
    if document.get("predicted"):
        return [document["predicted"]]
    found: list[Document] = list(document.get("plans") or ())
    nothing = document.get("nothing_fits")
    if not found and nothing and nothing.get("closest"):
        found = [nothing["closest"]]
    return found


def priced_plan(document: Document, rank: int = 1) -> Document:
    """The plan of this rank."""
    plans = priced_plans(document)
    if not 1 <= rank <= len(plans):
        holds = "1 plan" if len(plans) == 1 else f"{len(plans)} plans"
        raise InputError(f"there is no rank {rank}; the answer holds {holds}.")
    return plans[rank - 1]
