"""What is said of an answer first: the sentence, whether it fits, what is surer, what is equal."""

from collections.abc import Sequence

from astra.cost.result import PricedPlan
from astra.notes import NoteCode, has
from astra.report.amounts import DAY_H, gpus_text, usd
from astra.report.amounts import tokens as token_count
from astra.report.document import AnswerDocument, EqualPlans, Headline, SaferPlan
from astra.report.fit_risk import risk_of, safe_from
from astra.report.frontier_words import surer_plan
from astra.report.money import goal_lines, interval_sentence, money_sentence, run_sentence
from astra.report.priced_plan import seconds, sentence
from astra.report.ranking import as_good, ranking
from astra.search.objectives import OBJECTIVES, Measure
from astra.search.result import NothingFits

DIFFERENCES = {  # of plans, and what people call them
    **{name: name for name in ("tp", "pp", "dp", "vpp", "cp", "ep", "etp")},
    "micro_batch": "micro-batch",
    "sharding": "sharding",
    "recompute": "recompute",
    "offload_optimizer_fraction": "offload",
    "offload_activations": "offloaded activations",
    "offload_layers": "offloaded layers",
    "overlap_ep": "ep-overlap",
    "dispatcher": "dispatcher",
    "gpus": "GPUs",
}


def headline_of(answer: AnswerDocument) -> Headline:
    """The head of an answer; every page of it says it in these words."""
    if answer.nothing_fits is not None:
        said = _nothing_sentence(answer.nothing_fits)
        return Headline(title=said.partition(" Binding")[0], sentence=said, risk=None)
    market, best = answer.market, answer.best
    if market is not None:
        best = answer.frontier[market.chosen - 1]
        lines = [
            *goal_lines(market, answer.frontier),
            money_sentence(best),
            interval_sentence(best),
        ]
        return Headline(
            title=_title(best, market.tokens),
            sentence=" ".join(lines),
            risk=risk_of(best.memory.fit_probability),
            safer=surer_plan(answer.frontier, market),
        )
    assert best is not None
    measure = OBJECTIVES[answer.request.objective].measure
    run = "" if best.money is None else f" {run_sentence(best)}"
    return Headline(
        title=_title(best),
        sentence=f"{sentence(best)}{run}",
        risk=risk_of(best.memory.fit_probability),
        safer=safer_plan(answer.plans, measure),
        ties=equal_plans(answer.plans, measure),
    )


def _title(best: PricedPlan, tokens: float | None = None) -> str:
    """What it takes, and with what."""
    if tokens is None or best.usd is None or best.hours is None or best.usd_per_hour is None:
        return f"{seconds(best.step_s)} a step on {gpus_text(best.gpus)}, with {best.summary}."
    days = best.hours / DAY_H
    time = f"{days:,.3g} days" if days >= 2 else f"{best.hours:.3g} hours"
    return (
        f"{usd(best.usd)} and {time} to train on {token_count(tokens)} tokens with "
        f"{gpus_text(best.gpus)}, {usd(best.usd_per_hour)} an hour."
    )


def _nothing_sentence(nothing: NothingFits) -> str:
    """That there is no plan, and what binds."""
    if has(nothing.reasons, NoteCode.NO_PLAN_YET):
        what = "No plan was found yet."
    else:
        what = "No plan fits." if nothing.closest else "No plan is left."
    return f"{what} Binding: {nothing.binding}."


def safer_plan(plans: Sequence[PricedPlan], measure: Measure | None = None) -> SaferPlan | None:
    """Where the best fills its GPUs to the brim: the best one that is safe."""
    best = plans[0]
    safe = [plan for plan in plans if plan.memory.fit_probability >= safe_from()]
    if best in safe or not safe:
        return None
    other = safe[0]
    slower = more = other.step_s / best.step_s - 1
    costs = f"is {slower:.1%} slower"
    if measure is not None:
        more = measure.of(other) / measure.of(best) - 1
        costs = f"takes {more:.1%} more {measure.noun}"
    chance = other.memory.fit_probability
    return SaferPlan(
        rank=other.rank,
        slower_fraction=slower,
        more_fraction=more,
        fit_probability=chance,
        sentence=f"Safer: plan {other.rank} {costs} and fits with probability {chance:.0%}.",
    )


def equal_plans(plans: Sequence[PricedPlan], measure: Measure | None = None) -> EqualPlans | None:
    """Which of the best cannot be told apart, by their steps or by what they are ordered by."""
    cost_of = measure.of if measure else _step_s
    alike, pair_error = as_good(plans, cost_of), ranking().pair_fraction
    if len(alike) < 2:
        return None
    costs = list(map(cost_of, alike))
    within, differ_in = max(costs) / min(costs) - 1, _differences(alike)
    which = "All of these" if len(alike) == len(plans) else f"{len(alike)} of these"
    noun = f" in {measure.noun}" if measure else ""
    why = (
        f"{which} lie within {within:.1%}{noun} and cannot be told apart: "
        f"predicted ratios of two measured layouts are off by more than {pair_error:.0%} in one "
        f"case of five. They differ in {', '.join(differ_in)}."
    )
    ranks = tuple(plan.rank for plan in alike)
    return EqualPlans(ranks=ranks, within_fraction=within, differ_in=differ_in, why=why)


def _step_s(plan: PricedPlan) -> float:
    return plan.step_s


def _differences(plans: Sequence[PricedPlan]) -> tuple[str, ...]:
    """What plans differ in, in the words of their summaries."""
    return tuple(
        words
        for name, words in DIFFERENCES.items()
        if len({str(getattr(plan.plan, name)) for plan in plans}) > 1
    )
