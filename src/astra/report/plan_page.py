"""One priced plan as a page: where its time, memory and money go, and what it rests on."""

from typing import TYPE_CHECKING

from astra.cost.result import PricedPlan
from astra.notes import NoteCode
from astra.report.priced_plan import (
    MEMORY_LEGEND,
    host_lines,
    memory_bars,
    origin_words,
    sentence,
    time_bars,
    titled_line,
    usable_sizes,
)
from astra.report.words import warning, words

if TYPE_CHECKING:
    from rich.console import RenderableType

TOLD_ELSEWHERE = (NoteCode.NO_MONEY, NoteCode.RAM_UNKNOWN)  # by lines of their own


def plan_page(priced: PricedPlan) -> list["RenderableType"]:
    """The whole answer, part by part."""
    parts: list[RenderableType] = [
        sentence(priced),
        "",
        f"Where the time goes (stage {priced.parts_stage})",
        time_bars(priced),
        "",
        f"Memory of one GPU by stage, GiB of {usable_sizes(priced)}",
        memory_bars(priced),
        MEMORY_LEGEND,
        "",
    ]
    parts += host_lines(priced)
    if priced.money is not None:
        from astra.report.money import interval_sentence, money_sentence, terms

        title = "What a run takes and costs"
        if not priced.runs:
            title = "What a run would take and cost if the plan did fit: it DOES NOT FIT"
        parts += [title, money_sentence(priced), interval_sentence(priced), *terms(priced), ""]
    elif priced.usd_per_hour is not None:
        parts.append(titled_line("price", f"${priced.usd_per_hour:,.2f} an hour"))
    parts.append(titled_line("checkpoint", f"{priced.checkpoint_bytes / 1e9:,.0f} GB"))
    if priced.assumed:
        parts.append(titled_line("assumed", "; ".join(priced.assumed)))
    parts.append(titled_line("sources", f"{origin_words(priced)} (`--json` names each source)"))
    parts += [
        titled_line("note", words(note))
        for note in priced.provenance.sources
        if note.code in (NoteCode.GPU_READ_AS, NoteCode.OUTSIDE_SPACE)
    ]
    parts += [
        titled_line("warning", warning(note))
        for note in priced.notes
        if note.code not in TOLD_ELSEWHERE
    ]
    if not priced.memory.fits:
        text = "`astra plan` with the same model, GPUs and batch finds the fastest plans that fit"
        parts.append(titled_line("try", text))
    return parts
