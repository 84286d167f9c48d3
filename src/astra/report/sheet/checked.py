"""What a report reads of a file, checked before anything is drawn.

Only what every answer has ever held is asked for: files of earlier versions lack what came later,
and the report goes without it.
"""

from typing import Annotated, Any

import msgspec

from astra.files import convert
from astra.report.svg.priced import Document
from astra.strategy.plan import Plan

Positive = Annotated[float, msgspec.Meta(gt=0)]


class ShownStage(msgspec.Struct, kw_only=True):
    """Memory of a stage, by cause."""

    pipeline: int
    stage: int
    gpu: str
    layers: int
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float
    buffers_bytes: float
    runtime_bytes: float
    slack_bytes: float = 0.0
    usable_bytes: Positive | None = None


class ShownMemory(msgspec.Struct, kw_only=True):
    fits: bool
    fit_probability: float
    allocated_bytes: float
    reserved_bytes: float
    usable_bytes: Positive
    worst_pipeline: int
    worst_stage: int
    stages: Annotated[tuple[ShownStage, ...], msgspec.Meta(min_length=1)]


class ShownSources(msgspec.Struct, kw_only=True):
    """Provenance."""

    measured_fraction: float
    fitted_fraction: float
    guessed_fraction: float
    notes: tuple[str, ...]


class ShownRent(msgspec.Struct, kw_only=True):
    gpu: str
    cloud: str
    region: str
    instance: str
    nodes: int
    usd_per_gpu_hour: float
    price_date: str
    network_certainty: str


class ShownMoney(msgspec.Struct, kw_only=True):
    rents: tuple[ShownRent, ...]
    usd_per_million_tokens: float
    usd_by_cause: dict[str, float] = {}


class ShownPlan(msgspec.Struct, kw_only=True):
    """A priced plan."""

    rank: int
    summary: str
    plan: Plan
    assumed: tuple[str, ...]
    gpus: dict[str, int]
    step_s: Positive
    step_s_low: Positive
    step_s_high: Positive
    step_parts_s: dict[str, float]
    parts_stage: int
    tokens_per_s: Positive
    tokens_per_s_per_gpu: float
    mfu_fraction: float
    memory: ShownMemory
    host_memory_bytes: float
    checkpoint_bytes: float
    provenance: ShownSources
    warnings: tuple[str, ...]
    usd_per_hour: float | None = None
    hours: Positive | None = None
    usd: float | None = None
    money: ShownMoney | None = None


class PaidPlan(ShownPlan, kw_only=True):
    """A point of a frontier: its hours and dollars are known."""

    usd_per_hour: float
    hours: Positive
    usd: float
    money: ShownMoney


class ShownMachine(msgspec.Struct, kw_only=True):
    cloud: str


class ShownMarket(msgspec.Struct, kw_only=True):
    tokens: Positive
    budget_usd: float | None
    deadline_hours: float | None
    fastest: int
    cheapest: int
    knee: int
    chosen: int
    beaten: tuple[tuple[float, float], ...]
    machines: tuple[ShownMachine, ...]
    longest_hours: float


class ShownRequest(msgspec.Struct, kw_only=True):
    model: str
    gpus: dict[str, int]
    global_batch: int
    seq_len: int
    precision: str
    runtime: str
    objective: str
    notes: tuple[str, ...]
    memory_margin: float = 0.0


class ShownSearch(msgspec.Struct, kw_only=True):
    candidates: int
    removed_by_rule: dict[str, int]
    bounded: int
    out_of_memory: int
    priced: int
    simulated: int
    seconds: float
    status: str


class ShownComparison(msgspec.Struct, kw_only=True):
    """Over several GPU types."""

    alone_step_s: dict[str, float | None]
    uniform_step_s: float | None
    even_split_step_s: float | None


class ShownNothing(msgspec.Struct, kw_only=True):
    closest: ShownPlan | None
    binding: str


class ShownBatch(msgspec.Struct, kw_only=True):
    global_batch: int
    summary: str | None
    step_s: Positive | None
    tokens_per_s: Positive | None


class ShownAnswer(msgspec.Struct, kw_only=True):
    """A search result."""

    request: ShownRequest
    search: ShownSearch
    plans: tuple[ShownPlan, ...]
    frontier: tuple[PaidPlan, ...] = ()
    market: ShownMarket | None = None
    mixed: ShownComparison | None = None
    nothing_fits: ShownNothing | None = None
    fastest_on_paper: ShownPlan | None = None
    batches: tuple[ShownBatch, ...] = ()


class ShownMeasurement(msgspec.Struct, kw_only=True):
    """What an imported job measured; what its files do not hold is null."""

    step_s: Positive | None = None
    step_s_low: Positive | None = None
    step_s_high: Positive | None = None
    steps: int | None = None
    tokens_per_s: Positive | None = None
    tokens_per_s_per_gpu: Positive | None = None
    memory_allocated_bytes: Positive | None = None
    memory_reserved_bytes: Positive | None = None


class ShownJob(msgspec.Struct, kw_only=True):
    framework: str
    measured: ShownMeasurement | None = None
    assumed: tuple[str, ...] = ()
    not_understood: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def checked(document: dict[str, Any], where: str) -> Document:
    """The document of an answer, of a priced plan or of a job, after it was checked."""
    kind: type = ShownPlan
    if "plans" in document:
        kind = ShownAnswer
    elif "framework" in document:
        kind = ShownJob
    convert(document, kind, where)
    return document
