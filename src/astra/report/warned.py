"""What an answer's reader has to know besides: warnings, what was assumed, notes."""

from collections.abc import Sequence

from astra.cost.result import NO_MONEY, NOT_LAUNCHED, RAM_UNKNOWN, PricedPlan
from astra.search.answer import Answer


def remarks(answer: Answer, plans: Sequence[PricedPlan]) -> list[str]:
    """Warnings, what the model's config left open, and notes on the question, a line each."""
    notes = answer.request.get("notes")
    assumed = dict.fromkeys(text for plan in plans for text in plan.assumed)
    return [
        *(f"warning: {text}" for text in warnings_of(plans)),
        *(f"assumed: {text}" for text in assumed),
        *(f"note: {note}" for note in (notes if isinstance(notes, list) else [])),
    ]


def warnings_of(plans: Sequence[PricedPlan]) -> list[str]:
    """What an answer's plans warn of; but for what its notes and its drawing tell."""
    ranks: dict[str, list[int]] = {}
    for plan in plans:
        for text in plan.warnings:
            if text not in (NO_MONEY, NOT_LAUNCHED) and not text.endswith(RAM_UNKNOWN):
                ranks.setdefault(text, []).append(plan.rank)
    return [_told(text, sorted(own), len(plans)) for text, own in ranks.items()]


def _told(text: str, ranks: list[int], plans: int) -> str:
    if len(ranks) == plans:
        return text
    which = f"plan {ranks[0]}" if len(ranks) == 1 else f"plans {', '.join(map(str, ranks))}"
    return f"{which}: {text}"
