"""Why a plan, for people: where its time goes, what binds, what others lose, what would change."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from astra.explain.result import (
    Alternative,
    Exchange,
    ExplanationDocument,
    PlanDifference,
)
from astra.money.price_sensitivity import MoneyDifference, PriceSensitivity, RunnerUp
from astra.report.amounts import gpus_text
from astra.report.pipeline_drawing import draw_pipeline
from astra.report.priced_plan import PART_NAMES, TIME_BAR_WIDTH, seconds
from astra.search.objectives import OBJECTIVES

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

EXPLAINED_PART_NAMES = {
    "matrix_products": "matrix products",
    "attention": "attention",
    "elementwise": "elementwise",
    "experts": "experts",
    "head": "head and loss",
    "launch": "waiting for the CPU",
    **{name: words for name, words in PART_NAMES.items() if name not in ("forward", "backward")},
}
SHORT_PART_NAMES = {
    **EXPLAINED_PART_NAMES,
    "tensor_comm": "tensor traffic",
    "context_comm": "context traffic",
    "expert_comm": "expert traffic",
    "pipeline_comm": "links",
    "data_comm": "data traffic",
    "bubble": "bubble",
}
MIN_SHOWN_FRACTION = 0.05  # of the largest part: what differs by less is left out of a line
MAX_PARTS_IN_A_LINE = 4  # parts in a line
MAX_NEXT_PLANS = 9  # plans behind the explained one


def explanation_json(explanation: ExplanationDocument) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(explanation)
    return built


def explanation_page(explanation: ExplanationDocument) -> list["RenderableType"]:
    """The whole answer, part by part; where another plan was asked about, that comparison."""
    notes = [f"note: {text}" for text in explanation.notes]
    if explanation.against is not None:
        compared = _alternative_part(explanation, explanation.against)
        return [_head(explanation), "", *compared, *notes]
    best, prices, stage = explanation.best, explanation.prices, _stage(explanation)
    later = explanation.next_plans[:MAX_NEXT_PLANS]
    measure = OBJECTIVES[explanation.objective].measure
    parts: list[RenderableType] = [_head(explanation), explanation.binding.sentence]
    if explanation.stages:
        parts += ["", *_pipelines(explanation), *_gpu_type_lines(explanation)]
    parts += ["", f"Where the time goes (stage {stage}, the busiest)", _time_bars(explanation)]
    if explanation.money:
        title = "What the other plans of the answer take and cost"
        parts += ["", title, _money_table(explanation.money)]
    elif best is not None:
        parts += [
            "",
            "What the best plan takes more or less",
            _difference_table(explanation, (best,)),
        ]
    if later and not explanation.money:
        parts += [
            "",
            "What the next plans take more or less",
            _difference_table(explanation, later),
        ]
    unit = f" ({measure.column})" if measure else ""
    parts += ["", f"What would change{unit}", _what_if_table(explanation)]
    if prices:
        parts += ["", "How far a price must move for another answer", *map(price_line, prices)]
    parts += ["", f"Bytes of one GPU of stage {stage} in a step", *_traffic_table(explanation)]
    return [*parts, *notes]


def _head(explanation: ExplanationDocument) -> str:
    gpus = " + ".join(f"{count} {name}" for name, count in explanation.gpus.items())
    return (
        f"{explanation.model} on {gpus}, rank {explanation.rank}: {explanation.summary}, "
        f"{seconds(explanation.step_s)} a step{_measured(explanation)}."
    )


def _measured(explanation: ExplanationDocument) -> str:
    """What else plans are ordered by than their step."""
    measure = OBJECTIVES[explanation.objective].measure
    return f", {explanation.measure:.3g} {measure.column}" if measure else ""


def _has_several_pipelines(explanation: ExplanationDocument) -> bool:
    return bool(explanation.stages) and explanation.stages[-1].pipeline > 0


def _pipelines(explanation: ExplanationDocument) -> list["RenderableType"]:
    """Each drawn under its title."""
    lines: list[RenderableType] = []
    several = _has_several_pipelines(explanation)
    for pipeline in range(explanation.stages[-1].pipeline + 1):
        which = f"Pipeline {pipeline + 1}" if several else "The pipeline"
        stages = tuple(stage for stage in explanation.stages if stage.pipeline == pipeline)
        drawing = draw_pipeline(stages, explanation.step_s)
        lines += [f"{which} from the first stage to the last", drawing]
    return lines


def _gpu_type_lines(explanation: ExplanationDocument) -> list[str]:
    """What each GPU type does of the whole."""
    lines, every_stage = [], explanation.stages
    for name, count in explanation.gpus.items():
        stages = [stage for stage in every_stage if stage.gpu == name]
        busy = max(stage.busy_s for stage in stages) / explanation.step_s
        if _has_several_pipelines(explanation):
            places = dict.fromkeys(str(stage.pipeline + 1) for stage in stages)
            part, busiest = f"in pipeline {' and '.join(places)}", "its busiest stage"
        else:
            layers, total = (sum(each.layers for each in some) for some in (stages, every_stage))
            part = f"{layers} of {total} layers in {len(stages)} of {len(every_stage)} stages"
            busiest = "its busiest"
        lines.append(f"{name}: {part} on {count} GPUs; {busiest} works {busy:.0%} of the step.")
    return lines


def price_line(move: PriceSensitivity) -> str:
    """One GPU type in a line: how far it must move either way, and what is chosen then."""
    moves = []
    if move.rise_rival is not None:
        moves.append((f"rise by {move.rise_fraction:.1%}", _then(move.rise_rival)))
    if move.fall_rival is not None:
        moves.append((f"fall by {move.fall_fraction:.1%}", _then(move.fall_rival)))
    if not moves:
        return f"  {move.gpu}: no move of its price alone changes the answer"
    if len({then for _, then in moves}) == 1:  # either way the same
        return f"  {move.gpu}: {' or '.join(by for by, _ in moves)}; {moves[0][1]}"
    return f"  {move.gpu}: {'; or '.join(f'{by}, {then}' for by, then in moves)}"


def _then(rival: RunnerUp) -> str:
    gpus = " + ".join(f"{count} {name}" for name, count in rival.gpus.items())
    return f"then {gpus} ({rival.summary}), today ${rival.usd:,.0f}, {rival.hours:,.0f} h"


def _stage(explanation: ExplanationDocument) -> str:
    several = _has_several_pipelines(explanation)
    pipeline = f" of pipeline {explanation.parts_pipeline + 1}" if several else ""
    return f"{explanation.parts_stage}{pipeline}"


def _grid(justify: str, headers: tuple[str, ...] = ()) -> "Table":
    """A table without lines. One letter a column: r for numbers, w for words that may wrap,
    b for bars, which are cut where there is no room, l for the rest.
    """
    from rich.table import Table

    table = Table(box=None, show_header=bool(headers), padding=(0, 2, 0, 0), pad_edge=False)
    for place, letter in enumerate(justify):
        table.add_column(
            headers[place] if headers else "",
            justify="right" if letter == "r" else "left",
            no_wrap=letter in "lr",
            overflow="crop" if letter == "b" else "fold",
        )
    return table


def _time_bars(explanation: ExplanationDocument) -> "RenderableType":
    table = _grid("wrrb")
    for name, value in explanation.parts_s.items():
        share = value / explanation.step_s
        if share >= 0.0005:
            bar = "#" * round(share * TIME_BAR_WIDTH)
            table.add_row(f"  {EXPLAINED_PART_NAMES[name]}", seconds(value), f"{share:.1%}", bar)
    return table


def signed(value: float) -> str:
    """`+0.03 s`, `-1.2 ms`."""
    return f"{'-' if value < 0 else '+'}{seconds(abs(value))}"


def _signed_fraction(value: float) -> str:
    return f"{value:+.1%}"


def _measured_parts(explanation: ExplanationDocument, plan: PlanDifference) -> dict[str, float]:
    """What each part takes more of the measure, which goes by a plan's seconds; of all of it."""
    per_s = 1 / explanation.step_s
    other_per_s = (1 + plan.more_fraction) / plan.step_s
    return {
        name: (part + plan.parts_s[name]) * other_per_s - part * per_s
        for name, part in explanation.parts_s.items()
    }


