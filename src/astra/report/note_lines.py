"""What an answer's reader has to know besides: warnings, what was assumed, notes."""

from collections.abc import Sequence

from astra.cost.result import PricedPlan
from astra.notes import NoteCode
from astra.report.document import AnswerDocument
from astra.report.words import warning

# Told by the notes of the answer, or by its drawing.
TOLD_ELSEWHERE = (NoteCode.NO_MONEY, NoteCode.NOT_LAUNCHABLE, NoteCode.RAM_UNKNOWN)


def note_lines(answer: AnswerDocument, plans: Sequence[PricedPlan]) -> list[str]:
    """Warnings, what the model's config left open, and notes on the question, a line each."""
    assumed = dict.fromkeys(text for plan in plans for text in plan.assumed)
    return [
        *(f"warning: {text}" for text in warning_lines(plans)),
        *(f"assumed: {text}" for text in assumed),
        *(f"note: {text}" for text in answer.request.notes),
    ]


def warning_lines(plans: Sequence[PricedPlan]) -> list[str]:
    """What an answer's plans warn of; but for what its notes and its drawing tell."""
    ranks: dict[str, list[int]] = {}
    for plan in plans:
        for note in plan.notes:
            if note.code not in TOLD_ELSEWHERE:
                ranks.setdefault(warning(note), []).append(plan.rank)
    return [of_ranks(text, sorted(warned), len(plans)) for text, warned in ranks.items()]


def of_ranks(text: str, ranks: list[int], plans: int) -> str:
    if len(ranks) == plans:
        return text
    which = f"plan {ranks[0]}" if len(ranks) == 1 else f"plans {', '.join(map(str, ranks))}"
    return f"{which}: {text}"
