"""What is said of a frontier besides its table: how sure the answer is, what its neighbours cost,
why the price jumps, what a guess is worth.
"""

from collections.abc import Sequence
from itertools import pairwise

from astra.cost.result import PricedPlan
from astra.money.chances import Chances
from astra.money.rented import RentedNodes
from astra.recommend.market_result import MarketResult
from astra.report.amounts import DAY_H, gpus_text, hours, usd
from astra.report.document import AnswerDocument, SaferPlan
from astra.report.fit_risk import safe_from

SURE = 0.9  # a chance of keeping the goals from which on no surer plan is named
CHEAPER = 0.9  # of what the next faster plan asks for a day saved, up to which another is named
CLIFF = 0.25  # a step along the frontier that costs more is explained


def is_guessed(rent: RentedNodes) -> bool:
    """One node asks for no network."""
    return rent.network_certainty == "guessed" and rent.nodes > 1


def beside_answer(answer: AnswerDocument, market: MarketResult) -> list[str]:
    """How sure the answer is, what the next plans cost, and what stands beside a guess."""
    points = answer.frontier
    return [
        *_sureness(points, market),
        *_neighbours(points, market),
        *_known_network(points[market.chosen - 1], market),
        *_spot(market),
    ]


def _sureness(points: Sequence[PricedPlan], market: MarketResult) -> list[str]:
    if not market.chances:  # of a file from before
        return []
    own = market.chances[market.chosen - 1]
    parts = [f"fits its GPUs with {own.fits:.0%}"]
    for chance, goal in ((own.deadline, "deadline"), (own.budget, "budget")):
        if chance is not None:
            parts.append(f"keeps the {goal} with {chance:.0%}")
    whole = f", all of it with {own.all:.0%}" if len(parts) > 1 else ""
    return [f"It {_listed(parts)}{whole}.", *_surer(points, market, own)]


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def surer_plan(points: Sequence[PricedPlan], market: MarketResult) -> SaferPlan | None:
    """The plan that surely fits and keeps the goals, where the answer may well not: the fastest
    where that is asked for, else the cheapest.
    """
    pairs = list(zip(points, market.chances, strict=False))  # a file from before has no chances
    sure = [pair for pair in pairs if _kept(pair[1]) >= SURE and pair[1].fits >= safe_from()]
    best = points[market.chosen - 1]
    if not sure or any(point is best for point, _ in sure):
        return None
    point, chances = sure[0] if market.order == "throughput" else sure[-1]  # fastest first
    assert point.usd is not None and point.hours is not None
    assert best.usd is not None and best.hours is not None
    may_miss = _kept(market.chances[market.chosen - 1]) < SURE
    how = f"does with {_kept(chances):.0%}" if may_miss else f"fits with {chances.fits:.0%}"
    return SaferPlan(
        rank=point.rank,
        slower_fraction=point.hours / best.hours - 1,
        more_fraction=point.usd / best.usd - 1 if best.usd else 0.0,
        fit_probability=chances.fits,
        sentence=f"Surer: plan {point.rank}, {usd(point.usd)} in {hours(point.hours)} on "
        f"{gpus_text(point.gpus)}, {how}.",
    )


def _kept(chances: Chances) -> float:
    """How likely the goals are kept; 1 without any."""
    return min(c for c in (chances.deadline, chances.budget, 1.0) if c is not None)


def _surer(points: Sequence[PricedPlan], market: MarketResult, own: Chances) -> list[str]:
    """The surer plan, or that there is none."""
    surer = surer_plan(points, market)
    if surer is not None:
        return [surer.sentence]
    if _kept(own) >= SURE or (market.wished and not market.wished.possible):
        return []
    goals = [chance for chance in (own.deadline, own.budget) if chance is not None]
    return [f"No plan keeps {'them' if len(goals) > 1 else 'it'} with {SURE:.0%}."]


def _neighbours(points: Sequence[PricedPlan], market: MarketResult) -> list[str]:
    """What the next faster plan costs, and the next cheaper one saves."""
    row, lines = market.chosen - 1, []
    if row > 0:
        saved, more = market.next_saves_hours[row], market.next_costs_usd[row]
        lines.append(
            f"{usd(more)} more ends {hours(saved)} sooner: plan {points[row - 1].rank}, on "
            f"{gpus_text(points[row - 1].gpus)}, {usd(more / saved * DAY_H)} for each day saved."
        )
        lines += _cheaper_day(points[row], points[:row], more / saved)
    if row + 1 < len(points):
        longer, less = market.next_saves_hours[row + 1], market.next_costs_usd[row + 1]
        lines.append(
            f"{usd(less)} less ends {hours(longer)} later: plan {points[row + 1].rank}, on "
            f"{gpus_text(points[row + 1].gpus)}, {usd(less / longer * DAY_H)} for each day longer."
        )
    return lines