def difference_line(explanation: ExplanationDocument, plan: PlanDifference) -> str:
    """`+0.03 s: bubble +0.02 s, tensor traffic +0.01 s`, the largest first; or of a measure,
    `+1.2% energy: bubble +0.8%, tensor traffic +0.4%`.
    """
    measure = OBJECTIVES[explanation.objective].measure
    parts, total, least, text = plan.parts_s, plan.slower_s, 1e-6, signed
    if measure:
        parts, total = _measured_parts(explanation, plan), plan.more_fraction
        least, text = 0.0005, _signed_fraction
    ordered = sorted(parts.items(), key=lambda item: -abs(item[1]))
    least = max(MIN_SHOWN_FRACTION * abs(ordered[0][1]), least)
    shown = [(name, value) for name, value in ordered if abs(value) >= least][:MAX_PARTS_IN_A_LINE]
    if not shown:
        return "no difference"
    words = [f"{SHORT_PART_NAMES[name]} {text(value)}" for name, value in shown]
    rest = total - sum(value for _, value in shown)
    if abs(rest) >= least:
        words.append(f"the rest {text(rest)}")
    where = f" (busiest: {plan.busiest})" if plan.other_place else ""
    what = f" {measure.noun}" if measure else ""
    return f"{text(total)}{what}: {', '.join(words)}{where}"


