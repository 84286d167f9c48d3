"""What a search says: the best plans, where the candidates went, or why nothing fits.

Parts are in the words of the JSON. Notes have codes and numbers; `report` makes the sentences that
stand beside them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from astra.cost.result import MixedStage, PaperComparison, PricedPlan
from astra.hardware.cluster import Gpu
from astra.notes import HEADINGS, Note
from astra.recommend.market_result import MarketResult
from astra.search.query import Query

Status = Literal["proven", "searched", "time_limit", "cancelled"]
# Of mixtures of rented GPU types, whatever they cost: the fastest plan, or None, and the limit that
# it is below. By the margin, the room of a node for offload, and the GPUs.
MixedMachines = tuple[float, float, tuple[tuple[Gpu, int], ...]]
Mixtures = dict[MixedMachines, tuple[float, PricedPlan | None]]


@dataclass(slots=True)
class Funnel:
    """Where the candidates went."""

    candidates: int = 0
    removed_by_rule: dict[str, int] = field(default_factory=dict)
    bounded: int = 0  # cannot beat the best: their layout alone takes longer
    estimated: int = 0  # over several types: by stages and formulas, not as plans
    out_of_memory: int = 0
    priced: int = 0
    simulated: int = 0

    def remove(self, rule: str, count: int) -> None:
        self.removed_by_rule[rule] = self.removed_by_rule.get(rule, 0) + count


def sum_funnels(parts: Iterable[Funnel]) -> Funnel:
    """Where the candidates of several searches went."""
    total = Funnel()
    for part in parts:
        total.candidates += part.candidates
        total.bounded += part.bounded
        total.estimated += part.estimated
        total.out_of_memory += part.out_of_memory
        total.priced += part.priced
        total.simulated += part.simulated
        for rule, count in part.removed_by_rule.items():
            total.remove(rule, count)
    return total


@dataclass(frozen=True, slots=True)
class Progress:
    """Of a search that is under way."""

    candidates: int
    best_step_s: float | None  # None: none fits yet, or several are wanted
    gap_fraction: float | None  # no plan is faster by more; None: not known


class NothingFits(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no plan, the closest one, and what would help."""

    closest: PricedPlan | None
    binding: str = ""  # in words
    tries: tuple[str, ...] = msgspec.field(default=(), name="try")  # in words
    reasons: tuple[Note, ...] = msgspec.field(name="binding_codes")
    suggestions: tuple[Note, ...] = msgspec.field(default=(), name="try_codes")

    @property
    def reason(self) -> Note:
        """What binds; `reasons` may have headings before it: of which type, node or vendor."""
        return next(note for note in self.reasons if note.code not in HEADINGS)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What the best plan over several GPU types is worth."""

    # No pipeline over several types is faster by more; 0: none is; None: not known, or over 10 %.
    gap_fraction: float | None
    alone_step_s: dict[str, float | None]  # the best on each type; None: nothing fits there
    uniform_step_s: float | None = None  # the best uniform plan over several types
    even_split_step_s: float | None  # all GPUs, one tp, equal layers
    runtimes_step_s: dict[str, float | None] = {}  # the best of each; None: over 30 % slower
    pipelines_of: tuple[str, ...] = ()  # runtimes whose pipelines over several types were searched
    idle: dict[str, int]  # GPUs that the best plan leaves alone
    left_out: tuple[str, ...] = ()  # in words
    stages: tuple[MixedStage, ...]
    # With runtime any: the best that a public runtime launches.
    launched_step_s: float | None = None
    types_left_out: tuple[Note, ...] = msgspec.field(default=(), name="left_out_codes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The answer to a query."""

    query: Query
    plans: tuple[PricedPlan, ...]  # best first
    funnel: Funnel
    seconds: float
    fastest_on_paper: PricedPlan | None = None  # of the least step, where risk was weighed
    nothing_fits: NothingFits | None = None
    comparison: Comparison | None = None  # over several GPU types
    paper: tuple[PaperComparison, ...] | None = None  # by the paper's formula, where asked for
    frontier: tuple[PricedPlan, ...] = ()  # of hours and dollars, fastest first, where asked
    market: MarketResult | None = None  # what the money buys
    mixtures: Mixtures | None = None  # that it looked at
    notes: tuple[Note, ...] = ()  # on the question and on the search
    status: Status = "searched"
    # On one type no plan is faster by more, over several no pipeline; None: not usefully known.
    gap_fraction: float | None = None

    @property
    def best(self) -> PricedPlan | None:
        return self.plans[0] if self.plans else None
