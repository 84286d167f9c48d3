"""The report of an answer: all sections in the order in which they are read."""

from typing import Any

import msgspec

from astra.explain.result import ExplanationDocument
from astra.report.sheet.blocks import Items, PageBlock, Section, Sheet, Words
from astra.report.sheet.head import answer_blocks, question, rivals, wished
from astra.report.sheet.job import job_sections
from astra.report.sheet.plan import (
    memory_section,
    money_section,
    pool_section,
    scaling_section,
    settings_section,
    time_section,
)
from astra.report.sheet.why import (
    change_sections,
    notes_section,
    price_section,
    provenance_section,
    run_section,
    search_section,
    why_sections,
)
from astra.report.svg.priced import Document, priced_plan, priced_plans


def sheet_of(
    document: Document,
    *,
    rank: int = 1,
    explained: ExplanationDocument | None = None,
    timeline: str | None = None,
    file: str = "result.json",
) -> Sheet:
    """Of an answer, a priced plan or a job, as the JSON has it; `file`: where that lies."""
    plan = priced_plan(document, rank) if priced_plans(document) else None
    about = question(document, plan)
    wish = wished(document)
    head: tuple[PageBlock, ...] = answer_blocks(document, plan)
    if document.get("nothing_fits"):
        sections = _nothing_fits(document, plan)
    else:
        assert plan is not None
        changed: dict[str, Any] | None = msgspec.to_builtins(explained) if explained else None
        sections = [
            *job_sections(document, plan),
            *rivals(document, plan),
            *money_section(plan),
            *scaling_section(document),
            *pool_section(document, plan),
            time_section(document, plan, timeline),
            memory_section(document, plan),
            *why_sections(explained),
            *change_sections(document, changed),
            *price_section(explained),
            settings_section(plan),
            provenance_section(plan),
            *search_section(document),
        ]
    sections += notes_section(document, plan, explained)
    sections += run_section(document, plan, file)
    title = about.split(",")[0]
    return Sheet(title, f"{about}; {wish}" if wish else about, head, tuple(sections))


def _nothing_fits(document: Document, plan: Document | None) -> list[Section]:
    """What binds, what to try, and the plan that comes closest."""
    nothing = document["nothing_fits"]
    found = []
    tries = tuple(nothing.get("tries") or nothing.get("try") or ())
    if tries:
        found.append(Section("What to try", (Items(tries),)))
    if plan is not None:
        closest = Words(f"The closest plan: {plan['summary']}.")
        memory = memory_section(document, plan)
        found += [Section(memory.title, (closest, *memory.blocks)), settings_section(plan)]
    return [*found, *search_section(document)]


def picture_sheet(document: Document) -> Sheet:
    """The charts of an answer with their tables, and no more."""
    if not priced_plans(document):  # an explanation
        title = f"{document['model']}, {document['summary']}"
        binding = Words(document["binding"]["sentence"])
        return Sheet(title, title, (binding,), tuple(change_sections(document, None)))
    plan = priced_plan(document)
    about = question(document, plan)
    several = len(plan["gpus"]) > 1 and not document.get("nothing_fits")
    sections = [
        *rivals(document, plan),
        *money_section(plan),
        *scaling_section(document),
        *(pool_section(document, plan) if several else []),
        time_section(document, plan, None),
        memory_section(document, plan),
        *change_sections(document, None),
        *notes_section(document, plan, None),
    ]
    return Sheet(about.split(",")[0], about, answer_blocks(document, plan), tuple(sections))
