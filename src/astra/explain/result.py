"""What there is to say about a plan, in the words of the JSON.

Notes have codes and numbers; sentences stand beside them, made by `report`.
"""

import msgspec

from astra.cost.result import MixedStage
from astra.money.price_sensitivity import MoneyDifference, PriceSensitivity
from astra.notes import Note


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """What holds the step up, and what each constraint costs."""

    constraint: str  # plan, memory, network, link, bubble, batch or compute
    sentence: str = ""  # in words
    cost_s: dict[str, float]  # seconds of the step that each of them takes
    filled_fraction: float  # of the memory that a plan may take, on the fullest stage
    fullest_stage: int
    micro_batches: int  # per replica
    stages: int
    fits: bool  # its GPUs
    fits_ram: bool  # of its nodes, as far as it is known
    needed_bytes: float  # of the fullest stage
    usable_bytes: float
    traffic: str | None = None  # of the network or link: the part of the step that is largest


class PlanDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Another plan beside the explained one."""

    rank: int
    summary: str
    gpus: dict[str, int]
    step_s: float
    slower_s: float
    measure: float | None = None  # of a step, of what plans are ordered by; None: by the step
    more_fraction: float  # of the step, or of the measure
    parts_s: dict[str, float]  # what it takes more of each part; they sum to `slower_s`
    parts_stage: int  # its busiest stage, whose parts are compared
    busiest: str = ""  # that stage in words: `stage 3 of 4 on H100-80GB-SXM, the last`
    other_place: bool  # another kind of stage than the explained plan's, so parts shift with it
    busiest_gpu: str
    stages: int  # of the pipeline of the busiest stage


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """Why not the best plan with these settings."""

    settings: tuple[str, ...]
    outcome: str  # rules, memory, time or none
    sentence: str = ""  # in words
    plan: PlanDifference | None = None  # the best one that fits, else the one that comes closest
    rules: dict[str, int] = {}  # how many candidates each rule removes
    needed_bytes: float | None = None
    usable_bytes: float | None = None
    stage: int | None = None
    why: Note | None = msgspec.field(default=None, name="why_code")
    nearest: PlanDifference | None = None  # where none fits: the best with all of them but one


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """What would be if something were different."""

    what: str = ""  # in words
    how: str  # repriced: the same plan; searched: the best plan there
    plan: PlanDifference | None  # None: no plan fits
    same_plan: bool
    key: str = ""  # the change in short: its code, and how many times as much there is
    factor: float | None = None
    step_s: float | None = None  # with it, and less that of the explained plan
    delta_s: float | None = None
    change: Note = msgspec.field(name="what_code")


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of traffic of one GPU of the busiest stage."""

    group: str  # tp, cp, ep, etp, pp, dp, edp (replicas of an expert) or make (of other makes)
    operation: str
    what: str
    ranks: int  # of the group
    payload_bytes: float  # the whole tensor of one exchange
    count: float  # exchanges in a step
    total_bytes: float  # payload x count
    sent_bytes: float  # what one GPU sends of it in a step
    crosses_nodes: bool
    over: str  # link: inside a link domain or node; network: over NICs


class ExplanationDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All that is to say about one plan, in the words of the JSON."""

    rank: int
    summary: str
    model: str
    gpus: dict[str, int]
    step_s: float
    objective: str  # of the searches beside it
    measure: float | None  # of a step, of what that orders plans by; None: by the step
    parts_pipeline: int
    parts_stage: int
    parts_s: dict[str, float]  # kernels by class and all else; they sum to `step_s`
    binding: Binding
    best: PlanDifference | None  # rank 1, where another is explained
    next_plans: tuple[PlanDifference, ...]
    against: Alternative | None
    changes: tuple[WhatIf, ...]
    exchanges: tuple[Exchange, ...]
    stages: tuple[MixedStage, ...]  # over several GPU types: who does what
    notes: tuple[str, ...] = ()  # in words
    prices: tuple[PriceSensitivity, ...] = ()  # of an answer about money
    money: tuple[MoneyDifference, ...] = ()  # its other plans, in hours and dollars
    remarks: tuple[Note, ...] = msgspec.field(default=(), name="note_codes")