def _difference_table(
    explanation: ExplanationDocument, plans: tuple[PlanDifference, ...]
) -> "RenderableType":
    table = _grid("rww")
    for plan in plans:
        table.add_row(str(plan.rank), plan.summary, difference_line(explanation, plan))
    return table


def _money_table(plans: Sequence[MoneyDifference]) -> "RenderableType":
    """Plans on different GPUs are compared by hours and dollars: their steps are not alike."""
    table = _grid("rrrrrww", ("", "hours", "more", "USD", "more", "GPUs", "plan"))
    for plan in plans:
        table.add_row(
            str(plan.rank),
            f"{plan.hours:,.1f}",
            f"{plan.more_hours:+,.1f}",
            f"{plan.usd:,.0f}",
            f"{plan.more_usd:+,.0f}",
            gpus_text(plan.gpus),
            plan.summary,
        )
    return table


def _alternative_part(
    explanation: ExplanationDocument, alternative: Alternative
) -> list["RenderableType"]:
    """Why not another one: part by part where it runs."""
    lines: list[RenderableType] = [
        f"Against {' '.join(alternative.settings)}: {alternative.sentence}"
    ]
    if alternative.outcome != "time" or alternative.plan is None:
        return lines
    other = alternative.plan
    table = _grid("wrrr", ("  busiest stage of each", "this", "that", "more"))
    for name, value in explanation.parts_s.items():
        more = other.parts_s[name]
        if max(value, value + more) >= 0.0005 * explanation.step_s:
            that = value + more if value + more > 1e-9 else 0.0
            table.add_row(
                f"  {EXPLAINED_PART_NAMES[name]}", seconds(value), seconds(that), signed(more)
            )
    table.add_row(
        "  step", seconds(explanation.step_s), seconds(other.step_s), signed(other.slower_s)
    )
    measure = OBJECTIVES[explanation.objective].measure
    if measure:
        values = (f"{explanation.measure:.3g}", f"{other.measure:.3g}")
        table.add_row(f"  {measure.column}", *values, _signed_fraction(other.more_fraction))
    gpus = " + ".join(f"{count} {name}" for name, count in other.gpus.items())
    lines += [f"  {other.summary} on {gpus}", "", table]
    if other.other_place:
        lines.append(
            f"The busiest stage is another: here stage {explanation.parts_stage}, there "
            f"{other.busiest}. What only one of them does shifts between the parts."
        )
    return lines


def _what_if_table(explanation: ExplanationDocument) -> "RenderableType":
    table = _grid("wrw")
    for change in explanation.changes:
        if change.plan is None:
            table.add_row(f"  {change.what}", "", "no plan fits")
            continue
        text = difference_line(explanation, change.plan)
        if change.how == "searched":
            same = "the same plan" if change.same_plan else change.plan.summary
            text = f"{same}; {text}"
        value = change.plan.measure
        shown = seconds(change.plan.step_s) if value is None else f"{value:.3g}"
        table.add_row(f"  {change.what}", shown, text)
    return table


def _traffic_table(explanation: ExplanationDocument) -> list["RenderableType"]:
    if not explanation.exchanges:
        return ["  none: there is one GPU"]
    table = _grid("lwrrrl", ("  group", "", "payload", "times", "sent", ""))
    for exchange in explanation.exchanges:
        table.add_row(
            f"  {exchange.group} {exchange.ranks}",
            f"{exchange.operation}, {exchange.what}",
            bytes_text(exchange.payload_bytes),
            f"{exchange.count:,.0f}",
            bytes_text(exchange.sent_bytes),
            link_words(exchange),
        )
    return [table]


def link_words(exchange: Exchange) -> str:
    if not exchange.crosses_nodes:
        return "in a node"
    return "across nodes" if exchange.over == "network" else "one link domain"


def bytes_text(count: float) -> str:
    """Three figures and a unit of 1,000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB" if count < 999.5 else f"{count:,.0f} TB"
