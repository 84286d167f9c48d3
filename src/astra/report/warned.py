"""Warnings of many plans, each once, with the plans it holds for."""

from collections.abc import Sequence

from astra.search.priced import NO_MONEY, NOT_LAUNCHED, RAM_UNKNOWN, Priced


def warnings_of(plans: Sequence[Priced]) -> list[str]:
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
