"""One priced plan as a page: where its time, memory and money go, and what it rests on."""

from typing import TYPE_CHECKING

from astra.cost.result import PricedPlan
from astra.notes import NoteCode
from astra.report.priced import (
    LEGEND,
    host_lines,
    memory_bars,
    seconds,
    sentence,
    sizes,
    time_bars,
    titled,
)
from astra.report.words import warning, words

if TYPE_CHECKING:
    from rich.console import RenderableType

TOLD_ELSEWHERE = (NoteCode.NO_MONEY, NoteCode.RAM_UNKNOWN)  # by lines of their own


def page(priced: PricedPlan) -> list["RenderableType"]:
    """The whole answer, part by part."""
    low, high = seconds(priced.step_s_low), seconds(priced.step_s_high)
    parts: list[RenderableType] = [
        sentence(priced),
        "",
        f"Where the time goes (stage {priced.parts_stage}; 80 % interval {low} to {high})",
        time_bars(priced),
        "",
        f"Memory of one GPU by stage, GiB of {sizes(priced)}",
        memory_bars(priced),
        LEGEND,
        "",
    ]
    parts += host_lines(priced)
    if priced.money is not None:
        from astra.report.money import money_sentence, terms

        title = "What a run takes and costs"
        if not priced.runs:
            title = "What a run would take and cost if the plan did fit: it DOES NOT FIT"
        parts += [title, money_sentence(priced), *terms(priced), ""]
    elif priced.usd_per_hour is not None:
        parts.append(titled("price", f"${priced.usd_per_hour:,.2f} an hour"))
    parts.append(titled("checkpoint", f"{priced.checkpoint_bytes / 1e9:,.0f} GB"))
    if priced.assumed:
        parts.append(titled("assumed", "; ".join(priced.assumed)))
    known = priced.provenance
    share = (
        f"{known.measured_fraction:.0%} of the busy time measured, "
        f"{known.fitted_fraction:.0%} fitted, {known.guessed_fraction:.0%} guessed; "
        f"step times of the stack {priced.plan.stack} "
        "(`--json` names each source)"
    )
    parts.append(titled("sources", share))
    parts += [
        titled("note", words(note)) for note in known.sources if note.code is NoteCode.GPU_READ_AS
    ]
    parts += [
        titled("warning", warning(note)) for note in priced.notes if note.code not in TOLD_ELSEWHERE
    ]
    if not priced.memory.fits:
        text = "`astra plan` with the same model, GPUs and batch finds the fastest plans that fit"
        parts.append(titled("try", text))
    return parts
