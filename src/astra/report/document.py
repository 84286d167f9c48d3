"""An answer in the words of the JSON: a result with its request and its sentences."""

from collections.abc import Sequence

import msgspec

from astra.cost.result import PaperComparison, PricedPlan
from astra.recommend.market_result import AnsweredWhatIf, MarketResult
from astra.report.fit_risk import Risk
from astra.report.request import Request, request_of
from astra.report.words import all_words, joined_words, with_words
from astra.search.result import Comparison, NothingFits, Result, Status


class SearchSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The funnel: how many candidates there were and what became of them."""

    candidates: int
    removed_by_rule: dict[str, int]
    bounded: int  # their layout alone takes longer than the best plans
    estimated: int = 0  # over several types: by stages and formulas, not as plans
    out_of_memory: int
    priced: int
    simulated: int
    seconds: float
    status: Status  # proven: no plan of the space is faster; searched: the best found
    # On one type no plan is faster by more, over several no pipeline; None: not usefully known.
    gap_fraction: float | None
    bound_s: float | None = None  # on one type, for the least step: no plan of the space takes less


class SaferPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that is surer to fit, or to keep the goals, and what it costs."""

    rank: int
    slower_fraction: float  # of the step; with money of the hours
    more_fraction: float  # of what plans are ordered by: the step or energy; with money of dollars
    fit_probability: float
    sentence: str


class EqualPlans(msgspec.Struct, frozen=True, kw_only=True):
    """Plans that cannot be told apart from the fastest."""

    ranks: tuple[int, ...]
    within_fraction: float  # of their steps
    differ_in: tuple[str, ...]
    why: str  # the sentence


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of an answer first."""

    title: str  # in a few words
    sentence: str
    risk: Risk | None  # whether the answer fits; None: there is no plan
    safer: SaferPlan | None = None  # where the answer is not safe; None: none of its plans is
    ties: EqualPlans | None = None


class AnswerDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a search says, in the words of the JSON."""

    request: Request
    search: SearchSummary
    plans: tuple[PricedPlan, ...]
    fastest_on_paper: PricedPlan | None = None  # of the least step, where risk is weighed
    nothing_fits: NothingFits | None = None
    mixed: Comparison | None = None  # over several GPU types
    paper: tuple[PaperComparison, ...] | None = None  # by the paper's formula, where asked for
    frontier: tuple[PricedPlan, ...] = ()  # of hours and dollars, fastest first, where asked
    market: MarketResult | None = None  # what the money buys
    what_if: tuple[AnsweredWhatIf, ...] = ()  # where something was to be different
    headline: Headline | None = msgspec.field(default=None, name="answer")  # made of the rest

    @property
    def best(self) -> PricedPlan | None:
        return self.plans[0] if self.plans else None


def document(result: Result) -> AnswerDocument:
    """The result for people and programs."""
    request = msgspec.structs.replace(
        request_of(result.query), notes=all_words(result.notes), note_codes=result.notes
    )
    funnel = result.funnel
    search = SearchSummary(
        candidates=funnel.candidates,
        removed_by_rule=funnel.removed_by_rule,
        bounded=funnel.bounded,
        estimated=funnel.estimated,
        out_of_memory=funnel.out_of_memory,
        priced=funnel.priced,
        simulated=funnel.simulated,
        seconds=round(result.seconds, 3),
        status=result.status,
        gap_fraction=result.gap_fraction,
        bound_s=_bound_s(result),
    )
    nothing, mixed, market = result.nothing_fits, result.comparison, result.market
    on_paper = result.fastest_on_paper
    return AnswerDocument(
        request=request,
        search=search,
        plans=tuple(map(with_words, result.plans)),
        fastest_on_paper=None if on_paper is None else with_words(on_paper),
        nothing_fits=None if nothing is None else _nothing(nothing),
        mixed=None if mixed is None else _comparison(mixed),
        paper=result.paper,
        frontier=tuple(map(with_words, result.frontier)),
        market=None if market is None else _market(market, result.frontier),
    )


def _bound_s(result: Result) -> float | None:
    """What no plan is faster than; over several types nothing is proven of all of them."""
    best, gap, query = result.best, result.gap_fraction, result.query
    if best is None or gap is None or query.objective != "time" or len(query.cluster.pools) > 1:
        return None
    if result.status != "proven":
        return best.step_s / (1 + gap)
    on_paper = result.fastest_on_paper
    return min(plan.step_s for plan in (*result.plans, *([on_paper] if on_paper else [])))


def _nothing(nothing: NothingFits) -> NothingFits:
    return msgspec.structs.replace(
        nothing,
        closest=None if nothing.closest is None else with_words(nothing.closest),
        binding=joined_words(nothing.reasons),
        tries=all_words(nothing.suggestions),
    )


def _comparison(comparison: Comparison) -> Comparison:
    return msgspec.structs.replace(comparison, left_out=all_words(comparison.types_left_out))


def _market(market: MarketResult, points: Sequence[PricedPlan]) -> MarketResult:
    known, other = market.known_network, market.what_if
    if other is not None and other.plan is not None:
        other = msgspec.structs.replace(other, plan=with_words(other.plan))

    def rank(place: int | None) -> int | None:
        return None if place is None else points[place - 1].rank

    wished = market.wished
    if wished is not None:
        ranks = {"plan_rank": rank(wished.rank), "also_plan_rank": rank(wished.also_rank)}
        wished = msgspec.structs.replace(wished, **ranks)
    names = ("fastest", "cheapest", "knee", "chosen")
    return msgspec.structs.replace(
        market,
        known_network=known and with_words(known),
        what_if=other,
        wished=wished,
        **{f"{name}_rank": rank(getattr(market, name)) for name in names},
    )
