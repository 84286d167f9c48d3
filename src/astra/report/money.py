"""Hours and dollars for people: the answer, the frontier, every term of the arithmetic."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from astra.cost.result import PricedPlan
from astra.money.dollars import GB, MONTH_H
from astra.money.goals import GoalOutcome
from astra.money.machines import OtherRegion
from astra.money.rented import Money, RentedNodes
from astra.recommend.market_result import MarketResult
from astra.report.amounts import gpus_text, hours, minutes, tokens, tokens_down, usd, usd_rate
from astra.report.document import AnswerDocument
from astra.report.frontier_text import FrontierDrawing
from astra.report.frontier_words import below_table, beside_answer, is_guessed
from astra.report.note_lines import note_lines
from astra.report.priced_plan import (
    MEMORY_LEGEND,
    host_lines,
    memory_bars,
    origin_words,
    seconds,
    time_bars,
    titled_line,
    usable_sizes,
)
from astra.report.what_if_text import what_if_parts

if TYPE_CHECKING:
    from rich.console import RenderableType


def money_sentence(plan: PricedPlan) -> str:
    """How much, how long, on what, at which price of which day."""
    assert plan.money is not None and plan.usd is not None
    assert plan.hours is not None and plan.usd_per_hour is not None
    gpus = gpus_text(plan.gpus)
    places = "; ".join(dict.fromkeys(place_of(rent) for rent in plan.money.rents))
    unfit = "" if plan.runs else ", which DOES NOT FIT"
    return (
        f"{plan.plan.model.name} on {tokens(plan.money.tokens)} tokens: {usd(plan.usd)} in "
        f"{hours(plan.hours)} at {usd(plan.usd_per_hour)}/h, "
        f"{usd(plan.money.usd_per_million_tokens)} a million tokens, on {gpus} ({places}) "
        f"with {plan.summary}{unfit}."
    )


def run_sentence(plan: PricedPlan) -> str:
    """What a run takes and costs, with its interval."""
    low_h, high_h, low_usd, high_usd = _interval(plan)
    assert plan.money is not None and plan.hours is not None and plan.usd is not None
    return (
        f"{tokens(plan.money.tokens)} tokens take {hours(plan.hours)}, in four cases of five "
        f"{low_h} to {high_h}, and cost {usd(plan.usd)}, {low_usd} to {high_usd}."
    )


def interval_sentence(plan: PricedPlan) -> str:
    """How far the step, hours and dollars that were said may be off."""
    low_h, high_h, low_usd, high_usd = _interval(plan)
    return (
        f"A step takes {seconds(plan.step_s)}. In four cases of five it takes "
        f"{seconds(plan.step_s_low)} to {seconds(plan.step_s_high)}, the run {low_h} to {high_h}, "
        f"and it costs {low_usd} to {high_usd}."
    )


def _interval(plan: PricedPlan) -> tuple[str, str, str, str]:
    """Hours and dollars with the shorter and the longer step; of a file from before, not known."""
    ends = [plan.hours_low, plan.hours_high], [plan.usd_low, plan.usd_high]
    both = zip((hours, usd), ends, strict=True)
    low_h, high_h, low_usd, high_usd = (
        "?" if end is None else words(end) for words, pair in both for end in pair
    )
    return low_h, high_h, low_usd, high_usd


def place_of(rent: RentedNodes) -> str:
    """Where nodes are rented, at which price of which day; or whose price it is."""
    kind = "spot, " if rent.spot else ""
    if rent.cloud == "given":
        how = rent.price_source if rent.price_from == "owned" else "as given"
        if rent.price_from == "described":
            how = f"on {rent.price_date}, the {rent.price_source}, in nodes as described"
        return f"{kind}{usd(rent.usd_per_gpu_hour)} a GPU-hour {how}"
    guess = ", its network a guess" if is_guessed(rent) else ""
    return (
        f"{rent.cloud} {rent.region} {rent.instance}, {kind}{usd(rent.usd_per_gpu_hour)} a "
        f"GPU-hour on {rent.price_date}{guess}"
    )


def terms(
    plan: PricedPlan, conditions: Mapping[str, object] | None = None
) -> list["RenderableType"]:
    """The arithmetic of one plan, line by line: each figure follows from those before it."""
    money = plan.money
    assert money is not None and plan.usd is not None
    assert plan.hours is not None and plan.usd_per_hour is not None
    rows = [
        (
            "training",
            f"{tokens(money.tokens)} tokens / {plan.tokens_per_s:,.2f} tokens/s = "
            f"{money.training_hours:,.2f} h",
        ),
        ("goodput", _goodput_words(money)),
        (
            "wall time",
            f"{money.training_hours:,.2f} h / {money.goodput_fraction:.6f} + "
            f"{money.startup_hours:g} h start-up = {plan.hours:,.2f} h",
        ),
        *(
            (
                "owned" if rent.price_from == "owned" else "rent",
                f"{_nodes(rent)} x {usd_rate(rent.node_usd_per_hour)}/h = "
                f"{usd_rate(rent.nodes * rent.node_usd_per_hour)}/h",
            )
            for rent in money.rents
        ),
        *(
            (
                "idle",
                f"{each.count} {each.gpu} of your own x {usd_rate(each.usd_per_gpu_hour)}/h = "
                f"{usd_rate(each.usd_per_hour)}/h: they are paid for all the same",
            )
            for each in money.idle
        ),
        ("", f"{usd_rate(plan.usd_per_hour)}/h x {plan.hours:,.2f} h = {usd(money.rent_usd)}"),
    ]
    if money.storage_usd or money.egress_usd:
        rows += [
            ("storage", _storage_words(plan, conditions) + usd(money.storage_usd)),
            ("egress", _egress_words(plan, conditions) + usd(money.egress_usd)),
            ("in all", usd(plan.usd)),
        ]
    return [titled_line(title, text) for title, text in rows]


def _storage_words(plan: PricedPlan, conditions: Mapping[str, object] | None) -> str:
    """GB, the price of one for a month, and the months."""
    assert plan.hours is not None
    if conditions is None:
        return ""
    months = f"{plan.hours / MONTH_H:.4g} months of {MONTH_H:g} h"
    price = conditions["storage_usd_per_gb_month"]
    return f"{_gb(plan, conditions['storage_bytes'])} GB x ${price:g} x {months} = "


def _egress_words(plan: PricedPlan, conditions: Mapping[str, object] | None) -> str:
    if conditions is None:
        return ""
    price = conditions["egress_usd_per_gb"]
    return f"{_gb(plan, conditions['egress_bytes'])} GB x ${price:g} = "


def _gb(plan: PricedPlan, given_bytes: object) -> str:
    size = given_bytes if isinstance(given_bytes, int | float) else plan.checkpoint_bytes
    return f"{size / GB:,.2f}"


def _nodes(rent: RentedNodes) -> str:
    idle = f", {rent.idle_gpus} idle" if rent.idle_gpus else ""
    if rent.cloud == "given":
        return f"{rent.nodes} node{'s' * (rent.nodes > 1)} ({rent.instance}{idle})"
    return f"{rent.nodes} {rent.instance} ({rent.node_gpus} GPUs{idle})"


def _goodput_words(money: Money) -> str:
    if money.checkpoint_interval_s is None:
        return "100 %: no failures"
    between = 1 / money.failures_per_hour
    return (
        f"{money.goodput_fraction:.2%}: {money.writing_fraction:.2%} writing checkpoints, "
        f"{money.lost_fraction:.2%} work done again, {money.restarting_fraction:.2%} restarting; "
        f"a failure every {hours(between)}, a checkpoint of {seconds(money.checkpoint_s)} every "
        f"{minutes(money.checkpoint_interval_s)}, a restart of {minutes(money.restart_s)}"
    )


def money_parts(answer: AnswerDocument, market: MarketResult) -> list["RenderableType"]:
    """The whole answer, part by part."""
    points = answer.frontier
    best = points[market.chosen - 1]
    picture: list[RenderableType] = [FrontierDrawing(points, market), ""] if len(points) > 1 else []
    return [
        *goal_lines(market, points),
        money_sentence(best),
        interval_sentence(best),
        *beside_answer(answer, market),
        "",
        f"The frontier: {len(points)} plans of which none is both slower and dearer than another"
        if len(points) > 1
        else "The frontier is this plan alone: none is faster, none is cheaper",
        _frontier_table(points, market),
        *below_table(answer, market),
        "",
        *picture,
        *what_if_parts(answer),
        "How the answer comes about",
        *terms(best, market.conditions),
        "",
        *_other_regions(market.elsewhere, best),
        f"Where the time of a step goes (stage {best.parts_stage})",
        time_bars(best),
        "",
        f"Memory of one GPU by stage, GiB of {usable_sizes(best)}",
        memory_bars(best),
        MEMORY_LEGEND,
        *host_lines(best),
        "",
        f"Sources of the answer: {origin_words(best)}.",
        _search_line(answer, market),
        *money_notes(answer, market),
    ]


def money_notes(answer: AnswerDocument, market: MarketResult) -> list[str]:
    """Warnings and notes, a line each, for a terminal and for a page."""
    lines = note_lines(answer, answer.frontier)
    if market.longest_hours:
        lines.append(
            f"note: plans that take longer than {hours(market.longest_hours)} are left out"
        )
    if any(machine.cloud != "given" for machine in market.machines):
        lines.append("note: list prices; a price is no promise of capacity")
    return lines


def goal_lines(market: MarketResult, points: tuple[PricedPlan, ...]) -> list[str]:
    """What the goals come to, before anything else where they cannot be met."""
    outcome = market.wished
    if outcome is None and market.order == "knee" and len(points) > 1:
        return [
            "Without a budget or a deadline, the knee: the best bargain between hours and dollars "
            "(--order cost: the cheapest; --order throughput: the fastest):"
        ]
    if outcome is None or outcome.possible:
        which = {"throughput": "The fastest", "cost": "The cheapest", "knee": "The knee"}
        within = f"within the {outcome.what}" if outcome else "of all"
        if outcome is None and len(points) == 1:
            return ["The fastest and the cheapest:"]
        return [f"{which[market.order]} {within}:"]
    return [_goals_missed(outcome, market, points), f"The nearest{_why_nearest(outcome, market)}:"]


def _why_nearest(outcome: GoalOutcome, market: MarketResult) -> str:
    """Why it is the nearest, where another may be taken for it."""
    budget, deadline = market.budget_usd, market.deadline_hours
    if outcome.also_rank is None or budget is None or deadline is None:
        return ""
    missed = ((outcome.gap_usd or 0) / budget, (outcome.gap_hours or 0) / deadline)
    missed_by_other = (
        (outcome.also_gap_usd or 0) / budget,
        (outcome.also_gap_hours or 0) / deadline,
    )
    if all(missed_by_other) and not all(missed):
        return f", which keeps the {'deadline' if outcome.gap_hours is None else 'budget'}"
    by = "by at most " if all(missed) else "by "
    return f", which misses {by}{max(missed):.1%}, not {max(missed_by_other):.1%}"


def _goals_missed(
    outcome: GoalOutcome, market: MarketResult, points: tuple[PricedPlan, ...]
) -> str:
    """Which goals no plan keeps, what comes nearest, and what it is enough for."""
    budget, deadline = market.budget_usd, market.deadline_hours
    near = points[outcome.rank - 1]
    assert near.usd is not None and near.hours is not None
    if budget is not None and deadline is not None:
        text = f"No plan keeps both {usd(budget)} and {hours(deadline)}. " + _ways_out(
            outcome, points
        )
        goals = "Both are"
    elif budget is not None:
        text = (
            f"No plan costs {usd(budget)} or less: the cheapest costs {usd(near.usd)}, "
            f"{usd(outcome.gap_usd or 0)} more."
        )
        goals = "The budget is"
    else:
        assert deadline is not None
        text = (
            f"No plan is done in {hours(deadline)}: the fastest takes {hours(near.hours)}, "
            f"{hours(outcome.gap_hours or 0)} longer."
        )
        goals = "The deadline is"
    which = "the nearest" if outcome.also_rank is not None else "it"
    if outcome.tokens:
        return f"{text} {goals} enough for {tokens_down(outcome.tokens)} tokens of {which}."
    return f"{text} {goals} not enough to start {which} up."


def _ways_out(outcome: GoalOutcome, points: tuple[PricedPlan, ...]) -> str:
    """The cheapest within the deadline and the fastest within the budget, or what there is."""
    ways = [(outcome.rank, outcome.gap_usd, outcome.gap_hours)]
    if outcome.also_rank is not None:
        ways.append((outcome.also_rank, outcome.also_gap_usd, outcome.also_gap_hours))
    sentences = []
    for rank, dear, late in sorted(ways):  # the faster first
        point = points[rank - 1]
        assert point.usd is not None and point.hours is not None
        costs = f"costs {usd(point.usd)}, {usd(dear)} over the budget" if dear else ""
        takes = f"takes {hours(point.hours)}, {hours(late)} too long" if late else ""
        if not late:
            sentences.append(f"Within the deadline the cheapest {costs}.")
        elif not dear:
            sentences.append(f"Within the budget the fastest {takes}.")
        elif len(ways) == 1:
            sentences.append(f"The one there is {takes}, and {costs}.")
        elif rank == 1:
            sentences.append(f"None keeps the deadline: the fastest {takes}, and {costs}.")
        else:
            sentences.append(f"None keeps the budget: the cheapest {costs}, and {takes}.")
    return " ".join(sentences)


def _frontier_table(points: tuple[PricedPlan, ...], market: MarketResult) -> "RenderableType":
    from astra.report.text_table import TableColumn, TextTable

    columns = (
        *(TableColumn(name) for name in ("rank", "hours", "USD", "$/h", "$/Mtok")),
        TableColumn("good", lesser=True),
        TableColumn("GPUs", right=False, words=True),
        TableColumn("where", right=False, words=True),
    )
    rows = []
    for point in sorted(points, key=lambda each: each.rank):
        money = point.money
        assert money is not None and point.hours is not None
        assert point.usd is not None and point.usd_per_hour is not None
        mark = "*" if point is points[market.chosen - 1] else ""
        rows.append(
            (
                f"{mark}{point.rank}",
                f"{point.hours:,.1f}",
                f"{point.usd:,.0f}",
                f"{point.usd_per_hour:,.2f}",
                f"{money.usd_per_million_tokens:.3f}",
                f"{money.goodput_fraction:.0%}",
                gpus_text(point.gpus),
                " + ".join(dict.fromkeys(_short_place(rent) for rent in money.rents)),
            )
        )
    return TextTable(columns, tuple(rows))


def _short_place(rent: RentedNodes) -> str:
    if rent.cloud == "given":
        if rent.price_from == "described":
            return f"own nodes, list price{' spot' if rent.spot else ''}"
        return "owned" if rent.price_from == "owned" else "as given"
    doubt = "?" if is_guessed(rent) else ""
    return f"{rent.cloud} {rent.region}{doubt}{' spot' if rent.spot else ''}"


def _other_regions(places: tuple[OtherRegion, ...], best: PricedPlan) -> list["RenderableType"]:
    if not places:
        return []
    from astra.report.text_table import TableColumn, TextTable

    assert best.usd is not None and best.money is not None
    has_network = any(rent.nodes > 1 for rent in best.money.rents)  # one node asks for no network
    columns = (
        *(TableColumn(name) for name in ("USD", "more", "$/h", "hours")),
        TableColumn("date", right=False),
        TableColumn("where", right=False, words=True),
    )
    rows = tuple(
        (
            f"{place.usd:,.0f}",
            f"{place.usd / best.usd - 1:+.0%}" if best.usd else "",
            f"{place.usd_per_hour:,.2f}",
            f"{place.hours:,.1f}",
            place.price_date,
            f"{place.cloud} {place.region} {place.instance}{' spot' if place.spot else ''}"
            f"{' ?' if place.network_certainty == 'guessed' and has_network else ''}",
        )
        for place in places
    )
    table = TextTable(columns, rows)
    return ["The same plan on the same machines elsewhere, the cheapest of each cloud", table, ""]


def _search_line(answer: AnswerDocument, market: MarketResult) -> str:
    search = answer.search
    machines = len(market.machines)
    mixed = (
        f"{market.mixtures} mixture{'s' * (market.mixtures > 1)} of GPU types, "
        if market.mixtures
        else ""
    )
    return (
        f"{machines} kind{'s' * (machines > 1)} of machines, {mixed}{search.candidates:,} "
        f"candidates, {search.simulated:,} simulated; {search.seconds:.1f} s."
    )
