"""What there is to say about a plan, and the plan that it is said of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from astra.cost.price import MARGIN, price_plan
from astra.cost.result import PricedPlan
from astra.search.answer import MixedStage
from astra.search.breakdown import Detail, Exchange, detail_of, parts_s
from astra.strategy.plan import Plan
from astra.strategy.rules.rule import Rule

GIB = 2**30

Say = Callable[[str], None]


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """What holds the step up, and what each constraint costs."""

    constraint: str  # plan, memory, network, link, bubble, batch or compute
    sentence: str
    cost_s: dict[str, float]  # seconds of the step that each of them takes
    filled_fraction: float  # of the memory that a plan may take, on the fullest stage
    fullest_stage: int
    micro_batches: int  # per replica
    stages: int


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Another plan beside the explained one."""

    rank: int
    summary: str
    gpus: dict[str, int]
    step_s: float
    slower_s: float
    parts_s: dict[str, float]  # what it takes more of each part; they sum to `slower_s`
    parts_stage: int  # its busiest stage, whose parts are compared
    busiest: str  # that stage in words: `stage 3 of 4 on H100-80GB-SXM, the last`
    other_place: bool  # another kind of stage than the explained plan's, so parts shift with it


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """Why not the best plan with these settings."""

    settings: tuple[str, ...]
    outcome: str  # rules, memory, time or none
    sentence: str
    plan: Loss | None = None  # the best one that fits, else the one that comes closest
    rules: dict[str, int] = {}  # how many candidates each rule removes
    needed_bytes: float | None = None
    usable_bytes: float | None = None
    stage: int | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What would be if something were different."""

    what: str
    how: str  # repriced: the same plan; searched: the best plan there
    plan: Loss | None  # None: no plan fits
    same_plan: bool


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """The plan that is chosen once a price has moved."""

    summary: str
    gpus: dict[str, int]
    usd: float  # at the prices of today
    hours: float


class PriceMove(msgspec.Struct, frozen=True, kw_only=True):
    """How far the prices of one GPU type must move for the answer to change; None: never."""

    gpu: str
    rise_fraction: float | None
    fall_fraction: float | None
    rise_rival: Rival | None = None
    fall_rival: Rival | None = None
    rival: str | None = None  # of the fall; of the rise, where no fall changes the answer
    rival_gpus: dict[str, int] | None = None
    rival_usd: float | None = None  # at the prices of today
    rival_hours: float | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that is to say about one plan, in the words of the JSON."""

    rank: int
    summary: str
    model: str
    gpus: dict[str, int]
    step_s: float
    parts_pipeline: int
    parts_stage: int
    parts_s: dict[str, float]  # kernels by class and all else; they sum to `step_s`
    binding: Binding
    best: Loss | None  # rank 1, where another is explained
    next_plans: tuple[Loss, ...]
    against: Against | None
    changes: tuple[Change, ...]
    exchanges: tuple[Exchange, ...]
    stages: tuple[MixedStage, ...]  # over several GPU types: who does what
    notes: tuple[str, ...]
    prices: tuple[PriceMove, ...] = ()  # of an answer about money


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the plans of a file were found for, as far as a plan does not say it itself."""

    settings: Sequence[str] = ()
    own_rules: Sequence[Rule] = ()
    margin: float = MARGIN
    use_all: bool = False
    searched: bool = False  # the plans are the best of a search
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The plan that is explained, priced and in detail."""

    plan: Plan
    priced: PricedPlan
    detail: Detail
    parts_s: dict[str, float]
    asked: Asked
    say: Say = field(repr=False)


def subject_of(plan: Plan, asked: Asked, say: Say) -> Subject:
    detail = detail_of(plan)
    return Subject(
        plan=plan,
        priced=price_plan(plan, margin=asked.margin),
        detail=detail,
        parts_s=parts_s(detail),
        asked=asked,
        say=say,
    )


def loss_of(plan: Plan, subject: Subject, rank: int = 0) -> Loss:
    """Another plan, part by part beside the explained one."""
    detail = detail_of(plan)
    step_s, parts = float(detail.step.step_s[0]), parts_s(detail)
    return Loss(
        rank=rank,
        summary=plan.summary(),
        gpus=plan.gpus,
        step_s=step_s,
        slower_s=step_s - subject.priced.step_s,
        parts_s={name: parts[name] - subject.parts_s[name] for name in parts},
        parts_stage=detail.stage,
        busiest=_place(detail),
        other_place=_kind(detail) != _kind(subject.detail),
    )


def _kind(detail: Detail) -> tuple[bool, bool, str]:
    """What its place in the pipeline gives a stage to do: embedding, head, and its GPU."""
    return detail.stage == 0, detail.last, detail.gpu.name


def _place(detail: Detail) -> str:
    stages = detail.plan.pipelines[detail.pipeline].stages
    if stages == 1:
        return f"its one stage, on {detail.gpu.name}"
    ends = ", the first" if detail.stage == 0 else ", the last" if detail.last else ""
    return f"stage {detail.stage} of {stages} on {detail.gpu.name}{ends}"