def _cheaper_day(best: PricedPlan, faster: Sequence[PricedPlan], usd_per_h: float) -> list[str]:
    """Behind a cliff: a plan that is faster still, and saves a day for less than the next one."""

    def costs(point: PricedPlan) -> tuple[float, float]:
        """Dollars more, and hours saved."""
        assert point.usd is not None and best.usd is not None
        assert point.hours is not None and best.hours is not None
        return point.usd - best.usd, best.hours - point.hours

    def rate(point: PricedPlan) -> float:
        more, saved = costs(point)
        return more / saved

    other = min(faster, key=rate)
    if rate(other) > CHEAPER * usd_per_h:
        return []
    more, saved = costs(other)
    return [
        f"A day is saved for least with plan {other.rank}: {usd(more)} more ends {hours(saved)} "
        f"sooner, on {gpus_text(other.gpus)}, {usd(rate(other) * DAY_H)} for each day."
    ]


def _known_network(best: PricedPlan, market: MarketResult) -> list[str]:
    """The best plan whose network somebody tells, where the answer's is a guess."""
    assert best.money is not None
    if not any(map(is_guessed, best.money.rents)):
        return []
    other = market.known_network
    if other is None:
        return ["Its network is a guess, and nobody rents these GPUs on one that is known."]
    assert other.money is not None and other.usd is not None and other.hours is not None
    which = f"plan {other.rank}" if other.rank else "the same layout"
    (first, *_) = other.money.rents
    return [
        f"Its network is a guess. On one that is known {which} costs {usd(other.usd)} in "
        f"{hours(other.hours)}: {gpus_text(other.gpus)} at {first.cloud} {first.region}, "
        f"{first.instance}{'' if other.rank else '; a search there may find better'}."
    ]


def _spot(market: MarketResult) -> list[str]:
    """What spot nodes are taken to do, who says so, and what else may come."""
    spot = market.spot_range
    if spot is None:
        return []
    return [
        f"A spot node is taken to stop once in {1 / spot.assumed_per_hour:,.0f} h (a guess: "
        f"{spot.source}). At once in {1 / spot.low_per_hour:,.0f} h it costs {usd(spot.low_usd)} "
        f"in {hours(spot.low_hours)}, at once in {1 / spot.high_per_hour:,.0f} h "
        f"{usd(spot.high_usd)} in {hours(spot.high_hours)}. --spot-interruptions says it."
    ]


def below_table(answer: AnswerDocument, market: MarketResult) -> list[str]:
    """What the table's marks and ranks mean, and why the price jumps."""
    points, ranked = answer.frontier, len(answer.plans)
    lines = [
        f"* the answer; fastest {market.fastest_rank}, knee {market.knee_rank}, cheapest "
        f"{market.cheapest_rank}; ? a guessed network"
    ]
    if len(points) > 1:
        more = f"; those above {ranked} with --top {len(points)}" if ranked < len(points) else ""
        lines.append(f"rank: what explain, export and predict take as --rank{more}")
    return lines + _cliff(points)


def _cliff(points: Sequence[PricedPlan]) -> list[str]:
    """Why one step along the frontier costs so much, where one does."""
    jumps = [
        (fast.usd / cheap.usd - 1, fast, cheap)
        for fast, cheap in pairwise(points)
        if fast.usd and cheap.usd
    ]
    jump, fast, cheap = max(jumps, key=lambda each: each[0], default=(0.0, None, None))
    if jump < CLIFF or fast is None or cheap is None:
        return []
    (dear_usd, dear_gpus), (usd_per_gpu, gpus) = _per_gpu_hour(fast), _per_gpu_hour(cheap)
    return [
        f"The price jumps by {jump:.0%} from plan {cheap.rank} to plan {fast.rank}: "
        f"{usd(dear_usd)} a GPU-hour instead of {usd(usd_per_gpu)}, for "
        f"{dear_gpus / gpus:.2g} times as many GPU-hours. {_why_cliff(fast, cheap)}"
    ]


def _per_gpu_hour(point: PricedPlan) -> tuple[float, float]:
    """Dollars of a GPU-hour, and GPU-hours."""
    assert point.usd is not None and point.hours is not None
    gpu_hours = point.hours * sum(point.gpus.values())
    return point.usd / gpu_hours, gpu_hours


def _why_cliff(fast: PricedPlan, cheap: PricedPlan) -> str:
    assert fast.money is not None and cheap.money is not None
    own, types = cheap.money.rents[0], fast.gpus.keys() == cheap.gpus.keys()
    if own.spot and not fast.money.rents[0].spot:
        return "From there on nodes are rented on demand, no longer as spot nodes."
    if own.cloud != "given" and own.network_certainty == "guessed" and own.nodes == 1:
        return (
            f"Nothing is published of what joins nodes of {own.cloud} ({own.instance}), so they "
            "are rented one at a time (--join-guessed joins them), and faster plans need dearer "
            "ones."
        )
    if not types:
        return f"It is another GPU type: {gpus_text(fast.gpus)}, not {gpus_text(cheap.gpus)}."
    if _per_gpu_hour(fast)[1] > 1.1 * _per_gpu_hour(cheap)[1]:
        return "The batch is shared by more GPUs, each of which does less of its time."
    return "So many GPUs are only for rent at a higher price."
