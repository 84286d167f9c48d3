"""The answer of a search for people: a sentence, the best plans, the funnel, where time goes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from astra.cost.result import PaperComparison, PricedPlan
from astra.report.comparison import comparison_part
from astra.report.document import AnswerDocument
from astra.report.headline import headline_of
from astra.report.note_lines import note_lines
from astra.report.priced_plan import (
    MEMORY_LEGEND,
    export_hint,
    memory_bars,
    next_lines,
    origin_words,
    seconds,
    time_bars,
    usable_sizes,
)
from astra.report.what_if_text import what_if_parts
from astra.search.objectives import OBJECTIVES, Measure
from astra.search.result import NothingFits

if TYPE_CHECKING:
    from rich.console import RenderableType


def answer_json(answer: AnswerDocument, batches: Sequence[AnswerDocument] = ()) -> dict[str, Any]:
    """The answer; where several batches were compared, the best of each besides."""
    document: dict[str, Any] = msgspec.to_builtins(answer)
    if len(batches) > 1:
        document["batches"] = [_best_of_batch(each) for each in batches]
    return document


def _best_of_batch(answer: AnswerDocument) -> dict[str, Any]:
    best = answer.best
    return {
        "global_batch": answer.request.global_batch,
        "summary": best.summary if best else None,
        "step_s": best.step_s if best else None,
        "tokens_per_s": best.tokens_per_s if best else None,
    }


def batches_table(answers: Sequence[AnswerDocument]) -> "RenderableType":
    """The best plan of each batch that was asked for."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("batch", "step", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("best plan", overflow="fold")
    for row in map(_best_of_batch, answers):
        step = "-" if row["step_s"] is None else seconds(row["step_s"])
        rate = "-" if row["tokens_per_s"] is None else f"{row['tokens_per_s']:,.0f}"
        table.add_row(str(row["global_batch"]), step, rate, row["summary"] or "nothing fits")
    return table


def answer_page(answer: AnswerDocument, saved: str | None) -> list["RenderableType"]:
    """The whole answer, part by part, and what to do next."""
    if answer.best is None:
        return answer_parts(answer)
    chosen = answer.plans if answer.market is None else [answer.frontier[answer.market.chosen - 1]]
    hint = _export_hint(chosen, saved or "result.json")
    return [*answer_parts(answer), *next_lines(saved, hint)]


def answer_parts(answer: AnswerDocument) -> list["RenderableType"]:
    """The answer alone: the best plans, or what money buys."""
    if answer.market is not None:
        from astra.report.money import money_parts

        return money_parts(answer, answer.market)
    best = answer.best
    if best is None:
        assert answer.nothing_fits is not None
        return _nothing_fits_page(answer, answer.nothing_fits)
    measure = OBJECTIVES[answer.request.objective].measure
    return [
        headline_of(answer).sentence,
        "",
        *_comparison(answer),
        _table(answer.plans, measure),
        *(paper_table(answer.paper) if answer.paper else []),
        *_ranking_lines(answer.plans, measure),
        *on_paper_lines(answer, best),
        *sureness_lines(answer),
        "",
        f"Sources of the best: {origin_words(best)}.",
        funnel_line(answer),
        "",
        *what_if_parts(answer),
        *_money_part(best),
        *_energy_part(best),
        f"Where the time of the best goes (stage {best.parts_stage})",
        time_bars(best),
        "",
        f"Memory of one GPU by stage, GiB of {usable_sizes(best)}",
        memory_bars(best),
        MEMORY_LEGEND,
        "",
        *note_lines(answer, answer.plans),
    ]


def _comparison(answer: AnswerDocument) -> list["RenderableType"]:
    if answer.mixed is None:
        return []
    is_stopped = answer.search.status in ("time_limit", "cancelled")
    return comparison_part(answer.plans, answer.mixed, answer.request, is_stopped)


def _export_hint(plans: Sequence[PricedPlan], file: str) -> list[str]:
    """How to start the best, or the best that can be, where there are launch files for it."""
    launched = (hint for plan in plans if (hint := export_hint(plan, file)))
    return next(launched, [])


