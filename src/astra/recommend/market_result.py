"""What an answer about money says besides its plans, in the words of the JSON."""

import msgspec

from astra.cost.result import PricedPlan
from astra.money.chances import Chances
from astra.money.goals import GoalOutcome
from astra.money.machines import NodeSummary, OtherRegion


class FrontierPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A point in short: of another frontier, or beaten."""

    summary: str
    gpus: dict[str, int]
    hours: float
    usd: float


class AnsweredWhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The answer if something were different; None: there is nothing to compare."""

    what: str
    plan: PricedPlan | None  # None: nothing fits then
    step_change_fraction: float | None = None
    same_plan: bool = False  # on the same GPUs
    usd_change: float | None = None
    hours_change: float | None = None
    possible: bool = True  # whether goals about money can be met then
    frontier: tuple[FrontierPlan, ...] = ()  # fastest first; where there is one


class SpotRange(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, on spot nodes, where they are taken away as seldom or as often as may be."""

    assumed_per_hour: float  # interruptions of one node
    low_per_hour: float
    high_per_hour: float
    low_hours: float
    low_usd: float
    high_hours: float
    high_usd: float
    source: str


class MarketResult(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the frontier's plans are worth naming: places in the frontier, fastest first,
    counted from 1. A plan's own rank is its place among the plans of the answer.
    """

    tokens: float
    budget_usd: float | None
    deadline_hours: float | None
    order: str  # throughput, cost or knee: which of the plans that meet all goals comes first
    fastest: int
    cheapest: int
    knee: int
    wished: GoalOutcome | None
    chosen: int  # the answer
    next_saves_hours: tuple[float, ...]  # from each point to the next faster one
    next_costs_usd: tuple[float, ...]
    elsewhere: tuple[OtherRegion, ...]  # the chosen plan at other clouds
    beaten: tuple[tuple[float, float], ...]  # hours and dollars of plans simulated, not kept
    beaten_plans: tuple[FrontierPlan, ...] = ()  # the same, each with its plan
    machines: tuple[NodeSummary, ...]
    longest_hours: float  # plans that take longer were left out
    conditions: dict[str, object]
    what_if: AnsweredWhatIf | None = None  # the first of the answer's
    chances: tuple[Chances, ...] = ()  # of each point
    known_network: PricedPlan | None = None  # the best on known networks; where that is a guess
    spot_range: SpotRange | None = None  # where the answer is on spot nodes
    mixtures: int = 0  # of GPU types that were searched
    # The same as ranks, which `explain`, `export` and `predict` take; made by `report`.
    fastest_rank: int = 0
    cheapest_rank: int = 0
    knee_rank: int = 0
    chosen_rank: int = 0