def paper_table(plans: tuple[PaperComparison, ...]) -> list["RenderableType"]:
    """The plans by the paper's formula beside the simulator, and which one it would take."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("", "simulator", "formula", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("plan", overflow="fold")
    for plan in plans:
        error = f"{plan.error_fraction:+.1%}"
        table.add_row(
            str(plan.rank), seconds(plan.simulated_s), seconds(plan.paper_s), error, plan.summary
        )
    taken = min(plans, key=lambda plan: plan.paper_s)
    slower = taken.simulated_s / plans[0].simulated_s - 1
    chosen = "the same plan" if taken is plans[0] else f"plan {taken.rank}, {slower:.1%} slower"
    return [
        "",
        "By the pipeline formula of arXiv 2502.13480",
        table,
        f"Of these the formula would take {chosen}.",
        "",
    ]


def _money_part(best: PricedPlan) -> list["RenderableType"]:
    """Hours and dollars of the best, where tokens and a price are known."""
    if best.money is None:
        return []
    from astra.report.money import money_sentence, terms

    return [money_sentence(best), *terms(best), ""]


def _energy_part(best: PricedPlan) -> list[str]:
    """Energy of the best and how it is reckoned, where it was asked for."""
    energy = best.energy
    if energy is None:
        return []
    run = ""
    if energy.run_kwh is not None:
        run = f"; {energy.run_kwh:,.0f} kWh for {energy.tokens:.3g} tokens, failures left aside"
    gpus, host = sum(best.gpus.values()), 1 + energy.host_fraction
    return [
        f"Energy: {energy.step_kwh:.3g} kWh a step{run}.",
        f"{gpus} GPUs x {energy.gpu_w:g} W x {host:g} with their hosts x PUE {energy.pue:g} x "
        f"{seconds(best.step_s)}; {energy.gpu_w:g} W is the power limit, not a measured draw: an "
        "upper estimate.",
        "",
    ]


def _ranking_lines(plans: Sequence[PricedPlan], measure: Measure | None) -> list[str]:
    """What ranks them, where that is not their step."""
    steps_s = [plan.step_s for plan in plans]
    if measure is not None or steps_s == sorted(steps_s):
        return []
    return ["Simpler plans and those surer to fit come first where they are about as fast."]


def on_paper_lines(answer: AnswerDocument, best: PricedPlan) -> list[str]:
    """What the fastest on paper would gain and risk; over several types, how to get it."""
    fastest, request = answer.fastest_on_paper, answer.request
    if answer.mixed is not None and request.risk != "none" and request.objective == "time":
        return ["--risk none finds the fastest on paper, however unsure to fit and complicated."]
    if fastest is None or fastest.plan == best.plan or fastest.step_s >= best.step_s:
        return []
    change, chance = fastest.step_s / best.step_s - 1, fastest.memory.fit_probability
    return [
        f"Fastest on paper: {seconds(fastest.step_s)} ({change:+.1%}) with {fastest.summary}; it "
        f"fits with probability {chance:.0%}. --risk none recommends it."
    ]


def sureness_lines(answer: AnswerDocument) -> list[str]:
    """The safer plan, or that none is; and which plans cannot be told apart."""
    head, lines = headline_of(answer), []
    if head.safer is not None:
        lines.append(head.safer.sentence)
    elif head.risk != "safe" and answer.request.risk == "none":
        lines.append("None of these is sure to fit; --risk normal finds the best that is.")
    if head.ties is not None:
        return [*lines, head.ties.why]
    slower = [plan.step_s / answer.plans[0].step_s - 1 for plan in answer.plans[1:]]
    if slower and OBJECTIVES[answer.request.objective].measure is None:
        lines.append(f"The others are {min(slower):.1%} to {max(slower):.1%} slower.")
    return lines


def funnel_line(answer: AnswerDocument) -> str:
    """Where the candidates went, in one line."""
    search = answer.search
    removed = sum(search.removed_by_rule.values())
    better = "faster" if OBJECTIVES[answer.request.objective].measure is None else "better"
    estimated = f"{search.estimated:,} estimated, " if search.estimated else ""
    return (
        f"{search.candidates:,} candidates: {removed:,} against rules, {search.bounded:,} cannot "
        f"be {better}, {estimated}{search.out_of_memory:,} of {search.priced:,} priced do not fit, "
        f"{search.simulated:,} simulated; {search.seconds:.1f} s."
    )


def _table(plans: tuple[PricedPlan, ...], measure: Measure | None) -> "RenderableType":
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    measured = [measure.column] if measure else []
    for name in ("", *measured, "step", "tokens/s", "MFU", "GPUs", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("plan", overflow="fold")
    for plan in plans:
        memory = plan.memory
        table.add_row(
            str(plan.rank),
            *([f"{measure.of(plan):.3g}"] if measure else []),
            seconds(plan.step_s),
            f"{plan.tokens_per_s:,.0f}",
            f"{plan.mfu_fraction:.1%}",
            str(sum(plan.gpus.values())),
            f"{memory.reserved_bytes / memory.usable_bytes:.0%}",
            plan.summary,
        )
    return table


def _nothing_fits_page(answer: AnswerDocument, nothing_fits: NothingFits) -> list["RenderableType"]:
    lines: list[RenderableType] = [
        headline_of(answer).sentence,
        funnel_line(answer),
    ]
    if nothing_fits.closest is not None:
        lines.append(f"Closest: {nothing_fits.closest.summary}.")
    lines += [
        f"{'Try' if place == 0 else ' or'} {change}"
        for place, change in enumerate(nothing_fits.tries)
    ]
    return lines
